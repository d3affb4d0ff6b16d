"""The grid in which parties count, and what it costs that their noise is discrete.

A message of SGD2 is a whole number of grid steps, written as float64. The grid is so coarse that the sum over all
parties has fewer than 2**52 steps, so that the coordinator adds up without a rounding: who sees only models sees
what follows from an exact sum, in which the noise of one party hides the low bits of another's.

>>> from discreet.events import Gaussian
>>> noise = Gaussian(noise_multiplier=4.0)
>>> grid = grid_of_messages(noise, clip_norm=1.0, records=4000)
>>> distance_of_message(noise, 1.0, grid, dimension=10_000, shares=1, parties=4) < 1e-21
True
"""

from __future__ import annotations

from discreet.core import hardened
from discreet.core.noise import noise_steps
from discreet.events import Gaussian
from discreet.parties.secure.noise_shares import convolution_gap, distance_to_continuous

OVERSIZED = 2.0**-140
"""The chance that an honest message is longer than the coordinator takes; it belongs to the distance."""

_SPARE_BITS = 9  # below the 60 that grid_for() leaves: 2**51 steps of records, and as many for the noise


def grid_of_messages(noise: Gaussian, clip_norm: float, records: int) -> float:
    """A power of two, from public numbers only; ``records`` are all that a sum of messages can hold."""
    return hardened.grid_for(noise, clip_norm, records << _SPARE_BITS)


def distance_of_message(
    noise: Gaussian, clip_norm: float, grid: float, dimension: int, shares: int, parties: int
) -> float:
    """How far one message with all of the noise, or one sum of messages, is from rounded continuous noise at most.

    With ``shares`` above 1 only sums of so many messages have all of the noise.

    Guarantee: a bound on the total variation, for a message and for the sum of any of them.
    """
    if shares > 1:
        return distance_to_continuous(noise, clip_norm, grid, dimension, shares)
    gap = convolution_gap(float(noise_steps(noise, clip_norm, grid)), parties)
    one = hardened.distance_to_continuous(noise, clip_norm, grid, dimension)
    return min(1.0, (one + dimension * gap + OVERSIZED) * (1 + 1e-5))
