"""The Laplace and the Gaussian mechanism: how much noise, what is promised, and what is never told."""

import math

import numpy as np
import pytest
from scipy import stats

import discreet
from discreet import gaussian_mechanism, laplace_mechanism
from discreet.accounting.curve import account
from discreet.core import mechanisms
from discreet.core.mechanisms import Release, certified_cost, gaussian_event, laplace_event
from discreet.core.noise import add_noise
from discreet.core.randomness import RandomStream
from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.events import Gaussian, Laplace
from discreet.guarantee import Budget
from support.conformance import THRESHOLD, suspicion

SIZE = 100_000


def seeded():
    return RandomStream(unsafe_seed=11)


# Standard deviations for sensitivity 1 by bisection of the exact curve in 40 digits (mpmath).
ANALYTIC = {
    (0.1, 1e-5): 30.7495661320,
    (0.25, 1e-8): 19.1253763555,
    (0.5, 1e-5): 7.0318266756,
    (1.0, 1e-3): 2.5746570186,
    (1.0, 1e-5): 3.7306316348,
    (1.0, 1e-6): 4.2246788893,
    (2.0, 1e-5): 1.9938124456,
    (3.0, 1e-5): 1.3905934567,
    (4.0, 1e-5): 1.0811618495,
    (8.0, 1e-5): 0.6002290722,
    (10.0, 1e-5): 0.4998886197,
    (1.0, 0.1): 1.0858777652,
    (0.5, 0.25): 0.9717923066,
}
# The formula of Dwork and Roth 2014, where it is proved.
CLASSIC = {
    (0.1, 1e-5): 48.4480526261,
    (0.25, 1e-8): 24.4254452866,
    (0.5, 1e-5): 9.6896105252,
    (0.5, 0.25): 3.5882451560,
}


@pytest.mark.parametrize(("point", "deviation"), ANALYTIC.items())
def test_analytic_noise(point, deviation):
    release = gaussian_mechanism(0.0, 1.0, *point)
    assert release.event.noise_multiplier == pytest.approx(deviation, rel=2e-10)
    assert release.guarantee.epsilon.upper <= point[0]
    assert release.guarantee.epsilon.lower >= point[0] * (1 - 1e-8)  # and nothing is wasted


@pytest.mark.parametrize(("point", "deviation"), CLASSIC.items())
def test_classic_noise_and_what_it_really_costs(point, deviation):
    release = gaussian_mechanism(0.0, 1.0, *point, method="classic")
    assert release.event.noise_multiplier == pytest.approx(deviation, rel=1e-10)
    assert release.guarantee.epsilon.upper < point[0]
    assert release.guarantee == account(Gaussian(release.event.noise_multiplier)).guarantee(point[1])


def curve(epsilon, mu):
    """Oracle: the delta of a Gaussian release, written down once more."""
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [1e-3, 0.03, 0.7, 1.0, 5.0, 30.0, 300.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.3])
def test_analytic_noise_serves_every_epsilon(epsilon, delta):
    noise = gaussian_mechanism(0.0, 1.0, epsilon, delta).event.noise_multiplier
    assert curve(epsilon, 1 / noise) <= delta * (1 + 1e-6)
    assert curve(epsilon, 1.0001 / noise) > delta


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 20.0])
def test_the_classic_formula_is_refused_outside_its_range(epsilon):
    with pytest.raises(InvalidParameter, match=r'^epsilon=.* below 1\. .*use method="analytic"\.$'):
        gaussian_mechanism(0.0, 1.0, epsilon, 1e-5, method="classic")


# The noise that is added. Streams are seeded; conformance.py states the false-alarm rate.


