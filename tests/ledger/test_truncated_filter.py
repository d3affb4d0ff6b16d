"""Truncated Renyi divergences and their filter, against quadrature, the certified curve, and a player who adapts."""

import math
from contextlib import suppress
from fractions import Fraction
from functools import cache

import mpmath
import pytest

from discreet import (
    ApproximateDP,
    Budget,
    BudgetExceeded,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    UnsupportedEvent,
    account,
)
from discreet.accounting.renyi import renyi_divergence
from discreet.accounting.truncated import truncated_costs
from discreet.ledger import TruncatedRenyiFilter
from discreet.ledger.filters import renyi_limit

SPARSE = PoissonSampled(0.001, Gaussian(1.0))
SPARSE_BUDGET = Budget(1.0, 1e-6)


@pytest.fixture(scope="module")
def sparse():
    return TruncatedRenyiFilter.for_event(SPARSE, SPARSE_BUDGET)


def quadrature(rate, noise, order, cut, direction):
    """The truncated divergence and mass of a sampled Gaussian, by Gauss-Legendre with 30 digits."""
    with mpmath.workdps(30):
        q, s, a, c = (mpmath.mpf(value) for value in (rate, noise, order, cut))
        sign = 1 if direction == "remove" else -1
        inside = (
            mpmath.exp(sign * c) - 1 + q
        ) / q  # the likelihood ratio N(1) : N(0) where the loss is the cut
        edge = s * s * mpmath.log(inside) + 0.5 if inside > 0 else -mpmath.inf
        low, high = (-14 * s, edge) if direction == "remove" else (max(edge, -14 * s), 14 * s + 1)
        ends = [low, *(x for x in (-4 * s, -2 * s, 0, 2 * s, 4 * s, 8 * s) if low < x < high), high]

        def integrand(x):
            ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))
            return mpmath.npdf(x, 0, s) * ratio ** (a if direction == "remove" else 1 - a)

        moment = mpmath.quad(integrand, ends)
        if direction == "add":
            return mpmath.log(moment) / (a - 1), mpmath.ncdf(edge / s)
        mass = (1 - q) * mpmath.ncdf(-edge / s) + q * mpmath.ncdf((1 - edge) / s)
        return mpmath.log(moment) / (a - 1), mass


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("rate", "noise", "order", "cut"),
    [
        (0.001, 1, 21.25, 0.675),
        (0.01, 4, 17.7, 0.05),
        (0.02, 0.8, 3.3, 4),
        (1e-6, 2, 30, 0.1),
        (0.3, 1.5, 8, 0.2),
    ],
)
def test_prices_are_just_above_the_truth(rate, noise, order, cut, direction):
    cost = truncated_costs(PoissonSampled(rate, Gaussian(noise)), order, cut)[direction]
    divergence, mass = quadrature(rate, noise, order, cut, direction)
    # The cut-off losses lower the moment a little further than the bound says: by at most order * mass.
    assert divergence <= cost.divergence <= divergence * (1 + 1e-4) + 2 * order * mass
    assert mass <= cost.mass <= mass * (1 + 1e-8)


@pytest.mark.parametrize(
    "event", [Gaussian(20.0), Gaussian(2.0), Laplace(10.0), PoissonSampled(0.01, Gaussian(4.0))]
)
@pytest.mark.parametrize("order", [1.5, 6.0, 18.3])
def test_far_above_all_losses_nothing_is_truncated(event, order):
    plain = renyi_divergence(event, order)
    cost = truncated_costs(event, order, 28.0)["remove"]
    assert plain <= cost.divergence <= plain * (1 + 1e-4)
    assert cost.mass < 1e-12


def two_point(epsilon, order):
    """Renyi divergence of randomised response, in closed form."""
    with mpmath.workdps(30):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        truth, lie = 1 / (1 + mpmath.exp(-e)), 1 / (1 + mpmath.exp(e))
        return mpmath.log(truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a)) / (a - 1)


