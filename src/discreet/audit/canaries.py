"""Canaries, records made to be found: the score that tells whether they were used, and the games played with them.

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
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from discreet.audit.bounds import Evidence, Guesses, Method, Told, Trials, between, lower_epsilon
from discreet.audit.claims import Claim
from discreet.audit.tradeoff_bound import Floats
from discreet.core.noise import noise_ratio
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, UnsupportedEvent, real, whole
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
    if len(parts) == 1 and not isinstance(parts[0][0], FixedSizeSampled) and _is_known(parts[0][0]):
        return parts[0]
    raise UnsupportedEvent(
        "canaries are scored for one kind of step, repeated: Gaussian or Laplace noise on full batches, Poisson "
        "samples or random allocations. Audit each stage by itself, or use OneStep or ModelCanaries."
    )


def log_ratio(seen: Floats, step: Event, neighbours: Neighbours) -> Floats:
    """Log-likelihood ratio of each column of ``seen`` with and without its canary; one row per release.

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


def simulate(step: Event, steps: int, neighbours: Neighbours, stream: RandomStream) -> Floats:
    """Scores of canaries, used or not with equal chance, in a run that does exactly what the claim says."""
    if isinstance(step, Gaussian):  # the same as one release with less noise
        step, steps = Gaussian(step.noise_multiplier / math.sqrt(steps)), 1
    each = steps * releases(step)
    size = max(1000, min(50_000, SIMULATED_DRAWS // each))
    sign = np.where(stream.uniform(size) < 0.5, 1.0, -1.0 if neighbours == "replace-one" else 0.0)
    taking = _draw_participation(step, (steps, releases(step), size), stream)
    seen = _noise(step, (each, size), stream) + sign * taking
    return log_ratio(seen, step, neighbours)


def _is_known(step: Event) -> bool:
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


def _draw_participation(step: Event, shape: tuple[int, int, int], stream: RandomStream) -> Floats:
    """1 where the canary takes part, one row for each release."""
    events, each, size = shape
    if isinstance(step, PoissonSampled):
        return np.asarray(stream.uniform((events, size)) < step.rate, dtype=float)
    if isinstance(step, RandomlyAllocated):
        place = stream.integers(each, (events, 1, size))
        return np.asarray(np.arange(each)[None, :, None] == place, dtype=float).reshape(events * each, size)
    return np.ones((events, size))


# Canary games: give the training canary gradients or canary records, and look for them in what it releases.
#
# Each game says what the subject is called with and what it must return. What was counted goes to
# :func:`~discreet.audit.audit.audit`, which turns it into bounds. Thresholds and numbers of guesses are fixed
# before the runs that are counted: from the claim alone, or from a pilot run.

Runs = list[tuple[Floats, Coins]]
"""The scores and coins of the candidates of each run; a score above 0 speaks for "used"."""

STRANGERS = 3
"""For each canary that is used, so many are not: they cost the subject little and narrow the bound."""


@dataclass(frozen=True)
class Canaries(Method):
    """Base of both canary games: coins decide which candidates each run uses, and scores are compared.

    ``count`` canaries are used in each of ``runs`` runs, on average, out of two or four times as many candidates
    (for replace-one neighbours, all candidates are used, one way or the other). ``independent`` says how they are
    counted. True: each canary is a trial of its own, which is so if the noise of the coordinates is independent,
    as the claim says. False: nothing is assumed but that runs are independent of each other
    (:mod:`discreet.audit.bounds`); how many ``guesses`` are made in each run is chosen by simulating the claim.
    """

    count: int = 1000
    runs: int = 10
    clip_norm: float = 1.0
    length: float = 5.0
    independent: bool = True
    guesses: int | None = None
    pilots: ClassVar[int] = 0

    def __post_init__(self) -> None:
        whole("count", self.count, at_least=10)
        whole("runs", self.runs, at_least=1)
        real("clip_norm", self.clip_norm, above=0)
        real("length", self.length, above=1, remedy="It is in clip norms; canaries must reach the clip.")
        if self.guesses is not None:
            whole("guesses", self.guesses, at_least=1)

    @property
    def calls(self) -> int:
        return self.pilots + self.runs

    @property
    def assumptions(self) -> str:
        if self.independent:
            return "Runs are independent, and so is the noise of different coordinates, as claimed."
        return "Runs are independent; nothing is assumed about the canaries of one run."

    @abstractmethod
    def observe(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        """Scores of all candidates in one run."""

    def score(self, shown: Runs, claim: Claim) -> Runs:
        """Scores of the runs that are counted."""
        return shown

    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        shown = []
        for run in range(self.calls):
            used = self.coins(claim, stream)
            shown.append((self.observe(train, used, claim), used))
            told(run + 1, self.calls)
        runs = self.score(shown, claim)
        if self.independent:
            used_scores = np.concatenate([scores[used] for scores, used in runs])
            return Trials.count(used_scores, np.concatenate([scores[~used] for scores, used in runs]), 0.0)
        size = runs[0][0].size
        made = self.guesses or planned_guesses(claim, size, len(runs), confidence)
        return Guesses.count(runs, min(made, size))

    def coins(self, claim: Claim, stream: RandomStream) -> Coins:
        """Which candidates are used, in one run."""
        if claim.neighbours == "replace-one":
            return np.asarray(stream.uniform(self.count) < 0.5)
        candidates = self.count * (1 + STRANGERS if self.independent else 2)
        return np.asarray(stream.uniform(candidates) < self.count / candidates)


@dataclass(frozen=True)
class GradientCanaries(Canaries):
    """Give the training canary gradients, and look for them in all that it releases.

    The subject is ``train(gradients)``: one per-example gradient in each row, shape (used, candidates), to be
    clipped and summed in every step as if a model had produced it. It returns every noisy sum, shape
    (steps, candidates), or the sum of them all, shape (candidates,). ``unit`` is what one clipped canary adds to
    its coordinate in one step: the clip norm, unless what is returned was divided or multiplied. A canary is
    ``length`` clip norms long. The other settings are those of :class:`Canaries`.
    """

    unit: float | None = None
    name: ClassVar[str] = "gradient canaries"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit is not None and not real("unit", self.unit):
            raise InvalidParameter("unit", self.unit, "must not be 0.")

    def observe(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        step, count = step_of(claim.event)
        steps = count * releases(step)
        returned = train(dirac(used, self.length * self.clip_norm, claim.neighbours))
        sums = _check_shape(returned, used.size, steps) / (self.clip_norm if self.unit is None else self.unit)
        if sums.ndim == 1 and steps > 1:
            return of_sum(sums, step, count, claim.neighbours)
        return log_ratio(sums.reshape(steps, used.size), step, claim.neighbours)


@dataclass(frozen=True)
class ModelCanaries(Canaries):
    """Give a linear model canary records, and look for them in the trained coefficients alone.

    The subject is ``train(X, y)``: one record in each row of ``X``, shape (used, candidates), and one label each;
    it returns the coefficients, shape (candidates,). A canary is ``length`` clip norms on a coordinate of its own,
    so its gradient stays there, and is longer than the clip norm until the model has learned it. Its label is the
    second of ``labels``; for replace-one neighbours every canary has a row, and the coin chooses the label. The
    model must have no intercept. One more run is the pilot: it finds the threshold, and is not counted. The
    other settings are those of :class:`Canaries`.
    """

    length: float = 10.0
    labels: tuple[float, float] = (0.0, 1.0)
    name: ClassVar[str] = "model canaries"
    pilots: ClassVar[int] = 1

    def observe(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        rows = np.abs(dirac(used, self.length * self.clip_norm, claim.neighbours))
        labels = np.where(used, self.labels[1], self.labels[0])
        labels = labels if claim.neighbours == "replace-one" else labels[used]
        return _check_shape(train(rows, labels), used.size, 1).reshape(-1)

    def score(self, shown: Runs, claim: Claim) -> Runs:
        (pilot, used), *others = shown
        sign, middle = between(pilot[~used], pilot[used])
        return [(sign * (scores - middle), used) for scores, used in others]


def _check_shape(returned: Any, candidates: int, steps: int) -> Floats:
    seen = np.asarray(returned, dtype=float)
    if seen.shape not in ((candidates,), (steps, candidates)):
        wanted = f"({candidates},)" + (f" or ({steps}, {candidates})" if steps > 1 else "")
        raise InvalidParameter("train", seen.shape, f"must return an array of shape {wanted}.")
    return np.asarray(np.nan_to_num(seen))


SHARES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5)
"""The shares of all canaries that are considered."""


@lru_cache(maxsize=64)
def planned_guesses(claim: Claim, canaries: int, runs: int, confidence: float) -> int:
    """The number of guesses in each run that promises the highest bound if the claim is exactly true.

    It depends on the claim alone, through a seeded simulation, and not on the subject. Where there is a choice, it
    is one of those with which the audit could contradict the claim: with few guesses, all right, it may not.
    """
    rates = guess_rates(claim)
    best, promise = canaries, -1.0
    for share in SHARES:
        made = max(1, round(share * canaries))
        rate = float(rates[max(0, round(share * rates.size) - 1)])
        unlucky = made * runs * rate - math.sqrt(made * runs * rate * (1 - rate))
        expected = Guesses(canaries, made, max(0, int(unlucky)), runs)
        if expected.perfect().refutes(claim.lines(0), 1 - confidence):
            bound = lower_epsilon(expected, claim, confidence, resolution=8)
            best, promise = (made, bound) if bound > promise else (best, promise)
    return best


def guess_rates(claim: Claim) -> Floats:
    """Expected accuracy of the k most confident guesses, k = 1, 2, ..., if the claim is tight.

    A guess with log-likelihood ratio l is right with probability 1 / (1 + e^-|l|), which is less noisy than to
    count right guesses.
    """
    scores = simulate(*step_of(claim.event), claim.neighbours, RandomStream(unsafe_seed=0))
    right = np.sort(expit(np.abs(scores)))[::-1]
    return np.asarray(np.cumsum(right) / np.arange(1, right.size + 1))
