"""From an aim to a lattice: choose grid and window, put the laws of one direction on the grid, compose.

Chords of the curve of a pair lie above it, tangents below; :mod:`~discreet.accounting.lattice` says why that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.lattice import (
    OPTIMISTIC,
    PESSIMISTIC,
    TINY,
    ULP,
    Lattice,
    Layers,
    cell_accuracy,
    compose,
    mass_outside,
    weighted_sums,
)
from discreet.accounting.pairs import Array, Pair
from discreet.accounting.steering import Aim, Scout, graded_points, grid_offset

CUT = 1e-6  # share of delta that cut tails and wrapped windows may cost, each
LARGEST = 2**19  # grid points; beyond that a coarser grid, and wider bounds, must do
MANY = 200_000  # releases from which a second, coarser grid pays
MOST_CORNERS = 100_000
MOST_LAYERS = 100_000
LARGEST_LOSS = 640.0  # e^640 times TINY is still negligible


@dataclass(frozen=True, eq=False)
class Law:
    """``count`` releases whose exact one-step curve lies between those of ``lower`` and ``upper``."""

    upper: Pair
    lower: Pair
    count: int

    @property
    def largest_loss(self) -> float:
        """The largest loss of all of them together, up to rounding; infinite for Gaussian noise."""
        return self.count * self.upper.p_range(-np.inf)[1]


def step_for(width: float, steps: int, tilt: float) -> float:
    """Grid step at which chords and tangents are about ``width`` apart in epsilon after ``steps`` releases."""
    return float(np.sqrt(5.0 * width / (steps * (tilt + 1))))


def build(
    laws: Sequence[Law], scout: Scout, aim: Aim, step: float, upper_only: bool = False
) -> tuple[Lattice, float]:
    """The composed lattice around ``aim``, and the smallest step of a one-step grid that memory allows."""
    if not step > 0:
        raise FloatingPointError("a single loss spans no grid")
    log_mass = spare_mass(aim, scout.moments(aim.tilt).value)
    window, slopes = scout.chernoff(aim.tilt, log_mass, step)
    window = roomy_window(window, step)
    width = window[1] - window[0]
    two_levels = scout.steps >= MANY and width / step > 2**16
    block = round(np.sqrt(scout.steps)) if two_levels else 1
    factor = int(np.sqrt(block)) | 1
    step = step / np.sqrt(2) if two_levels else step
    widest = factor // 4 if two_levels else 256  # a coarser grid must not see the gaps
    lattices, limit = one_step(laws, scout, aim, step, width / factor, widest, upper_only)
    parts = [(lattice, law.count) for lattice, law in zip(lattices, laws, strict=True)]
    if two_levels:
        parts = _in_blocks(parts, scout, aim.tilt, block, factor, log_mass)
    return compose(parts, window, mass_outside(parts, window, slopes)), limit


def spare_mass(aim: Aim, log_scale: float) -> float:
    """log of the tilted mass that may wrap around the window: it may change delta by the share CUT."""
    log_mass = np.log(CUT) + aim.log_delta - (log_scale - aim.tilt * aim.epsilon)
    return float(np.clip(log_mass, -34.0, -12.0)) - 1.0


def roomy_window(window: tuple[float, float], step: float) -> tuple[float, float]:
    """A window that an estimate chose, with room for the grid."""
    return min(window) - 4 * step, max(window) + 4 * step


def one_step(
    laws: Sequence[Law], scout: Scout, aim: Aim, step: float, width: float, widest: int, upper_only: bool
) -> tuple[list[Lattice], float]:
    """The laws on one grid, cells at most ``widest`` steps wide, and the smallest step that memory allows.

    ``width`` is that of the window on which they will be composed.
    """
    log_tail = aim.log_delta + float(np.log(CUT / scout.steps))
    ranges = [
        (max(low, floor), high)
        for (low, high), floor in zip(
            (law.upper.p_range(log_tail) for law in laws), scout.floors(aim.tilt, CUT / 100), strict=True
        )
    ]
    limit = max([width, *(high - low for low, high in ranges)]) / LARGEST
    step = max(step, limit)
    for atoms in (law.upper.atoms for law in laws):
        if atoms and atoms[1] - atoms[0] > step / 4:
            step = (atoms[1] - atoms[0]) / float(np.ceil((atoms[1] - atoms[0]) / step))  # both onto the grid
    lattices = []
    for law, (low, high), (losses, log_p, _) in zip(laws, ranges, scout.parts, strict=True):
        if not (np.isfinite(low) and np.isfinite(high)):
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        offset = grid_offset(law.upper, losses, log_p, step, low, high)
        first, last = int(np.floor((low - offset) / step - 1e-6)), int(np.ceil((high - offset) / step + 1e-6))
        if max(abs(first), abs(last)) > 2**60:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        vertices = graded_points(
            first, max(last, first + 2), (losses - offset) / step, log_p + aim.tilt * losses, widest
        )
        # Charged as if delta were as small as the tails that are cut: more rounding than there is, never less.
        lower = None if upper_only else law.lower
        lattices.append(discretise(law.upper, lower, aim.tilt, step, offset, vertices, log_tail))
    return lattices, limit


def _in_blocks(
    parts: list[tuple[Lattice, int]], scout: Scout, tilt: float, block: int, factor: int, log_mass: float
) -> list[tuple[Lattice, int]]:
    """The same composition as blocks of releases on a grid ``factor`` times coarser.

    The error of a grid grows with the number of releases put on it, so the sum of a block can be stored on a
    coarser grid than its members.
    """
    coarse = []
    for (lattice, count), picture in zip(parts, scout.parts, strict=True):
        whole, rest = divmod(count, min(block, count))
        for length, repeats in ((min(block, count), whole), (rest, 1)):
            if length == 0:
                continue
            alone = Scout.of_pictures([(picture[0], picture[1], length)])
            window, slopes = alone.chernoff(tilt, log_mass - float(np.log(repeats)), lattice.step)
            window = roomy_window(window, lattice.step)
            if (window[1] - window[0]) / lattice.step > 2 * LARGEST:
                raise FloatingPointError("a grid beyond what memory is given to it")
            sums = compose([(lattice, length)], window, mass_outside([(lattice, length)], window, slopes))
            coarse.append((coarsen(sums, factor), repeats))
    return coarse


# ---- one law on a grid: chords above its curve, tangents below ----


def discretise(
    upper: Pair,
    lower: Pair | None,
    tilt: float,
    step: float,
    offset: float,
    vertices: NDArray[np.int64],
    log_delta: float,
) -> Lattice:
    """Put a one-step law on ``offset + step * vertices``, increasing whole numbers with gaps if one likes.

    ``upper`` and ``lower`` are the pair itself, or two pairs that enclose it; without ``lower`` there is no
    optimistic row. ``log_delta`` is the smallest delta that will be asked of the composition; see
    :func:`~discreet.accounting.lattice.cell_accuracy`.

    Guarantee: H_optimistic <= H(lower) and H(upper) <= H_pessimistic + infinite, at every a >= 0.
    """
    losses = offset + step * vertices.astype(np.float64)
    pessimistic, infinite = chords(upper, losses)
    accuracy = cell_accuracy(log_delta - max(float(losses[-1]), 0.0))
    laws = [pessimistic] if lower is None else [pessimistic, _tangents(lower, losses, accuracy)]
    if not (all(np.all(np.isfinite(law)) for law in laws) and np.isfinite(infinite)):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    rows = np.zeros((len(laws), int(vertices[-1] - vertices[0]) + 1))
    scale = np.empty(len(laws))
    error = 0.0
    place = vertices - vertices[0]
    for row, law in enumerate(laws):
        with np.errstate(divide="ignore"):
            exponent = np.log(law) + tilt * losses
        top = exponent.max()
        if not np.isfinite(top):  # an empty optimistic law: delta is at least 0, and that is all it says
            top = 0.0
        tilted = np.exp(exponent - top)
        total = max(float(tilted.sum()), 1e-300)
        rows[row, place] = tilted / total
        scale[row] = top + np.log(total)
        # A tilted mass is wrong by a unit of each logarithm in its exponent. Up to 60 of them are charged with all
        # releases (Lattice._relative), the rest of rare losses here.
        with np.errstate(invalid="ignore"):
            units = np.where(tilted > 0, np.abs(exponent - tilt * losses) + 2 * np.abs(tilt * losses), 0.0)
        error = max(error, ULP * float((rows[row, place] * np.maximum(units - 60.0, 0.0)).sum()))
    layers = None
    if losses[-1] < MOST_LAYERS:
        widths = tilt * np.diff(losses, append=losses[-1])
        layers = Layers.of(losses, rows[PESSIMISTIC, place], pessimistic, widths, log_delta)
    return Lattice(float(losses[0]), step, tilt, rows, scale, infinite, error, 1, accuracy, layers)


def chords(pair: Pair, losses: Array) -> tuple[Array, float]:
    """Masses at ``losses`` that keep the P- and Q-mass of every cell; what lies below moves up to the first."""
    cells = pair.cells(losses)
    gap = -np.expm1(-np.diff(losses))
    # A q that underflows counts as zero, which moves its cell up.
    scaled_q = _exp_times(losses[:-1], np.where(cells.q < TINY, 0.0, cells.q))
    with np.errstate(invalid="ignore", over="ignore"):
        to_upper = np.maximum(np.fmin((cells.p - scaled_q) / gap, cells.p), 0.0)  # a NaN moves all up
    law = np.zeros(len(losses))
    law[:-1] = cells.p - to_upper
    law[1:] += to_upper
    law[0] += cells.p_below
    return law, cells.p_above


def _tangents(pair: Pair, losses: Array, accuracy: float) -> Array:
    """Masses at ``losses`` of a curve below the exact one: tangents half-way between neighbouring losses."""
    middle = (losses[1:] + losses[:-1]) / 2
    for atom, side in zip(pair.atoms or (), (1, -1), strict=False):
        # An atom at the bottom or top of a law is a cell of its own: the tangent touches right beside it.
        here = int(np.argmin(np.abs(losses - atom)))
        margin = 1e-9 * float(np.diff(losses).min())
        beside = here if side > 0 else here - 1
        if abs(losses[here] - atom) <= margin and 0 <= beside < len(middle):
            middle[beside] = atom + side * margin
    all_p, all_q = pair.masses(
        np.concatenate([[2 * losses[0] - middle[0]], middle, [2 * losses[-1] - middle[-1]]])
    )
    # An underflow of q would make the curve too high; where e^loss could hide one, mass is dropped.
    p = np.where(losses < LARGEST_LOSS, all_p, 0.0)
    scaled_q = _exp_times(np.minimum(losses, LARGEST_LOSS), np.where(p > 0, all_q + TINY, 0.0))
    law = _lower_curve(p, scaled_q, losses, accuracy)
    if not np.any(law > 0):  # a single atom: H(a) >= p - a q for the totals
        total, total_q = float(all_p.sum()), float(all_q.sum())
        place = np.searchsorted(losses, np.log(total / total_q) - 1e-12) if total > 0 and total_q > 0 else 0
        if place > 0:
            law[place - 1] = total
    return law


def _lower_curve(p: Array, scaled_q: Array, losses: Array, accuracy: float) -> Array:
    """The law of the piecewise linear curve through the smaller of the two tangents at every loss.

    ``p`` is the P-mass around each loss and ``scaled_q`` the Q-mass there times e^loss. By excess = p - scaled_q
    the tangent on the left of a loss lies above the one on its right. At the ends, cells are merged until the
    first straight piece is a tangent itself (excess < 0) and the last one comes down to zero exactly at a loss
    (excess >= 0).
    """
    law = np.zeros(len(p))
    accuracy /= 4  # what is set straight below is charged with the rounding of cells
    excess = p - scaled_q
    left_p, left_excess = _cells_up_to(p, scaled_q, losses)
    right_p, right_excess = (part[::-1] for part in _cells_up_to(p[::-1], scaled_q[::-1], losses[::-1]))
    bend_after = np.maximum(excess[1:], 0.0) + left_excess[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        flat = left_p[:-1] - left_excess[:-1] + accuracy * left_p[:-1] / np.diff(losses)
        convex = flat >= bend_after / np.expm1(np.diff(losses))
    starts = np.nonzero((left_p[:-1] > 0) & (left_excess[:-1] <= accuracy * left_p[:-1]) & convex)[0]
    if len(starts) == 0:
        return law
    first = int(starts[0])
    beyond = np.nonzero(right_excess[first + 1 :] < -accuracy * right_p[first + 1 :])[0]
    last = first + int(beyond[0]) if len(beyond) else len(p) - 1
    if last == first:
        return law
    inside = slice(first, last + 1)
    p, excess, losses = p[inside].copy(), excess[inside], losses[inside]
    p[0], excess[0] = left_p[first], min(left_excess[first], 0.0)
    p[-1], excess[-1] = right_p[last], max(right_excess[last], 0.0)
    gap = np.diff(losses)
    bend = np.maximum(-excess[:-1], 0.0) - np.maximum(excess[1:], 0.0)
    curve = p - excess
    curve[:-1] += bend / np.expm1(gap)
    curve[1:] += bend / np.expm1(-gap)
    law[inside] = _convex(curve, losses, rounding=accuracy * right_p[last - 1] / gap[-1])
    return law


def _cells_up_to(p: Array, scaled_q: Array, losses: Array) -> tuple[Array, Array]:
    """P-mass and excess of all cells up to each loss, taken as one cell."""
    total = np.cumsum(p)
    if abs(losses[-1] - losses[0]) < 200.0 and not np.any((scaled_q > 0) & (scaled_q < 1e-200)):
        shrink = np.exp(losses - losses[0])  # nothing overflows, and nothing is lost
        return total, total - shrink * np.cumsum(scaled_q / shrink)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        merged_q = np.exp(losses + np.logaddexp.accumulate(np.log(scaled_q) - losses))
    return total, total - merged_q


def _exp_times(exponent: Array, factor: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(exponent + np.log(factor))


def _convex(law: Array, losses: Array, rounding: float) -> Array:
    """Remove the concave corners (negative masses) of a curve: its lower convex hull, which is lower still.

    A corner is removed by splitting its mass onto the corners beside it. That may make one of those negative in
    turn; the work is proportional to the number of corners removed, which are few.
    """
    law, last = law.copy(), len(law) - 1
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    corners = np.nonzero(law[:-1] < 0)[0].tolist()
    while corners and len(after) < MOST_CORNERS:
        here = corners.pop()
        mass = float(law[here])
        if mass >= 0:
            continue
        left, right = before.get(here, here - 1), after.get(here, here + 1)
        before[right], after[left], law[here] = left, right, 0.0
        if left < 0:  # keep the slope before the first corner
            law[right] += mass * np.exp(losses[right] - losses[here])
        else:
            share = np.expm1(losses[left] - losses[here]) / np.expm1(losses[left] - losses[right])
            law[left] += mass * (1 - share)
            law[right] += mass * share
        corners += [corner for corner in (left, right) if 0 <= corner < last and law[corner] < 0]
    end = before.get(last, last - 1)
    if corners or law[last] < -rounding or end < 0 or law[end] + min(law[last], 0.0) < 0:
        return np.zeros(len(law))  # no such curve on this grid: the empty law says that delta >= 0
    law[end] += min(law[last], 0.0)  # rounding, moved down by one corner
    return np.maximum(law, 0.0)


def coarsen(lattice: Lattice, factor: int) -> Lattice:
    """The same laws on a grid ``factor`` (odd) times coarser: chords and tangents once more.

    Guarantee: the order of the two rows around the exact curve is kept; only the gap grows.
    """
    step, count = lattice.step * factor, lattice.masses.shape[1]
    blocks = -(-count // factor)
    padded = np.zeros(blocks * factor)
    padded[:count] = lattice.masses[PESSIMISTIC]
    cells = padded.reshape(blocks, factor)
    tilt = lattice.tilt
    inside = lattice.step * np.arange(factor)
    share = np.expm1(-inside) / np.expm1(-step)
    rows = np.zeros((len(lattice.masses), blocks + 1))
    rows[PESSIMISTIC, :-1] = weighted_sums(cells, (1 - share) * np.exp(-tilt * inside))
    rows[PESSIMISTIC, 1:] += weighted_sums(cells, share * np.exp(tilt * (step - inside)))
    for row in rows[OPTIMISTIC:]:
        row[:] = _coarse_tangents(lattice.masses[OPTIMISTIC], lattice.step, factor, tilt, blocks)
    totals = np.maximum(rows.sum(axis=1), TINY)
    growth = float(np.exp(tilt * step))
    return Lattice(
        lattice.start,
        step,
        tilt,
        rows / totals[:, None],
        lattice.log_scale + np.log(totals),
        lattice.infinite,
        lattice.error * growth / min(1.0, float(totals.min()) + TINY),
        lattice.releases,
        lattice.cell_error + cell_accuracy(0.0),
        replace(lattice.layers, common=lattice.layers.common + cell_accuracy(0.0))
        if lattice.layers
        else None,
    )


def _coarse_tangents(masses: Array, fine: float, factor: int, tilt: float, blocks: int) -> Array:
    """The optimistic row of :func:`coarsen`: tangents half a coarse step to either side of each coarse loss."""
    half = factor // 2
    padded = np.zeros((blocks + 1) * factor)
    padded[half : half + len(masses)] = masses
    around = padded.reshape(blocks + 1, factor)
    distance = fine * (np.arange(factor) - half)
    # Untilting the rounding noise far from the bulk would drown it; mass may be dropped from this row.
    total = around.sum(axis=1)
    if not np.any(total > 0):
        return np.zeros(blocks + 1)
    losses = fine * factor * (np.arange(blocks + 1, dtype=np.float64) - int(np.argmax(total)))
    bulk = np.nonzero((total > 1e-11 * total.max()) & (tilt * np.abs(losses) < 300.0))[0]
    near = slice(int(bulk[0]), int(bulk[-1]) + 1)
    losses, around = losses[near], around[near]
    untilt = np.exp(-tilt * losses)
    p = weighted_sums(around, np.exp(-tilt * distance)) * untilt
    scaled_q = weighted_sums(around, np.exp(-(tilt + 1) * distance)) * untilt
    row = np.zeros(blocks + 1)
    row[near] = _lower_curve(p, scaled_q, losses, cell_accuracy(0.0)) / untilt
    return row
