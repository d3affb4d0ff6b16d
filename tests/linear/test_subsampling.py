"""A secret sample: what it may spend, who is in it, and that nobody else is looked at."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array

from discreet import ApproximateDP, Budget, Gaussian, PoissonSampled, account
from discreet.accounting.gaussian import gaussian_mu
from discreet.adapters.audit_subjects import Estimator
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.ledger import FixedPlan, GaussianFilter, Ledger
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.linear.gate.people import People
from discreet.linear.subsampling import amplified_budget, draw_rows
from support.linear_frames import FRAMES


@pytest.mark.parametrize("rate", [0.5, 0.01, 1e-4])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_what_is_spent_on_the_sample_costs_the_budget(rate, epsilon):
    budget = Budget(epsilon, 1e-7)
    inner = amplified_budget(budget, rate)
    assert math.log1p(rate * math.expm1(inner.epsilon)) <= epsilon
    assert rate * inner.delta <= budget.delta
    noise = 1 / gaussian_mu(inner.epsilon, inner.delta)
    exact = account(PoissonSampled(rate, Gaussian(noise))).epsilon_bounds(1e-7)  # a second method
    assert exact.lower <= epsilon
    assert exact.upper > 0.99 * epsilon  # nothing is lost at the budget's own point


def test_without_a_theorem_nothing_is_claimed():
    budget = Budget(1.0, 1e-6, "replace-one")
    assert amplified_budget(budget, 0.01) == budget


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def test_mixtures_keep_the_theorem():
    """Brute force over finite laws of an output, in both directions; the broken twin forgets the exponential."""
    rng, broken = np.random.default_rng(0), 0
    for _ in range(500):
        without, taken = rng.dirichlet(np.full(6, 0.3), 2)
        rate, inner = rng.random(), 3 * rng.random()
        delta = max(hockey_stick(taken, without, inner), hockey_stick(without, taken, inner))
        together = (1 - rate) * without + rate * taken
        epsilon = math.log1p(rate * math.expm1(inner))
        for p, q in ((together, without), (without, together)):
            assert hockey_stick(p, q, epsilon) <= rate * delta + 1e-12
            broken += hockey_stick(p, q, rate * inner) > rate * delta + 1e-12
    assert broken > 10


def test_everybody_has_the_same_chance():
    """Two binomial counts of 10**5 trials; each beyond six deviations once in 10**8."""
    rows = [draw_rows(0.2, 100_000, None, RandomStream()) for _ in range(2)]
    assert all(abs(len(found) - 20_000) < 6 * 127 for found in rows)
    both = len(np.intersect1d(*rows))
    assert abs(both - 4000) < 6 * 62
    assert all((np.diff(found) > 0).all() for found in rows)


def test_people_are_taken_with_all_their_rows():
    ids = np.random.default_rng(0).integers(0, 500, 4000).astype(object)
    ids[:10] = None
    people = People.of(ids)
    chosen = draw_rows(0.3, 4000, people, RandomStream())
    inside = set(ids[chosen])
    assert None not in inside
    assert sorted(np.flatnonzero([one in inside for one in ids])) == chosen.tolist()
    left = people._at(chosen)
    assert left._count() == len(inside)
    assert np.bincount(left._codes).tolist() == left._rows.tolist()


def table(rows=2000):
    rng = np.random.default_rng(0)
    x = rng.random((rows, 3))
    return x, (x[:, 0] > x[:, 1]).astype(int)


def framed(x):
    return FRAMES["pandas"](dict(zip("abc", x.T, strict=True)))


def sampled(**more):
    return PrivateLogisticRegression(2.0, sample=0.3, unsafe_seed=5, **more)


@pytest.mark.parametrize("declared", [{"bounds": (0, 1)}, {}], ids=["bounds", "learnt"])
@pytest.mark.parametrize("form", [np.asarray, csr_array, framed])
def test_records_outside_of_the_sample_change_no_bit(form, declared):
    x, y = table()
    expected = sampled(**declared).fit(form(x), y).coef_
    chosen = draw_rows(0.3, len(x), None, RandomStream(unsafe_seed=5))
    hostile = x.copy()
    hostile[np.setdiff1d(np.arange(len(x)), chosen)] = 1e9
    np.testing.assert_array_equal(sampled(**declared).fit(form(hostile), y).coef_, expected)
    hostile[chosen[0]] = 1e9  # and one inside does
    assert not np.array_equal(sampled(**declared).fit(form(hostile), y).coef_, expected)


def test_one_charge_of_the_whole_budget():
    x, y = table()
    for more in ({}, {"arithmetic": "float"}, {"unit": "id"}):
        model = PrivateLogisticRegression(1.0, 1e-6, bounds=(0, 1), sample=0.2, **more)
        model.fit(x, y, people=np.arange(len(x)) if "unit" in more else None)
        guarantee = model.certificate_.guarantee
        assert guarantee.delta <= 1e-6
        assert 0.999 < guarantee.epsilon.upper <= 1.0
        assert model.certificate_.plan.settings["sample"] == 0.2
        assert type(model.event()).__name__ == "ApproximateDP"


def test_a_ledger_for_gaussian_releases_cannot_hold_it(tmp_path):
    x, y = table(300)
    with Ledger.create(tmp_path / "ledger.db", GaussianFilter(Budget(3.0, 1e-5))) as ledger:
        with pytest.raises(UnsupportedEvent, match="GaussianFilter"):
            PrivateLogisticRegression(sample=0.2, bounds=(0, 1), ledger=ledger).fit(x, y)
        assert not ledger.statement().runs


@pytest.mark.parametrize("sample", [0, 1, -0.1, 2, float("nan"), float("inf"), True, "all", [0.1]])
def test_nonsense_is_refused_by_name(sample):
    x, y = table(50)
    for model in (PrivateLogisticRegression(sample=sample), PrivateLinearRegression(sample=sample)):
        with pytest.raises(InvalidParameter, match="sample"):
            model.fit(x, y)
        with pytest.raises(InvalidParameter, match="sample"):
            model.preview(1000, columns=3)


def test_what_has_no_sample_says_so():
    x, y = table(50)
    with pytest.raises(InvalidParameter, match="recipe"):
        PrivateLogisticRegression(sample=0.1, method="descent", records=50, bounds=(0, 1)).fit(x, y)
    with pytest.raises(InvalidParameter, match="one machine"):
        PrivateLogisticRegression(sample=0.1).fit(x, y, engine=object())


def test_the_preview_tells_what_it_costs():
    whole, part = (
        PrivateLogisticRegression(1.0, sample=rate).preview(20_000, columns=20, best=0.9)
        for rate in (None, 0.05)
    )
    assert part.at(1.0)[0] < whole.at(1.0)[0]
    assert "of all records" in str(part)
    assert "of all records" not in str(whole)
    assert part.to_dict()["sample"] == 0.05


X = np.random.default_rng(1).random((400, 3))
Y = (X[:, 0] > 0.5).astype(int)


def on_sample(**settings):
    given = {"epsilon": 1.0, "delta": 1e-6, "classes": (0, 1), "bounds": (0, 1), "sample": 0.5}
    return PrivateLogisticRegression(**given | settings)


def charged():
    """The event that such a fit is charged with."""
    (run,) = on_sample().fit(X, Y).certificate_.ledger.runs
    assert isinstance(run.event, ApproximateDP)
    return run.event


def test_a_ledger_for_other_neighbours_does_not_book_what_was_proved_for_ours():
    """(1, 1e-6) for add-remove was booked as (1, 1e-6) for replace-one, which such a fit may exceed."""
    with Ledger.in_memory(FixedPlan(charged(), Budget(1.0, 1e-6, "replace-one"))) as ledger:
        for model in (
            on_sample(),
            on_sample(sample=None, method="output-perturbation", arithmetic="float", records=400),
        ):
            with pytest.raises(InvalidParameter, match="replace-one neighbours"):
                model.set_params(ledger=ledger).fit(X, Y)
        assert ledger.spent() is None


def test_who_is_refused_for_a_mistake_pays_nothing():
    with Ledger.in_memory(FixedPlan(charged(), Budget(1.0, 1e-6))) as ledger:
        for wrong in ({"bounds": (1, 0)}, {"bounds": ([0, 0], [1, 1])}):
            with pytest.raises(InvalidParameter):
                on_sample(ledger=ledger, **wrong).fit(X, Y)
        assert ledger.spent() is None
        assert on_sample(ledger=ledger).fit(X, Y).certificate_.guarantee.epsilon.upper <= 1
        assert ledger.spent() is not None


def test_too_small_a_sample_of_a_large_budget_is_refused_as_typed():
    with pytest.raises(InvalidParameter, match=r"sample=0\.001"):
        on_sample(epsilon=19.0, sample=0.001).fit(X, Y)


def test_how_many_rows_are_too_many_does_not_depend_on_the_sample(monkeypatch):
    """The sample would have fitted, now and then: whether it does is a secret."""
    monkeypatch.setattr("discreet.trusted.spending._MOST_RECORDS", 300)
    monkeypatch.setattr("discreet.trusted.spending._FEWEST_RECORDS", 1)
    with pytest.raises(InvalidParameter, match="at most 300"):
        on_sample(sample=0.1).fit(X, Y)


def test_a_sampled_fit_is_not_replayed_by_an_audit():
    certificate = on_sample().fit(X, Y).certificate_
    with pytest.raises(InvalidParameter, match="sample"):
        Estimator.of(certificate)
