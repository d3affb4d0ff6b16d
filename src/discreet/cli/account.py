"""``discreet account``: what does a release cost?"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from discreet.accounting.curve import PrivacyCurve
from discreet.accounting.curve import account as account_for
from discreet.accounting.renyi import renyi_epsilon
from discreet.cli.events import RENAMED, describe_event, neighbour_options, release, release_options
from discreet.cli.shell import FILE, NUMBER, CommandResult, command, table
from discreet.compat import dp_accounting, opacus
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import Event
from discreet.files import parse_json, read_text
from discreet.guarantee import Bounds, Neighbours, lower_text, upper_text
from discreet.plan.explanation import ALARMS
from discreet.plan.plan import Plan

READERS: dict[str, Callable[[str], Event]] = {
    "opacus": opacus.read_history,
    "dp-accounting": dp_accounting.read_event,
    "jax-privacy": dp_accounting.read_event,
}
"""What other libraries write: a plan of JAX Privacy keeps an event of dp-accounting in ``dp_event``."""
ROUNDING = 1e-12
"""Relative: of sums of floats. It is shown with --json, and is left out of four digits."""


@command("account", renamed=RENAMED)
@release_options
@click.option("--event", type=FILE, help="A JSON file with an event or a plan, instead of these options.")
@click.option(
    "--from",
    "source",
    type=(click.Choice(tuple(READERS)), FILE),
    metavar="LIBRARY FILE",
    help=f"A history or event of another library: {', '.join(READERS)}.",
)
@click.option("--delta", type=NUMBER, multiple=True, help="Compute epsilon at this delta. Repeatable.")
@click.option("--epsilon", type=NUMBER, multiple=True, help="Compute delta at this epsilon. Repeatable.")
@click.option("--tolerance", type=NUMBER, help="Largest allowed gap between the two bounds.")
@neighbour_options
def account(
    event: Path | None,
    source: tuple[str, Path] | None,
    delta: tuple[float, ...],
    epsilon: tuple[float, ...],
    tolerance: float | None,
    neighbours: Neighbours,
    group_size: int,
    **options: Any,
) -> CommandResult:
    """Compute the privacy cost of a release.

    \b
    discreet account --noise-multiplier 4 --rate 0.01 --steps 10000 --delta 1e-5

    \b
    discreet account --from opacus history.json --delta 1e-5

    The exact value lies between two proved bounds. The upper bound is the guarantee.
    """
    if not delta and not epsilon:
        raise InvalidParameter("delta", None, "is needed, for instance --delta 1e-6; or --epsilon.")
    made = _event_in_file(event, source, options) or release(**options)
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
    text = _text(curve, epsilons, deltas, power)
    if source is not None:
        data["renyi"], others = _renyi(made, delta, neighbours)
        text += others
    return CommandResult(data, text)


def _renyi(
    event: Event, deltas: tuple[float, ...], neighbours: Neighbours
) -> tuple[list[dict[str, float]], str]:
    """Epsilon by a Rényi accountant, as most libraries compute it."""
    try:
        said = [(at, renyi_epsilon(event, at, neighbours)) for at in deltas]
    except UnsupportedEvent:
        return [], ""
    lines = "".join(
        f"\nAccountants by Rényi moments say epsilon {_above(e)} at delta {at:g}." for at, e in said
    )
    return [{"delta": at, "epsilon": epsilon} for at, epsilon in said], lines


def _event_in_file(
    event: Path | None, source: tuple[str, Path] | None, options: dict[str, Any]
) -> Event | None:
    """The event in a file, if one is given."""
    files = {"--event": event, "--from": source and source[1]}
    given = [name for name, value in {**files, **options}.items() if value is not None]
    if event is None and source is None:
        return None
    if len(given) > 1:
        requirement = f"says everything; leave out --{given[1].lstrip('-').replace('_', '-')}."
        raise InvalidParameter(given[0], str(files[given[0]]), requirement)
    if source is not None:
        library, path = source
        try:
            return READERS[library](read_text(path))
        except InvalidParameter as error:
            raise InvalidParameter("--from", str(path), error.requirement) from None
    assert event is not None
    text = read_text(event)
    if "stages" in parse_json(text, "event"):
        return Plan.from_json(text).event
    return Event.from_json(text)


def _text(
    curve: PrivacyCurve,
    epsilons: list[tuple[float, Bounds]],
    deltas: list[tuple[float, Bounds]],
    power: float,
) -> str:
    unit = "one record" if curve.group_size == 1 else f"groups of {curve.group_size} records"
    blocks = [f"{describe_event(curve.event)}\n{curve.neighbours} neighbours, {unit}"]
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
    return "infinite" if math.isinf(value) else upper_text(value * (1 - ROUNDING))


def _below(value: float) -> str:
    return "infinite" if math.isinf(value) else lower_text(value * (1 + ROUNDING))
