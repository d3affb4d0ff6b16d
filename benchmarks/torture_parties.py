"""Break studies over a real network in every way we know, many times, and look whether anything was under-counted.

    python benchmarks/torture_parties.py [--times 50] [--only killed_party ...] [--minutes 60]

Three parties and a coordinator, each a process, with mutual TLS; five studies run at the same time: SGD1, SGD2 and
the recipe, the last two also with secure sums. Each fault meets all of them. Parties reach the coordinator through a
proxy that can stall or cut connections in the middle of a message. Every answer is noted before it leaves. At the end
each ledger is compared with these notes: no answer that was not paid for, no round answered in two ways, no two
answers alike. After each fault all studies must go on with all parties; how long that takes is measured. ``--twin``
runs parties that are broken on purpose, which must be caught.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from discreet.errors import CannotConnect, DiscreetError
from discreet.ledger import Ledger
from discreet.parties import sgd1
from discreet.parties.network import kits
from discreet.parties.network.connections import probe_coordinator
from party_network import RECORDS, free_port
from torture_sites import KINDS, NAMES, studies

LOCKED = 30.0  # seconds
PATIENCE = 240.0  # seconds until a study that does not go on is given up
PARTITION = 60.0


class Proxy:
    """Forwards bytes; ``cut`` closes every connection where it is, ``flowing`` cleared stops forwarding."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open: list[socket.socket] = []
        self.flowing = threading.Event()
        self.flowing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            inner, _ = self._server.accept()
            try:
                outer = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                inner.close()
                continue
            self._open += [inner, outer]
            for one, other in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(512):
                self.flowing.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def cut(self) -> None:
        while self._open:
            end = self._open.pop()
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Notebook:
    """Everything that the sites noted, as far as it is needed."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "notes")
        self._pipe = os.open(folder / "notes", os.O_RDWR)  # both ends, so that it never ends
        self.answers: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.keys: dict[tuple[str, str], bytes] = {}
        self.faults, self.broken = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self.answered: dict[tuple[str, str], float] = {}  # party and kind: when last
        self.whole: dict[str, float] = {}  # kind: when the last update with everybody was
        self.partial: dict[tuple[str, str], float] = {}  # party and kind: when an update last went without it
        self.joined: dict[str, float] = {}
        self.said: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(self._pipe) as lines:
            for line in lines:
                self._take(json.loads(line))

    def _take(self, note: dict[str, Any]) -> None:
        kind = str(note.get("study", "")).partition("-")[0]
        match note["what"]:
            case "answer":
                self.answers[note["study"], note["party"]][note["round"]].add(note["body"])
                self.answered[note["party"], kind] = note["at"]
            case "key":
                self.keys[note["study"], note["party"]] = bytes.fromhex(note["key"])
            case "update":
                for party in note["missing"]:
                    self.partial[party, kind] = note["at"]
                if not note["missing"]:
                    self.whole[kind] = note["at"]
            case "fault":
                self.faults[note["fault"], kind] += 1
                self.broken[note["fault"], kind] += not note["good"]
            case "joined":
                self.joined[note["party"]] = note["at"]
            case _:
                self.said.append(note)

    def waiting(self, since: float) -> list[str]:
        """Who has not answered in which study, and which study had no update with everybody."""
        silent = [f"{n} in {k}" for n in NAMES for k in KINDS if self.answered.get((n, k), 0.0) <= since]
        return silent + [f"everybody in {kind}" for kind in KINDS if self.whole.get(kind, 0.0) <= since]


class Torture:
    def __init__(self, folder: Path) -> None:
        self.folder, self.book = folder, Notebook(folder)
        self.proxy = Proxy(free_port())
        first = next(studies(self.proxy.port, "sgd2"))
        self.kits, self.expired = make_kits(first, folder)
        self._nursery = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("torture_sites.py")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")},
        )
        self._said()
        self._starts, self.pids = 0, dict[str, int]()
        self.last = list[str]()  # whom it was waited for at the very end
        self.times: dict[str, list[float]] = defaultdict(list)

    def _said(self) -> str:
        assert self._nursery.stdout is not None
        return self._nursery.stdout.readline().strip()

    def start(self, site: str, role: str = "") -> float:
        """Fork a site; when that was."""
        self._starts += 1
        if site == "coordinator":
            (self.folder / "listen").write_text(f"localhost:{self.proxy.target}")
        begun, pipe = time.monotonic(), self._nursery.stdin
        assert pipe is not None
        pipe.write(f"{site} {self.folder / 'run' / str(self._starts)} {self.kits / f'{site}.zip'}\n")
        pipe.flush()
        self.pids[role or site] = int(self._said())
        return begun

    def kill(self, role: str, number: int = signal.SIGKILL) -> None:
        pid = self.pids[role]
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            while number == signal.SIGKILL:  # the nursery does not wait for it, so it is gone for good
                os.kill(pid, 0)
                time.sleep(0.005)

    def close(self) -> None:
        self._nursery.kill()
        self._nursery.wait()

    def begin(self) -> None:
        since = self.start("coordinator")
        for name in NAMES:
            self.start(name)
        self.goes_on(since)

    def goes_on(self, since: float | None = None) -> float:
        """Seconds until all three studies make progress with everybody."""
        begun = time.monotonic() if since is None else since

        def went_on() -> bool:
            waiting = self.book.waiting(begun)
            self.last = waiting or self.last
            return not waiting

        self.until(went_on, "the studies did not go on")
        return time.monotonic() - begun

    def until(self, test: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + PATIENCE
        while not test():
            if time.monotonic() > end:
                raise TimeoutError(f"{otherwise} in {PATIENCE:g} s; last: {self.book.said[-4:]}")
            time.sleep(0.02)

    def killed_party(self) -> float:
        name = random.choice(NAMES)
        self.kill(name)
        time.sleep(random.choice((0.0, 1.0)))
        return self.goes_on(self.start(name))

    def killed_coordinator(self) -> float:
        self.kill("coordinator")
        time.sleep(random.choice((0.0, 1.0)))
        return self.goes_on(self.start("coordinator"))

    def killed_everybody(self) -> float:
        for name in (*NAMES, "coordinator"):
            self.kill(name)
        since = self.start("coordinator")
        for name in NAMES:
            self.start(name)
        return self.goes_on(since)

    def frozen_party(self) -> float:
        name = random.choice(NAMES)
        self.kill(name, signal.SIGSTOP)
        time.sleep(random.uniform(0.1, 8.0))
        self.kill(name, signal.SIGCONT)
        return self.goes_on()

    def stalled_network(self) -> float:
        self.proxy.flowing.clear()
        time.sleep(random.uniform(0.05, 4.0))
        self.proxy.flowing.set()
        return self.goes_on()

    def cut_network(self) -> float:
        self.proxy.cut()
        return self.goes_on()

    def partition(self) -> float:
        self.proxy.flowing.clear()
        time.sleep(PARTITION)
        self.proxy.flowing.set()
        return self.goes_on()

    def idle_sockets(self) -> float:
        """A hundred callers who say nothing, while a party has to connect anew."""
        places = [self.proxy.target] * 100
        callers = [socket.create_connection(("127.0.0.1", port)) for port in places]
        name = random.choice(NAMES)
        self.kill(name)
        seconds = self.goes_on(self.start(name))
        for caller in callers:
            caller.close()
        return seconds

    def full_disk(self) -> float:
        """No byte of a party reaches a file any more, until it is started again."""
        name = random.choice(NAMES)
        _, hard = resource.prlimit(self.pids[name], resource.RLIMIT_FSIZE)
        resource.prlimit(self.pids[name], resource.RLIMIT_FSIZE, (0, hard))
        time.sleep(random.uniform(0.5, 3.0))
        self.kill(name)
        return self.goes_on(self.start(name))

    def clock_jump(self) -> float:
        self.kill(random.choice((*NAMES, "coordinator")), signal.SIGUSR1)
        return self.goes_on()

    def another_port(self) -> float:
        self.kill("coordinator")
        self.proxy.target = free_port()
        return self.goes_on(self.start("coordinator"))

    def two_coordinators(self) -> float:
        """A second one with the same kit and state; the parties are led to it, and the first is gone later."""
        self.pids["first"] = self.pids["coordinator"]
        self.proxy.target = free_port()
        self.start("coordinator")
        time.sleep(random.uniform(0.5, 3.0))
        self.proxy.cut()
        time.sleep(random.uniform(0.5, 3.0))
        self.kill("first")
        return self.goes_on()

    def duplicate_join(self) -> float:
        """The same party twice, with one kit and one ledger, and without the lock of the command line."""
        name = random.choice(NAMES)
        self.start(name, "twin")
        time.sleep(random.uniform(1.0, 5.0))
        self.kill("twin")
        self.kill(name)
        return self.goes_on(self.start(name))

    def revoked_kit(self) -> float:
        """A party is shut out of the running studies; then its revocation is taken back, and all go on."""
        name, since = random.choice(NAMES), time.monotonic()
        kits.revoke(self.kits, name)
        self.until(
            lambda: self.book.partial.get((name, "sgd2"), 0.0) > since, f"{name} was revoked and stays"
        )
        (self.kits / "revoked.json").unlink()
        for site in ("coordinator", name):
            self.kill(site)
        self.start("coordinator")
        return self.goes_on(self.start(name))

    def expired_kit(self) -> float:
        kit = kits.open_kit(self.expired / f"{random.choice(NAMES)}.zip", self.folder / "expired-kit")
        while True:
            try:
                probe_coordinator(kit)
            except CannotConnect as refused:
                if "expired" not in str(refused):
                    raise
                return self.goes_on()
            except DiscreetError:  # nobody there at the moment
                continue
            raise AssertionError("a coordinator took an expired kit")

    def verdict(self) -> list[str]:
        """What was wrong, in words; nothing if all is well."""
        wrong, bodies = [], Counter[str]()
        for (study, name), rounds in self.book.answers.items():
            bodies.update(body for answers in rounds.values() for body in answers)
            if any(len(answers) > 1 for answers in rounds.values()):
                wrong.append(f"{name} answered a round of {study} in two ways")
            with Ledger.open(self.folder / f"{study}-{name}.ledger") as ledger:
                runs = ledger.runs()
            if study.startswith(("recipe", "masked")):
                paid = sum(run.reserved for run in runs.values())
                if len(rounds) > paid:
                    wrong.append(f"{name} answered {len(rounds)} questions of {study} and paid for {paid}")
                continue
            run = runs[f"{study}/{name}"]
            needed, paid = max(rounds), run.reserved
            if study.startswith("sgd1"):
                wrong += [f"{name} answered call {needed} of {study} unmarked"] * (run.marked < needed)
                needed = sgd1.Calls("balanced", RECORDS, self.book.keys[study, name]).find(needed).uses
            if needed > paid:
                wrong.append(f"{name} answered step {needed} of {study} and paid for {paid}")
        wrong += [f"noise was repeated {count} times" for count in bodies.values() if count > 1]
        wrong += [
            f"{fault} in {kind}: another answer, {n} times"
            for (fault, kind), n in self.book.broken.items()
            if n
        ]
        return wrong

    def table(self) -> str:
        """Markdown: how often, in how many seconds the studies went on, and how often they were locked up."""
        lines = [
            "| fault, in all five studies at once | times | median s | slowest s | over 30 s |",
            "|---|---|---|---|---|",
        ]
        for fault, seconds in self.times.items():
            ordered = sorted(seconds)
            late = sum(one > LOCKED for one in seconds)
            row = f"{len(ordered)} | {ordered[len(ordered) // 2]:.1f} | {ordered[-1]:.1f} | {late}"
            lines.append(f"| {fault.replace('_', ' ')} | {row} |")
        lines += ["", "| fault of a message | SGD1 | SGD2 | secure sums | recipe | recipe, secure sums |"]
        lines += ["|---|---|---|---|---|---|"]
        for fault in sorted({fault for fault, _ in self.book.faults}):
            lines.append(
                f"| {fault} | " + " | ".join(str(self.book.faults[fault, kind]) for kind in KINDS) + " |"
            )
        counts = {
            kind: sum(len(rounds) for (s, _), rounds in self.book.answers.items() if s.startswith(kind))
            for kind in KINDS
        }
        return "\n".join(
            [*lines, "", "Answers: " + ", ".join(f"{kind} {count}" for kind, count in counts.items())]
        )


def make_kits(study: Any, folder: Path) -> tuple[Path, Path]:
    """The kits of all parties, and the same with certificates of the same authority that have expired."""

    class Authority(kits._Authority):
        made: Any = None

        def __init__(self, *words: Any) -> None:
            if Authority.made is None:
                super().__init__(*words)
                Authority.made = self
            self.__dict__ = Authority.made.__dict__

    with replaced(kits, "_Authority", Authority):
        kits.make_kits(study, folder / "kits")
        Authority.made._start -= timedelta(days=200)
        Authority.made._end -= timedelta(days=100)
        kits.make_kits(study, folder / "expired")
    return folder / "kits", folder / "expired"


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Any:
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


FAULTS = (
    "killed_party",
    "killed_coordinator",
    "killed_everybody",
    "frozen_party",
    "stalled_network",
    "cut_network",
    "idle_sockets",
    "full_disk",
    "clock_jump",
    "another_port",
    "two_coordinators",
    "duplicate_join",
    "revoked_kit",
    "expired_kit",
    "partition",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50, help="How often each fault happens.")
    parser.add_argument("--only", choices=FAULTS, nargs="+", default=FAULTS)
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="Stop after so long, and tell what there is."
    )
    parser.add_argument("--twin", choices=("unpaid", "repeated"), default="")
    chosen = parser.parse_args()
    os.environ["TORTURE_TWIN"] = chosen.twin
    end = time.monotonic() + 60 * chosen.minutes
    with tempfile.TemporaryDirectory() as folder:
        torture, wrong = Torture(Path(folder)), []
        try:
            torture.begin()
            for fault in [fault for _ in range(chosen.times) for fault in chosen.only]:  # in turns
                if time.monotonic() > end:
                    break
                torture.times[fault].append(getattr(torture, fault)())
                late = f", last {', '.join(torture.last)}" if torture.times[fault][-1] > LOCKED / 2 else ""
                print(f"{fault} {torture.times[fault][-1]:.1f} s{late}", file=sys.stderr, flush=True)
        except TimeoutError as error:
            wrong.append(f"{fault}: {error}")
        finally:
            torture.close()
        wrong += sorted(set(torture.verdict()))
        print(torture.table())
        print(
            "\n".join(wrong)
            or "Nothing was under-counted, no noise was repeated, no round was answered twice."
        )
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
