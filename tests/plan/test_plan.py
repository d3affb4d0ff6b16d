"""A plan is one value: it derives its event, proves its cost, and notices when its text was altered."""

import copy
import hashlib
import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from discreet.accounting.curve import account
from discreet.errors import InvalidParameter, PlanViolation, UnsupportedEvent
from discreet.events import Gaussian, PoissonSampled
from discreet.guarantee import Budget
from discreet.ledger import GaussianFilter, TruncatedRenyiFilter
from discreet.ledger.filters import SPARE
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

MOMENTS = Stage("moments", "full-batch", 1000, 1000, 1, 3.0, 8.0)
DESCENT = Stage("descent", "poisson", 1000, 100, 40, 1.0, 2.0)
SINGLE = Plan((DESCENT,), delta=1e-6)
DOUBLE = Plan((MOMENTS, DESCENT), delta=1e-6)


def test_the_event_is_the_composition_of_the_stages():
    event = Gaussian(8.0) + PoissonSampled(0.1, Gaussian(2.0)) * 40
    assert DOUBLE.event == event
    assert DOUBLE.guarantee == account(event).guarantee(1e-6)
    grouped = Plan((DESCENT,), 1e-6, "replace-one", 3)
    assert grouped.guarantee == account(DESCENT.event, "replace-one", 3).guarantee(1e-6)
    assert SINGLE.guarantee.epsilon.upper < DOUBLE.guarantee.epsilon.upper


def test_a_single_stage_speaks_for_the_plan():
    for name in ("noise_multiplier", "clip_norm", "rate", "divisor", "noise_std_of_sum", "noise_std_of_mean"):
        assert getattr(SINGLE, name) == getattr(DESCENT, name)
        with pytest.raises(InvalidParameter, match="choose one of moments, descent"):
            getattr(DOUBLE, name)
    assert SINGLE.sampler() == DESCENT.sampler()
    assert (SINGLE.steps, DOUBLE.steps, DOUBLE.records) == (40, 41, 1000)
    assert DOUBLE.stage("descent") == DESCENT
    with pytest.raises(InvalidParameter, match="must be one of 'moments', 'descent'"):
        DOUBLE.stage("ascent")


def test_a_plan_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SINGLE.delta = 0.5
    assert len({SINGLE, Plan((DESCENT,), 1e-6), DOUBLE}) == 2
    assert (
        copy.deepcopy(DOUBLE) == pickle.loads(pickle.dumps(DOUBLE)) == DOUBLE
    )  # it travels to worker processes


def test_the_digest_is_the_hash_of_the_canonical_text():
    text = (
        '{"delta":1e-06,"format":"discreet plan 1","group_size":1,"neighbours":"add-remove","stages":[{"batch_size":'
        '100,"clip_norm":1.0,"name":"descent","noise_multiplier":2.0,"records":1000,"sampling":"poisson","steps":40}]}'
    )
    assert SINGLE.digest() == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [{"name": "other"}, {"sampling": "random-allocation"}, {"records": 1001}, {"batch_size": 101}, {"steps": 41},
     {"clip_norm": 1.5}, {"noise_multiplier": math.nextafter(2.0, 3.0)}],
)  # fmt: skip
def test_every_number_of_a_stage_changes_the_digest(changes):
    assert Plan((replace(DESCENT, **changes),), 1e-6).digest() != SINGLE.digest()


def test_every_number_of_a_plan_changes_the_digest():
    plans = [
        SINGLE,
        Plan((DESCENT,), 2e-6),
        Plan((DESCENT,), 1e-6, "replace-one"),
        Plan((DESCENT,), 1e-6, group_size=2),
    ]
    assert len({plan.digest() for plan in plans}) == 4


@pytest.mark.parametrize("plan", [SINGLE, DOUBLE, Plan((MOMENTS,), 3e-7, "replace-one", 2)])
def test_text_and_files_give_the_same_plan_back(plan, tmp_path):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert (again.digest(), again.event) == (plan.digest(), plan.event)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("old", "new"),
    [("2.0", "1.0"), ("2.0", "NaN"), ("2.0", "Infinity"), ("2.0", "1e999"), ("2.0", '"2.0"'), ("40", "80"),
     ("40", "true"), ("1000", "100000"), ("poisson", "full-batch"), ("add-remove", "replace-one"), ("1e-06", "1e-05"),
     ('"group_size": 1', '"group_size": 2'), ("plan 1", "plan 2"), ('"steps"', '"stops"'), ('"digest"', '"digset"'),
     ('"delta": 1e-06', '"delta": 1e-06, "delta": 1e-06'), ('"delta": 1e-06', '"delta": 1e-06, "epsilon": 0.1'),
     ("[", "["*100_000)],
)  # fmt: skip
def test_altered_text_is_refused(old, new):
    text = SINGLE.to_json()
    assert old in text
    with pytest.raises(InvalidParameter):
        Plan.from_json(text.replace(old, new, 1))


