"""The coordinator's side of SGD2: everybody's noisy sums in a round, or only their total. Nothing here is trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise_shares import largest_sum
from discreet.errors import PlanViolation
from discreet.events import Gaussian
from discreet.parties.messages import EVERYBODY, Backoff, CoordinatorClient, Message, Refusal, Roster
from discreet.parties.optimizers import GeometricMedian
from discreet.parties.party_plan import PartyPlan
from discreet.parties.secure.secure_coordinator import SecureCoordinator
from discreet.parties.sgd2 import request
from discreet.parties.study import Study

Floats = NDArray[np.float64]


def gradient(study: Study, sums: Mapping[str, Floats]) -> Floats:
    """The gradient of the mean loss, as far as the noisy sums show it; missing ones count as zero.

    ``weights = "records"`` counts every record alike, ``"equal"`` every party.
    """
    training = study.training
    total = np.zeros(study.dimension)
    if training.weights == "records":
        for value in sums.values():
            total += value  # without a rounding where messages count in grid steps
        return total / (study.records * training.rate)
    for name, value in sums.items():
        total += value / (len(study.parties) * study.parties[name] * training.rate)
    return total


Hello = Callable[[str], int | None]


class RoundEstimate(NamedTuple):
    """The result of one round: an estimate of the gradient, or None if the round is lost, and who is not in it."""

    gradient: Floats | None
    missing: list[str]


class PlainSums:
    """Everybody's noisy sum. Who is missing, or sends nonsense, counts as zero; if too many, the round is lost."""

    def __init__(self, study: Study, asking: CoordinatorClient, hello: Hello) -> None:
        self._study, self._asking, self._hello = study, asking, hello
        self._median = GeometricMedian(study) if study.aggregation.robust != "none" else None

    def round(self, round: int, theta: Floats) -> RoundEstimate:
        """Ask all parties."""
        question = request(self._study, round, theta)
        replies = self._asking.ask_all(self._study.names, question)
        returned = [name for name, reply in replies.items() if reply is Refusal.NOT_BEGUN]
        if returned:  # they were restarted, and refuse what they may have answered before
            willing = [name for name in returned if (self._hello(name) or round + 1) <= round]
            replies |= self._asking.ask_all(willing, question)
        values = {name: self._asking.noisy(name, reply) for name, reply in replies.items()}
        sums = {name: value for name, value in values.items() if value is not None}
        missing = [name for name in self._study.names if name not in sums]
        if len(missing) > self._study.dropouts:
            return RoundEstimate(
                None, missing
            )  # there would be less noise in the sum than the study promises
        total = gradient(self._study, sums) if self._median is None else self._median(sums)
        return RoundEstimate(total, missing)


class _RoundGroup:
    """One group of a secure sum, and who of it is in the present session."""

    def __init__(self, study: Study, group: Sequence[str], roster: Roster) -> None:
        terms = PartyPlan(study, group[0])
        largest = largest_sum(
            Gaussian(study.noise_multiplier),
            study.training.clip_norm,
            study.grid,
            study.records,
            study.dimension,
            study.shares,
            len(study.parties),
        )
        self.names, self.members = tuple(group), list[str]()
        self.secure = SecureCoordinator(terms.group(roster), study.dimension, largest)


class SecureSums:
    """Only totals, of each group. A round with too few parties is lost; then, and when one is back, keys are new."""

    def __init__(self, study: Study, asking: CoordinatorClient, hello: Hello, roster: Roster) -> None:
        self._study, self._asking, self._hello = study, asking, hello
        self._circles = [_RoundGroup(study, group, roster) for group in study.groups]
        self._pause = Backoff(study.network.timeout)

    @property
    def _members(self) -> list[str]:
        return [name for circle in self._circles for name in circle.members]

    def round(self, round: int, theta: Floats) -> RoundEstimate:
        """Ask for masked sums, and for what unmasks their totals."""
        try:
            back = self._somebody_is_back(round)
            for circle in self._circles:
                if not circle.members or (back and len(circle.members) < len(circle.names)):
                    self._introduce(circle, round)
            gradient, missing = self._total(round, theta)
        except PlanViolation:
            for circle in self._circles:
                circle.members = []
            return RoundEstimate(None, list(self._study.names))
        if set(missing) & set(self._members):
            for circle in self._circles:
                circle.members = [name for name in circle.members if name not in missing]
            self._pause = Backoff(self._study.network.timeout)
        if len(missing) > self._study.dropouts:  # in several groups, none of which knows of the others
            return RoundEstimate(None, missing)
        return RoundEstimate(gradient, missing)

    def _introduce(self, circle: _RoundGroup, round: int) -> None:
        keys = self._bytes(circle.names, "advertise", round, b"")
        introductions = circle.secure.introduce(keys)
        circle.members = list(self._bytes(list(keys), "join", round, introductions))

    def _total(self, round: int, theta: Floats) -> tuple[Floats, list[str]]:
        request = Message(self._study.digest(), "mask", round, EVERYBODY, theta)
        masked = self._content(self._asking.ask_all(self._members, request))
        total = np.zeros(self._study.dimension)  # of integers, which are below 2**53 in all
        for circle in self._circles:
            here = {name: masked[name] for name in circle.names if name in masked}
            answers = self._bytes(list(here), "unmask", round, circle.secure.request(here))
            total += circle.secure.total(answers)
        share = self._study.grid / (self._study.records * self._study.training.rate)
        return total * share, [name for name in self._study.names if name not in masked]

    def _somebody_is_back(self, round: int) -> bool:
        """Ask the missing parties now and then, less often each time at first."""
        members = self._members
        absent = [name for name in self._study.names if name not in members]
        if not members or not absent or not self._pause.over(round):
            return False
        self._pause.lengthen(round)
        following = [number for name in absent if (number := self._hello(name)) is not None]
        if (
            following and min(following) > round
        ):  # back, but what it may have answered before it does not repeat
            self._pause = Backoff(self._study.network.timeout, due=min(following))
        return bool(following) and min(following) <= round

    def _bytes(self, parties: Sequence[str], kind: str, round: int, content: bytes) -> dict[str, bytes]:
        body = np.frombuffer(content, np.uint8)
        request = Message(self._study.digest(), kind, round, EVERYBODY, body)
        return self._content(self._asking.ask_all(parties, request))

    def _content(self, replies: dict[str, Message | Refusal]) -> dict[str, bytes]:
        for name, reply in replies.items():
            if reply is Refusal.NOT_BEGUN:
                self._hello(name)
        return {
            name: reply.array.tobytes()
            for name, reply in replies.items()
            if isinstance(reply, Message) and reply.kind == "sealed" and reply.array.dtype == np.uint8
        }
