"""A study by the recipe: the coordinator asks one question after the other, and each party answers for itself.

For each question a party does this, in this order::

    read        decode it, compare it with its own copy of the study, derive the sensitivity from the query
    charge      its own ledger, durably (:class:`~discreet.ledger.GaussianFilter`)
    add up      its own rows, in integers
    add noise   by the permit of the charge: all of it with plain sums, a share of it with secure ones
    write down  the answer, and only then send it, masked if sums are secure

The number of a question is its name: what was answered is answered again with the same integers, and another question
under an answered number is refused. A question that a party has missed stays unanswered by it and costs it nothing.

**Adaptive questions.** The coordinator chooses each question, and the share of the budget that it costs, by what was
released before. It is not trusted for it: by the theorem of the Gaussian filter (Smith and Thakurta 2022) all answers
of a party are within its budget whatever is asked, because every answer is charged by its own noise.

**Secure sums, and why an answer may be masked again.** Where a session of the secure sum breaks off, the same noisy
integers are masked under the keys of another one. A party reveals its masks for one set of survivors of each question
only, in all sessions together; it first writes the set into its log (:meth:`AnswerLog.reveal`), and that there is one
into its ledger, so that an older copy of the log is noticed. Let h be the honest parties
and D the dropouts; the study has h > D (D + 1), so h > 2 D. Let S(Q) be the set that the honest party Q reveals for,
and R the honest parties that are in S(Q) for at least h - D honest Q. In any session, an own seed of i is learned
from h - D honest parties, so i is in R. A sum over honest parties without j, who is in R, needs the seed that j has
in common with another one, from h - D honest Q whose S(Q) does not have j; but these are at most D < h - D. So in
every session nothing but the sum over R can be learned, which is the same sum of the same integers.
"""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.noise_shares import distance_of_message
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, LedgerCorrupted, MalformedMessage
from discreet.events import Gaussian
from discreet.ledger import Till
from discreet.ledger.ledger_log import Run
from discreet.parties.answer_log import AnswerEntry, AnswerLog
from discreet.parties.messages import CheckedQuestion, Message, QuestionTable, Refusal, Refused, Roster
from discreet.parties.noise_scale import NoiseScale
from discreet.parties.party_plan import PartyPlan
from discreet.parties.secure.secure_messages import SecureMessages
from discreet.trusted.permits import Charger, Draw, StepNoise

_SHARES = 1 + 1e-9  # what shares may add up to: the ledger decides what is paid
_REVEALS = 2**32  # marks in the ledger from here on tell answers of which masks were revealed from others


class _Stage:
    """A share of the budget at one party: so many answers with so much noise."""

    def __init__(self, share: float, steps: int, event: Gaussian) -> None:
        self.share, self.steps, self.event, self.used = share, steps, event, 0
        self.charger: Charger | None = None
        self.run: Run | None = None


