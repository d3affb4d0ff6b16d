"""The full fault matrix of the ledger, and its speed. Run with ``make torture``; it takes some ten minutes.

The faults themselves are in tests/support/ledger_faults.py, where the tests do a little of each. Every line must read
0 where it says lost, over or believed; the broken twin must not.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from discreet import Budget, Gaussian
from discreet.ledger import GaussianFilter, Ledger
from discreet.ledger.ledger_log import next_row
from discreet.ledger.ledger_state import LedgerState

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))
KEY = bytes(32)
BAD = []


def inflict(wish):
    """Faults in a process of its own, which forks the victims."""
    single = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "support" / "ledger_faults.py"), json.dumps(wish)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=single).stdout)


def line(label, good, text):
    if not good:
        BAD.append(label)
    print(f"{'ok ' if good else 'BAD'} {label:34} {text}", flush=True)


def kills(label, result, twin=False):
    lost, again, left = (result[name] for name in ("under-counted", "noise used twice", "left"))
    text = f"{result['kills']} kills, {result['attempts']} attempts, {result['reserved']} steps reserved, "
    text += f"{result['released']} released, {lost} lost, {again} noise reused, {max(0, -left)} over"
    line(label, lost > 0 if twin else (lost, again, left, result["failed"]) == (0, 0, 0, 0), text)


def interrupts(label, result):
    lost, again, left = (result[name] for name in ("under-counted", "noise used twice", "left"))
    text = f"{result['interrupts']} interrupts, {result['reserved']} steps reserved, {result['released']} released, "
    text += f"{lost} lost, {again} noise reused, {max(0, -left)} over; exits {json.dumps(result['codes'])}"
    line(label, (lost, again, left, result["failed"]) == (0, 0, 0, 0), text)


def races(label, results):
    granted = [result["granted"] for result in results]
    exact = all(result == {"failed": 0, "granted": 28, "reserved": 28, "left": 0} for result in results)
    line(label, exact, f"{len(results)} races for 28 releases: granted {min(granted)} to {max(granted)}")


def disks(label, results):
    lost = sum(max(0, result["granted"] - result["reserved"]) for result in results)
    silent = sum(not result["errors"] or result["code"] != 0 or not result["goes on"] for result in results)
    line(label, (lost, silent) == (0, 0), f"{len(results)} times: {lost} steps lost, {silent} not refused")


def alterations(label, verdicts):
    line(label, verdicts["believed"] == 0, json.dumps(verdicts))


@contextmanager
def schemas(count):
    """Addresses of empty ledgers in a PostgreSQL server of our own."""
    import psycopg

    from support.postgres_server import postgres_server

    with postgres_server() as server:
        with psycopg.connect(server, autocommit=True) as connection:
            for index in range(count):
                connection.execute(f"CREATE SCHEMA s{index}")
        yield [f"{server}&options=-csearch_path%3Ds{index}" for index in range(count)]


def faults():
    kills("kill -9", inflict({"kills": 1500})["kills"])
    kills("kill -9, reserving too late (twin)", inflict({"late kills": 100})["late kills"], twin=True)
    interrupts("SIGTERM, SIGINT, exceptions", inflict({"interrupts": 330})["interrupts"])
    for processes, times in ((2, 10), (8, 10), (32, 10)):
        wish = {"processes": [processes]}
        races(f"{processes} processes", [inflict(wish)[f"{processes} processes"] for _ in range(times)])
    names = ["disk full", "no space", "write error", "sync error"]
    rounds = [inflict({"disk": names}) for _ in range(25)]
    for name in names:
        disks(name, [results[name] for results in rounds])
    for name, well in inflict({"rollbacks": 50})["rollbacks"].items():
        outcome = {
            "checkpoint": "went on behind all that was reserved",
            "both, no witness": "believed (twin)",
        }
        line(f"older {name}", well == 50, f"{well} of 50 {outcome.get(name, 'refused')}")
    for name, verdicts in inflict({"alterations": 2000}).items():
        alterations(name, verdicts)
    with schemas(4) as places:
        results = inflict({"kills": 200, "processes": [2, 8, 32], "places": places})
    kills("PostgreSQL: kill -9", results["kills"])
    for processes in (2, 8, 32):
        races(f"PostgreSQL: {processes} processes", [results[f"{processes} processes"]])


def rate(work, seconds=3.0):
    """How often a second ``work`` can be done."""
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        work()
        count += 1
    return count / passed


def write_long_ledger(path, steps, lease, commits):
    """A ledger of so many steps, written in one transaction."""
    event, book = Gaussian(1e5) * steps, LedgerState()
    with Ledger.create(path, GaussianFilter(Budget(2.0, 1e-5)), key=KEY) as ledger:
        ledger.run(event, event.digest())
        book.follow(ledger.entries())
    database = sqlite3.connect(path)
    for first in range(1, steps + 1, lease):
        entries = [["reserve", "run", 1, first, lease, 0, first - 1], ["commit", "run", 1, first + lease - 1]]
        for entry in entries if commits else entries[:1]:
            row, head = next_row(book, entry, KEY)
            database.execute("INSERT INTO ledger_entries VALUES (?, ?, ?)", row)
    database.execute("UPDATE ledger_head SET sequence = ?, hash = ?, seal = ?", head)
    database.commit()
    database.close()


def charging(ledger, label):
    """Steps charged per second: one reservation and commit each, and by ``run.steps()`` with its own leases."""
    run = ledger.run(Gaussian(1e5) * 10**8, "0" * 64, name="explicit")
    for lease in (1, 100, 1000):
        speed = lease * rate(lambda: run.commit(run.reserve(lease).last), 2.0)  # noqa: B023
        print(f"    {label:12} reserve and commit, leases of {lease:5}    {speed:12,.0f} steps/s", flush=True)
    for steps in (1000, 10_000, 100_000):
        run = ledger.run(Gaussian(1e5) * steps, "0" * 64, name=f"plan-{steps}")
        start = time.perf_counter()
        count = sum(1 for _ in run.steps())
        speed = count / (time.perf_counter() - start)
        print(f"    {label:12} run.steps() of a plan of {steps:7,} steps {speed:12,.0f} steps/s", flush=True)


def speed():
    with tempfile.TemporaryDirectory() as name, schemas(1) as places:
        for label, place in (("SQLite", Path(name) / "a.ledger"), ("PostgreSQL", places[0])):
            with Ledger.create(place, GaussianFilter(Budget(2.0, 1e-5)), key=KEY) as ledger:
                charging(ledger, label)
        for lease, commits in ((100, False), (10, False), (1, False), (1, True)):
            path = Path(name) / f"{lease}-{commits}.ledger"
            write_long_ledger(path, 10**6, lease, commits)
            start = time.process_time(), time.perf_counter()
            Ledger.open(path, key=KEY).close()
            cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
            kind = "each with a commit of its own" if commits else "each commits the one before"
            text = f"open and verify 1e6 steps, leases of {lease:3}, {kind:29}"
            print(f"    {text} {wall:6.2f} s ({cpu:.2f} s of CPU)", flush=True)


if __name__ == "__main__":
    speed()
    faults()
    sys.exit(f"failed: {', '.join(BAD)}" if BAD else 0)
