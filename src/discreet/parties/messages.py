"""Messages between coordinator and parties: one compact frame, read strictly, never by pickle.

    4 bytes   "DSC1"
    4 bytes   length of the header, little endian
    header    canonical JSON: dtype, kind, party, round, shape, study
    body      the array, raw little-endian bytes
    64 bytes  Ed25519 signature of everything before it; zeros where there is no wire

``party`` is who shall act in a request ("*" means every party) and who speaks in a reply. A signature covers study,
kind, round and party, so a message fits one place in one study only.

>>> sent = Message("0" * 64, "sum", 7, "*", np.array([0.5, 1.0]))
>>> read = Message.decode(sent.encode())
>>> read.kind, read.round, read.array
('sum', 7, array([0.5, 1. ]))

**What counts as an answer**: a signed message of the party that was asked, for the same study and round, of the kind,
type and shape that the question calls for, finite and no larger than an honest one can be. All else is nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.noise_shares import OVERSIZED
from discreet.errors import InvalidParameter, MalformedMessage
from discreet.files import digest
from discreet.guarantee import Unit
from discreet.parties.study import Study

MAGIC = b"DSC1"
MOST_HEADER = 2**12
MOST_BODY = 2**31
SIGNATURE = 64
EVERYBODY = "*"
UNSIGNED = bytes(SIGNATURE)

KINDS = (
    "hello",  # who are you, what comes next; with SGD1, the key of the schedule
    "sum",  # SGD2: the model, for the next noisy sum
    "ask",  # the recipe: a question, for the noisy sum that answers it
    "token",  # SGD1: the model, for the next noisy gradient
    "advertise",  # secure sums: a fresh public key, please
    "join",  #       everybody's public keys
    "mask",  #       the model, for the next noisy sum, masked
    "unmask",  #       who survived, for the shares that unmask the sum
    "end",  # the study is over: the model, for everybody
    "ready",  # replies: the next round
    "noisy",  #       numbers with noise
    "sealed",  #       bytes of a secure sum
    "refused",  #       a Refusal
    "certified",  #       the party's signed certificate, at the end; empty if it keeps it to itself
)
TYPES = ("float32", "float64", "int64", "uint8")
_NAMES = {np.dtype(name): name for name in TYPES}
_LITTLE = {name: np.dtype(name).newbyteorder("<") for name in TYPES}
_PURPOSE = b"discreet message\0"  # a signature made for something else is none of ours
_SIDE = "(?:0|[1-9][0-9]{0,9})"
_HEADER = re.compile(
    f'{{"dtype":"({"|".join(TYPES)})","kind":"({"|".join(KINDS)})","party":"([A-Za-z0-9_-]{{1,40}}|[*])",'
    f'"round":(0|[1-9][0-9]{{0,14}}),"shape":\\[({_SIDE}(?:,{_SIDE})?)?\\],"study":"([0-9a-f]{{64}})"}}'
)


class Refusal(Enum):
    """Why a party refuses: a number and nothing else, decided by public facts alone."""

    MALFORMED = 1  #  not a message, or not signed by the coordinator
    OTHER_STUDY = 2  #  another study, another party, or a request that this algorithm does not have
    OTHER_PLAN = 3  #  not what was begun: another schedule than the ledger knows
    PAST_ROUND = 4  #  a round that is over, or was lost in a crash
    BEYOND_PLAN = 5  #  more rounds or calls than were agreed
    OTHER_REQUEST = 6  #  this round was asked for before, with another model
    NOT_BEGUN = 7  #  a round before the hello
    STOPPED = 8  #  the ledger cannot be written, or something failed at the party: it says no more
    NOT_ALLOWED = 9  #  a question that the study does not allow
    MISSING_PART = 10  #  a part of the question was sent before and is not known any more


class Refused(Exception):
    """A request that a party refuses, and why; leaves the party as its number only."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.name)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Message:
    """One message. ``array`` has at most two dimensions and one of the :data:`TYPES`."""

    study: str
    kind: str
    round: int
    party: str
    array: NDArray[Any] = field(repr=False)
    frame: bytes = field(default=b"", repr=False)  # as received

    def encode(self, key: Ed25519PrivateKey | None = None, roster: Roster | None = None) -> bytes:
        """The frame, signed if there is a key, for those who hold this roster."""
        name = _NAMES[self.array.dtype]
        sides = ",".join(map(str, self.array.shape))
        header = (
            f'{{"dtype":"{name}","kind":"{self.kind}","party":"{self.party}","round":{self.round},'
            f'"shape":[{sides}],"study":"{self.study}"}}'
        ).encode()
        body = self.array.astype(_LITTLE[name], copy=False).tobytes()
        frame = b"".join((MAGIC, len(header).to_bytes(4, "little"), header, body))
        if key is None:
            return frame + UNSIGNED
        if roster is None:
            raise InvalidParameter("roster", None, "is needed: what is signed is signed for one roster.")
        return frame + key.sign(roster.signed_text(hashlib.sha256(frame).digest()))

    @classmethod
    def decode(cls, frame: object, most: int = MOST_BODY) -> Message:
        """The inverse of :meth:`encode`. Anything else raises :class:`MalformedMessage`, and nothing else.

        The array is a view of the frame and cannot be written to.
        """
        if not isinstance(frame, bytes) or len(frame) < 8 + SIGNATURE or frame[:4] != MAGIC:
            raise MalformedMessage("not a message")
        start, end = 8 + int.from_bytes(frame[4:8], "little"), len(frame) - SIGNATURE
        if start > min(end, 8 + MOST_HEADER) or end - start > most:
            raise MalformedMessage("a part of the message is missing or too long")
        header = _HEADER.fullmatch(frame[8:start].decode("latin-1"))
        if header is None:
            raise MalformedMessage("the header is not what a message says, in its one canonical form")
        name, kind, party, round, sides, study = header.groups()
        shape = tuple(map(int, sides.split(","))) if sides else ()
        dtype, count = _LITTLE[name], math.prod(shape)
        if count * dtype.itemsize != end - start:
            raise MalformedMessage("the body does not have the size that the header says")
        array = np.frombuffer(frame, dtype, count, start).reshape(shape)
        return cls(study, kind, int(round), party, array, frame)

    def fingerprint(self) -> bytes:
        """SHA-256 of all that is signed in a message as received."""
        return hashlib.sha256(memoryview(self.frame)[:-SIGNATURE]).digest()


