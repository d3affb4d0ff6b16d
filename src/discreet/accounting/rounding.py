"""What the rounding of cell masses can do to a composed curve.

A normal tail of mass m is computed to ULP (c + 2 log(1/m)) of itself, because its argument is rounded. The curve at a
loss l is P(L > l) - e^l Q(L > l), and Q(L > l) is as small as m e^-l, so with m = P(L > l) the curve is computed to
ULP m (12 + 3 log(1/m) + 3 l_+). Tests check the constants against arbitrary precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ULP = 2.3e-16


def cell_accuracy(log_delta: float) -> float:
    """Bound on the rounding of a one-step curve after composition, relative to the composed tail P(L > epsilon).

    A normal tail of mass m is computed to ulp (c + 2 log(1/m)), because its argument is rounded. The error of
    the composed curve is the mean of m ulp (c + 2 log(1/m)) over the other losses; that function of m is
    concave, so it is at most its value at the mean of m, which is the composed tail and no less than delta. For large
    losses, ``log_delta`` is that of delta less the largest of them.
    """
    return ULP * (12.0 + 3.0 * max(-log_delta, 0.0))


@dataclass(frozen=True, eq=False)
class Layers:
    """The rounding of cell masses, told apart by how rare a loss is.

    log(1/m) is less than 1 + the number of k >= 1 with m < e^-k, and l less than 1 + that of k >= 1 with l > k. After
    composition m is averaged over the other losses. Where m < e^-k, this loss is beyond its e^-k quantile (or beyond
    k) and the total beyond epsilon, which has at most the probability of the second, the tail, and at most (Chernoff)
    the unit of the lattice times the tilted mass of the first. So most losses are charged with 18 ulps instead of
    hundreds, and only rare ones with more. Layers below all that is asked are covered by the 1.
    """

    common: float
    each: float
    rare: Array

    @classmethod
    def of(cls, losses: Array, tilted: Array, masses: Array, widths: Array, log_delta: float) -> Layers:
        """From a law on chords, tilted and not; ``widths`` are the widths of the cells above times the tilt."""
        count = int(np.clip(-log_delta, 1.0, 700.0))
        # All of a cell counts at its upper end, and from the vertex below the quantile on.
        beyond = np.cumsum((tilted * np.exp(np.minimum(widths, 50.0)))[::-1])[::-1]
        tails = np.cumsum(masses[::-1])[::-1]
        first = np.searchsorted(-tails, -np.exp(-np.arange(1.0, count + 1.0)), side="left") - 1
        large = np.searchsorted(losses, np.arange(1.0, max(float(losses[-1]), 0.0) + 1.0), side="right") - 1
        rare = 1.01 * beyond[np.clip(np.concatenate([first, large]), 0, len(beyond) - 1)]
        return cls(18.0 * ULP, 3.0 * ULP, 3.0 * ULP * rare)

    def rounding(self, tail: float) -> float:
        return self.common * tail + float(np.minimum(self.each * tail, self.rare).sum())

    def times(self, count: int, more: Layers | None = None) -> Layers:
        """``count`` releases of this kind, and ``more``."""
        common, each, rare = count * self.common, count * self.each, count * self.rare
        if more is None:
            return Layers(common, each, rare)
        if len(rare) == len(more.rare):
            return Layers(common + more.common, each + more.each, rare + more.rare)
        # Layers of different kinds: the smaller of the two bounds, for each kind on its own.
        return Layers(common + more.common, max(each, more.each), np.concatenate([rare, more.rare]))
