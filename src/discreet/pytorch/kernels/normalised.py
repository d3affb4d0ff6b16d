"""Gradients of weight and bias of normalised layers, in one pass over input and output gradient.

The gradient of the bias is the sum of the output gradients, and that of the weight the sum of their products with the
normalised input. PyTorch would write down the normalised input and the products, and read both again. The twin is in
:mod:`discreet.pytorch.layer_rules.elementwise`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from discreet.pytorch.kernels.norms import in_threads, on_host


def supports(x: Tensor, grad: Tensor) -> bool:
    """Return whether both are float32 on the CPU, one number after the other."""
    return all(
        value.dtype == torch.float32 and on_host(value) and value.is_contiguous() for value in (x, grad)
    )


def of_layer_norm(x: Tensor, grad: Tensor, examples: int, width: int, eps: float) -> tuple[Tensor, Tensor]:
    """Of weight and bias, a row for each example, where each ``width`` numbers are normalised by themselves."""
    return _run_kernel(_layer_norm, x, grad, (examples, -1, width), width, eps)


def of_group_norm(x: Tensor, grad: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sums for (examples, channels, ...), where groups of channels are normalised together."""
    examples, channels = x.shape[:2]
    return _run_kernel(_group_norm, x, grad, (examples, channels, -1), channels, groups, eps)


def _run_kernel(
    kernel: Any, x: Tensor, grad: Tensor, shape: tuple[int, int, int], width: int, *numbers: float
) -> tuple[Tensor, Tensor]:
    given, met = grad.view(shape).numpy(), x.view(shape).numpy()
    out = np.zeros((2, len(given), width), np.float32)
    in_threads(
        lambda part: kernel(met[part], given[part], *numbers, out[:, part]), len(given), 4 * given.size
    )
    weight, bias = torch.from_numpy(out)
    return weight, bias


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _sum(row: NDArray[Any]) -> Any:
    total = np.float32(0)
    for j in range(len(row)):
        total += row[j]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _sum_of_squares(row: NDArray[Any], mean: Any) -> Any:
    total = np.float32(0)
    for j in range(len(row)):
        total += (row[j] - mean) * (row[j] - mean)
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _add_products(
    row: NDArray[Any], grad: NDArray[Any], mean: Any, scale: Any, weight: NDArray[Any], bias: NDArray[Any]
) -> None:
    for j in range(len(row)):
        weight[j] += grad[j] * ((row[j] - mean) * scale)
        bias[j] += grad[j]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _sums_of_products(row: NDArray[Any], grad: NDArray[Any], mean: Any) -> Any:
    product, total = np.float32(0), np.float32(0)
    for j in range(len(row)):
        product += grad[j] * (row[j] - mean)
        total += grad[j]
    return product, total


@njit(cache=True, nogil=True, error_model="numpy")
def _layer_norm(x: NDArray[Any], g: NDArray[Any], eps: float, out: NDArray[Any]) -> None:
    width = x.shape[2]
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            row = x[i, t]
            mean = np.float32(_sum(row) / np.float32(width))
            scale = np.float32(1 / math.sqrt(np.float64(_sum_of_squares(row, mean)) / width + eps))
            _add_products(row, g[i, t], mean, scale, out[0, i], out[1, i])


@njit(cache=True, nogil=True, error_model="numpy")
def _group_norm(x: NDArray[Any], g: NDArray[Any], groups: int, eps: float, out: NDArray[Any]) -> None:
    size, places = x.shape[1] // groups, x.shape[2]
    for i in range(x.shape[0]):
        for group in range(groups):
            total, spread = 0.0, 0.0
            for c in range(group * size, (group + 1) * size):
                total += np.float64(_sum(x[i, c]))
            mean = np.float32(total / (size * places))
            for c in range(group * size, (group + 1) * size):
                spread += np.float64(_sum_of_squares(x[i, c], mean))
            scale = np.float32(1 / math.sqrt(spread / (size * places) + eps))
            for c in range(group * size, (group + 1) * size):
                product, bias = _sums_of_products(x[i, c], g[i, c], mean)
                out[0, i, c], out[1, i, c] = product * scale, bias
