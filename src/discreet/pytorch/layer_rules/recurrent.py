"""RNN, LSTM and GRU as what they are: linear maps applied again and again.

Written out in linear maps they need no rule of their own: the uses of a weight at all times are one use with
that many positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function

from discreet.pytorch.graph_rules import add_rule, leading
from discreet.pytorch.kernels import lstm
from discreet.pytorch.layer_rules.elementwise import Shift
from discreet.pytorch.layer_rules.linear import LinearWeight
from discreet.pytorch.layer_rules.use import Use

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]


def _lstm(from_input: Tensor, from_state: Tensor, state: State) -> State:
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(from_input: Tensor, from_state: Tensor, state: State) -> State:
    (r, z, n), (r2, z2, n2) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    update = (z + z2).sigmoid()
    new = (n + (r + r2).sigmoid() * n2).tanh()
    return ((1 - update) * new + update * state[0],)


def _tanh(from_input: Tensor, from_state: Tensor, state: State) -> State:
    return ((from_input + from_state).tanh(),)


def _relu(from_input: Tensor, from_state: Tensor, state: State) -> State:
    return ((from_input + from_state).relu(),)


CELLS: dict[Any, Cell] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: _tanh,
    torch.rnn_relu: _relu,
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _tanh,
    torch.rnn_relu_cell: _relu,
}


def unroll_cell(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.lstm_cell`` and its sisters, in linear maps."""
    x, state, w_ih, w_hh, *biases = args
    b_ih, b_hh = [*biases, None, None][:2]
    given = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    after = CELLS[func](F.linear(x, w_ih, b_ih), F.linear(given[0], w_hh, b_hh), given)
    return after if func is torch.lstm_cell else after[0]


def unroll(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.lstm`` and its sisters, in linear maps; None for packed sequences."""
    if len(args) != 9 or kwargs or not isinstance(args[5], float):
        return None
    x, hidden, weights, biased, layers, dropout, training, both_ways, batch_first = args
    states = tuple(hidden) if isinstance(hidden, (tuple, list)) else (hidden,)
    per_layer = len(weights) // (layers * (1 + both_ways))
    if batch_first:
        x = x.transpose(0, 1)
    ends: list[State] = []
    for layer in range(layers):
        sides = []
        for backwards in range(1 + both_ways):
            place = layer * (1 + both_ways) + backwards
            own = weights[place * per_layer : (place + 1) * per_layer]
            start = tuple(state[place] for state in states)
            outputs, end = _one_direction(CELLS[func], x, own, biased, start, bool(backwards))
            sides.append(outputs)
            ends.append(end)
        x = torch.cat(sides, -1) if both_ways else sides[0]
        if dropout and training and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    final = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *final)


def _one_direction(
    cell: Cell, x: Tensor, weights: list[Tensor], biased: bool, state: State, backwards: bool
) -> tuple[Tensor, State]:
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if biased else (None, None)
    if cell is _lstm and len(weights) == 4 and lstm.supports(x, state[0].shape[-1]):
        given = (x.flip(0) if backwards else x).transpose(0, 1)
        out, *end = compiled_layer(given, *state, w_ih, w_hh, b_ih, b_hh)
        out = out.transpose(0, 1)
        return out.flip(0) if backwards else out, tuple(end)
    projection = weights[-1] if len(weights) == 2 + 2 * biased + 1 else None
    from_input = F.linear(x, w_ih, b_ih).unbind(0)
    outputs = []
    for step in reversed(from_input) if backwards else from_input:
        state = cell(step, F.linear(state[0], w_hh, b_hh), state)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def compiled_layer(*args: Any) -> Any:
    """One direction of one LSTM layer: x, state, cell, w_ih, w_hh, b_ih, b_hh, with examples first."""
    return handle_torch_function(compiled_layer, args, *args)


def lstm_layer(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of :func:`compiled_layer`.

    All four parameters enter by what the gates are before their nonlinearity, so a zero is added there, and
    the gradient of the zero is what their uses wait for.
    """
    x, state, cell, *parameters = args
    sources = [record.source_of(value) for value in parameters]
    w_ih, w_hh, b_ih, b_hh = (
        value if source is None else source.value for source, value in zip(sources, parameters, strict=True)
    )
    zero = x.new_zeros(()).expand(*x.shape[:2], 4 * state.shape[1])
    tap = record.attach(zero)
    results = _Layer.apply(x, state, cell, tap, w_ih, w_hh, b_ih + b_hh)  # type: ignore[no-untyped-call]
    outputs, end, last, inputs = results
    read, remembered = inputs[:, :, : x.shape[2]], inputs[:, :, x.shape[2] :]
    uses: list[Use] = [
        LinearWeight(source, value)
        for source, value in zip(sources, (read, remembered), strict=False)
        if source is not None
    ]
    uses += [Shift(source) for source in sources[2:] if source is not None]
    return tap, uses, (outputs, end, last)


class _Layer(torch.autograd.Function):
    """The compiled layer as a function of its input, its state, and a zero added to the gates."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, zero: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor
    ) -> Any:
        saved = lstm.forward(x, h, c, w_ih, w_hh, bias)
        # Saved in this way they are freed as soon as they are used, before the norms need their room.
        ctx.save_for_backward(saved["gates"], saved["cells"], saved["tanh"], w_ih, w_hh)
        ctx.mark_non_differentiable(saved["inputs"])
        return (
            saved["outputs"],
            saved["outputs"][:, -1].clone(),
            saved["cells"][:, -1].clone(),
            saved["inputs"],
        )

    @staticmethod
    def backward(ctx: Any, out: Tensor, end: Tensor, last: Tensor, _: Any) -> Any:
        gates, cells, tanh, w_ih, w_hh = ctx.saved_tensors
        grads, state, cell = lstm.backward(gates, cells, tanh, w_hh, out, end, last)
        into_x = grads @ w_ih if ctx.needs_input_grad[0] else None
        return into_x, state, cell, grads, None, None, None


add_rule(_Layer, leading(1))  # inputs and outputs have the examples first
