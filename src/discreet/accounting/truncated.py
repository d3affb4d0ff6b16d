"""Truncated Renyi divergences: the moments of a privacy loss without its rare largest values.

Noise on small samples has losses that are almost never large, but so large then that they rule every moment. Cut
them off: losses above ``cut`` count as full exposure, with their probability, and the moments of the rest are small.

    mass  =  P(L > cut),        divergence(a)  =  ln E_P[e^{(a - 1) L}; L <= cut] / (a - 1)

for the loss L of a pair (P, Q) that dominates the event. :mod:`discreet.ledger.filters` shows how they add
up when releases are chosen along the way.

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.001, of=Gaussian(noise_multiplier=1.0))
>>> costs = truncated_costs(step, order=20.0, cut=0.5)
>>> f"{costs['remove'].divergence:.3g} {costs['remove'].mass:.2g}"
'1.81e-05 2.7e-12'

How the moment is computed. With r = e^L, E_P[r^{a-1}; L <= cut] = E_Q[r^a; L <= cut], and

    r^a  =  1 + a (r - 1) + f(r),       f(r)  =  r^a - 1 - a (r - 1)  >=  0.

Over all outcomes E_Q[1 + a (r - 1)] <= 1, and over the losses that are cut off, where r > 1, it is not negative.
Hence the moment is at most 1 + E_Q[f(r); L <= cut]: a sum of terms that are not negative, so no digits are lost
however close to 1 it is. f is convex; in a cell of losses it lies below the chord between the cell's ends, whose mean
under Q follows from the cell's P- and Q-mass. The error is of second order in the width of the cells.

In docs/accountants.md: A14.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from discreet.accounting.dominating import Direction, Relation, Tolerances, dominating
from discreet.accounting.pairs import Array, DiscretePair, Pair
from discreet.errors import InvalidParameter, UnsupportedEvent, real
from discreet.events import Event
from discreet.guarantee import Neighbours, neighbours_named

DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
LARGEST_ORDER = 1e3
MOST_NODES = 2**16
SLACK = 1 + 1e-9  # for the rounding of masses and powers, together below 1e-10
_SURELY = 1e-40  # more than what masses that underflow could add, 1e-308 e^500 for each cell
_DISTRIBUTION = Tolerances(tail=1e-40, tolerance=1e-3)


class TruncatedCost(NamedTuple):
    """One direction of an event: a divergence, and the probability beside it. Both are rounded up and add up."""

    divergence: float
    mass: float


def truncated_costs(
    event: Event, order: float, cut: float, neighbours: Neighbours = "add-remove", group_size: int = 1
) -> dict[Direction, TruncatedCost]:
    """The truncated divergence of ``order`` and the mass above ``cut``, in each direction.

    Guarantee: both are upper bounds for the pair that dominates ``event`` in that direction.
    """
    order, cut = checked_order_and_cut(order, cut)
    costs = costs_of_cuts(event, order, np.array([cut]), neighbours, group_size)
    return {
        direction: TruncatedCost(float(divergences[0]), float(masses[0]))
        for direction, (divergences, masses) in costs.items()
    }


def costs_of_cuts(
    event: Event, order: float, cuts: Array, neighbours: Neighbours, group_size: int
) -> dict[Direction, tuple[Array, Array]]:
    """Divergences and masses for all of the increasing ``cuts`` at once, to choose one."""
    if not isinstance(event, Event):
        raise InvalidParameter("event", event, "must be an event, such as Gaussian(noise_multiplier=4.0).")
    with np.errstate(over="ignore"):
        found = dominating(event, Relation(neighbours_named(neighbours), group_size))
    if found.boxes:
        raise UnsupportedEvent(
            "black boxes with a Renyi curve have no truncated divergences; use a filter of one Renyi order."
        )
    costs: dict[Direction, tuple[Array, Array]] = {}
    for direction in DIRECTIONS:
        divergences, masses = np.zeros(len(cuts)), np.full(len(cuts), found.infinity_mass.upper)
        try:
            for dist in found.plds_of(direction, _DISTRIBUTION):
                with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                    excess, above = truncated_excess(dist.upper, order, cuts)
                divergences += dist.count * np.log1p(excess) / (order - 1)
                masses += dist.count * above
        except FloatingPointError:
            divergences[:] = masses[:] = math.inf
        # Where arithmetic gives up, nothing is known: an infinite price.
        costs[direction] = (
            np.nan_to_num(divergences * SLACK, nan=math.inf, posinf=math.inf),
            np.nan_to_num(masses * SLACK, nan=math.inf, posinf=math.inf),
        )
    return costs


def checked_order_and_cut(order: object, cut: object) -> tuple[float, float]:
    """Both as floats for which the arithmetic below is sound."""
    order = real("order", order, above=1, at_most=LARGEST_ORDER)
    remedy = "Larger losses belong to the exposure."
    return order, real("cut", cut, above=0, at_most=largest_cut(order), remedy=remedy)


def largest_cut(order: float) -> float:
    """Up to here no power of a loss overflows, and no mass that underflows matters."""
    return min(100.0, 500.0 / (order - 1))


def truncated_excess(pair: Pair, order: float, cuts: Array) -> tuple[Array, Array]:
    """For each of the increasing ``cuts``: upper bounds of E_Q[f(r); L <= cut] and of P(L > cut)."""
    boundaries = _boundaries(pair, cuts)
    cells = pair.cells(boundaries)
    # True of every cell, even where q underflows; at negative losses q is at least p.
    q = np.maximum(cells.q, cells.p * np.exp(-np.maximum(boundaries[1:], 0.0)))
    low, high = _upper_weights(cells.p, q, np.exp(boundaries))
    values = _excess(boundaries, order)
    weights = np.where(values[1:] >= values[:-1], high, low)
    chords = q * ((1 - weights) * values[:-1] + weights * values[1:])
    places = np.searchsorted(boundaries, cuts)
    below = np.concatenate([[0.0], np.cumsum(chords)])[places]
    above = np.concatenate([np.cumsum(cells.p[::-1])[::-1], [0.0]])[places] + cells.p_above
    if isinstance(pair, DiscretePair):  # its Q may be short of 1; what is missing is at r = 0
        below += (order - 1) * (max(0.0, 1.0 - float(pair.q.sum())) + 1e-13)
    return below * SLACK + _SURELY, above * SLACK


def _boundaries(pair: Pair, cuts: Array) -> Array:
    """Ends of cells: minus infinity, places that follow the distribution, and all cuts.

    The nodes of a pair are a proposal; ``SLACK`` covers the rounding of so many cells, wherever they are.
    """
    nodes = pair.nodes(-100.0)[:MOST_NODES]
    between = max(1, math.ceil(6000 / max(len(nodes), 1)))
    fine = np.interp(np.arange((len(nodes) - 1) * between + 1) / between, np.arange(len(nodes)), nodes)
    beyond = np.linspace(min(float(nodes[-1]), float(cuts[-1])), float(cuts[-1]), 2000)
    inner = np.concatenate([fine, beyond, cuts])
    inner = np.unique(inner[inner <= cuts[-1]])
    return np.concatenate([[-np.inf], inner])


def _upper_weights(p: Array, q: Array, ends: Array) -> tuple[Array, Array]:
    """How much of a cell's Q-mass goes to its upper end so that the mean of r is kept: at least, and at most.

    The masses are differences of tail probabilities and right to about 1e-12 of themselves.
    """
    width = np.diff(ends)
    usable = (width > 0) & (q > 0)
    place = (np.divide(p, q, out=np.ones_like(p), where=usable) - ends[:-1]) / np.where(usable, width, 1.0)
    error = np.where(usable, 1e-11 * ends[1:] / np.where(usable, width, 1.0), math.inf)
    return np.clip(place - error, 0.0, 1.0), np.clip(place + error, 0.0, 1.0)


def _excess(losses: Array, order: float) -> Array:
    """f(r) = r^a - 1 - a (r - 1) at r = e^loss, without cancellation; a - 1 at minus infinity."""
    growth = np.expm1(losses)
    exact = np.expm1(order * losses) - order * growth
    small = np.abs(growth) * order < 0.02
    j = np.arange(9)
    binomials = np.cumprod((order - j) / (j + 1))[1:]  # order choose 2, 3, ..., 9
    series = growth**2 * np.polyval(binomials[::-1], np.where(small, growth, 0.0))
    return np.asarray(np.where(small, series, exact))
