"""One direction of a composition in positive arithmetic: slower than the lattice, and at home where that one is not.

Rates of 1e-6, deltas of 1e-50, rare losses a million times the common ones. It covers Gaussian noise, sampled or not,
whose losses are known as functions of the outcome.

**The method and its proof.** Let K be a *label* for the loss L of a pair (P, Q): L rounded to a grid at random,
E_P[e^{-K} | outcome] = e^{-L}. With p_k = P(K = k) and q_k = Q(K = k), for every a >= 0

    sum_k (p_k - a q_k)_+   <=   H_a(P, Q)   <=   sum_k p_k (1 - a e^{-k})_+.

On the left, labels are made from outcomes, and what is made from an outcome tells no more than it does. On the
right, (1 - a x)_+ is convex in x = e^{-L}, of which e^{-K} is an unbiased rounding (Jensen). Labels of independent
losses add up, and rounding a label again, in the same way, keeps both. So two rows per label enclose the curve of any
sum: p_k, and r_k = q_k e^k, which is about as large; sums are convolutions of both rows.

Grids have powers of two as spacings, fine ones near a centre and ever coarser ones away from it, as in
:mod:`~discreet.accounting.rounded_sums`, so that a core of 1e-7 and jumps of 10 live in one distribution of some
thousand labels. Nothing is subtracted and nothing transformed, so errors are *relative*: a mass of 1e-60 has as many
digits as a mass of 1, and no tilt is needed. That is what the lattice cannot do; where it can be used, it is faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from discreet.accounting.label_grids import MOST_LABELS, LabelGrid, Reach
from discreet.accounting.pairs import GaussianPair, Pair, Reversed, Sampled
from discreet.accounting.rounded_sums import UNIT, Array, Piece, together
from discreet.accounting.sampled_pairs import GroupPair


@dataclass(frozen=True, eq=False)
class RoundedLoss:
    """The labels ``centre + k 2^exponent`` of a sum of ``count`` losses: one piece per exponent."""

    count: int
    centre: float
    pieces: Mapping[int, Piece]
    error: float
    """Each mass is known up to a factor e^(+-error)."""
    shift: float
    """Each loss was known up to +-shift when it was rounded."""
    infinite: float
    """P-mass that was cut off at the upper end, and counts as infinite."""

    def add(self, other: RoundedLoss, reach: Reach, spare: float) -> RoundedLoss:
        """The sum of two independent losses. Labels at the upper end of mass ``spare`` at most are cut off.

        Guarantee: apart from what was cut, E_P[e^-label | outcome] = e^-loss. Spacings affect the width of the
        enclosure and never its truth.
        """
        finest, coarsest = min(*self.pieces, *other.pieces), max(*self.pieces, *other.pieces)
        pieces: dict[int, Piece] = {}
        finer_self = finer_other = waiting = None
        exponent, terms = finest, 0
        while exponent <= coarsest or waiting is not None:
            mine, theirs = self.pieces.get(exponent), other.pieces.get(exponent)
            here = together(theirs, finer_other)
            terms = max(terms, _terms(mine, here), _terms(finer_self, theirs))
            if other is self:  # one product, not two: each label meets the finer ones from both sides
                waiting = together(waiting, _product(mine, together(theirs, _twice(finer_other))))
            else:
                waiting = together(waiting, _product(mine, here), _product(theirs, finer_self))
            kept, waiting = _divide(waiting, reach(exponent))
            if kept is not None:
                pieces[exponent] = kept
            spacing = math.ldexp(1.0, exponent)
            finer_self = _coarser(together(mine, finer_self), spacing)
            finer_other, waiting = _coarser(here, spacing), _coarser(waiting, spacing)
            exponent += 1
        # A sum of positive terms, in any order, is wrong by at most one unit per addition: those of a convolution,
        # and fewer than 12 operations on the way from one spacing to the next.
        error = self.error + other.error + 1.01 * UNIT * (terms + 12 * (exponent - finest) + 12)
        count, centre = self.count + other.count, self.centre + other.centre
        shift = self.shift + other.shift + 4 * UNIT * abs(centre)
        whole = RoundedLoss(count, centre, pieces, error, shift, self.infinite + other.infinite)
        return whole.trim(spare)

    def trim(self, spare: float) -> RoundedLoss:
        """Without the labels at the two ends whose masses add up to ``spare`` at most; they count as infinite."""
        pieces, above = _trim_above(dict(self.pieces), spare / 2)
        turned, below = _trim_above({name: _turn(piece) for name, piece in pieces.items()}, spare / 2)
        pieces = {name: _turn(piece) for name, piece in turned.items()}
        cut = (above + below) * (1 + 1e-9)
        return RoundedLoss(self.count, self.centre, pieces, self.error, self.shift, self.infinite + cut)

    def dist(self) -> tuple[Array, Array, Array]:
        """All labels in increasing order with their masses p and r; empty labels are left out."""
        columns = []
        for exponent, piece in self.pieces.items():
            at = self.centre + np.ldexp(np.arange(piece.start, piece.end, dtype=np.float64), exponent)
            columns.append(np.vstack([at, piece.rows])[:, piece.rows[0] > 0])
        joined = np.concatenate(columns, axis=1)
        losses, p, r = joined[:, np.argsort(joined[0], kind="stable")]
        return losses, p, r


def _trim_above(pieces: dict[int, Piece], spare: float) -> tuple[dict[int, Piece], float]:
    """Without the uppermost labels that ``spare`` pays for, and their mass. The outermost piece is the coarsest."""
    cut = 0.0
    for exponent in sorted(pieces, reverse=True):
        piece = pieces[exponent]
        size = piece.rows.shape[1]
        above = np.cumsum(piece.rows[0, ::-1])
        positive = size - min(max(0, -piece.start), size)
        drop = min(int(np.searchsorted(above, spare - cut, side="right")), positive)
        if drop > 0:
            cut += float(above[drop - 1])
            if drop == size:
                del pieces[exponent]
            else:
                pieces[exponent] = Piece(piece.start, piece.rows[:, : size - drop])
        if drop < positive:
            break
    return pieces, cut


def _turn(piece: Piece) -> Piece:
    return Piece(1 - piece.end, piece.rows[:, ::-1])


def _terms(left: Piece | None, right: Piece | None) -> int:
    return 0 if left is None or right is None else min(left.rows.shape[1], right.rows.shape[1])


def _product(left: Piece | None, right: Piece | None) -> Piece | None:
    """Labels of the sum of two independent losses whose labels have the same spacing."""
    if left is None or right is None:
        return None
    rows = np.zeros((2, left.rows.shape[1] + right.rows.shape[1] - 1))
    for part in _halves(left.rows, -left.start):
        for row, mine, theirs in zip(rows, left.rows, right.rows, strict=True):
            row[part.start : part.stop + len(theirs) - 1] += np.convolve(mine[part], theirs)
    return Piece(left.start + right.start, rows)


def _halves(rows: Array, middle: int) -> tuple[slice, ...]:
    """Slices that hold all labels with mass: of a piece that is empty around ``middle``, those on its two sides."""
    size = rows.shape[1]
    if not 0 < middle < size or size < SHORT or rows[:, middle].any():
        return (slice(0, size),)
    filled = np.flatnonzero(rows.any(axis=0))
    above = int(np.searchsorted(filled, middle))
    sides = (filled[:above], filled[above:])
    return tuple(slice(int(side[0]), int(side[-1]) + 1) for side in sides if len(side))


def _twice(piece: Piece | None) -> Piece | None:
    return None if piece is None else Piece(piece.start, 2 * piece.rows)


def _coarser(piece: Piece | None, spacing: float) -> Piece | None:
    """Round to twice the spacing: an odd label goes up with probability 1 / (1 + e^-spacing), or else down."""
    if piece is None:
        return None
    start, last = piece.start // 2, piece.end // 2
    rows = np.zeros((2, 2 * (last - start) + 1))
    rows[:, piece.start - 2 * start : piece.end - 2 * start] = piece.rows
    even, odd = rows[:, ::2].copy(), rows[:, 1::2]
    up, down = 1 / (1 + math.exp(-spacing)), math.exp(-spacing) / (1 + math.exp(-spacing))
    growth = math.exp(min(spacing, 700.0))
    even[:, 1:] += odd * [[up], [up * growth]]
    even[:, :-1] += odd * [[down], [down / growth]]
    return Piece(start, even)


def _divide(piece: Piece | None, reach: int) -> tuple[Piece | None, Piece | None]:
    """The labels from -reach to reach, and the others."""
    if piece is None or reach == 0:
        return None, piece
    low, high = max(piece.start, -reach), min(piece.end, reach + 1)
    if low >= high:
        return None, piece
    inside = slice(low - piece.start, high - piece.start)
    if inside == slice(0, piece.rows.shape[1]):
        return piece, None
    rest = piece.rows.copy()
    rest[:, inside] = 0.0
    return Piece(low, piece.rows[:, inside]), _without_empty_ends(Piece(piece.start, rest))


def _without_empty_ends(piece: Piece) -> Piece | None:
    filled = np.nonzero(piece.rows.any(axis=0))[0]
    if len(filled) == 0:
        return None
    return Piece(piece.start + int(filled[0]), piece.rows[:, filled[0] : filled[-1] + 1])


NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
MOST_EDGES = 2**21  # between which integrands are smooth: a few hundred bytes each
UNDERFLOW = 1e-299  # more than what masses below the smallest float can add up to
SHORT = 200  # labels of a piece that is not worth dividing


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
        grids = [LabelGrid(pair, count, resolution, spare) for pair, count in parts]
        sums = [_total(pair, count, grid, spare) for (pair, count), grid in zip(parts, grids, strict=True)]
        self.total = sums[0]
        for more in sums[1:]:
            self.total = self.total.add(more, LabelGrid.widest(grids), spare * steps / 8)

    @cached_property
    def dist(self) -> tuple[Array, Array, Array]:
        """All labels in increasing order with their masses p and r."""
        return self.total.dist()

    def delta_upper(self, epsilon: float) -> tuple[float, float]:
        """A proved upper bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        losses, p, _ = self.dist
        loss = epsilon - self.total.shift - 1e-15 * abs(epsilon)
        first = int(np.searchsorted(losses, loss, side="right"))
        away, mass = losses[first:] - loss, p[first:]
        delta, tail = float(-(mass * np.expm1(-away)).sum()), float(mass.sum())
        factor = math.exp(min(self.total.error + UNIT * (2 * len(mass) + 8), 700.0))
        bound = delta * factor + self.total.infinite + UNDERFLOW
        return bound if bound < 1.0 else 1.0, -max(tail - delta, 1e-300) / max(delta, 1e-300)


