"""The ledger's promises, in a file and in a PostgreSQL server that the tests start."""

import ast
import itertools
import os
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

import discreet.ledger
from discreet import (
    Budget,
    BudgetExceeded,
    Gaussian,
    InvalidParameter,
    Laplace,
    PlanViolation,
    PoissonSampled,
)
from discreet.ledger import (
    Anchor,
    FixedPlan,
    GaussianFilter,
    Ledger,
    LedgerCorrupted,
    LedgerUnavailable,
    RenyiFilter,
)
from discreet.ledger.durable import remote_filesystem
from discreet.ledger.journal import Journal
from discreet.ledger.store import SQLiteStore
from postgres_server import postgres_server

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


# ---- reserve, commit, resume ----


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


def test_a_departure_from_the_plan_is_refused(place):
    event = STEP * 10 + Gaussian(50.0)
    with begin(place, FixedPlan(event, PLAN.budget)) as ledger:
        run = ledger.run(event, HASH)
        with pytest.raises(PlanViolation, match=r"has 10 more steps of .*, not 11"):
            run.reserve(11, STEP)
        with pytest.raises(
            PlanViolation, match=r"has no step None; its steps are PoissonSampled.*, Gaussian"
        ):
            run.reserve(1)
        with pytest.raises(PlanViolation, match=r"has no step Gaussian\(noise_multiplier=49"):
            run.reserve(1, Gaussian(49.0))
        with pytest.raises(PlanViolation, match="has no step Composition"):
            run.reserve(1, STEP * 2)
        run.reserve(1, Gaussian(50.0))
        assert (run.remaining(STEP), run.remaining(Gaussian(50.0))) == (10, 0)
        run.reserve(10, STEP)
        with pytest.raises(PlanViolation, match="has 0 more steps"):
            run.reserve(1, STEP)
        with pytest.raises(
            PlanViolation, match=r"opened with plan aaaaaaaaaaaa, not bbbbbbbbbbbb\. Resume it"
        ):
            ledger.run(event, OTHER_HASH)
        with pytest.raises(PlanViolation, match="choose another name"):
            ledger.run(STEP * 11, HASH)
        assert ledger.spent() == STEP * 10 + Gaussian(50.0)


def test_runs_share_a_fixed_plan(place):
    with begin(place) as ledger:
        one, two = ledger.run(STEP * 700, HASH, name="one"), ledger.run(STEP * 700, HASH, name="two")
        one.reserve(700)
        assert ledger.remaining(STEP) == 300
        with pytest.raises(
            BudgetExceeded, match=r"301 more .* exceed .*epsilon=1, delta=1e-05.* room for 300"
        ):
            two.reserve(301)
        two.reserve(300)
        with pytest.raises(BudgetExceeded, match="room for 0"):
            ledger.run(STEP, HASH, name="three")
        with pytest.raises(BudgetExceeded):
            ledger.run(Gaussian(1e6), HASH, name="other")


def test_a_filter_spends_across_runs_chosen_along_the_way(place):
    with begin(place, GaussianFilter(Budget(1.0, 1e-5))) as ledger:
        for name in ("a", "b", "c"):
            ledger.run(Gaussian(10.0), HASH, name=name).reserve()
        # mu*(1, 1e-5)^2 - 3 * 0.1^2 = 0.204576159^2 (closed form)
        assert ledger.remaining(Gaussian(1 / 0.204576160)) == 0
        assert ledger.remaining(Gaussian(1 / 0.204576158)) == 1
        assert ledger.remaining(Gaussian(20.0)) == 16
    with again(place) as ledger:
        ledger.run(Gaussian(20.0) * 16, HASH, name="d").reserve(16)
        assert ledger.remaining(Gaussian(20.0)) == 0
        guarantee = ledger.guarantee()
        assert guarantee.epsilon.upper == 1.0
        assert 0.97 < guarantee.epsilon.lower < 1.0


def test_the_guarantee_is_computed_from_the_events(place):
    with begin(place) as ledger:
        guarantee = ledger.guarantee()
        assert guarantee == discreet.account(STEP * 1000).guarantee(1e-5)
        assert guarantee.within(PLAN.budget)
        assert ledger.spent() is None
        assert not any("epsilon" in entry for entry in ledger.entries()[1:])


