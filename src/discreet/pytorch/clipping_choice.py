"""Choice of the clipping of each stage of a plan; :mod:`discreet.pytorch.training_stages` enforces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat, Normalised, PerBlock
from discreet.errors import InvalidParameter, PlanViolation
from discreet.plan.stage import Stage


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
    return rule


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
