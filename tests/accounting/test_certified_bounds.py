"""Certified bounds of one direction, against contour integrals, nested quadrature and closed forms."""

import numpy as np
import pytest

from discreet.accounting.curve import account
from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.gaussian import gaussian_delta, gaussian_epsilon_bounds
from discreet.accounting.optimistic import refuted_epsilon
from discreet.accounting.pairs import DiscretePair, GaussianPair, LaplacePair, Reversed, Sampled
from discreet.accounting.sampled_pairs import FixedSize, GroupPair
from discreet.accounting.search import proved_epsilon
from discreet.events import Gaussian, PoissonSampled
from discreet.lecture.composition import optimal_composition, optimal_composition_delta
from support import accounting_reference as ref
from support import compositions
from support.compositions import one_step

DIRECTIONS = ("remove", "add")


def composed(pair, count):
    return compositions.composed([LossDistribution(pair, pair, count)])


def sampled(noise, rate, direction):
    pair = Sampled(GaussianPair(1 / noise), rate)
    return pair if direction == "remove" else Reversed(pair)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "epsilon"), [(1.0, 0.05, 60, 0.4), (4.0, 0.2, 200, 1.0), (0.7, 0.1, 40, 2.0)]
)
def test_the_contour_integral_agrees_with_a_fine_grid(noise, rate, steps, epsilon, direction):
    """Two methods without a common step; they differ by less than one part in a million."""
    fine = ref.useful([(ref.sampled_gaussian(noise, rate, direction, 1e-24, 8.0), steps)])
    composition = ref.Composition(ref.useful([(ref.sampled_gaussian(noise, rate, direction, 1e-24), steps)]))
    tilt = composition.line(epsilon)
    grid = ref.Grid(fine, tilt, 2**16, ref.window(composition, tilt)).delta(epsilon)
    assert ref.contour_delta(composition, epsilon) == pytest.approx(grid, rel=1e-6)


def test_the_references_agree_with_closed_forms():
    atoms = ref.sampled_gaussian(20.0, 1.0, tail=1e-40)
    value = ref.contour_delta(ref.Composition([(atoms, 400)]), 2.0)
    assert value == pytest.approx(gaussian_delta(2.0, 1.0), rel=1e-10)
    curve = ref.SampledCurve(ref.GaussianCurve(1.0), 1.0)
    assert ref.twofold(curve, 1.0, 1.0, "remove", 1.0, 1e-30) == pytest.approx(
        gaussian_delta(1.0, 2**0.5), rel=1e-10
    )


def test_a_wrong_number_in_the_literature_is_not_repeated():
    """delta(2) of noise 4, rate .01, 10 000 steps is 2.646e-16. An FFT without tilt gives 1.3e-13: rounding noise."""
    value = ref.delta(
        lambda tail, fine: [ref.sampled_gaussian(4.0, 0.01, "remove", tail, fine)], [10_000], 2.0, 1e-16
    )
    assert value.delta == pytest.approx(2.646093277e-16, rel=1e-8)
    lower, upper = composed(sampled(4.0, 0.01, "remove"), 10_000).delta_bounds(2.0, 1e-3)
    assert lower <= value.delta <= upper


