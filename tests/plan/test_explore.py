"""Tables of plans: every row is within the budget, and its columns are what they say."""

import math

import pytest

from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.guarantee import Budget
from discreet.plan.explore import StepCost, explore, records_needed
from discreet.plan.prices import Convexity, risk_bound
from discreet.plan.recipe import Recipe

SGD = Recipe(records=60_000, batch_size=256, epochs=5)
DESCENT = Recipe(records=1000, steps=10, sampling="full-batch")
BUDGET = Budget(2.0, 1e-6)


def test_every_combination_is_a_plan_within_the_budget():
    table = explore(SGD, BUDGET, batch_size=[256, 1024], epochs=[5, 10])
    assert [(row.batch_size, row.steps) for row in table.rows] == [
        (256, 1172),
        (256, 2344),
        (1024, 293),
        (1024, 586),
    ]
    for row in table.rows:
        assert row.plan.guarantee.within(BUDGET)
        assert row.plan == SGD.changed(batch_size=row.batch_size, steps=row.steps).calibrate(BUDGET)
        assert row.epsilon == row.plan.guarantee.epsilon.upper
        assert row.noise_per_coordinate == row.plan.noise_std_of_mean
        assert row.signal_to_noise == pytest.approx(
            math.sqrt(row.steps) * row.batch_size / row.noise_multiplier
        )
    few, many, large, large_many = table.rows
    assert few.noise_per_coordinate < many.noise_per_coordinate  # the price of steps
    assert large.noise_per_coordinate < few.noise_per_coordinate  # large batches pay
    assert table.best() == max(table.rows, key=lambda row: row.signal_to_noise)
    assert table.best("noise_per_coordinate") == large
    assert table.best("steps") == large
    # More steps of the larger batch are noisier, and everything with the small batch is beaten.
    assert table.frontier("steps", "noise_per_coordinate") == (large,)
    assert table.frontier("noise_per_coordinate", "signal_to_noise") == (large, large_many)


def test_any_number_can_be_varied():
    table = explore(DESCENT, BUDGET, epsilon=[0.5, 2.0], clip_norm=[1.0, 4.0], records=[1000, 2000])
    assert len(table.rows) == 8
    by = {(row.epsilon > 1, row.clip_norm, row.records): row.noise_per_coordinate for row in table.rows}
    assert by[False, 1.0, 1000] > 2 * by[True, 1.0, 1000]
    assert by[True, 4.0, 1000] == pytest.approx(4 * by[True, 1.0, 1000])
    assert by[True, 1.0, 2000] == pytest.approx(by[True, 1.0, 1000] / 2)
    steps = explore(DESCENT, BUDGET, steps=[1, 100]).rows
    assert steps[1].noise_multiplier == pytest.approx(10 * steps[0].noise_multiplier, rel=5e-4)
    assert explore(DESCENT, BUDGET).rows[0].plan == DESCENT.calibrate(BUDGET)


def test_dimension_cost_and_risk_add_their_columns():
    cost, risk = (
        StepCost(seconds=0.5, seconds_per_record=0.001, memory=100, memory_per_record=8),
        Convexity(2.0, 5),
    )
    (row,) = explore(DESCENT, BUDGET, dimension=25, cost=cost, risk=risk).rows
    assert row.seconds == pytest.approx(10 * (0.5 + 1.0))
    assert row.memory == 100 + 8000
    assert row.excess_risk == risk_bound(row.plan.stage(), risk).excess_risk
    (plain,) = explore(DESCENT, BUDGET).rows
    assert plain.signal_to_noise == pytest.approx(5 * row.signal_to_noise)
    assert (plain.seconds, plain.memory, plain.excess_risk) == (None, None, None)
    assert list(row.values())[:4] == ["sampling", "records", "batch_size", "epochs"]
    assert "plan" not in row.values()


