"""Describe a plan in plain words, for the person who approves it.

The text depends on the plan and its guarantee only, so it reveals nothing about the data.
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
from discreet.core.matrix_mechanism import length_of_column
from discreet.guarantee import Budget, Guarantee, lower_text, protected_unit, upper_text
from discreet.plan.stage import Stage

ALARMS = 0.01
"""The false-positive rate at which the attacker's true-positive rate is reported."""

_DRAWN = {
    "poisson": "In each step, every {unit} joins the batch independently with probability {rate:.4g}; a batch has "
    "{size} {units} on average.",
    "fixed-size": "In each step, the batch is a fresh, uniformly random subset of exactly {size} {units}.",
    "random-allocation": "In each epoch, every {unit} takes part in one uniformly random step; a batch has "
    "{size} {units} on average.",
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
    """Describe a fixed plan. ``hit_rate`` is the best attacker's true-positive rate at the rate ``ALARMS``."""
    sections = _sections([_happens(stage, guarantee.unit) for stage in stages], guarantee, hit_rate)
    meaning = {
        "What the numbers mean": list(_numbers(stages, guarantee)),
        "Notes": list(_notes(stages, guarantee)),
    }
    return _text(sections | meaning)


def adaptive_explanation(name: str, settings: Mapping[str, Any], guarantee: Guarantee) -> str:
    """Describe an adaptive plan."""
    happens = (
        f"{name}: each release is chosen from earlier releases and charged before it happens. A release that "
        "exceeds the remaining budget does not happen."
    )
    declared = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    hit_rate = power_bound(guarantee.epsilon.upper, guarantee.delta, ALARMS)
    return _text(_sections([happens], guarantee, hit_rate) | {"Declared settings": declared})


def _sections(happens: list[str], guarantee: Guarantee, hit_rate: float) -> dict[str, list[str]]:
    return {
        "What will happen": happens,
        "Guarantee": [_promise(guarantee), _attack(guarantee, hit_rate)],
        "Who is protected": [_whom_it_protects(guarantee)],
        "Against whom": [
            f"An observer who {guarantee.observer}, including the final model, knows all other records, and has "
            "unlimited time and computing power."
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
        f"{stage.name}: {steps}. {drawn} The contribution of one {unit} is clipped to norm {stage.clip_norm:.4g}. "
        f"Gaussian noise with standard deviation {stage.noise_std_of_sum:.4g} is added to each coordinate of the "
        f"sum of the contributions. The result is divided by {size}, whatever the size of the batch."
    )


def _happens_correlated(stage: Stage, steps: str, size: str) -> str:
    bands = stage.bands
    drawn = (
        f"Every record is assigned to one of {bands} groups at random, once. Each step uses the records of one "
        "group, and the groups take turns."
    )
    if stage.sampling == "random-allocation":
        drawn += " In each epoch, every record takes part once, in a uniformly random round of its group"
    else:
        drawn += f" A record joins a step of its group with probability {min(1.0, bands * stage.rate):.4g}"
    fresh = stage.noise_multiplier * stage.clip_norm * length_of_column(bands)
    return (
        f"{stage.name}: {steps}. {drawn}; a batch has {size} records on average. The contribution of one record is "
        f"clipped to norm {stage.clip_norm:.4g}. The noise on each coordinate of the sum of the contributions is "
        f"Gaussian with standard deviation {fresh:.4g}, minus a part of the noise of the previous {bands - 1} "
        f"steps. The result is divided by {size}, whatever the size of the batch. The noise of {bands - 1} steps, "
        "each as large as the model, is kept in memory and never written to disk."
    )


def _promise(guarantee: Guarantee) -> str:
    change = "adding or removing" if guarantee.neighbours == "add-remove" else "replacing"
    lower, upper = guarantee.epsilon
    epsilon, delta, unit = upper_text(upper), upper_text(guarantee.delta), _unit(guarantee)
    factor = upper_text(math.exp(upper)) if upper < 100 else "an astronomical number of"
    return (
        f"({epsilon}, {delta})-differential privacy: {change} the protected {unit} makes any result at most "
        f"{factor} times as likely (exp(epsilon)), plus {delta}. This is proved for all stages together. No "
        f"accountant can prove less than {lower_text(lower)}."
    )


def _attack(guarantee: Guarantee, hit_rate: float) -> str:
    unit = _unit(guarantee)
    test = (
        f"a {unit} was used" if guarantee.neighbours == "add-remove" else f"this {unit} or another was used"
    )
    return (
        f"An attacker who tests whether {test}, with a false-positive rate of {ALARMS:.0%}, has a true-positive "
        f"rate of at most {upper_text(100 * hit_rate)}%. Guessing achieves {ALARMS:.0%}."
    )


def _unit(guarantee: Guarantee) -> str:
    return protected_unit(guarantee.unit, guarantee.group_size)


def _whom_it_protects(guarantee: Guarantee) -> str:
    if guarantee.unit == "person":
        whether = (
            "whether they are in the data at all" if guarantee.neighbours == "add-remove" else "their values"
        )
        return f"Every {_unit(guarantee)}, with all of their rows: {whether} ({guarantee.neighbours} neighbours)."
    owner = f"The owner of every {_unit(guarantee)}"
    if guarantee.neighbours == "add-remove":
        return f"{owner}: whether it is in the data at all (add-remove neighbours)."
    return f"{owner}: its values (replace-one neighbours). The number of records is public."


def _numbers(stages: tuple[Stage, ...], guarantee: Guarantee) -> Iterator[str]:
    yield (
        f"records = {stages[0].records:,}: declared and public. Rate and divisor are computed from it, never from "
        "a count of the data."
    )
    for stage in stages:
        yield (
            f"{stage.name}: noise_multiplier = {stage.noise_multiplier:.4g} is the standard deviation of the noise "
            "on the sum, divided by the clip norm. The noise on the average has standard deviation "
            f"{stage.noise_std_of_mean:.4g} per coordinate."
        )
    share = guarantee.delta * stages[0].records
    yield f"delta = {upper_text(guarantee.delta)}: the additive term of the guarantee, {share:.3g} times 1 / records."


def _notes(stages: tuple[Stage, ...], guarantee: Guarantee) -> Iterator[str]:
    if guarantee.epsilon.upper > 10:
        yield "epsilon is above 10: by itself, such a guarantee is weak. Use fewer steps or more noise."
    if guarantee.delta * stages[0].records > 0.1:
        yield "delta is more than a tenth of 1 / records. A smaller delta costs little."
    if guarantee.group_size == 1 and guarantee.unit == "record":
        yield (
            "A person with several records is protected less. To protect persons, use Budget(..., unit='person') and "
            "batches of persons, or set group_size= to the largest number of records of one person."
        )
    if guarantee.group_size > 1 and guarantee.unit == "record" and len(stages) == 1:
        yield _people_instead(stages[0], guarantee)
    for stage in stages:
        if stage.sampling == "random-allocation" and stage.divisor != stage.batch_size:
            yield (
                f"{stage.name}: {stage.batch_size} does not divide the number of records; batches have "
                f"{stage.divisor:.6g} records on average."
            )
        if stage.noise_std_of_mean > stage.clip_norm:
            yield (
                f"{stage.name}: the noise on each coordinate exceeds the largest possible norm of the average. "
                "Larger batches help most; see discreet.plan.explore."
            )


def _people_instead(stage: Stage, guarantee: Guarantee) -> str:
    """Compare ``group_size`` with sampling persons, each with the mean of their rows, at the same guarantee.

    The mean of k rows is a k-th of their sum, so its noise is multiplied by k to compare the noise of equal sums.
    """
    budget = Budget(guarantee.epsilon.upper, guarantee.delta, guarantee.neighbours)
    size = guarantee.group_size
    noise = size * calibrate(lambda noise: replace(stage, noise_multiplier=noise).event, budget)
    better = "better" if noise < stage.noise_multiplier else "worse, unless persons have more rows than that"
    return (
        f"group_size = {size} needs a noise multiplier of {stage.noise_multiplier:.4g} and covers persons with up to "
        f"{size} records. Sampling persons instead (unit='person', PerPerson) needs {noise:.4g} in the same units "
        f"and covers any number of records: {better}. The mean over a person's rows may also be clipped to a "
        "smaller norm."
    )


def _wrap(paragraph: str) -> str:
    hanging = "    " if paragraph.startswith("- ") else "  "
    return textwrap.fill(
        paragraph, 100, initial_indent="  ", subsequent_indent=hanging, break_on_hyphens=False
    )
