"""Noise that several make together, each a share of it, and the grid in which they count.

The parties of a secure sum make noise together: each adds a share, and none knows the rest. Of m
parties, D may drop out and c may tell the coordinator their noise. So each adds a discrete Gaussian of variance
sigma**2 / (m - D - c) in grid steps (:func:`add_noise_share`), and every sum that is unmasked
holds at least sigma**2 of honest noise. More honest parties only add more. Plain sums, each with noise of its own,
would need sqrt(m) times as much in all.

>>> from discreet.core.noise import grid_for
>>> from discreet.events import Gaussian
>>> event = Gaussian(noise_multiplier=4.0)
>>> grid = grid_for(event, clip_norm=1.0, most_records=4000)
>>> distance_of_shares(event, 1.0, grid, dimension=10_000, shares=3) < 1e-22
True
>>> largest_sum(event, 1.0, grid, records=4000, dimension=10_000, shares=3, parties=4) < 2**50
True

**Why the sum is as good as one discrete Gaussian.** Sums of discrete Gaussians of scale s are not discrete Gaussian,
but the logarithms of the probabilities differ by less than :func:`convolution_gap` (Kairouz, Liu, Steinke 2021,
"The distributed discrete Gaussian mechanism for federated learning with secure aggregation"), which is below
exp(-10**13) for the scales that :func:`~discreet.core.noise.noise_steps` allows.

**Why nothing is cut off.** Masked sums are integers modulo 2**64, so a sum below 2**63 in absolute value comes
out as it is. Each record moves a coordinate by at most clip_norm / grid. A discrete Gaussian of scale s has lighter
tails than the normal distribution: the mean of exp(t x) is at most exp((t s)**2 / 2) (Canonne, Kamath, Steinke 2020),
so m of them exceed b with chance 2 exp(-b**2 / (2 m s**2)) at most. The noise itself is never cut. Should a sum leave
the range all the same, the outcome is wrong and the guarantee holds: taking a number modulo 2**64 is post-processing.

**The grid in which parties count.** A message of SGD2 is an integer of grid steps, written as float64. The grid
is so coarse that the sum over all parties has fewer than 2**52 steps, so that the coordinator adds up without a
rounding: who sees only models sees what follows from an exact sum, in which the noise of one party hides the low bits
of another's.

>>> noise = Gaussian(noise_multiplier=4.0)
>>> grid = grid_of_messages(noise, clip_norm=1.0, records=4000)
>>> distance_of_message(noise, 1.0, grid, dimension=10_000, shares=1, parties=4) < 1e-21
True
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from discreet.core.arrays import to_numpy
from discreet.core.noise import (
    BoundedSum,
    check_fit,
    checked_stream,
    distance_to_continuous,
    grid_for,
    noise_steps,
)
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Gaussian

OVERFLOW = 2.0**-80
"""The chance that some coordinate of an honest sum exceeds :func:`largest_sum`."""


def add_noise_share(
    total: BoundedSum, event: Gaussian, shares: int, stream: RandomStream | None = None
) -> NDArray[np.int64]:
    """The integers of a hardened sum with one of ``shares`` equal shares of the noise of ``event``.

    The variance is that of the event's noise divided by ``shares``, rounded up.

    Guarantee: none for one share. Where at least ``shares`` such sums are added up and only the result is seen,
    it costs what ``account(event)`` says, up to :func:`distance_of_shares`,
    if every ``stream.trusted``.
    """
    check_fit(total, event)
    if total.grid is None or not isinstance(event, Gaussian):
        raise InvalidParameter(
            "total", total, "must have a grid, and Gaussian noise, to be noised in shares."
        )
    stream = checked_stream(stream)
    counts = to_numpy(total.value)
    draws: NDArray[np.int64] = stream.discrete_gaussian(
        noise_steps(event, total.clip_norm, total.grid, shares), counts.shape
    )
    draws += counts
    return draws


def convolution_gap(scale: float, shares: int) -> float:
    """By how much the log probabilities of a sum of ``shares`` discrete Gaussians differ at most from those of one.

    The one has the same variance parameter, shares * scale**2. Kairouz, Liu, Steinke (2021), for scales of at
    least 0.71; rounded up.
    """
    scale, shares = real("scale", scale, at_least=0.71), whole("shares", shares, at_least=1)
    exponents = (-2 * math.pi**2 * scale**2 * k / (k + 1) for k in range(1, shares))
    return sum(10 * math.exp(exponent) * (1 + 1e-9) + 5e-324 for exponent in exponents)


def distance_of_shares(event: Gaussian, clip_norm: float, grid: float, dimension: int, shares: int) -> float:
    """An upper bound on the total variation between ``shares`` shares of noise and rounded continuous noise.

    It is for one release: add it up over the rounds, for ``Arithmetic("hardened", distance)`` in a certificate.

    Guarantee: covers the rounding, the discrete distribution, and that sums of it are not quite of that distribution.
    """
    gap = convolution_gap(float(noise_steps(event, clip_norm, grid, shares)), shares)
    one = distance_to_continuous(event, clip_norm, grid, dimension)
    return min(1.0, (one + dimension * gap) * (1 + 1e-5))  # their scale may be a fraction of a step smaller


def largest_sum(
    event: Gaussian, clip_norm: float, grid: float, records: int, dimension: int, shares: int, parties: int
) -> int:
    """A bound on every coordinate of a secure sum in grid steps, from public numbers; refused if above 2**63 - 1.

    Guarantee: the noisy sum over ``records`` records exceeds it with a chance of :data:`OVERFLOW` at most.
    """
    records = whole("records", records, at_least=0)
    signal = records * math.floor(Fraction(clip_norm) / Fraction(grid))
    scale, parties = noise_steps(event, clip_norm, grid, shares), whole("parties", parties, at_least=1)
    tail = math.log(2 * whole("dimension", dimension, at_least=1) / OVERFLOW)
    largest = signal + math.ceil(scale * math.sqrt(2 * parties * tail) * (1 + 1e-12))
    if largest >= 2**63:
        raise InvalidParameter(
            "grid", grid, "is too fine: sums could leave 64 bits. core.noise.grid_for() fits."
        )
    return largest


OVERSIZED = 2.0**-140
"""The chance that an honest message is longer than the coordinator takes; it belongs to the distance."""

_SPARE_BITS = 9  # below the 60 that grid_for() leaves: 2**51 steps of records, and as many for the noise


def grid_of_messages(noise: Gaussian, clip_norm: float, records: int) -> float:
    """A power of two, from public numbers only; ``records`` are all that a sum of messages can hold."""
    return grid_for(noise, clip_norm, records << _SPARE_BITS)


def distance_of_message(
    noise: Gaussian, clip_norm: float, grid: float, dimension: int, shares: int, parties: int
) -> float:
    """How far one message with all of the noise, or one sum of messages, is from rounded continuous noise at most.

    With ``shares`` above 1 only sums of so many messages have all of the noise.

    Guarantee: a bound on the total variation, for a message and for the sum of any of them.
    """
    if shares > 1:
        return distance_of_shares(noise, clip_norm, grid, dimension, shares)
    gap = convolution_gap(float(noise_steps(noise, clip_norm, grid)), parties)
    one = distance_to_continuous(noise, clip_norm, grid, dimension)
    return min(1.0, (one + dimension * gap + OVERSIZED) * (1 + 1e-5))
