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
:mod:`discreet.lecture.certified_descent` joins the two.

>>> path = descend(lambda theta: theta - 3.0, np.zeros(1), steps=3, step_size=0.5)
>>> path.iterates.ravel()
array([0.   , 1.5  , 2.25 , 2.625])
>>> path.average("mean")  # of theta_0, ..., theta_{T-1}, as the rank theorem wants it
array([1.25])

>>> update, theta = Momentum(0.5), np.zeros(1)
>>> state = update.begin(theta)
>>> for _ in range(2):
...     theta, state = update.step(theta, np.ones(1), 0.1, state)
>>> theta
array([-0.25])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


# Optimizers as post-processing: each turns private gradients into a next point, and none sees a record.
#
# "You can plug private gradients into any optimizer" (the lecture on post-processing): the gradients are released
# already, so momentum, AdaGrad, Adam and AdamW cost nothing extra. An optimizer is public, frozen configuration;
# what it remembers is passed from step to step by hand.


class Update(Protocol):
    """An optimizer: ``begin`` makes the first state, ``step`` the next point and the next state."""

    def begin(self, theta: Floats) -> Any: ...

    def step(self, theta: Floats, gradient: Floats, step_size: float, state: Any) -> tuple[Floats, Any]: ...


@dataclass(frozen=True)
class Plain:
    """``theta - step_size * gradient``."""

    def begin(self, theta: Floats) -> None:
        return None

    def step(self, theta: Floats, gradient: Floats, step_size: float, state: None) -> tuple[Floats, None]:
        return theta - step_size * gradient, None


@dataclass(frozen=True)
class Momentum:
    """Heavy ball: the velocity is the gradient plus ``momentum`` times the velocity before."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", real("momentum", self.momentum, at_least=0, below=1))

    def begin(self, theta: Floats) -> Floats:
        return np.zeros_like(theta)

    def step(self, theta: Floats, gradient: Floats, step_size: float, state: Floats) -> tuple[Floats, Floats]:
        velocity = self.momentum * state + gradient
        return theta - step_size * velocity, velocity


@dataclass(frozen=True)
class AdaGrad:
    """Each coordinate divided by the root of the sum of its squares so far.

    ``noise_std``, the known noise on each coordinate of the gradient, is taken out of that sum: without it the
    steps measure the noise rather than the gradient.
    """

    stabiliser: float = 1e-8
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stabiliser", real("stabiliser", self.stabiliser, above=0))
        object.__setattr__(self, "noise_std", real("noise_std", self.noise_std, at_least=0))

    def begin(self, theta: Floats) -> tuple[Floats, int]:
        return np.zeros_like(theta), 0

    def step(
        self, theta: Floats, gradient: Floats, step_size: float, state: tuple[Floats, int]
    ) -> tuple[Floats, tuple[Floats, int]]:
        squares, count = state[0] + gradient**2, state[1] + 1
        signal = np.maximum(squares - count * self.noise_std**2, 0.0)
        floor = self.noise_std * (2 * count) ** 0.25  # what the deviation of the squared noise leaves unknown
        scale = np.maximum(np.sqrt(signal), floor) + self.stabiliser
        return theta - step_size * gradient / scale, (squares, count)


class AdamState(NamedTuple):
    """What Adam remembers: running means of the gradient and of its squares, and how many there were."""

    first: Floats
    second: Floats
    steps: int


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015). ``noise_std`` corrects the second moment for the known noise.

    The noise adds its variance to every squared gradient. Taking it out again (Tang, Shpilevskiy, Lecuyer 2024)
    gives back the steps that Adam would make without noise; ``stabiliser`` is then the least denominator.
    """

    first_decay: float = 0.9
    second_decay: float = 0.999
    stabiliser: float = 1e-8
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        for name in ("first_decay", "second_decay"):
            object.__setattr__(self, name, real(name, getattr(self, name), at_least=0, below=1))
        object.__setattr__(self, "stabiliser", real("stabiliser", self.stabiliser, above=0))
        object.__setattr__(self, "noise_std", real("noise_std", self.noise_std, at_least=0))

    def begin(self, theta: Floats) -> AdamState:
        return AdamState(np.zeros_like(theta), np.zeros_like(theta), 0)

    def step(
        self, theta: Floats, gradient: Floats, step_size: float, state: AdamState
    ) -> tuple[Floats, AdamState]:
        direction, moments = self.direction(gradient, state)
        return theta - step_size * direction, moments

    def direction(self, gradient: Floats, state: AdamState) -> tuple[Floats, AdamState]:
        """Where a step goes, before it is multiplied by its size."""
        first = self.first_decay * state.first + (1 - self.first_decay) * gradient
        second = self.second_decay * state.second + (1 - self.second_decay) * gradient**2
        count = state.steps + 1
        mean = first / (1 - self.first_decay**count)
        square = second / (1 - self.second_decay**count) - self.noise_std**2
        if self.noise_std:
            scale = np.sqrt(np.maximum(square, self.stabiliser**2))
        else:
            scale = np.sqrt(square) + self.stabiliser
        return mean / scale, AdamState(first, second, count)


@dataclass(frozen=True)
class AdamW:
    """Adam with weights that decay by ``step_size * weight_decay`` at each step, outside the moments."""

    adam: Adam = Adam()
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_decay", real("weight_decay", self.weight_decay, at_least=0))

    def begin(self, theta: Floats) -> AdamState:
        return self.adam.begin(theta)

    def step(
        self, theta: Floats, gradient: Floats, step_size: float, state: AdamState
    ) -> tuple[Floats, AdamState]:
        shrunk = theta * (1 - step_size * self.weight_decay)
        return self.adam.step(shrunk, gradient, step_size, state)
