"""Samplers: the laws of the batches (each detector with twins that it must catch), exact gaps, caps, inputs.

All streams are seeded, so no test can fail by chance; the thresholds below are false-alarm rates for new seeds.
"""

import itertools
import math
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.core.randomness import RandomStream
from discreet.core.sampling import (
    AllocationSampler,
    FixedSizeSampler,
    FullBatch,
    PoissonSampler,
    _gaps,
    cap_tail,
)
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import (
    ApproximateDP,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)

FALSE_ALARMS = 1e-5  # of each detector on a correct sampler


def seeded(seed=0):
    return RandomStream(unsafe_seed=seed, threads=1)


def chi_square(observed, expected, df):
    return stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), df)


def members(batches, records):
    """One row per batch, one column per record."""
    batches = list(batches)
    inside = np.zeros((len(batches), records), dtype=bool)
    for row, batch in zip(inside, batches, strict=True):
        row[batch] = True
    return inside


def rate_p(inside, rate):
    expected, spread = inside.size * rate, math.sqrt(inside.size * rate * (1 - rate))
    return 2 * stats.norm.sf(abs(inside.sum() - expected) / spread)


def inclusion_p(inside, rate):
    steps, records = inside.shape
    joined = inside.sum(axis=0)
    cells = np.stack([joined, steps - joined])
    return chi_square(cells, steps * np.array([[rate], [1 - rate]]), records)


def pair_p(inside, rate):
    """All four outcomes of disjoint pairs of records, neighbours in index and far apart."""
    steps, half = len(inside), inside.shape[1] // 2
    near = (inside[:, 0 : 2 * half : 2], inside[:, 1 : 2 * half : 2])
    far = (inside[:, :half], inside[:, half : 2 * half])
    chances = steps * np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])
    p_values = []
    for first, second in (near, far):
        outcome = 2 * first + second
        cells = np.stack([(outcome == k).sum(axis=0) for k in range(4)])
        p_values.append(chi_square(cells, chances[:, None], 3 * half))
    return min(1.0, 2 * min(p_values))


