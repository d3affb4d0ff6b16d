"""Break a study over a real network in every way we know, many times, and look whether anything was under-counted.

    python benchmarks/torture_parties.py [--times 20] [--only killed-party]

Three parties and a coordinator, each a process; parties reach the coordinator through a proxy that can stall or cut
connections in the middle of a message. Every party notes each answer it gives, durably and before it leaves. At the
end each ledger is compared with these notes: no answer that was not paid for, no round answered in two ways, no two
answers alike. After each fault the study must go on with all parties.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discreet.ledger import Ledger
from discreet.parties.messages import MalformedMessage, Message
from party_network import Answer, Network, coordinator_site, free_port, party_site, study_of

NAMES = ("party-0", "party-1", "party-2")
CHANCE = 0.05  # of a fault in a message
ROUNDS, PACE = (
    12_000,
    0.08,
)  # a restarted party has lost a hundredth of the plan at most: some ten seconds of this one


# ---- at the parties: note every answer, and now and then send something else ----


def noting(folder: Path, name: str) -> Callable[[Answer], Answer]:
    """Note each answer on disk before it leaves; sometimes garbage leaves instead of it."""
    notes = os.open(folder / f"{name}.answers", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    spoiled = os.open(folder / f"{name}.spoiled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def around(answer: Answer) -> Answer:
        def noted(request: bytes) -> bytes:
            reply = answer(request)
            message = Message.decode(reply)
            if message.kind != "noisy":
                return reply
            os.write(
                notes, f"{message.round} {hashlib.sha256(message.array.tobytes()).hexdigest()}\n".encode()
            )
            if random.random() > CHANCE:
                return reply
            kind = random.randrange(len(SPOILED))
            os.write(spoiled, f"{kind}\n".encode())
            return SPOILED[kind](reply)

        return noted

    return around


def flipped(frame: bytes) -> bytes:
    place = random.randrange(len(frame))
    return frame[:place] + bytes([frame[place] ^ (1 << random.randrange(8))]) + frame[place + 1 :]


def rewritten(**changes: Any) -> Callable[[bytes], bytes]:
    """The same message with something else in it, and no valid signature."""

    def spoil(frame: bytes) -> bytes:
        message = Message.decode(frame)
        parts = {name: getattr(message, name) for name in ("study", "kind", "round", "party", "array")}
        return Message(**(parts | {key: value(message) for key, value in changes.items()})).encode()

    return spoil


SPOILED: tuple[Callable[[bytes], bytes], ...] = (  # twelve kinds of garbage
    lambda frame: b"",
    lambda frame: b"\x00" * len(frame),
    lambda frame: os.urandom(len(frame)),
    lambda frame: frame[: len(frame) // 2],
    lambda frame: frame + b"more",
    flipped,
    lambda frame: frame[:4] + b"\xff\xff\xff\xff" + frame[8:],
    rewritten(study=lambda m: "0" * 64),
    rewritten(round=lambda m: m.round + 1),
    rewritten(party=lambda m: random.choice(NAMES)),
    rewritten(array=lambda m: np.full_like(m.array, np.nan)),
    rewritten(array=lambda m: np.full(m.array.size + 1, 1e300)),
)


# ---- at the coordinator: duplicates, replays, stale rounds, garbage ----


class Unreliable:
    """Sends more than it is asked to. What comes back must be what came back before, or a refusal."""

    def __init__(self, transport: Any, folder: Path) -> None:
        self._transport = transport
        self._before: tuple[bytes, dict[str, bytes]] = (b"", {})
        self._log = (folder / "unreliable.log").open("a")

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        return self.broadcast([party], message, timeout).get(party)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        time.sleep(PACE)
        fault = random.choice(("duplicate", "replay", "garbage", "other")) if random.random() < CHANCE else ""
        if fault == "garbage":
            self._refused(
                fault, self._transport.broadcast(parties, random.choice(SPOILED[:11])(message), timeout)
            )
        replies = dict(self._transport.broadcast(parties, message, timeout))
        if fault == "duplicate":
            self._same(fault, replies, self._transport.broadcast(parties, message, timeout))
        if fault == "replay" and self._before[0] not in (b"", message):
            self._same(fault, self._before[1], self._transport.broadcast(parties, self._before[0], timeout))
        if fault == "other":
            changed = (
                rewritten(array=lambda m: m.array + 1.0)(message) if len(message) > 300 else message[:-1]
            )
            self._refused(fault, self._transport.broadcast(parties, changed, timeout))
        self._before = (message, replies)
        return replies

    def _same(self, fault: str, before: dict[str, bytes], again: dict[str, bytes]) -> None:
        """Whoever had answered gives the same answer, or a refusal."""
        pairs = [(before[name], again[name]) for name in again.keys() & before.keys()]
        self._note(fault, all(first == second or unlike(first, second) for first, second in pairs))

    def _refused(self, fault: str, replies: dict[str, bytes]) -> None:
        self._note(fault, all(Message.decode(reply).kind != "noisy" for reply in replies.values()))

    def _note(self, fault: str, good: bool) -> None:
        self._log.write(f"{fault} {'held' if good else 'BROKEN'}\n")
        self._log.flush()


def unlike(first: bytes, second: bytes) -> bool:
    """True if they need not be alike: the second releases nothing, or one of them was garbage on purpose."""
    try:
        two = (Message.decode(first), Message.decode(second))[1]
    except MalformedMessage:
        return True
    return two.kind != "noisy" or bytes(64) in (first[-64:], second[-64:])


# ---- between them: a proxy ----


class Proxy:
    """Forwards bytes; ``cut`` closes every connection where it is, ``stalled`` stops forwarding."""

    def __init__(self, port: int) -> None:
        self._target = port
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
                outer = socket.create_connection(("127.0.0.1", self._target))
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
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


# ---- the faults ----


class Torture:
    def __init__(self, folder: Path) -> None:
        inner = free_port()
        self.proxy = Proxy(inner)
        self.study = study_of("long", 3, self.proxy.port, 20, rounds=ROUNDS, timeout=5.0)
        self.network = Network(folder, [self.study], __file__)
        (folder / "listen").write_text(f"localhost:{inner}")
        self.folder, self.counts = folder, Counter[str]()

    def begin(self) -> None:
        begun = self.network.start_all()
        self.network.run("long")
        self.goes_on(begun)

    def goes_on(self, since: float) -> None:
        """The study makes updates again, with everybody."""
        self.network.wait(lambda e: e["what"] == "update" and e["missing"] == [], since, 240.0)

    def killed_party(self) -> None:
        name = random.choice(NAMES)
        self.network.signal(name, signal.SIGKILL)
        time.sleep(random.choice((0.0, 1.0)))
        self.goes_on(self.network.start(name))

    def frozen_party(self) -> None:
        name = random.choice(NAMES)
        self.network.signal(name, signal.SIGSTOP)
        time.sleep(random.uniform(0.1, 8.0))
        self.network.signal(name, signal.SIGCONT)
        self.goes_on(time.time())

    def stalled_network(self) -> None:
        self.proxy.flowing.clear()
        time.sleep(random.uniform(0.05, 4.0))
        self.proxy.flowing.set()
        self.goes_on(time.time())

    def cut_network(self) -> None:
        self.proxy.cut()
        self.goes_on(time.time())

    def killed_coordinator(self) -> None:
        self.network.signal("coordinator", signal.SIGKILL)
        time.sleep(random.choice((0.0, 2.0)))
        since = self.network.start("coordinator")
        self.network.run("long")
        self.goes_on(since)

    def messages(self) -> None:
        """Duplicates, replays, garbage: they happen all the time; wait for some."""
        time.sleep(0.5)
        self.goes_on(time.time())

    # ---- what must hold ----

    def verdict(self) -> list[str]:
        """What was wrong, in words; nothing if all is well."""
        wrong = []
        for name in NAMES:
            notes = [line.split() for line in (self.folder / f"{name}.answers").read_text().splitlines()]
            answers = {(int(round), body) for round, body in notes}
            with Ledger.open(self.folder / f"long-{name}.ledger") as ledger:
                paid = ledger.runs()[f"long/{name}"].reserved
            rounds = {round for round, _ in answers}
            if len(answers) != len(rounds):
                wrong.append(f"{name} answered a round in two ways")
            if len({body for _, body in answers}) != len(answers):
                wrong.append(f"{name} repeated its noise")
            if max(rounds) > paid:
                wrong.append(f"{name} answered round {max(rounds)} and paid for {paid}")
            self.counts["answers"] += len(rounds)
            kinds = (self.folder / f"{name}.spoiled").read_text().split()
            self.counts.update(f"garbage {int(kind) + 1:02}" for kind in kinds)
        for line in (self.folder / "unreliable.log").read_text().splitlines():
            fault, outcome = line.split()
            self.counts[fault] += 1
            if outcome != "held":
                wrong.append(f"a party gave another answer to a {fault}")
        return wrong


FAULTS = ("killed_party", "frozen_party", "stalled_network", "cut_network", "killed_coordinator", "messages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="How often each fault happens.")
    parser.add_argument("--only", choices=FAULTS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torture = Torture(Path(folder))
        try:
            torture.begin()
            for fault in [chosen.only] if chosen.only else FAULTS:
                begun = time.time()
                for _ in range(chosen.times):
                    getattr(torture, fault)()
                    torture.counts[fault] += 1
                print(
                    f"{fault}: {chosen.times} times in {time.time() - begun:.0f} s; the study goes on",
                    flush=True,
                )
        finally:
            torture.network.close()
        wrong = torture.verdict()
        print("  ".join(f"{name} {count}" for name, count in sorted(torture.counts.items())))
        print(
            "\n".join(wrong)
            or "Nothing was under-counted, no noise was repeated, no round was answered twice."
        )
        sys.exit(bool(wrong))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in (*NAMES, "coordinator"):
        place, site = Path(sys.argv[1]), sys.argv[2]
        if site == "coordinator":
            coordinator_site(place, lambda transport: Unreliable(transport, place))
        else:
            party_site(place, site, noting(place, site))
    else:
        main()
