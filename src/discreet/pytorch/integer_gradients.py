"""Sums of clipped gradients in whole steps of a public grid: a guarantee for the bits that are released.

Three things that floats do have no place in the proof for real numbers. The last bits of a sum plus noise may show
which sum it was. A sum of many floats rounds by more than one example adds, and so does the rest of it when that
example leaves. And a matrix product may take another way for a batch with one row less, so that everybody's gradient
moves by a bit, or by all of itself where a unit was just about to switch. Here

1. every example is worked on alone, in memory of its own, so its gradient depends on nobody else;
2. its gradient is clipped by a norm in float64 and cut toward zero to whole steps, which makes no norm longer;
3. integers are added up, which is exact in any order, and so is the noise (:mod:`discreet.core.noise`).

So the sums of two batches that differ by one example differ by what that example adds alone, however many there are.
It takes one pass for each example.

In docs/engines.md: E19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from discreet.certificate import Arithmetic
from discreet.core.clipping import AdaptiveClip, ClipRule
from discreet.core.noise import distance_to_continuous
from discreet.errors import InvalidParameter, one_of
from discreet.events import Gaussian
from discreet.plan.plan import Plan
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.per_example import gradients_alone, number_of_examples

FINENESS = 2.0**-20
"""What cutting may take from one gradient at most, in clip norms."""

PADDED = (
    "examples that a collation pads to the length of others in their batch: what more padding changes in the "
    "rounding of their gradients"
)
"""Not covered by steps on a grid: such an example is not the same alone."""


def checked_arithmetic(
    arithmetic: Literal["float", "hardened"], clipping: list[object], alone: bool
) -> Literal["float", "hardened"]:
    """The arithmetic of a run, refused where it has no theorem."""
    if one_of("arithmetic", arithmetic, ("float", "hardened")) == "hardened":
        if not alone:
            needed = "needs a single process and a model that is not in shards; others use 'float'."
            raise InvalidParameter("arithmetic", arithmetic, needed)
        if any(isinstance(rule, AdaptiveClip) for rule in clipping):
            raise InvalidParameter("arithmetic", arithmetic, "needs a fixed clip norm, as in Flat(1.0).")
    return arithmetic


def grid_of(noise: Gaussian, clip_norm: float, dimension: int) -> float:
    """The length of a step, from public numbers only."""
    finest = clip_norm * min(FINENESS / math.sqrt(max(1, dimension)), noise.noise_multiplier * 2.0**-22)
    return math.ldexp(1.0, math.frexp(finest)[1] - 1)


def steps_of_batch(
    of: ClippedSum, batch: Any, grid: float, gradients: Callable[..., list[Tensor]] = gradients_alone
) -> Tensor:
    """The sum of the clipped gradients of a batch in steps of ``grid``, all parameters in one vector of int64.

    ``gradients`` are those of one example alone, as :func:`~discreet.pytorch.per_example.gradients_alone`.

    Guarantee: each example adds integers of norm at most ``of.rule.clip_norm`` over the grid, which depend on
    nothing but that example and the model; zeros if its gradient is not finite.
    """
    of.check_parameters()
    parameters, blocks = list(of.parameters.values()), list(of.blocks().values())
    sizes = [value.numel() for value in parameters]
    error = (sum(sizes) + 64) * 2.0**-52
    total = torch.zeros(sum(sizes), dtype=torch.int64, device=parameters[0].device)
    for index in range(0 if batch is None else number_of_examples(batch)):
        found = gradients(of.model, of.losses, batch, index, parameters)
        squares = squares_of(found, blocks)
        if of.seen is not None:
            of.seen.add(None, torch.from_numpy(squares))
        factors = factors_of(squares, of.rule, blocks, error)
        for part, value, factor in zip(torch.split(total, sizes), found, factors, strict=True):
            if factor > 0:
                add_steps(part, value.reshape(-1), factor / grid)
    return total


def squares_of(gradients: list[Tensor], blocks: list[int]) -> NDArray[np.float64]:
    """The squared norms of one example's gradient: one row, with a column for each block."""
    squares = np.zeros((1, 1 + max(blocks)))
    for value, block in zip(gradients, blocks, strict=True):
        squares[0, block] += square_of(value.reshape(-1))
    return squares


def factors_of(squares: NDArray[np.float64], rule: ClipRule, blocks: list[int], error: float) -> list[float]:
    """Return the factor of each part of one example's gradient; zeros if it is not finite."""
    if not math.isfinite(squares.sum()):
        return [0.0] * len(blocks)
    factors = rule.factors(np.sqrt(squares), error)
    return [float(factors[0, block]) for block in blocks]


def square_of(values: Tensor) -> float:
    """The sum of squares in float64, in which the square of a float32 number is exact."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return float(values.double().square().sum())
    return float(_square(values.numpy()))


def add_steps(total: Tensor, values: Tensor, factor: float) -> None:
    """Add ``values * factor``, cut toward zero, to integers."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        total += (values.double() * factor).long()
    else:
        _add_cut(total.numpy(), values.numpy(), factor)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _square(values: NDArray[Any]) -> float:
    total = 0.0
    for j in range(len(values)):
        total += np.float64(values[j]) * np.float64(values[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _add_cut(total: NDArray[np.int64], values: NDArray[Any], factor: float) -> None:
    for j in range(len(values)):
        total[j] += np.int64(np.float64(values[j]) * factor)


def grids_of(
    arithmetic: Literal["float", "hardened"], plan: Plan, clip_norms: Iterable[float], dimension: int
) -> tuple[list[float | None], Arithmetic]:
    """The step in which the sums of each stage are counted, None in floating point; and what a certificate says."""
    if arithmetic == "float":
        return [None for _ in plan.stages], Arithmetic()
    grids, total = [], 0.0
    for stage, clip_norm in zip(plan.stages, clip_norms, strict=True):
        grid = grid_of(stage.noise, clip_norm, dimension)
        grids.append(grid)
        total += stage.steps * distance_to_continuous(stage.noise, clip_norm, grid, dimension)
    return [*grids], Arithmetic("hardened", math.nextafter(total * (1 + 1e-12), math.inf))