def test_a_black_box_is_randomised_response_and_its_delta():
    for direction in ("remove", "add"):
        cost = truncated_costs(ApproximateDP(0.3, 1e-9), 18.0, 2.0)[direction]
        assert two_point(0.3, 18.0) <= cost.divergence <= two_point(0.3, 18.0) * (1 + 1e-8)
        assert 1e-9 <= cost.mass <= 1e-9 * (1 + 1e-6)


def test_neighbours_and_groups_are_those_of_the_accountant():
    plain = truncated_costs(Gaussian(10.0), 8.0, 3.0)
    for neighbours, group_size, noise in (
        ("replace-one", 1, 20.0),
        ("add-remove", 3, 30.0),
        ("replace-one", 2, 40.0),
    ):
        wide = truncated_costs(Gaussian(noise), 8.0, 3.0, neighbours, group_size)
        assert wide["add"].divergence == pytest.approx(plain["add"].divergence, rel=1e-4)
    sampled = truncated_costs(PoissonSampled(0.01, Gaussian(2.0)), 8.0, 1.0, "replace-one")
    assert sampled["remove"].divergence == pytest.approx(sampled["add"].divergence, rel=1e-4)


def untruncated(order):
    """The steps that plain Renyi divergences of this order leave room for."""
    price = renyi_divergence(SPARSE, order, "add-remove")
    return math.floor(renyi_limit(SPARSE_BUDGET.epsilon, SPARSE_BUDGET.delta, order) / Fraction(price))


def test_small_samples_get_twice_the_steps(sparse):
    """Rate 0.001, noise 1, (1, 1e-6): 26 581 steps with an exposure of 5 % in a prototype; 11 676 untruncated."""
    room = sparse.room({}, SPARSE)
    assert 26_600 < room < 27_500
    assert 11_676 <= max(untruncated(1 + order / 20) for order in range(100, 400)) < 11_800
    assert 0.9 < account(SPARSE * room).epsilon(1e-6) <= 1.0
    assert sparse.room({SPARSE: room}, SPARSE) == 0


def test_the_divergence_limit_alone_would_be_wrong():
    """The broken twin: it cuts off losses without counting them, and the certified curve convicts it."""
    rule, event = TruncatedRenyiFilter(SPARSE_BUDGET, 21.25, 0.05, 5e-9), Gaussian(20.0)
    uncounted = math.floor(rule.limits()[0] / rule.totals({event: 1})[0])
    assert account(event * uncounted).epsilon_bounds(1e-6).lower > 1.5
    assert rule.room({}, event) == 0


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "delta"),
    [(3e-4, 0.8, 0.5, 1e-7), (0.05, 3.0, 2.0, 1e-5), (0.3, 6.0, 4.0, 1e-8)],
)
def test_what_fits_is_within_the_budget(rate, noise, epsilon, delta):
    """Filled with two kinds of release; the certified curve is the second opinion."""
    event, other, budget = (
        PoissonSampled(rate, Gaussian(noise)),
        Laplace(60.0 / epsilon),
        Budget(epsilon, delta),
    )
    rule = TruncatedRenyiFilter.for_event(event, budget)
    spent = {other: 2}
    spent[event] = rule.room(spent, event)
    assert rule.room(spent, event) == rule.room(spent, other) == 0
    assert 0.6 * epsilon < account(event * spent[event] + other * 2).epsilon(delta, tolerance=0.02) <= epsilon


def test_every_event_of_the_accountant_has_a_price():
    rule = TruncatedRenyiFilter(Budget(2.0, 1e-6), 10.0, 2.0, 1e-7)
    swap = TruncatedRenyiFilter(Budget(2.0, 1e-6, "replace-one", 1), 10.0, 2.0, 1e-7)
    for event in (
        RandomlyAllocated(10, Gaussian(8.0)),
        ApproximateDP(0.05, 1e-9),
        PoissonSampled(0.1, Laplace(9.0)),
    ):
        assert 0 < account(event * rule.room({}, event)).epsilon(1e-6, tolerance=0.02) <= 2.0
    event = FixedSizeSampled(10, 1000, Gaussian(2.0))
    assert 1.0 < account(event * swap.room({}, event), "replace-one").epsilon(1e-6) <= 2.0
    with pytest.raises(UnsupportedEvent, match="fixed-size batches"):
        rule.room({}, event)


