"""``account(event)``: what does this release cost? Its privacy curve: every (epsilon, delta), proved from both sides.

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> curve = account(step * 10_000)
>>> round(curve.epsilon(delta=1e-5), 2)
0.95
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from discreet.accounting.attained import attained
from discreet.accounting.certified_bounds import DELTA_REMEDY, Proof, ignore_fp_errors
from discreet.accounting.curve_views import CurveViews
from discreet.accounting.dominating import Dominating, Relation, dominating, without_sampling
from discreet.accounting.gaussian import gaussian_delta_bounds, gaussian_epsilon_bounds
from discreet.accounting.max_loss import ULPS
from discreet.accounting.search import SMALLEST_EPSILON, TOLERANCE, CurveSearch, refuse_wide, tolerance_asked
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Event
from discreet.guarantee import AnyNeighbours, Bounds, Guarantee, any_neighbours_named

_NOTHING = Bounds(0.0, 0.0)
_MU_ERROR = 4e-16  # of the root of the sum of squares, relative


def account(event: Event, neighbours: AnyNeighbours = "add-remove", group_size: int = 1) -> PrivacyCurve:
    """The certified privacy curve of ``event``.

    ``neighbours`` says which data sets must look alike: with and without one record (``"add-remove"``), or with
    one record exchanged (``"replace-one"``); or, of curves only, with one record that counts for nothing in one of
    them (``"zero-out"``). ``group_size`` protects that many records of one person together:
    all of them join or leave (or are exchanged), each sampled on its own.

    Combinations without a proved theorem raise :class:`~discreet.errors.UnsupportedEvent`.
    """
    if not isinstance(event, Event):
        raise InvalidParameter(
            "event", event, "must be an event, for instance Gaussian(noise_multiplier=1.0)."
        )
    return PrivacyCurve(event, neighbours, group_size)


class PrivacyCurve(CurveViews):
    """What an event costs. Made by :func:`account`.

    Guarantee: the exact curve of the event's dominating pair lies between the two ends of every bound. For
    Gaussian, Laplace, Poisson-sampled and randomly allocated releases that pair is attained, so the lower end
    is a lower bound for the release itself; for fixed-size batches it belongs to the pair only. For batches with
    replacement or a limit the lower end is that of two data sets, and may be far below the upper one.
    """

    def __init__(
        self, event: Event, neighbours: AnyNeighbours, group_size: int, *, floor: bool = False
    ) -> None:
        self.event = event
        self.neighbours = any_neighbours_named(neighbours)
        self.group_size = whole("group_size", group_size, at_least=1, at_most=10_000)
        relation = Relation(self.neighbours, self.group_size)
        self._parts: Dominating = attained(event, relation) if floor else dominating(event, relation)
        self._plds_of = lru_cache(maxsize=8)(self._parts.plds_of)
        self._search = CurveSearch(self, is_floor=floor)

    def __repr__(self) -> str:
        return f"PrivacyCurve({self.event!r}, neighbours={self.neighbours!r}, group_size={self.group_size})"

    def epsilon(self, delta: float, *, tolerance: float | None = None) -> float:
        """The smallest epsilon proved at ``delta``: never below the exact one."""
        return self.epsilon_bounds(delta, tolerance=tolerance).upper

    def epsilon_bounds(self, delta: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on epsilon at ``delta``.

        They are meant to be 1e-3 of the upper one apart. At the far ends of the range they may be further apart,
        and are returned all the same; only a ``tolerance`` that was asked for and is not met raises
        :class:`~discreet.errors.AccuracyNotReached`.

        Infinite where some outcome of a black box reveals everything with more than this probability.
        """
        delta = real("delta", delta, at_least=0, at_most=1, remedy=DELTA_REMEDY)
        wanted = tolerance_asked(tolerance, TOLERANCE)
        infinity_mass = self._parts.infinity_mass
        if delta == 1:  # everything is (0, 1)-DP
            return _NOTHING
        if delta < infinity_mass.lower:
            return Bounds(np.inf, np.inf)
        hidden = self._hidden_epsilon(hidden_share(delta, infinity_mass.upper, 1 - ULPS), wanted)
        lower = self._search.lower_epsilon(delta, hidden, wanted)
        bounds = Bounds(float(lower), float(hidden.upper))
        refuse_wide(bounds, "epsilon", tolerance, SMALLEST_EPSILON)
        return bounds

    @ignore_fp_errors()
    def _hidden_epsilon(self, delta: float, tolerance: float) -> Bounds:
        """Epsilon of everything but full exposure; a negative ``delta`` is more than can be hidden."""
        if delta < 0:
            return Bounds(0.0, np.inf)
        if delta > 0 and not (self._parts.plds or self._parts.boxes):
            mu = self._parts.mu
            return gaussian_epsilon_bounds(delta, mu, _MU_ERROR) if mu else _NOTHING
        proof = self._proof()
        lower = self._search.epsilon(proof, delta, tolerance)
        return Bounds(lower, proof.epsilon(delta))

    def delta(self, epsilon: float, *, tolerance: float | None = None) -> float:
        """The smallest delta proved at ``epsilon``: never below the exact one."""
        return self.delta_bounds(epsilon, tolerance=tolerance).upper

    def delta_bounds(self, epsilon: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on delta at ``epsilon``.

        They are meant to be 1e-2 of the upper one apart; a ``tolerance`` is treated as by :meth:`epsilon_bounds`.
        """
        epsilon = real("epsilon", epsilon, at_least=0)
        hidden = self._hidden_delta(epsilon, tolerance_asked(tolerance, 1e-2))
        exposed = self._parts.infinity_mass.upper
        upper = min(1.0, (exposed + (1 - exposed) * hidden.upper) * (1 + ULPS))
        bounds = Bounds(float(self._search.lower_delta(epsilon, hidden, upper)), float(upper))
        refuse_wide(bounds, "delta", None if self._search.vanishes(epsilon) else tolerance, 1e-280)
        return bounds

    @ignore_fp_errors()
    def _hidden_delta(self, epsilon: float, tolerance: float) -> Bounds:
        """Delta of everything but full exposure."""
        exact = self._parts.largest
        if exact is not None and Fraction(epsilon) >= exact:
            return _NOTHING
        if not (self._parts.plds or self._parts.boxes):
            return self._gaussian(lambda mu: gaussian_delta_bounds(epsilon, mu), 0.0)
        proof = self._proof()
        lower = self._search.delta(proof, epsilon, tolerance)
        return Bounds(lower, proof.delta(epsilon))

    def guarantee(self, delta: float, *, tolerance: float | None = None) -> Guarantee:
        """The proved point at ``delta`` with its neighbours and unit."""
        if self.neighbours == "zero-out":
            requirement = (
                "has no guarantee: ledgers and certificates know the other two only; use epsilon_bounds."
            )
            raise InvalidParameter("neighbours", self.neighbours, requirement)
        delta = real("delta", delta, at_least=0, below=1, remedy=DELTA_REMEDY)
        return Guarantee(
            self.epsilon_bounds(delta, tolerance=tolerance), delta, self.neighbours, self.group_size
        )

    def _proof(self) -> Proof:
        return Proof(self._parts, self._plds_of, lambda: self._without_sampling)

    def _gaussian(self, bounds_at: Callable[[float], Bounds], nothing: float) -> Bounds:
        """Bounds of a release that is Gaussian only; ``nothing`` is the value for no release at all."""
        mu = self._parts.mu
        if mu == 0:
            return Bounds(nothing, nothing)
        return Bounds(bounds_at(mu * (1 - _MU_ERROR)).lower, bounds_at(mu * (1 + _MU_ERROR)).upper)

    @cached_property
    def _without_sampling(self) -> PrivacyCurve | None:
        """The same releases without sampling, if there is any."""
        if not any(hasattr(part, "of") for part, _ in self.event.parts()):
            return None
        return PrivacyCurve(without_sampling(self.event), self.neighbours, self.group_size)


def hidden_share(delta: float, infinity_mass: float, rounding: float) -> float:
    """delta of the rest, given that nothing is exposed."""
    if infinity_mass == 0:
        return delta
    return (delta - infinity_mass) / (1 - infinity_mass) * rounding if infinity_mass < 1 else -1.0
