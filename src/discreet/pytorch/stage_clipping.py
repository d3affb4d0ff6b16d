"""The clipping of each stage of a plan, fixed or adaptive.

With :class:`~discreet.core.clipping.AdaptiveClip` every step has its own clip norm, and the count of norms within it
takes part of the step's cost, so the sum gets more noise than planned for it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat, Normalised, PerBlock
from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter
from discreet.pytorch.distributed import Processes
from discreet.trusted.permits import COUNT_SENSITIVITY, NoisePermit

TABULATED = np.exp2(np.linspace(-20.0, 20.0, 1 << 14))
"""Multiples of the clip norm at which a user-defined rule is evaluated; neighbours differ by 0.17 %."""


@dataclass(frozen=True)
class NormRecordingClip(Flat):
    """Flat clipping that records the norms it is asked about, so that no second pass is needed to count them.

    >>> rule = NormRecordingClip(clip_norm=2.0)
    >>> rule.factors([[1.0], [4.0]]).round(9).tolist(), rule.norms()
    ([[1.0], [0.5]], array([1., 4.]))
    """

    _seen: list[NDArray[Any]] = field(default_factory=list, repr=False, compare=False)

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """Record the norms and return :meth:`Flat.factors`."""
        self._seen.append(np.asarray(norms, dtype=np.float64).ravel())
        return super().factors(norms, error)

    def norms(self) -> NDArray[np.float64]:
        """Return all norms so far. They are private."""
        return np.concatenate([np.zeros(0), *self._seen])


class OwnClip(ClipRule):
    """A user-defined rule, tabulated before any gradient is computed.

    The rule is asked once, for :data:`TABULATED` multiples of its clip norm; factors in between are interpolated.

    Guarantee: the factor of an example depends on its own norm only, and brings it down to ``clip_norm`` at most,
    whatever the rule returns or remembers.
    """

    def __init__(self, rule: ClipRule) -> None:
        self._text, self.clip_norm = repr(rule), float(rule.clip_norm)
        self._norms = self.clip_norm * TABULATED
        factors = np.array(rule.wanted(self._norms.copy()), np.float64)
        if factors.shape != self._norms.shape or not (np.isfinite(factors) & (factors >= 0)).all():
            requirement = "wanted() must return one finite, non-negative factor per norm."
            raise InvalidParameter("clipping", type(rule).__name__, requirement)
        self._factors = factors

    def wanted(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate the table at each norm."""
        return np.interp(norms, self._norms, self._factors)

    def __repr__(self) -> str:
        return f"{self._text} at {self.clip_norm!r}"


def enforced(rule: object) -> ClipRule | AdaptiveClip:
    """Return a rule that keeps to its clip norm, whatever ``rule`` is: one of ours, or a wrapper around it."""
    if type(rule) in (Flat, Normalised, PerBlock, AdaptiveClip):
        return rule  # type: ignore[return-value]
    if isinstance(rule, ClipRule):
        return OwnClip(rule)
    raise InvalidParameter("clipping", type(rule).__name__, "must be a ClipRule, or AdaptiveClip itself.")


def rule_of_step(clipping: ClipRule | AdaptiveClip) -> ClipRule:
    """Return the rule of the next step; an adaptive one is new each time and records the norms it sees."""
    return NormRecordingClip(clipping.clip_norm) if isinstance(clipping, AdaptiveClip) else clipping


def follow_norms(
    adaptive: AdaptiveClip,
    norms: NDArray[np.float64],
    processes: Processes,
    permit: NoisePermit,
    least: float = 0.0,
) -> AdaptiveClip:
    """Release how many of the norms were within the clip norm, and return the clipping of the next step.

    ``norms`` has one norm for each example of the batch; the clip norm does not fall below ``least``.

    Guarantee: the norms are used for their count only, with the noise of ``adaptive.count_event``.
    """
    count = torch.tensor([adaptive.count(norms)], dtype=torch.float64)
    permit.release(BoundedSum(count, COUNT_SENSITIVITY), "count", out=count)
    processes.add_up(count)
    following = adaptive.updated(float(count))
    return replace(following, clip_norm=max(following.clip_norm, least))