class Roster:
    """Whose signature counts: a public key (hex) for each party, and one named "coordinator".

    A study on a network has a roster. Only where there is no wire, in a rehearsal, may messages be unsigned:
    that is ``Roster.without_wire()``, and coordinators refuse it on any other transport.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = {name: _public_key(name, key) for name, key in dict(keys).items()}
        self.signed = True
        self._text: bytes | None = None

    @classmethod
    def without_wire(cls) -> Roster:
        """For parties in the same process."""
        roster = cls({})
        roster.signed = False
        return roster

    def names(self) -> frozenset[str]:
        """Who has a key."""
        return frozenset(self._keys)

    def key_of(self, name: str) -> Ed25519PublicKey:
        """The public key of a party."""
        return self._keys[name]

    def hexadecimal(self, name: str) -> str | None:
        """The public key of a party as text, or None if it has none."""
        key = self._keys.get(name)
        return None if key is None else key.public_bytes_raw().hex()

    def digest(self) -> str:
        """SHA-256 of all names and keys."""
        return digest({name: self.hexadecimal(name) for name in self._keys})

    def signed_text(self, fingerprint: bytes) -> bytes:
        """What is signed of a message: a signature for one roster is none for another, nor for something else."""
        if self._text is None:
            self._text = _PURPOSE + bytes.fromhex(self.digest())
        return self._text + fingerprint

    def vouches(self, message: Message, sender: str) -> bool:
        """True if ``sender`` signed this message, or nobody has to."""
        if not self.signed:
            return True
        key = self._keys.get(sender)
        if key is None:
            return False
        try:
            key.verify(message.frame[-SIGNATURE:], self.signed_text(message.fingerprint()))
        except InvalidSignature:
            return False
        return True


def _public_key(name: str, key: object) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(str(key)))
    except ValueError:
        raise InvalidParameter(
            f"roster[{name!r}]", key, "must be an Ed25519 public key in hexadecimal."
        ) from None


# What a party brings.
#
# ``discreet.linear.linear_holder.LinearHolder`` and ``discreet.pytorch.torch_holder.TorchHolder`` are such
# holders; anything else that clips what each record adds can be one.


Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Holder(Protocol):
    """A party's records and model. Everything private stays in it.

    ``dimension`` is the length of the parameter vector; ``records`` the number of units, which is private unless
    the neighbours are replace-one. ``unit`` is what is clipped: each ``"record"`` by itself, or each ``"person"``
    with all of their rows; a holder without it clips records. A party refuses a holder of another unit than the
    study protects. No function may fail, warn or log because of what a record says: one with NaN or infinity in it
    counts as zero.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def records(self) -> int: ...

    @property
    def unit(self) -> Unit: ...

    def clipped_sum(self, theta: Floats, records: Indices | None) -> BoundedSum:
        """The sum of the clipped gradients at ``theta`` of the chosen records, or of all."""

    def hardened_sum(self, theta: Floats, records: Indices | None, grid: float) -> BoundedSum:
        """The same in whole steps of ``grid``."""


