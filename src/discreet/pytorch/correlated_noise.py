"""The noise of a stage with bands: what is added now is partly subtracted in the steps to come.

See :mod:`discreet.core.matrix_mechanism` for the theorem. What is kept between steps is noise and nothing else, in
memory only. It is dropped whenever steps do not follow one another or batches are drawn anew: then the matrix of the
coefficients falls into blocks, no column of which is longer, so the guarantee is the same and only the benefit starts
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from discreet.core.clipping import AdaptiveClip
from discreet.core.matrix_mechanism import coefficients
from discreet.core.noise import BoundedSum, refuse_not_finite
from discreet.errors import InvalidParameter
from discreet.ledger import Till
from discreet.plan.plan import Plan
from discreet.plan.procedure import refuse_uncovered_bands
from discreet.plan.stage import Stage
from discreet.trusted.permits import NoisePermit


class CorrelatedNoise:
    """The noise of the steps of one stage, over its ``bands``."""

    def __init__(self, bands: int) -> None:
        self._bands = bands
        self._past: deque[Tensor] = deque(maxlen=bands - 1)  # the latest first
        self._last = 0

    def forget(self) -> None:
        """Drop the noise of earlier steps."""
        self._past.clear()

    def add_to(self, total: Tensor, step: int, clip_norm: float, permit: NoisePermit) -> None:
        """Add the noise of step number ``step`` to a sum in place.

        Guarantee: for consecutive steps, the coefficients times what was added are the independent draws of the
        permits, which are for a record that moves all of a column of coefficients.
        """
        refuse_not_finite(total.detach().cpu().numpy())
        if step != self._last + 1:
            self.forget()
        noise = torch.zeros_like(total)
        permit.release(BoundedSum(noise, clip_norm), out=noise)
        for value, before in zip(coefficients(self._bands)[1:], self._past, strict=False):
            noise.add_(before, alpha=-float(value))
        self._past.appendleft(noise)
        self._last = step
        total += noise


def refuse_bands(stages: Iterable[Stage], clipping: Iterable[object], arithmetic: str) -> None:
    """Raise for settings that have no theorem together with correlated noise."""
    for stage, rule in zip(stages, clipping, strict=True):
        if stage.bands == 1:
            continue
        if arithmetic == "hardened":
            raise InvalidParameter("arithmetic", arithmetic, "needs a plan with bands=1.")
        if isinstance(rule, AdaptiveClip):
            raise InvalidParameter("clipping", rule, "must have a fixed clip norm where a plan has bands.")


def refuse_bands_in(till: Till | None, plan: Plan) -> None:
    """Raise if a ledger, which covers all runs together, would be charged where correlated noise has no theorem."""
    if till is not None:
        refuse_uncovered_bands(plan.stages, till.ledger.rule.budget)
