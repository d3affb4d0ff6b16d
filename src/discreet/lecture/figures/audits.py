"""What attacks achieve, beside what is certified: on made-up records, with a fixed seed.

The lectures' toy example: a model that was trained on Bob's record answers a question about Bob.

The model learns from sentences "<name> has <condition>" how likely each name is to have cancer: a logistic
regression with one coefficient for each name, trained by gradient descent on clipped gradients. Bob has one sentence.
Without noise his coefficient moves if and only if his sentence was there, so the answer gives him away every
time. With noise the two answers overlap as much as the certified curve says.

>>> attack = toy_leakage(runs=2000, noise_multiplier=None, stream=RandomStream(unsafe_seed=0))
>>> attack.accuracy, attack.contradicts
(1.0, True)
>>> private = toy_leakage(runs=2000, noise_multiplier=4.0, stream=RandomStream(unsafe_seed=0))
>>> private.accuracy < 0.9, private.contradicts
(True, False)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.curve import account
from discreet.accounting.power import power_bound
from discreet.audit import AuditResult, GradientCanaries, Membership, audit
from discreet.audit.membership import membership as told_apart
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import whole
from discreet.events import Gaussian, PoissonSampled
from discreet.lecture.figures.canvas import Figure, Line, Panel

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


# ---- the lectures' toy example: a model that was trained on Bob's record answers a question about Bob ----


NAMES, STEPS, CLIP_NORM, STEP_SIZE, CLAIMED = 10, 10, 0.5, 1.0, 4.0


def toy_leakage(
    *, runs: int = 5000, noise_multiplier: float | None = CLAIMED, stream: RandomStream | None = None
) -> Membership:
    """Ask ``runs`` models with Bob's sentence and as many without it, and compare with the certified curve.

    ``noise_multiplier`` None trains without noise, and is held against the claim of a noise multiplier of 4.
    """
    runs, stream = whole("runs", runs, at_least=4), stream or system_stream()
    noise = None if noise_multiplier is None else Gaussian(noise_multiplier)
    curve = account((noise or Gaussian(CLAIMED)) * STEPS)
    with_bob, without = (answers(bob, runs, noise, stream) for bob in (True, False))
    return told_apart(with_bob, without, curve)


def answers(bob: bool, runs: int, noise: Gaussian | None, stream: RandomStream) -> Floats:
    """How likely each of ``runs`` models says that Bob, the last of the names, has cancer.

    Guarantee: with ``noise``, each model costs ``noise * STEPS`` under add-remove neighbours.
    """
    sentences = np.full(NAMES, 3.0)  # of each name, half of which say so and half of which do not
    scores = np.zeros((runs, NAMES))
    for _ in range(STEPS):
        # The gradient of a sentence is (probability - label) on its name's coordinate: 1 at most, clipped to 1/2.
        chance = 1 / (1 + np.exp(-scores))
        total = sentences * (np.clip(chance - 1, -CLIP_NORM, CLIP_NORM) + np.clip(chance, 0, CLIP_NORM))
        total[:, -1] = np.clip(chance[:, -1] - 1, -CLIP_NORM, CLIP_NORM) if bob else 0.0
        if noise is not None:
            total = add_noise(BoundedSum(total, CLIP_NORM), noise, stream)
        scores -= STEP_SIZE * total
    return np.asarray(1 / (1 + np.exp(-scores[:, -1])))


# ---- what an attacker can do: the region of false alarms and hits that a release allows ----


ALARMS = (0.0, 0.001, 0.005, *(step / 50 for step in range(1, 50)), 0.995, 1.0)


def attack() -> Figure:
    """Hits against false alarms, without and with sampling."""
    return Figure(
        "The best attack on one record",
        "Left: a Gaussian release against the region that its (epsilon, delta) alone would allow, at delta 1e-5. "
        "Right: the same noise on a Poisson sample of one record in ten.",
        (_gaussian(), _sampled()),
    )


def _gaussian() -> Panel:
    lines = [Line("guessing", (0, 1), (0, 1), "dashed")]
    for noise in (2.0, 1.0, 0.5):
        curve = account(Gaussian(noise))
        lines.append(Line(f"noise multiplier {noise:g}", ALARMS, [curve.power(rate) for rate in ALARMS]))
    epsilon = account(Gaussian(1.0)).epsilon(1e-5)
    allowed = [power_bound(epsilon, 1e-5, rate) for rate in ALARMS]
    lines.append(Line(f"all that ({epsilon:.2f}, 1e-5) allows", ALARMS, allowed, "dashed"))
    return Panel("one Gaussian release", "false alarms", "hits", tuple(lines))


def _sampled() -> Panel:
    whole, sampled = account(Gaussian(0.5)), account(PoissonSampled(0.1, Gaussian(0.5)))
    lines = (
        Line("guessing", (0, 1), (0, 1), "dashed"),
        Line("all records", ALARMS, [whole.power(rate) for rate in ALARMS]),
        Line("a sample of one in ten", ALARMS, [sampled.power(rate) for rate in ALARMS]),
    )
    return Panel("noise multiplier 0.5, with and without sampling", "false alarms", "hits", lines)
