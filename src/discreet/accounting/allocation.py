"""Random allocation: what one epoch of balls in bins costs, enclosed from both sides.

In one epoch every record takes part in exactly one of ``steps`` releases, drawn uniformly and independently of
all other records (:class:`~discreet.events.RandomlyAllocated`). With Gaussian noise the epoch is dominated by

    P = (1/steps) sum_i N(e_i, noise^2 I)    against    Q = N(0, noise^2 I)    in ``steps`` dimensions

when a record is removed, and by (Q, P) when one is added (Chua et al. 2024, Feldman and Shenfeld 2025). Proof:
condition on the other records' steps, which say nothing about this one's. Then step i turns coordinate i of an
outcome of P or Q into its release: scale it by the norm of the clipped contribution and turn it into its
direction, both known from the history, then add the missing noise and the sum of the others.

The likelihood ratio is, under Q, an average of independent variables,

    dP/dQ = S = (1/steps) sum_i W_i,      log W_i ~ N(-1/(2 noise^2), 1/noise^2),      E W_i = 1,

and both hockey-sticks are expectations of *convex* functions of it:

    H_a(P || Q) = E (S - a)_+   (remove),        H_a(Q || P) = E (1 - a S)_+   (add).

So distributions that enclose S in convex order enclose both privacy curves at every a. One unbiased rounding of the
W's and of their partial sums gives them (:mod:`~discreet.accounting.rounded_sums`): the rounded values are the upper
distribution, the means behind them the lower one. The sum is formed by doubling. The spacing of its grid is

* ``resolution`` times the standard deviation in the body,
* ``resolution`` / 4 times the distance from the mean in the upper tail, where a single large W decides,
* ``resolution`` times the value itself near zero, for additions and few steps,

and the error of both distributions is O(resolution^2). Outcomes with a W or a partial sum outside of the grid are
given up: the upper distribution counts them as infinite losses, the lower distribution forgets them. Labels D cut
from the distribution of a partial sum of m terms occur in steps / m places and contribute at most

    (1 / m) E[partial sum; D] + (steps / m) q(D)    to E (S - a)_+ <= E S,    and less to E (1 - a S)_+ <= 1.

That is the price of a cut, and the sum of all prices is the mass at infinity.

In docs/accountants.md: A13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from discreet.accounting.pairs import DiscretePair
from discreet.accounting.rounded_sums import UNIT, Array, Piece, RoundedSum, positions
from discreet.errors import UnsupportedEvent, real, whole

LEAST_NOISE, MOST_NOISE, MOST_STEPS = 0.1, 1e4, 10**7
LEAST_MASS = 1e-280
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2


class Enclosure(NamedTuple):
    """H_lower(a) <= H(a) <= H_upper(a) + upper.p_infinite for every a >= 0, where H(a) = sum (p - a q)_+."""

    upper: DiscretePair
    lower: DiscretePair


class AllocationLoss(NamedTuple):
    """The privacy loss of one epoch when a record is removed, and when one is added."""

    remove: Enclosure
    add: Enclosure


def allocation_loss(noise_multiplier: float, steps: int, *, tail: float, resolution: float) -> AllocationLoss:
    """Enclose the privacy loss of one epoch of random allocation with Gaussian noise.

    ``tail`` is the probability that may be given up in total. ``resolution`` is the step of the grid in
    standard deviations: bounds on epsilon differ relatively by less than resolution^2, also after composition.

    Guarantee: for every a >= 0, the hockey-stick divergences of the dominating pair lie between those of the
    two distributions, in both directions; all truncation and rounding errors are included.

    >>> remove, add = allocation_loss(1.0, 1000, tail=1e-12, resolution=0.02)
    >>> [f"{np.maximum(law.p - np.exp(0.17) * law.q, 0).sum():.3g}" for law in remove]
    ['1.12e-06', '1.12e-06']
    """
    noise = real("noise_multiplier", noise_multiplier, above=0)
    steps = whole("steps", steps, at_least=1)
    tail = real("tail", tail, at_least=1e-100, at_most=0.1)
    resolution = real("resolution", resolution, at_least=1e-3, at_most=1 / 16)
    if not is_followed(noise, steps):
        raise UnsupportedEvent(
            f"random allocation with noise_multiplier={noise:g} and steps={steps} is not accounted: noise "
            f"multipliers from {LEAST_NOISE:g} to {MOST_NOISE:g} and up to {MOST_STEPS:,} steps are. Draw the "
            "batches by Poisson sampling instead: PoissonSampled(rate=1/steps, ...)."
        )
    return _enclosures(*_total(_Grid(1 / noise, steps, resolution), tail))


def is_followed(noise: float, steps: int) -> bool:
    """Whether :func:`allocation_loss` computes this distribution."""
    return LEAST_NOISE <= noise <= MOST_NOISE and steps <= MOST_STEPS


def _total(grid: _Grid, tail: float) -> tuple[RoundedSum, float]:
    """The sum of all W, formed along the binary digits of ``steps``, and the price of everything cut."""
    one = _one_term(grid, tail / 2)
    sums = [one]
    spare = tail / (5 * grid.steps.bit_length())  # there are fewer than 2 * bit_length additions
    for digit in f"{grid.steps:b}"[1:]:
        sums.append(grid.sum(sums[-1], sums[-1], spare))
        if digit == "1":
            sums.append(grid.sum(sums[-1], one, spare))
    # One per cent more pays for the rounding errors of the prices and for masses lost to underflow.
    return sums[-1], 1.01 * sum(part.cut for part in sums)


@dataclass(frozen=True)
class _Grid:
    """Which spacing a partial sum needs where. Accuracy depends on it, soundness does not."""

    spread: float  # standard deviation of log W
    steps: int
    resolution: float

    def sum(self, left: RoundedSum, right: RoundedSum, spare: float) -> RoundedSum:
        count = left.count + right.count
        return left.add(right, self.first_label(count), self.steps / count, spare)

    def first_label(self, count: int) -> Callable[[int], int]:
        """For a sum of ``count`` terms: the label from which on a spacing 2^exponent is fine enough."""
        labels = math.ceil(1 / self.resolution)
        body = math.floor(math.log2(self.resolution * self._scale(count)))

        def first(exponent: int) -> int:
            if exponent > body:
                return 4 * labels
            return labels - (count >> exponent if exponent > 0 else count << -exponent)

        return first

    def _scale(self, count: int) -> float:
        """Standard deviation of a sum without the largest terms, of which half a one is expected."""
        v, z = self.spread, -float(ndtri(min(0.5 / count, 0.16)))
        squares = math.exp(v * v) * ndtr(z - 2 * v) - 2 * ndtr(z - v) + ndtr(z)
        return math.sqrt(count * float(squares))


def _one_term(grid: _Grid, tail: float) -> RoundedSum:
    """W rounded to its grid, between two quantiles outside of which it costs at most ``tail``."""
    v = grid.spread
    z_low = float(ndtri(tail / (4 * grid.steps)))
    z_high = max(-z_low, v - float(ndtri(tail / 4)))
    extents = _extents(
        grid.first_label(1), math.exp(v * z_low - v * v / 2), math.expm1(v * z_high - v * v / 2)
    )
    pieces, ends = {}, []
    for exponent, start, last in extents:
        rows, z = _cells(v, exponent, start, last)
        pieces[exponent] = Piece(start, rows)
        ends += [float(z[0]), float(z[-1])]
    z_low, z_high = ends[0], ends[-1]
    cut = grid.steps * (ndtr(z_low) + ndtr(-z_high)) + ndtr(z_low - v) + ndtr(v - z_high)
    # An error of 4 (|z| + v) units in z changes the normal density by |z| times that.
    widest = max(-z_low, z_high)
    error = UNIT * (8 * widest * (widest + v) + 200)
    return RoundedSum(1, pieces, error, 0.0, float(cut)).settle(grid.steps, 0.0)


def _extents(first_label: Callable[[int], int], low: float, high: float) -> Iterator[tuple[int, int, int]]:
    """Exponents with their first and last labels, such that the grid reaches from ``low`` to 1 + ``high``."""
    exponent = 0
    while positions(1, exponent, first_label(exponent), first_label(exponent) + 1)[0][0] > low:
        exponent -= 1
    start = math.floor(math.ldexp(low, -exponent)) - (1 << -exponent)
    last = math.ceil(math.ldexp(high, -exponent))
    while last > 2 * first_label(exponent + 1):
        yield exponent, start, 2 * first_label(exponent + 1)
        exponent += 1
        start, last = first_label(exponent), math.ceil(math.ldexp(high, -exponent))
    yield exponent, start, last


def _cells(v: float, exponent: int, start: int, last: int) -> tuple[Array, Array]:
    """Masses and moments of the labels ``start`` to ``last``, and their standard normal quantiles.

    A value in a cell goes to its upper end with the probability ``up``, and to its lower end with ``down``.
    All integrands are positive; over such short cells Gauss-Legendre quadrature is exact to rounding.
    """
    at, centred = positions(1, exponent, start, last + 1)
    z = _log_ratio(at, centred, 1) / v + v / 2
    spacing = math.ldexp(1.0, exponent)
    width = np.log1p(spacing / at[:-1, None])
    offset = width * NODES
    density = np.exp(-((z[:-1, None] + offset / v) ** 2) / 2) * (
        WEIGHTS * width / (v * math.sqrt(2 * math.pi))
    )
    up = at[:-1, None] / spacing * np.expm1(offset)
    down = at[1:, None] / spacing * -np.expm1(offset - width)
    rows = np.zeros((2, len(at)))
    rows[0, :-1] += (density * down).sum(axis=1)
    rows[0, 1:] += (density * up).sum(axis=1)
    spread = (density * up * down).sum(axis=1)
    rows[1, :-1] += spread
    rows[1, 1:] -= spread
    return rows, z


def _enclosures(total: RoundedSum, cut: float) -> AllocationLoss:
    """The labels and the means behind them as privacy losses, with every rounding error on the safe side.

    All masses get the factor that covers their own error. The likelihood ratio of a label is exact but for a few
    units. That of a mean contains an average of S - K with inexact weights, where |S - K| <= K (e^drift - 1). The
    errors of the ratios are put on the losses, down in the lower distribution and up in the upper one.
    """
    columns = []
    for exponent, piece in total.pieces.items():
        at, centred = total.positions(exponent)
        mass, moment = piece.rows
        shift = np.ldexp(moment / np.maximum(mass, LEAST_MASS), exponent)
        columns.append(np.stack([at, centred, mass, shift]))
    at, centred, mass, shift = np.concatenate(columns, axis=1)
    units = (16 + len(columns)) * UNIT
    blur = 2.1 * total.error * math.expm1(total.drift) * math.exp(total.drift)
    upper = _directions(at, centred, mass * math.exp(total.error), total.count, units, cut)
    exact = np.where(mass > LEAST_MASS, mass, 0.0)  # the others have lost digits to underflow
    lower = _directions(
        at + shift, centred + shift, exact * math.exp(-total.error), total.count, -units - blur, 0.0
    )
    return AllocationLoss(*(Enclosure(*plds) for plds in zip(upper, lower, strict=True)))


def _directions(
    value: Array, centred: Array, q: Array, count: int, nudge: float, infinite: float
) -> tuple[DiscretePair, DiscretePair]:
    """A distribution of the likelihood ratio value / count as the losses of a removal and of an addition."""
    losses, p, factor = _log_ratio(value, centred, count), q * value / count, math.exp(nudge)
    remove = _loss_distribution(losses + nudge, p * factor, q, infinite)
    return remove, _loss_distribution(-losses + nudge, q * factor, p, infinite)


def _log_ratio(value: Array, difference: Array, count: int) -> Array:
    """log(value / count), accurate also where ``difference`` = value - count is small."""
    near = np.clip(difference / count, -0.5, 0.5)
    return np.where(np.abs(difference) < 0.5 * count, np.log1p(near), np.log(value / count))


def _loss_distribution(losses: Array, p: Array, q: Array, p_infinite: float) -> DiscretePair:
    """Sort the atoms, and join those with the same loss."""
    seen = p > 0
    losses, place = np.unique(losses[seen], return_inverse=True)
    joined_p, joined_q = (np.bincount(place, masses[seen]).astype(np.float64) for masses in (p, q))
    return DiscretePair(losses, joined_p, joined_q, p_infinite)
