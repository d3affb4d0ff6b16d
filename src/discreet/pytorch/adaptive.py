"""A clip norm that follows the gradients, as a run carries it out: count, release the count, move.

See :class:`~discreet.core.clipping.AdaptiveClip` for the idea and for what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from discreet.core.clipping import AdaptiveClip, Flat
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.pytorch.distributed import Processes


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
