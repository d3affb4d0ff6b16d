"""Correlated noise over bands: its coefficients, who takes part when, and that the event says what it costs."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet import Budget, Recipe, account
from discreet.core.matrix_mechanism import (
    BlockAllocationSampler,
    CyclicPoissonSampler,
    coefficients,
    length_of_column,
)
from discreet.core.matrix_mechanism_error import error_of_iterates, gain_of_noise
from discreet.core.randomness import RandomStream
from discreet.core.sampling import AllocationSampler
from discreet.errors import InvalidParameter
from discreet.events import Gaussian, PoissonSampled, RandomlyAllocated

RECORDS = 4000


def stream(seed=1):
    return RandomStream(unsafe_seed=seed)


def test_the_coefficients_are_the_square_root_of_running_sums():
    root = coefficients(50)
    assert np.convolve(root, root)[:50] == pytest.approx(np.ones(50), abs=1e-12)
    assert coefficients(7).tolist() == root[:7].tolist()


@pytest.mark.parametrize("bands", [1, 2, 3, 30, 500])
def test_lengths_round_up(bands):
    exact = sum(Fraction(float(value)) ** 2 for value in coefficients(bands))
    assert exact <= Fraction(length_of_column(bands)) ** 2 <= exact * Fraction(1000001, 1000000)


def matrix(bands, steps):
    return sum(np.diag(np.full(steps - j, coefficients(bands)[j]), -j) for j in range(min(bands, steps)))


@pytest.mark.parametrize("bands", [1, 3, 10])
def test_the_error_is_that_of_a_simulated_training(bands):
    """The matrices written out: momentum, cosine, and the inverse of C."""
    steps = 40
    momentum = np.tril(0.9 ** (np.arange(steps)[:, None] - np.arange(steps)))
    rates = np.diag(0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps)))
    weights = np.tril(np.ones((steps, steps))) @ rates @ momentum @ np.linalg.inv(matrix(bands, steps))
    expected = np.sqrt(np.square(weights).sum(1).mean()) * np.linalg.norm(coefficients(bands))
    assert error_of_iterates(bands, steps) == pytest.approx(expected, rel=1e-9)
    inverse = np.linalg.inv(matrix(bands, 400))
    last = np.linalg.norm(inverse[-1]) * np.linalg.norm(coefficients(bands))
    assert gain_of_noise(bands) == pytest.approx(last, rel=0.01)


def participations(batches):
    """For each record the steps at which it takes part."""
    found = [[] for _ in range(RECORDS)]
    for step, batch in enumerate(batches):
        for record in batch:
            found[record].append(step)
    return found


def keeps_its_turn(found, bands):
    """Whether each record takes part at one residue modulo the bands only."""
    return all(len({step % bands for step in steps}) <= 1 for steps in found)


def test_in_block_allocation_everybody_takes_part_once_an_epoch_in_its_turn():
    found = participations(BlockAllocationSampler(RECORDS, 12, 3).batches(5, stream()))
    assert all([step // 12 for step in steps] == [0, 1, 2, 3, 4] for steps in found)
    assert keeps_its_turn(found, 3)
    blocks = np.array([[step % 12 // 3 for step in steps] for steps in found])
    for epoch in range(5):  # 1000 expected in each of 4 blocks; the standard deviation is 27
        assert np.abs(np.bincount(blocks[:, epoch], minlength=4) - 1000).max() < 160
    repeated = (blocks[:, 0] == blocks[:, 1]).mean()  # drawn afresh: 1/4, standard deviation .007
    assert abs(repeated - 0.25) < 0.04
    turns = np.bincount([steps[0] % 3 for steps in found])
    assert np.abs(turns - RECORDS / 3).max() < 180


def test_in_cyclic_sampling_everybody_joins_in_its_turn_only():
    found = participations(CyclicPoissonSampler(RECORDS, 0.05, 4).batches(50, stream()))
    assert keeps_its_turn(found, 4)
    counts = np.array([len(steps) for steps in found])  # binomial: 50 windows at rate 0.2
    assert abs(counts.mean() - 10) < 6 * math.sqrt(8 / RECORDS)
    assert abs(counts.var() / 8 - 1) < 6 * math.sqrt(2 / RECORDS)


def test_the_broken_twin_that_draws_turns_anew_is_noticed():
    sampler = BlockAllocationSampler(RECORDS, 12, 3)
    anew = [batch for seed in range(2) for batch in sampler.batches(1, stream(seed))]
    assert not keeps_its_turn(participations(anew), 3)
    assert not keeps_its_turn(participations(AllocationSampler(RECORDS, 12).batches(2, stream())), 3)


def test_batches_are_as_large_as_without_bands():
    for sampler, steps in (
        (BlockAllocationSampler(RECORDS, 20, 5), 1),
        (CyclicPoissonSampler(RECORDS, 0.05, 5), 4),
    ):
        sizes = [len(batch) for batch in sampler.batches(steps, stream())]
        assert len(sizes) == 20
        assert sampler.expected_batch_size == 200
        assert abs(np.mean(sizes) - 200) < 20
        assert [len(batch) for batch in sampler.batches(steps, stream(), rows=0)] == [0] * 20


def delta_of(moved, noise, epsilon, draws=60_000):
    """Delta of removing the record, by simulation: an equal mixture of Gaussians at the rows of ``moved``.

    Returns an estimate and its standard error.
    """
    rng = np.random.default_rng(0)
    picked = moved[rng.integers(len(moved), size=draws)]
    seen = picked + noise * rng.normal(size=picked.shape)
    inner = seen @ moved.T - np.square(moved).sum(1) / 2
    ratio = np.exp(inner / noise**2).mean(1)
    values = np.maximum(0, 1 - math.exp(epsilon) / ratio)
    return values.mean(), values.std() / math.sqrt(draws)


def ways(bands, steps, epochs, turn):
    """What one record adds in all ways in which block allocation may draw it, seen through C.

    The attacker knows its turn, here the first one or the last.
    """
    blocks, total = steps // bands, steps * epochs
    found = []
    for choice in np.ndindex(*(blocks,) * epochs):
        row = np.zeros(total)
        row[[epoch * steps + block * bands + turn for epoch, block in enumerate(choice)]] = 1
        found.append(matrix(bands, total) @ row)
    return np.array(found)


@pytest.mark.parametrize(("bands", "steps", "epochs"), [(2, 4, 2), (3, 6, 2), (2, 8, 1), (4, 4, 3)])
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_the_event_bounds_what_a_record_moves(bands, steps, epochs, epsilon):
    """With 5 standard errors, and draws that are always the same; the broken twin forgets the length of c."""
    noise = Gaussian(1.0)
    event = BlockAllocationSampler(RECORDS, steps, bands).event(noise) * epochs
    proven = account(event).delta(epsilon)
    moved = ways(bands, steps, epochs, bands - 1)
    found, error = delta_of(moved, length_of_column(bands), epsilon)
    assert found <= proven + 5 * error
    moved = ways(bands, steps, epochs, 0)
    found, error = delta_of(moved, length_of_column(bands), epsilon)
    assert found <= proven + 5 * error
    broken, error = delta_of(moved, 1.0, epsilon)
    assert broken > proven + 5 * error


def test_events():
    noise = Gaussian(2.0)
    assert BlockAllocationSampler(RECORDS, 12, 3).event(noise) == RandomlyAllocated(4, noise)
    assert BlockAllocationSampler(RECORDS, 12, 12).event(noise) == noise
    assert CyclicPoissonSampler(RECORDS, 0.05, 3).event(noise) == PoissonSampled(3 * 0.05, noise)
    assert CyclicPoissonSampler(RECORDS, 0.05, 20).event(noise) == PoissonSampled(1.0, noise)


def test_cyclic_noise_agrees_with_dp_accounting():
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    rate, windows, noise = 4 / 60, 150, 1.3
    event = CyclicPoissonSampler(60_000, 1 / 60, 4).event(Gaussian(noise)) * windows
    peer = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    expected = peer.self_compose(windows).get_epsilon_for_delta(1e-5)
    assert account(event).epsilon(1e-5) == pytest.approx(expected, rel=2e-3)
    assert accounting


def epsilon_by_convolution(rate, noise, windows, delta, step=2e-3):
    """Epsilon of Poisson-sampled Gaussians by one discrete convolution, without bounds: an oracle of its own."""
    x = np.linspace(-10 * noise, 10 * noise + 1, 100_001)
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    none, one = (np.exp(-np.square(x - mean) / (2 * noise**2)) for mean in (0, 1))
    found = []
    for sign, mass in ((1, (1 - rate) * none + rate * one), (-1, none)):  # removing a record, and adding one
        places = np.rint(sign * loss / step).astype(int)
        law = np.bincount(places - places.min(), weights=mass / mass.sum())
        count = windows * (len(law) - 1) + 1
        total = np.fft.irfft(np.fft.rfft(law, 2 * count) ** windows, 2 * count)[:count]
        losses = (np.arange(count) + windows * places.min()) * step
        low, high = 0.0, 50.0
        for _ in range(30):
            middle = (low + high) / 2
            beyond = losses > middle
            too_much = (total[beyond] * -np.expm1(middle - losses[beyond])).sum() > delta
            low, high = (middle, high) if too_much else (low, middle)
        found.append(high)
    return max(found)


@pytest.mark.parametrize(("epsilon", "bands"), [(2.0, 4), (8.0, 10)])
def test_the_noise_of_cyclic_sampling_is_that_of_an_oracle(epsilon, bands):
    """The planned noise spends the budget by the oracle's account, too; the twin that samples each step does not."""
    plan = Recipe(60_000, 1000, epochs=10, bands=bands).calibrate(Budget(epsilon, 1e-5))
    windows, noise = plan.steps // bands, plan.noise_multiplier
    assert epsilon_by_convolution(bands / 60, noise, windows, 1e-5) == pytest.approx(epsilon, rel=5e-3)
    assert abs(epsilon_by_convolution(1 / 60, noise, plan.steps, 1e-5) / epsilon - 1) > 0.05


