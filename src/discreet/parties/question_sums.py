"""The coordinator's side of a study by the recipe: a question to all parties, and the sum of their answers.

Nothing here is trusted: parties decide by themselves what they answer (:mod:`discreet.parties.questions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise_shares import largest_sum
from discreet.errors import PlanViolation
from discreet.events import Gaussian
from discreet.parties.messages import EVERYBODY, CoordinatorClient, Message, Refusal, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.secure.secure_coordinator import SecureCoordinator
from discreet.parties.study import Study

Integers = NDArray[np.int64]


class AnswerSum(NamedTuple):
    """The sum of the answers of all who are present."""

    counts: Integers
    present: tuple[str, ...]


Body = Callable[[bool], bytes]
"""A question as bytes: with all of its parts, or only those that were not sent before."""


class QuestionSums:
    """Asks all parties a question, and adds up their answers; ``hello`` greets a party that was restarted.

    A question to which too few have answered may be asked again, and answers are what they were. ``keep`` is told the
    survivors of a secure sum before their masks are revealed: only their sum can be learned later.
    """

    def __init__(
        self,
        study: Study,
        asking: CoordinatorClient,
        hello: Callable[[str], int | None],
        roster: Roster,
        keep: Callable[[int, Sequence[str]], object],
    ) -> None:
        self._study, self._asking, self._hello, self._keep = study, asking, hello, keep
        self._circles: list[_QuestionGroup] = []
        if study.aggregation.kind == "secure":
            self._circles = [_QuestionGroup(study, group, roster) for group in study.groups]

    def noise(self, present: int) -> float:
        """The noise in a sum of so many answers, over that of one table's fit."""
        return math.sqrt(present / self._study.shares)

    def ask(
        self, number: int, body: Body, size: int, bound: float, event: Gaussian, survivors: Sequence[str] = ()
    ) -> tuple[AnswerSum | None, list[str]]:
        """The sum, or None if it is lost; and who is missing. ``survivors`` are those of an earlier attempt."""
        if not self._circles:
            return self._plain(number, body, size)
        try:
            return self._secure(number, body, size, bound, event, survivors)
        except PlanViolation:
            for circle in self._circles:
                circle.members = []
            return None, list(self._study.names)

    def _plain(self, number: int, body: Body, size: int) -> tuple[AnswerSum | None, list[str]]:
        replies = self._replies(self._study.names, "ask", number, body)
        largest = 2**62 // len(self._study.names)
        counts_of = {
            name: reply.array.astype(np.int64)
            for name, reply in replies.items()
            if reply.kind == "noisy" and reply.array.dtype == np.int64 and reply.array.shape == (size,)
        }
        sums = {name: counts for name, counts in counts_of.items() if int(np.abs(counts).max()) <= largest}
        missing = [name for name in self._study.names if name not in sums]
        if len(missing) > self._study.dropouts:
            return None, missing
        return AnswerSum(np.sum(list(sums.values()), axis=0, dtype=np.int64), tuple(sums)), missing

    def _replies(self, parties: Sequence[str], kind: str, number: int, body: Body) -> dict[str, Message]:
        """The answers of all who give one; a party that was restarted is greeted and asked again."""

        def ask(names: Sequence[str], everything: bool) -> dict[str, Message | Refusal]:
            content = np.frombuffer(body(everything), np.uint8)
            return self._asking.ask_all(
                names, Message(self._study.digest(), kind, number, EVERYBODY, content)
            )

        replies = ask(parties, False)
        again = [name for name, reply in replies.items() if reply is Refusal.MISSING_PART]
        returned = [name for name, reply in replies.items() if reply is Refusal.NOT_BEGUN]
        again += [name for name in returned if self._hello(name) is not None]
        if again:
            replies |= ask(again, True)
        return {name: reply for name, reply in replies.items() if isinstance(reply, Message)}

    def _secure(
        self, number: int, body: Body, size: int, bound: float, event: Gaussian, survivors: Sequence[str]
    ) -> tuple[AnswerSum | None, list[str]]:
        for circle in self._circles:
            circle.expect(size, bound, event)
            if len(circle.members) < len(circle.names):
                self._introduce(circle, number)
        members = [name for circle in self._circles for name in circle.members]
        masked = _sealed(self._replies(members, "mask", number, body))
        if survivors:
            masked = {name: content for name, content in masked.items() if name in survivors}
        requests = [circle.secure.request(masked) for circle in self._circles]
        present = [name for circle in self._circles for name in circle.secure.survivors]
        missing = [name for name in self._study.names if name not in present]
        self._keep(number, present)  # parties reveal their masks for these only
        total = np.zeros(size, np.int64)
        for circle, request in zip(self._circles, requests, strict=True):
            answers = self._bytes(circle.secure.survivors, "unmask", number, request)
            total += circle.secure.total(answers)
            circle.members = [name for name in circle.members if name in present]
        return (None if len(missing) > self._study.dropouts else AnswerSum(total, tuple(present))), missing

    def _introduce(self, circle: _QuestionGroup, number: int) -> None:
        keys = self._bytes(circle.names, "advertise", number, b"")
        introductions = circle.secure.introduce(keys)
        circle.members = list(self._bytes(list(keys), "join", number, introductions))

    def _bytes(self, parties: Sequence[str], kind: str, number: int, content: bytes) -> dict[str, bytes]:
        return _sealed(self._replies(parties, kind, number, lambda everything: content))


def _sealed(replies: Mapping[str, Message]) -> dict[str, bytes]:
    return {
        name: reply.array.tobytes()
        for name, reply in replies.items()
        if reply.kind == "sealed" and reply.array.dtype == np.uint8
    }


class _QuestionGroup:
    """One group of a secure sum, and who of it is in the present session."""

    def __init__(self, study: Study, group: Sequence[str], roster: Roster) -> None:
        self._study, self.names, self.members = study, tuple(group), list[str]()
        self.secure = SecureCoordinator(PartyPlan(study, group[0]).group(roster), 1, 1)

    def expect(self, size: int, bound: float, event: Gaussian) -> None:
        """Be ready for sums of so many numbers, of so much noise."""
        study, scale = self._study, self._study.noise_scale
        grid, parties = scale.grid(event, bound), len(study.parties)
        largest = largest_sum(event, bound, grid, scale.most_records, size, study.shares, parties)
        self.secure.expect(size, largest)
