"""What else a privacy curve shows: many points at once, estimates, hit rates of attacks, and pictures.

Nothing that is charged, refused or certified comes from here. Ledgers, plans and certificates ask a curve for
``epsilon_bounds``, ``delta_bounds`` and ``guarantee``, which use nothing of this file, so that no value returned here
can lower what they promise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from discreet.accounting.certified_bounds import DELTA_REMEDY, Proof, ignore_fp_errors
from discreet.accounting.dominating import Direction, Dominating, Tolerances
from discreet.accounting.lattice import LossLattice
from discreet.accounting.max_loss import ULPS
from discreet.accounting.noise_formulas import gaussian_power_bounds
from discreet.accounting.power import chernoff_power, power_near, power_on
from discreet.accounting.search import (
    CurveSearch,
    OneStepSearch,
    Search,
    bounds_by_all,
    refuse_wide,
    tolerance_asked,
)
from discreet.charts import Picture, attack_chart, html_table
from discreet.errors import probability, real
from discreet.guarantee import AnyNeighbours, Bounds

TINY = 1e-12
_USELESS = 1e-3  # a lattice with a larger error shows nothing: very much noise, seen without a tilt
_SHOWN = (1e-5, 1e-6, 1e-8)  # deltas of which a notebook shows the epsilon


class CurveViews(ABC):
    """What follows from the certified points of a curve, and from the distributions of its event."""

    neighbours: AnyNeighbours
    _parts: Dominating
    _search: CurveSearch
    _bulk_lattices: list[LossLattice] | None = None

    @abstractmethod
    def epsilon_bounds(self, delta: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on epsilon at ``delta``."""

    @abstractmethod
    def delta_bounds(self, epsilon: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on delta at ``epsilon``."""

    @abstractmethod
    def delta(self, epsilon: float, *, tolerance: float | None = None) -> float:
        """The smallest delta proved at ``epsilon``."""

    @abstractmethod
    def _hidden_epsilon(self, delta: float, tolerance: float) -> Bounds: ...

    @abstractmethod
    def _hidden_delta(self, epsilon: float, tolerance: float) -> Bounds: ...

    @abstractmethod
    def _gaussian(self, bounds_at: Callable[[float], Bounds], nothing: float) -> Bounds: ...

    @abstractmethod
    def _proof(self) -> Proof: ...

    def epsilons(self, deltas: ArrayLike) -> list[Bounds]:
        """As :meth:`epsilon_bounds` at each of many deltas, in the time of a few: one grid serves its neighbours."""
        asked = [
            real("deltas", value, at_least=0, at_most=1, remedy=DELTA_REMEDY) for value in np.ravel(deltas)
        ]
        found: dict[float, Bounds] = {}
        waiting = sorted(set(asked))
        while waiting:
            middle = waiting[len(waiting) // 2]
            found |= self._on_one_grid(middle, waiting) if len(waiting) > 1 else {}
            if middle not in found:
                found[middle] = self.epsilon_bounds(middle)
            waiting = [delta for delta in waiting if delta not in found]
        return [found[delta] for delta in asked]

    def _on_one_grid(self, at: float, deltas: list[float]) -> dict[float, Bounds]:
        """Of ``deltas``, those at which the grid for the delta ``at`` is close enough."""
        trivial = at in (0, 1) or self._parts.infinity_mass.upper > 0 or self._search.floor is not None
        if trivial or self._parts.boxes or not self._parts.plds:
            return {}
        positive = [delta for delta in deltas if 0 < delta < 1]
        tolerances = Tolerances(positive[0] * 1e-5, 1e-3)
        each = [self._search.in_direction(direction, tolerances) for direction in self._parts.directions()]
        if any(isinstance(one, OneStepSearch) for one in each):
            return {}  # a single release has no grid
        with ignore_fp_errors():
            return bounds_by_all([Search(one.plds) for one in each], at, positive)

    def estimate_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` to about three digits, in a millisecond. An estimate: never report it."""
        exposed = self._parts.infinity_mass.upper
        delta = real("delta", delta, above=0, below=1)
        delta = (delta - exposed) / (1 - exposed) if exposed < 1 else -1.0
        if delta <= 0:
            return np.inf
        if self._parts.boxes:
            return self._search.simple_epsilon(delta)
        if not self._parts.plds:
            return self._hidden_epsilon(delta, 0.02).upper
        # Removing a record is the worse direction wherever the two were compared.
        return self._search.in_direction("remove", Tolerances(delta * 1e-5, 0.02)).estimate_epsilon(delta)

    def deltas(self, epsilons: ArrayLike) -> NDArray[np.float64]:
        """The delta proved at each of many epsilons, in the time of a few: looser than :meth:`delta` where tiny.

        Guarantee: never below the exact ones.
        """
        found = np.array([real("epsilons", value, at_least=0) for value in np.ravel(epsilons)])
        lattices = self._bulks() if self._parts.plds and not self._parts.boxes else []
        if not lattices:
            return np.array([self.delta(float(value)) for value in found])
        exposed = self._parts.infinity_mass.upper
        hidden = [max(lattice.delta_upper(float(value))[0] for lattice in lattices) for value in found]
        return np.minimum(1.0, (exposed + (1 - exposed) * np.array(hidden)) * (1 + ULPS))

    def _bulk(self, direction: Direction) -> LossLattice:
        with ignore_fp_errors():
            return Search(self._parts.plds_of(direction, Tolerances(1e-14, 1e-3))).bulk(1e-3)

    def _bulks(self) -> list[LossLattice]:
        """The bulk of each direction; none where a grid shows nothing."""
        if self._bulk_lattices is None:
            try:
                self._bulk_lattices = [self._bulk(direction) for direction in self._parts.directions()]
            except FloatingPointError:
                self._bulk_lattices = []
        lattices = self._bulk_lattices
        return lattices if max((lattice.error for lattice in lattices), default=1.0) <= _USELESS else []

    def power_bounds(self, false_alarms: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on the best attacker's hit rate at this false-alarm rate (the ROC curve).

        The attacker knows both data sets and sees every release. Hit and false alarm are the errors of a test
        between the two; the worse direction counts. A ``tolerance`` is treated as by :meth:`epsilon_bounds`.
        """
        alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
        wanted = tolerance_asked(tolerance, 1e-2)
        low, high = self._parts.infinity_mass
        lower = low + (1 - low) * self._hidden_power(min(1.0, alarms / max(1 - low, TINY)), wanted).lower
        upper = high + (1 - high) * self._hidden_power(min(1.0, alarms / max(1 - high, TINY)), wanted).upper
        upper = min(1.0, upper * (1 + ULPS))
        if self._search.floor is not None:
            lower = self._search.floor.power_bounds(alarms).lower
        bounds = Bounds(min(max(alarms, lower * (1 - ULPS)), upper), upper)
        refuse_wide(bounds, "power", tolerance, 1e-280)
        return bounds

    @ignore_fp_errors()
    def _hidden_power(self, alarms: float, tolerance: float) -> Bounds:
        if self._parts.boxes:
            return self._simple_power(alarms)
        if not self._parts.plds:
            return self._gaussian(lambda mu: gaussian_power_bounds(alarms, mu), alarms)
        lattices = self._bulks()
        if not lattices:
            at_zero = self._hidden_delta(0.0, 1e-2)  # nobody has more hits than alarms + delta(0)
            upper = min((alarms + at_zero.upper) * (1 + ULPS), self._simple_power(alarms).upper)
            return Bounds(alarms, min(1.0, upper))
        bounds = Bounds.of_largest(power_on(lattice, alarms) for lattice in lattices)
        if bounds.upper - bounds.lower <= tolerance * bounds.upper or not 0 < alarms < 1:
            return bounds
        tolerances = Tolerances(alarms * 1e-5, tolerance)
        each = [self._search.in_direction(direction, tolerances) for direction in self._parts.directions()]
        return power_near([(one, Search(one.plds)) for one in each], alarms, tolerance, bounds)

    def _simple_power(self, alarms: float) -> Bounds:
        """The bound that always exists, by moments."""
        proof, about = self._proof(), max(1e-3 * alarms, 1e-30)
        bounds = [proof.moments(name, about) for name in self._parts.directions()]
        worst = max(chernoff_power(bound, max(alarms, 1e-30)) for bound in bounds)
        return Bounds(alarms, max(worst, alarms))

    def plot(self) -> Picture:
        """The best attack: how many records it finds, at every rate of false alarms."""
        return Picture(attack_chart(self.power))

    def _repr_html_(self) -> str:
        bounds = [(f"{delta:g}", *self.epsilon_bounds(delta)) for delta in _SHOWN]
        rows = [(delta, f"{upper:.4g}", f"{lower:.4g}") for delta, lower, upper in bounds]
        head, caption = ("delta", "epsilon at most", "and at least"), f"{self.neighbours} neighbours"
        return html_table(head, rows, caption) + self.plot().svg

    def advantage(self) -> float:
        """The best attacker's hit rate minus false-alarm rate, at most: delta at epsilon 0."""
        return self.delta(0.0)

    def bayes_risk(self, prior: float) -> float:
        """Guarantee: who believes that the record is there with probability ``prior``, and sees everything, is wrong
        with at least this probability.

        It is min(prior, 1 - prior) without the releases. The best attacker decides by the ratio of both worlds'
        densities, and errs with probability prior - prior H_a, a = (1 - prior) / prior.
        """
        prior = probability("prior", prior)
        rarer = min(prior, 1 - prior)
        odds = (1 - rarer) / rarer * (1 - ULPS)
        return max(0.0, rarer * (1 - self.delta(float(np.log(max(odds, 1.0))))) * (1 - ULPS))

    def mu_estimate(self) -> float:
        """About the mu of the single Gaussian release that is as easy to attack. An estimate: it proves nothing.

        The largest of what the attacker's hit rates at false alarms from 1e-3 to one half amount to. For plain
        Gaussian noise it is exact; for many small steps it is the limit of the central limit theorem.
        """
        alarms = np.array([1e-3, 1e-2, 0.1, 0.3, 0.5])
        hits = np.array([min(self.power(float(at)), 1 - 1e-16) for at in alarms])
        return max(0.0, float(np.max(ndtri(hits) - ndtri(alarms))))

    def power(self, false_alarms: float, *, tolerance: float | None = None) -> float:
        """The best attacker's hit rate at this false-alarm rate, at most."""
        return self.power_bounds(false_alarms, tolerance=tolerance).upper
