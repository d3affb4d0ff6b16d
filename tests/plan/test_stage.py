"""A stage's numbers, batches and event agree with one another."""

import math

import numpy as np
import pytest

import discreet.plan.stage as plan_stage
from discreet.core.randomness import RandomStream
from discreet.core.sampling import FixedSizeSampler
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import FixedSizeSampled, Gaussian, PoissonSampled, RandomlyAllocated
from discreet.plan.stage import Stage

FIELDS = {
    "name": "descent",
    "sampling": "poisson",
    "records": 1000,
    "batch_size": 100,
    "steps": 40,
    "clip_norm": 2.0,
    "noise_multiplier": 3.0,
}


def stage(**changes):
    return Stage(**FIELDS | changes)


@pytest.mark.parametrize(
    ("changes", "charge", "per_charge", "divisor"),
    [
        ({}, PoissonSampled(0.1, Gaussian(3.0)), 1, 100.0),
        ({"sampling": "fixed-size"}, FixedSizeSampled(100, 1000, Gaussian(3.0)), 1, 100.0),
        ({"sampling": "random-allocation"}, RandomlyAllocated(10, Gaussian(3.0)), 10, 100.0),
        (
            {"sampling": "random-allocation", "batch_size": 300, "steps": 6},
            RandomlyAllocated(3, Gaussian(3.0)),
            3,
            1000 / 3,
        ),
        ({"sampling": "full-batch", "batch_size": 1000}, Gaussian(3.0), 1, 1000.0),
    ],
)
def test_event_divisor_and_batches_belong_together(changes, charge, per_charge, divisor):
    made = stage(**changes)
    assert (made.charge, made.steps_per_charge, made.divisor) == (charge, per_charge, divisor)
    assert made.event.parts() == (charge * (made.steps // per_charge)).parts()
    assert made.rate == pytest.approx(divisor / 1000, rel=1e-15)
    assert made.noise_std_of_sum == 6.0
    assert made.noise_std_of_mean == pytest.approx(6.0 / divisor, rel=1e-15)
    assert made.epochs == pytest.approx(made.steps * divisor / 1000, rel=1e-15)
    batches = list(made.batches(RandomStream(unsafe_seed=1)))
    assert len(batches) == made.steps
    # 5 standard deviations of the mean batch size, which is at most that of Poisson batches; the seed is fixed.
    assert np.mean([len(batch) for batch in batches]) == pytest.approx(
        divisor, abs=5 * math.sqrt(divisor / made.steps)
    )


def test_a_run_can_be_taken_up_again():
    assert len(list(stage().batches(start=33))) == 7
    assert list(stage().batches(start=40)) == []
    assert len(list(stage(sampling="random-allocation").batches(start=30))) == 10
    with pytest.raises(PlanViolation, match="whole epochs of 10 steps"):
        stage(sampling="random-allocation").batches(start=33)
    with pytest.raises(InvalidParameter, match="start=41"):
        stage().batches(start=41)


def test_the_number_of_rows_changes_indices_only():
    everyone = stage(sampling="full-batch", batch_size=1000)
    assert [len(batch) for batch in everyone.batches(rows=999, start=38)] == [999, 999]
    assert max(batch.max() for batch in stage().batches(RandomStream(unsafe_seed=2), rows=500)) < 500
    assert len(list(stage(sampling="fixed-size").batches(rows=1000, start=39))) == 1
    with pytest.raises(PlanViolation, match="declares 1000 records and the data have 999 rows"):
        stage(sampling="fixed-size").batches(rows=999)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("records", [math.nan, 0, -5, 2.5, True, "1000", None]),
        ("batch_size", [math.nan, 0, 1001, 2.5, True, None]),
        ("steps", [math.nan, math.inf, 0, -1, 1.5, True, None, 10**13]),
        ("clip_norm", [math.nan, math.inf, 0.0, -1.0, True, None, "1"]),
        ("noise_multiplier", [math.nan, math.inf, 0.0, -1.0, True, None, "1"]),
        ("sampling", ["shuffled", None, 1, math.nan]),
        ("name", ["", "Two words", None, 7, "x" * 50, "-a"]),
    ],
)
def test_nonsense_is_refused_by_name(field, values):
    for value in values:
        with pytest.raises(InvalidParameter, match=f"^{field}="):
            stage(**{field: value})


def test_numbers_that_contradict_one_another_are_refused():
    with pytest.raises(InvalidParameter, match="a full batch holds all records"):
        stage(sampling="full-batch")
    with pytest.raises(InvalidParameter, match="whole epochs of 10 steps"):
        stage(sampling="random-allocation", steps=45)


def test_correlated_noise_draws_in_windows_and_where_it_has_a_theorem():
    banded = stage(bands=4, batch_size=10)
    assert banded.steps_per_charge == 4
    assert banded.sampler().event(banded.noise) == banded.charge
    allocated = stage(bands=2, sampling="random-allocation")
    assert allocated.steps_per_charge == 10
    assert len(list(allocated.batches(RandomStream(unsafe_seed=1), start=30))) == 10
    with pytest.raises(InvalidParameter, match="whole windows of 4 steps"):
        stage(bands=4, batch_size=10, steps=41)
    with pytest.raises(InvalidParameter, match="no theorem for correlated noise"):
        stage(bands=4, sampling="fixed-size")


def test_a_sampling_of_your_own_has_a_name_of_its_own(monkeypatch):
    monkeypatch.setattr(plan_stage, "SAMPLERS", dict(plan_stage.SAMPLERS))
    for wrong in ("poisson", "Two Words", 3):
        with pytest.raises(InvalidParameter, match="must be a short word"):
            plan_stage.add_sampling(wrong, FixedSizeSampler)
    plan_stage.add_sampling("own", FixedSizeSampler)
    assert stage(sampling="own").charge == stage(sampling="fixed-size").charge
