"""What a party agrees to when it joins a study, by the study file on its own machine, and how it keeps to it.

The event is what the strongest observer sees of this party: the coordinator and all other parties together, or with
secure sums as many of them as the study tolerates. It is fixed here, before the first message, and nothing that the
coordinator sends can change it.

>>> from discreet.parties.study import Privacy, Study, Training
>>> study = Study("s", "sgd2", {"a": 100, "b": 100}, Privacy(1.0, 1e-6), Training(1.0, rounds=50),
...               {"kind": "logistic", "dimension": 3})
>>> terms = PartyPlan(study, "a")
>>> terms.steps, round(terms.budget.epsilon, 3)
(50, 1.0)

A :class:`PartySession` decides which rounds a party answers, pays for each of them, and only then looks at the
records. Only the ledger outlives it: after a crash all that was paid for counts as released, and the next session
starts beyond.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.curve import account
from discreet.certificate import Arithmetic
from discreet.core.randomness import RandomStream
from discreet.events import Event, Gaussian
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter
from discreet.ledger.ledger_log import LEASES, Run
from discreet.parties.messages import Holder, Message, Refusal, Roster
from discreet.parties.observation.observer_views import party_event
from discreet.parties.secure.secure_group import SecureGroup
from discreet.parties.study import Study
from discreet.plan.plan import Plan
from discreet.trusted.permits import Charger, Draw, NoisePermit, StepNoise

Floats = NDArray[np.float64]

NOT_COVERED = (
    "what the party's own computer, its operators and its network reveal",
    "when and how often messages are sent, and whether a party is present",
)
FLOAT = (
    "the low bits of floating-point messages, which can show a record with certainty (arithmetic = 'float')"
)


def persons(study: Study) -> str:
    """Which persons are not covered."""
    if study.privacy.unit == "record":
        return "a person with several records, at this party or at several: it is for one record, and theirs add up"
    most = study.privacy.persons_across_parties
    known = "one party" if most == 1 else f"{most} parties"
    return f"a person whom more than {known} know, or whose rows have several ids at one of them"


def byzantine_limits(study: Study) -> str:
    """What a party that lies about its records or its noise can do."""
    if study.aggregation.kind == "secure":
        return "a party that lies about its records or noise: it can spoil the model, and the protection of others"
    if study.algorithm == "recipe":
        return "a party that lies: alone it can spoil the model"
    if study.model["kind"] == "evaluation":
        return "a party that lies about its records: it can move every score"
    if study.aggregation.robust == "none":
        return "a party that lies: alone it can turn the model into its opposite (robust = 'none')"
    return "parties that lie and together have half of the weight or more: they can spoil the model"


@dataclass(frozen=True)
class PartyPlan:
    """A study as one party sees it: what it releases at most, and what that costs."""

    study: Study
    party: str

    def __post_init__(self) -> None:
        self.study.records_of(self.party)

    @cached_property
    def noise(self) -> Gaussian:
        """The noise of each message; with secure sums, of which this party adds one of :attr:`shares` shares."""
        return Gaussian(self.study.noise_multiplier)

    @cached_property
    def event(self) -> Event:
        """Everything that the party releases, as the strongest observer sees it: one step, so many times.

        By the recipe, one release that costs as much as all of them may cost together.
        """
        if self.study.algorithm == "recipe":
            return self.study.noise_scale.event(1.0, 1)
        return party_event(self.study.arrangement, self.party)

    @cached_property
    def step_noise(self) -> StepNoise:
        """One step of :attr:`event`, and the noise that it draws; with secure sums, one share of it.

        The shares of all honest parties of the group that are present add up in what the coordinator sees.
        """
        study = self.study
        grid = None if study.privacy.arithmetic == "float" else study.grid
        draw = Draw(self.noise, shares=study.shares, copies=self.honest)
        return StepNoise(self.event.parts()[0][0], {"sum": draw}, grid=grid)

    @property
    def honest(self) -> int:
        """So many honest parties of the party's group are present in every sum; 1 with plain sums."""
        study = self.study
        if study.aggregation.kind == "plain":
            return 1
        size = next(len(group) for group in study.groups if self.party in group)
        return size - study.dropouts - study.aggregation.colluders

    @property
    def steps(self) -> int:
        """Rounds of SGD2; in SGD1 calls, or uses of the party's most used record if the coordinator knows them.

        By the recipe, the most answers.
        """
        return self.event.parts()[0][1] if self.study.questions is None else self.study.questions.releases

    @property
    def run_prefix(self) -> str:
        """The prefix of the party's runs in its ledger."""
        name = f"{self.study.name}/{self.party}"
        return name if len(name) <= 70 else f"{self.study.digest()[:16]}/{self.party}"

    @cached_property
    def budget(self) -> Budget:
        """What the event costs. Above the study's budget if the noise is calibrated against a weaker observer."""
        delta, neighbours = self.study.accounted_delta, self.study.privacy.neighbours
        if self.study.algorithm == "recipe":
            return replace(self.study.budget, delta=delta)
        epsilon = account(self.event, neighbours).epsilon(delta)
        unit = self.study.privacy.unit
        return Budget(max(epsilon, math.ulp(0.0)), delta, neighbours, unit=unit)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What a certificate of this party does not speak of."""
        found = [*NOT_COVERED, persons(self.study), byzantine_limits(self.study)]
        if self.study.privacy.arithmetic == "float":
            found.insert(0, FLOAT)
        if self.study.aggregation.kind == "secure":
            colluders = self.study.aggregation.colluders
            found.append(f"a coordinator with whom more than {colluders} of the other parties collude")
        return tuple(found)

    @property
    def rule(self) -> FixedPlan | GaussianFilter:
        """The spending rule of a ledger for this study alone; by the recipe, releases are chosen along the way."""
        if self.study.algorithm == "recipe":
            return GaussianFilter(self.budget, spare=0.0)
        return FixedPlan(self.event, self.budget)

    def plan(self, key: bytes | None = None) -> Plan:
        """What the ledger and the certificate call it; in SGD1 with the hash of the schedule's key."""
        settings = {"study": self.study.to_dict(), "digest": self.study.digest(), "party": self.party}
        if key is not None:
            settings["schedule"] = hashlib.sha256(key).hexdigest()
        return Plan.adaptive(f"{self.study.algorithm} party", self.rule, settings)

    def group(self, roster: Roster) -> SecureGroup:
        """The terms of the secure sum, of the party's group."""
        names = next(group for group in self.study.groups if self.party in group)
        keys = {name: roster.key_of(name) for name in names}
        return SecureGroup(self.study.digest(), keys, self.study.dropouts, self.study.aggregation.colluders)

    @property
    def arithmetic(self) -> Arithmetic:
        """For what numbers the certificate is proved."""
        return self.study.arithmetic_of(self.steps)


