"""Batches of fixed size, with and without replacement, exchanged and zeroed records: every batch added up."""

import math
from itertools import combinations, product

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from discreet import (
    Event,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    MixtureOfGaussians,
    PoissonSampled,
    RandomisedResponse,
    RandomlyAllocated,
    RenyiDP,
    RepeatAndSelect,
    SampledWithReplacement,
    TruncatedPoissonSampled,
    UnsupportedEvent,
    account,
    calibrate,
)
from discreet.accounting.attained import attained, chance_kept
from discreet.accounting.chernoff import Chernoff
from discreet.accounting.divergences import log_stopping_chance
from discreet.accounting.dominating import Relation, Tolerances, dominating
from discreet.accounting.gaussian import gaussian_delta
from discreet.accounting.pairs import Labelled, Reversed
from discreet.accounting.saddlepoint import _zero
from discreet.accounting.sampled_pairs import FixedSize, ZeroedFixedSize, with_replacement
from support import accounting_reference as ref

GRID = np.concatenate([[-np.inf], np.linspace(-16.0, 16.0, 6001), [np.inf]])
EPSILONS = (0.0, 0.1, 0.4, 1.0, 2.5, 5.0)


def cells(sums, noise):
    """Of the noisy sum, all of ``sums`` equally likely. To see only the cell is to know less: deltas are below."""
    return sum(np.diff(ndtr((GRID - one) / noise)) for one in sums) / len(sums)


def drawn_with_replacement(table, size):
    return [sum(batch) for batch in product(table, repeat=size)]


def drawn_without(table, size):
    return [sum(batch) for batch in combinations(table, size)]


def worst_deltas(drawn, size, records, noise, replacements):
    """The largest delta at each epsilon over tables of contributions -1, 0, 1 and both orders of the worlds."""
    worst = dict.fromkeys(EPSILONS, 0.0)
    for others in product([-1.0, 0.0, 1.0], repeat=records - 1):
        for mine, other in replacements:
            p, q = (cells(drawn((*others, value), size), noise) for value in (mine, other))
            for epsilon in EPSILONS:
                worst[epsilon] = max(worst[epsilon], float(np.maximum(p - np.exp(epsilon) * q, 0).sum()))
    return worst


EXCHANGED = [(1.0, -1.0), (1.0, 0.0)]
ZEROED = [(1.0, 0.0), (0.0, 1.0)]


@pytest.mark.parametrize(("size", "records", "noise"), [(1, 3, 1.0), (2, 3, 0.8), (3, 4, 2.0)])
def test_draws_with_replacement_cost_no_less_than_every_table(size, records, noise):
    curve = account(SampledWithReplacement(size, records, noise), "replace-one")
    worst = worst_deltas(drawn_with_replacement, size, records, noise, EXCHANGED)
    assert all(exact <= curve.delta(epsilon) + 1e-12 for epsilon, exact in worst.items())
    assert worst[0.0] >= 0.7 * curve.delta(0.0)
    if size > 1:  # forgets that a record may come twice
        twin = account(FixedSizeSampled(size, records, Gaussian(noise)), "replace-one")
        assert any(exact > twin.delta(epsilon) * 1.01 for epsilon, exact in worst.items())


@pytest.mark.parametrize(("size", "records", "noise"), [(1, 3, 1.0), (2, 4, 0.7)])
def test_an_exchanged_record_of_a_batch_of_fixed_size(size, records, noise):
    curve = account(FixedSizeSampled(size, records, Gaussian(noise)), "replace-one")
    worst = worst_deltas(drawn_without, size, records, noise, [*EXCHANGED, (-1.0, 1.0)])
    assert all(exact <= curve.delta(epsilon) + 1e-12 for epsilon, exact in worst.items())
    assert all(exact >= 0.999 * curve.delta(epsilon) - 1e-9 for epsilon, exact in worst.items())
    twin = account(PoissonSampled(size / records, Gaussian(noise)), "replace-one")
    assert any(exact > twin.delta(epsilon) * 1.01 for epsilon, exact in worst.items())


