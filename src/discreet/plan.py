"""A :class:`Recipe` leaves the noise open, a :class:`Plan` has it. Everything is decided before data is touched.

A plan fixes the declared number of records, the sampling, the divisor, the clip norm, the steps, the noise and
the neighbours together; the event to account for follows from them and is never passed in. So the run, the
accounting and the certificate cannot take their numbers from different places.

>>> recipe = Recipe(records=60_000, batch_size=256, epochs=20, clip_norm=1.0)
>>> plan = recipe.calibrate(Budget(epsilon=2.0, delta=1e-5))
>>> plan.steps, plan.divisor, round(plan.noise_multiplier, 2)
(4688, 256.0, 0.89)
>>> print(plan.guarantee)
(2, 1e-05)-differentially private for one record, add-remove neighbours, against an observer who sees every release
>>> Plan.from_json(plan.to_json()) == plan
True

Several stages share one budget. A stage that is a single release, such as private moments, is a recipe with one
step; shares are parts of the squared signal-to-noise ratio, in which the costs of Gaussian releases add up:

>>> moments = Recipe(records=60_000, steps=1, sampling="full-batch", clip_norm=3.0, name="moments")
>>> staged = StagedRecipe((moments, recipe), shares=(0.1, 0.9)).calibrate(Budget(epsilon=2.0, delta=1e-5))
>>> [(stage.name, round(stage.noise_multiplier, 2)) for stage in staged.stages]
[('moments', 6.3), ('descent', 0.92)]
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any

from discreet.accounting.account import account
from discreet.accounting.curve import PrivacyCurve
from discreet.calibrate import calibrate
from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.events import Event
from discreet.explanation import ALARMS, explanation
from discreet.guarantee import Budget, Guarantee, Neighbours
from discreet.sampling import FixedSizeSampler, Sampler
from discreet.stage import Sampling, Stage, allocated_steps

FORMAT = "discreet plan 1"
_LARGEST_FILE = 2**20


@dataclass(frozen=True)
class Recipe:
    """A procedure whose noise level is still open.

    Give either ``epochs`` or ``steps``. ``batch_size`` is the expected one; with ``sampling="full-batch"`` it is
    left out. ``records`` is the declared, public number of records.
    """

    records: int
    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    clip_norm: float = 1.0
    sampling: Sampling = "poisson"
    name: str = "descent"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise InvalidParameter("epochs", self.epochs, "give exactly one of epochs and steps.")
        if self.batch_size is None and self.sampling != "full-batch":
            remedy = "is needed; only sampling='full-batch' does without."
            raise InvalidParameter("batch_size", None, remedy)
        self.at(1.0)  # which checks everything else

    def at(self, noise_multiplier: float) -> Stage:
        """The stage with this noise."""
        size = self.records if self.batch_size is None else self.batch_size
        fits = FixedSizeSampler(self.records, size)  # a batch within the records
        steps = self._planned_steps(fits.records, fits.batch_size) if self.steps is None else self.steps
        return Stage(
            self.name, self.sampling, fits.records, fits.batch_size, steps, self.clip_norm, noise_multiplier
        )

    def _planned_steps(self, records: int, batch_size: int) -> int:
        if self.sampling == "random-allocation":
            return whole("epochs", self.epochs, at_least=1) * allocated_steps(records, batch_size)
        epochs = real("epochs", self.epochs, above=0)
        return math.ceil(epochs * records / batch_size * (1 - 1e-12))  # 0.1 * 30 is not 4 steps

    def calibrate(self, budget: Budget) -> Plan:
        """The plan with the least noise that is proved to stay within ``budget``.

        Guarantee: ``plan.guarantee.within(budget)``.
        """
        budget = _checked(budget, self.at(1.0).records)
        noise = calibrate(lambda noise: self.at(noise).event, budget)
        return Plan((self.at(noise),), budget.delta, budget.neighbours, budget.group_size)

    def with_noise(
        self,
        noise_multiplier: float,
        delta: float,
        neighbours: Neighbours = "add-remove",
        group_size: int = 1,
    ) -> Plan:
        """The plan with a given noise; ``plan.guarantee`` tells what it costs."""
        return Plan((self.at(noise_multiplier),), delta, neighbours, group_size)

    def changed(self, **changes: Any) -> Recipe:
        """This recipe with other values; setting epochs clears steps, and the other way round."""
        for given, cleared in (("epochs", "steps"), ("steps", "epochs")):
            if changes.get(given) is not None:
                changes.setdefault(cleared, None)
        return replace(self, **changes)


@dataclass(frozen=True)
class StagedRecipe:
    """Several recipes that share one budget, in the order in which they run.

    ``shares`` are parts of the squared signal-to-noise ratio mu^2, equal parts if left out; only their ratios
    matter. For full batches this is exact: a stage with share f costs as much as f of all mu^2. Sampled stages
    are split by their Gaussian limit. Either way it is the composed event that is calibrated and certified.
    """

    stages: tuple[Recipe, ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages or not all(isinstance(stage, Recipe) for stage in self.stages):
            raise InvalidParameter("stages", self.stages, "must hold at least one Recipe.")
        shares = tuple(self.shares) or (1.0,) * len(self.stages)
        if len(shares) != len(self.stages):
            raise InvalidParameter(
                "shares", shares, f"must hold one share for each of {len(self.stages)} stages."
            )
        object.__setattr__(self, "shares", tuple(real("shares", share, above=0) for share in shares))
        self.at(1.0)

    def at(self, noise: float) -> tuple[Stage, ...]:
        """The stages when all of them together have about mu = 1 / ``noise``."""
        noise, total = real("noise", noise, above=0), sum(self.shares)
        split = zip(self.stages, self.shares, strict=True)
        stages = tuple(
            recipe.at(_noise_for(recipe.at(1.0), share / total / noise**2)) for recipe, share in split
        )
        return _consistent(stages)

    def calibrate(self, budget: Budget) -> Plan:
        """The plan with the least noise in these shares that is proved to stay within ``budget``.

        Guarantee: ``plan.guarantee.within(budget)``, for all stages together.
        """
        budget = _checked(budget, self.at(1.0)[0].records)
        noise = calibrate(lambda noise: _composed(self.at(noise)), budget)
        return Plan(self.at(noise), budget.delta, budget.neighbours, budget.group_size)


@dataclass(frozen=True)
class Plan:
    """All that is decided before data is touched, as one value that may be published."""

    stages: tuple[Stage, ...]
    delta: float
    neighbours: Neighbours = "add-remove"
    group_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _consistent(tuple(self.stages)))
        budget = _checked(Budget(1.0, self.delta, self.neighbours, self.group_size), self.records)
        object.__setattr__(self, "delta", budget.delta)
        object.__setattr__(self, "group_size", budget.group_size)
        _ = self.curve  # a combination that no theorem covers is refused here

    # ---- what it costs ----

    @cached_property
    def event(self) -> Event:
        """What the whole plan releases."""
        return _composed(self.stages)

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The certified privacy curve of the event."""
        return account(self.event, self.neighbours, self.group_size)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The certified cost of the whole plan at its delta."""
        return self.curve.guarantee(self.delta)

    # ---- what it does ----

    @property
    def records(self) -> int:
        """The declared number of records."""
        return self.stages[0].records

    @property
    def steps(self) -> int:
        """The number of releases, over all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, name: str | None = None) -> Stage:
        """The stage of this name; without a name, the only one."""
        names = [stage.name for stage in self.stages]
        if name is not None:
            return self.stages[names.index(one_of("name", name, names))]
        if len(names) == 1:
            return self.stages[0]
        raise InvalidParameter(
            "name", name, f"this plan has several stages, choose one of {', '.join(names)}."
        )

    @property
    def noise_multiplier(self) -> float:
        """Of the only stage: standard deviation of the noise on the sum / clip norm."""
        return self.stage().noise_multiplier

    @property
    def clip_norm(self) -> float:
        """Of the only stage: the most that one record adds to the sum."""
        return self.stage().clip_norm

    @property
    def rate(self) -> float:
        """Of the only stage: the chance of one record to be in a batch."""
        return self.stage().rate

    @property
    def divisor(self) -> float:
        """Of the only stage: the public number that every sum is divided by."""
        return self.stage().divisor

    @property
    def noise_std_of_sum(self) -> float:
        """Of the only stage: noise on each coordinate of the sum."""
        return self.stage().noise_std_of_sum

    @property
    def noise_std_of_mean(self) -> float:
        """Of the only stage: noise on each coordinate of the averaged gradient."""
        return self.stage().noise_std_of_mean

    def sampler(self) -> Sampler:
        """Of the only stage: the sampler that realises its event."""
        return self.stage().sampler()

    # ---- as text ----

    def to_dict(self) -> dict[str, Any]:
        """The decided numbers as plain data; all others follow from them."""
        return {"format": FORMAT} | asdict(self) | {"stages": [asdict(stage) for stage in self.stages]}

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """The inverse of :meth:`to_dict`; anything else is refused."""
        fields = dict(data) if isinstance(data, dict) else {}
        if fields.pop("format", None) != FORMAT or not isinstance(fields.get("stages"), list):
            raise InvalidParameter("plan", data, f"is not a {FORMAT!r}.")
        try:
            stages = tuple(Stage(**stage) for stage in fields.pop("stages"))
            return cls(stages, **fields)
        except TypeError as error:
            raise InvalidParameter("plan", data, f"is not a plan ({error}).") from None

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name of this plan in ledgers and certificates."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """The plan and its digest as JSON for people and programs."""
        return json.dumps(self.to_dict() | {"digest": self.digest()}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of :meth:`to_json`. A text that does not match its digest was altered and is refused."""
        data = _parsed(text)
        claimed = data.pop("digest", None)
        plan = cls.from_dict(data)
        if plan.digest() != claimed:
            remedy = "does not match the plan, which was altered after it was made; plan again."
            raise InvalidParameter("digest", claimed, remedy)
        return plan

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file."""
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise InvalidParameter("path", str(path), "is too large to be a plan.")
        return cls.from_json(content.decode("utf-8", errors="replace"))

    def explain(self) -> str:
        """The plan in plain words: what happens, who is protected, against whom, and what is not covered."""
        return explanation(self.stages, self.guarantee, self.curve.power(ALARMS))


def _composed(stages: tuple[Stage, ...]) -> Event:
    return reduce(add, (stage.event for stage in stages))


def _consistent(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages, if together they are a plan for one data set."""
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise InvalidParameter("stages", stages, "must hold at least one Stage; Recipe.calibrate makes them.")
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise InvalidParameter("stages", names, "must have different names; set name= in each recipe.")
    counts = sorted({stage.records for stage in stages})
    if len(counts) > 1:
        raise InvalidParameter("records", counts, "must be the same in all stages: they share one data set.")
    return stages


