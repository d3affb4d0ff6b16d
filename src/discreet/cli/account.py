"""``discreet account``: what does a release cost?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from discreet.accounting.account import account as account_for
from discreet.accounting.curve import PrivacyCurve
from discreet.cli.events import RENAMED, described, neighbour_options, release, release_options
from discreet.cli.shell import FILE, NUMBER, Answer, command, table
from discreet.documents import parsed, read_text
from discreet.errors import InvalidParameter
from discreet.events import Event
from discreet.guarantee import Bounds, Neighbours, rounded_down, rounded_up
from discreet.plan.explanation import ALARMS
from discreet.plan.plan import Plan

ROUNDING = 1e-12
"""Relative: of sums of floats. It is shown with --json, and is left out of four digits."""


@command("account", renamed=RENAMED)
@release_options
@click.option("--event", type=FILE, help="A file with an event or a plan in JSON, instead of these options.")
@click.option("--delta", type=NUMBER, multiple=True, help="Epsilon at this delta; may be repeated.")
@click.option("--epsilon", type=NUMBER, multiple=True, help="Delta at this epsilon; may be repeated.")
@click.option("--tolerance", type=NUMBER, help="How far apart the two bounds may be.")
@neighbour_options
def account(
    event: Path | None,
    delta: tuple[float, ...],
    epsilon: tuple[float, ...],
    tolerance: float | None,
    neighbours: Neighbours,
    group_size: int,
    **options: Any,
) -> Answer:
    """What does a release cost?

    \b
    discreet account --noise-multiplier 4 --rate 0.01 --steps 10000 --delta 1e-5

    Both bounds are proved: the exact value lies between them. The upper one is the guarantee.
    """
    if not delta and not epsilon:
        raise InvalidParameter("delta", None, "is needed, for instance --delta 1e-6; or --epsilon.")
    made = _event_in(event, options) if event else release(**options)
    curve = account_for(made, neighbours, group_size)
    epsilons = [(at, curve.epsilon_bounds(at, tolerance=tolerance)) for at in delta]
    deltas = [(at, curve.delta_bounds(at, tolerance=tolerance)) for at in epsilon]
    power = curve.power(ALARMS)
    data = {
        "event": made.to_dict(),
        "neighbours": neighbours,
        "group_size": curve.group_size,
        "epsilon": [{"delta": at, "lower": b.lower, "upper": b.upper} for at, b in epsilons],
        "delta": [{"epsilon": at, "lower": b.lower, "upper": b.upper} for at, b in deltas],
        "power": {"false_alarms": ALARMS, "upper": power},
    }
    return Answer(data, _text(curve, epsilons, deltas, power))


def _event_in(path: Path, options: dict[str, Any]) -> Event:
    given = [name for name, value in options.items() if value is not None]
    if given:
        requirement = f"says everything; leave out --{given[0].replace('_', '-')}."
        raise InvalidParameter("event", str(path), requirement)
    text = read_text(path)
    if "stages" in parsed(text, "event"):
        return Plan.from_json(text).event
    return Event.from_json(text)


def _text(
    curve: PrivacyCurve,
    epsilons: list[tuple[float, Bounds]],
    deltas: list[tuple[float, Bounds]],
    power: float,
) -> str:
    unit = "one record" if curve.group_size == 1 else f"groups of {curve.group_size} records"
    blocks = [f"{described(curve.event)}\n{curve.neighbours} neighbours, {unit}"]
    if epsilons:
        blocks.append(table(("delta", "epsilon at most", "and at least"), _rows(epsilons)))
    if deltas:
        blocks.append(table(("epsilon", "delta at most", "and at least"), _rows(deltas)))
    blocks.append(
        f"At {ALARMS:.0%} false alarms the best attacker finds at most {_above(100 * power)}% of the records."
    )
    return "\n\n".join(blocks)


def _rows(found: list[tuple[float, Bounds]]) -> list[tuple[str, str, str]]:
    return [(f"{at:g}", _above(b.upper), _below(b.lower)) for at, b in found]


def _above(value: float) -> str:
    """Rounded up to four digits; what exceeds them by the rounding of floats only (1.00000000000001) stays: 1."""
    return "infinite" if math.isinf(value) else rounded_up(value * (1 - ROUNDING))


def _below(value: float) -> str:
    return "infinite" if math.isinf(value) else rounded_down(value * (1 + ROUNDING))
