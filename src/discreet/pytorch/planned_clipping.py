"""The clipping of a run: does it fit the plan, and what follows from it for a step?

With :class:`~discreet.core.clipping.AdaptiveClip` every step has its own clip norm, and the count of norms within it
takes part of the step's cost, so the sum gets more noise than planned for it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.plan.stage import Stage
from discreet.pytorch.adaptive import Watched


def checked_clipping(clipping: object) -> ClipRule | AdaptiveClip:
    """``clipping`` if it is a rule for clipping, or raise."""
    if isinstance(clipping, ClipRule | AdaptiveClip):
        return clipping
    raise InvalidParameter(
        "clipping", clipping, "must be Flat, Normalised, PerBlock, AdaptiveClip or your own ClipRule."
    )


def planned_clipping(clipping: object, clip_norm: float) -> ClipRule | AdaptiveClip:
    """``clipping`` if it bounds what the plan says, or raise; without it, flat clipping."""
    if clipping is None:
        return Flat(clip_norm)
    rule = checked_clipping(clipping)
    if not abs(rule.clip_norm - clip_norm) <= 1e-9 * clip_norm:
        remedy = f"must have the clip norm of the plan, {clip_norm:g}; an adaptive one begins there."
        raise InvalidParameter("clipping", clipping, remedy)
    return rule


def clipping_of_stages(clipping: object, stages: Iterable[Stage]) -> list[ClipRule | AdaptiveClip]:
    """The clipping of each stage: by the stages' names, or one rule for all of them."""
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


def rule_of_step(clipping: ClipRule | AdaptiveClip) -> ClipRule:
    """The rule for the next step; an adaptive one is new each time and remembers the norms it sees."""
    return Watched(clipping.clip_norm) if isinstance(clipping, AdaptiveClip) else clipping


def noise_of_sum(clipping: ClipRule | AdaptiveClip, planned: Gaussian) -> Gaussian:
    """What is planned, or more where the count of an adaptive clip norm takes its part of a step's cost."""
    return clipping.of_sum(planned) if isinstance(clipping, AdaptiveClip) else planned
