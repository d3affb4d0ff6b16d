"""The noise of a run whose plan has bands: partly taken back in the steps to come, see :mod:`discreet.core.banded`.

What is remembered is noise and nothing else, in memory only. It is forgotten whenever steps do not follow one another
or batches are drawn anew: then the matrix of the coefficients falls into blocks, no column of which is longer, so the
guarantee is the same, and only the benefit begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from discreet.certificate import Arithmetic
from discreet.core.banded import coefficients, length_of_column
from discreet.core.clipping import AdaptiveClip
from discreet.core.noise import BoundedSum, add_noise, distance_to_continuous, refuse_not_finite
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, one_of
from discreet.events import Gaussian
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage


class BandedNoise:
    """The noise of the steps of one stage, over its ``bands``."""

    def __init__(self, bands: int) -> None:
        self._bands = bands
        self._past: deque[Tensor] = deque(maxlen=bands - 1)  # the latest first
        self._last = 0

    def forget(self) -> None:
        """Begin anew, as if nothing had been released before."""
        self._past.clear()

    def add_to(
        self, total: Tensor, step: int, clip_norm: float, event: Gaussian, stream: RandomStream
    ) -> None:
        """Add the noise of step number ``step`` to a sum in place.

        Guarantee: for consecutive steps, the coefficients times what was added are independent Gaussians of standard
        deviation ``event.noise_multiplier * clip_norm`` times the length of the coefficients, or more.
        """
        refuse_not_finite(total.detach().cpu().numpy())
        if step != self._last + 1:
            self.forget()
        noise = torch.zeros_like(total)
        add_noise(BoundedSum(noise, clip_norm), fresh_noise(event, self._bands), stream, out=noise)
        for value, before in zip(coefficients(self._bands)[1:], self._past, strict=False):
            noise.add_(before, alpha=-float(value))
        self._past.appendleft(noise)
        self._last = step
        total += noise


def fresh_noise(event: Gaussian, bands: int) -> Gaussian:
    """What is drawn in each step, so that a record that moves several sums costs what ``event`` does."""
    return Gaussian(math.nextafter(event.noise_multiplier * length_of_column(bands), math.inf))


def refuse_bands(stages: Iterable[Stage], clipping: Iterable[object], arithmetic: str) -> None:
    """Refuse settings that have no theorem together with correlated noise."""
    for stage, rule in zip(stages, clipping, strict=True):
        if stage.bands == 1:
            continue
        if arithmetic == "hardened":
            raise InvalidParameter("arithmetic", arithmetic, "needs a plan with bands=1.")
        if isinstance(rule, AdaptiveClip):
            raise InvalidParameter("clipping", rule, "must have a fixed clip norm where a plan has bands.")


# ---- a training step on a public grid, so that the guarantee holds for the bits that are released ----
#
# The sum of clipped gradients is a float32 vector, and the last bits of such a vector plus noise may show
# which sum it was. Here the sum is brought to whole steps of a public power of two, and the noise is the
# discrete Gaussian; see `hardened` for what that proves. Two sums that are at most C apart are at most C / g
# + sqrt(d) steps apart after rounding each of their d numbers to the nearest step of length g, so with
#
#     g <= C 2**-20 / sqrt(d)
#
# the clip norm grows by a millionth, and the noise with it.


ROOM = 2.0**-20
"""What rounding may add to the sensitivity, in clip norms."""


def checked_arithmetic(
    arithmetic: Literal["float", "hardened"], clipping: list[object], processes: int
) -> Literal["float", "hardened"]:
    """The arithmetic of a run, refused where it has no theorem."""
    if one_of("arithmetic", arithmetic, ("float", "hardened")) == "hardened":
        if processes > 1:
            raise InvalidParameter("arithmetic", arithmetic, "needs a single process; several use 'float'.")
        if any(isinstance(rule, AdaptiveClip) for rule in clipping):
            raise InvalidParameter("arithmetic", arithmetic, "needs a fixed clip norm, as in Flat(1.0).")
    return arithmetic


def grid_of(noise: Gaussian, clip_norm: float, dimension: int) -> float:
    """The length of a step, from public numbers only."""
    finest = clip_norm * min(ROOM / math.sqrt(max(1, dimension)), noise.noise_multiplier * 2.0**-22)
    return math.ldexp(1.0, math.frexp(finest)[1] - 1)


def add_noise_on_grid(total: Tensor, clip_norm: float, noise: Gaussian, stream: RandomStream) -> None:
    """Put the nearest whole number of steps plus noise in place of ``total``.

    Guarantee: every value that ``total`` gets is a multiple of the public grid, and its law is that of the noise of
    a sum of sensitivity ``clip_norm``, up to :func:`distance_of`.
    """
    grid = grid_of(noise, clip_norm, total.numel())
    steps = (total.double() / grid).round().long()
    add_noise(BoundedSum(steps, clip_norm * (1 + ROOM), grid=grid), noise, stream, out=total)


def arithmetic_of(plan: Plan, noises: list[Gaussian], dimension: int) -> Arithmetic:
    """How all steps of a plan are computed, for its certificate."""
    total = 0.0
    for stage, noise in zip(plan.stages, noises, strict=True):
        clip_norm = stage.clip_norm
        grid = grid_of(noise, clip_norm, dimension)
        total += stage.steps * distance_to_continuous(noise, clip_norm * (1 + ROOM), grid, dimension)
    return Arithmetic("hardened", math.nextafter(total * (1 + 1e-12), math.inf))
