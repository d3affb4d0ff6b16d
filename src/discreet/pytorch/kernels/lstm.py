"""One layer of an LSTM over all times, and its backward pass up to the gradients of the gates.

Examples do not meet, so each thread takes some of them through all times. A step is one product of the
gathered rows [x_t, h_(t-1)] with the weights in panels of 32 columns, then the gates, which are saved for the
backward pass. The twin is the same layer written out in linear maps: :mod:`layer_rules.recurrent`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from discreet.pytorch.kernels import norms
from discreet.pytorch.kernels.panels import panel_product

_FAST = {"contract", "nnan", "ninf", "nsz", "arcp"}  # no reordering: the reduction in _exp is in two terms
_STEPS, _WIDTH = 128, 32
_three, _two, _one = panel_product(4, 3), panel_product(4, 2), panel_product(4, 1)
_F = np.float32


def supports(x: Tensor, hidden: int) -> bool:
    return norms.on_host(x) and x.dtype == torch.float32 and hidden % _WIDTH == 0


def forward(x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """All that the backward pass needs: ``inputs`` [x_t, h_(t-1)], gates, cells, their tanh and outputs."""
    (examples, times, into), hidden = x.shape, h.shape[1]
    saved = {
        "inputs": torch.empty(examples, times, into + hidden),
        "gates": torch.empty(examples, times, 4 * hidden),
        "cells": torch.empty(examples, times + 1, hidden),
        "tanh": torch.empty(examples, times, hidden),
        "outputs": torch.empty(examples, times, hidden),
    }
    saved["inputs"][:, :, :into] = x
    saved["inputs"][:, 0, into:] = h
    saved["cells"][:, 0] = c
    arrays = [value.numpy() for value in saved.values()]
    weights = _panels(torch.cat([w_ih, w_hh], 1).t())
    run: Any = _forward
    _split(examples, lambda start, stop: run(*arrays, weights, bias.numpy(), into, start, stop))
    return saved


def backward(
    gates: Tensor, cells: Tensor, tanh: Tensor, w_hh: Tensor, out: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates before their nonlinearity, and of the first state and cell."""
    grads, cell, state = torch.empty_like(gates), c.contiguous().clone(), h.contiguous().clone()
    arrays = [value.numpy() for value in (gates, cells, tanh)]
    more = [value.numpy() for value in (out.contiguous(), grads, state, cell)]
    weights = _panels(w_hh)
    run: Any = _backward
    _split(len(out), lambda start, stop: run(*arrays, *more, weights, start, stop))
    return grads, state, cell


def _panels(weight: Tensor) -> NDArray[Any]:
    """A matrix as panels of 32 columns."""
    rows, columns = weight.shape
    panels: NDArray[Any] = (
        weight.reshape(rows, columns // _WIDTH, _WIDTH).transpose(0, 1).contiguous().numpy()
    )
    return panels


def _split(examples: int, work: Callable[[int, int], None]) -> None:
    threads = max(1, min(torch.get_num_threads(), examples))
    cuts = [examples * i // threads for i in range(threads + 1)]
    if threads == 1:
        work(0, examples)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts[:-1], cuts[1:]))


