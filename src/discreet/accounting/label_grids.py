"""Which labels sums in positive arithmetic have: spacings, centres and the labels of a single loss.

Nothing here is a guarantee. :mod:`~discreet.accounting.convolve_direct` is sound for all increasing labels and for
every rule about which of them a sum keeps; a bad choice makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.sampled_pairs import GroupPair

Whole = NDArray[np.int64]
Reach = Callable[[int], int]
"""exponent -> labels up to this distance from the centre are kept at spacing 2^exponent; 0 if it is too fine."""

MOST_LABELS = 400_000
OCTAVES = 40  # between the largest losses and the smallest that are told apart


class LabelGrid:
    """The labels of sums of ``steps`` losses of a pair, ``resolution`` standard deviations apart."""

    def __init__(self, pair: GroupPair, steps: int, resolution: float, spare: float) -> None:
        self.steps, self.resolution = steps, resolution
        self.labels = math.ceil(4 / resolution)
        cells = pair.cells(pair.nodes(math.log(spare)))
        kept = (cells.p > 0) & (cells.q > 0)
        self.losses, self.masses = np.log(cells.p[kept] / cells.q[kept]), cells.p[kept]
        self.mean, variance = self._core(steps)
        self.least = 2.0**-OCTAVES * float(np.abs(self.losses).max())
        self.spread = math.sqrt(variance)

    def scale(self, count: int) -> float:
        """Standard deviation of a sum of common losses, or what is nothing beside the rare ones.

        It is at least the share of the whole sum's variance that ``count`` losses have. Roundings of such a sum enter
        the whole one steps/count times and add up to the same part of its variance at every count, so a finer
        grid at small counts, where the losses that are rare so far do not count as common, would gain nothing.
        """
        return max(math.sqrt(count) * max(math.sqrt(self._core(count)[1]), self.spread), self.least, 1e-300)

    def _core(self, count: int) -> tuple[float, float]:
        """Mean and variance without the largest and smallest losses, of which half a one is expected in a sum."""
        share = min(0.5 / count, 0.16)
        inside = (np.cumsum(self.masses) > share) & (np.cumsum(self.masses[::-1])[::-1] > share)
        losses, masses = self.losses[inside], self.masses[inside]
        total = float(masses.sum())
        if not total > 0:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        mean = float((masses * losses).sum()) / total
        return mean, float((masses * (losses - mean) ** 2).sum()) / total

    def reach(self, count: int) -> Reach:
        """The labels that a sum of ``count`` losses keeps."""
        return self._reach_of(self.scale(count))

    def _reach_of(self, scale: float) -> Reach:
        body, reach = math.floor(math.log2(self.resolution * scale)), 2 * self.labels
        return lambda exponent: reach if exponent >= body else 0

    @staticmethod
    def widest(grids: Sequence[LabelGrid]) -> Reach:
        """The labels of a sum of different parts: its deviation is the root of their squares."""
        return grids[0]._reach_of(math.hypot(*(grid.scale(grid.steps) for grid in grids)))

    def single(self, low: float, high: float) -> tuple[Whole, Whole]:
        """Exponents and integers of the labels from ``low`` to ``high``, in increasing order."""
        reach = self._reach_of(self.scale(1))
        exponent = math.floor(math.log2(self.resolution * self.scale(1)))
        far = max(abs(low), abs(high))
        found = [np.arange(-reach(exponent), reach(exponent) + 1)]
        names = [np.full(len(found[0]), exponent)]
        while math.ldexp(reach(exponent), exponent) < far:
            exponent += 1
            outer = np.arange(self.labels + 1, reach(exponent) + 1)
            found = [-outer[::-1], *found, outer]
            names = [np.full(len(outer), exponent), *names, np.full(len(outer), exponent)]
        places, exponents = np.concatenate(found), np.concatenate(names)
        at = np.ldexp(places.astype(np.float64), exponents)
        first = max(int(np.searchsorted(at, low, side="right")) - 1, 0)
        last = min(int(np.searchsorted(at, high)), len(at) - 1)
        return exponents[first : last + 1], places[first : last + 1]
