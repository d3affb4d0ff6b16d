"""Views and queries as bytes, for workers. Large arrays are sent once: :class:`Packed`.

A worker that unpacks another query than was packed still enforces that one's bound, which the driver compares with
its own: a record moves the sum no further.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from discreet.linear.losses import Loss
from discreet.trusted.plain_data import digest_of

_LARGE = 2**12  # bytes of an array that is sent once


class Packed(NamedTuple):
    """Plain data as bytes. Large arrays and losses are apart, by their digests, so that they are sent once."""

    data: bytes
    parts: dict[bytes, Any]

    @classmethod
    def of(cls, value: Any) -> Packed:
        file, parts = io.BytesIO(), {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> bytes | None:
                large = type(value) is np.ndarray and value.nbytes >= _LARGE and not value.dtype.hasobject
                if not large and not isinstance(value, Loss):
                    return None
                key = digest_of((large and value.flags.f_contiguous, value))
                parts[key] = value
                return key

        Pickler(file, protocol=5).dump(value)
        return cls(file.getvalue(), parts)


def unpack(data: bytes, parts: Mapping[bytes, Any]) -> Any:
    """The value that was packed; KeyError if one of its parts is not there."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, key: bytes) -> Any:
            return parts[key]

    return Unpickler(io.BytesIO(data)).load()
