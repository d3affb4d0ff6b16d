"""Counts, sums, variances, covariances: what one record may add, what the intervals hold, and who pays."""

import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from scipy.sparse import csr_array

from discreet import Budget, DiscreteLaplace, Gaussian, Laplace, Ledger
from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.erm import private_minimiser
from discreet.lecture.exponential import exponential_choice
from discreet.lecture.lecture_noise import exact_noise
from discreet.ledger import GaussianFilter
from discreet.linear.losses import Logistic
from discreet.statistics import (
    PrivatePCA,
    private_count,
    private_covariance,
    private_histogram,
    private_quantiles,
    private_sum,
    private_variance,
)
from discreet.statistics.least_noise import candidates, deviation, quantile
from discreet.statistics.mean import Interval, private_mean
from discreet.trusted.session import Session, _round_up

PURE, GAUSS = Budget(1.0, 0.0), Budget(1.0, 1e-6)
X = np.random.default_rng(0).normal(50, 10, 400)
ROWS = np.random.default_rng(1).normal(0, 1, (300, 3))

ASKED = {
    "count": lambda x, budget, **more: private_count(x > 50, budget, **more),
    "histogram": lambda x, budget, **more: private_histogram(x, budget, np.arange(0, 101, 10), **more),
    "sum": lambda x, budget, **more: private_sum(x, budget, (-20, 80), **more),
    "variance": lambda x, budget, **more: private_variance(x, budget, (0, 100), **more),
    "covariance": lambda x, budget, **more: private_covariance(
        np.outer(x, [1, 2, 3]), budget, (0, 200), **more
    ),
}


@pytest.fixture
def released(monkeypatch):
    """What would be released, in units of the most that a record may add, with its norm."""
    seen = []

    def release(self, permit, rows, query, event=None):
        grid = 1.0 if isinstance(self.event, DiscreteLaplace) else self.grid(self.event, query.bound)
        total = rows._total(query, grid) * grid
        seen.append((total, query.norm))
        return total

    monkeypatch.setattr(Session, "release", release)
    return seen


HARD = np.array([50.0, 1e9, -1e9, math.nan, math.inf, 0.0, 100.0, 1e-300])


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("budget", [PURE, GAUSS, Budget(1.0, 1e-6, "replace-one")])
def test_one_record_moves_the_sum_by_one_at_most(name, budget, released):
    with np.errstate(all="ignore"):
        for value in HARD:
            ASKED[name](np.append(X, value), budget)
        ASKED[name](X, budget)
    *with_it, (without, _) = released
    for total, norm in with_it:
        assert np.linalg.norm(total - without, 2 if norm == "l2" else 1) <= 1.0


def test_the_largest_record_uses_the_sensitivity_up(released):
    """The broken twin: an addition that is not scaled would be seen, since honest ones come close to 1."""
    for name, value in (("sum", 80.0), ("variance", 100.0), ("covariance", 200.0)):
        ASKED[name](X, PURE)
        ASKED[name](np.append(X, value), PURE)
        (before, norm), (after, _) = released[-2:]
        moved = np.linalg.norm(after - before, 2 if norm == "l2" else 1)
        assert 0.5 < moved <= 1.0
        assert 2 * moved > 1.0


@pytest.mark.parametrize("bounds", [(1.7e18, 1.7e18 + 256), (1.7e18 + 256, 1.7e18 + 1024), (1, 1 + 2**-52)])
def test_bounds_that_are_a_few_roundings_apart_make_no_record_longer(bounds, released, monkeypatch):
    """Nanoseconds of one day: the middle is rounded to an end, from which the other one is two half widths away."""

    def moved():
        private_covariance(np.empty((0, 5)), GAUSS, bounds)
        for end in bounds:
            private_covariance(np.full((1, 5), float(end)), GAUSS, bounds)
        (without, _), *with_it = released[-3:]
        return max(np.linalg.norm(total - without) for total, _ in with_it)

    assert moved() <= 1.0
    # Without the clamp of a view the gate clips; without both, a record is longer.
    monkeypatch.setattr("discreet.trusted.queries.np.clip", lambda values, *_: values)
    assert moved() <= 1.0
    monkeypatch.setattr("discreet.trusted.queries.clip_rows", lambda rows, *_: rows)
    assert moved() > 1.3


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_values_are_those_of_numpy(name, neighbours):
    budget = Budget(12.0, 0.0, neighbours)
    found = ASKED[name](X, budget, unsafe_seed=3)
    exact = {
        "count": np.sum(X > 50),
        "histogram": np.histogram(X, np.arange(0, 101, 10))[0],
        "sum": np.clip(X, -20, 80).sum(),
        "variance": X.var(),
        "covariance": np.cov(np.outer(X, [1, 2, 3]).T, bias=True),
    }[name]
    assert np.all(np.abs(found.value - exact) <= 6 * found.noise + 1e-6 * np.abs(exact))
    assert np.all((found.lower <= found.value) & (found.value <= found.upper))