class CheckedQuestion(Protocol):
    """A question that a party has read and checked: what it costs, and the sum that it asks for."""

    number: int
    stage: str
    share: float
    steps: int
    kinds: tuple[str, ...]
    digest: bytes
    bound: float
    size: int

    def fits(self, grid: float) -> bool:
        """Whether a table without rows answers the question on this grid."""

    def total(self, grid: float) -> NDArray[np.int64]:
        """The sum over the party's rows, in whole steps of ``grid``. Private."""


class QuestionTable(Protocol):
    """A party's rows in a study by the recipe, such as :class:`~discreet.linear.party_table.PartyTable`.

    A record, or person, moves the sum that a question asks for by at most its ``bound``, in the l2 norm.
    """

    @property
    def records(self) -> int: ...

    @property
    def unit(self) -> Unit: ...

    def read(self, body: bytes, kinds: Collection[str], numbers: int) -> CheckedQuestion:
        """The question in ``body``, or :class:`MalformedMessage`; :class:`LookupError` if a part is missing.

        Guarantee: depends on the question and the study alone, never on a row.
        """


# How messages travel. The protocol knows nothing but this.
#
# `DirectTransport` calls the parties in this process; the network's is `nvflare`.


Answer = Callable[[bytes], bytes]


@runtime_checkable
class Transport(Protocol):
    """Whoever does not answer in time is None, or absent. Nothing is retried here, and no error is raised."""

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        """The answer of one party."""

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        """The answers of several parties to the same message."""


class DirectTransport:
    """Parties in this process, called one after the other: no wire, no threads, nothing random."""

    def __init__(self, parties: Mapping[str, Answer]) -> None:
        self._parties = dict(parties)

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        answer = self._parties.get(party)
        return None if answer is None else answer(message)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        return {party: self._parties[party](message) for party in parties if party in self._parties}


Reply = Message | Refusal