# ---- several hands ----


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
    copy = (
        "INSERT INTO ledger_entries (sequence, run, step, attempt, entry, hash) "
        "SELECT sequence + 10, run, step, attempt, entry, hash FROM ledger_entries"
    )
    for place in (tmp_path / "a.ledger", new_schema()):
        with begin(place) as ledger:
            ledger.run(STEP * 1000, HASH).reserve(2)
        if isinstance(place, Path):
            with (
                closing(sqlite3.connect(place)) as connection,
                pytest.raises(sqlite3.IntegrityError, match=r"run, ledger_entries\.step"),
            ):
                connection.execute(copy)
        else:
            with (
                psycopg.connect(place) as connection,
                pytest.raises(psycopg.errors.UniqueViolation, match="step"),
            ):
                connection.execute(copy)


def test_a_forked_process_must_open_its_own(tmp_path):
    with begin(tmp_path / "a.ledger") as ledger:
        journal = ledger._journal
        journal._process += 1  # as a child would see it
        with pytest.raises(LedgerUnavailable, match="forked process; open it there anew"):
            ledger.remaining(STEP)
        journal._process -= 1
        assert ledger.remaining(STEP) == 1000


# ---- what it was, it stays ----


def test_the_rule_must_be_the_same(place):
    begin(place).close()
    again(place, rule=PLAN).close()
    with pytest.raises(PlanViolation, match=r"This ledger spends by FixedPlan.*not by GaussianFilter"):
        again(place, rule=GaussianFilter(PLAN.budget))


@pytest.mark.parametrize("rule", [PLAN, GaussianFilter(PLAN.budget), RenyiFilter(PLAN.budget, 18)])
def test_the_rule_comes_back_from_the_ledger(tmp_path, rule):
    begin(tmp_path / "a.ledger", rule).close()
    with again(tmp_path / "a.ledger") as ledger:
        assert ledger.rule == rule


def test_a_plan_beyond_its_budget_begins_no_ledger(tmp_path):
    with pytest.raises(
        BudgetExceeded, match=r"The plan is .* budget is epsilon=0.1 at that delta. Calibrate"
    ):
        begin(tmp_path / "a.ledger", FixedPlan(STEP * 1000, Budget(0.1, 1e-5)))
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_is_not_begun_twice(place):
    with begin(place) as ledger:
        with pytest.raises(InvalidParameter, match="already"):
            begin(place)
        assert ledger.remaining(STEP) == 1000


def test_of_several_who_begin_a_ledger_one_does(tmp_path):
    outcomes = []

    def create():
        try:
            Ledger.create(tmp_path / "a.ledger", PLAN).close()
            outcomes.append("made")
        except InvalidParameter:
            outcomes.append("refused")

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]
    Ledger.open(tmp_path / "a.ledger").close()


def test_a_missing_ledger_is_not_begun_by_opening(tmp_path, new_schema):
    with pytest.raises(LedgerUnavailable, match=r"There is no ledger at .*Ledger.create, or restore it"):
        again(tmp_path / "a.ledger")
    with pytest.raises(LedgerCorrupted, match="not in order"):
        again(new_schema())


def test_a_leftover_log_of_a_lost_ledger_is_noticed(tmp_path):
    (tmp_path / "a.ledger-wal").write_bytes(b"")
    with pytest.raises(InvalidParameter, match=r"a.ledger-wal exists already"):
        begin(tmp_path / "a.ledger")


def test_a_closed_ledger_refuses(place):
    ledger = begin(place)
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed; open it again"):
        ledger.remaining(STEP)


def test_in_memory_has_the_same_rules():
    with Ledger.in_memory(PLAN) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        assert run.reserve(1000).last == 1000
        with pytest.raises(PlanViolation):
            run.reserve()


# ---- anchors ----


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


