"""A product of a gathered matrix with a panel of columns, at the speed of a good matrix product.

``out[r, :] += sum over t of x[rows[r] + steps[t]] * panel[t, :]``: the left matrix is never formed, two tables
of offsets say where its entries are. That is what a convolution's gradient, or the step of a recurrent
layer, looks like. A few rows times one to four vectors of eight columns are kept in registers; numba does not
keep arrays there, so this one loop is written in LLVM's language.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LANES = 8
_FLOAT, _INT, _INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, _LANES)


def panel_product(vectors: int, rows: int) -> Any:
    """A function of addresses: x, row offsets, step offsets, steps, panel, its stride, out, its stride.

    All offsets and strides are in bytes. It adds to ``rows`` rows of 8 * ``vectors`` columns.
    """

    @intrinsic
    def product(
        context: Any,
        x: Any,
        row: Any,
        step: Any,
        steps: Any,
        panel: Any,
        stride: Any,
        out: Any,
        next_out: Any,
    ) -> Any:
        return types.void(*[types.intp] * 8), lambda _, builder, __, args: _loop(builder, args, vectors, rows)

    return product


def _loop(b: Any, args: Any, vectors: int, rows: int) -> Any:
    x, row, step, steps, panel, stride, out, next_out = args
    add = _fused_multiply_add(b.module)
    starts = [b.add(x, b.load(_pointer(b, row, 8 * r, _INT))) for r in range(rows)]
    outs = [
        _pointer(b, b.add(out, b.mul(next_out, _INT(r))), 4 * _LANES * v, _VECTOR)
        for r in range(rows)
        for v in range(vectors)
    ]
    before, loop, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
    first = [_unaligned(b.load(place)) for place in outs]
    b.branch(loop)

    b.position_at_end(loop)
    t, here = b.phi(_INT), b.phi(_INT)
    sums = [b.phi(_VECTOR) for _ in outs]
    offset = b.load(b.inttoptr(b.add(step, b.shl(t, _INT(3))), _INT.as_pointer()))
    copies = [_everywhere(b, _unaligned(b.load(_pointer(b, b.add(at, offset), 0, _FLOAT)))) for at in starts]
    after_sums: list[Any] = [None] * len(outs)
    for v in range(vectors):  # hold the copies and stream the panel: the other order runs out of registers
        columns = _unaligned(b.load(_pointer(b, here, 4 * _LANES * v, _VECTOR)))
        for r in range(rows):
            after_sums[r * vectors + v] = b.call(add, [columns, copies[r], sums[r * vectors + v]])
    following = b.add(t, _INT(1))
    for phi, start, value in (
        (t, _INT(0), following),
        (here, panel, b.add(here, stride)),
        *zip(sums, first, after_sums, strict=True),
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(value, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, after)

    b.position_at_end(after)
    for place, value in zip(outs, after_sums, strict=True):
        _unaligned(b.store(value, place))
    return ir.Constant(ir.LiteralStructType([]).as_pointer(), None)


def _pointer(b: Any, address: Any, offset: int, kind: Any) -> Any:
    return b.inttoptr(b.add(address, _INT(offset)), kind.as_pointer())


def _unaligned(instruction: Any) -> Any:
    instruction.align = 4
    return instruction


def _everywhere(b: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES)
    return b.shuffle_vector(b.insert_element(undefined, scalar, _INT32(0)), undefined, lanes)


def _fused_multiply_add(module: Any) -> Any:
    name = f"llvm.fma.v{_LANES}f32"
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return module.globals.get(name) or ir.Function(module, kind, name)
