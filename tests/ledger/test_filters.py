"""The spending rules: their check values, their exactness, and what they refuse."""

import json
import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import (
    Budget,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    UnsupportedEvent,
    account,
)
from discreet.accounting.gaussian import gaussian_epsilon_bounds
from discreet.accounting.renyi import renyi_divergence
from discreet.ledger import FixedPlan, GaussianFilter, TruncatedRenyiFilter
from discreet.ledger.filters import SpendingRule, renyi_limit

BUDGET = Budget(1.0, 1e-5)
STEP = PoissonSampled(0.01, Gaussian(4.0))
RULES = [
    FixedPlan(STEP * 7 + Laplace(30.0), BUDGET),
    GaussianFilter(BUDGET),
    TruncatedRenyiFilter(BUDGET, 17.5, 0.25, 1e-7),
]


def test_a_fixed_plan_counts_each_kind_of_event():
    rule = FixedPlan(STEP * 10 + Gaussian(50.0) * 3, BUDGET)
    assert rule.room({}, STEP) == 10
    assert rule.room({STEP: 4}, STEP) == 6
    assert rule.room({STEP: 4}, Gaussian(50.0)) == 3
    assert rule.room({STEP: 4, Gaussian(50.0): 1}, STEP * 2 + Gaussian(50.0)) == 2
    assert rule.room({}, Gaussian(51.0)) == 0
    assert rule.room({}, STEP + Gaussian(51.0)) == 0


def test_a_fixed_plan_promises_the_whole_plan_however_early_it_stops():
    rule = FixedPlan(STEP * 10, BUDGET)
    assert rule.guarantee({}) == rule.guarantee({STEP: 3}) == account(STEP * 10).guarantee(1e-5)


def test_gaussian_check_values():
    """28 releases of mu = 0.05, for mu*(1, 1e-5)^2 = 0.268051123^2 = 28.74 * 0.05^2 (Balle and Wang 2018)."""
    rule = GaussianFilter(BUDGET, spare=0.0)
    assert math.sqrt(rule.limits()[0]) == pytest.approx(0.268051123, rel=1e-8)
    assert rule.room({}, Gaussian(20.0)) == 28
    assert rule.room({Gaussian(20.0): 28}, Gaussian(20.0)) == 0
    spent = {Gaussian(10.0): 3}
    assert (rule.room(spent, Gaussian(1 / 0.204576160)), rule.room(spent, Gaussian(1 / 0.204576158))) == (
        0,
        1,
    )


@pytest.mark.parametrize(
    ("neighbours", "group_size"), [("add-remove", 3), ("replace-one", 1), ("replace-one", 2)]
)
def test_the_gaussian_filter_knows_neighbours_and_groups(neighbours, group_size):
    wide = GaussianFilter(Budget(1.0, 1e-5, neighbours, group_size))
    reach = group_size * (2 if neighbours == "replace-one" else 1)
    assert wide.room({}, Gaussian(20.0 * reach)) == 28
    assert wide.room({}, Gaussian(20.0 * reach) * 2) == 14


noise = st.floats(5.0, 500.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(noise, st.integers(1, 20)), max_size=4), noise, st.floats(0.2, 8.0))
def test_the_gaussian_filter_is_exact(earlier, next_noise, epsilon):
    """Filled to the last release it is within the budget; one more is not (closed form)."""
    rule, spent = GaussianFilter(Budget(epsilon, 1e-6), spare=0.0), {}
    for level, count in earlier:
        event = Gaussian(level)
        spent[event] = spent.get(event, 0) + min(count, rule.room(spent, event))
    event = Gaussian(next_noise)
    room = rule.room(spent, event)
    spent[event] = spent.get(event, 0) + room
    assert rule.room(spent, event) == 0

    def mu(extra):
        return math.sqrt(sum(n / e.noise_multiplier**2 for e, n in spent.items()) + extra / next_noise**2)

    if mu(0) > 0:
        assert gaussian_epsilon_bounds(1e-6, mu(0)).lower <= epsilon
    assert gaussian_epsilon_bounds(1e-6, mu(1)).upper > epsilon


def test_extreme_noise_is_priced_safely():
    rule = GaussianFilter(BUDGET)
    assert rule.room({}, Gaussian(1e-300)) == 0
    assert rule.room({}, Gaussian(1e-300) + Gaussian(100.0)) == 0
    assert (
        0 < rule.room({}, Gaussian(1e300)) < 1e323
    )  # a price of 1e-600 counts as the smallest number above 0


