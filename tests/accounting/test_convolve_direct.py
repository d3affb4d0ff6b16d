"""Sums in positive arithmetic: exact small laws, an independent integral, and twins that must be caught."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest

import discreet.accounting.convolve_direct as rounded
from discreet import Gaussian, PoissonSampled, account
from discreet.accounting.convolve_direct import Direct, Piece, RoundedLoss, mixture
from discreet.accounting.gaussian import gaussian_delta
from discreet.accounting.optimistic import delta_lower, refuted_epsilon
from discreet.accounting.pairs import GaussianPair, LaplacePair, Reversed, Sampled
from discreet.accounting.sampled_pairs import GroupPair
from discreet.accounting.search import proved_epsilon
from support import accounting_reference as ref

PAIRS = {
    "remove": Sampled(GaussianPair(1.0), 0.01),
    "add": Reversed(Sampled(GaussianPair(1.0), 0.01)),
    "replace-one": GroupPair(1.0, 0.01, 1, 1),
    "group": GroupPair(2.0, 0.05, 3, 0),
    "gaussian": GaussianPair(0.2),
}


def exact_delta(pair, epsilon):
    """delta of one release, from the densities in 20 digits."""
    found = mixture(pair)
    with mpmath.workdps(20):
        noise, rate = mpmath.mpf(found.noise), mpmath.mpf(found.rate)

        def density(x, size, sign):
            total = mpmath.mpf(0)
            for j in range(size + 1):
                weight = mpmath.binomial(size, j) * rate**j * (1 - rate) ** (size - j)
                total += weight * mpmath.npdf(x, sign * j, noise)
            return total

        def excess(x):
            return max(density(x, found.leaving, 1) - mpmath.exp(epsilon) * density(x, found.joining, -1), 0)

        crossing = float(found._outcome(np.array([epsilon]))[0])
        if math.isinf(crossing):
            return mpmath.mpf(0)
        return mpmath.quad(excess, [crossing + noise * k for k in (0, 1, 2, 4, 8, 16)])


@pytest.mark.parametrize("name", PAIRS)
def test_one_loss_is_enclosed(name):
    pair = PAIRS[name]
    curve = Direct([(mixture(pair), 1)], 1e-12, 1 / 32)
    for epsilon in (0.0, 0.05, 2.0):
        exact = exact_delta(pair, epsilon)
        lower, upper = delta_lower(curve, epsilon)[0], curve.delta_upper(epsilon)[0]
        assert lower <= exact * (1 + mpmath.mpf(10) ** -12)
        assert exact <= upper
        if exact > 1e-9:
            assert upper - lower <= 0.02 * upper


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(4.0, 0.01, 10_000, 1e-5), (1.0, 0.01, 1000, 1e-9), (0.7, 1e-4, 2000, 1e-12), (1.5, 1e-3, 777, 1e-20)],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_contour_integral_lies_inside(noise, rate, steps, delta, direction):
    pair = Sampled(GaussianPair(1 / noise), rate)
    pair = pair if direction == "remove" else Reversed(pair)
    curve = Direct([(mixture(pair), steps)], delta, 1 / 32)
    epsilon = proved_epsilon(curve.delta_upper, delta, 1.0, 1e3)
    least = refuted_epsilon(lambda at: delta_lower(curve, at), delta, 1.0, epsilon)
    if epsilon == 0:
        return
    assert epsilon - least <= 5e-3 * epsilon
    exact, error = ref.delta(
        lambda tail, fine: [ref.sampled_gaussian(noise, rate, direction, tail, fine)], [steps], epsilon, delta
    )
    assert delta_lower(curve, epsilon)[0] <= exact * (1 + error)
    assert exact * (1 - error) <= curve.delta_upper(epsilon)[0]


def test_many_gaussians_are_one():
    for steps, mu, delta in ((1000, 0.05, 1e-8), (64, 0.2, 1e-40), (37, 0.5, 1e-3)):
        curve = Direct([(mixture(GaussianPair(mu)), steps)], delta, 1 / 32)
        epsilon = proved_epsilon(curve.delta_upper, delta, 1.0, 1e3)
        exact = gaussian_delta(epsilon, mu * math.sqrt(steps))
        assert delta_lower(curve, epsilon)[0] <= exact <= curve.delta_upper(epsilon)[0]


def test_two_kinds_are_added():
    parts = [(mixture(GaussianPair(0.3)), 5), (mixture(GaussianPair(0.1)), 40)]
    curve, mu = Direct(parts, 1e-9, 1 / 32), math.sqrt(5 * 0.09 + 40 * 0.01)
    for epsilon in (0.5, 2.0, 5.0):
        assert delta_lower(curve, epsilon)[0] <= gaussian_delta(epsilon, mu) <= curve.delta_upper(epsilon)[0]


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "neighbours"),
    [
        (8.93e-5, 1.41, 10, 3e-25, "add-remove"),
        (7.47e-6, 0.709, 21_400, 1.4e-46, "replace-one"),
        (1e-6, 0.5, 10**7, 1e-6, "add-remove"),
        (1.09e-6, 1.147, 27_662_357, 2.7e-43, "add-remove"),  # also when a record is added
    ],
)
def test_where_the_lattice_is_not_at_home_bounds_are_tight(rate, noise, steps, delta, neighbours):
    assert (
        account(PoissonSampled(rate, Gaussian(noise)) * steps, neighbours).epsilon_bounds(delta).gap <= 1e-3
    )


def test_only_gaussian_noise_is_covered():
    assert mixture(LaplacePair(1.0)) is None
    assert mixture(Reversed(Sampled(LaplacePair(1.0), 0.1))) is None
    assert mixture(Reversed(GroupPair(1.0, 0.1, 3, 2))) == GroupPair(1.0, 0.1, 2, 3)


SPACING = 0.25


def small_law():
    """Three losses that are not labels, with exact masses: losses, p, and the labels they are rounded to."""
    losses, p = np.array([-0.6, 0.1, 1.3]), np.array([0.2, 0.5, 0.3])
    labels: dict[int, np.ndarray] = {}
    for loss, mass in zip(losses, p, strict=True):
        low = math.floor(loss / SPACING)
        up = math.expm1(low * SPACING - loss) / math.expm1(-SPACING)
        for k, share in ((low, 1 - up), (low + 1, up)):
            r = mass * share * math.exp(k * SPACING - loss)
            labels[k] = labels.get(k, np.zeros(2)) + np.array([mass * share, r])
    rows = np.zeros((2, max(labels) - min(labels) + 1))
    for k, pair in labels.items():
        rows[:, k - min(labels)] = pair
    return losses, p, RoundedLoss(1, 0.0, {-2: Piece(min(labels), rows)}, 0.0, 0.0, 0.0)


def faults(total, losses, p, count):
    """Where the exact curve of ``count`` independent losses is not enclosed, by adding up all outcomes."""
    found = []
    labels, masses, scaled = total.dist()
    for epsilon in np.linspace(-2.0, 4.0, 61):
        exact = math.fsum(
            math.prod(p[i] for i in ways) * max(0.0, -math.expm1(epsilon - sum(losses[i] for i in ways)))
            for ways in product(range(len(p)), repeat=count)
        )
        upper = (masses * np.maximum(0.0, -np.expm1(epsilon - labels))).sum() + total.infinite
        lower = np.maximum(masses - scaled * np.exp(epsilon - labels), 0.0).sum()
        if not lower * (1 - 1e-12) <= exact <= upper * (1 + 1e-12):
            found.append(epsilon)
    return found


def reach(exponent):
    return {-2: 2, -1: 4}.get(exponent, 4)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_sums_of_labels_enclose_all_outcomes(count):
    losses, p, one = small_law()
    total = one
    for _ in range(count - 1):
        total = total.add(one, reach, 0.0)
    assert len(total.pieces) > 1 or count == 1
    assert faults(total, losses, p, count) == []
    assert total.dist()[1].sum() == pytest.approx(1.0, abs=1e-12)


def test_what_is_trimmed_counts_as_infinite():
    losses, p, one = small_law()
    total = one.add(one, reach, 0.0)
    trimmed = total.trim(0.06)
    assert 0 < trimmed.infinite <= 0.06 * (1 + 1e-6)
    assert trimmed.dist()[1].sum() + trimmed.infinite == pytest.approx(1.0, abs=1e-7)
    assert faults(trimmed, losses, p, 2) == []


def test_a_biased_rounding_is_caught(monkeypatch):
    """Going up and down with equal chances is unbiased for losses, and not for e^-loss."""

    def halves(piece, spacing, right=rounded._coarser):
        return right(piece, 1e-12)

    monkeypatch.setattr(rounded, "_coarser", halves)
    losses, p, one = small_law()
    total = one.add(one, reach, 0.0).add(one, reach, 0.0)
    assert faults(total, losses, p, 3) != []


def test_a_forgotten_cut_is_caught():
    losses, p, one = small_law()
    trimmed = one.add(one, reach, 0.0).trim(0.2)
    forgetful = RoundedLoss(2, 0.0, trimmed.pieces, 0.0, 0.0, 0.0)
    assert faults(forgetful, losses, p, 2) != []


@pytest.mark.parametrize(
    ("start", "empty"), [(-300, 200), (-300, 0), (-150, 140), (5, 0), (-700, 0), (-300, 650)]
)
def test_products_of_divided_pieces_are_convolutions(start, empty):
    """Pieces that are empty around the centre are multiplied side by side; a twin that loses a side is seen."""
    rng = np.random.default_rng(0)
    rows, other = rng.random((2, 601)), Piece(-20, rng.random((2, 333)))
    places = np.arange(start, start + 601)
    rows[:, np.abs(places) <= empty] *= 0 if empty else 1
    found = rounded._product(Piece(start, rows), other)
    expected = np.stack([np.convolve(mine, theirs) for mine, theirs in zip(rows, other.rows, strict=True)])
    assert found.start == start - 20
    assert np.allclose(found.rows, expected, rtol=1e-12, atol=0)
    lost = np.stack([np.convolve(mine[:300], theirs) for mine, theirs in zip(rows, other.rows, strict=True)])
    assert not np.allclose(lost.sum(), expected.sum()) or not rows[:, 300:].any()


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 11, 24, 27, 1023, 1025])
def test_the_digits_of_a_number_give_that_many_losses(count):
    assert Direct([(mixture(PAIRS["replace-one"]), count)], 1e-6, 0.1).total.count == count
