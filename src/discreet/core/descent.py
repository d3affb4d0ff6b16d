"""Gradient descent on noisy gradients, as the lectures write it.

    theta_0 is public
    for t = 1, ..., T:
        g_t     = (sum of bounded gradients at theta_{t-1} + noise) / n
        theta_t = project(theta_{t-1} - step_size * g_t)
    release theta_1, ..., theta_T

:func:`descend` is this loop. It never sees a record: ``gradient(theta)`` is noisy already, so the whole path may
be published, and whatever is made of it (the last iterate, an average, a projection, an optimizer with momentum)
is post-processing that costs nothing. The noise belongs to the gradient, inside the step size. How a private
gradient is made of records is told in :mod:`discreet.lecture.gradient_sum`; :func:`private_descent` of
:mod:`discreet.lecture.private_descent` joins the two.

>>> path = descend(lambda theta: theta - 3.0, np.zeros(1), steps=3, step_size=0.5)
>>> path.iterates.ravel()
array([0.   , 1.5  , 2.25 , 2.625])
>>> path.average("mean")  # of theta_0, ..., theta_{T-1}, as the rank theorem wants it
array([1.25])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.core.update_rules import Plain, Update
from discreet.errors import InvalidParameter, one_of, real, whole

Floats = NDArray[np.float64]
Average = Literal["last", "mean", "released", "tail", "weighted", "weighted-tail"]
Schedule = Callable[[int], float]

_FARTHEST = 1e150  # iterates are kept where their squares are ordinary numbers


@dataclass(frozen=True)
class OntoBall:
    """Projection onto the ball of ``radius`` around ``center``: the nearest point of it."""

    radius: float
    center: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", real("radius", self.radius, above=0, at_most=_FARTHEST))
        object.__setattr__(self, "center", real("center", self.center, at_least=-1e100, at_most=1e100))

    def __call__(self, theta: Floats) -> Floats:
        offset = theta - self.center
        distance = float(np.linalg.norm(offset))
        if distance <= self.radius:
            return theta
        inside = self.radius * (1 - 1e-12)  # so that rounding does not put it back outside
        return self.center + offset * (inside / distance)


@dataclass(frozen=True)
class OntoBox:
    """Projection onto the box of all points with coordinates between ``lower`` and ``upper``."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", real("lower", self.lower, at_least=-_FARTHEST))
        object.__setattr__(self, "upper", real("upper", self.upper, above=self.lower, at_most=_FARTHEST))

    def __call__(self, theta: Floats) -> Floats:
        return np.clip(theta, self.lower, self.upper)


Projection = OntoBall | OntoBox | Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Path:
    """The released iterates theta_0, ..., theta_T, one in each row; theta_0 is the public start."""

    iterates: Floats
    chosen: Average = "last"

    @property
    def result(self) -> Floats:
        """The point that was asked for; :meth:`average` makes any other."""
        return self.average(self.chosen)

    @property
    def steps(self) -> int:
        """T, the number of noisy gradients behind the path."""
        return len(self.iterates) - 1

    @property
    def last(self) -> Floats:
        """theta_T."""
        return self.average("last")

    def average(self, kind: Average = "mean") -> Floats:
        """One point of the path's making; all of them are post-processing.

        ===================  ==================================================================
        ``"last"``           theta_T
        ``"mean"``           mean of theta_0, ..., theta_{T-1}: what the rank theorem speaks of
        ``"released"``       mean of theta_1, ..., theta_T: for smooth losses
        ``"tail"``           mean of the last half
        ``"weighted"``       theta_{t-1} with weight t: for strongly convex losses
        ``"weighted-tail"``  theta_t with weight t, the last two thirds only: forgets the start
        ===================  ==================================================================
        """
        steps = self.steps
        weights = np.zeros(steps + 1)
        if one_of("average", kind, get_args(Average)) == "last":
            weights[-1] = 1.0
        elif kind == "mean":
            weights[:-1] = 1.0
        elif kind == "released":
            weights[1:] = 1.0
        elif kind == "tail":
            weights[steps // 2 + 1 :] = 1.0
        elif kind == "weighted":
            weights[:-1] = np.arange(1, steps + 1)
        else:
            first = steps // 3 + 1
            weights[first:] = np.arange(first, steps + 1)
        return np.asarray(np.tensordot(weights / weights.sum(), self.iterates, axes=1))


def descend(
    gradient: Callable[[Floats], ArrayLike],
    start: ArrayLike,
    steps: int,
    step_size: float | Schedule,
    average: Average = "last",
    project: Projection | None = None,
    update: Update | None = None,
) -> Path:
    """Follow ``gradient`` for ``steps`` steps and keep every iterate.

    ``step_size`` is a public number, or a public function of t = 1, 2, .... ``project`` maps every iterate into a
    public set. ``update`` is an optimizer; plain descent if left out.

    Guarantee: post-processing. If ``gradient`` is private, so are the path and all that is made of it.
    """
    steps = whole("steps", steps, at_least=1)
    one_of("average", average, get_args(Average))
    schedule = _schedule(step_size)
    project = _stay if project is None else project
    update = Plain() if update is None else update
    theta = project(_public_point(start))
    iterates, state = np.empty((steps + 1, *theta.shape)), update.begin(theta)
    iterates[0] = theta
    for t in range(1, steps + 1):
        noisy = np.clip(np.asarray(gradient(theta), np.float64), -_FARTHEST, _FARTHEST)
        if noisy.shape != theta.shape:
            raise InvalidParameter("gradient", noisy.shape, f"must have the shape {theta.shape} of start.")
        moved, state = update.step(theta, noisy, schedule(t), state)
        theta = project(np.clip(moved, -_FARTHEST, _FARTHEST))
        iterates[t] = theta
    return Path(iterates, average)


def _stay(theta: Floats) -> Floats:
    return theta


def _public_point(start: ArrayLike) -> Floats:
    theta = np.array(start, np.float64)
    if theta.ndim == 0 or not np.all(np.abs(theta) <= _FARTHEST):
        raise InvalidParameter("start", start, "must be an array of finite numbers: a public point.")
    return theta


def _schedule(step_size: float | Schedule) -> Schedule:
    remedy = "It is public; a number, or a function of the step's number."
    if not callable(step_size):
        constant = real("step_size", step_size, above=0, at_most=1e100, remedy=remedy)
        return lambda t: constant
    return lambda t: real(f"step_size({t})", step_size(t), above=0, at_most=1e100, remedy=remedy)


def decreasing(scale: float, power: float = 0.5) -> Schedule:
    """The schedule ``scale / t**power``: the lectures' 1/sqrt(t) for convex, 1/t for strongly convex losses."""
    scale, power = real("scale", scale, above=0), real("power", power, at_least=0)
    return lambda t: scale / math.pow(t, power)
