"""Canaries: records made to be found, and the score by which an attacker tells whether they were used.

A canary's gradient lies on a coordinate of its own, and is several times longer than the clip norm, so that the
subject's own clipping is part of what is audited. Coordinate by coordinate the attacker then faces the worst
case of the theory: noise alone, or noise around one clip norm. The best score is the log-likelihood ratio of the
two, summed over the steps; with Poisson sampling of rate q it is, for each step,

    log(1 - q + q exp(l(x))),     l(x) = (2 x - 1) / (2 z^2)   for Gaussian noise of z clip norms.        (4)

Against a neighbour whose canary has the opposite sign (replace-one) it is the same, minus its value at -x.

>>> log_ratio(np.array([[0.0, 1.0]]), Gaussian(noise_multiplier=0.5), "add-remove")
array([-2.,  2.])
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from discreet.audit.lines import Floats
from discreet.core.noise import noise_ratio
from discreet.core.randomness import RandomStream
from discreet.errors import UnsupportedEvent
from discreet.events import Event, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, RandomlyAllocated
from discreet.guarantee import Neighbours

Coins = NDArray[np.bool_]

SIMULATED_DRAWS = 2_000_000


def dirac(used: Coins, length: float, neighbours: Neighbours) -> Floats:
    """One row for each used canary, ``length`` on its own coordinate.

    For replace-one neighbours every canary has a row, and the coin chooses its sign.
    """
    if neighbours == "replace-one":
        return np.diag(np.where(used, length, -length))
    rows = np.flatnonzero(used)
    vectors = np.zeros((rows.size, used.size))
    vectors[np.arange(rows.size), rows] = length
    return vectors


def step_of(event: Event) -> tuple[Event, int]:
    """The step that is repeated, and how often."""
    parts = event.parts()
    if len(parts) == 1 and not isinstance(parts[0][0], FixedSizeSampled) and _known(parts[0][0]):
        return parts[0]
    raise UnsupportedEvent(
        "canaries are scored for one kind of step, repeated: Gaussian or Laplace noise on full batches, Poisson "
        "samples or random allocations. Audit each stage by itself, or use OneStep or ModelCanaries."
    )


def log_ratio(seen: Floats, step: Event, neighbours: Neighbours) -> Floats:
    """How much more likely each column of ``seen`` is with its canary than without: one row for each release.

    ``seen`` is in clip norms. A single row that is the sum of several steps must be scored by :func:`of_sum`.
    """
    score = _ratio(seen, step)
    if neighbours == "replace-one":
        score = score - _ratio(-seen, step)
    return np.asarray(np.nan_to_num(score.sum(axis=0), nan=0.0))


def of_sum(total: Floats, step: Event, steps: int, neighbours: Neighbours) -> Floats:
    """The score when only the sum over all steps is seen: its distance from the middle of both worlds.

    For Gaussian noise on full batches it orders canaries as their log-likelihood ratios do.
    """
    middle = 0.0 if neighbours == "replace-one" else steps * _rate(step) * releases(step) / 2
    return np.asarray(np.nan_to_num(total - middle, nan=0.0))


def releases(step: Event) -> int:
    """The number of noisy sums in one event."""
    return step.steps if isinstance(step, RandomlyAllocated) else 1


def simulated(step: Event, steps: int, neighbours: Neighbours, stream: RandomStream) -> Floats:
    """Scores of canaries, used or not with equal chance, in a run that does exactly what the claim says."""
    if isinstance(step, Gaussian):  # the same as one release with less noise
        step, steps = Gaussian(step.noise_multiplier / math.sqrt(steps)), 1
    each = steps * releases(step)
    size = max(1000, min(50_000, SIMULATED_DRAWS // each))
    sign = np.where(stream.uniform(size) < 0.5, 1.0, -1.0 if neighbours == "replace-one" else 0.0)
    seen = _noise(step, (each, size), stream) + sign * _taken(step, (steps, releases(step), size), stream)
    return log_ratio(seen, step, neighbours)


def _known(step: Event) -> bool:
    return isinstance(step, Gaussian | Laplace | PoissonSampled | RandomlyAllocated)


def _of(step: Event) -> Gaussian | Laplace:
    if isinstance(step, PoissonSampled | RandomlyAllocated):
        return step.of
    assert isinstance(step, Gaussian | Laplace)
    return step


def _rate(step: Event) -> float:
    if isinstance(step, PoissonSampled):
        return step.rate
    return 1 / releases(step)


def _ratio(seen: Floats, step: Event) -> Floats:
    """The log-likelihood ratio of "one clip norm, if sampled" to "nothing", one row for each event."""
    noise = _of(step)
    scale = noise_ratio(noise)
    ratio = (seen - 0.5) / scale**2 if isinstance(noise, Gaussian) else (abs(seen) - abs(seen - 1)) / scale
    if isinstance(step, PoissonSampled):
        return np.asarray(np.logaddexp(math.log1p(-step.rate), math.log(step.rate) + ratio))
    if isinstance(step, RandomlyAllocated):
        epochs = ratio.reshape(-1, step.steps, seen.shape[-1])
        return np.asarray(logsumexp(epochs, axis=1)) - math.log(step.steps)
    return np.asarray(ratio)


def _noise(step: Event, shape: tuple[int, int], stream: RandomStream) -> Floats:
    noise = _of(step)
    draws = stream.normal(shape) if isinstance(noise, Gaussian) else stream.laplace(shape)
    return np.asarray(draws * noise_ratio(noise))


def _taken(step: Event, shape: tuple[int, int, int], stream: RandomStream) -> Floats:
    """1 where the canary takes part, one row for each release."""
    events, each, size = shape
    if isinstance(step, PoissonSampled):
        return np.asarray(stream.uniform((events, size)) < step.rate, dtype=float)
    if isinstance(step, RandomlyAllocated):
        place = stream.integers(each, (events, 1, size))
        return np.asarray(np.arange(each)[None, :, None] == place, dtype=float).reshape(events * each, size)
    return np.ones((events, size))
