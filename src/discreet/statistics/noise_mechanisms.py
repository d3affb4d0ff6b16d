"""The two classical mechanisms: a statistic, its sensitivity and a budget in, a private release out.

>>> release = gaussian_mechanism([12.0, 7.5], sensitivity=1.0, epsilon=0.5, delta=1e-6)
>>> release.value.shape
(2,)
>>> print(release.guarantee)
(0.5, 1e-06)-differentially private for one record, add-remove neighbours, against an observer who sees every release
>>> laplace_mechanism(3, sensitivity=1, epsilon=2.0, neighbours="replace-one").event
Laplace(scale=1.0...)

The sensitivity is the caller's promise: the most by which the statistic differs between two neighbouring data
sets, in the l1 norm for Laplace and in the l2 norm for Gaussian noise. Where the library can see the records
it needs no promise: see :func:`discreet.statistics.mean.private_mean`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.accounting.noise_formulas import classic_gaussian_noise
from discreet.core.mechanisms import DELTA_REMEDY, Release, certified_cost, gaussian_event, laplace_event
from discreet.core.noise import checked_stream
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, one_of, real
from discreet.events import Gaussian, Laplace
from discreet.guarantee import Budget, Neighbours
from discreet.trusted.noisy_statistic import noisy_statistic

_LARGEST = 2.0**1000  # larger statistics are moved here, so that adding noise cannot overflow


def laplace_mechanism(
    value: ArrayLike,
    sensitivity: float,
    epsilon: float,
    *,
    neighbours: Neighbours = "add-remove",
    stream: RandomStream | None = None,
) -> Release:
    """``value`` with Laplace noise of scale ``sensitivity / epsilon`` on every coordinate.

    ``neighbours`` names the relation that ``sensitivity`` is for. It labels the guarantee and leaves the noise
    as it is. NaN and infinity in ``value`` count as 0, because an error would tell that they were there.

    Guarantee: (epsilon, 0)-DP, if ``sensitivity`` bounds the change of ``value`` in the l1 norm.
    """
    budget = Budget(epsilon, 0.0, neighbours)
    return _release(value, sensitivity, laplace_event(budget), budget, stream)


def gaussian_mechanism(
    value: ArrayLike,
    sensitivity: float,
    epsilon: float,
    delta: float,
    *,
    method: Literal["analytic", "classic"] = "analytic",
    neighbours: Neighbours = "add-remove",
    stream: RandomStream | None = None,
) -> Release:
    """``value`` with Gaussian noise on every coordinate.

    ``"analytic"`` takes the least noise that will do, at any epsilon (Balle and Wang 2018). ``"classic"`` is
    the textbook's ``sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon``, proved for epsilon below 1; its
    guarantee states what it really costs, which is less than asked for. ``neighbours`` and NaN are treated as
    by :func:`laplace_mechanism`.

    Guarantee: (epsilon, delta)-DP, if ``sensitivity`` bounds the change of ``value`` in the l2 norm.
    """
    budget = Budget(epsilon, delta, neighbours)
    if one_of("method", method, ("analytic", "classic")) == "classic":
        remedy = 'The classic formula is proved for epsilon < 1 only; use method="analytic".'
        real("epsilon", epsilon, above=0, below=1, remedy=remedy)
        real("delta", delta, above=0, below=1, remedy=DELTA_REMEDY)
        event = Gaussian(budget.reach * classic_gaussian_noise(epsilon, delta))
    else:
        event = gaussian_event(budget)
    return _release(value, sensitivity, event, budget, stream)


def _release(
    value: ArrayLike,
    sensitivity: float,
    event: Gaussian | Laplace,
    budget: Budget,
    stream: RandomStream | None,
) -> Release:
    remedy = "It is the most by which the value differs between neighbouring data sets."
    sensitivity = real("sensitivity", sensitivity, at_least=1e-100, at_most=1e100, remedy=remedy)
    stream = checked_stream(stream)
    noisy = noisy_statistic(_finite(value), sensitivity, event, budget, stream)
    guarantee = certified_cost(event, budget)
    return Release(noisy if noisy.ndim else float(noisy), event, guarantee, "float", stream.trusted)


def _finite(value: ArrayLike) -> NDArray[np.float64]:
    """Return the statistic as finite float64 numbers. Refusals depend on its type alone and show nothing of it."""
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:
        raise InvalidParameter("value", "ragged", "must be a number or an array.") from None
    if array.dtype.kind not in "fiub":
        raise InvalidParameter("value.dtype", str(array.dtype), "must be real numbers, for instance float64.")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
        array = array.astype(np.float64)
    return np.clip(np.where(np.isfinite(array), array, 0.0), -_LARGEST, _LARGEST)
