"""Output and objective perturbation: minimise once, with noise on the answer or in the question.

Both need a convex loss of bounded slope, rows of bounded norm (they are scaled down to it), and a regularisation
that makes the risk strongly convex. With L the longest gradient of a record, B the largest eigenvalue of its Hessian
and Lambda = n * regularisation:

**Output perturbation** (Chaudhuri, Monteleoni, Sarwate 2011). Adding a record moves the minimiser by L / Lambda at
most; so release it with Gaussian noise. If the gradient at the computed minimiser has norm at most tau, the two
differ by tau / Lambda at most, so the sensitivity is (L + 2 tau) / Lambda.

**Objective perturbation** (Chaudhuri et al. 2011; Kifer, Smith, Thakurta 2012). Minimise the sum plus a random linear
function. The answer is private if it is the exact minimiser; what stopping and rounding leave over is hidden by a
second, much smaller noise. :mod:`discreet.lecture.perturbation` tells what both cost together.

>>> from discreet import Budget
>>> from discreet.lecture import private_minimiser
>>> from discreet.linear.losses import Logistic
>>> rng = np.random.default_rng(0)
>>> X, budget = rng.normal(size=(3000, 2)), Budget(1.0, 1e-6, neighbours="replace-one")
>>> y = X[:, 0] + 0.3 * rng.normal(size=3000) > 0
>>> method = "objective-perturbation"
>>> private_minimiser(Logistic(), X, y, budget, row_bound=2.0, method=method).guarantee.within(budget)
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from discreet.accounting.gaussian import gaussian_delta_bounds
from discreet.core.mechanisms import certified_cost, gaussian_event, laplace_event
from discreet.core.noise import BoundedSum, add_noise
from discreet.errors import InvalidParameter, real
from discreet.events import Gaussian
from discreet.guarantee import Budget, Neighbours
from discreet.lecture.release import LinearRelease, black_box
from discreet.lecture.risk import EmpiricalRisk, MinimiserRequest
from discreet.statistics.mean.error_bounds import deviation
from discreet.trusted.permits import StepNoise

# What objective perturbation costs, and the least noise for a budget: :class:`ObjectiveNoise`.
#
# Minimise ``sum of losses + Lambda/2 |theta|^2 + <b, theta>`` with Gaussian b of deviation sigma. The exact minimiser
# is a one-to-one function of b, so its density is known. Between two tables the privacy loss at theta is
#
#     log of the ratio of the Hessians' determinants  +  (|b + g|^2 - |b|^2) / (2 sigma^2)
#
# where b is normal and g is the difference of the two gradients at theta. Three facts bound it:
#
# 1. The Hessians differ by matrices of rank one with eigenvalue at most B, and are at least Lambda. So the first term
#    is at most c = log(1 + B / Lambda), for exchanged records too.
# 2. In a linear model the gradient of a record is a(theta) x: its length depends on theta, hence on b, but its line
#    does not. The second term is convex in the numbers a, so it is largest at a corner of what they can be, and at a
#    corner g does not depend on b: there the term is the privacy loss of a Gaussian release of strength |g| / sigma.
# 3. A largest value over corners counts at most as much as all corners together.
#
# With L the longest gradient of a record, G(e; m) the delta at e of a Gaussian release of strength m, and
# e = epsilon - c, delta is at most the sum over the corners of G(e; their strength). They are, for s = L / sigma:
#
# =============  ==================  ================================================================================
# neighbours     one-sided loss      other losses
# =============  ==================  ================================================================================
# add-remove     0, s                s, s
# replace-one    0, s, s, at most    p, p, q, q with p^2 + q^2 <= (2 s)^2: at most 0, 0, 2s, 2s, since G is convex
#                2 s                 in the squared strength m^2 as long as e >= m sqrt(1 + m^2 / 4)
# =============  ==================  ================================================================================
#
# A loss is one-sided if it only rises or only falls with the score (logistic, hinge): then a keeps its sign. This
# refines Redberg, Koskela, Wang (2023), who have the two corners of the upper right cell for every loss.
#
# What is released is the computed minimiser. It is off by a vector of norm at most ``tolerance / Lambda``, hidden by
# a second Gaussian release of a tenth of the strength, o; every strength m above then becomes hypot(m, o).


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


def output_perturbation(problem: MinimiserRequest) -> LinearRelease:
    """The minimiser of the regularised risk, with noise.

    A budget with delta 0 gets Laplace noise.

    Guarantee: ``result.guarantee``, within the budget, whatever the rows hold, for real numbers, if the stream is
    trusted and the minimiser is found to its tolerance.
    """
    budget, (setting, table) = problem.budget, problem.pose()
    noise = laplace_event(budget) if budget.delta == 0 else gaussian_event(budget)
    # An l1 norm is at most sqrt(dimension) times the l2 norm.
    widening = math.sqrt(setting.dimension) * (1 + 1e-12) if budget.delta == 0 else 1.0

    def sensitivity(strength: float) -> float:
        pull = setting.lipschitz + 2 * setting.tolerance(strength)
        return widening * pull / (setting.records * strength) * (1 + 1e-12)

    def excess(strength: float) -> float:
        spread = deviation(noise) * sensitivity(strength)
        curvature = setting.smoothness + strength
        return setting.bias(strength) + curvature * setting.dimension * spread**2 / 2

    strength = problem.strength(setting, excess)
    settings = setting.describe("output-perturbation", strength)
    guarantee = certified_cost(noise, budget)
    permit = problem.charge(StepNoise.of_event(noise), sensitivity(strength), guarantee, settings)
    untilted = np.zeros(setting.dimension)
    minimiser = EmpiricalRisk(setting, table, strength).minimiser(untilted, setting.tolerance(strength))
    norm: Literal["l2", "l1"] = "l1" if budget.delta == 0 else "l2"
    value = permit.release(BoundedSum(minimiser, sensitivity(strength), norm))
    return LinearRelease(value, noise, guarantee, "float", problem.stream.trusted, excess(strength), settings)


def objective_perturbation(problem: MinimiserRequest) -> LinearRelease:
    """The minimiser of the regularised risk plus a random linear function.

    Guarantee: ``result.guarantee``, within the budget, whatever the rows hold, for real numbers, if the stream is
    trusted and the minimiser is found to its tolerance.
    """
    budget, (setting, table) = problem.budget, problem.pose()
    if budget.group_size != 1:
        remedy = "must be 1: the analysis is for single records; divide the budget, or use descent."
        raise InvalidParameter("group_size", budget.group_size, remedy)
    real("delta", budget.delta, above=0, at_most=0.5, remedy="Gaussian noise needs a delta above 0.")

    one_sided, event = problem.loss.one_sided, black_box(budget, budget.delta)
    wish = replace(budget, epsilon=event.epsilon)

    def noise_at(strength: float) -> ObjectiveNoise:
        return ObjectiveNoise.within(wish, setting.smoothness / (setting.records * strength), one_sided)

    def excess(strength: float) -> float:
        noise, off = noise_at(strength), setting.tolerance(strength)
        pull = math.sqrt(setting.dimension) * noise.noise_multiplier * setting.lipschitz + off
        inner = pull**2 / (2 * setting.records**2 * strength)
        spread = noise.output.noise_multiplier * off / (setting.records * strength)
        outer = (setting.smoothness + strength) * setting.dimension * spread**2 / 2
        return setting.bias(strength) + inner + outer

    least = setting.smoothness / math.expm1(min(budget.epsilon / 2, 50.0)) / setting.records
    strength = problem.strength(setting, excess, least)
    noise = noise_at(strength)
    settings = setting.describe("objective-perturbation", strength)
    guarantee = certified_cost(event, budget)
    choice = StepNoise.of_choice(event, "objective perturbation")
    stream = problem.charge(choice, None, guarantee, settings).randomness()
    nothing = BoundedSum(np.zeros(setting.dimension), setting.lipschitz)
    tilt = add_noise(nothing, Gaussian(noise.noise_multiplier), stream)
    risk, off = EmpiricalRisk(setting, table, strength), setting.tolerance(strength)
    minimiser = BoundedSum(risk.minimiser(tilt, off), off / risk.convexity)
    value = add_noise(minimiser, noise.output, stream)
    return LinearRelease(value, event, guarantee, "float", problem.stream.trusted, excess(strength), settings)
