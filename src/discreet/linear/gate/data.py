"""Frozen data with a digest: what queries are made of.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, eq=False)
... class Line(Data):
...     slope: float
...     knots: np.ndarray
>>> Line(1.0, np.zeros(2)) == Line(1.0, np.zeros(2)), Line(1.0, np.zeros(2)) == Line(1.0, np.ones(2))
(True, False)
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse

from discreet.errors import PlanViolation, real
from discreet.linear.losses import Loss
from discreet.trusted.plain_data import conform

_HERE = f"{__package__}."


class Data:
    """A frozen dataclass of numbers, strings, arrays and such dataclasses. Two are equal if their digests are."""

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the class name and of everything that :meth:`content` returns."""
        return digest_of((type(self).__name__, *self.content()))

    def content(self) -> tuple[Any, ...]:
        """What the digest is of: all fields, unless a class leaves out what changes no sum."""
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """The fields: whoever reads the data elsewhere computes the digest again."""
        return {name: value for name, value in vars(self).items() if name != "digest"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def digest_of(value: Any) -> bytes:
    """The SHA-256 of numbers, strings, arrays, losses and dataclasses of them."""
    found = hashlib.sha256()
    _add(found, value)
    return found.digest()


def _add(found: Any, value: Any) -> None:
    """Add a value to a hash, with its type and size, so that different values have different bytes."""
    if isinstance(value, Data):
        found.update(value.digest)
    elif isinstance(value, np.ndarray):
        found.update(f"{value.dtype.str}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple | list):
        found.update(f"{type(value).__name__}{len(value)}".encode())
        for part in value:
            _add(found, part)
    elif is_dataclass(value):
        _add(found, (type(value).__qualname__, *(getattr(value, field.name) for field in fields(value))))
    elif isinstance(value, Loss):
        _add(found, (type(value).__qualname__, *sorted(vars(value).items())))
    elif value is None or isinstance(value, bool | int | float | str | np.number):
        found.update(f"{type(value).__name__}:{value!r};".encode())
    else:
        raise PlanViolation(f"A query holds numbers, strings and arrays. Got {type(value).__name__}.")


def refuse_foreign(value: Any) -> None:
    """Refuse a query with a part that is not of this package, or a field of another type than it declares.

    An array in place of a number could be as long as a chunk of records: then what a record adds would depend on how
    many others there are. Numbers become plain ones (:func:`~discreet.trusted.plain_data.conform`). What a part
    checks of its fields is checked again: an array may have changed since.
    """
    if not is_dataclass(value) or not type(value).__module__.startswith(_HERE):
        raise PlanViolation(f"{type(value).__name__} is not part of the catalogue of queries.")
    conform(value)
    _check_again(value)


def _check_again(value: Any) -> None:
    if isinstance(value, tuple):
        for part in value:
            _check_again(part)
    elif is_dataclass(value) and not isinstance(value, Loss):
        for field in fields(value):
            _check_again(getattr(value, field.name))
        getattr(value, "__post_init__", lambda: None)()


def refuse_other_shapes(**arrays: tuple[Any, tuple[int, ...]]) -> None:
    """Refuse arrays that are not numbers of the given shapes: kernels do not check the places that they read."""
    for name, (value, shape) in arrays.items():
        if type(value) is not np.ndarray or value.dtype.kind not in "fi" or value.shape != shape:
            found = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise PlanViolation(f"The array {name} of a query must have shape {shape}. Got {found}.")


def refuse_bad_knots(knots: Any) -> None:
    """Refuse knots that are not finite and increasing, at least two of them."""
    refuse_other_shapes(knots=(knots, np.shape(knots)))
    increasing = knots.ndim == 1 and len(knots) >= 2 and bool((knots[:-1] < knots[1:]).all())
    if not (increasing and np.isfinite(knots).all()):
        raise PlanViolation("Knots must be at least two finite, increasing numbers.")


def dense(x: Any) -> Any:
    """The rows, if they are not sparse."""
    if issparse(x):
        raise PlanViolation("Sparse rows do not answer this query.")
    return x


def checked_bound(name: str, value: float) -> float:
    """A sensitivity of which 64-bit floats and integers hold all multiples that are needed."""
    return real(name, value, at_least=1e-100, at_most=1e100)