@pytest.mark.parametrize("name", ASKED)
def test_intervals_hold_what_they_say(name):
    """90 % intervals of these very records, 200 releases, seeded: between 82 and 97 of a hundred."""
    budget, hits = Budget(2.0, 1e-6), []
    exact = ASKED[name](X, Budget(1e3, 0.0), unsafe_seed=1).value
    for seed in range(200):
        found = ASKED[name](X, budget, confidence=0.9, unsafe_seed=seed)
        hits.append(np.mean((found.lower <= exact) & (exact <= found.upper)))
    assert 0.82 < np.mean(hits) < 0.97


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_counts_get_the_least_noise_there_is_in_whole_numbers(epsilon):
    """Against the closed form exp(-|k| epsilon): chi-square of 2000 bins, seeded; beyond 60 once in ten million.

    The broken twin is noise of half the scale.
    """
    budget, edges = Budget(epsilon, 0.0), np.arange(2001.0)
    found = private_histogram(np.repeat(edges[:-1], 1000), budget, edges, unsafe_seed=4)
    (event,) = found.certificate.ledger.spent()
    assert isinstance(event, DiscreteLaplace)
    drawn = np.abs(found.value - 1000)
    assert np.all(drawn == np.rint(drawn))

    def distance(scale):
        a, last = math.exp(-1 / scale), 10 * max(1, round(0.3 / epsilon))
        ends = np.arange(0, last + 1, last // 10)
        tail = np.where(ends > 0, 2 * a**ends / (1 + a), 1.0)  # P(|k| >= end)
        wanted = 2000 * -np.diff(np.append(tail, 0.0))
        counted = np.histogram(drawn, np.append(ends, np.inf))[0]
        return np.sum((counted - wanted) ** 2 / wanted)

    assert distance(event.scale) < 60
    assert distance(event.scale / 2) > 200
    assert found.noise[0] == pytest.approx(np.sqrt(np.mean(drawn**2)), rel=0.15)


@pytest.mark.parametrize("epsilon", [0.03, 0.5, 1.0, 6.0])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_intervals_of_counts_are_the_shortest_that_hold(epsilon, level):
    """By adding up the law of the noise."""
    (event,) = candidates(Budget(epsilon, 0.0), counts=True)
    scale, most = event.scale, int(quantile(event, level))
    chances = np.exp(-np.abs(np.arange(-10_000, 10_001)) / scale)
    chances /= chances.sum()
    held = [chances[10_000 - most - less : 10_001 + most + less].sum() for less in (0, -1)]
    assert held[0] >= level > (held[1] if most else 0.0)
    assert deviation(event) == pytest.approx(math.sqrt(np.sum(chances * np.arange(-10_000, 10_001) ** 2)))


def test_scales_of_whole_numbers_are_rounded_up():
    for scale in (1e-6, 0.3, 1 / 3, 1.0, 10 / 3, 2.0**29 * 1.7):
        found = _round_up(scale)
        assert 0 <= found / Fraction(scale) - 1 < 1e-5
        assert found.numerator <= 2**40 >= found.denominator


def test_noise_is_the_lesser_one_and_follows_the_ledger():
    (event,) = private_count(X > 50, GAUSS).certificate.ledger.spent()
    assert isinstance(event, Laplace)
    wide = np.random.default_rng(0).random((50, 20))
    (event,) = private_covariance(wide, GAUSS, (0, 1)).certificate.ledger.spent()
    assert isinstance(event, Gaussian)
    with Ledger.in_memory(GaussianFilter(Budget(1.5, 1e-5))) as ledger:
        found = private_sum(X, GAUSS, (0, 100), ledger=ledger)
        assert all(isinstance(event, Gaussian) for event in ledger.statement().spent())
        assert found.certificate.verify(ledger).outcome == "accepted"
        with pytest.raises(BudgetExceeded):
            private_sum(X, Budget(1.4, 1e-6), (0, 100), ledger=ledger)


def test_a_public_number_of_records_is_not_told_under_a_ledger_that_hides_it(monkeypatch):
    tiny, exact = (1 - 1e-9, 1 + 1e-9), Budget(0.1, 1e-7, "replace-one")
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        with pytest.raises(InvalidParameter, match="hides the number of records"):
            private_sum(np.ones(1000), exact, tiny, ledger=ledger)
        assert not ledger.statement().runs
        # The broken twin tells it to nine digits, and the ledger's promise for all releases together is the same.
        monkeypatch.setattr("discreet.ledger.till._refuse_a_public_number", lambda *_: None)
        told = [private_sum(np.ones(rows), exact, tiny, ledger=ledger).value for rows in (1000, 1001)]
        assert np.abs(np.diff(told) - 1) < 1e-5
        assert ledger.guarantee().neighbours == "add-remove"


def test_what_is_certified_is_what_was_asked_for(tmp_path):
    for budget in (PURE, GAUSS, Budget(0.5, 1e-6, "replace-one")):
        for ask in ASKED.values():
            found = ask(X, budget)
            assert found.guarantee.within(budget)
            assert found.certificate.arithmetic.kind == "hardened"
    found = private_count(X, GAUSS, ledger=tmp_path / "one.ledger")
    assert str(len(X)) not in json.dumps(found.certificate.plan.settings)
    with pytest.raises(BudgetExceeded):
        private_count(X, GAUSS, ledger=tmp_path / "one.ledger")


def test_categories_and_frames():
    frame = pd.DataFrame({"sex": ["F", "M", None, "M"], "age": [20, 30, 40, None]})
    found = private_histogram(frame["sex"], Budget(12.0, 0.0), ("F", "M"), categories=True, unsafe_seed=1)
    assert np.round(found.value).tolist() == [1, 2]
    assert private_sum(frame["age"], Budget(50.0, 0.0), (0, 100), unsafe_seed=1).value == pytest.approx(
        90, abs=20
    )
    assert private_count(frame, Budget(12.0, 0.0), unsafe_seed=1).value == pytest.approx(4, abs=1)


def test_components_are_those_of_the_table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2)) @ np.array([[0.9, 0.3, 0.1], [0.0, 0.1, 0.1]])
    model = PrivatePCA(2, epsilon=8.0, bounds=(-4, 4), unsafe_seed=1).fit(x)
    _, vectors = np.linalg.eigh(np.cov(x.T))
    assert abs(model.components_[0] @ vectors[:, -1]) > 0.99
    assert model.transform(x).shape == (4000, 2)
    assert model.explained_variance_[0] > model.explained_variance_[1]
    assert not model.certificate_.trusted


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda: private_sum(X, PURE, (1, 0)), "upper"),
        (lambda: private_sum(X, PURE, (0, math.nan)), "upper"),
        (lambda: private_sum(X, 1.0, (0, 1)), "budget"),
        (lambda: private_variance(ROWS, PURE, (0, 1)), "x.ndim"),
        (lambda: private_histogram(X, PURE, [1.0]), "bins"),
        (lambda: private_histogram(X, PURE, [1.0, 1.0]), "bins"),
        (lambda: private_histogram(["a"], PURE, ("a", "b")), "bins"),
        (lambda: private_histogram(X, PURE, ["a", "a"], categories=True), "bins"),
        (lambda: private_covariance(ROWS, PURE, (0, [1, 2])), "bounds"),
        (lambda: private_covariance(X, PURE, (0, 1)), "x.ndim"),
        (lambda: private_covariance(ROWS, PURE, 7), "bounds"),
        (lambda: private_sum(X, PURE, 7), "bounds"),
        (lambda: private_sum(X, PURE, (0, 1, 2)), "bounds"),
        (lambda: private_count(X, PURE, confidence=1.0), "confidence"),
        (lambda: private_count(ROWS > 0, PURE), "x.ndim"),
        (lambda: private_count(pd.DataFrame(ROWS > 0), PURE), "x.ndim"),
        (lambda: private_count(None, PURE), "x"),
        (lambda: private_count("abc", PURE), "x"),
        (lambda: private_histogram(np.full((9, 5), "a"), PURE, ["a", "b"], categories=True), "x.ndim"),
        (lambda: private_covariance(csr_array(ROWS), PURE, (0, 1)), "x"),
        (lambda: private_count(X, PURE, ledger=7), "ledger"),
        (lambda: PrivatePCA(9, bounds=(0, 1)).fit(ROWS), "n_components"),
        (lambda: PrivatePCA(1, bounds=(0, 1)).transform(ROWS), "X"),
    ],
)
def test_what_means_nothing_is_refused_by_name(ask, name):
    with pytest.raises(InvalidParameter, match=rf"^{name}="):
        ask()


