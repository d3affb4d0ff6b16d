"""Calibrated plans stay within the budget, waste little, and split it as asked."""

import math

import pytest

from discreet.accounting.gaussian import gaussian_mu
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.guarantee import Budget
from discreet.plan.recipe import STEPS, Recipe, StagedRecipe
from discreet.plan.stage_views import LENGTHS, LONGEST_STEPS, USUAL_LENGTH

SGD = Recipe(records=60_000, batch_size=600, epochs=5)
BUDGET = Budget(epsilon=2.0, delta=1e-6)


@pytest.mark.parametrize(
    ("recipe", "budget"),
    [
        (SGD, BUDGET),
        (SGD, Budget(2.0, 1e-6, group_size=3)),
        (SGD, Budget(0.1, 1e-6, "replace-one")),
        (SGD.changed(sampling="fixed-size"), Budget(2.0, 1e-6, "replace-one")),
        (Recipe(records=1000, batch_size=100, epochs=2, sampling="random-allocation"), BUDGET),
        (Recipe(records=1000, steps=50, sampling="full-batch"), Budget(8.0, 1e-6, "replace-one")),
    ],
)
def test_a_calibrated_plan_is_within_the_budget_and_one_percent_less_noise_is_not(recipe, budget):
    plan = recipe.calibrate(budget)
    assert plan.guarantee.within(budget)
    less = recipe.with_noise(0.99 * plan.noise_multiplier, budget.delta, budget.neighbours, budget.group_size)
    assert not less.guarantee.within(budget)
    assert less.stages[0] == recipe.at(0.99 * plan.noise_multiplier)


# Noise on the averaged gradient for n = 1000, clip norm 1, replace-one: (2C/n) sqrt(T)/mu*(epsilon, delta), where mu*
# is the root of the exact Gaussian curve (mpmath, 40 digits).
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "noise"),
    [
        (1.0, 1e-5, 1, 0.0074612633),
        (1.0, 1e-5, 10, 0.0235945862),
        (1.0, 1e-5, 100, 0.0746126327),
        (1.0, 1e-5, 1000, 0.2359458615),
        (0.5, 1e-6, 100, 0.1611523696),
    ],
)
def test_full_batch_noise_is_the_exact_one(epsilon, delta, steps, noise):
    recipe = Recipe(records=1000, steps=steps, sampling="full-batch")
    plan = recipe.calibrate(Budget(epsilon, delta, "replace-one"))
    assert noise * (1 - 1e-8) <= plan.noise_std_of_mean <= noise * (1 + 5e-4)
    half = recipe.calibrate(Budget(epsilon, delta, "add-remove")).noise_std_of_mean
    assert half == pytest.approx(noise / 2, rel=5e-4)


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        (Recipe(records=60_000, batch_size=256, epochs=20), 4688),
        (
            Recipe(records=1000, batch_size=100, epochs=0.3),
            3,
        ),  # although 0.3 * 1000 / 100 may come out above 3
        (Recipe(records=1000, batch_size=300, epochs=1), 4),
        (Recipe(records=1000, batch_size=300, epochs=2, sampling="random-allocation"), 6),
        (Recipe(records=1000, epochs=7, sampling="full-batch"), 7),
        (Recipe(records=1000, batch_size=1000, steps=7, sampling="full-batch"), 7),
        (Recipe(records=10, batch_size=1, steps=1e3), 1000),
    ],
)
def test_epochs_become_steps(recipe, steps):
    assert recipe.at(1.0).steps == steps


def test_changes_keep_epochs_or_steps_as_they_were_given():
    assert SGD.at(1.0).steps == 500
    assert SGD.changed(batch_size=1200).at(1.0).steps == 250
    assert SGD.changed(steps=77).changed(batch_size=1200).at(1.0).steps == 77
    assert SGD.changed(steps=77).changed(epochs=1).at(1.0).steps == 100


def test_shares_of_full_batches_are_parts_of_the_squared_mu():
    stages = [
        Recipe(records=1000, steps=steps, sampling="full-batch", clip_norm=clip, name=name)
        for name, steps, clip in (("counts", 1, 1.0), ("moments", 2, 5.0), ("descent", 40, 0.5))
    ]
    plan = StagedRecipe(tuple(stages), shares=(3, 7, 90)).calibrate(Budget(1.0, 1e-6, "replace-one"))
    parts = [stage.steps * (2 / stage.noise_multiplier) ** 2 for stage in plan.stages]
    total = gaussian_mu(1.0, 1e-6) ** 2
    assert [part / sum(parts) for part in parts] == pytest.approx([0.03, 0.07, 0.9], rel=1e-12)
    assert total * (1 - 1e-3) < sum(parts) <= total * (1 + 1e-9)


