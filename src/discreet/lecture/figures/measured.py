"""Figures of made-up records, with a fixed seed: what privacy costs in accuracy, and what attacks achieve."""

from __future__ import annotations

from collections.abc import Sequence

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
from discreet.guarantee import Budget
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.figures.canvas import Figure, Panel, PlotLine
from discreet.lecture.gradient_sum import Clip, Declared
from discreet.lecture.lecture_noise import exact_noise
from discreet.lecture.rank_bound import excess_by_dimension
from discreet.lecture.utility import average_excess, best_step_size
from discreet.linear.losses import Logistic
from discreet.statistics.mean import FixedClip, private_mean

Floats = NDArray[np.float64]

BUDGET = Budget(1.0, 1e-5, "replace-one")
_RECORDS, _RUNS, _LOSS = 1000, 6, Logistic()


def mean_clip() -> Figure:
    """The error of a private mean against the clip norm: too short is biased, too long is noisy."""
    clips, rng = [2.0**power for power in range(-1, 8)], np.random.default_rng(0)
    promised, measured = [], []
    for clip in clips:
        squares = []
        for run in range(60):
            # Pareto's distribution with index 3, scaled to mean square 2; its mean is 1.5 sqrt(2 / 3)
            x = np.minimum(rng.pareto(3.0, _RECORDS) + 1, 1e6) * np.sqrt(2 / 3)
            known = FixedClip(clip, 0.0, root_mean_square=np.sqrt(2.0))
            stream = RandomStream(unsafe_seed=run, threads=1)
            found = private_mean(x, Budget(0.1, 0.0, "replace-one"), known, stream=stream)
            squares.append((float(found.value) - 1.5 * np.sqrt(2 / 3)) ** 2)
        promised.append(float(found.predicted_error))
        measured.append(float(np.sqrt(np.mean(squares))))
    lines = (
        PlotLine("promised, for every law", clips, promised, "dashed"),
        PlotLine("measured, heavy-tailed records", clips, measured, "dots"),
    )
    return Figure(
        "The clip norm of a private mean",
        "1000 records with mean square 2, epsilon 0.1, Laplace noise. The promise is U-shaped: bias falls with the "
        "clip norm, noise rises with it. It holds for every law, so it lies above what one law shows.",
        (Panel("", "clip norm", "root mean squared error", lines, log_x=True, log_y=True),),
    )


def descent() -> Figure:
    """Plot the error of private gradient descent against the number of steps and the clip norm."""
    X, y = _records(20, 20)
    clips, steps = [2.0**power for power in range(-5, 4)], (1, 3, 10, 30, 100, 300)
    by_clip = [_risk(X, y, 60, 2.0, Clip(clip), clip) for clip in clips]
    by_steps = [_risk(X, y, count, 2.0, Clip(0.5), 0.5) for count in steps]
    return Figure(
        "Clip norm and steps of private gradient descent",
        "Logistic regression, 1000 made-up records, 20 columns, epsilon 1. A short clip learns slowly, a long one "
        "drowns in noise; few steps stop early, many are noisier each.",
        (
            _against_no_model("60 steps", "clip norm", clips, by_clip, log_y=True),
            _against_no_model("clip norm 0.5", "steps", steps, by_steps),
        ),
    )


def _against_no_model(
    title: str, x_label: str, x: Sequence[float], losses: Sequence[float], *, log_y: bool = False
) -> Panel:
    """Measured losses beside that of a model that knows nothing."""
    guessing = PlotLine("no model", x, [float(np.log(2))] * len(x), "dashed")
    lines = (PlotLine("private", x, losses, "dots"), guessing)
    return Panel(title, x_label, "mean loss", lines, log_x=True, log_y=log_y)


