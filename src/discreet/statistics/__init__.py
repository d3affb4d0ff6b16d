"""Statistics of a private table, one paid release each, in whole-number arithmetic.

>>> import numpy as np
>>> from discreet import Budget
>>> from discreet.statistics import private_histogram, private_quantiles
>>> ages = np.random.default_rng(0).integers(18, 90, 20_000)
>>> found = private_histogram(ages, Budget(1.0, 0.0), [0, 30, 60, 120])
>>> bool(np.abs(found.value - np.histogram(ages, [0, 30, 60, 120])[0]).max() < 30)
True
>>> median = private_quantiles(ages, Budget(1.0, 0.0), 0.5, bounds=(0, 120))
>>> 52 <= median.value <= 55
True

Whatever is declared (bins, bounds, levels) is public, and nothing else: under add-remove neighbours the number of
records is private, too. ``private_mean`` is :func:`discreet.private_mean`.
"""

from discreet.statistics.bounded_sums import (
    PrivatePCA,
    private_count,
    private_covariance,
    private_histogram,
    private_sum,
    private_variance,
)
from discreet.statistics.quantiles import private_quantiles
from discreet.statistics.statistic import Statistic

__all__ = [
    "PrivatePCA",
    "Statistic",
    "private_count",
    "private_covariance",
    "private_histogram",
    "private_quantiles",
    "private_sum",
    "private_variance",
]
