"""The noise of one release within a budget, and what a private result is.

>>> event = gaussian_event(Budget(epsilon=1.0, delta=1e-6))
>>> event, certified_cost(event, Budget(1.0, 1e-6)).epsilon.upper <= 1.0
(Gaussian(noise_multiplier=4.2...), True)

Events count noise in units of what one record may add, and exchanging a record removes one contribution and
adds another. So under replace-one neighbours the sensitivity stands for two contributions of half its size;
the noise is the same.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.curve import account
from discreet.accounting.gaussian import gaussian_mu
from discreet.accounting.noise_formulas import laplace_noise
from discreet.errors import BudgetExceeded, InvalidParameter, real
from discreet.events import Event, Gaussian, Laplace
from discreet.guarantee import Budget, Guarantee

Arithmetic = Literal["float", "hardened"]

_MARGIN = 1 + 1e-11  # over the least noise: more than calibration and accounting can disagree by


@dataclass(frozen=True, eq=False)
class Release:
    """A private result and what it cost.

    ``event`` is what an accountant needs to add this release to others. ``guarantee`` holds for real numbers
    if ``arithmetic`` is ``"float"``, and for the bits of ``value`` if it is ``"hardened"``. It is void if
    ``trusted`` is False: then a seed made the noise.
    """

    value: float | NDArray[np.float64]
    event: Event
    guarantee: Guarantee
    arithmetic: Arithmetic
    trusted: bool


DELTA_REMEDY = "Gaussian noise needs a delta above 0, well below 1 / number of records; or use Laplace noise."


def laplace_event(budget: Budget) -> Laplace:
    """The least Laplace noise for one release within ``budget``, its delta left aside.

    Guarantee: one release of this event, on its own, is proved to stay within the budget.
    """
    return Laplace(budget.reach * laplace_noise(budget.epsilon) * _MARGIN)


def gaussian_event(budget: Budget) -> Gaussian:
    """The least Gaussian noise for one release within ``budget``.

    Guarantee: one release of this event, on its own, is proved to stay within the budget.
    """
    delta = real("delta", budget.delta, at_least=1e-300, at_most=0.5, remedy=DELTA_REMEDY)
    mu = gaussian_mu(budget.epsilon, delta)
    if not 1e-8 <= mu / _MARGIN <= 1e4:
        remedy = "is beyond what can be certified for Gaussian noise; choose it between 1e-6 and 1e6."
        raise InvalidParameter("epsilon", budget.epsilon, remedy)
    return Gaussian(budget.reach / mu * _MARGIN)


def certified_cost(event: Event, budget: Budget, spare_delta: float = 0.0) -> Guarantee:
    """What ``event`` is proved to cost, at the budget's delta; at 0 where all noise is Laplace noise.

    ``spare_delta`` is kept back for whatever the event does not cover.

    Guarantee: the result is within the budget, or :class:`BudgetExceeded` is raised.
    """
    pure = all(isinstance(part, Laplace) for part, _ in event.parts())
    delta = 0.0 if pure else budget.delta
    curve = account(event, budget.neighbours, budget.group_size)
    guarantee = replace(curve.guarantee(delta - (0.0 if pure else spare_delta)), delta=delta)
    if not guarantee.within(budget):
        raise BudgetExceeded(f"{event} would cost {guarantee}, which exceeds {budget}; nothing was released.")
    return guarantee


_MOVED = "discreet.statistics.noise_mechanisms"


def __getattr__(name: str) -> Any:
    if name not in ("gaussian_mechanism", "laplace_mechanism"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{name} moves to {_MOVED} and goes here in 0.4: write `from discreet import {name}`.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(import_module(_MOVED), name)
