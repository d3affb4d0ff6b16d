"""Normal scores: draws of a claimed distribution, turned into draws that are standard normal if the claim is true.

A number x from a distribution with distribution function F becomes Phi^-1(F(x)). So one set of exact normal tests
serves every distribution; where the distribution has steps (counts, noise on a grid) the place within a step is drawn
at random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from discreet.core.randomness import RandomStream

Array = NDArray[np.float64]
LIMIT = 37.0  # beyond it a float64 has no tail probability; nothing honest comes near


def gaussian_scores(draws: Array, std: float) -> Array:
    """Of Gaussian draws: themselves in units of their standard deviation."""
    return np.clip(draws / std, -LIMIT, LIMIT)


def laplace_scores(draws: Array, std: float) -> Array:
    """Of Laplace draws, accurate in both tails."""
    log_tail = -np.abs(draws) * (np.sqrt(2) / std) - np.log(2)
    return np.asarray(np.sign(draws) * -special.ndtri_exp(np.maximum(log_tail, -(LIMIT**2) / 2)))


def grid_scores(draws: Array, std: float, grid: float, law: str, stream: RandomStream) -> Array:
    """Of noise on a coarse grid: the discrete Gaussian or Laplace distribution of this scale."""
    half_width = int(np.ceil(LIMIT * std / grid)) + 1
    steps = np.arange(-half_width, half_width + 1)
    scale = std / grid
    log_mass = -0.5 * (steps / scale) ** 2 if law == "gaussian" else -np.abs(steps) * laplace_rate(scale)
    mass = np.exp(log_mass)
    edges = np.concatenate(([0.0], np.cumsum(mass) / mass.sum()))
    places = np.clip(np.rint(draws / grid).astype(np.int64), -half_width, half_width) + half_width
    return between(edges[places], edges[places + 1], stream)


def laplace_rate(std: float) -> float:
    """The rate r of exp(-r |k|) on the integers with this standard deviation: 2 q / (1 - q)**2 = std**2."""
    return float(2 * np.arcsinh(1 / (np.sqrt(2) * std)))


def count_scores(counts: Any, trials: int, chance: float, stream: RandomStream) -> Array:
    """Of binomial counts."""
    values = np.asarray(counts, dtype=np.float64)
    return between(
        binomial_at_most(values - 1, trials, chance), binomial_at_most(values, trials, chance), stream
    )


def binomial_at_most(counts: Any, trials: Any, chance: Any) -> Any:
    """P(X <= count)."""
    counts = np.asarray(counts, np.float64)
    inside = np.clip(counts, 0, trials - 1)
    found = special.betainc(trials - inside, inside + 1, 1 - chance)
    return np.where(counts < 0, 0.0, np.where(counts >= trials, 1.0, found))


def binomial(count: int, trials: int, chance: float) -> float:
    """The two-sided p-value of a binomial count."""
    above = special.betainc(count, trials - count + 1, chance) if count else 1.0
    return float(two_sided(binomial_at_most(count, trials, chance), above))


def between(low: Any, high: Any, stream: RandomStream) -> Array:
    """The normal score of a uniformly random place between two values of the distribution function."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    place = low + (high - low) * stream.uniform(low.shape)
    return np.asarray(np.clip(special.ndtri(place), -LIMIT, LIMIT))


def two_sided(lower: Any, upper: Any) -> Any:
    """Twice the smaller tail, at most 1."""
    return np.minimum(1.0, 2 * np.minimum(lower, upper))


def energy(scores: Array, axis: int | None = None) -> Any:
    """p-values of the sum of squares, which is chi-square: too much or too little noise."""
    count = scores.size if axis is None else scores.shape[axis]
    total = np.sum(scores**2, axis=axis)
    return two_sided(special.gammainc(count / 2, total / 2), special.gammaincc(count / 2, total / 2))


def centre(scores: Array, axis: int | None = None) -> Any:
    """p-values of the mean, which is normal."""
    count = scores.size if axis is None else scores.shape[axis]
    return special.erfc(np.abs(np.sum(scores, axis=axis)) / np.sqrt(2 * count))


def shape(scores: Array) -> float:
    """The p-value of Kolmogorov and Smirnov, which is slightly too large for few scores."""
    below = special.ndtr(np.sort(scores, axis=None))
    steps = np.arange(scores.size + 1) / scores.size
    distance = max(float(np.max(steps[1:] - below)), float(np.max(below - steps[:-1])))
    return float(special.kolmogorov(distance * np.sqrt(scores.size)))


def evenly(p_values: Any) -> dict[str, float]:
    """Independent p-values taken together: the worst of them, and all of them (Fisher)."""
    values = np.clip(np.asarray(p_values, np.float64), 1e-300, 1.0)
    worst = min(1.0, float(values.min()) * values.size)
    return {"worst": worst, "all": float(special.gammaincc(values.size, -np.log(values).sum()))}
