"""Random words in, random whole numbers out, by exact rejection.

A rejection sampler takes as many words as it comes to. Each kernel fills ``out`` from ``words`` (uint64) and
returns (draws made, words used): when the words run out inside a draw it stops and reports where that draw
began; the caller repeats the draw from there with more words appended. (To drop the unfinished draw instead
would favour the draws that finish quickly.)

:func:`discrete_laplace` and :func:`discrete_gaussian` follow Canonne, Kamath, Steinke, *The discrete
Gaussian for differential privacy* (2020), here CKS. A scale is a fraction ``over / under`` of whole numbers
up to ``SCALE_LIMIT``. Every chance is a product of chances that a uniform number below ``over`` is less
than another, so no intermediate value exceeds 2**60; see :func:`_laplace_attempt`.

The time that a draw takes depends on its value: whoever can time this process draw by draw is not kept out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet.core.draws import Array, compiled, i64, u64

SCALE_LIMIT = 2**40
"""Largest numerator and denominator of the scale of a discrete draw."""

_MOST_TURNS = 2**20 - 1  # of a geometric draw; reached with probability exp(-2**20)
_REJECTED = np.int64(-(2**63))


@compiled
def _next(words: Array, cursor: Array) -> Any:
    """The next word. Past the end it is all ones, which makes every loop below stop at once."""
    position = cursor[0]
    cursor[0] = position + 1
    return words[position] if position < words.size else u64(2**64 - 1)


@compiled
def _below(words: Array, cursor: Array, bound: Any) -> Any:
    """Uniform on 0, ..., bound - 1, exactly: words below 2**64 mod bound are passed over."""
    word = _next(words, cursor)
    while word < bound and word < (u64(0) - bound) % bound:
        word = _next(words, cursor)
    return word % bound


@compiled
def _finished(words: Array, cursor: Array) -> Any:
    """True when the words sufficed for the draw just made; then the next draw begins at ``cursor[1]``."""
    if cursor[0] > words.size:
        return False
    cursor[1] = cursor[0]
    return True


@compiled
def _exp_minus(words: Array, cursor: Array, part: Any, whole: Any) -> Any:
    """True with probability exp(-part/whole), for 0 <= part <= whole.

    Trial k succeeds with probability part/whole/k; the first failure comes at an odd k with probability
    1 - x + x**2/2 - ... = exp(-x) (CKS, Algorithm 1). The two factors are tried one by one, so that
    whole * k is never formed.
    """
    k = u64(1)
    while (k == u64(1) or _below(words, cursor, k) == u64(0)) and (
        part == whole or _below(words, cursor, whole) < part
    ):
        k += u64(1)
    return (k & u64(1)) == u64(1)


@compiled
def _exp_minus_half_square(words: Array, cursor: Array, part: Any, whole: Any) -> Any:
    """True with probability exp(-(part/whole)**2 / 2), for 0 <= part <= whole, in the same way."""
    k = u64(1)
    while (
        _below(words, cursor, k + k) == u64(0)
        and _below(words, cursor, whole) < part
        and _below(words, cursor, whole) < part
    ):
        k += u64(1)
    return (k & u64(1)) == u64(1)


@compiled
def _laplace_attempt(words: Array, cursor: Array, over: Any, under: Any) -> Any:
    """y with probability proportional to exp(-abs(y) * under / over), or a rejection (CKS, Algorithm 2).

    With ``over`` up to 2**40 and fewer than 2**20 turns, rest + over * turns < over * (turns + 1) <= 2**60,
    and :func:`_gaussian_attempt` forms nothing larger. Stopping at 2**20 turns moves a probability of
    exp(-2**20).
    """
    rest = _below(words, cursor, over)
    if not _exp_minus(words, cursor, rest, over):
        return _REJECTED
    turns = u64(0)
    while turns < u64(_MOST_TURNS) and _exp_minus(words, cursor, u64(1), u64(1)):
        turns += u64(1)
    y = i64((rest + over * turns) // under)
    if _below(words, cursor, u64(2)) == u64(0):
        return y
    return -y if y > i64(0) else _REJECTED  # zero must not count twice


@compiled
def _gaussian_attempt(words: Array, cursor: Array, over: Any, under: Any) -> Any:
    """y with probability proportional to exp(-(y * under / over)**2 / 2), or a rejection.

    A Laplace draw of the same scale is kept with probability exp(-d**2 / 2), where d is the distance of
    abs(y) * under / over from 1 (CKS, Algorithm 3). Written as d = turns + rest / over, that is exp(-1/2) to
    the power turns**2, times exp(-rest / over) to the power turns, times exp(-(rest / over)**2 / 2): no large
    square is ever formed.
    """
    y = _laplace_attempt(words, cursor, over, under)
    if y == _REJECTED:
        return y
    size = u64(y if y > i64(0) else -y) * under
    distance = size - over if size > over else over - size
    turns = distance // over
    rest = distance - turns * over
    for _ in range(turns * turns):
        if not _exp_minus_half_square(words, cursor, u64(1), u64(1)):
            return _REJECTED
    for _ in range(turns):
        if not _exp_minus(words, cursor, rest, over):
            return _REJECTED
    return y if _exp_minus_half_square(words, cursor, rest, over) else _REJECTED


@compiled
def discrete_laplace(words: Array, out: Array, over: int, under: int) -> Any:
    """Fill ``out`` with y of probability proportional to exp(-abs(y) * under / over)."""
    cursor, made = np.zeros(2, np.int64), 0
    while made < out.size:
        y = _laplace_attempt(words, cursor, u64(over), u64(under))
        if not _finished(words, cursor):
            break
        if y != _REJECTED:
            out[made] = y
            made += 1
    return made, cursor[1]


@compiled
def discrete_gaussian(words: Array, out: Array, over: int, under: int) -> Any:
    """Fill ``out`` with y of probability proportional to exp(-(y * under / over)**2 / 2)."""
    cursor, made = np.zeros(2, np.int64), 0
    while made < out.size:
        y = _gaussian_attempt(words, cursor, u64(over), u64(under))
        if not _finished(words, cursor):
            break
        if y != _REJECTED:
            out[made] = y
            made += 1
    return made, cursor[1]


@compiled
def integers(words: Array, out: Array, bound: int) -> Any:
    """Fill ``out`` with uniform draws from 0, ..., bound - 1."""
    cursor, made = np.zeros(2, np.int64), 0
    while made < out.size:
        draw = _below(words, cursor, u64(bound))
        if not _finished(words, cursor):
            break
        out[made] = i64(draw)
        made += 1
    return made, cursor[1]