@pytest.mark.parametrize(("size", "records", "noise"), [(1, 3, 1.0), (2, 4, 0.7), (2, 3, 2.0)])
def test_a_zeroed_record_of_a_batch_of_fixed_size(size, records, noise):
    curve = account(FixedSizeSampled(size, records, Gaussian(noise)), "zero-out")
    worst = worst_deltas(drawn_without, size, records, noise, ZEROED)
    assert all(exact <= curve.delta(epsilon) + 1e-12 for epsilon, exact in worst.items())
    # Poisson's pair is too small: who is not in the batch leaves a place to somebody who may be the opposite.
    poisson = account(PoissonSampled(size / records, Gaussian(noise)))
    assert any(exact > poisson.delta(epsilon) * 1.01 for epsilon, exact in worst.items())
    if size == 1:  # attained
        assert all(exact >= curve.delta_bounds(at).lower * (1 - 1e-4) - 1e-12 for at, exact in worst.items())


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.01), (1.0, 0.3), (20.0, 0.001)])
def test_the_zeroed_pair_to_forty_digits(noise, rate):
    pair = ZeroedFixedSize(noise, rate)
    with mpmath.workdps(40):

        def tail(x, shift):
            return mpmath.ncdf((shift - x) / mpmath.mpf(noise))

        def loss(x):
            s, q = 2 * mpmath.mpf(noise) ** 2, mpmath.mpf(rate)
            return mpmath.log(
                (1 - q + q * mpmath.exp((4 * x - 4) / s)) / (1 - q + q * mpmath.exp((2 * x - 1) / s))
            )

        for x in (mpmath.mpf("1.5"), 2 + noise / 2, 2 + 2 * noise, 2 + 6 * noise):
            at = loss(mpmath.mpf(x))
            exact_p = (1 - rate) * tail(x, 0) + rate * tail(x, 2)
            exact_q = (1 - rate) * tail(x, 0) + rate * tail(x, 1)
            p, q = pair.masses(np.array([float(at), np.inf]))
            # one float of the boundary is a shift of the loss, which lattices charge for
            assert float(abs(p[0] / exact_p - 1)) < 1e-10
            assert float(abs(q[0] / exact_q - 1)) < 1e-10
    for one in (pair, Reversed(pair)):
        cells = one.cells(np.linspace(-1.0, 1.0, 101))
        assert cells.p.sum() + cells.p_below + cells.p_above == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_several_batches_of_fixed_size_by_adding_up_two(neighbours):
    """Two releases: the lattice against the mean over the first loss of the closed curve of the second, (1).

    The cells have their middle at multiples of 0.01, so that the atom at zero is where it belongs.
    """
    event = FixedSizeSampled(20, 100, Gaussian(1.2))
    halves = FixedSize(with_replacement(1.2, 1, 100).base, 0.2)
    pair = halves if neighbours == "replace-one" else ZeroedFixedSize(1.2, 0.2)
    two = account(event * 2, neighbours)
    grid = np.concatenate([[-np.inf], np.arange(-600.5, 1200) / 100, [np.inf]])
    for epsilon in (0.3, 1.5):
        found = []
        for one in (pair, Reversed(pair)):
            p, _ = one.masses(grid)
            at = np.concatenate([[grid[1]], (grid[1:-2] + grid[2:-1]) / 2, [grid[-2]]])
            rest = [one.masses(np.array([-np.inf, epsilon - loss, np.inf])) for loss in at]
            curve = [
                max(a[1] - math.exp(epsilon - loss) * b[1], 0.0)
                for (a, b), loss in zip(rest, at, strict=True)
            ]
            found.append(float(p @ np.array(curve)))
        lower, upper = two.delta_bounds(epsilon)
        assert lower * (1 - 1e-3) <= max(found) <= upper * (1 + 1e-3)


def test_many_draws_of_few_records():
    """Weights are those of a law with larger tails than the binomial one, whatever the sizes."""
    for size, records in ((5000, 500), (100, 3), (40, 10**6), (2, 2)):
        pair = with_replacement(100.0, size, records)
        base = pair.base if isinstance(pair, FixedSize) else pair
        assert isinstance(base, Labelled)
        assert sum(base.weights) == pytest.approx(1.0, abs=1e-12)
        assert min(base.weights) > 0
        draws = [one.mu * 50 for one in base.pairs]
        mean = sum(k * w for k, w in zip(draws, base.weights, strict=True)) * getattr(pair, "rate", 1.0)
        assert size / records <= mean <= 1.07 * size / records
    alone = account(SampledWithReplacement(3, 1, 4.0), "replace-one")
    assert alone.delta(0.5) == pytest.approx(gaussian_delta(0.5, 6 / 4), rel=1e-4)


