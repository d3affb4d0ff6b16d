"""A release, as options describe it: ``--noise-multiplier 4 --rate 0.01 --steps 10000``.

The same options for all commands that account for something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from discreet.cli.shell import NUMBER
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Event, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, RandomlyAllocated
from discreet.guarantee import NEIGHBOURS, UNITS, Budget, Neighbours, Unit

RENAMED = {
    "scale": "--laplace-scale",
    "batch_size": "--fixed-size",
    "records": "--fixed-size",
    "count": "--steps",
}
"""The options that stand for parameters of events."""


def release_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for noise, sampling and number of releases."""
    for option in reversed(
        [
            click.option(
                "--noise-multiplier",
                type=NUMBER,
                help="Standard deviation of the Gaussian noise / clip norm.",
            ),
            click.option("--laplace-scale", type=NUMBER, help="Scale of the Laplace noise / clip norm."),
            click.option("--rate", type=NUMBER, help="Sampling probability of a record (Poisson sampling)."),
            click.option("--fixed-size", metavar="B/N", help="Batches of exactly B of N records."),
            click.option(
                "--allocation", type=NUMBER, help="Number of steps in an epoch of random allocation."
            ),
            click.option("--steps", type=NUMBER, help="Number of releases. Default: 1, or one epoch."),
        ]
    ):
        function = option(function)
    return function


def neighbour_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for what is protected."""
    neighbours = click.option(
        "--neighbours", type=click.Choice(NEIGHBOURS), default=NEIGHBOURS[0], show_default=True
    )
    group_size = click.option(
        "--group-size", type=NUMBER, default=1, show_default=True, help="Number of records of one person."
    )
    return neighbours(group_size(function))


def unit_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option for whom it is promised."""
    told = "Unit of privacy: one record, or one person with all rows."
    return click.option("--unit", type=click.Choice(UNITS), default=UNITS[0], show_default=True, help=told)(
        function
    )


def release(
    noise_multiplier: float | None = None,
    laplace_scale: float | None = None,
    rate: float | None = None,
    fixed_size: str | None = None,
    allocation: int | None = None,
    steps: int | None = None,
) -> Event:
    """The event that the options describe.

    >>> release(noise_multiplier=4.0, rate=0.01, steps=100)
    Composition(events=((PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0)), 100),))
    """
    noise = _noise(noise_multiplier, laplace_scale)
    _at_most_one("--rate", {"--rate": rate, "--fixed-size": fixed_size, "--allocation": allocation})
    if allocation is not None:
        return _epochs(RandomlyAllocated(allocation, noise), steps)  # type: ignore[arg-type]
    if rate is not None:
        once: Event = PoissonSampled(rate, noise)
    elif fixed_size is not None:
        once = FixedSizeSampled(*_fraction(fixed_size), noise)  # type: ignore[arg-type]
    else:
        once = noise
    return once * (1 if steps is None else steps)


def describe_event(event: Event) -> str:
    """An event in one line."""
    return " + ".join(f"{count:,} x {part}" if count > 1 else f"{part}" for part, count in event.parts())


def _noise(noise_multiplier: float | None, laplace_scale: float | None) -> Gaussian | Laplace:
    given = {"--noise-multiplier": noise_multiplier, "--laplace-scale": laplace_scale}
    _at_most_one("--noise-multiplier", given)
    if laplace_scale is not None:
        return Laplace(laplace_scale)
    if noise_multiplier is None:
        raise InvalidParameter("--noise-multiplier", None, "is needed, or --laplace-scale.")
    return Gaussian(noise_multiplier)


def _epochs(epoch: RandomlyAllocated, steps: int | None) -> Event:
    total = epoch.steps if steps is None else whole("steps", steps, at_least=1)
    if total % epoch.steps:
        remedy = f"random allocation runs whole epochs of --allocation={epoch.steps} steps."
        raise InvalidParameter("steps", total, remedy)
    return epoch * (total // epoch.steps)


def _fraction(text: str) -> tuple[int, int]:
    parts = text.split("/")
    try:
        batch_size, records = map(int, parts)
    except ValueError:
        requirement = "must be batch size / number of records, such as 256/60000."
        raise InvalidParameter("fixed_size", text, requirement) from None
    return batch_size, records


def _at_most_one(name: str, given: dict[str, Any]) -> None:
    if sum(value is not None for value in given.values()) > 1:
        raise InvalidParameter(name, None, f"give only one of {', '.join(given)}.")


# What may be spent, as typed.
#
# The number of records is private where it was not declared, so ``fit`` and ``ledger new`` cannot compare
# delta with it beforehand. They refuse what is too large for any table worth protecting; once a fit has paid
# for a noisy count, delta is compared with that.


LARGEST_DELTA = 1e-3
"""From here on delta is refused, unless a declared number of records shows that it is small for them."""


def gaussian_budget(
    epsilon: float,
    delta: float,
    neighbours: Neighbours = "add-remove",
    group_size: int = 1,
    records: int | None = None,
    unit: Unit = "record",
) -> Budget:
    """A budget for Gaussian noise; ``records`` is the declared number of records, if there is one."""
    remedy = "Typical budgets are 0.1 to 10."
    real("epsilon", epsilon, at_least=1e-6, at_most=1e6, remedy=remedy)
    usual = (
        "It is a chance that all of a record is shown; choose it well below 1 / number of records, say 1e-6."
    )
    small = records is not None and delta * records <= 0.1
    real("delta", delta, at_least=1e-300, below=1 if small else LARGEST_DELTA, remedy=usual)
    if records is not None and delta * records >= 1:
        raise InvalidParameter("delta", delta, f"must be below 1 / records = {1 / records:.3g}. {usual}")
    return Budget(epsilon, delta, neighbours, group_size, unit)


def delta_note(delta: float, records: float, what: str) -> str | None:
    """Return a warning if delta is not far below one over the number of records, which ``what`` names."""
    if delta * records <= 0.1:
        return None
    return (
        f"delta {delta:g} is more than a tenth of 1 / {what} ({records:,.0f}): it may allow whole records to be "
        "shown. A smaller one costs little."
    )