def test_a_digest_made_to_fit_names_another_plan():
    """Nobody is kept from making a plan. But a ledger or certificate that names the digest knows it is another."""
    data = SINGLE.to_dict()
    data["stages"][0]["noise_multiplier"] = 1.0
    forged = Plan.from_dict(data)
    assert Plan.from_json(forged.to_json()) == forged
    assert forged.digest() != SINGLE.digest()
    assert forged.guarantee.epsilon.upper > SINGLE.guarantee.epsilon.upper


def test_mutated_text_is_refused_or_harmless():
    """1000 random edits of one to three bytes: every text that is still read gives the same plan."""
    generator = np.random.default_rng(8)
    text = DOUBLE.to_json().encode()
    read = 0
    for _ in range(1000):
        mutated = bytearray(text)
        for place in generator.integers(len(text), size=generator.integers(1, 4)):
            mutated[place] = generator.integers(32, 127)
        try:
            plan = Plan.from_json(mutated.decode())
        except InvalidParameter:
            continue
        read += 1
        assert plan == DOUBLE
    assert read < 300  # blanks and the like


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", "7", '"plan"', "{", "\x00", '{"format":"discreet plan 1"}', None, b"\xff"],
)
def test_other_text_is_refused(text):
    with pytest.raises(InvalidParameter):
        Plan.from_json(text)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe" + SINGLE.to_json().encode())
    with pytest.raises(InvalidParameter, match="is not JSON"):
        Plan.load(path)
    path.write_bytes(SINGLE.to_json().encode() + b" " * 2**20)
    with pytest.raises(InvalidParameter, match="too large"):
        Plan.load(path)
    SINGLE.save(path)
    assert json.loads(path.read_text())["digest"] == SINGLE.digest()


def test_delta_must_mean_something_for_that_many_records():
    with pytest.raises(
        InvalidParameter, match=r"delta=0.001: must be below 1 / records = 0.001.*for instance 1e-05"
    ):
        Plan((DESCENT,), 1e-3)
    assert Plan((DESCENT,), 0.999e-3).delta == 0.999e-3
    with pytest.raises(InvalidParameter, match=r"delta=0.0: must be above 0"):
        Plan((DESCENT,), 0.0)
    for delta in (math.nan, -1e-9, 1.0, True, "1e-6", None):
        with pytest.raises(InvalidParameter, match=r"^delta="):
            Plan((DESCENT,), delta)


def test_combinations_without_a_theorem_are_refused():
    fixed = replace(DESCENT, sampling="fixed-size")
    with pytest.raises(UnsupportedEvent, match="replace-one"):
        Plan((fixed,), 1e-6)
    assert Plan((fixed,), 1e-6, "replace-one").guarantee.neighbours == "replace-one"
    with pytest.raises(UnsupportedEvent, match="Poisson sampling"):
        Plan((replace(DESCENT, sampling="random-allocation"),), 1e-6, "replace-one")


def test_stages_must_belong_together():
    with pytest.raises(InvalidParameter, match="different names"):
        Plan((DESCENT, DESCENT), 1e-6)
    with pytest.raises(InvalidParameter, match="they share one data set"):
        Plan((MOMENTS, replace(DESCENT, records=999)), 1e-6)
    for stages in ((), ("descent",), (DESCENT.event,)):
        with pytest.raises(InvalidParameter, match="at least one Stage"):
            Plan(stages, 1e-6)
    with pytest.raises(InvalidParameter, match="neighbours="):
        Plan((DESCENT,), 1e-6, "both")
    with pytest.raises(InvalidParameter, match="group_size="):
        Plan((DESCENT,), 1e-6, group_size=math.nan)


BUDGET = Budget(1.0, 1e-6, "replace-one")
ADAPTIVE = Plan.adaptive("my fit", GaussianFilter(BUDGET), {"degree": 3, "columns": ("age", "pay")})


