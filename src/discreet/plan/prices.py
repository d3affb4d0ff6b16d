"""The price of a step, of a clip norm, and of the noise: what theory says before anything is trained.

Prices are exact or upper bounds; bounds on the error of a model hold under the assumptions that they carry with
them and are no promise about your data.

>>> for price in price_of_steps(records=1000, budget=Budget(1.0, 1e-5, "replace-one"), steps=[1, 100]):
...     print(price.steps, round(price.basic, 5), round(price.advanced, 5), round(price.exact, 5))
1 0.00969 0.00969 0.00746
100 1.14337 0.58836 0.07461

So 100 steps need 118 times the noise of one by basic composition, and 10 times when accounted for exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import brentq

from discreet.accounting.gaussian import gaussian_mu
from discreet.accounting.noise_formulas import analytic_gaussian_noise
from discreet.core.clipping import clip_norm_of
from discreet.errors import InvalidParameter, UnsupportedEvent, real, whole
from discreet.events.common import MAX_COUNT
from discreet.guarantee import Budget
from discreet.plan.plan import checked_budget
from discreet.plan.stage import Stage


class StepPrice(NamedTuple):
    """Noise on each coordinate of the average over all records, for that many full-batch steps.

    ``basic`` splits the budget over the steps by basic composition and uses textbook noise in each;
    ``advanced`` by advanced or basic composition, whichever is better; ``exact`` uses that all Gaussian steps
    are one Gaussian release.
    """

    steps: int
    basic: float
    advanced: float
    exact: float


def price_of_steps(
    records: int, budget: Budget, steps: Iterable[int], clip_norm: float = 1.0
) -> list[StepPrice]:
    """Noise against the number of steps, by three accountings.

    Guarantee: noise of each of the three sizes makes that many steps stay within the budget.
    """
    unit = (
        clip_norm_of("clip_norm", clip_norm) * _sensitivity(budget) / _records(records, budget) * (1 + 1e-13)
    )
    mu = gaussian_mu(budget.epsilon, budget.delta)
    prices = []
    for count in (whole("steps", count, at_least=1, at_most=MAX_COUNT) for count in steps):
        basic = _textbook_noise(budget.epsilon / count, budget.delta / count)
        advanced = _textbook_noise(_advanced_share(budget, count), budget.delta / (2 * count))
        exact = math.sqrt(count) / mu
        prices.append(StepPrice(count, unit * basic, unit * min(basic, advanced), unit * exact))
    return prices


def _textbook_noise(epsilon: float, delta: float) -> float:
    """sqrt(2 ln(1.25/delta)) / epsilon, a theorem below epsilon 1; beyond, the exact curve has the last word."""
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    return classic if epsilon < 1 else max(classic, analytic_gaussian_noise(epsilon, delta))


def _advanced_share(budget: Budget, steps: int) -> float:
    """The epsilon of a step such that ``steps`` of them compose to the budget, at half of its delta."""

    def excess(share: float) -> float:
        deviation = share * math.sqrt(2 * steps * math.log(2 / budget.delta))
        return steps * share * math.tanh(share / 2) + deviation - budget.epsilon

    return float(brentq(excess, 0.0, budget.epsilon, xtol=1e-300, rtol=1e-14)) * (1 - 1e-12)


class ClipPrice(NamedTuple):
    """The mean squared error of a private mean, at most, and what it is made of."""

    clip_norm: float
    sampling: float
    bias: float
    noise: float

    @property
    def total(self) -> float:
        """Bound on the expected squared distance from the true mean."""
        return self.sampling + self.bias + self.noise


def price_of_clip(
    records: int, dimension: int, second_moment: float, budget: Budget, clip_norms: Iterable[float]
) -> list[ClipPrice]:
    """The U-shaped error of a private mean against the clip norm: too short is biased, too long is noisy.

    For independent records with E[|x|^2] at most ``second_moment``^2 (a public number):

        error <= second_moment^2 / n + second_moment^4 / (16 clip^2) + dimension noise^2

    The first term is that of any mean, the second the bias of clipping (sharp), the third the noise of one
    Gaussian release within the budget.
    """
    moment, unit = _mean_setting(records, dimension, second_moment, budget)
    return [
        ClipPrice(clip, moment**2 / records, moment**4 / (16 * clip**2), (unit * clip) ** 2)
        for clip in (real("clip_norms", clip, above=0) for clip in clip_norms)
    ]


def best_clip_norm(records: int, dimension: int, second_moment: float, budget: Budget) -> float:
    """The clip norm at the bottom of :func:`price_of_clip`, where bias and noise are equal.

    >>> round(best_clip_norm(10_000, 10, 1.0, Budget(1.0, 1e-5, "replace-one")), 4)
    10.2935
    """
    moment, unit = _mean_setting(records, dimension, second_moment, budget)
    return moment / (2 * math.sqrt(unit))


def _mean_setting(records: int, dimension: int, second_moment: float, budget: Budget) -> tuple[float, float]:
    """The second moment, and the root mean squared noise for a clip norm of 1."""
    dimension = whole("dimension", dimension, at_least=1)
    noise = _sensitivity(budget) / gaussian_mu(budget.epsilon, budget.delta) / _records(records, budget)
    return real("second_moment", second_moment, above=0), noise * math.sqrt(dimension)


@dataclass(frozen=True)
class Convexity:
    """Public knowledge about a convex problem, for :func:`risk_bound`.

    ``distance`` bounds the length of the best parameters less the starting point. ``dimension`` is the number
    of parameters; for generalised linear models without strong convexity, the rank of the data suffices (Song et
    al. 2021). ``strong`` is the strong convexity of the mean loss, 0 if there is none to count on.
    """

    distance: float
    dimension: int
    strong: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", real("distance", self.distance, above=0))
        object.__setattr__(self, "dimension", whole("dimension", self.dimension, at_least=1))
        object.__setattr__(self, "strong", real("strong", self.strong, at_least=0))


class ExcessRiskBound(NamedTuple):
    """A bound on the expected excess of the mean training loss, the first step size, and when it holds."""

    excess_risk: float
    step_size: float
    assumptions: str


def risk_bound(stage: Stage, problem: Convexity) -> ExcessRiskBound:
    """Expected excess training loss of averaged noisy gradient descent by ``stage``, at most.

    With G^2 = second moment of a noisy averaged gradient = clip^2 (1 + (1 - rate) / batch) + dimension noise^2:

    * convex: distance G / sqrt(steps), for the constant step size distance / (G sqrt(steps)) and the plain
      average of the iterates before each step (for models of rank r, r counts as dimension: Song et al. 2021);
    * strongly convex: 2 G^2 / (strong (steps + 1)), for step sizes 2 / (strong (t + 1)) and the average
      weighted by t (Lacoste-Julien, Schmidt, Bach 2012); the smaller of the two is returned.

    It holds if no gradient is longer than the clip norm, or else for the loss whose gradients are the clipped
    ones, and if the declared number of records is the true one.
    """
    if stage.sampling == "random-allocation":
        raise UnsupportedEvent(
            "steps of random allocation depend on one another, so no bound of this kind is known; use "
            "sampling='poisson', 'fixed-size' or 'full-batch' to predict the risk."
        )
    square = (
        stage.clip_norm**2 * (1 + _batch_variance(stage)) + problem.dimension * stage.noise_std_of_mean**2
    )
    convex = problem.distance * math.sqrt(square / stage.steps)
    strong = 2 * square / (problem.strong * (stage.steps + 1)) if problem.strong else math.inf
    common = "convex loss, gradients within the clip norm, true number of records declared"
    if strong < convex:
        schedule = f"strongly convex ({problem.strong:g}), step sizes 2 / ({problem.strong:g} (t + 1))"
        return ExcessRiskBound(strong, 1 / problem.strong, f"{common}, {schedule}, average weighted by t")
    size = problem.distance / math.sqrt(square * stage.steps)
    return ExcessRiskBound(
        convex, size, f"{common}, optimum within {problem.distance:g} of the start, plain average"
    )


def _batch_variance(stage: Stage) -> float:
    """How much a batch adds to the squared length of the mean gradient, in units of the clip norm's square."""
    if stage.rate == 1:
        return 0.0
    correction = stage.records / (stage.records - 1) if stage.sampling == "fixed-size" else 1.0
    return (1 - stage.rate) / stage.divisor * correction


def _sensitivity(budget: Budget) -> float:
    """How far neighbours can move a sum, in units of the clip norm."""
    if not isinstance(budget, Budget):
        raise InvalidParameter(
            "budget", budget, "must be a Budget, for instance Budget(epsilon=1.0, delta=1e-6)."
        )
    return float(budget.reach)


def _records(records: int, budget: Budget) -> int:
    records = whole("records", records, at_least=1)
    checked_budget(budget, records)
    return records
