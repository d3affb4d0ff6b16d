"""Budget, guarantee and bounds: two numbers are compared only when they speak of the same thing."""

import json
import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

import discreet.guarantee
from discreet import Bounds, Budget, Guarantee, InvalidParameter
from discreet.guarantee import sensitivity_factor
from support.refusals import NONSENSE

POINT = Guarantee(Bounds(0.946, 0.947), delta=1e-5)


def test_within():
    assert POINT.within(Budget(1.0, 1e-5))
    assert POINT.within(Budget(0.947, 1e-5))
    assert not POINT.within(Budget(0.9465, 1e-5))  # the upper end counts
    assert not POINT.within(Budget(1.0, 9e-6))


@pytest.mark.parametrize("other", [{"neighbours": "replace-one"}, {"group_size": 2}])
def test_different_relations_cannot_be_compared(other):
    (name,) = other
    with pytest.raises(InvalidParameter, match=name):
        POINT.within(Budget(10.0, 1e-2, **other))


def test_words():
    assert str(POINT) == (
        "(0.947, 1e-05)-differentially private for one record, add-remove neighbours, "
        "against an observer who sees every release"
    )
    assert "a group of 3 records" in str(Guarantee(Bounds(1, 2), 1e-6, group_size=3))


def test_gap():
    assert Bounds(0.9, 1.0).gap == pytest.approx(0.1)
    assert Bounds(0.0, 0.0).gap == 0


BAD = {
    "epsilon": (*NONSENSE, 0.0, -1.0, 10**400),
    "delta": (*NONSENSE, -1e-9, 1.0, 1.5),
    "neighbours": (None, True, 1, "", "add_remove", "ADD-REMOVE", ["add-remove"]),
    "group_size": (*NONSENSE, 0, -1, 1.5, 2.000001),
}
GOOD = {"epsilon": 1.0, "delta": 1e-5, "neighbours": "add-remove", "group_size": 1}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_budgets(name, value):
    for make in (lambda data: Budget(**data), Budget.from_dict):
        with pytest.raises(InvalidParameter, match=f"^{name}="):
            make(GOOD | {name: value})


def test_numpy_scalars_become_plain_numbers():
    budget = Budget(np.float32(1.0), np.float64(1e-5), group_size=np.int64(5))
    assert budget == Budget(1.0, 1e-5, group_size=5)
    assert [type(value) for value in (budget.epsilon, budget.delta, budget.group_size)] == [float, float, int]


def test_pure_privacy_may_be_wished_for():
    assert Budget(1.0, 0.0).delta == 0


def test_budgets_survive_json():
    for budget in (Budget(1.0, 1e-5), Budget(0.1, 0.0, "replace-one", 7)):
        assert Budget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget


@pytest.mark.parametrize("data", [{}, {"epsilon": 1.0}, GOOD | {"sigma": 2}, [], None, "budget", 3])
def test_what_is_no_budget_is_refused(data):
    with pytest.raises(InvalidParameter):
        Budget.from_dict(data)


def test_budgets_are_values():
    assert hash(Budget(1.0, 1e-5)) == hash(Budget(1, 1e-5))
    with pytest.raises(FrozenInstanceError):
        Budget(1.0, 1e-5).epsilon = 2.0
    assert not math.isnan(Budget(1.0, 1e-5).epsilon)


def test_only_one_place_knows_that_replacing_counts_twice():
    """Whoever needs it asks ``sensitivity_factor``: nine copies of one number are nine places for a mistake."""
    source = Path(discreet.guarantee.__file__).parent
    pattern = re.compile(r"2(\.0)? if [^\n]*replace-one")
    found = {path.name for path in source.rglob("*.py") if pattern.search(path.read_text())}
    assert found == {"guarantee.py"}
    assert [sensitivity_factor(name, 3) for name in ("add-remove", "replace-one")] == [3, 6]


def test_what_counts_row_by_row_takes_budgets_for_records_only():
    from discreet.guarantee import of_records

    budget = Budget(1.0, 1e-6)
    assert of_records(budget) is budget
    with pytest.raises(InvalidParameter, match="must be a Budget"):
        of_records(1.0)
    with pytest.raises(InvalidParameter, match="every row counts"):
        of_records(Budget(1.0, 1e-6, unit="person"))


def test_texts_that_lie_change_no_comparison(monkeypatch):
    """The broken twin of the sentences."""
    from discreet.guarantee_text import GuaranteeText

    monkeypatch.setattr(GuaranteeText, "__str__", lambda guarantee: "(0, 0)")
    guarantee = Guarantee(Bounds(0.9, 2.0), delta=1e-6)
    assert str(guarantee) == "(0, 0)"
    assert not guarantee.within(Budget(1.0, 1e-6))
