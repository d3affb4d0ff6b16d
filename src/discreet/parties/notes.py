"""The lecture notes' own formulas for SGD1 and SGD2: noise, targets and step sizes, each with its errata.

They are here to be run and judged. What the noise that they ask for is worth against each observer is told by
:func:`discreet.parties.observation.observers.observers`; the least noise that does the job is found by
:func:`discreet.parties.observation.observers.noise_for`.

``records`` is the notes' n, ``lipschitz`` the longest gradient of one record (its clip norm), ``noise_std`` the
standard deviation of the noise in each coordinate of a message. The notes minimise the *sum* of the losses.

>>> round(sgd1_noise_std(records=1000, lipschitz=1.0, epsilon=0.9, delta=1e-10), 4)
164731.1335
"""

from __future__ import annotations

import math
from collections.abc import Callable

from discreet.accounting.noise_formulas import classic_gaussian_noise
from discreet.errors import InvalidParameter, probability, real, whole
from discreet.guarantee import Budget, EpsilonDelta
from discreet.parties.arrangement import Arrangement

_SMALL = "The notes' formulas are for epsilon below 1; use noise_for() for any epsilon."


def notes_noise(arrangement: Arrangement, budget: Budget) -> float:
    """The noise multiplier that the notes ask for, in units of the clip norm of a message. No guarantee by itself.

    For SGD1, :func:`sgd1_noise_std`; for SGD2, :func:`sgd2_noise_std`.
    """
    if budget.neighbours != "replace-one" or arrangement.neighbours != "replace-one":
        raise InvalidParameter("neighbours", budget.neighbours, "must be 'replace-one', as in the notes.")
    if arrangement.aggregation != "plain" or arrangement.rate < 1:
        raise InvalidParameter(
            "noise", "notes", "the notes know plain sums of all records only; calibrate it."
        )
    if arrangement.algorithm == "sgd1":
        records = arrangement.records
        return sgd1_noise_std(records, 1.0, budget.epsilon, budget.delta) / records
    return sgd2_noise_std(1.0, budget.epsilon, budget.delta, arrangement.tokens)


def sgd1_noise_std(records: int, lipschitz: float, epsilon: float, delta: float) -> float:
    """4 lipschitz n ln(1.25 n^2 / delta) / epsilon, as printed, for 0 < epsilon < 1 and delta < 1 / n^3.

    Errata. The proof counts on a random order that the coordinator has drawn itself: against the coordinator the
    promised epsilon of 0.9 is 2.35 for n = 1000 and 6.97 for n = 10 000. Equation (6) takes delta' = delta^(1/3),
    whose failure probability alone exceeds delta; and the sensitivity of a replaced record is 2 n lipschitz, not
    n lipschitz. Against an outsider the claim survives all that, see ``discreet.lecture.sgd_notes``, and the noise is
    some twelve times what is needed.
    """
    records, lipschitz = whole("records", records, at_least=1), real("lipschitz", lipschitz, above=0)
    epsilon = real("epsilon", epsilon, above=0, below=1, remedy=_SMALL)
    remedy = "The notes ask for delta below 1 / records^3."
    delta = real("delta", delta, above=0, below=min(1.0, 1 / records**3), remedy=remedy)
    return 4 * lipschitz * records * math.log(1.25 * records**2 / delta) / epsilon


def convex_step_size(diameter: float, second_moment: float, step: int) -> float:
    """diameter / (G sqrt(t)): the step for convex losses; G^2 is ``excess_risk.second_moment``."""
    diameter, square = real("diameter", diameter, above=0), real("second_moment", second_moment, above=0)
    return diameter / math.sqrt(whole("step", step, at_least=1) * square)


def strongly_convex_step_size(convexity: float, records: int, step: int) -> float:
    """1 / (convexity n t), for the last iterate; ``convexity`` is that of one record's loss."""
    convexity, records = real("convexity", convexity, above=0), whole("records", records, at_least=1)
    return 1 / (convexity * records * whole("step", step, at_least=1))


def weighted_step_size(convexity: float, records: int, step: int) -> float:
    """2 / (convexity n (t + 1)), for the average with weights t (Lacoste-Julien, Schmidt, Bach 2012)."""
    return 2 * strongly_convex_step_size(convexity, records, whole("step", step, at_least=1) + 1)


def sgd2_round(epsilon: float, delta: float, rounds: int) -> EpsilonDelta:
    """The notes' target for each of T rounds: (epsilon / sqrt(T ln(1/delta)), delta / T).

    Erratum: this does not compose to (epsilon, delta). Strong composition gives epsilon^2 / ln(1/delta) +
    sqrt(2) epsilon at 2 delta: 1.50 for (1, 1e-5) and 100 rounds. Right is :func:`sgd2_mended_round`.
    """
    epsilon, delta = real("epsilon", epsilon, above=0), probability("delta", delta)
    rounds = whole("rounds", rounds, at_least=1)
    return EpsilonDelta(epsilon / math.sqrt(rounds * math.log(1 / delta)), delta / rounds)


def sgd2_mended_round(epsilon: float, delta: float, rounds: int) -> EpsilonDelta:
    """The largest target that does compose: T e tanh(e/2) + e sqrt(2 T ln(2/delta)) = epsilon, delta / (2 T).

    Guarantee: T rounds that meet it are (epsilon, delta)-DP together; rounded down.
    """
    epsilon, delta = real("epsilon", epsilon, above=0), probability("delta", delta)
    rounds = whole("rounds", rounds, at_least=1)
    deviation = math.sqrt(2 * rounds * math.log(2 / delta))
    each = _root(lambda e: rounds * e * math.tanh(e / 2) + e * deviation, epsilon)
    return EpsilonDelta(each * (1 - 1e-12), delta / (2 * rounds) * (1 - 1e-12))


def sgd2_noise_std(
    lipschitz: float, epsilon: float, delta: float, rounds: int, *, mended: bool = False
) -> float:
    """The classic noise for the notes' target of a round, or for the mended one; sensitivity 2 lipschitz.

    The notes give neither noise nor number of rounds; this is what their argument asks for. Errata: the noise is
    written without the index of the party, but must be drawn by each party for itself, or the difference of
    two messages is free of noise; and the sum of m messages carries m times the variance.
    """
    lipschitz = real("lipschitz", lipschitz, above=0)
    target = (sgd2_mended_round if mended else sgd2_round)(epsilon, delta, rounds)
    if not target.epsilon < 1:
        raise InvalidParameter("epsilon", epsilon, f"asks for {target.epsilon:.3g} in a round. {_SMALL}")
    return 2 * lipschitz * classic_gaussian_noise(*target)


def _root(rising: Callable[[float], float], goal: float) -> float:
    low, high = 0.0, goal  # e <= goal, because the deviation alone is more than one goal
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) <= goal else (low, middle)
    return low
