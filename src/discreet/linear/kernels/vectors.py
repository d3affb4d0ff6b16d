"""Two loops over rows of a matrix as vector instructions: products with weights, and sums of whole numbers.

A step of a linear model is bound by reading the matrix, so the arithmetic has to be free. The loops that a
compiler makes of plain Python need twice the time: they guard against overlapping arrays, and their scalar
remainder of up to 31 columns is slow. Here the loops are written down as LLVM vectors, for any number of
columns, and numba compiles them with the rest.

What a row is given depends on that row alone, bit for bit: every row takes the same path, wherever it stands.
So a record that comes or goes leaves the others' contributions as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils

DOT_ROWS, SUM_ROWS = 2, 4
"""Rows that :func:`dot_rows` and :func:`add_steps` take at once."""

VECTOR_BYTES = 32
_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


def lanes(itemsize: int) -> int:
    """Numbers in a vector. The weights and the sums are padded with zeros to a multiple of it."""
    return VECTOR_BYTES // itemsize


def padded_width(columns: int, itemsize: int) -> int:
    """The number of columns, rounded up to whole vectors."""
    width = lanes(itemsize)
    return -(-columns // width) * width


class _Numbers:
    """A matrix from some row on, as vectors: where it lies, and how to read and write it.

    The loops get whole matrices and row numbers, because views would be counted, at the cost of the arithmetic.
    """

    def __init__(
        self, context: Any, builder: Any, kind: Any, value: Any, first: Any, lanes_used: int = 0
    ) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder = builder
        self.real = context.get_value_type(kind.dtype)
        self.size = kind.dtype.bitwidth // 8
        self.lanes = lanes_used or lanes(self.size)
        self.vector = ir.VectorType(self.real, self.lanes)
        self.columns = cgutils.unpack_tuple(builder, array.shape)[1]
        self.pitch = builder.mul(self.columns, _I64(self.size))
        self.start = builder.add(builder.ptrtoint(array.data, _I64), builder.mul(first, self.pitch))

    def row(self, index: int) -> Any:
        """The address of a row."""
        return self.builder.add(self.start, self.builder.mul(self.pitch, _I64(index)))

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

    def total(self, vector: Any) -> Any:
        """The sum of a vector, halves first; written out, because a compiler might vary the order."""
        half = self.lanes // 2
        while half:
            turned = self._order([(k + half) % self.lanes for k in range(self.lanes)])
            vector = self.builder.fadd(vector, self.builder.shuffle_vector(vector, vector, turned))
            half //= 2
        return self.builder.extract_element(vector, _I32(0))

    def _order(self, indices: list[int]) -> Any:
        return ir.Constant(ir.VectorType(_I32, self.lanes), indices)

    def _function(self, name: str, ending: str, kinds: list[Any]) -> Any:
        full = f"{name}.v{self.lanes}f{8 * self.size}{ending}"
        kind = ir.FunctionType(self.vector, kinds)
        return cgutils.get_or_insert_function(self.builder.module, kind, full)


def _for_each_vector(rows: _Numbers, body: Callable[[Any, Callable[[Any], Any]], None]) -> None:
    """Call ``body(column, load)`` for every vector of a row; ``load`` reads no further than the row."""
    builder = rows.builder
    count = builder.sdiv(rows.columns, _I64(rows.lanes))
    rest = builder.srem(rows.columns, _I64(rows.lanes))
    with cgutils.for_range(builder, count) as loop:
        body(builder.mul(loop.index, _I64(rows.lanes)), rows.vector_at)
    with builder.if_then(builder.icmp_signed(">", rest, _I64(0))):
        column = builder.mul(count, _I64(rows.lanes))
        body(column, lambda address: rows.partial_vector_at(address, rest))


def _dot_rows(typing: Any, Z: Any, row: Any, weights: Any, output: Any, out: Any, index: Any) -> Any:
    """``out[output, index + k] = Z[row + k] @ weights[output]`` for DOT_ROWS rows; weights are padded."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = _Numbers(context, builder, kinds[0], arguments[0], arguments[1])
        factors = _Numbers(context, builder, kinds[2], arguments[2], arguments[3])
        results = _Numbers(context, builder, kinds[4], arguments[4], arguments[3])
        starts = [rows.row(k) for k in range(DOT_ROWS)]
        sums = [cgutils.alloca_once(builder, rows.vector) for _ in starts]
        for total in sums:
            builder.store(rows.zeros, total)

        def body(column: Any, load: Callable[[Any], Any]) -> None:
            factor = factors.vector_at(factors.beside(factors.start, column))
            for start, total in zip(starts, sums, strict=True):
                numbers = load(rows.beside(start, column))
                builder.store(rows.multiply_add(numbers, factor, builder.load(total)), total)

        _for_each_vector(rows, body)
        for k, total in enumerate(sums):
            results.store(rows.total(builder.load(total)), results.number(arguments[5], k))
        return context.get_dummy_value()

    return types.void(Z, types.intp, weights, types.intp, out, types.intp), generate


def _add_steps(
    typing: Any, Z: Any, row: Any, factors: Any, output: Any, index: Any, counts: Any, origin: Any
) -> Any:
    """``counts[output] += bits(factors[output, index + k] * Z[row + k] + origin)`` for SUM_ROWS rows.

    Product and sum are rounded once, to float64, and ``bits`` reads that number as a whole one (docs/engines.md:
    E13). ``counts`` is padded; additions wrap around.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        wide = ir.VectorType(ir.DoubleType(), lanes(8))
        rows = _Numbers(context, builder, kinds[0], arguments[0], arguments[1], lanes(8))
        weights = _Numbers(context, builder, kinds[2], arguments[2], arguments[3])
        results = _Numbers(context, builder, kinds[5], arguments[5], arguments[3])
        starts = [rows.row(k) for k in range(SUM_ROWS)]
        numbers = [weights.number_at(weights.number(arguments[4], k)) for k in range(SUM_ROWS)]
        spread = [rows.spread(_widened(builder, number, ir.DoubleType())) for number in numbers]
        origins = rows.spread(arguments[6])
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, [wide] * 3), f"llvm.fma.v{lanes(8)}f64"
        )

        def body(column: Any, load: Callable[[Any], Any]) -> None:
            address = results.beside(results.start, column)
            total = results.vector_at(address)
            for start, factor in zip(starts, spread, strict=True):
                values = _widened(builder, load(rows.beside(start, column)), wide)
                sums = builder.call(fma, [values, factor, origins])
                total = builder.add(total, builder.bitcast(sums, results.vector))
            results.store(total, address)

        _for_each_vector(rows, body)
        return context.get_dummy_value()

    kinds = (Z, types.intp, factors, types.intp, types.intp, counts, types.float64)
    return types.void(*kinds), generate


def _widened(builder: Any, value: Any, kind: Any) -> Any:
    return value if value.type == kind else builder.fpext(value, kind)


dot_rows: Any = intrinsic(_dot_rows)
add_steps: Any = intrinsic(_add_steps)
