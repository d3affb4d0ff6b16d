"""From encoded records to a released additive model: :func:`fit_additive`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.linear.additive.additive_model import AdditiveModel, as_curves
from discreet.linear.additive.basis import Curve
from discreet.linear.additive.curve_recipe import AdditiveRecipe, Declared
from discreet.linear.additive.curves import hat_moments
from discreet.linear.additive.looking import Places
from discreet.linear.encoder import BoundedNumbers, Encoding, SchemaEncoding
from discreet.linear.fitting import Encoded
from discreet.linear.glm.spending import Spending
from discreet.linear.losses import Loss
from discreet.linear.schema import Numeric
from discreet.linear.storage import Storage

Array = NDArray[np.float64]


def fit_additive(loss: Loss, records: Encoded, declared: Declared, spending: Spending) -> AdditiveModel:
    """An additive model on all that is left to spend.

    Guarantee: within the budget of ``spending``. The rows that every stage sees are as ``Columns`` promises, which is
    enforced for each of them (:class:`~discreet.linear.glm.records.Records`).
    """
    recipe = AdditiveRecipe(loss, declared, spending, records.target_bounds, records.averaging)
    shelf = (records.storage or Storage()).shelf()
    fit = recipe.fit_table(records.x, records.y, records.weights, records.people, shelf)
    basis, coefficients, intercept = recipe.basis, fit.coefficients, np.asarray(fit.intercept)
    if basis is None:
        basis, coefficients, more = as_curves(records.columns, fit.lower, fit.upper, coefficients)
        intercept = intercept + more
    count = fit.counts.records
    variance = 1 / count + basis.columns.width / (count * spending.strength) ** 2
    model = AdditiveModel(
        basis, coefficients, np.asarray(intercept), 1 / variance, fit.counts, recipe.histograms, fit.released
    )
    return shaped(model, declared)


def declared_pairs(pairs: Any, places: Mapping[str, Places]) -> tuple[tuple[int, int], ...] | None:
    """Pairs of column names as places of numeric columns; None if they are to be chosen."""
    if pairs is None:
        return None
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(p, list | tuple) and len(p) == 2 for p in pairs
    ):
        requirement = "must be a list of pairs of column names, such as [('longitude', 'latitude')], or None."
        raise InvalidParameter("pairs", pairs, requirement)
    found = []
    for pair in pairs:
        columns = [places[name].numeric if name in places else None for name in pair]
        if None in columns or columns[0] == columns[1]:
            raise InvalidParameter("pairs", pair, "must be two different numeric columns of the table.")
        found.append((int(columns[0] or 0), int(columns[1] or 0)))
    if len({frozenset(pair) for pair in found}) < len(found):
        raise InvalidParameter("pairs", pairs, "must not hold a pair twice.")
    return tuple(found)


def declared_of(encoding: Encoding) -> Declared:
    """What an encoding says of its columns."""
    columns = encoding.columns
    if isinstance(encoding, SchemaEncoding):
        zeros = _zeros(encoding.lower, encoding.upper)
        shapes = [getattr(column, "shape", "free") for column in encoding.numerics.values()]
        return Declared(columns, tuple(zeros), _flags(encoding), tuple(shapes))
    assert isinstance(encoding, BoundedNumbers)
    zeros = _zeros(encoding.lower, encoding.upper)
    return Declared(columns, tuple(zeros), {}, ("free",) * columns.numerics)


def _zeros(lower: Array, upper: Array) -> list[float]:
    """Where the number 0 is in each column, in units of its bounds."""
    return [float(-low / (high - low)) for low, high in zip(lower, upper, strict=True)]


def _flags(encoding: SchemaEncoding) -> dict[int, int]:
    """For each numeric column with a flag of missing values, the place of that flag."""
    places, found = list(encoding.numerics), {}
    start = len(places)
    for name, labels in encoding.groups.items():
        if isinstance(encoding.schema.features[name], Numeric):
            found[places.index(name)] = start
        start += len(labels)
    return found


# ---- curves that must rise or fall ----


def shaped(model: AdditiveModel, declared: Declared) -> AdditiveModel:
    """The model with the curves that were declared to rise or fall moved to the nearest ones that do.

    Near is meant for the records: knots weigh by how many of them are around.
    """
    coefficients, intercept = model.coefficients.copy(), model.intercept.copy()
    for curve, start in zip(model.basis.curves, model.basis.starts, strict=False):
        shape = declared.shapes[curve.column]
        if shape not in ("increasing", "decreasing"):
            continue
        part = slice(start, start + len(curve.kept))
        sign = 1.0 if shape == "increasing" else -1.0
        values = np.zeros(len(curve.knots))
        values[curve.kept] = sign * coefficients[part]
        moved = sign * rising(values, _weights(model, curve))
        base = float(np.delete(moved, curve.kept)[0])
        coefficients[part] = moved[curve.kept] - base
        intercept = intercept + base
    return replace(model, coefficients=coefficients, intercept=intercept)


def rising(values: Array, weights: Array) -> Array:
    """The nearest values that do not fall, by pooling neighbours that do (Ayer et al. 1955).

    >>> rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / total
            pool = (mean, total, before[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(length, value) for value, _, length in pools])


def _weights(model: AdditiveModel, curve: Curve) -> Array:
    if model.histograms is None:
        return np.ones(len(curve.knots))
    known = model.histograms
    means, _ = hat_moments(known.counts[curve.column], known.edges[curve.column], curve.knots)
    return means + 1e-6
