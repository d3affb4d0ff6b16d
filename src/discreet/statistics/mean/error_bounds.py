"""How exact a clipped mean can be: the theorem, with sharp constants.

Let n records of dimension d be drawn from a distribution with E |x|^2 <= s^2, and let each be clipped to norm C. With
noise of variance v C^2 on each coordinate of the sum, the mean squared error of their mean is at most

    min(s, C)^2 / n  +  b s^4 / (16 C^2)  +  d v C^2 / n^2

for the sampling, the bias of clipping and the noise. Here b = 1 for l2 clips (Gaussian noise) and b = d for l1
clips (Laplace noise). The bias is at most E (|x| - C)+, and (|x| - C)+ <= |x|^2 / (4 C), which is attained
at |x| = 2 C: the distribution that is 2 C with probability s^2 / (4 C^2) and else 0 has exactly this bias. For l1
clips, |x|_1 <= sqrt(d) |x|_2 makes it the bias of an l2 clip at C / sqrt(d).

The best C balances the last two terms. For numbers with Laplace noise and replace-one neighbours the sum is
then s^2 / n + sqrt(2) s^2 / (n epsilon); the lecture's clip has 9/4 in place of the root.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from discreet.errors import InvalidParameter, real, whole
from discreet.events import Gaussian, Laplace

Noise = Gaussian | Laplace
Norm = Literal["l2", "l1"]


def error_bound(
    event: Noise, clip_norm: float, root_mean_square: float, records: int, dimension: int = 1
) -> float:
    """Root mean squared error of the noisy mean of clipped records, at most, for every distribution as above.

    ``event`` is the noise on the sum, so it knows the neighbours: ``Laplace(2 / epsilon)`` for replace-one.

    >>> clip_norm = lecture_clip_norm(root_mean_square=1.0, records=100, epsilon=1.0)
    >>> round(error_bound(Laplace(2.0), clip_norm, root_mean_square=1.0, records=100) ** 2, 6)
    0.0325
    """
    release = NoisySum(event, records, dimension)
    clip_norm, spread = size("clip_norm", clip_norm), size("root_mean_square", root_mean_square)
    return math.hypot(
        min(spread, clip_norm) / math.sqrt(release.records),
        release.clipping_bias(clip_norm, spread),
        release.noise_error(clip_norm),
    )


def best_clip_norm(event: Noise, root_mean_square: float, records: int, dimension: int = 1) -> float:
    """The clip norm that makes bias and noise of :func:`error_bound` equal, and their sum least.

    >>> round(best_clip_norm(Laplace(2.0), root_mean_square=1.0, records=100), 6)
    2.973018
    """
    release, spread = NoisySum(event, records, dimension), size("root_mean_square", root_mean_square)
    return math.sqrt(release.clipping_bias(1.0, spread) / release.noise_error(1.0))


def lecture_clip_norm(root_mean_square: float, records: int, epsilon: float) -> float:
    """The lecture's clip for numbers with Laplace noise, s sqrt(n epsilon) / 2: 1.68 times the best one."""
    spread, records = size("root_mean_square", root_mean_square), whole("records", records, at_least=1)
    return spread * math.sqrt(records * real("epsilon", epsilon, above=0)) / 2


@dataclass(frozen=True)
class NoisySum:
    """The release of a sum over ``records`` records with noise, as far as its accuracy is concerned."""

    noise: Noise
    records: int
    dimension: int

    def __post_init__(self) -> None:
        if not isinstance(self.noise, Gaussian | Laplace):
            raise InvalidParameter("event", self.noise, "must be a Gaussian or a Laplace event.")
        object.__setattr__(self, "records", whole("records", self.records, at_least=1))
        object.__setattr__(self, "dimension", whole("dimension", self.dimension, at_least=1))

    @property
    def norm(self) -> Norm:
        """The norm that this noise needs contributions to be bounded in."""
        return norm_of(self.noise)

    @property
    def widening(self) -> float:
        """The largest norm of a vector of l2 norm 1."""
        return 1.0 if self.norm == "l2" else math.sqrt(self.dimension)

    def noise_error(self, clip_norm: float) -> float:
        """Root mean squared l2 length of the noise on the mean."""
        return deviation(self.noise) * clip_norm * math.sqrt(self.dimension) / self.records

    def clipping_bias(self, clip_norm: float, root_mean_square: float) -> float:
        """Length of the bias, at most."""
        return self.widening * root_mean_square**2 / (4 * clip_norm)


def deviation(event: Noise) -> float:
    """Standard deviation of the noise on one coordinate of the sum, in clip norms."""
    return event.noise_multiplier if isinstance(event, Gaussian) else math.sqrt(2) * event.scale


def norm_of(event: Noise) -> Norm:
    """l2 for Gaussian, l1 for Laplace noise."""
    return "l2" if isinstance(event, Gaussian) else "l1"


def share(event: Noise, part: float) -> Noise:
    """The noise of a release that may cost only ``part`` of what ``event`` costs.

    Guarantee: releases whose parts sum to 1 cost together what ``event`` costs, but for rounding. Gaussian
    releases add up in 1 / noise_multiplier^2, Laplace releases in 1 / scale.
    """
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier / math.sqrt(part))
    return Laplace(event.scale / part)


def size(name: str, value: object) -> float:
    """A public length: positive, and such that its square is nothing special."""
    remedy = "It is public, never taken from the data."
    return real(name, value, at_least=1e-50, at_most=1e50, remedy=remedy)