class CoordinatorClient:
    """The coordinator's side of the wire."""

    def __init__(
        self, study: Study, transport: Transport, roster: Roster, key: Ed25519PrivateKey | None
    ) -> None:
        self._study, self._transport, self._roster, self._key = study, transport, roster, key
        self._timeout = study.network.timeout
        self._bounds = {name: longest_message(study, name) for name in study.names}
        self.silent: set[str] = set()  # who did not answer last time is not asked twice in one round
        self.refused: dict[str, Refusal] = {}  # the last reason of each party that has not answered since

    def hello(self, party: str, schedule: bytes) -> int | Refusal | None:
        """The next round that a party will answer, or why not, or None if it is not there."""
        body = np.frombuffer(schedule, np.uint8)
        reply = self.ask(party, Message(self._study.digest(), "hello", 0, party, body))
        if isinstance(reply, Message):
            good = reply.kind == "ready" and reply.array.dtype == np.int64 and reply.array.shape == (1,)
            return int(reply.array[0]) if good and reply.array[0] > 0 else None
        return reply

    def ask(self, party: str, request: Message) -> Reply | None:
        """The reply of one party."""
        frame = request.encode(self._key, self._roster)
        reply = self._transport.ask(party, frame, self._timeout)
        if reply is None and party not in self.silent:
            reply = self._transport.ask(party, frame, self._timeout)  # the answer is the same, or never was
        self._note(party, reply is not None)
        return None if reply is None else self._read(party, reply, request.round)

    def ask_all(self, parties: Iterable[str], request: Message) -> dict[str, Reply]:
        """The replies of all who gave one."""
        names, frame = list(parties), request.encode(self._key, self._roster)
        frames = self._transport.broadcast(names, frame, self._timeout)
        again = [name for name in names if name not in frames and name not in self.silent]
        if again:
            frames |= self._transport.broadcast(again, frame, self._timeout)
        for name in names:
            self._note(name, name in frames)
        found = {name: self._read(name, frames[name], request.round) for name in names if name in frames}
        return {name: reply for name, reply in found.items() if reply is not None}

    def noisy(self, party: str, reply: Reply | None) -> Floats | None:
        """What a party released, or None if the reply is something else."""
        if not isinstance(reply, Message) or reply.kind != "noisy":
            return None
        value, bound = reply.array, self._bounds[party]
        if value.dtype != np.float64 or value.shape != (self._study.dimension,):
            return None
        with np.errstate(all="ignore"):
            length = float(value @ value) ** 0.5
        return value if length <= bound else None  # NaN compares as False

    def _note(self, party: str, answered: bool) -> None:
        if answered:
            self.silent.discard(party)
        else:
            self.silent.add(party)

    def _read(self, party: str, frame: object, round: int) -> Reply | None:
        try:
            reply = Message.decode(frame)
        except MalformedMessage:
            return None
        rounds = (round, 0) if reply.kind == "refused" else (round,)  # 0: refused before the round was read
        fits = reply.study == self._study.digest() and reply.party == party and reply.round in rounds
        if not fits or not self._roster.vouches(reply, party):
            return None
        if reply.kind != "refused":
            if reply.kind != "ready":  # a party may answer a hello and refuse the question again
                self.refused.pop(party, None)
            return reply
        code = reply.array
        known = code.dtype == np.uint8 and code.shape == (1,) and code[0] in Refusal._value2member_map_
        if not known:
            return None
        self.refused[party] = Refusal(int(code[0]))
        return self.refused[party]


def longest_message(study: Study, party: str) -> float:
    """The length that no honest message exceeds: that of the party's sum, and the longest noise.

    Noise of standard deviation s in d coordinates, or discrete noise of that scale, is longer than
    s (sqrt(d) + sqrt(2 t)) with a chance of exp(-t) at most (Hsu, Kakade, Zhang 2012).
    """
    records = float(study.records_of(party) if study.algorithm == "sgd2" else 1)
    if study.training.party_bound is not None:
        records = min(records, study.training.party_bound)
    deviations = math.sqrt(study.dimension) + math.sqrt(-2 * math.log(OVERSIZED))
    return study.training.clip_norm * (records + study.noise_multiplier * deviations) * (1 + 1e-3)


MOST_PAUSE = 64
"""After so many updates at most, or one timeout, a party that was missing is asked again."""


class Backoff:
    """How long a party that did not answer is left alone: twice as many updates each time, but not for long.

    To ask somebody who is silent takes a timeout, so this much time may pass between two questions as well: the study
    takes twice as long at most, and who is back is asked soon, however slow its updates are.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic, *, due: int = 0) -> None:
        self._timeout, self._clock = timeout, clock
        self._due, self._until, self._length = due, math.inf, 1

    def over(self, update: int) -> bool:
        """Whether the party is to be asked in this update."""
        return update >= self._due or self._clock() >= self._until

    def lengthen(self, update: int) -> None:
        """The party was asked again."""
        self._due, self._until = update + self._length, self._clock() + self._timeout
        self._length = min(2 * self._length, MOST_PAUSE)
