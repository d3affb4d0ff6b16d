"""Neighbouring data sets to try: ordinary ones, and those on which real implementations were found to fail.

Records are an array with one record per row, or a tuple of such arrays (features and labels, say). All pairs
are made from a few example records, which are made up or public: an audit never needs real ones.

>>> from discreet.core.randomness import RandomStream
>>> pairs = list(neighbour_pairs(np.eye(4), "add-remove", 30, RandomStream(unsafe_seed=0)))
>>> len(pairs), sorted({abs(len(pair.first) - len(pair.second)) for pair in pairs})
(30, [1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.guarantee import Neighbours

Records = Any
"""An array with one record per row, or a tuple of arrays with as many rows each."""

_SIZES = (0, 1, 2, 3, 10)  # of the part in common, beside half of the examples and all of them


@dataclass(frozen=True, eq=False)
class NeighbourPair:
    """Two data sets that differ by one record; ``kind`` says how it was made."""

    kind: str
    first: Records = field(repr=False)
    second: Records = field(repr=False)


def neighbour_pairs(
    examples: Records, neighbours: Neighbours, count: int, stream: RandomStream, hostile: bool = True
) -> Iterator[NeighbourPair]:
    """``count`` pairs, of all kinds in turn: small and large, with an ordinary or a strange record.

    ``hostile`` includes records that hold huge numbers, NaN or infinity.
    """
    rows = number_of(examples)
    if rows < 2:
        raise InvalidParameter("records", rows, "must hold at least two examples to make neighbours of.")
    sizes = cycle([*_SIZES, max(1, rows // 2), rows - 1])
    return islice((_pair(*turn, examples, neighbours, stream) for turn in _turns(sizes, hostile)), count)


def _turns(sizes: Iterator[int], hostile: bool) -> Iterator[tuple[str, bool, int]]:
    kinds = [kind for kind in STRANGE if hostile or kind not in _HOSTILE]
    while True:
        for kind in kinds:
            yield kind, False, next(sizes)
            yield kind, True, next(sizes)


def _pair(
    kind: str, copies: bool, size: int, examples: Records, neighbours: Neighbours, stream: RandomStream
) -> NeighbourPair:
    """The part in common is a random subset, or copies of one record that all pull in the same direction."""
    rows = number_of(examples)
    order = np.argsort(stream.uniform(rows))
    common = np.full(size, order[0]) if copies else order[: min(size, rows - 1)]
    rest, ordinary = take_rows(examples, common), take_rows(examples, order[-1:])
    # In a replacement the strange record meets its opposite: clipped, the two are as far apart as can be.
    base = take_rows(examples, order[:1]) if copies else ordinary
    strange = change_numbers(base, STRANGE[kind])
    other = change_numbers(base, _opposite) if neighbours == "replace-one" and kind in _DIRECTED else ordinary
    first = rest if neighbours == "add-remove" else join_records(rest, other)
    common_part = "copies of one record" if copies else "a random subset"
    return NeighbourPair(f"{kind} record beside {common_part}", first, join_records(rest, strange))


def _ordinary(values: NDArray[Any]) -> NDArray[Any]:
    return values


def _opposite(values: NDArray[Any]) -> NDArray[Any]:
    return -values


def _scale(factor: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def scale(values: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            largest = float(np.finfo(values.dtype).max) / 4
            return np.clip(values.astype(np.float64) * factor, -largest, largest).astype(values.dtype)

    return scale


def _fill(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda values: np.full_like(values, value)


def _spoilt(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def spoil(values: NDArray[Any]) -> NDArray[Any]:
        wrong = values.copy()
        wrong.reshape(-1)[:1] = value
        return wrong

    return spoil


STRANGE: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "an ordinary": _ordinary,
    "a long": _scale(1e3),
    "an opposite": _opposite,
    "a huge": _scale(1e30),
    "a hugest": _scale(1e300),
    "an opposite, long": _scale(-1e3),
    "a tiny": _scale(1e-30),
    "a zero": _fill(0.0),
    "a NaN-holding": _spoilt(np.nan),
    "an infinity-holding": _spoilt(np.inf),
    "an all-NaN": _fill(np.nan),
}
_HOSTILE = ("a huge", "a hugest", "a NaN-holding", "an infinity-holding", "an all-NaN")
_DIRECTED = ("an ordinary", "a long", "a huge", "a hugest")


def number_of(records: Records) -> int:
    """Number of records."""
    arrays = records if isinstance(records, tuple) else (records,)
    if not arrays or not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        raise InvalidParameter("records", type(records).__name__, "must be an array or a tuple of arrays.")
    if len({len(array) for array in arrays}) > 1:
        raise InvalidParameter("records", [len(array) for array in arrays], "must have equally many rows.")
    return len(arrays[0])


def take_rows(records: Records, rows: NDArray[Any]) -> Records:
    """Some of the records."""
    return tuple(array[rows] for array in records) if isinstance(records, tuple) else records[rows]


def join_records(first: Records, second: Records) -> Records:
    """The records of both."""
    if isinstance(first, tuple):
        return tuple(np.concatenate(both) for both in zip(first, second, strict=True))
    return np.concatenate((first, second))


def change_numbers(records: Records, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Records:
    """The records with ``change`` made to their floating-point numbers; labels stay."""
    if isinstance(records, tuple):
        return tuple(change_numbers(array, change) for array in records)
    return change(records) if records.dtype.kind == "f" else records
