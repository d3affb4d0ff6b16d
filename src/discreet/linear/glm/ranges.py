"""Bounds that nobody declared, learnt privately: :func:`learned_ranges`.

Two noisy histograms for each column. The first has a cell for every power of two, up to 2**64 and down to 2**-32,
with either sign; the cells that stand out of the noise span a range. The second has 64 cells across that range, so
that numbers far from zero (years, identifiers of a machine) are found too. What lies outside of the result is
clamped later, like everything outside of declared bounds.

>>> from discreet import Budget
>>> from discreet.trusted.spending import BudgetAllocator
>>> years = np.random.default_rng(0).integers(1990, 2021, (5000, 1)).astype(float)
>>> lower, upper = learned_ranges(RawColumns(years), BudgetAllocator(Budget(1.0, 1e-6)), share=0.08).ranges[0]
>>> 1000 < lower <= 1990, 2020 <= upper < 4100
(True, True)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.column_blocks import ColumnCells
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.row_views.column_views import POWERS, SMALLEST, PowerCells, RangeCells
from discreet.trusted.queries import ROUNDING, Blocks
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]
Range = tuple[float, float]

_ZOOM = 64
_FEW = 0.05  # of the numbers, that may be left out if they lie apart
_FEWEST = 3.5  # records over noise of a cell, below which nothing is found


class Learned(NamedTuple):
    """A range (lower, upper) for each column, and whether most records are in it, as far as can be seen."""

    ranges: list[Range]
    found: NDArray[np.bool_]


def learned_ranges(
    raw: RawColumns,
    spending: BudgetAllocator,
    share: float,
    name: str = "ranges",
    records: float = math.inf,
    *,
    by_mass: bool = False,
) -> Learned:
    """A range for each column of numbers as they were read; NaN is not counted.

    ``records`` is a noisy number of them, to tell ranges from guesses. ``by_mass`` leaves out few numbers that lie
    apart from all others, such as a code for missing ones, however clearly they are there.
    Two stages get half of ``share`` each.
    """
    spending.admit(raw)
    coarse = _histograms(raw, PowerCells(raw.columns), spending.stage(name, share / 2))
    ranges = [_span(histogram, noise, by_mass) for histogram, noise in coarse]
    lower, width = np.array([low for low, _ in ranges]), np.array([high - low for low, high in ranges])
    fine = _histograms(raw, RangeCells(lower, width, _ZOOM), spending.stage(f"{name}-zoom", share / 2))
    narrow = [_narrow(span, *seen, by_mass) for span, seen in zip(ranges, fine, strict=True)]
    found = [_holds_most(histogram, noise, records) for histogram, noise in fine]
    return Learned(narrow, np.array(found, bool))


def unlearnt_ranges(columns: int) -> Learned:
    """Nothing is known of so many columns, and nothing was asked."""
    return Learned([(0.0, 1.0)] * columns, np.zeros(columns, bool))


def _histograms(
    raw: RawColumns, view: PowerCells | RangeCells, stage: StagePermit
) -> list[tuple[Array, float]]:
    """A noisy histogram for each column, and the standard deviation of its noise."""
    block = ColumnCells(view, raw.columns, view.cells)
    noisy, noise, _ = stage.ask(raw, Blocks((block,), math.sqrt(raw.columns) * ROUNDING))
    return [(histogram, noise) for histogram in noisy.reshape(raw.columns, view.cells)]


def _span(histogram: Array, noise: float, by_mass: bool) -> Range:
    """A range that holds nearly all numbers: too wide costs little later on, too narrow cannot be mended.

    Both signs together show how large numbers are. From the three best powers of two it goes up while a power is
    likely to hold records, and one further if there are both signs. A sign is left out if noise alone explains
    what was counted there.
    """
    sizes = histogram[POWERS + 1 :] + histogram[:POWERS][::-1]
    first, last = _likely_powers(sizes, noise * math.sqrt(2), by_mass)
    above = histogram[POWERS + 1 + first : POWERS + 2 + last].sum()
    below = histogram[POWERS - 1 - last : POWERS - first].sum()
    doubt = noise * math.sqrt(last - first + 1)
    if above > doubt and below > doubt:
        outer = _edges(POWERS + 1 + min(last + 1, POWERS - 1))[1]
        return -outer, outer
    if max(above, below) < 3 * doubt and histogram[POWERS] > 6 * noise:
        return 0.0, 1.0  # all of them zero
    at_zero = last - first > 2 or histogram[POWERS] > doubt
    inner, outer = 0.0 if at_zero else _edges(POWERS + 1 + first)[0], _edges(POWERS + 1 + last)[1]
    return (inner, outer) if above >= below else (-outer, -inner)


def _likely_powers(sizes: Array, noise: float, by_mass: bool) -> tuple[int, int]:
    """The first and the last power of two that numbers reach.

    Where the noise may be all there is, numbers near 1 are preferred: a quarter of a deviation for each octave.
    """
    octaves = np.abs(np.arange(POWERS) + SMALLEST)
    best = int((np.convolve(sizes, np.ones(3), "same") - noise * octaves / 4).argmax())
    first, last = max(best - 1, 0), min(best + 1, POWERS - 1)
    while last > first and sizes[last] < noise:
        last -= 1
    while first < last and sizes[first] < noise:
        first += 1
    clear = np.union1d(_standing_out(sizes, noise), [first, last]).astype(np.int64)
    clear = _together(clear, sizes) if by_mass else clear
    first, last = int(clear[0]), int(clear[-1])
    while last + 1 < POWERS and sizes[last + 1] > 2 * noise:
        last += 1
    return int(first), int(last)


def _edges(cell: int) -> Range:
    """The numbers between which a cell of powers lies."""
    power = abs(cell - POWERS)
    if power == 0:
        return 0.0, 0.0
    inner, outer = 2.0 ** (power + SMALLEST - 2), 2.0 ** (power + SMALLEST - 1)
    return (inner, outer) if cell > POWERS else (-outer, -inner)


def _holds_most(histogram: Array, noise: float, records: float) -> bool:
    """Whether less than half of the records are outside; with very few records nobody can tell."""
    return records > _FEWEST * noise and float(histogram[0] + histogram[-1]) < records / 2


def _narrow(span: Range, histogram: Array, noise: float, by_mass: bool) -> Range:
    """The cells that stand out and one more on either side, if that is less than a quarter of the range."""
    found = _standing_out(histogram[1:-1], noise)
    found = _together(found, histogram[1:-1]) if by_mass else found
    inside = histogram[1:-1][found].sum()
    if histogram.sum() - inside > 0.1 * inside + 2 * noise * math.sqrt(len(histogram)):
        return span  # too many are elsewhere
    if not len(found):
        return span
    first, last = max(0, int(found[0]) - 1), min(_ZOOM, int(found[-1]) + 2)
    if last - first > _ZOOM / 4:
        return span
    width = (span[1] - span[0]) / _ZOOM
    return span[0] + first * width, span[0] + last * width


def _together(cells: NDArray[np.int64], histogram: Array) -> NDArray[np.int64]:
    """The cells that belong together: groups that hold few numbers and lie far from the largest one are left out.

    Far is a gap wider than all that is between, and than two cells. Tails have no gaps, codes for missing numbers do.
    """
    groups = np.split(cells, np.flatnonzero(np.diff(cells) > 1) + 1) if len(cells) else []
    masses = [float(histogram[group].sum()) for group in groups]
    if not groups:
        return cells
    first = last = int(np.argmax(masses))
    for place in range(first - 1, -1, -1):
        if _belongs(
            groups[first][0] - groups[place][-1], groups[first][0], groups[last][-1], masses[place], masses
        ):
            first = place
    for place in range(last + 1, len(groups)):
        if _belongs(
            groups[place][0] - groups[last][-1], groups[first][0], groups[last][-1], masses[place], masses
        ):
            last = place
    return np.concatenate(groups[first : last + 1])


def _belongs(gap: int, first: int, last: int, mass: float, masses: list[float]) -> bool:
    return gap <= max(3, last - first + 1) or mass > _FEW * sum(masses)


def _standing_out(histogram: Array, noise: float) -> NDArray[np.int64]:
    """Cells beyond what noise reaches, but for one release in a thousand at most."""
    return np.flatnonzero(histogram > noise * (math.sqrt(2 * math.log(len(histogram))) + 3))
