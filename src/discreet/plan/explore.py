"""What would it cost, what would it bring: tables of plans, before any data is touched.

>>> from discreet.plan.recipe import Recipe
>>> recipe = Recipe(records=60_000, batch_size=256, epochs=20)
>>> table = explore(recipe, Budget(2.0, 1e-5), batch_size=[512, 1024], epochs=[15, 30])
>>> print(table)
batch_size  epochs  steps  noise_multiplier  noise_per_coordinate  signal_to_noise  epsilon
       512      15   1758              1.01               0.00197            21300        2
       512      30   3516              1.24               0.00242            24500        2
      1024      15    879              1.27               0.00124            24000        2
      1024      30   1758              1.62               0.00158            26500        2
>>> table.best().batch_size
1024
>>> round(records_needed(recipe, Budget(2.0, 1e-6), noise_per_coordinate=1e-3), -4)
220000

Every row is a calibrated plan, ``row.plan``, ready to be saved. The columns besides are predictions from public
numbers; which of them matters most, only a trial on public data can tell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import le
from typing import Any, TypedDict, Unpack, cast

from discreet.charts import Picture, Series, bar_chart, html_table, line_chart
from discreet.errors import BudgetExceeded, InvalidParameter, UnsupportedEvent, one_of, real, whole
from discreet.guarantee import Budget, upper_text
from discreet.plan.plan import Plan
from discreet.plan.prices import Convexity, risk_bound
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling

OUTCOMES = (
    "steps",
    "noise_multiplier",
    "noise_per_coordinate",
    "signal_to_noise",
    "epsilon",
    "excess_risk",
    "seconds",
    "memory",
)
"""The columns that a row can be judged by. Of the signal-to-noise ratio more is better, of all others less."""


class Grid(TypedDict, total=False):
    """What may be varied: any number of a recipe, and the budget's epsilon."""

    records: Sequence[int]
    batch_size: Sequence[int]
    epochs: Sequence[float]
    steps: Sequence[int]
    clip_norm: Sequence[float]
    sampling: Sequence[Sampling]
    epsilon: Sequence[float]


@dataclass(frozen=True)
class StepCost:
    """What a step costs on your machine, as you measured it: a fixed part and a part for each record."""

    seconds: float = 0.0
    seconds_per_record: float = 0.0
    memory: float = 0.0
    memory_per_record: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, real(field.name, getattr(self, field.name), at_least=0))


