"""Writes questions of a fit as bytes for the parties of a study: :func:`encode`. Nothing here is trusted.

:mod:`~discreet.linear.question_codec` describes the bytes, and reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.linear.checked_questions import CATALOGUE, TYPES, Question, field_names
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.question_codec import WORDS, digest_of_part, split_body
from discreet.linear.row_views import coordinates
from discreet.linear.schema import Schema

_PART = 384  # bytes of an object from which on it is sent once


def encode(question: Question, sent: Collection[str]) -> bytes:
    """The question as bytes, with all parts that were not ``sent`` before, by their digests."""
    writer = _Writer()
    content = {word: writer.plain(value) for word, value in zip(WORDS, question, strict=True)}
    parts = {digest: part for digest, part in writer.parts.items() if digest not in sent}
    header = {"question": content, "parts": [[digest, *part[0]] for digest, part in parts.items()]}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, *(part[1] for part in parts.values())))


def parts_of(body: bytes) -> list[str]:
    """The digests of the parts that an encoded question brings along."""
    return [part[0] for part in split_body(body)[0]["parts"]]


class _Writer:
    """Turns a value into JSON, and collects its parts."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[tuple[str, list[int]], bytes]] = {}

    def plain(self, value: Any) -> Any:
        if isinstance(value, bool | str | None):
            return value
        if isinstance(value, int | np.integer):
            return int(value)
        if isinstance(value, float | np.floating):
            number = float(value)
            return number if math.isfinite(number) else {"float": repr(number)}
        if isinstance(value, np.ndarray):
            return {"part": self._array(value)}
        if isinstance(value, SchemaEncoding):
            return {"encoding": self._encoding(value)}
        if isinstance(value, Schema):
            return {"schema": True}
        if CATALOGUE.get(type(value).__name__) is type(value):
            return self._object(value)
        if isinstance(value, tuple | list):
            return [self.plain(part) for part in value]
        raise MalformedMessage(f"{type(value).__name__} cannot be part of a question to a party")

    def _object(self, value: Any) -> Any:
        value = _without_unused(value)
        parts = [self.plain(getattr(value, name)) for name in field_names(type(value))]
        content = {"is": type(value).__name__, "of": parts}
        text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        if len(text) < _PART:
            return content
        return {"part": self._part("json", [len(text)], text)}

    def _array(self, value: NDArray[Any]) -> str:
        if value.dtype.name not in TYPES:
            raise MalformedMessage(f"an array of {value.dtype} cannot be part of a question to a party")
        turned = value.ndim == 2 and value.flags.f_contiguous and not value.flags.c_contiguous
        kind = value.dtype.name + (" turned" if turned else "")
        body = (value.T if turned else value).astype(value.dtype.newbyteorder("<")).tobytes()
        return self._part(kind, list(value.shape), body)

    def _part(self, kind: str, shape: list[int], body: bytes) -> str:
        digest = digest_of_part(kind, shape, body)
        self.parts[digest] = (kind, shape), body
        return digest

    def _encoding(self, encoding: SchemaEncoding) -> dict[str, Any]:
        """The learnt bounds of an encoding, and the values that missing numbers count as."""
        names = list(encoding.numerics)
        learnt = [names[place] for place in encoding.learnt]
        bounds = [
            [float(encoding.lower[place]), float(encoding.upper[place])] for place in encoding.learnt.tolist()
        ]
        return {
            "learnt": learnt,
            "bounds": bounds,
            "guessed": [names[place] for place in encoding.guessed],
            "missing": self.plain(encoding.missing),
        }


def _without_unused(value: Any) -> Any:
    """The value without released numbers that no sum depends on."""
    return value._replace(released=None) if isinstance(value, coordinates.Marginals) else value
