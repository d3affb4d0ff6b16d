"""The terms of a study for one party: what it releases at most, with which noise, and what that costs.

>>> from discreet.parties.study import Privacy, Study, Training
>>> study = Study("s", "sgd2", {"a": 100, "b": 100}, Privacy(1.0, 1e-6), Training(1.0, rounds=50),
...               {"kind": "logistic", "dimension": 3})
>>> terms = PartyPlan(study, "a")
>>> terms.steps, round(terms.budget.epsilon, 3)
(50, 1.0)

A party enforces :class:`AgreedNumbers` and nothing else of a study. Whatever they are, the event that is charged and
the noise that is drawn follow from them here, and :class:`~discreet.trusted.permits.StepNoise` compares the two. So a
study that was read wrongly can waste a budget, and its epsilon is the one that the ledger shows before consent.

**What is charged.** In SGD2 a message has noise of ``noise_multiplier`` clip norms. Of the parties of a group, at
least ``honest`` are in every secure sum and add their shares, and the coordinator and the colluders see the sum only.
A person known to ``across`` parties moves as many messages by a clip norm each: the root of so many clip norms where
all messages are seen, and so many clip norms where they add up. In SGD1 a message concerns one record. Where the
coordinator names it, a step is one more use of the most used record; where the party draws it in secret among its
records, a step is a call.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from discreet.accounting.curve import account
from discreet.certificate import Arithmetic
from discreet.core.noise import SPARED_DELTA, SPARED_DELTA_OF_FIT
from discreet.core.noise_shares import distance_of_message, grid_of_messages
from discreet.errors import InvalidParameter
from discreet.events import Event, FixedSizeSampled, Gaussian, PoissonSampled
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter
from discreet.parties.messages import Roster
from discreet.parties.noise_scale import NoiseScale
from discreet.parties.secure.secure_group import SecureGroup
from discreet.parties.study import Study, agreed_numbers
from discreet.plan.plan import Plan
from discreet.trusted.permits import Draw, StepNoise
from discreet.trusted.plain_data import Checked


@dataclass(frozen=True)
class AgreedNumbers(Checked):
    """The numbers of a study that decide what one party releases, as plain data.

    ``records`` are the party's own units and ``all_records`` those of all ``parties``. ``group`` names the parties of
    its secure sum, itself among them, and ``smallest`` is the size of the smallest group; both are public. With the
    recipe ``releases`` and ``kinds`` limit what is asked, and ``dimension`` the numbers of an answer. ``most_uses``
    and ``calls`` are limits of SGD1.
    """

    algorithm: Literal["sgd1", "sgd2", "recipe"]
    budget: Budget
    hardened: bool
    secure: bool
    records: int
    all_records: int
    parties: int
    dimension: int
    noise_multiplier: float
    clip_norm: float
    rounds: int
    rate: float
    party_bound: float | None
    schedule: Literal["uniform", "balanced", "private"]
    most_uses: int
    calls: int
    across: int
    group: tuple[str, ...]
    smallest: int
    dropouts: int
    colluders: int
    releases: int
    kinds: tuple[str, ...]

    @property
    def shares(self) -> int:
        """The number of shares that make the noise of a secure sum; a plain message has all of it."""
        return self.smallest - self.dropouts - self.colluders if self.secure else 1

    def honest_in(self, size: int) -> int:
        """The number of honest parties in every secure sum of a group of this size; 1 with plain sums."""
        return size - self.dropouts - self.colluders if self.secure else 1

    @property
    def event(self) -> Event:
        """Everything that the party releases, as the strongest observer sees it: one step, so many times."""
        noise = Gaussian(self.noise_multiplier)
        if self.algorithm == "sgd1":
            if self.schedule != "private":
                return noise * self.most_uses
            return FixedSizeSampled(1, self.records, noise) * self.calls
        hidden = self.noise_multiplier
        if self.secure:
            size = len(self.group) if self.across == 1 else self.smallest
            share = 1 / math.sqrt(self.shares)
            hidden = hidden * share * math.sqrt(self.honest_in(size)) / self.across * (1 - 1e-14)
        elif self.across > 1:
            hidden = hidden / math.sqrt(self.across) * (1 - 1e-14)
        step: Event = Gaussian(hidden)
        if self.rate < 1:
            step = PoissonSampled(self.rate, Gaussian(hidden))
        return step * self.rounds


@dataclass(frozen=True)
class PartyPlan:
    """A study as one party sees it. ``study`` names it in ledgers and messages; :attr:`numbers` are enforced.

    Guarantee: a step of :attr:`event` pays for the noise of :attr:`step_noise`, as long as at most so many parties
    drop out and collude as the numbers say.
    """

    study: Study
    party: str

    def __post_init__(self) -> None:
        agreed = self.numbers
        few = agreed.smallest > len(agreed.group) or agreed.shares < 1
        # A coordinator that tells parties different things is withstood: discreet.parties.secure.secure_sum.
        byzantine = agreed.smallest - agreed.colluders <= agreed.dropouts * (agreed.dropouts + 1)
        if agreed.secure and (few or byzantine or self.party not in agreed.group):
            raise InvalidParameter("dropouts", agreed.dropouts, "leave too few honest parties in a group.")

    @cached_property
    def numbers(self) -> AgreedNumbers:
        """The numbers that the party enforces, copied once."""
        return AgreedNumbers(**agreed_numbers(self.study, self.party))

    @cached_property
    def scale(self) -> NoiseScale:
        """By the recipe: how a share of the budget becomes noise."""
        return NoiseScale.of(self.numbers.budget)

    @cached_property
    def event(self) -> Event:
        """Everything that the party releases; by the recipe, one release that costs as much as all of them may."""
        return self.scale.event(1.0, 1) if self.numbers.algorithm == "recipe" else self.numbers.event

    @property
    def honest(self) -> int:
        """The number of honest parties of the party's group in every secure sum; 1 with plain sums."""
        return self.numbers.honest_in(len(self.numbers.group))

    @cached_property
    def grid(self) -> float | None:
        """The steps in which messages of SGD1 and SGD2 count; None in floating point."""
        agreed = self.numbers
        records = agreed.all_records if agreed.algorithm == "sgd2" else 1
        noise = Gaussian(agreed.noise_multiplier)
        return grid_of_messages(noise, agreed.clip_norm, records) if agreed.hardened else None

    @cached_property
    def step_noise(self) -> StepNoise:
        """One step of :attr:`event`, and the noise that it draws; with secure sums, one share of it.

        The shares of all honest parties of the group that are present add up in what the coordinator sees.
        """
        noise = Gaussian(self.numbers.noise_multiplier)
        draw = Draw(noise, shares=self.numbers.shares, copies=self.honest)
        return StepNoise(self.event.parts()[0][0], {"sum": draw}, grid=self.grid)

    @property
    def steps(self) -> int:
        """Rounds of SGD2; in SGD1 calls, or uses of the most used record; by the recipe, the most answers."""
        return self.numbers.releases if self.numbers.algorithm == "recipe" else self.event.parts()[0][1]

    @property
    def run_prefix(self) -> str:
        """The prefix of the party's runs in its ledger."""
        name = f"{self.study.name}/{self.party}"
        return name if len(name) <= 70 else f"{self.study.digest()[:16]}/{self.party}"

    @cached_property
    def budget(self) -> Budget:
        """What the event costs. Above the study's budget if the noise is calibrated against a weaker observer."""
        budget, recipe = self.numbers.budget, self.numbers.algorithm == "recipe"
        spared = SPARED_DELTA_OF_FIT if recipe else SPARED_DELTA if self.numbers.hardened else 0.0
        accounted = replace(budget, delta=budget.delta * (1 - spared))
        if recipe:
            return accounted
        epsilon = account(self.event, budget.neighbours).epsilon(accounted.delta)
        return replace(accounted, epsilon=max(epsilon, math.ulp(0.0)))

    @property
    def rule(self) -> FixedPlan | GaussianFilter:
        """The spending rule of a ledger for this study alone; by the recipe, releases are chosen along the way."""
        if self.numbers.algorithm == "recipe":
            return GaussianFilter(self.budget, spare=0.0)
        return FixedPlan(self.event, self.budget)

    def plan(self, key: bytes | None = None) -> Plan:
        """What the ledger and the certificate call it; in SGD1 with the hash of the schedule's key."""
        settings = {"study": self.study.to_dict(), "digest": self.study.digest(), "party": self.party}
        if key is not None:
            settings["schedule"] = hashlib.sha256(key).hexdigest()
        return Plan.adaptive(f"{self.numbers.algorithm} party", self.rule, settings)

    def group(self, roster: Roster) -> SecureGroup:
        """The public terms of the secure sum of the party's group."""
        keys = {name: roster.key_of(name) for name in self.numbers.group}
        return SecureGroup(self.study.digest(), keys, self.numbers.dropouts, self.numbers.colluders)

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of all messages of the party, as its certificate states it."""
        if self.numbers.algorithm == "recipe":
            return Arithmetic("hardened", self.scale.distance)
        if self.grid is None:
            return Arithmetic()
        agreed, noise = self.numbers, Gaussian(self.numbers.noise_multiplier)
        counted = self.grid, agreed.dimension, agreed.shares, agreed.parties
        one = distance_of_message(noise, agreed.clip_norm, *counted)
        seen = one * self.steps * agreed.across  # of all parties who know a person
        return Arithmetic("hardened", math.nextafter(min(seen, 0.5), 1.0))
