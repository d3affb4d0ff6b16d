"""The curve as a whole: epsilon and delta fit together, every argument acts in its direction, attackers obey."""

from itertools import pairwise

import mpmath
import numpy as np
import pytest

from discreet import (
    AccuracyNotReached,
    ApproximateDP,
    Bounds,
    Budget,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    account,
)
from discreet.accounting import certified_bounds, search
from discreet.accounting.gaussian import gaussian_delta
from discreet.accounting.power import power_bound
from support import accounting_reference as ref
from support.laplace_curve import laplace_delta, laplace_power


def poisson(noise=1.0, rate=0.01, steps=1000):
    return PoissonSampled(rate, Gaussian(noise)) * steps


EVENTS = {
    "poisson": (poisson(), {}),
    "one poisson": (poisson(steps=1), {}),
    "replace-one": (poisson(), {"neighbours": "replace-one"}),
    "group": (poisson(2.0), {"group_size": 3}),
    "fixed size": (FixedSizeSampled(10, 1000, Gaussian(2.0)) * 300, {"neighbours": "replace-one"}),
    "allocated": (RandomlyAllocated(50, Gaussian(1.0)) * 4, {}),
    "gaussian": (Gaussian(2.0) * 5, {}),
    "laplace": (Laplace(1.0), {}),
    "laplaces": (Laplace(20.0) * 50, {}),
    "sampled laplace": (PoissonSampled(0.05, Laplace(0.5)) * 200, {}),
    "black boxes": (ApproximateDP(0.2, 1e-8) * 30, {}),
    "mixture": (poisson(2.0, 0.02, 200) + Laplace(30.0) * 3 + ApproximateDP(0.1, 1e-9) + Gaussian(8.0), {}),
}
every_event = pytest.mark.parametrize(("event", "relation"), EVENTS.values(), ids=EVENTS)


@every_event
def test_delta_undoes_epsilon(event, relation):
    """delta at the proved epsilon is proved to be at most delta, up to the two tolerances; and below it is more."""
    curve = account(event, **relation)
    for delta in (1e-3, 1e-6):
        lower, upper = curve.epsilon_bounds(delta)
        if upper == 0:
            continue
        assert curve.delta_bounds(upper).lower <= delta
        assert curve.delta_bounds(lower).upper >= delta


@every_event
def test_epsilon_and_delta_are_the_upper_ends(event, relation):
    curve = account(event, **relation)
    assert curve.epsilon(1e-6) == curve.epsilon_bounds(1e-6).upper
    assert curve.delta(0.5) == curve.delta_bounds(0.5).upper
    assert all(
        type(end) is float
        for end in (*curve.epsilon_bounds(1e-6), *curve.delta_bounds(0.5), curve.advantage())
    )
    assert all(type(end) is float for end in curve.power_bounds(0.01))


@every_event
def test_the_curve_falls(event, relation):
    curve = account(event, **relation)
    epsilons = [curve.epsilon_bounds(delta) for delta in (1e-9, 1e-7, 1e-5, 1e-3, 0.1)]
    for smaller, larger in pairwise(epsilons):
        assert larger.lower <= smaller.upper
    deltas = [curve.delta_bounds(epsilon) for epsilon in (0.0, 0.1, 0.5, 2.0)]
    for near, far in pairwise(deltas):
        assert far.lower <= near.upper
        assert 0 <= far.lower <= far.upper <= 1


@every_event
def test_finer_tolerances_stay_inside_coarser_ones(event, relation):
    curve = account(event, **relation)
    coarse, fine = curve.epsilon_bounds(1e-6, tolerance=0.03), curve.epsilon_bounds(1e-6, tolerance=1e-4)
    assert coarse.lower <= fine.upper
    assert fine.lower <= coarse.upper
    assert fine.upper - fine.lower <= 1e-4 * max(fine.upper, 1e-4)


