"""The clipping of a run: does it fit the plan, and what follows from it for a step?

With :class:`~discreet.core.clipping.AdaptiveClip` every step has its own clip norm, and the count of norms within it
takes part of the step's cost, so the sum gets more noise than planned for it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.plan.stage import Stage
from discreet.pytorch.distributed import Processes

# ---- a clip norm that follows the gradients, as a run carries it out ----
#
# See `AdaptiveClip` for the idea and for what it costs.


@dataclass(frozen=True)
class Watched(Flat):
    """Flat clipping that remembers the norms it is asked about, so that no second pass is needed to count them.

    >>> rule = Watched(clip_norm=2.0)
    >>> rule.factors([[1.0], [4.0]]).round(9).tolist(), rule.norms()
    ([[1.0], [0.5]], array([1., 4.]))
    """

    _seen: list[NDArray[Any]] = field(default_factory=list, repr=False, compare=False)

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """As :meth:`Flat.factors`."""
        self._seen.append(np.asarray(norms, dtype=np.float64).ravel())
        return super().factors(norms, error)

    def norms(self) -> NDArray[np.float64]:
        """All norms so far. They are private."""
        return np.concatenate([np.zeros(0), *self._seen])


def moved(
    adaptive: AdaptiveClip, norms: NDArray[np.float64], processes: Processes, stream: RandomStream
) -> AdaptiveClip:
    """Release how many of the norms were within the clip norm, and let the clip norm follow.

    Guarantee: what is used of the norms is their count with the noise of ``adaptive.count_event``.
    """
    count = torch.tensor([adaptive.count(norms)], dtype=torch.float64)
    add_noise(BoundedSum(count, clip_norm=0.5), processes.share(adaptive.count_event), stream, out=count)
    processes.add_up(count)
    return adaptive.updated(float(count))


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
