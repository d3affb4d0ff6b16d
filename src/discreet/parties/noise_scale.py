"""The noise of a share of a study's budget, from the budget alone: :class:`NoiseScale`.

A study by the recipe spends its budget in stages. Each of the ``steps`` releases of a stage has Gaussian noise, and
the squares of their strengths, the contribution of one record over the noise, may add up to that of the budget (Dong,
Roth, Su 2022), also when shares are chosen along the way (Smith and Thakurta 2022;
:class:`~discreet.ledger.GaussianFilter`). The numbers are those of a fit of one table, so that parties which add up
their sums under one noise give the model that one table would have given.

>>> from discreet.guarantee import Budget
>>> scale = NoiseScale.of(Budget(1.0, 1e-6, "add-remove"))
>>> scale.event(share=0.5, steps=2).noise_multiplier == scale.event(share=0.25, steps=1).noise_multiplier
True
"""

from __future__ import annotations

import math
from typing import NamedTuple

from discreet.accounting.gaussian import gaussian_mu
from discreet.core.noise import SPARED_DELTA_OF_FIT, grid_for
from discreet.errors import InvalidParameter, real
from discreet.events import Gaussian
from discreet.guarantee import Budget

_MARGIN = 1 + 1e-11  # on every noise multiplier: more than the sums of shares can be off by
_MOST_RECORDS, _FEWEST_RECORDS = 2**30, 2**20
_RELEASES, _DIMENSION = (
    2**7,
    2**16,
)  # that the grid is made for; what is finer than the distance allows is refused


class NoiseScale(NamedTuple):
    """``gdp_mu`` is the contribution of one record over the noise, if one release spends the whole budget.

    Integer sums hold ``most_records``. ``distance`` is how far all noise together may be from continuous noise, in
    total variation, for the part of delta that is held back.
    """

    gdp_mu: float
    most_records: int
    distance: float

    @classmethod
    def of(cls, budget: Budget) -> NoiseScale:
        """The scale of a budget."""
        delta = real("delta", budget.delta, at_least=1e-300, at_most=0.5)
        gdp_mu = gaussian_mu(budget.epsilon, delta * (1 - SPARED_DELTA_OF_FIT)) / budget.reach / _MARGIN
        spared = SPARED_DELTA_OF_FIT * delta
        distance = spared / (1 + math.exp(min(budget.epsilon, 700.0))) * (1 - 1e-10)
        steps = math.sqrt(math.sqrt(_DIMENSION) / max(24 * distance / _RELEASES, 1e-300))
        most_records = int(2.0**59 / gdp_mu / steps)
        if not 1e-8 <= gdp_mu <= 1e4 or steps > 2.0**38 or most_records < _FEWEST_RECORDS:
            needed = "is beyond what integer noise can protect at this delta; choose another one."
            raise InvalidParameter("epsilon", budget.epsilon, needed)
        return cls(gdp_mu, min(most_records, _MOST_RECORDS), distance)

    def event(self, share: float, steps: int) -> Gaussian:
        """Each of ``steps`` releases that spend a share of the budget together."""
        return Gaussian(math.sqrt(steps / share) / self.gdp_mu * _MARGIN)

    def grid(self, event: Gaussian, bound: float) -> float:
        """The steps in which a sum of this sensitivity is counted."""
        return grid_for(event, bound, self.most_records)
