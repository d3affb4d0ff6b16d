"""Real studies on the loopback, for the benchmark and the torture: a process for each site, mutual TLS, ledgers.

Run as a program it is one site: ``python party_network.py FOLDER NAME``. The coordinator writes a JSON line for
each thing that happens; parties write nothing. Processes are ended by their own pid only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from discreet.core.noise import BoundedSum
from discreet.errors import StudyStopped
from discreet.ledger import Ledger
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Coordinator, Party, Progress, Study
from discreet.parties.messages import MalformedMessage, Message
from discreet.parties.network.kits import make_kits, open_kit
from discreet.parties.party_plan import PartyPlan

RECORDS = 60
Answer = Callable[[bytes], bytes]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def study_of(
    name: str, parties: int, port: int, dimension: int, *, timeout: float = 10.0, **training: Any
) -> Study:
    """A study of so many equal parties; ``tokens`` makes it SGD1."""
    algorithm = "sgd1" if "tokens" in training else "sgd2"
    return Study.from_dict(
        {
            "study": {"name": name, "algorithm": algorithm},
            "parties": {f"party-{place}": RECORDS for place in range(parties)},
            "privacy": {"epsilon": 5.0, "delta": 1e-5},
            "training": {"clip_norm": 1.0, "radius": 10.0, **training},
            "model": {"kind": "bench", "dimension": dimension},
            "network": {"coordinator": f"localhost:{port}", "timeout": timeout},
        }
    )


class Wide:
    """A holder for vectors so long that the network is what is measured."""

    def __init__(self, dimension: int) -> None:
        self.dimension, self.records = dimension, RECORDS

    def clipped_sum(self, theta: Any, records: Any) -> BoundedSum:
        return BoundedSum(np.zeros(self.dimension), 1.0)

    def hardened_sum(self, theta: Any, records: Any, grid: float) -> BoundedSum:
        return BoundedSum(np.zeros(self.dimension, np.int64), 1.0, grid=grid)


def holder_of(study: Study, party: str) -> Any:
    if study.dimension > 20_000:
        return Wide(study.dimension)
    generator = np.random.default_rng(int(party.rpartition("-")[2]))
    rows = generator.normal(size=(RECORDS, study.dimension - 1))
    return LinearHolder(Logistic(), rows, rows[:, 0] > 0, clip_norm=1.0)


def party_site(folder: Path, name: str, around: Callable[[Answer], Answer] = lambda answer: answer) -> None:
    """A party of all studies in the folder; each has its own durable ledger. ``around`` wraps its answers."""
    from discreet.parties.network.nvflare import connect

    kit = open_kit(folder / "kits" / f"{name}.zip")
    parties: dict[str, Party] = {}
    for path in sorted(folder.glob("*.study.json")):
        study = Study.from_dict(json.loads(path.read_text()))
        if name in study.names:
            place = folder / f"{study.name}-{name}.ledger"
            book = Ledger.open(place) if place.exists() else Ledger.create(place, PartyPlan(study, name).rule)
            parties[study.digest()] = Party(
                name, study, holder_of(study, name), book, kit.signing_key(), kit.roster
            )

    def answer(message: bytes) -> bytes:
        try:
            return parties[Message.decode(message).study].answer(message)
        except (MalformedMessage, KeyError):
            return next(iter(parties.values())).answer(message)

    with connect(kit, around(answer)):
        sys.stdin.read()  # until whoever started it closes the pipe


def coordinator_site(folder: Path, around: Callable[[Any], Any] = lambda transport: transport) -> None:
    """Runs the studies whose names it is told, one after the other. ``around`` wraps the transport."""
    from discreet.parties.network.nvflare import listen

    kit = open_kit(folder / "kits" / "coordinator.zip")
    address = (folder / "listen").read_text() if (folder / "listen").exists() else None
    with listen(kit, address) as transport:
        say("up")
        for line in sys.stdin:
            study = Study.from_dict(json.loads((folder / f"{line.strip()}.study.json").read_text()))
            done = False
            while not done:
                while not all(map(transport.connected, study.names)):
                    time.sleep(0.02)
                done = run_study(study, around(transport), kit, folder / f"{study.name}.npz")


def run_study(study: Study, transport: Any, kit: Any, state: Path) -> bool:
    """True if it came to its end; False if nobody answered any more."""
    missing: tuple[str, ...] | None = None
    every = max(1, min(study.updates // 20, 50))

    def told(now: Progress) -> None:
        nonlocal missing
        if study.name == "paced":  # ten rounds a second, as if parties had more to compute
            time.sleep(0.1)
        gone = tuple(sorted(now.missing))
        if (study.algorithm == "sgd2" and gone != missing) or now.update % every == 0 or now.update <= 1:
            missing = gone
            say("update", study=study.name, update=now.update, missing=gone)

    say("begin", study=study.name)
    try:
        made = Coordinator(study, transport, kit.roster, state, told, signing_key=kit.signing_key())
        result = made.run()
    except StudyStopped as stopped:
        say("stopped", study=study.name, why=str(stopped))
        return False
    say("end", study=study.name, updates=result.updates, missed=dict(result.missed))
    return True


def say(what: str, **details: Any) -> None:
    print(json.dumps({"what": what, "at": time.time(), **details}), flush=True)


class Network:
    """Starts, kills, freezes and hears the sites of one folder."""

    def __init__(self, folder: Path, studies: list[Study], program: str = __file__) -> None:
        self.folder, self.names, self.program = folder, list(studies[0].names), program
        make_kits(studies[0], folder / "kits")
        for study in studies:
            (folder / f"{study.name}.study.json").write_text(json.dumps(study.to_dict()))
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def start(self, name: str) -> float:
        """Start a site; the time at which that was."""
        begun = time.time()
        command = [sys.executable, self.program, str(self.folder), name]
        with (self.folder / f"{name}.err").open("a") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(),
            )
        self.processes[name] = process
        if name == "coordinator":
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return begun

    def start_all(self) -> float:
        begun = self.start("coordinator")
        for name in self.names:
            self.start(name)
        return begun

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()

    def run(self, study: str) -> None:
        """Tell the coordinator to run a study."""
        pipe = self.processes["coordinator"].stdin
        assert pipe is not None
        pipe.write(f"{study}\n")
        pipe.flush()

    def wait(
        self, test: Callable[[dict[str, Any]], bool], since: float, seconds: float = 180.0
    ) -> dict[str, Any]:
        """The first event after ``since`` that passes the test."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for event in self.events:
                    if event["at"] >= since and test(event):
                        return event
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"nothing of the kind in {seconds:g} s; last: {self.events[-3:]}")

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a site, by its pid; after a kill it is waited for."""
        process = self.processes[name]
        process.send_signal(number)
        if number == 9:
            process.wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads}


if __name__ == "__main__":
    place, site = Path(sys.argv[1]), sys.argv[2]
    coordinator_site(place) if site == "coordinator" else party_site(place, site)
