"""A plan that computes or shows wrong numbers can neither pay too little nor promise too much."""

from dataclasses import replace

import numpy as np
import pytest

from discreet import Budget, Ledger
from discreet.certificate import Certificate, CertificateRejected
from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation, UnsupportedEvent
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.plan.plan import Plan
from discreet.plan.plan_views import PlanViews
from discreet.plan.procedure import Procedure
from discreet.plan.stage import Stage
from discreet.plan.stage_views import StageViews
from discreet.trusted.permits import Charger, StepNoise

STAGE = Stage("descent", "poisson", 1000, 100, steps=20, clip_norm=1.0, noise_multiplier=2.0)
LOUDER = replace(STAGE, noise_multiplier=50.0)
HONEST = Plan((STAGE,), delta=1e-6)


def train(plan, ledger=None):
    """Charge every step of the plan's stage and draw its noise, as engines do; return the open till."""
    till = Till.open(ledger, plan)
    noise = StepNoise.of_stage(plan.stages[0])
    charger = Charger(till.run("descent"), RandomStream())
    for _ in range(STAGE.steps):
        charger.next_step(noise, STAGE.clip_norm).release(BoundedSum(np.zeros(2), STAGE.clip_norm))
    return till


def garbage(value):
    """A lie for an attribute, of the same kind."""
    if isinstance(value, classmethod):
        return classmethod(lambda cls, *_, **__: "a lie")
    return (lambda *_, **__: -1.0) if callable(value) else property(lambda self: -1.0)


def test_costs_and_views_that_lie_change_neither_the_charge_nor_the_certificate(monkeypatch):
    honest = Certificate.of(train(HONEST).ledger, HONEST)
    plan, lies = Plan((STAGE,), delta=1e-6), 0
    own = {"__init__", "__hash__", "__eq__", "__repr__"} | set(vars(Procedure))
    for place in (Plan, PlanViews, StageViews):
        for name, value in list(vars(place).items()):
            if name not in own and not name.startswith(("__", "_abc", "_fixed")):
                monkeypatch.setattr(place, name, garbage(value))
                lies += 1
    assert lies > 20
    assert (plan.event, plan.guarantee, plan.explain(), plan.stages[0].rate) == (-1.0,) * 4
    till = train(plan)
    found = Certificate.of(till.ledger, plan)
    assert (found.guarantee, found.together) == (honest.guarantee, honest.together)
    assert found.ledger.spent() == honest.ledger.spent() == {STAGE.charge: STAGE.steps}
    assert found.verify(till.ledger.entries()).guarantee == honest.guarantee


class CheaperRule(Plan):
    """Names the rule of a stage with more noise."""

    @property
    def rule(self):
        return FixedPlan.at_its_cost(LOUDER.event, self.delta)


class CheaperData(Plan):
    """Says in writing that a stage with more noise was carried out."""

    def to_dict(self):
        return Plan((LOUDER,), self.delta).to_dict()


def test_a_plan_that_names_a_cheaper_rule_is_refused_before_noise_is_drawn():
    ledger = Ledger.in_memory(FixedPlan(STAGE.event, Budget(9.0, 1e-6)))
    for place in (None, ledger):
        with pytest.raises((PlanViolation, BudgetExceeded)):
            train(CheaperRule((STAGE,), 1e-6), place)
    assert ledger.spent() is None


def test_a_plan_that_writes_down_less_than_it_did_is_rejected():
    plan = CheaperData((STAGE,), 1e-6)
    ledger = train(plan).ledger
    certificate = Certificate.of(ledger, plan)
    assert certificate.guarantee == HONEST.guarantee  # its fields are what was charged
    with pytest.raises(CertificateRejected, match="more than the rule"):
        Certificate.from_json(certificate.to_json()).verify(ledger)


def test_a_reader_that_returns_another_plan_is_refused(monkeypatch):
    certificate = Certificate.of(train(HONEST).ledger, HONEST)
    text, louder = certificate.to_json(), Plan((LOUDER,), 1e-6)
    monkeypatch.setattr(Plan, "from_dict", classmethod(lambda cls, data: louder))
    with pytest.raises(InvalidParameter, match="digest"):
        Certificate.from_json(text)


def test_the_rule_of_a_procedure_needs_no_check_of_its_reader():
    banded = replace(STAGE, bands=2)
    with pytest.raises(UnsupportedEvent, match="correlated noise"):
        _ = Procedure((banded,), 1e-6, "replace-one").rule
    rule = GaussianFilter(Budget(1.0, 1e-6, unit="person"))
    for wrong in (
        Procedure((), 1e-6, adapts_by=rule),  # one record, by a rule for people
        Procedure((STAGE,), 1e-6, adapts_by=rule, unit="person"),  # both kinds of a plan
    ):
        with pytest.raises(InvalidParameter, match="adaptive plans"):
            _ = wrong.rule
    assert Procedure.adaptive("fit", rule).rule is rule


def test_an_adaptive_procedure_has_no_steps_and_takes_only_rules():
    procedure = Procedure.adaptive("fit", GaussianFilter(Budget(1.0, 1e-6)))
    for name in ("steps", "records"):
        with pytest.raises(PlanViolation, match="chooses its releases along the way"):
            getattr(procedure, name)
    assert (HONEST.steps, HONEST.records) == (20, 1000)
    with pytest.raises(InvalidParameter, match="spending rule"):
        Procedure.adaptive("fit", Budget(1.0, 1e-6))
