"""Which lattice to build: grid, window and blocks that should bring both distributions close, by a saddle point.

Nothing here is a guarantee: a :class:`~discreet.accounting.discretisation.Design` is a proposal, and
:func:`~discreet.accounting.discretisation.build` is sound for every grid, window, exponent and tilt, or refuses it. A
bad one makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.discretisation import CUT, CompositionBlock, Design, LossDistribution, LossWindow
from discreet.accounting.pairs import Array, Pair
from discreet.accounting.saddlepoint import SaddlepointEstimate, SaddlepointTarget

LARGEST = 2**19  # grid points; beyond that a coarser grid, and wider bounds, must do
MANY = 200_000  # releases from which a second, coarser grid pays
CORE = 0.2  # P-mass of a cell from which the grid is shifted onto its loss


def step_for(width: float, steps: int, tilt: float) -> float:
    """Grid step at which chords and tangents are about ``width`` apart in epsilon after ``steps`` releases."""
    return float(np.sqrt(5.0 * width / (steps * (tilt + 1))))


def design(
    plds: Sequence[LossDistribution], estimate: SaddlepointEstimate, target: SaddlepointTarget, step: float
) -> tuple[Design, float]:
    """A lattice around ``target``, and the smallest step of a one-step grid that memory allows."""
    if not step > 0:
        raise FloatingPointError("a single loss spans no grid")
    log_mass = spare_mass(target, estimate.moments(target.tilt).value)
    window = roomy_window(*estimate.chernoff(target.tilt, log_mass, step), step)
    width = window.ends[1] - window.ends[0]
    two_levels = estimate.steps >= MANY and width / step > 2**16
    block = round(np.sqrt(estimate.steps)) if two_levels else 1
    factor = int(np.sqrt(block)) | 1
    step = step / np.sqrt(2) if two_levels else step
    widest = factor // 4 if two_levels else 256  # a coarser grid must not see the gaps
    one = one_step(plds, estimate, target, step, width / factor, widest)
    found = Design(target.tilt, one.step, one.log_tail, one.grids, window)
    if two_levels:
        blocks = [
            _blocks(picture, pld.count, target.tilt, block, one.step, log_mass)
            for picture, pld in zip(estimate.parts, plds, strict=True)
        ]
        found = found._replace(blocks=blocks, factor=factor)
    return found, one.limit


def spare_mass(target: SaddlepointTarget, log_scale: float) -> float:
    """log of the tilted mass that may wrap around the window: it may change delta by the share CUT."""
    log_mass = np.log(CUT) + target.log_delta - (log_scale - target.tilt * target.epsilon)
    return float(np.clip(log_mass, -34.0, -12.0)) - 1.0


def roomy_window(ends: tuple[float, float], slopes: tuple[float, float], step: float) -> LossWindow:
    """A window that an estimate chose, with room for the grid."""
    return LossWindow((min(ends) - 4 * step, max(ends) + 4 * step), slopes)


class SingleReleaseGrids(NamedTuple):
    """The grids of single releases: step, smallest P-mass told apart, grids, and the least step for memory."""

    step: float
    log_tail: float
    grids: list[tuple[float, NDArray[np.int64]]]
    limit: float


def one_step(
    plds: Sequence[LossDistribution],
    estimate: SaddlepointEstimate,
    target: SaddlepointTarget,
    step: float,
    width: float,
    widest: int,
) -> SingleReleaseGrids:
    """Grids of one step for all distributions, with cells at most ``widest`` steps wide.

    ``width`` is that of the window on which they will be composed.
    """
    log_tail = target.log_delta + float(np.log(CUT / estimate.steps))
    ranges = [
        (max(low, floor), high)
        for (low, high), floor in zip(
            (pld.upper.p_range(log_tail) for pld in plds),
            estimate.floors(target.tilt, CUT / 100),
            strict=True,
        )
    ]
    limit = max([width, *(high - low for low, high in ranges)]) / LARGEST
    step = max(step, limit)
    for atoms in (pld.upper.atoms for pld in plds):
        if atoms and atoms[1] - atoms[0] > step / 4:
            step = (atoms[1] - atoms[0]) / float(np.ceil((atoms[1] - atoms[0]) / step))  # both onto the grid
    grids = []
    for pld, (low, high), (losses, log_p, _) in zip(plds, ranges, estimate.parts, strict=True):
        if not (np.isfinite(low) and np.isfinite(high)):
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        offset = grid_offset(pld.upper, losses, log_p, step, low, high)
        first, last = int(np.floor((low - offset) / step - 1e-6)), int(np.ceil((high - offset) / step + 1e-6))
        if max(abs(first), abs(last)) > 2**60:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        vertices = graded_points(
            first, max(last, first + 2), (losses - offset) / step, log_p + target.tilt * losses, widest
        )
        grids.append((offset, vertices))
    # Rounding is charged as if delta were as small as the tails that are cut: more than there is, never less.
    return SingleReleaseGrids(step, log_tail, grids, limit)


def _blocks(
    picture: tuple[Array, Array, int], count: int, tilt: float, block: int, step: float, log_mass: float
) -> list[CompositionBlock]:
    """``count`` releases of one distribution in blocks."""
    blocks = []
    whole, rest = divmod(count, min(block, count))
    for length, repeats in ((min(block, count), whole), (rest, 1)):
        if length == 0:
            continue
        alone = SaddlepointEstimate.of_pictures([(picture[0], picture[1], length)])
        window = roomy_window(*alone.chernoff(tilt, log_mass - float(np.log(repeats)), step), step)
        if (window.ends[1] - window.ends[0]) / step > 2 * LARGEST:
            raise FloatingPointError("a grid beyond what memory is given to it")
        blocks.append(CompositionBlock(length, repeats, window))
    return blocks


def graded_points(first: int, last: int, places: Array, log_weights: Array, widest: int) -> NDArray[np.int64]:
    """Grid points from ``first`` to ``last``: all of them in the bulk, ever fewer in the tails.

    Cells may be m times wider where less than 0.005 / m^2 of the tilted distribution lies beyond; together they add a
    few percent to the error of a full grid. Wide cells in the far tails are cheaper, and lose less to rounding.
    """
    if last - first < 4096:
        return np.arange(first, last + 1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])
    pieces, low, high, width = [], last, first, 1
    while True:
        share = 0.005 / width**2
        left = int(np.clip(np.floor(places[np.argmax(below > share)]), first, low))
        right = int(np.clip(np.ceil(places[::-1][np.argmax(above > share)]), high, last))
        if 2 * width > widest:
            left, right = first, last
        pieces += (
            [np.arange(low, left, -width), np.arange(high, right, width)]
            if width > 1
            else [np.arange(left, right + 1)]
        )
        if 2 * width > widest:
            points = np.sort(np.concatenate([*pieces, [first, last]]))
            return np.asarray(points[np.concatenate([[True], points[1:] > points[:-1]])])
        low, high, width = left, right, 2 * width


def grid_offset(pair: Pair, losses: Array, log_p: Array, step: float, low: float, high: float) -> float:
    """Shift of the grid that puts a core narrower than a cell on a grid point, or else its start where that is cheap.

    Seen from the nearer end of the range, the core must not lie beyond that point: there the optimistic curve
    starts (or stops), and would leave out the whole core.
    """
    mode = float(losses[np.argmax(log_p)])
    if pair.atoms and pair.atoms[1] - pair.atoms[0] > 0.99 * step:
        return pair.atoms[1]
    move, before = 0.0, (np.nan, np.nan)
    for attempt in range(12):
        (p,), (q,) = pair.masses(np.array([mode - step / 2, mode + step / 2]))
        if p < CORE or q <= 0:
            if attempt == 0:
                return _start(losses, log_p, step)
            break
        move = float(np.log(p / q)) - mode
        if abs(move) < 1e-15:
            break
        slope = (move - before[1]) / (mode - before[0]) if mode != before[0] else 0.0
        before = (mode, move)
        mode += float(np.clip(-move / slope, -step, step)) if slope < 0 else move  # secant from the second on
    return mode + 2 * abs(move) if mode - low < high - mode else mode - 2 * abs(move)


def _start(losses: Array, log_p: Array, step: float) -> float:
    """A loss at which the optimistic curve can start with the least mass below it.

    It starts where everything up to half a step beyond has a mean loss of that much (its first straight piece is a
    tangent, docs/mathematics.md). One that misses this place by little must merge up to another whole cell.
    """
    p = np.exp(log_p)
    below = np.log(np.cumsum(p)[:-1] / np.cumsum(p * np.exp(-losses))[:-1])
    room = (losses[1:] + losses[:-1]) / 2 - below
    place = int(np.argmax(room >= step / 2)) if len(room) else 0
    if place > 0:
        part = (step / 2 - room[place - 1]) / (room[place] - room[place - 1])
        return float(below[place - 1] + part * (below[place] - below[place - 1]) + 0.03 * step)
    return float(losses[np.argmax(log_p)])
