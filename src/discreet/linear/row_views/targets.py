"""Views of the target of a record, and of its score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.checks import refuse_other_shapes
from discreet.linear.losses import Loss
from discreet.linear.residuals import accepted
from discreet.trusted.queries import View

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def in_own_cells(numbers: Array) -> tuple[Integers, Array]:
    """Return each column of numbers for a group of one cell."""
    return np.zeros(numbers.shape, np.int64), numbers


@dataclass(frozen=True, eq=False)
class Target(View):
    """The target of a descent: (clip(y, lower, upper) - shift) / scale."""

    lower: float = -math.inf
    upper: float = math.inf
    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, x: Any, y: Array) -> Array:
        if math.isfinite(self.lower):
            y = np.clip(y, self.lower, self.upper)
        return y if (self.shift, self.scale) == (0.0, 1.0) else np.asarray((y - self.shift) / self.scale)


@dataclass(frozen=True, eq=False)
class ClassOf(View):
    """The class of a record: all regression targets are of one. A target that is not accepted has the last cell."""

    loss: Loss

    def __call__(self, x: Any, y: Array) -> Integers:
        classes = self.loss.class_count
        known = accepted(self.loss, y)
        cells = np.full(len(y), classes)
        cells[known] = 0 if classes == 1 else y[known].astype(np.int64)
        return cells


@dataclass(frozen=True, eq=False)
class ClassRows(View):
    """The row of a public table for the class of a record; zeros if there is none."""

    loss: Loss
    table: Array

    def __call__(self, x: Any, y: Array) -> Array:
        refuse_other_shapes(table=(self.table, (len(self.table), self.table.shape[-1])))
        places = ClassOf(self.loss)(x, y)
        table = np.vstack([self.table, np.zeros(self.table.shape[1])])
        known = (places >= 0) & (places < len(self.table))
        return np.asarray(table[np.where(known, places, len(self.table))], np.float64)


def _unit(y: Array, lower: float, width: float) -> Array:
    return np.asarray(np.clip((y - lower) / width, 0, 1))


@dataclass(frozen=True, eq=False)
class TargetBin(View):
    """The bin of the target, of ``bins`` from ``lower`` over ``width``."""

    lower: float
    width: float
    bins: int

    def __call__(self, x: Any, y: Array) -> Integers:
        return np.minimum((_unit(y, self.lower, self.width) * self.bins).astype(np.int64), self.bins - 1)


@dataclass(frozen=True, eq=False)
class TargetMoments(View):
    """v - 1/2 and 2 (v - 1/2)^2, with v in [0, 1] for the target within its bounds."""

    lower: float
    width: float

    def __call__(self, x: Any, y: Array) -> tuple[Integers, Array]:
        unit = _unit(y, self.lower, self.width)
        return in_own_cells(np.column_stack([unit - 0.5, 2 * (unit - 0.5) ** 2]))


@dataclass(frozen=True, eq=False)
class TargetHalfOctave(View):
    """The half octave of 1 + y, for counts y up to ``most``; the last of ``cells`` holds all beyond."""

    most: float
    cells: int

    def __call__(self, x: Any, y: Array) -> Integers:
        half_octaves = np.round(2 * np.log2(1 + np.clip(y, 0, self.most)))
        return np.asarray(np.minimum(half_octaves, self.cells - 1).astype(np.int64))


@dataclass(frozen=True, eq=False)
class TargetOffset(View):
    """v - ``mean`` clamped to ``reach``, with v in [0, 1] for the target; if ``far``, its distance - reach / 2."""

    lower: float
    width: float
    mean: float
    reach: float
    far: bool = False

    def __call__(self, x: Any, y: Array) -> tuple[Integers, Array]:
        away = np.clip(_unit(y, self.lower, self.width) - self.mean, -self.reach, self.reach)
        parts = [away, np.abs(away) - self.reach / 2] if self.far else [away]
        return in_own_cells(np.column_stack(parts))


@dataclass(frozen=True, eq=False)
class CountExcess(View):
    """By how much counts are above the exponential of their scores, both cut at ``cut``."""

    cut: float

    def __call__(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[Integers, Array]:
        expected = np.exp(np.minimum(x[:, 0], math.log(self.cut)))
        return in_own_cells(np.asarray(np.clip(y, 0, self.cut) - expected, np.float64))


@dataclass(frozen=True, eq=False)
class RowsOfPeople(View):
    """The binary logarithm of the number of a person's rows, rounded up."""

    def __call__(self, x: Array, y: None) -> Integers:
        return np.ceil(np.log2(np.maximum(x[:, 0], 1))).astype(np.int64)
