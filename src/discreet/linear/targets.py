"""Targets and weights as numbers: a label by its place among the declared classes, NaN for what does not count.

>>> class_numbers(np.array(["no", "yes", "maybe"]), declared_classes(("yes", "no"))).tolist()
[0.0, 1.0, nan]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets

from discreet.errors import InvalidParameter, real
from discreet.linear.cells import declared_codes
from discreet.linear.inputs import OnDemand, cells_of, codes, numbers
from discreet.linear.schema import Category, Flag, Numeric, distinct

Array = NDArray[np.float64]

FROM_DATA = "from-data"


def one_for_each_row(name: str, values: Any, rows: int) -> Any:
    """The values as a one-dimensional array, or on demand, one for each row. Refusals name no number of rows."""
    if values is None:
        requirement = "requires y to be passed, but the target y is None."
        raise InvalidParameter(name, None, requirement if name == "y" else "must hold a number for each row.")
    if isinstance(values, OnDemand):
        if len(values) != rows:
            raise InvalidParameter(name, "another length", f"X and {name} must have the same number of rows.")
        return values
    array = cells_of(values)
    if array.dtype.kind == "c":
        raise InvalidParameter(f"{name}.dtype", str(array.dtype), "must be real. Complex data not supported.")
    if array.ndim == 2 and array.shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected. It is read as such."
        warnings.warn(message, DataConversionWarning, stacklevel=4)
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidParameter(
            f"{name}.ndim", array.ndim, f"{name} should be a 1d array, one value for each row."
        )
    if len(array) != rows:
        raise InvalidParameter(name, "another length", f"X and {name} must have the same number of rows.")
    return array


def declared_classes(classes: Any, y: Any = None) -> NDArray[Any]:
    """The declared classes, sorted. With ``"from-data"`` those that occur in ``y``, which is not private."""
    if isinstance(classes, str):
        if classes != FROM_DATA:
            requirement = f"must be a list of labels such as (0, 1), or {FROM_DATA!r}, which is not private."
            raise InvalidParameter("classes", classes, requirement)
        y = np.array(y[:].tolist())  # a list was read as cells of any type
        check_classification_targets(y)
        found = np.unique(y)
    else:
        labels = distinct("classes", classes if isinstance(classes, Iterable) else ())
        try:
            found = np.array(sorted(labels))
        except TypeError:
            requirement = "must be all texts or all numbers, so that they have an order."
            raise InvalidParameter("classes", classes, requirement) from None
    if len(found) < 2:
        requirement = "one class is not enough, there must be two; declare them, for instance classes=(0, 1)."
        raise InvalidParameter("classes", classes, requirement)
    return found


def declared_labels(column: Category | Flag | Numeric, y: NDArray[Any]) -> NDArray[Any]:
    """The labels as a schema declares them: the category that a cell stands for or None, whether a flag is set.

    >>> declared_labels(Flag("yes"), np.array(["yes", "no", None], object)).tolist()
    [True, False, False]
    """
    if isinstance(column, Flag):
        spelt = declared_codes(column, y) >= 0
        if isinstance(column.yes, bool) or y.dtype.kind not in "bO":
            return spelt
        # The flag itself, not how it is spelt; cell by cell, so that a missing one changes no other.
        told = np.array([isinstance(cell, bool) and cell for cell in y.tolist()], bool)
        return np.asarray(spelt | told)
    assert isinstance(column, Category)
    values = np.array([*column.values, None], object)
    return np.asarray(values[declared_codes(column, y)])  # -1, for what nobody declared, is the last


def class_numbers(y: NDArray[Any], classes: NDArray[Any]) -> Array:
    """The place of each label among the classes, as a float; NaN for a label nobody declared."""
    found = codes(y, tuple(classes.tolist())).astype(np.float64)
    found[found < 0] = np.nan
    return found


def target_numbers(y: NDArray[Any]) -> Array:
    """Targets of a regression; NaN for what is not a finite number."""
    values = numbers(y, "y").astype(np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def target_range(target_bounds: Any) -> tuple[float, float] | None:
    """The declared bounds of a regression's target, or None if they are to be learnt."""
    if target_bounds is None:
        return None
    if not isinstance(target_bounds, list | tuple | np.ndarray) or len(target_bounds) != 2:
        raise InvalidParameter(
            "target_bounds", target_bounds, "must be (lower, upper), or None to learn them."
        )
    lower = real("target_bounds[0]", target_bounds[0], at_least=-1e100, at_most=1e100)
    return lower, real("target_bounds[1]", target_bounds[1], above=lower, at_most=1e100)


def record_weights(sample_weight: Any, rows: int, max_weight: float) -> Array | None:
    """Weights divided by their declared maximum and clamped to [0, 1]; what is not a number is 0.

    Guarantee: no record weighs more than 1, so no sensitivity grows.
    """
    most = real("max_weight", max_weight, above=0, remedy="It is the largest weight that a record may have.")
    if sample_weight is None:
        return None
    if isinstance(sample_weight, int | float):
        sample_weight = np.full(rows, sample_weight)
    with np.errstate(all="ignore"):
        weights = numbers(one_for_each_row("sample_weight", sample_weight, rows), "sample_weight") / most
    return np.clip(np.nan_to_num(weights.astype(np.float64), nan=0.0), 0.0, 1.0)


def class_weights(class_weight: Any, classes: NDArray[Any]) -> Array | None:
    """The declared weight of each class over the largest of them; classes that are not named weigh 1."""
    if class_weight is None:
        return None
    if not isinstance(class_weight, Mapping):
        requirement = "must be a dictionary of public weights; 'balanced' would read them off the records."
        raise InvalidParameter("class_weight", class_weight, requirement)
    unknown = [label for label in class_weight if label not in classes.tolist()]
    if unknown:
        raise InvalidParameter("class_weight", unknown, "are not among the classes.")
    weights = [
        real(f"class_weight[{label!r}]", class_weight.get(label, 1.0), at_least=0)
        for label in classes.tolist()
    ]
    real("class_weight", max(weights), above=0, remedy="One class at least must weigh something.")
    return np.array(weights) / max(weights)


def combined_weights(weights: Array | None, by_class: Array | None, places: Array) -> Array | None:
    """The weight of each record: its own times that of its class."""
    if by_class is None:
        return weights
    own = by_class[np.nan_to_num(places, nan=0.0).astype(np.int64)]
    return own if weights is None else weights * own
