"""Bounds that always exist: Chernoff's inequality for the distributions of one direction.

For every tilt t > 0, with M(t) = E_P e^{t L} of the total loss,

    delta(epsilon)  <=  M(t) e^{-t epsilon} max_y e^{-t y} (1 - e^{-y}),

because (1 - e^{-y})_+ <= e^{t y} times that maximum. It is the Renyi accountant in another dress (Canonne, Kamath,
Steinke 2020), a few percent above the truth, and it needs no convolution. Losses too rare to matter are counted as
infinite, which tames the moments of small samples.

M is taken from a distribution on the chords of a coarse grid. It is a mixture of hockey-sticks with positive weights,
M = t (t + 1) int H_a a^{t-1} da, so the chords, which are above H, can only enlarge it; and a curve that is wrong by
the share u of its tail makes M wrong by the share (t + 1) u.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from discreet.accounting.discretisation import chords
from discreet.accounting.lattice import ULP, cell_accuracy, largest_weight
from discreet.accounting.pairs import Array, Pair
from discreet.errors import UnsupportedEvent
from discreet.events import RenyiDP, ZeroConcentratedDP

# Black boxes that come with a Renyi curve: how much they add to the moments of everything else.
#
# For an adaptive composition with a box whose Renyi divergences are at most D_a, in both directions and at every
# history, E_P e^{tL} of the total loss is at most that of the rest times e^{t D_{1+t}}: condition on the history. So
# boxes join the moment bound (:mod:`~discreet.accounting.chernoff`), which is an upper bound and no more: nothing is
# known of a box that would bound it from below.


LogMoment = Callable[[Array], Array]
"""Tilts t > 0 -> an upper bound on t D_{1+t}."""


def log_moment_of(box: RenyiDP | ZeroConcentratedDP, group_size: int) -> LogMoment:
    """What ``box`` adds to log E e^{tL}, for groups of that size."""
    if isinstance(box, ZeroConcentratedDP):
        rho = box.rho * group_size**2 * (1 + 1e-15)  # Bun and Steinke 2016, proposition 27
        return lambda tilts: np.asarray(rho * tilts * (1 + tilts) * (1 + 1e-15))
    if group_size > 1:
        raise UnsupportedEvent(
            "a Renyi curve at some orders says little about groups; use ZeroConcentratedDP, or group_size=1."
        )
    # Divergences grow with the order, and t D_{1+t} is convex in t and 0 at 0: it lies below its chords.
    values = np.minimum.accumulate(np.array(box.values)[::-1])[::-1]
    knots = np.concatenate([[0.0], np.array(box.orders) - 1.0])
    with np.errstate(over="ignore"):
        heights = np.concatenate([[0.0], knots[1:] * values])
    return lambda tilts: np.asarray(np.interp(tilts, knots, heights, right=np.inf) * (1 + 1e-14))


ROUNDING = 1e-12  # relative, of sums of logarithms and of products with counts


@dataclass(frozen=True, eq=False)
class Chernoff:
    """Upper bounds for a composition whose rare losses, of P-mass ``infinite`` in all, count as infinite."""

    plds: tuple[tuple[Array, Array, int], ...]
    infinite: float
    accuracy: float
    boxes: tuple[tuple[LogMoment, int], ...] = ()

    @classmethod
    def of(
        cls,
        parts: Sequence[tuple[Pair, int]],
        log_tail: float,
        boxes: tuple[tuple[LogMoment, int], ...] = (),
    ) -> Chernoff:
        """From pairs and their counts; losses beyond the P-mass exp(``log_tail``) are rare.

        The nodes of a pair are a proposal: any finite losses are sound.
        """
        plds, infinite, accuracy = [], 0.0, 0.0
        for pair, count in parts:
            losses = _strictly_increasing(pair.nodes(log_tail))
            with np.errstate(all="ignore"):
                masses, above = chords(pair, losses)
                kept = masses > 0
                plds.append((losses[kept], np.log(masses[kept]), count))
            # Of a tail m < e^log_tail, ULP m log(e^log_tail / m) is not charged below: less than ULP e^log_tail.
            above += 4 * ULP * float(np.exp(log_tail))
            infinite += count * above if np.all(np.isfinite(masses)) else np.inf
            accuracy += count * cell_accuracy(log_tail - max(float(losses[-1]), 0.0))
        return cls(tuple(plds), infinite * (1 + ROUNDING), accuracy, boxes)

    def epsilon(self, delta: float) -> float:
        """Guarantee: everything together is (this epsilon, ``delta``)-DP in this direction."""
        if not self.infinite < delta:
            return np.inf
        log_share = float(np.log(delta - self.infinite)) - 1e-15
        return max(0.0, least(lambda tilts: (self.log_delta(tilts) - log_share) / tilts))

    def delta(self, epsilon: float) -> float:
        """Guarantee: everything together is (``epsilon``, this delta)-DP in this direction."""
        smallest = least(lambda tilts: self.log_delta(tilts) - tilts * epsilon * (1 - ROUNDING))
        return float(min(1.0, np.exp(min(smallest, 0.0)) * (1 + ROUNDING) + self.infinite))

    def log_delta(self, tilts: Array) -> Array:
        """log of M(t) times the largest weight, rounded up."""
        total, slack = np.zeros(len(tilts)), np.zeros(len(tilts))
        for losses, log_p, count in self.plds:
            moment = logsumexp(log_p + tilts[:, None] * losses, axis=1)
            total += count * moment
            slack += count * np.abs(moment)
        for box, count in self.boxes:
            total += count * box(tilts)
            slack += count * box(tilts)
        weights = np.log([largest_weight(float(tilt)) for tilt in tilts])
        slack = ROUNDING * (slack + np.abs(weights)) + self.accuracy * (tilts + 1)
        return np.asarray(total + weights + slack)


def least(objective: Callable[[Array], Array]) -> float:
    """About the smallest value over all tilts. Every tilt is valid, so the search may be rough."""
    tilts = np.geomspace(1e-9, 1e9, 73)
    for width in (1.8, 1.12, 1.01):
        with np.errstate(all="ignore"):
            values = np.nan_to_num(objective(tilts), nan=np.inf)
        best = int(np.argmin(values))
        tilts = tilts[best] * np.geomspace(1 / width, width, 21)
    return float(values[best])


def _strictly_increasing(values: Array) -> Array:
    return np.unique(values[np.isfinite(values)])