def test_a_restored_backup_is_refused(tmp_path):
    place = tmp_path / "a.ledger"
    with begin(place) as ledger:
        ledger.run(STEP * 1000, HASH).reserve(10)
    backup = place.read_bytes()
    with again(place) as ledger:
        ledger.run(STEP * 1000, HASH).reserve(990)
        anchor = ledger.anchor()
    place.write_bytes(backup)
    with pytest.raises(LedgerCorrupted, match="rolled back"):
        again(place, anchor=anchor)
    with again(place) as ledger:  # the twin: without an anchor nobody can tell
        assert ledger.remaining(STEP) == 990
        ledger.run(STEP * 1000, HASH).reserve(3)
        ledger.run(STEP * 1000, HASH).reserve(3)
    with pytest.raises(LedgerCorrupted, match="rolled back and then written to"):
        again(place, anchor=anchor)


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


# ---- keys ----


def test_a_key_file_is_made_for_its_owner_only(tmp_path):
    place, key = tmp_path / "a.ledger", tmp_path / "a.ledger.key"
    Ledger.create(place, PLAN).close()
    assert key.stat().st_mode & 0o777 == 0o600
    Ledger.open(place).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ledger", "a.ledger.key"]

    key.chmod(0o640)
    with pytest.raises(InvalidParameter, match="can be read by others; run: chmod 600"):
        Ledger.open(place)
    key.chmod(0o600)
    text = key.read_text()
    key.write_text(text[1:])
    with pytest.raises(LedgerCorrupted, match="does not hold a key"):
        Ledger.open(place)
    key.write_text("0" * 64)
    with pytest.raises(LedgerCorrupted, match=r"seal .* is not from this key"):
        Ledger.open(place)
    key.unlink()
    with pytest.raises(LedgerUnavailable, match=r"key cannot be read from .*restore the key file"):
        Ledger.open(place)


def test_a_key_without_its_ledger_is_a_warning(tmp_path):
    place = tmp_path / "a.ledger"
    Ledger.create(place, PLAN).close()
    place.unlink()
    with pytest.raises(InvalidParameter, match="exists, so its ledger does or did"):
        Ledger.create(place, PLAN)


def test_a_key_file_may_serve_several_ledgers(tmp_path, new_schema):
    for place in (tmp_path / "a.ledger", tmp_path / "b.ledger", new_schema()):
        Ledger.create(place, PLAN, key=tmp_path / "team.key").close()
        Ledger.open(place, key=str(tmp_path / "team.key")).close()


def test_a_ledger_in_a_database_needs_a_named_key(new_schema):
    with pytest.raises(
        InvalidParameter, match="key=None: name the file of the ledger's key, outside the database"
    ):
        Ledger.create(new_schema(), PLAN)


# ---- the world goes wrong ----


def test_a_read_only_file_is_refused(tmp_path):
    place = tmp_path / "a.ledger"
    begin(place).close()
    uri = f"file:{place}?mode=ro&immutable=1"  # as root, permissions alone would not stop us
    store = SQLiteStore.__new__(SQLiteStore)
    store._path, store._database = place, sqlite3.connect(uri, uri=True, isolation_level=None)
    ledger = Ledger(Journal(store, KEY))
    with pytest.raises(LedgerUnavailable, match=r"readonly database.*nothing was granted"):
        ledger.run(STEP * 1000, HASH)
    ledger.close()
    with again(place) as ledger:
        assert ledger.remaining(STEP) == 1000


class Unreliable(SQLiteStore):
    """Reports a failed commit, as a broken connection does, after or before it has happened."""

    arrives = True
    broken = False

    @contextmanager
    def transaction(self):
        with super().transaction() as transaction:
            yield transaction
            if self.broken and not self.arrives:
                raise LedgerUnavailable("the line is dead")
        if self.broken:
            raise LedgerUnavailable("the line is dead")


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unknown_outcome_is_spent_if_it_arrived(tmp_path, arrives):
    place = tmp_path / "a.ledger"
    begin(place).close()
    store = Unreliable(place)
    ledger = Ledger(Journal(store, KEY))
    run = ledger.run(STEP * 1000, HASH)
    store.broken, store.arrives = True, arrives
    with pytest.raises(LedgerUnavailable, match="the line is dead"):
        run.reserve(7)
    store.broken = False
    with pytest.raises(
        LedgerUnavailable, match=r"failed before; open it again. Then it said: the line is dead"
    ):
        run.reserve(7)
    ledger.close()
    with again(place) as ledger:
        assert ledger.run(STEP * 1000, HASH).reserved == (7 if arrives else 0)


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


