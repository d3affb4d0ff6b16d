"""A ledger in a file: how it appears, its key, older copies, and the ways in which a disk or a clock goes wrong."""

import ast
import itertools
import os
import sqlite3
import threading
import time
from contextlib import contextmanager
from pathlib import Path

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
from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import Anchor, FixedPlan, GaussianFilter, Ledger, TruncatedRenyiFilter
from discreet.ledger.ledger_log import LedgerLog
from discreet.ledger.local_disk import remote_filesystem
from discreet.ledger.store import SQLiteStore

KEY = bytes(range(32))
HASH = "a" * 64
STEP = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
PLAN = FixedPlan(STEP * 1000, Budget(epsilon=1.0, delta=1e-5))


def begin(place, rule=PLAN):
    return Ledger.create(place, rule, key=KEY)


def again(place, **options):
    return Ledger.open(place, key=KEY, **options)


@pytest.mark.parametrize(
    "rule", [PLAN, GaussianFilter(PLAN.budget), TruncatedRenyiFilter(PLAN.budget, 18, 0.25, 1e-7)]
)
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


def test_a_leftover_log_of_a_lost_ledger_is_noticed(tmp_path):
    (tmp_path / "a.ledger-wal").write_bytes(b"")
    with pytest.raises(InvalidParameter, match=r"a.ledger-wal exists already"):
        begin(tmp_path / "a.ledger")


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


def test_a_read_only_file_is_refused(tmp_path):
    place = tmp_path / "a.ledger"
    begin(place).close()
    uri = f"file:{place}?mode=ro&immutable=1"  # as root, permissions alone would not stop us
    store = SQLiteStore.__new__(SQLiteStore)
    store._path, store._database = place, sqlite3.connect(uri, uri=True, isolation_level=None)
    ledger = Ledger(LedgerLog(store, KEY))
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
    ledger = Ledger(LedgerLog(store, KEY))
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
    monkeypatch.setattr("discreet.ledger.local_disk.mount_table", lambda: mounts)
    for action, name in ((again, "a.ledger"), (begin, "b.ledger")):
        with pytest.raises(LedgerUnavailable, match=r"network file system \(nfs4\).*disk, or use PostgreSQL"):
            action(tmp_path / name)


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


def test_a_forked_process_must_open_its_own(tmp_path):
    with begin(tmp_path / "a.ledger") as ledger:
        journal = ledger._journal
        journal._process += 1  # as a child would see it
        with pytest.raises(LedgerUnavailable, match="forked process; open it there anew"):
            ledger.remaining(STEP)
        journal._process -= 1
        assert ledger.remaining(STEP) == 1000


def delete(place, older):
    place.unlink()


def replace_by_older(place, older):
    for ending in ("-wal", "-shm"):
        place.with_name(place.name + ending).unlink()
    older.replace(place)


def delete_written_ahead(place, older):
    place.with_name(place.name + "-wal").unlink()


def spend_under(place, change):
    """Steps that are granted after ``change`` was made to the file, and those that the ledger knows of afterwards."""
    older = place.with_name("older")
    with begin(place) as ledger:
        with sqlite3.connect(place) as source, sqlite3.connect(older) as copy:
            source.backup(copy)
        source.close()
        copy.close()
        run = ledger.run(STEP * 1000, HASH)
        run.reserve(10)
        change(place, older)
        run.reserve(20)
    with again(place) as ledger:
        return sum(found.reserved for found in ledger.runs().values())


@pytest.mark.parametrize("change", [delete, replace_by_older, delete_written_ahead])
def test_a_ledger_that_was_taken_away_grants_nothing(tmp_path, change):
    """An older copy that is put back, a tool that tidies up: SQLite would go on writing to what nobody can find."""
    with pytest.raises(LedgerUnavailable, match="was deleted or replaced while it was in use"):
        spend_under(tmp_path / "a.ledger", change)


def test_who_does_not_look_loses_what_was_granted(tmp_path, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(SQLiteStore, "_refuse_other_files", lambda store: None)
    assert spend_under(tmp_path / "a.ledger", lambda place, older: None) == 30
    assert spend_under(tmp_path / "b.ledger", replace_by_older) == 0


def test_a_ledger_stays_while_others_open_and_close_it_and_we_go_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with begin("a.ledger") as ledger:
        run = ledger.run(STEP * 1000, HASH)
        monkeypatch.chdir(tmp_path / "elsewhere")
        for _ in range(3):
            with again(tmp_path / "a.ledger") as other:
                assert other.remaining(STEP) > 0
            run.reserve(1)
    with again(tmp_path / "a.ledger") as ledger:
        assert ledger.spent() is not None
