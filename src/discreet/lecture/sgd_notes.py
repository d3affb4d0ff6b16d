"""Claims of the notes on SGD1 and SGD2 that no study uses, with the corrected proof.

The formulas that a study can ask for are in :mod:`discreet.parties.notes`.
"""

from __future__ import annotations

import math

from discreet.accounting.noise_formulas import classic_gaussian_noise
from discreet.errors import probability, real, whole
from discreet.guarantee import EpsilonDelta
from discreet.lecture.amplification import fixed_size_amplification
from discreet.lecture.composition import strong_composition
from discreet.parties.notes import sgd1_noise_std


def bassily_noise_std(records: int, lipschitz: float, epsilon: float, delta: float) -> float:
    """sqrt(32 n^2 lipschitz^2 ln(n / delta) ln(1 / delta)) / epsilon: the choice of Bassily, Smith, Thakurta (2014).

    The notes follow them; their squared logarithm is no misprint. Tight accounting saves a root of a logarithm.
    """
    records, lipschitz = whole("records", records, at_least=1), real("lipschitz", lipschitz, above=0)
    epsilon, delta = real("epsilon", epsilon, above=0), probability("delta", delta)
    return lipschitz * records * math.sqrt(32 * math.log(records / delta) * math.log(1 / delta)) / epsilon


def sgd1_claimed_round(epsilon: float, delta: float, records: int) -> EpsilonDelta:
    """Claim of the notes for one message, (epsilon / (2 sqrt(ln(1/delta))), delta / n^2). Not a guarantee.

    Erratum: this forgets a factor 2 of the sensitivity; the truth is :func:`sgd1_round`.
    """
    epsilon, delta = real("epsilon", epsilon, above=0, below=1), probability("delta", delta)
    return EpsilonDelta(
        epsilon / (2 * math.sqrt(math.log(1 / delta))), delta / whole("records", records, at_least=1) ** 2
    )


def sgd1_round(records: int, epsilon: float, delta: float) -> EpsilonDelta:
    """One message of SGD1 at the notes' noise, by the classic theorem, for a replaced record whose turn it is.

    Guarantee: the message is this private to everybody who knows the schedule.
    """
    each = delta / records**2
    noise = sgd1_noise_std(records, 1.0, epsilon, delta) / (2 * records)
    classic = classic_gaussian_noise(0.5, each) * 0.5 / noise  # noise = classic(1) / epsilon
    return EpsilonDelta(classic * (1 + 1e-14), each)


def sgd1_mended_proof(records: int, epsilon: float, delta: float) -> EpsilonDelta:
    """The notes' proof with the right sensitivity, amplification and delta' = delta / 2, over n^2 steps.

    Guarantee: SGD1 with the notes' noise is this private to an observer who knows neither the schedule nor whom
    the coordinator calls. Nobody else.

    >>> round(sgd1_mended_proof(records=1000, epsilon=0.9, delta=1e-10).epsilon, 4)
    0.771
    """
    step = sgd1_round(records, epsilon, delta)
    hidden = fixed_size_amplification(*step, batch_size=1, records=records, neighbours="replace-one")
    return strong_composition(*hidden, steps=records**2, extra_delta=delta / 2)


def sgd2_risk_as_printed(
    records: int,
    lipschitz: float,
    dimension: int,
    noise_std: float,
    parties: int,
    convexity: float,
    rounds: int,
) -> float:
    """Equation (11), 8 m p (noise_std^2 + n^2 lipschitz^2) / (n convexity T). No bound to rely on.

    Erratum: it multiplies the gradient by the parties and the dimension as well; see
    :func:`discreet.parties.excess_risk.strongly_convex_weighted_excess` for what is proved.
    """
    messages = whole("parties", parties, at_least=1) * whole("dimension", dimension, at_least=1)
    records, lipschitz = whole("records", records, at_least=1), real("lipschitz", lipschitz, above=0)
    square = real("noise_std", noise_std, at_least=0) ** 2 + (records * lipschitz) ** 2
    convexity = real("convexity", convexity, above=0)
    return 8 * messages * square / (records * convexity * whole("rounds", rounds, at_least=1))
