"""The typical size of positive numbers: :func:`typical_size`.

A histogram of half octaves, of which the best three neighbours are taken. One record adds 1 to one cell, however
large its number is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

_LOWEST, _HIGHEST = -28, 28  # half octaves: from 2**-14 to 2**14


class Typical(NamedTuple):
    """A size near which many numbers lie; ``found`` if their count is clearly above the noise."""

    size: float
    found: bool


def typical_size(numbers: Iterable[tuple[NDArray[Any], NDArray[Any] | None]], stage: Stage) -> Typical:
    """Where most of the numbers lie, from chunks of (numbers, weights or None).

    Guarantee: a record adds at most 1 to one cell, so the sensitivity is 1.
    """
    sums = Sums(stage, _HIGHEST - _LOWEST + 1, clip_norm=1.0)
    for values, weights in numbers:
        half_octaves = np.floor(2 * np.log2(np.maximum(values, 1e-12)))
        sums.add_ones(np.clip(half_octaves, _LOWEST, _HIGHEST).astype(np.int64) - _LOWEST, weights)
    counts = sums.released()
    windows = np.convolve(counts, np.ones(3), "same")
    best = int(np.argmax(windows))
    near = np.arange(max(0, best - 1), min(len(counts), best + 2))
    share = np.maximum(counts[near], 1e-9)
    middle = float(share @ (near + _LOWEST + 0.5) / share.sum())
    return Typical(2.0 ** (middle / 2), bool(windows[best] > 3 * math.sqrt(3) * sums.noise))
