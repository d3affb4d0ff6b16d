"""A single release: bounds in closed form, which differ by rounding only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet.accounting.building import Law
from discreet.accounting.certify import Composed, proved_epsilon, quiet, refuted_epsilon
from discreet.accounting.lattice import Lattice, cell_accuracy
from discreet.accounting.pairs import Pair
from discreet.guarantee import Bounds


class OneStep:
    """A single release: its curve is known in closed form, P(L > epsilon) - e^epsilon Q(L > epsilon)."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._proved: dict[float, float] = {}

    def estimate_epsilon(self, delta: float) -> float:
        """The upper bound itself."""
        if delta not in self._proved:
            high = max(self.law.upper.p_range(float(np.log(delta)))[1], 0.0)  # P(L > high) <= delta already
            self._proved[delta] = proved_epsilon(self._upper, delta, high, 1.01 * high + 1e-3, 1e-13)
        return self._proved[delta]

    def estimate_delta(self, epsilon: float) -> float:
        return self._upper(epsilon)[0]

    def lattice_near(self, epsilon: float, tolerance: float) -> Lattice | None:
        return Composed([self.law]).lattice_near(epsilon, tolerance)

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        upper = self.estimate_epsilon(delta)
        return Bounds(refuted_epsilon(self._lower, delta, upper * (1 - 1e-9), upper, 1e-13), upper)

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> None:
        """Nothing: a single release has no grid."""

    def stays_below(self, delta: float, epsilon: float, tolerance: float) -> bool:
        """Proved that delta at ``epsilon`` is no more than ``delta``."""
        return self._upper(epsilon)[0] <= delta

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        return Bounds(self._lower(epsilon)[0], self._upper(epsilon)[0])

    def _upper(self, epsilon: float) -> tuple[float, float]:
        # A little to the left, so that no rounding of a boundary can hide mass.
        delta, tail, error, infinite = self._exact(self.law.upper, epsilon * (1 - 1e-13) - 4e-16)
        return min(1.0, delta + error + infinite), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def _lower(self, epsilon: float) -> tuple[float, float]:
        delta, tail, error, _ = self._exact(self.law.lower, epsilon * (1 + 1e-13) + 4e-16)
        return max(0.0, delta - error), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    @staticmethod
    def _exact(pair: Pair, epsilon: float) -> tuple[float, float, float, float]:
        """delta, P(L > epsilon), the error of delta, and the mass at infinite loss."""
        with quiet():
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