OFFERS = {  # what can be played: losses with their probability in the first world
    ApproximateDP(0.4): [(0.4, 1 / (1 + math.exp(-0.4))), (-0.4, 1 / (1 + math.exp(0.4)))],
    ApproximateDP(0.1, 5e-3): [
        (0.1, (1 - 5e-3) / (1 + math.exp(-0.1))),
        (-0.1, (1 - 5e-3) / (1 + math.exp(0.1))),
        (math.inf, 5e-3),
    ],
}


def best_play(allowed, epsilon):
    """The largest delta that a player reaches who picks each release by the losses so far; exact, by enumeration."""

    @cache
    def value(counts, loss):
        best = max(0.0, 1 - math.exp(epsilon - loss))
        for index, outcomes in enumerate(OFFERS.values()):
            after = tuple(count + (place == index) for place, count in enumerate(counts))
            if loss < math.inf and allowed(counts, index):
                best = max(best, sum(p * value(after, round(loss + step, 9)) for step, p in outcomes))
        return best

    return value((0,) * len(OFFERS), 0.0)


def test_no_adaptive_play_exceeds_the_budget_and_the_twin_is_caught():
    rule, events = TruncatedRenyiFilter(Budget(1.5, 0.05), 5.0, 3.0, 0.02), list(OFFERS)

    def spent(counts):
        return {event: count for event, count in zip(events, counts, strict=True) if count}

    def fits(counts, index):
        return rule.room(spent(counts), events[index]) > 0

    def careless(counts, index):  # the broken twin counts divergences only
        after = tuple(count + (place == index) for place, count in enumerate(counts))
        return rule.totals(spent(after))[0] <= rule.limits()[0]

    assert 0.01 < best_play(fits, 1.5) <= 0.05
    assert best_play(careless, 1.5) > 0.05


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ((math.nan, 1.0, 1e-8), "order"), ((1.0, 1.0, 1e-8), "order"), ((2e3, 0.1, 1e-8), "order"),
        ((20.0, math.nan, 1e-8), "cut"), ((20.0, 0.0, 1e-8), "cut"), ((20.0, 27.0, 1e-8), "cut"),
        ((20.0, 1.0, math.nan), "exposure"), ((20.0, 1.0, 0.0), "exposure"), ((20.0, 1.0, 1e-6), "exposure"),
        ((3.0, 1.0, 1e-8), "order"),
    ],
)  # fmt: skip
def test_numbers_are_checked(numbers, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        TruncatedRenyiFilter(SPARSE_BUDGET, *numbers)


def test_an_event_without_any_privacy_finds_no_filter():
    with pytest.raises(BudgetExceeded, match="use more noise"):
        TruncatedRenyiFilter.for_event(ApproximateDP(0.1, 0.5), Budget(1e-9, 1e-300))
    with pytest.raises(InvalidParameter, match="event="):
        truncated_costs("gaussian", 2.0, 1.0)


@pytest.mark.parametrize("rate", [1e-300, 1e-12, 0.5])
@pytest.mark.parametrize("noise", [1e-6, 1e-3, 1.0, 1e5, 1e300])
@pytest.mark.parametrize("group_size", [1, 3])
def test_extreme_events_have_a_price_above_zero(rate, noise, group_size):
    """Where no arithmetic follows, the price is infinite and there is no room; there is never a warning."""
    rule = TruncatedRenyiFilter(Budget(1.0, 1e-6, group_size=group_size), 21.0, 0.5, 1e-8)
    for event in (PoissonSampled(rate, Gaussian(noise)), Gaussian(noise), Laplace(noise)):
        with suppress(UnsupportedEvent):
            assert all(price > 0 for price in rule.prices(event))
            if noise < 1:  # who is in the sample is exposed
                chance = rate * group_size if isinstance(event, PoissonSampled) else 1.0
                assert rule.room({}, event) * chance <= 1e-8 * (1 + group_size * rate)
