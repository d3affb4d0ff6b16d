"""The noise of a run whose plan has bands: partly taken back in the steps to come, see :mod:`discreet.core.banded`.

What is remembered is noise and nothing else, in memory only. It is forgotten whenever steps do not follow one another
or batches are drawn anew: then the matrix of the coefficients falls into blocks, no column of which is longer, so the
guarantee is the same, and only the benefit begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from discreet.core.banded import coefficients, length_of_column
from discreet.core.clipping import AdaptiveClip
from discreet.core.noise import BoundedSum, add_noise, refuse_not_finite
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
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
