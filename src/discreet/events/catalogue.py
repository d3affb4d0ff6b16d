"""More of what is released: mechanisms of the literature, and black boxes that come with a Renyi curve.

>>> survey = RandomisedResponse(epsilon=1.0, categories=5)
>>> choice = BoundedRange(epsilon=0.1)  # the exponential mechanism
>>> Event.from_json((survey + choice).to_json()) == survey + choice
True
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

from discreet.errors import InvalidParameter, real, whole
from discreet.events.common import ApproximateDP, Event, as_event, checked_noise, event

positive = partial(real, above=0)
_records = partial(whole, at_least=1, at_most=10**15)
_integer_sensitivity = partial(whole, at_least=1, at_most=10_000)


def _reals(name: str, values: object, **limits: float) -> tuple[float, ...]:
    if not isinstance(values, tuple | list):
        raise InvalidParameter(name, values, "must be a tuple of numbers.")
    return tuple(real(name, value, **limits) for value in values)  # type: ignore[arg-type]


def _refuse_disorder(name: str, values: tuple[float, ...], otherwise: str) -> None:
    """Raise unless there are values and they increase."""
    if not values or any(low >= high for low, high in pairwise(values)):
        raise InvalidParameter(name, values, otherwise)


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidParameter(name, value, "must be True or False.")


@event("zero-concentrated-dp", rho=partial(real, at_least=0))
class ZeroConcentratedDP(Event):
    """A black box known only to be rho-zCDP, for the neighbours it will be accounted under (Bun, Steinke 2016)."""

    rho: float


@event("renyi-dp", orders=partial(_reals, above=1, at_most=1e6), values=partial(_reals, at_least=0))
class RenyiDP(Event):
    """A black box of which Renyi divergences are known: at most ``values[i]`` at order ``orders[i]`` > 1.

    The bounds hold for the neighbours it will be accounted under, in both directions.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_disorder("orders", self.orders, "must increase, and there must be one.")
        if len(self.values) != len(self.orders):
            raise InvalidParameter("values", self.values, f"must be {len(self.orders)}, one for each order.")


@event("bounded-range", epsilon=positive)
class BoundedRange(Event):
    """A release whose privacy losses, for any two neighbours, all lie in some interval of this length.

    The exponential mechanism with weights exp(epsilon quality / (2 sensitivity)) is one, and so is its equal: report
    which of several values is largest with Gumbel noise. It is epsilon-DP, and costs less than that (Dong, Durfee,
    Rogers 2020).
    """

    epsilon: float


@event(
    "randomised-response", epsilon=partial(real, above=0, at_most=700), categories=partial(whole, at_least=2)
)
class RandomisedResponse(Event):
    """Every record reports its category: the true one e^epsilon times as likely as any of the others.

    The reports themselves show who answered, so this event is accounted under replace-one neighbours.
    """

    epsilon: float
    categories: int = 2


@event("discrete-laplace", scale=partial(real, at_least=0), sensitivity=_integer_sensitivity)
class DiscreteLaplace(Event):
    """Integers with noise k of probability proportional to e^{-|k| / scale} on each.

    ``sensitivity`` is the most that one record can add, an integer, in the l1 norm.
    """

    scale: float
    sensitivity: int = 1


@event(
    "discrete-gaussian", deviation=partial(real, at_least=0.05, at_most=1e4), sensitivity=_integer_sensitivity
)
class DiscreteGaussian(Event):
    """One integer with noise k of probability proportional to e^{-k^2 / (2 deviation^2)}.

    ``sensitivity`` is the most that one record can add to the number. For vectors use
    ``ZeroConcentratedDP(sensitivity**2 / (2 * deviation**2))``, with the l2 sensitivity.
    """

    deviation: float
    sensitivity: int = 1


@event(
    "mixture-of-gaussians",
    deviation=partial(real, at_least=1e-6),
    shifts=partial(_reals, at_least=0, at_most=1e4),
    probabilities=partial(_reals, above=0, at_most=1),
)
class MixtureOfGaussians(Event):
    """A sum with Gaussian noise of that ``deviation``, to which a record adds at most ``shifts[i]`` (l2 norm) with
    probability ``probabilities[i]``, drawn independently of everybody else.

    ``PoissonSampled(rate, Gaussian(z))`` is the mixture of the shifts 0 and 1 with 1 - rate and rate. Persons with
    several records, batches that take a record more than once and banded matrix mechanisms are other ones.
    """

    deviation: float
    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_disorder("shifts", self.shifts, "must increase, to more than 0.")
        if self.shifts[-1] == 0:
            raise InvalidParameter("shifts", self.shifts, "must increase, to more than 0.")
        if len(self.probabilities) != len(self.shifts) or abs(math.fsum(self.probabilities) - 1) > 1e-12:
            requirement = f"must be {len(self.shifts)}, one for each shift, and add up to 1."
            raise InvalidParameter("probabilities", self.probabilities, requirement)


