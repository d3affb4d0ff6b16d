"""Functions of torch without the question whether somebody overrides them, as that somebody is the one who asks.

Many functions of torch are Python that first hands itself to the function modes in force. A mode that wants to see
the calls inside of such a function runs its body: the same code, in which that question is answered with no.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_BODIES: dict[Any, Callable[..., Any]] = {}


def body(func: Any) -> Callable[..., Any]:
    """``func`` as code of its own; of a choice between two functions, both."""
    if func not in _BODIES:
        namespace = func.__globals__ | dict.fromkeys(_QUESTIONS, _no)
        closure = func.__closure__ and tuple(types.CellType(_inside(cell)) for cell in func.__closure__)
        made = types.FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, closure)
        made.__kwdefaults__ = func.__kwdefaults__
        _BODIES[func] = made
    return _BODIES[func]


def _inside(cell: Any) -> Any:
    content = cell.cell_contents
    of_torch = isinstance(content, types.FunctionType) and content.__module__ == "torch.nn.functional"
    return body(content) if of_torch else content


def _no(*_: Any) -> bool:
    return False
