"""One record more, and every sum of an additive fit moves by its clip norm at most: brute force, whole fits.

The second fit is given the releases of the first, so that all choices on the way are the same.
"""

import math

import numpy as np
import pandas as pd
import pytest

from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.linear import PrivateAdditiveRegressor
from discreet.linear.additive import expanded_rows, fit_additive, interactions
from discreet.linear.additive.estimators import declarations
from discreet.linear.additive.expanded_rows import expand, hats
from discreet.linear.additive.fit_additive import PublicColumns
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.losses import Logistic, Softmax, Squared
from discreet.linear.row_views import column_views as pairs_file
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair
from discreet.trusted import queries
from discreet.trusted.spending import BudgetAllocator

COLUMNS = Columns(numerics=3, groups=(3, 1))
HOSTILE = {
    "all ones": np.ones(7),
    "all zeros": np.zeros(7),
    "out of range": np.r_[1e300, -1e300, 7.0, 5.0, 5.0, 5.0, 9.0],
    "between knots": np.r_[0.03, 0.51, 0.97, 0, 1, 0, 0],
    "nan": np.r_[np.nan, np.ones(6)],
}
RICH, POOR = Budget(12.0, 1e-6), Budget(0.2, 1e-6)


class Replay(BudgetAllocator):
    """Keeps every sum. Answers with noise, or with the answers of another fit."""

    def __init__(self, budget, answers=None):
        super().__init__(budget, stream=RandomStream(unsafe_seed=3, threads=1))
        self.sums, self.answers, self.given = [], [], answers

    def _add_noise(self, total, event):
        self.sums.append((total.value.astype(object), total.clip_norm / total.grid))
        noisy = super()._add_noise(total, event) if self.given is None else self.given[len(self.answers)]
        self.answers.append(noisy)
        return noisy


def table(loss, n=300):
    rng = np.random.default_rng(0)
    x = np.hstack([rng.random((n, 3)), np.eye(3)[rng.integers(3, size=n)], rng.integers(2, size=(n, 1))])
    score = np.sin(6 * x[:, 0]) + x[:, 3]
    return x, np.asarray(score if loss.kind == "numbers" else score > 0.5, float)


def fitted(loss, x, y, spending, pairs=()):
    declared = PublicColumns(COLUMNS, (0.0, 0.3, 2.0), {1: 6}, ("free",) * 3, pairs)
    return fit_additive.fit_additive(loss, x, y, declared, spending)


def worst_move(loss, row, target, budget, pairs=(), n=300):
    x, y = table(loss, n)
    first = Replay(budget)
    fitted(loss, x, y, first, pairs)
    second = Replay(budget, first.answers)
    fitted(loss, np.vstack([x, row]), np.append(y, target), second, pairs)
    assert len(first.sums) == len(second.sums)
    moves = zip(first.sums, second.sums, strict=True)
    return max(math.sqrt(np.sum((b - a) ** 2)) / steps for (a, steps), (b, _) in moves)


@pytest.mark.parametrize("budget", [RICH, POOR], ids=["rich", "poor"])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared()], ids=lambda loss: type(loss).__name__)
def test_no_record_moves_a_sum_by_more_than_its_clip_norm(loss, budget):
    for row in HOSTILE.values():
        assert worst_move(loss, row, 1.0, budget, pairs=((0, 1),)) <= 1


@pytest.mark.parametrize(
    ("loss", "target"),
    [(Squared(), 0.0), (Squared(), 1e300), (Squared(), -1e300), (Logistic(), 0.0), (Logistic(), 1.0)],
)
def test_the_choice_of_pairs_is_within_its_clip_norm(loss, target):
    """With so large a budget pairs are asked for: their stages are among the sums that are compared."""
    budget = Budget(16.0, 1e-6)
    for row in HOSTILE.values():
        assert worst_move(loss, row, target, budget, pairs=None, n=3000) <= 1
    spent, without = Replay(budget), Replay(budget)
    fitted(loss, *table(loss, 3000), spent, None)
    fitted(loss, *table(loss, 3000), without, ())
    assert len(spent.sums) > len(without.sums)


def test_crossings_that_are_not_clipped_would_be_noticed(monkeypatch):
    """A view that forgets to clip is harmless; a gate that forgets it too is the broken twin."""
    monkeypatch.setattr(pairs_file, "clip_rows", lambda rows, clip_norm: rows)
    assert worst_move(Squared(), HOSTILE["all zeros"], 1e300, Budget(16.0, 1e-6), None, 3000) <= 1
    monkeypatch.setattr(queries, "clip_rows", lambda rows, clip_norm, norm: np.nan_to_num(rows))
    assert worst_move(Squared(), HOSTILE["all zeros"], 1e300, Budget(16.0, 1e-6), None, 3000) > 2
    assert worst_move(Logistic(), HOSTILE["all zeros"], 1.0, Budget(16.0, 1e-6), None, 3000) > 1


def test_cells_that_hold_too_much_would_be_noticed(monkeypatch):
    """A view of ten times the residual is harmless; a gate that adds twice what it cut is the broken twin."""
    honest = pairs_file.PairCells.__call__

    def larger(self, x, y):
        cells, amounts = honest(self, x, y)
        return cells, 10 * amounts

    monkeypatch.setattr(pairs_file.PairCells, "__call__", larger)
    assert worst_move(Squared(), HOSTILE["all zeros"], 1e300, Budget(16.0, 1e-6), None, 3000) <= 1
    add = queries._add_to_cells
    monkeypatch.setattr(queries, "_add_to_cells", lambda counts, cells, steps: add(counts, cells, 2 * steps))
    assert worst_move(Squared(), HOSTILE["all zeros"], 1e300, Budget(16.0, 1e-6), None, 3000) > 1.1