def test_sampled_stages_are_calibrated_together():
    moments = Recipe(records=60_000, steps=1, sampling="full-batch", name="moments")
    plan = StagedRecipe((moments, SGD), shares=(1.0, 4.0)).calibrate(BUDGET)
    assert plan.guarantee.within(BUDGET)
    assert plan.guarantee.epsilon.upper > 0.998 * BUDGET.epsilon
    alone = SGD.calibrate(BUDGET).noise_multiplier
    assert alone < plan.stage("descent").noise_multiplier < 1.3 * alone
    even = StagedRecipe((moments, SGD)).calibrate(BUDGET)
    assert even.stage("moments").noise_multiplier < plan.stage("moments").noise_multiplier


def test_delta_and_neighbours_are_checked_before_any_search():
    with pytest.raises(InvalidParameter, match="must be below 1 / records"):
        SGD.calibrate(Budget(1.0, 1e-4))
    with pytest.raises(InvalidParameter, match=r"delta=0.0: must be above 0"):
        SGD.calibrate(Budget(1.0, 0.0))
    with pytest.raises(UnsupportedEvent, match="neighbours='replace-one'"):
        SGD.changed(sampling="fixed-size").calibrate(BUDGET)
    for recipe in (SGD, StagedRecipe((SGD,))):
        with pytest.raises(InvalidParameter, match="budget="):
            recipe.calibrate(2.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 10}, "epochs=None: give exactly one of epochs and steps"),
        ({"batch_size": 10, "epochs": 1, "steps": 1}, "give exactly one"),
        ({"epochs": 1}, "batch_size=None: is needed"),
        ({"batch_size": 10, "epochs": math.nan}, "epochs=nan"),
        ({"batch_size": 10, "epochs": -1}, "epochs=-1"),
        ({"batch_size": 10, "epochs": True}, "epochs=True"),
        (
            {"batch_size": 10, "epochs": 1.5, "sampling": "random-allocation"},
            "epochs=1.5: must be a whole number",
        ),
        ({"batch_size": 1001, "epochs": 1}, "batch_size=1001"),
        ({"batch_size": 10, "epochs": 1, "clip_norm": math.nan}, "clip_norm=nan"),
        ({"batch_size": 10, "epochs": 1, "sampling": "shuffle"}, "sampling='shuffle'"),
        ({"batch_size": 10, "steps": 2.5}, "steps=2.5"),
        ({"batch_size": 10, "steps": 1, "name": "a b"}, "name='a b'"),
        ({"batch_size": 10, "steps": 1, "records": math.nan}, "records=nan"),
    ],
)
def test_nonsense_is_refused_by_name(fields, message):
    with pytest.raises(InvalidParameter, match=message):
        Recipe(**{"records": 1000} | fields)


