"""Which tensors of a forward pass hold values of examples: those of the batch, and what was computed from them.

The graph tells which losses read a tensor, not whether the tensor is made of examples: a mean over the batch is read
by all losses, just as a weight is. Python numbers are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

# Results that have the size or the type of a tensor and nothing of its values.
_OF_NONE = {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"}
_OF_FIRST = {"to", "type_as", "expand_as", "view_as", "reshape_as"}


class DataFlow:
    """Follows ``tensors`` through calls."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        for tensor in tensors:
            self._known[id(tensor)] = tensor
        self.places: list[tuple[Any, int]] = []
        """Where in the graph there is data."""

    def enters(self, values: Iterable[Any]) -> bool:
        """Whether one of these holds values of examples, at whatever depth."""
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self._known:
                    return True
            elif isinstance(value, (tuple, list)):
                if self.enters(value):
                    return True
            elif isinstance(value, dict) and self.enters(value.values()):
                return True
        return False

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The result of a call, remembered if values of examples went into it."""
        if not self.enters(_read(func, args, kwargs)):
            return result
        if not isinstance(result, Tensor) and isinstance(result, Iterator):  # over the rows of a tensor
            result = list(result)
            self._mark(result)
            return iter(result)
        written = args[0] if args and _writes(func) else kwargs.get("out")
        self._mark((result, written, written._base if isinstance(written, Tensor) else None))
        return result

    def _mark(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._known[id(value)] = value
                if value.grad_fn is not None:
                    self.places.append((value.grad_fn, value.output_nr))
            elif isinstance(value, (tuple, list)):
                self._mark(value)
            elif isinstance(value, dict):
                self._mark(value.values())


def _read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    """The arguments of which values may be in the result."""
    name = _name(func)
    if name in _OF_NONE or name.startswith("new_"):
        return ()
    if name in _OF_FIRST:
        return args[:1]
    return (*args, *kwargs.values()) if kwargs else args


def _writes(func: Any) -> bool:
    name = _name(func)
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name[:3] == "__i"
    )


@lru_cache
def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
