"""The private mean: of bits, numbers or vectors, by whatever is publicly known about one record.

>>> import numpy as np
>>> from discreet import Budget
>>> budget = Budget(epsilon=1.0, delta=1e-6, neighbours="replace-one")
>>> smokers, incomes = np.arange(1000) % 4 == 0, np.linspace(20.0, 80.0, 1000)
>>> round(private_mean(smokers, budget, Interval(0, 1)).predicted_error, 4)
0.0159
>>> estimate = private_mean(incomes, budget, Ball(radius=1000.0))
>>> estimate.guarantee.within(budget), abs(estimate.value - 50) < 10 * estimate.predicted_error
(True, True)

==========================  ===========================================================================
what is known               what happens
==========================  ===========================================================================
``Ball(radius)``            the default: where the records are and how far they spread is found out
                            privately, in a few rounds; then the clip is tight
``Interval(lower, upper)``  numbers are moved into the interval; without bias, good for bits and scores
``SecondMoment(s)``         the clip with the best error bound for E |x|^2 <= s^2 and nothing else
``FixedClip(clip_norm)``    a clip of your own choice
==========================  ===========================================================================

All of it is public and never taken from the data. So is the number of records: under replace-one neighbours
it is the number of rows; under add-remove neighbours that is private, and ``records`` must be declared.
"""

from discreet.statistics.mean.estimate import MeanEstimate, private_mean
from discreet.statistics.mean.known import FixedClip, Interval, SecondMoment
from discreet.statistics.mean.recentring import Ball

__all__ = [
    "Ball",
    "FixedClip",
    "Interval",
    "MeanEstimate",
    "SecondMoment",
    "private_mean",
]