def _total(pair: GroupPair, steps: int, grid: LabelGrid, spare: float) -> RoundedLoss:
    """The sum of all losses, formed along the binary digits of their number; two ones in a row add three."""

    def add(left: RoundedLoss, right: RoundedLoss) -> RoundedLoss:
        count = left.count + right.count
        return left.add(right, grid.reach(count), spare / (8 * steps.bit_length()) * count)

    first, *others = re.findall("11|1|0", f"{steps:b}")
    odd = {"1": _one(pair, grid, spare)}
    if "11" in (first, *others):
        odd["11"] = add(add(odd["1"], odd["1"]), odd["1"])
    total = odd[first]
    for digits in others:
        for _ in digits:
            total = add(total, total)
        if digits in odd:
            total = add(total, odd[digits])
    return total


def _one(pair: GroupPair, grid: LabelGrid, spare: float) -> RoundedLoss:
    """A single loss. All integrands are positive and smooth: Gauss-Legendre quadrature is right to rounding.

    Outcomes outside of the range count as infinite losses; centre and labels of ``grid`` are proposals.
    """
    low, high = pair.outcome_range(math.log(spare / 4), pair.leaving)
    mean = grid.mean
    ends = pair._loss(np.array([low, high]))[0] - mean
    exponents, places = grid.single(float(ends[0]), float(ends[1]))
    at = np.ldexp(places.astype(np.float64), exponents)
    if not (2 <= len(at) <= MOST_LABELS >= np.ptp(places) and at[0] <= ends[0] and ends[1] <= at[-1]):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    if not np.all(at[1:] > at[:-1]):
        raise FloatingPointError("labels of a privacy loss that do not increase")
    edges = _edges(pair, at + mean, low, high)
    width = np.diff(edges)[:, None]
    x = (edges[:-1, None] + width * NODES).ravel()
    weights = (width * WEIGHTS).ravel() * _density(pair, x)
    loss, slope = pair._loss(x)
    loss = loss - mean
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
    blur = 16 * UNIT * (np.abs(loss) + abs(mean) + slope * (np.abs(x) + pair.leaving + pair.joining))
    shift = float((blur + outside * spacing).max())
    infinite = _mass_outside(pair, low, high) * (1 + 1e-9)
    pieces: dict[int, Piece] = {}
    for exponent in np.unique(exponents).tolist():
        here = exponents == exponent
        start = int(places[here].min())
        labels = np.zeros((2, int(places[here].max()) - start + 1))
        labels[:, places[here] - start] = rows[:, here]
        pieces[exponent] = Piece(start, labels)
    return RoundedLoss(1, mean, pieces, error, shift, infinite)


