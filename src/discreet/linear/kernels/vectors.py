"""Vector instructions by hand: scores of several rows at once, and their sums in whole steps of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils

DOT_ROWS, SUM_ROWS = 8, 4
"""Rows that :func:`dot_rows` takes, and of which :func:`add_steps` takes a multiple."""

VECTOR_BYTES, LINE_BYTES = 32, 64
_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class MatrixView:
    """A matrix from some row on, as vectors: where it lies, and how to read and write it.

    The loops get whole matrices and row numbers, because views would be counted, at the cost of the arithmetic.
    """

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any, first: Any, wide: int) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder = builder
        self.real = context.get_value_type(kind.dtype)
        self.size = kind.dtype.bitwidth // 8
        self.lanes = wide // self.size
        self.vector = ir.VectorType(self.real, self.lanes)
        self.columns = cgutils.unpack_tuple(builder, array.shape)[1]
        self.pitch = builder.mul(self.columns, _I64(self.size))
        self.start = builder.add(builder.ptrtoint(array.data, _I64), builder.mul(first, self.pitch))

    def up_to(self, vectors: int) -> Any:
        """The number of columns, rounded down to a multiple of so many vectors."""
        width = _I64(vectors * self.lanes)
        return self.builder.mul(self.builder.sdiv(self.columns, width), width)

    def beyond_the_last(self) -> Any:
        """The number of columns that do not fill a vector."""
        return self.builder.srem(self.columns, _I64(self.lanes))

    @contextmanager
    def each(self, first: Any, last: Any, vectors: int) -> Iterator[Any]:
        """A loop over columns from ``first`` to ``last``, so many vectors at a time."""
        step = _I64(vectors * self.lanes)
        with cgutils.for_range_slice(self.builder, first, last, step) as (column, _):
            yield column

    def number(self, first: Any, index: int) -> Any:
        """The address of a number in the first row."""
        return self.beside(self.start, self.builder.add(first, _I64(index)))

    def beside(self, start: Any, column: Any) -> Any:
        """The address of a number, so many columns after another."""
        return self.builder.add(start, self.builder.mul(column, _I64(self.size)))

    def _load(self, address: Any, kind: Any) -> Any:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), typ=kind)
        loaded.align = self.size
        return loaded

    def vector_at(self, address: Any) -> Any:
        return self._load(address, self.vector)

    def number_at(self, address: Any) -> Any:
        return self._load(address, self.real)

    def store(self, value: Any, address: Any) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer).align = self.size

    def partial_vector_at(self, address: Any, count: Any) -> Any:
        """The first ``count`` numbers, then zeros; nothing beyond them is read."""
        indices = ir.Constant(ir.VectorType(_I64, self.lanes), list(range(self.lanes)))
        mask = self.builder.icmp_signed("<", indices, self.spread(count))
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        kinds = [pointer.type, _I32, mask.type, self.vector]
        load = self._function("llvm.masked.load", ".p0", kinds)
        return self.builder.call(load, [pointer, _I32(self.size), mask, self.zeros])

    @property
    def zeros(self) -> Any:
        return ir.Constant(self.vector, [ir.Constant(self.real, 0.0)] * self.lanes)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """x * y + z with one rounding."""
        return self.builder.call(self._function("llvm.fma", "", [self.vector] * 3), [x, y, z])

    def spread(self, number: Any) -> Any:
        """A vector of equal numbers."""
        empty = ir.Constant(ir.VectorType(number.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(empty, number, _I32(0))
        return self.builder.shuffle_vector(first, empty, self._order([0] * self.lanes))

    def half(self, vector: Any, which: int) -> Any:
        """The first or the second half of a vector."""
        count = self.lanes // 2
        order = ir.Constant(ir.VectorType(_I32, count), [which * count + k for k in range(count)])
        return self.builder.shuffle_vector(vector, vector, order)

    def totals(self, vectors: list[Any]) -> list[Any]:
        """The sum of each vector, halves first, side by side in as few vectors as hold them.

        The order of the additions is written out, because a compiler might vary it.
        """
        half = self.lanes // 2
        while half:
            vectors = [self._fold(u, v, half) for u, v in zip(vectors[::2], vectors[1::2], strict=True)]
            half //= 2
        return vectors

    def _fold(self, u: Any, v: Any, half: int) -> Any:
        """Both vectors consist of runs, ``2 * half`` long: the first half of each run plus its second half."""
        runs = range(0, 2 * self.lanes, 2 * half)
        first, second = (
            self.builder.shuffle_vector(
                u, v, self._order([run + begin + k for run in runs for k in range(half)])
            )
            for begin in (0, half)
        )
        return self.builder.fadd(first, second)

    def _order(self, indices: list[int]) -> Any:
        return ir.Constant(ir.VectorType(_I32, self.lanes), indices)

    def _function(self, name: str, ending: str, kinds: list[Any]) -> Any:
        full = f"{name}.v{self.lanes}f{8 * self.size}{ending}"
        kind = ir.FunctionType(self.vector, kinds)
        return cgutils.get_or_insert_function(self.builder.module, kind, full)


def _dot_rows(
    typing: Any, Z: Any, row: Any, weights: Any, output: Any, offset: Any, out: Any, index: Any
) -> Any:
    """``out[output, index + k] = Z[row + k] @ weights[output] + offset`` for DOT_ROWS rows; weights are padded.

    One row is read after the other: memory is fastest when it is read in order. A row's vectors take turns with four
    sums, which stand side by side in two vectors of twice the size; the last few, and the one that is not full, are
    the first sum's.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = MatrixView(context, builder, kinds[0], arguments[0], arguments[1], VECTOR_BYTES)
        pairs = MatrixView(context, builder, kinds[0], arguments[0], arguments[1], LINE_BYTES)
        factors = MatrixView(context, builder, kinds[2], arguments[2], arguments[3], VECTOR_BYTES)
        results = MatrixView(context, builder, kinds[5], arguments[5], arguments[3], VECTOR_BYTES)
        whole, full, rest = rows.up_to(4), rows.up_to(1), rows.beyond_the_last()
        sums = [cgutils.alloca_once(builder, pairs.vector) for _ in range(2)]
        first = cgutils.alloca_once(builder, rows.vector)
        found = cgutils.alloca_once(builder, rows.vector, size=DOT_ROWS)
        with cgutils.for_range(builder, _I64(DOT_ROWS)) as loop:
            start = builder.add(rows.start, builder.mul(rows.pitch, loop.index))

            def add(wide: MatrixView, total: Any, column: Any, load: Callable[[Any], Any]) -> None:
                factor = wide.vector_at(factors.beside(factors.start, column))
                numbers = load(wide.beside(start, column))
                builder.store(wide.multiply_add(numbers, factor, builder.load(total)), total)

            for total in sums:
                builder.store(pairs.zeros, total)
            with rows.each(_I64(0), whole, 4) as column:
                for part, total in enumerate(sums):
                    add(pairs, total, builder.add(column, _I64(part * pairs.lanes)), pairs.vector_at)
            left, right = (builder.load(total) for total in sums)
            builder.store(pairs.half(left, 0), first)
            with rows.each(whole, full, 1) as column:
                add(rows, first, column, rows.vector_at)
            with builder.if_then(builder.icmp_signed(">", rest, _I64(0))):
                add(rows, first, full, lambda address: rows.partial_vector_at(address, rest))
            low = builder.fadd(builder.load(first), pairs.half(left, 1))
            high = builder.fadd(pairs.half(right, 0), pairs.half(right, 1))
            builder.store(builder.fadd(low, high), builder.gep(found, [loop.index]))
        vectors = [builder.load(builder.gep(found, [_I64(k)])) for k in range(DOT_ROWS)]
        for k, totals in enumerate(rows.totals(vectors)):
            scores = builder.fadd(totals, rows.spread(arguments[4]))
            results.store(scores, results.number(arguments[6], k * rows.lanes))
        return context.get_dummy_value()

    return types.void(Z, types.intp, weights, types.intp, Z.dtype, out, types.intp), generate


