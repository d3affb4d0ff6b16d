"""One direction of a composition in positive arithmetic: slower than the lattice, and at home where that one is not.

Rates of 1e-6, deltas of 1e-50, rare losses a million times the common ones: see
:mod:`~discreet.accounting.rounded_losses` for the method and its proof. It covers Gaussian noise, sampled or not,
whose losses are known as functions of the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from discreet.accounting.group_pair import GroupPair
from discreet.accounting.pairs import Array, GaussianPair, Pair, Reversed, Sampled
from discreet.accounting.rounded_losses import Reach, RoundedLoss
from discreet.accounting.rounded_sums import UNIT, Piece, together

Whole = NDArray[np.int64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
MOST_LABELS = 400_000
MOST_EDGES = 2**21  # between which integrands are smooth: a few hundred bytes each
OCTAVES = 40  # between the largest losses and the smallest that are told apart


def mixture(pair: Pair) -> GroupPair | None:
    """The pair as mixtures of Gaussians, if it is one."""
    if isinstance(pair, GroupPair):
        return pair
    if isinstance(pair, GaussianPair):
        return GroupPair(1 / pair.mu, 1.0, 1, 0)
    if isinstance(pair, Sampled) and isinstance(pair.base, GaussianPair):
        return GroupPair(1 / pair.base.mu, pair.rate, 1, 0)
    if isinstance(pair, Reversed) and type(turned := mixture(pair.of)) is GroupPair:
        return GroupPair(turned.noise, turned.rate, turned.joining, turned.leaving)
    return None


class Direct:
    """The enclosed curve of many losses. ``delta`` is about the smallest that will be asked of it.

    ``resolution`` is the spacing of labels in standard deviations; the width of the enclosure is of second order.
    """

    def __init__(self, parts: Sequence[tuple[GroupPair, int]], delta: float, resolution: float) -> None:
        steps = sum(count for _, count in parts)
        spare = delta * 1e-6 / steps
        grids = [_Grid(pair, count, resolution, spare) for pair, count in parts]
        total = grids[0].total()
        for grid in grids[1:]:
            total = total.add(grid.total(), _widest(grids), spare * steps / 8)
        self.total = total

    @cached_property
    def _law(self) -> tuple[Array, Array, Array]:
        return self.total.law()

    def delta_upper(self, epsilon: float) -> tuple[float, float]:
        """A proved upper bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        losses, p, _ = self._law
        loss = epsilon - self.total.shift - 1e-15 * abs(epsilon)
        first = int(np.searchsorted(losses, loss, side="right"))
        away, mass = losses[first:] - loss, p[first:]
        delta, tail = float(-(mass * np.expm1(-away)).sum()), float(mass.sum())
        factor = math.exp(min(self.total.error + UNIT * (2 * len(mass) + 8), 700.0))
        bound = delta * factor + self.total.infinite
        return bound if bound < 1.0 else 1.0, -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def delta_lower(self, epsilon: float) -> tuple[float, float]:
        """A proved lower bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        losses, p, r = self._law
        loss = epsilon + self.total.shift + 2 * self.total.error + 1e-15 * (1 + abs(epsilon))
        with np.errstate(over="ignore"):
            scaled_q = r * np.exp(np.minimum(loss - losses, 700.0))
        kept = p > scaled_q
        delta = float((p[kept] - scaled_q[kept]).sum())
        tail = float(p[kept].sum())
        # A difference of two roundings, each a unit of its terms.
        value = (delta - UNIT * (len(p) + 8) * tail) * math.exp(-min(self.total.error, 700.0))
        return max(value, 0.0), -max(tail - delta, 1e-300) / max(value, 1e-300)


def _widest(grids: Sequence[_Grid]) -> Reach:
    """The grid of a sum of different parts: its deviation is the root of their squares."""
    scale = math.hypot(*(grid.scale(grid.steps) for grid in grids))
    return grids[0].reach_of(scale)


class _Grid:
    """The labels of sums of one law. Accuracy depends on it, soundness does not."""

    def __init__(self, pair: GroupPair, steps: int, resolution: float, spare: float) -> None:
        self.pair, self.steps, self.resolution, self.spare = pair, steps, resolution, spare
        self.labels = math.ceil(4 / resolution)
        cells = pair.cells(pair.nodes(math.log(spare)))
        kept = (cells.p > 0) & (cells.q > 0)
        self.losses, self.masses = np.log(cells.p[kept] / cells.q[kept]), cells.p[kept]
        self.mean = self._core(steps)[0]
        self.least = 2.0**-OCTAVES * float(np.abs(self.losses).max())

    def scale(self, count: int) -> float:
        """Standard deviation of a sum of common losses, or what is nothing beside the rare ones."""
        return max(math.sqrt(count * self._core(count)[1]), self.least, 1e-300)

    def _core(self, count: int) -> tuple[float, float]:
        """Mean and variance without the largest and smallest losses, of which half a one is expected in a sum."""
        share = min(0.5 / count, 0.16)
        inside = (np.cumsum(self.masses) > share) & (np.cumsum(self.masses[::-1])[::-1] > share)
        losses, masses = self.losses[inside], self.masses[inside]
        total = float(masses.sum())
        if not total > 0:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        mean = float((masses * losses).sum()) / total
        return mean, float((masses * (losses - mean) ** 2).sum()) / total

    def reach_of(self, scale: float) -> Reach:
        body, reach = math.floor(math.log2(self.resolution * scale)), 2 * self.labels
        return lambda exponent: reach if exponent >= body else 0

    def total(self) -> RoundedLoss:
        """The sum of all losses, formed along the binary digits of their number."""
        one = self.one()
        total = one
        share = self.spare / (8 * self.steps.bit_length())
        for digit in f"{self.steps:b}"[1:]:
            for other in (total, one) if digit == "1" else (total,):
                count = total.count + other.count
                total = total.add(other, self.reach_of(self.scale(count)), share * count)
        return total

    def one(self) -> RoundedLoss:
        """A single loss. All integrands are positive and smooth: Gauss-Legendre quadrature is right to rounding."""
        pair = self.pair
        low, high = pair._outcome_range(math.log(self.spare / 4), pair.leaving)
        ends = pair._loss(np.array([low, high]))[0] - self.mean
        exponents, places = self._labels(float(ends[0]), float(ends[1]))
        at = np.ldexp(places.astype(np.float64), exponents)
        edges = self._edges(at + self.mean, low, high)
        width = np.diff(edges)[:, None]
        x = (edges[:-1, None] + width * NODES).ravel()
        weights = (width * WEIGHTS).ravel() * _density(pair, x)
        loss, slope = pair._loss(x)
        loss = loss - self.mean
        cell = np.clip(np.searchsorted(at, loss, side="right") - 1, 0, len(at) - 2)
        spacing = (at[1:] - at[:-1])[cell]
        share = np.expm1(at[cell] - loss) / np.expm1(-spacing)
        outside = np.maximum(np.maximum(-share, share - 1), 0.0)
        share = np.clip(share, 0.0, 1.0)
        rows = np.zeros((2, len(at)))
        for step, part in ((1, share), (0, 1 - share)):
            rows[0] += np.bincount(cell + step, weights * part, len(at))
            rows[1] += np.bincount(cell + step, weights * part * np.exp(at[cell + step] - loss), len(at))
        z = np.abs(x).max() / pair.noise + pair.leaving / pair.noise
        error = UNIT * (8 * z * z + 300)
        blur = 16 * UNIT * (np.abs(loss) + abs(self.mean) + slope * (np.abs(x) + pair.leaving + pair.joining))
        shift = float((blur + outside * spacing).max())
        infinite = _mass_outside(pair, low, high) * (1 + 1e-9)
        return RoundedLoss(1, self.mean, self._pieces(exponents, places, rows), error, shift, infinite)

    def _labels(self, low: float, high: float) -> tuple[Whole, Whole]:
        """Exponents and whole numbers of the labels from ``low`` to ``high``, in increasing order."""
        reach = self.reach_of(self.scale(1))
        exponent = math.floor(math.log2(self.resolution * self.scale(1)))
        far = max(abs(low), abs(high))
        found = [np.arange(-reach(exponent), reach(exponent) + 1)]
        names = [np.full(len(found[0]), exponent)]
        while math.ldexp(reach(exponent), exponent) < far:
            exponent += 1
            outer = np.arange(self.labels + 1, reach(exponent) + 1)
            found = [-outer[::-1], *found, outer]
            names = [np.full(len(outer), exponent), *names, np.full(len(outer), exponent)]
        places, exponents = np.concatenate(found), np.concatenate(names)
        at = np.ldexp(places.astype(np.float64), exponents)
        first = max(int(np.searchsorted(at, low, side="right")) - 1, 0)
        last = min(int(np.searchsorted(at, high)), len(at) - 1)
        if not 1 <= last - first < MOST_LABELS:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        return exponents[first : last + 1], places[first : last + 1]

    def _edges(self, losses: Array, low: float, high: float) -> Array:
        """Outcomes between which everything is smooth: at labels, and not far apart in outcome or loss."""
        gaps = np.diff(losses)
        wide = np.nonzero(gaps > 0.5)[0]
        if gaps[wide].sum() > MOST_EDGES / 2:
            raise FloatingPointError("a privacy loss beyond what memory is given to it")
        more = [np.arange(losses[i] + 0.5, losses[i + 1], 0.5) for i in wide]
        inner = self.pair._outcome(np.unique(np.concatenate([losses, *more])))
        panels = max(8, math.ceil((high - low) / (0.25 * self.pair.noise)))
        if panels > MOST_LABELS:
            raise FloatingPointError("noise beyond the range of double precision")
        even = np.linspace(low, high, panels + 1)
        return np.unique(np.concatenate([even, inner[(inner > low) & (inner < high)]]))

    @staticmethod
    def _pieces(exponents: Whole, places: Whole, rows: Array) -> dict[int, Piece]:
        pieces: dict[int, Piece] = {}
        for exponent in np.unique(exponents).tolist():
            for side in (places < 0, places >= 0):
                here = np.nonzero((exponents == exponent) & side)[0]
                if len(here):
                    piece = Piece(int(places[here[0]]), rows[:, here[0] : here[-1] + 1])
                    joined = together(pieces.get(exponent), piece)
                    assert joined is not None
                    pieces[exponent] = joined
        return pieces


def _density(pair: GroupPair, x: Array) -> Array:
    shifts, weights = pair._mixture(pair.leaving)
    z = (x[:, None] - shifts) / pair.noise
    return np.asarray((np.exp(-z * z / 2) @ weights) / (pair.noise * math.sqrt(2 * math.pi)))


def _mass_outside(pair: GroupPair, low: float, high: float) -> float:
    shifts, weights = pair._mixture(pair.leaving)
    below, above = ndtr((low - shifts) / pair.noise), ndtr((shifts - high) / pair.noise)
    return float((weights * (below + above)).sum())