PEOPLE = Budget(1.0, 1e-6, "replace-one", unit="person")


@pytest.mark.parametrize(
    "ask",
    [
        *(lambda asked=asked: asked(X, PEOPLE) for asked in ASKED.values()),
        lambda: private_quantiles(X, PEOPLE, 0.5, (0, 100)),
        lambda: private_mean(X, PEOPLE, Interval(0, 100)),
        lambda: private_descent(Logistic(), ROWS, X > 50, PEOPLE, steps=2, step_size=1.0),
        lambda: private_minimiser(Logistic(), ROWS, X > 50, PEOPLE, method="exponential"),
        lambda: exponential_choice(Logistic(), ROWS, X[:300] > 50, ROWS, PEOPLE, loss_bound=1.0),
        lambda: exact_noise(PEOPLE, 1.0, 300, 10),
    ],
)
def test_what_counts_rows_promises_nothing_of_people(ask):
    with pytest.raises(InvalidParameter, match=r"^budget\.unit='person'.*one row for each person"):
        ask()


def test_a_bad_request_is_refused_before_it_is_paid_for(tmp_path):
    path = tmp_path / "ledger.sqlite"
    for asked in ASKED.values():
        with pytest.raises(InvalidParameter, match=r"^confidence="):
            asked(X, GAUSS, ledger=path, confidence=math.nan)
    assert not path.exists()


