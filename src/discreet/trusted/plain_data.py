"""Frozen dataclasses that can be written down, compared and hashed: what queries are made of.

The bound of a query is computed from its numbers, and rows are indexed by them. A NumPy integer wraps round when it
is squared, and a tuple in place of a column would make several columns of one. So :func:`conform` replaces the
numbers of a query by plain ones of the declared types, and refuses everything else.
"""

from __future__ import annotations

import hashlib
from abc import ABCMeta
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation

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
        if type(value) is np.ndarray and value.dtype in (np.float64, np.float32, np.int64):
            return value
    elif isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        if type(value) is hint:
            parts = get_type_hints(hint).values()
            return hint(*(_conformed(part, kind, name) for part, kind in zip(value, parts, strict=True)))
    elif isinstance(hint, type) and _may_stand_for(value, hint):
        if type(value).__module__.startswith(_CATALOGUES):
            conform(value)
        return value
    declared = hint.__name__ if isinstance(hint, type) else str(hint)
    raise PlanViolation(f"{name} must be {declared}. Got {type(value).__name__}.")


_CATALOGUES = ("discreet.trusted.", "discreet.linear.gate.")


def _may_stand_for(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared class: of the catalogue, or of an abstract class that users may extend."""
    if type(value).__module__.startswith(_CATALOGUES):
        return is_dataclass(value) and (getattr(hint, "_is_protocol", False) or isinstance(value, hint))
    return isinstance(hint, ABCMeta) and not getattr(hint, "_is_protocol", False) and isinstance(value, hint)


def _plain(value: Any) -> Any:
    if isinstance(value, Data):
        return value.to_plain()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.hex() if isinstance(value, float) else value
