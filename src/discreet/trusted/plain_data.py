"""Frozen dataclasses that can be written down, compared and hashed: what queries are made of."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Data:
    """A frozen dataclass of numbers, strings and tuples of them, with a digest."""

    def to_plain(self) -> list[Any]:
        """Return the class name and all fields as nested lists, for JSON."""
        return [type(self).__name__, *(_plain(getattr(self, field.name)) for field in fields(self))]  # type: ignore[arg-type]

    def digest(self) -> str:
        """Return the SHA-256 of :meth:`to_plain`."""
        return hashlib.sha256(repr(self.to_plain()).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Data):
        return value.to_plain()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.hex() if isinstance(value, float) else value
