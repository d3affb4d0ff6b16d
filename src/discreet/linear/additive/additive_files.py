"""An additive model as named arrays, for its file of weights, and back. What does not fit together is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.additive_model import AdditiveModel
from discreet.linear.additive.basis import Basis, Curve, Pair
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.columns import Columns

Array = NDArray[np.float64]
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

    def taken(name: str, *shape: int | None) -> Array:
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
        curves = tuple(_curve(taken, f"{name}.curve.{j}", j, columns) for j in range(columns.numerics))
        pairs: list[Pair] = []
        while f"{name}.pair.{len(pairs)}.columns" in tensors:
            pairs.append(_pair(taken, f"{name}.pair.{len(pairs)}", columns.numerics))
        basis = Basis(columns, curves, tuple(pairs))
        coefficients = taken(f"{name}.coefficients", basis.columns.width, *outputs)
        precision = float(taken(f"{name}.precision"))
        if not precision > 0:
            raise ValueError("a precision is not above 0")
        parts.append(AdditiveModel(basis, coefficients, taken(f"{name}.intercept", *outputs), precision))
    histograms = _histograms(taken, columns.numerics) if "histogram.noise" in tensors else None
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


def _curve(taken: Any, name: str, column: int, columns: Columns) -> Curve:
    knots = _rising(taken(f"{name}.knots", None))
    missing = int(taken(f"{name}.missing"))
    if missing >= columns.width:
        raise ValueError(f"{name} has another flag")
    kept = _places(taken(f"{name}.kept", None), len(knots))
    if len(kept) != len(knots) - 1:
        raise ValueError(f"{name} does not leave out one hat")
    return Curve(column, knots, kept, None if missing < 0 else missing)


def _pair(taken: Any, name: str, numerics: int) -> Pair:
    first, second = _places(np.sort(taken(f"{name}.columns", 2)), numerics).tolist()
    if taken(f"{name}.columns", 2)[0] != first:
        first, second = second, first
    knots = _rising(taken(f"{name}.knots.0", None)), _rising(taken(f"{name}.knots.1", None))
    cells = len(knots[0]) * len(knots[1])
    shares = taken(f"{name}.shares", cells)
    return Pair((first, second), knots, _places(taken(f"{name}.kept", None), cells), shares)


def _histograms(taken: Any, numerics: int) -> Histograms:
    edges = tuple(_rising(taken(f"histogram.{j}.edges", None)) for j in range(numerics))
    counts = tuple(taken(f"histogram.{j}.counts", len(edges[j]) - 1) for j in range(numerics))
    return Histograms(edges, counts, float(taken("histogram.noise")))


def _rising(values: Array) -> Array:
    if len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError("its knots do not rise")
    return values


def _places(values: Array, count: int) -> NDArray[np.intp]:
    """Whole numbers from 0 on, below ``count``, that rise."""
    places = values.astype(np.intp)
    if not len(places) or (places != values).any() or places[0] < 0 or places[-1] >= count:
        raise ValueError("a place is none")
    if not (np.diff(places) > 0).all():
        raise ValueError("places do not rise")
    return places
