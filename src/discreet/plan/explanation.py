"""A plan in plain words, for whoever has to sign it.

Written from what was decided and the guarantee alone, so it can say nothing about the data.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from discreet.accounting.calibration import calibrate
from discreet.accounting.power import power_bound
from discreet.core.banded import length_of_column
from discreet.guarantee import Budget, Guarantee, lower_text, protected_unit, upper_text
from discreet.plan.stage import Stage

ALARMS = 0.01
"""The false-alarm rate at which the attacker's hit rate is told."""

_DRAWN = {
    "poisson": "In each step every {unit} joins the batch independently with probability {rate:.4g}, which makes "
    "{size} on average.",
    "fixed-size": "In each step a fresh, uniformly random subset of exactly {size} {units} is the batch.",
    "random-allocation": "In each epoch every {unit} takes part once, at a step that it draws for itself, which "
    "makes batches of {size} on average.",
    "full-batch": "All {units} take part in each step.",
}

NOT_COVERED = (
    "who is in a batch, how large batches are, and how long steps take: keep them inside",
    "losses, accuracies and gradient norms of the private records, and choices made by looking at them: report "
    "such numbers from public data, or pay for them",
    "settings tuned on the private data: a search costs extra, see discreet.selection",
    "anything else that was released from these records, under another ledger or none",
    "preparation that looks at the data (scaling, vocabulary, selection of columns) before this plan",
    "facts about people that follow from what is true of everybody, with or without their record",
    "an observer inside the machine that trains",
)
"""What no guarantee of a training run says anything about; certificates repeat it."""


def explanation(stages: tuple[Stage, ...], guarantee: Guarantee, hit_rate: float) -> str:
    """The text for a fixed plan. ``hit_rate`` is the best attacker's, at ``ALARMS`` false alarms."""
    sections = _sections([_happens(stage, guarantee.unit) for stage in stages], guarantee, hit_rate)
    meaning = {
        "What the numbers mean": list(_numbers(stages, guarantee)),
        "Notes": list(_notes(stages, guarantee)),
    }
    return _text(sections | meaning)


def adaptive_explanation(name: str, settings: Mapping[str, Any], guarantee: Guarantee) -> str:
    """The text for an adaptive plan."""
    happens = (
        f"{name}: each release is chosen from what was released before, and paid for first; what the budget has no "
        "room for does not happen."
    )
    declared = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    hit_rate = power_bound(guarantee.epsilon.upper, guarantee.delta, ALARMS)
    return _text(_sections([happens], guarantee, hit_rate) | {"What was declared": declared})


def _sections(happens: list[str], guarantee: Guarantee, hit_rate: float) -> dict[str, list[str]]:
    return {
        "What will happen": happens,
        "What is promised": [_promise(guarantee), _attack(guarantee, hit_rate)],
        "Who is protected": [_whom_it_protects(guarantee)],
        "Against whom": [
            f"Anybody who {guarantee.observer}, the final model included, knows all other records, and has any "
            "amount of time and computing power."
        ],
        "What is not covered": [f"- {item};" for item in NOT_COVERED[:-1]] + [f"- {NOT_COVERED[-1]}."],
    }


def _text(sections: dict[str, list[str]]) -> str:
    lines = []
    for title, paragraphs in sections.items():
        if paragraphs:
            lines += [title, *(_wrap(paragraph) for paragraph in paragraphs), ""]
    return "\n".join(lines[:-1])


def _happens(stage: Stage, unit: str) -> str:
    units = "people" if unit == "person" else "records"
    size = f"{stage.divisor:,.10g}"
    steps = "one step" if stage.steps == 1 else f"{stage.steps:,} steps ({stage.epochs:.4g} epochs)"
    if stage.bands > 1:
        return _happens_correlated(stage, steps, size)
    own = f"Batches of {{size}} on average are drawn by {type(stage.sampler()).__name__} ({stage.sampling})."
    drawn = _DRAWN.get(stage.sampling, own).format(rate=stage.rate, size=size, unit=unit, units=units)
    return (
        f"{stage.name}: {steps}. {drawn} What one {unit} "
        f"contributes is cut to length {stage.clip_norm:.4g}; the contributions are added up; Gaussian noise of "
        f"standard deviation {stage.noise_std_of_sum:.4g} is added to each coordinate of the sum; the result is "
        f"divided by {size}, whatever the batch holds."
    )


def _happens_correlated(stage: Stage, steps: str, size: str) -> str:
    bands = stage.bands
    drawn = (
        f"Every record draws one of {bands} turns for itself, once and for all; a step takes records of one turn, "
        "and the turns follow each other."
    )
    if stage.sampling == "random-allocation":
        drawn += " In each epoch every record takes part once, in a round of turns that it draws for itself"
    else:
        drawn += f" A record joins in its turn with probability {min(1.0, bands * stage.rate):.4g}"
    fresh = stage.noise_multiplier * stage.clip_norm * length_of_column(bands)
    return (
        f"{stage.name}: {steps}. {drawn}, which makes batches of {size} on average. What one record contributes is "
        f"cut to length {stage.clip_norm:.4g}; the contributions are added up; the noise on each coordinate of the "
        f"sum is Gaussian of standard deviation {fresh:.4g}, less a part of the noise of the {bands - 1} steps "
        f"before; the result is divided by {size}, whatever the batch holds. Noise of {bands - 1} steps is kept in "
        "memory, each as large as the model, and never written to disk."
    )


