"""Events of the literature: every outcome added up, the best choice searched, and closed forms beside them."""

import math
from itertools import combinations, product

import mpmath
import numpy as np
import pytest

from discreet import (
    ApproximateDP,
    BoundedRange,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    InvalidParameter,
    Laplace,
    MixtureOfGaussians,
    PoissonSampled,
    RandomisedResponse,
    RandomlyAllocated,
    RenyiDP,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    UnsupportedEvent,
    ZeroConcentratedDP,
    account,
)
from discreet.accounting.chernoff import log_moment_of
from discreet.accounting.gaussian import gaussian_epsilon
from discreet.accounting.pairs import BoundedRangePair
from discreet.accounting.renyi import renyi_divergence, renyi_epsilon
from discreet.accounting.truncated import truncated_costs
from discreet.lecture.moments import zcdp_epsilon
from support import accounting_reference as ref


def enclosed(curve, exact_delta, epsilons, slack=0.012):
    """Every exact delta lies inside, and the bounds are close."""
    for epsilon in epsilons:
        exact = exact_delta(epsilon)
        lower, upper = curve.delta_bounds(epsilon)
        assert lower * (1 - 1e-11) <= exact <= upper * (1 + 1e-11) + 1e-300, epsilon
        assert upper <= exact * (1 + slack) + 1e-9, epsilon


def delta_of(p, q, count, epsilon):
    """delta of ``count`` independent draws, by adding up all outcomes: two lists of probabilities."""
    total = mpmath.mpf(0)
    for ways in product(range(len(p)), repeat=count):
        one = math.prod((p[i] for i in ways), start=mpmath.mpf(1))
        other = math.prod((q[i] for i in ways), start=mpmath.mpf(1))
        total += max(one - mpmath.exp(epsilon) * other, 0)
    return total


@pytest.mark.parametrize("categories", [2, 3, 7])
def test_randomised_response(categories):
    with mpmath.workdps(30):
        lie = 1 / (mpmath.exp(mpmath.mpf("0.8")) + categories - 1)
        p = [lie * mpmath.exp(mpmath.mpf("0.8")), *[lie] * (categories - 1)]
        q = [p[1], p[0], *p[2:]]
        event = RandomisedResponse(0.8, categories)
        for count in (1, 3):
            curve = account(event * count, "replace-one")
            enclosed(curve, lambda at, n=count: delta_of(p, q, n, at), (0.0, 0.3, 0.7))
    assert account(event * 3, "replace-one").delta(2.4) == pytest.approx(0.0, abs=1e-12)
    both = account(event, "replace-one", group_size=2).epsilon_bounds(1e-3)
    assert both == account(event * 2, "replace-one").epsilon_bounds(1e-3)


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.5, 1), (4.0, 3), (0.7, 2)])
def test_discrete_laplace(scale, sensitivity):
    with mpmath.workdps(30):
        reach = math.ceil(60 * scale)
        noise = {k: mpmath.exp(-abs(k) / mpmath.mpf(scale)) for k in range(-reach, reach + sensitivity + 1)}
        total = mpmath.fsum(noise.values()) + 0
        outcomes = range(-reach + sensitivity, reach + 1)
        q = [noise[k] / total for k in outcomes]
        p = [noise[k - sensitivity] / total for k in outcomes]
        most = sensitivity / scale
        enclosed(
            account(DiscreteLaplace(scale, sensitivity)),
            lambda at: delta_of(p, q, 1, at),
            (0.0, 0.3 * most, 0.9 * most),
        )
    assert account(DiscreteLaplace(scale, sensitivity) * 5).epsilon(0.0) == pytest.approx(5 * most)
    coarse = account(DiscreteLaplace(1000.0, 250) * 20).epsilon_bounds(1e-6)
    fine = account(Laplace(4.0) * 20).epsilon_bounds(1e-6)
    assert coarse.lower <= fine.upper * 1.001
    assert fine.lower <= coarse.upper * 1.001