@pytest.mark.parametrize("method", ["analytic", "classic"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_gaussian_noise_is_added(method, neighbours):
    expected = (ANALYTIC if method == "analytic" else CLASSIC)[0.5, 1e-5] * 8.0
    zeros = np.zeros(SIZE)
    options = {"method": method, "neighbours": neighbours, "stream": seeded()}
    noise = gaussian_mechanism(zeros, 8.0, 0.5, 1e-5, **options).value / expected
    assert suspicion(noise) > THRESHOLD
    assert suspicion(0.98 * noise) < THRESHOLD


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_laplace_noise_is_added(neighbours):
    release = laplace_mechanism(np.zeros(SIZE), 3.0, 0.5, neighbours=neighbours, stream=seeded())
    assert stats.kstest(release.value / 6, "laplace", method="asymp").pvalue > THRESHOLD
    # Variance 2 (3 / 0.5)^2, whose estimate varies by 20 / SIZE times its square; false-alarm rate 6e-7.
    assert np.mean(release.value**2) == pytest.approx(72, rel=5 * (5 / SIZE) ** 0.5)
    assert stats.kstest(release.value / 6 * 0.96, "laplace", method="asymp").pvalue < THRESHOLD


def test_the_relation_labels_the_guarantee_and_leaves_the_noise():
    for run in (laplace_mechanism, lambda *a, **k: gaussian_mechanism(*a, 1e-6, **k)):
        one = run([1.0, 2.0], 3.0, 0.5, stream=seeded())
        other = run([1.0, 2.0], 3.0, 0.5, neighbours="replace-one", stream=seeded())
        assert one.value == pytest.approx(other.value, rel=1e-15)
        assert (one.guarantee.neighbours, other.guarantee.neighbours) == ("add-remove", "replace-one")
        assert one.guarantee.epsilon == other.guarantee.epsilon
        # Accounting an event under the other relation doubles what it costs.
        assert account(one.event, "replace-one").epsilon(1e-6) > 1.99 * 0.5


def test_laplace_costs_epsilon_and_no_delta():
    for epsilon in (1e-4, 0.1, 1 / 3, 1.0, 7.7):
        guarantee = laplace_mechanism(0.0, 1.0, epsilon).guarantee
        assert epsilon * (1 - 1e-10) <= guarantee.epsilon.upper <= epsilon
        assert guarantee.delta == 0


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("sensitivity", [1e-90, 0.1, 1 / 3, 7.0, 1e90])
def test_noise_is_scaled_to_exactly_the_sensitivity(monkeypatch, sensitivity, neighbours):
    seen = []

    def tap(total, event, stream, out=None):
        seen.append((total, event))
        return add_noise(total, event, stream, out=out)

    monkeypatch.setattr("discreet.trusted.permits.add_noise", tap)
    releases = [
        gaussian_mechanism([5.0], sensitivity, 1.0, 1e-6, neighbours=neighbours),
        laplace_mechanism([5.0], sensitivity, 1.0, neighbours=neighbours),
    ]
    units = 2 if neighbours == "replace-one" else 1
    for (total, event), release in zip(seen, releases, strict=True):
        assert total.clip_norm * units == sensitivity
        assert event == release.event
        assert release.guarantee == certified_cost(event, Budget(1.0, release.guarantee.delta, neighbours))


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("group_size", [1, 3])
def test_events_use_the_whole_budget(neighbours, group_size):
    rng = np.random.default_rng(0)
    for _ in range(100):
        epsilon, delta = 10 ** rng.uniform(-4, 2), 10 ** rng.uniform(-12, -1)
        budget = Budget(epsilon, delta, neighbours, group_size)
        for event in (gaussian_event(budget), laplace_event(budget)):
            upper = certified_cost(event, budget).epsilon.upper
            assert epsilon * (1 - 1e-6) <= upper <= epsilon


def test_more_than_the_budget_is_refused():
    budget = Budget(1.0, 1e-6)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        certified_cost(gaussian_event(budget) * 2, budget)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        certified_cost(gaussian_event(budget), budget, spare_delta=1e-9)


# What goes in and what comes out.


@pytest.mark.parametrize(
    "dtype", [bool, np.int32, np.int64, np.float16, np.float32, np.float64, np.longdouble]
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (4,), (2, 3), (0, 3)])
def test_any_numbers_in_float64_out(dtype, shape):
    for release in (
        laplace_mechanism(np.ones(shape, dtype), 1.0, 1.0),
        gaussian_mechanism(np.ones(shape, dtype), 1.0, 1.0, 1e-6),
    ):
        if shape == ():
            assert type(release.value) is float
        else:
            assert release.value.dtype == np.float64
            assert release.value.shape == shape


def test_the_value_is_the_statistic_plus_noise():
    noise = gaussian_mechanism(np.zeros(3), 1.0, 1.0, 1e-6, stream=seeded()).value
    values = [1, 20, -300]
    assert gaussian_mechanism(values, 1.0, 1.0, 1e-6, stream=seeded()).value == pytest.approx(noise + values)
    assert values == [1, 20, -300]


def test_a_release_says_what_it_is():
    release = laplace_mechanism(3.0, 1.0, 2.0)
    assert isinstance(release, Release)
    assert (release.arithmetic, release.trusted) == ("float", True)
    assert laplace_mechanism(3.0, 1.0, 2.0).value != release.value
    assert laplace_mechanism(3.0, 1.0, 2.0, stream=seeded()).trusted is False
    with pytest.raises(AttributeError):
        release.value = 3.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.longdouble("1e4000")])
