"""Encoded records that answer queries and nothing else: :class:`Records`, whose rows a :class:`RecordStore` holds.

A store reads an encoded table (array, memory map or CSR) chunk by chunk and keeps rows within what
:class:`~discreet.linear.gate.declared_columns.Columns` declare. :class:`Working` holds them in the coordinates of a
descent. Both are kept on a :class:`~discreet.linear.gate.block_cache.BlockCache`, in memory or in a scratch file, so
the size of the table is not limited.

A record counts as nothing if a feature or its weight is not finite, or if its target is not one that the loss
accepts. Where rows belong to people, they are read person by person, wherever they are in the table.

>>> from discreet.linear.losses import Logistic
>>> records = Records(Logistic(), np.zeros((3, 1)), np.array([0, 1, 1]), Columns(numerics=1))
>>> records
Records(columns=1)
>>> len(records)
Traceback (most recent call last):
    ...
TypeError: Private rows have no length, no items and no truth value. Ask a query of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.gate.block_cache import BlockCache, CachedBlocks
from discreet.linear.gate.checks import dense, refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.kernels import csr_rows
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.row_tiles import tile_scores
from discreet.linear.kernels.rowwise import times
from discreet.linear.kernels.tiled_kernel import takes
from discreet.linear.kernels.white_tiles import whiten_into_tiles
from discreet.linear.losses import Loss
from discreet.linear.on_demand import OnDemand, sane_csr
from discreet.linear.residuals import accepted as accepted_targets
from discreet.linear.storage import Storage
from discreet.trusted.opaque import AnyRows
from discreet.trusted.plain_data import Checked, Data
from discreet.trusted.queries import Blocks, Part, View, evaluate

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
T = TypeVar("T")
Matrix = NDArray[np.float32]

MISSING = np.nextafter(np.float32(0.5), np.float32(1))
"""Stands for a missing number in encoded rows: the middle of the bounds, but for the last bit."""

NARROW = 128
"""Columns up to which sparse tables are treated as dense ones: the whitened descent is worth more than zeros that are
not stored. The number of columns is public."""

_KEPT = ("white", "working", "scores", "cells", "line")  # each is made of those before it
_CHUNK = 2**22  # numbers that are encoded, kept or transformed together: what is made on the way stays small


class RowMap(View):
    """Public coordinates of a descent, which map rows to ``width`` numbers beside a constant.

    Rows that are ``tiled`` may be mapped by a kernel (``tiling``). Of sparse rows ``entries`` maps the stored
    numbers, and ``centre`` is subtracted in norms and sums only.
    """

    constant: ClassVar[float]
    tiled: ClassVar[bool] = False
    centre: Centre | None = None
    width: Any


@dataclass(frozen=True, eq=False)
class WhiteNorms(Data, Checked):
    """The norm of each row in white coordinates, as rows of one number."""

    coordinates: RowMap


@dataclass(frozen=True, eq=False)
class Scores(Data, Checked):
    """What ``theta`` adds to the score of each record, as rows of one number; targets are mapped."""

    coordinates: RowMap
    target: View
    theta: Array


class RecordQuery(Data):
    """A sum over encoded records that compiled code clips."""

    bound: Any
    size: Any

    def total(self, store: RecordStore, grid: float) -> Integers:
        """Return the sum in grid steps."""
        raise NotImplementedError


class RecordStore:
    """Encoded records with their targets. Refusals depend on types and shapes alone.

    ``x`` is an array, a memory map or a CSR matrix whose columns are as ``columns`` says. With ``sparse`` it stays
    sparse, and so do the features of chunks and blocks.
    """

    _part = _CHUNK
    _fill: NDArray[np.float32] | None = None
    _people: Integers | None = None

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
        self.loss, self.sparse = loss, sparse
        self.columns = self.row_columns = columns
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

    def everybody(self) -> Iterator[Part]:
        """All records with finite features, whatever their target."""
        for chunk in self._kept:
            x = chunk.x
            if self.sparse and self.columns.text:
                x = csr_rows.shorten_rows(x, self.columns.text_norm)
            if self._fill is not None:
                marked = x[:, : len(self._fill)] == MISSING
                if marked.any():
                    x = x.copy()
                    x[:, : len(self._fill)][marked] = self._fill[np.nonzero(marked)[1]]
            yield chunk._replace(x=x)

    def chunks(self) -> Iterator[Part]:
        """The records that count."""
        for chunk in self.everybody():
            accepted = accepted_targets(self.loss, chunk.y)
            yield chunk if accepted.all() else chunk.at(accepted)

    def parts(self, of: Data | None) -> Iterator[Part]:
        """The records that count, or what follows from each of them: norms or scores."""
        if of is None:
            return self.chunks()
        if isinstance(of, WhiteNorms):
            return self._norms(of.coordinates)
        if isinstance(of, Scores):
            return (Part(scores[:, None], block.y, _wide(block.weights)) for block, scores in self.scores(of))
        raise PlanViolation(f"{type(of).__name__} does not follow from records.")

    def as_text(self, norm: float) -> RecordStore:
        """The same sparse records with rows of at most this norm: a block of text, whatever they were."""
        if not self.sparse:
            raise PlanViolation("Only sparse records are shortened to a block of text.")
        other = self.copy()
        other.columns = other.row_columns = Columns(0, text=self.columns.width, text_norm=norm)
        return other

    def in_curves(self, columns: Columns) -> RecordStore:
        """The same records, whose coordinates are those of rows of a basis with these columns."""
        other = self.copy()
        other.columns, other._part = columns, sys.maxsize  # whole chunks
        return other

    def copy(self) -> RecordStore:
        """The same records, which were read once; what is made of them is kept apart."""
        other = copy(self)
        other._remembered = {}
        return other

    def fill_missing(self, values: Array) -> None:
        """From now on let every number that is :data:`MISSING` be the value of its column, moved into [0, 1]."""
        if self.columns != self.row_columns:
            raise PlanViolation("Missing numbers are filled before records become rows of curves.")
        refuse_other_shapes(values=(values, (self.columns.numerics,)))
        if self.sparse or not np.isfinite(values).all():
            raise PlanViolation("Missing numbers of dense records are filled with finite values.")
        self._fill = np.clip(values, 0, 1).astype(np.float32)
        self._remembered = {}

    def working(self, coordinates: RowMap, target: View) -> Working:
        """The records in public coordinates, with mapped targets. The last ones asked for are kept."""
        key = coordinates.digest + target.digest
        return self.remember("working", key, lambda: self._map(coordinates, target))

    def scores(self, of: Scores) -> Iterator[tuple[Block, NDArray[Any]]]:
        """The records in their coordinates, and their scores, which are kept."""
        refuse_other_shapes(theta=(of.theta, (of.coordinates.width + 1,)))
        working = self.working(of.coordinates, of.target)

        def make() -> Any:
            return self.shelf.keep((working.scores_of(block, of.theta),) for block in working)

        kept = self.remember("scores", of.digest, make)
        return ((block, scores) for block, (scores,) in zip(working, kept, strict=True))

    def _norms(self, coordinates: RowMap) -> Iterator[Part]:
        curves = self.columns != self.row_columns
        for block, chunk in zip(self._white(coordinates), self.chunks(), strict=True):
            weights = block.weights if curves else chunk.weights
            yield Part(block.norms[:, None], chunk.y, _wide(weights))

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

    def _map(self, coordinates: RowMap, target: View) -> Working:
        if coordinates.constant == 0.0:
            targets = self.shelf.keep((_map_targets(part, target),) for part in self.chunks())
            return _Aimed(self._white(coordinates), targets)
        blocks = self.blocks(coordinates, target, coordinates.constant, coordinates.centre)
        return Working(blocks, coordinates.constant, self.shelf, coordinates.centre)

    def _white(self, coordinates: RowMap) -> Working:
        """The rows in white coordinates, with the target 0; in tiles where a kernel takes them."""

        def make() -> Working:
            tiled = coordinates.tiled and self._people is None and self.loss.kind == "classes"
            if tiled and takes(self.loss):
                return Working(self._tiled_blocks(coordinates), 0.0, self.shelf)
            return Working(self.blocks(coordinates, None, 0.0), 0.0, self.shelf)

        return self.remember("white", coordinates.digest, make)

    def _tiled_blocks(self, coordinates: Any) -> Iterator[Block]:
        for x, y, weights, _ in self.chunks():
            width = dense(x).shape[1]
            marginals, rotation = coordinates.tiling(width)
            for values in marginals:
                refuse_other_shapes(marginals=(values, (width,)))
            refuse_other_shapes(rotation=(rotation, (width + 1, width + 1)))
            tiles, norms = whiten_into_tiles(readable(x), marginals, rotation)
            weights = None if weights is None else weights.astype(np.float32)
            yield Block(tiles, np.zeros(len(y), np.float32), weights, norms)

    def blocks(
        self, view: Any, target: View | None, constant: float, centre: Centre | None = None
    ) -> Iterator[Block]:
        """The records in public coordinates, for one pass; the target is 0 if there is no view of it."""
        step = max(1, self._part // max(1, self.columns.width))
        for part in self.chunks():
            if self.sparse:
                z = _map_entries(view, part.x)
            else:
                firsts = range(0, max(len(part.x), 1), step)
                parts = [evaluate(view, part.at(slice(one, one + step)), np.float32)[0] for one in firsts]
                z = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
                refuse_other_shapes(z=(z, (len(part.x), view.width)))
            weights = None if part.weights is None else part.weights.astype(np.float32)
            norms = row_norms(z, constant) if centre is None else centred_norms(z, constant, centre)
            y = np.zeros(len(part.y), np.float32) if target is None else _map_targets(part, target)
            yield Block(z, y, weights, norms, part.people)

    def _read(self) -> Iterator[Part]:
        return map(self._admit, csr_rows.pieces(self._x) if self.sparse else self._parts())

    def _admit(self, rows: Any) -> Part:
        x: Any = self._x[rows]
        y = np.asarray(self._y[rows], np.float64)
        weights = None if self._weights is None else np.asarray(self._weights[rows], np.float64)
        if self.sparse:
            good = csr_rows.finite_rows(x)
            x = x if good.all() else x[good]
            x = csr_rows.admit_rows(x, self.columns.text_norm if self.columns.text else None)
        else:
            x = x.toarray() if issparse(x) else np.asarray(x)
            made = isinstance(self._x, OnDemand) and x.flags.owndata  # for this chunk: nobody else has it
            x, good = self.columns.sift(x, in_place=made)
        if weights is not None and not (known := np.isfinite(weights)).all():
            x, good = x[known[good]], good & known
        people = None if self._people is None else self._people[rows][good]
        return Part(x, y[good], _bound_weights(weights, good), people)

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


class Block(NamedTuple):
    """Some records in the coordinates of the descent, with bounds of the norms of (constant, z).

    Sparse rows z may have a centre, which is taken off in norms and sums only. Dense ones may be in tiles
    (:mod:`~discreet.linear.kernels.row_tiles`). ``people`` is the number of each
    record's person, all of whose records are in this block, next to one another.
    """

    z: Any
    y: NDArray[Any]
    weights: NDArray[Any] | None
    norms: Array
    people: Integers | None = None

    @property
    def tiled(self) -> bool:
        """Whether z is in tiles."""
        return len(self.z.shape) == 3


class Working:
    """The records in the coordinates of the descent: iterate over it for :class:`Block` after block."""

    def __init__(
        self, blocks: Iterable[Block], constant: float, shelf: BlockCache, centre: Centre | None = None
    ) -> None:
        self.constant, self.shelf, self.centre = constant, shelf, centre
        self._kept = shelf.keep(blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._kept)

    def scores_of(self, block: Block, theta: Array) -> NDArray[Any]:
        """constant * theta[0] + z @ theta[1:] of each record, z less its centre if it has one."""
        if block.tiled:
            return tile_scores(block.z, len(block.y), theta[1:], 0.0)
        if self.centre is None:
            return np.asarray(self.constant * theta[0] + times(block.z, theta[1:]), np.float64)
        offset = self.constant * theta[0] - self.centre.values @ theta[1:]
        return np.asarray(offset + block.z @ theta[1:], np.float64)


class _Aimed(Working):
    """Rows that are kept, beside their targets."""

    def __init__(self, rows: Working, targets: CachedBlocks[tuple[Matrix]]) -> None:
        self.constant, self.shelf, self.centre = rows.constant, rows.shelf, rows.centre
        self._rows, self._targets = rows, targets

    def __iter__(self) -> Iterator[Block]:
        for block, (y,) in zip(self._rows, self._targets, strict=True):
            yield block._replace(y=y)


def _map_entries(coordinates: Any, x: csr_array) -> csr_array:
    """Sparse rows in public coordinates, with the same entries."""
    if not isinstance(coordinates, RowMap) or coordinates.width != x.shape[1]:
        raise PlanViolation("The coordinates are for other columns than the sparse records have.")
    if not hasattr(coordinates, "entries"):
        return dense(x)
    (data,) = evaluate(coordinates.entries, Part(x.data, x.indices), np.float32)
    if data.shape != x.data.shape:
        raise PlanViolation("The coordinates of sparse rows have other entries.")
    return csr_array((data, x.indices, x.indptr), shape=x.shape)


def _map_targets(part: Part, target: View) -> Matrix:
    """The targets of a descent, in the type of its rows."""
    (y,) = evaluate(target, part, np.float64)
    if y.shape != part.y.shape:
        raise PlanViolation("A target is one number.")
    with np.errstate(over="ignore"):
        return np.asarray(y.astype(np.float32))


def _wide(weights: NDArray[Any] | None) -> Array | None:
    return None if weights is None else weights.astype(np.float64)


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


class Records(AnyRows):
    """Encoded records with their targets: the columns are public, the rows are not.

    Made of what a :class:`RecordStore` takes.
    """

    __slots__ = ("_store",)

    _answers: ClassVar[tuple[type, ...]] = (Blocks, RecordQuery)

    def __init__(self, *known: Any, **options: Any) -> None:
        self._store = RecordStore(*known, **options)

    @classmethod
    def of(
        cls,
        loss: Loss,
        x: Any,
        y: Any,
        columns: Columns,
        weights: Any = None,
        people: People | None = None,
        shelf: BlockCache | None = None,
        whole_rows: bool = False,
    ) -> Records:
        """Records that stay sparse where they are wide, unless queries about ``whole_rows`` will be asked."""
        wide = issparse(x) and columns.width > NARROW and not columns.groups
        return cls(loss, x, y, columns, weights, people, shelf, wide and people is None and not whole_rows)

    @property
    def columns(self) -> Columns:
        """The kinds of the columns."""
        return self._store.columns

    @property
    def loss(self) -> Loss:
        """The loss that says which targets count."""
        return self._store.loss

    @property
    def sparse(self) -> bool:
        """Whether rows stay sparse."""
        return self._store.sparse

    def as_text(self, norm: float) -> Records:
        """The same sparse records with rows of at most this norm: a block of text, whatever they were."""
        return self._with(self._store.as_text(norm))

    def in_curves(self, basis: Any) -> Records:
        """The same records as rows of a basis."""
        if basis.inputs != self.columns:
            raise PlanViolation("The basis is for other columns than the records have.")
        return self._with(self._store.in_curves(basis.columns))

    def fill_missing(self, values: Array) -> None:
        """From now on let every missing number be the value of its column, which is public."""
        self._store.fill_missing(values)

    def filled(self, values: Array) -> Records:
        """The same records with every missing number replaced by the value of its column."""
        found = self._with(self._store.copy())
        found.fill_missing(values)
        return found

    def _with(self, store: RecordStore) -> Records:
        found: Records = object.__new__(Records)
        found._store = store
        return found

    def _row_count(self) -> int:
        return len(self._store)

    def _sum(self, query: Any, grid: float) -> Integers:
        return np.asarray(query.total(self._store, grid))

    def __repr__(self) -> str:
        return f"Records(columns={self.columns.width})"
