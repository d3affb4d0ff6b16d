"""How many guesses to make in a one-run audit, decided before the subject is run."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import expit

from discreet.audit.bounds import lower_epsilon
from discreet.audit.canaries import simulated, step_of
from discreet.audit.claims import Claim
from discreet.audit.lines import Floats
from discreet.audit.one_run import Guesses
from discreet.core.randomness import RandomStream

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
