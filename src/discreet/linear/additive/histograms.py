"""Histograms of all columns by one joint release, at the edges of :mod:`~discreet.linear.additive.landmarks`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.landmarks import coarse
from discreet.linear.glm.marginals import Marginals, Released, from_release
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

_ROUNDING = 1 + 1e-9  # what float sums of admitted rows can be off by


@dataclass(frozen=True, eq=False)
class Histograms:
    """The noisy numbers of records in each bin of each numeric column; ``noise`` is on every one of them."""

    edges: tuple[Array, ...]
    counts: tuple[Array, ...]
    noise: float


def counted(
    records: Records, edges: tuple[Array, ...], count: float, stage: Stage
) -> tuple[Histograms, Marginals]:
    """Histograms, and centre and scale of every column.

    Guarantee: a record adds one 1 to the histogram and |x - 1/2| <= 1/2 to the sum of each numeric column, and its
    one-hot block of squared norm at most #groups. So the squared sensitivity is 5/4 #numerics + #groups.
    """
    columns = records.columns
    k, starts = columns.numerics, np.cumsum([0, *(len(found) - 1 for found in edges)])
    total = int(starts[-1])
    sums = Sums(stage, total + columns.width, _ROUNDING * math.sqrt(1.25 * k + len(columns.groups)))
    for x, _, weights in records.chunks():
        for j, found in enumerate(edges):
            cells = np.clip(np.searchsorted(found, x[:, j], side="right") - 1, 0, len(found) - 2)
            sums.add_ones(cells + int(starts[j]), weights)
        sums.add_rows(total, x[:, :k] - np.float32(0.5), weights)
        sums.add_rows(total + k, x[:, k:], weights)
    noisy = sums.released()
    counts = tuple(np.split(noisy[:total], starts[1:-1])) if k else ()
    means = noisy[total:] / count
    means[:k] += 0.5
    even = np.array([coarse(*known, sums.noise) for known in zip(counts, edges, strict=True)])
    marginals = from_release(columns, even, means, np.empty(0), sums.noise, count)
    released = Released(even, means[columns.categories] * count, sums.noise)
    return Histograms(edges, counts, sums.noise), marginals._replace(released=released)
