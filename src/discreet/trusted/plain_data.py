"""Frozen dataclasses with a digest: what queries are made of.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, eq=False)
... class Line(Data):
...     slope: float
...     knots: np.ndarray
>>> Line(1.0, np.zeros(2)) == Line(1.0, np.zeros(2)), Line(1.0, np.zeros(2)) == Line(1.0, np.ones(2))
(True, False)

The bound of a query is computed from its numbers, and rows are indexed by them. A NumPy integer wraps round when it
is squared, and a tuple in place of a column would make several columns of one. So :func:`conform` replaces the
numbers of a query by plain ones of the declared types, and refuses everything else.
"""

from __future__ import annotations

import hashlib
from abc import ABCMeta
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.trusted import VIEW_FILES

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Data:
    """A frozen dataclass of numbers, strings, arrays and such dataclasses. Two are equal if their digests are."""

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the class name and of everything that :meth:`content` returns."""
        return digest_of((type(self).__name__, *self.content()))

    def content(self) -> tuple[Any, ...]:
        """Return what the digest is of: all fields, unless a class leaves out what changes no sum."""
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: whoever reads the data elsewhere computes the digest again."""
        return {name: value for name, value in vars(self).items() if name != "digest"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


class Checked:
    """A dataclass whose fields are of the types that it declares from the moment it is made."""

    def __post_init__(self) -> None:
        conform(self)


def digest_of(value: Any) -> bytes:
    """Return the SHA-256 of numbers, strings, arrays, losses and dataclasses of them."""
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
    elif isinstance(type(value), ABCMeta):  # of an abstract class that users may extend
        _add(found, (type(value).__qualname__, *sorted(vars(value).items())))
    elif value is None or isinstance(value, bool | int | float | str | np.number):
        found.update(f"{type(value).__name__}:{value!r};".encode())
    else:
        raise PlanViolation(f"A query holds numbers, strings and arrays. Got {type(value).__name__}.")


def refuse_foreign(value: Any) -> None:
    """Refuse a query or view that is not of the catalogues, or has a field of another type than it declares.

    An array in place of a number could be as long as a chunk of records: then what a record adds would depend on how
    many others there are. What a part checks of its fields is checked again: an array may have changed since.
    """
    if not is_dataclass(value) or not type(value).__module__.startswith(_CATALOGUES):
        raise PlanViolation(f"{type(value).__name__} is not part of the catalogue of queries.")
    conform(value)
    _check_again(value)


def _check_again(value: Any) -> None:
    if isinstance(value, tuple):
        for part in value:
            _check_again(part)
    elif type(value).__module__.startswith(_CATALOGUES):
        for field in fields(value):
            _check_again(getattr(value, field.name))
        getattr(value, "__post_init__", lambda: None)()


def conform(value: Any) -> None:
    """Replace the numbers of a dataclass, and of those within it, by plain ones of the types that it declares.

    Raises:
        PlanViolation: If a field is of another type. The message names the field, never a value.
    """
    for name, hint in _hints(type(value)).items():  # type: ignore[arg-type]
        plain = _conformed(getattr(value, name), hint, f"{type(value).__name__}.{name}")
        object.__setattr__(value, name, plain)


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


_KINDS = {float: (float, int, np.floating, np.integer), int: (int, np.integer), bool: (bool, np.bool_)}


def _conformed(value: Any, hint: Any, name: str) -> Any:
    """The value as a plain one of the type ``hint``."""
    origin, options = get_origin(hint), get_args(hint)
    if hint in _KINDS:
        if isinstance(value, _KINDS[hint]) and (hint is bool or not isinstance(value, bool)):
            return hint(value)
    elif hint in (str, NoneType):
        if type(value) is hint:
            return value
    elif origin is Literal:
        if type(value) is str and value in options:
            return value
    elif origin in (Union, UnionType):
        if type(value) in options:
            return _conformed(value, type(value), name)
        for option in options:
            try:
                return _conformed(value, option, name)
            except PlanViolation:
                continue
    elif origin is tuple:
        several = len(options) == 2 and options[1] is Ellipsis
        kinds = options[:1] * len(value) if several and isinstance(value, tuple) else options
        if type(value) is tuple and len(value) == len(kinds):
            return tuple(_conformed(part, kind, name) for part, kind in zip(value, kinds, strict=True))
    elif origin is np.ndarray:
        (declared,) = get_args(options[1])
        kinds = (np.float64, np.float32, np.int64) if declared is Any else get_args(declared) or (declared,)
        if type(value) is np.ndarray and value.dtype in [np.dtype(kind) for kind in kinds]:
            return value
    elif isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        if type(value) is hint:
            parts = get_type_hints(hint).values()
            return hint(*(_conformed(part, kind, name) for part, kind in zip(value, parts, strict=True)))
    elif isinstance(hint, type) and isinstance(value, hint):
        ours = type(value).__module__.startswith(_CATALOGUES)
        if ours and is_dataclass(value):
            conform(value)
        if ours == hint.__module__.startswith(_CATALOGUES):  # or users may extend the class
            return value
    declared = hint.__name__ if isinstance(hint, type) else str(hint)
    raise PlanViolation(f"{name} must be {declared}. Got {type(value).__name__}.")


_CATALOGUES = (
    *("discreet.trusted.", "discreet.linear.gate."),
    *(
        f"discreet.{package}.{name}".replace("/", ".")
        for package in VIEW_FILES
        for name in VIEW_FILES[package]
    ),
)