def settings(count, seed):
    """Noise 0.3 to 30, rate 1e-5 to 1, 2 to 100 000 steps, delta 1e-12 to 1e-3.

    With 3 and more steps a record takes part at least 0.1 times on average, or the references lose their digits.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        noise, steps = 10 ** rng.uniform(np.log10(0.3), np.log10(30)), int(10 ** rng.uniform(np.log10(2), 5))
        rate = 10 ** rng.uniform(-5 if steps == 2 else max(np.log10(0.1 / steps), -5), 0)
        yield noise, rate, steps, 10 ** rng.uniform(-12, -3)


def reference_delta(noise, rate, steps, direction, epsilon, scale):
    if steps == 2:
        curve = ref.SampledCurve(ref.GaussianCurve(1 / noise), rate)
        curve = curve if direction == "remove" else ref.ReversedCurve(curve)
        return ref.Value(ref.twofold(curve, noise, rate, direction, epsilon, 1e-12 * scale), 1e-8)
    return ref.delta(
        lambda tail, fine: [ref.sampled_gaussian(noise, rate, direction, tail, fine)], [steps], epsilon, scale
    )


def bracket_violations(bounds_of, count, seed):
    """Settings at which delta at the upper end exceeds the delta asked for, or delta at the lower end falls short."""
    wrong = []
    for noise, rate, steps, delta in settings(count, seed):
        for direction in DIRECTIONS:
            lower, upper = bounds_of(sampled(noise, rate, direction), steps, delta)
            assert 0 <= lower <= upper < np.inf
            here = (noise, rate, steps, delta, direction)
            at = reference_delta(*here[:3], direction, upper, delta)
            assert at.error < 1e-4, here
            if at.delta > delta * (1 + at.error):
                wrong.append((*here, "upper", upper))
            if lower > 0:
                at = reference_delta(*here[:3], direction, lower, delta)
                if at.delta < delta * (1 - at.error):
                    wrong.append((*here, "lower", lower))
    return wrong


def test_brackets_of_random_settings():
    """110 settings, two directions each, two ends each; reference good to 1e-8, mostly."""
    gaps = []

    def bounds_of(pair, steps, delta):
        bounds = composed(pair, steps).epsilon_bounds(delta, 1e-3)
        gaps.append((bounds.upper - bounds.lower) / max(bounds.upper, 1e-4))
        return bounds

    assert bracket_violations(bounds_of, 110, seed=20) == []
    assert np.mean(np.array(gaps) <= 1e-3) > 0.98


@pytest.mark.parametrize("tolerance", [0.05, 0.5])
def test_coarse_brackets_are_sound_too(tolerance):
    wrong = bracket_violations(
        lambda pair, steps, delta: composed(pair, steps).epsilon_bounds(delta, tolerance), 20, seed=21
    )
    assert wrong == []


def test_the_bracket_check_catches_one_part_in_ten_thousand():
    """Broken twins: an upper bound that is 1e-3 too low, a lower bound that is 1e-3 too high."""

    def twin(factor):
        def bounds_of(pair, steps, delta):
            lower, upper = composed(pair, steps).epsilon_bounds(delta, 1e-3)
            middle = (lower + upper) / 2
            return (
                (lower, max(lower, middle * factor))
                if factor < 1
                else (middle * factor, max(upper, middle * factor))
            )

        return bounds_of

    for factor, side in ((1 - 1e-3, "upper"), (1 + 1e-3, "lower")):
        caught = {row[:5] for row in bracket_violations(twin(factor), 8, seed=22) if row[5] == side}
        assert len(caught) > 8


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "epsilon"),
    [
        (4.0, 0.01, 10_000, 0.5),
        (1.0, 0.01, 1000, 3.0),
        (0.5, 0.1, 40, 2.0),
        (2.0, 0.9, 3, 0.1),
        (1.0, 0.02, 200, 0.0),
    ],
)
def test_delta_brackets(noise, rate, steps, epsilon, direction):
    for tolerance in (0.3, 1e-2, 1e-4):
        lower, upper = composed(sampled(noise, rate, direction), steps).delta_bounds(epsilon, tolerance)
        at = reference_delta(noise, rate, steps, direction, epsilon, max(lower, 1e-12))
        assert lower <= at.delta * (1 + at.error)
        assert at.delta * (1 - at.error) <= upper
        assert upper - lower <= tolerance * upper


OTHERS = [
    ("replace-one", GroupPair(1.0, 0.01, 1, 1), lambda t, f: ref.group(1.0, 0.01, 1, 1, t, f), 1000, 1e-5),
    (
        "replace-one, low noise",
        GroupPair(0.5, 0.02, 1, 1),
        lambda t, f: ref.group(0.5, 0.02, 1, 1, t, f),
        300,
        1e-6,
    ),
    ("four leave", GroupPair(4.0, 0.01, 4, 0), lambda t, f: ref.group(4.0, 0.01, 4, 0, t, f), 10_000, 1e-5),
    (
        "four join",
        Reversed(GroupPair(4.0, 0.01, 4, 0)),
        lambda t, f: ref.group(4.0, 0.01, 0, 4, t, f),
        10_000,
        1e-5,
    ),
    ("two for three", GroupPair(1.5, 0.05, 2, 3), lambda t, f: ref.group(1.5, 0.05, 2, 3, t, f), 100, 1e-8),
    (
        "fixed size",
        FixedSize(GaussianPair(0.5), 0.01),
        lambda t, f: ref.fixed_size(4.0, 0.01, t, f),
        1000,
        1e-5,
    ),
    (
        "fixed size, low noise",
        FixedSize(GaussianPair(2.0), 0.05),
        lambda t, f: ref.fixed_size(1.0, 0.05, t, f),
        200,
        1e-9,
    ),
    ("Laplace", LaplacePair(0.1), lambda t, f: ref.laplace(0.1, fine=f), 100, 1e-6),
    ("Laplace, tiny delta", LaplacePair(0.2), lambda t, f: ref.laplace(0.2, fine=f), 400, 1e-30),
    (
        "sampled Laplace",
        Sampled(LaplacePair(2.0), 0.01),
        lambda t, f: ref.laplace(2.0, 0.01, fine=f),
        1000,
        1e-6,
    ),
    (
        "sampled Laplace, add",
        Reversed(Sampled(LaplacePair(2.0), 0.05)),
        lambda t, f: ref.laplace(2.0, 0.05, "add", fine=f),
        500,
        1e-6,
    ),
    (
        "weak Laplace",
        Sampled(LaplacePair(1e-4), 0.5),
        lambda t, f: ref.laplace(1e-4, 0.5, fine=f),
        10**8,
        1e-2,
    ),
    ("weaker Laplace", LaplacePair(1e-3), lambda t, f: ref.laplace(1e-3, fine=f), 10**7, 1e-6),
]


@pytest.mark.parametrize("tolerance", [0.05, 1e-3, 2e-5])
@pytest.mark.parametrize(
    ("name", "pair", "make", "steps", "delta"), OTHERS, ids=[other[0] for other in OTHERS]
)
def test_brackets_of_other_pairs(name, pair, make, steps, delta, tolerance):
    lower, upper = composed(pair, steps).epsilon_bounds(delta, tolerance)
    assert 0 < lower <= upper
    # Over so many releases the rounding of cell masses leaves a few parts in ten thousand.
    assert upper - lower <= (tolerance if steps < 10**8 else max(tolerance, 1e-3)) * upper
    for end, sign in ((lower, -1), (upper, +1)):
        tail = 1e-10 * delta / steps
        composition = ref.Composition(ref.useful([(make(tail, 1.0), steps)]))
        value = ref.contour_delta(composition, end, most=5_000_000)
        assert sign * (value - delta) <= 3e-7 * delta


def test_two_gaussians_and_a_laplace_by_integration():
    """Heterogeneous and asymmetric: H of the whole is the mean of H of one part over the losses of the others."""
    first, second = sampled(1.0, 0.1, "remove"), LaplacePair(0.7)
    plds = [LossDistribution(first, first, 1), LossDistribution(second, second, 1)]
    atoms = ref.laplace(0.7, fine=40.0)
    curve = ref.SampledCurve(ref.GaussianCurve(1.0), 0.1)
    for epsilon in (0.0, 0.3, 0.9, 2.0):
        exact = float((atoms.masses * ref.hockey_stick(curve, epsilon - atoms.losses)).sum())
        lower, upper = compositions.composed(plds).delta_bounds(epsilon, 1e-3)
        assert lower <= exact * (1 + 1e-6)
        assert exact * (1 - 1e-6) <= upper
        assert compositions.composed(plds[::-1]).delta_bounds(epsilon, 1e-3) == pytest.approx(
            (lower, upper), rel=1e-3
        )


def test_three_sampled_laplace_releases_by_integration():
    """The losses have two atoms and a density, so the threefold sum has corners everywhere."""
    for direction in DIRECTIONS:
        atoms = ref.laplace(1.0, 0.3, direction, fine=3.0)
        curve = ref.SampledCurve(ref.LaplaceCurve(1.0), 0.3)
        pair = Sampled(LaplacePair(1.0), 0.3)
        if direction == "add":
            curve, pair = ref.ReversedCurve(curve), Reversed(pair)
        sums = np.add.outer(atoms.losses, atoms.losses)
        masses = np.multiply.outer(atoms.masses, atoms.masses)
        for epsilon in (0.0, 0.2, 0.55):
            exact = float((masses * ref.hockey_stick(curve, epsilon - sums)).sum())
            lower, upper = composed(pair, 3).delta_bounds(epsilon, 1e-3)
            assert lower <= exact * (1 + 1e-4)
            assert exact * (1 - 1e-4) <= upper


@pytest.mark.parametrize(("mu", "steps"), [(1.0, 2), (0.1, 100), (0.02, 10_000), (1e-3, 10**6), (3.0, 50)])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-50])
def test_many_gaussians_are_one(mu, steps, delta):
    """The lattice, forced to do what the closed form knows."""
    exact = gaussian_epsilon_bounds(delta, mu * steps**0.5)
    lower, upper = composed(GaussianPair(mu), steps).epsilon_bounds(delta, 1e-3)
    assert lower <= exact.upper
    assert exact.lower <= upper
    assert upper - lower <= 1e-3 * upper


def test_several_kinds_of_gaussians_are_one():
    plds = [
        LossDistribution(GaussianPair(mu), GaussianPair(mu), n)
        for mu, n in ((0.1, 30), (0.7, 2), (0.02, 400))
    ]
    mu = (0.01 * 30 + 0.49 * 2 + 0.0004 * 400) ** 0.5
    lower, upper = compositions.composed(plds).epsilon_bounds(1e-6, 1e-4)
    exact = gaussian_epsilon_bounds(1e-6, mu)
    assert lower <= exact.upper
    assert exact.lower <= upper
    assert upper - lower <= 1e-4 * upper


@pytest.mark.parametrize("width", [0.3, 2.0])
def test_two_laplace_releases_by_explicit_convolution(width):
    """The convolution of the two laws, written out: two atoms each, and an exponential density between."""
    t, dt = ref.quadrature(-width, width, 0.001)
    density = 0.25 * np.exp((t - width) / 2)  # of the loss under P

    def one(epsilon):
        return ref.hockey_stick(ref.LaplaceCurve(width), epsilon)

    for epsilon in (0.0, 0.5 * width, 1.4 * width):
        exact = 0.5 * one(epsilon - width) + 0.5 * np.exp(-width) * one(epsilon + width)
        exact = float(exact + (density * dt * one(epsilon - t)).sum())
        lower, upper = composed(LaplacePair(width), 2).delta_bounds(epsilon, 1e-3)
        assert lower <= exact * (1 + 1e-6)
        assert exact * (1 - 1e-6) <= upper


@pytest.mark.parametrize(
    ("epsilon", "steps", "delta"),
    [(0.1, 100, 1e-5), (0.1, 1000, 1e-6), (1.0, 100, 1e-5), (0.01, 1000, 1e-6), (2.0, 3, 1e-3)],
)
def test_black_boxes_against_optimal_composition(epsilon, steps, delta):
    """Kairouz, Oh, Viswanath 2015 in closed form: a binomial sum, computed elsewhere in the library."""
    pair = DiscretePair.randomised_response(epsilon)
    exact = optimal_composition(epsilon, 0.0, steps, delta).epsilon
    lower, upper = composed(pair, steps).epsilon_bounds(delta, 1e-3)
    assert lower <= exact * (1 + 1e-11)
    assert exact * (1 - 1e-11) <= upper
    assert upper - lower <= 1e-3 * upper
    exact = optimal_composition_delta(epsilon, 0.0, steps, 0.9 * exact).delta
    lower, upper = composed(pair, steps).delta_bounds(
        0.9 * optimal_composition(epsilon, 0.0, steps, delta).epsilon, 1e-2
    )
    assert lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= upper


@pytest.mark.parametrize(("response", "steps"), [(50.0, 10), (5.0, 10), (700.0, 2)])
def test_black_boxes_that_reveal_nearly_everything(response, steps):
    pair = DiscretePair.randomised_response(response)
    for delta in (1e-3, 1e-6):
        exact = optimal_composition(response, 0.0, steps, delta).epsilon
        lower, upper = composed(pair, steps).epsilon_bounds(delta, 1e-2)
        assert lower <= exact * (1 + 1e-11)
        assert exact * (1 - 1e-11) <= upper


ONE = [
    (sampled(1.0, 0.01, "remove"), ref.SampledCurve(ref.GaussianCurve(1.0), 0.01)),
    (sampled(1.0, 0.01, "add"), ref.ReversedCurve(ref.SampledCurve(ref.GaussianCurve(1.0), 0.01))),
    (sampled(0.3, 0.5, "remove"), ref.SampledCurve(ref.GaussianCurve(1 / 0.3), 0.5)),
    (FixedSize(GaussianPair(1.0), 0.1), ref.FixedSizeCurve(2.0, 0.1)),
    (GroupPair(1.0, 0.05, 3, 2), ref.MixtureCurve(1.0, 0.05, 3, 2)),
    (LaplacePair(2.0), ref.LaplaceCurve(2.0)),
]


@pytest.mark.parametrize(("pair", "curve"), ONE)
def test_one_release_is_exact_up_to_rounding(pair, curve):
    step = one_step(LossDistribution(pair, pair, 1))
    for epsilon in (0.0, 1e-3, 0.009, 0.3, 1.9, 5.0):
        lower, upper = step.delta_bounds(epsilon, 1e-3)
        exact, tail = float(ref.hockey_stick(curve, epsilon)), float(ref.tail_mass(curve, epsilon))
        assert lower <= exact + 2e-15 * tail
        assert exact - 2e-15 * tail <= upper
        assert upper - lower <= 1e-10 * tail + 1e-290
    for delta in (0.3, 1e-3, 1e-9, 1e-40):
        lower, upper = step.epsilon_bounds(delta, 1e-3)
        assert upper - lower <= 1e-8 * upper + 1e-12
        assert ref.hockey_stick(curve, upper) <= delta * (1 + 1e-11)
        assert lower == 0 or ref.hockey_stick(curve, lower) >= delta * (1 - 1e-11)


def test_one_release_is_also_what_the_lattice_says():
    pair = sampled(1.0, 0.05, "remove")
    exact = one_step(LossDistribution(pair, pair, 1)).epsilon_bounds(1e-6, 1e-3)
    lower, upper = composed(pair, 1).epsilon_bounds(1e-6, 1e-3)
    assert lower <= exact.upper
    assert exact.lower <= upper


def exponential(rate):
    return lambda epsilon: (float(np.exp(-rate * epsilon)), -rate)


@pytest.mark.parametrize("guess", [0.0, 1e-9, 4.6, 100.0, np.inf, np.nan, -3.0])
@pytest.mark.parametrize("slope_factor", [1.0, 1e-3, -1.0, 1e9])
def test_roots_are_checked_with_any_guess_and_slope(guess, slope_factor):
    """A slope that is far too steep makes the search stop early; even then both inequalities hold."""

    def misled(epsilon):
        value, slope = exponential(2.0)(epsilon)
        return value, slope * slope_factor

    upper = proved_epsilon(misled, 1e-4, guess, 50.0)
    lower = refuted_epsilon(misled, 1e-4, guess, 50.0)
    assert exponential(2.0)(upper)[0] <= 1e-4 < exponential(2.0)(lower)[0]
    if slope_factor < 1e9:
        assert upper == pytest.approx(4.605170186, rel=1e-6)
        assert lower == pytest.approx(4.605170186, rel=1e-6)


def test_no_root_is_said_to_be_none():
    assert proved_epsilon(lambda e: (0.5, -1e-9), 1e-4, 1.0, 10.0) == np.inf
    assert proved_epsilon(lambda e: (1e-5, -1.0), 1e-4, 1.0, 10.0) == 0
    assert refuted_epsilon(lambda e: (1e-5, -1.0), 1e-4, 1.0, 10.0) == 0
    assert refuted_epsilon(lambda e: (0.0, -1.0), 1e-4, 1.0, 10.0) == 0


def test_a_noisy_bound_is_never_believed_between_its_checks():
    """A bound with steps: whatever is returned satisfies the inequality itself."""

    def stairs(epsilon):
        return float(np.exp(-np.floor(3 * epsilon) / 3)), -1.0

    for delta in (0.9, 0.1, 1e-3):
        assert stairs(proved_epsilon(stairs, delta, 1.0, 100.0))[0] <= delta
        assert stairs(refuted_epsilon(stairs, delta, 1.0, 100.0))[0] > delta


DIFFERENT = [
    ([(sampled(1.0, 0.001, "remove"), 1000), (DiscretePair.randomised_response(5.0), 10)], 1e-6),
    ([(sampled(1.0, 1e-5, "remove"), 100), (GaussianPair(0.5), 1)], 1e-6),
    ([(LaplacePair(0.01), 10_000), (sampled(0.8, 0.01, "add"), 500)], 1e-7),
    ([(sampled(10.0, 0.001, "remove"), 50_000), (sampled(0.6, 0.2, "remove"), 5)], 1e-5),
]


@pytest.mark.parametrize(("parts", "delta"), DIFFERENT)
def test_mixtures_are_ordered_and_keep_their_order(parts, delta):
    """Lower below upper, the same in either order, and no less than the larger part alone."""
    plds = [LossDistribution(pair, pair, count) for pair, count in parts]
    forward, backward = (
        compositions.composed(order).epsilon_bounds(delta, 1e-3) for order in (plds, plds[::-1])
    )
    for bounds in (forward, backward):
        assert bounds.lower <= bounds.upper < np.inf
    assert forward.lower <= backward.upper
    assert backward.lower <= forward.upper
    assert forward.upper - forward.lower <= 1e-2 * forward.upper
    for pld in plds:
        assert compositions.composed([pld]).epsilon_bounds(delta, 1e-2).lower <= forward.upper


@pytest.mark.parametrize("reverse", [False, True])
def test_staying_below_is_proved_where_it_is_true_and_only_there(reverse):
    pair = Sampled(GaussianPair(0.7), 0.02)
    pld = LossDistribution(*[Reversed(pair) if reverse else pair] * 2, 500)
    composed = compositions.composed([pld])
    lower, upper = composed.epsilon_bounds(1e-6, 1e-4)
    assert composed.stays_below(1e-6, 1.02 * upper, 0.01)
    assert not composed.stays_below(1e-6, 0.9999 * lower, 0.01)  # a twin that says yes too early


def test_the_worse_direction_alone_decides_epsilon():
    pair = Sampled(GaussianPair(0.7), 0.02)
    both = [
        compositions.composed([LossDistribution(p, p, 500)]).epsilon_bounds(1e-6, 1e-3)
        for p in (pair, Reversed(pair))
    ]
    curve = account(PoissonSampled(0.02, Gaussian(1 / 0.7)) * 500)
    assert curve.epsilon(1e-6) == pytest.approx(max(bounds.upper for bounds in both), rel=1e-6)
