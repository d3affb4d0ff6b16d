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
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate import Certificate
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    MalformedMessage,
    PlanViolation,
)
from discreet.ledger import Ledger, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.parties import sgd1, sgd2
from discreet.parties.answer_log import AnswerLog
from discreet.parties.joint import FinalModel, for_model, refuse_strangers
from discreet.parties.messages import EVERYBODY, Holder, Message, QuestionTable, Refusal, Roster
from discreet.parties.party_plan import PartyPlan, PartySession, Refused
from discreet.parties.questions import QuestionSession
from discreet.parties.sgd1 import CallSession
from discreet.parties.sgd2 import RoundSession, SecureSession
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
        self._holder: Any = holder
        self._log = AnswerLog(None if log is None else Path(log))
        self._roster = roster if isinstance(roster, Roster) else Roster(roster)
        self._key = _checked_key(name, signing_key, self._roster, study)
        self._stream = system_stream() if stream is None else stream
        _check_holder(holder, self.terms)
        self._run_name = f"{study.name}/{name}"
        self.ledger = Till.open(ledger, self.terms.plan(), key=ledger_key).ledger
        _check_ledger(self.ledger, self.terms, self._run_name)
        self._lock = threading.Lock()
        self._session: PartySession | QuestionSession | None = None
        self._last: tuple[bytes, bytes] | None = None  # the request that was answered, and the answer
        self.stopped: str | None = None
        """Why the party says no more, for its owner's eyes: only a restart, with the same ledger, goes on."""
        self.refused: Counter[Refusal] = Counter()
        """How many requests were refused for which reason, for its owner's eyes."""
        self.ending: FinalModel | None = None
        """The model, once the coordinator has signed the end of the study."""
        self._over, self._shows, self._keep_head = threading.Event(), shows_certificate, keep_head

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the study, or until the party has stopped; True if one of them came."""
        return self._over.wait(seconds)

    def prepare(self) -> None:
        """Compute one sum and drop it, so that everything is compiled before the first round.

        No noise is added, nothing is charged, and the party's random stream is not used.
        """
        if self.study.algorithm == "recipe":
            return
        theta = np.zeros(self.study.dimension)
        if self.study.algorithm == "sgd1":
            sgd1.gradient_of(self.study, self._holder, theta, 0)
        else:
            rate, rows = self.study.training.rate, self._holder.records
            some = None if rate == 1 else np.arange(math.ceil(rate * rows), dtype=np.intp)
            sgd2.bounded_sum(self.study, self._holder, theta, some)

    def answer(self, message: bytes) -> bytes:
        """The reply to any bytes at all. Never raises."""
        with self._lock:
            round = 0
            try:
                request = self._read(message)
                round = request.round
                reply = self._reply(request)
                if self._keep_head is not None:
                    self._keep_head(self.ledger)
                return reply
            except Refused as refused:
                self.refused[refused.reason] += 1
                return self._refusal(round, refused.reason)
            except Exception as error:  # its text might tell something, so nobody gets it
                ours = isinstance(error, BudgetExceeded | PlanViolation | LedgerCorrupted | LedgerUnavailable)
                self.stopped = str(error) if ours else type(error).__name__
                self._over.set()
                return self._refusal(round, Refusal.STOPPED)

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
        if self._session is None:
            raise Refused(Refusal.NOT_BEGUN)
        if request.kind != "end" and self.ending is not None:
            raise Refused(Refusal.BEYOND_PLAN)
        answer = self._end(request) if request.kind == "end" else self._session.reply(request)
        reply = self._encode(answer)
        self._last = (fingerprint, reply)
        return reply

    def _hello(self, request: Message) -> Message:
        """Begin, or go on after either side was restarted: the next round that will be answered.

        SGD1 brings a key that belongs to the schedule: a coordinator that lost it cannot begin a second schedule.
        """
        key = request.array.tobytes()
        expected = sgd1.KEY_BYTES if self.study.algorithm == "sgd1" else 0
        if request.round != 0 or request.array.dtype != np.uint8 or len(key) != expected:
            raise Refused(Refusal.OTHER_PLAN)
        if self._session is None:
            self._session = self._begin(key or None)
        elif self._session.key != (key or None):
            raise Refused(Refusal.OTHER_PLAN)
        following = np.array([self._session.next_round()], np.int64)
        return Message(self.study.digest(), "ready", 0, self.name, following)

    def _begin(self, key: bytes | None) -> PartySession | QuestionSession:
        till = Till.open(self.ledger, self.terms.plan(key))
        if self.study.algorithm == "recipe":
            keys = (self._key, self._roster)
            return QuestionSession(self.terms, self._holder, till, self._stream, self._log, *keys)
        try:
            run = till.run(self._run_name, distance=self.terms.arithmetic.distance)
        except PlanViolation:
            raise Refused(Refusal.OTHER_PLAN) from None
        if self.study.aggregation.kind == "secure":
            assert self._key is not None  # checked when the party was made
            return SecureSession(self.terms, self._holder, run, self._stream, self._key, self._roster)
        kind = CallSession if self.study.algorithm == "sgd1" else RoundSession
        return kind(self.terms, self._holder, run, self._stream, key)

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
        answered = self._session.answered() if isinstance(self._session, QuestionSession) else ()
        trusted = self._stream.trusted
        found = certify_party(self.terms, self.ledger, plan, trusted=trusted, checks=answered)
        if model is not None:
            found = for_model(found, model)
        return found if self._key is None else found.signed(self._key)

    @property
    def plan(self) -> Plan | None:
        """What the ledger calls this study, once it has begun."""
        return None if self._session is None else self.terms.plan(self._session.key)


def certify_party(
    terms: PartyPlan, ledger: Ledger, plan: Plan, *, trusted: bool = True, checks: tuple[str, ...] = ()
) -> Certificate:
    """The certificate of a party, from its ledger alone; ``checks`` name the questions that it has answered."""
    return Certificate.of(
        ledger,
        plan,
        arithmetic=terms.arithmetic,
        trusted=trusted,
        not_covered=terms.not_covered,
        checks=checks,
    )


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


def _check_holder(holder: Any, terms: PartyPlan) -> None:
    """Refuse, on the party's own screen and before anything is sent, records that are not what was declared."""
    study, records = terms.study, terms.study.records_of(terms.party)
    if study.algorithm != "recipe":
        _check_sums(holder, study)
    _check_unit(holder, study)
    if study.privacy.neighbours == "replace-one" and holder.records != records:
        needed = f"must be {records}, as declared: with replace-one neighbours the number is public."
        raise InvalidParameter("holder.records", holder.records, needed)
    if study.algorithm == "recipe" and holder.records > study.noise_scale.most_records:
        needed = "must have fewer rows: integer sums have no room for so many at this budget."
        raise InvalidParameter("holder.records", "too many", needed)


