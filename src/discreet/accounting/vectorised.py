"""Many settings of DP-SGD at once: both bounds on epsilon for arrays of noise, rate, steps and delta.

Settings with the same noise and rate share their one-step distribution: it is put on a grid once for all numbers of
steps and deltas that one tilt suits, and only composed for each of them. Where a shared grid is not close enough, the
setting is asked for alone, so the answers are as close as those of ``account(...).epsilon_bounds(delta)``.

>>> lower, upper = epsilon_bounds(noise_multiplier=4.0, rate=0.01, steps=[2_500, 5_000, 10_000], delta=1e-5)
>>> [f"{epsilon:.2f}" for epsilon in upper]
['0.45', '0.65', '0.95']
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discreet.accounting.certified_bounds import ignore_fp_errors
from discreet.accounting.curve import account
from discreet.accounting.discretisation import LossDistribution, LossWindow, discretise
from discreet.accounting.dominating import Direction, Relation, Tolerances, dominating
from discreet.accounting.grids import MANY, one_step, roomy_window, spare_mass
from discreet.accounting.lattice import (
    LossLattice,
    Transformed,
    compose_transformed,
    mass_outside,
    window_size,
)
from discreet.accounting.pairs import Array
from discreet.accounting.saddlepoint import SaddlepointEstimate, SaddlepointTarget, log_shape
from discreet.accounting.search import EpsilonAt, Search
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Event, Gaussian, PoissonSampled
from discreet.events.common import MAX_COUNT
from discreet.guarantee import AnyNeighbours, Bounds, any_neighbours_named

TOLERANCE = 1e-3
APART = 2.0  # the largest ratio of tilts that share a grid


class StepsAndDelta(NamedTuple):
    """How often a release was made, and the delta."""

    steps: int
    delta: float

    @property
    def tilt(self) -> float:
        """How the best tilt changes from one to another, for losses that add up to a normal distribution."""
        return float(np.sqrt(-np.log(self.delta) / self.steps))


def epsilon_bounds(
    noise_multiplier: ArrayLike,
    rate: ArrayLike,
    steps: ArrayLike,
    delta: ArrayLike,
    *,
    neighbours: AnyNeighbours = "add-remove",
) -> tuple[Array, Array]:
    """Lower and upper bounds on epsilon of ``PoissonSampled(rate, Gaussian(noise_multiplier)) * steps`` at ``delta``.

    Numbers or arrays, which are stretched to a common shape: that of both results. Faster than one call for each
    where settings differ in steps or delta alone.

    Guarantee: as of :meth:`~discreet.accounting.curve.PrivacyCurve.epsilon_bounds`.
    """
    relation = Relation(any_neighbours_named(neighbours), 1)
    try:
        columns = np.broadcast_arrays(noise_multiplier, rate, steps, delta)
    except ValueError:
        raise InvalidParameter(
            "steps", np.shape(steps), "and the others have shapes that do not fit."
        ) from None
    groups: dict[Event, list[tuple[int, StepsAndDelta]]] = defaultdict(list)
    for place, (noise, share, count, at) in enumerate(zip(*(column.flat for column in columns), strict=True)):
        asked = StepsAndDelta(
            whole("steps", count, at_least=1, at_most=MAX_COUNT), real("delta", at, above=0, at_most=1)
        )
        groups[PoissonSampled(share, Gaussian(noise))].append((place, asked))
    found = np.zeros((2, columns[0].size))
    for event, places in groups.items():
        answers = dict(_answers(event, {asked for _, asked in places}, relation))
        for place, asked in places:
            found[:, place] = answers[asked]
    lower, upper = found.reshape(2, *columns[0].shape)
    return lower, upper


def _answers(
    event: Event, asked: Iterable[StepsAndDelta], relation: Relation
) -> Iterator[tuple[StepsAndDelta, Bounds]]:
    for near in _together(sorted(asked, key=lambda point: point.tilt)):
        shared = _Shared(event, near, relation).bounds() if len({point.steps for point in near}) > 1 else {}
        yield from shared.items()
        left: dict[int, list[StepsAndDelta]] = defaultdict(list)
        for point in near:
            if point not in shared:
                left[point.steps].append(point)
        for steps, points in left.items():
            curve = account(event * steps, relation.neighbours)
            yield from zip(points, curve.epsilons([point.delta for point in points]), strict=True)


def _together(points: list[StepsAndDelta]) -> Iterator[list[StepsAndDelta]]:
    """Neighbours that one tilt suits."""
    near: list[StepsAndDelta] = []
    for point in points:
        if near and point.tilt > APART * near[0].tilt:
            yield near
            near = []
        near.append(point)
    if near:
        yield near


@dataclass(frozen=True)
class _Shared:
    """Settings of one event that share a grid."""

    event: Event
    points: list[StepsAndDelta]
    relation: Relation
    share: float = 0.85  # of the tolerance, which the grid is chosen for

    def bounds(self) -> dict[StepsAndDelta, Bounds]:
        """Those that the shared grid shows well enough, in both directions."""
        parts = dominating(self.event, self.relation)
        if not parts.plds or self._most_steps >= MANY:
            return {}
        found: dict[StepsAndDelta, Bounds] = {}
        with ignore_fp_errors():
            try:
                for point, curve, target in self._curves("remove", self.share * TOLERANCE, upper_only=False):
                    bounds, gap = EpsilonAt(point.delta, target).measure(curve)
                    found |= {point: bounds} if gap <= TOLERANCE else {}
                found = found if parts.symmetric or not found else self._worst(found)
            except FloatingPointError:
                return {}
        left = [point for point in self.points if point not in found]
        again = self.share == 0.85 and len(left) > 1
        return found | (_Shared(self.event, left, self.relation, 0.6).bounds() if again else {})

    def _worst(self, found: dict[StepsAndDelta, Bounds]) -> dict[StepsAndDelta, Bounds]:
        """Those for which the other direction is proved not to be worse."""
        point = next(iter(found))
        log_delta = float(np.log(point.delta))
        other = Search(dominating(self.event * point.steps, self.relation).plds_of("add", self._tolerances))
        below = 1 - other.at_delta(log_delta)[1].epsilon / max(found[point].upper, 1e-300)
        curves = self._curves("add", min(max(below / 3, TOLERANCE), 0.02), upper_only=True)
        return {
            point: found[point]
            for point, curve, _ in curves
            if point in found and curve.delta_upper(found[point].upper)[0] <= point.delta
        }

    @property
    def _tolerances(self) -> Tolerances:
        return Tolerances(1e-5 * min(point.delta for point in self.points), TOLERANCE)

    @property
    def _most_steps(self) -> int:
        return max(point.steps for point in self.points)

    def _curves(
        self, direction: Direction, tolerance: float, upper_only: bool
    ) -> Iterator[tuple[StepsAndDelta, LossLattice, SaddlepointTarget]]:
        """Each setting with its composed lattice and where its answer is expected."""
        least = min(point.delta for point in self.points)
        middle = self.points[len(self.points) // 2]
        (pld,) = dominating(self.event, self.relation).plds_of(direction, self._tolerances)
        composed = Search([LossDistribution(pld.upper, pld.lower, middle.steps)])
        # Tails are cut for the smallest delta and the most steps of all.
        log_least = float(np.log(least * (middle.steps / self._most_steps)))
        estimate = composed.estimate(log_least)
        target = estimate.target_at_delta(float(np.log(middle.delta)))
        step = composed.first_step(estimate, target, tolerance, EpsilonAt(middle.delta, target))
        if target.tilt == 0 or composed.is_unsuited(estimate, target, step):
            return
        targets = [self._target(estimate, middle.steps, target.tilt, point) for point in self.points]
        windows = _windows(estimate, middle.steps, targets, self.points, step)
        width = max(high - low for (low, high), _ in windows)
        grid = one_step([pld], estimate, replace(target, log_delta=log_least), step, width, 256)
        if grid.limit >= step:
            return
        lower = None if upper_only else pld.lower
        one = discretise(pld.upper, lower, target.tilt, grid.step, *grid.grids[0], grid.log_tail)
        transformed = Transformed(one, window_size((0.0, width), one.step))
        sums: dict[int, LossLattice] = {}
        for point, expected, ((low, _), slopes) in zip(self.points, targets, windows, strict=True):
            if (
                point.steps not in sums
            ):  # the first is that of the largest delta; its window does for the others
                window = (low, low + one.step * (transformed.size - 2))
                outside = mass_outside([(one, point.steps)], window, slopes)
                sums[point.steps] = compose_transformed([(transformed, point.steps)], low, outside)
            yield point, sums[point.steps], expected

    @staticmethod
    def _target(
        estimate: SaddlepointEstimate, counted: int, tilt: float, point: StepsAndDelta
    ) -> SaddlepointTarget:
        """Where the answer for ``point`` is expected, seen from a tilt that is not quite its own."""
        here = estimate.moments(tilt)
        share = point.steps / counted
        log_delta = float(np.log(point.delta))
        height = share * here.value + log_shape(tilt, share * here.variance)
        return SaddlepointTarget(tilt, max((height - log_delta) / tilt, 0.0), log_delta)


def _windows(
    estimate: SaddlepointEstimate,
    counted: int,
    targets: list[SaddlepointTarget],
    points: list[StepsAndDelta],
    step: float,
) -> list[LossWindow]:
    """Chernoff windows for several numbers of steps: logarithms of moments are proportional to the steps."""
    tilt = targets[0].tilt
    here = estimate.moments(tilt)
    shares = np.array([point.steps / counted for point in points])
    spare = np.array(
        [spare_mass(target, share * here.value) for target, share in zip(targets, shares, strict=True)]
    )
    scales = np.sqrt(-2 * spare / (shares * max(here.variance, 1e-300)))
    exponents = np.minimum(np.geomspace(2e-3 * scales.min(), 2 * scales.max(), 20), 3.0 / step)
    ends = []
    for sign in (-1.0, 1.0):
        growth = estimate.values(tilt + sign * exponents) - here.value
        reach = sign * (shares[:, None] * growth - spare[:, None]) / exponents
        best = np.argmin(sign * reach, axis=1)
        ends.append((reach[np.arange(len(points)), best], exponents[best]))
    (low, down), (high, up) = ends
    return [
        roomy_window((float(a), float(b)), (float(c), float(d)), step)
        for a, b, c, d in zip(low, high, down, up, strict=True)
    ]
