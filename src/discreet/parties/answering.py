"""The side of a party that touches its records: :class:`Answering`.

The records lie behind it. What comes out is the next round that will be answered, or a message: noisy numbers that
the ledger was charged for, bytes of a secure sum, or a refusal, which is a number
(:class:`~discreet.parties.messages.Refusal`). No text, count or metric leaves, whoever asks, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    PlanViolation,
)
from discreet.ledger import Ledger, Till
from discreet.parties import sgd1
from discreet.parties.answer_log import AnswerLog
from discreet.parties.messages import Holder, Message, QuestionTable, Refusal, Refused, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.questions import QuestionSession
from discreet.parties.sgd2 import RoundSession, SecureSession, Session, bounded_sum

Answer = TypeVar("Answer")

_SAID = BudgetExceeded, PlanViolation, LedgerCorrupted, LedgerUnavailable


class Answering:
    """The records of a party, its ledger, and the answers to all requests of one process.

    ``open_ledger`` is called once the records are known to be those of the study. ``key`` and ``roster`` are needed
    for secure sums. ``keep_head`` is called with the ledger before a message is
    returned, to remember its head elsewhere; if it raises, the party stops.

    Guarantee: all messages together cost what ``terms.event`` costs at most, whatever is asked and however often the
    party is restarted. With secure sums this holds as long as no more parties collude than the study says.
    """

    def __init__(
        self,
        terms: PartyPlan,
        holder: Holder | QuestionTable,
        open_ledger: Callable[[], Ledger],
        stream: RandomStream,
        log: AnswerLog,
        key: Ed25519PrivateKey | None,
        roster: Roster,
        keep_head: Callable[[Ledger], object] | None = None,
    ) -> None:
        self._terms, self._stream, self._log = terms, stream, log
        self._holder: Any = holder
        self._signing_key, self._roster, self._keep_head = key, roster, keep_head
        self.session: Session | QuestionSession | None = None
        self.stopped: str | None = None
        """The reason why nothing more is answered, for the eyes of the party's owner."""
        check_holder(holder, terms)
        self.try_sum()
        self._ledger = open_ledger()

    def try_sum(self, rows: NDArray[np.intp] | None = None) -> None:
        """Compute the sum of some rows, or all, and drop it: so that it is compiled, and clipped as agreed."""
        agreed, holder = self._terms.numbers, self._holder
        if agreed.algorithm == "recipe":
            return
        if holder.dimension != agreed.dimension:
            needed = f"must be {agreed.dimension}, as in the study."
            raise InvalidParameter("holder.dimension", holder.dimension, needed)
        asked = holder if rows is None else getattr(holder, "one_by_one", holder)
        try:
            bounded_sum(self._terms, asked, np.zeros(agreed.dimension), rows)
        except ValueError:
            needed = f"must clip to the study's {agreed.clip_norm:g} (l2) and give a vector of its dimension."
            raise InvalidParameter("holder", type(holder), needed) from None

    def begin(self, key: bytes | None) -> int:
        """Begin, or go on after either side was restarted: the number of the next round that will be answered.

        SGD1 brings a key that belongs to the schedule: a coordinator that lost it cannot begin a second schedule.
        """
        if (0 if key is None else len(key)) != (self._terms.numbers.algorithm == "sgd1") * sgd1.KEY_BYTES:
            raise Refused(Refusal.OTHER_PLAN)
        if self.session is None:
            self.session = self.guarded(lambda: self._begin(key))
        if self.session.key != key:
            raise Refused(Refusal.OTHER_PLAN)
        return self.guarded(self.session.next_round)

    def _begin(self, key: bytes | None) -> Session | QuestionSession:
        terms, stream = self._terms, self._stream
        till = Till.open(self._ledger, terms.plan(key))
        if terms.numbers.algorithm == "recipe":
            secure = self._signing_key, self._roster
            return QuestionSession(terms, self._holder, till, stream, self._log, *secure)
        try:
            run = till.run(f"{terms.study.name}/{terms.party}", distance=terms.arithmetic.distance)
        except PlanViolation:
            raise Refused(Refusal.OTHER_PLAN) from None
        if terms.numbers.secure:
            assert self._signing_key is not None  # checked when the party was made
            return SecureSession(terms, self._holder, run, stream, self._signing_key, self._roster)
        kind = sgd1.CallSession if terms.numbers.algorithm == "sgd1" else RoundSession
        return kind(terms, self._holder, run, stream, key)

    def reply(self, request: Message) -> Message:
        """The answer to a request, or :class:`Refused`."""
        session = self.session
        if session is None:
            raise Refused(Refusal.NOT_BEGUN)
        return self.guarded(lambda: session.reply(request))

    def guarded(self, answer: Callable[[], Answer]) -> Answer:
        """The answer, once the ledger's head is kept. Anything that fails stops the party, and only it knows why."""
        if self.stopped is not None:
            raise Refused(Refusal.STOPPED)
        try:
            found = answer()
            if self._keep_head is not None:
                self._keep_head(self._ledger)
        except Refused:
            raise
        except Exception as error:  # its text might tell something, so nobody but the owner gets it
            self.stopped = str(error) if isinstance(error, _SAID) else type(error).__name__
            raise Refused(Refusal.STOPPED) from None
        return found


def check_holder(holder: Any, terms: PartyPlan) -> None:
    """Refuse, on the party's own screen and before anything is sent, records that are not what was declared.

    A person with k rows moves a sum of clipped records by up to k clip norms. Conversely, one row more moves the
    clipped average of a person by up to two clip norms, and a row that changes its owner moves two persons, so the
    noise of a study of records does not cover a sum of persons.
    """
    agreed, unit = terms.numbers, getattr(holder, "unit", "record")
    if not isinstance(unit, str) or unit != agreed.budget.unit:
        shown = unit if isinstance(unit, str) and unit in ("record", "person") else type(unit)
        needed = (
            f"must be {agreed.budget.unit!r}, because the study protects each {agreed.budget.unit} and "
            f"{type(holder).__name__} does not clip each by itself: one could move the sum by more than the clip "
            "norm. Use a holder that does, such as LinearHolder(..., people=ids) for persons and one without ids for "
            "records, or agree on another unit."
        )
        raise InvalidParameter("holder.unit", shown, needed)
    if agreed.budget.neighbours == "replace-one" and holder.records != agreed.records:
        needed = f"must be {agreed.records}, as declared: with replace-one neighbours the number is public."
        raise InvalidParameter("holder.records", holder.records, needed)
    if agreed.algorithm == "recipe" and holder.records > terms.scale.most_records:
        needed = "must have fewer rows: integer sums have no room for so many at this budget."
        raise InvalidParameter("holder.records", "too many", needed)
