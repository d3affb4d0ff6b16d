"""One direction of a composition on a lattice: put the distributions of single releases on a grid, and compose them.

Chords of the curve of a pair lie above it, tangents below; :mod:`~discreet.accounting.lattice` says why that is kept.
Grid and window are proposals of :mod:`~discreet.accounting.grids`. Every proposal is sound or refused: mass above the
grid counts as an infinite loss, mass below it moves up to its first point, and mass outside of the window is bounded
from the distributions themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.lattice import (
    OPTIMISTIC,
    PESSIMISTIC,
    TINY,
    ULP,
    Layers,
    LossLattice,
    cell_accuracy,
    compose,
    exp_times,
    mass_outside,
    weighted_sums,
)
from discreet.accounting.optimistic import coarse_tangents, tangents
from discreet.accounting.pairs import Array, Pair

CUT = 1e-6  # share of delta that cut tails and wrapped windows may cost, each
MOST_POINTS = 2**24  # of a grid, for memory
MOST_LAYERS = 100_000


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """``count`` releases whose exact one-step curve lies between those of ``lower`` and ``upper``."""

    upper: Pair
    lower: Pair
    count: int

    @property
    def largest_loss(self) -> float:
        """The largest loss of all of them together, up to rounding; infinite for Gaussian noise."""
        return self.count * self.upper._limits[1]


class LossWindow(NamedTuple):
    """A range of total losses, and the exponents by which Chernoff's inequality bounds what lies outside of it."""

    ends: tuple[float, float]
    slopes: tuple[float, float]


class CompositionBlock(NamedTuple):
    """So many releases at a time, so often, summed on a window of their own."""

    length: int
    repeats: int
    window: LossWindow


class Design(NamedTuple):
    """A proposed lattice: tilt, step, the smallest delta, and for each distribution offset and points of its grid.

    With ``blocks``, the releases of each distribution are summed in blocks first, on a grid ``factor`` (odd) times
    coarser.
    """

    tilt: float
    step: float
    log_delta: float
    grids: Sequence[tuple[float, NDArray[np.int64]]]
    window: LossWindow
    blocks: Sequence[Sequence[CompositionBlock]] = ()
    factor: int = 1


def build(plds: Sequence[LossDistribution], design: Design, upper_only: bool = False) -> LossLattice:
    """The composed lattice of ``plds`` by a proposed ``design``."""
    parts = [
        (
            discretise(
                pld.upper,
                None if upper_only else pld.lower,
                design.tilt,
                design.step,
                *grid,
                design.log_delta,
            ),
            pld.count,
        )
        for pld, grid in zip(plds, design.grids, strict=True)
    ]
    if design.blocks:
        parts = list(_in_blocks(parts, design))
    return _sum(parts, design.window)


def _in_blocks(parts: list[tuple[LossLattice, int]], design: Design) -> Iterator[tuple[LossLattice, int]]:
    """The same composition as blocks of releases on a coarser grid.

    The error of a grid grows with the number of releases put on it, so the sum of a block can be stored on a
    coarser grid than its members.
    """
    for (lattice, count), blocks in zip(parts, design.blocks, strict=True):
        sizes = [(length, repeats) for length, repeats, _ in blocks]
        covers = min(map(min, sizes)) > 0 and sum(length * repeats for length, repeats in sizes) == count
        if not (covers and design.factor > 0 and design.factor % 2):
            raise ValueError("the blocks of a design are not the releases of the event")
        for length, repeats, window in blocks:
            yield coarsen(_sum([(lattice, length)], window), design.factor), repeats


def _sum(parts: list[tuple[LossLattice, int]], window: LossWindow) -> LossLattice:
    _refuse_no_grid(parts[0][0].step, np.array(window.ends), 1, 0.0)
    return compose(parts, window.ends, mass_outside(parts, *window))


