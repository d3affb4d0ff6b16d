"""One record more, and every sum of the recipe moves by its clip norm at most: brute force, whole fits.

A fit is run twice, with and without a hostile record. The second run is given the releases of the first, so every
choice on the way is the same and each sum can be compared with its twin.
"""

from functools import cache

import numpy as np
import pytest

from discreet import Budget
from discreet.core.noise import FLOAT_ROOM
from discreet.core.randomness import RandomStream
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.glm import fit_glm
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared
from discreet.trusted.spending import BudgetAllocator

COLUMNS = Columns(numerics=3, groups=(3, 1), text=4, text_norm=2.0)
HUGE = 1e300
HOSTILE = {
    "all ones": np.ones(11),
    "all zeros": np.zeros(11),
    "out of range": np.r_[HUGE, -HUGE, 7.0, 5.0, 5.0, 5.0, 9.0, HUGE, HUGE, -HUGE, 1.0],
    "one corner": np.r_[1, 0, 1, 0, 0, 1, 1, 2.0, 0, 0, 0],
    "fractions": np.r_[0.5, 1, 0, 0.9, 0.9, 0.9, 0.9, 1.0, -1.0, 1.0, -1.0],
    "nan": np.r_[np.nan, np.ones(10)],
    "infinity": np.r_[np.ones(10), np.inf],
}
LOSSES = [
    (Logistic(), [0, 1, 2, np.nan], (0.0, 1.0)),
    (Softmax(4), [0, 3, 4, np.inf], (0.0, 1.0)),
    (SmoothedHinge(0.5), [0, 1, -1], (0.0, 1.0)),
    (Squared(), [-5.0, 9.0, HUGE, np.nan], (-5.0, 9.0)),
    (Huber(0.5), [-5.0, 9.0, -HUGE], (-5.0, 9.0)),
    (Poisson(), [0.0, 50.0, HUGE, -1.0], (0.0, 50.0)),
]


class Replay(BudgetAllocator):
    """Keeps every sum. Answers with noise, or with the answers of another fit."""

    def __init__(self, budget, arithmetic, answers=None):
        super().__init__(budget, stream=RandomStream(unsafe_seed=3, threads=1), arithmetic=arithmetic)
        self.sums, self.answers, self.given = [], [], answers

    def _add_noise(self, total, event):
        exact = total.value.astype(object) if total.grid else total.value  # whole numbers of any size
        self.sums.append((exact, total.clip_norm, total.grid or 1.0))
        noisy = super()._add_noise(total, event) if self.given is None else self.given[len(self.answers)]
        self.answers.append(noisy)
        return noisy


def records(loss, bounds, n, seed=0):
    rng = np.random.default_rng(seed)
    text = rng.normal(size=(n, 4))
    x = np.hstack(
        [rng.random((n, 3)), np.eye(3)[rng.integers(3, size=n)], rng.integers(2, size=(n, 1)), text]
    )
    score = 4 * x[:, 0] + x[:, 3] - 2
    if loss.outputs > 1:
        y = rng.integers(loss.outputs, size=n)
    elif isinstance(loss, Logistic | SmoothedHinge):
        y = rng.random(n) < 1 / (1 + np.exp(-score))
    else:
        y = np.clip(score, *bounds)
    return x, np.asarray(y, float)


@cache
def without_the_record(loss, bounds, budget, arithmetic, n):
    spending = Replay(budget, arithmetic)
    fit_glm(loss, *records(loss, bounds, n), COLUMNS, spending, target_bounds=bounds)
    return spending


def worst_moves(loss, bounds, row, target, budget, arithmetic="float", n=200):
    """For each release, how far the record moves the sum, in clip norms."""
    x, y = records(loss, bounds, n)
    first = without_the_record(loss, bounds, budget, arithmetic, n)
    second = Replay(budget, arithmetic, first.answers)
    more = np.vstack([x, row]), np.append(y, target)
    fit_glm(loss, *more, COLUMNS, second, target_bounds=bounds)
    assert len(first.sums) == len(second.sums)
    return [
        float(np.sqrt(np.sum(((b - a) * grid) ** 2))) / clip_norm
        for (a, clip_norm, grid), (b, _, _) in zip(first.sums, second.sums, strict=True)
    ]


RICH, SCANT, POOR = Budget(12.0, 1e-6), Budget(1.2, 1e-6), Budget(0.1, 1e-6)
BUDGETS = pytest.mark.parametrize("budget", [RICH, SCANT, POOR], ids=["rich", "scant", "poor"])


