"""A :class:`Recipe` is a training procedure whose noise level is still open; calibrating it gives a plan.

>>> recipe = Recipe(records=60_000, batch_size=256, epochs=20, clip_norm=1.0)
>>> plan = recipe.calibrate(Budget(epsilon=2.0, delta=1e-5))
>>> plan.steps, plan.divisor, round(plan.noise_multiplier, 2)
(4688, 256.0, 0.89)
>>> print(plan.guarantee)
(2, 1e-05)-differentially private for one record, add-remove neighbours, against an observer who sees every release

Several stages share one budget. A stage that is a single release, such as private moments, is a recipe with one
step; shares are parts of the squared signal-to-noise ratio, in which the costs of Gaussian releases add up:

>>> moments = Recipe(records=60_000, steps=1, sampling="full-batch", clip_norm=3.0, name="moments")
>>> staged = StagedRecipe((moments, recipe), shares=(0.1, 0.9)).calibrate(Budget(epsilon=2.0, delta=1e-5))
>>> [(stage.name, round(stage.noise_multiplier, 2)) for stage in staged.stages]
[('moments', 6.69), ('descent', 0.91)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from discreet.accounting.calibration import calibrate
from discreet.core.matrix_mechanism import MOST_BANDS, divisors
from discreet.core.matrix_mechanism_error import error_of_iterates
from discreet.core.sampling import FixedSizeSampler, FullBatch
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Gaussian, PoissonSampled
from discreet.guarantee import Budget, Neighbours, Unit
from discreet.plan.plan import Plan, as_tuple, checked_budget, consistent
from discreet.plan.procedure import compose, refuse_uncovered_bands
from discreet.plan.stage import Sampling, Stage, allocated_steps

STEPS = (200, 1000)
"""The fewest and the most steps that are suggested: fewer are too coarse, more spoil what sampling saves."""
LONG_STEP = 0.25
"""Learning rate, in lengths of the initial weights, at which so many steps are suggested as noise leaves room for."""
SMALLEST_BATCH = 64
PARTS = 10
"""Of a schedule that is a function."""
MOST_PARTS = 60
"""Of any schedule: each is an event of its own to account for."""
MOST_TRIED = 64
"""Bands, when the best number of them is looked for: each keeps a copy of the weights in memory."""

Schedule = Sequence[float] | Callable[[float], float]
"""Numbers for equally long parts of a training, or a function of the progress from 0 to 1."""


@dataclass(frozen=True)
class Recipe:
    """A procedure whose noise level is still open.

    Give either ``epochs`` or ``steps``. ``batch_size`` is the expected one; with ``sampling="full-batch"`` it is
    left out. ``records`` is the declared, public number of records. ``bands`` above one correlate the noise of so
    many steps; ``"best"`` lets :meth:`calibrate` choose how many, see :func:`best_bands`.

    ``noise`` and ``clip_norms`` are schedules over the course of training: one number for each of several parts of
    the same length, or a function of the progress from 0 to 1, of which ten parts are taken. Those of ``noise`` are
    relative to one another, for their level is calibrated; each part is a stage of the plan, accounted as it is.

    >>> falling = Recipe(60_000, 600, epochs=9, noise=(1.5, 1.0, 0.75)).calibrate(Budget(2.0, 1e-5))
    >>> [(stage.name, stage.steps, round(stage.noise_multiplier, 2)) for stage in falling.stages]
    [('descent-1', 300, 1.65), ('descent-2', 300, 1.1), ('descent-3', 300, 0.83)]
    """

    records: int
    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    clip_norm: float = 1.0
    sampling: Sampling | str = "poisson"
    name: str = "descent"
    bands: int | Literal["best"] = 1
    noise: Schedule | None = None
    clip_norms: Schedule | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise InvalidParameter("epochs", self.epochs, "give exactly one of epochs and steps.")
        if self.batch_size is None and self.sampling != "full-batch":
            remedy = "is needed; only sampling='full-batch' does without."
            raise InvalidParameter("batch_size", None, remedy)
        self.at(1.0)  # which checks everything else
        if self.noise is not None or self.clip_norms is not None:
            self._check_schedules()
            self.stages(1.0)

    def _check_schedules(self) -> None:
        for name, given in (("noise", self.noise), ("clip_norms", self.clip_norms)):
            if given is not None:
                object.__setattr__(self, name, _levels(name, given))
        if self.bands == "best":
            remedy = "is chosen for noise that stays the same; give a number with noise= or clip_norms=."
            raise InvalidParameter("bands", "best", remedy)
        if self.clip_norms is not None and self.clip_norm != 1.0:
            raise InvalidParameter("clip_norm", self.clip_norm, "is what clip_norms= says; give one of them.")

    @classmethod
    def suggest(
        cls,
        records: int,
        parameters: int,
        budget: Budget,
        *,
        batch_size: int | None = None,
        epochs: float | None = None,
        clip_norm: float = 1.0,
        sampling: Sampling = "poisson",
    ) -> Recipe:
        """A recipe for a model of ``parameters`` weights, from public numbers; what is given stays as it is.

        Steps are as many as the budget has use for: so many that steps at the learning rate from the noise are
        about :data:`LONG_STEP` long, within :data:`STEPS`. Epochs are 30 for small data and fewer for large,
        because each takes time; the rest follows. ``plan.learning_rate(parameters, length)`` goes with the plan.

        >>> budget = Budget(epsilon=2.0, delta=1e-5)
        >>> recipe = Recipe.suggest(60_000, parameters=26_010, budget=budget)
        >>> recipe.batch_size, recipe.epochs, round(recipe.calibrate(budget).learning_rate(26_010), 2)
        (1528, 19, 0.5)
        """
        count = FullBatch(records).records
        whole("parameters", parameters, at_least=1)
        checked_budget(budget, count)
        chosen: float = _epochs(count) if epochs is None else epochs
        if sampling == "full-batch":
            return cls(count, None, chosen, clip_norm=clip_norm, sampling=sampling)
        known = cls(count, count, epochs=chosen)  # which checks the epochs
        if batch_size is None:
            steps = _useful_steps(count, parameters, budget)
            size = math.ceil(count * real("epochs", known.epochs, above=0) / steps)
            batch_size = min(max(SMALLEST_BATCH, size), count)
        return cls(count, batch_size, chosen, clip_norm=clip_norm, sampling=sampling)

    def stages(self, noise_multiplier: float) -> tuple[Stage, ...]:
        """The one stage with this noise, or one for each part of the schedules, with multiples of it."""
        whole_stage = self.at(noise_multiplier)
        counts = [len(levels) for levels in (self.noise, self.clip_norms) if isinstance(levels, tuple)]
        if not counts:
            return (whole_stage,)
        parts = math.lcm(*counts)
        charges = whole_stage.steps // whole_stage.steps_per_charge
        if parts > min(charges, MOST_PARTS):
            unit = (
                "steps"
                if whole_stage.steps_per_charge == 1
                else f"times {whole_stage.steps_per_charge} steps"
            )
            remedy = f"makes {parts} parts of {charges} {unit}, and at most {MOST_PARTS}; give fewer numbers."
            raise InvalidParameter("clip_norms" if self.noise is None else "noise", parts, remedy)
        ends = [round(part * charges / parts) for part in range(parts + 1)]
        return tuple(
            replace(
                whole_stage,
                name=f"{self.name}-{part + 1}",
                steps=(ends[part + 1] - ends[part]) * whole_stage.steps_per_charge,
                noise_multiplier=noise_multiplier * _level(self.noise, part / parts),
                clip_norm=self.clip_norm * _level(self.clip_norms, part / parts),
            )
            for part in range(parts)
        )

    def at(self, noise_multiplier: float) -> Stage:
        """The stage with this noise, schedules apart: see :meth:`stages`."""
        size = self.records if self.batch_size is None else self.batch_size
        fits = FixedSizeSampler(self.records, size)  # a batch within the records
        steps = self._planned_steps(fits.records, fits.batch_size) if self.steps is None else self.steps
        return Stage(
            self.name,
            self.sampling,
            fits.records,
            fits.batch_size,
            steps,
            self.clip_norm,
            noise_multiplier,
            1 if self.bands == "best" else self.bands,
        )

    def _planned_steps(self, records: int, batch_size: int) -> int:
        if self.sampling == "random-allocation":
            return whole("epochs", self.epochs, at_least=1) * allocated_steps(records, batch_size)
        epochs = real("epochs", self.epochs, above=0, at_most=1e9)
        steps = math.ceil(
            epochs * records / batch_size * (1 - 1e-12)
        )  # the rounding of 0.1 * 30 adds no step
        bands = 1 if self.bands == "best" else whole("bands", self.bands, at_least=1, at_most=MOST_BANDS)
        return -(-steps // bands) * bands

    def calibrate(self, budget: Budget) -> Plan:
        """The plan with the least noise that is proved to stay within ``budget``.

        Guarantee: ``plan.guarantee.within(budget)``.
        """
        budget = checked_budget(budget, self.at(1.0).records)
        if self.bands == "best":
            return self.changed(bands=best_bands(self, budget)).calibrate(budget)
        refuse_uncovered_bands((self.at(1.0),), budget)
        noise = calibrate(lambda noise: compose(self.stages(noise)), budget)
        return Plan(self.stages(noise), budget.delta, budget.neighbours, budget.group_size, unit=budget.unit)

    def with_noise(
        self,
        noise_multiplier: float,
        delta: float,
        neighbours: Neighbours = "add-remove",
        group_size: int = 1,
        unit: Unit = "record",
    ) -> Plan:
        """The plan with a given noise, or multiples of it; ``plan.guarantee`` tells what it costs."""
        if self.bands == "best":
            raise InvalidParameter("bands", "best", "is chosen for a budget; give a number, or calibrate.")
        return Plan(self.stages(noise_multiplier), delta, neighbours, group_size, unit=unit)

    def changed(self, **changes: Any) -> Recipe:
        """This recipe with other values; setting epochs clears steps, and the other way round."""
        if unknown := set(changes) - {field.name for field in fields(self)}:
            raise InvalidParameter("changes", sorted(unknown), "are no fields of a recipe.")
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
        object.__setattr__(self, "stages", as_tuple("stages", self.stages))
        if not self.stages or not all(isinstance(stage, Recipe) for stage in self.stages):
            raise InvalidParameter("stages", self.stages, "must hold at least one Recipe.")
        if any(stage.noise is not None or stage.clip_norms is not None for stage in self.stages):
            remedy = "of a stage cannot follow a schedule; give each part of it as a stage, with its share."
            raise InvalidParameter("noise", "a schedule", remedy)
        shares = tuple(self.shares) or (1.0,) * len(self.stages)
        if len(shares) != len(self.stages):
            raise InvalidParameter(
                "shares", shares, f"must hold one share for each of {len(self.stages)} stages."
            )
        least = 1e-9 * sum(share for share in shares if isinstance(share, int | float))
        object.__setattr__(self, "shares", tuple(real("shares", share, above=least) for share in shares))
        self.at(1.0)

    def at(self, noise: float) -> tuple[Stage, ...]:
        """The stages when all of them together have about mu = 1 / ``noise``."""
        noise, total = real("noise", noise, above=0), sum(self.shares)
        split = zip(self.stages, self.shares, strict=True)
        stages = tuple(
            recipe.at(_noise_for(recipe.at(1.0), share / total / noise**2)) for recipe, share in split
        )
        return consistent(stages)

    def calibrate(self, budget: Budget) -> Plan:
        """The plan with the least noise in these shares that is proved to stay within ``budget``.

        Guarantee: ``plan.guarantee.within(budget)``, for all stages together.
        """
        budget = checked_budget(budget, self.at(1.0)[0].records)
        noise = calibrate(lambda noise: compose(self.at(noise)), budget)
        return Plan(self.at(noise), budget.delta, budget.neighbours, budget.group_size, unit=budget.unit)


def best_bands(recipe: Recipe, budget: Budget) -> int:
    """How many bands make the weights drift least within a budget.

    The drift is that of descent with momentum 0.9 and a cosine schedule, in the mean over all steps. More bands take
    more of the noise back, and save less by sampling. The noise is compared for Poisson sampling, for which it is
    known in milliseconds, and for random allocation again among the best three. Which one is chosen decides nothing
    about the guarantee, as the plan is calibrated for it.
    """
    one = recipe.at(1.0)
    refused = one.sampling not in ("poisson", "random-allocation")
    if refused or (budget.neighbours, budget.group_size) != ("add-remove", 1):
        return 1

    def drift(bands: int) -> float:
        rate, windows = min(1.0, bands * one.rate), -(-one.steps // bands)
        noise = calibrate(lambda z: PoissonSampled(rate, Gaussian(z)) * windows, budget)
        return noise * error_of_iterates(bands, one.steps)

    epoch = max(1, int(1 / one.rate + 1e-9))
    if one.sampling == "random-allocation":
        choice = [bands for bands in divisors(epoch) if bands <= MOST_TRIED]
    else:
        most = min(epoch, one.steps, MOST_TRIED)
        choice = sorted({*(round(2 ** (power / 2)) for power in range(13)), most} & {*range(1, most + 1)})
    found: dict[int, float] = {}
    for bands in choice:
        found[bands] = drift(bands)
        if found[bands] > 1.1 * min(found.values()):  # it falls, and then it rises
            break
    best = sorted(found, key=found.__getitem__)[:3]
    if one.sampling == "poisson" or best[0] == 1:
        return best[0]

    def allocated(bands: int) -> float:
        noise = calibrate(lambda z: recipe.changed(bands=bands).at(z).event, budget)
        return noise * error_of_iterates(bands, one.steps)

    return min((bands for bands in best if bands > 1), key=allocated)


def _levels(name: str, given: Schedule) -> tuple[float, ...]:
    """A schedule as numbers; a function is asked for the middle of each part."""
    if callable(given):
        given = [given((part + 0.5) / PARTS) for part in range(PARTS)]
    if not isinstance(given, list | tuple) or not given:
        raise InvalidParameter(name, given, "must be several numbers, or a function of the progress.")
    return tuple(real(name, level, above=0) for level in given)


def _level(schedule: Schedule | None, progress: float) -> float:
    """The number that holds at some progress below 1; one without a schedule."""
    if not isinstance(schedule, tuple):
        return 1.0
    return float(schedule[int(progress * len(schedule) + 1e-9)])


def _epochs(records: int) -> int:
    return min(30, max(5, round(30 * math.sqrt(math.sqrt(10_000 / records)))))


def _useful_steps(records: int, parameters: int, budget: Budget) -> float:
    """How many long steps fit into what noise leaves of the way.

    Whatever the steps, learning rate times steps is at most what it is for full batches, where noise costs least: in
    lengths of the initial weights records * mu / sqrt(parameters), with mu that of one Gaussian release of the whole
    budget.
    """
    mu = 1 / calibrate(Gaussian, budget)
    way = records * mu / math.sqrt(parameters)
    return min(max(way / LONG_STEP, STEPS[0]), STEPS[1])


def _noise_for(stage: Stage, mu_squared: float) -> float:
    """The noise at which a stage has about this mu^2: exact for full batches, else by the central limit.

    T sampled steps tend to mu^2 = T rate^2 (exp(1/noise^2) - 1) (Bu, Dong, Long, Su 2020).
    """
    per_step = mu_squared / stage.steps
    if stage.rate == 1:
        return 1 / math.sqrt(per_step)
    return 1 / math.sqrt(math.log1p(per_step / stage.rate**2))
