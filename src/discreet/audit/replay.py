"""Does one record move the sum by no more than was claimed? :func:`replay` computes it on neighbouring data sets.

Most leaks of real implementations sit between clipping and noise: a clip after the mean, a loss that mixes
records, a division by the number of records, a NaN that passes. Canaries hardly see them; the distance of two
sums does. Where the noise can be switched off it is compared exactly (:func:`replay`), otherwise from many
releases (:func:`replay_noisy`, :func:`noise_depends_on_data`).

>>> from discreet.core.clipping import clip_rows
>>> examples = np.random.default_rng(0).normal(size=(20, 5))
>>> print(replay(lambda rows: clip_rows(rows, 1.0).sum(0), examples, sensitivity=1.0))
sensitivity: as claimed (one record moved the result by 1 of the claimed sensitivity at most, in 200 add-remove pairs)
>>> mean = replay(lambda rows: clip_rows(rows, 1.0).mean(0) if len(rows) else np.zeros(5), examples, 1 / 20)
>>> mean.passed, round(mean.measured / mean.limit)
(False, 20)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from discreet.audit.finding import ALPHA, Finding
from discreet.audit.neighbours import Records, neighbour_pairs, number_of, take_rows
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import one_of, real, whole
from discreet.guarantee import Neighbours, neighbours_named

Vector = NDArray[np.float64]
Release = Callable[[Records], Any]


def replay(
    sums: Release,
    records: Records,
    sensitivity: float,
    *,
    neighbours: Neighbours = "add-remove",
    norm: str = "l2",
    pairs: int = 200,
    tolerance: float = 1e-5,
    hostile: bool = True,
    stream: RandomStream | None = None,
) -> Finding:
    """The largest distance of ``sums(D)`` and ``sums(D')`` over neighbouring data sets, against ``sensitivity``.

    ``sums`` takes records and returns what is released, without the noise: the clipped sum or, better, what
    comes after the division, with ``sensitivity`` divided by the declared batch size too. ``records`` are some
    examples, made up or public, from which the pairs are made: with and without a record that is ordinary, huge,
    zero or not finite, beside few others, many, none, or copies of one. Under replace-one neighbours one record takes
    the place of another, and the sensitivity of a sum clipped to C is 2 C. An error on one side of a pair, and
    numbers that are not finite, count as an infinite distance, for they tell the two apart. ``hostile=False`` leaves
    out records with huge numbers, NaN and infinity, for code that is only ever given clean ones.

    Guarantee: no false alarms beyond ``tolerance`` (relative, for rounding). Passing is no proof: other pairs exist.
    """
    limit = real("sensitivity", sensitivity, above=0)
    neighbours_named(neighbours)
    one_of("norm", norm, ("l1", "l2"))
    count = whole("pairs", pairs, at_least=1)
    worst, kind, broken = 0.0, "", ""
    for pair in neighbour_pairs(records, neighbours, count, stream or system_stream(), hostile):
        found = _distance(_outcome(sums, pair.first), _outcome(sums, pair.second), norm)
        if found == np.inf:
            broken = broken or pair.kind
        elif found > worst:
            worst, kind = found, pair.kind
    within = worst <= limit * (1 + real("tolerance", tolerance, at_least=0, below=1))
    explanation = f"one record moved the result by {worst / limit:.4g} of the claimed sensitivity"
    explanation += f" at most, in {count} {neighbours} pairs" if within else f": {kind}"
    if broken:
        explanation += f"; an error, or numbers that are not finite, told two data sets apart: {broken}"
    measured = np.inf if broken else worst
    return Finding("sensitivity", within and not broken, explanation, measured=measured, limit=limit)


def replay_noisy(
    noisy: Release,
    records: Records,
    sensitivity: float,
    noise_std: float,
    *,
    neighbours: Neighbours = "add-remove",
    alpha: float = ALPHA,
    pairs: int = 22,
    draws: int = 100,
    hostile: bool = True,
    stream: RandomStream | None = None,
) -> Finding:
    """Replay code whose noise cannot be switched off: ``noisy(D)`` is called ``draws`` times.

    Half of the draws choose a direction, the other half measure the distance along it, so that the test is
    exact for Gaussian noise of the claimed ``noise_std``. It sees distances beyond about
    ``sensitivity + 6 * noise_std / sqrt(draws)``.

    Guarantee: a correct implementation is accused with probability at most ``alpha``.
    """
    limit, std = real("sensitivity", sensitivity, above=0), real("noise_std", noise_std, above=0)
    neighbours_named(neighbours)
    half = whole("draws", draws, at_least=2) // 2
    p_values: dict[str, float] = {}
    count = whole("pairs", pairs, at_least=1)
    for index, pair in enumerate(
        neighbour_pairs(records, neighbours, count, stream or system_stream(), hostile)
    ):
        aim, gap = (_mean_gap(noisy, pair.first, pair.second, half) for _ in range(2))
        p_values[f"{pair.kind} (pair {index + 1})"] = _beyond(aim, gap, limit, std * np.sqrt(2 / half))
    return Finding.of("sensitivity, seen through the noise", p_values, alpha)


def noise_depends_on_data(
    noisy: Release,
    records: Records,
    *,
    alpha: float = ALPHA,
    draws: int = 4000,
) -> Finding:
    """Is there as much noise with one record more? A divisor or a batch size taken from the data shows here.

    The amounts of noise on two data sets of n and n + 1 records are compared by Welch's test, for n of 1 and of all
    examples but one; differences of two releases on the same data are nothing but noise.

    Guarantee: a correct implementation is accused with probability at most ``alpha``, up to the normal
    approximation of means of ``draws`` numbers.
    """
    rows, count = number_of(records), whole("draws", draws, at_least=500)
    p_values = {}
    for size in dict.fromkeys((1, rows - 1)):
        few, more = take_rows(records, np.arange(size)), take_rows(records, np.arange(size + 1))
        amounts = [_amounts(noisy, data, count) for data in (few, more)]
        p_values[f"{size} and {size + 1} records"] = _welch(*amounts)
    return Finding.of("noise, with one record more", p_values, alpha)


def _outcome(release: Release, records: Records) -> Vector | None:
    """Return the outcome as one vector; None if the call raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return _vector(release(records))
    except Exception:  # whatever foreign code raises: that it does may depend on one record
        return None


def _vector(released: Any) -> Vector:
    return np.asarray(released, dtype=np.float64).reshape(-1)


def _distance(first: Vector | None, second: Vector | None, norm: str) -> float:
    if first is None and second is None:
        return 0.0
    if first is None or second is None or first.shape != second.shape:
        return float("inf")
    if np.array_equal(first, second, equal_nan=True):
        return 0.0
    gap = float(np.linalg.norm(first - second, ord=1 if norm == "l1" else 2))
    return gap if np.isfinite(gap) else float("inf")


def _mean_gap(noisy: Release, first: Records, second: Records, draws: int) -> Vector | None:
    """Mean of the releases on ``second`` less that on ``first``; None where an outcome tells the two apart."""
    a, b = ([_outcome(noisy, data) for _ in range(draws)] for data in (first, second))
    found = [outcome for outcome in a + b if outcome is not None]
    if not found:
        return np.zeros(1)
    if len(found) < 2 * draws or len({outcome.shape for outcome in found}) > 1:
        return None
    gap: Vector = np.mean(found[draws:], axis=0) - np.mean(found[:draws], axis=0)
    return gap if np.isfinite(gap).all() else None


def _beyond(aim: Vector | None, gap: Vector | None, limit: float, std: float) -> float:
    """p-value of a distance above ``limit``, along a direction that was chosen without looking at ``gap``."""
    if aim is None or gap is None:
        return 0.0
    length = float(np.linalg.norm(aim))
    along = float(aim @ gap) / length if length > 0 else 0.0
    return float(stats.norm.sf((along - limit) / std))


def _amounts(noisy: Release, data: Records, draws: int) -> Vector:
    """|difference of two releases on the same data|, coordinate by coordinate, ``draws`` of them or a few more."""
    found: list[Vector] = []
    while sum(part.size for part in found) < draws:
        first, second = _outcome(noisy, data), _outcome(noisy, data)
        if first is None or second is None or first.shape != second.shape or not first.size:
            return np.full(2, np.nan)
        found.append(np.abs(first - second))
    return np.concatenate(found)


def _welch(few: Vector, more: Vector) -> float:
    if np.isfinite(few).all() != np.isfinite(more).all():
        return 0.0
    if not np.isfinite(few).all() or np.array_equal(few, more):
        return 1.0
    if few.std() == 0 and more.std() == 0:
        return 1.0 if few.mean() == more.mean() else 0.0
    return float(stats.ttest_ind(few, more, equal_var=False).pvalue)
