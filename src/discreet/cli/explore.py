"""``discreet explore``: what would it cost, what would it bring?"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast, get_args

import click

from discreet.cli.events import neighbour_options
from discreet.cli.shell import FILE, NUMBER, NUMBERS, CommandResult, command, progress, refuse_existing, table
from discreet.errors import InvalidParameter, one_of
from discreet.files import whole_file
from discreet.guarantee import Budget, Neighbours
from discreet.plan.explore import OUTCOMES, Exploration, PlanRow, records_needed
from discreet.plan.explore import explore as explored
from discreet.plan.prices import price_of_steps
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling

AXES = ("records", "batch_size", "epochs", "steps", "clip_norm", "sampling", "epsilon")


@command("explore", renamed={"by": "--best"})
@click.option("--records", type=NUMBERS, required=True, help="Declared number of records.")
@click.option("--batch-size", type=NUMBERS, help="Expected batch sizes.")
@click.option("--epochs", type=NUMBERS, help="Number of passes over the records, instead of --steps.")
@click.option("--steps", type=NUMBERS, help="Numbers of releases, instead of --epochs.")
@click.option("--clip-norm", type=NUMBERS, default="1", show_default=True)
@click.option("--sampling", multiple=True, type=click.Choice(get_args(Sampling)), default=["poisson"])
@click.option("--epsilon", type=NUMBERS, required=True, help="The epsilon to stay within.")
@click.option("--delta", type=NUMBER, required=True, help="Should be well below 1 / records.")
@neighbour_options
@click.option("--dimension", type=NUMBER, default=1, show_default=True, help="Number of parameters.")
@click.option("--best", type=click.Choice(OUTCOMES), help="Show only the best row by this column.")
@click.option(
    "--frontier", help="Show only rows that are Pareto-optimal in these columns, separated by commas."
)
@click.option("--markdown", is_flag=True, help="Print the table in Markdown.")
@click.option("--out", type=FILE, help="Write the plan of the best row, by signal-to-noise ratio or --best.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--price-of-steps",
    is_flag=True,
    help="Compare the noise of full-batch steps under three accounting methods.",
)
@click.option(
    "--noise-per-coordinate",
    type=NUMBER,
    help="Find the number of records that reduces the noise to this value.",
)
def explore(
    delta: float,
    neighbours: Neighbours,
    group_size: int,
    dimension: int,
    best: str | None,
    frontier: str | None,
    markdown: bool,
    out: Path | None,
    overwrite: bool,
    price_of_steps: bool,
    noise_per_coordinate: float | None,
    **lists: Any,
) -> CommandResult:
    """Compare plans within a budget, for all combinations of the values separated by commas.

    \b
    discreet explore --records 60000 --batch-size 256,1024 --epochs 15,30 --epsilon 2 --delta 1e-5

    The noise is proved to suffice. The signal-to-noise ratio is a prediction from public numbers.
    """
    grid = {name: list(lists[name]) for name in AXES if lists[name] is not None}
    budget = Budget(grid["epsilon"][0], delta, neighbours, group_size)
    if price_of_steps:
        return _steps_answer(grid, budget)
    recipe = Recipe(**{name: values[0] for name, values in grid.items() if name != "epsilon"})
    if noise_per_coordinate is not None:
        count = records_needed(recipe, budget, noise_per_coordinate=noise_per_coordinate)
        return CommandResult({"records_needed": count}, f"{count:,} records")
    if out is not None:
        refuse_existing("out", out, overwrite)
    found = _explore_rows(recipe, budget, dimension, grid)
    if frontier is not None:
        columns = [one_of("frontier", column, OUTCOMES) for column in frontier.split(",")]
        found = Exploration(found.frontier(*columns), found.varied, found.refused)
    if best is not None:
        found = Exploration((found.best(best),), found.varied, found.refused)
    if out is not None:
        with whole_file(out) as file:
            file.write(found.best(best or "signal_to_noise").plan.to_json() + "\n")
    data = {"rows": [row.values() for row in found.rows], "refused": list(found.refused)}
    return CommandResult(data, found.to_markdown() if markdown else str(found))


def _explore_rows(recipe: Recipe, budget: Budget, dimension: int, grid: dict[str, list[Any]]) -> Exploration:
    """The table, made row by row so that the bar can move."""
    varied = tuple(name for name in grid if len(grid[name]) > 1)
    rows: list[PlanRow] = []
    refused: list[str] = []
    cells = list(itertools.product(*grid.values()))
    with progress() as bar:
        for values in bar.track(cells, description="plans"):
            settings = {name: [value] for name, value in zip(grid, values, strict=True)}
            part = explored(recipe, budget, dimension=dimension, **cast(Any, settings))
            rows += part.rows
            refused += part.refused
    return Exploration(tuple(rows), varied, tuple(refused))


def _steps_answer(grid: dict[str, list[Any]], budget: Budget) -> CommandResult:
    if "steps" not in grid:
        raise InvalidParameter("steps", None, "is needed for prices, for instance --steps 1,10,100.")
    found = price_of_steps(grid["records"][0], budget, grid["steps"], grid["clip_norm"][0])
    header = ("steps", "basic", "advanced", "exact")
    rows = [(str(price.steps), *(f"{noise:.4g}" for noise in price[1:])) for price in found]
    title = "Noise on each coordinate of the average over all records\n\n"
    return CommandResult({"prices": [price._asdict() for price in found]}, title + table(header, rows))
