"""Sums of privacy losses in positive arithmetic: for laws whose rare losses are many times their common ones.

Let K be a *label* for the loss L of a pair (P, Q): L rounded to a grid at random, E_P[e^{-K} | outcome] = e^{-L}.
With p_k = P(K = k) and q_k = Q(K = k), for every a >= 0

    sum_k (p_k - a q_k)_+   <=   H_a(P, Q)   <=   sum_k p_k (1 - a e^{-k})_+.

On the left, labels are made from outcomes, and what is made from an outcome tells no more than it does. On the
right, (1 - a x)_+ is convex in x = e^{-L}, of which e^{-K} is an unbiased rounding (Jensen). Labels of independent
losses add up, and rounding a label again, in the same way, keeps both. So two rows per label enclose the curve of any
sum: p_k, and r_k = q_k e^k, which is about as large; sums are convolutions of both rows.

Grids have powers of two as spacings, fine ones near a centre and ever coarser ones away from it, as in
:mod:`~discreet.accounting.rounded_sums`, so that a core of 1e-7 and jumps of 10 live in one law of some thousand
labels. Nothing is subtracted and nothing transformed, so errors are *relative*: a mass of 1e-60 has as many digits as
a mass of 1, and no tilt is needed. That is what the lattice cannot do; where it can be used, it is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from discreet.accounting.rounded_sums import UNIT, Array, Piece, together

Reach = Callable[[int], int]
"""exponent -> labels up to this distance from the centre are kept at spacing 2^exponent; 0 if it is too fine."""


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
            waiting = together(waiting, _product(mine, here), _product(finer_self, theirs))
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

    def law(self) -> tuple[Array, Array, Array]:
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
    rows = [np.convolve(mine, theirs) for mine, theirs in zip(left.rows, right.rows, strict=True)]
    return Piece(left.start + right.start, np.stack(rows))


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