def size_p(inside, rate):
    """Batch sizes against the binomial law, in cells of at least ten expected."""
    steps, records = inside.shape
    law = stats.binom(records, rate)
    edges = np.unique(law.ppf(np.linspace(0, 1, min(20, steps // 10) + 1)[1:-1]))
    expected = steps * np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    cells = np.bincount(np.searchsorted(edges, inside.sum(axis=1)), minlength=len(expected))
    return chi_square(cells, expected, len(expected) - 1)


def next_step_p(inside, rate):
    """A record's place in one step says nothing about the next step."""
    first, second = inside[0::2], inside[1::2]
    cells = np.array([np.sum((2 * first + second) == k) for k in range(4)])
    chances = np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])
    return chi_square(cells, first.size * chances, 3)


DETECTORS = {f.__name__: f for f in (rate_p, inclusion_p, pair_p, size_p, next_step_p)}
RECORDS, RATE, STEPS = 100, 0.2, 2500


def alarms(inside, rate=RATE):
    return {name for name, p_value in DETECTORS.items() if p_value(inside, rate) < FALSE_ALARMS}


@pytest.mark.parametrize("rate", [0.2, 0.03, 0.75])
def test_poisson_batches_follow_the_law(rate):
    batches = PoissonSampler(RECORDS, rate).batches(STEPS, seeded(1))
    assert alarms(members(batches, RECORDS), rate) == set()


def shuffled_batches(sizes, rng, records=RECORDS):
    """An ordinary loader: shuffle, cut, shuffle again when used up."""
    order = np.array([], dtype=int)
    for size in sizes:
        while len(order) < size:
            order = np.append(order, rng.permutation(records))
        yield order[:size]
        order = order[size:]


def test_broken_poisson_samplers_are_caught():
    rng = np.random.default_rng(0)
    size = round(RECORDS * RATE)
    loader = members(shuffled_batches([size] * STEPS, rng), RECORDS)
    assert {"size_p", "next_step_p"} <= alarms(loader)
    disguised = members(shuffled_batches(rng.binomial(RECORDS, RATE, STEPS), rng), RECORDS)
    assert alarms(disguised) == {"next_step_p"}
    fixed = members(FixedSizeSampler(RECORDS, size).batches(STEPS, seeded()), RECORDS)
    assert "size_p" in alarms(fixed)
    no_last = members(PoissonSampler(RECORDS - 1, RATE).batches(STEPS, seeded()), RECORDS)
    assert "inclusion_p" in alarms(no_last)
    for wrong_rate in (0.97 * RATE, 1.03 * RATE):
        wrong = members(PoissonSampler(RECORDS, wrong_rate).batches(STEPS, seeded()), RECORDS)
        assert "rate_p" in alarms(wrong)
    same = members(PoissonSampler(RECORDS, RATE).batches(STEPS, seeded()), RECORDS)
    assert "next_step_p" in alarms(np.repeat(same[::2], 2, axis=0))
    twins = same.copy()
    twins[:, 1::2] = twins[:, 0::2]
    assert {"pair_p", "size_p"} <= alarms(twins)


def subset_counts(batches, records, sizes=None):
    """How often each subset of the records was drawn (each of a given size, if given)."""
    everyone = range(records)
    wanted = range(records + 1) if sizes is None else sizes
    subsets = [s for size in wanted for s in itertools.combinations(everyone, size)]
    counts = dict.fromkeys(subsets, 0)
    for batch in batches:
        counts[tuple(batch.tolist())] += 1
    return counts


def test_poisson_law_over_all_subsets():
    steps, rate = 3000, 0.3
    counts = subset_counts(PoissonSampler(4, rate).batches(steps, seeded(3)), 4)
    expected = [steps * rate ** len(s) * (1 - rate) ** (4 - len(s)) for s in counts]
    assert chi_square(np.array(list(counts.values())), np.array(expected), 15) > FALSE_ALARMS


@pytest.mark.parametrize(("records", "size"), [(6, 2), (6, 3), (7, 5), (6, 1)])
def test_fixed_size_batches_are_uniform_over_all_subsets(records, size):
    steps = 2000
    counts = subset_counts(FixedSizeSampler(records, size).batches(steps, seeded(4)), records, [size])
    cells = len(counts)
    assert chi_square(np.array(list(counts.values())), steps / cells, cells - 1) > FALSE_ALARMS
    # Twin: sorted draws that keep the smallest of a surplus, as np.unique(draws)[:size] would.
    rng = np.random.default_rng(0)
    surplus = (np.sort(rng.permutation(records)[: size + 1])[:size] for _ in range(steps))
    biased = subset_counts(surplus, records, [size])
    assert chi_square(np.array(list(biased.values())), steps / cells, cells - 1) < FALSE_ALARMS


def test_fixed_size_batches_are_sorted_distinct_and_complete():
    for records, size in [(1, 1), (5, 5), (1000, 1), (1000, 499), (1000, 501), (1000, 999), (10**9, 2000)]:
        for batch in FixedSizeSampler(records, size).batches(3, seeded()):
            assert batch.dtype == np.int64
            assert len(batch) == size
            assert np.all(np.diff(batch) > 0)
            assert 0 <= batch[0] <= batch[-1] < records


def allocations(batches, records, steps):
    """One row per epoch: the step of each record. Fails unless each record appears exactly once per epoch."""
    batches, epochs = list(batches), []
    for start in range(0, len(batches), steps):
        epoch = np.full(records, -1)
        for step, batch in enumerate(batches[start : start + steps]):
            assert np.all(epoch[batch] == -1)
            epoch[batch] = step
        assert np.all(epoch >= 0)
        epochs.append(epoch)
    return np.array(epochs)


def allocation_p(places, steps):
    """The joint law of all records' steps: every combination equally likely."""
    epochs, records = places.shape
    codes = places @ steps ** np.arange(records)
    cells = np.bincount(codes, minlength=steps**records)
    return chi_square(cells, epochs / steps**records, steps**records - 1)


@pytest.mark.parametrize(("records", "steps"), [(3, 4), (5, 2), (2, 7)])
def test_every_allocation_is_equally_likely(records, steps):
    batches = AllocationSampler(records, steps).batches(600, seeded(5))
    assert allocation_p(allocations(batches, records, steps), steps) > FALSE_ALARMS


def test_a_shuffled_loader_is_not_an_allocation():
    rng = np.random.default_rng(0)
    places = allocations(shuffled_batches([2] * 6000, rng, records=4), 4, 2)
    assert np.allclose(places.mean(axis=0), 0.5, atol=0.05)  # each record alone looks right
    assert allocation_p(places, 2) < FALSE_ALARMS


def test_allocation_of_many_records():
    records, steps, epochs = 2000, 50, 40
    batches = list(AllocationSampler(records, steps).batches(epochs, seeded(6)))
    assert all(batch.dtype == np.int64 and np.all(np.diff(batch) > 0) for batch in batches)
    places = allocations(batches, records, steps)
    sizes = np.array([np.bincount(epoch, minlength=steps) for epoch in places])
    assert chi_square(sizes.sum(axis=0), epochs * records / steps, steps - 1) > FALSE_ALARMS
    # Within an epoch the sizes are multinomial: their spread is what a loader with equal batches lacks.
    spread = np.sum((sizes - records / steps) ** 2 / (records / steps))
    assert FALSE_ALARMS / 2 < stats.chi2.sf(spread, epochs * (steps - 1)) < 1 - FALSE_ALARMS / 2
    # Epochs are allocated afresh: two in a row agree at one place in `steps`.
    agree = np.sum(places[:-1:2] == places[1::2])
    assert stats.binomtest(int(agree), records * epochs // 2, 1 / steps).pvalue > FALSE_ALARMS


class Scripted:
    """A stream whose words are given: leading bits for each gap, and the same further bits for all."""

    def __init__(self, leading, more):
        self.leading, self.more, self.asked = np.array(leading), more, 0

    def integers(self, bound, count):
        assert bound == 2**53
        assert count == len(self.leading)
        return self.leading

    def bytes(self, count):
        self.asked += 1
        return self.more.to_bytes(count, "big")


def gap_oracle(leading, more, chance):
    uniform = (mpmath.mpf(int(leading)) * 2**256 + more + mpmath.mpf("0.5")) / mpmath.mpf(2) ** 309
    return int(
        mpmath.floor(mpmath.log(uniform) / mpmath.log1p(-mpmath.mpf(chance.numerator) / chance.denominator))
    )


@pytest.mark.parametrize(
    "chance",
    [
        Fraction(1e-15),
        Fraction(1e-9),
        Fraction(1e-4),
        Fraction(0.3),
        Fraction(1, 3),
        Fraction(1, 2),
        Fraction(0.99),
    ],
)
def test_gaps_are_exact_where_floats_cannot_decide(chance):
    rng = np.random.default_rng(8)
    with mpmath.workdps(150):
        keep = 1 - mpmath.mpf(chance.numerator) / chance.denominator
        # The leading bits of U just around the places where the gap changes, and the ends of the range.
        wanted = np.unique(rng.exponential(1 / float(chance), 60).astype(np.int64) + 1)
        edges = [int(keep ** int(k) * 2**53) + shift for k in wanted for shift in (-1, 0, 1)]
        leading = [j for j in [*edges, 0, 1, 2**53 - 1] if 0 <= j < 2**53]
        middle = (np.array(leading) + 0.5) * 2.0**-53
        naive = np.floor(np.log(middle) / math.log1p(-float(chance)))
        wrong = 0
        for more in (1, 2**256 - 1, 2**255 + 12345):
            stream = Scripted(leading, more)
            gaps = _gaps(len(leading), 10**18, chance, stream)
            oracle = np.array([gap_oracle(j, more, chance) for j in leading])
            assert gaps.tolist() == oracle.tolist()
            assert stream.asked > 0
            wrong += np.sum(naive != oracle)
    assert wrong > 0  # the plain formula would not do


def test_further_bits_are_rarely_needed():
    class Counting(Scripted):
        def __init__(self):
            super().__init__(seeded(9).integers(2**53, 200_000), 0)

    stream = Counting()
    _gaps(200_000, 10**8, Fraction(1e-4), stream)
    assert stream.asked <= 2


def test_long_gaps_are_cut_to_the_limit():
    assert _gaps(3, 7, Fraction(1e-12), Scripted([0, 2**52, 2**53 - 1], 1)).tolist() == [7, 7, 0]


@pytest.mark.parametrize(
    "sampler", [PoissonSampler(10, 0.3), PoissonSampler(10, 0.3, 9), AllocationSampler(10, 4), FullBatch(10)]
)
def test_neighbours_with_one_row_more_or_less_see_the_same_plan(sampler):
    before = (sampler.event(Gaussian(1.0)), sampler.expected_batch_size, repr(sampler))
    seen = {rows: set() for rows in (0, 9, 10, 11)}
    for rows, indices in seen.items():
        for batch in sampler.batches(100, seeded(), rows=rows):
            indices |= set(batch.tolist())
    assert seen == {rows: set(range(rows)) for rows in (0, 9, 10, 11)}
    assert (sampler.event(Gaussian(1.0)), sampler.expected_batch_size, repr(sampler)) == before


def test_an_added_row_changes_nobody_elses_rate():
    batches = PoissonSampler(RECORDS, RATE).batches(STEPS, seeded(10), rows=RECORDS + 1)
    assert alarms(members(batches, RECORDS + 1)) == set()


def test_divisors():
    assert PoissonSampler(60_000, 0.01).expected_batch_size == 600
    assert FixedSizeSampler(10, 3).expected_batch_size == 3
    assert AllocationSampler(10, 4).expected_batch_size == 2.5
    assert FullBatch(10).expected_batch_size == 10


@pytest.mark.parametrize("records", [1, 2])
def test_empty_batches_are_normal(records):
    for sampler in (PoissonSampler(records, 1e-3), PoissonSampler(records, 1e-15)):
        batches = list(sampler.batches(1000, seeded()))
        assert len(batches) == 1000
        assert sum(len(batch) == 0 for batch in batches) > 950
        assert all(batch.dtype == np.int64 for batch in batches)
    batches = list(AllocationSampler(records, 50).batches(20, seeded()))
    assert len(batches) == 1000
    assert sum(map(len, batches)) == 20 * records


def test_the_rate_one_takes_everybody():
    everybody = list(range(7))
    for sampler in (PoissonSampler(7, 1.0), FixedSizeSampler(7, 7), AllocationSampler(7, 1), FullBatch(7)):
        assert [batch.tolist() for batch in sampler.batches(2, seeded())] == [everybody, everybody]


def test_no_steps_no_batches():
    for sampler in (PoissonSampler(7, 0.5), FixedSizeSampler(7, 3), AllocationSampler(7, 2), FullBatch(7)):
        assert list(sampler.batches(0)) == []


def test_a_batch_of_a_billion_records_takes_the_memory_of_the_batch():
    tracemalloc.start()
    try:
        (batch,) = PoissonSampler(10**9, 1e-6).batches(1, seeded())
        (subset,) = FixedSizeSampler(10**9, 1000).batches(1, seeded())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 800 < len(batch) < 1200  # six standard deviations: false-alarm rate below 1e-8
    assert batch[-1] > 9 * 10**8  # with probability 1 - 1e-43
    assert len(subset) == 1000
    assert peak < 2**20


def test_large_batches_are_drawn_in_chunks_without_a_seam():
    (batch,) = PoissonSampler(10**6, 0.4).batches(1, seeded(11))
    assert np.all(np.diff(batch) > 0)
    quarters = np.histogram(batch, bins=40, range=(0, 10**6))[0]
    spread = np.sum((quarters - 10_000) ** 2 / (25_000 * 0.4 * 0.6))
    assert FALSE_ALARMS / 2 < stats.chi2.sf(spread, 40) < 1 - FALSE_ALARMS / 2


def test_draws_are_fresh_unless_seeded():
    sampler = PoissonSampler(10**6, 1e-3)
    first, second = next(sampler.batches(1)), next(sampler.batches(1))
    assert first.tolist() != second.tolist()
    again = [next(sampler.batches(1, seeded(12))).tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_samplers_know_their_event():
    noise = Gaussian(1.3)
    assert PoissonSampler(100, 0.1).event(noise) == PoissonSampled(0.1, noise)
    assert PoissonSampler(100, 0.1).event(Laplace(2.0)) == PoissonSampled(0.1, Laplace(2.0))
    assert FixedSizeSampler(100, 7).event(noise) == FixedSizeSampled(7, 100, noise)
    assert AllocationSampler(100, 8).event(noise) == RandomlyAllocated(8, noise)
    assert FullBatch(100).event(noise) == noise
    capped = PoissonSampler(100, 0.1, max_batch=40)
    tail = cap_tail(100, 0.1, 40, 1)
    assert tail > 0
    assert capped.event(noise) == PoissonSampled(0.1, noise) + ApproximateDP(0.0, tail)
    assert PoissonSampler(100, 0.1, max_batch=101).event(noise) == PoissonSampled(0.1, noise)
    for sampler in (PoissonSampler(100, 0.1), FullBatch(100)):
        with pytest.raises(InvalidParameter, match="must be a Gaussian or a Laplace"):
            sampler.event(PoissonSampled(0.1, noise))


def exact_tail(records, rate, least):
    p, n = Fraction(rate), records
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(least, n + 1))


def test_cap_tail_is_an_upper_bound_and_tight():
    for records, rate in [(1, 0.5), (2, 0.3), (10, 0.05), (30, 0.5), (60, 0.9), (80, 0.01)]:
        for least in range(1, records + 2, 1 + records // 20):
            exact, bound = exact_tail(records, rate, least), cap_tail(records, rate, least, 1)
            assert exact <= Fraction(bound) <= 1
            if least > records * rate + 3 * math.sqrt(records * rate * (1 - rate)) + 2:
                assert bound <= 1.25 * float(exact)


@pytest.mark.parametrize(("records", "rate"), [(60_000, 0.01), (10**9, 1e-6), (10**9, 0.3), (10**12, 1e-9)])
def test_cap_tail_for_many_records(records, rate):
    mean, spread = records * rate, math.sqrt(records * rate * (1 - rate))
    for sigmas in (4, 6, 10):
        least = math.ceil(mean + sigmas * spread)
        reference = stats.binom.sf(least - 1, records, rate)
        bound = cap_tail(records, rate, least, 1)
        assert reference <= bound <= 1.1 * reference
        assert cap_tail(records, rate, least, 1000) == pytest.approx(1000 * bound, rel=1e-12)
    assert cap_tail(records, rate, int(mean), 1) == 1
    assert cap_tail(records, rate, records + 1, 10**6) == 0
    assert 0 < cap_tail(records, rate, records, 1) < 1e-300


def hockey_stick(first, second, epsilon):
    """The smallest delta for epsilon between two mixtures of unit normals, {mean: weight}, by integration."""
    grid = np.linspace(-20, 20, 40_001)
    density = [sum(w * stats.norm.pdf(grid, m) for m, w in law.items()) for law in (first, second)]
    return float(np.sum(np.maximum(density[0] - math.exp(epsilon) * density[1], 0)) * (grid[1] - grid[0]))


def capped_law(values, rate, cap):
    """The law of the sum of a Poisson batch of ``values``, cut to a random subset of ``cap``: {mean: weight}."""
    law = {}
    for size in range(len(values) + 1):
        for drawn in itertools.combinations(values, size):
            kept = list(itertools.combinations(drawn, min(size, cap)))
            for part in kept:
                weight = rate**size * (1 - rate) ** (len(values) - size) / len(kept)
                law[sum(part)] = law.get(sum(part), 0.0) + weight
    return law


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_the_cap_costs_its_tail_at_most(cap):
    rate, others = 0.5, [-1.0] * 6
    without, with_record = capped_law(others, rate, cap), capped_law([*others, 1.0], rate, cap)
    tail = float(exact_tail(6, rate, cap))
    noticed = False
    for epsilon in (0.05, 0.3, 0.6, 1.0, 1.5):
        plain = max(
            hockey_stick({0: 1 - rate, 1: rate}, {0: 1.0}, epsilon),
            hockey_stick({0: 1.0}, {0: 1 - rate, 1: rate}, epsilon),
        )
        capped = max(hockey_stick(with_record, without, epsilon), hockey_stick(without, with_record, epsilon))
        assert capped <= plain * (1 - tail) + tail + 1e-9
        noticed |= capped > plain + 1e-6
    assert noticed  # cutting does cost something: the record pushes another one out


def test_capped_batches_are_cut_uniformly():
    records, rate, cap, steps = 6, 0.5, 4, 2500
    batches = list(PoissonSampler(records, rate, max_batch=cap).batches(steps, seeded(13)))
    assert max(map(len, batches)) == cap
    law = stats.binom(records, rate)
    sizes = np.bincount([len(batch) for batch in batches])
    expected = np.append(law.pmf(range(cap)), law.sf(cap - 1)) * steps
    assert chi_square(sizes, expected, cap) > FALSE_ALARMS
    full = [batch for batch in batches if len(batch) == cap]
    counts = subset_counts(full, records, [cap])
    assert chi_square(np.array(list(counts.values())), len(full) / 15, 14) > FALSE_ALARMS
    # Twin: keeping the first of a sorted batch favours low indices.
    plain = PoissonSampler(records, rate).batches(steps, seeded(13))
    first = subset_counts((b[:cap] for b in plain if len(b) >= cap), records, [cap])
    assert chi_square(np.array(list(first.values())), sum(first.values()) / 15, 14) < FALSE_ALARMS


NOT_COUNTS = [math.nan, math.inf, -1, 2.5, True, "10", [3]]


@pytest.mark.parametrize("value", [*NOT_COUNTS, 0, None, 1e13])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: PoissonSampler(n, 0.1),
        lambda n: FixedSizeSampler(n, 1),
        lambda n: AllocationSampler(n, 1),
        FullBatch,
        lambda n: cap_tail(n, 0.1, 1, 1),
    ],
)
def test_bad_records_are_refused(make, value):
    with pytest.raises(InvalidParameter, match="records="):
        make(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 0, 1.0001, True, "0.1", None, 1e-16])
def test_bad_rates_are_refused(value):
    with pytest.raises(InvalidParameter, match="rate="):
        PoissonSampler(10, value)
    with pytest.raises(InvalidParameter, match="rate="):
        cap_tail(10, value, 5, 1)


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_bad_counts_are_refused_at_once(value):
    for sampler in (PoissonSampler(9, 0.1), FixedSizeSampler(9, 1), FullBatch(9)):
        with pytest.raises(InvalidParameter, match="steps="):
            sampler.batches(value)
    with pytest.raises(InvalidParameter, match="epochs="):
        AllocationSampler(9, 1).batches(value)
    for sampler in (PoissonSampler(9, 0.1), AllocationSampler(9, 1), FullBatch(9)):
        with pytest.raises(InvalidParameter, match="rows="):
            sampler.batches(1, rows=value)
    with pytest.raises(InvalidParameter, match="steps="):
        AllocationSampler(9, value)
    with pytest.raises(InvalidParameter, match="batch_size="):
        FixedSizeSampler(9, value)
    with pytest.raises(InvalidParameter, match="max_batch="):
        PoissonSampler(9, 0.1, value)
    with pytest.raises(InvalidParameter, match="steps="):
        cap_tail(9, 0.1, 5, value)


def test_sizes_that_contradict_are_refused():
    with pytest.raises(InvalidParameter, match=r"batch_size=10: .*at most 9.*cannot hold more"):
        FixedSizeSampler(9, 10)
    with pytest.raises(InvalidParameter, match=r"max_batch=50: must leave room above .* 50"):
        PoissonSampler(100, 0.5, max_batch=50)


def test_a_cap_leaves_room_for_a_whole_group():
    """Exact binomial tails: room for k records is P(X > cap - k), more than k times the room for one."""
    from scipy.stats import binom

    one, ten = (cap_tail(60_000, 256 / 60_000, 340, 1, group_size=k) for k in (1, 10))
    assert ten >= binom.sf(330, 60_000, 256 / 60_000)
    assert one >= binom.sf(339, 60_000, 256 / 60_000)
    assert ten > 10 * one
    event = PoissonSampler(60_000, 256 / 60_000, max_batch=340).event(Gaussian(1.0), group_size=10)
    assert any(getattr(part, "delta", 0) == ten for part, _ in event.parts())


@pytest.mark.parametrize("rows", [0, 99, 101, "100"])
def test_fixed_size_batches_need_as_many_rows_as_were_declared(rows):
    sampler = FixedSizeSampler(100, 10)
    with pytest.raises(PlanViolation, match="declares 100 records"):
        sampler.batches(1, rows=rows)
    assert len(next(sampler.batches(1, seeded(), rows=100))) == 10
