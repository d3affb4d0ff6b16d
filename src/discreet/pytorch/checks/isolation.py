"""Copies of a model and its losses that share the weights and nothing that a call could change.

A check calls the model many times, on examples that no record has. Whatever the model or the losses remember of them,
a normaliser that the first batch sets or a running mean, must not stay. And whether they remember anything shows only
in copies that have seen different batches first.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

MOST_COPIED = 1 << 24
"""Tensors and arrays with more numbers are shared, as are parameters."""
MOST_ENTRIES = 1 << 16
"""Lists and dictionaries with more entries are shared: they are data."""
_LIBRARIES = ("torch", "numpy", "builtins", "transformers", "discreet")
_OURS = "discreet.pytorch.per_person"

Memo = dict[int, Any]


def isolated(
    model: nn.Module, losses: Callable[..., Any], memo: Memo | None = None
) -> tuple[Any, Callable[..., Any]]:
    """The model and the losses as copies that share trained and frozen parameters.

    Attributes, buffers, closures, default arguments and global variables that ``losses`` names are copied as far as
    they can be; what cannot be copied is shared. Global variables and class attributes that the model's own methods
    set are shared too. ``memo`` maps the identities of objects to what stands for them.
    """
    known: Memo = {} if memo is None else dict(memo)
    held: list[Any] = [model, losses]  # so that no other object gets an identity that is in use
    for parameter in model.parameters():
        known.setdefault(id(parameter), parameter)
    copier = _Copier(known, held)
    return copier(model), copier(losses)


class _Copier:
    def __init__(self, memo: Memo, held: list[Any]) -> None:
        self._memo, self._held = memo, held

    def __call__(self, value: Any) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        try:
            return self._copied(value)
        except Exception:  # locks, handles, tensors within a graph
            return self._keep(value, value)

    def _keep(self, value: Any, made: Any) -> Any:
        self._memo[id(value)] = made
        self._held.append(value)
        return made

    def _copied(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._keep(value, types.MethodType(self(value.__func__), self(value.__self__)))
        if isinstance(value, functools.partial):
            made = functools.partial(
                self(value.func), *map(self, value.args), **{k: self(v) for k, v in value.keywords.items()}
            )
            return self._keep(value, made)
        if isinstance(value, Tensor | np.ndarray):
            size = value.numel() if isinstance(value, Tensor) else value.size
            large = size > MOST_COPIED or (isinstance(value, Tensor) and not value.is_leaf)
            return self._keep(value, value if large else copy.deepcopy(value))
        if isinstance(value, list | set | tuple | Mapping) and len(value) > MOST_ENTRIES:
            return self._keep(value, value)
        if type(value) in (list, set):
            filled = self._keep(value, type(value)())
            filled.extend(map(self, value)) if type(value) is list else filled.update(map(self, value))
            return filled
        if type(value) is tuple:
            return self._keep(value, tuple(map(self, value)))
        if isinstance(value, Mapping) and hasattr(value, "__setitem__"):
            return self._mapping(value)
        if isinstance(value, nn.Module):
            made = self._keep(value, type(value).__new__(type(value)))
            made.__dict__.update({name: self(part) for name, part in vars(value).items()})
            return made
        return self._object(value)

    def _mapping(self, value: Any) -> Any:
        made = self._keep(value, copy.copy(value))
        for key, part in value.items():
            made[key] = self(part)
        return made

    def _object(self, value: Any) -> Any:
        """An instance of a class of the user's own; those of libraries and modules are shared."""
        home = str(getattr(type(value), "__module__", ""))
        shared = isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__")
        if shared or (home.split(".")[0] in _LIBRARIES and home != _OURS):
            return self._keep(value, value)
        made = copy.copy(value)
        self._keep(value, made)
        if made is not value:
            for name, part in vars(value).items():
                made.__dict__[name] = self(part)
        return made

    def _function(self, function: types.FunctionType) -> Any:
        """A function with a closure, defaults and global variables of its own."""
        if str(function.__module__).split(".")[0] in _LIBRARIES:
            return self._keep(function, function)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(
            function.__code__,
            self._globals(function.__globals__),
            function.__name__,
            function.__defaults__,
            cells or None,
        )
        self._keep(function, made)
        for cell, before in zip(cells, function.__closure__ or (), strict=True):
            try:
                content = before.cell_contents
            except ValueError:  # not yet filled
                continue
            cell.cell_contents = self(content)
        made.__defaults__ = self(function.__defaults__)
        made.__kwdefaults__ = self(function.__kwdefaults__)
        made.__dict__.update({name: self(part) for name, part in vars(function).items()})
        for name in _names(function.__code__):
            if name in function.__globals__:
                made.__globals__[name] = self(function.__globals__[name])
        return made

    def _globals(self, names: dict[str, Any]) -> dict[str, Any]:
        """A copy of a module's variables, one for all functions of the module."""
        if id(names) not in self._memo:
            self._keep(names, dict(names))
        found: dict[str, Any] = self._memo[id(names)]
        return found


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names in a function, and in those that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
