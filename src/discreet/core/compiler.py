"""The compiler of the hot loops: numba, or functions that say that it is missing.

Who verifies certificates clips nothing and draws nothing, and can do without.
"""

from __future__ import annotations

from typing import Any, TypeVar

from discreet.errors import missing_extra

__all__ = ["compiled", "njit"]

try:
    from numba import njit
except ImportError:

    def _without(**_: Any) -> Any:
        """In place of the compiler: functions that say what is missing. Slow ones would only seem to work."""
        return lambda function: _refuse

    njit = _without  # type: ignore[assignment]


def _refuse(*_: object, **__: object) -> None:
    raise missing_extra("Clipping records and drawing noise need numba", "tables")


Function = TypeVar("Function")


def compiled(function: Function, fastmath: Any = False) -> Function:
    """The function as machine code, compiled when first called and kept on disk; it releases the GIL."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        result: Function = njit(cache=True, **options)(function)
    except RuntimeError:  # no directory can be written to: compile anew in every process
        result = njit(**options)(function)
    return result