@event(
    "truncated-poisson-sampled",
    rate=partial(real, above=0, at_most=1),
    limit=partial(whole, at_least=1),
    records=_records,
    noise_multiplier=checked_noise,
)
class TruncatedPoissonSampled(Event):
    """A Poisson batch cut to at most ``limit`` records: of a longer one a random subset of that size is kept.

    ``records`` is the most that the table can hold. Where a batch is cut, a record takes the place of another one, so
    its presence moves the sum by up to two clip norms; that costs the more the oftener batches are cut.
    """

    rate: float
    limit: int
    records: int
    noise_multiplier: float


@event(
    "sparse-vector",
    threshold_scale=positive,
    query_scale=positive,
    positives=partial(whole, at_least=1, at_most=10**12),
    monotone=_truth,
)
class SparseVector(Event):
    """Questions answered "above" or "below" a noisy threshold until ``positives`` of them were above it.

    Laplace noise of ``threshold_scale`` on the threshold, drawn once, and of ``query_scale`` on every answer, both in
    units of what one record can change in an answer. However many are below, the whole is pure differential privacy
    of 1 / threshold_scale + 2 positives / query_scale; without the 2 if a record moves all answers the same way
    (``monotone``): Lyu, Su and Li 2017, algorithm 7.
    """

    threshold_scale: float
    query_scale: float
    positives: int = 1
    monotone: bool = False

    def parts(self) -> tuple[tuple[Event, int], ...]:
        each = (1 if self.monotone else 2) * self.positives / self.query_scale
        return ((ApproximateDP((1 / self.threshold_scale + each) * (1 + 1e-15)), 1),)


@event(
    "tree-aggregation",
    steps=partial(whole, at_least=1, at_most=10**15),
    noise_multiplier=checked_noise,
    restarts=partial(whole, at_least=1, at_most=10**9),
)
class TreeAggregation(Event):
    """All running sums of ``steps`` releases through a binary tree (DP-FTRL), started anew ``restarts`` times.

    Every node of the tree has Gaussian noise of ``noise_multiplier`` clip norms. A record takes part at one step of
    each tree, wherever: it is in at most floor(log2(steps)) + 1 nodes. No sampling is needed, and none is credited.

    The order of the records is fixed, so one record more would move all that follow it to other steps. The event is
    accounted under replace-one and zero-out neighbours, where every other record stays at its step.
    """

    steps: int
    noise_multiplier: float
    restarts: int = 1

    @property
    def nodes(self) -> int:
        """The most nodes, of all trees together, that hold one record."""
        return self.steps.bit_length() * self.restarts


@event(
    "sampled-with-replacement",
    batch_size=partial(whole, at_least=1, at_most=10**9),
    records=_records,
    noise_multiplier=checked_noise,
)
class SampledWithReplacement(Event):
    """Gaussian noise on the sum of ``batch_size`` draws, each of any of ``records`` records, so some come twice.

    The number of records is public, so this event is accounted under replace-one neighbours. Poisson sampling costs
    less: a record that is drawn k times moves the sum k times as far.
    """

    batch_size: int
    records: int
    noise_multiplier: float


@event("repeat-and-select", trial=as_event)
class RepeatAndSelect(Event):
    """The best of a random number of runs of ``trial``, of which nothing else is seen: not even how many there were.

    The number has a truncated negative binomial distribution of that ``mean`` and ``shape`` > -1 (1 is the geometric
    one, 0 the logarithmic one), or a Poisson distribution if ``shape`` is None. Liu and Talwar 2019; Papernot and
    Steinke 2022.
    """

    trial: Event
    mean: float
    shape: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 0.01 if self.shape is None else 1.001
        remedy = "It is the expected number of runs."
        object.__setattr__(
            self, "mean", real("mean", self.mean, at_least=least, at_most=10_000, remedy=remedy)
        )
        if self.shape is not None:
            object.__setattr__(self, "shape", real("shape", self.shape, above=-1, at_most=100))
