"""Figures that follow from theorems: what releases cost by older and newer accounting, and who sees what."""

from __future__ import annotations

from discreet.accounting.curve import account
from discreet.events import Gaussian, Laplace, PoissonSampled
from discreet.guarantee import Budget
from discreet.lecture.composition import (
    advanced_composition,
    basic_composition,
    figure_2_curve_not_a_guarantee,
    optimal_composition,
    strong_composition_of_noisy_sgd,
)
from discreet.lecture.figures.canvas import Figure, Panel, PlotLine
from discreet.lecture.lecture_noise import lecture_4_noise
from discreet.lecture.moments import moments_accountant as by_moments
from discreet.parties.arrangement import Arrangement
from discreet.parties.excess_risk import predict_excess
from discreet.parties.notes import notes_noise
from discreet.parties.observation.observers import noise_for
from discreet.parties.observation.observers import observers as table_of
from discreet.plan.prices import price_of_steps

DELTA = 1e-5
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def noise_by_steps() -> Figure:
    """The noise that T steps of gradient descent need within one budget."""
    budget = Budget(0.9, DELTA, "replace-one")
    prices = price_of_steps(1000, budget, STEPS)
    printed = [lecture_4_noise(budget, 1.0, 1000, steps) for steps in STEPS]
    lines = (
        PlotLine("lecture 4, as printed", STEPS, printed, "dashed"),
        PlotLine("basic composition", STEPS, [price.basic for price in prices]),
        PlotLine("advanced composition", STEPS, [price.advanced for price in prices]),
        PlotLine("exact", STEPS, [price.exact for price in prices]),
    )
    panel = Panel("", "steps", "noise on each coordinate of the mean gradient", lines, log_x=True, log_y=True)
    return Figure(
        "Noise against the number of steps",
        "1000 records, clip norm 1, epsilon 0.9, delta 1e-5, replace-one. By basic composition the noise grows "
        "like T, in truth like the root of T, because Gaussian releases add up exactly.",
        (panel,),
    )


def composition() -> Figure:
    """Epsilon of many releases that are 0.1-private each."""
    each, release = 0.1, Laplace(scale=10.0)
    lines = (
        PlotLine("basic", STEPS, [basic_composition(each, 0.0, k).epsilon for k in STEPS]),
        PlotLine("advanced", STEPS, [advanced_composition(each, 0.0, k, DELTA).epsilon for k in STEPS]),
        PlotLine(
            "optimal for any release",
            STEPS,
            [optimal_composition(each, 0.0, k, DELTA).epsilon for k in STEPS],
        ),
        PlotLine("certified, for Laplace noise", STEPS, [account(release * k).epsilon(DELTA) for k in STEPS]),
    )
    return Figure(
        "Composition of releases with epsilon 0.1 each",
        "Total epsilon at delta 1e-5. The optimal theorem is the best that can be said of releases of which only "
        "epsilon is known; whoever knows the noise can prove less.",
        (Panel("", "releases", "epsilon of all together", lines, log_x=True, log_y=True),),
    )


def moments_accountant() -> Figure:
    """Figure 2 of Abadi et al. 2016: what the moments accountant gained, and what is true."""
    rate, noise, epochs = 0.01, 4.0, tuple(range(10, 401, 30))
    steps = [100 * epoch for epoch in epochs]
    step = PoissonSampled(rate, Gaussian(noise))
    printed = [figure_2_curve_not_a_guarantee(rate, noise, count, DELTA) for count in steps]
    rigorous = [strong_composition_of_noisy_sgd(rate, noise, count, DELTA).epsilon for count in steps]
    lines = (
        PlotLine("strong composition, as printed (no theorem)", epochs, printed, "dashed"),
        PlotLine("strong composition, rigorous", epochs, rigorous),
        PlotLine("moments accountant", epochs, [by_moments(rate, noise, count, DELTA) for count in steps]),
        PlotLine("certified", epochs, [account(step * count).epsilon(DELTA) for count in steps]),
    )
    return Figure(
        "Figure 2 of the moments accountant, redrawn",
        "Sampling rate 0.01, noise multiplier 4, delta 1e-5. The printed comparison multiplies epsilon by the rate, "
        "which is no theorem: the gain of the moments accountant is larger than it shows. The certified curve is "
        "exact to a thousandth.",
        (Panel("", "epochs", "epsilon", lines, log_y=True),),
    )


_RECORDS, _ROUNDS, _DIMENSION, _CONVEXITY = 6000, 1000, 200, 0.1


def parties_risk() -> Figure:
    """The excess risk of SGD2 as the same records are held by more and more parties."""
    counts = (2, 3, 5, 10, 20, 30, 50)
    budget = Budget(1.0, 1e-6, "replace-one")
    lines = []
    for label, aggregation, against in (
        ("every message is seen", "plain", "coordinator"),
        ("only sums are seen", "secure", "coordinator"),
    ):
        risks = []
        for count in counts:
            shared = Arrangement("sgd2", _parties(count, _RECORDS), rounds=_ROUNDS, aggregation=aggregation)
            arranged = shared.with_noise(noise_for(shared, budget, against=against))
            found = predict_excess(arranged, 1.0, _DIMENSION, diameter=2.0, convexity=_CONVEXITY)
            assert found.strongly_convex_average is not None
            risks.append(found.strongly_convex_average)
        lines.append(PlotLine(label, counts, risks))
    return Figure(
        "What secure sums save",
        f"Bound on the excess of the mean loss of SGD2 against the coordinator at epsilon 1: {_RECORDS} records, "
        f"{_ROUNDS} rounds, {_DIMENSION} parameters. When every message is seen, each carries all of the noise, "
        "and m parties bring m times its variance; when only the sum is seen, they share it.",
        (Panel("", "parties", "excess risk per record, at most", tuple(lines), log_x=True, log_y=True),),
    )


def observers() -> Figure:
    """Plot the epsilon of each observer of SGD1 at the noise of the notes, which claim 0.9 for all."""
    sizes = (50, 100, 200, 500, 1000)
    shown = ("messages", "another party", "traffic", "coordinator")
    found: dict[str, list[float]] = {name: [] for name in shown}
    for records in sizes:
        budget = Budget(0.9, 0.1 / records**3, "replace-one")
        shared = Arrangement("sgd1", _parties(10, records))
        table = table_of(shared.with_noise(notes_noise(shared, budget)), budget.delta)
        for name in shown:
            guarantee = table[name].guarantee
            assert guarantee is not None
            found[name].append(guarantee.epsilon.upper)
    lines = [PlotLine("claimed for everybody", sizes, [0.9] * len(sizes), "dashed")]
    lines += [PlotLine(name, sizes, found[name]) for name in shown]
    return Figure(
        "Who learns what from SGD1",
        "Ten parties, the noise of the notes for epsilon 0.9, delta 1/(10 n^3). The claim is far too careful about "
        "those who do not know whose record was used, and false for the coordinator, who drew it.",
        (Panel("", "records", "epsilon", tuple(lines), log_x=True, log_y=True),),
    )


def _parties(count: int, records: int) -> dict[str, int]:
    return {f"party-{index + 1}": records // count for index in range(count)}
