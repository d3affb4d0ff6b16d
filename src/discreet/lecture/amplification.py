"""Amplification: a release on a secret random sample is more private than on all records.

A record that was not sampled has no influence, so (epsilon, delta) of a release becomes
(ln(1 + rate (e^epsilon - 1)), rate delta) when every record takes part with probability ``rate``. The theorem
holds for three ways to sample, and each only for its own neighbours (Balle, Barthe, Gaboardi 2018):

    Poisson: every record by its own coin        add-remove
    a subset of fixed size                       replace-one
    draws with replacement                       replace-one

Other combinations are refused: with Poisson sampling and replace-one neighbours, a release of the batch size
and of one randomised bit keeps its whole epsilon. Nothing is gained against an observer who knows the sample,
nor by shuffling. Many sampled Gaussian releases are better accounted as what they are, see ``account``.

>>> poisson_amplification(epsilon=1.0, delta=0.0, rate=1.0, neighbours="add-remove")
EpsilonDelta(epsilon=1.0, delta=0.0)
>>> poisson_amplification(epsilon=1.0, delta=0.0, rate=0.1, neighbours="replace-one")
Traceback (most recent call last):
    ...
discreet.errors.UnsupportedEvent: Poisson sampling does not amplify a guarantee for replace-one neighbours. \
Start from a guarantee for add-remove neighbours, or sample a fixed size.

In docs/accountants.md: A8.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc

from discreet.accounting.power import miss_rate_bound
from discreet.errors import UnsupportedEvent, real, whole
from discreet.guarantee import (
    ROUND_UP,
    EpsilonDelta,
    Neighbours,
    checked_pair,
    group_privacy,
    neighbours_named,
)


def poisson_amplification(
    epsilon: float, delta: float, rate: float, *, neighbours: Neighbours
) -> EpsilonDelta:
    """Guarantee: an (epsilon, delta)-DP release on a Poisson sample, for add-remove neighbours.

    ``neighbours`` is the relation for which the release was proved to be (epsilon, delta)-DP.

    >>> round(poisson_amplification(1.0, 1e-5, rate=0.01, neighbours="add-remove").epsilon, 12)
    0.017036863236
    """
    pair = checked_pair(epsilon, delta)
    rate = real("rate", rate, above=0, at_most=1)
    if neighbours_named(neighbours) != "add-remove":
        raise UnsupportedEvent(
            "Poisson sampling does not amplify a guarantee for replace-one neighbours. "
            "Start from a guarantee for add-remove neighbours, or sample a fixed size."
        )
    return _amplify(pair, rate)


def fixed_size_amplification(
    epsilon: float, delta: float, batch_size: int, records: int, *, neighbours: Neighbours
) -> EpsilonDelta:
    """Guarantee: an (epsilon, delta)-DP release on a random subset of fixed size, for replace-one neighbours.

    The number of records is public. ``neighbours`` is the relation for which (epsilon, delta) was proved.
    """
    pair = checked_pair(epsilon, delta)
    records = whole("records", records, at_least=1)
    remedy = "A batch cannot hold more than all records."
    batch_size = whole("batch_size", batch_size, at_least=1, at_most=records, remedy=remedy)
    _needs_replace_one(neighbours)
    return _amplify(pair, batch_size / records)


def replacement_amplification(
    epsilon: float, delta: float, batch_size: int, records: int, most_copies: int, *, neighbours: Neighbours
) -> EpsilonDelta:
    """Guarantee: an (epsilon, delta)-DP release on ``batch_size`` draws with replacement, replace-one.

    One record may be drawn several times and then counts as a group. Up to ``most_copies`` copies are paid
    for in epsilon, by group privacy; the chance of more is added to delta. ``neighbours`` is the relation for
    which (epsilon, delta) was proved.
    """
    pair = checked_pair(epsilon, delta)
    records = whole("records", records, at_least=2, remedy="Sampling among fewer hides nothing.")
    batch_size = whole("batch_size", batch_size, at_least=1)
    most_copies = whole("most_copies", most_copies, at_least=1, at_most=min(batch_size, 10_000))
    _needs_replace_one(neighbours)
    absent = batch_size * math.log1p(-1 / records)
    # Chance of each number of copies, from its ratio to the chance of one copy less.
    fewer = np.arange(most_copies)
    ratios = np.log((batch_size - fewer) / ((fewer + 1) * (records - 1)))
    chances = np.exp(absent + np.cumsum(ratios))
    deltas = [group_privacy(*pair, count + 1).delta for count in range(most_copies)]
    rest = batch_size - most_copies
    more = float(betainc(most_copies + 1, rest, 1 / records)) if rest else 0.0
    total = float(chances @ deltas) + more
    grouped = group_privacy(*pair, most_copies).epsilon
    return EpsilonDelta(_amplified_epsilon(grouped, -math.expm1(absent)), min(1.0, total * (1 + 1e-10)))


def sampled_miss_rate_bound(
    epsilon: float, delta: float, rate: float, false_alarms: float, *, neighbours: Neighbours
) -> float:
    """Guarantee: the miss rate of every test of a release on a Poisson sample, for add-remove neighbours.

    ``(epsilon, delta)`` and ``neighbours`` are those of the release without sampling. The inequality becomes
    miss rate + (1 - rate + rate e^epsilon) false_alarms >= 1 - rate delta, and its mirror image.

    >>> round(sampled_miss_rate_bound(1.0, 1e-5, rate=0.01, false_alarms=0.05, neighbours="add-remove"), 10)
    0.9491407591
    """
    sampled = poisson_amplification(epsilon, delta, rate, neighbours=neighbours)
    return miss_rate_bound(*sampled, false_alarms)


def _needs_replace_one(neighbours: Neighbours) -> None:
    if neighbours_named(neighbours) != "replace-one":
        raise UnsupportedEvent(
            "a batch of fixed size needs a public number of records, hence replace-one neighbours. "
            "Start from a guarantee for replace-one neighbours, or use Poisson sampling for add-remove."
        )


def _amplify(pair: EpsilonDelta, rate: float) -> EpsilonDelta:
    if rate == 1:
        return pair
    return EpsilonDelta(_amplified_epsilon(pair.epsilon, rate), pair.delta * rate * ROUND_UP)


def _amplified_epsilon(epsilon: float, rate: float) -> float:
    """ln(1 + rate (e^epsilon - 1)), rounded up; never above epsilon."""
    if epsilon < 700:
        return min(epsilon, math.log1p(rate * math.expm1(epsilon)) * ROUND_UP)
    return min(epsilon, float(np.logaddexp(math.log1p(-rate), epsilon + math.log(rate))) + epsilon * 1e-15)
