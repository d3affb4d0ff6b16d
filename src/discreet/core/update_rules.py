"""Optimizers as post-processing: each turns private gradients into a next point, and none sees a record.

"You can plug private gradients into any optimizer" (the lecture on post-processing): the gradients are released
already, so momentum, AdaGrad, Adam and AdamW cost nothing extra. An optimizer is public, frozen configuration;
what it remembers is passed from step to step by hand.

>>> update, theta = Momentum(0.5), np.zeros(1)
>>> state = update.begin(theta)
>>> for _ in range(2):
...     theta, state = update.step(theta, np.ones(1), 0.1, state)
>>> theta
array([-0.25])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.errors import real

Floats = NDArray[np.float64]


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


class Moments(NamedTuple):
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

    def begin(self, theta: Floats) -> Moments:
        return Moments(np.zeros_like(theta), np.zeros_like(theta), 0)

    def step(
        self, theta: Floats, gradient: Floats, step_size: float, state: Moments
    ) -> tuple[Floats, Moments]:
        first = self.first_decay * state.first + (1 - self.first_decay) * gradient
        second = self.second_decay * state.second + (1 - self.second_decay) * gradient**2
        count = state.steps + 1
        mean = first / (1 - self.first_decay**count)
        square = second / (1 - self.second_decay**count) - self.noise_std**2
        if self.noise_std:
            scale = np.sqrt(np.maximum(square, self.stabiliser**2))
        else:
            scale = np.sqrt(square) + self.stabiliser
        return theta - step_size * mean / scale, Moments(first, second, count)


@dataclass(frozen=True)
class AdamW:
    """Adam with weights that decay by ``step_size * weight_decay`` at each step, outside the moments."""

    adam: Adam = Adam()
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_decay", real("weight_decay", self.weight_decay, at_least=0))

    def begin(self, theta: Floats) -> Moments:
        return self.adam.begin(theta)

    def step(
        self, theta: Floats, gradient: Floats, step_size: float, state: Moments
    ) -> tuple[Floats, Moments]:
        shrunk = theta * (1 - step_size * self.weight_decay)
        return self.adam.step(shrunk, gradient, step_size, state)
