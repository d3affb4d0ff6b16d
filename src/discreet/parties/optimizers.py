"""What the coordinator does with a noisy gradient: step, project, average. All of it is post-processing.

    sgd        theta <- P(theta - rate g)
    momentum   m <- 0.9 m + g,  theta <- P(theta - rate m)
    adam       :class:`~discreet.core.descent.Adam`

P is the projection on the ball of ``radius`` around 0. ``g`` estimates the gradient of the *mean* loss; the notes
write their step sizes for the sum, which is the number of records times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.core.descent import Adam, AdamState
from discreet.parties.excess_risk import (
    average_excess,
    last_excess,
    second_moment,
    strongly_convex_last_excess,
    strongly_convex_weighted_excess,
)
from discreet.parties.notes import convex_step_size, strongly_convex_step_size, weighted_step_size
from discreet.parties.study import Study

Floats = NDArray[np.float64]

MOMENTUM = 0.9
NOISE_IN_MODEL = 0.6
"""How much noise in a coordinate of the model :func:`suggested_rate` aims at; features lie between 0 and 1."""

_ROUNDS = (30, 1000)


@dataclass(frozen=True, eq=False)
class Iterate:
    """Where the descent stands after ``updates`` updates; ``average`` is of all iterates, the start included."""

    theta: Floats
    average: Floats
    first: Floats
    second: Floats
    updates: int = 0

    @classmethod
    def start(cls, theta: Floats) -> Iterate:
        """Nothing has happened yet."""
        zeros = np.zeros_like(theta)
        return cls(theta, theta, zeros, zeros)


class UpdateRule:
    """The update rule of a study, as a pure function from iterate to iterate.

    Guarantee: none is needed; it sees what was released with noise, and public numbers.
    """

    def __init__(self, study: Study, step_size: Callable[[int], float]) -> None:
        self._optimizer = study.training.optimizer
        self._radius = study.training.radius
        self._step_size = step_size
        # Lacoste-Julien, Schmidt, Bach 2012: with strong convexity the t-th iterate counts t + 1 times.
        self._rising = study.training.steps == "notes-strongly-convex" and averages(study)

    def update(self, now: Iterate, gradient: Floats) -> Iterate:
        """The iterate after one more gradient."""
        count = now.updates + 1
        direction, first, second = self._direction(now, gradient)
        theta = project(now.theta - self._step_size(count) * direction, self._radius)
        share = 2.0 / (count + 2) if self._rising else 1.0 / (count + 1)
        return Iterate(theta, now.average + share * (theta - now.average), first, second, count)

    def _direction(self, now: Iterate, gradient: Floats) -> tuple[Floats, Floats, Floats]:
        if self._optimizer == "sgd":
            return gradient, now.first, now.second
        if self._optimizer == "momentum":
            first = MOMENTUM * now.first + gradient
            return first, first, now.second
        direction, moments = Adam().direction(gradient, AdamState(now.first, now.second, now.updates))
        return direction, moments.first, moments.second


def project(theta: Floats, radius: float | None) -> Floats:
    """The nearest point of the ball; ``theta`` itself where there is none.

    >>> project(np.array([3.0, 4.0]), radius=2.5)
    array([1.5, 2. ])
    """
    if radius is None:
        return theta
    length = math.sqrt(theta @ theta)
    return theta if length <= radius else theta * (radius / length)


def step_size(study: Study) -> Callable[[int], float]:
    """The learning rate of the t-th update, for gradients of the mean loss.

    That is the number of records times what the notes say (:mod:`discreet.parties.notes`), for theirs are of the sum.
    """
    training, records = study.training, study.records
    if training.steps == "notes-convex":
        first = records * convex_step_size(2 * (training.radius or 0.0), update_square(study), 1)
        return lambda t: first / math.sqrt(t)
    if training.steps == "notes-strongly-convex":
        of_notes = strongly_convex_step_size if study.algorithm == "sgd1" else weighted_step_size
        convexity = training.strong_convexity or 0.0
        return lambda t: records * of_notes(convexity, records, t)
    rate = training.learning_rate
    return lambda t: rate


def update_square(study: Study) -> float:
    """A bound of the expected squared length of an update, in the notes' scale: that of the sum over all records."""
    arrangement, clip_norm, sgd1 = study.arrangement, study.training.clip_norm, study.algorithm == "sgd1"
    noise = study.noise_multiplier * clip_norm * (study.records if sgd1 else arrangement.noise_share)
    messages = 1 if sgd1 else len(study.parties)
    return second_moment(study.records, clip_norm, study.dimension, noise, messages)


def predicted_excess_risk(study: Study) -> float | None:
    """What the theory promises of the recommended iterate, for the mean loss; None where it says nothing.

    Guarantee: a bound on the expected excess for convex losses, where clipping is not felt.
    """
    training, square = study.training, update_square(study)
    if (
        training.radius is None
        or training.optimizer != "sgd"
        or training.rate < 1
        or training.weights != "records"
    ):
        return None
    if training.steps == "notes-convex":
        excess = last_excess(2 * training.radius, square, study.updates)
    elif training.steps == "constant":
        step = training.learning_rate / study.records
        excess = average_excess(2 * training.radius, square, study.updates, step)
    else:
        of_theory = (
            strongly_convex_last_excess if study.algorithm == "sgd1" else strongly_convex_weighted_excess
        )
        excess = of_theory(training.strong_convexity or 0.0, study.records, square, study.updates)
    return excess / study.records


