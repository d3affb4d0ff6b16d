"""A table that was read: :class:`PrivateTable` gives its rows in the views that queries are asked of.

A view says, as plain data, which rows are meant: targets alone, columns without bounds, encoded records. It can be
sent to where a part of the table lies, and gives rows there that answer the same queries.

>>> table = PrivateTable(np.zeros((3, 1)), np.array([0.0, 1.0, 1.0]), None, None)
>>> table.rows(UndeclaredColumns(columns=1))
RawColumns(columns=1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.randomness import RandomStream
from discreet.linear.cells import declared_numbers
from discreet.linear.encoder import Encoding, schema_columns
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records
from discreet.linear.kernels import csr_rows
from discreet.linear.losses import Loss
from discreet.linear.on_demand import OnDemand, part_of, sane_csr
from discreet.linear.rows_alone import compare_rows, read_alone
from discreet.linear.schema import Schema
from discreet.linear.storage import Storage
from discreet.linear.subsampling import draw_rows
from discreet.trusted.opaque import AnyRows, Opaque, discreetly
from discreet.trusted.plain_data import Checked, refuse_foreign
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import NumberParts

Array = NDArray[np.float64]

_BLOCK = 2**21  # numbers of columns as they were read that are looked at together
_COMPANY = 2**10  # rows before and after a chosen one that are read with it


class PrivateTable(Opaque):
    """A table with a target for each row, weights in [0, 1], and whose each row is.

    ``names`` are those of the columns, if they have any; ``sparse`` tables stay so when they are encoded. ``_alone``
    has chosen rows, each read alone as a table, with which those of every view are compared.
    """

    __slots__ = (
        "_alone",
        "_chosen",
        "_people",
        "_storage",
        "_table",
        "_target",
        "_weights",
        "names",
        "sparse",
    )

    def __init__(
        self,
        table: Any,
        target: Any,
        weights: Array | None,
        people: People | None,
        storage: Storage | None = None,
        names: tuple[str, ...] | None = None,
        sparse: bool = False,
    ) -> None:
        self._table, self._target, self._weights, self._people = table, target, weights, people
        self._storage = storage or Storage()
        self._chosen: NDArray[np.int64] | None = None
        self._alone: tuple[tuple[int, PrivateTable], ...] = ()
        self.names, self.sparse = names, sparse

    def rows(self, view: View) -> Any:
        """The rows of a view, which answer queries."""
        refuse_foreign(view)
        return discreetly(view._rows, self)

    def _arrays(self, view: EncodedRows) -> Arrays:
        """Encoded rows for methods with theorems of their own."""
        refuse_foreign(view)
        return discreetly(view._arrays, self)

    def sampled(self, rate: float, stream: RandomStream) -> PrivateTable:
        """A secret sample: each row, or each person with all rows, is in it with the chance ``rate``."""
        chosen, found = draw_rows(rate, self._row_count(), self._people, stream), copy(self)
        found._chosen = chosen if self._chosen is None else self._chosen[chosen]
        found._people = None if self._people is None else self._people._at(chosen)
        found._weights = part_of(self._weights, chosen)
        return found

    def _compared(self, read: Callable[[PrivateTable], tuple[Any, ...]]) -> Iterator[Any]:
        """What ``read`` makes of the rows, after it was compared with what it makes of chosen rows alone."""
        parts = read(self)
        for place, alone in self._alone:
            start = max(0, place - _COMPANY)
            others = (part[start : place + _COMPANY][place - start : place - start + 1] for part in parts)
            compare_rows(others, (part[:1] for part in read_alone(read, alone)))
        return (part_of(part, self._chosen) for part in parts)

    def refuse_types(self, encoding: Encoding) -> None:
        """Raise if the types of columns are not those that an encoding takes."""
        if not self.sparse:
            encoding.on_demand(self._table)

    def _row_count(self) -> int:
        return len(self._target if self._chosen is None else self._chosen)

    def _weights_with(self, least: int | None) -> Array | None:
        """The weight of each row; those of a person sum to at most 1, in full from ``least`` rows on."""
        if self._people is None:
            return self._weights
        return self._people._weights(1 if least is None else least, self._weights)

    def __copy__(self) -> PrivateTable:
        found: PrivateTable = object.__new__(PrivateTable)
        for name in PrivateTable.__slots__:
            setattr(found, name, getattr(self, name))
        return found


class Arrays(NamedTuple):
    """Encoded rows with their targets and weights."""

    x: Any
    y: Any
    weights: Array | None


@dataclass(frozen=True, eq=False)
class PersonRows(Checked):
    """How many rows each person has: for :class:`~discreet.linear.row_views.targets.RowsOfPeople`."""

    def _rows(self, table: PrivateTable) -> People | None:
        return table._people


@dataclass(frozen=True, eq=False)
class TargetRows(Checked):
    """Records without features. ``least`` is the number of rows from which on a person counts in full."""

    loss: Loss
    least: int | None = None
    columns = Columns(0)

    def _rows(self, table: PrivateTable) -> Records:
        nothing, weights = np.empty((table._row_count(), 0)), table._weights_with(self.least)
        (target,) = table._compared(lambda table: (table._target,))
        return Records(self.loss, nothing, target, self.columns, weights, table._people)


@dataclass(frozen=True, eq=False)
class UndeclaredColumns(Checked):
    """The columns without bounds as they were read: those of a schema, or all of them."""

    columns: int
    schema: Schema | None = None
    least: int | None = None

    def _rows(self, table: PrivateTable) -> RawColumns:
        (columns,) = table._compared(self._numbers)
        return RawColumns(columns, table._weights_with(self.least))

    def _numbers(self, table: PrivateTable) -> tuple[Any]:
        if self.schema is None:
            return (table._table,)
        return (_undeclared_columns(schema_columns(table._table, self.schema), self.schema),)


@dataclass(frozen=True, eq=False)
class TargetColumn(Checked):
    """The target as a column without bounds."""

    least: int | None = None
    columns = 1

    def _rows(self, table: PrivateTable) -> RawColumns:
        (target,) = table._compared(lambda table: (table._target,))
        column = OnDemand((len(target), 1), lambda rows: target[rows][:, None])
        return RawColumns(column, table._weights_with(self.least))


@dataclass(frozen=True, eq=False)
class EncodedRows(Checked):
    """Encoded records: the columns ``seen`` of an encoding, or all, with targets clipped to ``bounds``, if given.

    Queries about ``whole_rows`` need dense ones.
    """

    loss: Loss
    encoding: Encoding
    seen: NDArray[np.intp] | None = None
    bounds: tuple[float, float] | None = None
    least: int | None = None
    whole_rows: bool = False

    @property
    def columns(self) -> Columns:
        """The kinds of the columns: numbers may be left out, all else is there."""
        found = self.encoding.columns
        if self.seen is None:
            return found
        return replace(found, numerics=int(np.sum(self.seen < found.numerics)))

    def _rows(self, table: PrivateTable) -> Records:
        x, y, weights = self._arrays(table)
        shelf = table._storage.shelf()
        return Records.of(self.loss, x, y, self.columns, weights, table._people, shelf, self.whole_rows)

    def _arrays(self, table: PrivateTable) -> Arrays:
        """The rows, their targets and weights."""
        x, y = table._compared(lambda table: (self.encoding.on_demand(table._table), table._target))
        if self.seen is not None:
            encoded, seen = x, self.seen
            x = OnDemand((encoded.shape[0], len(seen)), lambda rows: encoded[rows][:, seen])
        if self.bounds is not None:
            target, (lower, upper) = y, self.bounds
            y = OnDemand((len(target),), lambda rows: np.clip(target[rows], lower, upper))
        return Arrays(x, y, table._weights_with(self.least))


class RawColumns(AnyRows):
    """Columns as they were read, whose bounds nobody declared: an array or a CSR array, with weights in [0, 1]."""

    __slots__ = ("_table", "_weights", "columns")

    _answers: ClassVar[tuple[type, ...]] = (Blocks,)

    def __init__(self, table: Any, weights: Array | None = None) -> None:
        self._table = sane_csr(table) if issparse(table) else table
        self._weights = None if weights is None else np.clip(np.nan_to_num(weights), 0.0, 1.0)
        self.columns: int = table.shape[1]

    def _row_count(self) -> int:
        return int(self._table.shape[0])

    def _sum(self, query: Blocks, grid: float) -> NDArray[np.int64]:
        pieces = csr_rows.pieces(self._table) if issparse(self._table) else None
        return query.total(NumberParts(self._table, self._weights, pieces, _BLOCK), grid)

    def __repr__(self) -> str:
        return f"RawColumns(columns={self.columns})"


View = PersonRows | TargetRows | UndeclaredColumns | TargetColumn | EncodedRows


def _undeclared_columns(columns: Mapping[str, Any], schema: Schema) -> OnDemand:
    """The columns without bounds, as numbers."""
    kinds: dict[str, Any] = {name: schema.features[name] for name in schema.undeclared}

    def read_rows(rows: Any) -> NDArray[Any]:
        parts = [declared_numbers(kind, columns[name][rows], f"X[{name!r}]") for name, kind in kinds.items()]
        return np.column_stack(parts)

    return OnDemand((len(columns[schema.undeclared[0]]), len(kinds)), read_rows)
