"""Processes that race for a budget, or are killed while they spend it. Prints what happened as JSON.

    python processes.py race|kill ledger|memory NUMBER

A release is a line of a log: its step and its noise. ``ledger`` reserves a step before it draws the noise; ``memory``
is the broken twin, with a seeded generator and a count that is written down every ten releases, without a lock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import discreet as dp
from discreet.ledger import FixedPlan, GaussianFilter, Ledger

BUDGET, WANTED, MANY = 28, 20, 5000
RULE, RELEASE = GaussianFilter(dp.Budget(1.0, 1e-5)), dp.Gaussian(20.0)
"""Room for 28 releases, and not for one more."""


def in_child(work, *arguments) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
        os._exit(0)
    except BaseException:
        os._exit(1)


def race_by_ledger(folder: Path, name: str) -> None:
    with Ledger.open(folder / "a.ledger") as ledger:
        for number in range(WANTED):
            try:
                ledger.run(RELEASE, "0" * 64, name=f"{name}-{number}").reserve()
            except dp.BudgetExceeded:
                return
            log(folder, name)


def race_by_memory(folder: Path, name: str) -> None:
    spent = folder / "spent"
    for _ in range(WANTED):
        before = int(spent.read_text() or 0)
        if before >= BUDGET:
            return
        time.sleep(0.002)  # as long as a release takes
        spent.write_text(str(before + 1))
        log(folder, name)


def race(kind: str, number: int, folder: Path) -> dict[str, int]:
    if kind == "ledger":
        Ledger.create(folder / "a.ledger", RULE).close()
    else:
        (folder / "spent").write_text("0")
    work = race_by_ledger if kind == "ledger" else race_by_memory
    children = [in_child(work, folder, f"process-{index}") for index in range(number)]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    granted = len((folder / "log").read_text().splitlines())
    return {"granted": granted, "budget": BUDGET, "asked": number * WANTED, "failed": failed}


def spend_by_ledger(folder: Path) -> None:
    with Ledger.open(folder / "a.ledger") as ledger:
        run = ledger.run(RELEASE * MANY, "0" * 64)
        while True:
            step = run.reserve(1).first
            noise = fresh_noise()
            log(folder, f"{step} {noise.tobytes().hex()}")


def fresh_noise() -> np.ndarray:
    return dp.gaussian_mechanism([0.0] * 4, 1.0, 1.0, 1e-6).value


def spend_in_memory(folder: Path) -> None:
    spent, rng = folder / "spent", np.random.default_rng(0)
    step = int(spent.read_text() or 0)
    while True:
        step += 1
        log(folder, f"{step} {rng.normal(size=4).tobytes().hex()}")
        time.sleep(0.002)
        if step % 10 == 0:
            spent.write_text(str(step))


def kill(kind: str, number: int, folder: Path) -> dict[str, int]:
    if kind == "ledger":
        Ledger.create(folder / "a.ledger", FixedPlan(RELEASE * MANY, dp.Budget(50.0, 1e-5))).close()
        fresh_noise()  # compiled before there are children
    else:
        (folder / "spent").write_text("0")
    work = spend_by_ledger if kind == "ledger" else spend_in_memory
    for _ in range(number):
        before = size_of(folder / "log")
        child = in_child(work, folder)
        while size_of(folder / "log") == before and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.001)  # it has begun to spend
        time.sleep(random.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return counted(kind, folder) | {"kills": number}


def counted(kind: str, folder: Path) -> dict[str, int]:
    lines = [line.split() for line in whole_lines(folder / "log")]
    if kind == "ledger":
        with Ledger.open(folder / "a.ledger") as ledger:
            count = ledger.runs()["run"].reserved
    else:
        count = int((folder / "spent").read_text() or 0)
    noises, steps = {noise for _, noise in lines}, {step for step, _ in lines}
    return {
        "released": len(lines),
        "counted": count,
        "uncounted": max(0, len(lines) - count) + len(lines) - len(steps),
        "repeated": len(lines) - len(noises),
    }


def log(folder: Path, text: str) -> None:
    """One write for one line, so that lines of several processes do not mix."""
    file = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def whole_lines(path: Path) -> Iterator[str]:
    return (line for line in path.read_text().splitlines() if line.count(" ") == 1)


if __name__ == "__main__":
    act = {"race": race, "kill": kill}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(act(sys.argv[2], int(sys.argv[3]), Path(place))))
