"""Certified bounds for one direction of a composition: an epsilon counts when a bound on its delta was checked.

A search (:mod:`~discreet.accounting.search`) chooses lattices and returns a lower bound. The upper end of every
answer is kept here, by the :class:`Proof` that builds what the search proposes: it was checked against the proved
``delta_upper`` of a lattice or of sums in positive arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from discreet.accounting.convolve_direct import Direct, mixture
from discreet.accounting.discretisation import Design, LossDistribution, build
from discreet.accounting.lattice import LossLattice, cell_accuracy
from discreet.accounting.optimistic import refuted_epsilon
from discreet.accounting.pairs import Pair
from discreet.accounting.saddlepoint import Bound, crossing_point
from discreet.accounting.sampled_pairs import GroupPair
from discreet.errors import real
from discreet.guarantee import Bounds

DELTA_REMEDY = "Choose it well below 1 / number of records, for instance 1e-6."
Curve = TypeVar("Curve", LossLattice, Direct)


def ignore_fp_errors() -> np.errstate:
    """No warnings: a NaN or infinity turns an upper bound into 1 and a lower one into 0, never the other way."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


def proved_epsilon(upper: Bound, delta: float, guess: float, top: float, accuracy: float = 1e-9) -> float:
    """An epsilon >= 0, as small as found, with upper(epsilon) <= delta; infinity if there is none below ``top``."""
    if upper(0.0)[0] <= delta:
        return 0.0
    epsilon = max(crossing_point(upper, delta, guess, top, accuracy), 0.0)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon <= min(top, 1e300):
        if upper(epsilon)[0] <= delta:
            return epsilon
        epsilon, nudge = epsilon + nudge, 4 * nudge
    return np.inf


def epsilon_on(curve: LossLattice | Direct, delta: float, guess: float) -> float:
    """The epsilon that ``curve`` proves at ``delta``, looked for near ``guess``."""
    return float(proved_epsilon(curve.delta_upper, delta, guess, largest_epsilon(curve)))


def largest_epsilon(curve: LossLattice | Direct) -> float:
    """An epsilon beyond which nobody looks."""
    end = curve.end + 700.0 / max(curve.tilt, 1e-3) if isinstance(curve, LossLattice) else np.inf
    return float(min(end, 1e15))


def mixtures(plds: Sequence[LossDistribution]) -> list[tuple[GroupPair, int]]:
    """The distributions as mixtures of Gaussians, for positive arithmetic; empty if one of them is none."""
    pairs = [mixture(pld.upper) if pld.upper is pld.lower else None for pld in plds]
    parts = [(pair, pld.count) for pair, pld in zip(pairs, plds, strict=True) if pair]
    return parts if len(parts) == len(pairs) else []


@dataclass
class Proof:
    """Builds what a search proposes, and keeps the least upper bound that this has proved.

    ``upper_on`` is the bound that a curve proves, looked for near a guess.
    """

    plds: Sequence[LossDistribution]
    upper_on: Callable[[LossLattice | Direct, float], float]
    upper: float = np.inf

    def on_grid(self, proposed: Design, guess: float) -> tuple[LossLattice, float]:
        """A lattice and the upper bound that it proves."""
        return self._note(build(self.plds, proposed), guess)

    def directly(self, delta: float, resolution: float, guess: float) -> tuple[Direct, float]:
        """Sums in positive arithmetic and the upper bound that they prove."""
        return self._note(Direct(mixtures(self.plds), delta, resolution), guess)

    def _note(self, curve: Curve, guess: float) -> tuple[Curve, float]:
        found = self.upper_on(curve, guess)
        self.upper = min(self.upper, found)
        return curve, found


class Searching(Protocol):
    """Chooses what a proof builds; returns lower bounds, estimates and proposals, none of which is trusted."""

    def estimate_epsilon(self, delta: float) -> float: ...

    def estimate_delta(self, epsilon: float) -> float: ...

    def epsilon(self, delta: float, tolerance: float, proof: Proof) -> float: ...

    def delta(self, epsilon: float, tolerance: float, proof: Proof) -> float: ...

    def design_at(self, delta: float, tolerance: float) -> tuple[Design, object] | None: ...