@pytest.mark.parametrize("step", ["rank_correlations", "propose_pairs", "confirm_pairs", "count_cells"])
def test_a_sensitivity_that_is_too_small_is_refused(monkeypatch, step):
    """A recipe that declares a hair less than a record may add releases nothing."""
    whole, asked = getattr(interactions, step), []

    def too_little(*known):
        with pytest.MonkeyPatch.context() as within:
            within.setattr(interactions, "ROUNDING", 0.9998)
            within.setattr(interactions, "_REACH", 0.9998 * interactions._REACH)
            asked.append(step)
            return whole(*known)

    monkeypatch.setattr(fit_additive, step, too_little)
    spent = Replay(Budget(16.0, 1e-6))
    pairs = ((0, 1),) if step == "count_cells" else None
    with pytest.raises(PlanViolation, match="allow a record to add a vector of norm"):
        fitted(Logistic(), *table(Logistic(), 3000), spent, pairs)
    assert asked == [step]


def test_a_record_that_does_not_count_moves_nothing():
    assert worst_move(Squared(), HOSTILE["nan"], 1.0, RICH) == 0


def random_basis(rng):
    knots = [np.sort(rng.random(rng.integers(2, 9))) for _ in range(3)]
    knots = [np.unique(np.r_[0.0, some, 1.0]) for some in knots]
    curves = tuple(
        Curve(j, some, np.arange(1, len(some)), 6 if j == 1 else None) for j, some in enumerate(knots)
    )
    cells = np.arange(len(knots[0]) * len(knots[2]))
    return Basis(COLUMNS, curves, (Pair((0, 2), (knots[0], knots[2]), cells, np.full(len(cells), 0.1)),))


def longest_row(rng, tries=30):
    """The largest squared norm of an encoded row over its bound, and the most hats of a curve above 0."""
    longest, most = 0.0, 0
    for _ in range(tries):
        basis = random_basis(rng)
        values = np.concatenate([curve.knots for curve in basis.curves])
        values = np.r_[
            values, np.nextafter(values, 2), np.nextafter(values, -1), rng.random(50), -1e300, 1e300
        ]
        rows = np.zeros((400, 7))
        rows[:, :3] = rng.choice(values, (400, 3))
        rows[:, 3], rows[:, 6] = 1.0, rng.integers(2, size=400)
        encoded = expand(basis, rows).astype(np.float64)
        longest = max(longest, float((encoded**2).sum(1).max()) / len(basis.columns.groups))
        first = len(basis.curves[0].kept)
        most = max(most, int((encoded[:, :first] > 0).sum(1).max()))
    return longest, most


def test_the_norm_of_an_encoded_row_is_bounded_by_its_groups():
    longest, most = longest_row(np.random.default_rng(1))
    assert longest <= 1 + 1e-6
    assert most <= 2


def test_three_hats_would_be_noticed(monkeypatch):
    """A broken twin, whose hats reach over two pieces."""

    def wide(values, knots):
        found = hats(values, knots)
        found[:, 1:] += found[:, :-1]
        return found

    monkeypatch.setattr(expanded_rows, "hats", wide)
    longest, most = longest_row(np.random.default_rng(1))
    assert longest > 1.2
    assert most > 2


def test_products_that_are_not_clipped_would_be_noticed(monkeypatch):
    """A broken twin, whose products go on beyond the last knot."""

    def beyond(values, knots):
        share = (np.clip(values, -9, 9) - knots[0]) / (knots[-1] - knots[0])
        found = np.zeros((len(values), len(knots)), np.float32)
        found[:, 0], found[:, -1] = 1 - share, share
        return found

    monkeypatch.setattr(expanded_rows, "hats", beyond)
    assert longest_row(np.random.default_rng(1))[0] > 2


@pytest.mark.parametrize(
    "odd",
    [{"a": np.nan}, {"b": np.nan}, {"a": 1e300, "b": -1e300}, {"c": "new"}, {"c": None}],
    ids=["no number", "missing value", "huge", "new category", "no category"],
)
def test_an_odd_row_of_a_table_is_one_record(odd):
    """Encoded as the estimators do, a row with a missing value, a new category or 1e300 moves no sum too far."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(400), "b": rng.random(400), "c": rng.choice(list("xy"), 400)})
    columns = {name: {"bounds": [0, 1]} for name in "ab"} | {"c": {"categories": ["x", "y"]}}
    columns["b"]["missing"] = "flag"
    known = {"target_bounds": (0, 1), "schema": {"columns": columns}, "unsafe_seed": 1}
    y = frame.a.to_numpy() ** 2
    model = PrivateAdditiveRegressor(1.0, **known).fit(frame[:50], y[:50])
    more = pd.concat([frame, pd.DataFrame([{"a": 0.5, "b": 0.5, "c": "x"} | odd])], ignore_index=True)
    tables = [model._encoding.encode(model._read_table(rows, reset=False)) for rows in (frame, more)]
    answers, sums = None, []
    for x in tables:
        spent = Replay(RICH, answers)
        fit_additive.fit_additive(
            Squared(), x, np.append(y, 1.0)[: x.shape[0]], declarations(model._encoding), spent
        )
        answers = spent.answers
        sums.append(spent.sums)
    moves = [math.sqrt(np.sum((b - a) ** 2)) / steps for (a, steps), (b, _) in zip(*sums, strict=True)]
    assert 0 < max(moves) <= 1
