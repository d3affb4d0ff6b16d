"""Norms and weighted sums of all linear layers of a network at once, for one row of each example.

In a small network a call takes longer than its arithmetic, so the layers are handed over together: a table says where
the rows of each are in memory. Whoever makes the table keeps what it points to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from discreet.core.clipping import flat_factors
from discreet.pytorch.kernels.norms import REACH, in_threads, squares_of_row

Table = NDArray[np.int64]
"""A row for each layer: its :data:`FIELDS`, where a weight or bias that is not trained has the block -1."""

FIELDS = ("input", "gradient", "into", "out", "weight block", "bias block", "weight sum", "bias sum")
"""Addresses of contiguous float32 matrices with a row for each example, and their widths; the blocks that weight and
bias belong to; and the addresses of their float32 sums, 0 for those that somebody else adds up."""


def norms_of_layers(table: Table, examples: int, blocks: int) -> NDArray[np.float64]:
    """Squared norms of the gradients, with a row for each example and a column for each block."""
    out = np.zeros((examples, blocks))
    numbers = examples * int(table[:, 2:4].sum())
    in_threads(lambda part: _norms(table, part.start, part.stop, out), examples, numbers)
    return out


def add_sums_of_layers(
    table: Table, weights: NDArray[np.float64], least: float, most: float
) -> NDArray[np.float32]:
    """Add the weighted sums of all layers that have an address for them; returns the weights, a row for each block.

    They are float32: those below ``least`` are 0, and none is above ``most``.
    """
    narrow = np.zeros((weights.shape[1], weights.shape[0]), np.float32)
    _add_sums(table, weights, least, most, narrow)
    return narrow


def add_clipped_sums_of_layers(
    table: Table, examples: int, clip_norm: float, relative: float, least: float, most: float
) -> None:
    """All in one: norms over all layers, turned into upper bounds by ``relative``, factors, and weighted sums."""
    _add_clipped(table, examples, clip_norm, relative, least, most)


def _pointer(context: Any, address: Any) -> Any:
    kind: Any = types.CPointer(types.float32)  # type: ignore[no-untyped-call]

    def cast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.intp), cast


_floats_at: Any = intrinsic(_pointer)


@njit(cache=True, nogil=True, error_model="numpy")
def _norms(table: Table, start: int, stop: int, out: NDArray[Any]) -> None:
    for place in range(table.shape[0]):
        a = carray(_floats_at(table[place, 0]), (stop, table[place, 2]))
        g = carray(_floats_at(table[place, 1]), (stop, table[place, 3]))
        of_weight, of_bias = table[place, 4], table[place, 5]
        for i in range(start, stop):
            of_grad = squares_of_row(g[i])
            if of_bias >= 0:
                out[i, of_bias] += of_grad
            if of_weight >= 0:
                of_input = squares_of_row(a[i])
                beyond = of_input > REACH or of_grad > REACH
                out[i, of_weight] += np.inf if beyond else of_input * of_grad


@njit(cache=True, nogil=True, error_model="numpy")
def _add_sums(table: Table, weights: NDArray[Any], least: float, most: float, narrow: NDArray[Any]) -> None:
    for i in range(weights.shape[0]):
        for block in range(weights.shape[1]):
            if weights[i, block] >= least:
                narrow[block, i] = min(weights[i, block], most)
    examples = weights.shape[0]
    for place in range(table.shape[0]):
        into, out = table[place, 2], table[place, 3]
        g = carray(_floats_at(table[place, 1]), (examples, out))
        if table[place, 6] != 0:
            a = carray(_floats_at(table[place, 0]), (examples, into))
            total = carray(_floats_at(table[place, 6]), (out, into))
            for i in range(examples):
                weight = narrow[table[place, 4], i]
                if weight != 0:  # whoever has none may hold anything
                    _add_product(weight, g[i], a[i], total)
        if table[place, 7] != 0:
            row = carray(_floats_at(table[place, 7]), (out,))
            for i in range(examples):
                weight = narrow[table[place, 5], i]
                if weight != 0:
                    for o in range(out):
                        row[o] += weight * g[i, o]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_clipped(
    table: Table, examples: int, clip_norm: float, relative: float, least: float, most: float
) -> None:
    squares = np.zeros((examples, 1))
    _norms(table, 0, examples, squares)
    weights = flat_factors(np.sqrt(squares[:, 0]), clip_norm, relative).reshape(examples, 1)
    _add_sums(table, weights, least, most, np.zeros((1, examples), np.float32))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _add_product(weight: Any, g: NDArray[Any], a: NDArray[Any], total: NDArray[Any]) -> None:
    for o in range(len(g)):
        weighted = weight * g[o]
        for j in range(len(a)):
            total[o, j] += weighted * a[j]