@pytest.mark.parametrize(("loss", "targets", "bounds"), LOSSES, ids=lambda value: type(value).__name__)
def test_budgets_lead_to_histograms_to_the_pooled_centre_and_to_a_constant(loss, targets, bounds):
    told = {}
    for budget in (RICH, SCANT, POOR):
        names = told[budget] = {}
        fit_glm(
            loss,
            *records(loss, bounds, 200),
            COLUMNS,
            Replay(budget, "float"),
            progress=lambda name, done, steps, names=names: names.setdefault(name),
            target_bounds=bounds,
        )
    assert "whitening" in told[RICH]
    assert "counts-2" not in told[RICH]
    assert {"marginals", "gradients"} <= set(told[SCANT])
    assert ("counts-2" in told[SCANT]) == (loss.kind == "classes")
    assert "counts-2" in told[POOR]
    assert "gradients" not in told[POOR]


@pytest.mark.parametrize(("loss", "targets", "bounds"), LOSSES, ids=lambda value: type(value).__name__)
@BUDGETS
def test_no_record_moves_a_sum_by_more_than_its_clip_norm(loss, targets, bounds, budget):
    for row in HOSTILE.values():
        for target in targets[:2]:
            moves = worst_moves(loss, bounds, row, target, budget)
            assert max(moves) <= 1


@pytest.mark.parametrize(
    ("loss", "targets", "bounds"), LOSSES[:1] + LOSSES[3:4], ids=lambda v: type(v).__name__
)
@BUDGETS
def test_hardened_sums_keep_the_bound_exactly(loss, targets, bounds, budget):
    for name in ("all ones", "out of range", "one corner"):
        moves = worst_moves(loss, bounds, HOSTILE[name], targets[1], budget, "hardened", n=100)
        assert max(moves) <= 1


def test_no_record_moves_a_look_within_bounds_that_were_far_too_wide():
    """Bounds a thousand times too wide are looked into more than once; targets beyond the narrow ones are clamped."""
    loose, tight = (-5e3, 9e3), (-5.0, 9.0)
    for target in (-5e3, 9e3, 3.0, HUGE):
        moves = worst_moves(Squared(), loose, HOSTILE["one corner"], target, RICH, n=400)
        assert max(moves) <= 1
    once = worst_moves(Squared(), tight, HOSTILE["one corner"], 9.0, RICH, n=400)
    assert len(moves) >= len(once) + 2  # two looks more


def test_records_that_do_not_count_move_nothing():
    for name in ("nan", "infinity"):
        assert max(worst_moves(Logistic(), (0.0, 1.0), HOSTILE[name], 1, RICH)) == 0
    moves = worst_moves(Logistic(), (0.0, 1.0), HOSTILE["all ones"], 5, RICH)
    assert moves[0] == 1 / (1 + FLOAT_ROOM)  # an undeclared label is counted as such
    assert max(moves[1:]) == 0


def test_the_bounds_are_reached():
    rich = worst_moves(Logistic(), (0.0, 1.0), HOSTILE["one corner"], 0, RICH)
    assert rich[0] == 1 / (1 + FLOAT_ROOM)  # counts
    assert rich[1] > 0.95  # marginals: one record of every kind at its limit
    assert sum(move > 0.9 for move in rich) > 3
    poor = worst_moves(Logistic(), (0.0, 1.0), HOSTILE["one corner"], 0, POOR)
    assert max(poor[1:]) > 0.95


def test_weights_only_shrink_what_a_record_adds():
    x, y = records(Logistic(), (0.0, 1.0), 200)
    row, target = HOSTILE["all ones"], 1.0
    for weight in (0.5, 3.0, -2.0, np.nan):
        first = Replay(RICH, "float")
        fit_glm(Logistic(), x, y, COLUMNS, first, weights=np.ones(200))
        second = Replay(RICH, "float", first.answers)
        weights = np.append(np.ones(200), weight)
        fit_glm(Logistic(), np.vstack([x, row]), np.append(y, target), COLUMNS, second, weights=weights)
        limit = float(np.clip(np.nan_to_num(weight), 0, 1))
        for (a, clip_norm, _), (b, _, _) in zip(first.sums, second.sums, strict=True):
            assert np.linalg.norm(b - a) <= limit * clip_norm * (1 + 1e-5) + 1e-5


def test_an_encoder_that_breaks_its_promise_would_be_noticed(monkeypatch):
    """The broken twin: without the enforcement of the columns' promise, the same test fails."""
    without_the_record.cache_clear()

    def as_they_are(self, rows, in_place=False):
        return np.array(rows, np.float32), np.ones(len(rows), bool)

    monkeypatch.setattr(Columns, "sift", as_they_are)
    row = np.r_[1, 1, 1, 1, 1, 1, 1, 9.0, 9.0, 9.0, 9.0]
    assert max(worst_moves(Logistic(), (0.0, 1.0), row, 1, RICH)) > 1.5
