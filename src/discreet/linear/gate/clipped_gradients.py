"""Clipped gradients of a model in public coordinates, and sums over its scores.

Each query names coordinates and a target, which say how rows and targets are mapped, and parameters ``theta``; all of
them are public. The store keeps the mapped rows between queries (:meth:`RecordStore.working`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.adding import Integers, add_cells, add_values
from discreet.linear.gate.coordinates import Coordinates, Marginals, Whitened, standard_norms
from discreet.linear.gate.data import checked_bound, refuse_other_shapes
from discreet.linear.gate.record_store import RecordBlock, RecordStore, Working
from discreet.linear.gate.score_cells import ScoreCells, round_scores
from discreet.linear.kernels.centred import centred_gradient
from discreet.linear.kernels.kernel import hardened_clipped_gradient, readable, row_norms
from discreet.linear.kernels.row_tiles import tile_scores
from discreet.linear.kernels.rowwise import find_half_octaves, times
from discreet.linear.kernels.tiled_kernel import tiled_gradient
from discreet.linear.losses import Loss
from discreet.trusted.plain_data import Checked, Data, conform

Array = NDArray[np.float64]

LOWEST, HIGHEST = -28, 28
"""Half octaves: from 2**-14 to 2**14."""


@dataclass(frozen=True, eq=False)
class Target(Data):
    """The target of a descent: (clip(y, lower, upper) - shift) / scale."""

    lower: float = -math.inf
    upper: float = math.inf
    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, y: Array) -> Array:
        if math.isfinite(self.lower):
            y = np.clip(y, self.lower, self.upper)
        return y if (self.shift, self.scale) == (0.0, 1.0) else np.asarray((y - self.shift) / self.scale)


@dataclass(frozen=True, eq=False)
class ClippedGradient(Data):
    """The sum of the gradients of ``loss`` at ``theta``, each clipped to ``clip_norm``; of a person, their mean.

    Guarantee: the sensitivity is ``clip_norm``; the kernels clip inside (docs/engines.md: E3, E17, E20, E21).
    """

    loss: Loss
    coordinates: Coordinates
    target: Target
    theta: Array
    clip_norm: float

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("clip_norm", self.clip_norm)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.clip_norm

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return self.theta.size

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps."""
        _refuse_other_size(self.theta, self.coordinates, self.loss.outputs)
        working = store.working(self.coordinates, self.target)
        return sum_of_gradients(self.loss, working, self.theta, self.clip_norm, grid)


def _refuse_other_size(theta: Array, coordinates: Coordinates, outputs: int = 1) -> None:
    shape = (coordinates.width + 1,) if outputs == 1 else (coordinates.width + 1, outputs)
    refuse_other_shapes(theta=(theta, shape))


def sum_of_gradients(loss: Loss, working: Any, theta: Array, clip_norm: float, grid: float) -> Integers:
    """The sum of clipped gradients over blocks of records, in grid steps.

    Guarantee: a record, or a person with all rows, changes it by a vector of norm at most ``clip_norm / grid``.
    """
    total = np.zeros(theta.size, np.int64)
    for block in working:
        z, y, weights, norms, people = block
        if block.tiled:
            total += tiled_gradient(loss, z, y, theta, norms, clip_norm, grid, weights).reshape(-1)
            continue
        known = (loss, z, y, theta, working.constant, norms, clip_norm, grid, weights)
        if working.centre is None:
            total += hardened_clipped_gradient(*known, people).reshape(-1)
        else:
            total += centred_gradient(working.centre, *known).reshape(-1)
    return total


# Sizes, counted in half octaves.


@dataclass(frozen=True, eq=False)
class RowNorms(Data):
    """The norm of each encoded row."""

    def __call__(self, store: RecordStore) -> Iterator[tuple[NDArray[Any], Any]]:
        return ((row_norms(x, 0.0), weights) for x, _, weights, _ in store.chunks())


@dataclass(frozen=True, eq=False)
class StandardNorms(Data):
    """The norm of (x - centre) / scale of each row."""

    marginals: Marginals

    def __call__(self, store: RecordStore) -> Iterator[tuple[NDArray[Any], Any]]:
        return ((standard_norms(x, self.marginals), weights) for x, _, weights, _ in store.chunks())

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return self.marginals[:4]


@dataclass(frozen=True, eq=False)
class WhiteNorms(Data):
    """The norm of each row in white coordinates."""

    coordinates: Whitened

    def __call__(self, store: RecordStore) -> Iterator[tuple[NDArray[Any], Any]]:
        return store.norms(self.coordinates)


