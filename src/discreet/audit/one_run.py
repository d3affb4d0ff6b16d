"""The bound that assumes nothing about the canaries: any number of them, in one run of the training.

Each of m canaries is used with probability 1/2, by its own coin. An attacker who sees the release guesses the
coins of k canaries, k fixed before, and is right T times. Let p_i be the chance of T = i, and

    r_i = (1/m) sum_{j >= i} j p_j,        h_i = (1/m) sum_{j >= i} (k - j) p_j.                  (2)

Turn the coin of one canary: a right guess, with i right ones among all others, becomes a wrong one. So by
privacy of each canary, averaged over all of them (the curve is concave),

    r_{i+1} <= most_hits(h_i),     that is     h_i >= least_alarms(r_{i+1})                       (3)

(Mahloujifar, Melis and Chaudhuri, ICML 2025, arXiv 2410.22235). Start from P(T >= c) = tail and let (3) force
p_{c-1}, p_{c-2}, ... : where their sum exceeds one, P(T >= c) is below ``tail``. Putting all of the start at
T = c and taking every h_i as small as it may be is the weakest case, since all r_i grow with every h.

Several independent runs have counts T_1 + ... + T_R. Each is stochastically at most the variable whose tails
are the bounds above, so the sum is at most the sum of R independent copies, whose law is a convolution. This
gains much: one run may hide its leak in a rare event, many runs cannot all meet theirs.

>>> guesses = Guesses(canaries=1000, made=500, right=400)
>>> guesses.refutes(Lines.gaussian(mu=0.5), error=0.05), guesses.refutes(Lines.gaussian(mu=3.0), error=0.05)
(True, False)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import binom

from discreet.audit.bounds import Evidence
from discreet.audit.lines import Floats, Lines
from discreet.core.draws import compiled
from discreet.errors import probability, real

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

    def refutes(self, lines: Lines, error: float) -> bool:
        if self.runs == 1:
            return bool(
                _is_refuted(self.canaries, self.made, self.right, lines.slopes, lines.intercepts, error)
            )
        return self.tail(lines) < error

    def tail(self, lines: Lines) -> float:
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
