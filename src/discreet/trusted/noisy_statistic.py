"""The Laplace and the Gaussian mechanism, charged to a ledger in memory.

>>> from discreet.events import Laplace
>>> noisy_statistic(np.array([3.0, 4.0]), 1.0, Laplace(2.1), Budget(0.5, 0.0), RandomStream()).shape
(2,)
>>> noisy_statistic(np.array([3.0, 4.0]), 1.0, Laplace(1.9), Budget(0.5, 0.0), RandomStream())
Traceback (most recent call last):
    ...
discreet.errors.BudgetExceeded: ...

Events count noise in units of what one record may add, and exchanging a record removes one contribution and adds
another. So under replace-one neighbours the sensitivity stands for two contributions of half its size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.events import Event, Gaussian
from discreet.guarantee import Budget, sensitivity_factor
from discreet.ledger import FixedPlan, Till
from discreet.trusted.permits import StepNoise, pay_at_once


def noisy_statistic(
    value: NDArray[np.float64], sensitivity: float, event: Event, budget: Budget, stream: RandomStream
) -> NDArray[np.float64]:
    """Return ``value`` with the noise of ``event``, after a ledger for it alone has reserved it within ``budget``.

    Guarantee: within ``budget``, if ``sensitivity`` bounds the change of ``value`` between two data sets that differ
    by one record, in the l1 norm for Laplace and in the l2 norm for Gaussian noise. That is the caller's promise.
    """
    clip_norm = sensitivity / sensitivity_factor(budget.neighbours, 1)
    total = BoundedSum(value, clip_norm, "l2" if isinstance(event, Gaussian) else "l1")
    with Till.open(None, FixedPlan(event, budget)) as till:
        permit = pay_at_once(till, StepNoise.of_event(event), clip_norm, stream, name="statistic")
    return np.asarray(permit.release(total))
