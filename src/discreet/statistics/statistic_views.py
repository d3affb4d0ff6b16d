"""Views of rows of numbers for statistics; :func:`~discreet.trusted.queries.evaluate` compares them at run time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discreet.trusted.plain_data import Array, Integers
from discreet.trusted.queries import Norm, View


@dataclass(frozen=True, eq=False)
class Bin(View):
    """The bin of a number between increasing edges, the last one inclusive; -1 outside and for NaN."""

    column: int
    edges: tuple[float, ...]

    def __call__(self, x: Array, y: None) -> Integers:
        values, edges = x[:, self.column], np.array(self.edges)
        cells: Integers = np.searchsorted(edges, values, side="right") - 1
        cells[values == edges[-1]] = len(edges) - 2
        cells[~((values >= edges[0]) & (values <= edges[-1]))] = -1
        return cells


@dataclass(frozen=True, eq=False)
class Code(View):
    """The code of a category, which is its place among the declared values; -1 for any other value."""

    column: int

    def __call__(self, x: Array, y: None) -> Integers:
        values = x[:, self.column]
        return np.where(np.isfinite(values), values, -1.0).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Polynomial(View):
    """A polynomial of u = (x - centre) / scale, moved into [-1, 1], times ``factor``, for the one cell of a group.

    The number x is moved into its bounds first; NaN for NaN.
    """

    column: int
    lower: float
    upper: float
    centre: float = 0.0
    scale: float = 1.0
    coefficients: tuple[float, ...] = (0.0, 1.0)
    factor: float = 1.0

    def __call__(self, x: Array, y: None) -> tuple[Integers, Array]:
        unit = (np.clip(x[:, self.column], self.lower, self.upper) - self.centre) / self.scale
        result = np.where(np.isnan(unit), math.nan, self.coefficients[-1])
        for coefficient in self.coefficients[-2::-1]:
            result = coefficient + unit * result
        result = np.where(np.isfinite(result), result, 0.0)
        return np.zeros(len(x), np.int64), np.clip(result, -1.0, 1.0) * self.factor


@dataclass(frozen=True, eq=False)
class Ones(View):
    """The number 1, for every record."""

    def __call__(self, x: Array, y: None) -> Array:
        return np.ones((len(x), 1))


@dataclass(frozen=True, eq=False)
class OffsetFrom(View):
    """The row minus a centre, each coordinate moved into [-half_width, half_width]; NaN where it is not finite."""

    centre: tuple[float, ...]
    half_width: float = math.inf

    def __call__(self, x: Array, y: None) -> Array:
        offsets = x - np.array(self.centre)
        if self.half_width == math.inf:
            return np.asarray(offsets)
        return np.where(np.isfinite(offsets), np.clip(offsets, -self.half_width, self.half_width), math.nan)


@dataclass(frozen=True, eq=False)
class Distance(View):
    """A function of the distance of a row from a centre, minus ``shift``.

    ``"beyond"``: 1 if the distance exceeds ``radius``, else 0. ``"square"``: min(distance / radius, 1)^2.
    """

    centre: tuple[float, ...]
    radius: float
    amount: Literal["beyond", "square"]
    norm: Norm = "l2"
    shift: float = 0.0

    def __call__(self, x: Array, y: None) -> Array:
        order = 2 if self.norm == "l2" else 1
        distances = np.linalg.norm(x - np.array(self.centre), order, axis=1)[:, None]
        if self.amount == "beyond":
            return np.asarray(~(distances <= self.radius) - self.shift, np.float64)
        return np.asarray(np.minimum(distances / self.radius, 1.0) ** 2 - self.shift)


@dataclass(frozen=True, eq=False)
class Products(View):
    """The products z_i z_j / (2 d), i <= j, of z = (sqrt(d), u), off the diagonal times sqrt(2).

    u holds the d columns of a row with their bounds at -1 and 1. The l2 norm is |z|^2 / (2 d), which is at most 1.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    factor: float = 1.0

    def __call__(self, x: Array, y: None) -> Array:
        lower, upper = np.array(self.lower), np.array(self.upper)
        width = len(lower)
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        # Bounds a few roundings apart have no middle: then a column could leave [-1, 1].
        unit = np.clip((np.clip(x, lower, upper) - middle) / half, -1.0, 1.0)
        first, second = np.triu_indices(width + 1)
        z = np.column_stack([np.full(len(x), math.sqrt(width)), unit])
        stretch = np.where(first == second, 1.0, math.sqrt(2))
        products = np.asarray(z[:, first] * z[:, second] * (stretch / (2.0 * width)))
        return np.asarray(np.clip(products, -1.0, 1.0) * self.factor)