@pytest.mark.parametrize(("deviation", "sensitivity"), [(0.5, 1), (3.0, 2)])
def test_discrete_gaussian(deviation, sensitivity):
    with mpmath.workdps(30):
        variance = 2 * mpmath.mpf(deviation) ** 2
        reach = math.ceil(14 * deviation) + sensitivity
        weights = {k: mpmath.exp(-(k**2) / variance) for k in range(-2 * reach, 2 * reach + 1)}
        total = mpmath.fsum(weights.values())
        q = [weights[k] / total for k in range(-reach, reach + 1)]
        p = [weights[k - sensitivity] / total for k in range(-reach, reach + 1)]
        for count in (1, 2):
            curve = account(DiscreteGaussian(deviation, sensitivity) * count)
            enclosed(curve, lambda at, n=count: delta_of(p, q, n, at), (0.0, 0.5, 2.0))


def test_a_wide_discrete_gaussian_is_nearly_a_gaussian():
    lower, upper = account(DiscreteGaussian(40.0, 8) * 30).epsilon_bounds(1e-6)
    exact = gaussian_epsilon(1e-6, math.sqrt(30) * 8 / 40)
    assert lower <= exact * (1 + 1e-6)
    assert exact <= upper * (1 + 1e-6)


def two_point(t, epsilon):
    """The pair with the losses t and t - epsilon only."""
    up = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
    return np.array([up, 1 - up]), np.array([t, t - epsilon])


def test_bounded_range_is_the_best_choice_of_the_interval():
    for epsilon in (0.1, 1.0, 5.0):
        curve = account(BoundedRange(epsilon))
        for at in np.linspace(0.0, 0.99, 7) * epsilon:
            best = 0.0
            for t in np.linspace(0.0, epsilon, 4001):
                masses, losses = two_point(t, epsilon)
                best = max(best, float((masses * np.maximum(-np.expm1(at - losses), 0.0)).sum()))
            lower, upper = curve.delta_bounds(float(at))
            assert best <= upper * (1 + 1e-12)
            assert lower <= best * (1 + 1e-5)
    assert account(BoundedRange(1.0) * 3).delta_bounds(3.0) == (0.0, 0.0)


def test_bounded_range_covers_every_adaptive_choice():
    """Random choices of intervals, also from the losses so far, never exceed the bound; it beats plain epsilon-DP."""
    rng, epsilon, count = np.random.default_rng(1), 0.7, 4
    curve = account(BoundedRange(epsilon) * count)
    for _ in range(20):
        paths = [(1.0, 0.0)]
        for _ in range(count):
            grown = []
            for mass, loss in paths:
                masses, losses = two_point(rng.uniform(0, epsilon), epsilon)
                grown += [(mass * m, loss + x) for m, x in zip(masses, losses, strict=True)]
            paths = grown
        for at in (0.2, 0.9, 1.8):
            reached = sum(mass * max(0.0, -math.expm1(at - loss)) for mass, loss in paths)
            assert reached <= curve.delta(at)
    assert curve.epsilon(1e-4) < account(ApproximateDP(epsilon) * count).epsilon(1e-4)


def test_the_pair_of_a_bounded_range_is_one():
    pair = BoundedRangePair(0.8)
    cells = pair.cells(np.linspace(-0.8, 0.8, 200))
    assert cells.p.sum() == pytest.approx(1.0, abs=1e-13)
    assert cells.q.sum() == pytest.approx(1.0, abs=1e-13)
    assert cells.p == pytest.approx(cells.q[::-1], rel=1e-12)
    losses = np.log(cells.p / cells.q)
    assert np.all(np.abs(losses - np.linspace(-0.8, 0.8, 200)[:-1] - 0.8 / 199) < 1e-5)


