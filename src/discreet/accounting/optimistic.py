"""Lower bounds on delta and epsilon: tangents below the curve of a pair, and bounds from composed distributions.

Nothing here is part of a guarantee. A lower bound shows how much slack an upper bound has and where further work is
in vain; an upper bound is proved from the pessimistic row of a lattice, which no value returned here enters: a row
that is proposed here is refused unless it is finite and not negative, and then only the charge for rounding can grow
with it.
"""

from __future__ import annotations

import math

import numpy as np

from discreet.accounting.convolve_direct import Direct
from discreet.accounting.lattice import (
    OMITTED,
    OPTIMISTIC,
    PESSIMISTIC,
    TINY,
    LossLattice,
    cell_accuracy,
    exp_times,
    largest_weight,
    times_exp,
    weighted_sums,
)
from discreet.accounting.pairs import Array, Pair
from discreet.accounting.rounded_sums import UNIT
from discreet.accounting.saddlepoint import Bound, crossing_point

LARGEST_LOSS = 640.0  # e^640 times TINY is still negligible
MOST_CORNERS = 100_000
LEAST_KNOWN = 1e-290  # of a mass that has all its digits


def tangents(pair: Pair, losses: Array, accuracy: float) -> Array:
    """Masses at ``losses`` of a curve below the exact one: tangents half-way between neighbouring losses."""
    middle = (losses[1:] + losses[:-1]) / 2
    for atom, side in zip(pair.atoms or (), (1, -1), strict=False):
        # An atom at the bottom or top of a distribution is a cell of its own: the tangent touches right beside it.
        here = int(np.argmin(np.abs(losses - atom)))
        margin = 1e-9 * float(np.diff(losses).min())
        beside = here if side > 0 else here - 1
        if abs(losses[here] - atom) <= margin and 0 <= beside < len(middle):
            middle[beside] = atom + side * margin
    all_p, all_q = pair.masses(
        np.concatenate([[2 * losses[0] - middle[0]], middle, [2 * losses[-1] - middle[-1]]])
    )
    # An underflow of q would make the curve too high; where e^loss could hide one, mass is dropped.
    p = np.where(losses < LARGEST_LOSS, all_p, 0.0)
    scaled_q = exp_times(np.minimum(losses, LARGEST_LOSS), np.where(p > 0, all_q + TINY, 0.0))
    dist = _lower_curve(p, scaled_q, losses, accuracy)
    if not np.any(dist > 0):  # a single atom: H(a) >= p - a q for the totals
        total, total_q = float(all_p.sum()), float(all_q.sum())
        place = np.searchsorted(losses, np.log(total / total_q) - 1e-12) if total > 0 and total_q > 0 else 0
        if place > 0:
            dist[place - 1] = total
    return dist


