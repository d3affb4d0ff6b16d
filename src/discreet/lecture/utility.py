"""Excess-risk bounds of private descent from the lectures, with all constants.

The risk is the *mean* loss; divide by nothing, multiply by n for the lectures that speak of the sum. ``lipschitz`` is
the longest gradient of a record, ``noise_std`` the noise on each coordinate of the averaged gradient, and
``dimension`` the number of coordinates. For linear models the rank of the data takes its place: see
:mod:`discreet.lecture.rank_bound`.

**Average iterate, convex.** From theta_0 = 0 with a constant step, for every theta,

    E F(mean of theta_0 .. theta_{T-1}) - F(theta) <= |theta|^2 / (2 step T) + step (lipschitz^2 + d noise^2) / 2

because |theta_{t+1} - theta|^2 = |theta_t - theta|^2 - 2 step <g_t, theta_t - theta> + step^2 |g_t|^2, summed up.
Projections only shorten the left side. The best step makes both terms equal.

**Average iterate, convex and smooth.** If the largest eigenvalue of the Hessian of F is at most B and the step at
most 1 / B, the gradient pays for itself by what F falls, and only the noise is left:

    E F(mean of theta_1 .. theta_T) - F(theta) <= |theta|^2 / (2 step T) + step (1 + B step) d noise^2 / 2

which needs far fewer steps than the bound above: about sqrt(T) as many.

**Last iterate** (Shamir and Zhang 2013) and **weighted average** (Lacoste-Julien, Schmidt, Bach 2012), for convex
sets of a given diameter and for strongly convex losses: as stated with each function.

>>> round(average_excess(norm=1.0, lipschitz=1.0, noise_std=7.46126327, dimension=10, steps=1_000_000), 10)
0.0236157679
"""

from __future__ import annotations

import math

from discreet.errors import real, whole


def average_excess(
    norm: float,
    lipschitz: float,
    noise_std: float,
    dimension: int,
    steps: int,
    step_size: float | None = None,
) -> float:
    """Expected excess risk of the average iterate, over any parameter of norm ``norm``; convex losses.

    Without a ``step_size`` it is the best one, :func:`best_step_size`.
    """
    best = best_step_size(norm, lipschitz, noise_std, dimension, steps)
    step = best if step_size is None else real("step_size", step_size, above=0)
    square = gradient_square(lipschitz, noise_std, dimension)
    return norm**2 / (2 * step * steps) + step * square / 2


def best_step_size(norm: float, lipschitz: float, noise_std: float, dimension: int, steps: int) -> float:
    """The step that makes :func:`average_excess` least.

    The norm must be a public guess: a step taken from the data would have to be paid for.
    """
    norm = real("norm", norm, above=0, remedy="It is a public guess of the norm of the best parameter.")
    steps = whole("steps", steps, at_least=1)
    return norm / math.sqrt(steps * gradient_square(lipschitz, noise_std, dimension))


def smooth_average_excess(
    norm: float, smoothness: float, noise_std: float, dimension: int, steps: int
) -> float:
    """Expected excess risk of the mean of theta_1, ..., theta_T, over any parameter of norm ``norm``.

    For full batches of a convex loss whose Hessian has no eigenvalue above ``smoothness``, with the step of
    :func:`smooth_step_size`.
    """
    step = smooth_step_size(norm, smoothness, noise_std, dimension, steps)
    return norm**2 / (2 * step * steps) + step * (1 + smoothness * step) * dimension * noise_std**2 / 2


def smooth_step_size(norm: float, smoothness: float, noise_std: float, dimension: int, steps: int) -> float:
    """1 / smoothness, or less where the noise asks for it: norm / (noise_std sqrt(2 dimension steps))."""
    norm, smoothness = real("norm", norm, above=0), real("smoothness", smoothness, above=0)
    dimension, steps = whole("dimension", dimension, at_least=1), whole("steps", steps, at_least=1)
    noise_std = real("noise_std", noise_std, at_least=0)
    longest = 1 / smoothness
    return longest if noise_std == 0 else min(longest, norm / (noise_std * math.sqrt(2 * dimension * steps)))


def last_excess(diameter: float, lipschitz: float, noise_std: float, dimension: int, steps: int) -> float:
    """Expected excess risk of the last iterate, projected onto a set of this diameter; convex losses.

    With the step diameter / (G sqrt(t)), G^2 = :func:`gradient_square`: 2 diameter G (2 + ln T) / sqrt(T).
    """
    diameter, steps = real("diameter", diameter, above=0), whole("steps", steps, at_least=1)
    root = math.sqrt(gradient_square(lipschitz, noise_std, dimension))
    return 2 * diameter * root * (2 + math.log(steps)) / math.sqrt(steps)


def strongly_convex_last_excess(
    convexity: float, lipschitz: float, noise_std: float, dimension: int, steps: int
) -> float:
    """Expected excess risk of the last iterate for strongly convex losses, with the step 1 / (convexity t).

    17 G^2 (1 + ln T) / (convexity T).
    """
    convexity, steps = real("convexity", convexity, above=0), whole("steps", steps, at_least=1)
    square = gradient_square(lipschitz, noise_std, dimension)
    return 17 * square * (1 + math.log(steps)) / (convexity * steps)


def strongly_convex_weighted_excess(
    convexity: float, lipschitz: float, noise_std: float, dimension: int, steps: int
) -> float:
    """Expected excess risk of the average with weights t, for strongly convex losses.

    With the step 2 / (convexity (t + 1)) the average of theta_{t-1}, t = 1 .. T, with weights t has an excess of at
    most 2 G^2 / (convexity (T + 1)): no logarithm.
    """
    convexity, steps = real("convexity", convexity, above=0), whole("steps", steps, at_least=1)
    return 2 * gradient_square(lipschitz, noise_std, dimension) / (convexity * (steps + 1))


def gradient_square(lipschitz: float, noise_std: float, dimension: int) -> float:
    """Expected squared norm of a noisy gradient, at most: lipschitz^2 + dimension * noise_std^2.

    >>> gradient_square(lipschitz=1.0, noise_std=2.0, dimension=3)
    13.0
    """
    lipschitz = real("lipschitz", lipschitz, above=0)
    noise_std = real("noise_std", noise_std, at_least=0)
    return lipschitz**2 + whole("dimension", dimension, at_least=1) * noise_std**2