def test_an_unreachable_server_is_refused():
    with pytest.raises(LedgerUnavailable, match="cannot be used"):
        again("postgresql://nobody@/none?host=/nonexistent")
    with pytest.raises(InvalidParameter, match="is not a database address"):
        again("postgresql:nonsense")


def test_the_clock_decides_nothing(tmp_path, monkeypatch):
    jumps = itertools.cycle((0.0, 4e9, -4e9, 1.7e9, float("nan")))
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: next(jumps))
    place = tmp_path / "a.ledger"
    begin(place).close()
    for attempt in range(1, 11):
        with again(place) as ledger:
            run = ledger.run(STEP * 1000, HASH)
            assert (run.attempt, list(run.reserve(2))) == (attempt, [2 * attempt - 1, 2 * attempt])
            run.commit(2 * attempt)


def test_the_ledger_reads_no_clock_and_no_pickle():
    imported = set()
    for file in Path(discreet.ledger.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert {"json", "sqlite3"} <= imported
    assert not imported & {"time", "datetime", "pickle", "shelve", "marshal", "random"}


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_network_file_systems_are_recognised(kind):
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /team rw shared:1 - {kind} host:/x rw\n"
    assert remote_filesystem(Path("/team/a.ledger"), mounts) == kind
    assert remote_filesystem(Path("/teams/a.ledger"), mounts) is None
    assert remote_filesystem(Path("/home/a.ledger"), mounts) is None


def test_a_ledger_on_a_network_file_system_is_refused(tmp_path, monkeypatch):
    begin(tmp_path / "a.ledger").close()
    mounts = (
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {os.path.realpath(tmp_path)} rw - nfs4 host:/x rw\n"
    )
    monkeypatch.setattr("discreet.ledger.store.mounted", lambda: mounts)
    for action, name in ((again, "a.ledger"), (begin, "b.ledger")):
        with pytest.raises(LedgerUnavailable, match=r"network file system \(nfs4\).*disk, or use PostgreSQL"):
            action(tmp_path / name)


# ---- what cannot be meant ----


@pytest.mark.parametrize("steps", [float("nan"), 0, -1, 2.5, True, "3", None, 10**13])
def test_steps_are_whole_numbers(steps):
    with Ledger.in_memory(PLAN) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        with pytest.raises(InvalidParameter, match="steps="):
            run.reserve(steps)
        assert ledger.spent() is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((STEP, "nonsense"), "plan_hash"),
        ((STEP, HASH.upper()), "plan_hash"),
        ((0.5, HASH), "event"),
        ((None, HASH), "event"),
    ],
)
def test_a_run_needs_an_event_and_a_hash(arguments, name):
    with Ledger.in_memory(PLAN) as ledger, pytest.raises(InvalidParameter, match=f"^{name}="):
        ledger.run(*arguments)


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "ü", "a\n", None, 3, "\ud800"])
def test_run_names_are_plain(name):
    with Ledger.in_memory(PLAN) as ledger, pytest.raises(InvalidParameter, match=r"^name="):
        ledger.run(STEP, HASH, name=name)


def test_parameters_of_a_ledger_are_checked(tmp_path):
    with pytest.raises(InvalidParameter, match=r"^rule="):
        Ledger.create(tmp_path / "a.ledger", Budget(1.0, 1e-5))
    with pytest.raises(InvalidParameter, match=r"^key='3 bytes'"):
        Ledger.create(tmp_path / "a.ledger", PLAN, key=b"abc")
    with pytest.raises(InvalidParameter, match=r"^event="):
        FixedPlan("nothing", PLAN.budget)
    with pytest.raises(InvalidParameter, match=r"^anchor="):
        Anchor.from_json('{"sequence": 3}')
    with pytest.raises(InvalidParameter, match=r"^sequence="):
        Anchor(float("nan"), HASH)
    with pytest.raises(LedgerUnavailable, match="cannot be"):
        Ledger.create(tmp_path / "missing" / "a.ledger", PLAN, key=KEY)
    with pytest.raises(PlanViolation, match="no step Laplace"), Ledger.in_memory(PLAN) as ledger:
        ledger.run(STEP * 5, HASH).reserve(1, Laplace(1.0))