def test_several_gaussians_of_one_batch_are_one():
    one = account(PoissonSampled(0.01, Gaussian(4.0)) * 1000).epsilon_bounds(1e-5)
    four = account(PoissonSampled(0.01, Gaussian(8.0) * 4) * 1000).epsilon_bounds(1e-5)
    assert four == pytest.approx(one, rel=1e-6)
    mixed = PoissonSampled(0.5, Gaussian(3.0) + Gaussian(4.0) * 2)
    assert mixed.of.noise_multiplier == pytest.approx((1 / 9 + 2 / 16) ** -0.5, rel=1e-14)
    assert mixed.of.noise_multiplier <= (1 / 9 + 2 / 16) ** -0.5
    assert Event.from_json(mixed.to_json()) == mixed
    with pytest.raises(InvalidParameter, match="of="):
        PoissonSampled(0.5, Gaussian(3.0) + Laplace(1.0))


def test_mixtures_that_are_known_by_another_name():
    def same(event, mixture, **relation):
        ours = account(event, **relation).epsilon_bounds(1e-6, tolerance=1e-4)
        theirs = account(mixture).epsilon_bounds(1e-6, tolerance=1e-4)
        return ours.lower <= theirs.upper and theirs.lower <= ours.upper

    assert same(
        PoissonSampled(0.02, Gaussian(1.5)) * 300, MixtureOfGaussians(1.5, (0.0, 1.0), (0.98, 0.02)) * 300
    )
    chances = tuple(math.comb(3, j) * 0.1**j * 0.9 ** (3 - j) for j in range(4))
    mixed = MixtureOfGaussians(4.0, (0.0, 1.0, 2.0, 3.0), chances) * 50
    assert same(PoissonSampled(0.1, Gaussian(4.0)) * 50, mixed, group_size=3)
    assert not same(PoissonSampled(0.1, Gaussian(4.0)) * 50, mixed, group_size=2)
    whole = account(MixtureOfGaussians(3.0, (1.5,), (1.0,)) * 9).epsilon_bounds(1e-6)
    assert whole.lower <= gaussian_epsilon(1e-6, 1.5) <= whole.upper


@pytest.mark.parametrize("steps", [40, 300])
def test_a_mixture_by_an_independent_integral(steps):
    """Shifts that are no whole numbers, in both directions."""
    chances = {0.0: 0.9, 0.4: 0.07, 2.5: 0.03}
    curve = account(MixtureOfGaussians(1.2, tuple(chances), tuple(chances.values())) * steps)
    for delta in (1e-3, 1e-7):
        lower, upper = curve.epsilon_bounds(delta)
        assert upper - lower <= 1e-3 * upper
        for epsilon, way in ((upper, 1), (lower, -1)):
            found = max(
                ref.delta(
                    lambda tail, fine, pair=pair: [ref.gaussian_mixtures(1.2, *pair, tail, fine)],
                    [steps],
                    epsilon,
                    delta,
                )
                for pair in ((chances, {0.0: 1.0}), ({0.0: 1.0}, chances))
            )
            assert way * found.delta <= way * delta * (1 + way * found.error)


def test_mixtures_are_refused_where_no_theorem_is():
    event = MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5))
    with pytest.raises(UnsupportedEvent, match="shifts"):
        account(event, "replace-one")
    for shifts, chances, name in (
        ((1.0, 0.5), (0.5, 0.5), "shifts"),
        ((0.0,), (1.0,), "shifts"),
        ((0.0, 1.0), (0.5, 0.4), "probabilities"),
        ((0.0, 1.0), (1.0,), "probabilities"),
        (1.0, (1.0,), "shifts"),
    ):
        with pytest.raises(InvalidParameter, match=f"^{name}="):
            MixtureOfGaussians(1.0, shifts, chances)


def test_zcdp_alone_is_the_known_conversion():
    for rho, delta in ((0.1, 1e-5), (0.001, 1e-9), (3.0, 1e-3)):
        lower, upper = account(ZeroConcentratedDP(rho)).epsilon_bounds(delta)
        assert lower == 0
        assert upper == pytest.approx(zcdp_epsilon(rho, delta), rel=1e-4)
    assert account(ZeroConcentratedDP(0.01) * 10).epsilon(1e-6) == pytest.approx(
        zcdp_epsilon(0.1, 1e-6), rel=1e-4
    )
    assert account(ZeroConcentratedDP(0.1), group_size=3).epsilon(1e-6) == pytest.approx(
        zcdp_epsilon(0.9, 1e-6), rel=1e-4
    )


