"""What noise in integers costs of delta stays inside a ledger's budget, and old ledgers are read as they were."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discreet import Budget
from discreet.certificate import Certificate
from discreet.certificate.guarantees import guarantee_of
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation
from discreet.events import Gaussian, PoissonSampled
from discreet.ledger import FixedPlan, GaussianFilter, Ledger, TruncatedRenyiFilter
from discreet.ledger.filters import SPARE, SpendingRule
from discreet.linear import PrivateLogisticRegression
from discreet.statistics import private_sum

X = np.random.default_rng(0).random((1500, 2))
Y = (np.random.default_rng(1).random(1500) < X[:, 0]) * 1


def fitted(ledger, epsilon=1.0):
    return PrivateLogisticRegression(
        epsilon=epsilon, delta=1e-6, bounds=(0, 1), classes=(0, 1), ledger=ledger
    ).fit(X, Y)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_a_ledger_certifies_its_own_delta(epsilon):
    """Before, fits of epsilon 1 on a ledger of (8, 1e-6) had it certify 1.009e-06 after one fit."""
    budget = Budget(epsilon, 1e-6)
    with Ledger.in_memory(GaussianFilter(budget)) as ledger:
        certificate = fitted(ledger).certificate_
        if epsilon > 1:
            fitted(ledger)
            certificate = private_sum(X[:, 0], Budget(0.5, 1e-6), (0, 1), ledger=ledger).certificate
        assert certificate.together.within(budget)
        assert "1e-06)" in str(certificate.together)
        assert ledger.guarantee().within(budget)
        assert certificate.verify(ledger).outcome == "accepted"


def test_fits_use_up_the_budget_before_what_is_held_back():
    with Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-6))) as ledger:
        for _ in range(7):  # (mu(3) / mu(1))^2 = 7.3
            fitted(ledger)
        with pytest.raises(BudgetExceeded, match="no room for another fit"):
            fitted(ledger)
        assert ledger.guarantee().within(Budget(3.0, 1e-6))


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_a_fit_may_spend_all_of_a_ledger(arithmetic):
    budget = Budget(1.0, 1e-6)
    with Ledger.in_memory(GaussianFilter(budget)) as ledger:
        model = PrivateLogisticRegression(
            epsilon=1.0, delta=1e-6, bounds=(0, 1), classes=(0, 1), ledger=ledger, arithmetic=arithmetic
        ).fit(X, Y)
        assert model.certificate_.together.within(budget)
    with Ledger.in_memory(GaussianFilter(budget)) as ledger:
        assert private_sum(X[:, 0], budget, (0, 1), ledger=ledger).certificate.together.within(budget)


RULES = {
    "gaussian": GaussianFilter(Budget(2.0, 1e-6)),
    "renyi": TruncatedRenyiFilter.for_event(PoissonSampled(0.01, Gaussian(1.0)), Budget(2.0, 1e-6)),
}


@pytest.mark.parametrize("name", RULES)
def test_what_is_held_back_is_enough_and_no_more_is_granted(name):
    rule = RULES[name]
    most = rule.largest_distance
    plain = rule.guarantee({})
    assert rule.at_distance(plain, most) == plain
    beyond = rule.at_distance(plain, most * 1.01)
    assert rule.budget.delta < beyond.delta < rule.budget.delta * (1 + 0.02 * SPARE)
    # the definition: delta that is spent, and (1 + e^epsilon) times the distance
    assert rule.accounted_delta + (1 + math.exp(2.0)) * most <= rule.budget.delta
    event = Gaussian(400.0) if name == "gaussian" else PoissonSampled(0.01, Gaussian(1.0))
    with Ledger.in_memory(rule) as ledger:
        ledger.run(event, event.digest(), name="half", distance=most * 0.6)
        with pytest.raises(BudgetExceeded, match="would exceed its delta"):
            ledger.run(event, event.digest(), name="too-much", distance=most * 0.6)
        ledger.run(event, event.digest(), name="rest", distance=most * 0.3)
        assert ledger.guarantee().within(rule.budget)


def test_a_run_cannot_be_resumed_at_a_distance_that_was_never_noted():
    event = Gaussian(400.0)
    for rule, refused in ((RULES["gaussian"], True), (replace(RULES["gaussian"], spare=0.0), False)):
        with Ledger.in_memory(rule) as ledger:
            ledger.run(event, event.digest(), name="a")
            try:  # ledgers before 0.2 may have runs whose distance was not noted
                ledger.run(event, event.digest(), name="a", distance=1e-9)
                assert not refused
            except PlanViolation:
                assert refused


@pytest.mark.parametrize("name", RULES)
def test_rules_are_read_as_they_were_written(name):
    rule = RULES[name]
    assert SpendingRule.from_dict(rule.to_dict()) == rule
    before = {key: value for key, value in rule.to_dict().items() if key != "spare"} | {"rule": rule.kind}
    assert rule.to_dict()["rule"] == f"{rule.kind}-2"  # which versions before 0.2 refuse
    for unknown in (
        rule.to_dict() | {"rule": rule.kind},
        before | {"more": 1},
        rule.to_dict() | {"spare": 0.0},
    ):
        with pytest.raises(InvalidParameter, match="is not a spending rule"):
            SpendingRule.from_dict(unknown)
    old = SpendingRule.from_dict(before)
    assert old == replace(rule, spare=0.0)
    assert old.to_dict() == before
    assert old.at_distance(old.guarantee({}), 1e-12).delta > 1e-6, (
        "an old ledger held nothing back, and says so"
    )
    event = Gaussian(400.0) if name == "gaussian" else PoissonSampled(0.01, Gaussian(1.0))
    assert old.room({}, event) >= rule.room({}, event) > 0.999 * old.room({}, event) - 1
    with Ledger.in_memory(old) as ledger:
        ledger._check_rule(rule)  # an old ledger is opened with the rule as it is typed today


@pytest.mark.parametrize("spare", [math.nan, -1e-9, 0.6, "all", True])
def test_a_part_of_delta_that_is_none(spare):
    with pytest.raises(InvalidParameter, match="spare="):
        GaussianFilter(Budget(1.0, 1e-6), spare)


def test_a_fixed_plan_pays_for_the_distance_with_its_epsilon():
    event = PoissonSampled(0.05, Gaussian(1.5)) * 200
    rule = FixedPlan.at_its_cost(event, 1e-6)
    plain = rule.guarantee({})
    found = rule.at_distance(plain, 5e-14)
    assert found.delta == 1e-6
    assert (
        plain.epsilon.upper <= found.epsilon.upper <= rule.budget.epsilon < plain.epsilon.upper * (1 + 1e-4)
    )
    exact = rule.curve().delta_bounds(found.epsilon.upper).upper + (1 + math.exp(found.epsilon.upper)) * 5e-14
    assert exact <= 1e-6
    tight = FixedPlan(event, Budget(plain.epsilon.upper, 1e-6))
    assert tight.at_distance(plain, 5e-14) == plain.at_distance(5e-14), "no room in epsilon: delta says so"
    claimed = plain.at_distance(5e-14)  # as versions before 0.2 stated it
    assert guarantee_of(rule, dict(event.parts()), 5e-14, claimed) == claimed


def test_an_old_certificate_is_still_accepted():
    golden = Path(__file__).parents[1] / "golden" / "formats" / "certificate-1.json"
    assert Certificate.load(golden).verify().findings


def test_going_on_is_certified_by_what_it_cost():
    """Before, two fits of epsilon 1 on a ledger of epsilon 8 were certified as epsilon 8."""
    with Ledger.in_memory(GaussianFilter(Budget(8.0, 1e-6))) as ledger:
        model = fitted(ledger)
        fitted(ledger)  # another one, which is none of this model
        first = model.certificate_.guarantee
        two = model.fit_more(X, Y).certificate_
        three = model.fit_more(X, Y).certificate_
        assert first.epsilon.upper == 1.0
        assert two.guarantee.epsilon.upper == pytest.approx(1.455, abs=2e-3)  # noise smaller by the root of 2
        assert 1.8 < three.guarantee.epsilon.upper < 1.9
        assert two.guarantee.delta == three.guarantee.delta == three.together.delta == 1e-6
        assert three.together.epsilon.upper == 8.0
        assert len(three.plan.settings["continues"]) == 2
        findings = Certificate.from_json(three.to_json()).verify(ledger).findings
        assert any("it continues 2 others" in finding for finding in findings)
        model.set_params(epsilon=0.5)  # perhaps because of what was seen
        assert model.fit_more(X, Y).certificate_.guarantee.epsilon.upper == 8.0


def test_a_certificate_that_hides_what_it_continues_promises_too_little():
    """The broken twin: with the rule of one fit, two fits are more than it allows."""
    with Ledger.in_memory(GaussianFilter(Budget(8.0, 1e-6))) as ledger:
        model = fitted(ledger)
        one = model.certificate_.plan.rule
        statement = model.fit_more(X, Y).certificate_.ledger
        guarantee_of(model.certificate_.plan.rule, statement.spent())
        with pytest.raises(BudgetExceeded, match="more than the rule"):
            guarantee_of(one, statement.spent())