def takes_part_as(event, found, epochs):
    """Whether records take part as often as the event of one charge says, ``epochs`` charges in all.

    Six standard errors for the mean and the variance of 4000 counts.
    """
    counts = np.array([len(steps) for steps in found])
    if isinstance(event, RandomlyAllocated):
        return bool((counts == epochs).all())
    rate = event.rate
    mean, variance = epochs * rate, epochs * rate * (1 - rate)
    return bool(
        abs(counts.mean() - mean) < 6 * math.sqrt(variance / RECORDS)
        and abs(counts.var() / variance - 1) < 6 * math.sqrt(2 / RECORDS)
    )


def test_an_event_of_another_sampling_is_noticed():
    """What a stage draws is what its charge says; the twins charge what the other kind of sampling costs."""
    allocated, cyclic = (
        Recipe(RECORDS, 200, epochs=6, sampling=sampling, bands=5).with_noise(2.0, delta=1e-5).stage()
        for sampling in ("random-allocation", "poisson")
    )
    once = participations(allocated.batches(stream(), rows=RECORDS))
    often = participations(cyclic.batches(stream(), rows=RECORDS))
    assert takes_part_as(allocated.charge, once, allocated.steps // allocated.steps_per_charge)
    assert takes_part_as(cyclic.charge, often, cyclic.steps // cyclic.steps_per_charge)
    assert not takes_part_as(cyclic.charge, once, cyclic.steps // cyclic.steps_per_charge)
    assert not takes_part_as(allocated.charge, often, allocated.steps // allocated.steps_per_charge)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockAllocationSampler(100, 12, 5), "bands=5: must divide the 12 steps.*1, 2, 3, 4, 6, 12"),
        (lambda: BlockAllocationSampler(100, 12, 0), "bands=0"),
        (lambda: BlockAllocationSampler(100, 12, math.nan), "bands=nan"),
        (lambda: CyclicPoissonSampler(100, 0.1, 11), "bands=11: must be at most 10"),
        (lambda: CyclicPoissonSampler(100, math.nan, 2), "rate=nan"),
        (lambda: replace(CyclicPoissonSampler(100, 0.1, 2), records=0), "records=0"),
        (lambda: coefficients(0), "bands=0"),
    ],
)
def test_numbers_are_checked(make, message):
    with pytest.raises(InvalidParameter, match=message):
        make()