def test_what_is_not_finite_counts_as_zero(bad):
    values = np.array([1.0, bad, 3.0], dtype=np.longdouble)
    for run in (laplace_mechanism, lambda *a, **k: gaussian_mechanism(*a, 1e-6, **k)):
        released = run(values, 1.0, 1.0, stream=seeded()).value
        assert np.array_equal(released, run([1.0, 0.0, 3.0], 1.0, 1.0, stream=seeded()).value)
        assert math.isfinite(run(bad, 1.0, 1.0).value)


def test_a_thousand_statistics_raise_and_warn_nothing():
    # Warnings are errors here, so the test fails on either.
    rng, special = np.random.default_rng(1), [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, -0.0]
    for _ in range(1000):
        shape = tuple(rng.integers(0, 4, size=rng.integers(0, 3)))
        values = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-300, 300))
        values = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), values)
        sensitivity = 10.0 ** rng.integers(-50, 50)
        for release in (
            laplace_mechanism(values, sensitivity, 0.1),
            gaussian_mechanism(values, sensitivity, 0.1, 1e-9),
        ):
            assert np.shape(release.value) == shape
            assert np.all(np.isfinite(release.value))
            assert isinstance(release.value, np.ndarray if shape else float)


# Refusals.

NUMBERS = [math.nan, math.inf, -1.0, 0.0, True, "1", None, [1.0], 1j]


@pytest.mark.parametrize("bad", [*NUMBERS, 1e300, 1e-300])
def test_bad_sensitivities(bad):
    for run in (laplace_mechanism, lambda *a: gaussian_mechanism(*a, 1e-6)):
        with pytest.raises(
            InvalidParameter, match=r"^sensitivity=.*It is the most by which the value differs"
        ):
            run(1.0, bad, 1.0)


@pytest.mark.parametrize("bad", NUMBERS)
def test_bad_epsilons(bad):
    for run in (
        lambda e: laplace_mechanism(1.0, 1.0, e),
        lambda e: gaussian_mechanism(1.0, 1.0, e, 1e-6),
        lambda e: gaussian_mechanism(1.0, 1.0, e, 1e-6, method="classic"),
    ):
        with pytest.raises(InvalidParameter, match=r"^epsilon="):
            run(bad)


@pytest.mark.parametrize("bad", [*NUMBERS, 1.0, 2.0])
def test_bad_deltas(bad):
    for method in ("analytic", "classic"):
        with pytest.raises(InvalidParameter, match=r"^delta="):
            gaussian_mechanism(1.0, 1.0, 0.5, bad, method=method)


def test_epsilons_that_cannot_be_certified():
    for epsilon in (1e9, 1e300):
        with pytest.raises(InvalidParameter, match=r"^epsilon=.* beyond what can be certified"):
            gaussian_mechanism(1.0, 1.0, epsilon, 1e-6)


@pytest.mark.parametrize("bad", ["gauss", None, 1, ("classic",)])
def test_bad_names(bad):
    with pytest.raises(InvalidParameter, match=r"^method="):
        gaussian_mechanism(1.0, 1.0, 0.5, 1e-6, method=bad)
    with pytest.raises(InvalidParameter, match=r"^neighbours="):
        laplace_mechanism(1.0, 1.0, 0.5, neighbours=bad)
    if bad is not None:
        with pytest.raises(InvalidParameter, match=r"^stream="):
            laplace_mechanism(1.0, 1.0, 0.5, stream=bad)


@pytest.mark.parametrize(
    "bad", ["secret", ["secret"], None, 1j, [[1.0], [2.0, 31337.0]], object(), {"a": 31337}]
)
def test_bad_values_are_refused_by_their_type_and_not_shown(bad):
    with pytest.raises(InvalidParameter, match=r"^value") as caught:
        laplace_mechanism(bad, 1.0, 1.0)
    assert "secret" not in str(caught.value)
    assert "31337" not in str(caught.value)


def test_laplace_events_are_laplace():
    assert isinstance(laplace_event(Budget(0.5, 1e-6)), Laplace)
    assert laplace_event(Budget(0.5, 0.0, "replace-one", group_size=3)).scale == pytest.approx(12, rel=1e-10)


@pytest.mark.parametrize("name", ["gaussian_mechanism", "laplace_mechanism"])
def test_the_names_of_before_are_found_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=f"write `from discreet import {name}`"):
        assert getattr(mechanisms, name) is getattr(discreet, name)
    with pytest.raises(AttributeError, match="no attribute 'mean'"):
        mechanisms.mean  # noqa: B018
