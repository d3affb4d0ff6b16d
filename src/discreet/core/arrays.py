"""Numpy arrays and torch tensors behind one set of functions, without importing torch.

Whoever holds a tensor has imported torch, so it is taken from there.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = Any
"""A numpy array or a torch tensor."""


def is_tensor(value: object) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def type_name(value: AnyArray) -> str:
    """The element type as text: ``"float32"``, ``"bfloat16"``, ``"int64"``."""
    return _name_of(value.dtype)


@lru_cache(maxsize=64)  # numpy writes the name anew each time, which takes longer than a small sum
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def is_floating(value: AnyArray) -> bool:
    """True if the elements are floating-point numbers of any width."""
    return "float" in type_name(value)


def float_limits(value: AnyArray) -> Any:
    """Largest and smallest numbers of the element type, as ``finfo``."""
    return sys.modules["torch"].finfo(value.dtype) if is_tensor(value) else np.finfo(value.dtype)


def to_numpy(value: AnyArray) -> NDArray[Any]:
    """The value on the host with elements of 32 bits or more; the same memory where that is possible."""
    if is_tensor(value):
        value = value.detach().cpu()
        value = (value.float() if value.element_size() < 4 else value).numpy()
    array: NDArray[Any] = value
    return array.astype(np.float32) if array.itemsize < 4 else array


def shared_view(out: AnyArray, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """``out`` as a contiguous numpy array of type ``dtype`` over the same memory, if it can be seen so."""
    if is_tensor(out):
        if out.device.type != "cpu" or out.element_size() < 4:
            return None
        out = out.detach().numpy()
    view: NDArray[Any] = out
    return view if view.dtype == dtype and view.flags.c_contiguous else None


def new_float_like(value: AnyArray) -> AnyArray:
    """Uninitialised array of the same kind, shape and device; float64 where ``value`` holds integers."""
    if is_tensor(value):
        dtype = value.dtype if value.is_floating_point() else sys.modules["torch"].float64
        return value.new_empty(value.shape, dtype=dtype)
    return np.empty(value.shape, value.dtype if is_floating(value) else np.float64)


def store(out: AnyArray, values: NDArray[Any]) -> None:
    """Overwrite ``out`` with ``values``, rounded to its type."""
    if is_tensor(out):
        out.detach().copy_(sys.modules["torch"].from_numpy(values))
    else:
        with np.errstate(over="ignore"):
            np.copyto(out, values, casting="same_kind")
