"""The ledger's promises, in a file and in a PostgreSQL server that the tests start."""

import itertools
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from discreet import Budget, BudgetExceeded, Gaussian, InvalidParameter, PlanViolation, PoissonSampled
from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import Anchor, FixedPlan, GaussianFilter, Ledger
from support.postgres_server import postgres_server

KEY = bytes(range(32))
HASH, OTHER_HASH = "a" * 64, "b" * 64
STEP = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
PLAN = FixedPlan(STEP * 1000, Budget(epsilon=1.0, delta=1e-5))


@pytest.fixture(scope="module")
def server():
    with postgres_server() as address:
        yield address


@pytest.fixture(scope="module")
def new_schema(server):
    """Makes addresses of empty schemas."""
    number = itertools.count()

    def make():
        name = f"schema_{next(number)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{server}&options=-csearch_path%3D{name}"

    return make


@pytest.fixture(params=["file", "postgres"])
def place(request, tmp_path):
    if request.param == "file":
        return tmp_path / "study.ledger"
    return request.getfixturevalue("new_schema")()


def begin(place, rule=PLAN):
    return Ledger.create(place, rule, key=KEY)


def again(place, **options):
    return Ledger.open(place, key=KEY, **options)


def test_steps_are_numbered_from_one_and_never_twice(place):
    with begin(place) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        assert list(run.reserve(steps=3)) == [1, 2, 3]
        assert list(run.reserve()) == [4]
        run.commit(3)
    with again(place) as ledger:  # step 4 was reserved and perhaps released: it is gone
        run = ledger.run(STEP * 1000, HASH)
        lease = run.reserve(steps=6)
        assert (run.attempt, lease.first, lease.last, len(lease), lease.event) == (2, 5, 10, 6, STEP)
        assert (run.reserved, run.remaining(), ledger.remaining(STEP)) == (10, 990, 990)
        assert ledger.spent() == STEP * 10
        record = ledger.runs()["run"]
        assert (record.attempt, record.reserved, record.committed, record.plan_hash) == (2, 10, 3, HASH)


def test_a_commit_is_for_steps_of_this_attempt_and_may_be_repeated(place):
    with begin(place) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        run.reserve(5)
        run.commit(2)
        before = ledger.anchor()
        run.commit(2)
        run.commit(1)
        assert ledger.anchor() == before
        with pytest.raises(PlanViolation, match="Step 6 of run 'run' was not reserved by this attempt"):
            run.commit(6)
        run = ledger.run(STEP * 1000, HASH)
        with pytest.raises(PlanViolation, match="Step 5"):
            run.commit(5)


def test_only_the_last_attempt_may_go_on(place):
    with begin(place) as ledger, again(place) as other:
        first = ledger.run(STEP * 1000, HASH)
        first.reserve(2)
        second = other.run(STEP * 1000, HASH)
        for action in (first.reserve, first.remaining, lambda: first.commit(1)):
            with pytest.raises(PlanViolation, match="taken over by attempt 2, so attempt 1 may not go on"):
                action()
        assert list(second.reserve(2)) == [3, 4]


