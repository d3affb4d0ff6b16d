"""Canary games: give the training canary gradients or canary records, and look for them in what it releases.

Each game says what the subject is called with and what it must return. What was counted goes to
:func:`~discreet.audit.audit.audit`, which turns it into bounds. Thresholds and numbers of guesses are fixed
before the runs that are counted: from the claim alone, or from a pilot run.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from discreet.audit.bounds import Evidence, Method, Told, Trials, between, lower_epsilon
from discreet.audit.canaries import Coins, dirac, log_ratio, of_sum, releases, simulated, step_of
from discreet.audit.claims import Claim
from discreet.audit.lines import Floats
from discreet.audit.one_run import Guesses
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, real, whole

Runs = list[tuple[Floats, Coins]]
"""The scores and coins of the candidates of each run; a score above 0 speaks for "used"."""

STRANGERS = 3
"""For each canary that is used, so many are not: they cost the subject little and narrow the bound."""


@dataclass(frozen=True)
class Canaries(Method):
    """What both games share: in each run coins decide which candidates are used, and scores are compared.

    ``count`` canaries are used in each of ``runs`` runs, on average, out of two or four times as many candidates
    (for replace-one neighbours, all candidates are used, one way or the other). ``independent`` says how they are
    counted. True: each canary is a trial of its own, which is so if the noise of the coordinates is independent,
    as the claim says. False: nothing is assumed but that runs are independent of each other
    (:mod:`discreet.audit.one_run`); how many ``guesses`` are made in each run is chosen by simulating the claim.
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
    def seen(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        """What one run shows of each candidate."""

    def scored(self, shown: Runs, claim: Claim) -> Runs:
        """Scores of the runs that are counted."""
        return shown

    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        shown = []
        for run in range(self.calls):
            used = self.coins(claim, stream)
            shown.append((self.seen(train, used, claim), used))
            told(run + 1, self.calls)
        runs = self.scored(shown, claim)
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

    def seen(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        step, count = step_of(claim.event)
        steps = count * releases(step)
        returned = train(dirac(used, self.length * self.clip_norm, claim.neighbours))
        sums = _shaped(returned, used.size, steps) / (self.clip_norm if self.unit is None else self.unit)
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

    def seen(self, train: Callable[..., Any], used: Coins, claim: Claim) -> Floats:
        rows = np.abs(dirac(used, self.length * self.clip_norm, claim.neighbours))
        labels = np.where(used, self.labels[1], self.labels[0])
        labels = labels if claim.neighbours == "replace-one" else labels[used]
        return _shaped(train(rows, labels), used.size, 1).reshape(-1)

    def scored(self, shown: Runs, claim: Claim) -> Runs:
        (pilot, used), *others = shown
        sign, middle = between(pilot[~used], pilot[used])
        return [(sign * (scores - middle), used) for scores, used in others]


def _shaped(returned: Any, candidates: int, steps: int) -> Floats:
    seen = np.asarray(returned, dtype=float)
    if seen.shape not in ((candidates,), (steps, candidates)):
        wanted = f"({candidates},)" + (f" or ({steps}, {candidates})" if steps > 1 else "")
        raise InvalidParameter("train", seen.shape, f"must return an array of shape {wanted}.")
    return np.asarray(np.nan_to_num(seen))


# ---- how many guesses to make in a one-run audit, decided before the subject is run ----


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
    """How often the k most telling guesses are right, for k = 1, 2, ..., if the claim is exactly true.

    A guess with log-likelihood ratio l is right with probability 1 / (1 + e^-|l|), which is less noisy than to
    count right guesses.
    """
    scores = simulated(*step_of(claim.event), claim.neighbours, RandomStream(unsafe_seed=0))
    right = np.sort(expit(np.abs(scores)))[::-1]
    return np.asarray(np.cumsum(right) / np.arange(1, right.size + 1))