def test_closed_forms_of_single_releases():
    for scale in (0.5, 1.0, 7.0):
        curve = account(Laplace(scale))
        assert curve.epsilon_bounds(0.0) == pytest.approx((1 / scale, 1 / scale), rel=1e-13)
        for epsilon in (0.0, 0.3 / scale, 0.99 / scale, 1.1 / scale):
            lower, upper = curve.delta_bounds(epsilon)
            exact = laplace_delta(epsilon, scale)
            assert lower <= exact <= upper * (1 + 1e-13) + 1e-299
            assert upper - lower < 1e-11
    for epsilon in (0.0, 1.0, 5.0):
        lower, upper = account(Gaussian(1.0)).delta_bounds(epsilon)
        assert lower <= gaussian_delta(epsilon, 1.0) <= upper


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (Laplace(2.0) * 6, 3.0),
        (PoissonSampled(0.1, Laplace(1.0)) * 5, 5 * np.log1p(0.1 * np.expm1(1.0))),
        (ApproximateDP(0.3) * 7, 2.1),
        (Laplace(4.0) * 2 + ApproximateDP(0.25) * 4, 1.5),
    ],
)
def test_pure_privacy(event, epsilon):
    curve = account(event)
    lower, upper = curve.epsilon_bounds(0.0)
    assert lower <= epsilon * (1 + 1e-14)
    assert epsilon * (1 - 1e-14) <= upper
    assert upper == pytest.approx(epsilon, rel=1e-12)
    assert curve.delta_bounds(epsilon * 1.001) == (0.0, 0.0)
    assert curve.delta_bounds(epsilon * 0.9, tolerance=0.5).upper > 0
    assert curve.epsilon(1e-50) <= upper


@pytest.mark.parametrize(
    "event", [Gaussian(1.0), poisson(), poisson() + Laplace(1.0), RandomlyAllocated(10, Gaussian(1.0))]
)
def test_gaussian_noise_is_never_pure(event):
    assert account(event).epsilon_bounds(0.0) == (np.inf, np.inf)


def test_full_exposure_is_infinite_below_its_probability():
    curve = account(ApproximateDP(0.5, 1e-3) * 2)
    exposure = 1 - (1 - 1e-3) ** 2
    assert curve.epsilon_bounds(exposure * 0.999) == (np.inf, np.inf)
    assert curve.epsilon_bounds(exposure * 1.001).upper <= 1.0 + 1e-12
    assert curve.delta_bounds(1.0) == pytest.approx((exposure, exposure), rel=1e-12)
    lower, upper = curve.delta_bounds(0.0)
    response = 1 / (1 + np.exp(-0.5))
    exact = exposure + (1 - exposure) * (response**2 - (1 - response) ** 2)
    assert lower <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= upper


def proved(question, value):
    """The bounds, also where they are wider than was asked for."""
    try:
        return question(value)
    except AccuracyNotReached as error:
        return Bounds(*error.bounds)


@pytest.mark.parametrize("noise", [1e6, 1e10, 1e13, 1e16, 1e200])
def test_hardly_any_loss_is_enclosed(noise):
    """delta(0) of a Gaussian is mu / sqrt(2 pi) for small mu; no floor may lift the lower end or drop the upper."""
    curve = account(Gaussian(noise))
    lower, upper = proved(curve.delta_bounds, 0.0)
    assert lower <= 0.3989422804014327 / noise * (1 + 1e-9)
    assert 0.3989422804014327 / noise * (1 - 1e-9) <= upper < 1e-6
    lower, upper = proved(curve.epsilon_bounds, 0.5 / noise)
    assert lower == 0
    assert upper < 1e-6


def test_nothing_but_a_coin():
    curve = account(ApproximateDP(0.0, 1e-4) * 3)
    assert curve.epsilon_bounds(1e-3) == (0.0, 0.0)
    assert curve.epsilon_bounds(1e-5) == (np.inf, np.inf)
    assert curve.delta(0.0) == pytest.approx(1 - (1 - 1e-4) ** 3, rel=1e-12)
    assert account(ApproximateDP(0.0) * 9).epsilon_bounds(0.0) == (0.0, 0.0)
    assert account(ApproximateDP(0.0) * 9).epsilon_bounds(1e-30).lower == 0
    assert account(ApproximateDP(0.0) * 9).delta_bounds(0.0).lower == 0