def _edges(pair: GroupPair, losses: Array, low: float, high: float) -> Array:
    """Outcomes between which everything is smooth: at labels, and not far apart in outcome or loss."""
    gaps = np.diff(losses)
    wide = np.nonzero(gaps > 0.5)[0]
    if gaps[wide].sum() > MOST_EDGES / 2:
        raise FloatingPointError("a privacy loss beyond what memory is given to it")
    more = [np.arange(losses[i] + 0.5, losses[i + 1], 0.5) for i in wide]
    inner = pair._outcome(np.unique(np.concatenate([losses, *more])))
    panels = max(8, math.ceil((high - low) / (0.25 * pair.noise)))
    if panels > MOST_LABELS:
        raise FloatingPointError("noise beyond the range of double precision")
    even = np.linspace(low, high, panels + 1)
    return np.unique(np.concatenate([even, inner[(inner > low) & (inner < high)]]))


def _density(pair: GroupPair, x: Array) -> Array:
    shifts, weights = pair._mixture(pair.leaving)
    z = (x[:, None] - shifts) / pair.noise
    return np.asarray((np.exp(-z * z / 2) @ weights) / (pair.noise * math.sqrt(2 * math.pi)))


def _mass_outside(pair: GroupPair, low: float, high: float) -> float:
    shifts, weights = pair._mixture(pair.leaving)
    below, above = ndtr((low - shifts) / pair.noise), ndtr((shifts - high) / pair.noise)
    return float((weights * (below + above)).sum())