def test_zero_out_is_add_remove_where_nobody_takes_a_place():
    for event in (
        Gaussian(2.0) * 3,
        Laplace(2.0),
        PoissonSampled(0.02, Gaussian(1.5)) * 50,
        PoissonSampled(0.02, Laplace(1.5)) * 50,
        RandomlyAllocated(10, Gaussian(2.0)),
        MixtureOfGaussians(2.0, (0.0, 1.5), (0.75, 0.25)),
    ):
        assert account(event, "zero-out").epsilon_bounds(1e-6) == account(event).epsilon_bounds(1e-6)
    group = PoissonSampled(0.02, Gaussian(1.5)) * 50
    assert account(group, "zero-out", 3).epsilon(1e-6) == account(group, "add-remove", 3).epsilon(1e-6)
    batches = FixedSizeSampled(600, 60_000, Gaussian(4.0)) * 1000
    costs = [
        account(event, name).epsilon(1e-6)
        for event, name in ((batches, "zero-out"), (batches, "replace-one"))
    ]
    assert account(PoissonSampled(0.01, Gaussian(4.0)) * 1000).epsilon(1e-6) < costs[0] < costs[1]
    noise = calibrate(lambda z: FixedSizeSampled(10, 100, Gaussian(z)), advantage=0.05, neighbours="zero-out")
    assert account(FixedSizeSampled(10, 100, Gaussian(noise)), "zero-out").advantage() <= 0.05


class OfMyOwn(Event):
    def dominating_pair(self, neighbours, group_size):
        raise AssertionError("not asked")

    def parts(self):
        return ((self, 1),)


@pytest.mark.parametrize(
    ("event", "neighbours", "says"),
    [
        (SampledWithReplacement(2, 5, 1.0), "add-remove", "number of records public"),
        (SampledWithReplacement(2, 5, 1.0), "zero-out", "replace-one neighbours"),
        (TruncatedPoissonSampled(0.1, 5, 100, 1.0), "zero-out", "limit"),
        (RandomisedResponse(1.0), "zero-out", "replace-one"),
        (FixedSizeSampled(2, 5, Laplace(1.0)), "zero-out", "Gaussian"),
        (RepeatAndSelect(Gaussian(2.0), 5.0), "zero-out", "best of several"),
        (OfMyOwn(), "zero-out", "not an event"),
    ],
)
def test_what_has_no_theorem_is_refused(event, neighbours, says):
    with pytest.raises(UnsupportedEvent, match=says):
        account(event, neighbours)


def test_zero_out_has_curves_and_no_guarantees():
    with pytest.raises(InvalidParameter, match="neighbours='zero-out': has no guarantee"):
        account(Gaussian(2.0), "zero-out").guarantee(1e-6)
    with pytest.raises(InvalidParameter, match="neighbours"):
        account(Gaussian(2.0), "zero")


def test_a_clipped_micro_batch_moves_by_two():
    """A record turns a clipped micro-batch from -1 to 1, if it is drawn."""
    rate, noise = 0.3, 1.5
    q = cells([-1.0], noise)
    p = (1 - rate) * q + rate * cells([1.0], noise)
    curve, twin = (account(PoissonSampled(rate, Gaussian(z))) for z in (noise / 2, noise))
    for epsilon in EPSILONS[:4]:
        exact = max(float(np.maximum(a - np.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))
        assert twin.delta(epsilon) < exact
        assert exact == pytest.approx(curve.delta(epsilon), rel=1e-5)


def best_of(pld, stop, shape, mean):
    """Outcomes are ordered by score. The law of the best, from the generating function of the number of runs."""
    below = np.concatenate([[0.0], np.cumsum(pld)])
    if shape is None:
        generating = np.exp(mean * (below - 1))  # the rest: nothing was selected
        return np.concatenate([[generating[0]], np.diff(generating)])
    whole = (1 - (1 - stop) * below) ** -shape if shape else -np.log1p(-(1 - stop) * below)
    return np.diff((whole - whole[0]) / (whole[-1] - whole[0]))


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (4.0, 0.0), (20.0, 0.5), (3.0, None)])
def test_the_best_of_several_runs(mean, shape):
    base = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
    rng, largest = np.random.default_rng(5), 0.4
    stop = None if shape is None else math.exp(log_stopping_chance(mean, shape))
    orders = tuple(1 + np.geomspace(0.05, 150, 60))
    beaten = False
    for _ in range(12 if shape is not None else 2):
        other = base * np.exp(rng.choice([-largest, largest], 5))
        other /= other.sum()
        values = tuple(
            max(
                math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
                for p, q in ((base, other), (other, base))
            )
            for order in orders
        )
        trial = RenyiDP(orders, tuple(max(value, 0.0) for value in values))
        curve = account(RepeatAndSelect(trial, mean, shape))
        p, q = (best_of(pld, stop, shape, mean) for pld in (base, other))
        for epsilon in (0.1, 0.6, 1.2):
            exact = max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))
            assert exact <= curve.delta(epsilon) + 1e-15
            beaten |= exact > account(trial).delta(epsilon) > 0
    assert beaten or mean < 4  # one run costs less than the best of many