def test_an_unreachable_tolerance_raises_with_sound_bounds(monkeypatch):
    """On a machine with room for 300 grid points only."""
    exact = account(poisson()).epsilon_bounds(1e-6)
    monkeypatch.setattr("discreet.accounting.grids.LARGEST", 300)
    monkeypatch.setattr("discreet.accounting.search.FINEST", 1.0)
    with pytest.raises(AccuracyNotReached, match="tolerance") as raised:
        account(poisson()).epsilon_bounds(1e-6, tolerance=1e-3)
    lower, upper = raised.value.bounds
    assert lower <= exact.lower <= exact.upper <= upper
    assert account(poisson()).epsilon_bounds(1e-6) == (lower, upper)


def test_a_guarantee_carries_its_relation():
    guarantee = account(poisson(), "replace-one", group_size=1).guarantee(1e-5)
    assert (guarantee.neighbours, guarantee.group_size, guarantee.delta) == ("replace-one", 1, 1e-5)
    assert guarantee.within(Budget(3.0, 1e-5, "replace-one"))
    assert not guarantee.within(Budget(2.8, 1e-5, "replace-one"))


def test_the_curve_shows_its_event():
    assert repr(account(Gaussian(1.0))) == (
        "PrivacyCurve(Gaussian(noise_multiplier=1.0), neighbours='add-remove', group_size=1)"
    )


def grows(smaller, larger, delta=1e-6, strictly=True):
    """The dearer event is never proved cheaper; where they are far apart, it is proved dearer."""
    cheap, dear = (curve.epsilon_bounds(delta) for curve in (smaller, larger))
    return cheap.lower <= dear.upper and (not strictly or cheap.upper < dear.lower)


BASE = {"noise": 1.0, "rate": 0.01, "steps": 1000}


@pytest.mark.parametrize("relation", [{}, {"neighbours": "replace-one"}, {"group_size": 2}])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("noise", (3.0, 1.5, 1.0, 0.999, 0.6)),
        ("rate", (1e-3, 0.01, 0.01001, 0.1, 0.5)),
        ("steps", (10, 1000, 1001, 20_000)),
    ],
)
def test_noise_rate_and_steps(name, values, relation):
    curves = [account(poisson(**BASE | {name: value}), **relation) for value in values]
    for value, following, one, other in zip(values[:-1], values[1:], curves[:-1], curves[1:], strict=True):
        assert grows(one, other, strictly=max(value, following) > 1.05 * min(value, following))


def test_group_size():
    curves = [account(poisson(2.0), group_size=size) for size in (1, 2, 3, 6)]
    assert all(grows(one, other) for one, other in pairwise(curves))
    assert grows(account(poisson(), group_size=1), account(poisson(), "replace-one"))
    assert grows(account(poisson(), "replace-one"), account(poisson(), "replace-one", group_size=2))


def test_replacing_costs_at_most_a_group_of_two():
    """One leaves and one joins; two who leave together are worse."""
    assert grows(account(poisson(), "replace-one"), account(poisson(), group_size=2), strictly=False)


def test_fixed_size_grows_with_the_batch_and_epochs():
    def fixed(batch, steps):
        return account(FixedSizeSampled(batch, 1000, Gaussian(4.0)) * steps, "replace-one")

    assert grows(fixed(5, 100), fixed(10, 100))
    assert grows(fixed(10, 100), fixed(10, 150))
    assert grows(fixed(10, 100), account(Gaussian(4.0) * 100, "replace-one"))


def test_more_steps_hide_a_record_better():
    curves = [account(RandomlyAllocated(steps, Gaussian(1.0))) for steps in (400, 100, 20, 2, 1)]
    assert all(grows(one, other) for one, other in pairwise(curves))