def _checked(budget: object, records: int) -> Budget:
    """The budget, if it means something for this many records."""
    if not isinstance(budget, Budget):
        raise InvalidParameter(
            "budget", budget, "must be a Budget, for instance Budget(epsilon=1.0, delta=1e-6)."
        )
    usual = f"Choose it well below, for instance {min(1e-5, records**-1.1):.0e}."
    if budget.delta == 0:
        raise InvalidParameter(
            "delta", 0.0, f"must be above 0, for Gaussian noise has no pure privacy. {usual}"
        )
    if budget.delta * records >= 1:
        why = "a delta of 1 / records would allow one random record to be published"
        raise InvalidParameter(
            "delta", budget.delta, f"must be below 1 / records = {1 / records:.3g}: {why}. {usual}"
        )
    return budget


def _noise_for(stage: Stage, mu_squared: float) -> float:
    """The noise at which a stage has about this mu^2: exact for full batches, else by the central limit.

    T sampled steps tend to mu^2 = T rate^2 (exp(1/noise^2) - 1) (Bu, Dong, Long, Su 2020).
    """
    per_step = mu_squared / stage.steps
    if stage.rate == 1:
        return 1 / math.sqrt(per_step)
    return 1 / math.sqrt(math.log1p(per_step / stage.rate**2))


def _parsed(text: str) -> dict[str, Any]:
    """A JSON object without NaN, infinities or keys that occur twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    def finite(word: str) -> float:
        raise ValueError(f"{word} is not a number")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=finite)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidParameter("plan", text, f"is not JSON text written by to_json() ({error}).") from None
    if not isinstance(data, dict):
        raise InvalidParameter("plan", text, "is not JSON text written by to_json().")
    return data