def test_the_table_is_readable():
    table = explore(DESCENT, BUDGET, steps=[1, 10_000])
    assert str(table).splitlines() == [
        "steps  noise_multiplier  noise_per_coordinate  signal_to_noise  epsilon",
        "    1              2.23               0.00223              448        2",
        "10000               223                 0.223              448        2",
    ]
    assert table.to_markdown().splitlines() == [
        "| steps | noise_multiplier | noise_per_coordinate | signal_to_noise | epsilon |",
        "| ---: | ---: | ---: | ---: | ---: |",
        "| 1 | 2.23 | 0.00223 | 448 | 2 |",
        "| 10000 | 223 | 0.223 | 448 | 2 |",
    ]


def test_settings_without_a_plan_are_listed_with_the_reason():
    table = explore(
        Recipe(records=1000, batch_size=100, steps=10), BUDGET, sampling=["poisson", "fixed-size"]
    )
    assert [row.sampling for row in table.rows] == ["poisson"]
    (reason,) = table.refused
    assert reason.startswith("sampling=fixed-size: fixed-size batches make the number of records public")
    assert f"refused: {reason}" in str(table)
    assert f"Refused: {reason}" in table.to_markdown()
    once = explore(
        Recipe(records=1000, batch_size=100, epochs=1, sampling="random-allocation"),
        BUDGET,
        risk=Convexity(1.0, 5),
    )
    assert once.rows == ()
    assert "no bound of this kind is known" in once.refused[0]
    nothing = explore(Recipe(records=1000, batch_size=100, steps=10), BUDGET, sampling=["fixed-size"])
    with pytest.raises(BudgetExceeded, match="no plan in this table"):
        nothing.best()


@pytest.mark.parametrize(
    ("recipe", "target"),
    [(DESCENT, 1e-3), (DESCENT, 0.1), (Recipe(records=5000, batch_size=50, steps=100), 1e-2)],
)
def test_records_needed_are_enough_and_not_many_too_many(recipe, target):
    records = records_needed(recipe, BUDGET, noise_per_coordinate=target)
    stage = recipe.at(1.0)

    def noise(records):
        size = None if recipe.sampling == "full-batch" else records * stage.batch_size // stage.records
        return recipe.changed(records=records, batch_size=size).calibrate(BUDGET).noise_std_of_mean

    assert noise(records) <= target
    assert noise(math.floor(0.98 * records)) > target


def test_records_needed_may_call_for_a_smaller_delta():
    with pytest.raises(InvalidParameter, match="must be below 1 / records"):
        records_needed(DESCENT, BUDGET, noise_per_coordinate=1e-6)


def test_nonsense_is_refused_by_name():
    with pytest.raises(InvalidParameter, match="grid="):
        explore(SGD, BUDGET, learning_rate=[0.1])
    with pytest.raises(InvalidParameter, match="batch_size=nan"):
        explore(SGD, BUDGET, batch_size=[math.nan])
    with pytest.raises(InvalidParameter, match="epsilon=nan"):
        explore(SGD, BUDGET, epsilon=[math.nan])
    with pytest.raises(InvalidParameter, match="dimension=nan"):
        explore(SGD, BUDGET, dimension=math.nan)
    with pytest.raises(InvalidParameter, match="by='epochs'"):
        explore(DESCENT, BUDGET).best("epochs")
    with pytest.raises(InvalidParameter, match="by='seconds': was not computed"):
        explore(DESCENT, BUDGET).best("seconds")
    for name in ("seconds", "seconds_per_record", "memory", "memory_per_record"):
        with pytest.raises(InvalidParameter, match=f"{name}=nan"):
            StepCost(**{name: math.nan})
    for target in (math.nan, 0.0, -1.0, True):
        with pytest.raises(InvalidParameter, match="noise_per_coordinate="):
            records_needed(DESCENT, BUDGET, noise_per_coordinate=target)


@pytest.mark.parametrize("values", [300, "300", None])
def test_a_single_value_is_no_list(values):
    with pytest.raises(InvalidParameter, match="batch_size="):
        explore(SGD, BUDGET, batch_size=values)


@pytest.mark.parametrize("change", [{"cost": 1}, {"risk": {}}, {"recipe": None}, {"budget": 1.0}])
def test_things_of_another_kind_are_refused(change):
    with pytest.raises(InvalidParameter):
        explore(**{"recipe": SGD, "budget": BUDGET} | change)