def test_an_adaptive_plan_is_a_plan():
    assert ADAPTIVE.rule == GaussianFilter(BUDGET)
    assert ADAPTIVE.stages == ()
    assert ADAPTIVE.guarantee.within(BUDGET)
    assert ADAPTIVE.settings == {"degree": 3, "columns": ["age", "pay"]}
    assert ADAPTIVE.curve.epsilon(1e-6 * (1 - SPARE)) == pytest.approx(1.0, rel=1e-9)
    assert 0.01 < ADAPTIVE.curve.power(0.01) < 1
    for twin in (Plan.from_dict(ADAPTIVE.to_dict()), Plan.from_json(ADAPTIVE.to_json()), copy.copy(ADAPTIVE)):
        assert twin == ADAPTIVE
        assert twin.digest() == ADAPTIVE.digest()
    assert pickle.loads(pickle.dumps(ADAPTIVE)) == ADAPTIVE
    assert hash(ADAPTIVE) == hash(Plan.from_dict(ADAPTIVE.to_dict()))
    assert "my fit: each release is chosen" in ADAPTIVE.explain()
    assert "degree = 3" in ADAPTIVE.explain()


def test_the_digest_is_that_of_the_first_version():
    text = (
        '{"format":"discreet procedure 1","name":"fit","rule":{"budget":{"delta":1e-06,"epsilon":1.0,'
        '"group_size":1,"neighbours":"replace-one"},"rule":"gaussian-filter"},"settings":{"steps":40}}'
    )
    plan = Plan.adaptive("fit", GaussianFilter(BUDGET, spare=0.0), {"steps": 40})
    assert plan.digest() == hashlib.sha256(text.encode()).hexdigest()
    assert Plan.from_dict(json.loads(text)) == plan
    assert Plan.adaptive("fit", GaussianFilter(BUDGET), {"steps": 40}).digest() != plan.digest()


def test_an_adaptive_plan_has_no_steps():
    for ask in (lambda: ADAPTIVE.event, lambda: ADAPTIVE.steps, lambda: ADAPTIVE.records, ADAPTIVE.stage):
        with pytest.raises(PlanViolation, match="'my fit' is an adaptive plan"):
            ask()


def test_a_rule_without_a_curve_has_a_guarantee():
    plan = Plan.adaptive("my fit", TruncatedRenyiFilter.for_event(Gaussian(9.0), Budget(1.0, 1e-6)))
    assert plan.guarantee.within(Budget(1.0, 1e-6))
    assert "differential privacy" in plan.explain()
    with pytest.raises(UnsupportedEvent, match="all that is known of 'my fit'"):
        _ = plan.curve


def test_half_plans_are_refused():
    for name in ("", 7, "x" * 201):
        with pytest.raises(InvalidParameter, match="name"):
            Plan.adaptive(name, GaussianFilter(BUDGET))
    for settings in ({"noise": math.nan}, {"loss": object()}, 7):
        with pytest.raises(InvalidParameter, match="settings"):
            Plan.adaptive("fit", GaussianFilter(BUDGET), settings)
    with pytest.raises(InvalidParameter, match="rule"):
        Plan.adaptive("fit", BUDGET)
    with pytest.raises(InvalidParameter, match="use Plan"):
        Plan((DESCENT,), 1e-6, "replace-one", name="fit", adapts_by=GaussianFilter(BUDGET))
    with pytest.raises(InvalidParameter, match="use Plan"):
        Plan((), 1e-9, "replace-one", name="fit", adapts_by=GaussianFilter(BUDGET))
    with pytest.raises(InvalidParameter, match="belongs to an adaptive plan"):
        Plan((DESCENT,), 1e-6, name="fit")
    for broken in ({"rule": None}, {"more": 1}, {"format": "discreet procedure 2"}, {"settings": []}):
        with pytest.raises(InvalidParameter):
            Plan.from_dict(ADAPTIVE.to_dict() | broken)
    with pytest.raises(InvalidParameter, match="is not a 'discreet plan 1'"):
        Plan.from_dict(SINGLE.to_dict() | {"name": "fit"})


def test_views_that_are_garbage_change_nothing_that_is_promised(monkeypatch):
    from discreet.plan.plan_views import PlanViews

    stage = Stage("descent", "poisson", 60_000, 600, steps=1000, clip_norm=1.0, noise_multiplier=2.0)
    before = Plan((stage,), delta=1e-6)
    kept = before.guarantee, before.rule, before.event, before.digest()
    for name in ("explain", "plot", "_repr_html_"):
        monkeypatch.setattr(PlanViews, name, lambda *_: -1.0)
    after = Plan((stage,), delta=1e-6)
    assert after.explain() == -1.0
    assert (after.guarantee, after.rule, after.event, after.digest()) == kept
