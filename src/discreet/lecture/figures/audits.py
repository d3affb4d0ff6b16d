"""What attacks achieve, beside what is certified: on made-up records, with a fixed seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.account import account
from discreet.audit import AuditResult, GradientCanaries, Membership, audit
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.events import Gaussian, PoissonSampled
from discreet.lecture.figures.canvas import Figure, Line, Panel
from discreet.lecture.leakage import toy_leakage

Floats = NDArray[np.float64]

DELTA, RATE, NOISE = 1e-5, 0.2, Gaussian(1.5)
_SHOWN = slice(0, None, 8)  # every eighth point of a ROC curve


def membership() -> Figure:
    """Was Bob's record used? The lectures' example, with and without noise."""
    private, plain = (
        toy_leakage(runs=4000, noise_multiplier=noise, stream=RandomStream(unsafe_seed=3, threads=1))
        for noise in (4.0, None)
    )
    lines = (
        Line("without noise", *_roc(plain), "dots"),
        Line("with noise", *_roc(private), "dots"),
        Line("certified: no attack is above", private.alarms.tolist(), private.most_hits.tolist()),
        Line("guessing", (0, 1), (0, 1), "dashed"),
    )
    return Figure(
        "Was Bob's record used?",
        "A model of ten names is asked how likely Bob is to have cancer; 4000 models were trained with his sentence, "
        "4000 without. Without noise the answer gives him away every time. With noise multiplier 4 in each of 10 "
        "steps the attack stays well within what is certified: it sees one answer of the last model, and the "
        "certificate holds against whoever sees every step.",
        (Panel("", "false alarms", "hits", lines),),
    )


def _roc(attack: Membership) -> tuple[list[float], list[float]]:
    return attack.alarms[_SHOWN].tolist(), attack.hits[_SHOWN].tolist()


def audit_over_training() -> Figure:
    """What canaries prove, and what the accountant proves, as training goes on."""
    steps = (5, 10, 20, 40, 80)
    step = PoissonSampled(RATE, NOISE)
    found = [_audited(count) for count in steps]
    lines = (
        Line("certified: at most", steps, [account(step * count).epsilon(DELTA) for count in steps]),
        Line("audited: at least", steps, [result.lower for result in found], "dots"),
        Line("audited, by (epsilon, delta) alone", steps, [result.classic for result in found], "dots"),
    )
    return Figure(
        "An audit beside the certificate, over training",
        "Poisson batches of one record in five, noise multiplier 1.5, delta 1e-5; eight runs with 1000 canaries, "
        "each point at 99.9 % confidence. The truth lies between the upper two lines. An audit that only knows "
        "(epsilon, delta), and not the shape of the curve, sees much less.",
        (Panel("", "steps", "epsilon", lines, log_x=True),),
    )


def _audited(steps: int) -> AuditResult:
    """The first steps of a training on canaries alone."""
    stream = RandomStream(unsafe_seed=steps, threads=1)

    def train(gradients: Floats) -> Floats:
        clipped, sums = clip_rows(gradients, 1.0), []
        for _ in range(steps):
            batch = clipped[stream.uniform(len(clipped)) < RATE]
            sums.append(add_noise(BoundedSum(batch.sum(axis=0), 1.0), NOISE, stream))
        return np.array(sums)

    claim = PoissonSampled(RATE, NOISE) * steps
    return audit(train, claim, GradientCanaries(count=1000, runs=8), 0.999, delta=DELTA, stream=stream)