def test_adding_a_release_never_helps():
    curve = account(poisson())
    for extra in (
        Laplace(1000.0),
        Gaussian(1000.0),
        ApproximateDP(1e-3),
        ApproximateDP(0.0, 1e-8),
        poisson(50.0, 1e-4, 1),
    ):
        assert grows(curve, account(poisson() + extra), strictly=False)


@every_event
def test_power_is_a_roc_curve(event, relation):
    """From 0 to 1, increasing, concave, above the diagonal, and no better than every (epsilon, delta) allows."""
    curve = account(event, **relation)
    alarms = np.array([0.0, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.99, 1.0])
    bounds = [curve.power_bounds(float(a)) for a in alarms]
    lower, upper = (np.array(ends) for ends in zip(*bounds, strict=True))
    assert np.all((alarms <= lower) & (lower <= upper) & (upper <= 1))
    assert upper[0] <= curve.delta(0.0)
    assert lower[-1] == 1
    assert np.all(np.diff(upper) >= -1e-9)
    middle = np.interp(alarms[1:-1], alarms[::2], lower[::2])
    assert np.all(upper[1:-1] >= middle - 1e-12)  # concave: no chord between lower bounds lies above
    for delta in (1e-6, 1e-3):
        epsilon = curve.epsilon(delta)
        allowed = np.array([power_bound(epsilon, delta, float(a)) for a in alarms])
        assert np.all(lower <= allowed * (1 + 1e-9))
    for epsilon in (0.0, 1.0):  # hit rate - e^epsilon * false alarms is at most delta(epsilon)
        assert np.all(lower - np.exp(epsilon) * alarms <= curve.delta(epsilon) + 1e-12)


@every_event
def test_power_bounds_are_tight(event, relation):
    curve = account(event, **relation)
    for alarms in (1e-3, 0.01, 0.1, 0.5):
        lower, upper = curve.power_bounds(alarms)
        assert upper - lower <= 0.02 * upper


@every_event
def test_advantage_is_delta_at_zero(event, relation):
    """And the largest distance of the ROC curve from the diagonal."""
    curve = account(event, **relation)
    assert curve.advantage() == curve.delta(0.0)
    distance = max(curve.power_bounds(float(a)).lower - a for a in np.linspace(0.02, 0.98, 25))
    assert 0.9 * curve.delta_bounds(0.0).lower - 2e-3 <= distance <= curve.advantage() * (1 + 1e-9)


@pytest.mark.parametrize("noise", [0.2, 1.0, 30.0])
def test_power_of_a_gaussian(noise):
    """Phi(Phi^-1(alarms) + mu), in forty digits; rounding may not eat the lower end either."""
    curve = account(Gaussian(noise))
    for alarms in (1e-300, 1e-9, 1e-3, 0.3, 0.9):
        lower, upper = curve.power_bounds(alarms)
        with mpmath.workdps(40):
            start = float(-mpmath.sqrt(-2 * mpmath.log(alarms))) if alarms < 0.1 else 0.0
            quantile = mpmath.findroot(lambda z, a=alarms: mpmath.log(mpmath.ncdf(z) / mpmath.mpf(a)), start)
            exact = mpmath.ncdf(quantile + 1 / mpmath.mpf(noise))
        assert lower <= exact <= upper
        assert upper - lower <= 1e-11 * upper


@pytest.mark.parametrize("scale", [0.5, 1.0, 20.0])
def test_power_of_a_laplace_release(scale):
    for alarms in (0.0, 1e-9, 1e-3, 0.1, 0.3, 0.5, 0.7, 1.0):
        lower, upper = account(Laplace(scale)).power_bounds(alarms)
        exact = laplace_power(alarms, scale)
        assert lower <= exact <= upper + 1e-12
        assert upper - lower <= 0.01 * exact + 1e-9


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 0.1), (0.0, 0.3), (30.0, 1e-6)])
def test_power_of_a_black_box(epsilon, delta):
    curve = account(ApproximateDP(epsilon, delta))
    for alarms in (0.0, 1e-6, 0.01, 0.2, 0.6, 0.95, 1.0):
        lower, upper = curve.power_bounds(alarms)
        exact = power_bound(epsilon, delta, alarms)
        assert lower <= exact * (1 + 1e-12)
        assert exact <= upper * (1 + 1e-12)
        assert upper - lower <= 0.01 * exact + 1e-9


