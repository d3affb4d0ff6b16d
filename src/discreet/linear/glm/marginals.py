"""What a fit learns of its columns: where each lies and how wide it is.

:func:`measure_columns` makes the second release of every fit, after the counts.

>>> histogram = np.zeros(64)
>>> histogram[10:14] = 2500.0
>>> column = moments(histogram, noise=5.0, records=10_000.0)
>>> round(64 * column.mean, 6), round(64 * column.variance**0.5, 2), round(64 * column.upper, 2)
(12.0, 1.15, 15.46)
>>> moments(np.zeros(64), noise=5.0, records=10_000.0) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.column_blocks import ColumnSums, EvenBins
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records, Scores, WhiteNorms
from discreet.linear.glm.budget_split import BudgetSplit, at_most_half
from discreet.linear.glm.public_columns import public_centre, public_limits, public_variance
from discreet.linear.row_views.column_views import Offset, WindowBin
from discreet.linear.row_views.coordinates import (
    LOWEST,
    HalfOctaves,
    Marginals,
    Released,
    RowNorms,
    StandardNorms,
)
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows, View
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]


# Mean, variance and limits of a column from its noisy histogram: moments (post-processing, no data).
#
# Bounds are often declared far too wide, so most of the range is empty and its noise must not count. Bins are
# merged until those clearly above the noise hold most records; their hull gives mean and variance. Outside of it
# only what stands out is added. Records that must be somewhere but stand out nowhere widen the variance.
#
# The limits are where values will be clamped, in training and in prediction: a model whose weights are noisy cannot
# afford values that are many standard deviations off.

_CLEAR = 4.5  # standard deviations above which a bin surely holds records
_MOST = 0.7  # share of the records that the clear bins must hold
_CLEAR_RING, _CLEAR_FAR_BIN = 2.5, 3.3  # the same outside of the hull, where fewer tests are made
_LIMIT = 3.0  # standard deviations at which values are clamped
_CONCENTRATED, _TRIMMED, _BEYOND = 0.7, 0.01, 2.0  # see _spike_limits
_UNSEEN_BY_ONE_BIN = 0.7  # doubts allowed for when one bin holds nearly all: the rest may be anywhere


class ColumnMoments(NamedTuple):
    """What is known of a column on [0, 1]."""

    mean: float
    variance: float
    lower: float
    upper: float


class Resolved(NamedTuple):
    """A histogram at the finest resolution that can be trusted, and its clear bins."""

    counts: Array
    noise: float
    clear: NDArray[np.intp]


class Outside(NamedTuple):
    """Records that stand out away from the hull."""

    mass: float
    squared_distance: float
    bins: int


def moments(histogram: Array, noise: float, records: float) -> ColumnMoments | None:
    """Mean, variance and limits on [0, 1] of a column with this noisy histogram; None if the noise hides the column.

    ``noise`` is the standard deviation of each bin, ``records`` how many records there are.
    """
    seen = resolve_bins(histogram, noise, records)
    if seen is None:
        return None
    counts, noise, clear = seen
    bins = len(counts)
    middles = (np.arange(bins) + 0.5) / bins
    first, last = max(int(clear[0]) - 1, 0), min(int(clear[-1]) + 2, bins)
    inside = np.maximum(counts[first:last], 0)
    mass = float(inside.sum())
    mean = float(inside @ middles[first:last]) / mass
    variance = float(inside @ (middles[first:last] - mean) ** 2) / mass + 1 / (12 * bins**2)
    far = list(_outside(counts, (middles - mean) ** 2, noise, first, last))
    variance += sum(part.mass * part.squared_distance for part in far) / records
    unseen = 1 - (mass + sum(part.mass for part in far)) / records
    doubt = noise * math.sqrt(last - first + sum(part.bins for part in far)) / records
    unseen = max(unseen - 2.5 * doubt, _UNSEEN_BY_ONE_BIN * doubt if len(clear) == 1 else 0.0)
    near, farthest = max(mean - first / bins, last / bins - mean), max(mean, 1 - mean)
    variance += unseen * near * farthest  # unseen records are between near and far
    lower, upper = _spike_limits(seen)
    reach = _LIMIT * math.sqrt(variance)
    return ColumnMoments(
        mean, variance, max(0.0, min(mean - reach, lower)), min(1.0, max(mean + reach, upper))
    )


def _spike_limits(resolved: Resolved) -> tuple[float, float]:
    """Limits for a column with most records in one bin, such as a gain that is nearly always 0.

    Its variance says little of where the others are. They reach as far as the clear bins, without the outermost
    hundredth of the records, and may go twice as far. Other columns have no such limits.
    """
    clear = np.where(resolved.counts > _CLEAR * resolved.noise, resolved.counts, 0.0)
    bins, total = len(clear), clear.sum()
    if clear.max() <= _CONCENTRATED * total:
        return 1.0, 0.0
    first = int(np.argmax(np.cumsum(clear) > _TRIMMED * total))
    last = bins - int(np.argmax(np.cumsum(clear[::-1]) > _TRIMMED * total))
    mean = float(clear @ (np.arange(bins) + 0.5) / total)
    return (mean - _BEYOND * (mean - first)) / bins, (mean + _BEYOND * (last - mean)) / bins


def resolve_bins(histogram: Array, noise: float, records: float) -> Resolved | None:
    """Halve the number of bins until the clear ones hold most of the records."""
    counts = histogram
    while len(counts) >= 2:
        clear = np.flatnonzero(counts > _CLEAR * noise)
        if len(clear) and counts[clear].sum() > _MOST * records:
            return Resolved(counts, noise, clear)
        counts, noise = counts.reshape(-1, 2).sum(1), noise * math.sqrt(2)
    return None


def _outside(counts: Array, squares: Array, noise: float, first: int, last: int) -> Iterator[Outside]:
    """What stands out on both sides of the hull: rings of doubling width, else single bins."""
    left = ((counts[ring], squares[ring]) for ring in _rings(first))
    right = ((counts[::-1][ring], squares[::-1][ring]) for ring in _rings(len(counts) - last))
    for inside, squared in (*left, *right):
        if inside.sum() > _CLEAR_RING * noise * math.sqrt(len(inside)):
            yield Outside(float(inside.sum()), float(squared.mean()), len(inside))
            continue
        for bin in np.flatnonzero(inside > _CLEAR_FAR_BIN * noise):
            yield Outside(float(inside[bin]), float(squared[bin]), 1)


def _rings(edge: int) -> Iterator[slice]:
    """Slices of width 1, 2, 4, ... from ``edge`` down to 0."""
    width = 1
    while edge > 0:
        yield slice(max(0, edge - width), edge)
        edge, width = edge - width, 2 * width


# The typical size of positive numbers: typical_size.
#
# A histogram of half octaves, of which the best three neighbours are taken. One record adds 1 to one cell,
# however large its number is.


_STANDS_OUT = 4.0  # standard deviations: the best of all windows is noise in one release of a thousand


class TypicalSize(NamedTuple):
    """A size near which many numbers lie; ``found`` if their count is clearly above the noise."""

    size: float
    found: bool


def typical_size(
    records: Records, sizes: RowNorms | StandardNorms | WhiteNorms | Scores, stage: StagePermit
) -> TypicalSize:
    """Where most of the sizes of records lie."""
    of, view = (None, HalfOctaves(sizes)) if isinstance(sizes, View) else (sizes, HalfOctaves())
    query = Blocks((Cells(view, (HalfOctaves.cells,), (1.0,)),), of=of)
    counts, noise, _ = stage.ask(records, query)
    windows = np.convolve(counts, np.ones(3), "same")
    best = int(np.argmax(windows))
    near = np.arange(max(0, best - 1), min(len(counts), best + 2))
    share = np.maximum(counts[near], 1e-9)
    middle = float(share @ (near + LOWEST + 0.5) / share.sum())
    return TypicalSize(2.0 ** (middle / 2), bool(windows[best] > _STANDS_OUT * math.sqrt(3) * noise))


# Where each column lies and how wide it is, by one joint release.
#
# With enough records (:func:`measure_marginals`), every numeric column is counted in 64 bins over its public range;
# with few (:func:`pool_rows`), the scales stay public and only the centre is asked for, of all columns at once.

BINS = 64
_ROW_NORM, _LONGER = 0.02, 2.0  # the share of learning it; typical norms that a sparse row may have
RARE = 0.006  # added to the variance of a category: a rare one is not blown up
_SPREAD = 1 / 48  # variance of a common offset: a quarter of that of a number anywhere in [0, 1]
_SPIKE = 5.0  # standard deviations of a bin, above its neighbours, that are taken for missing numbers
_MOST_MISSING = 0.9  # share of the records, above which a column is taken for empty


def as_text(records: Records, spending: BudgetAllocator) -> Records:
    """Sparse numbers as rows of a norm that is learnt: most are 0, so rows are far shorter than they might be."""
    stage = spending.stage("row-norm", at_most_half(_ROW_NORM, spending))
    typical = typical_size(records, RowNorms(), stage)
    return records.as_text(min(_LONGER * typical.size, records.columns.reach)) if typical.found else records


def measure_columns(records: Records, count: float, spending: BudgetAllocator) -> Marginals:
    """Centre and scale of every column, as far as this number of records lets them be seen."""
    split = BudgetSplit.of(count, records.columns, spending)
    if split.sees_histograms:
        stage = spending.stage("marginals", at_most_half(split.for_marginals, spending))
        return zoom_marginals(records, measure_marginals(records, count, stage), count, spending)
    if records.sparse:
        return public_marginals(records.columns)
    return pool_rows(records, count, spending.stage("marginals", at_most_half(split.for_centre, spending)))


def measure_marginals(records: Records, count: float, stage: StagePermit) -> Marginals:
    """Centre and scale of every column from histograms, category counts and moments of the text block."""
    columns = records.columns
    k, width = columns.numerics, columns.width
    square = 1.25 * k + len(columns.groups) + 2 * columns.text_square
    parts = (EvenBins(columns, BINS), ColumnSums(columns, squares=True))
    noisy, noise, _ = stage.ask(records, Blocks(parts, ROUNDING * math.sqrt(square)))
    histograms = noisy[: k * BINS].reshape(k, BINS)
    means, squares = noisy[k * BINS :][:width] / count, noisy[k * BINS + width :] * columns.text_norm / count
    means[:k] += 0.5
    found = from_release(columns, histograms, means, squares, noise, count)
    if records.sparse:
        return found
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
    centre, variance = public_centre(columns), public_variance(columns)
    lower, upper = public_limits(columns)
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
        offsets = shrink_offsets(means[hidden] - 0.5, error, common=len(hidden))
        centre[hidden] = np.clip(0.5 + offsets, 0, 1)
    shares = np.clip(means[columns.categories], 0, 1)
    centre[columns.categories] = shares
    variance[columns.categories] = shares * (1 - shares) + error + RARE
    if columns.text:
        words = shrink_offsets(means[columns.words], error)
        centre[columns.words] = words
        variance[columns.words] = np.maximum(squares - words**2, 0) + error * columns.text_norm
    return Marginals(centre, np.sqrt(variance), lower, upper)


def fill_missing(records: Records, marginals: Marginals, count: float) -> Array | None:
    """Let missing numbers be the noisy mean of their column, which is returned; None for sparse rows."""
    if records.sparse:
        return None
    means = means_of_present(marginals, records.columns.numerics, count)
    records.fill_missing(means)
    return means


def means_of_present(marginals: Marginals, numerics: int, count: float) -> Array:
    """The mean of each numeric column over the records that have a number there. Post-processing.

    Missing numbers were counted in the middle of the bounds. Where its bin stands out of its neighbours, it is left
    out of the mean; if it holds numbers, too, they are as far from the mean as others are.
    """
    means = np.clip(marginals.centre[:numerics], 0, 1)
    if marginals.released is None:
        return means
    bins, noise = marginals.released.bins, marginals.released.noise
    middle = BINS // 2
    spike = bins[:, middle] - (bins[:, middle - 1] + bins[:, middle + 1]) / 2
    share = np.where(spike > _SPIKE * noise, spike, 0.0) / count
    share[share > _MOST_MISSING] = 0.0  # of which no mean is known
    return np.asarray(np.clip((means - 0.5 * share) / (1 - share), 0, 1))


def pool_rows(records: Records, count: float, stage: StagePermit) -> Marginals:
    """The centre of the rows, with public scales: each row is clipped around the public centre."""
    columns, public = records.columns, public_centre(records.columns)
    known = public_marginals(columns)
    radius = math.sqrt(max(float(public_variance(columns).sum()), 1e-6))
    query = Blocks((Rows(Offset(public), columns.width, radius),), ROUNDING * radius)
    noisy, noise, _ = stage.ask(records, query)
    centre = public + shrink_offsets(noisy / count, noise / count, common=columns.numerics)
    centre[: columns.numerics] = np.clip(centre[: columns.numerics], 0, 1)
    return known._replace(centre=centre)


def public_marginals(columns: Columns) -> Marginals:
    """Public scales around 0, where nothing was looked at."""
    scale = np.sqrt(public_variance(columns))
    return Marginals(np.zeros(columns.width), scale, *public_limits(columns))


def shrink_offsets(offsets: Array, error: float, common: int = 0) -> Array:
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


_LOOKS = 3
_NARROW = 1 / 16  # of the bounds: what stands out must be within as much
_ELSEWHERE, _DOUBTS = (
    0.02,
    2.5,
)  # a share of the records that may be elsewhere, and standard deviations of noise


class ColumnWindow(NamedTuple):
    """A part of [0, 1] in which nearly all records of a column are."""

    lower: float
    upper: float

    def part(self, lower: float, upper: float) -> ColumnWindow:
        width = self.upper - self.lower
        return ColumnWindow(self.lower + width * lower, self.lower + width * upper)


def narrow_part(histogram: Array, noise: float, records: float) -> ColumnWindow | None:
    """The part that holds nearly all records, with a bin more on either side; None if it is not narrow.

    Post-processing of a noisy histogram over [0, 1].
    """
    seen = resolve_bins(histogram, noise, records)
    if seen is None:
        return None
    bins, first, last = len(seen.counts), int(seen.clear[0]), int(seen.clear[-1]) + 1
    if last - first > _NARROW * bins:
        return None
    first, last = max(first - 1, 0), min(last + 1, bins)
    doubt = _DOUBTS * seen.noise * math.sqrt(last - first)
    if records - float(seen.counts[first:last].sum()) > _ELSEWHERE * records + doubt:
        return None
    return ColumnWindow(first / bins, last / bins)


def zoom_marginals(
    records: Records, marginals: Marginals, count: float, spending: BudgetAllocator
) -> Marginals:
    """The marginals after histograms of narrower windows of the numeric columns that seem to need them.

    Sparse rows keep theirs: zeros are not moved, and most are zeros.
    """
    if marginals.released is None or records.sparse:
        return marginals
    share = BudgetSplit.of(count, records.columns, spending).for_marginals
    seen, noise = dict(enumerate(marginals.released.bins)), marginals.released.noise
    windows = dict.fromkeys(seen, ColumnWindow(0.0, 1.0))
    known = marginals._replace(**{name: getattr(marginals, name).copy() for name in marginals._fields[:4]})
    for look in range(1, _LOOKS + 1):
        parts = {j: narrow_part(histogram, noise, count) for j, histogram in seen.items()}
        windows = {j: windows[j].part(*part) for j, part in parts.items() if part is not None}
        if not windows:
            break
        part = len(windows) / records.columns.numerics
        stage = spending.stage(f"marginals-zoom-{look}", at_most_half(part * share, spending))
        seen, noise = count_within(records, windows, stage)
        seen = {j: bins for j, bins in seen.items() if _note(known, j, windows[j], bins, noise, count)}
    return known


def count_within(
    records: Records, windows: dict[int, ColumnWindow], stage: StagePermit
) -> tuple[dict[int, Array], float]:
    """Noisy numbers of records in 64 bins across the window of each column, and the noise of each."""
    parts = tuple(Cells(WindowBin(j, *window, BINS), (BINS,), (1.0,)) for j, window in windows.items())
    noisy, noise, _ = stage.ask(records, Blocks(parts, ROUNDING * math.sqrt(len(windows))))
    return dict(zip(windows, noisy.reshape(len(windows), BINS), strict=True)), noise


def _note(
    known: Marginals, j: int, window: ColumnWindow, histogram: Array, noise: float, count: float
) -> bool:
    """Put down what a closer look at a column has shown; False if one more would show nothing."""
    found, bins = moments(histogram, noise, count), resolve_bins(histogram, noise, count)
    if found is None or bins is None:
        return False
    if bins.clear[0] == bins.clear[-1]:
        return bool(0 < bins.clear[0] < len(bins.counts) - 1)
    width = window.upper - window.lower
    known.centre[j], known.scale[j] = window.lower + width * found.mean, width * math.sqrt(found.variance)
    known.lower[j], known.upper[j] = window.part(found.lower, found.upper)
    return True
