"""What privacy costs in accuracy, predicted and measured on made-up records with a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from discreet.core.mean import FixedClip, private_mean
from discreet.core.randomness import RandomStream
from discreet.guarantee import Budget
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.figures.canvas import Figure, Line, Panel
from discreet.lecture.gradient_sum import Clip, Declared
from discreet.lecture.lecture_noise import exact_noise
from discreet.lecture.rank_bound import excess_by_dimension
from discreet.lecture.utility import average_excess, best_step_size
from discreet.linear.losses import Logistic

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
            # Pareto's law with index 3, scaled to mean square 2; its mean is 1.5 sqrt(2 / 3)
            x = np.minimum(rng.pareto(3.0, _RECORDS) + 1, 1e6) * np.sqrt(2 / 3)
            known = FixedClip(clip, 0.0, root_mean_square=np.sqrt(2.0))
            stream = RandomStream(unsafe_seed=run, threads=1)
            found = private_mean(x, Budget(0.1, 0.0, "replace-one"), known, stream=stream)
            squares.append((float(found.value) - 1.5 * np.sqrt(2 / 3)) ** 2)
        promised.append(float(found.predicted_error))
        measured.append(float(np.sqrt(np.mean(squares))))
    lines = (
        Line("promised, for every law", clips, promised, "dashed"),
        Line("measured, heavy-tailed records", clips, measured, "dots"),
    )
    return Figure(
        "The clip norm of a private mean",
        "1000 records with mean square 2, epsilon 0.1, Laplace noise. The promise is U-shaped: bias falls with the "
        "clip norm, noise rises with it. It holds for every law, so it lies above what one law shows.",
        (Panel("", "clip norm", "root mean squared error", lines, log_x=True, log_y=True),),
    )


def descent() -> Figure:
    """What the number of steps and the clip norm do to private gradient descent."""
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
    guessing = Line("no model", x, [float(np.log(2))] * len(x), "dashed")
    lines = (Line("private", x, losses, "dots"), guessing)
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
        Line("promised by the dimension", dimensions, [row.by_dimension for row in table], "dashed"),
        Line("promised by the rank", dimensions, [row.by_rank for row in table], "dashed"),
        Line("measured", dimensions, measured, "dots"),
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