def averages(study: Study) -> bool:
    """True where the theory speaks of the average of all iterates, not of the last one."""
    if study.training.steps == "constant":
        return study.training.optimizer == "sgd"
    return study.training.steps == "notes-strongly-convex" and study.algorithm == "sgd2"


def suggested_rate(study: Study, steepest: float) -> float:
    """A constant learning rate for SGD2 from public numbers: as large as noise and the loss allow.

    After all rounds the noise in a coordinate of the model has a standard deviation of the rate times that of a
    gradient times the root of the number of rounds. The rate keeps it at :data:`NOISE_IN_MODEL`, and stays below
    ``steepest``, at which the descent begins to swing. A rule found by trial, not a theorem; two digits.
    """
    return float(f"{min(steepest, _quiet_rate(study)):.2g}")


def suggested_rounds(study: Study, steepest: float) -> int:
    """How many rounds of SGD2: so many that the rate that noise allows is half of what the loss allows.

    Noise grows with the root of the number of rounds, so what noise allows is a way to go in all, rate times rounds,
    whatever the rounds of ``study``: fewer rounds would have to take steps at which the descent swings, and more
    would only be smaller. On Adult, epsilon 1, three parties: 24 000 records had an AUC of .873, .878 and .879 with
    60, 100 and 200 rounds, and for 6000 records 30 to 400 rounds made no difference. Two digits.
    """
    way = _quiet_rate(study) * study.updates
    least, most = _ROUNDS
    return int(float(f"{min(max(way / (steepest / 2), least), most):.2g}"))


def _quiet_rate(study: Study) -> float:
    """The rate at which the noise in a coordinate of the model is :data:`NOISE_IN_MODEL` after all rounds."""
    training = study.training
    messages = len(study.parties) if study.aggregation.kind == "plain" else len(study.parties) / study.shares
    noise = study.noise_multiplier * training.clip_norm * math.sqrt(messages)
    return NOISE_IN_MODEL / (noise / (study.records * training.rate) * math.sqrt(study.updates))


# An average that one liar cannot carry off: the geometric median of what the parties say.
#
# A party that lies about its records or its noise can send anything that an honest one might, again and again in the
# same direction, and so lead a mean anywhere. The geometric median, the point with the least sum of distances to all
# messages, stays among the honest ones while liars hold less than half of the weight (Pillutla, Kakade, Harchaoui
# 2022, "Robust aggregation for federated learning"). Messages are mostly noise, behind which a lie could hide; so it
# is taken of each party's running mean over its last rounds (Karimireddy, He, Jaggi 2021, "Learning from history").
#
# All of it is post-processing of messages. But it looks at each message by itself, so the noise of other parties does
# not hide a record any longer from those who see only models: the table of observers counts on the owner's noise
# alone.


MEMORY = 0.9
"""How much of a party's running mean stays in every round."""

_STEPS, _NEAR = 100, 1e-9


class GeometricMedian:
    """Gradients of the mean loss from noisy sums, some of them lies. It remembers one vector for each party."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._mean: dict[str, Floats] = {}
        self._rounds: dict[str, int] = {}

    def __call__(self, sums: Mapping[str, Floats]) -> Floats:
        """The gradient; parties that are missing count as zero, and keep what they said before."""
        study = self._study
        if not sums:
            return np.zeros(study.dimension)
        equal = study.training.weights == "equal"
        weights = np.array([1.0 if equal else study.parties[name] for name in sums])
        points = np.array([self._running_mean(name, value) for name, value in sums.items()])
        everybody = len(study.parties) if equal else study.records
        return geometric_median(points, weights) * float(weights.sum() / everybody)

    def _running_mean(self, name: str, value: Floats) -> Floats:
        """The running mean of what a party says of one record, without a bias toward its beginning."""
        fresh = value / (self._study.parties[name] * self._study.training.rate)
        mean = self._mean.get(name, np.zeros(0))
        self._mean[name] = MEMORY * mean + (1 - MEMORY) * fresh if mean.size else (1 - MEMORY) * fresh
        self._rounds[name] = self._rounds.get(name, 0) + 1
        unbiased: Floats = self._mean[name] / (1 - MEMORY ** self._rounds[name])
        return unbiased


def geometric_median(points: Floats, weights: Floats) -> Floats:
    """The point with the least weighted sum of distances to the rows of ``points``, by Weiszfeld's iteration.

    >>> geometric_median(np.array([[0.0], [1.0], [1000.0]]), np.ones(3)).round(6)
    array([1.])

    It is a mean of the rows, so only their products with one another are needed, however long they are.
    """
    centred = points - points.mean(0)
    products = centred @ centred.T
    squares, share = np.diag(products), weights / weights.sum()
    least = _NEAR * max(float(squares.max()), 1e-300) ** 0.5
    for _ in range(_STEPS):
        gaps = squares - 2 * products @ share + share @ products @ share
        pull = weights / np.maximum(np.sqrt(np.maximum(gaps, 0.0)), least)
        share = pull / pull.sum()
    return np.asarray(share @ points)
