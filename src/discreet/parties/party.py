"""A party: its records, its ledger, and the answers it gives to the coordinator.

The party is the authority. What it will release was fixed when it joined (:mod:`discreet.parties.party_plan`); a
request can only choose the model at which the next agreed step is taken. For each step the order is: charge the
ledger, draw fresh noise, answer, keep the answer in memory.

===========================================  ============================================================
request                                      answer
===========================================  ============================================================
the same bytes as last time                  the same bytes as last time
the same round with another model            refused: noise of its own for each would show the difference
a round that is over, or lost in a crash     refused; ``hello`` tells the next one
a later round                                answered; the rounds in between count as spent
beyond the plan, another study, garbage      refused
===========================================  ============================================================

A refusal is a number (:class:`~discreet.parties.messages.Refusal`). No text, count or metric ever leaves.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate import Certificate
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import BudgetExceeded, InvalidParameter, MalformedMessage, PlanViolation
from discreet.ledger import Ledger, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.parties.answer_log import AnswerLog
from discreet.parties.answering import Answering
from discreet.parties.certifying import answered_questions, certify_party
from discreet.parties.joint import FinalModel, for_model, refuse_strangers
from discreet.parties.messages import EVERYBODY, Holder, Message, QuestionTable, Refusal, Refused, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import COORDINATOR, Study
from discreet.plan.plan import Plan


class Party:
    """One party of a study, in its own process, with its own ledger.

    ``ledger`` pays for it: a Ledger that has room, a path or a ``postgresql://`` address (with ``ledger_key``), where
    one is begun for this study alone if there is none, or None for one in memory: :mod:`discreet.ledger.till`.
    ``roster`` holds the public keys of all parties (and of the coordinator, if it signs). At the end the coordinator
    gets the signed certificate, unless ``shows_certificate`` is False. ``keep_head`` is called with the ledger before
    an answer leaves, to remember its head elsewhere (:mod:`discreet.parties.ledger_heads`); if it raises, the party
    stops. ``stream`` is for tests. In a study by the recipe ``holder`` is a
    :class:`~discreet.parties.messages.QuestionTable`, and ``log`` a folder for its answers, with which it can go on
    after a restart.

    Guarantee: whatever is asked, by whomever, in whatever order and however often the party is restarted, all its
    answers together cost what ``PartyPlan(study, name).event`` costs at most. With secure sums the noise is
    shared, so this holds as long as no more parties collude than the study says.
    """

    def __init__(
        self,
        name: str,
        study: Study,
        holder: Holder | QuestionTable,
        ledger: AnyLedger,
        signing_key: Ed25519PrivateKey | None,
        roster: Roster | Mapping[str, str],
        *,
        ledger_key: KeyFile = None,
        shows_certificate: bool = True,
        keep_head: Callable[[Ledger], object] | None = None,
        stream: RandomStream | None = None,
        log: str | PathLike[str] | None = None,
    ) -> None:
        self.name, self.study = name, study
        self.terms = PartyPlan(study, name)
        self._log = AnswerLog(None if log is None else Path(log))
        self._roster = roster if isinstance(roster, Roster) else Roster(roster)
        self._key = _checked_key(name, signing_key, self._roster, study)
        self._stream = system_stream() if stream is None else stream

        def open_ledger() -> Ledger:
            self.ledger = Till.open(ledger, self.terms.plan(), key=ledger_key).ledger
            _check_ledger(self.ledger, self.terms, f"{study.name}/{name}")
            return self.ledger

        self._records = holder.records
        secure = self._log, self._key, self._roster, keep_head
        self._answering = Answering(self.terms, holder, open_ledger, self._stream, *secure)
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] | None = None  # the request that was answered, and the answer
        self.stopped: str | None = None
        """The reason why the party says no more, for its owner's eyes: a restart with the same ledger goes on."""
        self.refused: Counter[Refusal] = Counter()
        """How many requests were refused for which reason, for its owner's eyes."""
        self.ending: FinalModel | None = None
        """The model, once the coordinator has signed the end of the study."""
        self._over, self._shows = threading.Event(), shows_certificate

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the study, or until the party has stopped; True if one of them came."""
        return self._over.wait(seconds)

    def prepare(self) -> None:
        """Compute one sum and drop it, so that everything is compiled before the first round.

        No noise is added, nothing is charged, and the party's random stream is not used.
        """
        rate = self.study.training.rate
        some = 1 if self.study.algorithm == "sgd1" else math.ceil(rate * self._records)
        self._answering.try_sum(None if rate == 1 and some > 1 else np.arange(some, dtype=np.intp))

    def answer(self, message: bytes) -> bytes:
        """The reply to any bytes at all. Never raises."""
        with self._lock:
            round = 0
            try:
                request = self._read(message)
                round = request.round
                return self._reply(request)
            except Refused as refused:
                self.refused[refused.reason] += 1
                self.stopped = self.stopped or self._answering.stopped
                if self.stopped is not None:
                    self._over.set()
                return self._refusal(round, refused.reason)

    def _read(self, frame: bytes) -> Message:
        if self.stopped is not None:
            raise Refused(Refusal.STOPPED)
        try:
            request = Message.decode(frame)
        except MalformedMessage:
            raise Refused(Refusal.MALFORMED) from None
        if COORDINATOR in self._roster.names() and not self._roster.vouches(request, COORDINATOR):
            raise Refused(Refusal.MALFORMED)
        if request.study != self.study.digest() or request.party not in (self.name, EVERYBODY):
            raise Refused(Refusal.OTHER_STUDY)
        return request

    def _reply(self, request: Message) -> bytes:
        fingerprint = request.fingerprint()
        if self._last is not None and fingerprint == self._last[0]:
            return self._last[1]
        if request.kind == "hello":
            return self._encode(self._hello(request))
        if self._answering.session is None:
            raise Refused(Refusal.NOT_BEGUN)
        if request.kind != "end" and self.ending is not None:
            raise Refused(Refusal.BEYOND_PLAN)
        answer = (
            self._answering.guarded(lambda: self._end(request))
            if request.kind == "end"
            else self._answering.reply(request)
        )
        reply = self._encode(answer)
        self._last = (fingerprint, reply)
        return reply

    def _hello(self, request: Message) -> Message:
        if request.round != 0 or request.array.dtype != np.uint8:
            raise Refused(Refusal.OTHER_PLAN)
        following = np.array([self._answering.begin(request.array.tobytes() or None)], np.int64)
        return Message(self.study.digest(), "ready", 0, self.name, following)

    def _end(self, request: Message) -> Message:
        """Take the model, if the coordinator signed it for this study and this roster, and certify what was spent."""
        try:
            ending = FinalModel.of(request, as_bytes=self.study.algorithm == "recipe")
        except MalformedMessage:
            raise Refused(Refusal.MALFORMED) from None
        fits = self.study.algorithm == "recipe" or ending.theta.shape == (self.study.dimension,)
        meant = ending.roster == self._roster.digest() and fits
        if not meant or not self._roster.vouches(request, COORDINATOR):
            raise Refused(Refusal.MALFORMED)
        if self.ending is not None and self.ending.model != ending.model:
            raise Refused(Refusal.OTHER_REQUEST)
        text = self.certificate(ending.model).to_json() if self._shows else ""
        self.ending = ending
        self._over.set()
        return Message(self.study.digest(), "certified", 0, self.name, np.frombuffer(text.encode(), np.uint8))

    def _encode(self, message: Message) -> bytes:
        return message.encode(self._key, self._roster)

    def _refusal(self, round: int, reason: Refusal) -> bytes:
        code = np.array([reason.value], np.uint8)
        return self._encode(Message(self.study.digest(), "refused", round, self.name, code))

    def certificate(self, model: str | None = None) -> Certificate:
        """What this party has released in the study, and what it cost at most, from its own ledger; signed.

        With the digest of a ``model`` the signature says, too, that this is the one which the party was given.
        """
        plan = self.plan
        if plan is None:
            raise PlanViolation("The study has not begun, so there is nothing to certify.")
        trusted, answered = self._stream.trusted, answered_questions(self._log)
        found = certify_party(self.terms, self.ledger, plan, trusted=trusted, checks=answered)
        if model is not None:
            found = for_model(found, model)
        return found if self._key is None else found.signed(self._key)

    @property
    def plan(self) -> Plan | None:
        """What the ledger calls this study, once it has begun."""
        session = self._answering.session
        return None if session is None else self.terms.plan(session.key)


def _checked_key(name: str, key: object, roster: Roster, study: Study) -> Ed25519PrivateKey | None:
    """The key with which the party signs: the one in the roster, and none where there is no wire."""
    if not roster.signed:
        if study.aggregation.kind == "secure":
            raise InvalidParameter(
                "roster", "without wire", "cannot do for secure sums, which need signatures."
            )
        return None
    refuse_strangers(roster.names(), study)
    if not isinstance(key, Ed25519PrivateKey) or name not in roster.names():
        raise InvalidParameter(
            "signing_key", type(key), f"must be the Ed25519 key that the roster lists for {name}."
        )
    if key.public_key().public_bytes_raw() != roster.key_of(name).public_bytes_raw():
        raise InvalidParameter(
            "signing_key", "another key", f"is not the one that the roster lists for {name}."
        )
    return key


def _check_ledger(ledger: Ledger, terms: PartyPlan, run: str) -> None:
    """Refuse a ledger that cannot pay, before anything is promised to the others."""
    begun = any(name == run or name.startswith(f"{terms.run_prefix}/") for name in ledger.runs())
    if not begun and ledger.remaining(terms.event) < 1:
        raise BudgetExceeded(
            f"The ledger has no room for this study, which costs {terms.party} epsilon={terms.budget.epsilon:g} at "
            f"delta={terms.budget.delta:g}. Nothing was promised; use a ledger with room, or leave the study."
        )
