"""Questions of a fit as bytes that may come from another organisation: :class:`Question`, :func:`decode`.

A question is one query, the view of the table that it is asked of, and the share of the budget that pays for it. It
travels as strict JSON. Arrays, and objects of more than a few hundred bytes, are *parts*: they are named by their
SHA-256 and sent once.

    4 bytes   length of the header, little endian
    header    JSON: {"question": {...}, "parts": [[digest, type, shape], ...]}
    bodies    the bytes of the parts, one after the other

Guarantee: what is decoded is made of the classes of :data:`CATALOGUE` and of plain numbers, strings, tuples and
arrays, each of the type that its class declares. Nothing is ever unpickled, imported or called by a name that was
sent. Anything else raises :class:`~discreet.errors.MalformedMessage`.

>>> from discreet.trusted.queries import Blocks, Cells
>>> from discreet.linear.views.targets import ClassOf
>>> from discreet.linear.gate.private_table import TargetRows
>>> from discreet.linear.losses import Logistic
>>> query = Blocks((Cells(ClassOf(Logistic()), 2),), 1.0)
>>> asked = Question(1, "counts", 0.1, 1, TargetRows(Logistic()), None, None, query)
>>> from discreet.linear.question_writer import encode
>>> decode(encode(asked, set()), {}, None).query == query
True
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import MutableMapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.gate import column_blocks, compiled_sums, declared_columns, private_table
from discreet.linear.gate import records as gate_records
from discreet.linear.gate.private_table import (
    EncodedRows,
    PersonRows,
    TargetColumn,
    TargetRows,
    UndeclaredColumns,
    View,
)
from discreet.linear.kernels.centred import Centre
from discreet.linear.losses import Huber, Logistic, Loss, Poisson, SmoothedHinge, Softmax, Squared
from discreet.linear.schema import Schema
from discreet.linear.views import columns, coordinates, curves, targets
from discreet.trusted import queries
from discreet.trusted.plain_data import conform, refuse_foreign

Array = NDArray[np.float64]

LEAST_SHARE = 1e-9
"""Of the budget, for one stage."""
MOST_BYTES = 2**28
"""Of a question with its parts."""
TYPES = ("float64", "float32", "int64")
_DEPTH, _VALUES = 24, 2**17  # of a question: how deeply it is nested, and how many values it has
WORDS = ("number", "stage", "share", "steps", "view", "fills", "basis", "query")
_MODULES: tuple[ModuleType, ...] = (
    *(column_blocks, compiled_sums, declared_columns, gate_records, private_table, queries),
    *(columns, coordinates, curves, targets),
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
    basis: curves.Basis | None
    query: Any


class MissingPart(LookupError):
    """A part of a question was sent before and is not known here."""


def question_digest(body: bytes) -> bytes:
    """SHA-256 of a question without the parts that are sent along; it names them by their digests."""
    header, _ = split_body(body)
    return hashlib.sha256(json.dumps(header["question"], sort_keys=True).encode()).digest()


def field_names(kind: Any) -> list[str]:
    """The fields of a class of the catalogue."""
    return list(kind._fields) if issubclass(kind, tuple) else [field.name for field in fields(kind)]


def digest_of_part(kind: str, shape: list[int], body: bytes) -> str:
    digest = hashlib.sha256(json.dumps([kind, shape]).encode())
    digest.update(body)
    return digest.hexdigest()


# Decoding. Everything below reads bytes that nobody vouches for.


def decode(body: bytes, parts: MutableMapping[str, Any], schema: Schema | None) -> Question:
    """The inverse of :func:`encode`; ``parts`` holds those that came before, and gets those that came now.

    ``schema`` is the one that this party agreed to: it is never sent.

    Raises:
        MissingPart: If a part was not sent along and is not among ``parts``.
        MalformedMessage: If the bytes are anything but a question.
    """
    try:
        header, rest = split_body(body)
        _take_parts(header["parts"], rest, parts)
        content, reader = header["question"], _Reader(parts, schema)
        if not isinstance(content, dict) or set(content) != set(WORDS):
            raise MalformedMessage("a question has other words")
        question = Question(*(reader.value(content[word], 0) for word in WORDS))
        _check(question, schema)
        return question
    except (MissingPart, MalformedMessage):
        raise
    except Exception:  # whatever a class of the catalogue says of fields that nobody vouches for
        raise MalformedMessage("not a question") from None


def split_body(body: bytes) -> tuple[dict[str, Any], memoryview]:
    if not isinstance(body, bytes) or not 4 < len(body) <= MOST_BYTES:
        raise MalformedMessage("not a question")
    end = 4 + int.from_bytes(body[:4], "little")
    if end > len(body):
        raise MalformedMessage("a part of the question is missing")
    try:
        header = json.loads(body[4:end].decode(), parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise MalformedMessage("the header is no JSON") from None
    if not isinstance(header, dict) or set(header) != {"question", "parts"}:
        raise MalformedMessage("the header has other words")
    return header, memoryview(body)[end:]


def _refuse(word: str) -> float:
    raise ValueError(word)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields_by_name = dict(pairs)
    if len(fields_by_name) < len(pairs):
        raise ValueError("a word occurs twice")
    return fields_by_name


def _take_parts(listed: Any, rest: memoryview, parts: MutableMapping[str, Any]) -> None:
    start = 0
    for digest, kind, shape in listed:
        if kind == "json":
            size = 1
        else:
            name, _, turned = kind.partition(" ")
            if name not in TYPES or turned not in ("", "turned"):
                raise MalformedMessage("a part has another type")
            size = np.dtype(name).itemsize
        if not isinstance(shape, list) or len(shape) > 3:
            raise MalformedMessage("a part has another shape")
        if not all(type(side) is int and 0 <= side <= MOST_BYTES for side in shape):
            raise MalformedMessage("a part has another shape")
        end = start + size * math.prod(shape)
        content = bytes(rest[start:end])
        if end > len(rest) or digest_of_part(kind, shape, content) != digest:
            raise MalformedMessage("a part is not what its digest names")
        parts[digest] = _read_part(kind, shape, content)
        start = end
    if start != len(rest):
        raise MalformedMessage("there is more than the header says")


def _read_part(kind: str, shape: list[int], content: bytes) -> Any:
    if kind == "json":
        return json.loads(content.decode(), parse_constant=_refuse, object_pairs_hook=_unique)
    name, _, turned = kind.partition(" ")
    sides = shape[::-1] if turned else shape
    array = np.frombuffer(content, np.dtype(name).newbyteorder("<")).reshape(sides).astype(name)
    return array.T if turned else array


class _Reader:
    """Turns JSON into values of the catalogue."""

    def __init__(self, parts: MutableMapping[str, Any], schema: Schema | None) -> None:
        self._parts, self._schema, self._values = parts, schema, 0

    def value(self, data: Any, depth: int) -> Any:
        self._values += 1
        if depth > _DEPTH or self._values > _VALUES:
            raise MalformedMessage("a question is nested too deeply")
        if isinstance(data, bool | int | float | str | None):
            return data
        if isinstance(data, list):
            return tuple(self.value(part, depth + 1) for part in data)
        if set(data) == {"is", "of"} and data["is"] in CATALOGUE and isinstance(data["of"], list):
            return self._object(CATALOGUE[data["is"]], data["of"], depth)
        (word,) = data
        if word == "float" and data[word] in ("inf", "-inf"):
            return float(data[word])
        if word == "part":
            return self._part(data[word], depth)
        if word == "schema" and data[word] is True:
            return self._own_schema()
        if word == "encoding":
            return self._encoding(data[word], depth)
        raise MalformedMessage("a question holds something else")

    def _object(self, kind: type, content: list[Any], depth: int) -> Any:
        if len(content) != len(field_names(kind)):
            raise MalformedMessage(f"{kind.__name__} has other fields")
        return kind(*(self.value(part, depth + 1) for part in content))

    def _part(self, digest: Any, depth: int) -> Any:
        if digest not in self._parts:
            raise MissingPart(digest)
        part = self._parts[digest]
        return part if isinstance(part, np.ndarray) else self.value(part, depth + 1)

    def _own_schema(self) -> Schema:
        if self._schema is None:
            raise MalformedMessage("there is no schema")
        return self._schema

    def _encoding(self, data: Any, depth: int) -> SchemaEncoding:
        if set(data) != {"learnt", "bounds", "guessed", "missing"}:
            raise MalformedMessage("an encoding has other words")
        schema, learnt = self._own_schema(), data["learnt"]
        if tuple(learnt) != schema.undeclared or len(data["bounds"]) != len(learnt):
            raise MalformedMessage("an encoding has other columns")
        guessed = tuple(data["guessed"])
        if len(set(guessed)) < len(guessed) or not set(guessed) <= set(learnt):
            raise MalformedMessage("an encoding has other columns")
        bounds = {name: _pair(pair) for name, pair in zip(learnt, data["bounds"], strict=True)}
        encoding = SchemaEncoding(schema.with_bounds(bounds), guessed, tuple(learnt))
        missing = self.value(data["missing"], depth + 1)
        if missing is not None:
            encoding.missing = _within_unit(missing, encoding.columns.numerics)
        return encoding


def _pair(pair: Any) -> tuple[float, float]:
    lower, upper = (float(side) for side in pair)
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise MalformedMessage("bounds must be finite, the lower below the upper one")
    return lower, upper


def _within_unit(values: Any, size: int) -> Array:
    fits = isinstance(values, np.ndarray) and values.dtype == np.float64 and values.shape == (size,)
    if not fits or not ((values >= 0) & (values <= 1)).all():
        raise MalformedMessage("fills must be numbers in [0, 1], one for each numeric column")
    return np.asarray(values)


def _check(question: Question, schema: Schema | None) -> None:
    """Raise unless every field has its type, and views and queries are whole."""
    number, stage, share, steps, view, fills, basis_, query = question
    if type(number) is not int or type(steps) is not int or number < 1 or steps < 1:
        raise MalformedMessage("a question has a number and so many steps")
    if type(stage) is not str or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,27}", stage):
        raise MalformedMessage("a stage has a short name")
    if type(share) is not float or not LEAST_SHARE <= share <= 1 + 1e-9:
        raise MalformedMessage("a share is above 0 and at most 1")
    _check_view(view, schema)
    if basis_ is not None:
        if type(basis_) is not curves.Basis or type(view) is not EncodedRows:
            raise MalformedMessage("a basis is of encoded rows")
        conform(basis_)
        if basis_.inputs != view.columns:
            raise MalformedMessage("a basis is of other columns")
    if fills is not None:
        if type(view) is not EncodedRows:
            raise MalformedMessage("only encoded rows are filled")
        _within_unit(fills, view.columns.numerics)
    refuse_foreign(query)
    size, bound = query.size, float(query.bound)
    if type(size) is not int or size < 1 or not (math.isfinite(bound) and bound > 0):
        raise MalformedMessage("a query has a size and a bound")


def _check_view(view: Any, schema: Schema | None) -> None:
    if type(view) not in (PersonRows, TargetRows, UndeclaredColumns, TargetColumn, EncodedRows):
        raise MalformedMessage("a question is asked of a view")
    least = getattr(view, "least", None)
    if least is not None and (type(least) is not int or not 1 <= least <= 2**31):
        raise MalformedMessage("a person has so many rows")
    if isinstance(view, TargetRows | EncodedRows) and not isinstance(view.loss, Loss):
        raise MalformedMessage("a view has a loss")
    if isinstance(view, UndeclaredColumns) and (
        view.schema is not schema or schema is None or view.columns != len(schema.undeclared)
    ):
        raise MalformedMessage("a view is of the study's columns")
    if not isinstance(view, EncodedRows):
        return
    if not isinstance(view.encoding, SchemaEncoding) or type(view.whole_rows) is not bool:
        raise MalformedMessage("encoded rows have an encoding")
    if view.bounds is not None:
        object.__setattr__(view, "bounds", _pair(view.bounds))
    if view.seen is not None:
        _check_seen(view.seen, view.encoding)


def _check_seen(seen: Any, encoding: SchemaEncoding) -> None:
    """Numbers may be left out; all else is there, in order."""
    columns = encoding.columns
    if not isinstance(seen, np.ndarray) or seen.dtype != np.int64 or seen.ndim != 1:
        raise MalformedMessage("columns are named by their places")
    increasing = bool((np.diff(seen) > 0).all()) and not (len(seen) and seen[0] < 0)
    rest = seen[seen >= columns.numerics]
    if not increasing or not np.array_equal(rest, np.arange(columns.numerics, columns.width)):
        raise MalformedMessage("columns are named by their places")
