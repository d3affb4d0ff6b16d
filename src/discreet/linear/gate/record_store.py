"""The records of a fit in chunks: :class:`RecordStore` admits them once and transforms them when needed.

It reads an encoded table (array, memory map or CSR) chunk by chunk and keeps rows within what
:class:`~discreet.linear.gate.declared_columns.Columns` declare. :class:`Working` is the same records in the
coordinates of a descent. Both are kept on a :class:`~discreet.linear.storage.BlockCache`, in memory or in a scratch
file, so the size of the table is not limited.

A record counts as nothing if a feature or its weight is not finite, or if its target is not one that the loss
accepts. Where rows belong to people, they are read person by person, wherever they are in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.gate import sparse_rows
from discreet.linear.gate.block_cache import BlockCache, CachedBlocks
from discreet.linear.gate.data import refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.kernel import row_norms
from discreet.linear.kernels.row_tiles import Tiles
from discreet.linear.kernels.tiled_kernel import takes
from discreet.linear.losses import Loss
from discreet.linear.on_demand import OnDemand, sane_csr
from discreet.linear.residuals import accepted as accepted_targets
from discreet.linear.storage import Storage

Array = NDArray[np.float64]
T = TypeVar("T")
Matrix = NDArray[np.float32]
Codes = NDArray[np.int64]

MISSING = np.nextafter(np.float32(0.5), np.float32(1))
"""Stands for a missing number in encoded rows: the middle of the bounds, but for the last bit."""

_KEPT = ("white", "working", "scores", "cells", "line")  # each is made of those before it
_CHUNK = 2**22  # numbers that are encoded, kept or transformed together: what is made on the way stays small


class Chunk(NamedTuple):
    """Some records: admitted features, targets, weights (None if all are 1), and the number of each one's person.

    The records of a person are all in one chunk, next to one another.
    """

    x: Any
    y: Array
    weights: Array | None
    people: Codes | None = None


class RecordStore:
    """Encoded records with their targets. Refusals depend on types and shapes alone.

    ``x`` is an array, a memory map or a CSR matrix whose columns are as ``columns`` says. With ``sparse`` it stays
    sparse, and so do the features of chunks and blocks (:mod:`~discreet.linear.gate.sparse_rows`).
    """

    part = _CHUNK
    _fill: NDArray[np.float32] | None = None
    _people: Codes | None = None

    def __init__(
        self,
        loss: Loss,
        x: Any,
        y: Any,
        columns: Columns,
        weights: Any = None,
        people: People | None = None,
        shelf: BlockCache | None = None,
        sparse: bool = False,
    ) -> None:
        self.loss, self.columns, self.sparse = loss, columns, sparse
        self._remembered: dict[str, tuple[bytes, Any]] = {}
        self.shelf = Storage().shelf() if shelf is None else shelf
        # What has a shape and gives rows by slice is read in chunks: arrays, memory maps, tables encoded on demand.
        self._x = x.tocsr() if issparse(x) else x if hasattr(x, "shape") else np.asarray(x)
        if len(self._x.shape) != 2 or self._x.shape[1] != columns.width:
            raise InvalidParameter(
                "X.shape[1:]", self._x.shape[1:], f"must be ({columns.width},), as declared."
            )
        self._x = sane_csr(self._x) if sparse else self._x
        self._y = _one_each("y", y, self._x.shape[0])
        self._weights = None if weights is None else _one_each("weights", weights, self._x.shape[0])
        if people is not None:
            self._weights = people._limit(np.ones(len(people._codes)) if weights is None else weights)
        self._order = None if people is None else people._order()
        self._people = None if people is None else people._codes
        self._kept = self.shelf.keep(self._read())

    def __len__(self) -> int:
        return int(self._x.shape[0])

    @property
    def row_columns(self) -> Columns:
        """The kinds of the columns of chunks."""
        return self.columns

    def everybody(self) -> Iterator[Chunk]:
        """All records with finite features, whatever their target."""
        for chunk in self._kept:
            x = chunk.x
            if self.sparse and self.columns.text:
                x = sparse_rows.shorten_rows(x, self.columns.text_norm)
            if self._fill is not None:
                marked = x[:, : self.columns.numerics] == MISSING
                if marked.any():
                    x = x.copy()
                    x[:, : self.columns.numerics][marked] = self._fill[np.nonzero(marked)[1]]
            yield chunk._replace(x=x)

    def chunks(self) -> Iterator[Chunk]:
        """The records that count."""
        for chunk in self.everybody():
            accepted = accepted_targets(self.loss, chunk.y)
            yield chunk if accepted.all() else _part(chunk, accepted)

    def as_text(self, norm: float) -> RecordStore:
        """The same sparse records with rows of at most this norm: a block of text, whatever they were."""
        if not self.sparse:
            raise PlanViolation("Only sparse records are shortened to a block of text.")
        other = self.copy()
        other.columns = Columns(0, text=self.columns.width, text_norm=norm)
        return other

    def copy(self) -> RecordStore:
        """The same records, which were read once; what is made of them is kept apart."""
        other = copy(self)
        other._remembered = {}
        return other

    def fill_missing(self, values: Array) -> None:
        """From now on let every number that is :data:`MISSING` be the value of its column, moved into [0, 1]."""
        refuse_other_shapes(values=(values, (self.columns.numerics,)))
        if self.sparse or not np.isfinite(values).all():
            raise PlanViolation("Missing numbers of dense records are filled with finite values.")
        self._fill = np.clip(values, 0, 1).astype(np.float32)
        self._remembered = {}

    def working(self, coordinates: Any, target: Callable[[Array], Array]) -> Working:
        """The records in public coordinates, with mapped targets. The last ones asked for are kept."""
        key = coordinates.digest + target.digest  # type: ignore[attr-defined]
        return self.remember("working", key, lambda: self._map(coordinates, target))

    def norms(self, coordinates: Any) -> Iterator[tuple[Array, Any]]:
        """Those of the rows in white coordinates, with their weights."""
        pairs = zip(self._white(coordinates), self.chunks(), strict=True)
        return ((block.norms, chunk.weights) for block, chunk in pairs)

    def remember(self, name: str, key: bytes, make: Callable[[], T]) -> T:
        """What ``make`` gives, kept under a name until it is asked for with another key, or what it is made of is."""
        found = self._remembered.get(name)
        if found is not None and found[0] == key:
            return cast(T, found[1])
        for later in _KEPT[_KEPT.index(name) :]:
            self._remembered.pop(later, None)
        value = make()
        self._remembered[name] = key, value
        return value

    def _map(self, coordinates: Any, target: Callable[[Array], Array]) -> Working:
        if coordinates.constant == 0.0:
            targets = self.shelf.keep((_targets_of(y, target),) for _, y, *_ in self.chunks())
            return _Aimed(self._white(coordinates), targets)
        constant, centre = coordinates.constant, getattr(coordinates, "centre", None)
        return Working(self.blocks(coordinates.apply, target, constant, centre), constant, self.shelf, centre)

    def _white(self, coordinates: Any) -> Working:
        """The rows in white coordinates, with the target 0; in tiles where a kernel takes them."""

        def make() -> Working:
            tiled = coordinates.tiled and self._people is None and self.loss.kind == "classes"
            if tiled and takes(self.loss):
                return Working(self._tiled_blocks(coordinates.tile), 0.0, self.shelf)
            return Working(self.blocks(coordinates.apply, np.zeros_like, 0.0), 0.0, self.shelf)

        return self.remember("white", coordinates.digest, make)

    def _tiled_blocks(self, tile: Callable[[Any], tuple[Tiles, Array]]) -> Iterator[RecordBlock]:
        for x, y, weights, _ in self.chunks():
            tiles, norms = tile(x)
            weights = None if weights is None else weights.astype(np.float32)
            yield RecordBlock(tiles, np.zeros(len(y), np.float32), weights, norms)

    def blocks(
        self,
        transform: Callable[[Any], Any],
        target: Callable[[Array], Array],
        constant: float,
        centre: Centre | None = None,
    ) -> Iterator[RecordBlock]:
        """The same for one pass."""
        step = max(1, self.part // max(1, self.columns.width))
        for x, y, weights, people in self.chunks():
            if self.sparse:
                z: Any = transform(x)
            else:
                parts = [transform(x[start : start + step]) for start in range(0, max(len(x), 1), step)]
                z = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts), np.float32)
            weights = None if weights is None else weights.astype(np.float32)
            norms = row_norms(z, constant) if centre is None else centred_norms(z, constant, centre)
            yield RecordBlock(z, _targets_of(y, target), weights, norms, people)

    def _read(self) -> Iterator[Chunk]:
        return map(self._admit, sparse_rows.pieces(self._x) if self.sparse else self._parts())

    def _admit(self, rows: Any) -> Chunk:
        x: Any = self._x[rows]
        y = np.asarray(self._y[rows], np.float64)
        weights = None if self._weights is None else np.asarray(self._weights[rows], np.float64)
        if self.sparse:
            good = sparse_rows.finite_rows(x)
            x = x if good.all() else x[good]
            x = sparse_rows.admit_rows(x, self.columns.text_norm if self.columns.text else None)
        else:
            x = x.toarray() if issparse(x) else np.asarray(x)
            made = isinstance(self._x, OnDemand) and x.flags.owndata  # for this chunk: nobody else has it
            x, good = self.columns.sift(x, in_place=made)
        if weights is not None and not (known := np.isfinite(weights)).all():
            x, good = x[known[good]], good & known
        people = None if self._people is None else self._people[rows][good]
        return Chunk(x, y[good], _bound_weights(weights, good), people)

    def _parts(self) -> Iterator[Any]:
        """Which rows are read at once: slices of the table, or of the order of its people, none of them in two.

        There is one part at least: a query that does not fit the columns is refused whether there are rows or not.
        """
        step = max(1, _CHUNK // max(1, self.columns.width))
        if self._order is None or self._people is None:
            yield from (slice(start, start + step) for start in range(0, max(1, self._x.shape[0]), step))
            return
        owners = self._people[self._order]
        if not len(owners):
            yield self._order
        start = 0
        while start < len(owners):
            last = owners[min(start + step, len(owners)) - 1]
            stop = int(np.searchsorted(owners, last, side="right"))
            yield self._order[start:stop]
            start = stop


class RecordBlock(NamedTuple):
    """Some records in the coordinates of the descent, with bounds of the norms of (constant, z).

    Sparse rows z may have a centre, which is taken off in norms and sums only. Dense ones may be in tiles
    (:mod:`~discreet.linear.kernels.row_tiles`). ``people`` is the number of each
    record's person, all of whose records are in this block, next to one another.
    """

    z: Any
    y: NDArray[Any]
    weights: NDArray[Any] | None
    norms: Array
    people: Codes | None = None

    @property
    def tiled(self) -> bool:
        """Whether z is in tiles."""
        return len(self.z.shape) == 3


class Working:
    """The records in the coordinates of the descent: iterate over it for :class:`RecordBlock` after block."""

    def __init__(
        self, blocks: Iterable[RecordBlock], constant: float, shelf: BlockCache, centre: Centre | None = None
    ) -> None:
        self.constant, self.shelf, self.centre = constant, shelf, centre
        self._kept = shelf.keep(blocks)

    def __iter__(self) -> Iterator[RecordBlock]:
        return iter(self._kept)


class _Aimed(Working):
    """Rows that are kept, beside their targets."""

    def __init__(self, rows: Working, targets: CachedBlocks[tuple[Matrix]]) -> None:
        self.constant, self.shelf, self.centre = rows.constant, rows.shelf, rows.centre
        self._rows, self._targets = rows, targets

    def __iter__(self) -> Iterator[RecordBlock]:
        for block, (y,) in zip(self._rows, self._targets, strict=True):
            yield block._replace(y=y)


def _targets_of(y: Array, target: Callable[[Array], Array]) -> Matrix:
    """The targets of a descent, in the type of its rows."""
    with np.errstate(over="ignore"):
        return target(y).astype(np.float32)


def _one_each(name: str, values: Any, records: int) -> Any:
    """The values as an array, or as what gives them by slice."""
    if not hasattr(values, "dtype") and getattr(values, "shape", None) == (records,):
        return values
    array: NDArray[Any] = np.asanyarray(values)
    if array.dtype.kind not in "fiub" or array.shape != (records,):
        shown = f"{array.dtype}{array.shape}"
        raise InvalidParameter(name, shown, f"must hold {records} numbers, one for each row of X.")
    return array


def _bound_weights(weights: Array | None, good: NDArray[np.bool_]) -> Array | None:
    return None if weights is None else np.clip(weights[good], 0.0, 1.0)


def _part(chunk: Chunk, which: NDArray[np.bool_]) -> Chunk:
    parts: list[Any] = [None if part is None else part[which] for part in chunk]
    return Chunk(*parts)