MOST_LEASED = 10_000
"""So many steps are paid for at a time at most: what a crash may lose, and what it takes to skip a lease.

A session begins with leases of one step, which double: who is killed again and again loses no more than he had done.
"""


class Refused(Exception):
    """A request that is refused, and why; never leaves the party but as its number."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.name)
        self.reason = reason


class PartySession(ABC):
    """What a party remembers while it runs. Only the ledger outlives it."""

    kind: str

    def __init__(
        self,
        terms: PartyPlan,
        holder: Holder,
        run: Run,
        stream: RandomStream,
        key: bytes | None = None,
    ) -> None:
        self.key = key
        self._terms, self._study, self._holder = terms, terms.study, holder
        self._run, self._stream = run, stream
        self._charger = Charger(run, stream)
        self._round = 0  # the last one that is over
        self._answered = 0  # the last one answered by this session
        self._lease = max(1, min(terms.steps // LEASES, MOST_LEASED))

    def next_round(self) -> int:
        """The first round that will be answered."""
        return max(self._round, self._charger.before) + 1

    @abstractmethod
    def reply(self, request: Message) -> Message:
        """The answer to a request, or :class:`Refused`."""

    def _model(self, request: Message) -> Floats:
        theta = request.array
        if request.kind != self.kind:
            raise Refused(Refusal.OTHER_STUDY)
        if (
            theta.dtype != np.float64
            or theta.shape != (self._study.dimension,)
            or not np.isfinite(theta).all()
        ):
            raise Refused(Refusal.MALFORMED)
        return theta

    def _refuse_past(self, round: int) -> None:
        if round == self._answered:
            raise Refused(Refusal.OTHER_REQUEST)  # the same request would have got the answer that is kept
        if round < self.next_round():
            raise Refused(Refusal.PAST_ROUND)

    def _charge(self, step: int) -> NoisePermit:
        """Pay for all steps up to this one, and return the permit for the noise of one answer."""
        if step > self._terms.steps:
            raise Refused(Refusal.BEYOND_PLAN)
        clip_norm = self._study.training.clip_norm
        return self._charger.up_to(step, self._terms.step_noise, clip_norm, self._lease)


class NoisySession(PartySession):
    """Each party's noisy sum leaves as it is."""

    def reply(self, request: Message) -> Message:
        """The answer to the next round: charged, then computed, then noised."""
        theta = self._model(request)
        self._refuse_past(request.round)
        released = self._release(request.round, theta)
        return Message(self._study.digest(), "noisy", request.round, self._terms.party, released)

    @abstractmethod
    def _release(self, round: int, theta: Floats) -> Floats:
        """What leaves for this round, after its step is paid for."""
