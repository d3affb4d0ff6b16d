"""Sums whose guarantee holds for the bits that are released, not only for real numbers.

Floating-point sums break the textbook proof in three ways: their error depends on the order of the records,
it can exceed the clip norm, and the last bits of sum + noise show which sum it was (Mironov 2012;
Casacuberta et al. 2022; Haney et al. 2022). Here every clipped record is rounded toward zero to a public
grid, the records are added as whole numbers, and the noise is a whole number too; one conversion to
floating point comes last.

>>> import numpy as np
>>> from discreet.events import Gaussian
>>> from discreet.core.noise import add_noise
>>> event, rows = Gaussian(noise_multiplier=2.0), np.full((1000, 3), 0.5)
>>> grid = grid_for(event, clip_norm=1.0, most_records=10_000)
>>> total = hardened_sum(rows, clip_norm=1.0, grid=grid)
>>> total.arithmetic, add_noise(total, event).shape
('hardened', (3,))

**What is proved.** Let C be the clip norm and g the grid.

1. Rounding toward zero never increases a norm. So the sums of two data sets that differ by one record differ
   by a vector of whole numbers of norm at most C/g, in whatever order the records come; a sum that left the
   range of int64 would still obey this, modulo 2**64.
2. The noise is the discrete Gaussian of scale s >= noise_multiplier * C/g. Every Rényi divergence is at most
   that of the event's continuous Gaussian (Canonne, Kamath, Steinke 2020), so accounting by Rényi or
   concentrated privacy holds as it is.
3. Accounting by the whole privacy curve holds up to :func:`distance_to_continuous`: the noise is that close
   in total variation to a rounded continuous Gaussian, and rounding is post-processing. A release adds at
   most (1 + exp(epsilon)) times that distance to delta. It is below 1e-24 * sqrt(dimension) for the grids of
   :func:`grid_for`, unless the number of records asks for a coarser one, and never above
   4e-14 * sqrt(dimension) for a grid that :func:`~discreet.core.noise.add_noise` accepts.
4. Laplace noise is the discrete Laplace law of scale at least scale * C/g: epsilon is 1/scale and delta is 0.

In docs/engines.md: E2.
"""

from __future__ import annotations

import math
import sys
from typing import Literal

import numpy as np

from discreet.core.arrays import AnyArray, is_floating, is_tensor, type_name
from discreet.core.noise import FEWEST_STEPS, BoundedSum, checked_grid, noise_ratio, noise_steps
from discreet.errors import InvalidParameter, PlanViolation, real, whole
from discreet.events import Gaussian, Laplace

SPARED_DELTA = 1e-4
"""The part of delta kept for :func:`distance_to_continuous`; the rest is accounted as for continuous noise."""

MOST_ROWS = 2**32
"""Records in one sum of whole numbers that becomes a float."""

FLOAT_ROOM = 2.0**-20
"""What turning such a sum into float64 can add to its sensitivity, in clip norms (docs/engines.md: E14)."""

_BLOCK = 2**20  # numbers that are converted at once


def grid_for(event: Gaussian | Laplace, clip_norm: float, most_records: int) -> float:
    """A power of two that suits ``event``, from public numbers only.

    It divides the scale of the noise into 2**38 to 2**39 steps, or into fewer where the contributions of
    ``most_records`` could otherwise leave the range of int64. Rounding moves each coordinate of the sum by
    less than ``most_records`` steps: for a million records and a noise multiplier of 1, by less than 1e-5 of
    the noise. The dimension plays no part, because rounding and noise act on every coordinate alike.
    """
    remedy = "Rescale the records."
    clip_norm = real("clip_norm", clip_norm, at_least=1e-250, at_most=1e250, remedy=remedy)
    most_records = whole("most_records", most_records, at_least=1, at_most=2**59)
    ratio = noise_ratio(event)
    finest = max(ratio * 2.0**-39, most_records * 2.0**-60) * clip_norm
    grid = math.ldexp(1.0, math.frexp(finest)[1])
    if ratio * clip_norm < 2.0 * FEWEST_STEPS * grid:
        requirement = f"is too many for int64 sums with this noise; at most {int(ratio * 2.0**38)} would do."
        raise InvalidParameter("most_records", most_records, requirement)
    noise_steps(event, clip_norm, grid)  # raises where no grid can serve, for instance for a vast multiplier
    return grid


