"""Helpers outside of the trusted files may return anything: what is refused and promised stays the same."""

import math

import pytest

import discreet.errors
import discreet.files
import discreet.ledger.filter_search
from discreet import Budget, Certificate, Gaussian, Ledger
from discreet.errors import BudgetExceeded, DiscreetError, InvalidParameter, one_of, real, whole
from discreet.files import write_whole
from discreet.ledger import FixedPlan, Till
from discreet.ledger.local_disk import refuse_network
from discreet.plan import Plan

WRONG = {
    "above": (lambda: real("x", -1.0, above=0)),
    "not a number": (lambda: real("x", math.nan, at_least=0)),
    "a fraction": (lambda: whole("n", 2.5, at_least=1)),
    "too many": (lambda: whole("n", 11, at_least=1, at_most=10)),
    "another word": (lambda: one_of("word", "c", ("a", "b"))),
    "no event": (lambda: FixedPlan("event", Budget(1.0, 1e-6))),
}


def raises(*arguments):
    raise RuntimeError("a helper that fails")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("twin", [lambda *_: "", lambda *_: "fine", lambda *_: None, raises])
def test_texts_of_errors_decide_nothing(monkeypatch, wrong, twin):
    monkeypatch.setattr(discreet.errors, "shown", twin)
    monkeypatch.setattr(discreet.errors, "finite_within", twin)
    with pytest.raises((InvalidParameter, RuntimeError)):
        WRONG[wrong]()
    assert real("x", 1, above=0) == 1.0


@pytest.mark.parametrize("when", ["before", "while it is written"])
def test_removing_parts_at_the_wrong_time_never_leaves_half_a_file(monkeypatch, tmp_path, when):
    """The twin removes every part that it sees, whether or not somebody writes it."""
    path = tmp_path / "log"
    write_whole(path, "old")

    def sweep(*_):
        for part in tmp_path.glob(".*.part"):
            part.unlink()

    monkeypatch.setattr(discreet.files, "remove_leftovers", sweep)
    if when == "before":
        (tmp_path / ".log.0123456789abcdef.part").write_text("hal")
        write_whole(path, "new")
        assert path.read_text() == "new"
        return

    def write_half():
        with discreet.files.whole_file(path) as file:
            file.write("ne")
            sweep()

    with pytest.raises(FileNotFoundError):
        write_half()
    assert path.read_text() == "old"


@pytest.mark.parametrize("factor", [1e-9, 0.5, 0.99, 1.5, 100.0])
def test_a_proposed_epsilon_never_changes_what_is_promised(monkeypatch, factor):
    """A budget that is proposed too small is refused; one that is too large promises what the plan costs."""
    event = Gaussian(5.0) * 20
    honest = FixedPlan.at_its_cost(event, 1e-6)
    proposed = honest.budget.epsilon * factor
    monkeypatch.setattr(discreet.ledger.filter_search, "proposed_epsilon", lambda *_: proposed)
    rule = FixedPlan.at_its_cost(event, 1e-6)
    assert rule.budget.epsilon == proposed
    plan = Plan.adaptive("twin", rule)
    if factor < 0.999:
        with pytest.raises(BudgetExceeded):
            Till.open(None, plan)
        return
    with Ledger.in_memory(rule) as ledger:
        Till.open(ledger, plan).pay(event)
        certificate = Certificate.of(ledger, plan)
        assert certificate.guarantee == honest.guarantee({})
        assert rule.at_distance(rule.guarantee({}), 1e-12).epsilon.upper >= honest.guarantee({}).epsilon.upper
        with pytest.raises(DiscreetError):
            Till.open(ledger, plan).pay(Gaussian(5.0), name="again")


def test_a_look_at_the_mount_table_that_finds_nothing_leaves_the_ledger_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "discreet.ledger.local_disk.mount_table", lambda: "9 1 0:1 / / rw - nfs4 server:/x rw"
    )
    with pytest.raises(DiscreetError, match="nfs4"):
        refuse_network(tmp_path / "a.ledger")
    monkeypatch.setattr("discreet.ledger.store.refuse_network", lambda path: None)
    rule = FixedPlan.at_its_cost(Gaussian(5.0) * 2, 1e-6)
    with Ledger.create(tmp_path / "a.ledger", rule) as ledger:
        Till.open(ledger, rule).pay(Gaussian(5.0) * 2)
    with Ledger.open(tmp_path / "a.ledger") as ledger, pytest.raises(BudgetExceeded):
        Till.open(ledger, rule).pay(Gaussian(5.0), name="again")