def _check_sums(holder: Holder, study: Study) -> None:
    """Refuse a holder whose sums are not those of the study."""
    if holder.dimension != study.dimension:
        raise InvalidParameter(
            "holder.dimension", holder.dimension, f"must be {study.dimension}, as in the study."
        )
    try:
        sgd2.bounded_sum(study, holder, np.zeros(study.dimension), None)
    except ValueError:
        needed = (
            f"must clip to the study's {study.training.clip_norm:g} (l2) and give a vector of its dimension."
        )
        raise InvalidParameter("holder", type(holder), needed) from None


def _check_unit(holder: Any, study: Study) -> None:
    """Refuse a holder that clips another unit than the one that the study protects.

    A person with k rows moves a sum of clipped records by up to k clip norms. Conversely, one row more moves the
    clipped average of a person by up to two clip norms, and a row that changes its owner moves two persons, so the
    noise of a study of records does not cover a sum of persons.
    """
    unit = getattr(holder, "unit", "record")
    if isinstance(unit, str) and unit == study.privacy.unit:
        return
    kind = type(holder).__name__
    if study.privacy.unit == "person":
        needed = (
            f"must be 'person', because the study protects persons and {kind} does not clip all rows of a person "
            "together. Use a holder that does, such as LinearHolder(..., people=ids), or agree on a study with "
            "unit = 'record'."
        )
    else:
        needed = (
            f"must be 'record', because the study protects records and {kind} does not clip each row by itself: one "
            "row can move the sum by more than the clip norm. Use a holder without ids of persons, or agree on a "
            "study with unit = 'person'."
        )
    known = isinstance(unit, str) and unit in ("record", "person")
    raise InvalidParameter("holder.unit", unit if known else type(unit), needed)


def _check_ledger(ledger: Ledger, terms: PartyPlan, run: str) -> None:
    """Refuse a ledger that cannot pay, before anything is promised to the others."""
    begun = any(name == run or name.startswith(f"{terms.run_prefix}/") for name in ledger.runs())
    if not begun and ledger.remaining(terms.event) < 1:
        raise BudgetExceeded(
            f"The ledger has no room for this study, which costs {terms.party} epsilon={terms.budget.epsilon:g} at "
            f"delta={terms.budget.delta:g}. Nothing was promised; use a ledger with room, or leave the study."
        )
