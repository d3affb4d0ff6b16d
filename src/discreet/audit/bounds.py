"""From counts to a lower bound on epsilon.

An attacker guesses for each record whether it was used. ``Trials`` counts the hits among independent members and
the false alarms among independent non-members, at a threshold that was fixed before. If their true rates are
(alarms, hits), then

    hits <= most_hits(alarms)                                                                     (1)

for every release that obeys the trade-off curve. A curve is refuted when every point that obeys (1) is: the
chance of so few false alarms is p1(alarms), the chance of so many hits is p2(most_hits(alarms)), both exact
binomial tails, and the two are independent. They are joined as z = (w1 z1 + w2 z2) / |w| (Stouffer), which is
at most standard normal for the true point. This needs a margin of 2.33 standard errors at 95 %, where
two Clopper-Pearson intervals, one for each rate, need 3.92.

>>> [round(rate, 4) for rate in clopper_pearson(40, 100, confidence=0.95)]
[0.3175, 0.487]

In docs/engines.md: E12.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import betainc, betaincinv, ndtri

from discreet.audit.claims import STEPS_PER_DOUBLING, Claim
from discreet.audit.lines import Floats, Lines
from discreet.core.randomness import RandomStream
from discreet.errors import UnsupportedEvent, probability, whole
from discreet.guarantee import Bounds

_LEAST_STEP, _MOST_STEP = -3 * STEPS_PER_DOUBLING, 12 * STEPS_PER_DOUBLING
"""From an eighth of the claimed noise, beyond which there is no need to know how wrong a claim is, to no loss."""

_CELLS = 256
_STRIDE = 32


class Evidence(ABC):
    """What an attack counted."""

    @abstractmethod
    def refutes(self, lines: Lines, error: float) -> bool:
        """True where no release that obeys ``lines`` gives such counts with probability ``error`` or more."""

    @abstractmethod
    def perfect(self) -> Evidence:
        """The same attack with every guess right."""


@dataclass(frozen=True)
class Trials(Evidence):
    """``hits`` alarms among ``members`` used records and ``alarms`` among ``others`` that were not used."""

    hits: int
    members: int
    alarms: int
    others: int

    @classmethod
    def count(cls, used: Floats, unused: Floats, threshold: float) -> Trials:
        """The counts of "used if the score is above the threshold"."""
        return cls(int(np.sum(used > threshold)), used.size, int(np.sum(unused > threshold)), unused.size)

    def refutes(self, lines: Lines, error: float) -> bool:
        if not (self.members and self.others):
            return False
        spare = error / 100  # spent on leaving out points that one of the two counts excludes by itself
        least = np.array([clopper_pearson(self.hits, self.members, 1 - spare).lower])
        low = float(lines.least_alarms(least)[0])
        high = clopper_pearson(self.alarms, self.others, 1 - spare).upper
        if low >= high:
            return True
        edges = np.linspace(low, high, _CELLS + 1)
        hits = lines.most_hits(edges)
        # In each cell the alarms are at least those of its left edge and the hits at most those of its right.
        few = _normal(_at_most(self.alarms, self.others, edges[:-1]))
        many = _normal(_at_least(self.hits, self.members, hits[1:]))
        weights = self._weights(edges, hits)
        joined = weights[0] * few + weights[1] * many
        return bool(np.all(joined > -float(ndtri(error - 2 * spare)) * np.hypot(*weights)))

    def _weights(self, edges: Floats, hits: Floats) -> tuple[Floats, Floats]:
        """Standard errors of alarms and of hits, both in terms of alarms; any positive numbers would be sound."""
        slopes = np.maximum(np.diff(hits) / np.diff(edges), 1e-6)
        of_alarms, of_hits = (
            np.sqrt(np.maximum(rate * (1 - rate), 1e-12) / trials)
            for rate, trials in (((edges[1:] + edges[:-1]) / 2, self.others), (hits[1:], self.members))
        )
        return of_alarms, of_hits / slopes

    def perfect(self) -> Trials:
        return Trials(self.members, self.members, 0, self.others)


def clopper_pearson(successes: int, trials: int, confidence: float) -> Bounds:
    """Two one-sided bounds on a probability (Clopper and Pearson 1934).

    Guarantee: each of them holds with probability at least ``confidence``; both together with 2 confidence - 1.
    """
    trials = whole("trials", trials, at_least=0)
    successes = whole("successes", successes, at_least=0, at_most=trials)
    error = 1 - probability("confidence", confidence)
    failures = trials - successes
    lower = float(betaincinv(successes, failures + 1, error)) if successes else 0.0
    upper = float(betaincinv(successes + 1, failures, 1 - error)) if failures else 1.0
    return Bounds(lower, upper)


def lower_epsilon(evidence: Evidence, claim: Claim, confidence: float, *, resolution: int = 1) -> float:
    """The smallest epsilon, at the claim's delta, that is consistent with the evidence.

    Guarantee: if the release belongs to the claim's family, its epsilon is below this with probability at most
    1 - confidence. Whatever it is, if it obeys the claimed curve, this exceeds the claimed epsilon with at most
    that probability.
    """
    step = refuted_step(evidence, claim, 1 - probability("confidence", confidence), resolution)
    return 0.0 if step is None else claim.epsilon_at(step)


def refuted_step(evidence: Evidence, claim: Claim, error: float, resolution: int = 1) -> int | None:
    """The member of the family with the least noise that is refuted; None if none is."""

    def refuted(step: int) -> bool:
        try:
            return evidence.refutes(claim.lines(step), error)
        except UnsupportedEvent:  # too little noise for the accountant
            return False

    least, most = (-_STRIDE, 0) if refuted(0) else (0, _STRIDE)
    stride = _STRIDE
    while most <= 0 and refuted(least):
        if least == _LEAST_STEP:
            return least
        stride *= 2
        most, least = least, max(least - stride, _LEAST_STEP)
    while least >= 0 and not refuted(most):
        if most > _MOST_STEP:
            return None
        stride *= 2
        least, most = most, most + stride
    while most - least > resolution:
        middle = (least + most) // 2
        least, most = (least, middle) if refuted(middle) else (middle, most)
    return most


def _normal(tail: Floats) -> Floats:
    """The number that a standard normal variable exceeds with probability ``tail``; at most 37."""
    return np.asarray(-ndtri(np.maximum(tail, 1e-300)))


def _at_most(count: int, trials: int, rate: Floats) -> Floats:
    """P(Binomial(trials, rate) <= count)."""
    return np.ones_like(rate) if count >= trials else betainc(trials - count, count + 1, 1 - rate)


def _at_least(count: int, trials: int, rate: Floats) -> Floats:
    """P(Binomial(trials, rate) >= count)."""
    return np.ones_like(rate) if count <= 0 else betainc(count, trials - count + 1, rate)


# ---- what all methods have in common: a subject is attacked, and hits and false alarms are counted ----


Told = Callable[[int, int], None]
"""Is told how many of how many calls of the subject are done."""


class Method(ABC):
    """A way to attack a subject."""

    name: ClassVar[str]
    group: int = 1
    """By how many records the data sets that are told apart differ."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """How often the subject is called."""

    @property
    @abstractmethod
    def assumptions(self) -> str:
        """What must hold, beside the claim, for the bound to be right."""

    @abstractmethod
    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        """Attack, and count."""


def between(without: Floats, used: Floats) -> tuple[float, float]:
    """The direction in which use moves a score, and the middle of both: a threshold, learned from a pilot."""
    low, high = float(np.median(without)), float(np.median(used))
    return (1.0 if high >= low else -1.0), low + (high - low) / 2
