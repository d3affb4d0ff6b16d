"""The compiler of the hot loops. Who verifies certificates clips nothing and draws nothing, and can do without it."""

from __future__ import annotations

from typing import Any

from discreet.errors import MissingDependency

__all__ = ["njit"]

try:
    from numba import njit
except ImportError:

    def _without(**_: Any) -> Any:
        """In place of the compiler: functions that say what is missing. Slow ones would only seem to work."""
        return lambda function: _refuse

    njit = _without  # type: ignore[assignment]


def _refuse(*_: object, **__: object) -> None:
    raise MissingDependency("Clipping records and drawing noise need numba: pip install 'discreet[tables]'.")
