"""From the positions of the sliders to certified numbers, curves and text to take away.

>>> wish = Wish(records=60_000, batch_size=600, epochs=10, noise_multiplier=1.2, delta=1e-6)
>>> answer = priced(wish)
>>> answer["steps"], round(answer["epsilon"]["upper"], 3)
(1000, 1.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from discreet.accounting.account import account
from discreet.errors import DiscreetError, InvalidParameter, one_of, whole
from discreet.events import Event
from discreet.guarantee import Budget, Neighbours
from discreet.plan.explanation import ALARMS
from discreet.plan.plan import Plan
from discreet.plan.prices import best_clip_norm, price_of_clip
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling

_POINTS = 12


@dataclass(frozen=True)
class Wish:
    """What the sliders say. ``fixed`` names what is given; the other of noise and epsilon follows from it."""

    records: int
    batch_size: int
    epochs: float
    delta: float
    clip_norm: float = 1.0
    dimension: int = 1000
    sampling: Sampling = "poisson"
    neighbours: Neighbours = "add-remove"
    fixed: Literal["noise", "epsilon"] = "noise"
    noise_multiplier: float = 1.0
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        one_of("fixed", self.fixed, ("noise", "epsilon"))
        whole("dimension", self.dimension, at_least=1, at_most=10**12)

    @classmethod
    def from_dict(cls, data: object) -> Wish:
        """A wish as the page sends it; unknown names are refused."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not set(data) <= names:
            raise InvalidParameter("wish", data, f"must be an object with {', '.join(sorted(names))}.")
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidParameter("wish", data, f"is incomplete ({error}).") from None

    @property
    def recipe(self) -> Recipe:
        """The procedure, its noise level open."""
        full = self.sampling == "full-batch"
        epochs = round(self.epochs) if self.sampling == "random-allocation" else self.epochs
        size = None if full else self.batch_size
        return Recipe(self.records, size, epochs, clip_norm=self.clip_norm, sampling=self.sampling)

    @property
    def budget(self) -> Budget:
        """What may be spent, where epsilon is what is given."""
        return Budget(self.epsilon, self.delta, self.neighbours)

    def plan(self) -> Plan:
        """The plan that the sliders ask for."""
        if self.fixed == "epsilon":
            return self.recipe.calibrate(self.budget)
        return self.recipe.with_noise(self.noise_multiplier, self.delta, self.neighbours)


def priced(wish: Wish) -> dict[str, Any]:
    """The certified cost of a plan, and what follows from it directly."""
    plan = wish.plan()
    stage, (lower, upper) = plan.stage(), plan.guarantee.epsilon
    return {
        "epsilon": {"lower": lower, "upper": upper},
        "delta": plan.delta,
        "noise_multiplier": stage.noise_multiplier,
        "steps": stage.steps,
        "rate": stage.rate,
        "batch_size": stage.divisor,
        "noise_per_coordinate": stage.noise_std_of_mean,
        "signal_to_noise": stage.divisor / stage.noise_multiplier * math.sqrt(stage.steps / wish.dimension),
    }


def curves(wish: Wish) -> dict[str, Any]:
    """What else to look at: the attacker, the price of steps, of epsilon and of the clip."""
    plan = wish.plan()
    return {
        "alarms": ALARMS,
        "hits": plan.curve.power(ALARMS),
        "attack": _attack(plan),
        "steps": _price_of_steps(plan),
        "frontier": _frontier(plan),
        "clip": _price_of_clip(wish, plan),
    }


