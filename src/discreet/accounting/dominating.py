"""From events to dominating pairs: which theorem covers which release, and what to do where none does.

Every rule is a small function from an event to the one-step distributions of both directions. A combination that has
no proof here is refused, with the sentence that says what to use instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import bdtrc

from discreet.accounting.allocation import AllocationLoss, allocation_loss, is_followed
from discreet.accounting.chernoff import LogMoment, log_moment_of
from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.divergences import FIXED_ORDER, selected_moment
from discreet.accounting.pairs import (
    BoundedRangePair,
    DiscretePair,
    GaussianPair,
    Labelled,
    LaplacePair,
    Pair,
    Reversed,
    Sampled,
    discrete_gaussian,
    discrete_laplace,
    randomised_response,
)
from discreet.accounting.sampled_pairs import (
    FixedSize,
    GroupPair,
    MixturePair,
    ZeroedFixedSize,
    with_replacement,
)
from discreet.errors import UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    BoundedRange,
    Composition,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonSampled,
    RandomisedResponse,
    RandomlyAllocated,
    RenyiDP,
    RepeatAndSelect,
    SampledWithReplacement,
    TreeAggregation,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)
from discreet.guarantee import AnyNeighbours, Bounds, group_privacy, sensitivity_factor

Direction = Literal["remove", "add"]
ULPS = 1e-14
LEAST_NOISE, MOST_EPSILON = 1e-6, 1e9
LOUD_NOISE = 0.03  # whose lower bound is returned for samples with less noise than the least
ROUNDING = 4 * 2.0**-53  # of probabilities that add up to 1, charged with the masses of cells


class Tolerances(NamedTuple):
    """How finely a distribution must be computed that is not known in closed form."""

    tail: float
    tolerance: float


LossDistributionOf = Callable[[Direction, Tolerances], LossDistribution]
LowerLossDistribution = Callable[[Event, int, "Relation"], LossDistributionOf | None]


@dataclass(frozen=True)
class Relation:
    """Which data sets are neighbours, and how many records of one group differ."""

    neighbours: AnyNeighbours
    group_size: int

    @property
    def one_more(self) -> bool:
        """A record counts in one world and not in the other, and nobody takes its place."""
        return self.neighbours != "replace-one"

    @property
    def reach(self) -> float:
        """How far the sum of clipped contributions can move, in units of the clip norm."""
        return float(sensitivity_factor(self.neighbours, self.group_size))


@dataclass(frozen=True)
class Dominating:
    """A whole event: one Gaussian, a probability of full exposure, and the distributions of everything else."""

    mu: float
    infinity_mass: Bounds
    plds: tuple[LossDistributionOf, ...]
    symmetric: bool
    largest: Fraction | None  # the exact epsilon of pure differential privacy, where it is rational
    boxes: tuple[tuple[LogMoment, int], ...] = ()

    def directions(self) -> tuple[Direction, ...]:
        """The directions that must be composed separately."""
        return ("remove",) if self.symmetric else ("remove", "add")

    def plds_of(self, direction: Direction, tolerances: Tolerances) -> list[LossDistribution]:
        """The distributions of one direction, the Gaussian included."""
        plds = [pld(direction, tolerances) for pld in self.plds]
        if self.mu > 0:
            # One wide Gaussian is several narrower ones, whose losses stay within the range of e^loss.
            pieces = max(1, int(np.ceil((self.mu / 3) ** 2)))
            gaussian = GaussianPair(self.mu / float(np.sqrt(pieces)))
            plds.append(LossDistribution(gaussian, gaussian, pieces))
        return plds


def dominating(event: Event, relation: Relation, below: LowerLossDistribution | None = None) -> Dominating:
    """The dominating composition of ``event``, or :class:`UnsupportedEvent` where no theorem is known.

    All plain Gaussian releases together are one Gaussian release, exactly. With ``below``, some parts have the
    distributions that it returns (:mod:`~discreet.accounting.attained`), and the result is a lower bound.
    """
    shifts, log_hidden, log_unclear, plds, symmetric = [0.0], 0.0, 0.0, [], True
    largest: Fraction | None = Fraction(0)
    boxes: list[tuple[LogMoment, int]] = []
    exact_infinity_mass: Bounds | None = Bounds(0.0, 0.0)
    for part, count in event.parts():
        _refuse_the_absurd(part)
        if (level := _noise_level(part)) is not None and level < LEAST_NOISE:
            # No noise: a record that takes part is seen. Less noise than can be followed is no worse than none, and
            # no better than more noise.
            loud = _with_noise(part, LOUD_NOISE if hasattr(part, "of") else LEAST_NOISE)
            dominating(loud, relation)  # refuses what has no theorem
            log_seen = count * _log_unseen(part, relation.group_size)
            largest, exact_infinity_mass = None, None
            if level == 0 and not isinstance(part, TruncatedPoissonSampled):
                log_hidden += log_seen
                continue
            log_unclear += log_seen
            part = loud
        if below is not None and (pld := below(part, count, relation)) is not None:
            plds.append(pld)
            symmetric, largest = False, None
        elif isinstance(part, Gaussian):
            shifts.append(math.sqrt(count) / part.noise_multiplier)
            largest = None
        elif isinstance(part, TreeAggregation):
            if relation.neighbours == "add-remove":
                raise UnsupportedEvent(FIXED_ORDER)
            shifts.append(math.sqrt(count * part.nodes) / part.noise_multiplier)
            largest = None
        elif isinstance(part, Laplace):
            plds.append(constant_loss(LaplacePair(relation.reach / part.scale), count))
            largest = _plus(largest, Fraction(relation.reach) / Fraction(part.scale) * count)
        elif isinstance(part, ApproximateDP):
            epsilon, delta = group_privacy(part.epsilon, part.delta, relation.group_size)
            if delta >= 1:
                raise UnsupportedEvent(
                    f"{part} gives no protection to a group of {relation.group_size} records; "
                    "use a smaller group or a black box with a smaller delta."
                )
            if delta > 0:
                # A single black box is exposed with exactly its delta.
                exact_infinity_mass = Bounds(delta, delta) if log_hidden == 0 and count == 1 else None
            log_hidden += count * float(np.log1p(-delta))
            if epsilon > 0:
                plds.append(constant_loss(DiscretePair.randomised_response(epsilon), count))
                largest = _plus(largest, Fraction(epsilon) * count)
        elif isinstance(part, BoundedRange):
            width = part.epsilon * relation.group_size  # ranges add up from one neighbour to the next
            plds.append(constant_loss(BoundedRangePair(width), count))
            largest = _plus(largest, Fraction(width) * count)
        elif isinstance(part, RandomisedResponse):
            plds.append(_response(part, count, relation))
            largest = _plus(largest, Fraction(part.epsilon) * count * relation.group_size)
        elif isinstance(part, DiscreteLaplace):
            shift = part.sensitivity * round(relation.reach)
            plds.append(constant_loss(discrete_laplace(part.scale, shift), count))
            largest = None
        elif isinstance(part, MixtureOfGaussians):
            plds.append(mixture_loss(part, count, relation, at_the_top=missing_probability(part) > 0))
            symmetric, largest = False, None
        elif isinstance(part, DiscreteGaussian):
            plds.append(_discrete_gaussian(part, count, relation))
            largest = None
        elif isinstance(part, ZeroConcentratedDP | RenyiDP):
            boxes.append((log_moment_of(part, relation.group_size), count))
            largest = None
        elif isinstance(part, RepeatAndSelect):
            boxes.append((_moment_of_selection(part, relation), count))
            largest = None
        elif isinstance(part, PoissonSampled):
            plds.append(_poisson(part, count, relation))
            symmetric = symmetric and relation.neighbours == "replace-one"
            largest = None
        elif isinstance(part, TruncatedPoissonSampled):
            plds.append(_truncated_loss(part, count, relation))
            symmetric, largest = False, None
        elif isinstance(part, FixedSizeSampled):
            plds.append(_fixed_size_loss(part, count, relation))
            symmetric, largest = symmetric and relation.neighbours == "replace-one", None
        elif isinstance(part, SampledWithReplacement):
            plds.append(_with_replacement(part, count, relation))
            largest = None
        elif isinstance(part, RandomlyAllocated):
            pld = _allocated_loss(part, count, relation)
            if not is_followed(part.of.noise_multiplier, part.steps):
                # At most the release without sampling (docs/mathematics.md, (4)).
                shifts.append(math.sqrt(count) / part.of.noise_multiplier)
                largest = None
                continue
            plds.append(pld)
            symmetric, largest = False, None
        else:
            plds.append(_of_its_own(part, count, relation))
            symmetric, largest = False, None
    mu = relation.reach * math.hypot(*shifts)
    surely, perhaps = (-float(np.expm1(value)) for value in (log_hidden, log_hidden + log_unclear))
    exposed = Bounds(surely * (1 - ULPS), min(perhaps * (1 + ULPS), 1.0))
    return Dominating(mu, exact_infinity_mass or exposed, tuple(plds), symmetric, largest, tuple(boxes))


def without_sampling(event: Event) -> Event:
    """The same releases on all records. It dominates ``event``, in both directions and at every a.

    H_a is jointly convex, and of two equal distributions it is (1 - a)_+, which no pair goes below. So a mixture of
    worlds, in each of which a record takes part at most once a release, is no worse than the world in which it does.
    """
    return Composition(tuple((_part_without_sampling(part), count) for part, count in event.parts()))


def _part_without_sampling(part: Event) -> Event:
    if isinstance(part, TruncatedPoissonSampled):  # in place of another record: twice as far
        return Gaussian(part.noise_multiplier / 2)
    return part.of if isinstance(part, PoissonSampled | FixedSizeSampled | RandomlyAllocated) else part


def _plus(total: Fraction | None, more: Fraction) -> Fraction | None:
    return None if total is None else total + more


def _refuse_the_absurd(event: Event) -> None:
    """Numbers so far out that no arithmetic follows them, and no privacy is left to account for."""
    if isinstance(event, ApproximateDP | BoundedRange) and event.epsilon > MOST_EPSILON:
        raise UnsupportedEvent(f"epsilon above {MOST_EPSILON:g} promises nothing; leave the black box out.")


def _noise_name(event: Event) -> str | None:
    """The field of an event, or of what it samples, that holds its noise."""
    if isinstance(event, Gaussian | TruncatedPoissonSampled | SampledWithReplacement | TreeAggregation):
        return "noise_multiplier"
    return "scale" if isinstance(event, Laplace | DiscreteLaplace) else None


def _noise_level(event: Event) -> float | None:
    noise = getattr(event, "of", event)
    name = _noise_name(noise)
    return None if name is None else float(getattr(noise, name))


def _with_noise(event: Any, level: float) -> Event:
    """The same event with that much noise."""
    noise = getattr(event, "of", event)
    changed: Event = replace(noise, **{str(_noise_name(noise)): level})
    whole: Event = changed if noise is event else replace(event, of=changed)
    return whole


def _log_unseen(event: Event, group_size: int) -> float:
    """log of the probability that no record of a group takes part in a release.

    Without noise a record that takes part is seen, at an infinite loss. Where it does not take part, nothing differs:
    H_a <= c + (1 - c) (1 - a)_+ for the chance c of taking part, in both directions. That is the curve of full
    exposure with probability c and of nothing else.
    """
    if isinstance(event, SampledWithReplacement):
        each = event.batch_size * float(np.log1p(-1 / event.records)) if event.records > 1 else -np.inf
    elif isinstance(event, PoissonSampled | FixedSizeSampled | TruncatedPoissonSampled) and event.rate < 1:
        each = float(np.log1p(-event.rate))
    else:
        each = -np.inf
    return group_size * each


def constant_loss(pair: Pair, count: int) -> LossDistributionOf:
    """A distribution that is the same in both directions."""
    pld = LossDistribution(pair, pair, count)
    return lambda direction, tolerances: pld


def two_sided_loss(pair: Pair, count: int) -> LossDistributionOf:
    """A distribution given for the direction ``remove``."""
    turned = Reversed(pair)
    plds = {"remove": LossDistribution(pair, pair, count), "add": LossDistribution(turned, turned, count)}
    return lambda direction, tolerances: plds[direction]


def _of_its_own(event: Event, count: int, relation: Relation) -> LossDistributionOf:
    """An event from elsewhere, which brings its theorem along."""
    known = relation.neighbours != "zero-out"  # events from elsewhere were never asked about it
    pair = event.dominating_pair(relation.neighbours, relation.group_size) if known else None
    if isinstance(pair, Pair):
        return two_sided_loss(pair, count)
    raise UnsupportedEvent(
        f"{event!r} is not an event that the accountant knows, or brings no dominating_pair() for "
        f"{relation.neighbours} neighbours and groups of {relation.group_size}."
    )


def _response(event: RandomisedResponse, count: int, relation: Relation) -> LossDistributionOf:
    if relation.neighbours != "replace-one":
        raise UnsupportedEvent(
            "reports of records show who answered, so add-remove neighbours have no theorem; use "
            "neighbours='replace-one'."
        )
    # Every record of a group answers by itself.
    return constant_loss(randomised_response(event.epsilon, event.categories), count * relation.group_size)


def mixture_loss(
    event: MixtureOfGaussians, count: int, relation: Relation, at_the_top: bool
) -> LossDistributionOf:
    """Given probabilities add up to 1 but for rounding, which counts once for each release.

    What is missing joins the largest shift and what is too much leaves the smallest, so that the inner products of
    the shifts, hence H_a, can only grow (docs/mathematics.md, (3)). With the other ends they can only fall.
    """
    if not relation.one_more or relation.group_size > 1:
        raise UnsupportedEvent(
            "mixtures of Gaussians are proved for add-remove neighbours and group_size=1 only; put what a group may "
            "add into the shifts."
        )
    missing = missing_probability(event)
    chances = _moved(event.probabilities, missing, at_the_top) if missing else event.probabilities
    kept = [(shift, chance) for shift, chance in zip(event.shifts, chances, strict=True) if chance > 0]
    return two_sided_loss(MixturePair.of(event.deviation, *zip(*kept, strict=True)), count)


def missing_probability(event: MixtureOfGaussians) -> Fraction:
    """What its probabilities lack of 1; nothing where it is less than the rounding of a mass of 1 in every pair."""
    missing = Fraction(1) - sum(map(Fraction, event.probabilities), Fraction(0))
    return missing if abs(missing) > ROUNDING else Fraction(0)


def _moved(chances: tuple[float, ...], missing: Fraction, to_the_top: bool) -> tuple[float, ...]:
    """Probabilities that add up to 1: ``missing`` is added at one end, or taken away from there."""
    order = range(len(chances) - 1, -1, -1) if to_the_top else range(len(chances))
    exact = list(map(Fraction, chances))
    for place in order:
        exact[place], missing = (
            max(exact[place] + missing, Fraction(0)),
            min(exact[place] + missing, Fraction(0)),
        )
    return tuple(map(float, exact))


def _discrete_gaussian(event: DiscreteGaussian, count: int, relation: Relation) -> LossDistributionOf:
    shift = event.sensitivity * round(relation.reach)

    def pld(direction: Direction, tolerances: Tolerances) -> LossDistribution:
        upper, lower = discrete_gaussian(
            event.deviation, shift, min(max(tolerances.tail / count, 1e-250), 1e-3)
        )
        return LossDistribution(upper, lower, count)

    return pld


def _poisson(event: PoissonSampled, count: int, relation: Relation) -> LossDistributionOf:
    if isinstance(event.of, Gaussian):
        noise = event.of.noise_multiplier
        if relation.neighbours == "replace-one":
            return constant_loss(
                GroupPair(noise, event.rate, relation.group_size, relation.group_size), count
            )
        if relation.group_size > 1:
            return two_sided_loss(GroupPair(noise, event.rate, relation.group_size, 0), count)
        return two_sided_loss(sampled_pair(noise, event.rate), count)
    if relation.neighbours == "replace-one" or relation.group_size > 1:
        raise UnsupportedEvent(
            "Poisson-sampled Laplace noise has no proved dominating pair under replace-one neighbours or for "
            "groups; use add-remove neighbours with group_size=1, or Gaussian noise."
        )
    return two_sided_loss(Sampled(LaplacePair(1 / event.of.scale), event.rate), count)


def sampled_pair(noise: float, rate: float) -> Pair:
    return Sampled(GaussianPair(1 / noise), rate) if rate < 1 else GaussianPair(1 / noise)


def _truncated_loss(event: TruncatedPoissonSampled, count: int, relation: Relation) -> LossDistributionOf:
    """Condition on the batch of the others. Below the limit a record joins it, else it takes the place of another.

    Which case it is depends on the others alone and is shown; the second one dominates the first, so that a bound on
    its probability will do (docs/mathematics.md).
    """
    if relation.neighbours != "add-remove" or relation.group_size > 1:
        raise UnsupportedEvent(
            "Poisson batches with a limit are proved for add-remove neighbours and group_size=1 only; leave the "
            "limit away, with PoissonSampled."
        )
    joins, takes = (sampled_pair(event.noise_multiplier / moves, event.rate) for moves in (1, 2))
    if not may_be_cut(event):
        return two_sided_loss(joins, count)
    full = min(_chance_of_full(event) * (1 + 1e-6), 1.0)
    return two_sided_loss(Labelled((joins, takes), (1 - full, full)) if full < 1 else takes, count)


def _chance_of_full(event: TruncatedPoissonSampled) -> float:
    """About the probability that the others of the largest table fill the batch."""
    if event.limit >= event.records:
        return 0.0
    return float(bdtrc(event.limit - 1, event.records - 1, event.rate))


def may_be_cut(event: TruncatedPoissonSampled) -> bool:
    return _chance_of_full(event) >= 1e-300


def _fixed_size_loss(event: FixedSizeSampled, count: int, relation: Relation) -> LossDistributionOf:
    _refuse_a_public_number(relation)
    if relation.group_size > 1 or not isinstance(event.of, Gaussian):
        raise UnsupportedEvent(
            "fixed-size batches are proved for Gaussian noise and group_size=1 only; use Poisson sampling."
        )
    if relation.neighbours == "zero-out":
        return two_sided_loss(ZeroedFixedSize(event.of.noise_multiplier, event.rate), count)
    return constant_loss(FixedSize(GaussianPair(2 / event.of.noise_multiplier), event.rate), count)


def _with_replacement(event: SampledWithReplacement, count: int, relation: Relation) -> LossDistributionOf:
    _refuse_a_public_number(relation)
    if relation.group_size > 1 or relation.neighbours != "replace-one":
        raise UnsupportedEvent(
            "batches drawn with replacement are proved for replace-one neighbours and group_size=1 only; use Poisson "
            "sampling."
        )
    return constant_loss(with_replacement(event.noise_multiplier, event.batch_size, event.records), count)


def _refuse_a_public_number(relation: Relation) -> None:
    if relation.neighbours == "add-remove":
        raise UnsupportedEvent(
            "fixed-size batches make the number of records public, so add-remove neighbours have no theorem; "
            "use neighbours='replace-one', or Poisson sampling."
        )


def _moment_of_selection(event: RepeatAndSelect, relation: Relation) -> LogMoment:
    if relation.neighbours == "zero-out" or relation.group_size > 1:
        raise UnsupportedEvent(
            "the best of several runs is proved for add-remove and replace-one neighbours and group_size=1 only."
        )
    return selected_moment(event, relation.neighbours)


def _allocated_loss(event: RandomlyAllocated, count: int, relation: Relation) -> LossDistributionOf:
    if not relation.one_more or relation.group_size > 1 or not isinstance(event.of, Gaussian):
        raise UnsupportedEvent(
            "random allocation is certified for Gaussian noise, add-remove neighbours and group_size=1 only; "
            "use Poisson sampling for replace-one neighbours and for groups."
        )
    noise = event.of.noise_multiplier

    def pld(direction: Direction, tolerances: Tolerances) -> LossDistribution:
        tail = min(max(tolerances.tail / count, 1e-100), 0.1)
        both = _allocation(noise, event.steps, tail, tolerances.tolerance)
        return LossDistribution(*(both.remove if direction == "remove" else both.add), count)

    return pld


@lru_cache(maxsize=4)
def _allocation(noise: float, steps: int, tail: float, tolerance: float) -> AllocationLoss:
    # The two distributions differ relatively by about 0.05 log2(steps) resolution^2: some 15 % of the tolerance.
    resolution = float(np.clip(np.sqrt(3 * tolerance / math.log2(2 * steps)), 1e-3, 1 / 16))
    return allocation_loss(noise, steps, tail=tail, resolution=resolution)
