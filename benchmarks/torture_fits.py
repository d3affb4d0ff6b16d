"""Kill ``fit`` and ``PrivateRun`` a thousand times, wherever they are, and compare ledgers with what was released.

    python benchmarks/torture_fits.py [--kills 500] [--twin]

Victims are forked by a process that has everything loaded. Each writes a line for whatever leaves the one function
that adds noise: what it cost, and its hash. Half of them die at a chosen release, before or after it, the others
whenever it happens. A ledger holds many victims, one after the other; ``--twin`` does not pay, and must be caught.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import discreet as dp
from discreet.ledger import GaussianFilter, Ledger, Till
from discreet.ledger.ledger_log import Run
from discreet.linear import PrivateLogisticRegression
from discreet.pytorch import PrivateRun
from discreet.trusted import permits, spending

LIVES = 25
"""So many victims share a ledger."""
ROWS = np.random.default_rng(0).uniform(-1, 1, (400, 3))
BUDGET = dp.Budget(50.0, 1e-5)


class Tap:
    """Stands in for ``add_noise``: notes what leaves, and dies where it is told to."""

    def __init__(self, notes: Path, point: tuple[str, int] | None) -> None:
        self._notes = os.open(notes, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self._point, self._calls, self._honest = point, 0, spending.add_noise

    def __call__(self, total: Any, event: Any, *rest: Any, **more: Any) -> Any:
        self._calls += 1
        self._die("before")
        noisy = self._honest(total, event, *rest, **more)
        body = hashlib.sha256(np.ascontiguousarray(np.asarray(noisy)).tobytes()).hexdigest()
        os.write(self._notes, f"{event.noise_multiplier!r} {body}\n".encode())
        self._die("after")
        return noisy

    def _die(self, when: str) -> None:
        if self._point == (when, self._calls):
            os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, life: int) -> None:
    """A fit with a name of its own in a ledger for many."""
    with Ledger.open(folder / "a.ledger") as ledger:
        model = PrivateLogisticRegression(
            epsilon=1.0, delta=1e-8, classes=(0, 1), bounds=(-1, 1), ledger=ledger
        )
        model.fit(ROWS, (ROWS[:, 0] > 0).astype(int))


def network(folder: Path, life: int) -> None:
    """A run that goes on where the one before was killed, from a checkpoint that is a little older."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    plan = dp.Recipe(records=400, batch_size=40, steps=2000).with_noise(1.0, 1e-5)
    data = torch.tensor(ROWS), torch.tensor(ROWS[:, :1])
    run = PrivateRun(
        plan, model, torch.optim.SGD(model.parameters(), lr=0.1), squares, ledger=folder / "a.ledger"
    )
    if (folder / "first").exists():
        run.resume(folder / "saved")
    else:  # nothing was released before there was a whole checkpoint
        run.save(folder / "saved")
        (folder / "first").touch()
    for number, batch in enumerate(run.batches(data), 1):
        run.step(batch)
        if number % 7 == 0:
            run.save(folder / "saved")
        if number == 60:
            break


def squares(model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().sum(1)


VICTIMS: dict[str, Callable[[Path, int], None]] = {"fit": fit, "PrivateRun": network}


def killed(victim: Callable[[Path, int], None], folder: Path, life: int, seconds: float) -> bool:
    """Fork a victim and see it die; False if it came to its end before."""
    by_point = random.random() < 0.5
    point = (random.choice(("before", "after")), random.randint(1, 30)) if by_point else None
    child = os.fork()
    if child == 0:
        try:
            spending.add_noise = permits.add_noise = Tap(folder / "notes", point)  # type: ignore[assignment]
            victim(folder, life)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    if not by_point:
        time.sleep(random.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise AssertionError("a victim failed instead of dying")
    return status < 0


def ratio(noise: float, times: float = 1.0) -> float:
    """The squared signal-to-noise ratio of so many releases: it adds up, whatever their order and noise."""
    return times / noise**2


def under_counted(folder: Path) -> tuple[int, float, list[str]]:
    """How many releases there were, by how much they exceed what the ledger holds, and their hashes."""
    notes = folder / "notes"
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    released = sum(ratio(float(noise)) for noise, _ in lines)
    with Ledger.open(folder / "a.ledger") as ledger:
        spent = ledger.spent()
    parts = [] if spent is None else spent.parts()
    paid = sum(ratio(_noise(event), count) for event, count in parts)
    return len(lines), max(0.0, released - paid * (1 + 1e-9)), [body for _, body in lines]


def _noise(event: Any) -> float:
    return float(getattr(event, "of", event).noise_multiplier)  # that of a sampled event is inside


def torture(name: str, kills: int, seconds: float) -> bool:
    """Print a line, and whether all was well."""
    done = ends = releases = 0
    missing, bodies = 0.0, Counter[str]()
    while done < kills:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if name == "fit":
                Ledger.create(folder / "a.ledger", GaussianFilter(BUDGET)).close()
            for life in range(LIVES):
                dead = killed(VICTIMS[name], folder, life, seconds)
                done, ends = done + dead, ends + (not dead)
                if done == kills:
                    break
            if (folder / "a.ledger").exists():
                seen, more, hashes = under_counted(folder)
                releases, missing = releases + seen, missing + more
                bodies.update(hashes)
    again = sum(count - 1 for count in bodies.values())
    good = missing == 0 and again == 0
    print(
        f"{'ok ' if good else 'BAD'} kill -9 of {name:10} {done} kills, {ends} came to their end, {releases} "
        f"releases, {missing:.3g} of squared ratio not counted, {again} noise reused",
        flush=True,
    )
    return good


def longest(name: str) -> float:
    """Seconds of an honest victim, which also compiles what has to be."""
    with tempfile.TemporaryDirectory() as place:
        Ledger.create(Path(place) / "a.ledger", GaussianFilter(BUDGET)).close() if name == "fit" else None
        VICTIMS[name](Path(place), 0)
        begun = time.monotonic()
        VICTIMS[name](Path(place), 1)
        return time.monotonic() - begun


def pay_too_little() -> None:
    """The broken twins: a stage pays for its first release only, a run for every tenth step."""
    pay, step, asked = Till.pay, Run.next_step, [0]

    def once(self: Till, event: Any, *_: Any, **more: Any) -> Any:
        return pay(self, event, 1, **more)

    def seldom(self: Run, *given: Any, **more: Any) -> Any:
        asked[0] += 1
        return step(self, *given, **more) if asked[0] % 10 == 1 else self.reserved

    def believed(self: Run, *_: Any, **__: Any) -> None:
        """The ledger itself refuses to call a step done that was not reserved."""

    Till.pay, Run.next_step, Run.commit = once, seldom, believed  # type: ignore[assignment, method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500, help="Of each kind.")
    parser.add_argument("--twin", action="store_true", help="Nobody pays; this must be found.")
    parser.add_argument("--only", choices=VICTIMS, nargs="+", default=list(VICTIMS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seconds = {name: 1.2 * longest(name) for name in chosen.only}
    if chosen.twin:
        pay_too_little()
    good = [torture(name, chosen.kills, seconds[name]) for name in chosen.only]
    sys.exit(int(any(good) if chosen.twin else not all(good)))


if __name__ == "__main__":
    main()