def exported(wish: Wish) -> dict[str, str]:
    """The plan as Python, as a command, and as the text of plan.json."""
    plan, recipe = wish.plan(), wish.recipe
    size = "" if recipe.batch_size is None else f"batch_size={recipe.batch_size}, "
    start = f"records={recipe.records}, {size}epochs={recipe.epochs!r}, clip_norm={recipe.clip_norm!r}"
    procedure = f"dp.Recipe({start}, sampling={recipe.sampling!r})"
    budget = f"{wish.epsilon!r}, delta={wish.delta!r}, neighbours={wish.neighbours!r}"
    if wish.fixed == "epsilon":
        made = f"{procedure}.calibrate(\n    dp.Budget({budget})\n)"
        goal = f"--epsilon {wish.epsilon!r}"
    else:
        noise = f"{wish.noise_multiplier!r}, delta={wish.delta!r}, neighbours={wish.neighbours!r}"
        made = f"{procedure}.with_noise(\n    {noise}\n)"
        goal = f"--noise-multiplier {wish.noise_multiplier!r}"
    batch = "" if recipe.batch_size is None else f" --batch-size {recipe.batch_size}"
    command = (
        f"discreet plan --records {recipe.records}{batch} --epochs {recipe.epochs!r} "
        f"--clip-norm {recipe.clip_norm!r} --sampling {recipe.sampling} {goal} --delta {wish.delta!r} "
        f"--neighbours {wish.neighbours} --out plan.json"
    )
    code = f'import discreet as dp\n\nplan = {made}\nprint(plan.explain())\nplan.save("plan.json")\n'
    return {"python": code, "command": command, "plan": plan.to_json() + "\n"}


# ---- curves ----


def _attack(plan: Plan) -> dict[str, list[float]]:
    alarms = [0.0, 0.001, 0.01, 0.03, *(step / 16 for step in range(1, 17))]
    return {"alarms": alarms, "hits": [plan.curve.power(rate) for rate in alarms]}


def _price_of_steps(plan: Plan) -> dict[str, list[float]]:
    """Epsilon after more and more steps at this noise, up to twice as many as planned."""
    stage = plan.stage()
    charges = stage.steps // stage.steps_per_charge
    counts = sorted({max(1, round(2 * charges * (part / _POINTS) ** 2)) for part in range(1, _POINTS + 1)})
    points = [(count * stage.steps_per_charge, _epsilon(stage.charge * count, plan)) for count in counts]
    return _columns("steps", "epsilon", points)


def _frontier(plan: Plan) -> dict[str, list[float]]:
    """Noise against epsilon for this procedure: each point is certified."""
    stage = plan.stage()
    span = [2.0 ** (part / 3) for part in range(-4, 7)]
    points = []
    for factor in reversed(span):
        noise = stage.noise_multiplier * factor
        changed = Recipe(
            stage.records,
            stage.batch_size,
            steps=stage.steps,
            clip_norm=stage.clip_norm,
            sampling=stage.sampling,
        ).at(noise)
        points.append((_epsilon(changed.event, plan), noise))
    return _columns("epsilon", "noise", [(x, y) for x, y in points if x is not None])


def _price_of_clip(wish: Wish, plan: Plan) -> dict[str, Any]:
    """The U of a private mean of these records, for records of typical length 1."""
    budget = Budget(plan.guarantee.epsilon.upper, plan.delta, plan.neighbours)
    best = best_clip_norm(wish.records, wish.dimension, 1.0, budget)
    clips = [best * 2.0 ** (part / 4) for part in range(-12, 13)]
    prices = price_of_clip(wish.records, wish.dimension, 1.0, budget, clips)
    return {
        "clip": clips,
        "bias": [math.sqrt(price.bias) for price in prices],
        "noise": [math.sqrt(price.noise) for price in prices],
        "error": [math.sqrt(price.total) for price in prices],
        "best": best,
    }


def _epsilon(event: Event, plan: Plan) -> float | None:
    try:
        return account(event, plan.neighbours, plan.group_size).epsilon(plan.delta)
    except DiscreetError:  # a point of a picture that cannot be certified is left out
        return None


def _columns(x: str, y: str, points: list[tuple[Any, Any]]) -> dict[str, list[float]]:
    kept = [point for point in points if None not in point]
    return {x: [float(first) for first, _ in kept], y: [float(second) for _, second in kept]}
