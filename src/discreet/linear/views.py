"""The rows of a table in the views that were asked of last: :class:`Views`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from discreet.linear.gate.private_table import PrivateTable


class Views:
    """Keeps the rows of the last view, those with its missing numbers filled, and those as rows of a basis.

    Whatever is kept, rows are those of ``table``, and enforce the bound of every query.
    """

    def __init__(self, table: PrivateTable) -> None:
        self._table = table
        self._cache: dict[int, tuple[tuple[bytes, ...], Any]] = {}

    def rows(self, keys: tuple[bytes, ...], view: Callable[[], Any], fills: Any, basis: Any) -> Any:
        """Return the rows of a view, filled and in a basis unless these are None; ``keys`` name the three."""
        rows = self._cached(0, keys[:1], lambda: self._table.rows(view()))
        if fills is not None:
            before = rows
            rows = self._cached(1, keys[:2], lambda: before.filled(fills))
        if basis is not None:
            plain = rows
            rows = self._cached(2, keys, lambda: plain.in_curves(basis))
        return rows

    def _cached(self, place: int, keys: tuple[bytes, ...], make: Callable[[], Any]) -> Any:
        if place not in self._cache or self._cache[place][0] != keys:
            self._cache.pop(place, None)  # before others are made: they are large
            self._cache[place] = keys, make()
        return self._cache[place][1]
