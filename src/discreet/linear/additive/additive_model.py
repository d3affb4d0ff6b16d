"""A released additive model: :class:`AdditiveModel`, which has the shape of the linear one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.additive.expanded_rows import expand, hats, products
from discreet.linear.additive.histograms import Histograms
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.kernels.rowwise import times
from discreet.linear.row_views.coordinates import Released
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair

Array = NDArray[np.float64]

_ROWS = 2**16  # that are answered at once


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """The basis, the coefficients of its columns, and the intercept.

    ``precision`` weighs models that are joined, ``counts`` and ``histograms`` were released with the fit. ``missing``
    is what a missing number of each column counts as.
    """

    basis: Basis
    coefficients: Array
    intercept: Array
    precision: float
    counts: ClassCounts | None = None
    histograms: Histograms | None = None
    released: Released | None = None
    others: tuple[AdditiveModel, ...] = ()
    missing: Array | None = None
    borne_out: float = 1.0
    inference = None

    def parts(self) -> Iterator[tuple[float, AdditiveModel]]:
        """The models that this one is the mean of, with their weights."""
        models = (replace(self, others=()), *self.others)
        total = sum(model.precision for model in models)
        return ((model.precision / total, model) for model in models)

    def scores(self, encoded: Any) -> Array:
        """The sum of the curves, levels, products and the intercept, for each row and output."""
        found: list[Array] = []
        for start in range(0, max(1, encoded.shape[0]), _ROWS):
            part = encoded[start : start + _ROWS]
            rows = part.toarray() if issparse(part) else np.asarray(part)
            found.append(sum(weight * model._scores(rows) for weight, model in self.parts()))  # type: ignore[arg-type]
        return np.concatenate(found)

    def addition(self, column: int, values: Array) -> Array:
        """What numeric column ``column`` adds to the score at these values in [0, 1]."""
        curve, start = self.basis.curves[column], self.basis.starts[column]
        part = self.coefficients[start : start + len(curve.kept)]
        return np.asarray(hats(values, curve.knots)[:, curve.kept] @ part, np.float64)

    def together(self, columns: tuple[int, int], rows: NDArray[Any]) -> Array:
        """What two columns add together, for each encoded row, beside their curves."""
        first = len(self.basis.curves) + len(self.basis.inputs.groups)
        total = np.zeros((len(rows), *self.coefficients.shape[1:]))
        for pair, start in zip(self.basis.pairs, self.basis.starts[first:], strict=False):
            if pair.columns == columns:
                total += products(pair, rows) @ self.coefficients[start : start + len(pair.kept)]
        return total

    def levels(self, place: int, size: int) -> Array:
        """What ``size`` one-hot columns add, from ``place`` on, counted in the columns before the curves."""
        first = self.basis.starts[len(self.basis.curves)] + place - self.basis.inputs.numerics
        return self.coefficients[first : first + size]

    def _scores(self, rows: NDArray[Any]) -> Array:
        expanded = np.asarray(expand(self.basis, rows), np.float64)
        return np.asarray(times(expanded, self.coefficients) + self.intercept)  # row by row, to the last bit

    def without(self, columns: NDArray[np.bool_], constant: Array) -> AdditiveModel:
        """The model without curves and levels of these columns, whose values are ``constant`` in every record."""
        starts, inputs, dead = self.basis.starts, self.basis.inputs, np.zeros(self.basis.columns.width, bool)
        for curve, start in zip(self.basis.curves, starts, strict=False):
            dead[start : start + len(curve.kept)] = columns[curve.column]
        first = starts[len(self.basis.curves)]
        dead[first : first + sum(inputs.groups)] = columns[inputs.categories]
        moved = expand(self.basis, constant[None])[0][dead] @ self.coefficients[dead]
        kept = np.where(dead, 0.0, self.coefficients.T).T
        return replace(self, coefficients=kept, intercept=np.asarray(self.intercept + moved))

    def join(self, other: AdditiveModel) -> AdditiveModel:
        """The mean of two models, each with the weight of its precision."""
        return replace(self, others=(*self.others, other), counts=other.counts, released=other.released)


def as_curves(
    columns: Columns, lower: Array, upper: Array, coefficients: Array
) -> tuple[Basis, Array, Array]:
    """A linear model of encoded columns as one of curves with two knots: basis, coefficients, and what the
    intercept grows by."""
    count = columns.numerics
    ends = [(low, high if high > low else low + 1e-6) for low, high in zip(lower, upper, strict=True)]
    curves = tuple(Curve(j, np.array(ends[j]), np.array([1])) for j in range(count))
    widths = np.array([high - low for low, high in ends[:count]])
    turned = np.array(coefficients)
    turned[:count] = (coefficients[:count].T * widths).T
    starts = np.array([low for low, _ in ends[:count]])
    return Basis(columns, curves), turned, np.asarray(starts @ coefficients[:count])


Tensors = Mapping[str, NDArray[Any]]

_MOST_PARTS = 1000  # models that one is the mean of


def additive_tensors(model: AdditiveModel) -> dict[str, Array]:
    """All numbers of a model, by name; of a joined one, those of each part."""
    found: dict[str, Any] = {}
    for place, (_, part) in enumerate(model.parts()):
        name, basis = f"part.{place}", part.basis
        found |= {f"{name}.coefficients": part.coefficients, f"{name}.intercept": part.intercept}
        found[f"{name}.precision"] = part.precision
        for j, curve in enumerate(basis.curves):
            found |= {f"{name}.curve.{j}.knots": curve.knots, f"{name}.curve.{j}.kept": curve.kept}
            found[f"{name}.curve.{j}.missing"] = -1 if curve.missing is None else curve.missing
        for k, pair in enumerate(basis.pairs):
            at = f"{name}.pair.{k}"
            found |= {f"{at}.columns": pair.columns, f"{at}.kept": pair.kept, f"{at}.shares": pair.shares}
            found |= {f"{at}.knots.0": pair.knots[0], f"{at}.knots.1": pair.knots[1]}
    if model.histograms is not None:
        for j, (counts, edges) in enumerate(
            zip(model.histograms.counts, model.histograms.edges, strict=True)
        ):
            found |= {f"histogram.{j}.counts": counts, f"histogram.{j}.edges": edges}
        found["histogram.noise"] = model.histograms.noise
    return {name: np.asarray(value, np.float64, order="C") for name, value in found.items()}


def additive_model(tensors: Tensors, columns: Columns, outputs: tuple[int, ...]) -> AdditiveModel:
    """The model of these numbers; ValueError if they are none for such columns and outputs."""
    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise ValueError("its weights are not finite")
    unread = set(tensors)

    def take(name: str, *shape: int | None) -> Array:
        values = np.asarray(tensors[name], np.float64)
        wanted = len(shape) == values.ndim and all(
            n in (None, m) for n, m in zip(shape, values.shape, strict=True)
        )
        if not wanted:
            raise ValueError(f"{name} has another shape than its columns")
        unread.discard(name)
        return values

    parts: list[AdditiveModel] = []
    while f"part.{len(parts)}.precision" in tensors and len(parts) < _MOST_PARTS:
        name = f"part.{len(parts)}"
        curves = tuple(_curve(take, f"{name}.curve.{j}", j, columns) for j in range(columns.numerics))
        pairs: list[Pair] = []
        while f"{name}.pair.{len(pairs)}.columns" in tensors:
            pairs.append(_pair(take, f"{name}.pair.{len(pairs)}", columns.numerics))
        basis = Basis(columns, curves, tuple(pairs))
        coefficients = take(f"{name}.coefficients", basis.columns.width, *outputs)
        precision = float(take(f"{name}.precision"))
        if not precision > 0:
            raise ValueError("a precision is not above 0")
        parts.append(AdditiveModel(basis, coefficients, take(f"{name}.intercept", *outputs), precision))
    histograms = _histograms(take, columns.numerics) if "histogram.noise" in tensors else None
    if not parts or unread:
        raise ValueError("its weights do not fit its schema")
    first, *others = parts
    return AdditiveModel(
        first.basis,
        first.coefficients,
        first.intercept,
        first.precision,
        histograms=histograms,
        others=tuple(others),
    )


def _curve(take: Any, name: str, column: int, columns: Columns) -> Curve:
    knots = _rising(take(f"{name}.knots", None))
    missing = int(take(f"{name}.missing"))
    if missing >= columns.width:
        raise ValueError(f"{name} has another flag")
    kept = _places(take(f"{name}.kept", None), len(knots))
    if len(kept) != len(knots) - 1:
        raise ValueError(f"{name} does not leave out one hat")
    return Curve(column, knots, kept, None if missing < 0 else missing)


def _pair(take: Any, name: str, numerics: int) -> Pair:
    first, second = _places(np.sort(take(f"{name}.columns", 2)), numerics).tolist()
    if take(f"{name}.columns", 2)[0] != first:
        first, second = second, first
    knots = _rising(take(f"{name}.knots.0", None)), _rising(take(f"{name}.knots.1", None))
    cells = len(knots[0]) * len(knots[1])
    shares = take(f"{name}.shares", cells)
    return Pair((first, second), knots, _places(take(f"{name}.kept", None), cells), shares)


def _histograms(take: Any, numerics: int) -> Histograms:
    edges = tuple(_rising(take(f"histogram.{j}.edges", None)) for j in range(numerics))
    counts = tuple(take(f"histogram.{j}.counts", len(edges[j]) - 1) for j in range(numerics))
    return Histograms(edges, counts, float(take("histogram.noise")))


def _rising(values: Array) -> Array:
    if len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError("its knots do not rise")
    return values


def _places(values: Array, count: int) -> NDArray[np.intp]:
    """Integers from 0 on, below ``count``, that rise."""
    places = values.astype(np.intp)
    if not len(places) or (places != values).any() or places[0] < 0 or places[-1] >= count:
        raise ValueError("a place is none")
    if not (np.diff(places) > 0).all():
        raise ValueError("places do not rise")
    return places
