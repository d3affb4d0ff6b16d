"""Bounds that nobody declared, learnt privately: :func:`learned_ranges`.

Two noisy histograms for each column. The first has a cell for every power of two, up to 2**64 and down to 2**-32,
with either sign; the cells that stand out of the noise span a range. The second has 64 cells across that range, so
that numbers far from zero (years, identifiers of a machine) are found too. What lies outside of the result is
clamped later, like everything outside of declared bounds.

>>> from discreet import Budget
>>> from discreet.linear.glm.spending import Spending
>>> years = np.random.default_rng(0).integers(1990, 2021, (5000, 1)).astype(float)
>>> lower, upper = learned_ranges(years, None, Spending(Budget(1.0, 1e-6)), share=0.08).ranges[0]
>>> 1000 < lower <= 1990, 2020 <= upper < 4100
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.sparse_rows import pieces
from discreet.linear.glm.spending import Spending, Stage

Array = NDArray[np.float64]
Range = tuple[float, float]

_SMALLEST, _LARGEST = -32, 64  # powers of two
_POWERS = _LARGEST - _SMALLEST + 1
_CELLS = 2 * _POWERS + 1
_ZOOM = 64
_BLOCK = 2**21  # numbers read at once
_ROUNDING = 1 + 1e-9
_FEW = 0.05  # of the numbers, that may be left out if they lie apart
_FEWEST = 3.5  # records over noise of a cell, below which nothing is found


class Learned(NamedTuple):
    """A range (lower, upper) for each column, and whether most records are in it, as far as can be seen."""

    ranges: list[Range]
    found: NDArray[np.bool_]


def learned_ranges(
    table: Any,
    weights: Array | None,
    spending: Spending,
    share: float,
    name: str = "ranges",
    records: float = math.inf,
    *,
    by_mass: bool = False,
) -> Learned:
    """A range for each column of ``table``, an array or a CSR array; NaN is not counted.

    ``records`` is a noisy number of them, to tell ranges from guesses. ``by_mass`` leaves out few numbers that lie
    apart from all others, such as a code for missing ones, however clearly they are there.

    Guarantee: two stages, each with half of ``share``. In each a record adds at most 1 to one cell of each column,
    so the sensitivity is the square root of the number of columns.
    """
    spending.refuse_more_rows(table.shape[0])
    coarse = _histograms(table, weights, spending.stage(name, share / 2), _power_cells, _CELLS)
    ranges = [_span(histogram, noise, by_mass) for histogram, noise in coarse]
    lower, width = np.array([low for low, _ in ranges]), np.array([high - low for low, high in ranges])

    def fine_cells(values: Array, columns: Any) -> Array:
        place = np.floor((values - lower[columns]) / width[columns] * _ZOOM)
        at_the_end = (
            values == lower[columns] + width[columns]
        )  # powers of two belong to the range that ends there
        return np.asarray(np.clip(np.where(at_the_end, _ZOOM - 1, place), -1, _ZOOM) + 1)

    fine = _histograms(table, weights, spending.stage(f"{name}-zoom", share / 2), fine_cells, _ZOOM + 2)
    narrow = [_narrow(span, *seen, by_mass) for span, seen in zip(ranges, fine, strict=True)]
    found = [_holds_most(histogram, noise, records) for histogram, noise in fine]
    return Learned(narrow, np.array(found, bool))


def unlearnt_ranges(columns: int) -> Learned:
    """Nothing is known of so many columns, and nothing was asked."""
    return Learned([(0.0, 1.0)] * columns, np.zeros(columns, bool))


def _histograms(
    table: Any, weights: Array | None, stage: Stage, cells_of: Any, cells: int
) -> list[tuple[Array, float]]:
    """A noisy histogram for each column, and the standard deviation of its noise."""
    columns = table.shape[1]
    sums = Sums(stage, columns * cells, math.sqrt(columns) * _ROUNDING)
    for rows in pieces(table) if issparse(table) else _blocks(table):
        own = None if weights is None else weights[rows]
        with np.errstate(all="ignore"):
            if issparse(table):
                _add_sparse(sums, csr_array(table[rows]), own, cells_of, cells)
            else:
                _add_block(sums, cells_of(np.asarray(table[rows], np.float64), slice(None)), own, cells)
    released = sums.release().reshape(columns, cells)
    return [(histogram, sums.noise) for histogram in released]


def _add_block(sums: Sums, places: Array, weights: Array | None, cells: int) -> None:
    for column in range(places.shape[1]):
        counted = ~np.isnan(places[:, column])
        own = None if weights is None else weights[counted]
        sums.add_ones(column * cells + places[counted, column].astype(np.int64), own)


def _add_sparse(sums: Sums, rows: csr_array, weights: Array | None, cells_of: Any, cells: int) -> None:
    """The same of sparse rows: the very same sums."""
    columns = np.arange(rows.shape[1])
    places = cells_of(rows.data.astype(np.float64), rows.indices)
    zeros = cells_of(np.zeros(len(columns)), columns).astype(np.int64)
    sums.add_cells(rows, np.nan_to_num(places, nan=-1.0).astype(np.int64), zeros, cells, weights)


def _blocks(table: Any) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, table.shape[1]))
    yield from (slice(start, start + step) for start in range(0, table.shape[0], step))


def _power_cells(values: Array, columns: Any = None) -> Array:
    """The cell of each value: 2**(e-1) < |x| <= 2**e, below zero from the left, zero in the middle; NaN stays."""
    powers = np.clip(np.ceil(np.log2(np.abs(values))), _SMALLEST, _LARGEST) - _SMALLEST + 1
    powers = np.where(np.abs(values) <= 2.0 ** (_SMALLEST - 1), 0.0, powers)
    return np.asarray(_POWERS + np.sign(values) * powers)


def _span(histogram: Array, noise: float, by_mass: bool) -> Range:
    """A range that holds nearly all numbers: too wide costs little later on, too narrow cannot be mended.

    Both signs together show how large numbers are. From the three best powers of two it goes up while a power is
    likely to hold records, and one further if there are both signs. A sign is left out if noise alone explains
    what was counted there.
    """
    sizes = histogram[_POWERS + 1 :] + histogram[:_POWERS][::-1]
    first, last = _likely_powers(sizes, noise * math.sqrt(2), by_mass)
    above = histogram[_POWERS + 1 + first : _POWERS + 2 + last].sum()
    below = histogram[_POWERS - 1 - last : _POWERS - first].sum()
    doubt = noise * math.sqrt(last - first + 1)
    if above > doubt and below > doubt:
        outer = _edges(_POWERS + 1 + min(last + 1, _POWERS - 1))[1]
        return -outer, outer
    if max(above, below) < 3 * doubt and histogram[_POWERS] > 6 * noise:
        return 0.0, 1.0  # all of them zero
    at_zero = last - first > 2 or histogram[_POWERS] > doubt
    inner, outer = 0.0 if at_zero else _edges(_POWERS + 1 + first)[0], _edges(_POWERS + 1 + last)[1]
    return (inner, outer) if above >= below else (-outer, -inner)


def _likely_powers(sizes: Array, noise: float, by_mass: bool) -> tuple[int, int]:
    """The first and the last power of two that numbers reach.

    Where the noise may be all there is, numbers near 1 are preferred: a quarter of a deviation for each octave.
    """
    octaves = np.abs(np.arange(_POWERS) + _SMALLEST)
    best = int((np.convolve(sizes, np.ones(3), "same") - noise * octaves / 4).argmax())
    first, last = max(best - 1, 0), min(best + 1, _POWERS - 1)
    while last > first and sizes[last] < noise:
        last -= 1
    while first < last and sizes[first] < noise:
        first += 1
    clear = np.union1d(_standing_out(sizes, noise), [first, last]).astype(np.int64)
    clear = _together(clear, sizes) if by_mass else clear
    first, last = int(clear[0]), int(clear[-1])
    while last + 1 < _POWERS and sizes[last + 1] > 2 * noise:
        last += 1
    return int(first), int(last)


def _edges(cell: int) -> Range:
    """The numbers between which a cell of powers lies."""
    power = abs(cell - _POWERS)
    if power == 0:
        return 0.0, 0.0
    inner, outer = 2.0 ** (power + _SMALLEST - 2), 2.0 ** (power + _SMALLEST - 1)
    return (inner, outer) if cell > _POWERS else (-outer, -inner)


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
