"""The exponential mechanism in integers: one of many points, by their scores.

Points come in groups of equal scores, so that billions of them cost no more than the groups do. A point is chosen
with a probability in proportion to exp(-score / scale). If neighbouring tables give every point scores that differ by
s at most, that is differentially private for epsilon = 2 s / scale (McSherry and Talwar 2007): the weight of a point
changes by a factor of exp(s / scale) at most, and so does the sum of all.

>>> exponential_mechanism(np.array([0, 5]), np.array([1, 10**9]), 1, RandomStream(unsafe_seed=1))
(1, 61...)

**How it is drawn.** Scores of more than the least one plus 127 scales count as that: it changes by s at most, as both
do. Write score - least score = scale * turns + rest. Points of the same number of turns are a block; a block is drawn
in proportion to its size times exp(-turns), one of its points evenly, and it is kept with the probability
exp(-rest / scale), exactly, or all is drawn again. The powers of 1/e are integers of 320 binary digits, rounded
down, so no weight is off by more than a part in 2**100, and epsilon by more than 2**-98.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, whole

Numbers = NDArray[np.int64]

MOST_POINTS = 2**60

_DIGITS, _BLOCKS = 320, 128


def exponential_mechanism(
    scores: Numbers, sizes: Numbers, scale: int, stream: RandomStream
) -> tuple[int, int]:
    """A group, and the number of a point in it, with a probability in proportion to exp(-score / scale).

    ``scores`` are of the groups, ``sizes`` say how many points each has; some may have none.

    Guarantee: epsilon-DP for epsilon = 2 s / scale + 2**-98, if neighbours change no score by more than s and leave
    the points, of which the groups are made, as they are; delta is 0.
    """
    scale = whole("scale", scale, at_least=1, at_most=2**52)
    groups = np.flatnonzero(sizes > 0)
    if not groups.size or int(sizes.sum()) > MOST_POINTS:
        raise InvalidParameter("sizes", int(sizes.sum()), "must be 1 to 2**60 points in all.")
    sizes, scores = sizes[groups], scores[groups]
    turns, rest = np.divmod(np.minimum(scores - scores.min(), (_BLOCKS - 1) * scale), scale)
    points = np.zeros(_BLOCKS, np.int64)
    np.add.at(points, turns, sizes)
    weights = list(accumulate(int(n) * power for n, power in zip(points, _falling_powers(), strict=True)))
    while True:
        block = bisect_right(weights, _below(weights[-1], stream))
        members = np.flatnonzero(turns == block)
        up_to = np.cumsum(sizes[members])
        point = int(stream.integers(int(up_to[-1])))
        place = int(np.searchsorted(up_to, point, side="right"))
        chosen = members[place]
        if _is_kept(int(rest[chosen]), scale, stream):
            return int(groups[chosen]), point - int(up_to[place] - sizes[chosen])


@cache
def _falling_powers() -> tuple[int, ...]:
    """exp(-k) in units of 2**-320, rounded down, for the turns k of each block."""
    spare = 100  # digits more, for the errors of 127 products
    one = 1 << (_DIGITS + spare)
    term, inverse, k = one, 0, 0
    while term:  # 1 - 1 + 1/2! - 1/3! + ...
        inverse += -term if k % 2 else term
        k += 1
        term //= k
    powers = accumulate(range(1, _BLOCKS), lambda power, _: power * inverse // one, initial=one)
    return tuple(power >> spare for power in powers)


def _below(bound: int, stream: RandomStream) -> int:
    """Uniform on 0, ..., bound - 1, for bounds of any length."""
    bits = bound.bit_length()
    while True:
        drawn = int.from_bytes(stream.bytes(-(-bits // 8)), "big") >> (-bits % 8)
        if drawn < bound:
            return drawn


def _is_kept(part: int, scale: int, stream: RandomStream) -> bool:
    """True with probability exp(-part / scale), for part < scale.

    Trial k succeeds with probability part / scale / k; the first failure comes at an odd k with probability
    1 - x + x**2/2 - ... = exp(-x) (Canonne, Kamath, Steinke 2020, Algorithm 1).
    """
    k = 1
    while int(stream.integers(k)) == 0 and int(stream.integers(scale)) < part:
        k += 1
    return k % 2 == 1
