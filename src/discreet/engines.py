"""Engines by the kind of table that they fit: entered by the package, so that lower packages need not name them.

>>> enter_engine("example", lambda table: f"an engine for {table}")
>>> engine_for("example", "this table")
'an engine for this table'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FINDERS: dict[str, Callable[[Any], Any]] = {}


def enter_engine(kind: str, find: Callable[[Any], Any]) -> None:
    """Enter the function that returns an engine for a table of this kind."""
    _FINDERS[kind] = find


def engine_for(kind: str, table: Any) -> Any:
    """Return the engine for a table of this kind."""
    return _FINDERS[kind](table)
