"""The records of a fit: what an encoder promises of their columns (:class:`Columns`), enforced by :class:`Records`.

>>> columns = Columns(numerics=2, groups=(3,))
>>> columns.width, round(columns.reach**2, 9)
(5, 3.0)
>>> columns.admit(np.array([[0.5, 7.0, 0, 1, 0], [np.nan, 0, 1, 0, 0]], np.float32)).tolist()
[[0.5, 1.0, 0.0, 1.0, 0.0]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.clipping import clip_rows
from discreet.errors import InvalidParameter, real, whole
from discreet.linear.glm import sparse_rows
from discreet.linear.glm.people import People
from discreet.linear.inputs import OnDemand, sane_csr
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.rowwise import are_bounded, bound_rows
from discreet.linear.kernels.tiles import Tiles
from discreet.linear.losses import Loss
from discreet.linear.storage import Kept, Shelf, Storage

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """The kinds of an encoded table's columns, from left to right.

    ``numerics`` columns in [0, 1]; then one-hot groups of these sizes (a group of one column is a flag); then a
    block of ``text`` columns whose rows have norm at most ``text_norm``.
    """

    numerics: int
    groups: tuple[int, ...] = ()
    text: int = 0
    text_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "numerics", whole("numerics", self.numerics, at_least=0))
        sizes = tuple(whole("groups", size, at_least=1) for size in self.groups)
        object.__setattr__(self, "groups", sizes)
        object.__setattr__(self, "text", whole("text", self.text, at_least=0))
        object.__setattr__(self, "text_norm", real("text_norm", self.text_norm, at_least=1e-6, at_most=1e6))

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.numerics + sum(self.groups) + self.text

    @property
    def categories(self) -> slice:
        """Where the one-hot columns are."""
        return slice(self.numerics, self.numerics + sum(self.groups))

    @property
    def words(self) -> slice:
        """Where the text columns are."""
        return slice(self.width - self.text, self.width)

    @property
    def text_square(self) -> float:
        """The bound on the squared norm of the text block; 0 if there is none."""
        return self.text_norm**2 if self.text else 0.0

    @property
    def reach(self) -> float:
        """The bound on the norm of a row."""
        return math.sqrt(self.numerics + len(self.groups) + self.text_square)

    def public_centre(self) -> Array:
        """The middle of every column before anything is known."""
        centre = np.zeros(self.width)
        centre[: self.numerics] = 0.5
        centre[self.categories] = 1.0 / self._choices()
        return centre

    def public_variance(self) -> Array:
        """The variance of every column if values were spread evenly."""
        variance = np.full(self.width, 1.0 / 12)
        choices = self._choices()
        variance[self.categories] = (1 - 1 / choices) / choices
        variance[self.words] = self.text_square / max(self.text, 1)
        return variance

    def public_limits(self) -> tuple[Array, Array]:
        """The least and the largest value of every column."""
        lower, upper = np.zeros(self.width), np.ones(self.width)
        lower[self.words], upper[self.words] = -self.text_norm, self.text_norm
        return lower, upper

    def admit(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The rows moved into what is promised, as float32; rows with NaN or infinity are left out.

        Guarantee: numerics are in [0, 1]; the one-hot block has norm at most sqrt(number of groups) and entries
        in [0, 1]; the text block has norm at most ``text_norm``. Every row depends on its own input only.
        """
        return self.sift(rows)[0]

    def sift(
        self, rows: NDArray[Any], in_place: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What :meth:`admit` gives, and which of the rows that are: a copy, unless it may be made in place."""
        if rows.dtype not in (np.float32, np.float64):
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32)
        in_place = in_place and rows.dtype == np.float32 and rows.flags.c_contiguous
        kept, finite = rows if in_place else np.empty(rows.shape, np.float32), np.ones(len(rows), np.bool_)
        good = in_place and are_bounded(rows, self.width - self.text)
        if not good and not bound_rows(readable(rows), self.width - self.text, kept, finite):
            kept = kept[finite]
        excess = kept[:, self.categories].sum(axis=1, dtype=np.float64) > len(self.groups)
        if excess.any():  # only those: a clip could change the last bit of a row that is just within
            block = kept[excess, self.categories]
            kept[excess, self.categories] = clip_rows(block, math.sqrt(max(len(self.groups), 1)))
        if self.text:
            kept[:, self.words] = clip_rows(np.ascontiguousarray(kept[:, self.words]), self.text_norm)
        return kept, finite

    def _choices(self) -> Array:
        """For each one-hot column, how many values its group can take."""
        return np.repeat([float(max(size, 2)) for size in self.groups], self.groups)


# ---- the records of a fit, in chunks: admitted once, transformed when needed ----
#
# :class:`Records` reads an encoded table (array, memory map or CSR) chunk by chunk and keeps what its columns
# promise. :class:`Working` is the same records in the coordinates of the descent. Both are made once and kept on a
# :class:`~discreet.linear.storage.Shelf`, in memory or in a scratch file, so the size of the table is not limited.
#
# A record counts as nothing if a feature or its weight is not finite, or if its target is not one the loss accepts.
# Where rows belong to people, they are read person by person, wherever they are in the table.
Matrix = NDArray[np.float32]
Codes = NDArray[np.int64]

_CHUNK = 2**22  # numbers that are encoded, kept or transformed together: what is made on the way stays small


class Chunk(NamedTuple):
    """Some records: admitted features, targets, and weights (None if all are 1)."""

    x: Any
    y: Array
    weights: Array | None


class _Owned(NamedTuple):
    """A chunk, and whose each record is."""

    x: Any
    y: Array
    weights: Array | None
    people: Codes | None


class Records:
    """Encoded records with their targets. Refusals depend on types and shapes alone.

    With ``sparse``, the features of chunks and blocks are CSR (:mod:`~discreet.linear.glm.sparse_rows`).
    """

    part = _CHUNK
    _transform: Callable[[Any], Any] | None = None
    _rows: Working

    def __init__(
        self,
        loss: Loss,
        x: Any,
        y: Any,
        columns: Columns,
        weights: Any = None,
        people: People | None = None,
        shelf: Shelf | None = None,
        sparse: bool = False,
    ) -> None:
        self.loss, self.columns, self.sparse = loss, columns, sparse
        self.shelf = Storage().shelf() if shelf is None else shelf
        # What has a shape and gives rows by slice is read in chunks: arrays, memory maps, tables encoded on demand.
        self._x = x.tocsr() if issparse(x) else x if hasattr(x, "shape") else np.asarray(x)
        if len(self._x.shape) != 2 or self._x.shape[1] != columns.width:
            raise InvalidParameter(
                "X.shape", self._x.shape, f"must have {columns.width} columns as declared."
            )
        self._x = sane_csr(self._x) if sparse else self._x
        self._y = _one_each("y", y, self._x.shape[0])
        self._weights = None if weights is None else _one_each("weights", weights, self._x.shape[0])
        self._order = None if people is None else people.order()
        self._people = None if people is None else people.codes
        self._kept = self.shelf.keep(self._read())

    def __len__(self) -> int:
        return int(self._x.shape[0])

    def everybody(self) -> Iterator[Chunk]:
        """All records with finite features, whatever their target."""
        return (chunk for chunk, _ in self._all_chunks())

    def chunks(self) -> Iterator[Chunk]:
        """The records that count."""
        return (chunk for chunk, _ in self.owned_chunks())

    def owned_chunks(self) -> Iterator[tuple[Chunk, Codes | None]]:
        """The records that count, and the number of each one's person, if there are people.

        Those of a person are all in one chunk, next to one another.
        """
        for chunk, people in self._all_chunks():
            accepted = self.loss.accepts(chunk.y)
            if accepted.all():
                yield chunk, people
            else:
                yield _part(chunk, accepted), None if people is None else people[accepted]

    def as_text(self, norm: float) -> Records:
        """The same sparse records with rows of at most this norm: a block of text, whatever they were."""
        other = copy(self)
        other.columns = Columns(0, text=self.columns.width, text_norm=norm)
        return other

    def _all_chunks(self) -> Iterator[tuple[Chunk, Codes | None]]:
        for x, y, weights, people in self._kept:
            if self.sparse and self.columns.text:
                x = sparse_rows.shorten_rows(x, self.columns.text_norm)
            yield Chunk(x, y, weights), people

    def keep(
        self, transform: Callable[[Any], Any], tile: Callable[[Any], tuple[Tiles, Array]] | None = None
    ) -> None:
        """Keep the rows in other coordinates, with the constant 0, for :meth:`norms` and :meth:`working`.

        ``tile`` gives the same in tiles, and their norms; records of people are kept as rows.
        """
        tiled = tile is not None and self._people is None
        blocks = self._tiled_blocks(tile) if tiled else self.blocks(transform, np.zeros_like, 0.0)
        self._rows = Working(blocks, 0.0, self.shelf)
        self._transform = transform

    def _tiled_blocks(self, tile: Any) -> Iterator[Block]:
        for x, y, weights in self.chunks():
            tiles, norms = tile(x)
            weights = None if weights is None else weights.astype(np.float32)
            yield Block(tiles, np.zeros(len(y), np.float32), weights, norms)

    def norms(self) -> Iterator[tuple[Array, Array | None]]:
        """Those of the rows that :meth:`keep` has kept, with their weights."""
        pairs = zip(self._rows, self.chunks(), strict=True)
        return ((block.norms, chunk.weights) for block, chunk in pairs)

    def working(
        self,
        transform: Callable[[Any], Any],
        target: Callable[[Array], Array],
        constant: float,
        centre: Centre | None = None,
    ) -> Working:
        """The records in other coordinates, with other targets, kept for many passes."""
        if transform == self._transform and constant == 0.0 and centre is None:
            return _Aimed(self._rows, self.shelf.keep((_targets_of(y, target),) for _, y, _ in self.chunks()))
        return Working(self.blocks(transform, target, constant, centre), constant, self.shelf, centre)

    def blocks(
        self,
        transform: Callable[[Any], Any],
        target: Callable[[Array], Array],
        constant: float,
        centre: Centre | None = None,
    ) -> Iterator[Block]:
        """The same for one pass."""
        step = max(1, self.part // max(1, self.columns.width))
        for (x, y, weights), people in self.owned_chunks():
            if self.sparse:
                z: Any = transform(x)
            else:
                parts = [transform(x[rows]) for rows in _pieces(slice(0, len(x)), len(x), step)]
                z = np.ascontiguousarray(_join(parts), np.float32)
            weights = None if weights is None else weights.astype(np.float32)
            norms = row_norms(z, constant) if centre is None else centred_norms(z, constant, centre)
            yield Block(z, _targets_of(y, target), weights, norms, people)

    def _read(self) -> Iterator[_Owned]:
        return map(self._admit, sparse_rows.pieces(self._x) if self.sparse else self._parts())

    def _admit(self, rows: Any) -> _Owned:
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
        return _Owned(x, y[good], _bound_weights(weights, good), people)

    def _parts(self) -> Iterator[Any]:
        """Which rows are read at once: slices of the table, or of the order of its people, none of them in two."""
        step = max(1, _CHUNK // max(1, self.columns.width))
        if self._order is None or self._people is None:
            yield from (slice(start, start + step) for start in range(0, self._x.shape[0], step))
            return
        owners = self._people[self._order]
        start = 0
        while start < len(owners):
            last = owners[min(start + step, len(owners)) - 1]
            stop = int(np.searchsorted(owners, last, side="right"))
            yield self._order[start:stop]
            start = stop


class Block(NamedTuple):
    """Some records in the coordinates of the descent, with bounds of the norms of (constant, z).

    Sparse rows z may have a centre, which is taken off in norms and sums only. Dense ones may be in tiles
    (:mod:`~discreet.linear.kernels.tiles`). ``people`` is the number of each
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


class Blocks(Protocol):
    """Blocks of records that can be gone through again and again."""

    @property
    def constant(self) -> float:
        """The number that stands before every row."""

    @property
    def centre(self) -> Centre | None:
        """What is to be taken off every row of sparse blocks."""

    def __iter__(self) -> Iterator[Block]: ...


class Working:
    """The records in the coordinates of the descent: iterate over it for :class:`Block` after block."""

    def __init__(
        self, blocks: Iterable[Block], constant: float, shelf: Shelf, centre: Centre | None = None
    ) -> None:
        self.constant, self.shelf, self.centre = constant, shelf, centre
        self._kept = shelf.keep(blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._kept)


class _Aimed(Working):
    """Rows that are kept, beside their targets."""

    def __init__(self, rows: Working, targets: Kept[tuple[Matrix]]) -> None:
        self.constant, self.shelf, self.centre = rows.constant, rows.shelf, rows.centre
        self._rows, self._targets = rows, targets

    def __iter__(self) -> Iterator[Block]:
        for block, (y,) in zip(self._rows, self._targets, strict=True):
            yield block._replace(y=y)


def _targets_of(y: Array, target: Callable[[Array], Array]) -> Matrix:
    """The targets of a descent, in the type of its rows."""
    with np.errstate(over="ignore"):
        return target(y).astype(np.float32)


def _pieces(rows: Any, count: int, step: int) -> Iterator[Any]:
    """Rows, a slice or numbers of rows, in parts of ``step``; one part if there are none."""
    if not isinstance(rows, slice):
        yield from (rows[start : start + step] for start in range(0, max(len(rows), 1), step))
        return
    first, last, _ = rows.indices(count)
    yield from (slice(start, min(start + step, last)) for start in range(first, max(last, first + 1), step))


def _join(parts: Any) -> Any:
    """Arrays one after the other, or None if there are none."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 or parts[0] is None else np.concatenate(parts)


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
    weights = None if chunk.weights is None else chunk.weights[which]
    return Chunk(chunk.x[which], chunk.y[which], weights)
