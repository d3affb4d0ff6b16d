"""``discreet plan``: all that is decided before data is touched, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from discreet.cli.events import delta_note, neighbour_options, unit_option
from discreet.cli.shell import FILE, NUMBER, CommandResult, command, note, refuse_existing
from discreet.errors import InvalidParameter
from discreet.files import whole_file
from discreet.guarantee import Budget, Neighbours, Unit
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling


@command("plan")
@click.option("--records", type=NUMBER, required=True, help="Declared, public number of records.")
@click.option("--batch-size", type=NUMBER, help="Expected batch size.")
@click.option("--epochs", type=NUMBER, help="Number of passes over the records, instead of --steps.")
@click.option("--steps", type=NUMBER, help="Number of releases, instead of --epochs.")
@click.option("--clip-norm", type=NUMBER, default=1.0, show_default=True)
@click.option("--sampling", type=click.Choice(get_args(Sampling)), default="poisson", show_default=True)
@click.option("--epsilon", type=NUMBER, help="The epsilon to stay within, instead of --noise-multiplier.")
@click.option("--noise-multiplier", type=NUMBER, help="A given noise multiplier, instead of --epsilon.")
@click.option("--delta", type=NUMBER, required=True, help="Should be well below 1 / records.")
@neighbour_options
@unit_option
@click.option("--out", type=FILE, default="plan.json", show_default=True, help="File of the plan.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--explain", is_flag=True, help="Explain the procedure and its guarantee in plain words.")
def plan(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    neighbours: Neighbours,
    group_size: int,
    unit: Unit,
    out: Path,
    overwrite: bool,
    explain: bool,
    **recipe: Any,
) -> CommandResult:
    """Fix a training procedure: sampling, clipping, steps and the least noise within a budget.

    \b
    discreet plan --records 60000 --batch-size 256 --epochs 20 --epsilon 2 --delta 1e-5 --explain

    The file can be reviewed and approved before any data is read. Training follows it exactly.
    """
    refuse_existing("out", out, overwrite)
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidParameter("epsilon", None, "give exactly one of --epsilon and --noise-multiplier.")
    procedure = Recipe(**recipe)
    if epsilon is not None:
        made = procedure.calibrate(Budget(epsilon, delta, neighbours, group_size, unit))
    else:
        assert noise_multiplier is not None
        made = procedure.with_noise(noise_multiplier, delta, neighbours, group_size, unit)
    with whole_file(out) as file:
        file.write(made.to_json() + "\n")
    said = delta_note(made.delta, made.stages[0].records, "records")
    if said is not None:
        note(said)
    data = {
        "plan": made.to_dict(),
        "digest": made.digest(),
        "epsilon": made.guarantee.epsilon._asdict(),
        "explanation": made.explain() if explain else None,
        "notes": [] if said is None else [said],
        "out": out,
    }
    return CommandResult(data, _text(made, out, explain))


def _text(plan: Plan, out: Path, explain: bool) -> str:
    stage = plan.stage()
    summary = (
        f"{stage.steps:,} steps, {stage.sampling} batches of {stage.batch_size:,}, clip norm {stage.clip_norm:g}, "
        f"noise multiplier {stage.noise_multiplier:.6g}\n{plan.guarantee}\nwritten to {out} ({plan.digest()[:12]})"
    )
    return f"{plan.explain()}\n\n{summary}" if explain else summary
