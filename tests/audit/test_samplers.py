"""Batches: Poisson sampling passes at the stated rate, and everything that is sold as it is caught."""

import numpy as np
import pytest
from scipy import stats

from discreet.audit.samplers import sampler_test
from discreet.audit.scores import binomial, binomial_at_most, count_scores
from discreet.core.randomness import RandomStream
from discreet.core.sampling import AllocationSampler, FixedSizeSampler, FullBatch, PoissonSampler
from discreet.errors import InvalidParameter

RECORDS, SIZE, STEPS = 300, 15, 100
RATE = SIZE / RECORDS


def stream(seed=0):
    return RandomStream(unsafe_seed=seed)


def shuffled(rng):
    return [
        part
        for _ in range(STEPS * SIZE // RECORDS)
        for part in np.split(rng.permutation(RECORDS), RECORDS // SIZE)
    ]


def poisson(rate=RATE, records=RECORDS, steps=STEPS, seed=0):
    return list(PoissonSampler(records, rate).batches(steps, stream(seed)))


def in_blocks(rng):
    """Neighbours come together: pairs of records share their coin."""
    return [np.concatenate((2 * half, 2 * half + 1)) for half in poisson(records=RECORDS // 2)]


SOLD_AS_POISSON = {
    "a shuffled loader": (shuffled, "inclusion counts"),
    "a loader that does not shuffle": (
        lambda rng: np.split(np.arange(RECORDS), RECORDS // SIZE) * 5,
        "records side by side",
    ),
    "fixed-size batches": (
        lambda rng: FixedSizeSampler(RECORDS, SIZE).batches(STEPS, stream()),
        "batch sizes",
    ),
    "random allocation": (
        lambda rng: AllocationSampler(RECORDS, RECORDS // SIZE).batches(5, stream()),
        "inclusion counts",
    ),
    "a higher rate": (lambda rng: poisson(1.2 * RATE), "rate"),
    "a lower rate": (lambda rng: poisson(0.8 * RATE), "rate"),
    "pairs that come together": (in_blocks, "records side by side"),
    "each batch used twice": (
        lambda rng: [batch for batch in poisson(steps=50) for _ in (0, 1)],
        "each batch and the next",
    ),
    "the same seed again later": (lambda rng: poisson(steps=50) * 2, "two batches alike"),
    "some records never": (lambda rng: poisson(RATE * 1.25, records=RECORDS * 4 // 5), "inclusion counts"),
}


@pytest.mark.parametrize("kind", SOLD_AS_POISSON)
def test_what_is_sold_as_poisson_is_found(kind):
    make, test = SOLD_AS_POISSON[kind]
    finding = sampler_test(make(np.random.default_rng(0)), RECORDS, RATE, stream=stream())
    assert not finding.passed
    assert len(finding.tests) * dict(finding.tests)[test] < finding.alpha, finding.tests


@pytest.mark.parametrize(
    ("records", "rate", "steps"), [(200, 0.05, 60), (40, 0.02, 30), (2000, 0.001, 20), (30, 0.6, 40)]
)
def test_false_alarms_are_as_rare_as_stated(records, rate, steps):
    """100 runs at alpha = 0.05: more than 15 alarms have probability 4e-5 if the rate is 0.05; seeded."""
    alarms = sum(
        not sampler_test(
            poisson(rate, records, steps, seed), records, rate, alpha=0.05, stream=stream(seed + 999)
        ).passed
        for seed in range(100)
    )
    assert alarms <= 15


FIXED, ALLOCATED = FixedSizeSampler(RECORDS, SIZE), AllocationSampler(RECORDS, RECORDS // SIZE)
OTHERS = {
    "fixed-size": lambda seed: FIXED.batches(60, stream(seed)),
    "random-allocation": lambda seed: ALLOCATED.batches(3, stream(seed)),
}


@pytest.mark.parametrize("sampling", OTHERS)
def test_false_alarms_of_other_samplings(sampling):
    """30 runs at alpha = 0.1: more than 10 alarms have probability 1e-4 if the rate is 0.1; seeded."""
    alarms = sum(
        not sampler_test(
            OTHERS[sampling](seed), RECORDS, RATE, sampling=sampling, alpha=0.1, stream=stream(seed + 999)
        ).passed
        for seed in range(30)
    )
    assert alarms <= 10


def same_parts(rng):
    """The same allocation in every epoch."""
    return list(ALLOCATED.batches(1, stream())) * 5


def glued(rng):
    """Fixed-size batches of pairs that come together."""
    halves = FixedSizeSampler(RECORDS // 2, SIZE // 2).batches(STEPS, stream())
    return [np.concatenate((2 * half, 2 * half + 1)) for half in halves]


SOLD_AS_OTHERS = {
    "shuffled as fixed-size": ("fixed-size", shuffled, RATE),
    "Poisson as fixed-size": ("fixed-size", lambda rng: poisson(), RATE),
    "repeated as fixed-size": ("fixed-size", lambda rng: list(FIXED.batches(20, stream())) * 2, RATE),
    "pairs as fixed-size": ("fixed-size", glued, 14 / RECORDS),
    "half of the table as fixed-size": (
        "fixed-size",
        lambda rng: FixedSizeSampler(RECORDS // 2, SIZE).batches(STEPS, stream()),
        RATE,
    ),
    "shuffled as random allocation": ("random-allocation", shuffled, RATE),
    "Poisson as random allocation": ("random-allocation", lambda rng: poisson(), RATE),
    "the same allocation again": ("random-allocation", same_parts, RATE),
}


@pytest.mark.parametrize("kind", SOLD_AS_OTHERS)
def test_what_is_sold_as_another_sampling_is_found(kind):
    sampling, make, rate = SOLD_AS_OTHERS[kind]
    batches = make(np.random.default_rng(0))
    assert not sampler_test(batches, RECORDS, rate, sampling=sampling, stream=stream()).passed


def test_batches_with_repeats_or_strangers_are_found():
    assert not sampler_test([[1, 1], [2]], 10, 0.1).passed
    assert not sampler_test([[1], [10]], 10, 0.1).passed
    assert not sampler_test([[-1], [2]], 10, 0.1).passed


def test_full_batches_hold_everybody():
    assert sampler_test(FullBatch(20).batches(3), 20, 1.0).passed
    assert not sampler_test([np.arange(20), np.arange(19)], 20, 1.0).passed


def test_counts_become_standard_normal_scores():
    counts = np.random.default_rng(0).binomial(7, 0.3, 20_000)
    scores = count_scores(counts, 7, 0.3, stream())
    assert stats.kstest(scores, "norm").pvalue > 1e-3


@pytest.mark.parametrize("count", [0, 1, 4, 9, 10])
def test_binomial_probabilities_are_those_of_scipy(count):
    law = stats.binom(10, 0.3)
    assert binomial_at_most(count, 10, 0.3) == pytest.approx(law.cdf(count), rel=1e-12)
    assert binomial(count, 10, 0.3) == pytest.approx(
        min(1, 2 * min(law.cdf(count), law.sf(count - 1))), rel=1e-12
    )
    assert binomial_at_most(-1, 10, 0.3) == 0


@pytest.mark.parametrize(
    ("name", "batches", "records", "rate"),
    [
        ("records", [[1], [2]], float("nan"), 0.1),
        ("rate", [[1], [2]], 10, float("nan")),
        ("rate", [[1], [2]], 10, 0.0),
        ("batches", [[1]], 10, 0.1),
        ("batches", [[0.5], [1.5]], 10, 0.1),
    ],
)
def test_nonsense_is_refused(name, batches, records, rate):
    with pytest.raises(InvalidParameter, match=name):
        sampler_test(batches, records, rate)
