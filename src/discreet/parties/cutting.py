"""A bound on what a whole party says: its sum, cut to a public length before the noise.

>>> total = BoundedSum(np.array([3000, 4000]), clip_norm=1.0, grid=2.0**-10)
>>> cut = cut_sum(total, most=2.0)
>>> cut.value, cut.clip_norm > 1.0
(array([1228, 1638]), True)

**What is proved.** Let a sum count n steps in d coordinates, and b be the bound in steps.

1. The cut sum has norm b at most, exactly: it is scaled to a little less, and rounded toward zero.
2. To project on a ball brings no two sums further apart, so one record moves the projected sum by no more than
   before. What is computed is less than e = sqrt(d) + 2 b (d + 8) 2**-52 steps away from the projection: the first
   term for rounding to the grid, the second for float64. So one record moves the cut sum by 2 e steps more at most,
   and that much is added to the clip norm that the result states; the noise, a multiple of it, grows along.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from discreet.core.noise import BoundedSum

_UNIT = 2.0**-52


def cut_sum(total: BoundedSum, most: float) -> BoundedSum:
    """The sum of a party, which counts in grid steps, cut to a length of ``most`` clip norms.

    Guarantee: its norm is at most ``most * total.clip_norm``, and one record moves it by the result's clip norm
    at most.
    """
    assert total.grid is not None  # whole numbers: the proof is for them
    bound = math.floor(Fraction(most) * Fraction(total.clip_norm) / Fraction(total.grid))
    counts = np.asarray(total.value).astype(np.float64)
    error = (counts.size + 8) * _UNIT
    limit, length = bound * (1 - error), math.sqrt(counts @ counts)
    cut = total.value if length <= limit else (counts * (limit / length)).astype(np.int64)
    slack = 2 * (math.sqrt(counts.size) + 2 * bound * error) * (1 + 1e-9)
    return BoundedSum(cut, math.nextafter(total.clip_norm + slack * total.grid, math.inf), grid=total.grid)
