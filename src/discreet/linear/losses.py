"""The losses of linear models: what a record costs at score ``u``, and how the cost changes with ``u``.

A linear model gives a record z the score ``u = intercept + z @ weights``. Its gradient is the residual, the
derivative of the loss in u, times the record (1, z). So two numbers bound what a record can do: the residual
and the record's norm.

>>> Logistic().residual(np.array([0.0, 4.0]), np.array([1, 0])).round(3)
array([-0.5  ,  0.982])
>>> Softmax(3).mean(np.zeros((1, 3))).round(3)
array([[0.333, 0.333, 0.333]])

===================  ==============================  ==============================  =========  =========
loss                 value at score u, target y      residual                        lipschitz  curvature
===================  ==============================  ==============================  =========  =========
Logistic             log(1 + e^u) - y u              sigmoid(u) - y                  1          1/4
Softmax(K)           logsumexp(u) - u_y              softmax(u) - e_y                sqrt(2)    1/2
Squared              (u - y)^2 / 2                   u - y                           none       1
Huber(t)             as Squared within t, then       u - y, clamped to +-t           t          1
                     linear
Poisson              e^u - y u                       e^u - y                         none       none
SmoothedHinge(h)     max(0, 1 - m), m = (2y - 1) u,  between -1 and 1                1          1/(2h)
                     its corner rounded over +-h
===================  ==============================  ==============================  =========  =========

Targets are 0 or 1 for Logistic and SmoothedHinge, class numbers 0..K-1 for Softmax, counts for Poisson. A
target that a loss does not accept (NaN, a label nobody declared, a negative count) has value and residual 0:
the record does not count, and nobody is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import real, whole

Floats = NDArray[np.float64]

_LARGEST_EXPONENT = 700.0  # e**700 is a float64 number


@dataclass(frozen=True)
class Logistic:
    """Binary cross-entropy, for targets 0 and 1."""

    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    curvature: ClassVar[float] = 0.25

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return _is_bit(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        u, y = _floats(u), _floats(y)
        return _where(self.accepts(y), np.logaddexp(0.0, u) - y * u)

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return _where(self.accepts(y), self.mean(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        """The probability of target 1."""
        u = _floats(u)
        small = np.exp(-np.abs(u))
        return np.asarray(np.where(u >= 0, 1.0, small) / (1.0 + small))


@dataclass(frozen=True)
class Softmax:
    """Cross-entropy over ``classes`` declared classes; scores have one column for each."""

    classes: int
    lipschitz: ClassVar[float] = math.nextafter(math.sqrt(2.0), 2.0)
    curvature: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole("classes", self.classes, at_least=2, at_most=2**20))

    @property
    def outputs(self) -> int:
        return self.classes

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        y = _floats(y)
        return np.asarray((y >= 0) & (y < self.classes) & (y == np.floor(y)))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        u, counts = _floats(u), self.accepts(y)
        own = np.take_along_axis(u, self._class_of(y, counts)[..., None], -1)[..., 0]
        top = u.max(-1, keepdims=True)
        return _where(counts, np.log(np.exp(u - top).sum(-1)) + top[..., 0] - own)

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        counts, residual = self.accepts(y), self.mean(u)
        own = self._class_of(y, counts)[..., None]
        np.put_along_axis(residual, own, np.take_along_axis(residual, own, -1) - 1.0, -1)
        return _where(counts[..., None], residual)

    def mean(self, u: ArrayLike) -> Floats:
        """The probability of each class."""
        u = _floats(u)
        weights = np.exp(u - u.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True))

    def _class_of(self, y: ArrayLike, counts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.where(counts, _floats(y), 0.0).astype(np.int64)


@dataclass(frozen=True)
class Squared:
    """Half the squared distance, for any finite target."""

    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[None] = None
    curvature: ClassVar[float] = 1.0

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return np.isfinite(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return 0.5 * self.residual(u, y) ** 2

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return _where(self.accepts(y), _floats(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        return _floats(u)


@dataclass(frozen=True)
class Huber:
    """Squared up to a distance of ``threshold``, then linear: far targets pull with bounded force."""

    threshold: float
    outputs: ClassVar[int] = 1
    curvature: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", real("threshold", self.threshold, above=0))

    @property
    def lipschitz(self) -> float:
        return self.threshold

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return np.isfinite(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        distance, slope = np.abs(_floats(u) - _floats(y)), np.abs(self.residual(u, y))
        return _where(self.accepts(y), slope * (distance - 0.5 * slope))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        clamped = np.clip(_floats(u) - _floats(y), -self.threshold, self.threshold)
        return _where(self.accepts(y), clamped)

    def mean(self, u: ArrayLike) -> Floats:
        return _floats(u)


@dataclass(frozen=True)
class Poisson:
    """Counts with the log link, up to a term that does not depend on the model."""

    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[None] = None
    curvature: ClassVar[None] = None

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        y = _floats(y)
        return np.asarray(np.isfinite(y) & (y >= 0))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return _where(self.accepts(y), self.mean(u) - _floats(y) * _floats(u))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return _where(self.accepts(y), self.mean(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        """The expected count."""
        return np.asarray(np.exp(np.minimum(_floats(u), _LARGEST_EXPONENT)))


@dataclass(frozen=True)
class SmoothedHinge:
    """The loss of a support vector machine, with its corner rounded over a width of ``smoothness``.

    With m = u for target 1 and -u for target 0: 0 above 1 + h, 1 - m below 1 - h, and the parabola
    (1 + h - m)^2 / (4 h) between them (Chaudhuri, Monteleoni, Sarwate 2011).
    """

    smoothness: float = 0.5
    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "smoothness", real("smoothness", self.smoothness, at_least=1e-6, at_most=1e6)
        )

    @property
    def curvature(self) -> float:
        return math.nextafter(0.5 / self.smoothness, math.inf)

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return _is_bit(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        missing, slope = self._missing(u, y), np.abs(self.residual(u, y))
        return _where(self.accepts(y), slope * (missing - self.smoothness * slope))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        slope = np.clip(self._missing(u, y) / (2.0 * self.smoothness), 0.0, 1.0)
        return _where(self.accepts(y), (1.0 - 2.0 * _floats(y)) * slope)

    def mean(self, u: ArrayLike) -> Floats:
        """The decision, 0 or 1: a hinge says nothing about probabilities."""
        return np.asarray(_floats(u) > 0, np.float64)

    def _missing(self, u: ArrayLike, y: ArrayLike) -> Floats:
        """How far the record is from costing nothing."""
        return 1.0 + self.smoothness - (2.0 * _floats(y) - 1.0) * _floats(u)


Loss = Logistic | Softmax | Squared | Huber | Poisson | SmoothedHinge


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)


def _is_bit(y: Floats) -> NDArray[np.bool_]:
    return np.asarray((y == 0) | (y == 1))


def _where(counts: NDArray[np.bool_], values: Any) -> Floats:
    return np.asarray(np.where(counts, values, 0.0))