def test_threads_share_a_handle(place):
    with begin(place) as ledger:
        run, leases = ledger.run(STEP * 1000, HASH), []
        threads = [
            threading.Thread(target=lambda: leases.extend(run.reserve(2) for _ in range(5))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(step for lease in leases for step in lease) == list(range(1, 41))


def test_two_handles_see_each_other(place):
    with begin(place) as one, again(place) as two:
        one.run(STEP * 600, HASH, name="one").reserve(600)
        assert two.remaining(STEP) == 400
        with pytest.raises(BudgetExceeded):
            two.run(STEP * 600, HASH, name="two")


def test_the_database_itself_refuses_a_step_twice(tmp_path, new_schema):
    copy = "INSERT INTO ledger_entries SELECT sequence + 10, slot, entry FROM ledger_entries"
    for place in (tmp_path / "a.ledger", new_schema()):
        with begin(place) as ledger:
            ledger.run(STEP * 1000, HASH).reserve(2)
        if isinstance(place, Path):
            with (
                closing(sqlite3.connect(place)) as connection,
                pytest.raises(sqlite3.IntegrityError, match=r"ledger_entries\.slot"),
            ):
                connection.execute(copy)
        else:
            with (
                psycopg.connect(place) as connection,
                pytest.raises(psycopg.errors.UniqueViolation, match="slot"),
            ):
                connection.execute(copy)


def test_the_rule_must_be_the_same(place):
    begin(place).close()
    again(place, rule=PLAN).close()
    with pytest.raises(PlanViolation, match=r"This ledger spends by FixedPlan.*not by GaussianFilter"):
        again(place, rule=GaussianFilter(PLAN.budget))


def test_a_ledger_is_not_begun_twice(place):
    with begin(place) as ledger:
        with pytest.raises(InvalidParameter, match="already"):
            begin(place)
        assert ledger.remaining(STEP) == 1000


def test_a_missing_ledger_is_not_begun_by_opening(tmp_path, new_schema):
    with pytest.raises(LedgerUnavailable, match=r"There is no ledger at .*Ledger.create, or restore it"):
        again(tmp_path / "a.ledger")
    with pytest.raises(LedgerCorrupted, match="not in order"):
        again(new_schema())


def test_a_closed_ledger_refuses(place):
    ledger = begin(place)
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed; open it again"):
        ledger.remaining(STEP)


def test_an_anchor_refuses_an_older_copy(place):
    with begin(place) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        run.reserve(10)
        early = ledger.anchor()
        run.reserve(10)
        late = ledger.anchor()
        assert Anchor.of(ledger.entries()) == late
        assert Anchor.from_json(late.to_json()) == late
    for anchor in (early, late):
        again(place, anchor=anchor).close()
    with pytest.raises(LedgerCorrupted, match="rolled back: its last entry is 3, but entry 4 is known"):
        again(place, anchor=Anchor(late.sequence + 1, HASH))
    with pytest.raises(LedgerCorrupted, match="Entry 2 is not the one that the anchor remembers"):
        again(place, anchor=Anchor(early.sequence, HASH))


def test_a_rollback_under_an_open_handle_is_refused(new_schema):
    place = new_schema()
    with begin(place) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        run.reserve(10)
        with psycopg.connect(place) as connection:
            old = connection.execute("SELECT sequence, hash, seal FROM ledger_head").fetchone()
        run.reserve(10)
        with psycopg.connect(place) as connection:
            connection.execute("DELETE FROM ledger_entries WHERE sequence > %s", old[:1])
            connection.execute("UPDATE ledger_head SET sequence = %s, hash = %s, seal = %s", old)
        with pytest.raises(LedgerCorrupted, match="rolled back: its last entry is 2, but entry 3"):
            run.reserve()
        with pytest.raises(LedgerUnavailable, match="failed before; open it again"):
            run.reserve()


def test_a_key_file_may_serve_several_ledgers(tmp_path, new_schema):
    for place in (tmp_path / "a.ledger", tmp_path / "b.ledger", new_schema()):
        Ledger.create(place, PLAN, key=tmp_path / "team.key").close()
        Ledger.open(place, key=str(tmp_path / "team.key")).close()


def test_a_ledger_in_a_database_needs_a_named_key(new_schema):
    with pytest.raises(
        InvalidParameter, match="key=None: name the file of the ledger's key, outside the database"
    ):
        Ledger.create(new_schema(), PLAN)


def test_a_lost_connection_is_refused_and_reopened(new_schema):
    place = new_schema()
    ledger = begin(place)
    run = ledger.run(STEP * 1000, HASH)
    run.reserve(5)
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
    with pytest.raises(LedgerUnavailable, match=r"cannot be used .*nothing may be released"):
        run.reserve(5)
    ledger.close()
    with again(place) as ledger:
        assert list(ledger.run(STEP * 1000, HASH).reserve()) == [6]


def test_a_server_that_forgets_is_refused(server, new_schema):
    place = new_schema()
    begin(place).close()

    def fsync(value):
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET fsync = {value}")
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SHOW fsync").fetchone() != (value,):
                time.sleep(0.01)

    fsync("off")
    with pytest.raises(LedgerUnavailable, match="fsync = off and may forget what it confirmed"):
        again(place)
    fsync("on")
    again(place).close()


def test_a_role_that_may_only_read_is_told_so(server, new_schema):
    """In 0.1.0 it was told that the ledger is corrupted."""
    address = new_schema()
    schema = address.rpartition("%3D")[2]
    begin(address).close()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE reader_{schema} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader_{schema}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader_{schema}")
    with pytest.raises(LedgerUnavailable, match="may not be written to") as told:
        again(address.replace("postgres@", f"reader_{schema}@"))
    assert "UPDATE" in str(told.value)
    with pytest.raises(LedgerUnavailable, match="may not be written to"):
        again(f"{address}%20-cdefault_transaction_read_only%3Don")
    again(address).close()


def test_an_unreachable_server_is_refused():
    with pytest.raises(LedgerUnavailable, match="cannot be used"):
        again("postgresql://nobody@/none?host=/nonexistent")
    with pytest.raises(InvalidParameter, match="is not a database address"):
        again("postgresql:nonsense")
