"""From events to dominating pairs: which theorem covers which release, and what to do where none does.

Every rule is a small function from an event to the one-step laws of both directions. A combination that has no
proof here is refused, with the sentence that says what to use instead.
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

from discreet.accounting.allocation import AllocationLaw, allocation_law, is_followed
from discreet.accounting.building import Law
from discreet.accounting.chernoff import LogMoment, log_moment_of
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
from discreet.guarantee import AnyNeighbours, Bounds, contributions_apart, group_privacy

Direction = Literal["remove", "add"]
ULPS = 1e-14
LEAST_NOISE, MOST_EPSILON = 1e-6, 1e9
LOUD_NOISE = 0.03  # whose lower bound is returned for samples with less noise than the least
ROUNDING = 4 * 2.0**-53  # of probabilities that add up to 1, charged with the masses of cells


class Quality(NamedTuple):
    """How finely a law must be computed that is not known in closed form."""

    tail: float
    tolerance: float


LawOf = Callable[[Direction, Quality], Law]
LawBelow = Callable[[Event, int, "Relation"], LawOf | None]


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
        return float(contributions_apart(self.neighbours, self.group_size))


@dataclass(frozen=True)
class Dominating:
    """A whole event: one Gaussian, a probability of full exposure, and the laws of everything else."""

    mu: float
    exposure: Bounds
    laws: tuple[LawOf, ...]
    symmetric: bool
    largest: Fraction | None  # the exact epsilon of pure differential privacy, where it is rational
    boxes: tuple[tuple[LogMoment, int], ...] = ()

    def directions(self) -> tuple[Direction, ...]:
        """The directions that must be composed separately."""
        return ("remove",) if self.symmetric else ("remove", "add")

    def laws_of(self, direction: Direction, quality: Quality) -> list[Law]:
        """The laws of one direction, the Gaussian included."""
        laws = [law(direction, quality) for law in self.laws]
        if self.mu > 0:
            # One wide Gaussian is several narrower ones, whose losses stay within the range of e^loss.
            pieces = max(1, int(np.ceil((self.mu / 3) ** 2)))
            gaussian = GaussianPair(self.mu / float(np.sqrt(pieces)))
            laws.append(Law(gaussian, gaussian, pieces))
        return laws


def dominating(event: Event, relation: Relation, below: LawBelow | None = None) -> Dominating:
    """The dominating composition of ``event``, or :class:`UnsupportedEvent` where no theorem is known.

    All plain Gaussian releases together are one Gaussian release, exactly. With ``below``, some parts have the laws
    that it returns (:mod:`~discreet.accounting.attained`), and the result is a lower bound.
    """
    shifts, log_hidden, log_unclear, laws, symmetric = [0.0], 0.0, 0.0, [], True
    largest: Fraction | None = Fraction(0)
    boxes: list[tuple[LogMoment, int]] = []
    exact_exposure: Bounds | None = Bounds(0.0, 0.0)
    for part, count in event.parts():
        _refuse_the_absurd(part)
        if (level := _noise_level(part)) is not None and level < LEAST_NOISE:
            # No noise: a record that takes part is seen. Less noise than can be followed is no worse than none, and
            # no better than more noise.
            loud = _with_noise(part, LOUD_NOISE if hasattr(part, "of") else LEAST_NOISE)
            dominating(loud, relation)  # refuses what has no theorem
            log_seen = count * _log_unseen(part, relation.group_size)
            largest, exact_exposure = None, None
            if level == 0 and not isinstance(part, TruncatedPoissonSampled):
                log_hidden += log_seen
                continue
            log_unclear += log_seen
            part = loud
        if below is not None and (law := below(part, count, relation)) is not None:
            laws.append(law)
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
            laws.append(constant_law(LaplacePair(relation.reach / part.scale), count))
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
                exact_exposure = Bounds(delta, delta) if log_hidden == 0 and count == 1 else None
            log_hidden += count * float(np.log1p(-delta))
            if epsilon > 0:
                laws.append(constant_law(DiscretePair.randomised_response(epsilon), count))
                largest = _plus(largest, Fraction(epsilon) * count)
        elif isinstance(part, BoundedRange):
            width = part.epsilon * relation.group_size  # ranges add up from one neighbour to the next
            laws.append(constant_law(BoundedRangePair(width), count))
            largest = _plus(largest, Fraction(width) * count)
        elif isinstance(part, RandomisedResponse):
            laws.append(_response(part, count, relation))
            largest = _plus(largest, Fraction(part.epsilon) * count * relation.group_size)
        elif isinstance(part, DiscreteLaplace):
            shift = part.sensitivity * round(relation.reach)
            laws.append(constant_law(discrete_laplace(part.scale, shift), count))
            largest = None
        elif isinstance(part, MixtureOfGaussians):
            laws.append(mixture_law(part, count, relation, at_the_top=missing_probability(part) > 0))
            symmetric, largest = False, None
        elif isinstance(part, DiscreteGaussian):
            laws.append(_discrete_gaussian(part, count, relation))
            largest = None
        elif isinstance(part, ZeroConcentratedDP | RenyiDP):
            boxes.append((log_moment_of(part, relation.group_size), count))
            largest = None
        elif isinstance(part, RepeatAndSelect):
            boxes.append((_moment_of_selection(part, relation), count))
            largest = None
        elif isinstance(part, PoissonSampled):
            laws.append(_poisson(part, count, relation))
            symmetric = symmetric and relation.neighbours == "replace-one"
            largest = None
        elif isinstance(part, TruncatedPoissonSampled):
            laws.append(_truncated_law(part, count, relation))
            symmetric, largest = False, None
        elif isinstance(part, FixedSizeSampled):
            laws.append(_fixed_size_law(part, count, relation))
            symmetric, largest = symmetric and relation.neighbours == "replace-one", None
        elif isinstance(part, SampledWithReplacement):
            laws.append(_with_replacement(part, count, relation))
            largest = None
        elif isinstance(part, RandomlyAllocated):
            law = _allocated_law(part, count, relation)
            if not is_followed(part.of.noise_multiplier, part.steps):
                # At most the release without sampling (docs/mathematics.md, (4)).
                shifts.append(math.sqrt(count) / part.of.noise_multiplier)
                largest = None
                continue
            laws.append(law)
            symmetric, largest = False, None
        else:
            laws.append(_of_its_own(part, count, relation))
            symmetric, largest = False, None
    mu = relation.reach * math.hypot(*shifts)
    surely, perhaps = (-float(np.expm1(value)) for value in (log_hidden, log_hidden + log_unclear))
    exposed = Bounds(surely * (1 - ULPS), min(perhaps * (1 + ULPS), 1.0))
    return Dominating(mu, exact_exposure or exposed, tuple(laws), symmetric, largest, tuple(boxes))


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


def constant_law(pair: Pair, count: int) -> LawOf:
    """A law that is the same in both directions."""
    law = Law(pair, pair, count)
    return lambda direction, quality: law


def two_sided_law(pair: Pair, count: int) -> LawOf:
    """A law given for the direction ``remove``."""
    turned = Reversed(pair)
    laws = {"remove": Law(pair, pair, count), "add": Law(turned, turned, count)}
    return lambda direction, quality: laws[direction]


def _of_its_own(event: Event, count: int, relation: Relation) -> LawOf:
    """An event from elsewhere, which brings its theorem along."""
    known = relation.neighbours != "zero-out"  # events from elsewhere were never asked about it
    pair = event.dominating_pair(relation.neighbours, relation.group_size) if known else None
    if isinstance(pair, Pair):
        return two_sided_law(pair, count)
    raise UnsupportedEvent(
        f"{event!r} is not an event that the accountant knows, or brings no dominating_pair() for "
        f"{relation.neighbours} neighbours and groups of {relation.group_size}."
    )


def _response(event: RandomisedResponse, count: int, relation: Relation) -> LawOf:
    if relation.neighbours != "replace-one":
        raise UnsupportedEvent(
            "reports of records show who answered, so add-remove neighbours have no theorem; use "
            "neighbours='replace-one'."
        )
    # Every record of a group answers by itself.
    return constant_law(randomised_response(event.epsilon, event.categories), count * relation.group_size)


def mixture_law(event: MixtureOfGaussians, count: int, relation: Relation, at_the_top: bool) -> LawOf:
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
    return two_sided_law(MixturePair.of(event.deviation, *zip(*kept, strict=True)), count)


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


def _discrete_gaussian(event: DiscreteGaussian, count: int, relation: Relation) -> LawOf:
    shift = event.sensitivity * round(relation.reach)

    def law(direction: Direction, quality: Quality) -> Law:
        upper, lower = discrete_gaussian(event.deviation, shift, min(max(quality.tail / count, 1e-250), 1e-3))
        return Law(upper, lower, count)

    return law


def _poisson(event: PoissonSampled, count: int, relation: Relation) -> LawOf:
    if isinstance(event.of, Gaussian):
        noise = event.of.noise_multiplier
        if relation.neighbours == "replace-one":
            return constant_law(GroupPair(noise, event.rate, relation.group_size, relation.group_size), count)
        if relation.group_size > 1:
            return two_sided_law(GroupPair(noise, event.rate, relation.group_size, 0), count)
        return two_sided_law(sampled_pair(noise, event.rate), count)
    if relation.neighbours == "replace-one" or relation.group_size > 1:
        raise UnsupportedEvent(
            "Poisson-sampled Laplace noise has no proved dominating pair under replace-one neighbours or for "
            "groups; use add-remove neighbours with group_size=1, or Gaussian noise."
        )
    return two_sided_law(Sampled(LaplacePair(1 / event.of.scale), event.rate), count)


def sampled_pair(noise: float, rate: float) -> Pair:
    return Sampled(GaussianPair(1 / noise), rate) if rate < 1 else GaussianPair(1 / noise)


def _truncated_law(event: TruncatedPoissonSampled, count: int, relation: Relation) -> LawOf:
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
        return two_sided_law(joins, count)
    full = min(_chance_of_full(event) * (1 + 1e-6), 1.0)
    return two_sided_law(Labelled((joins, takes), (1 - full, full)) if full < 1 else takes, count)


def _chance_of_full(event: TruncatedPoissonSampled) -> float:
    """About the probability that the others of the largest table fill the batch."""
    if event.limit >= event.records:
        return 0.0
    return float(bdtrc(event.limit - 1, event.records - 1, event.rate))


def may_be_cut(event: TruncatedPoissonSampled) -> bool:
    return _chance_of_full(event) >= 1e-300


def _fixed_size_law(event: FixedSizeSampled, count: int, relation: Relation) -> LawOf:
    _refuse_a_public_number(relation)
    if relation.group_size > 1 or not isinstance(event.of, Gaussian):
        raise UnsupportedEvent(
            "fixed-size batches are proved for Gaussian noise and group_size=1 only; use Poisson sampling."
        )
    if relation.neighbours == "zero-out":
        return two_sided_law(ZeroedFixedSize(event.of.noise_multiplier, event.rate), count)
    return constant_law(FixedSize(GaussianPair(2 / event.of.noise_multiplier), event.rate), count)


def _with_replacement(event: SampledWithReplacement, count: int, relation: Relation) -> LawOf:
    _refuse_a_public_number(relation)
    if relation.group_size > 1 or relation.neighbours != "replace-one":
        raise UnsupportedEvent(
            "batches drawn with replacement are proved for replace-one neighbours and group_size=1 only; use Poisson "
            "sampling."
        )
    return constant_law(with_replacement(event.noise_multiplier, event.batch_size, event.records), count)


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


def _allocated_law(event: RandomlyAllocated, count: int, relation: Relation) -> LawOf:
    if not relation.one_more or relation.group_size > 1 or not isinstance(event.of, Gaussian):
        raise UnsupportedEvent(
            "random allocation is certified for Gaussian noise, add-remove neighbours and group_size=1 only; "
            "use Poisson sampling for replace-one neighbours and for groups."
        )
    noise = event.of.noise_multiplier

    def law(direction: Direction, quality: Quality) -> Law:
        tail = min(max(quality.tail / count, 1e-100), 0.1)
        both = _allocation(noise, event.steps, tail, quality.tolerance)
        return Law(*(both.remove if direction == "remove" else both.add), count)

    return law


@lru_cache(maxsize=4)
def _allocation(noise: float, steps: int, tail: float, tolerance: float) -> AllocationLaw:
    # The two laws differ relatively by about 0.05 log2(steps) resolution^2: some 15 % of the tolerance.
    resolution = float(np.clip(np.sqrt(3 * tolerance / math.log2(2 * steps)), 1e-3, 1 / 16))
    return allocation_law(noise, steps, tail=tail, resolution=resolution)
