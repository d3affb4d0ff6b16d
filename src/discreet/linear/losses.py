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

Nothing here has to be believed for the guarantee: the gate takes the name of the compiled residual, its parameter and
the number of outputs, computes by :mod:`~discreet.linear.residuals` and the kernels, and clips what each record adds.

Another loss is a subclass of :class:`Loss`: see docs/extending.md. Whoever works with losses asks what they know of
themselves, never which class they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import real, whole
from discreet.linear.loss_functions import (
    counted,
    exponential,
    hinge_slope,
    is_bit,
    is_class,
    is_count,
    sigmoid,
)

Floats = NDArray[np.float64]


class Start(NamedTuple):
    """The score of the best model without features; the loss's curvature near it, and a step size for that."""

    score: Floats
    curvature: float
    rate: float


class Loss(ABC):
    """What a record costs at a score, elementwise: frozen data with four methods, and what is known of it.

    ``kind`` says what targets are: ``"classes"`` by their numbers, ``"numbers"``, or ``"counts"`` with a log link.
    ``lipschitz`` bounds the residual, ``curvature`` its derivative; None where there is no bound. ``one_sided`` if
    the residual has the same sign at every score, for a given target. ``fits_mean`` if the best constant score for
    numbers is about their mean.
    """

    kind: ClassVar[Literal["classes", "numbers", "counts", "unsaid"]] = "unsaid"
    one_sided: ClassVar[bool] = False
    fits_mean: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """How many scores a record has."""
        return 1

    @property
    def lipschitz(self) -> float | None:
        return None

    @property
    def curvature(self) -> float | None:
        return None

    @property
    def machine_code(self) -> tuple[str, float] | None:
        """The name of the compiled residual and its parameter; None computes :meth:`residual` instead."""
        return None

    @abstractmethod
    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""

    @abstractmethod
    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        """The cost of each record."""

    @abstractmethod
    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        """The derivative of the value in u; 0 where the target does not count."""

    @abstractmethod
    def mean(self, u: ArrayLike) -> Floats:
        """What is predicted at score u."""

    @property
    def class_count(self) -> int:
        """How many classes there are; numbers and counts are one."""
        return max(2, self.outputs) if self.kind == "classes" else 1

    def start(self, priors: Floats) -> Start:
        """For two classes, from their shares: the log odds."""
        balance = 2 * (1 - float(priors @ priors))  # 1 for two equal classes, small if one is rare
        return Start(np.log(priors[1] / priors[0]), 0.15 * max(balance, 0.05), 3.0)

    def bend(self, priors: Floats) -> float:
        """The second derivative at the start, for classes: the mean over the scores that are free."""
        return float(priors[0] * priors[1])

    def in_units(self, shift: float, scale: float) -> Loss:
        """The loss of scores and targets that have been brought to other units: u = shift + scale * new."""
        return _InUnits(self, shift, scale)

    @property
    def typical_residual(self) -> float:
        """For numbers of variance 1."""
        return 1.0 if self.lipschitz is None else min(1.0, self.lipschitz)

    @property
    def typical_curvature(self) -> float:
        """The same; few records are where a loss of small residuals bends, so they bend it less."""
        return 1.0 if self.lipschitz is None else min(1.0, 0.8 * self.lipschitz)

    def steepest(self, score: float, target: float) -> float | None:
        """The largest residual where scores and targets are within these bounds; None if there is no bound."""
        return self.lipschitz


