"""What releases cost together: the same steps by older and newer accounting."""

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
from discreet.lecture.figures.canvas import Figure, Line, Panel
from discreet.lecture.lecture_noise import lecture_4_noise
from discreet.lecture.moments import moments_accountant as by_moments
from discreet.plan.prices import price_of_steps

DELTA = 1e-5
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def noise_by_steps() -> Figure:
    """The noise that T steps of gradient descent need within one budget."""
    budget = Budget(0.9, DELTA, "replace-one")
    prices = price_of_steps(1000, budget, STEPS)
    printed = [lecture_4_noise(budget, 1.0, 1000, steps) for steps in STEPS]
    lines = (
        Line("lecture 4, as printed", STEPS, printed, "dashed"),
        Line("basic composition", STEPS, [price.basic for price in prices]),
        Line("advanced composition", STEPS, [price.advanced for price in prices]),
        Line("exact", STEPS, [price.exact for price in prices]),
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
        Line("basic", STEPS, [basic_composition(each, 0.0, k).epsilon for k in STEPS]),
        Line("advanced", STEPS, [advanced_composition(each, 0.0, k, DELTA).epsilon for k in STEPS]),
        Line(
            "optimal for any release",
            STEPS,
            [optimal_composition(each, 0.0, k, DELTA).epsilon for k in STEPS],
        ),
        Line("certified, for Laplace noise", STEPS, [account(release * k).epsilon(DELTA) for k in STEPS]),
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
        Line("strong composition, as printed (no theorem)", epochs, printed, "dashed"),
        Line("strong composition, rigorous", epochs, rigorous),
        Line("moments accountant", epochs, [by_moments(rate, noise, count, DELTA) for count in steps]),
        Line("certified", epochs, [account(step * count).epsilon(DELTA) for count in steps]),
    )
    return Figure(
        "Figure 2 of the moments accountant, redrawn",
        "Sampling rate 0.01, noise multiplier 4, delta 1e-5. The printed comparison multiplies epsilon by the rate, "
        "which is no theorem: the gain of the moments accountant is larger than it shows. The certified curve is "
        "exact to a thousandth.",
        (Panel("", "epochs", "epsilon", lines, log_y=True),),
    )
