"""Columns that fill a small part of their bounds are looked at again, within that part: :func:`zoomed_marginals`.

Bounds that are a thousand times too wide put all records into one of 64 bins, and nothing could be told of them. What
the bins show is released, so where to look again is a public choice. It is paid for like every other look, and only
by tables that need it. A column that stays in one bin has one value in nearly all records, and remains as it was; at
an end of its bounds, such as 0, this is taken for granted after the first look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.marginals import BINS, Marginals, moments, resolved
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

_LOOKS = 3
_NARROW = 1 / 16  # of the bounds: what stands out must be within as much
_ELSEWHERE, _DOUBTS = (
    0.02,
    2.5,
)  # a share of the records that may be elsewhere, and standard deviations of noise
_ROUNDING = 1 + 1e-9
Stages = Callable[[str, float], Stage]


class Window(NamedTuple):
    """A part of [0, 1] in which nearly all records of a column are."""

    lower: float
    upper: float

    def part(self, lower: float, upper: float) -> Window:
        width = self.upper - self.lower
        return Window(self.lower + width * lower, self.lower + width * upper)


def narrow_part(histogram: Array, noise: float, records: float) -> Window | None:
    """The part that holds nearly all records, with a bin more on either side; None if it is not narrow.

    Post-processing of a noisy histogram over [0, 1].
    """
    seen = resolved(histogram, noise, records)
    if seen is None:
        return None
    bins, first, last = len(seen.counts), int(seen.clear[0]), int(seen.clear[-1]) + 1
    if last - first > _NARROW * bins:
        return None
    first, last = max(first - 1, 0), min(last + 1, bins)
    doubt = _DOUBTS * seen.noise * math.sqrt(last - first)
    if records - float(seen.counts[first:last].sum()) > _ELSEWHERE * records + doubt:
        return None
    return Window(first / bins, last / bins)


def zoomed_marginals(records: Records, marginals: Marginals, count: float, stage_for: Stages) -> Marginals:
    """The marginals after closer looks at the numeric columns that seem to need them.

    ``stage_for`` takes the name of a stage and the share of the numeric columns that it is for.
    """
    if marginals.released is None:
        return marginals
    seen, noise = dict(enumerate(marginals.released.bins)), marginals.released.noise
    windows = dict.fromkeys(seen, Window(0.0, 1.0))
    known = marginals._replace(**{name: getattr(marginals, name).copy() for name in marginals._fields[:4]})
    for look in range(1, _LOOKS + 1):
        parts = {j: narrow_part(histogram, noise, count) for j, histogram in seen.items()}
        windows = {j: windows[j].part(*part) for j, part in parts.items() if part is not None}
        if not windows:
            break
        stage = stage_for(f"marginals-zoom-{look}", len(windows) / records.columns.numerics)
        seen, noise = counted_within(records, windows, stage)
        seen = {j: bins for j, bins in seen.items() if _note(known, j, windows[j], bins, noise, count)}
    return known


def counted_within(
    records: Records, windows: dict[int, Window], stage: Stage
) -> tuple[dict[int, Array], float]:
    """Noisy numbers of records in 64 bins across the window of each column, and the noise of each.

    Guarantee: a record adds at most 1 to one bin of each column: the sensitivity is the square root of their number.
    """
    sums = Sums(stage, len(windows) * BINS, _ROUNDING * math.sqrt(len(windows)))
    for x, _, weights in records.chunks():
        for place, (j, (lower, upper)) in enumerate(windows.items()):
            cells = np.floor((x[:, j].astype(np.float64) - lower) / (upper - lower) * BINS)
            inside = (cells >= 0) & (cells < BINS)
            own = None if weights is None else weights[inside]
            sums.add_ones(place * BINS + cells[inside].astype(np.int64), own)
    histograms = sums.released().reshape(len(windows), BINS)
    return dict(zip(windows, histograms, strict=True)), sums.noise


def _note(known: Marginals, j: int, window: Window, histogram: Array, noise: float, count: float) -> bool:
    """Put down what a closer look at a column has shown; False if one more would show nothing."""
    found, bins = moments(histogram, noise, count), resolved(histogram, noise, count)
    if found is None or bins is None:
        return False
    if bins.clear[0] == bins.clear[-1]:
        return bool(0 < bins.clear[0] < len(bins.counts) - 1)
    width = window.upper - window.lower
    known.centre[j], known.scale[j] = window.lower + width * found.mean, width * math.sqrt(found.variance)
    known.lower[j], known.upper[j] = window.part(found.lower, found.upper)
    return True
