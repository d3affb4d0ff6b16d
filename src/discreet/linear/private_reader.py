"""Reads a table, its target, its weights and its people into a :class:`PrivateTable`: :class:`PrivateReader`.

What is public of the table comes back beside it as a :class:`~discreet.linear.read_parts.Header`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from discreet.core.grouping import canonical_user_id
from discreet.linear.column_kinds import Column, Unit
from discreet.linear.gate.people import People
from discreet.linear.gate.private_table import PrivateTable
from discreet.linear.read_parts import DeclaredTarget, Header, Parts, read_parts
from discreet.linear.row_source import Source, store_rows
from discreet.linear.rows_alone import chosen_rows, compare_rows, read_alone, rows_of
from discreet.linear.schema import Schema
from discreet.linear.sources import source_of
from discreet.linear.storage import Storage


@dataclass(frozen=True)
class PrivateReader:
    """How a table is read, as declared.

    ``width`` is the number of its columns, if that is known. ``columns`` says what to read of a table that is
    elsewhere, from its source and ``y``; whatever it returns, each cell is read by itself.
    """

    target: DeclaredTarget
    columns: Callable[[Source, Any], Mapping[str, Column | Unit]]
    schema: Schema | None = None
    unit: Unit | None = None
    width: int | None = None
    max_weight: float = 1.0
    storage: Storage | None = None

    def read(self, X: Any, y: Any, sample_weight: Any, people: Any) -> tuple[PrivateTable, Header]:
        """Read the table; ``y`` is the target, or the name of its column.

        Chosen rows are read alone, too, and the table compares its rows with them when it shows a view.
        """
        source = source_of(X)
        if source is not None:
            columns = self.columns(source, y)
            X = store_rows(source.chunks(columns), columns, self.storage or Storage())
        parts = read_parts(self, X, y, sample_weight, people)
        header, table = parts.header, self._table(parts)
        resolved = replace(self, target=self.target._replace(classes=header.classes), width=header.width)
        for place in chosen_rows(table._row_count()):
            row = (_one_row(values, place) for values in (X, y, sample_weight, people))
            alone = read_alone(read_parts, resolved, *row)
            for ours, theirs in ((parts.weights, alone.weights), (parts.ids, alone.ids)):
                if ours is not None:
                    compare_rows([_comparable(ours[place])], [_comparable(theirs[0])])
            table._alone += ((place, self._table(alone)),)
        return table, header

    def _table(self, parts: Parts) -> PrivateTable:
        owners = None if parts.ids is None else People.of(parts.ids)
        names = parts.header.names
        return PrivateTable(
            parts.table, parts.targets, parts.weights, owners, self.storage, names, parts.sparse
        )


def _one_row(values: Any, place: int) -> Any:
    """One row of a table, of targets, weights or ids; names, numbers and None are for all rows."""
    if values is None or isinstance(values, str | int | float):
        return values
    return rows_of(values, np.array([place]))


def _comparable(cell: Any) -> Any:
    """A weight as it is, and an id as the person that it stands for, in an array."""
    return np.array([cell]) if isinstance(cell, np.float64) else [canonical_user_id(cell)]