def rank() -> Figure:
    """Records that span five directions, in more and more dimensions."""
    dimensions, spanned, steps, norm = (5, 20, 100, 500), 5, 100, 3.0
    table = excess_by_dimension(BUDGET, _RECORDS, spanned, 1.0, norm, steps, dimensions)
    measured = []
    noise = exact_noise(BUDGET, 1.0, _RECORDS, steps)
    size = best_step_size(norm, 1.0, noise, spanned, steps)
    for dimension in dimensions:
        X, y = _records(dimension, spanned)
        measured.append(_risk(X, y, steps, size, Declared(1.0), 1.0) - _least(*_records(spanned, spanned)))
    assert average_excess(norm, 1.0, noise, spanned, steps) == table[0].by_rank
    lines = (
        PlotLine("promised by the dimension", dimensions, [row.by_dimension for row in table], "dashed"),
        PlotLine("promised by the rank", dimensions, [row.by_rank for row in table], "dashed"),
        PlotLine("measured", dimensions, measured, "dots"),
    )
    return Figure(
        "The rank theorem",
        "Excess loss of private descent on records of rank 5. What counts is the rank, not the number of columns: "
        "the promise and the measurement are flat.",
        (Panel("", "columns", "excess of the mean loss", lines, log_x=True, log_y=True),),
    )


def _records(dimension: int, spanned: int) -> tuple[Floats, Floats]:
    """Rows of length at most 1 in ``spanned`` directions, and labels; the same labels for every dimension."""
    rng = np.random.default_rng(1)
    inner = rng.normal(size=(_RECORDS, spanned))
    inner /= np.maximum(1.0, np.linalg.norm(inner, axis=1))[:, None]
    y = (rng.random(_RECORDS) < 1 / (1 + np.exp(-4 * inner[:, 0]))).astype(float)
    basis = np.linalg.qr(np.random.default_rng(dimension).normal(size=(dimension, spanned)))[0]
    return inner @ basis.T, y


def _risk(X: Floats, y: Floats, steps: int, size: float, route: Clip | Declared, clip: float) -> float:
    """The mean loss of the average iterate, over a few seeded runs."""
    losses = []
    for run in range(_RUNS):
        stream = RandomStream(unsafe_seed=run, threads=1)
        found = private_descent(
            _LOSS, X, y, BUDGET, steps=steps, step_size=size / min(1.0, clip), route=route, stream=stream
        )
        losses.append(float(_LOSS.value(X @ np.asarray(found.value), y).mean()))
    return float(np.mean(losses))


def _least(X: Floats, y: Floats) -> float:
    """The least mean loss, by plain descent."""
    theta = np.zeros(X.shape[1])
    for _ in range(4000):
        theta -= 4.0 * X.T @ _LOSS.residual(X @ theta, y) / len(y)
    return float(_LOSS.value(X @ theta, y).mean())


DELTA, RATE, NOISE = 1e-5, 0.2, Gaussian(1.5)
_SHOWN = slice(0, None, 8)  # every eighth point of a ROC curve