def test_a_gaussian_in_a_box_costs_a_little_more():
    """A Gaussian release of which only rho (or its Renyi curve) is told, beside sampled ones that are known."""
    steps = PoissonSampled(0.01, Gaussian(2.0)) * 500
    known = account(steps + Gaussian(5.0)).epsilon_bounds(1e-6)
    orders = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
    for box in (ZeroConcentratedDP(1 / 50), RenyiDP(orders, tuple(order / 50 for order in orders))):
        curve = account(steps + box)
        lower, upper = curve.epsilon_bounds(1e-6)
        assert lower <= known.lower * (1 + 1e-9)
        assert known.upper <= upper <= 1.2 * known.upper
        assert curve.delta(upper) <= 1.01e-6
        assert curve.delta(0.5 * upper) >= account(steps + Gaussian(5.0)).delta_bounds(0.5 * upper).lower
        assert account(steps + Gaussian(5.0)).power_bounds(0.01).lower <= curve.power(0.01) <= 1
        assert curve.epsilon(0.0) == math.inf
        assert renyi_epsilon(steps + box, 1e-6) >= known.lower


def test_divergences_between_the_orders_of_a_curve():
    """Chords between orders lie above the divergences of a real mechanism."""
    orders = (1.25, 2.0, 5.0, 11.0)
    box = RenyiDP(orders, tuple(renyi_divergence(Laplace(0.8), order) for order in orders))
    moment = log_moment_of(box, 1)
    for order in (1.01, 1.2, 1.7, 3.0, 8.0, 10.9):
        exact = (order - 1) * renyi_divergence(Laplace(0.8), order)
        assert float(moment(np.array([order - 1.0]))[0]) >= exact * (1 - 1e-12)
    assert float(moment(np.array([10.5]))[0]) == math.inf
    # a value that is larger than one at a larger order is not needed
    assert log_moment_of(RenyiDP((2.0, 3.0), (5.0, 1.0)), 1)(np.array([1.0]))[0] == pytest.approx(1.0)


def test_exposure_and_boxes_together():
    curve = account(ZeroConcentratedDP(0.05) + ApproximateDP(0.1, 1e-7))
    assert curve.epsilon(5e-8) == math.inf
    assert 0.1 < curve.epsilon(1e-6) < zcdp_epsilon(0.05, 5e-7) + 0.11


