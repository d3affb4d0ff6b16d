"""Noise and clip norms that change in the course of training: parts of a plan, each accounted as it is."""

import math

import numpy as np
import pytest

from discreet import Budget, Gaussian, InvalidParameter, PoissonSampled, account
from discreet.plan.procedure import compose
from discreet.plan.recipe import MOST_PARTS, PARTS, Recipe, StagedRecipe

BUDGET = Budget(epsilon=2.0, delta=1e-6)
BASE = {"records": 10_000, "batch_size": 500, "epochs": 3}


def test_the_event_is_that_of_the_parts():
    """By hand: 60 steps in three parts, and the epsilon of their composition."""
    plan = Recipe(**BASE, noise=(3.0, 2.0, 1.0)).calibrate(BUDGET)
    z = plan.stages[2].noise_multiplier
    by_hand = sum(
        (PoissonSampled(0.05, Gaussian(k * z)) * 20 for k in (2, 1)),
        PoissonSampled(0.05, Gaussian(3 * z)) * 20,
    )
    assert plan.guarantee.epsilon.upper == pytest.approx(account(by_hand).epsilon(1e-6), rel=1e-9)
    assert plan.guarantee.within(BUDGET)
    assert plan.guarantee.epsilon.upper > 0.98 * 2.0
    for wrong, costs in ((1, "more"), (3, "less")):  # what only the last part, or only the first, would say
        epsilon = account(PoissonSampled(0.05, Gaussian(wrong * z)) * 60).epsilon(1e-6)
        assert (epsilon > 2.0) == (costs == "more")


def test_full_batches_add_up_as_theory_says():
    """mu^2 = sum of steps / noise^2, exact for Gaussians."""
    recipe = Recipe(1000, steps=12, sampling="full-batch", noise=(2.0, 1.0, 4.0))
    stages = recipe.stages(5.0)
    mu = math.sqrt(sum(stage.steps / stage.noise_multiplier**2 for stage in stages))
    assert mu == pytest.approx(math.sqrt(4 * (1 / 100 + 1 / 25 + 1 / 400)))
    epsilon = account(compose(stages)).epsilon(1e-5)
    assert epsilon == pytest.approx(account(Gaussian(1 / mu)).epsilon(1e-5), rel=1e-6)


def test_a_schedule_that_does_not_change_is_no_schedule():
    plain = Recipe(**BASE).calibrate(BUDGET)
    level = Recipe(**BASE, noise=(7.0, 7.0), clip_norms=[0.5, 0.5]).calibrate(BUDGET)
    assert [stage.noise_multiplier for stage in level.stages] == pytest.approx(
        [plain.noise_multiplier] * 2, rel=1e-3
    )
    assert {stage.clip_norm for stage in level.stages} == {0.5}
    assert level.steps == plain.steps


def test_a_function_is_asked_in_the_middle_of_each_part():
    recipe = Recipe(**BASE, clip_norms=lambda progress: 2.0 - progress)
    clip_norms = [stage.clip_norm for stage in recipe.stages(1.0)]
    assert clip_norms == pytest.approx(list(2 - (np.arange(PARTS) + 0.5) / PARTS))
    assert sum(stage.steps for stage in recipe.stages(1.0)) == 60
    assert recipe == recipe.changed(batch_size=500)


def test_both_schedules_meet_in_the_finer_parts():
    stages = Recipe(**BASE, noise=(2.0, 1.0), clip_norms=(1.0, 2.0, 3.0)).stages(1.0)
    assert [stage.noise_multiplier for stage in stages] == [2, 2, 2, 1, 1, 1]
    assert [stage.clip_norm for stage in stages] == [1, 1, 2, 2, 3, 3]


def test_random_allocation_keeps_whole_epochs():
    recipe = Recipe(1000, 100, epochs=5, sampling="random-allocation", noise=(2.0, 1.0))
    assert [stage.steps for stage in recipe.stages(1.0)] == [20, 30]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": (1.0, math.nan)}, "noise=nan"),
        ({"noise": (1.0, 0.0)}, "noise=0.0"),
        ({"noise": ()}, r"noise=\(\)"),
        ({"noise": 2.0}, "noise=2.0: must be several numbers"),
        ({"noise": "falling"}, "noise='falling'"),
        ({"clip_norms": (1.0, -1.0)}, "clip_norms=-1.0"),
        ({"clip_norms": (1.0, math.inf)}, "clip_norms=inf"),
        ({"clip_norms": lambda progress: math.nan}, "clip_norms=nan"),
        ({"clip_norms": (1.0, 2.0), "clip_norm": 0.5}, "clip_norm=0.5"),
        ({"noise": (1.0,) * (MOST_PARTS + 1), "epochs": 30}, f"makes {MOST_PARTS + 1} parts"),
        ({"noise": (1.0, 2.0, 1.0), "epochs": 0.1}, "noise=3: makes 3 parts of 2 steps"),
        ({"noise": (1.0, 2.0), "bands": "best"}, "bands='best'"),
    ],
)
def test_what_is_no_schedule_is_told(settings, message):
    with pytest.raises(InvalidParameter, match=message):
        Recipe(**(BASE | settings))


def test_shares_and_schedules_are_not_mixed():
    with pytest.raises(InvalidParameter, match="cannot follow a schedule"):
        StagedRecipe((Recipe(**BASE, noise=(2.0, 1.0)),))