def membership() -> Figure:
    """Was Bob's record used? The lectures' example, with and without noise."""
    private, plain = (
        toy_leakage(runs=4000, noise_multiplier=noise, stream=RandomStream(unsafe_seed=3, threads=1))
        for noise in (4.0, None)
    )
    lines = (
        PlotLine("without noise", *_roc(plain), "dots"),
        PlotLine("with noise", *_roc(private), "dots"),
        PlotLine("certified: no attack is above", private.alarms.tolist(), private.most_hits.tolist()),
        PlotLine("guessing", (0, 1), (0, 1), "dashed"),
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
    """Plot the audited lower bound and the certified upper bound during training."""
    steps = (5, 10, 20, 40, 80)
    step = PoissonSampled(RATE, NOISE)
    found = [_audit_first_steps(count) for count in steps]
    lines = (
        PlotLine("certified: at most", steps, [account(step * count).epsilon(DELTA) for count in steps]),
        PlotLine("audited: at least", steps, [result.lower for result in found], "dots"),
        PlotLine("audited, by (epsilon, delta) alone", steps, [result.classic for result in found], "dots"),
    )
    return Figure(
        "An audit beside the certificate, over training",
        "Poisson batches of one record in five, noise multiplier 1.5, delta 1e-5; eight runs with 1000 canaries, "
        "each point at 99.9 % confidence. The truth lies between the upper two lines. An audit that only knows "
        "(epsilon, delta), and not the shape of the curve, sees much less.",
        (Panel("", "steps", "epsilon", lines, log_x=True),),
    )


def _audit_first_steps(steps: int) -> AuditResult:
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


# The lectures' toy example: a model that was trained on Bob's record answers a question about Bob.
#
# The model learns from sentences "<name> has <condition>" how likely each name is to have cancer: a logistic
# regression with one coefficient for each name, trained by gradient descent on clipped gradients. Bob has one
# sentence. Without noise his coefficient moves if and only if his sentence was there, so the answer gives him away
# every time. With noise the two answers overlap as much as the certified curve says.


NAMES, STEPS, CLIP_NORM, STEP_SIZE, CLAIMED = 10, 10, 0.5, 1.0, 4.0


def toy_leakage(
    *, runs: int = 5000, noise_multiplier: float | None = CLAIMED, stream: RandomStream | None = None
) -> Membership:
    """Ask ``runs`` models with Bob's sentence and as many without it, and compare with the certified curve.

    ``noise_multiplier`` None trains without noise, and is held against the claim of a noise multiplier of 4.

    >>> attack = toy_leakage(runs=2000, noise_multiplier=None, stream=RandomStream(unsafe_seed=0))
    >>> attack.accuracy, attack.contradicts
    (1.0, True)
    >>> private = toy_leakage(runs=2000, noise_multiplier=4.0, stream=RandomStream(unsafe_seed=0))
    >>> private.accuracy < 0.9, private.contradicts
    (True, False)
    """
    runs, stream = whole("runs", runs, at_least=4), stream or system_stream()
    noise = None if noise_multiplier is None else Gaussian(noise_multiplier)
    curve = account((noise or Gaussian(CLAIMED)) * STEPS)
    with_bob, without = (answers(bob, runs, noise, stream) for bob in (True, False))
    return told_apart(with_bob, without, curve)


def answers(bob: bool, runs: int, noise: Gaussian | None, stream: RandomStream) -> Floats:
    """Probability of cancer that each of ``runs`` models predicts for Bob, the last of the names.

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


ALARMS = (0.0, 0.001, 0.005, *(step / 50 for step in range(1, 50)), 0.995, 1.0)


def attack() -> Figure:
    """Hits against false alarms, without and with sampling."""
    return Figure(
        "The best attack on one record",
        "Left: a Gaussian release against the region that its (epsilon, delta) alone would allow, at delta 1e-5. "
        "Right: the same noise on a Poisson sample of one record in ten.",
        (_panel_of_noises(), _panel_of_samples()),
    )


def _panel_of_noises() -> Panel:
    lines = [PlotLine("guessing", (0, 1), (0, 1), "dashed")]
    for noise in (2.0, 1.0, 0.5):
        curve = account(Gaussian(noise))
        lines.append(PlotLine(f"noise multiplier {noise:g}", ALARMS, [curve.power(rate) for rate in ALARMS]))
    epsilon = account(Gaussian(1.0)).epsilon(1e-5)
    allowed = [power_bound(epsilon, 1e-5, rate) for rate in ALARMS]
    lines.append(PlotLine(f"all that ({epsilon:.2f}, 1e-5) allows", ALARMS, allowed, "dashed"))
    return Panel("one Gaussian release", "false alarms", "hits", tuple(lines))


def _panel_of_samples() -> Panel:
    whole, sampled = account(Gaussian(0.5)), account(PoissonSampled(0.1, Gaussian(0.5)))
    lines = (
        PlotLine("guessing", (0, 1), (0, 1), "dashed"),
        PlotLine("all records", ALARMS, [whole.power(rate) for rate in ALARMS]),
        PlotLine("a sample of one in ten", ALARMS, [sampled.power(rate) for rate in ALARMS]),
    )
    return Panel("noise multiplier 0.5, with and without sampling", "false alarms", "hits", lines)
