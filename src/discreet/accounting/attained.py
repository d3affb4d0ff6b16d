"""Pairs of data sets that bound a privacy curve from below, where its dominating pair is larger than any two of them.

Nothing here can lower an upper bound, and so no guarantee rests on it. What is needed to tell these pairs apart is
needed for the release itself, so the lower ends of bounds come from here.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtrc

from discreet.accounting.allocation import is_followed
from discreet.accounting.dominating import (
    Dominating,
    LossDistributionOf,
    Relation,
    constant_loss,
    dominating,
    may_be_cut,
    missing_probability,
    mixture_loss,
    sampled_pair,
    two_sided_loss,
)
from discreet.accounting.pairs import Pair
from discreet.accounting.sampled_pairs import MixturePair, numbers_of_draws
from discreet.events import (
    ApproximateDP,
    Composition,
    Event,
    Gaussian,
    MixtureOfGaussians,
    RandomlyAllocated,
    RenyiDP,
    RepeatAndSelect,
    SampledWithReplacement,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)


def attained(event: Event, relation: Relation) -> Dominating:
    """Like :func:`~discreet.accounting.dominating.dominating`, with pairs of data sets in place of larger pairs."""
    parts = tuple((_followed(part), count) for part, count in event.parts())
    return dominating(Composition(parts), relation, _lower_loss)


def has_other_floor(event: Event) -> bool:
    """Whether the dominating pair of a part is no lower bound."""
    return any(_is_larger(part) for part, _ in event.parts())


def without_boxes(event: Event) -> Event:
    """All parts but the black boxes with a Renyi curve. Nothing at all is a black box of epsilon 0."""
    boxes = RenyiDP | RepeatAndSelect | ZeroConcentratedDP
    kept = tuple((part, count) for part, count in event.parts() if not isinstance(part, boxes))
    return Composition(kept) if kept else ApproximateDP(0.0)


def _is_larger(part: Event) -> bool:
    if isinstance(part, MixtureOfGaussians):
        return missing_probability(part) != 0
    if isinstance(part, TruncatedPoissonSampled):
        return may_be_cut(part)
    return isinstance(part, SampledWithReplacement) or _followed(part) is not part


def _followed(part: Event) -> Event:
    """An allocation that is not computed, as the sum of all its steps.

    That is N(1, steps noise^2) with the record and N(0, steps noise^2) without it.
    """
    if isinstance(part, RandomlyAllocated) and isinstance(part.of, Gaussian):
        noise = part.of.noise_multiplier
        if not is_followed(noise, part.steps):
            return Gaussian(noise * math.sqrt(part.steps) * (1 + 1e-14))
    return part


def _lower_loss(part: Event, count: int, relation: Relation) -> LossDistributionOf | None:
    if not _is_larger(part):
        return None
    if isinstance(part, MixtureOfGaussians):
        return mixture_loss(part, count, relation, at_the_top=missing_probability(part) < 0)
    if isinstance(part, TruncatedPoissonSampled):
        return two_sided_loss(sampled_pair(part.noise_multiplier / _moves(part), chance_kept(part)), count)
    assert isinstance(part, SampledWithReplacement)
    if part.records == 1:
        return None
    return constant_loss(
        attained_with_replacement(part.noise_multiplier, part.batch_size, part.records), count
    )


def _moves(event: TruncatedPoissonSampled) -> int:
    """How far a record moves the sum of the data set of :func:`chance_kept`."""
    return 2 if event.rate == 1 else 1


def chance_kept(event: TruncatedPoissonSampled) -> float:
    """Probability that a record of the largest table is in the batch, rounded down.

    If everybody else adds nothing, what is released is a Poisson sample of this rate: a lower bound that is attained.
    If all batches are full, everybody else may be its opposite, and the sum moves twice as far. Of the S others that
    are drawn, fewer than the limit B leave a place; else B / (S + 1) of the batches keep the record:
    rate P(S < B) + (B / n) P(Bin(n, rate) > B) for n records.
    """
    fewer = 1 - float(bdtrc(event.limit - 1, event.records - 1, event.rate)) * (1 + 1e-6)
    more = float(bdtrc(event.limit, event.records, event.rate)) * (1 - 1e-6)
    return float((event.rate * max(fewer, 0.0) + event.limit / event.records * more) * (1 - 1e-9))


def attained_with_replacement(noise: float, batch_size: int, records: int) -> Pair:
    """``batch_size`` draws with replacement, where everybody else is at the opposite of the record.

    The sum moves by exactly 2k for k draws: the mixture of N(2k) against N(0), with numbers of draws rounded down and
    smaller tails. Inner products of its shifts only fall by that, hence H_a (docs/mathematics.md, (3)).
    """
    kept: list[int] = []
    radius = 2.0 * batch_size / records
    for k in numbers_of_draws(batch_size):  # some twenty: all of the first, and where most of the mass is
        if k <= 12 or not kept or k >= 1.15 * kept[-1]:
            kept.append(k)
        if k > 12 and k > radius + 12 * math.sqrt(radius) + 24:
            break
    at_least = np.minimum(bdtrc(np.array(kept) - 1.0, batch_size, 1 / records), 1.0) * (1 - 1e-6)
    chances = np.append(-np.diff(at_least), at_least[-1])
    shifts = [(2.0 * k, float(w)) for k, w in zip(kept, chances, strict=True) if w > 1e-100]
    rest = float(1 - math.fsum(w for _, w in shifts))
    shifts = [(0.0, rest), *shifts]
    return MixturePair.of(noise, *zip(*shifts, strict=True))
