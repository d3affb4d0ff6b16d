"""``account(event)``: what does this release cost? Its privacy curve: every (epsilon, delta), proved from both sides.

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> curve = account(step * 10_000)
>>> round(curve.epsilon(delta=1e-5), 2)
0.95
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from discreet.accounting.attained import attained, has_other_floor, without_boxes
from discreet.accounting.certified_bounds import (
    DELTA_REMEDY,
    Composed,
    SingleRelease,
    hidden_share,
    ignore_fp_errors,
    tolerance_asked,
)
from discreet.accounting.chernoff import Chernoff
from discreet.accounting.curve_views import CurveViews
from discreet.accounting.discretisation import CUT, LossDistribution
from discreet.accounting.dominating import (
    Direction,
    Dominating,
    Relation,
    Tolerances,
    dominating,
    without_sampling,
)
from discreet.accounting.gaussian import gaussian_delta_bounds, gaussian_epsilon_bounds
from discreet.accounting.max_loss import ULPS, delta_near_largest, epsilon_near_largest
from discreet.accounting.search import SMALLEST_EPSILON, TOLERANCE, composed
from discreet.errors import AccuracyNotReached, DiscreetError, InvalidParameter, real, whole
from discreet.events import Event
from discreet.guarantee import AnyNeighbours, Bounds, Guarantee, any_neighbours_named

_NOTHING = Bounds(0.0, 0.0)
LEAST_DELTA = 1e-290
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
        rule = attained if floor else dominating
        self._parts: Dominating = rule(event, Relation(self.neighbours, self.group_size))
        self._is_floor = floor
        self._composed = lru_cache(maxsize=8)(self._make_composed)

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
        if infinity_mass.upper == 0:
            bounds = self._hidden_epsilon(delta, wanted)
        else:
            upper = self._hidden_epsilon(hidden_share(delta, infinity_mass.upper, 1 - ULPS), wanted).upper
            lower = self._hidden_epsilon(hidden_share(delta, infinity_mass.lower, 1 + ULPS), wanted).lower
            bounds = Bounds(lower, upper)
        if self._floor is not None:
            bounds = Bounds(min(self._floor.epsilon_bounds(delta).lower, bounds.upper), bounds.upper)
        return self._as_asked(bounds, "epsilon", tolerance, SMALLEST_EPSILON)

    @ignore_fp_errors()
    def _hidden_epsilon(self, delta: float, tolerance: float) -> Bounds:
        """Epsilon of everything but full exposure; a negative ``delta`` is more than can be hidden."""
        if delta < 0:
            return Bounds(0.0, np.inf)
        if delta == 0:
            return self._around_largest
        if self._parts.boxes:
            if delta < LEAST_DELTA:
                return Bounds(self._hidden_epsilon(LEAST_DELTA, tolerance).lower, np.inf)
            return Bounds(
                self._without_boxes._hidden_epsilon(delta, tolerance).lower, self._simple_epsilon(delta)
            )
        if not self._parts.plds:
            mu = self._parts.mu
            return gaussian_epsilon_bounds(delta, mu, _MU_ERROR) if mu else _NOTHING
        if delta < LEAST_DELTA:  # no arithmetic follows: as if it were 0, from above
            whole = self._without_sampling
            upper = whole._hidden_epsilon(delta, tolerance).upper if whole else np.inf
            lower = self._hidden_epsilon(LEAST_DELTA, max(tolerance, 0.02)).lower  # the upper one is far away
            return Bounds(lower, min(upper, self._around_largest.upper))
        near_top = self._near_largest_loss(delta)
        if near_top.upper < np.inf and near_top.upper - near_top.lower <= 1e-9 * near_top.upper:
            return near_top
        lower, upper = Bounds.of_largest([_NOTHING, *self._epsilons(delta, tolerance)]).also(near_top)
        if not upper - lower <= tolerance * min(max(upper, SMALLEST_EPSILON), 1e300):
            upper = min(upper, self._simple_epsilon(delta))
        return Bounds(lower, upper)

    def _epsilons(self, delta: float, tolerance: float) -> Iterator[Bounds]:
        """Bounds for every direction that can be the worst one."""
        tolerances = Tolerances(delta * 1e-5, tolerance)
        estimates = {
            direction: min(self._composed(direction, tolerances).estimate_epsilon(delta), largest)
            for direction, largest in self._largest_losses.items()
        }
        top = max(estimates.values())
        lower = upper = 0.0
        for direction in sorted(estimates, key=lambda name: -estimates[name]):
            if self._largest_losses[direction] * (1 + ULPS) <= min(lower, upper):
                continue
            composed = self._composed(direction, tolerances)
            # A direction that is clearly not the worst one is only shown to be that.
            room = 0.5 * (top - estimates[direction]) / max(top, SMALLEST_EPSILON)
            if room > tolerance and composed.stays_below(delta, upper, min(0.03, room)):
                continue
            bounds = composed.epsilon_bounds(delta, tolerance)
            lower, upper = max(lower, bounds.lower), max(upper, bounds.upper)
            yield bounds

    def _near_largest_loss(self, delta: float) -> Bounds:
        """Bounds from the atoms of largest loss, where there are any."""
        if self._largest_loss == np.inf:
            return Bounds(0.0, np.inf)
        found = [epsilon_near_largest(plds, delta) for plds in self._rough_plds.values()]
        return Bounds(max(bounds.lower for bounds in found), self._around_largest.upper)

    def _simple_epsilon(self, delta: float) -> float:
        """The best of the bounds that always exist: by moments, and without the help of sampling."""
        worst = max(bound.epsilon(delta) for bound in self._chernoff(delta))
        whole = self._without_sampling
        return min(worst, whole._hidden_epsilon(delta, 1e-3).upper) if whole else worst

    def delta(self, epsilon: float, *, tolerance: float | None = None) -> float:
        """The smallest delta proved at ``epsilon``: never below the exact one."""
        return self.delta_bounds(epsilon, tolerance=tolerance).upper

    def delta_bounds(self, epsilon: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on delta at ``epsilon``.

        They are meant to be 1e-2 of the upper one apart; a ``tolerance`` is treated as by :meth:`epsilon_bounds`.
        """
        epsilon = real("epsilon", epsilon, at_least=0)
        hidden = self._hidden_delta(epsilon, tolerance_asked(tolerance, 1e-2))
        infinity_mass = self._parts.infinity_mass
        lower = (infinity_mass.lower + (1 - infinity_mass.lower) * hidden.lower) * (1 - ULPS)
        upper = min(1.0, (infinity_mass.upper + (1 - infinity_mass.upper) * hidden.upper) * (1 + ULPS))
        if self._floor is not None:
            lower = min(self._floor.delta_bounds(epsilon).lower, upper)
        if epsilon >= self._largest_loss * (1 - 1e-12):  # delta vanishes; only rounding is left
            tolerance = None
        return self._as_asked(Bounds(lower, upper), "delta", tolerance, 1e-280)

    @ignore_fp_errors()
    def _hidden_delta(self, epsilon: float, tolerance: float) -> Bounds:
        exact = self._parts.largest
        if epsilon >= self._around_largest.upper or (exact is not None and Fraction(epsilon) >= exact):
            return Bounds(0.0, 0.0)
        if self._parts.boxes:
            lower = self._without_boxes._hidden_delta(epsilon, tolerance).lower
            rough = self._simple_delta(epsilon, 1e-15)
            return Bounds(lower, min(rough, self._simple_delta(epsilon, max(rough, 1e-290))))
        if not self._parts.plds:
            return self._gaussian(lambda mu: gaussian_delta_bounds(epsilon, mu), 0.0)
        reaching = [name for name, top in self._largest_losses.items() if not epsilon >= top * (1 + ULPS)]
        each = (self._delta_of(direction, epsilon, tolerance) for direction in reaching)
        lower, upper = Bounds.of_largest([_NOTHING, *each])
        if not upper - lower <= tolerance * upper:
            about = max(lower, 1e-290)
            upper = min(upper, max(self._simple_delta(epsilon, about), about * CUT))
        return Bounds(lower, upper)

    def _delta_of(self, direction: Direction, epsilon: float, tolerance: float) -> Bounds:
        near_top = delta_near_largest(self._rough_plds[direction], epsilon)
        if near_top.upper - near_top.lower <= 1e-9 * near_top.upper:
            return near_top
        tolerances = Tolerances(1e-12, tolerance)
        for _ in range(8):  # what is cut off must be small beside delta, which is not known yet
            guess = self._composed(direction, tolerances).estimate_delta(epsilon)
            if guess * 1e-5 >= tolerances.tail or tolerances.tail <= 1e-290:
                break
            tolerances = Tolerances(max(guess * 1e-6, 1e-290), tolerance)
        bounds = self._composed(direction, tolerances).delta_bounds(epsilon, tolerance)
        return bounds.also(near_top)

    def _simple_delta(self, epsilon: float, about: float) -> float:
        """As :meth:`_simple_epsilon`; rare losses are those that are rare beside ``about``."""
        worst = max(bound.delta(epsilon) for bound in self._chernoff(about))
        whole = self._without_sampling
        return min(worst, whole._hidden_delta(epsilon, 1e-2).upper) if whole else worst

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

    def _gaussian(self, bounds_at: Callable[[float], Bounds], nothing: float) -> Bounds:
        """Bounds of a release that is Gaussian only; ``nothing`` is the value for no release at all."""
        mu = self._parts.mu
        if mu == 0:
            return Bounds(nothing, nothing)
        return Bounds(bounds_at(mu * (1 - _MU_ERROR)).lower, bounds_at(mu * (1 + _MU_ERROR)).upper)

    @cached_property
    def _floor(self) -> PrivacyCurve | None:
        """The curve that bounds this one from below, where that of its pair is larger than any two data sets'."""
        if self._is_floor or not has_other_floor(self.event):
            return None
        return PrivacyCurve(self.event, self.neighbours, self.group_size, floor=True)

    @cached_property
    def _without_boxes(self) -> PrivacyCurve:
        """Everything else: no more is known from below."""
        rest = without_boxes(self.event)
        return PrivacyCurve(rest, self.neighbours, self.group_size, floor=self._is_floor)

    @cached_property
    def _without_sampling(self) -> PrivacyCurve | None:
        """The same releases without sampling, if there is any."""
        whole = without_sampling(self.event)
        sampled = any(hasattr(part, "of") for part, _ in self.event.parts())
        return PrivacyCurve(whole, self.neighbours, self.group_size) if sampled else None

    @cached_property
    def _rough_plds(self) -> dict[Direction, list[LossDistribution]]:
        tolerances = Tolerances(1e-12, 1e-2)
        return {name: self._parts.plds_of(name, tolerances) for name in self._parts.directions()}

    @cached_property
    def _largest_losses(self) -> dict[Direction, float]:
        """The largest loss in each direction; infinite for Gaussian noise, but for its sampled additions."""
        if self._parts.mu > 0 or self._parts.boxes:
            return dict.fromkeys(self._parts.directions(), np.inf)
        return {name: float(sum(pld.largest_loss for pld in plds)) for name, plds in self._rough_plds.items()}

    @cached_property
    def _largest_loss(self) -> float:
        """The epsilon of pure differential privacy, up to ``ULPS``."""
        return max(self._largest_losses.values())

    @property
    def _around_largest(self) -> Bounds:
        return Bounds(self._largest_loss * (1 - ULPS), self._largest_loss * (1 + ULPS))

    def _chernoff(self, about: float) -> Iterator[Chernoff]:
        """For each direction, the bound by moments; losses that are rare beside ``about`` count as infinite."""
        for name in self._parts.directions():
            plds = self._parts.plds_of(name, Tolerances(about * 1e-5, 1e-3))
            steps = 1 + sum(pld.count for pld in plds)
            pairs = [(pld.upper, pld.count) for pld in plds]
            yield Chernoff.of(pairs, float(np.log(about * CUT / steps)), self._parts.boxes)

    def _make_composed(self, direction: Direction, tolerances: Tolerances) -> Composed | SingleRelease:
        plds = self._parts.plds_of(direction, tolerances)
        return SingleRelease(plds[0]) if len(plds) == 1 and plds[0].count == 1 else composed(plds)

    def _as_asked(self, bounds: Bounds, name: str, tolerance: float | None, floor: float) -> Bounds:
        """The bounds as floats, if they keep a tolerance that was asked for."""
        lower, upper = (float(end) for end in bounds)
        if lower > upper * (1 + 1e-9):
            raise DiscreetError(f"the bounds {bounds} on {name} contradict each other; report {self!r}")
        if tolerance is None or lower == upper or upper - lower <= tolerance * min(max(upper, floor), 1e300):
            return Bounds(lower, upper)
        raise AccuracyNotReached(
            f"{name} is between {lower:.6g} and {upper:.6g}, which is wider than the tolerance "
            f"{tolerance:g}; ask for a larger tolerance, or for none.",
            (lower, upper),
        )