def test_renyi_check_value():
    """Order 18, rate 0.01, noise 4, (1, 1e-5): 9375 steps (binomial moments, Mironov, Talwar, Zhang 2019)."""
    price = Fraction(renyi_divergence(STEP, 18, "add-remove"))
    assert renyi_limit(1.0, 1e-5, 18) // price == 9375


def exact_limit(epsilon, delta, order):
    with mpmath.workdps(50):
        e, d, a = (mpmath.mpf(value) for value in (epsilon, delta, order))
        return e - mpmath.log(1 - 1 / a) + (mpmath.log(d) + mpmath.log(a)) / (a - 1)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.05, 20.0), st.floats(1e-12, 1e-3), st.floats(1.01, 1e5))
def test_the_renyi_limit_is_the_conversion_rounded_down(epsilon, delta, order):
    exact = exact_limit(epsilon, delta, order)
    limit = renyi_limit(epsilon, delta, order)
    with mpmath.workdps(50):
        computed = mpmath.mpf(limit.numerator) / limit.denominator
        assert computed <= exact < computed + 1e-12 * (1 + abs(math.log(delta)) / (order - 1))


def test_prices_add_up_over_kinds_of_events():
    rule = TruncatedRenyiFilter(Budget(3.0, 1e-6), 6, 1.0, 1e-7)
    spent = {STEP: 1000, Gaussian(20.0): 30, Laplace(40.0): 10}
    gone = [sum(n * Fraction(rule.prices(event)[i]) for event, n in spent.items()) for i in range(4)]
    fits = zip(rule.limits(), gone, rule.prices(Gaussian(30.0)), strict=True)
    assert rule.room(spent, Gaussian(30.0)) == min(
        math.floor((limit - before) / Fraction(price)) for limit, before, price in fits
    )
    event = STEP * 5 + Laplace(40.0)
    filled = spent | {STEP: 1000 + 5 * rule.room(spent, event), Laplace(40.0): 10 + rule.room(spent, event)}
    assert rule.room(filled, event) == 0
    assert all(total <= limit for total, limit in zip(rule.totals(filled), rule.limits(), strict=True))


@pytest.mark.parametrize("order", [float("nan"), 1, 0.5, math.inf, True, "18", 2e6])
def test_orders_are_checked(order):
    with pytest.raises(InvalidParameter, match="order="):
        TruncatedRenyiFilter(BUDGET, order, 0.25, 1e-7)


def test_an_order_without_room_is_refused():
    with pytest.raises(InvalidParameter, match=r"order=2\.0: at this order the budget has room for nothing"):
        TruncatedRenyiFilter(BUDGET, 2, 0.25, 1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_rules_survive_json(rule):
    assert SpendingRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@pytest.mark.parametrize("data", [None, 3, {}, {"rule": "some order fits"}, {"rule": "renyi-filter"}])
def test_what_is_not_a_rule_is_refused(data):
    with pytest.raises(InvalidParameter, match=r"rule=.*known kinds are fixed-plan, gaussian-filter, trunc"):
        SpendingRule.from_dict(data)


@pytest.mark.parametrize(
    "kind",
    [
        GaussianFilter,
        lambda budget: TruncatedRenyiFilter(budget, 18, 0.25, 1e-7),
        lambda budget: TruncatedRenyiFilter.for_event(STEP, budget),
    ],
)
def test_filters_need_a_delta(kind):
    with pytest.raises(InvalidParameter, match="delta=0"):
        kind(Budget(1.0, 0.0))
    with pytest.raises(InvalidParameter, match="budget=1"):
        kind(1.0)


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(
        UnsupportedEvent, match="holds only Gaussian releases, not PoissonSampled; use a TruncatedRenyiFilter"
    ):
        GaussianFilter(BUDGET).room({}, STEP)


def test_a_filter_promises_its_budget_and_shows_what_is_gone():
    rule = TruncatedRenyiFilter(BUDGET, 18, 0.25, 1e-7)
    assert rule.guarantee({}).epsilon == (0.0, 1.0)
    guarantee = rule.guarantee({STEP: 5000})
    assert guarantee.epsilon.upper == 1.0
    assert guarantee.epsilon.lower == account(STEP * 5000).epsilon_bounds(1e-5).lower
    assert rule.guarantee({STEP: 10**6}).epsilon.lower == 1.0