@intrinsic
def _as_float(context: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


@njit(inline="always", error_model="numpy")
def _exp(x: Any) -> Any:
    """exp to 2e-7, in operations of which a vector register does eight at once."""
    x = min(max(x, _F(-87)), _F(87))
    whole = np.floor(x * _F(1.44269504) + _F(0.5))
    f = (x * _F(1.44269504) - whole) + x * _F(1.92596299e-8)
    series = _F(9.6181291e-3) + f * (_F(1.3333558e-3) + f * _F(1.5403530e-4))
    series = _F(1) + f * (_F(0.69314718) + f * (_F(0.24022651) + f * (_F(5.5504109e-2) + f * series)))
    bits = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return series * _as_float(bits)  # type: ignore[call-arg]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _sigmoid(z: NDArray[Any]) -> None:
    for j in range(z.size):
        z[j] = _F(1) / (_F(1) + _exp(-z[j]))


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _tanh(z: NDArray[Any], out: NDArray[Any]) -> None:
    for j in range(z.size):
        out[j] = _F(2) / (_F(1) + _exp(_F(-2) * z[j])) - _F(1)


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _sum_of_products(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], d: NDArray[Any], out: NDArray[Any]
) -> None:
    for j in range(out.size):
        out[j] = a[j] * b[j] + c[j] * d[j]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _product(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    for j in range(out.size):
        out[j] = a[j] * b[j]


@njit(cache=True, nogil=True)
def _add_products(
    rows: int, row: int, count: int, steps: NDArray[Any], panels: NDArray[Any], out: int, stride: int
) -> None:
    """out[r] += row r times the matrix; rows are ``row`` bytes apart, their entries at ``steps``."""
    starts = np.arange(count) * np.int64(row)
    for panel in range(panels.shape[0]):
        for t in range(0, steps.size, _STEPS):
            n, step = min(_STEPS, steps.size - t), steps.ctypes.data + 8 * t
            here, r = panels.ctypes.data + (panel * panels.shape[1] + t) * 4 * _WIDTH, 0
            to = out + panel * 4 * _WIDTH
            while r + 3 <= count:
                _three(rows, starts.ctypes.data + 8 * r, step, n, here, 4 * _WIDTH, to + r * stride, stride)
                r += 3
            if r + 2 <= count:
                _two(rows, starts.ctypes.data + 8 * r, step, n, here, 4 * _WIDTH, to + r * stride, stride)
                r += 2
            if r < count:
                _one(rows, starts.ctypes.data + 8 * r, step, n, here, 4 * _WIDTH, to + r * stride, stride)


@njit(cache=True, nogil=True)
def _forward(
    inputs: NDArray[Any],
    gates: NDArray[Any],
    cells: NDArray[Any],
    tanh: NDArray[Any],
    outputs: NDArray[Any],
    weights: NDArray[Any],
    bias: NDArray[Any],
    into: int,
    start: int,
    stop: int,
) -> None:
    times, width, columns, h = inputs.shape[1], inputs.shape[2], gates.shape[2], outputs.shape[2]
    steps = np.arange(width) * np.int64(4)
    for t in range(times):
        for i in range(start, stop):
            gates[i, t] = bias
        rows = inputs.ctypes.data + (start * times + t) * width * 4
        to = gates.ctypes.data + (start * times + t) * columns * 4
        _add_products(rows, times * width * 4, stop - start, steps, weights, to, times * columns * 4)
        for i in range(start, stop):
            z, cell = gates[i, t], cells[i, t + 1]
            _sigmoid(z[: 2 * h])
            _tanh(z[2 * h : 3 * h], z[2 * h : 3 * h])
            _sigmoid(z[3 * h :])
            _sum_of_products(z[h : 2 * h], cells[i, t], z[:h], z[2 * h : 3 * h], cell)
            _tanh(cell, tanh[i, t])
            _product(z[3 * h :], tanh[i, t], outputs[i, t])
            if t + 1 < times:
                inputs[i, t + 1, into:] = outputs[i, t]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _into_cell(
    h: NDArray[Any], given: NDArray[Any], c: NDArray[Any], o: NDArray[Any], tanh: NDArray[Any]
) -> None:
    for j in range(h.size):
        h[j] += given[j]
        c[j] += h[j] * o[j] * (_F(1) - tanh[j] * tanh[j])


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _through_sigmoid(grad: NDArray[Any], factor: NDArray[Any], gate: NDArray[Any], out: NDArray[Any]) -> None:
    for j in range(out.size):
        out[j] = grad[j] * factor[j] * gate[j] * (_F(1) - gate[j])


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _through_tanh(grad: NDArray[Any], factor: NDArray[Any], gate: NDArray[Any], out: NDArray[Any]) -> None:
    for j in range(out.size):
        out[j] = grad[j] * factor[j] * (_F(1) - gate[j] * gate[j])


@njit(cache=True, nogil=True)
def _backward(
    gates: NDArray[Any],
    cells: NDArray[Any],
    tanh: NDArray[Any],
    given: NDArray[Any],
    grads: NDArray[Any],
    state: NDArray[Any],
    cell: NDArray[Any],
    weights: NDArray[Any],
    start: int,
    stop: int,
) -> None:
    times, columns, h = gates.shape[1], gates.shape[2], state.shape[1]
    steps = np.arange(columns) * np.int64(4)
    for t in range(times - 1, -1, -1):
        for i in range(start, stop):
            z, d, c, s = gates[i, t], grads[i, t], cell[i], state[i]
            _into_cell(s, given[i, t], c, z[3 * h :], tanh[i, t])
            _through_sigmoid(c, z[2 * h : 3 * h], z[:h], d[:h])
            _through_sigmoid(c, cells[i, t], z[h : 2 * h], d[h : 2 * h])
            _through_tanh(c, z[:h], z[2 * h : 3 * h], d[2 * h : 3 * h])
            _through_sigmoid(s, tanh[i, t], z[3 * h :], d[3 * h :])
            _product(c, z[h : 2 * h], c)
            s[:] = _F(0)
        rows = grads.ctypes.data + (start * times + t) * columns * 4
        to = state.ctypes.data + start * h * 4
        _add_products(rows, times * columns * 4, stop - start, steps, weights, to, h * 4)
