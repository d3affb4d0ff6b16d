"""Events that no other test refuses or reads."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from discreet import Gaussian, Laplace, PoissonSampled
from discreet.errors import InvalidParameter
from discreet.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    MixtureOfGaussians,
    RandomlyAllocated,
    RenyiDP,
    RepeatAndSelect,
    SparseVector,
    TreeAggregation,
    registered,
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RenyiDP, (2.0, (0.1,))),
        (RenyiDP, ((), ())),
        (RenyiDP, ((3.0, 2.0), (0.1, 0.2))),
        (RenyiDP, ((2.0, 3.0), (0.1,))),
        (MixtureOfGaussians, (2.0, 1.0, (1.0,))),
        (MixtureOfGaussians, (2.0, (0.0,), (1.0,))),
        (MixtureOfGaussians, (2.0, (), ())),
        (MixtureOfGaussians, (2.0, (1.0, 0.5), (0.5, 0.5))),
        (SparseVector, (0.0, 1.0)),
        (SparseVector, (1.0, 1.0, 1, "yes")),
        (RepeatAndSelect, ("trial", 10.0)),
        (RepeatAndSelect, (Gaussian(1.0), 0.001, None)),
        (RepeatAndSelect, (Gaussian(1.0), 10.0, -1.0)),
        (PoissonSampled, (0.1, ApproximateDP(1.0))),
        (FixedSizeSampled, (11, 10, Gaussian(1.0))),
        (RandomlyAllocated, (3, Gaussian(1.0), 4)),
    ],
)
def test_fields_that_mean_nothing_are_refused(kind, values):
    with pytest.raises(InvalidParameter):
        kind(*values)


def test_sparse_answers_are_one_pure_event():
    two_sided, monotone = SparseVector(2.0, 8.0, 3), SparseVector(2.0, 8.0, 3, monotone=True)
    assert Event.from_dict(monotone.to_dict()) == monotone
    for event, epsilon in ((two_sided, 0.5 + 6 / 8), (monotone, 0.5 + 3 / 8)):
        ((pure, count),) = event.parts()
        assert (count, pure.delta) == (1, 0.0)
        assert epsilon <= pure.epsilon <= epsilon * (1 + 1e-14)


def test_numbers_of_nodes_and_events_without_a_shape():
    assert TreeAggregation(8, 3.0, restarts=2).nodes == 8
    poisson = RepeatAndSelect(Gaussian(4.0), 10.0, None)
    assert Event.from_dict(poisson.to_dict()) == poisson


def test_several_gaussian_releases_of_a_batch_are_one():
    both = PoissonSampled(0.1, Gaussian(3.0) + Gaussian(4.0))
    assert 2.4 * (1 - 1e-14) <= both.of.noise_multiplier <= 2.4
    assert PoissonSampled(0.1, Gaussian(3.0) + Gaussian(0.0)).of == Gaussian(0.0)
    with pytest.raises(InvalidParameter, match="Gaussian or a Laplace"):
        PoissonSampled(0.1, Gaussian(3.0) + Laplace(4.0))


def test_a_record_at_several_steps_is_in_blocks():
    event = RandomlyAllocated(7, Gaussian(2.0), selected=3)
    assert event.parts() == (
        (RandomlyAllocated(2, Gaussian(2.0)), 2),
        (RandomlyAllocated(3, Gaussian(2.0)), 1),
    )
    assert RandomlyAllocated(6, Gaussian(2.0), selected=3).parts() == (
        (RandomlyAllocated(2, Gaussian(2.0)), 3),
    )
    assert RandomlyAllocated(3, Gaussian(2.0), selected=3).parts() == ((Gaussian(2.0), 3),)
    assert Event.from_dict(event.to_dict()) == event
    assert "selected" not in RandomlyAllocated(7, Gaussian(2.0)).to_dict()


def test_a_kind_is_one_event_and_a_key_one_value():
    with pytest.raises(InvalidParameter, match="kind of another event"):

        @registered
        @dataclass(frozen=True)
        class Another(Event):
            kind: ClassVar[str] = "gaussian"

    with pytest.raises(InvalidParameter, match="not JSON"):
        Event.from_json('{"event": "laplace", "scale": 1.0, "scale": 9.0}')
    assert Gaussian(1.0).dominating_pair("add-remove", 1) is None


def test_sampling_everything_or_nothing_is_no_sampling():
    noise = Gaussian(2.0)
    assert PoissonSampled(1.0, noise).parts() == FixedSizeSampled(9, 9, noise).parts() == ((noise, 1),)
    assert PoissonSampled(0.0, noise).parts() == ((ApproximateDP(0.0), 1),)
    assert FixedSizeSampled(3, 9, noise).rate == 1 / 3