def _add_steps(
    typing: Any, Z: Any, row: Any, count: Any, factors: Any, output: Any, counts: Any, origin: Any
) -> Any:
    """``counts[output] += bits(factors[output, k] * Z[row + k] + origin)`` for ``count`` rows.

    Product and sum are rounded once, to the type of the rows, and ``bits`` reads that number as a whole one of its
    size (docs/engines.md: E13). ``counts`` is padded; additions wrap around. ``count`` is a multiple of SUM_ROWS.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = MatrixView(context, builder, kinds[0], arguments[0], arguments[1], LINE_BYTES)
        weights = MatrixView(context, builder, kinds[3], arguments[3], arguments[4], LINE_BYTES)
        results = MatrixView(context, builder, kinds[5], arguments[5], arguments[4], LINE_BYTES)
        origins, full, rest = rows.spread(arguments[6]), rows.up_to(1), rows.beyond_the_last()
        total = cgutils.alloca_once(builder, results.vector)

        def add(column: Any, load: Callable[[Any], Any]) -> None:
            address, top = results.beside(results.start, column), rows.beside(rows.start, column)
            builder.store(results.vector_at(address), total)
            with cgutils.for_range_slice(builder, _I64(0), arguments[2], _I64(SUM_ROWS)) as (first, _):
                for k in range(SUM_ROWS):
                    place = builder.add(first, _I64(k))
                    factor = rows.spread(weights.number_at(weights.number(place, 0)))
                    numbers = load(builder.add(top, builder.mul(rows.pitch, place)))
                    steps = builder.bitcast(rows.multiply_add(numbers, factor, origins), results.vector)
                    builder.store(builder.add(builder.load(total), steps), total)
            results.store(builder.load(total), address)

        with rows.each(_I64(0), full, 1) as column:
            add(column, rows.vector_at)
        with builder.if_then(builder.icmp_signed(">", rest, _I64(0))):
            add(full, lambda address: rows.partial_vector_at(address, rest))
        return context.get_dummy_value()

    kinds = (Z, types.intp, types.intp, factors, types.intp, counts, Z.dtype)
    return types.void(*kinds), generate


dot_rows: Any = intrinsic(_dot_rows)
add_steps: Any = intrinsic(_add_steps)
