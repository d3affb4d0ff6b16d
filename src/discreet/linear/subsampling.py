"""A fit on a secret sample of the records: ``sample=0.01``.

Every record, or every person with all rows, is taken with the same chance q, independently, by our own cryptographic
stream; nobody is told which. Under add-remove neighbours that amplifies the guarantee of any procedure:

    (epsilon', delta') on the sample   is   (log(1 + q (e^epsilon' - 1)), q delta')   for the table,

since with one record more the output is that of the table before with chance 1 - q, and that of a neighbour of the
sample with chance q (docs/mathematics.md: U5). So the fit may spend more on the sample than it costs. What is charged
is one release of the whole budget, before anything is drawn.

>>> from discreet import Budget
>>> inner = amplified_budget(Budget(1.0, 1e-6), 0.01)
>>> round(inner.epsilon, 3), round(inner.delta, 9)
(5.152, 0.0001)
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.core.sampling import successes
from discreet.guarantee import Budget
from discreet.linear.gate.people import People

Rows = NDArray[np.int64]

_LARGEST_DELTA = 0.1  # on the sample
_DOWN = 1 - 1e-12  # more than the roundings of the two numbers


def amplified_budget(budget: Budget, rate: float) -> Budget:
    """What may be spent on a sample so that the table is within ``budget``: more under add-remove neighbours.

    Guarantee: log(1 + rate (e^epsilon' - 1)) <= epsilon and rate * delta' <= delta. Under replace-one neighbours no
    more than the budget itself, which a sample costs, too: taken or not, a record is replaced in at most one place.
    """
    if budget.neighbours != "add-remove":
        return budget
    epsilon = math.log1p(math.expm1(min(budget.epsilon, 700.0)) / rate) * _DOWN
    delta = min(budget.delta / rate * _DOWN, max(_LARGEST_DELTA, budget.delta))
    return replace(budget, epsilon=max(epsilon, budget.epsilon * _DOWN), delta=delta)


def draw_rows(rate: float, rows: int, people: People | None, stream: RandomStream) -> Rows:
    """The numbers of the rows that are taken, in rising order: each, or all of a person's, with chance ``rate``."""
    if people is None:
        return successes(rows, Fraction(rate), stream)
    taken = np.zeros(people._count() + 1, np.bool_)  # the last one is nobody's
    taken[successes(people._count(), Fraction(rate), stream)] = True
    return np.flatnonzero(taken[people._codes])
