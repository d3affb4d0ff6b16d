"""Checks of the questions of a study before a party answers them: :class:`Question`, :func:`checked_question`.

Bytes that another organisation sent are decoded by :mod:`discreet.linear.question_codec`, which is not trusted.
Whatever it returns is accepted here only if it consists of the classes of :data:`CATALOGUE` and of plain numbers,
strings, tuples and arrays, each of the type that its class declares, and if its encoding is that of the own schema.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass, replace
from types import ModuleType, NoneType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.gate import column_blocks, compiled_sums, declared_columns, private_table
from discreet.linear.gate import records as gate_records
from discreet.linear.gate.private_table import EncodedRows, UndeclaredColumns, View
from discreet.linear.kernels.centred import Centre
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared
from discreet.linear.row_views import column_views, coordinates, curve_bases, targets
from discreet.linear.schema import Schema
from discreet.trusted import queries
from discreet.trusted.plain_data import conform, refuse_foreign

Array = NDArray[np.float64]

LEAST_SHARE = 1e-9
"""Of the budget, for one stage."""
TYPES = ("float64", "float32", "int64")
_MODULES: tuple[ModuleType, ...] = (
    *(column_blocks, compiled_sums, declared_columns, gate_records, private_table, queries),
    *(column_views, coordinates, curve_bases, targets),
)
_OTHERS = (coordinates.Marginals, Centre, Logistic, Softmax, Squared, Huber, Poisson, SmoothedHinge)


def _catalogue() -> dict[str, type]:
    catalogue: dict[str, type] = {kind.__name__: kind for kind in _OTHERS}
    for module in _MODULES:
        for name, value in vars(module).items():
            ours = isinstance(value, type) and value.__module__ == module.__name__
            if ours and is_dataclass(value) and not name.startswith("_"):
                catalogue[name] = vars(module)[name]
    return catalogue


CATALOGUE = _catalogue()
"""The classes that a question may hold, by name."""


class Question(NamedTuple):
    """One query to all parties of a study.

    ``number`` counts the questions of a study from 1. ``share`` is the part of the budget that the stage may spend
    in ``steps`` releases. ``fills`` stand for missing numbers, and ``basis`` makes rows of curves, if there are any.
    """

    number: int
    stage: str
    share: float
    steps: int
    view: View
    fills: Array | None
    basis: curve_bases.Basis | None
    query: Any


def field_names(kind: Any) -> list[str]:
    """The fields of a class of the catalogue."""
    return list(kind._fields) if issubclass(kind, tuple) else [field.name for field in fields(kind)]


def checked_question(question: Question, schema: Schema | None) -> Question:
    """Return the question, with an encoding that is made here of the own schema.

    Raises:
        MalformedMessage: If anything in it is of another type or out of its range.
    """
    try:
        if type(question) is not Question:
            raise MalformedMessage("not a question")
        _refuse_unknown(question, schema)
        view = _checked_view(question.view, schema)
        _check(question, view)
        return question._replace(view=view)
    except MalformedMessage:
        raise
    except Exception:  # whatever a class of the catalogue says of fields that nobody vouches for
        raise MalformedMessage("not a question") from None


def _refuse_unknown(value: Any, schema: Schema | None) -> None:
    """Raise unless a value consists of the catalogue and of plain data."""
    kind = type(value)
    if kind in (bool, int, float, str, NoneType) or (value is schema and schema is not None):
        return
    if kind is SchemaEncoding or (kind is np.ndarray and value.dtype.name in TYPES):
        return
    if kind not in (tuple, Question, *CATALOGUE.values()):
        raise MalformedMessage("a question holds something else")
    for part in value if isinstance(value, tuple) else (getattr(value, name) for name in field_names(kind)):
        _refuse_unknown(part, schema)


def _check(question: Question, view: Any) -> None:
    """Raise unless every field has its type and range."""
    number, stage, share, steps, _, fills, basis_, query = question
    if type(number) is not int or type(steps) is not int or number < 1 or steps < 1:
        raise MalformedMessage("a question has a number and so many steps")
    if type(stage) is not str or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,27}", stage):
        raise MalformedMessage("a stage has a short name")
    if type(share) is not float or not LEAST_SHARE <= share <= 1 + 1e-9:
        raise MalformedMessage("a share is above 0 and at most 1")
    if (basis_ is not None or fills is not None) and type(view) is not EncodedRows:
        raise MalformedMessage("only encoded rows are filled, or rows of a basis")
    if basis_ is not None:
        conform(basis_)
        if type(basis_) is not curve_bases.Basis or basis_.inputs != view.columns:
            raise MalformedMessage("a basis is of other columns")
    if fills is not None:
        _check_fills(fills, view.columns.numerics)
    refuse_foreign(query)
    size, bound = query.size, float(query.bound)
    if type(size) is not int or size < 1 or not (math.isfinite(bound) and bound > 0):
        raise MalformedMessage("a query has a size and a bound")


def _checked_view(view: Any, schema: Schema | None) -> Any:
    if type(view) not in View.__args__:
        raise MalformedMessage("a question is asked of a view")
    refuse_foreign(view)
    least = getattr(view, "least", None)
    if least is not None and not 1 <= least <= 2**31:
        raise MalformedMessage("a person has so many rows")
    undeclared = 0 if schema is None else len(schema.undeclared)
    if isinstance(view, UndeclaredColumns) and (view.schema is None or view.columns != undeclared):
        raise MalformedMessage("a view is of the study's columns")
    if not isinstance(view, EncodedRows):
        return view
    encoding = _own_encoding(view.encoding, schema)
    if view.bounds is not None:
        _check_pair(*view.bounds)
    if view.seen is not None:
        columns, rest = encoding.columns, view.seen[view.seen >= encoding.columns.numerics]
        increasing = view.seen.ndim == 1 and (np.diff(view.seen) > 0).all() and not (view.seen < 0).any()
        if not increasing or not np.array_equal(rest, np.arange(columns.numerics, columns.width)):
            raise MalformedMessage("columns are named by their places; all but numbers are there")
    return replace(view, encoding=encoding)


def _own_encoding(encoding: Any, schema: Schema | None) -> SchemaEncoding:
    """Return the encoding of the own schema with the same learnt bounds and values of missing numbers."""
    if type(encoding) is not SchemaEncoding or schema is None:
        raise MalformedMessage("encoded rows have an encoding of the study's schema")
    theirs: dict[str, Any] = {name: encoding.schema.features[name] for name in schema.undeclared}
    for column in theirs.values():
        _check_pair(column.lower, column.upper)
    bounds = {name: (float(column.lower), float(column.upper)) for name, column in theirs.items()}
    own = SchemaEncoding(schema.with_bounds(bounds))
    if encoding.missing is not None:
        _check_fills(encoding.missing, own.columns.numerics)
        own.missing = encoding.missing
    return own


def _check_pair(lower: float, upper: float) -> None:
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise MalformedMessage("bounds must be finite, the lower below the upper one")


def _check_fills(values: Any, size: int) -> None:
    fits = type(values) is np.ndarray and values.dtype == np.float64 and values.shape == (size,)
    if not fits or not ((values >= 0) & (values <= 1)).all():
        raise MalformedMessage("fills must be numbers in [0, 1], one for each numeric column")
