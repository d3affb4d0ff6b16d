"""The distribution of a sum of independent positive variables, enclosed from both sides by one unbiased rounding.

Let S be a sum and K a *label* for it: S rounded to a grid at random, without bias, so that E[K | S] = S. For
every convex function f, Jensen's inequality used twice gives

    E f(E[S | K])  <=  E f(S)  <=  E f(K).

So two numbers per grid point enclose the distribution of S: the mass P(K = k) and the moment E[S - K; K = k]. The
labels are the upper distribution, the means of S behind them are the lower distribution, and both are wrong by the
square of the grid's spacing only. Labels of independent sums are added by convolving masses with masses and masses
with moments. Rounding a label again, to a coarser grid, keeps all of this true; so does dropping labels, for the
lower distribution and an f >= 0.

Spacings are powers of two, with one :class:`Piece` of the distribution for each, and small spacings only where they
are needed. A label at spacing 2^e is the integer k in count + k 2^e, where count is the number of summands,
each of mean 1: the mean of the sum lies on every grid, and rounding a narrow distribution to a wide grid costs
little. To add two distributions, every piece meets the other distribution's piece of the same spacing and all its
finer ones, rounded to that spacing.

Masses are positive, never subtracted and not Fourier transformed, so rounding errors are *relative*: a mass of
1e-60 has as many correct digits as a mass of 1. :attr:`RoundedSum.error` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import AccuracyNotReached

Array = NDArray[np.float64]

UNIT = 2.0**-53
"""Relative error of one floating-point operation."""


class Piece(NamedTuple):
    """The labels ``start, start + 1, ...`` at one spacing: masses in row 0, moments / spacing in row 1.

    Of privacy losses, row 1 has masses, too: see :mod:`~discreet.accounting.convolve_direct`.
    """

    start: int
    rows: Array

    @property
    def end(self) -> int:
        return self.start + int(self.rows.shape[1])


def together(*pieces: Piece | None) -> Piece | None:
    """All labels of pieces with the same spacing."""
    present = [piece for piece in pieces if piece is not None]
    if len(present) < 2:
        return present[0] if present else None
    start = min(piece.start for piece in present)
    rows = np.zeros((2, max(piece.end for piece in present) - start))
    for piece in present:
        rows[:, piece.start - start : piece.end - start] += piece.rows
    return Piece(start, rows)


@dataclass(frozen=True, eq=False)
class RoundedSum:
    """The labels of a sum of ``count`` variables: one piece per exponent of the spacing 2^exponent."""

    count: int
    pieces: Mapping[int, Piece]
    error: float
    """Each mass is known up to a factor e^(+-error), each moment up to error * mass * largest |S - K|."""
    drift: float
    """The sum and its label differ by a factor of e^(+-drift) at most."""
    cut: float
    """Price of the labels that were cut off when this sum was formed, without those of its summands."""

    def positions(self, exponent: int) -> tuple[Array, Array]:
        """The labels of a piece as values of the sum, and as differences from ``count``."""
        piece = self.pieces[exponent]
        return positions(self.count, exponent, piece.start, piece.end)

    def add(
        self, other: RoundedSum, first_label: Callable[[int], int], price: float, spare: float
    ) -> RoundedSum:
        """The sum of two independent sums.

        ``first_label(exponent)`` tells from which label on the spacing 2^exponent is fine enough. Labels are
        cut off at the ends of the pieces if they are cheap: a mass q at x costs q * (price + x / count), and
        all that is cut costs ``spare`` at most.

        Guarantee: apart from what was cut, E[label | sum] = sum. The choice of the spacings affects the width
        of the enclosure and never its truth.
        """
        finest, coarsest = min(*self.pieces, *other.pieces), max(*self.pieces, *other.pieces)
        pieces: dict[int, Piece] = {}
        finer_self = finer_other = waiting = None
        exponent = finest
        while exponent <= coarsest or waiting is not None:
            mine, theirs = self.pieces.get(exponent), other.pieces.get(exponent)
            here = together(theirs, finer_other)
            waiting = together(waiting, _product(mine, here), _product(finer_self, theirs))
            kept, waiting = _divide(waiting, 2 * first_label(exponent + 1))
            if kept is not None:
                pieces[exponent] = kept
            finer_self, finer_other = _coarser(together(mine, finer_self)), _coarser(here)
            waiting = _coarser(waiting)
            exponent += 1
        # A sum of positive terms, in any order, is wrong by at most one unit per addition: those of one
        # convolution, and fewer than twelve on the way from one spacing to the next.
        longest = max(piece.rows.shape[1] for dist in (self, other) for piece in dist.pieces.values())
        error = self.error + other.error + 1.01 * UNIT * (longest + 12 * (exponent - finest) + 12)
        drift = max(self.drift, other.drift)
        return RoundedSum(self.count + other.count, pieces, error, drift, 0.0).settle(price, spare)

    def settle(self, price: float, spare: float) -> RoundedSum:
        """After a rounding: cut the cheap ends, and note how far the labels that remain may have moved.

        A rounding moves a label by less than twice the spacing of the piece in which it ends.
        """
        share = spare / (2 * len(self.pieces))
        pieces, cut, room = {}, self.cut, math.inf
        for exponent, piece in self.pieces.items():
            at, _ = self.positions(exponent)
            prices = piece.rows[0] * (price + np.maximum(at, 0.0) / self.count)
            first = int(np.searchsorted(np.cumsum(prices), share, side="right"))
            last = len(prices) - int(np.searchsorted(np.cumsum(prices[::-1]), share, side="right"))
            cut += float(prices[:first].sum() + prices[max(first, last) :].sum())
            if first < last:
                pieces[exponent] = Piece(piece.start + first, piece.rows[:, first:last])
                room = min(room, math.ldexp(float(at[first]), -exponent - 1))
        if room <= 1.0:
            message = "the grid of a sum is too coarse near zero; choose a finer resolution."
            raise AccuracyNotReached(message, (0.0, math.inf))
        return RoundedSum(self.count, pieces, self.error, self.drift - math.log1p(-1.0 / room), cut)


def positions(count: int, exponent: int, start: int, end: int) -> tuple[Array, Array]:
    """The labels from ``start`` to ``end`` - 1 as values of the sum, and as differences from ``count``.

    Both are given because each is exact where the other one would be lost in rounding.
    """
    steps = np.arange(end - start, dtype=np.float64)
    centred = np.ldexp(float(start) + steps, exponent)
    if exponent > 0:
        return count + centred, centred
    return np.ldexp(float((count << -exponent) + start) + steps, exponent), centred


def _product(left: Piece | None, right: Piece | None) -> Piece | None:
    """Labels of the sum of two independent variables whose labels have the same spacing."""
    if left is None or right is None:
        return None
    mass = np.convolve(left.rows[0], right.rows[0])
    moment = np.convolve(left.rows[0], right.rows[1]) + np.convolve(left.rows[1], right.rows[0])
    return Piece(left.start + right.start, np.stack([mass, moment]))


def _coarser(piece: Piece | None) -> Piece | None:
    """Round to twice the spacing: an odd label goes up or down with probability 1/2 each."""
    if piece is None:
        return None
    start, last = piece.start // 2, piece.end // 2
    rows = np.zeros((2, 2 * (last - start) + 1))
    rows[:, piece.start - 2 * start : piece.end - 2 * start] = piece.rows
    even, half = rows[:, ::2].copy(), rows[:, 1::2] / 2
    even[:, :-1] += half
    even[:, 1:] += half
    even[1, :-1] += half[0]  # what went down by one old spacing lies above its new label
    even[1, 1:] -= half[0]
    even[1] /= 2
    return Piece(start, even)


def _divide(piece: Piece | None, label: int) -> tuple[Piece | None, Piece | None]:
    """The labels below ``label``, and the others."""
    if piece is None or label >= piece.end:
        return piece, None
    if label <= piece.start:
        return None, piece
    size = label - piece.start
    return Piece(piece.start, piece.rows[:, :size]), Piece(label, piece.rows[:, size:])