def test_the_best_of_runs_composes_and_survives_json():
    event = RepeatAndSelect(PoissonSampled(0.01, Gaussian(1.0)) * 100, 10.0) + Gaussian(10.0)
    assert Event.from_json(event.to_json()) == event
    one = account(PoissonSampled(0.01, Gaussian(1.0)) * 100).epsilon(1e-6)
    lower, upper = account(event).epsilon_bounds(1e-6)
    assert lower == account(Gaussian(10.0)).epsilon_bounds(1e-6).lower
    assert one < upper < 4 * one
    for name, value in (("mean", math.nan), ("mean", 0.5), ("shape", -1.0), ("trial", {"event": "no"})):
        with pytest.raises(InvalidParameter):
            Event.from_dict({**RepeatAndSelect(Gaussian(1.0), 3.0).to_dict(), name: value})


@pytest.mark.parametrize("mean", [0.05, 0.5, 0.9, 1.5])
def test_the_best_of_few_runs_composed(mean):
    """Several selections one after the other, all outcomes added up: a number of runs may be zero.

    The twin is the published formula without the mass of no run (also that of dp-accounting 0.6): for a mean below 1
    its divergence is negative at small orders, so each further selection takes delta away.
    """
    largest, times = 0.7, 5
    base = np.array([0.5, 0.3, 0.2])
    other = base * np.exp([-largest, 0.0, largest])
    other /= other.sum()
    orders = tuple(1 + np.geomspace(0.01, 150, 80))
    values = tuple(
        max(math.log(float((p**a * q ** (1 - a)).sum())) / (a - 1) for p, q in ((base, other), (other, base)))
        for a in orders
    )
    trial = RenyiDP(orders, values)
    curve = account(RepeatAndSelect(trial, mean, None) * times)
    p, q = (best_of(pld, None, None, mean) for pld in (base, other))
    joint_p, joint_q = p, q
    for _ in range(times - 1):
        joint_p, joint_q = (
            np.multiply.outer(joint, pld).ravel() for joint, pld in ((joint_p, p), (joint_q, q))
        )

    at, known = np.array(orders), np.array(values)

    def published(tilts):
        one = np.interp(tilts, at - 1, (at - 1) * known, left=math.inf, right=math.inf)
        e = np.log1p(1 / tilts)[:, None]
        log_delta = (at - 1) * (known - e + np.log1p(-1 / at)) - np.log(at)
        return one + tilts * mean * np.exp(np.minimum(log_delta.min(axis=1), 0.0)) + math.log(mean)

    twin = Chernoff.of([], -700.0, ((published, times),))
    fails = False
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        exact = max(
            float(np.maximum(a - math.exp(epsilon) * b, 0).sum())
            for a, b in ((joint_p, joint_q), (joint_q, joint_p))
        )
        assert exact <= curve.delta(epsilon) + 1e-15
        fails |= exact > twin.delta(epsilon)
    assert fails == (mean <= 0.5)


def test_more_selections_never_cost_less():
    for mean in (0.05, 0.5, 1.0, 3.0):
        one = RepeatAndSelect(Laplace(1.0), mean, None)
        costs = [account(one * count).delta(0.3) for count in (1, 2, 20)]
        assert costs[0] <= costs[1] <= costs[2]
        assert account(one * 20).delta(0.0) >= 0.3 * min(mean, 1.0)


def test_the_stopping_chance_to_sixty_digits():
    """Far below the smallest float at shapes near -1; never above the exact one, and close to it."""
    with mpmath.workdps(60):
        for shape in (-0.999999, -0.99, -0.5, 0.0, 1e-9, 0.5, 1.0, 100.0):
            for mean in (1.001, 10.0, 1000.0, 10_000.0):
                found = mpmath.mpf(log_stopping_chance(mean, shape))
                stop, h = mpmath.exp(found), mpmath.mpf(shape)
                growth = -found if shape == 0 else (1 - stop**h) / h
                assert mean <= (1 - stop) / (stop * growth) <= mean * (1 + 1e-7)
        assert log_stopping_chance(1000.0, -0.99) < -690