@pytest.mark.parametrize("odd", [None, 1, "x", 1j, [1, 2], (), math.nan, b"1", 10**400])
def test_one_odd_cell_of_a_list_decides_about_itself_alone(odd, released):
    flags, names = [True, False] * 20, [1, 2] * 20
    for ask in (
        lambda cell: private_count([*flags, cell], PURE),
        lambda cell: private_histogram([*names, cell], PURE, (1, 2), categories=True),
        lambda cell: private_sum([*flags, cell], PURE, (-1, 1)),
    ):
        released.clear()
        ask(False), ask(odd)
        (before, _), (after, _) = released
        assert np.abs(after - before).sum() <= 1 + 1e-9


@pytest.mark.parametrize("odd", [5e-324, 1e-200, 1e308, math.inf, math.nan])
def test_no_record_raises_what_numpy_was_told_to_raise(odd):
    budget, table = Budget(1.0, 1e-6), np.array([[0.5, odd], [odd, 0.25]])
    with np.errstate(all="raise"):
        for cells in ([0.5, odd], np.array([0.5, odd], object)):
            private_sum(cells, budget, (0, 1))
            private_variance(cells, budget, (-1, 1))
            private_quantiles(cells, budget, (0.25, 0.5, 0.75), (0, 1), confidence=0.9)
            private_histogram(cells, budget, [0, 0.5, 1])
        private_covariance(table, budget, (-1, 1))
        PrivatePCA(1, bounds=(-1, 1)).fit(table)
        with pytest.raises(FloatingPointError):  # the broken twin, which is numpy itself
            np.square(np.array([5e-324]))


def test_truths_of_every_kind_count(released):
    truths = [True, None, False] * 10
    for x in (
        pd.Series(truths, dtype="boolean"),
        pd.Series(truths, dtype="bool[pyarrow]"),
        polars.Series(truths),
        pyarrow.array(truths),
        pyarrow.chunked_array([truths]),
    ):
        private_count(x, PURE)
    private_count(truths, PURE)  # a list says nothing of its cells: a None is a record
    assert [round(float(total[0])) for total, _ in released] == [10] * 5 + [20]


def test_forms_for_people_and_programs():
    found = private_sum(X, PURE, (0, 100))
    assert "95% intervals" in str(found)
    assert "<td>sum</td>" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["value"] == found.value
