"""What objective perturbation costs, and the least noise for a budget: :class:`ObjectiveNoise`.

Minimise ``sum of losses + Lambda/2 |theta|^2 + <b, theta>`` with Gaussian b of deviation sigma. The exact minimiser
is a one-to-one function of b, so its density is known. Between two tables the privacy loss at theta is

    log of the ratio of the Hessians' determinants  +  (|b + g|^2 - |b|^2) / (2 sigma^2)

where b is normal and g is the difference of the two gradients at theta. Three facts bound it:

1. The Hessians differ by matrices of rank one with eigenvalue at most B, and are at least Lambda. So the first term
   is at most c = log(1 + B / Lambda), for exchanged records too.
2. In a linear model the gradient of a record is a(theta) x: its length depends on theta, hence on b, but its line
   does not. The second term is convex in the numbers a, so it is largest at a corner of what they can be, and at a
   corner g does not depend on b: there the term is the privacy loss of a Gaussian release of strength |g| / sigma.
3. A largest value over corners counts at most as much as all corners together.

With L the longest gradient of a record, G(e; m) the delta at e of a Gaussian release of strength m, and
e = epsilon - c, delta is at most the sum over the corners of G(e; their strength). They are, for s = L / sigma:

=============  ==================  ================================================================================
neighbours     one-sided loss      other losses
=============  ==================  ================================================================================
add-remove     0, s                s, s
replace-one    0, s, s, at most    p, p, q, q with p^2 + q^2 <= (2 s)^2: at most 0, 0, 2s, 2s, since G is convex
               2 s                 in the squared strength m^2 as long as e >= m sqrt(1 + m^2 / 4)
=============  ==================  ================================================================================

A loss is one-sided if it only rises or only falls with the score (logistic, hinge): then a keeps its sign. This
refines Redberg, Koskela, Wang (2023), who have the two corners of the upper right cell for every loss.

What is released is the computed minimiser. It is off by a vector of norm at most ``tolerance / Lambda``, hidden by a
second Gaussian release of a tenth of the strength, o; every strength m above then becomes hypot(m, o).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from discreet.accounting.gaussian import gaussian_delta_bounds
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.guarantee import Budget, Neighbours

_OUTPUT_SHARE = 0.1  # of the strength of the noise inside, for the release of the computed minimiser
_UP, _DOWN = 1 + 1e-12, 1 - 1e-12


@dataclass(frozen=True)
class ObjectiveNoise:
    """Noise inside the objective and on its minimiser.

    ``noise_multiplier`` is the standard deviation of b over the longest gradient of a record; ``determinant`` is c.
    """

    noise_multiplier: float
    determinant: float
    neighbours: Neighbours
    one_sided: bool

    @property
    def output(self) -> Gaussian:
        """The release of the computed minimiser, in units of its largest error. Two errors differ by two units."""
        return Gaussian(2 * self.noise_multiplier / _OUTPUT_SHARE)

    def delta(self, epsilon: float) -> float:
        """Guarantee: both releases together are (epsilon, delta)-DP with this delta."""
        room = (epsilon - self.determinant) * _DOWN
        if not room > 0:
            return 1.0
        hidden = _OUTPUT_SHARE / self.noise_multiplier

        def corner(gradients: float) -> float:
            strength = math.hypot(gradients / self.noise_multiplier, hidden) * _UP
            return gaussian_delta_bounds(room, strength).upper

        if self.neighbours == "add-remove":
            total = corner(0) + corner(1) if self.one_sided else 2 * corner(1)
        elif self.one_sided:
            total = corner(0) + 2 * corner(1) + corner(2)
        else:
            strongest = math.hypot(2 / self.noise_multiplier, hidden) * _UP
            convex = room >= strongest * math.sqrt(1 + strongest**2 / 4) * _UP
            total = 2 * corner(2) + 2 * corner(0 if convex else 2)
        return min(1.0, total * _UP)

    @classmethod
    @lru_cache(maxsize=4096)
    def within(cls, budget: Budget, curvature_ratio: float, one_sided: bool) -> ObjectiveNoise:
        """The least noise within ``budget``; ``curvature_ratio`` is B / Lambda.

        Guarantee: ``result.delta(budget.epsilon) <= budget.delta``.
        """
        determinant = math.log1p(curvature_ratio) * _UP
        if not determinant < budget.epsilon:
            least = f"{1 / math.expm1(min(budget.epsilon, 50.0)):.3g} * curvature of a record / records"
            raise InvalidParameter("regularisation", "too small", f"must be above {least}.")

        def fits(log_noise: float) -> bool:
            noise = cls(math.exp(log_noise), determinant, budget.neighbours, one_sided)
            return noise.delta(budget.epsilon) <= budget.delta

        low, high = math.log(1e-2), math.log(1e7)
        if not fits(high):
            raise InvalidParameter(
                "epsilon", budget.epsilon, "is too small to be certified, or the regularisation."
            )
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return cls(math.exp(high), determinant, budget.neighbours, one_sided)