@dataclass(frozen=True)
class PlanRow:
    """One plan and what to expect of it. Numbers that were not asked for are None."""

    sampling: str
    records: int
    batch_size: int
    epochs: float
    steps: int
    clip_norm: float
    noise_multiplier: float
    noise_per_coordinate: float
    signal_to_noise: float
    epsilon: float
    excess_risk: float | None
    seconds: float | None
    memory: float | None
    plan: Plan

    def values(self) -> dict[str, Any]:
        """The row as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "plan"}


@dataclass(frozen=True)
class Exploration:
    """A table of plans. ``refused`` holds the settings for which there is none, with the reason."""

    rows: tuple[PlanRow, ...]
    varied: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def best(self, by: str = "signal_to_noise") -> PlanRow:
        """The best row by one column: the largest signal-to-noise, the smallest of anything else."""
        if not self.rows:
            raise BudgetExceeded("there is no plan in this table: " + " ".join(self.refused))
        return min(self.rows, key=lambda row: _cost(row, by))

    def frontier(self, *columns: str) -> tuple[PlanRow, ...]:
        """The rows of which no other is better in one of the columns and as good in the rest."""
        costs = [tuple(_cost(row, column) for column in columns) for row in self.rows]
        return tuple(
            row
            for row, cost in zip(self.rows, costs, strict=True)
            if not any(other != cost and all(map(le, other, cost)) for other in costs)
        )

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.rjust, line, widths)) for line in cells]
        return "\n".join(lines + [f"refused: {reason}" for reason in self.refused])

    def plot(self, by: str = "signal_to_noise") -> Picture:
        """A column of the table against what was varied first, a line for each setting of the rest."""
        title = by.replace("_", " ")
        if not self.rows or not self.varied:
            raise InvalidParameter("rows", len(self.rows), "there is nothing varied to plot.")
        first, *rest = self.varied
        told = [(_tell_row(row, rest), getattr(row, first), float(_outcome(row, by))) for row in self.rows]
        if any(isinstance(x, str) for _, x, _ in told):
            bars = [(", ".join(filter(None, (str(x), name))), y) for name, x, y in told]
            return Picture(bar_chart(title, bars))
        names = list(dict.fromkeys(name for name, _, _ in told))
        lines = [
            Series(name, sorted((float(x), y) for own, x, y in told if own == name), f"line-{1 + place % 6}")
            for place, name in enumerate(names)
        ]
        return Picture(line_chart(title, lines, first.replace("_", " "), title))

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        return html_table(head, rows)

    def to_markdown(self) -> str:
        """The table in Markdown."""
        header, *body = self._cells()
        lines = ["| " + " | ".join(line) + " |" for line in (header, ["---:"] * len(header), *body)]
        return "\n".join(lines + [f"\nRefused: {reason}" for reason in self.refused])

    def _cells(self) -> list[list[str]]:
        names = list(dict.fromkeys(self.varied + OUTCOMES))
        names = [name for name in names if all(getattr(row, name) is not None for row in self.rows)]
        return [names] + [[_cell(name, getattr(row, name)) for name in names] for row in self.rows]


def explore(
    recipe: Recipe,
    budget: Budget,
    *,
    dimension: int = 1,
    cost: StepCost | None = None,
    risk: Convexity | None = None,
    **grid: Unpack[Grid],
) -> Exploration:
    """Calibrate ``recipe`` within ``budget`` for all combinations of the values in ``grid``.

    ``dimension`` is the number of parameters, for the signal-to-noise ratio: the length of all averaged gradients
    together, were each as long as the clip norm and all in one direction, over the length of all noise together.
    ``cost`` adds time and memory, ``risk`` a bound on the excess risk under its assumptions.

    Guarantee: every row's plan is proved to stay within the budget.
    """
    dimension = whole("dimension", dimension, at_least=1)
    if unknown := set(grid) - set(Grid.__annotations__):
        raise InvalidParameter("grid", sorted(unknown), f"choose from {', '.join(Grid.__annotations__)}.")
    if not (isinstance(recipe, Recipe) and isinstance(budget, Budget)):
        raise InvalidParameter("recipe", (recipe, budget), "must be a Recipe, and a Budget after it.")
    for name, value, kind in (("cost", cost, StepCost), ("risk", risk, Convexity)):
        if not isinstance(value, kind | None):
            raise InvalidParameter(name, value, f"must be a {kind.__name__}.")
    for name, values in grid.items():
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise InvalidParameter(name, values, f"must be a list of values, for instance {name}=[{values}].")
    rows, refused = [], []
    axes = cast(dict[str, Sequence[Any]], grid)
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        try:
            rows.append(_row(_plan(recipe, budget, settings), dimension, cost, risk))
        except (BudgetExceeded, UnsupportedEvent) as error:
            refused.append(f"{', '.join(f'{name}={value}' for name, value in settings.items())}: {error}")
    return Exploration(tuple(rows), tuple(axes), tuple(refused))


def records_needed(recipe: Recipe, budget: Budget, *, noise_per_coordinate: float) -> int:
    """How many records bring the noise on the averaged gradient down to ``noise_per_coordinate``.

    Sampling rate and number of steps stay as in ``recipe``, so batches grow with the records.
    """
    target = real("noise_per_coordinate", noise_per_coordinate, above=0)
    start = recipe.calibrate(budget)
    stage, scale = start.stage(), start.noise_std_of_mean / target
    for _ in range(20):
        size = max(1, math.ceil(stage.batch_size * scale))
        records = max(size, math.ceil(size * (stage.records / stage.batch_size)))
        batch_size = None if recipe.sampling == "full-batch" else size
        plan = recipe.changed(records=records, batch_size=batch_size, steps=stage.steps).calibrate(budget)
        if plan.noise_std_of_mean <= target:
            return records
        scale *= max(plan.noise_std_of_mean / target, 1 + 1e-9)
    raise BudgetExceeded(f"no number of records was found for noise_per_coordinate={target:g}.")


def _plan(recipe: Recipe, budget: Budget, settings: dict[str, Any]) -> Plan:
    changes = {name: value for name, value in settings.items() if name != "epsilon"}
    return recipe.changed(**changes).calibrate(
        replace(budget, epsilon=settings.get("epsilon", budget.epsilon))
    )


def _row(plan: Plan, dimension: int, cost: StepCost | None, risk: Convexity | None) -> PlanRow:
    stage = plan.stage()
    each, all_steps = stage.divisor / stage.noise_multiplier, stage.steps
    return PlanRow(
        sampling=stage.sampling,
        records=stage.records,
        batch_size=stage.batch_size,
        epochs=stage.epochs,
        steps=stage.steps,
        clip_norm=stage.clip_norm,
        noise_multiplier=stage.noise_multiplier,
        noise_per_coordinate=stage.noise_std_of_mean,
        signal_to_noise=each * math.sqrt(all_steps / dimension),
        epsilon=plan.guarantee.epsilon.upper,
        excess_risk=risk_bound(stage, risk).excess_risk if risk else None,
        seconds=all_steps * (cost.seconds + cost.seconds_per_record * stage.divisor) if cost else None,
        memory=cost.memory + cost.memory_per_record * stage.divisor if cost else None,
        plan=plan,
    )


def _tell_row(row: PlanRow, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(row, name)}" for name in names)


def _outcome(row: PlanRow, column: str) -> float:
    value = getattr(row, one_of("by", column, OUTCOMES))
    if value is None:
        raise InvalidParameter("by", column, "was not asked for; give explore what it needs.")
    return float(value)


def _cost(row: PlanRow, column: str) -> float:
    """The value of a column, such that less is better."""
    value = getattr(row, one_of("by", column, OUTCOMES))
    if value is None:
        raise InvalidParameter("by", column, "was not computed; pass cost= or risk= to explore().")
    return -float(value) if column == "signal_to_noise" else float(value)


def _cell(name: str, value: Any) -> str:
    if name == "epsilon":
        return upper_text(value)
    return f"{float(f'{value:.3g}'):g}" if isinstance(value, float) else str(value)