def discretise(
    upper: Pair,
    lower: Pair | None,
    tilt: float,
    step: float,
    offset: float,
    vertices: NDArray[np.int64],
    log_delta: float,
) -> LossLattice:
    """Put a one-step distribution on ``offset + step * vertices``, increasing integers with gaps if one likes.

    ``upper`` and ``lower`` are the pair itself, or two pairs that enclose it; without ``lower`` there is no
    optimistic row. ``log_delta`` is the smallest delta that will be asked of the composition; see
    :func:`~discreet.accounting.lattice.cell_accuracy`.

    Guarantee: H_optimistic <= H(lower) and H(upper) <= H_pessimistic + infinite, at every a >= 0.
    """
    losses = offset + step * vertices.astype(np.float64)
    _refuse_no_grid(step, losses[[0, -1]], np.diff(vertices).min(initial=1), log_delta)
    pessimistic, infinite = chords(upper, losses)
    accuracy = cell_accuracy(log_delta - max(float(losses[-1]), 0.0))
    plds = [pessimistic] if lower is None else [pessimistic, _proposed(tangents(lower, losses, accuracy))]
    if not np.isfinite(pessimistic.sum() + infinite):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    rows = np.zeros((len(plds), int(vertices[-1] - vertices[0]) + 1))
    scale = np.empty(len(plds))
    error = 0.0
    place = vertices - vertices[0]
    for row, pld in enumerate(plds):
        with np.errstate(divide="ignore"):
            exponent = np.log(pld) + tilt * losses
        top = exponent.max()
        if not np.isfinite(top):
            if row == PESSIMISTIC:
                raise FloatingPointError("a privacy loss beyond the range of double precision")
            top = 0.0  # an empty optimistic distribution: delta is at least 0, and that is all it says
        tilted = np.exp(exponent - top)
        total = max(float(tilted.sum()), 1e-300)
        rows[row, place] = tilted / total
        scale[row] = top + np.log(total)
        # A tilted mass is wrong by a unit of each logarithm in its exponent. Up to 60 of them are charged with all
        # releases (Lattice.relative_rounding), the rest of rare losses here.
        with np.errstate(invalid="ignore"):
            units = np.where(tilted > 0, np.abs(exponent - tilt * losses) + 2 * np.abs(tilt * losses), 0.0)
        error = max(error, ULP * float((rows[row, place] * np.maximum(units - 60.0, 0.0)).sum()))
    layers = None
    if losses[-1] < MOST_LAYERS:
        widths = tilt * np.diff(losses, append=losses[-1])
        layers = Layers.of(losses, rows[PESSIMISTIC, place], pessimistic, widths, log_delta)
    least = float(np.exp(min(log_delta, 0.0)))
    return LossLattice(float(losses[0]), step, tilt, rows, scale, infinite, error, 1, accuracy, layers, least)


def _refuse_no_grid(step: float, ends: Array, least_gap: float, log_delta: float) -> None:
    """Raise unless proposed numbers are a grid that fits into memory."""
    length = (float(ends[1]) - float(ends[0])) / step if step > 0 else np.inf
    if not (0 <= length <= MOST_POINTS and least_gap > 0 and np.isfinite(ends).all() and log_delta < np.inf):
        raise FloatingPointError("a privacy loss beyond the range of double precision, or of memory")


def _proposed(pld: Array) -> Array:
    """A proposed optimistic distribution, which shares transforms with the pessimistic one."""
    if not np.all((pld >= 0) & (pld < np.inf)):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    return pld


def chords(pair: Pair, losses: Array) -> tuple[Array, float]:
    """Masses at ``losses`` that keep the P- and Q-mass of every cell; what lies below moves up to the first."""
    cells = pair.cells(losses)
    gap = -np.expm1(-np.diff(losses))
    # A q that underflows counts as zero, which moves its cell up.
    scaled_q = exp_times(losses[:-1], np.where(cells.q < TINY, 0.0, cells.q))
    with np.errstate(invalid="ignore", over="ignore"):
        to_upper = np.maximum(np.fmin((cells.p - scaled_q) / gap, cells.p), 0.0)  # a NaN moves all up
    pld = np.zeros(len(losses))
    pld[:-1] = cells.p - to_upper
    pld[1:] += to_upper
    pld[0] += cells.p_below
    return pld, cells.p_above


def coarsen(lattice: LossLattice, factor: int) -> LossLattice:
    """The same distributions on a grid ``factor`` (odd) times coarser: chords and tangents once more.

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
        row[:] = _proposed(coarse_tangents(lattice.masses[OPTIMISTIC], lattice.step, factor, tilt, blocks))
    totals = np.maximum(rows.sum(axis=1), TINY)
    growth = float(np.exp(tilt * step))
    return LossLattice(
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
        lattice.least,
    )