@dataclass(frozen=True, eq=False)
class Scores(Data):
    """What ``theta`` adds to the score of each record."""

    coordinates: Coordinates
    target: Target
    theta: Array

    def __call__(self, store: RecordStore) -> Iterator[tuple[NDArray[Any], Any]]:
        return ((score, block.weights) for block, score in self.with_blocks(store))

    def with_blocks(self, store: RecordStore) -> Iterator[tuple[RecordBlock, NDArray[Any]]]:
        """The records in their coordinates, and their scores, which the store keeps."""
        _refuse_other_size(self.theta, self.coordinates)
        working = store.working(self.coordinates, self.target)

        def make() -> Any:
            return store.shelf.keep((scores_of(block, self.theta, working),) for block in working)

        kept = store.remember("scores", self.digest, make)
        return ((block, score) for block, (score,) in zip(working, kept, strict=True))


@dataclass(frozen=True, eq=False)
class HalfOctaves(Data, Checked):
    """Each record adds 1 to the half octave of the size that its view tells.

    Guarantee: the sensitivity is 1, however large the size is.
    """

    view: RowNorms | StandardNorms | WhiteNorms | Scores
    bound = 1.0
    size = HIGHEST - LOWEST + 1

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps."""
        total = np.zeros(self.size, np.int64)
        for values, weights in self.view(store):
            half_octaves = np.empty(len(values), np.int64)
            find_half_octaves(readable(values), LOWEST, HIGHEST, half_octaves)
            add_cells(total, half_octaves - LOWEST, weights, grid)
        return total


@dataclass(frozen=True, eq=False)
class ScoreLine(Data):
    """The gradient of ``loss`` in an intercept and a slope, for the score of each record in ``unit``, rounded.

    Guarantee: the gradient of a record, or the mean of a person's, is clipped to ``clip_norm``: the sensitivity.
    """

    loss: Loss
    scores: Scores
    unit: float
    line: Array
    clip_norm: float
    size = 2

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("unit", self.unit)
        checked_bound("clip_norm", self.clip_norm)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.clip_norm

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps. Records without weights are counted in cells of scores once, for all steps."""
        working = store.working(self.scores.coordinates, self.scores.target)
        refuse_other_shapes(line=(self.line, (2,)))
        key = self.scores.digest + float(self.unit).hex().encode()
        if all(block.weights is None and block.people is None for block in working):
            cells = store.remember("cells", key, lambda: ScoreCells.count(self._pairs(store), self.unit))
            return cells.gradient(self.loss, self.line, self.clip_norm, grid)
        rounded = store.remember("line", key, lambda: Working(self._rounded(store), 1.0, store.shelf))
        return sum_of_gradients(self.loss, rounded, self.line, self.clip_norm, grid)

    def _pairs(self, store: RecordStore) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        return ((score, block.y) for block, score in self.scores.with_blocks(store))

    def _rounded(self, store: RecordStore) -> Iterator[RecordBlock]:
        for block, score in self.scores.with_blocks(store):
            z = round_scores(score, self.unit)[:, None]
            yield block._replace(z=z, norms=row_norms(z, 1.0))


@dataclass(frozen=True, eq=False)
class CountExcess(Data):
    """By how much counts are above the exponential of their scores, both cut at ``cut``.

    Guarantee: a record adds the difference of two numbers between 0 and ``cut``, clamped to it.
    """

    scores: Scores
    cut: float
    size = 1

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("cut", self.cut)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.cut * (1 + 1e-9)

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps."""
        total = np.zeros(1, np.int64)
        for block, score in self.scores.with_blocks(store):
            expected = np.exp(np.minimum(score, math.log(self.cut)))
            above = (np.clip(block.y, 0, self.cut) - expected)[:, None]
            add_values(total, above, block.weights, grid, (self.cut,))
        return total


def scores_of(block: RecordBlock, theta: Array, working: Working) -> NDArray[Any]:
    """constant * theta[0] + z @ theta[1:] of each record, z less its centre if it has one."""
    if block.tiled:
        return tile_scores(block.z, len(block.y), theta[1:], 0.0)
    if working.centre is None:
        return np.asarray(working.constant * theta[0] + times(block.z, theta[1:]), np.float64)
    offset = working.constant * theta[0] - working.centre.values @ theta[1:]
    return np.asarray(offset + block.z @ theta[1:], np.float64)
