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

**Guesses**, the bound that assumes nothing about the canaries: any number of them, in one run of the training. Each
of m canaries is used with probability 1/2, by its own coin. An attacker who sees the release guesses the
coins of k canaries, k fixed before, and is right T times. Let p_i be the chance of T = i, and

    r_i = (1/m) sum_{j >= i} j p_j,        h_i = (1/m) sum_{j >= i} (k - j) p_j.                  (2)

Turn the coin of one canary: a right guess, with i right ones among all others, becomes a wrong one. So by
privacy of each canary, averaged over all of them (the curve is concave),

    r_{i+1} <= most_hits(h_i),     that is     h_i >= least_alarms(r_{i+1})                       (3)

(Mahloujifar, Melis and Chaudhuri, ICML 2025, arXiv 2410.22235). Start from P(T >= c) = tail and let (3) force
p_{c-1}, p_{c-2}, ... : where their sum exceeds one, P(T >= c) is below ``tail``. Putting all of the start at
T = c and taking every h_i as small as it may be is the weakest case, since all r_i grow with every h.

Several independent runs have counts T_1 + ... + T_R. Each is stochastically at most the variable whose tails
are the bounds above, so the sum is at most the sum of R independent copies, whose distribution is a convolution. This
gains much: one run may hide its leak in a rare event, many runs cannot all meet theirs.

>>> guesses = Guesses(canaries=1000, made=500, right=400)
>>> tuple(guesses.refutes(TradeoffBound.gaussian(mu=mu), error=0.05) for mu in (0.5, 3.0))
(True, False)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betainc, betaincinv, ndtri
from scipy.stats import binom

from discreet.audit.claims import STEPS_PER_DOUBLING, Claim
from discreet.audit.tradeoff_bound import Floats, TradeoffBound
from discreet.core.compiler import compiled
from discreet.core.randomness import RandomStream
from discreet.errors import UnsupportedEvent, probability, real, whole
from discreet.guarantee import Bounds

_LEAST_STEP, _MOST_STEP = -3 * STEPS_PER_DOUBLING, 12 * STEPS_PER_DOUBLING
"""From an eighth of the claimed noise, beyond which there is no need to know how wrong a claim is, to no loss."""

_CELLS = 256
_STRIDE = 32


class Evidence(ABC):
    """Counts of an attack."""

    @abstractmethod
    def refutes(self, lines: TradeoffBound, error: float) -> bool:
        """True where no release that obeys ``lines`` gives such counts with probability ``error`` or more."""

    @abstractmethod
    def perfect(self) -> Evidence:
        """Evidence of a hypothetical attack whose guesses are all right."""


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

    def refutes(self, lines: TradeoffBound, error: float) -> bool:
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
        """Number of calls of the subject."""

    @property
    @abstractmethod
    def assumptions(self) -> str:
        """Assumptions of the bound, besides the claim."""

    @abstractmethod
    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        """Attack, and count."""


def between(without: Floats, used: Floats) -> tuple[float, float]:
    """The direction in which use moves a score, and the middle of both: a threshold, learned from a pilot."""
    low, high = float(np.median(without)), float(np.median(used))
    return (1.0 if high >= low else -1.0), low + (high - low) / 2


_FFT_ERROR = 1e-9  # more than the rounding of a convolution of probabilities


@dataclass(frozen=True)
class Guesses(Evidence):
    """``right`` guesses in all ``runs``, with ``made`` guesses about ``canaries`` coins in each of them.

    ``made`` must be fixed in advance.
    """

    canaries: int
    made: int
    right: int
    runs: int = 1

    @classmethod
    def count(cls, runs: list[tuple[Floats, Any]], made: int) -> Guesses:
        """In each run, (scores, coins), guess the canaries with the most telling scores: used if above 0."""
        right = 0
        for scores, used in runs:
            told = np.argpartition(-np.abs(scores), made - 1)[:made]
            right += int(np.sum((scores[told] > 0) == used[told]))
        return cls(runs[0][0].size, made, right, len(runs))

    def refutes(self, lines: TradeoffBound, error: float) -> bool:
        if self.runs == 1:
            return bool(
                _is_refuted(self.canaries, self.made, self.right, lines.slopes, lines.intercepts, error)
            )
        return self.tail(lines) < error

    def tail(self, lines: TradeoffBound) -> float:
        """Guarantee: a release that obeys ``lines`` gives so many right guesses with at most this probability."""
        tails = _tails(self.canaries, self.made, lines.slopes, lines.intercepts)
        masses = tails - np.append(tails[1:], 0.0)
        size = next_fast_len(self.runs * self.made + 1, real=True)
        total = irfft(rfft(masses, size) ** self.runs, size)
        return min(1.0, float(total[self.right : self.runs * self.made + 1].sum()) + _FFT_ERROR)

    def perfect(self) -> Guesses:
        return Guesses(self.canaries, self.made, self.made * self.runs, self.runs)


@compiled
def _is_refuted(canaries: Any, made: Any, right: Any, slopes: Any, intercepts: Any, tail: Any) -> Any:
    """True if P(T >= right) = tail would force more than all of the probability."""
    r, h = tail * right / canaries, tail * (made - right) / canaries
    limit = made / canaries * (1 + 1e-9)
    line = 0
    for i in range(right - 1, -1, -1):
        forced = (r - intercepts[line]) / slopes[line]
        while line + 1 < slopes.size:  # r only grows, so the best line only moves towards flatter ones
            other = (r - intercepts[line + 1]) / slopes[line + 1]
            if other < forced:
                break
            line, forced = line + 1, other
        if forced <= h:  # nothing more is forced, here or later
            return False
        r += i / (made - i) * (forced - h)
        h = forced
        if r + h > limit:
            return True
    return False


@compiled
def _tails(canaries: Any, made: Any, slopes: Any, intercepts: Any) -> Any:
    """The smallest bounds on P(T >= c), for c = 0 ... made, to one part in ten thousand."""
    tails = np.ones(made + 1)
    for c in range(1, made + 1):
        low, high = 0.0, tails[c - 1]
        while high - low > 1e-4 * high and high > 1e-13:
            middle = (low + high) / 2
            if _is_refuted(canaries, made, c, slopes, intercepts, middle):
                high = middle
            else:
                low = middle
        tails[c] = high
    return tails


def steinke_epsilon(guesses: Guesses, delta: float, confidence: float) -> float:
    """The simpler bound of Steinke, Nasr and Jagielski (NeurIPS 2023), through (epsilon, delta) alone.

    Guarantee: an (epsilon, delta)-private release makes this exceed epsilon with probability at most
    1 - confidence.
    """
    error = 1 - probability("confidence", confidence)
    delta = real("delta", delta, at_least=0, below=1)
    low, high = 0.0, 64.0
    if _steinke_tail(guesses, 0.0, delta) >= error:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _steinke_tail(guesses, middle, delta) < error else (low, middle)
    return low


def _steinke_tail(guesses: Guesses, epsilon: float, delta: float) -> float:
    """P(T >= right), at most: guesses right with probability e^epsilon / (1 + e^epsilon), and what delta adds."""
    made, canaries = guesses.made * guesses.runs, guesses.canaries * guesses.runs
    chance = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(guesses.right - 1, made, chance))
    back = np.arange(1, guesses.right + 1)
    more = binom.sf(guesses.right - back - 1, made, chance) - tail
    return min(1.0, tail + 2 * canaries * delta * float(np.max(more / back, initial=0.0)))