@pytest.mark.parametrize(
    ("size", "records", "noise"), [(2, 3, 0.8), (3, 4, 2.0), (30, 100, 6.0), (100, 100, 40.0)]
)
@pytest.mark.parametrize("steps", [1, 8])
def test_lower_bounds_with_replacement_are_attained(size, records, noise, steps):
    """Everybody else is the opposite of the record: sums move by 2k, k binomial. Densities are added up (one
    release), and their moments integrated (several)."""
    event = SampledWithReplacement(size, records, noise) * steps
    shifts = {2.0 * k: float(binom.pmf(k, size, 1 / records)) for k in range(min(size, 30) + 1)}
    for epsilon in (0.1, 0.5):
        lower, upper = account(event, "replace-one").delta_bounds(epsilon)
        if steps == 1:
            x = np.linspace(-9 * noise, 9 * noise + 2 * size, 400_001)
            p = sum(w * ref.normal_density(x, s, noise) for s, w in shifts.items())
            q = ref.normal_density(x, 0.0, noise)
            exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))
        else:
            exact, error = ref.delta(
                lambda tail, fine: [ref.gaussian_mixtures(noise, shifts, {0.0: 1.0}, tail, fine)],
                [steps],
                epsilon,
                max(lower, 1e-12),
            )
            exact = exact + error
        assert lower <= exact * (1 + 1e-6)
        assert exact * (1 - 1e-6) <= upper
        assert lower >= 0.99 * exact


@pytest.mark.parametrize(
    ("rate", "limit", "records"), [(0.3, 2, 8), (0.05, 5, 100), (0.01, 100, 20_000), (1.0, 3, 10)]
)
def test_the_chance_to_be_kept_in_a_batch_with_a_limit(rate, limit, records):
    """rate E min(1, limit / (S + 1)) over the S others that are drawn, added up."""
    event = TruncatedPoissonSampled(rate, limit, records, 1.0)
    others = np.arange(records)
    chances = binom.pmf(others, records - 1, rate)
    exact = rate * float((chances * np.minimum(1.0, limit / (others + 1))).sum())
    assert exact * (1 - 1e-5) <= chance_kept(event) <= exact
    for epsilon in (0.1, 1.0):
        lower, upper = account(event).delta_bounds(epsilon)
        twin = account(PoissonSampled(exact, Gaussian(0.5 if rate == 1 else 1.0))).delta_bounds(epsilon)
        assert 0.999 * twin.lower <= lower <= twin.upper
        assert twin.lower <= upper


def test_probabilities_that_miss_one_count_for_the_largest_shift():
    """A billion releases multiply what is missing by a billion."""
    whole = MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5))
    for chances in ((0.5, 0.5 - 9e-13), (0.5 - 9e-13, 0.5), (0.5, 0.5 + 9e-13), (0.5 + 9e-13, 0.5)):
        event = MixtureOfGaussians(1.0, (0.0, 1.0), chances)
        least, most = max(chances[0], 1 - chances[1]), max(chances[1], 1 - chances[0])
        for rule, weights in ((dominating, (1 - most, most)), (attained, (least, 1 - least))):
            (pld,) = rule(event, Relation("add-remove", 1)).plds_of("remove", Tolerances(1e-9, 1e-3))
            assert pld.upper.weights == pytest.approx(weights, abs=2e-16)
        lower, upper = account(event * 10).epsilon_bounds(1e-6)
        near = account(whole * 10).epsilon_bounds(1e-6)
        assert lower <= near.upper
        assert near.lower <= upper
        assert upper - lower <= 2e-3 * upper


def test_epsilons_of_a_hundred_million_are_answered():
    """A bracket with an absolute width below the distance of neighbouring floats never closed."""
    lower, upper = account(PoissonSampled(1e-4, Gaussian(0.05)) * 10**9).epsilon_bounds(1e-6)
    assert 1e5 < lower < upper < 1e8
    assert _zero(lambda x: 1e8 - x, 0.0, 3e8) == pytest.approx(1e8)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("prior", [0.001, 0.3, 0.5, 0.9])
def test_bayes_risk_of_gaussian_noise_is_that_of_the_best_threshold(mu, prior):
    near = mu / 2 + math.log((1 - prior) / prior) / mu + np.linspace(-0.01, 0.01, 2001)
    exact = float((prior * ndtr(near - mu) + (1 - prior) * ndtr(-near)).min())
    risk = account(Gaussian(1 / mu)).bayes_risk(prior)
    assert exact * (1 - 1e-6) <= risk <= exact * (1 + 1e-9)


def test_estimates_of_mu():
    assert account(Gaussian(4.0) * 4).mu_estimate() == pytest.approx(0.5, rel=1e-9)
    run = account(PoissonSampled(0.01, Gaussian(1.0)) * 10_000)
    assert run.mu_estimate() == pytest.approx(0.01 * 100 * math.sqrt(math.expm1(1.0)), rel=0.1)
    with pytest.raises(InvalidParameter, match="prior"):
        run.bayes_risk(math.nan)