def test_refusals():
    with pytest.raises(UnsupportedEvent, match="replace-one"):
        account(RandomisedResponse(1.0))
    with pytest.raises(UnsupportedEvent, match="group"):
        account(RenyiDP((2.0,), (0.1,)), group_size=2)
    with pytest.raises(UnsupportedEvent, match="filter"):
        truncated_costs(ZeroConcentratedDP(0.1), order=8.0, cut=0.5)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ZeroConcentratedDP(-1.0), "rho"),
        (lambda: ZeroConcentratedDP(math.nan), "rho"),
        (lambda: RenyiDP((), ()), "orders"),
        (lambda: RenyiDP((1.0,), (0.1,)), "orders"),
        (lambda: RenyiDP((3.0, 2.0), (0.1, 0.2)), "orders"),
        (lambda: RenyiDP((2.0, 3.0), (0.1,)), "values"),
        (lambda: RenyiDP(2.0, (0.1,)), "orders"),
        (lambda: BoundedRange(0.0), "epsilon"),
        (lambda: RandomisedResponse(1.0, 1), "categories"),
        (lambda: DiscreteLaplace(-1.0), "scale"),
        (lambda: DiscreteLaplace(1.0, 1.5), "sensitivity"),
        (lambda: DiscreteGaussian(0.0), "deviation"),
    ],
)
def test_bad_values_are_refused_by_name(make, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        make()


@pytest.mark.parametrize(
    "event",
    [
        ZeroConcentratedDP(0.25),
        RenyiDP((2.0, 8.0), (0.1, 0.4)),
        BoundedRange(0.5),
        RandomisedResponse(1.5, 4),
        DiscreteLaplace(2.5, 2),
        DiscreteGaussian(4.0, 3),
        MixtureOfGaussians(2.0, (0.0, 1.5), (0.75, 0.25)),
    ],
)
def test_round_trips(event):
    run = event * 3 + Gaussian(2.0)
    assert Event.from_json(run.to_json()) == run
    assert Event.from_json(run.to_json()).digest() == run.digest()


GRID = np.linspace(-14.0, 14.0, 4001)


def cut_batches(contributions, rate, limit, noise):
    """The density of the noisy sum over all batches that Poisson sampling and the limit can make."""
    density = np.zeros(len(GRID))
    for coins in product([False, True], repeat=len(contributions)):
        batch = [value for value, drawn in zip(contributions, coins, strict=True) if drawn]
        chance = math.prod(rate if drawn else 1 - rate for drawn in coins)
        kept = list(combinations(batch, min(limit, len(batch))))
        for part in kept:
            density += chance / len(kept) * np.exp(-(((GRID - sum(part)) / noise) ** 2) / 2)
    return density / density.sum()


@pytest.mark.parametrize(("rate", "limit", "noise"), [(0.4, 1, 1.0), (0.5, 1, 0.7), (0.3, 2, 2.0)])
def test_batches_with_a_limit_cost_no_less_than_every_table(rate, limit, noise):
    curve = account(TruncatedPoissonSampled(rate, limit, 4, noise))
    twin = account(
        PoissonSampled(rate, Gaussian(noise))
    )  # forgets that a record may take another one's place
    worst = {}
    for others in product([-1.0, 0.0, 1.0], repeat=3):
        for more, less in (([*others, 1.0], others), (others, [*others, 1.0])):
            p, q = cut_batches(more, rate, limit, noise), cut_batches(less, rate, limit, noise)
            for epsilon in (0.0, 0.3, 1.0, 2.0):
                worst[epsilon] = max(worst.get(epsilon, 0.0), np.maximum(p - np.exp(epsilon) * q, 0).sum())
    assert all(exact <= curve.delta(epsilon) for epsilon, exact in worst.items())
    assert any(exact > twin.delta(epsilon) * 1.01 for epsilon, exact in worst.items())


def test_a_limit_that_is_never_reached_costs_nothing():
    event = PoissonSampled(0.01, Gaussian(1.0)) * 100
    never = TruncatedPoissonSampled(0.01, 20_000, 20_000, 1.0) * 100
    assert account(never).epsilon(1e-6) == account(event).epsilon(1e-6)
    costs = [
        account(TruncatedPoissonSampled(0.01, limit, 20_000, 1.0) * 100).epsilon(1e-6)
        for limit in (300, 230, 100)
    ]
    assert account(event).epsilon(1e-6) * 0.999 < costs[0] < costs[1] < costs[2]
    always = PoissonSampled(0.01, Gaussian(0.5)) * 100
    assert costs[2] == pytest.approx(account(always).epsilon(1e-6), rel=2e-3)
    # Nothing is amplified away where every record is always drawn.
    whole = account(TruncatedPoissonSampled(1.0, 10, 1000, 1.0))
    assert whole.epsilon(1e-6) >= 0.999 * account(Gaussian(0.5)).epsilon(1e-6)
    with pytest.raises(UnsupportedEvent, match="limit away"):
        account(never, neighbours="replace-one")


def test_several_steps_of_random_allocation():
    """Two of three steps, by quadrature in three dimensions (an error of some thousandths)."""
    noise = 1.3
    axis = np.linspace(-6.5 * noise, 6.5 * noise + 1, 121)
    x = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"))
    means = [np.reshape([i in pair for i in range(3)], (3, 1, 1, 1)) for pair in combinations(range(3), 2)]
    p = sum(np.exp(-((x - mean) ** 2).sum(axis=0) / (2 * noise**2)) for mean in means) / 3
    q = np.exp(-(x**2).sum(axis=0) / (2 * noise**2))
    scale = q.sum()
    curve = account(RandomlyAllocated(3, Gaussian(noise), selected=2))
    for epsilon in (0.2, 1.0, 2.0):
        exact = max(
            np.maximum(p - np.exp(epsilon) * q, 0).sum(), np.maximum(q - np.exp(epsilon) * p, 0).sum()
        )
        assert exact / scale <= curve.delta(epsilon) * 1.002 <= 1.6 * exact / scale
    step = Gaussian(noise)
    assert RandomlyAllocated(3, step, selected=3).parts() == ((step, 3),)
    assert dict(RandomlyAllocated(10, step, selected=3).parts()) == {
        RandomlyAllocated(3, step): 2,
        RandomlyAllocated(4, step): 1,
    }
    with pytest.raises(InvalidParameter, match="selected=4"):
        RandomlyAllocated(3, step, selected=4)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 1000])