def sum_grid(clip_norm: float) -> float:
    """A power of two for sums of whole numbers that become floats: 2**29 to 2**30 steps make ``clip_norm``.

    So :data:`MOST_ROWS` contributions stay within int64.
    """
    return math.ldexp(1.0, math.frexp(clip_norm)[1] - 30)


def hardened_sum(
    rows: AnyArray, clip_norm: float, grid: float, norm: Literal["l2", "l1"] = "l2"
) -> BoundedSum:
    """The sum over the first axis of ``rows``, each clipped before to ``clip_norm``, in whole grid steps.

    ``rows`` is a numpy array or a torch tensor of float64 or a narrower type; no rows give a sum of zeros.

    Guarantee: exact and independent of the order of the rows; a row that has norm at most ``clip_norm``
    before rounding has it after rounding.
    """
    clip_norm, grid = real("clip_norm", clip_norm, above=0), checked_grid(grid)
    if not is_floating(rows) or type_name(rows) in ("float96", "float128"):
        raise InvalidParameter("rows", type_name(rows), "must hold float64 or narrower numbers.")
    total = _zero_counts(rows)
    step = max(1, _BLOCK // max(1, math.prod(rows.shape[1:])))
    for start in range(0, rows.shape[0], step):
        total += _counts(rows[start : start + step], clip_norm, grid)
    return BoundedSum(total, clip_norm, norm, grid)


def _zero_counts(rows: AnyArray) -> AnyArray:
    if is_tensor(rows):
        return rows.new_zeros(rows.shape[1:], dtype=sys.modules["torch"].int64)
    return np.zeros(rows.shape[1:], np.int64)


def _counts(rows: AnyArray, clip_norm: float, grid: float) -> AnyArray:
    """The rows in grid steps, cut toward zero and added up. The division by a power of two is exact."""
    wide = rows.detach().double() if is_tensor(rows) else rows.astype(np.float64)
    if not bool((abs(wide) <= clip_norm).all()):
        raise PlanViolation("A row exceeds the clip norm or is not finite; clip before hardened_sum().")
    steps = wide / grid
    return (steps.long() if is_tensor(steps) else steps.astype(np.int64)).sum(0)


def distance_to_continuous(event: Gaussian | Laplace, clip_norm: float, grid: float, dimension: int) -> float:
    """An upper bound on the total variation between the hardened noise and rounded continuous noise.

    Gaussian: let s be the scale in grid steps, and x follow the discrete law. The ratio of the two
    probabilities of x is, up to a factor 1 + exp(-s**2), the mean of cosh(x t / s**2) exp(-t**2 / (2 s**2))
    over t uniform on (-1/2, 1/2). It lies between 1 - 1/(24 s**2) and exp(x**2 / (24 s**4)), so its mean
    squared distance from 1 is (1 + 3) / (24 s**2)**2 at most, up to lower order; over all coordinates these
    chi-square divergences add up, and half the root bounds the total variation. Laplace: the rounded law
    exceeds the discrete one everywhere but at 0, where it falls short by less than 1/(8 s**2).
    """
    dimension = whole("dimension", dimension, at_least=0)
    steps = float(noise_steps(event, clip_norm, grid))
    if isinstance(event, Laplace):
        return min(1.0, 1.001 * dimension / (8.0 * steps**2))
    return min(1.0, 0.5 * math.sqrt(math.expm1(min(1.001 * dimension / (144.0 * steps**4), 4.0))))
