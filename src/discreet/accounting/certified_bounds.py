"""Proved points above a privacy curve: (epsilon, delta) counts when a bound on delta at epsilon was computed here.

A search (:mod:`~discreet.accounting.search`) proposes grids, resolutions and epsilons, and finds lower bounds. Upper
bounds come from :class:`Proof` alone, which builds what is proposed from the distributions of the event and reads it
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from discreet.accounting.chernoff import Chernoff
from discreet.accounting.convolve_direct import Direct, mixture
from discreet.accounting.discretisation import CUT, Design, LossDistribution, build
from discreet.accounting.dominating import Direction, Dominating, Tolerances
from discreet.accounting.lattice import LossLattice, cell_accuracy
from discreet.accounting.max_loss import ULPS, delta_near_largest, largest_loss
from discreet.accounting.pairs import Pair
from discreet.accounting.sampled_pairs import GroupPair
from discreet.guarantee import Bounds

DELTA_REMEDY = "Choose it well below 1 / number of records, for instance 1e-6."
ROUGH = Tolerances(1e-12, 1e-2)
LossDistributionsOf = Callable[[Direction, Tolerances], list[LossDistribution]]


def ignore_fp_errors() -> np.errstate:
    """No warnings: a NaN or infinity turns an upper bound into 1 and a lower one into 0, never the other way."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


def mixtures(plds: Sequence[LossDistribution]) -> list[tuple[GroupPair, int]]:
    """The distributions as mixtures of Gaussians; empty if one of them is none."""
    pairs = [mixture(pld.upper) if pld.upper is pld.lower else None for pld in plds]
    parts = [(pair, pld.count) for pair, pld in zip(pairs, plds, strict=True) if pair]
    return parts if len(parts) == len(pairs) else []


class SingleRelease:
    """The curve of a single release: P(L > epsilon) - e^epsilon Q(L > epsilon)."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def delta_upper(self, epsilon: float) -> tuple[float, float]:
        """A proved upper bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        # A little to the left, so that no rounding of a boundary can hide mass.
        delta, tail, error, infinite = self.exact(epsilon * (1 - 1e-13) - 4e-16)
        return min(1.0, delta + error + infinite), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def exact(self, epsilon: float) -> tuple[float, float, float, float]:
        """delta, P(L > epsilon), the error of delta, and the mass at infinite loss."""
        with ignore_fp_errors():
            cells = self.pair.cells(np.array([-np.inf, epsilon, np.inf]))
        p, q = float(cells.p[1]), float(cells.q[1])
        scaled_q = float(np.exp(min(epsilon + np.log(q), 700.0))) if q > 0 else 0.0
        underflow = float(np.exp(min(epsilon - 690.0, 700.0))) + 1e-300  # what a q below 1e-300 may hide
        error = cell_accuracy(float(np.log(max(p, 1e-300))) - max(epsilon, 0.0)) * (p + scaled_q)
        return max(p - scaled_q, 0.0), p, error + underflow, cells.p_above


Curve = TypeVar("Curve", LossLattice, Direct, SingleRelease)
Points = list[tuple[float, float]]


class Evidence(Generic[Curve]):
    """A curve that bounds one direction from above; what is noted of it counts."""

    def __init__(self, curve: Curve, points: Points) -> None:
        self.curve: Curve = curve
        self._points = points

    def note(self, epsilon: float) -> float:
        """The bound on delta at a proposed ``epsilon``, which counts from now on."""
        delta: float = self.curve.delta_upper(epsilon)[0]
        if 0 <= epsilon < np.inf:
            self._points.append((epsilon, delta))
        return delta


class Hidden(Protocol):
    """A privacy curve without the probability of full exposure."""

    def _hidden_epsilon(self, delta: float, tolerance: float) -> Bounds: ...

    def _hidden_delta(self, epsilon: float, tolerance: float) -> Bounds: ...


