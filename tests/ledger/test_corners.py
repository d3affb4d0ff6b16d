"""Refusals of the ledger that need an unusual machine, a rare moment or somebody else's hand."""

import importlib
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from discreet import Bounds, Budget, Gaussian, Ledger
from discreet.accounting.curve import PrivacyCurve
from discreet.errors import (
    AccuracyNotReached,
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    MissingDependency,
    PlanViolation,
)
from discreet.events import ApproximateDP
from discreet.ledger import FixedPlan, GaussianFilter, Till, TruncatedRenyiFilter, filter_search, ledger_texts
from discreet.ledger.filters import SpendingRule
from discreet.ledger.ledger_state import Statement
from discreet.ledger.local_disk import mount_table
from discreet.ledger.store import SQLiteStore

KEY = bytes(range(32))
EVENT = Gaussian(40.0) * 10
PLAN = FixedPlan(EVENT, Budget(1.0, 1e-5))


def test_a_key_that_cannot_be_written_leaves_no_ledger(tmp_path):
    with pytest.raises(LedgerUnavailable, match="cannot be written"):
        Ledger.create(tmp_path / "study.ledger", PLAN, key=tmp_path / "nowhere" / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_no_number_is_lost(tmp_path):
    place = tmp_path / "study.ledger"
    Ledger.create(place, PLAN, key=KEY).close()
    with closing(sqlite3.connect(place)) as database, database:
        database.execute("UPDATE ledger_head SET sequence = 'none'")
    with pytest.raises(LedgerCorrupted, match="lost its head"):
        Ledger.open(place, key=KEY)


def test_a_database_that_cannot_write_ahead_is_refused():
    with pytest.raises(LedgerUnavailable, match="cannot be written ahead"):
        SQLiteStore("")  # a temporary database, which has no log


def test_a_ledger_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    place = tmp_path / "study.ledger"
    Ledger.create(place, PLAN, key=KEY).close()
    before = place.read_bytes()
    monkeypatch.setattr(SQLiteStore, "occupant", lambda place: "")
    with pytest.raises(InvalidParameter, match="created by another process"):
        Ledger.create(place, PLAN, key=KEY)
    assert place.read_bytes() == before


def test_a_system_without_a_mount_table_has_local_disks_only(monkeypatch, tmp_path):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert mount_table() == ""
    Ledger.create(tmp_path / "study.ledger", PLAN, key=KEY).close()


@pytest.mark.parametrize("missing", ["psycopg", "sqlalchemy"])
def test_postgres_needs_its_extra(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "discreet.ledger.postgres", raising=False)
    with pytest.raises(MissingDependency, match=r"discreet\[postgres\]"):
        importlib.import_module("discreet.ledger.postgres")


def test_an_address_that_the_driver_refuses_is_not_quoted():
    with pytest.raises(InvalidParameter, match="not a database address") as told:
        Ledger.open("postgresql://ann:s3cret@host/db?plugin=none", key=KEY)
    assert "s3cret" not in str(told.value)


def test_a_loop_over_nothing_left_writes_nothing():
    with Ledger.in_memory(PLAN) as ledger:
        run = ledger.run(EVENT, "a" * 64)
        run.reserve(10)
        before = ledger.anchor()
        assert list(run.steps()) == []
        assert ledger.anchor() == before


def test_a_cost_that_was_proved_for_other_neighbours_is_refused():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6, "replace-one"))) as ledger:
        till = Till.open(ledger, GaussianFilter(Budget(1.0, 1e-6)))
        with pytest.raises(InvalidParameter, match="proved for add-remove"):
            till.refuse_other_neighbours()
        Till.open(ledger, GaussianFilter(Budget(0.5, 1e-6, "replace-one"))).refuse_other_neighbours()


def test_a_statement_with_two_runs_of_one_name_or_unknown_keys_is_refused():
    with Ledger.in_memory(PLAN) as ledger:
        ledger.run(EVENT, "a" * 64).reserve(1)
        data = ledger.statement().to_dict()
    assert Statement.from_dict(data).to_dict() == data
    (run,) = data["runs"]
    wrong_runs = [data["runs"] * 2, [run | {"name": 3}], [run | {"taken": [1, 1]}], [run | {"taken": [11]}]]
    for wrong in (*({**data, "runs": runs} for runs in wrong_runs), data | {"note": ""}):
        with pytest.raises(InvalidParameter):
            Statement.from_dict(wrong)


def test_rules_with_missing_or_unknown_keys_are_refused():
    data = PLAN.to_dict()
    for wrong in ({"rule": data["rule"]}, data | {"note": ""}, data | {"rule": "other"}, [data]):
        with pytest.raises(InvalidParameter, match="not a spending rule"):
            SpendingRule.from_dict(wrong)


def test_where_no_more_digits_can_be_had_the_guarantee_stays(monkeypatch):
    def coarse(curve, delta, tolerance=None):
        if tolerance is not None:
            raise AccuracyNotReached("no", Bounds(0.0, 1.0))
        return found

    found = PLAN.guarantee({})
    monkeypatch.setattr(PrivacyCurve, "guarantee", coarse)
    assert PLAN.closer_guarantee({}) == found