class QuestionSession:
    """The answers of a party in a study by the recipe. The ledger and the log outlive it.

    Guarantee: whatever is asked, all answers together are within the party's budget: each is charged, for the noise
    that it gets, before a row is read. With secure sums this holds for the coordinator together with as many parties
    as the study's ``colluders``.
    """

    key: bytes | None = None

    def __init__(
        self,
        terms: PartyPlan,
        table: QuestionTable,
        session: Till,
        stream: RandomStream,
        log: AnswerLog,
        signing_key: Ed25519PrivateKey | None = None,
        roster: Roster | None = None,
    ) -> None:
        self._terms, self._agreed, self._table = terms, terms.numbers, table
        self._ledger, self._stream, self._log = session, stream, log
        self._scale = terms.scale
        self._stages: dict[str, _Stage] = {}
        self._distance, self._allowed = 0.0, _allowed_distance(session, self._scale)
        for entry in log.entries:
            self._stage(entry.stage, entry.share, entry.steps).used += 1
            self._distance += entry.distance
        self._messages = None
        if self._agreed.secure:
            assert signing_key is not None  # checked when the party was made
            assert roster is not None
            known = terms.party, terms.group(roster), signing_key, stream
            self._messages = SecureMessages(*known, self._counts, self._note_reveal)

    def next_round(self) -> int:
        """The number of the first question that was not answered."""
        return self._log.last + 1

    def reply(self, request: Message) -> Message:
        """The answer to a question, or what a secure sum needs beside it."""
        if self._messages is not None:
            return self._messages.reply(request)
        if request.kind != "ask":
            raise Refused(Refusal.OTHER_STUDY)
        study, party = self._terms.study.digest(), self._terms.party
        return Message(study, "noisy", request.round, party, self._counts(request))

    def _note_reveal(self, number: int, survivors: tuple[str, ...]) -> None:
        """Write into log and ledger that masks of an answer are revealed, or refuse a second set of survivors.

        The log holds the set and is written first. A ledger that knows of a reveal which the log does not hold shows
        that the log is an older copy.
        """
        entry = self._log.find(number)
        assert entry is not None  # it was masked
        run = self._run(entry.stage, self._stages[entry.stage])
        answers = [other for other in self._log.entries if other.stage == entry.stage]
        mark = _REVEALS + 2 * (answers.index(entry) + 1)
        if not entry.survivors and run.marked >= mark:
            raise LedgerCorrupted(
                "The ledger shows that masks of this answer were revealed, and the log of answers does not hold for "
                "whom: the log is an older copy. Restore it; a second set of parties would show single answers."
            )
        if not self._log.reveal(number, survivors):
            raise Refused(Refusal.OTHER_REQUEST)
        run.mark(mark)

    def _counts(self, request: Message) -> NDArray[np.int64]:
        """The noisy integers that answer a question: those of the log, or new ones."""
        if request.array.dtype != np.uint8 or request.array.ndim != 1:
            raise Refused(Refusal.MALFORMED)
        try:
            asked = self._table.read(request.array.tobytes(), self._agreed.kinds, self._agreed.dimension)
        except MalformedMessage:
            raise Refused(Refusal.NOT_ALLOWED) from None
        except LookupError:
            raise Refused(Refusal.MISSING_PART) from None
        if asked.number != request.round:
            raise Refused(Refusal.MALFORMED)
        entry = self._log.find(asked.number)
        if entry is not None:
            if entry.digest != asked.digest.hex():
                raise Refused(Refusal.OTHER_REQUEST)
            return entry.counts
        if asked.number <= self._log.last:
            raise Refused(Refusal.PAST_ROUND)
        if len(self._log.entries) >= self._agreed.releases:
            raise Refused(Refusal.BEYOND_PLAN)
        return self._release(asked)

    def _release(self, asked: CheckedQuestion) -> NDArray[np.int64]:
        """Charge, add up, add noise and write down."""
        stage = self._stage(asked.stage, asked.share, asked.steps)
        step, event = stage.used + 1, stage.event
        if step > stage.steps:
            raise Refused(Refusal.BEYOND_PLAN)
        shares, parties = self._agreed.shares, self._agreed.parties
        try:
            grid = self._scale.grid(event, asked.bound)
            distance = distance_of_message(event, asked.bound, grid, asked.size, shares, parties)
        except InvalidParameter:  # noise or a bound that integers have no room for
            raise Refused(Refusal.NOT_ALLOWED) from None
        if self._distance + distance > self._allowed:
            raise Refused(Refusal.BEYOND_PLAN)
        if not asked.fits(grid):
            raise Refused(Refusal.NOT_ALLOWED)
        charger = self._charger(asked.stage, stage, step)
        noise = StepNoise(event, {"sum": Draw(event, shares=shares, copies=self._terms.honest)}, grid=grid)
        permit = charger.up_to(step, noise, asked.bound, 1)
        try:
            total = BoundedSum(asked.total(grid), asked.bound, grid=grid)
        except Exception:  # whatever it is, it may depend on a row
            raise LedgerCorrupted("The rows could not be added up; the reason is withheld.") from None
        if total.value.shape != (asked.size,):
            raise LedgerCorrupted("A sum does not have the size that was asked for.")
        counts = permit.add_noise_share(total)
        paid = asked.number, asked.stage, stage.share, stage.steps
        self._log.append(AnswerEntry(*paid, asked.kinds, asked.digest.hex(), distance, counts))
        stage.used, self._distance = step, self._distance + distance
        self._run(asked.stage, stage).mark(self._mark_of_answer(step))
        return counts

    def _stage(self, name: str, share: float, steps: int) -> _Stage:
        """The stage of this name, begun when it is asked for first."""
        stage = self._stages.get(name)
        if stage is None:
            if math.fsum([share, *(other.share for other in self._stages.values())]) > _SHARES:
                raise Refused(Refusal.BEYOND_PLAN)
            if steps > self._agreed.releases:
                raise Refused(Refusal.BEYOND_PLAN)
            stage = self._stages[name] = _Stage(share, steps, self._scale.event(share, steps))
        if (stage.share, stage.steps) != (share, steps):
            raise Refused(Refusal.NOT_ALLOWED)
        return stage

    def _charger(self, name: str, stage: _Stage, step: int) -> Charger:
        """Return the charger of a stage, before its next answer.

        An answer that was charged and not marked as written was seen by nobody: it is drawn again. One that is marked
        and is not in the log was: then the log is an older copy, and nothing more is answered.
        """
        if stage.charger is None:
            run = self._run(name, stage)
            if step <= run.marked < _REVEALS or run.marked >= self._mark_of_answer(step):
                raise LedgerCorrupted(
                    "The ledger shows an answer that the log of answers does not hold: the log was lost or is an "
                    "older copy. Restore it; to answer again with other noise would cost more than was paid."
                )
            stage.charger = Charger(run, self._stream)
        return stage.charger

    def _mark_of_answer(self, step: int) -> int:
        """The mark in the ledger of an answer that is written down; secure sums mark reveals in between."""
        return _REVEALS + 2 * step - 1 if self._agreed.secure else step

    def _run(self, name: str, stage: _Stage) -> Run:
        """The run of a stage in the ledger; the first one answers for the distance of all noise."""
        if stage.run is None:
            first = next(iter(self._stages)) == name
            place = f"{self._terms.run_prefix}/{name}"
            distance = self._allowed if first else 0.0
            stage.run = self._ledger.run(place, stage.event * stage.steps, distance)
        return stage.run


def _allowed_distance(session: Till, scale: NoiseScale) -> float:
    """The largest distance of all noise of a study to continuous noise that study and ledger allow."""
    return min(scale.distance, session.ledger.rule.largest_distance / 8)
