"""Questions of a fit as bytes that may come from another organisation: :func:`decode`.

A question is one query, the view of the table that it is asked of, and the share of the budget that pays for it. It
travels as strict JSON. Arrays, and objects of more than a few hundred bytes, are *parts*: they are named by their
SHA-256 and sent once.

    4 bytes   length of the header, little endian
    header    JSON: {"question": {...}, "parts": [[digest, type, shape], ...]}
    bodies    the bytes of the parts, one after the other

Nothing is ever unpickled, imported or called by a name that was sent, but of the classes of a closed catalogue. What
is decoded is not trusted: :func:`~discreet.linear.checked_questions.checked_question` checks it.

>>> from discreet.trusted.queries import Blocks, Cells
>>> from discreet.linear.row_views.targets import ClassOf
>>> from discreet.linear.gate.private_table import TargetRows
>>> from discreet.linear.losses import Logistic
>>> query = Blocks((Cells(ClassOf(Logistic()), (2,), (1.0,)),), 1.0)
>>> from discreet.linear.checked_questions import Question
>>> asked = Question(1, "counts", 0.1, 1, TargetRows(Logistic()), None, None, query)
>>> from discreet.linear.question_writer import encode
>>> decode(encode(asked, set()), {}, None).query == query
True
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import MutableMapping
from typing import Any

import numpy as np

from discreet.errors import MalformedMessage
from discreet.linear.checked_questions import CATALOGUE, TYPES, Question, field_names
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.schema import Schema

MOST_BYTES = 2**28
"""Of a question with its parts."""
_DEPTH, _VALUES = 24, 2**17  # of a question: how deeply it is nested, and how many values it has
WORDS = ("number", "stage", "share", "steps", "view", "fills", "basis", "query")


class MissingPart(LookupError):
    """A part of a question was sent before and is not known here."""


def question_digest(body: bytes) -> bytes:
    """SHA-256 of a question without the parts that are sent along; it names them by their digests."""
    return _digest(split_body(body)[0]["question"])


def row_keys(body: bytes) -> tuple[bytes, ...]:
    """Digests of the view, the fills and the basis of a question."""
    question = split_body(body)[0]["question"]
    return tuple(_digest(question[word]) for word in ("view", "fills", "basis"))


def _digest(content: Any) -> bytes:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()


def digest_of_part(kind: str, shape: list[int], body: bytes) -> str:
    """SHA-256 of a part, with its type and shape."""
    digest = hashlib.sha256(json.dumps([kind, shape]).encode())
    digest.update(body)
    return digest.hexdigest()


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
        return Question(*(reader.value(content[word], 0) for word in WORDS))
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
        encoding.missing = self.value(data["missing"], depth + 1)
        return encoding


def _pair(pair: Any) -> tuple[float, float]:
    lower, upper = (float(side) for side in pair)
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise MalformedMessage("bounds must be finite, the lower below the upper one")
    return lower, upper