def test_a_record_is_in_as_many_nodes_as_the_tree_is_high(steps):
    """Nodes of the binary counter: [k 2^j, (k+1) 2^j) for all that end in time."""
    nodes = [range(k << j, (k + 1) << j) for j in range(steps.bit_length()) for k in range(steps >> j)]
    most = max(sum(leaf in node for node in nodes) for leaf in range(steps))
    tree = TreeAggregation(steps, 2.0, restarts=3)
    assert tree.nodes == 3 * most
    for neighbours in ("replace-one", "zero-out"):
        alike = account(Gaussian(2.0) * (6 * most), neighbours)
        assert account(tree * 2, neighbours).epsilon(1e-6) == pytest.approx(alike.epsilon(1e-6), rel=1e-9)
    with pytest.raises(UnsupportedEvent, match="zero-out"):  # one record more moves all that follow it
        account(tree)


def above_threshold(values, threshold, query, where):
    """The chance that the first answer above a noisy zero is number ``where``, by quadrature over the threshold."""
    rho = np.linspace(-40 * threshold, 40 * threshold, 200_001)
    density = np.exp(-np.abs(rho) / threshold)

    def above(value):
        z = (rho - value) / query
        return np.where(z > 0, 0.5 * np.exp(-np.abs(z)), 1 - 0.5 * np.exp(-np.abs(z)))

    chance = above(values[where])
    for value in values[:where]:
        chance = chance * (1 - above(value))
    return (density * chance).sum() / density.sum()


def test_the_sparse_vector_is_as_private_as_it_says_and_hardly_more():
    threshold, query, many = 1.0, 2.0, 60
    epsilon = account(SparseVector(threshold, query)).epsilon(0)
    assert epsilon == pytest.approx(2.0)
    ratios = []
    for shift in (1.0, -1.0):
        for level in (-3.0, 0.0, 4.0):
            values = [level] * many + [level]
            moved = [value + shift for value in values[:-1]] + [values[-1] - shift]
            p, q = (above_threshold(v, threshold, query, many) for v in (values, moved))
            ratios.append(abs(math.log(p / q)))
    assert max(ratios) <= epsilon
    assert max(ratios) > account(SparseVector(threshold, query, monotone=True)).epsilon(
        0
    )  # that needs its condition
    assert account(SparseVector(threshold, query, positives=3)).epsilon(0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "event",
    [
        TruncatedPoissonSampled(0.1, 5, 100, 2.0),
        SparseVector(3.0, 4.0, positives=2),
        TreeAggregation(100, 2.0, restarts=4),
        RandomlyAllocated(10, Gaussian(2.0), selected=3),
    ],
)
def test_new_kinds_survive_json_and_refuse_nan(event):
    assert Event.from_json(event.to_json()) == event
    data = event.to_dict()
    for name, value in data.items():
        if isinstance(value, float | int) and not isinstance(value, bool):
            with pytest.raises(InvalidParameter, match=name):
                Event.from_dict({**data, name: math.nan})
