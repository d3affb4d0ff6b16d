"""Where each column lies and how wide it is, by one joint release.

With enough records (:func:`measured`), every numeric column is counted in 64 bins over its public range; with few
(:func:`pooled`), the scales stay public and only the centre is asked for, of all columns at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_rows
from discreet.linear.glm.columns import Columns
from discreet.linear.glm.noisy_counts import Counts, class_of
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.scales import moments
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

BINS = 64
RARE = 0.006  # added to the variance of a category: a rare one is not blown up
_COUNTED_WITH = 0.7  # weight of a class count beside the pooled centre, in radii of the rows
_SPREAD = 1 / 48  # variance of a common offset: a quarter of that of a number anywhere in [0, 1]
_ROUNDING = 1 + 1e-9  # what float sums of admitted rows can be off by


class Released(NamedTuple):
    """Noisy numbers of records: in the bins of each numeric column, and with each category; the noise of each."""

    bins: Array
    categories: Array
    noise: float


class Marginals(NamedTuple):
    """Centre and scale (standard deviation) of every encoded column, and the limits it is clamped to.

    ``released`` is what they follow from, where every column was looked at.
    """

    centre: Array
    scale: Array
    lower: Array
    upper: Array
    released: Released | None = None


def measured(records: Records, count: float, stage: Stage) -> Marginals:
    """Centre and scale of every column from histograms, category counts and moments of the text block.

    Guarantee: a record adds one 1 to the histogram and |x - 1/2| <= 1/2 to the sum of each numeric column, its
    one-hot block of squared norm at most #groups, and for the text block x and x*x/b with |x| <= b, where
    sum x^4 / b^2 <= b^2. So the squared sensitivity is 5/4 #numerics + #groups + 2 b^2.
    """
    columns = records.columns
    k, width = columns.numerics, columns.width
    square = 1.25 * k + len(columns.groups) + 2 * columns.text_square
    sums = Sums(stage, k * BINS + width + columns.text, _ROUNDING * math.sqrt(square))
    for x, _, weights in records.chunks():
        sums.add_bins(x[:, :k], BINS, weights)
        sums.add_rows(k * BINS, x[:, :k] - np.float32(0.5), weights)
        sums.add_rows(k * BINS + k, x[:, k:], weights)
        words = x[:, columns.words].astype(np.float64)  # whose squares are exact
        sums.add_rows(k * BINS + width, words**2, weights, unit=1 / columns.text_norm)
    noisy = sums.released()
    histograms, noise = noisy[: k * BINS].reshape(k, BINS), sums.noise
    means, squares = noisy[k * BINS :][:width] / count, noisy[k * BINS + width :] * columns.text_norm / count
    means[:k] += 0.5
    found = from_release(columns, histograms, means, squares, noise, count)
    return found._replace(released=Released(histograms, means[columns.categories] * count, noise))


def from_release(
    columns: Columns,
    histograms: Array,
    means: Array,
    squares: Array,
    noise: float,
    count: float,
    noise_of_bins: float | None = None,
) -> Marginals:
    """Post-processing of the joint release; ``noise_of_bins`` is that of the histograms, if it is another."""
    error = noise / count  # of a mean
    centre, variance = columns.public_centre(), columns.public_variance()
    lower, upper = columns.public_limits()
    hidden = []
    for j, histogram in enumerate(histograms):
        found = moments(histogram, noise_of_bins or noise, count)
        if found is None:
            hidden.append(j)
            continue
        centre[j], variance[j], lower[j], upper[j] = found
        width = math.sqrt(found.variance)
        if error < 0.3 * width and abs(means[j] - found.mean) < width + 2 * error:
            centre[j] = np.clip(means[j], 0, 1)  # a precise mean that agrees with the histogram
    if hidden:
        offsets = shrunk(means[hidden] - 0.5, error, common=len(hidden))
        centre[hidden] = np.clip(0.5 + offsets, 0, 1)
    shares = np.clip(means[columns.categories], 0, 1)
    centre[columns.categories] = shares
    variance[columns.categories] = shares * (1 - shares) + error + RARE
    if columns.text:
        words = shrunk(means[columns.words], error)
        centre[columns.words] = words
        variance[columns.words] = np.maximum(squares - words**2, 0) + error * columns.text_norm
    return Marginals(centre, np.sqrt(variance), lower, upper)


def pooled(records: Records, counts: Counts, stage: Stage) -> tuple[Marginals, Counts]:
    """The centre of the rows, with public scales; classes are counted a second time along with it.

    Guarantee: a record adds its row, clipped to R around the public centre, and 0.7 R to one class count. So the
    squared sensitivity is R^2 + 0.49 R^2.
    """
    columns = records.columns
    public = columns.public_centre()
    variance = columns.public_variance()
    radius = math.sqrt(max(float(variance.sum()), 1e-6))
    unit = _COUNTED_WITH * radius
    classes = len(counts.classes)
    sums = Sums(stage, columns.width + classes, _ROUNDING * math.hypot(radius, unit))
    for x, y, weights in records.chunks():
        sums.add_rows(0, clip_rows(x - public, radius), weights)
        sums.add_ones(columns.width + class_of(y, classes), weights, unit)
    noisy = sums.released()
    counts = counts.with_second_look(noisy[columns.width :] / unit, sums.noise / unit)
    offsets = noisy[: columns.width] / counts.records
    centre = public + shrunk(offsets, sums.noise / counts.records, common=columns.numerics)
    centre[: columns.numerics] = np.clip(centre[: columns.numerics], 0, 1)
    return Marginals(centre, np.sqrt(variance), *columns.public_limits()), counts


def shrunk(offsets: Array, error: float, common: int = 0) -> Array:
    """Noisy offsets pulled together as far as their noise explains their spread (James and Stein 1961).

    The first ``common`` are pulled toward their own mean (Lindley 1962), all others toward 0.
    """
    toward = np.zeros(len(offsets))
    if common > 3:
        mean = offsets[:common].mean()
        toward[:common] = mean * _SPREAD / (_SPREAD + error**2 / common)
    spread = offsets - toward
    explained = len(offsets) * error**2 / max(float(spread @ spread), 1e-12)
    return np.asarray(toward + spread * max(0.0, 1 - explained))