class Proof:
    """Upper bounds on delta in every direction of an event, without its probability of full exposure.

    Whoever proposes grids and epsilons cannot make a bound too small: only points that were computed from the
    distributions of the event count, and every direction needs one.
    """

    def __init__(
        self, parts: Dominating, plds_of: LossDistributionsOf, unsampled: Callable[[], Hidden | None]
    ) -> None:
        self.parts, self._plds_of, self._unsampled = parts, plds_of, unsampled
        self._points: dict[Direction, Points] = {name: [] for name in parts.directions()}
        if not parts.boxes:
            for name, points in self._points.items():
                points.append((self.largest_loss(name) * (1 + ULPS), 0.0))

    def plds(self, direction: Direction, tolerances: Tolerances = ROUGH) -> list[LossDistribution]:
        """The loss distributions of all releases; refused where there are black boxes besides."""
        if self.parts.boxes:
            raise ValueError("black boxes have moments only")
        return self._plds_of(direction, tolerances)

    def largest_loss(self, direction: Direction) -> float:
        """The largest loss in a direction; infinite for Gaussian noise, but for its sampled additions."""
        return float(np.inf) if self.parts.boxes else largest_loss(self.plds(direction))

    def on_grid(
        self, direction: Direction, tolerances: Tolerances, design: Design, upper_only: bool
    ) -> Evidence[LossLattice]:
        """All releases on a proposed grid."""
        return Evidence(build(self.plds(direction, tolerances), design, upper_only), self._points[direction])

    def directly(
        self, direction: Direction, tolerances: Tolerances, delta: float, resolution: float
    ) -> Evidence[Direct]:
        """All releases in positive arithmetic."""
        curve = Direct(mixtures(self.plds(direction, tolerances)), delta, resolution)
        return Evidence(curve, self._points[direction])

    def one_step(self, direction: Direction, tolerances: Tolerances) -> Evidence[SingleRelease] | None:
        """The only release; None if there are several."""
        pld, *others = self.plds(direction, tolerances)
        single = pld.count == 1 and not others
        return Evidence(SingleRelease(pld.upper), self._points[direction]) if single else None

    def note_near_largest(self, direction: Direction, epsilon: float) -> None:
        """Note the bound on delta from the atoms near the largest loss."""
        self._points[direction].append((epsilon, delta_near_largest(self.plds(direction), epsilon).upper))

    def note_epsilon_by_moments(self, delta: float, about: float) -> None:
        """Note Chernoff's bound on epsilon; losses that are rare beside ``about`` count as infinite."""
        for name, points in self._points.items():
            points.append((self.moments(name, about).epsilon(delta), delta))

    def note_delta_by_moments(self, epsilon: float, about: float) -> None:
        """Note Chernoff's bound on delta; losses that are rare beside ``about`` count as infinite."""
        for name, points in self._points.items():
            points.append((epsilon, self.moments(name, about).delta(epsilon)))

    def moments(self, direction: Direction, about: float) -> Chernoff:
        """Chernoff's bound for one direction; losses that are rare beside ``about`` count as infinite."""
        plds = self._plds_of(direction, Tolerances(about * 1e-5, 1e-3))
        log_tail = float(np.log(about * CUT / (1 + sum(pld.count for pld in plds))))
        return Chernoff.of([(pld.upper, pld.count) for pld in plds], log_tail, self.parts.boxes)

    def note_epsilon_without_sampling(self, delta: float) -> None:
        """Note the epsilon of the same releases on all records, which dominate the event in every direction."""
        if (whole := self._unsampled()) is not None:
            epsilon = whole._hidden_epsilon(delta, 1e-3).upper
            for points in self._points.values():
                points.append((epsilon, delta))

    def note_delta_without_sampling(self, epsilon: float) -> None:
        """Note the delta of the same releases on all records, which dominate the event in every direction."""
        if (whole := self._unsampled()) is not None:
            delta = whole._hidden_delta(epsilon, 1e-2).upper
            for points in self._points.values():
                points.append((epsilon, delta))

    def epsilon(self, delta: float) -> float:
        """The least epsilon at which no direction has more than ``delta``."""
        return max(
            min((epsilon for epsilon, bound in points if bound <= delta), default=np.inf)
            for points in self._points.values()
        )

    def delta(self, epsilon: float) -> float:
        """The least delta that no direction exceeds at ``epsilon``."""
        return max(
            min((bound for place, bound in points if place <= epsilon), default=1.0)
            for points in self._points.values()
        )
