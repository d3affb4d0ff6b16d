"""JSON documents that mean one thing: one text for the same data, and no reading that depends on the reader.

>>> canonical({"b": 1, "a": [0.1]})
'{"a":[0.1],"b":1}'
>>> parsed('{"steps": 5, "steps": 9}', name="plan")
Traceback (most recent call last):
    ...
discreet.errors.InvalidParameter: plan='{"steps": 5, "steps": 9}': is not JSON of ours (a key occurs twice).
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from os import PathLike
from pathlib import Path
from typing import Any

from discreet.errors import InvalidParameter


def canonical(data: object) -> str:
    """The one text of ``data``."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: object) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def parsed(text: str, name: str) -> dict[str, Any]:
    """A JSON object without NaN, infinities or keys that occur twice; ``name`` is for the error."""
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidParameter(name, text, f"is not JSON of ours ({error}).") from None
    if not isinstance(data, dict):
        raise InvalidParameter(name, text, "is not JSON of ours.")
    return data


def parsed_toml(text: str, name: str) -> dict[str, Any]:
    """What a TOML text says; ``name`` is for the error."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidParameter(name, text, f"is not TOML ({reason}).") from None


def read_text(path: str | PathLike[str], most_bytes: int = 2**26) -> str:
    """The text in a file, unless it is too large to be a document of ours."""
    with Path(path).open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InvalidParameter("path", str(path), "is too large to be a document of ours.")
    return content.decode("utf-8", errors="replace")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number")