def test_a_cost_without_room_for_integers_is_that_of_the_whole_delta():
    """Its curve ends at this delta, so nothing is left below it."""
    event = ApproximateDP(1.0, 1e-6)
    rule = FixedPlan.at_its_cost(event, 1e-6)
    assert rule.budget.epsilon == rule.guarantee({}).epsilon.upper >= 1.0


@pytest.mark.parametrize(
    "error", [AccuracyNotReached("no", Bounds(0.0, 1.0)), InvalidParameter("delta", 0.0, "is no.")]
)
def test_a_distance_that_the_curve_cannot_price_is_added_to_delta(monkeypatch, error):
    class Curve:
        def guarantee(self, delta):
            raise error

    before = PLAN.guarantee({})
    monkeypatch.setattr(FixedPlan, "curve", lambda rule: Curve())
    assert PLAN.at_distance(before, 1e-9) == before.at_distance(1e-9)
    assert PLAN.at_distance(before, 0.0) == before


def test_a_filter_of_many_kinds_has_no_curve():
    assert TruncatedRenyiFilter(Budget(1.0, 1e-6), 20.0, 1.0, 1e-8).curve() is None


def altered(place, *statements):
    with closing(sqlite3.connect(place, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def test_files_that_are_no_ledger_or_were_altered_are_refused(tmp_path):
    place = tmp_path / "study.ledger"

    def anew():
        place.unlink(missing_ok=True)
        Ledger.create(place, PLAN, key=KEY).close()

    place.write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerCorrupted, match="is damaged"):
        Ledger.open(place, key=KEY)
    anew()
    altered(place, "CREATE TABLE more (x)")
    with pytest.raises(LedgerCorrupted, match="tables were altered"):
        Ledger.open(place, key=KEY)
    anew()
    altered(place, "UPDATE ledger_entries SET entry = entry || ' '")
    with pytest.raises(LedgerCorrupted, match="do not lead to its sealed head"):
        Ledger.open(place, key=KEY)


def test_a_database_that_breaks_its_own_rules_is_damaged(tmp_path):
    place = tmp_path / "study.ledger"
    Ledger.create(place, PLAN, key=KEY).close()
    rule = "UPDATE sqlite_master SET sql = replace(sql, '{}', '{}') WHERE name = 'ledger_entries'"
    altered(place, "PRAGMA writable_schema = ON", rule.format("entry TEXT NOT NULL", "entry TEXT"))
    altered(place, "INSERT INTO ledger_entries VALUES (1, NULL, NULL)")
    altered(place, "PRAGMA writable_schema = ON", rule.format("entry TEXT", "entry TEXT NOT NULL"))
    with pytest.raises(LedgerCorrupted, match="is damaged"):
        Ledger.open(place, key=KEY)


# The broken twins of what is not trusted: it may say or propose anything.


def test_sentences_that_fail_or_lie_refuse_nonetheless(monkeypatch):
    """A refusal is raised whatever its text is, and nothing is reserved."""
    with Ledger.in_memory(PLAN) as ledger:
        run = ledger.run(EVENT, "a" * 64)
        for text in (lambda *_: "all is well", lambda *_: 1 / 0):
            monkeypatch.setattr(ledger_texts, "beyond_plan", text)
            with pytest.raises((PlanViolation, ZeroDivisionError)):
                run.reserve(11)
        assert ledger.spent() is None


@pytest.mark.parametrize(
    "proposed", [(-1.0, 1.0, 1e-7), (2.0, -1.0, 1e-7), (2.0, 1.0, 1.0), (1.5, 1e9, 1e-7)]
)
def test_a_search_that_proposes_nonsense_is_refused(monkeypatch, proposed):
    monkeypatch.setattr(filter_search, "proposed_truncation", lambda *_: proposed)
    with pytest.raises(InvalidParameter):
        TruncatedRenyiFilter.for_event(Gaussian(4.0), Budget(1.0, 1e-6))


def test_a_search_that_proposes_badly_wastes_budget_only(monkeypatch):
    budget, event = Budget(1.0, 1e-6), Gaussian(40.0)
    good = TruncatedRenyiFilter.for_event(event, budget)
    monkeypatch.setattr(filter_search, "proposed_truncation", lambda *_: (40.0, 5.0, 1e-8))
    bad = TruncatedRenyiFilter.for_event(event, budget)
    assert bad.room({}, event) < good.room({}, event)
    assert bad.guarantee({}).within(budget)


def test_views_that_lie_change_neither_entries_nor_promises(monkeypatch):
    from discreet.ledger.ledger_views import LedgerViews

    with Ledger.in_memory(PLAN) as ledger:
        for name in ("spent", "guarantee"):
            monkeypatch.setattr(LedgerViews, name, lambda *_: None)
        ledger.run(EVENT, "a" * 64).reserve(10)
        assert ledger.spent() is None
        assert ledger.statement().spent() == {Gaussian(40.0): 10}
        assert ledger.remaining(Gaussian(40.0)) == 0
