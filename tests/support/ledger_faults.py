"""What can happen to a ledger, done to it on purpose: kills, interrupts, races, full disks, altered or old files.

The tests do a little of each, ``make torture`` a lot. A process of its own forks the victims, so run it as

    python tests/support/ledger_faults.py '{"kills": 60, "processes": [2, 8], ...}'

and it prints what happened as JSON. Each kind of fault has a broken twin that must be caught.
"""

import ctypes
import errno
import json
import os
import platform
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

from discreet import Budget, BudgetExceeded, Gaussian, PlanViolation
from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import Anchor, FixedPlan, GaussianFilter, Ledger
from discreet.ledger.store import SQLiteStore, Transaction

KEY = b"a key that only the tests know.."
EVENT = Gaussian(noise_multiplier=100.0)
PLAN_HASH = "ab" * 32
POINTS = (
    "before opening", "after opening", "before reserve", "in reserve", "after reserve", "before release",
    "after release", "before commit", "in commit", "after commit", "at checkpoint",
)  # fmt: skip


class Fault(Exception):
    """What training code raises when it fails: a lost GPU, no memory."""


class Victim:
    """Opens the ledger, takes over its run, and releases step by step until budget, plan or life is over.

    It dies, or is interrupted, ``at`` a point after so many times before. Whoever survives goes on: with the same
    ledger if that still works, else with a new handle.
    """

    def __init__(
        self,
        place,
        releases,
        *,
        name,
        steps,
        lease=3,
        most=10**9,
        at=None,
        fault="SIGKILL",
        late=False,
        stepwise=False,
    ):
        self.place, self.releases, self.name, self.steps = place, releases, name, steps
        self.lease, self.most = lease, most
        self.point, self.countdown = at or (None, 0)
        self.fault = fault
        self.late = late  # the broken twin: it releases first and reserves afterwards
        self.stepwise = stepwise  # by Run.next_step instead of reserve and commit

    def at(self, point):
        if point == self.point:
            self.countdown -= 1
            if self.countdown < 0:
                self.point = None
                if self.fault == "exception":
                    raise Fault(point)
                os.kill(os.getpid(), signal.Signals[self.fault])

    def work(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._watch_inside()
        self.file = os.open(self.releases, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        while self.lease > 0 and self.most > 0:
            with suppress(KeyboardInterrupt, Fault, LedgerUnavailable):
                self._with_one_handle()

    def _with_one_handle(self):
        self.at("before opening")
        with Ledger.open(self.place, key=KEY) as ledger:
            run = ledger.run(EVENT * self.steps, PLAN_HASH, name=self.name)
            self.at("after opening")
            while self.lease > 0 and self.most > 0:
                self.most -= 1
                try:
                    self._step_by_step(run) if self.stepwise else self._one_lease(run)
                    self._checkpoint(ledger)
                except (KeyboardInterrupt, Fault):
                    pass  # the same handle must still do, or say that it does not
                except (BudgetExceeded, PlanViolation):
                    self.lease = 1 if self.lease > 1 else 0  # the last few one by one

    def _step_by_step(self, run):
        for _ in range(self.lease):
            self.at("before reserve")
            self.inside = "in reserve"
            step = run.next_step(lease=self.lease)
            self.at("after reserve")
            self._release([step])
        time.sleep(0.002)

    def _one_lease(self, run):
        if self.late:
            self._release(range(run.reserved + 1, run.reserved + 1 + self.lease))
        self.at("before reserve")
        self.inside = "in reserve"
        lease = run.reserve(min(self.lease, max(1, run.remaining())))
        self.at("after reserve")
        if not self.late:
            self._release(lease)
        time.sleep(0.002)  # a step takes its time; without it few of the others would ever get a turn
        self.at("before commit")
        self.inside = "in commit"
        run.commit(lease.last)
        self.at("after commit")

    def _release(self, steps):
        for step in steps:
            self.at("before release")
            os.write(self.file, f"{self.name} {step} {os.urandom(16).hex()}\n".encode())
            self.at("after release")

    def _watch_inside(self):
        append, self.inside = Transaction.append, ""

        def watched(transaction, row, head):
            append(transaction, row, head)
            self.at(self.inside)

        Transaction.append = watched

    def _checkpoint(self, ledger):
        store = ledger._journal._store
        if isinstance(store, SQLiteStore) and self.point == "at checkpoint":
            self.at("at checkpoint")
            store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def forked(work):
    """Run ``work`` in a child; its process number."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended(child):
    """Wait for a child: 0 if it ended well, -9 if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_again_and_again(place, releases, kills, *, budget_steps, seed=0, late=False):
    """Kill victims at every named point in turn, and four at a time at random moments; then look."""
    random.seed(seed)
    Ledger.create(place, FixedPlan(EVENT * budget_steps, Budget(50.0, 1e-5)), key=KEY).close()

    def start(name, at=None, lease=3, **ways):
        steps = budget_steps // 2  # four runs of half the budget each: they compete
        victim = Victim(place, releases, name=name, steps=steps, lease=lease, at=at, late=late, **ways)
        return forked(victim.work)

    killed = 0
    for index in range(kills // 2):
        point = POINTS[index % len(POINTS)]
        times_before = 0 if point.endswith("opening") else random.randrange(3)
        killed += ended(start(f"run-{index % 4}", (point, times_before))) == -signal.SIGKILL
    running = {f"run-{index}": start(f"run-{index}") for index in range(4)}
    deadline = time.monotonic() + kills
    while killed < kills and time.monotonic() < deadline:
        time.sleep(random.uniform(0.0, 0.12))
        name = random.choice(list(running))
        os.kill(running[name], signal.SIGKILL)
        killed += ended(running[name]) == -signal.SIGKILL
        running[name] = start(name, stepwise=not late and random.random() < 0.5)
    for name, child in running.items():
        os.kill(child, signal.SIGKILL)
        ended(child)
        running[name] = start(name, lease=100)
    failed = sum(ended(child) != 0 for child in running.values())  # these spend what is left
    return {"kills": killed, "failed": failed, **look(place, releases)}


def look(place, releases):
    """Compare what was released with what the ledger says."""
    lines = [line.split() for line in Path(releases).read_text().splitlines()]
    released = {(name, int(step)) for name, step, _ in lines}
    with Ledger.open(place, key=KEY) as ledger:
        runs, left = ledger.runs(), ledger.remaining(EVENT)
    return {
        "released": len(lines),
        "reserved": sum(run.reserved for run in runs.values()),
        "attempts": sum(run.attempt for run in runs.values()),
        "under-counted": len(lines) - sum(step <= runs[name].reserved for name, step in released),
        "noise used twice": len(lines) - len({noise for *_, noise in lines}),
        "left": left,
    }


def interrupt_again_and_again(place, releases, times):
    """Terminate, interrupt and fail victims at every named point in turn; then spend what is left, and look."""
    budget_steps, faults = times * 30, ("SIGTERM", "SIGINT", "exception")
    Ledger.create(place, FixedPlan(EVENT * budget_steps, Budget(50.0, 1e-5)), key=KEY).close()

    def outcome(**options):
        return ended(forked(Victim(place, releases, name="run", steps=budget_steps, **options).work))

    codes = Counter()
    for index in range(times):
        point = POINTS[index // 3 % len(POINTS)]
        at = point, 0 if point.endswith("opening") else index % 2
        code = outcome(at=at, fault=faults[index % 3], most=4, stepwise=index // 33 % 2 == 1)
        codes[f"{faults[index % 3]} {code}"] += 1
    failed = outcome(lease=100) != 0
    return {"interrupts": times, "codes": codes, "failed": int(failed), **look(place, releases)}


def race(place, releases, processes):
    """So many processes spend one budget of 28 releases until nothing is left, all at once."""
    rule, event = GaussianFilter(Budget(1.0, 1e-5)), Gaussian(20.0)
    Ledger.create(place, rule, key=KEY).close()

    def spend(index):
        def work():
            file = os.open(releases, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
            with Ledger.open(place, key=KEY) as ledger:
                try:
                    run = ledger.run(event, PLAN_HASH, name=f"run-{index}-0")
                    for attempt in range(1, 1000):
                        lease = run.reserve()
                        os.write(file, f"{run.name} {lease.first} {os.urandom(16).hex()}\n".encode())
                        run = ledger.run(event, PLAN_HASH, name=f"run-{index}-{attempt}")
                except BudgetExceeded:
                    return

        return work

    codes = [ended(child) for child in [forked(spend(index)) for index in range(processes)]]
    with Ledger.open(place, key=KEY) as ledger:
        left, reserved = ledger.remaining(event), sum(run.reserved for run in ledger.runs().values())
    granted = len(Path(releases).read_text().splitlines())
    return {
        "failed": sum(code != 0 for code in codes),
        "granted": granted,
        "reserved": reserved,
        "left": left,
    }


def refusing_disk(place, refuse):
    """Reserve until the disk refuses; then the ledger must hold all that was granted, and go on elsewhere."""
    rule = FixedPlan(EVENT * 10_000, Budget(50.0, 1e-5))
    Ledger.create(place, rule, key=KEY).close()
    reader, writer = os.pipe()

    def work():
        with Ledger.open(place, key=KEY) as ledger:
            run = ledger.run(EVENT * 10_000, PLAN_HASH)
            run.reserve(5)
            refuse()
            granted, errors = 5, []
            for _ in range(2000):
                try:
                    granted += len(run.reserve(5))
                except (LedgerUnavailable, LedgerCorrupted) as error:
                    errors.append(type(error).__name__)
                    if len(errors) == 2:
                        break
            os.write(writer, json.dumps([granted, errors]).encode())

    code = ended(forked(work))
    granted, errors = json.loads(os.read(reader, 1000) or "[0, []]")
    for descriptor in (reader, writer):
        os.close(descriptor)
    with Ledger.open(place, key=KEY) as ledger:
        run = ledger.run(EVENT * 10_000, PLAN_HASH)
        reserved = run.reserved
        goes_on = run.reserve(5).first == reserved + 1
    return {"code": code, "granted": granted, "errors": errors, "reserved": reserved, "goes on": goes_on}


def full_disk():
    """No file may grow beyond 64 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def failing(error, *calls):
    """Let the kernel answer these system calls with ``error`` from now on (a seccomp filter)."""
    table = {"x86_64": {"fsync": 74, "fdatasync": 75, "pwrite64": 18}}
    table["aarch64"] = {"fsync": 82, "fdatasync": 83, "pwrite64": 68}
    numbers = [table[platform.machine()][call] for call in calls]

    class Instruction(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16),
            ("yes", ctypes.c_uint8),
            ("no", ctypes.c_uint8),
            ("k", ctypes.c_uint32),
        )

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))

    lines = [(0x20, 0, 0, 0)]  # load the number of the system call
    lines += [
        (0x15, len(numbers) - place, 0, number) for place, number in enumerate(numbers)
    ]  # found: to the end
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]  # let it pass; or answer

    def refuse():
        program = (Instruction * len(lines))(*(Instruction(*line) for line in lines))
        library = ctypes.CDLL(None, use_errno=True)
        for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(Program(len(lines), program)), 0, 0)):
            if library.prctl(*arguments):
                raise OSError(ctypes.get_errno(), "prctl")

    return refuse


REFUSING = {
    "disk full": full_disk,
    "no space": failing(errno.ENOSPC, "pwrite64"),
    "write error": failing(errno.EIO, "pwrite64"),
    "sync error": failing(errno.EIO, "fsync", "fdatasync"),
}


def sample(path):
    """Make a small ledger: three attempts of one run, and one other run."""
    with Ledger.create(path, FixedPlan(EVENT * 500, Budget(50.0, 1e-5)), key=KEY) as ledger:
        for _ in range(3):
            run = ledger.run(EVENT * 400, PLAN_HASH, name="first")
            for _ in range(4):
                run.commit(run.reserve(7).last)
        ledger.run(EVENT * 50, PLAN_HASH, name="second").reserve(20)


def alter_bytes(data, random):
    """One random accident: a flipped bit, a wrong byte, a lost, zeroed, moved, cut or added block."""
    data, place, length = bytearray(data), random.randrange(len(data)), random.choice((1, 16, 512, 4096))
    block = slice(place, place + length)
    kind = random.randrange(7)
    if kind == 0:
        data[place] ^= 1 << random.randrange(8)
    elif kind == 1:
        data[place] = random.randrange(256)
    elif kind == 2:
        del data[block]
    elif kind == 3:
        data[block] = bytes(len(data[block]))
    elif kind == 4:
        data[block] = data[-length:]
    elif kind == 5:
        del data[place:]
    else:
        data[place:place] = random.randbytes(length)
    return bytes(data)


ALTER_ROWS = (
    "UPDATE ledger_entries SET entry = replace(entry, ',7,0,', ',1,0,') WHERE sequence = :some",
    "UPDATE ledger_entries SET slot = replace(slot, '\"first\",2', '\"first\",1') WHERE sequence = :some",
    "UPDATE ledger_entries SET entry = entry || ' ' WHERE sequence = :some",
    "UPDATE ledger_entries SET entry = entry || char(10) WHERE sequence = :some",
    "UPDATE ledger_entries SET slot = slot || '0' WHERE sequence = :some",
    "UPDATE ledger_entries SET slot = NULL WHERE sequence = :some",
    "UPDATE ledger_entries SET slot = upper(slot) WHERE sequence = :some",
    "UPDATE ledger_entries SET sequence = -sequence WHERE sequence = :some",
    "UPDATE ledger_entries SET sequence = 100 + sequence WHERE sequence = :some",
    "UPDATE ledger_entries SET sequence = 1 + sequence WHERE sequence = (SELECT max(sequence) FROM ledger_entries)",
    "DELETE FROM ledger_entries WHERE sequence = :some",
    "DELETE FROM ledger_entries WHERE sequence > :some",
    "INSERT INTO ledger_entries SELECT 1 + max(sequence), NULL, entry FROM ledger_entries",
    "UPDATE ledger_head SET sequence = :some",
    "UPDATE ledger_head SET seal = hash",
    "UPDATE ledger_head SET sequence = :some, hash = seal",
    "DELETE FROM ledger_head",
    "CREATE TRIGGER t AFTER INSERT ON ledger_entries BEGIN DELETE FROM ledger_entries WHERE sequence = 9; END",
    "DROP TABLE ledger_head",
)


def alter(path, random):
    """Alter the ledger at ``path``: half the time as an accident would, half the time as a person would."""
    if random.random() < 0.5:
        path.write_bytes(alter_bytes(path.read_bytes(), random))
        return
    database = sqlite3.connect(path)
    with suppress(sqlite3.IntegrityError):  # the database itself refuses a step twice
        database.execute(random.choice(ALTER_ROWS), {"some": random.randrange(1, 29)})
    database.commit()
    database.close()


def alter_log(path, random):
    """Damage the write-ahead log, which holds what was reserved last."""
    log = path.with_name(path.name + "-wal")
    log.write_bytes(alter_bytes(log.read_bytes(), random))


def verdict(path, entries, anchor):
    """``refused``, ``harmless`` (it says what it said, and goes on), or what must never be: ``believed``."""
    try:
        with Ledger.open(path, key=KEY, anchor=anchor) as ledger:
            if ledger.entries() != entries:
                return "believed"
            ledger.run(EVENT * 50, PLAN_HASH, name="second")
        with Ledger.open(path, key=KEY, anchor=anchor) as ledger:
            return "harmless" if ledger.entries()[: len(entries)] == entries else "believed"
    except (LedgerCorrupted, LedgerUnavailable):
        return "refused"


@cache
def crashed(in_use):
    """The files of the sample ledger by their endings, its entries, and its anchor.

    With ``in_use`` they are copied while the ledger is open: the last reservations are in its log, as after a
    crash.
    """
    with tempfile.TemporaryDirectory() as name:
        home, copies = Path(name), Path(name) / "copies"
        copies.mkdir()
        sample(home / "a.ledger")
        with Ledger.open(home / "a.ledger", key=KEY) as ledger:
            if in_use:
                run = ledger.run(EVENT * 50, PLAN_HASH, name="second")
                for _ in range(5):
                    run.reserve(2)
            entries, anchor = ledger.entries(), ledger.anchor()
            # Another process must copy: to close a file here would let go of SQLite's locks on it.
            subprocess.run(["cp", *home.glob("a.ledger*"), copies], check=True)
        return {file.name.removeprefix("a"): file.read_bytes() for file in copies.iterdir()}, entries, anchor


def alterations(directory, count, seed=0, change=alter, anchored=False):
    """How often an altered copy of a ledger was refused, harmless or believed.

    With ``anchored`` it is a copy made while the ledger was in use, and it is opened with the anchor.
    """
    draw, verdicts = random.Random(seed), Counter(believed=0)
    files, entries, anchor = crashed(in_use=anchored)
    for index in range(count):
        for ending, data in files.items():
            (directory / f"{index}{ending}").write_bytes(data)
        change(directory / f"{index}.ledger", draw)
        verdicts[verdict(directory / f"{index}.ledger", entries, anchor if anchored else None)] += 1
        for file in directory.glob(f"{index}.*"):
            file.unlink()
    return dict(verdicts)


def resumed(path, checkpoint, witness):
    """The first step of a run resumed from a checkpoint, or ``refused``; ``witness`` is an anchor kept elsewhere."""
    try:
        for anchor in (Anchor.from_json(checkpoint.read_text()), witness):
            with Ledger.open(path, key=KEY, anchor=anchor) as ledger:
                found = ledger.run(EVENT * 5000, PLAN_HASH)
        with Ledger.open(path, key=KEY) as ledger:
            found = ledger.run(EVENT * 5000, PLAN_HASH).reserve(2).first
    except LedgerCorrupted:
        return "refused"
    return found


def rollbacks(directory, count):
    """Put back an older ledger, an older checkpoint, or both, ``count`` times each; how often it ended well.

    A checkpoint holds the anchor of its moment. An older ledger must be refused. An older checkpoint must go on
    behind all that was ever reserved. If both are old, only a witness elsewhere can tell: without one, the twin.
    """
    path, checkpoint, well = directory / "rolled.ledger", directory / "rolled.json", Counter()
    Ledger.create(path, FixedPlan(EVENT * 5000, Budget(50.0, 1e-5)), key=KEY).close()

    def go_on():
        with Ledger.open(path, key=KEY) as ledger:
            run = ledger.run(EVENT * 5000, PLAN_HASH)
            run.commit(run.reserve(2).last)
            checkpoint.write_text(ledger.anchor().to_json())
            return run.reserved, ledger.anchor()

    for _ in range(count):
        go_on()
        old = {file: file.read_bytes() for file in (path, checkpoint)}
        highest, witness = go_on()
        new = {file: file.read_bytes() for file in (path, checkpoint)}
        for name, files in (("ledger", [path]), ("checkpoint", [checkpoint]), ("both", [path, checkpoint])):
            for file in (path, checkpoint):
                file.write_bytes((old if file in files else new)[file])
            first = resumed(path, checkpoint, witness)
            well[name] += first == highest + 1 if name == "checkpoint" else first == "refused"
        for file in (path, checkpoint):
            file.write_bytes(old[file])
        well["both, no witness"] += resumed(path, checkpoint, None) != "refused"
        for file in (path, checkpoint):
            file.write_bytes(new[file])
    return dict(well)


def main(wish):
    """Do what is wished for, in a directory of its own; the results by name."""
    results = {}
    if "places" in wish:
        import_module("discreet.ledger.postgres")  # once here, not in each child
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        place = iter(wish.get("places", ())).__next__ if "places" in wish else lambda: None

        def fresh(label):
            return place() or home / f"{label}.ledger"

        if wish.get("kills"):
            steps, file = wish["kills"] * 100, home / "kills"
            results["kills"] = kill_again_and_again(fresh("kills"), file, wish["kills"], budget_steps=steps)
        if wish.get("late kills"):
            steps, file = wish["late kills"] * 100, home / "late"
            results["late kills"] = kill_again_and_again(
                fresh("late"), file, wish["late kills"], budget_steps=steps, late=True
            )
        if wish.get("interrupts"):
            spot, file = fresh("interrupts"), home / "interrupts"
            results["interrupts"] = interrupt_again_and_again(spot, file, wish["interrupts"])
        for number in wish.get("processes", ()):
            results[f"{number} processes"] = race(fresh(f"race-{number}"), home / f"race-{number}", number)
        for fault in wish.get("disk", ()):
            results[fault] = refusing_disk(fresh(fault), REFUSING[fault])
        if wish.get("rollbacks"):
            results["rollbacks"] = rollbacks(home, wish["rollbacks"])
        if wish.get("alterations"):
            for name, change in (("ledgers", alter), ("logs", alter_log)):
                (home / name).mkdir()
                results[f"altered {name}"] = alterations(
                    home / name, wish["alterations"], change=change, anchored=name == "logs"
                )
    return results


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