def test_power_of_a_single_sampled_release():
    """Likelihood-ratio tests reject on half lines: hit rate and false alarms are normal tails."""
    curve, one = account(poisson(0.8, 0.2, 1)), ref.SampledCurve(ref.GaussianCurve(1 / 0.8), 0.2)
    for threshold in (-0.15, 0.0, 0.5, 2.0):
        hits, alarms = (float(mass) for mass in one.tails(np.float64(threshold)))
        missed, kept = (
            float(mass) for mass in one.lower(np.float64(threshold))
        )  # the other direction's test
        assert curve.power_bounds(alarms).upper >= hits * (1 - 1e-12)
        assert curve.power_bounds(missed).upper >= kept * (1 - 1e-12)


@pytest.mark.parametrize(
    "event",
    [
        poisson(0.2, 1e-3, 10**5),
        ApproximateDP(50.0, 1e-7) * 10 + Gaussian(2.0),
        Laplace(0.01) * 10,
        poisson(0.2, 0.5, 1000),
    ],
)
def test_power_where_there_is_no_privacy(event):
    """An attacker knows nearly everything; no overflow, and bounds that stay probabilities."""
    curve = account(event)
    for alarms in (0.0, 1e-9, 0.1, 1.0):
        lower, upper = curve.power_bounds(alarms)
        assert alarms <= lower <= upper <= 1
    assert curve.power(0.1) > 0.99


@pytest.mark.parametrize("name", ["poisson", "replace-one", "gaussian", "laplaces"])
def test_many_deltas_are_upper_bounds_and_close(name):
    event, options = EVENTS[name]
    curve, epsilons = account(event, **options), [0.0, 0.3, 1.0]
    for found, epsilon in zip(curve.deltas(epsilons), epsilons, strict=True):
        exact = curve.delta_bounds(epsilon)
        assert exact.lower <= found <= 1.01 * exact.upper + 1e-9


def test_an_attack_on_very_much_noise_is_nearly_a_guess():
    """Where the untilted lattice shows nothing, delta(0) still bounds the attacker."""
    curve = account(PoissonSampled(0.1, Gaussian(4000.0)) * 100)
    for alarms in (0.001, 0.1, 0.9):
        found = curve.power_bounds(alarms)
        assert alarms <= found.lower <= found.upper <= alarms + 1.1e-4
    assert curve.deltas([0.0, 1.0])[0] == curve.advantage()


@every_event
def test_many_deltas_at_once(event, relation):
    """Both bounds hold for the same number, and are as close."""
    curve, deltas = account(event, **relation), [1e-6, 1e-2, 1e-9, 1e-5, 1e-6, 3e-4]
    for delta, many in zip(deltas, curve.epsilons(deltas), strict=True):
        alone = curve.epsilon_bounds(delta)
        assert many.lower <= alone.upper
        assert alone.lower <= many.upper
        assert many == alone or many.upper - many.lower <= max(
            1.001e-3 * max(many.upper, 1e-4), alone.upper - alone.lower
        )


def test_one_grid_serves_many_deltas(monkeypatch):
    made = []
    build = certified_bounds.build
    for module in (certified_bounds, search):
        monkeypatch.setattr(module, "build", lambda *args, **words: made.append(1) or build(*args, **words))
    deltas = np.geomspace(1e-7, 1e-4, 10)
    found = account(poisson()).epsilons(deltas)
    assert len(made) <= 6  # two directions, three grids; one by one they are twenty
    assert all(before.upper > after.upper for before, after in pairwise(found))
    # A grid for another delta would be caught: its bounds do not hold one delta further.
    assert found[0].lower > found[1].upper
    assert account(poisson()).epsilons([0.0, 0.5])[0] == (np.inf, np.inf)
    with pytest.raises(InvalidParameter, match="deltas"):
        account(poisson()).epsilons([1e-5, np.nan])
