"""The sums of one round of SGD2, as the coordinator gets them: each party's own, or only their total."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.parties import sgd2
from discreet.parties.messages import EVERYBODY, Message, Refusal, Roster
from discreet.parties.secure.noise_shares import largest_sum
from discreet.parties.secure.secure_sum import SecureCoordinator
from discreet.parties.study import Study
from discreet.parties.terms import Terms
from discreet.parties.transport import Asking

Floats = NDArray[np.float64]
Hello = Callable[[str], int | None]

MOST_PAUSE = 64
"""After so many updates at most, or one timeout, a party that was missing is asked again."""


class Pause:
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


class Round(NamedTuple):
    """What one round gave: an estimate of the gradient, or None if the round is lost, and who is not in it."""

    gradient: Floats | None
    missing: list[str]


class PlainSums:
    """Everybody's noisy sum. Who is missing, or sends nonsense, counts as zero; if too many, the round is lost."""

    def __init__(self, study: Study, asking: Asking, hello: Hello) -> None:
        self._study, self._asking, self._hello = study, asking, hello
        self._median = GeometricMedian(study) if study.aggregation.robust != "none" else None

    def round(self, round: int, theta: Floats) -> Round:
        """Ask all parties."""
        request = sgd2.request(self._study, round, theta)
        replies = self._asking.ask_all(self._study.names, request)
        returned = [name for name, reply in replies.items() if reply is Refusal.NOT_BEGUN]
        if returned:  # they were restarted, and refuse what they may have answered before
            willing = [name for name in returned if (self._hello(name) or round + 1) <= round]
            replies |= self._asking.ask_all(willing, request)
        found = {name: self._asking.noisy(name, reply) for name, reply in replies.items()}
        sums = {name: value for name, value in found.items() if value is not None}
        missing = [name for name in self._study.names if name not in sums]
        if len(missing) > self._study.dropouts:
            return Round(None, missing)  # there would be less noise in the sum than the study promises
        gradient = sgd2.gradient(self._study, sums) if self._median is None else self._median(sums)
        return Round(gradient, missing)


class _Circle:
    """One group of a secure sum, and who of it is in the present session."""

    def __init__(self, study: Study, group: Sequence[str], roster: Roster) -> None:
        terms = Terms(study, group[0])
        largest = largest_sum(
            terms.noise,
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

    def __init__(self, study: Study, asking: Asking, hello: Hello, roster: Roster) -> None:
        self._study, self._asking, self._hello = study, asking, hello
        self._circles = [_Circle(study, group, roster) for group in study.groups]
        self._pause = Pause(study.network.timeout)

    @property
    def _members(self) -> list[str]:
        return [name for circle in self._circles for name in circle.members]

    def round(self, round: int, theta: Floats) -> Round:
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
            return Round(None, list(self._study.names))
        if set(missing) & set(self._members):
            for circle in self._circles:
                circle.members = [name for name in circle.members if name not in missing]
            self._pause = Pause(self._study.network.timeout)
        if len(missing) > self._study.dropouts:  # in several groups, none of which knows of the others
            return Round(None, missing)
        return Round(gradient, missing)

    def _introduce(self, circle: _Circle, round: int) -> None:
        keys = self._bytes(circle.names, "advertise", round, b"")
        introductions = circle.secure.introduce(keys)
        circle.members = list(self._bytes(list(keys), "join", round, introductions))

    def _total(self, round: int, theta: Floats) -> tuple[Floats, list[str]]:
        request = Message(self._study.digest(), "mask", round, EVERYBODY, theta)
        masked = self._content(self._asking.ask_all(self._members, request))
        total = np.zeros(self._study.dimension)  # of whole numbers, which are below 2**53 in all
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
        following = [found for name in absent if (found := self._hello(name)) is not None]
        if (
            following and min(following) > round
        ):  # back, but what it may have answered before it does not repeat
            self._pause = Pause(self._study.network.timeout, due=min(following))
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


# ---- an average that one liar cannot carry off: the geometric median of what the parties say ----
#
# A party that lies about its records or its noise can send anything that an honest one might, again and again in the
# same direction, and so lead a mean anywhere. The geometric median, the point with the least sum of distances to all
# messages, stays among the honest ones while liars hold less than half of the weight (Pillutla, Kakade, Harchaoui
# 2022, "Robust aggregation for federated learning"). Messages are mostly noise, behind which a lie could hide; so it
# is taken of each party's running mean over its last rounds (Karimireddy, He, Jaggi 2021, "Learning from history").
#
# All of it is post-processing of messages. But it looks at each message by itself, so the noise of other parties does
# not hide a record any longer from those who see only models: the table of observers counts on the owner's noise
# alone.


MEMORY = 0.9
"""How much of a party's running mean stays in every round."""

_STEPS, _NEAR = 100, 1e-9


class GeometricMedian:
    """Gradients of the mean loss from noisy sums, some of them lies. It remembers one vector for each party."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._mean: dict[str, Floats] = {}
        self._rounds: dict[str, int] = {}

    def __call__(self, sums: Mapping[str, Floats]) -> Floats:
        """The gradient; parties that are missing count as zero, and keep what they said before."""
        study = self._study
        if not sums:
            return np.zeros(study.dimension)
        equal = study.training.weights == "equal"
        weights = np.array([1.0 if equal else study.parties[name] for name in sums])
        points = np.array([self._remembered(name, value) for name, value in sums.items()])
        everybody = len(study.parties) if equal else study.records
        return geometric_median(points, weights) * float(weights.sum() / everybody)

    def _remembered(self, name: str, value: Floats) -> Floats:
        """The running mean of what a party says of one record, without a bias toward its beginning."""
        fresh = value / (self._study.parties[name] * self._study.training.rate)
        mean = self._mean.get(name, np.zeros(0))
        self._mean[name] = MEMORY * mean + (1 - MEMORY) * fresh if mean.size else (1 - MEMORY) * fresh
        self._rounds[name] = self._rounds.get(name, 0) + 1
        unbiased: Floats = self._mean[name] / (1 - MEMORY ** self._rounds[name])
        return unbiased


def geometric_median(points: Floats, weights: Floats) -> Floats:
    """The point with the least weighted sum of distances to the rows of ``points``, by Weiszfeld's iteration.

    >>> geometric_median(np.array([[0.0], [1.0], [1000.0]]), np.ones(3)).round(6)
    array([1.])

    It is a mean of the rows, so only their products with one another are needed, however long they are.
    """
    centred = points - points.mean(0)
    products = centred @ centred.T
    squares, share = np.diag(products), weights / weights.sum()
    least = _NEAR * max(float(squares.max()), 1e-300) ** 0.5
    for _ in range(_STEPS):
        gaps = squares - 2 * products @ share + share @ products @ share
        pull = weights / np.maximum(np.sqrt(np.maximum(gaps, 0.0)), least)
        share = pull / pull.sum()
    return np.asarray(share @ points)
