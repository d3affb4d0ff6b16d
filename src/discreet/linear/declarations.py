"""Declared bounds, classes and weights, as users give them: parameters of a fit, checked.

Nothing here has to be believed for the guarantee. These functions are given parameters, not records, but for the
labels of ``classes="from-data"``, which no guarantee covers. Whatever bounds they return, the encoder applies them to
each row by itself; whatever weights they return, the gate moves each record's weight into [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from discreet.errors import InvalidParameter, real
from discreet.linear.column_kinds import Numeric, distinct, ordered_bounds

Array = NDArray[np.float64]

FROM_DATA = "from-data"


def bounds_of(bounds: Any, width: int, names: tuple[str, ...] | None = None) -> tuple[Array, Array]:
    """Declared bounds ``(lower, upper)`` for each of ``width`` columns.

    Each of the two is one number for all, a list with one for each column, or a dictionary by column name.
    """
    if not isinstance(bounds, list | tuple | np.ndarray) or len(bounds) != 2:
        needed = "must be (lower, upper), each of them one number or one for each column: not a pair for each column."
        raise InvalidParameter("bounds", bounds, needed)
    try:
        lower = _for_each("lower", bounds[0], width, names)
        upper = _for_each("upper", bounds[1], width, names)
        pairs = [ordered_bounds(low, high) for low, high in zip(lower, upper, strict=True)]
    except InvalidParameter as error:
        raise InvalidParameter("bounds", bounds, f"must be (lower, upper), of all columns; {error}") from None
    return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])


def _for_each(name: str, side: Any, width: int, names: tuple[str, ...] | None) -> list[Any]:
    if isinstance(side, Mapping):
        missing = [column for column in names or () if column not in side]
        if names is None or missing:
            lacking = f"also {missing}" if names else "which has no names"
            raise InvalidParameter(name, side, f"must name every column of the table, {lacking}.")
        return [side[column] for column in names]
    if np.ndim(side) == 0:
        return [side] * width
    values = np.asarray(side).tolist()
    if len(values) != width:
        raise InvalidParameter(
            name, f"{len(values)} values", f"must have one for each of the {width} columns."
        )
    return list(values)


def declared_width(bounds: Any) -> int | None:
    """The number of columns that bounds are declared for; None where one pair is for all of them."""
    sides = bounds if isinstance(bounds, list | tuple | np.ndarray) and len(bounds) == 2 else ()
    widths = [
        len(side) for side in sides if isinstance(side, list | tuple | np.ndarray) and np.ndim(side) == 1
    ]
    return widths[0] if widths else None


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


_LABELS = (
    "object",
    "str",
    "utf8",
    "large_str",
    "large_utf8",
    "cat",
    "dict",
    "enum",
    "binary",
    "large_binary",
)
"""How the types of texts and categories begin, in pandas, polars and pyarrow."""


def refuse_labels(kind: str, name: str) -> None:
    """Raise if a column is of texts or categories: every cell would count as missing. Types are public."""
    if kind.startswith(_LABELS):
        remedy = (
            "is a column of labels, and nothing says what they are: declare it with schema=, leave it out, or make "
            "it a column of numbers."
        )
        raise InvalidParameter(name, kind, remedy)


def refuse_nested(table: str, name: str, kind: Any) -> None:
    """Raise if a column holds anything but numbers and texts."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )
    if not (types.is_primitive(kind) or types.is_decimal(kind) or text):
        requirement = f"its column {name!r} holds {kind}; it must hold numbers or texts."
        raise InvalidParameter("table", table, requirement)


def all_numbers(source: Any, names: Sequence[str]) -> dict[str, Numeric]:
    """These columns as plain numbers, for tables without a schema; labels are refused by their type.

    Cells of a CSV file have no type: what is not a number is missing there.
    """
    schemas = [part.schema for part in getattr(source, "sources", [source]) if hasattr(part, "schema")]
    for schema in schemas:
        for name in names:
            if not _holds_numbers(schema.field(name).type):
                kind = str(schema.field(name).type)
                requirement = "must be one of numbers; or say what its cells are with schema=."
                raise InvalidParameter(f"X[{name!r}].dtype", kind, requirement)
    return {name: Numeric() for name in names}


def _holds_numbers(kind: Any) -> bool:
    from pyarrow import types

    known = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(is_number(kind) for is_number in known)


def shape_error(name: str, ndim: int, empty_list: bool) -> InvalidParameter:
    """The refusal of a table that is not two-dimensional or has no columns."""
    if ndim == 2:
        requirement = "Found array with 0 feature(s) (shape=(0, 0)) while a minimum of 1 is required."
        return InvalidParameter(name, "no columns", requirement)
    if empty_list:
        remedy = (
            "has no rows that tell its columns. Give np.empty((0, columns)), or declare schema= or bounds=."
        )
        return InvalidParameter(name, "an empty list", remedy)
    requirement = "Expected 2D array: must have a row for each record and a column for each feature. "
    remedy = "Reshape your data with X.reshape(-1, 1) if it has one feature, X.reshape(1, -1) if one record."
    return InvalidParameter(f"{name}.ndim", ndim, requirement + remedy)


def type_error(name: str, dtype: np.dtype[Any]) -> InvalidParameter:
    """The refusal of a column whose type is none of numbers."""
    needed = "must be numbers, for instance float64."
    if dtype.kind == "c":
        needed = "must be real. Complex data not supported."
    if dtype.kind == "M":
        needed = (
            "must be numbers, for instance float64; dates are declared with schema=, by bounds = [1930-01-01, "
            "2010-12-31]."
        )
    return InvalidParameter(f"{name}.dtype", str(dtype), needed)


def missing_column(table: str, name: str, names: Sequence[str]) -> InvalidParameter:
    """The refusal of a source that does not have exactly one column of a name."""
    found = "has no column" if name not in names else "has more than one column"
    return InvalidParameter("table", table, f"{found} {name!r}; the names of columns are in its first line.")
