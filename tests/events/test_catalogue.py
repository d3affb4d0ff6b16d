"""Every event of the catalogue survives its own plain data, and refuses numbers that mean nothing."""

import pytest

from discreet.errors import InvalidParameter
from discreet.events import (
    BoundedRange,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    MixtureOfGaussians,
    RandomisedResponse,
    RenyiDP,
    RepeatAndSelect,
    SampledWithReplacement,
    TreeAggregation,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)

CATALOGUE = [
    (BoundedRange, (0.5,), (-1.0,)),
    (DiscreteGaussian, (5.0, 2), (0.0, 2)),
    (DiscreteLaplace, (5.0, 2), (5.0, 0)),
    (MixtureOfGaussians, (2.0, (0.0, 1.0), (0.9, 0.1)), (2.0, (0.0, 1.0), (0.9, 0.3))),
    (RandomisedResponse, (1.0, 4), (1.0, 1)),
    (RenyiDP, ((2.0, 4.0), (0.1, 0.2)), ((1.0, 4.0), (0.1, 0.2))),
    (RepeatAndSelect, (Gaussian(4.0), 10.0), (Gaussian(4.0), -1.0)),
    (SampledWithReplacement, (50, 1000, 2.0), (0, 1000, 2.0)),
    (TreeAggregation, (8, 3.0), (0, 3.0)),
    (TruncatedPoissonSampled, (0.01, 18, 1000, 2.0), (1.5, 18, 1000, 2.0)),
    (ZeroConcentratedDP, (0.1,), (-0.1,)),
]


@pytest.mark.parametrize(("kind", "right", "wrong"), CATALOGUE)
def test_an_event_is_its_plain_data(kind, right, wrong):
    event = kind(*right)
    assert Event.from_dict(event.to_dict()) == event
    assert Event.from_dict((event * 3).to_dict()) == event * 3
    assert (event * 3).digest() != event.digest()
    with pytest.raises(InvalidParameter):
        kind(*wrong)