def _promise(guarantee: Guarantee) -> str:
    change = "with or without" if guarantee.neighbours == "add-remove" else "whatever stands in place of"
    lower, upper = guarantee.epsilon
    epsilon, delta, unit = upper_text(upper), upper_text(guarantee.delta), _unit(guarantee)
    factor = upper_text(math.exp(upper)) if upper < 100 else "an astronomical number of"
    return (
        f"({epsilon}, {delta})-differential privacy: {change} the protected {unit}, any result is at most "
        f"{factor} times as likely (exp(epsilon)), plus {delta}. This is proved for all stages together; accounting "
        f"for them cannot go below {lower_text(lower)}."
    )


def _attack(guarantee: Guarantee, hit_rate: float) -> str:
    unit = _unit(guarantee)
    test = f"a {unit} was used" if guarantee.neighbours == "add-remove" else f"it was this {unit} or another"
    return (
        f"Somebody who tests whether {test}, and accepts {ALARMS:.0%} false alarms, is right about at most "
        f"{upper_text(100 * hit_rate)}% of them; guessing gets {ALARMS:.0%}."
    )


def _unit(guarantee: Guarantee) -> str:
    return protected_unit(guarantee.unit, guarantee.group_size)


def _whom_it_protects(guarantee: Guarantee) -> str:
    if guarantee.unit == "person":
        whether = (
            "whether they are in the data at all" if guarantee.neighbours == "add-remove" else "what it says"
        )
        return f"Every {_unit(guarantee)}, with all of their rows: {whether} ({guarantee.neighbours} neighbours)."
    owner = f"The owner of every {_unit(guarantee)}"
    if guarantee.neighbours == "add-remove":
        return f"{owner}: whether it is in the data at all (add-remove neighbours)."
    return f"{owner}: what it says (replace-one neighbours). How many records there are is public."


def _numbers(stages: tuple[Stage, ...], guarantee: Guarantee) -> Iterator[str]:
    yield (
        f"records = {stages[0].records:,}: declared and public. Rate and divisor follow from it, never from a "
        "count of the data."
    )
    for stage in stages:
        yield (
            f"{stage.name}: noise_multiplier = {stage.noise_multiplier:.4g} is the noise on the sum in units of "
            f"the clip norm; on the averaged result it is {stage.noise_std_of_mean:.4g} for each coordinate."
        )
    share = guarantee.delta * stages[0].records
    yield f"delta = {upper_text(guarantee.delta)}: the probability left for anything, {share:.3g} times 1 / records."


def _notes(stages: tuple[Stage, ...], guarantee: Guarantee) -> Iterator[str]:
    if guarantee.epsilon.upper > 10:
        yield "epsilon is above 10: by itself such a promise is weak. Fewer steps or more noise lower it."
    if guarantee.delta * stages[0].records > 0.1:
        yield "delta is more than a tenth of 1 / records; a smaller one costs little."
    if guarantee.group_size == 1 and guarantee.unit == "record":
        yield (
            "Whoever owns several records is protected less. To protect people: Budget(..., unit='person') and "
            "batches of people, or group_size= for so many records of one person."
        )
    if guarantee.group_size > 1 and guarantee.unit == "record" and len(stages) == 1:
        yield _people_instead(stages[0], guarantee)
    for stage in stages:
        if stage.sampling == "random-allocation" and stage.divisor != stage.batch_size:
            yield f"{stage.name}: {stage.batch_size} does not divide the records; batches hold {stage.divisor:.6g}."
        if stage.noise_std_of_mean > stage.clip_norm:
            yield (
                f"{stage.name}: the noise on each coordinate exceeds the longest possible average. Larger batches "
                "help most; see discreet.plan.explore."
            )


def _people_instead(stage: Stage, guarantee: Guarantee) -> str:
    """What the same promise needs if people are drawn, each with the mean of their rows, instead of single records.

    The mean of k rows is a k-th of their sum, so its noise counts k times; then both noises are of the same sum.
    """
    budget = Budget(guarantee.epsilon.upper, guarantee.delta, guarantee.neighbours)
    size = guarantee.group_size
    noise = size * calibrate(lambda noise: replace(stage, noise_multiplier=noise).event, budget)
    better = "better" if noise < stage.noise_multiplier else "worse, unless people have more rows than that"
    return (
        f"group_size = {size} needs a noise multiplier of {stage.noise_multiplier:.4g}, and covers people with up to "
        f"{size} records. Drawing people instead (unit='person', PerPerson) needs {noise:.4g} in the same units and "
        f"covers any number: {better}. The mean over a person's rows may also be clipped to a shorter length."
    )


def _wrap(paragraph: str) -> str:
    hanging = "    " if paragraph.startswith("- ") else "  "
    return textwrap.fill(
        paragraph, 100, initial_indent="  ", subsequent_indent=hanging, break_on_hyphens=False
    )
