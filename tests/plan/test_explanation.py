"""The words of a plan: complete, true to its numbers, rounded to the safe side."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.guarantee import Bounds, Budget, Guarantee, lower_text, upper_text
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe, StagedRecipe
from discreet.plan.stage import Stage

SGD = Recipe(records=60_000, batch_size=600, epochs=5)
TITLES = ["What will happen", "Guarantee", "Who is protected", "Against whom", "What is not covered",
          "What the numbers mean", "Notes"]  # fmt: skip


def words(plan):
    return re.sub(r"\s+", " ", plan.explain())


def test_every_question_is_answered():
    text = SGD.calibrate(Budget(2.0, 1e-6)).explain()
    assert [line for line in text.splitlines() if line and not line.startswith(" ")] == TITLES
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "None" not in text
    assert "nan" not in text


def test_the_numbers_are_those_of_the_plan():
    plan = SGD.with_noise(1.5, 1e-6)
    text = words(plan)
    for phrase in (
        "descent: 500 steps (5 epochs)",
        "independently with probability 0.01; a batch has 600 records on average",
        "standard deviation 1.5 is added",
        "divided by 600, whatever the size of the batch",
        f"({upper_text(plan.guarantee.epsilon.upper)}, 1e-06)-differential privacy: adding or removing the",
        f"makes any result at most {upper_text(math.exp(plan.guarantee.epsilon.upper))} times as likely",
        f"true-positive rate of at most {upper_text(100 * plan.curve.power(0.01))}%. Guessing achieves 1%",
        "whether it is in the data at all (add-remove neighbours)",
        "sees every release, including the final model",
        "records = 60,000: declared and public",
        "on the average has standard deviation 0.0025 per coordinate",
        "delta = 1e-06: the additive term of the guarantee, 0.06 times 1 / records",
        "a search costs extra",
    ):
        assert phrase in text


@pytest.mark.parametrize(
    ("sampling", "neighbours", "phrase"),
    [
        ("fixed-size", "replace-one", "random subset of exactly 600 records"),
        (
            "random-allocation",
            "add-remove",
            "every record takes part in one uniformly random step",
        ),
        ("full-batch", "replace-one", "All records take part in each step"),
    ],
)
def test_each_sampling_has_its_sentence(sampling, neighbours, phrase):
    recipe = SGD.changed(sampling=sampling, batch_size=None if sampling == "full-batch" else 600)
    text = words(recipe.with_noise(20.0, 1e-6, neighbours))
    assert phrase in text
    assert ("The number of records is public" in text) == (neighbours == "replace-one")
    assert ("replacing the protected record" in text) == (neighbours == "replace-one")


def test_warnings_become_notes():
    assert "Notes" not in words(SGD.with_noise(2.0, 1e-6, unit="person"))
    quiet = words(SGD.with_noise(2.0, 1e-6, group_size=2))
    assert "every group of 2 records: whether it is in the data" in quiet
    assert "tests whether a group of 2 records was used" in quiet
    assert "epsilon is above 10" in words(SGD.with_noise(0.4, 1e-6))
    assert "more than a tenth of 1 / records" in words(SGD.with_noise(2.0, 1e-5))
    assert "To protect persons" in words(SGD.with_noise(2.0, 1e-6))
    assert "needs a noise multiplier of 2 and covers persons with up to 2" in quiet
    assert "noise on each coordinate exceeds" in words(SGD.with_noise(601.0, 1e-6))
    uneven = Recipe(records=1000, batch_size=300, epochs=1, sampling="random-allocation")
    assert "300 does not divide the number of records; batches have 333.333" in words(
        uneven.with_noise(5.0, 1e-6)
    )


def test_all_stages_are_told():
    moments = Recipe(records=60_000, steps=1, sampling="full-batch", clip_norm=3.0, name="moments")
    text = words(StagedRecipe((moments, SGD)).calibrate(Budget(2.0, 1e-6)))
    assert "moments: one step. All records take part" in text
    assert "clipped to norm 3" in text
    assert "descent: 500 steps" in text


def test_an_absurd_epsilon_is_still_told():
    text = words(Plan((Stage("descent", "full-batch", 10, 10, 10**6, 1.0, 0.5),), 1e-3))
    assert "an astronomical number of times as likely" in text


@given(st.floats(1e-300, 1e300))
def test_four_digits_to_the_safe_side(value):
    up, down = (float(text.replace(",", "")) for text in (upper_text(value), lower_text(value)))
    assert down <= value <= up
    assert up <= value * 1.0011
    assert down >= value / 1.0011


def test_declared_numbers_stay_as_typed():
    assert [upper_text(value) for value in (1e-5, 0.1, 2.0, 1234.0, 0.0)] == [
        "1e-05",
        "0.1",
        "2",
        "1234",
        "0",
    ]
    assert str(Guarantee(Bounds(1.0, 1.0), 1e-5)).startswith("(1, 1e-05)")
