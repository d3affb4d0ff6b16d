"""``discreet calibrate``: how much noise does a budget need?"""

from __future__ import annotations

from typing import Any

import click

from discreet.accounting.calibration import SEARCHES, Parameter
from discreet.accounting.calibration import calibrate as cheapest
from discreet.accounting.curve import account
from discreet.cli.events import RENAMED, describe_event, neighbour_options, release, release_options
from discreet.cli.shell import NUMBER, CommandResult, command
from discreet.errors import InvalidParameter
from discreet.events import Event
from discreet.guarantee import Budget, Neighbours, lower_text, upper_text
from discreet.report.risks import KINDS, risk_from, risk_to_dict

SEARCHED: dict[str, Parameter] = {
    "noise-multiplier": "noise_multiplier",
    "laplace-scale": "scale",
    "steps": "steps",
    "rate": "rate",
}
MORE = {
    "noise-multiplier": "less noise",
    "laplace-scale": "less noise",
    "steps": "more steps",
    "rate": "even more than all records in every batch",
}


@command("calibrate", renamed=RENAMED)
@click.option("--epsilon", type=NUMBER, help="The epsilon to stay within.")
@click.option("--delta", type=NUMBER, required=True, help="Should be well below 1 / number of records.")
@click.option(
    "--risk",
    type=(click.Choice(list(KINDS)), str, str),
    metavar="KIND BASELINE LIMIT",
    help="Limit an attack instead of epsilon: its kind, its chance without and at most with the results.",
)
@click.option("--find", type=click.Choice(list(SEARCHED)), default="noise-multiplier", show_default=True)
@release_options
@neighbour_options
def calibrate(
    epsilon: float | None,
    delta: float,
    risk: tuple[str, str, str] | None,
    find: str,
    neighbours: Neighbours,
    group_size: int,
    **options: Any,
) -> CommandResult:
    """Find the least noise, most steps or largest rate that provably stays within a budget or a risk.

    The search has limits, such as noise multipliers from 0.05 to 1e8. The result says if it stopped at a limit.

    \b
    discreet calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --steps 10000
    discreet calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --noise-multiplier 4 --find steps
    discreet calibrate --risk reconstruction 1/3650 2/3650 --rate 0.01 --steps 10000 --delta 1e-5

    With --risk, --delta is where the epsilon of the answer is told.
    """
    if (epsilon is None) == (risk is None):
        raise InvalidParameter("epsilon", epsilon, "or --risk: give exactly one of the two.")
    option = find.replace("-", "_")
    if options[option] is not None:
        raise InvalidParameter(option, options[option], "is what --find looks for; leave it out.")

    def family(value: float) -> Event:
        return release(**{**options, option: int(value) if option == "steps" else value})

    asked = None if risk is None else risk_from(risk[0], risk[1], at_most=risk[2])
    parameter = SEARCHED[find]
    if asked is None:
        value = cheapest(family, Budget(epsilon, delta, neighbours, group_size), parameter=parameter)  # type: ignore[arg-type]
    else:
        value = cheapest(
            family, parameter=parameter, risk=asked, neighbours=neighbours, group_size=group_size
        )
    value = int(value) if option == "steps" else value
    event = family(value)
    curve = account(event, neighbours, group_size)
    guarantee = curve.guarantee(delta)
    bound = None if asked is None else asked.assess(curve)
    share = (
        _share(guarantee.epsilon.upper, epsilon)
        if bound is None
        else _share(bound.success.upper, bound.risk.at_most)
    )
    data = {
        option: value,
        "event": event.to_dict(),
        "epsilon": {"lower": guarantee.epsilon.lower, "upper": guarantee.epsilon.upper},
        "delta": guarantee.delta,
        "neighbours": neighbours,
        "group_size": guarantee.group_size,
        "end_of_search": _is_at_end(find, value, share),
    }
    text = f"--{find} {_safe(find, value)}\n\n{describe_event(event)}\nis {guarantee}."
    if bound is not None:
        data["risk"] = risk_to_dict(bound.risk) | {"success_at_most": bound.success.upper}
        text += f"\n{bound}"
    if data["end_of_search"]:
        name = "budget" if risk is None else "limit"
        text += f"\nThe search ends at --{find} {value:g}; the {name} would allow {MORE[find]}."
    return CommandResult(data, text)


def _share(reached: float, limit: float | None) -> float:
    assert limit is not None
    return reached / limit


def _is_at_end(find: str, value: float, share: float) -> bool:
    """True if the end of what is searched was reached, and not that of the budget."""
    search = SEARCHES[SEARCHED[find]]
    return share < 0.999 and value == (search.most if search.slope > 0 else search.least)


def _safe(find: str, value: float) -> str:
    """The value in six digits, rounded to the side of less cost."""
    if find == "steps":
        return str(value)
    return lower_text(value, 6) if find == "rate" else upper_text(value, 6)
