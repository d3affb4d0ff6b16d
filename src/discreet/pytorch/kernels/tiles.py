"""Inner products of four rows with four others, in an order of addition that is known.

The bound on a sum's rounding error counts the additions that one number goes through. A compiler that may reorder
them leaves only the worst case, all of them one after the other; so this loop is written in LLVM's language, as that
of :mod:`discreet.pytorch.kernels.panels`. A sum goes through one addition for every ``LANES`` numbers, and four more
when the lanes are added up. The sixteen sums stay in registers until the end of a chunk.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""Numbers in a register."""

_FLOAT, _DOUBLE, _INT, _INT32 = ir.FloatType(), ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _add_tile(
    context: Any, x: Any, next_x: Any, y: Any, next_y: Any, vectors: Any, out: Any, next_out: Any
) -> Any:
    return types.void(*[types.intp] * 7), lambda _, builder, __, args: _tile(builder, args)


add_tile: Any = intrinsic(_add_tile)
"""Add the inner products of ``x[p]`` and ``y[q]`` to ``out[p, q]``, for p and q below four.

All are addresses, with the bytes from one row to the next; the rows of ``x`` and ``y`` are float32, at least one
of the ``vectors`` of ``LANES`` numbers long, and those of ``out`` float64.
"""


def _tile(b: Any, args: Any) -> Any:
    x, next_x, y, next_y, vectors, out, next_out = args
    before, loop, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
    lefts, rights = (
        [b.add(at, b.mul(step, _INT(p))) for p in range(4)] for at, step in ((x, next_x), (y, next_y))
    )
    b.branch(loop)

    b.position_at_end(loop)
    t = b.phi(_INT)
    sums = [b.phi(_VECTOR) for _ in range(16)]
    offset = b.mul(t, _INT(4 * LANES))
    left, right = ([_load(b, b.add(at, offset), _VECTOR, 4) for at in rows] for rows in (lefts, rights))
    add = _fused_multiply_add(b.module)
    found = [b.call(add, [left[k // 4], right[k % 4], sums[k]]) for k in range(16)]
    following = b.add(t, _INT(1))
    zeros = [ir.Constant(_VECTOR, [0.0] * LANES)] * 16
    for phi, start, value in ((t, _INT(0), following), *zip(sums, zeros, found, strict=True)):
        phi.add_incoming(start, before)
        phi.add_incoming(value, loop)
    b.cbranch(b.icmp_signed("<", following, vectors), loop, after)

    b.position_at_end(after)
    wide = ir.VectorType(_DOUBLE, 4)
    for p in range(4):
        place = b.inttoptr(b.add(out, b.mul(next_out, _INT(p))), wide.as_pointer())
        known = b.load(place)
        known.align = 8
        b.store(b.fadd(known, b.fpext(_add_lanes(b, found[4 * p : 4 * p + 4]), wide)), place).align = 8
    return ir.Constant(ir.LiteralStructType([]).as_pointer(), None)


def _add_lanes(b: Any, four: list[Any]) -> Any:
    """The sums over the lanes of four vectors, as one vector of four, by as many halvings as there are."""
    first, second = _add_neighbours(b, *four[:2]), _add_neighbours(b, *four[2:])
    found, lanes = _add_neighbours(b, first, second), LANES
    while lanes > 4:
        lanes //= 2
        found = b.fadd(
            _choose(b, found, found, range(lanes)), _choose(b, found, found, range(lanes, 2 * lanes))
        )
    return found


def _add_neighbours(b: Any, one: Any, other: Any) -> Any:
    """In each group of four lanes: two sums of two neighbours of the one, then two of the other."""
    even = [group + place for group in range(0, LANES, 4) for place in (0, 2, LANES, LANES + 2)]
    return b.fadd(_choose(b, one, other, even), _choose(b, one, other, [place + 1 for place in even]))


def _choose(b: Any, one: Any, other: Any, places: Any) -> Any:
    chosen = list(places)
    return b.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INT32, len(chosen)), chosen))


def _load(b: Any, address: Any, kind: Any, align: int) -> Any:
    found = b.load(b.inttoptr(address, kind.as_pointer()))
    found.align = align
    return found


def _fused_multiply_add(module: Any) -> Any:
    name = f"llvm.fma.v{LANES}f32"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name)