@dataclass(frozen=True)
class Logistic(Loss):
    """Binary cross-entropy, for targets 0 and 1."""

    kind = "classes"
    one_sided = True
    machine_code = ("logistic", 0.0)

    lipschitz = 1.0
    curvature = 0.25

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return is_bit(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        u, y = _floats(u), _floats(y)
        return counted(self.accepts(y), np.logaddexp(0.0, u) - y * u)

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return counted(self.accepts(y), self.mean(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        """The probability of target 1."""
        return sigmoid(_floats(u))


@dataclass(frozen=True)
class Softmax(Loss):
    """Cross-entropy over ``classes`` declared classes; scores have one column for each."""

    classes: int
    kind = "classes"
    machine_code = ("softmax", 0.0)
    lipschitz = math.nextafter(math.sqrt(2.0), 2.0)
    curvature = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole("classes", self.classes, at_least=2, at_most=2**20))

    @property
    def outputs(self) -> int:
        return self.classes

    def start(self, priors: Floats) -> Start:
        return Start(np.log(priors) - np.log(priors).mean(), 0.15, 3.0)

    def bend(self, priors: Floats) -> float:
        return (1 - float(priors @ priors)) / (self.classes - 1)

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return is_class(_floats(y), self.classes)

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        u, counts = _floats(u), self.accepts(y)
        own = np.take_along_axis(u, self._class_of(y, counts)[..., None], -1)[..., 0]
        top = u.max(-1, keepdims=True)
        return counted(counts, np.log(np.exp(u - top).sum(-1)) + top[..., 0] - own)

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        counts, residual = self.accepts(y), self.mean(u)
        own = self._class_of(y, counts)[..., None]
        np.put_along_axis(residual, own, np.take_along_axis(residual, own, -1) - 1.0, -1)
        return counted(counts[..., None], residual)

    def mean(self, u: ArrayLike) -> Floats:
        """The probability of each class."""
        u = _floats(u)
        weights = np.exp(u - u.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True))

    def _class_of(self, y: ArrayLike, counts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.where(counts, _floats(y), 0.0).astype(np.int64)


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared distance, for any finite target."""

    kind = "numbers"
    fits_mean = True
    machine_code = ("squared", 0.0)
    curvature = 1.0

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return np.isfinite(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return 0.5 * self.residual(u, y) ** 2

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return counted(self.accepts(y), _floats(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        return _floats(u)

    def in_units(self, shift: float, scale: float) -> Squared:
        return self

    def steepest(self, score: float, target: float) -> float:
        return score + target


@dataclass(frozen=True)
class Huber(Loss):
    """Squared up to a distance of ``threshold``, then linear: far targets pull with bounded force."""

    threshold: float
    kind = "numbers"
    fits_mean = True
    curvature = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", real("threshold", self.threshold, above=0))

    @property
    def lipschitz(self) -> float:
        return self.threshold

    @property
    def machine_code(self) -> tuple[str, float]:
        return "huber", self.threshold

    def in_units(self, shift: float, scale: float) -> Huber:
        return Huber(self.threshold / scale)

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return np.isfinite(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        distance, slope = np.abs(_floats(u) - _floats(y)), np.abs(self.residual(u, y))
        return counted(self.accepts(y), slope * (distance - 0.5 * slope))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        clamped = np.clip(_floats(u) - _floats(y), -self.threshold, self.threshold)
        return counted(self.accepts(y), clamped)

    def mean(self, u: ArrayLike) -> Floats:
        return _floats(u)


@dataclass(frozen=True)
class Poisson(Loss):
    """Counts with the log link, up to a term that does not depend on the model."""

    kind = "counts"
    machine_code = ("poisson", 0.0)

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return is_count(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return counted(self.accepts(y), self.mean(u) - _floats(y) * _floats(u))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return counted(self.accepts(y), self.mean(u) - _floats(y))

    def mean(self, u: ArrayLike) -> Floats:
        """The expected count."""
        return exponential(_floats(u))

    def steepest(self, score: float, target: float) -> float | None:
        return max(math.exp(score), target) if score <= 200 else None


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """The loss of a support vector machine, with its corner rounded over a width of ``smoothness``.

    With m = u for target 1 and -u for target 0: 0 above 1 + h, 1 - m below 1 - h, and the parabola
    (1 + h - m)^2 / (4 h) between them (Chaudhuri, Monteleoni, Sarwate 2011).
    """

    smoothness: float = 0.5
    kind = "classes"
    one_sided = True
    lipschitz = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "smoothness", real("smoothness", self.smoothness, at_least=1e-6, at_most=1e6)
        )

    @property
    def curvature(self) -> float:
        return math.nextafter(0.5 / self.smoothness, math.inf)

    @property
    def machine_code(self) -> tuple[str, float]:
        return "hinge", self.smoothness

    def start(self, priors: Floats) -> Start:
        return Start(np.asarray(priors[1] - priors[0]), 0.15, 1.5 / max(self.curvature, 1.0))

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Which targets count."""
        return is_bit(_floats(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        missing = 1.0 + self.smoothness - (2.0 * _floats(y) - 1.0) * _floats(u)
        slope = np.abs(self.residual(u, y))
        return counted(self.accepts(y), slope * (missing - self.smoothness * slope))

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return counted(self.accepts(y), hinge_slope(_floats(u), _floats(y), self.smoothness))

    def mean(self, u: ArrayLike) -> Floats:
        """The decision, 0 or 1: a hinge says nothing about probabilities."""
        return np.asarray(_floats(u) > 0, np.float64)


@dataclass(frozen=True)
class _InUnits(Loss):
    """A loss of numbers, for scores and targets in other units; the residual stays what it was."""

    loss: Loss
    shift: float
    scale: float
    kind = "numbers"

    @property
    def fits_mean(self) -> bool:  # type: ignore[override]
        return self.loss.fits_mean

    @property
    def lipschitz(self) -> float | None:
        return self.loss.lipschitz

    @property
    def curvature(self) -> float | None:
        return None if self.loss.curvature is None else self.loss.curvature * self.scale

    def accepts(self, y: ArrayLike) -> NDArray[np.bool_]:
        return self.loss.accepts(self._back(y))

    def value(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return self.loss.value(self._back(u), self._back(y)) / self.scale

    def residual(self, u: ArrayLike, y: ArrayLike) -> Floats:
        return self.loss.residual(self._back(u), self._back(y))

    def mean(self, u: ArrayLike) -> Floats:
        return self.loss.mean(self._back(u))

    def _back(self, values: ArrayLike) -> Floats:
        return self.shift + self.scale * _floats(values)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)
