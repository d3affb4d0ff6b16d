"""Kill workers, schedulers and drivers of fits on a Dask cluster; sums and charges must be what they would have been.

    python benchmarks/torture_cluster.py [--kills 200] [--twin sums|charges] [--minutes 60]

A scheduler, two workers and a driver, each a process that is forked anew when it was killed with signal 9, at any
moment; every third driver dies between noise and log, and in every tenth round a partition answers twice. Every
second fit protects people, who have rows in all files; every other two are of a Dask frame, whose rows lie in the
memory of workers. The driver notes each sum that gets noise. Afterwards a single process adds up the whole table,
told the values of the public log: its sums must be those, and the ledger must hold each release of the log once. A
fit that shows no release within a minute of a kill hangs. Twins that count an answer twice, or begin a new account
after a crash, must be caught.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import distributed
import numpy as np
import pandas as pd

import discreet as dp
from discreet.adapters import DaskEngine
from discreet.adapters.dask_rounds import Rounds
from discreet.errors import DiscreetError
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import Partitions, PrivateLogisticRegression, fit_budget
from discreet.linear.partition_results import PartitionReply, PartitionSums
from discreet.linear.recording_spending import Recorded, Tape
from discreet.trusted import session
from party_network import free_port

KINDS = ("worker", "scheduler", "driver")
HANG, GIVEN_UP = 60.0, 240.0  # seconds without a release
BUDGET = dp.Budget(8.0, 1e-5)
PEOPLE = dp.Budget(8.0, 1e-5, unit="person")


def write_files(folder: Path) -> Partitions:
    """Four files, one of them empty; most of 300 people have rows in several."""
    rng = np.random.default_rng(0)
    for number, rows in enumerate((300, 0, 400, 200)):
        x = rng.random((rows, 3))
        frame = pd.DataFrame(x, columns=["a", "b", "c"])
        frame["label"] = (x[:, 0] > x[:, 1]).astype(int)
        frame["person"] = rng.integers(300, size=rows)
        frame.to_parquet(folder / f"part-{number}.parquet", index=False)
    return Partitions(folder / "part-*.parquet")


def new_model(people: bool, ledger: Any = None) -> PrivateLogisticRegression:
    unit = "person" if people else None
    return PrivateLogisticRegression(4.0, 1e-8, classes=(0, 1), bounds=(0, 1), unit=unit, ledger=ledger)


def forked(work: Callable[[], Any]) -> int:
    """A process that does the work; it ends with 3 where it refuses in a sentence, and with 1 where it fails."""
    child = os.fork()
    if child:
        return child
    try:
        random.seed(os.urandom(8))
        work()
        os._exit(0)
    except DiscreetError as error:
        os.write(2, f"    {error}\n".encode())
        os._exit(3)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def schedule(port: int) -> None:
    async def serve() -> None:
        async with distributed.Scheduler(host="127.0.0.1", port=port, dashboard=False) as scheduler:
            await scheduler.finished()

    asyncio.run(serve())


def work(port: int) -> None:
    async def serve() -> None:
        options = {"nthreads": 1, "dashboard": False, "death_timeout": 30}
        async with distributed.Worker(f"tcp://127.0.0.1:{port}", **options) as worker:
            await worker.finished()

    asyncio.run(serve())


class Tap:
    """Stands in for ``add_noise``: notes the sum, what it costs, and its number; dies then, if told to."""

    def __init__(self, folder: Path, dies_at: int | None) -> None:
        self._log, self._dies_at, self._honest = folder / "log", dies_at, session.add_noise
        self._notes = os.open(folder / "notes", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def __call__(self, total: Any, event: Any, *rest: Any, **more: Any) -> Any:
        number = len(list(self._log.glob("release-*.npz")))
        noisy = self._honest(total, event, *rest, **more)
        note = {"release": number, "sum": digest(total.value * total.grid), "noise": event.noise_multiplier}
        os.write(self._notes, (json.dumps(note) + "\n").encode())
        if number == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return noisy


def digest(counts: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(counts, np.float64).tobytes()).hexdigest()


def frame_of(files: Partitions) -> Any:
    """The same table as a Dask frame, a partition for each file."""
    from dask import dataframe

    paths = [part.path for part in files.parts]
    return dataframe.from_map(pd.read_parquet, paths, meta=pd.read_parquet(paths[0]).iloc[:0])


def drive(port: int, folder: Path, files: Partitions, kind: tuple[bool, bool], dies_at: int | None) -> None:
    people, frame = kind
    session.add_noise = Tap(folder, dies_at)  # type: ignore[assignment]
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        Ledger.open(folder / "a.ledger") as ledger,
        distributed.Client(f"tcp://127.0.0.1:{port}", timeout=30, set_as_default=False) as client,
    ):
        engine = DaskEngine(client, log=folder / "log", deadline=20)
        table = frame_of(files) if frame else files
        new_model(people, ledger).fit(table, y="label", engine=engine)


class Cluster:
    """The scheduler and its workers, forked anew when they are gone."""

    def __init__(self) -> None:
        self.port = free_port()
        self.begin()

    def begin(self) -> None:
        self.scheduler = forked(lambda: schedule(self.port))
        self.workers = [forked(lambda: work(self.port)) for _ in range(2)]

    def kill(self, kind: str) -> None:
        """Only the scheduler, or one of the workers: those who lost their scheduler end by themselves."""
        if kind == "worker":
            place = random.randrange(2)
            end(self.workers[place])
            self.workers[place] = forked(lambda: work(self.port))
        else:
            end(self.scheduler)
            self.scheduler = forked(lambda: schedule(self.port))

    def tend(self) -> None:
        """Workers that ended begin again."""
        for place, process in enumerate(self.workers):
            if os.waitpid(process, os.WNOHANG)[0]:
                self.workers[place] = forked(lambda: work(self.port))

    def close(self) -> None:
        for process in (self.scheduler, *self.workers):
            end(process)


def end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


class Story:
    """What happened in all fits."""

    def __init__(self) -> None:
        self.kills, self.waits = Counter[str](), defaultdict[str, list[float]](list)
        self.fits = self.releases = self.again = self.wrong = self.stopped = 0
        self.extra = self.unpaid = 0.0

    @property
    def good(self) -> bool:
        slowest = max((wait for waits in self.waits.values() for wait in waits), default=0.0)
        return self.wrong == 0 and self.extra == 0 and self.unpaid == 0 and slowest <= HANG

    def print_table(self) -> None:
        print("| killed | times | median s | slowest s | over 60 s |\n|---|---|---|---|---|")
        for kind in KINDS:
            waits = self.waits[kind] or [0.0]
            over = sum(wait > HANG for wait in waits)
            print(f"| {kind} | {self.kills[kind]} | {median(waits):.1f} | {max(waits):.1f} | {over} |")
        print(
            f"{'ok ' if self.good else 'BAD'} {sum(self.kills.values())} kills in {self.fits} fits, {self.releases} "
            f"releases, {self.again} drawn again after a kill, {self.wrong} sums differ, {self.extra:.3g} charged "
            f"too much, {self.unpaid:.3g} too little; drivers that stopped in a sentence: {self.stopped}",
            flush=True,
        )


class Fit:
    """A fit with a folder of its own, whose driver is forked until it came to its end; of people, of a frame."""

    def __init__(
        self, cluster: Cluster, folder: Path, files: Partitions, people: bool, frame: bool = False
    ) -> None:
        self.cluster, self.folder, self.files, self.people = cluster, folder, files, people
        self._kind = people, frame
        self._driver, self.stopped = 0, 0
        Ledger.create(folder / "a.ledger", GaussianFilter(PEOPLE if people else BUDGET)).close()
        self.begin()

    def begin(self, dies_at: int | None = None) -> None:
        known = (self.cluster.port, self.folder, self.files, self._kind, dies_at)
        self._driver = forked(lambda: drive(*known))

    @property
    def released(self) -> int:
        return len(list((self.folder / "log").glob("release-*.npz")))

    def is_over(self) -> bool:
        """Whether the driver has come to its end; one that stopped or was killed begins again."""
        self.cluster.tend()
        process, status = os.waitpid(self._driver, os.WNOHANG)
        if not process:
            return False
        code = os.waitstatus_to_exitcode(status)
        if code == 1:
            raise AssertionError("a driver failed instead of stopping")
        if code:
            self.stopped += code == 3
            self.begin()
        return code == 0

    def kill(self, kind: str) -> None:
        if kind != "driver":
            self.cluster.kill(kind)
            return
        end(self._driver)
        self.begin()

    def die_between_noise_and_log(self) -> None:
        end(self._driver)
        self.begin(dies_at=self.released + random.randint(0, 5))


def torture(fit: Fit, story: Story, kills: int) -> None:
    """Kill something every few releases until the fit is over."""
    while not fit.is_over():
        if sum(story.kills.values()) >= kills:
            wait_for(fit, lambda: False)
            return
        goal = fit.released + random.randint(1, 12)
        if wait_for(fit, lambda goal=goal: fit.released >= goal) is None:
            return
        time.sleep(random.uniform(0, 0.3))
        kind = min(KINDS, key=lambda kind: story.kills[kind])
        before, begun = fit.released, time.monotonic()
        if kind == "driver" and story.kills[kind] % 3 == 0:
            fit.die_between_noise_and_log()
        else:
            fit.kill(kind)
        story.kills[kind] += 1
        over = wait_for(fit, lambda before=before: fit.released > before) is None
        story.waits[kind].append(time.monotonic() - begun)
        if over:
            return


def wait_for(fit: Fit, seen: Callable[[], bool]) -> bool | None:
    """True when something is seen, None when the fit is over; raises if neither happens."""
    last, since = fit.released, time.monotonic()
    while not seen():
        if fit.is_over():
            return None
        if fit.released != last:
            last, since = fit.released, time.monotonic()
        if time.monotonic() - since > GIVEN_UP:
            raise AssertionError("a fit hangs")
        time.sleep(0.02)
    return True


def sums_of(fit: Fit, values: list[Any]) -> list[str]:
    """The digests of the sums of a fit of the whole table in one process that releases the values of a log."""
    tape = Tape([Recorded(value, 0.0, value) for value in values])
    with Ledger.in_memory(GaussianFilter(PEOPLE if fit.people else BUDGET)) as ledger:
        new_model(fit.people, ledger)._fit_recorded(tape, fit.files.pattern, "label")
    return [digest(one.total) for one in tape.releases]


def judge(fit: Fit, story: Story) -> None:
    """Compare what was noted with the replay and the ledger."""
    values = [np.load(path)["value"] for path in sorted((fit.folder / "log").glob("release-*.npz"))]
    sums = sums_of(fit, values)
    notes = [json.loads(line) for line in (fit.folder / "notes").read_text().splitlines()]
    noise = {note["release"]: note["noise"] for note in notes}
    story.wrong += sum(note["sum"] != sums[note["release"]] for note in notes)
    story.wrong += abs(len(sums) - len(values)) + (set(noise) != set(range(len(values))))
    with Ledger.open(fit.folder / "a.ledger") as ledger:
        paid = sum(count / event.noise_multiplier**2 for event, count in ledger.spent().parts())
    owed = sum(1 / each**2 for each in noise.values())
    story.extra += max(0.0, paid / owed - 1 - 1e-9)
    story.unpaid += max(0.0, owed / paid - 1 - 1e-9)
    story.fits, story.releases, story.again = (
        story.fits + 1,
        story.releases + len(values),
        story.again + len(notes) - len(values),
    )
    story.stopped += fit.stopped


def repeat_answers() -> None:
    """In every tenth round some partition answers again, as where a scheduler retries."""
    honest = Rounds._collect

    def collect(self: Any, futures: Any, roll: Any) -> int:
        places, future = random.choice(list(futures.items()))
        behind = honest(self, futures, roll)
        if random.random() < 0.1:
            for answer in self._answers({places: future}).get(places, ()):
                roll.add(answer)
        return behind

    Rounds._collect = collect  # type: ignore[method-assign]


def count_twice() -> None:
    """Sums as an accumulator keeps them: what is answered again is added again."""
    honest = PartitionSums.add

    def add(self: Any, answer: PartitionReply) -> None:
        honest(self, answer)
        if answer.code == "sum":
            self.accumulated = getattr(self, "accumulated", 0) + answer.counts

    PartitionSums.add, PartitionSums.total = add, lambda self: self.accumulated  # type: ignore[assignment, method-assign]


def pay_anew() -> None:
    """A driver that goes on under another name pays again for what is in the log."""
    fit_budget.run_name = lambda name, log=None: f"fit-{os.getpid()}"


TWINS = {"sums": count_twice, "charges": pay_anew}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=1e9, help="Begin no fit after so many.")
    parser.add_argument("--twin", choices=TWINS, help="A broken engine, which must be found.")
    chosen = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    repeat_answers()
    if chosen.twin:
        TWINS[chosen.twin]()
    story, until = Story(), time.monotonic() + 60 * chosen.minutes
    with tempfile.TemporaryDirectory() as place:
        files, cluster = write_files(Path(place)), Cluster()
        try:
            while sum(story.kills.values()) < chosen.kills and time.monotonic() < until:
                with tempfile.TemporaryDirectory() as folder:
                    fit = Fit(cluster, Path(folder), files, story.fits % 2 == 1, story.fits % 4 > 1)
                    torture(fit, story, chosen.kills)
                    judge(fit, story)
                story.print_table()
        finally:
            cluster.close()
    sys.exit(int(story.good if chosen.twin else not story.good))


if __name__ == "__main__":
    main()
