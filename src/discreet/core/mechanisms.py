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

Events count noise in units of what one record may add, and exchanging a record removes one contribution and
adds another. So under replace-one neighbours the sensitivity stands for two contributions of half its size;
the noise is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.accounting.curve import account
from discreet.accounting.gaussian import classic_gaussian_noise, gaussian_mu, laplace_noise
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import BudgetExceeded, InvalidParameter, one_of, real
from discreet.events import Event, Gaussian, Laplace
from discreet.guarantee import Budget, Guarantee, Neighbours

Arithmetic = Literal["float", "hardened"]

_MARGIN = 1 + 1e-11  # over the least noise: more than calibration and accounting can disagree by
_LARGEST = 2.0**1000  # larger statistics are moved here, so that adding noise cannot overflow


@dataclass(frozen=True, eq=False)
class Release:
    """A private result and what it cost.

    ``event`` is what an accountant needs to add this release to others. ``guarantee`` holds for real numbers
    if ``arithmetic`` is ``"float"``, and for the bits of ``value`` if it is ``"hardened"``. It is void if
    ``trusted`` is False: then a seed made the noise.
    """

    value: float | NDArray[np.float64]
    event: Event
    guarantee: Guarantee
    arithmetic: Arithmetic
    trusted: bool


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
        real("delta", delta, above=0, below=1, remedy=_DELTA_REMEDY)
        event = Gaussian(budget.reach * classic_gaussian_noise(epsilon, delta))
    else:
        event = gaussian_event(budget)
    return _release(value, sensitivity, event, budget, stream)


_DELTA_REMEDY = (
    "Gaussian noise needs a delta above 0, well below 1 / number of records; or use Laplace noise."
)


def laplace_event(budget: Budget) -> Laplace:
    """The least Laplace noise for one release within ``budget``, its delta left aside.

    Guarantee: one release of this event, on its own, is proved to stay within the budget.
    """
    return Laplace(budget.reach * laplace_noise(budget.epsilon) * _MARGIN)


def gaussian_event(budget: Budget) -> Gaussian:
    """The least Gaussian noise for one release within ``budget``.

    Guarantee: one release of this event, on its own, is proved to stay within the budget.
    """
    delta = real("delta", budget.delta, at_least=1e-300, at_most=0.5, remedy=_DELTA_REMEDY)
    mu = gaussian_mu(budget.epsilon, delta)
    if not 1e-8 <= mu / _MARGIN <= 1e4:
        remedy = "is beyond what can be certified for Gaussian noise; choose it between 1e-6 and 1e6."
        raise InvalidParameter("epsilon", budget.epsilon, remedy)
    return Gaussian(budget.reach / mu * _MARGIN)


def certified_cost(event: Event, budget: Budget, spare_delta: float = 0.0) -> Guarantee:
    """What ``event`` is proved to cost, at the budget's delta; at 0 where all noise is Laplace noise.

    ``spare_delta`` is kept back for whatever the event does not cover.

    Guarantee: the result is within the budget, or :class:`BudgetExceeded` is raised.
    """
    pure = all(isinstance(part, Laplace) for part, _ in event.parts())
    delta = 0.0 if pure else budget.delta
    curve = account(event, budget.neighbours, budget.group_size)
    guarantee = replace(curve.guarantee(delta - (0.0 if pure else spare_delta)), delta=delta)
    if not guarantee.within(budget):
        raise BudgetExceeded(f"{event} would cost {guarantee}, which exceeds {budget}; nothing was released.")
    return guarantee


def _release(
    value: ArrayLike,
    sensitivity: float,
    event: Gaussian | Laplace,
    budget: Budget,
    stream: RandomStream | None,
) -> Release:
    remedy = "It is the most by which the value differs between neighbouring data sets."
    sensitivity = real("sensitivity", sensitivity, at_least=1e-100, at_most=1e100, remedy=remedy)
    statistic = _finite(value)
    guarantee = certified_cost(event, budget)
    norm: Literal["l2", "l1"] = "l2" if isinstance(event, Gaussian) else "l1"
    total = BoundedSum(statistic, sensitivity / budget.reach, norm)
    noisy = add_noise(total, event, stream)
    trusted = system_stream().trusted if stream is None else stream.trusted
    return Release(noisy if noisy.ndim else float(noisy), event, guarantee, total.arithmetic, trusted)


def _finite(value: ArrayLike) -> NDArray[np.float64]:
    """The statistic as finite float64 numbers. Refusals depend on its type alone and show nothing of it."""
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:
        raise InvalidParameter("value", "ragged", "must be a number or an array.") from None
    if array.dtype.kind not in "fiub":
        raise InvalidParameter("value.dtype", str(array.dtype), "must be real numbers, for instance float64.")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
        array = array.astype(np.float64)
    return np.clip(np.where(np.isfinite(array), array, 0.0), -_LARGEST, _LARGEST)