class Composed:
    """One direction of a composition; bounds are as tight as ``tolerance`` of the upper one, if possible."""

    def __init__(self, plds: Sequence[LossDistribution], search: Searching) -> None:
        self.plds = tuple(plds)
        self.estimate_epsilon, self.estimate_delta = search.estimate_epsilon, search.estimate_delta
        self._search = search

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds on epsilon at ``delta``."""
        proof = Proof(self.plds, lambda curve, guess: epsilon_on(curve, delta, guess))
        with ignore_fp_errors():
            try:
                return Bounds(self._search.epsilon(delta, tolerance, proof), proof.upper)
            except FloatingPointError:  # nothing is known here
                return Bounds(0.0, np.inf)

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds on delta at ``epsilon``."""
        proof = Proof(self.plds, lambda curve, guess: max(curve.delta_upper(epsilon)[0], 1e-300))
        with ignore_fp_errors():
            try:
                return Bounds(self._search.delta(epsilon, tolerance, proof), proof.upper)
            except FloatingPointError:
                return Bounds(0.0, 1.0)

    def stays_below(self, delta: float, epsilon: float, tolerance: float) -> bool:
        """Proved that delta at ``epsilon`` is no more than ``delta``, on a grid that fits ``tolerance``.

        That is all that is asked of a direction which is not the worst one, and needs no optimistic distribution.
        False only says that this grid does not show it.
        """
        with ignore_fp_errors():
            try:
                proposed = self._search.design_at(delta, tolerance)
                if proposed is None:
                    return False
                return build(self.plds, proposed[0], upper_only=True).delta_upper(epsilon)[0] <= delta
            except FloatingPointError:
                return False


class SingleRelease:
    """A single release: its curve is known in closed form, P(L > epsilon) - e^epsilon Q(L > epsilon)."""

    def __init__(self, pld: LossDistribution) -> None:
        self.pld, self.plds = pld, (pld,)
        self._proved: dict[float, float] = {}

    def estimate_epsilon(self, delta: float) -> float:
        """The upper bound itself."""
        if delta not in self._proved:
            high = max(self.pld.upper.p_range(float(np.log(delta)))[1], 0.0)  # P(L > high) <= delta already
            self._proved[delta] = proved_epsilon(self._upper, delta, high, 1.01 * high + 1e-3, 1e-13)
        return self._proved[delta]

    def estimate_delta(self, epsilon: float) -> float:
        return self._upper(epsilon)[0]

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two distributions, if they differ)."""
        upper = self.estimate_epsilon(delta)
        return Bounds(refuted_epsilon(self._lower, delta, upper * (1 - 1e-9), upper, 1e-13), upper)

    def stays_below(self, delta: float, epsilon: float, tolerance: float) -> bool:
        """Proved that delta at ``epsilon`` is no more than ``delta``."""
        return self._upper(epsilon)[0] <= delta

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two distributions, if they differ)."""
        return Bounds(self._lower(epsilon)[0], self._upper(epsilon)[0])

    def _upper(self, epsilon: float) -> tuple[float, float]:
        # A little to the left, so that no rounding of a boundary can hide mass.
        delta, tail, error, infinite = self._exact(self.pld.upper, epsilon * (1 - 1e-13) - 4e-16)
        return min(1.0, delta + error + infinite), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def _lower(self, epsilon: float) -> tuple[float, float]:
        delta, tail, error, _ = self._exact(self.pld.lower, epsilon * (1 + 1e-13) + 4e-16)
        return max(0.0, delta - error), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    @staticmethod
    def _exact(pair: Pair, epsilon: float) -> tuple[float, float, float, float]:
        """delta, P(L > epsilon), the error of delta, and the mass at infinite loss."""
        with ignore_fp_errors():
            cells = pair.cells(np.array([-np.inf, epsilon, np.inf]))
        p, q = float(cells.p[1]), float(cells.q[1])
        scaled_q = float(np.exp(min(epsilon + np.log(q), 700.0))) if q > 0 else 0.0
        underflow = float(np.exp(min(epsilon - 690.0, 700.0)))  # what a q below 1e-300 may hide
        error = (
            cell_accuracy(float(np.log(max(p, 1e-300))) - max(epsilon, 0.0)) * (p + scaled_q)
            + underflow
            + 1e-300
        )
        return max(p - scaled_q, 0.0), p, error, cells.p_above


def hidden_share(delta: float, infinity_mass: float, rounding: float) -> float:
    """delta of the rest, given that nothing is exposed."""
    return (delta - infinity_mass) / (1 - infinity_mass) * rounding if infinity_mass < 1 else -1.0


def tolerance_asked(asked: float | None, default: float) -> float:
    """The tolerance that was asked for, checked, or the default."""
    if asked is None:
        return default
    wanted = real("tolerance", asked, at_least=1e-6, below=1)
    # One that was asked for is kept everywhere.
    return wanted if wanted != default else math.nextafter(default, 0.0)
