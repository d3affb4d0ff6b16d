"""A wire in this process that loses, repeats, delays and garbles messages, kills either side, and is tapped.

Parties have signing keys, and ledgers in a folder or in memory; one that is killed is made anew on the same ledger.
The tap sees every byte that left a party, whether or not it arrived.
"""

from collections import Counter, defaultdict
from functools import lru_cache

import numpy as np

from discreet.parties.messages import Message, Roster
from discreet.parties.sgd1 import Calls, derived_key
from support.parties_bank import KEYS, ROSTER, clipped_gradients, holders, ledger_of, party_of, tables

TABLES = tables()


class Killed(BaseException):
    """The coordinator's process is gone."""


class Wire:
    """``fault(wire, party, message, deliver)`` stands between the coordinator and the party."""

    def __init__(self, plan, fault=None, folder=None, stream=None):
        self.plan, self.folder, self.fault, self.stream = plan, folder, fault, stream
        self.rows, self.ledgers = holders(), {}
        self.parties, self.injected, self.asked = {}, 0, 0
        self.tap = []  # (party, request, reply)
        for name in plan.names:
            self.restart(name)

    def restart(self, name):
        """kill -9 and a new process."""
        ledger = self.ledgers.get(name)
        if self.folder is not None:
            if ledger is not None:
                ledger.close()
            ledger = ledger_of(self.plan, name, self.folder / f"{name}.ledger")
        self.ledgers[name] = ledger = ledger or ledger_of(self.plan, name)
        self.parties[name] = party_of(
            self.plan, name, holder=self.rows[name], ledger=ledger, stream=self.stream
        )

    def deliver(self, party, message):
        reply = self.parties[party].answer(message)
        self.tap.append((party, message, reply))
        return reply

    def ask(self, party, message, timeout):
        self.asked += 1
        if self.fault is None:
            return self.deliver(party, message)
        return self.fault(self, party, message, lambda m=message: self.deliver(party, m))

    def broadcast(self, parties, message, timeout):
        replies = {name: self.ask(name, message, timeout) for name in parties}
        return {name: reply for name, reply in replies.items() if reply is not None}

    def released(self):
        """Per party and round, the distinct noisy messages that left, with the model that they were made for."""
        found = defaultdict(set)
        for party, request, reply in self.tap:
            message = Message.decode(reply)
            if message.kind in ("noisy", "sealed"):
                asked = Message.decode(request)
                found[party, asked.kind, message.round].add((asked.array.tobytes(), message.array.tobytes()))
        return found

    def check(self, key=None):
        """Nothing is under-counted, no round is answered in two ways, and no noise is used twice."""
        released, kind = self.released(), "token" if self.plan.algorithm == "sgd1" else "sum"
        rounds = {where: answers for where, answers in released.items() if where[1] == kind}
        assert all(len(answers) == 1 for answers in rounds.values()), "a round was answered twice"
        for name in self.plan.names:
            answered = sorted(round for party, _, round in rounds if party == name)
            reserved = sum(run.reserved for run in self.ledgers[name].runs().values())
            assert needed_steps(self.plan, name, answered, key) <= reserved, "something is not counted"
        noise = [
            np.frombuffer(answer) - exact(self.plan, where, np.frombuffer(theta), key)
            for where, ((theta, answer),) in ((w, tuple(a)) for w, a in rounds.items())
        ]
        distinct = {tuple(vector.round(9)) for vector in noise}
        assert len(distinct) == len(noise), "noise was used twice"
        return len(noise)


def needed_steps(plan, name, answered, key):
    """How many steps a ledger must hold for these rounds, counted without its help."""
    if plan.algorithm == "sgd2" or plan.training.schedule == "private":
        return len(answered)
    records = schedule_of(plan, name, key)
    return max(Counter(records[call - 1] for call in answered).values(), default=0)


@lru_cache(maxsize=16)
def _schedule(kind, records, key, calls):
    sequence = Calls(kind, records, key)
    return [sequence.take(call)[0] for call in range(1, calls + 1)]


def schedule_of(plan, name, key):
    """Which record each call of a party concerns."""
    own = derived_key(key, f"party {name}")
    return _schedule(plan.training.schedule, plan.parties[name], own, plan.updates)


def exact(plan, where, theta, key):
    """What the party would have sent without noise."""
    name, _, round = where
    X, y = TABLES[name]
    if plan.algorithm == "sgd2":
        return clipped_gradients(theta, X, y).sum(0)
    record = schedule_of(plan, name, key)[round - 1]
    return clipped_gradients(theta, X[record : record + 1], y[record : record + 1])[0]


