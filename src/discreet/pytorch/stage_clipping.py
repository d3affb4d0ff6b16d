"""The clipping of each stage of a plan, fixed or adaptive.

With :class:`~discreet.core.clipping.AdaptiveClip` every step has its own clip norm, and the count of norms within it
takes part of the step's cost, so the sum gets more noise than planned for it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat, Normalised, PerBlock
from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter, PlanViolation
from discreet.plan.stage import Stage
from discreet.pytorch.distributed import Processes
from discreet.trusted.permits import COUNT_SENSITIVITY, NoisePermit


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
    """A rule of a user's own, which sees one norm at a time and cannot change the clip norm.

    Guarantee: the factor of an example depends on its own norm only, and brings it down to ``clip_norm`` at most,
    whatever the rule returns.
    """

    def __init__(self, rule: ClipRule, clip_norm: float) -> None:
        self._rule, self.clip_norm = rule, clip_norm

    def wanted(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factor that the rule wants for each norm, asked for one norm after the other."""
        found = [np.asarray(self._rule.wanted(np.array([norm])), np.float64) for norm in norms.reshape(-1)]
        if any(one.shape != (1,) for one in found):
            requirement = "wanted() must return one finite, non-negative factor per norm."
            raise InvalidParameter("clipping", type(self._rule).__name__, requirement)
        return np.reshape([float(one[0]) for one in found], norms.shape)

    def __repr__(self) -> str:
        return f"{self._rule!r} at {self.clip_norm!r}"


def follow_norms(
    adaptive: AdaptiveClip, norms: NDArray[np.float64], processes: Processes, permit: NoisePermit
) -> AdaptiveClip:
    """Release how many of the norms were within the clip norm, and return the clipping of the next step.

    ``norms`` has one norm for each example of the batch.

    Guarantee: the norms are used for their count only, with the noise of ``adaptive.count_event``.
    """
    count = torch.tensor([adaptive.count(norms)], dtype=torch.float64)
    permit.release(BoundedSum(count, COUNT_SENSITIVITY), "count", out=count)
    processes.add_up(count)
    return adaptive.updated(float(count))


def checked_clipping(clipping: object) -> ClipRule | AdaptiveClip:
    """Return ``clipping`` if it is a rule for clipping, or raise."""
    if isinstance(clipping, ClipRule | AdaptiveClip):
        return clipping
    raise InvalidParameter(
        "clipping", clipping, "must be Flat, Normalised, PerBlock, AdaptiveClip or your own ClipRule."
    )


def planned_clipping(clipping: object, clip_norm: float) -> ClipRule | AdaptiveClip:
    """Return ``clipping`` if it has the clip norm of the plan, or raise; without it, flat clipping."""
    if clipping is None:
        return Flat(clip_norm)
    rule = checked_clipping(clipping)
    if not abs(rule.clip_norm - clip_norm) <= 1e-9 * clip_norm:
        remedy = f"must have the clip norm of the plan, {clip_norm:g}; an adaptive one begins there."
        raise InvalidParameter("clipping", clipping, remedy)
    if type(rule) in (Flat, Normalised, PerBlock) or isinstance(rule, AdaptiveClip):
        return rule
    if type(rule).wanted is ClipRule.wanted or type(rule).factors is not ClipRule.factors:
        requirement = (
            "must define wanted() and leave factors() as it is: the engine enforces the clip norm there."
        )
        raise InvalidParameter("clipping", type(rule).__name__, requirement)
    return OwnClip(rule, float(rule.clip_norm))


def clipping_of_stages(clipping: object, stages: Iterable[Stage]) -> list[ClipRule | AdaptiveClip]:
    """Return the clipping of each stage: by the stages' names, or one rule for all of them."""
    stages = tuple(stages)
    if not isinstance(clipping, Mapping):
        return [planned_clipping(clipping, stage.clip_norm) for stage in stages]
    unknown = clipping.keys() - {stage.name for stage in stages}
    if unknown:
        names = ", ".join(stage.name for stage in stages)
        raise InvalidParameter(
            "clipping", sorted(map(str, unknown)), f"must name stages of the plan: {names}."
        )
    return [planned_clipping(clipping.get(stage.name), stage.clip_norm) for stage in stages]


def resumed_clipping(given: ClipRule | AdaptiveClip, kept: AdaptiveClip | None) -> ClipRule | AdaptiveClip:
    """Return the rule of a resumed run: the one given; of an adaptive one, with the clip norm of the checkpoint.

    Nothing else may differ: the noise was derived from the rule that was given.
    """
    if not isinstance(given, AdaptiveClip) and kept is None:
        return given
    if isinstance(given, AdaptiveClip) and kept == replace(given, clip_norm=kept.clip_norm if kept else 1.0):
        return kept
    raise PlanViolation("The checkpoint was made with another kind of clipping; resume with the same.")


def rule_of_step(clipping: ClipRule | AdaptiveClip) -> ClipRule:
    """Return the rule of the next step; an adaptive one is new each time and records the norms it sees."""
    return NormRecordingClip(clipping.clip_norm) if isinstance(clipping, AdaptiveClip) else clipping
