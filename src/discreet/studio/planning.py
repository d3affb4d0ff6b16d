"""From the positions of the sliders to certified numbers, curves and text to take away.

>>> wish = Wish(records=60_000, batch_size=600, epochs=10, noise_multiplier=1.2, delta=1e-6)
>>> answer = price_plan(wish)
>>> answer["steps"], round(answer["epsilon"]["upper"], 3)
(1000, 1.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from discreet.accounting.curve import account
from discreet.errors import DiscreetError, InvalidParameter, one_of, real, whole
from discreet.events import Event
from discreet.guarantee import Budget, Neighbours, upper_text
from discreet.linear.preview import Preview
from discreet.parties.arrangement import Arrangement
from discreet.parties.observation.observers import noise_for, observers
from discreet.plan.explanation import ALARMS
from discreet.plan.plan import Plan
from discreet.plan.plan_views import epsilon_after
from discreet.plan.prices import best_clip_norm, price_of_clip
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling


@dataclass(frozen=True)
class Wish:
    """Values of the sliders. ``fixed`` is the given one of noise and epsilon; the other is computed."""

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
        """Budget, where epsilon is the given value."""
        return Budget(self.epsilon, self.delta, self.neighbours)

    def plan(self) -> Plan:
        """The plan that the sliders ask for."""
        if self.fixed == "epsilon":
            return self.recipe.calibrate(self.budget)
        return self.recipe.with_noise(self.noise_multiplier, self.delta, self.neighbours)


def price_plan(wish: Wish) -> dict[str, Any]:
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
    """Curves beside the plan: attack success, and the cost of steps, epsilon and clip norm."""
    plan = wish.plan()
    return {
        "alarms": ALARMS,
        "hits": plan.curve.power(ALARMS),
        "attack": _attack(plan),
        "steps": _price_of_steps(plan),
        "frontier": _frontier(plan),
        "clip": _price_of_clip(wish, plan),
    }


def export_plan(wish: Wish) -> dict[str, str]:
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


def _attack(plan: Plan) -> dict[str, list[float]]:
    alarms = [0.0, 0.001, 0.01, 0.03, *(step / 16 for step in range(1, 17))]
    return {"alarms": alarms, "hits": [plan.curve.power(rate) for rate in alarms]}


def _price_of_steps(plan: Plan) -> dict[str, list[float]]:
    """Epsilon after more and more steps at this noise, up to twice as many as planned."""
    return _columns("steps", "epsilon", epsilon_after(plan, 2.0))


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


_MOST = 50


@dataclass(frozen=True)
class Together:
    """So many parties with as many records each, and what the coordinator may learn at most."""

    parties: int
    records: int
    rounds: int
    epsilon: float
    delta: float
    aggregation: str = "plain"
    colluders: int = 0

    def __post_init__(self) -> None:
        whole("parties", self.parties, at_least=2, at_most=_MOST, remedy="The page shows up to 50.")
        real("epsilon", self.epsilon, above=0, at_most=100)

    def arrangement(self) -> Arrangement:
        """Arrangement of the parties before its noise is chosen."""
        sizes = {f"party {number}": self.records for number in range(1, self.parties + 1)}
        more = {"aggregation": self.aggregation, "colluders": self.colluders}
        return Arrangement("sgd2", sizes, rounds=self.rounds, **more)  # type: ignore[arg-type]


def together_answer(data: Any) -> dict[str, Any]:
    """Noise for the budget, and the observer table that follows."""
    try:
        wish = Together(**data)
    except TypeError as error:
        raise InvalidParameter("parties", data, f"is incomplete ({error}).") from None
    arrangement = wish.arrangement()
    budget = Budget(wish.epsilon, wish.delta, "replace-one")
    noise = noise_for(arrangement, budget, against="coordinator")
    table = observers(arrangement.with_noise(noise), delta=wish.delta)
    rows = [
        {"observer": row["observer"], "sees": row["sees"], "note": row["note"], "epsilon": _show_row(row)}
        for row in table.to_dict()["observers"]
    ]
    return {"noise_multiplier": noise, "observers": rows}


def _show_row(row: dict[str, Any]) -> str:
    if row.get("epsilon") is not None:
        return f"ε ≤ {upper_text(row['epsilon'])}"
    return "no protection" if not row["note"] else "–"


EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)


def forecast_answer(data: Any) -> dict[str, Any]:
    """The range over epsilon, and at epsilon 1 a grid of what is at least to expect with other numbers."""
    if not isinstance(data, dict) or set(data) != {"records", "columns", "best", "delta"}:
        raise InvalidParameter("table", data, "must have records, columns, best and delta.")
    whole("records", data["records"], at_least=10, at_most=10**12)
    table = Preview(**data, epsilons=EPSILONS)
    if table.best is None:
        raise InvalidParameter("best", None, "must be the accuracy hoped for without privacy.")
    sizes = [
        round(table.records * factor) for factor in (0.01, 0.1, 1, 10, 100) if table.records * factor >= 10
    ]
    columns = sorted({max(1, round(table.columns * factor)) for factor in (0.1, 0.3, 1, 3, 10)})
    grid = [[replace(table, records=size, columns=width).at(1.0)[0] for size in sizes] for width in columns]
    return {
        "epsilon": list(EPSILONS),
        "low": [low for _, low, _ in table.rows],
        "high": [high for _, _, high in table.rows],
        "without": table.best,
        "records": sizes,
        "columns": columns,
        "grid": grid,
    }