def sometimes(strike, every):
    """The fault strikes every so many times, in the middle of a study."""

    def fault(wire, party, message, deliver):
        if wire.asked > 6 and wire.asked % every == 0:
            wire.injected += 1
            return strike(wire, party, message, deliver)
        return deliver()

    return fault


def killed_before(wire, party, message, deliver):
    wire.restart(party)


def killed_after(wire, party, message, deliver):
    deliver()
    wire.restart(party)


def request_lost(wire, party, message, deliver):
    return None


def reply_lost(wire, party, message, deliver):
    deliver()


def duplicated(wire, party, message, deliver):
    deliver()
    return deliver()


def replayed(wire, party, message, deliver):
    """Everything that was ever sent to the party arrives again, first."""
    for old in [request for name, request, _ in wire.tap if name == party][-20:]:
        deliver(old)
    return deliver()


def reordered(wire, party, message, deliver):
    """A later message overtakes this one."""
    asked = Message.decode(message)
    later = Message(asked.study, asked.kind, asked.round + 1, asked.party, asked.array + 0).encode()
    if asked.kind in ("sum", "token"):
        deliver(later)
    return deliver()


def stale_reply(wire, party, message, deliver):
    """The reply to an earlier question arrives in place of this one's."""
    deliver()
    return next(reply for name, _, reply in wire.tap if name == party)


def cut_off(wire, party, message, deliver):
    """The connection breaks in the middle of the reply."""
    reply = deliver()
    return reply[: len(reply) // 2]


def late(wire, party, message, deliver):
    """The request is executed after the coordinator gave up; it comes once more, and much later again."""
    deliver()
    wire.late = [*getattr(wire, "late", []), (party, message)]
    for name, old in wire.late[:-3]:
        wire.deliver(name, old)


FAULTS = {
    "party killed before it answers": killed_before,
    "party killed after it answered": killed_after,
    "request lost": request_lost,
    "reply lost": reply_lost,
    "duplicate": duplicated,
    "replay": replayed,
    "reorder": reordered,
    "stale reply": stale_reply,
    "disconnect in mid-message": cut_off,
    "late execution": late,
}


def forged(wire, party, **changes):
    """A message that a party without scruples would send, signed with its own key."""
    key = KEYS[changes.pop("signer", party)]
    fields = {"study": wire.plan.digest(), "kind": "noisy", "party": party, "round": 1}
    return Message(array=changes.pop("array"), **(fields | changes)).encode(key, Roster(ROSTER))


def _garbage(make):
    def fault(wire, party, message, deliver):
        asked = Message.decode(message)
        if party != "bob" or asked.kind not in ("sum", "token"):
            return deliver()
        wire.injected += 1
        return make(wire, asked, deliver)

    return fault


VALUE = np.full(4, 3.0)


def _with(value):
    array = VALUE.copy()
    array[2] = value
    return array


GARBAGE = {
    name: _garbage(make)
    for name, make in {
        "wrong shape": lambda w, m, d: forged(w, "bob", round=m.round, array=np.ones(5)),
        "wrong type": lambda w, m, d: forged(w, "bob", round=m.round, array=np.ones(4, np.float32)),
        "NaN": lambda w, m, d: forged(w, "bob", round=m.round, array=_with(np.nan)),
        "infinity": lambda w, m, d: forged(w, "bob", round=m.round, array=_with(-np.inf)),
        "huge": lambda w, m, d: forged(w, "bob", round=m.round, array=_with(1e300)),
        "truncated": lambda w, m, d: d()[:-30],
        "wrong signature": lambda w, m, d: forged(w, "bob", round=m.round, array=VALUE, signer="stranger"),
        "other party's name": lambda w, m, d: forged(w, "ann", round=m.round, array=VALUE, signer="bob"),
        "other study": lambda w, m, d: forged(w, "bob", round=m.round, array=VALUE, study="0" * 64),
        "wrong round": lambda w, m, d: forged(w, "bob", round=m.round + 1, array=VALUE),
        "pickle": lambda w, m, d: b"\x80\x05cos\nsystem\n(S'true'\ntR." * 9,
        "empty": lambda w, m, d: b"",
        "other kind": lambda w, m, d: forged(w, "bob", round=m.round, array=VALUE, kind="sealed"),
        "not bytes": lambda w, m, d: ["noisy", 1.0],
    }.items()
}
