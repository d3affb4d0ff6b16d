"""The sites of the torture: parties and a coordinator that misbehave in messages, and note everything that leaves.

``python torture_sites.py FOLDER`` is a nursery: it has loaded everything, and forks a site for each line that it
reads (NAME, folder of its own, kit), so that a site that was killed is back at once. All sites write lines of JSON
into one pipe, FOLDER/notes: what is in a pipe outlives whoever wrote it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from discreet.adapters.joint_recipe import JointRecipe
from discreet.core.randomness import RandomStream
from discreet.errors import StudyStopped
from discreet.ledger import Ledger
from discreet.linear.checked_questions import Question
from discreet.linear.gate.private_table import TargetRows
from discreet.linear.losses import Logistic
from discreet.linear.party_table import PartyTable
from discreet.linear.question_codec import question_digest
from discreet.linear.question_writer import encode
from discreet.linear.row_source import Table
from discreet.linear.row_views.targets import ClassOf
from discreet.parties import Coordinator, Party, Progress, Study
from discreet.parties.coordinator import Conversation
from discreet.parties.messages import MalformedMessage, Message, Roster
from discreet.parties.network.kits import Kit, open_kit
from discreet.parties.party_plan import PartyPlan
from discreet.trusted import permits
from discreet.trusted.queries import Blocks, Cells
from party_network import Wide, study_of

NAMES = ("party-0", "party-1", "party-2")
KINDS = ("sgd1", "sgd2", "secure", "recipe", "masked")
"""Masked are studies by the recipe with secure sums."""
CHANCE = 0.04  # of a fault in a message
PACE = {"sgd1": 0.02, "sgd2": 0.06, "secure": 0.08, "recipe": 0.06, "masked": 0.08}  # seconds between updates
QUESTIONS = 3000
SCHEMA = {"columns": {"x": {"bounds": [0, 1]}, "t": {"flag": "yes"}}, "target": "t"}
MOST_STUDIES = 40  # of each kind
RELEASES = {"noisy", "sealed"}  # kinds of answers that must be one for each request


def kind_of(study: Study) -> str:
    if study.algorithm == "recipe":
        return "masked" if study.aggregation.kind == "secure" else "recipe"
    return "secure" if study.aggregation.kind == "secure" else study.algorithm


def recipe_of(base: Study, secure: bool) -> Study:
    """A study by the recipe with the parties and the network of another one."""
    told = base.to_dict()
    return Study.from_dict(
        {
            "study": told["study"] | {"algorithm": "recipe"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "add-remove"},
            "questions": {"kinds": ["classes"], "releases": QUESTIONS, "numbers": 2},
            "aggregation": {"kind": "secure" if secure else "plain", "dropouts": 1},
            "model": {"kind": "classification", "family": "linear"} | SCHEMA,
        }
        | {name: told[name] for name in ("parties", "network")}
    )


def nobody(study: Study) -> PartyTable:
    """A table without rows, so that what leaves is the noise itself."""
    return JointRecipe.of(study).table_of(Table({"x": np.zeros(0), "t": np.zeros(0, object)}, 0))


def ask_forever(conversation: Conversation) -> bytes:
    """A strategy that asks for the number of records of each class again and again."""
    view, query = TargetRows(Logistic()), Blocks((Cells(ClassOf(Logistic()), (2,), (1.0,)),), 1.0)
    event = conversation.study.noise_scale.event(1.0, QUESTIONS)
    for number in range(1, QUESTIONS + 1):
        body = encode(Question(number, "counts", 1.0, QUESTIONS, view, None, None, query), ())
        digest = question_digest(body).hex()
        conversation.ask(number, lambda everything, body=body: body, digest, query.size, query.bound, event)
    return b"a model"


def studies(port: int, kind: str) -> Any:
    """The studies of one kind, one after the other: restarts use up a plan, a hundredth each."""
    for number in range(MOST_STUDIES):
        training: dict[str, int] = {"tokens": 9000} if kind == "sgd1" else {"rounds": 3000}
        made = study_of(f"{kind}-{number}", 3, port, 20, timeout=5.0, **training)
        if kind in ("recipe", "masked"):
            made = recipe_of(made, kind == "masked")
        if kind == "secure":
            made = Study.from_dict(made.to_dict() | {"aggregation": {"kind": "secure", "dropouts": 1}})
        yield made


class Notes:
    """A pipe to whoever watches."""

    def __init__(self, folder: Path) -> None:
        self._pipe = os.open(folder / "notes", os.O_WRONLY)

    def __call__(self, what: str, **details: Any) -> None:
        os.write(self._pipe, (json.dumps({"what": what, "at": time.monotonic(), **details}) + "\n").encode())


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


SPOILED: tuple[Callable[[bytes], bytes], ...] = (
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
    rewritten(array=lambda m: m.array + np.ones((), m.array.dtype)),
    rewritten(array=lambda m: np.full(m.array.size + 1, 1e300)),
)


def party_site(folder: Path, kit: Kit, note: Notes) -> None:
    """Answers for every study that it is asked about; each has its own durable ledger."""
    from discreet.parties.network.nvflare import connect

    made: dict[str, Party] = {}
    twin, stream = os.environ.get("TORTURE_TWIN"), None
    if twin == "unpaid":
        permits.Charger.up_to = lambda self, step, noise, clip_norm, most: (  # type: ignore[method-assign]
            permits.NoisePermit(noise, clip_norm, self._stream, 1, permits._KEY)
        )
    if twin == "repeated":
        stream = RandomStream(unsafe_seed=1)
    known = {
        study.digest(): study for kind in KINDS for study in islice(studies(kit.port, kind), MOST_STUDIES)
    }

    def party_of(digest: str) -> Party:
        if digest not in made:
            study = known[digest]
            place, terms = folder / f"{study.name}-{kit.party}.ledger", PartyPlan(study, kit.party)
            book = Ledger.open(place) if place.exists() else Ledger.create(place, terms.rule)
            asked = study.algorithm == "recipe"
            holder: Any = (
                nobody(study) if asked else Wide(study.dimension)
            )  # all sums are zero: only noise leaves
            options: dict[str, Any] = {"stream": stream, "log": place.with_suffix(".answers")}
            made[digest] = Party(kit.party, study, holder, book, kit.signing_key(), kit.roster, **options)
        return made[digest]

    lock = threading.Lock()
    first = next(studies(kit.port, "sgd2")).digest()
    party_of(first).prepare()

    def answer(request: bytes) -> bytes:
        try:
            asked = Message.decode(request)
            with lock:
                party = party_of(asked.study if asked.study in known else first)
        except MalformedMessage:
            return made[first].answer(request)
        reply = party.answer(request)
        message = Message.decode(reply)
        if asked.kind == "hello" and message.kind == "ready" and asked.array.size:
            note("key", party=kit.party, study=party.study.name, key=asked.array.tobytes().hex())
        if message.kind == "noisy" or (message.kind == "sealed" and asked.kind == "mask"):
            body = hashlib.sha256(message.array.tobytes()).hexdigest()
            if (
                party.study.algorithm == "recipe"
            ):  # masks are drawn anew, and the answer under them is the same
                entry = party._log.find(message.round)
                assert entry is not None
                body = hashlib.sha256(entry.counts.tobytes()).hexdigest()
            note("answer", party=kit.party, study=party.study.name, round=message.round, body=body)
            if random.random() < CHANCE:
                note("fault", fault="altered answer", study=party.study.name, good=True)
                return random.choice(SPOILED)(reply)
        return reply

    with connect(kit, answer) as line:
        note("joined", party=kit.party)
        while True:
            time.sleep(0.2)
            line.check()


class Unreliable:
    """Loses, doubles, delays, alters and repeats. A party gives the answer that it gave before, or a refusal."""

    def __init__(self, transport: Any, study: Study, note: Notes, roster: Roster) -> None:
        self._transport, self._note, self._study, self._roster = transport, note, study, roster
        self._before: tuple[bytes, dict[str, bytes]] = (b"", {})

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        return self.broadcast([party], message, timeout).get(party)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        time.sleep(PACE[kind_of(self._study)])
        faults = ("doubled", "replayed", "altered", "lost question", "lost answer", "delayed")
        fault, send = random.choice(faults) if random.random() < CHANCE else "", self._transport.broadcast
        if fault == "altered":
            replies = send(parties, random.choice(SPOILED[:11])(message), timeout)
            self._tell(fault, all(Message.decode(reply).kind not in RELEASES for reply in replies.values()))
        if fault == "lost question":
            self._tell(fault, True)
            return {}
        replies = dict(send(parties, message, timeout))
        if fault == "doubled":
            self._same(fault, replies, send(parties, message, timeout))
        if fault == "replayed" and self._before[0] not in (b"", message):
            asked = list(self._before[1])
            self._same(fault, self._before[1], send(asked, self._before[0], timeout))
        if fault == "delayed":
            time.sleep(random.uniform(0.0, 3.0))
            self._tell(fault, True)
        self._before = (message, replies)
        if fault == "lost answer":
            self._tell(fault, True)
            return {}
        return replies

    def _same(self, fault: str, before: dict[str, bytes], again: dict[str, bytes]) -> None:
        """Whoever had answered gives the same answer, or a refusal."""
        pairs = [(before[name], again[name]) for name in again.keys() & before.keys()]
        self._tell(fault, all(first == second or self._unlike(first, second) for first, second in pairs))

    def _unlike(self, *frames: bytes) -> bool:
        """True if they need not be alike: the second releases nothing, or one of them was garbage on purpose."""
        try:
            messages = [Message.decode(frame) for frame in frames]
        except MalformedMessage:
            return True
        if messages[1].kind not in RELEASES or (
            messages[1].kind == "sealed" and messages[1].array.size < 100
        ):
            return True  # a refusal, or the answer to a join, in which nothing is
        return not all(self._roster.vouches(message, message.party) for message in messages)

    def _tell(self, fault: str, good: bool) -> None:
        self._note("fault", fault=fault, study=self._study.name, good=good)


def coordinator_site(folder: Path, kit: Kit, note: Notes) -> None:
    """Runs a study of each kind at the same time, and when one has ended, the next."""
    from discreet.parties.network.nvflare import NVFlareTransport, listen

    with listen(kit, (folder / "listen").read_text()) as first:
        note("up")
        for kind in KINDS:
            transport = NVFlareTransport(first._site, first._refused)  # what it remembers is of one study
            work = threading.Thread(target=run_kind, args=(folder, kit, note, transport, kind), daemon=True)
            work.start()
        while True:
            time.sleep(0.2)


def run_kind(folder: Path, kit: Kit, note: Notes, transport: Any, kind: str) -> None:
    for study in studies(kit.port, kind):
        ended = False

        def told(now: Progress, study: Study = study) -> None:
            note("update", study=study.name, update=now.update, missing=list(now.missing))

        while not ended:
            while not all(map(transport.connected, study.names)):
                time.sleep(0.05)
            wire = Unreliable(transport, study, note, Roster(kit.roster))
            state = folder / f"{study.name}.npz"
            try:
                strategy = ask_forever if study.algorithm == "recipe" else None
                key = kit.signing_key()
                made = Coordinator(study, wire, kit.roster, state, told, signing_key=key, strategy=strategy)
                made.run()
                ended = True
            except StudyStopped as stopped:
                note("stopped", study=study.name, why=str(stopped)[:300])
                time.sleep(0.3)


def nursery(folder: Path) -> None:
    import nvflare.private.fed.app.client.client_train
    import nvflare.private.fed.app.server.server_train  # noqa: F401

    import discreet.parties.network.nvflare  # noqa: F401

    assert threading.active_count() == 1, "nobody forks with threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        site, place, kit = line.split()
        child = os.fork()
        if child == 0:
            run_site(folder, site, Path(place), Path(kit))
        print(child, flush=True)


def run_site(folder: Path, site: str, place: Path, kit_file: Path) -> None:
    """A site, until it is killed or something goes wrong; never returns."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it does not outlive the nursery
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        random.seed(os.urandom(16))
        place.mkdir(parents=True)
        with open(os.devnull) as nothing, (place / "errors").open("w") as errors:
            os.dup2(nothing.fileno(), 0)
            os.dup2(errors.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        jumping_clock()
        kit, note = open_kit(kit_file, place / "kit"), Notes(folder)
        try:
            (coordinator_site if site == "coordinator" else party_site)(folder, kit, note)
        except Exception as error:
            note("ended", site=site, why=f"{type(error).__name__}: {error}"[:300])
    finally:
        os._exit(1)


def jumping_clock() -> None:
    """On SIGUSR1 the clock of this process, as Python tells it, jumps by up to a year, either way."""
    honest, shift = time.time, [0.0]
    time.time = lambda: honest() + shift[0]

    def jump(*_: Any) -> None:
        shift[0] = random.uniform(-1, 1) * 365 * 86400

    signal.signal(signal.SIGUSR1, jump)


if __name__ == "__main__":
    nursery(Path(sys.argv[1]))
