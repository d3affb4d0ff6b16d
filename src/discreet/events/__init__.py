"""What is released, as frozen data: :mod:`discreet.events.common`, and more in :mod:`discreet.events.catalogue`.

>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> run = step * 10_000 + ZeroConcentratedDP(rho=0.01)
>>> Event.from_json(run.to_json()) == run
True
"""

from discreet.events.catalogue import (
    BoundedRange,
    DiscreteGaussian,
    DiscreteLaplace,
    MixtureOfGaussians,
    RandomisedResponse,
    RenyiDP,
    RepeatAndSelect,
    SampledWithReplacement,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)
from discreet.events.common import (
    ApproximateDP,
    Composition,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    registered,
)

__all__ = [
    "ApproximateDP",
    "BoundedRange",
    "Composition",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "MixtureOfGaussians",
    "PoissonSampled",
    "RandomisedResponse",
    "RandomlyAllocated",
    "RenyiDP",
    "RepeatAndSelect",
    "SampledWithReplacement",
    "SparseVector",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "ZeroConcentratedDP",
    "registered",
]