def test_stages_and_shares_are_checked():
    with pytest.raises(InvalidParameter, match="one share for each of 1 stages"):
        StagedRecipe((SGD,), shares=(0.5, 0.5))
    for share in (0.0, -1.0, math.nan, True):
        with pytest.raises(InvalidParameter, match="shares="):
            StagedRecipe((SGD,), shares=(share,))
    with pytest.raises(InvalidParameter, match="different names"):
        StagedRecipe((SGD, SGD))
    with pytest.raises(InvalidParameter, match="at least one Recipe"):
        StagedRecipe(())
    with pytest.raises(InvalidParameter, match="noise_multiplier=nan"):
        SGD.with_noise(math.nan, 1e-6)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Recipe(records=60_000, batch_size=600, epochs=1e308), "epochs"),
        (lambda: StagedRecipe((SGD, SGD.changed(name="second")), shares=(1.0, 1e-320)), "shares"),
        (lambda: StagedRecipe(None), "stages"),
        (lambda: SGD.changed(foo=1), "changes"),
    ],
)
def test_absurd_recipes_are_refused_by_name(make, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        make()


@pytest.mark.parametrize(
    ("records", "weights"), [(100, 10), (1_500, 2_400), (60_000, 26_000), (10**6, 10**8)]
)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_suggestion_keeps_the_budget_and_its_limits(records, weights, epsilon):
    budget = Budget(epsilon, delta=0.01 / records)
    plan = Recipe.suggest(records, weights, budget).calibrate(budget)
    assert plan.guarantee.within(budget)
    assert plan.steps <= STEPS[1] + 1
    assert plan.stage().batch_size >= min(64, records)
    moved = plan.learning_rate(weights) * plan.noise_std_of_mean * math.sqrt(weights * plan.steps)
    assert moved <= USUAL_LENGTH * (1 + 1e-9)
    assert 0 < plan.learning_rate(weights) <= LONGEST_STEPS[1] * USUAL_LENGTH


def test_a_larger_budget_suggests_more_steps_of_a_longer_way():
    plans = [
        Recipe.suggest(20_000, 13_000, budget).calibrate(budget)
        for budget in (Budget(epsilon, delta=1e-6) for epsilon in (0.5, 2.0, 8.0))
    ]
    ways = [plan.steps * plan.learning_rate(13_000) for plan in plans]
    assert ways == sorted(ways)
    assert ways[2] > 3 * ways[0]


def test_what_is_given_to_a_suggestion_stays():
    budget = Budget(1.0, delta=1e-6)
    given = {"batch_size": 128, "epochs": 3, "clip_norm": 0.5, "sampling": "random-allocation"}
    recipe = Recipe.suggest(5000, 100, budget, **given)
    assert {name: getattr(recipe, name) for name in given} == given
    assert Recipe.suggest(5000, 100, budget, sampling="full-batch").batch_size is None
    plan = recipe.calibrate(budget)
    assert plan.learning_rate(100) <= LONGEST_STEPS[1] * USUAL_LENGTH / 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"records": math.nan}, "records=nan"),
        ({"parameters": 0}, "parameters=0"),
        ({"parameters": math.nan}, "parameters=nan"),
        ({"budget": 1.0}, "budget=1.0"),
        ({"epochs": math.nan}, "epochs=nan"),
        ({"epochs": -1}, "epochs=-1"),
        ({"batch_size": 5001}, "batch_size=5001"),
        ({"clip_norm": math.nan}, "clip_norm=nan"),
        ({"sampling": "shuffle"}, "sampling='shuffle'"),
    ],
)
def test_suggestions_are_asked_for_with_numbers(settings, message):
    with pytest.raises(InvalidParameter, match=message):
        Recipe.suggest(**({"records": 5000, "parameters": 100, "budget": Budget(1.0, 1e-6)} | settings))


def test_the_noise_of_a_training_moves_weights_by_their_initial_length():
    noisy = Recipe(1000, 100, steps=50).with_noise(30.0, delta=1e-4)
    for length in (2.0, 5.0, 14.0):
        rate = noisy.learning_rate(400, length)
        assert rate * noisy.noise_std_of_mean * math.sqrt(400 * 50) == pytest.approx(length)
    assert noisy.learning_rate(400) == noisy.learning_rate(400, USUAL_LENGTH)
    assert noisy.learning_rate(400, 0.0) == noisy.learning_rate(400, LENGTHS[0])  # a head of zeros moves, too
    assert noisy.learning_rate(400, 1e3) == noisy.learning_rate(
        400, LENGTHS[1]
    )  # and a large model has learnt before


def test_without_noise_no_step_is_longer_than_a_part_of_the_weights():
    for clip_norm, steps, longest in ((1.0, 50, 0.4), (0.5, 50, 0.4), (1.0, 272, 0.25), (1.0, 5000, 0.125)):
        quiet = Recipe(10_000, 1000, steps=steps, clip_norm=clip_norm).with_noise(0.001, delta=1e-5)
        assert quiet.learning_rate(10, 4.0) == pytest.approx(longest * 4.0 / clip_norm)
        assert quiet.learning_rate(10, 1e3) == pytest.approx(longest * LENGTHS[1] / clip_norm)


@pytest.mark.parametrize(
    ("asked", "message"),
    [((math.nan,), "parameters=nan"), ((5, math.nan), "length=nan"), ((5, -1.0), r"length=-1\.0")],
)
def test_learning_rates_are_asked_for_with_numbers(asked, message):
    with pytest.raises(InvalidParameter, match=message):
        Recipe(100, 10, steps=5).with_noise(1.0, 1e-3).learning_rate(*asked)