def _lower_curve(p: Array, scaled_q: Array, losses: Array, accuracy: float) -> Array:
    """The distribution of the piecewise linear curve through the smaller of the two tangents at every loss.

    ``p`` is the P-mass around each loss and ``scaled_q`` the Q-mass there times e^loss. By excess = p - scaled_q
    the tangent on the left of a loss lies above the one on its right. At the ends, cells are merged until the
    first straight piece is a tangent itself (excess < 0) and the last one comes down to zero exactly at a loss
    (excess >= 0).
    """
    dist = np.zeros(len(p))
    accuracy /= 4  # what is set straight below is charged with the rounding of cells
    excess = p - scaled_q
    left_p, left_excess = _cells_up_to(p, scaled_q, losses)
    right_p, right_excess = (part[::-1] for part in _cells_up_to(p[::-1], scaled_q[::-1], losses[::-1]))
    bend_after = np.maximum(excess[1:], 0.0) + left_excess[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        flat = left_p[:-1] - left_excess[:-1] + accuracy * left_p[:-1] / np.diff(losses)
        convex = flat >= bend_after / np.expm1(np.diff(losses))
    starts = np.nonzero((left_p[:-1] > 0) & (left_excess[:-1] <= accuracy * left_p[:-1]) & convex)[0]
    if len(starts) == 0:
        return dist
    first = int(starts[0])
    beyond = np.nonzero(right_excess[first + 1 :] < -accuracy * right_p[first + 1 :])[0]
    last = first + int(beyond[0]) if len(beyond) else len(p) - 1
    if last == first:
        return dist
    inside = slice(first, last + 1)
    p, excess, losses = p[inside].copy(), excess[inside], losses[inside]
    p[0], excess[0] = left_p[first], min(left_excess[first], 0.0)
    p[-1], excess[-1] = right_p[last], max(right_excess[last], 0.0)
    gap = np.diff(losses)
    bend = np.maximum(-excess[:-1], 0.0) - np.maximum(excess[1:], 0.0)
    curve = p - excess
    curve[:-1] += bend / np.expm1(gap)
    curve[1:] += bend / np.expm1(-gap)
    dist[inside] = _convex(curve, losses, rounding=accuracy * right_p[last - 1] / gap[-1])
    return dist


def _cells_up_to(p: Array, scaled_q: Array, losses: Array) -> tuple[Array, Array]:
    """P-mass and excess of all cells up to each loss, taken as one cell."""
    total = np.cumsum(p)
    if abs(losses[-1] - losses[0]) < 200.0 and not np.any((scaled_q > 0) & (scaled_q < 1e-200)):
        shrink = np.exp(losses - losses[0])  # nothing overflows, and nothing is lost
        return total, total - shrink * np.cumsum(scaled_q / shrink)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        merged_q = np.exp(losses + np.logaddexp.accumulate(np.log(scaled_q) - losses))
    return total, total - merged_q


def _convex(dist: Array, losses: Array, rounding: float) -> Array:
    """Remove the concave corners (negative masses) of a curve: its lower convex hull, which is lower still.

    A corner is removed by splitting its mass onto the corners beside it. That may make one of those negative in
    turn; the work is proportional to the number of corners removed, which are few.
    """
    dist, last = dist.copy(), len(dist) - 1
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    corners = np.nonzero(dist[:-1] < 0)[0].tolist()
    while corners and len(after) < MOST_CORNERS:
        here = corners.pop()
        mass = float(dist[here])
        if mass >= 0:
            continue
        left, right = before.get(here, here - 1), after.get(here, here + 1)
        before[right], after[left], dist[here] = left, right, 0.0
        if left < 0:  # keep the slope before the first corner
            dist[right] += mass * np.exp(losses[right] - losses[here])
        else:
            share = np.expm1(losses[left] - losses[here]) / np.expm1(losses[left] - losses[right])
            dist[left] += mass * (1 - share)
            dist[right] += mass * share
        corners += [corner for corner in (left, right) if 0 <= corner < last and dist[corner] < 0]
    end = before.get(last, last - 1)
    if corners or dist[last] < -rounding or end < 0 or dist[end] + min(dist[last], 0.0) < 0:
        return np.zeros(len(dist))  # no such curve on this grid: the empty distribution says that delta >= 0
    dist[end] += min(dist[last], 0.0)  # rounding, moved down by one corner
    return np.maximum(dist, 0.0)


def coarse_tangents(masses: Array, fine: float, factor: int, tilt: float, blocks: int) -> Array:
    """The optimistic row of :func:`coarsen`: tangents half a coarse step to either side of each coarse loss."""
    half = factor // 2
    padded = np.zeros((blocks + 1) * factor)
    padded[half : half + len(masses)] = masses
    around = padded.reshape(blocks + 1, factor)
    distance = fine * (np.arange(factor) - half)
    # Untilting the rounding noise far from the bulk would drown it; mass may be dropped from this row.
    total = around.sum(axis=1)
    if not np.any(total > 0):
        return np.zeros(blocks + 1)
    losses = fine * factor * (np.arange(blocks + 1, dtype=np.float64) - int(np.argmax(total)))
    bulk = np.nonzero((total > 1e-11 * total.max()) & (tilt * np.abs(losses) < 300.0))[0]
    near = slice(int(bulk[0]), int(bulk[-1]) + 1)
    losses, around = losses[near], around[near]
    untilt = np.exp(-tilt * losses)
    p = weighted_sums(around, np.exp(-tilt * distance)) * untilt
    scaled_q = weighted_sums(around, np.exp(-(tilt + 1) * distance)) * untilt
    row = np.zeros(blocks + 1)
    row[near] = _lower_curve(p, scaled_q, losses, cell_accuracy(0.0)) / untilt
    return row


def delta_lower(curve: LossLattice | Direct, epsilon: float) -> tuple[float, float]:
    """A proved lower bound on delta(epsilon), and the slope of its logarithm (not proved)."""
    return lattice_lower(curve, epsilon) if isinstance(curve, LossLattice) else _direct_lower(curve, epsilon)


def lattice_lower(
    lattice: LossLattice, epsilon: float, errors_at: float | None = None
) -> tuple[float, float]:
    """A proved lower bound on delta(epsilon) of a lattice, and the slope of its logarithm (not proved).

    ``errors_at`` takes the numerical errors of a smaller epsilon, which are larger.
    """
    errors_at = epsilon if errors_at is None else errors_at
    shift, more = lattice.rounding(errors_at)
    at, weight = epsilon + shift, largest_weight(lattice.tilt)
    delta, tail = lattice.curve(OPTIMISTIC, at)
    # Both in units of this row at ``at``; errors are those of ``errors_at``.
    growth = float(np.exp(min(lattice.tilt * (at - errors_at), 700.0)))
    units = float(np.exp(min(lattice.log_scale[PESSIMISTIC] - lattice.log_scale[OPTIMISTIC] + shift, 50.0)))
    absolute = ((lattice.error + more * units) * weight + OMITTED) * growth
    value = max(delta * float(np.exp(-lattice.relative_rounding(at))) - absolute, 0.0)
    bound = times_exp(value, lattice.log_unit(OPTIMISTIC, at) - shift)
    return bound, -max(tail - delta, TINY) / max(value, TINY)


def _direct_lower(curve: Direct, epsilon: float) -> tuple[float, float]:
    losses, p, r = curve.dist
    loss = epsilon + curve.total.shift + 2 * curve.total.error + 1e-15 * (1 + abs(epsilon))
    # Every set of labels gives a lower bound. Those are left out of which r has lost its digits to underflow, or
    # whose loss is so far below that its factor is beyond the range of double precision.
    known = (r > LEAST_KNOWN) & (loss - losses < 700.0)
    scaled_q = r * np.exp(np.minimum(loss - losses, 700.0))
    kept = known & (p > scaled_q)
    delta = float((p[kept] - scaled_q[kept]).sum())
    tail = float(p[kept].sum())
    # A difference of two roundings, each a unit of its terms.
    value = (delta - UNIT * (len(p) + 8) * tail) * math.exp(-min(curve.total.error, 700.0))
    return max(value, 0.0), -max(tail - delta, 1e-300) / max(value, 1e-300)


def refuted_epsilon(lower: Bound, delta: float, guess: float, top: float, accuracy: float = 1e-9) -> float:
    """An epsilon, as large as found, with lower(epsilon) > delta; 0 if there is none."""
    epsilon = crossing_point(lower, delta, guess, top, accuracy)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon > 0:
        if lower(epsilon)[0] > delta:
            return epsilon
        epsilon, nudge = epsilon - nudge, 4 * nudge
    return 0.0
