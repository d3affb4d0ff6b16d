"""The lattice: one-step laws enclose the exact curve, composition loses no more than it says, nor does coarsening."""

import numpy as np
import pytest

from discreet.accounting import discretisation
from discreet.accounting import lattice as lattices
from discreet.accounting.discretisation import coarsen, discretise
from discreet.accounting.lattice import (
    OPTIMISTIC,
    PESSIMISTIC,
    ULP,
    LossLattice,
    cell_accuracy,
    compose,
    mass_outside,
)
from discreet.accounting.optimistic import delta_lower
from discreet.accounting.pairs import GaussianPair, LaplacePair, Sampled
from support import accounting_reference as ref
from support.worlds import worlds

WORLDS = {world.name: world for world in worlds()}
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)


def plds(lattice):
    """Both rows without their tilt."""
    return lattice.masses * np.exp(lattice.log_scale[:, None] - lattice.tilt * lattice.losses)


def hockey_sticks(losses, pld, epsilons):
    return -(pld * np.expm1(np.minimum(epsilons[:, None] - losses, 0.0))).sum(axis=1)


# Share of mass outside of the grid, cells, shift of the grid in cells, share of grid points kept, tilt.
GRIDS = [
    (1e-18, 5, 0.0, 1.0, 0.0),
    (1e-18, 45, 0.37, 1.0, 0.0),
    (1e-18, 300, -0.2, 0.6, 0.0),
    (1e-4, 60, 0.11, 0.8, 0.0),
    (1e-12, 150, 0.5, 1.0, 2.0),
]


def lattice_of(pair, tail, cells, shift, kept, tilt, seed):
    low, high = pair.p_range(np.log(tail))
    step = (high - low) / cells
    first, last = int(np.floor(low / step - shift)) - 1, int(np.ceil(high / step - shift)) + 1
    vertices = np.arange(first, last + 1)
    keep = np.random.default_rng(seed).random(len(vertices)) < kept
    keep[[0, -1]] = True
    return discretise(pair, pair, tilt / (high - low), step, shift * step, vertices[keep], np.log(tail))


def violations(world, lattice, seed):
    """(overstated from below, understated from above), in units of what rounding is allowed to do."""
    rng = np.random.default_rng(seed)
    losses, step = lattice.losses, lattice.step
    around = rng.uniform(losses[0] - 3 * step, losses[-1] + 3 * step, 80)
    points = np.concatenate([rng.choice(losses, 60), rng.choice(losses, 60) + step / 2, around, [-50.0, 0.0]])
    exact = ref.hockey_stick(world.curve, points)
    tail = ref.tail_mass(world.curve, points - 1e-9 * step - 1e-12)
    pessimistic, optimistic = (hockey_sticks(losses, pld, points) for pld in plds(lattice))
    # Twice cell_accuracy, for the closed form is rounded as well; and never more than a few units of 1.
    allowed = np.minimum(2 * ULP * (12 - 3 * np.log(np.clip(tail, 1e-300, 1.0))) * tail, 4e-15) + 1e-300
    return ((optimistic - exact) / allowed).max(), ((exact - pessimistic - lattice.infinite) / allowed).max()


@every_world
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[1]}cells")
def test_one_step_laws_enclose_the_exact_curve(world, grid):
    """H_optimistic <= H <= H_pessimistic + infinite at every a, on coarse, shifted, gappy and tilted grids."""
    lattice = lattice_of(world.pair, *grid, seed=1)
    below, above = violations(world, lattice, seed=2)
    assert below <= 1
    assert above <= 1


def test_there_are_enough_grids():
    assert len(WORLDS) * len(GRIDS) >= 150


@pytest.mark.parametrize("cells", [2, 6, 50, 2000])
@pytest.mark.parametrize("width", [1e-6, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_atoms_exactly_on_the_grid(width, rate, cells):
    """A law that ends in an atom, with a grid point on it: the optimistic law must not gain mass there."""
    pair, curve = LaplacePair(width), ref.LaplaceCurve(width)
    if rate < 1:
        pair, curve = Sampled(pair, rate), ref.SampledCurve(curve, rate)
    low, high = pair.p_range(-30.0)
    step = (high - low) / cells
    vertices = np.arange(-cells - 1, 2)
    lattice = discretise(pair, pair, 0.0, step, high, vertices, -30.0)
    points = np.concatenate([np.linspace(low - step, high + step, 101), [-50.0, 0.0]])
    exact, tail = ref.hockey_stick(curve, points), ref.tail_mass(curve, points - 0.01 * step)
    pessimistic, optimistic = (hockey_sticks(lattice.losses, pld, points) for pld in plds(lattice))
    allowed = lattice.cell_error * tail + 1e-300
    assert np.all(optimistic - exact <= allowed)
    assert np.all(exact - pessimistic - lattice.infinite <= allowed)


def swapped_chords(pair, losses, right=discretisation.chords):
    """Broken twin: what belongs to the upper end of a cell goes to the lower one."""
    pld, infinite = right(pair, losses)
    cells = pair.cells(losses)
    lower = np.zeros(len(losses))
    lower[:-1] += cells.p
    lower[0] += cells.p_below
    moved = lower - pld
    return np.maximum(pld + 0.02 * moved, 0.0), infinite


def shifted_tangents(pair, losses, accuracy, right=discretisation.tangents):
    """Broken twin: tangents taken a third of a cell too low."""
    return right(pair, losses - (losses[1] - losses[0]) / 3, accuracy)


def heavy_tangents(pair, losses, accuracy, right=discretisation.tangents):
    """Broken twin: a law that is too heavy by one part in 1e12."""
    return right(pair, losses, accuracy) * (1 + 1e-12)


@pytest.mark.parametrize(
    "name", ["remove noise=4.0 rate=0.01", "Gaussian 1.0", "Laplace 1.0", "group noise=4.0 rate=0.2 1:1"]
)
@pytest.mark.parametrize(
    ("place", "twin", "side"),
    [("chords", swapped_chords, 1), ("tangents", shifted_tangents, 0), ("tangents", heavy_tangents, 0)],
)
def test_broken_laws_are_caught(monkeypatch, place, twin, side, name):
    world = WORLDS[name]
    grid = (1e-12, 200, 0.37, 1.0, 0.0)
    assert violations(world, lattice_of(world.pair, *grid, seed=1), seed=2)[side] <= 1
    monkeypatch.setattr(discretisation, place, twin)
    assert violations(world, lattice_of(world.pair, *grid, seed=1), seed=2)[side] > 1


def test_two_different_pairs_enclose_what_lies_between():
    upper, lower = GaussianPair(1.1), GaussianPair(1.0)
    lattice = discretise(upper, lower, 0.0, 0.05, 0.0, np.arange(-160, 200), -30.0)
    points = np.linspace(-2, 4, 50)
    exact = ref.hockey_stick(ref.GaussianCurve(1.05), points)
    pessimistic, optimistic = (hockey_sticks(lattice.losses, pld, points) for pld in plds(lattice))
    assert np.all(optimistic < exact)
    assert np.all(exact < pessimistic)


def test_the_gap_shrinks_with_the_square_of_the_step():
    gaps = []
    for step in (0.2, 0.1, 0.05):
        vertices = np.arange(int(-9 / step), int(9 / step))
        lattice = discretise(GaussianPair(1.0), GaussianPair(1.0), 0.0, step, 0.0, vertices, -30.0)
        pessimistic, optimistic = (
            hockey_sticks(lattice.losses, pld, np.array([1.0])) for pld in plds(lattice)
        )
        gaps.append(float(pessimistic[0] - optimistic[0]))
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.1)
    assert gaps[1] / gaps[2] == pytest.approx(4, rel=0.1)


def random_lattice(rng, size, tilt=0.0, spiky=False, error=0.0):
    masses = rng.random((2, size)) ** (8 if spiky else 1)
    masses /= masses.sum(axis=1, keepdims=True)
    return LossLattice(-0.3, 0.1, tilt, masses, np.zeros(2), 0.0, error, 1, 1e-15)


def convolved(parts):
    """Direct convolution with 64-bit mantissas, by squaring."""
    total = np.ones((2, 1), dtype=np.longdouble)

    def product(a, b):
        return np.stack([np.convolve(x, y) for x, y in zip(a, b, strict=True)])

    for part, count in parts:
        square = part.masses.astype(np.longdouble)
        while count:
            if count & 1:
                total = product(total, square)
            count >>= 1
            if count:
                square = product(square, square)
    return total


def on_window(exact, size):
    folded = np.zeros((2, size), dtype=np.longdouble)
    folded[:, : exact.shape[1]] = exact
    return folded


COMPOSITIONS = [
    [(5, 3, False)],
    [(17, 40, False)],
    [(60, 25, True)],
    [(3, 700, False)],
    [(9, 12, True), (30, 5, False), (4, 31, True)],
    [(2, 500, True), (400, 1, False)],
]


@pytest.mark.parametrize("shape", COMPOSITIONS)
def test_composition_is_as_exact_as_it_says(shape):
    """The L1 distance from an extended-precision convolution stays below the stated error, which is small."""
    rng = np.random.default_rng(len(shape) + shape[0][0])
    parts = [(random_lattice(rng, size, spiky=spiky), count) for size, count, spiky in shape]
    exact = convolved(parts)
    origin = sum(count * part.start for part, count in parts)
    result = compose(parts, (origin, origin + 0.1 * exact.shape[1]), 0.0)
    assert result.start == pytest.approx(origin, abs=1e-9)
    assert result.masses.shape[1] >= exact.shape[1]
    distance = np.abs(result.masses - on_window(exact, result.masses.shape[1])).sum(axis=1).max()
    assert 0 < distance <= result.error
    assert result.error <= 1e-11 * sum(count for _, count, _ in shape)
    assert result.releases == sum(count for _, count, _ in shape)


def test_a_spike_times_a_wide_law_stays_within_the_error():
    """The spectrum of a spike is flat, so the rounding of the other factor is not damped by it."""
    rng = np.random.default_rng(11)
    spike = LossLattice(
        0.0, 0.1, 0.0, np.array([[1.0, 1e-9], [1.0, 1e-9]]) / (1 + 1e-9), np.zeros(2), 0.0, 0.0, 1, 0.0
    )
    smooth = np.exp(-(np.linspace(-6, 6, 3000) ** 2))
    wide = LossLattice(
        0.0, 0.1, 0.0, np.stack([smooth, smooth[::-1]]) / smooth.sum(), np.zeros(2), 0.0, 0.0, 1, 0.0
    )
    for parts in ([(spike, 1000), (wide, 1)], [(wide, 1), (random_lattice(rng, 7), 1)]):
        exact = convolved(parts)
        origin = sum(count * part.start for part, count in parts)
        result = compose(parts, (origin, origin + 0.1 * exact.shape[1]), 0.0)
        distance = np.abs(result.masses - on_window(exact, result.masses.shape[1])).sum(axis=1).max()
        assert distance <= result.error


def test_what_falls_outside_of_the_window_is_charged():
    """A short window wraps the rest around; the error must cover it."""
    rng = np.random.default_rng(4)
    parts = [(random_lattice(rng, 20), 60)]
    exact = convolved(parts)
    centre = float((exact[0] * np.arange(exact.shape[1])).sum())
    for half_width, slope in ((45, 0.4), (120, 0.8), (270, 1.3)):
        first = int(centre) - half_width
        window = (60 * -0.3 + 0.1 * first, 60 * -0.3 + 0.1 * (first + 2 * half_width))
        alias = mass_outside(parts, window, (slope, slope))
        result = compose(parts, window, alias)
        start = round((result.start + 18.0) / 0.1)
        inside = exact[:, start : start + result.masses.shape[1]]
        distance = np.abs(result.masses[:, : inside.shape[1]] - inside).sum(axis=1).max()
        outside = float((1 - inside.sum(axis=1)).max())
        assert outside <= alias
        assert distance <= result.error
        assert alias < 1e-5 or half_width < 270


@pytest.mark.parametrize("slope", [1e-3, 0.3, 1.0, 5.0, 1e3, 1e5])
def test_mass_outside_is_a_true_bound(slope):
    """For any exponents, also where they overflow and where a row has empty places."""
    rng = np.random.default_rng(5)
    lattice = random_lattice(rng, 30, spiky=True)
    lattice.masses[OPTIMISTIC, :4] = 0.0
    lattice.masses[OPTIMISTIC, 26:] = 0.0
    lattice.masses[PESSIMISTIC, 10:12] = 0.0
    for parts in ([(lattice, 1)], [(lattice, 12)], [(lattice, 3), (random_lattice(rng, 6), 4)]):
        exact = convolved(parts)
        origin = sum(count * part.start for part, count in parts)
        for first, last in ((1, exact.shape[1] - 1), (exact.shape[1] // 3, exact.shape[1] // 2), (0, 5)):
            window = (origin + 0.1 * first - 0.05, origin + 0.1 * last - 0.05)
            outside = 1 - exact[:, first:last].sum(axis=1)
            outside += exact.sum(axis=1) - 1
            assert mass_outside(parts, window, (slope, slope)) >= outside.max() * (1 - 1e-12)


def test_mass_outside_is_sharp_with_good_exponents():
    vertices = np.arange(-100, 140)
    lattice = discretise(GaussianPair(1.0), GaussianPair(1.0), 0.0, 0.1, 0.0, vertices, -40.0)
    bound = mass_outside([(lattice, 100)], (50 - 80.0, 50 + 80.0), (0.8, 0.8))
    assert 1e-16 < bound < 1e-12  # P(|z| > 8) = 1.2e-15


@pytest.mark.parametrize("tilt", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("factor", [3, 9])
@pytest.mark.parametrize(
    "name", ["remove noise=1.0 rate=0.01", "add noise=0.5 rate=0.1", "Gaussian 1.0", "Laplace 1.0"]
)
def test_coarsening_keeps_the_order(name, factor, tilt):
    """H_optimistic falls and H_pessimistic rises, at every a."""
    pair = WORLDS[name].pair
    low, high = pair.p_range(np.log(1e-14))
    step = (high - low) / 200
    vertices = np.arange(int(np.floor(low / step)) - 1, int(np.ceil(high / step)) + 2)
    fine = discretise(pair, pair, tilt / (high - low), step, 0.0, vertices, -30.0)
    assert coarsening_violations(fine, coarsen(fine, factor)) == (True, True)


def coarsening_violations(fine, coarse):
    points = np.linspace(fine.start - fine.step, fine.end + fine.step, 301)
    before = [hockey_sticks(fine.losses, pld, points) for pld in plds(fine)]
    after = [hockey_sticks(coarse.losses, pld, points) for pld in plds(coarse)]
    slack = 1e-14 * (before[PESSIMISTIC] + np.exp(np.minimum(points, 0.0)))
    return (
        bool(np.all(after[PESSIMISTIC] - before[PESSIMISTIC] >= -slack)),
        bool(np.all(before[OPTIMISTIC] - after[OPTIMISTIC] >= -slack)),
    )


def test_the_coarsening_check_catches_exchanged_rows():
    vertices = np.arange(-80, 100)
    fine = discretise(GaussianPair(1.0), GaussianPair(1.0), 0.0, 0.1, 0.0, vertices, -30.0)
    coarse = coarsen(fine, 3)
    twin = LossLattice(
        coarse.start, coarse.step, 0.0, coarse.masses[::-1], coarse.log_scale[::-1], 0.0, 0.0, 1, 0.0
    )
    assert coarsening_violations(fine, twin) == (False, False)


def test_coarse_blocks_still_enclose_the_composition():
    """Nine releases as three coarse blocks of three: the exact Gaussian stays inside, tilted or not."""
    for tilt in (0.0, 1.5):
        fine = discretise(GaussianPair(0.4), GaussianPair(0.4), tilt, 0.02, 0.0, np.arange(-140, 160), -30.0)
        window = (-6.0, 7.0)
        block = compose([(fine, 3)], window, mass_outside([(fine, 3)], window, (6.0, 6.0)))
        parts = [(coarsen(block, 5), 3)]
        whole = compose(parts, (-9.0, 12.0), mass_outside(parts, (-9.0, 12.0), (4.0, 4.0)))
        for epsilon in (0.0, 0.5, 2.0, 4.0):
            exact = float(ref.hockey_stick(ref.GaussianCurve(1.2), epsilon))
            assert delta_lower(whole, epsilon)[0] <= exact <= whole.delta_upper(epsilon)[0]
            assert whole.delta_upper(epsilon)[0] - delta_lower(whole, epsilon)[0] < 0.1 * exact + 1e-9


def test_curve_against_the_sum_it_stands_for():
    rng = np.random.default_rng(8)
    for tilt in (0.0, 0.7, 30.0, 900.0):
        lattice = random_lattice(rng, 4000, tilt=tilt)
        for epsilon in (-1.0, -0.3, 0.0, 0.05, 17.3, 399.0, 500.0):
            delta, tail = lattice.curve(PESSIMISTIC, epsilon)
            excess = np.maximum(lattice.losses - epsilon, 0.0)
            weights = lattice.masses[PESSIMISTIC] * np.exp(-tilt * excess) * (lattice.losses > epsilon)
            assert delta == pytest.approx((weights * -np.expm1(-excess)).sum(), rel=1e-12, abs=1e-19)
            assert tail == pytest.approx(weights.sum(), rel=1e-12, abs=1e-19)


def test_bounds_widen_with_every_error():
    vertices = np.arange(-80, 100)
    lattice = discretise(GaussianPair(1.0), GaussianPair(1.0), 1.0, 0.1, 0.0, vertices, -30.0)
    fields = {name: getattr(lattice, name) for name in lattice.__dataclass_fields__} | {"layers": None}
    lower, upper = delta_lower(lattice, 1.0)[0], lattice.delta_upper(1.0)[0]
    for name, value in (("error", 1e-3), ("cell_error", 1e-3), ("infinite", 1e-3), ("releases", 10**12)):
        worse = LossLattice(**fields | {name: value})
        assert worse.delta_upper(1.0)[0] > upper * (1 + 1e-5)
        assert delta_lower(worse, 1.0)[0] < lower * (1 - 1e-5) or name == "infinite"
    assert delta_lower(LossLattice(**fields | {"error": 1.0}), 1.0)[0] == 0
    assert LossLattice(**fields | {"infinite": 1.0}).delta_upper(1.0)[0] == 1


def testlargest_weight_is_the_maximum():
    for tilt in (0.0, 1e-3, 0.5, 3.0, 200.0):
        y = np.linspace(0, 60 / (1 + tilt), 200_001)
        weights = np.exp(-tilt * y) * -np.expm1(-y)
        assert lattices.largest_weight(tilt) == pytest.approx(weights.max(), rel=1e-5)
        assert lattices.largest_weight(tilt) >= weights.max() * (1 - 1e-12)


def test_cell_accuracy_grows_with_the_logarithm_of_delta():
    assert cell_accuracy(0.0) == pytest.approx(12 * ULP)
    assert cell_accuracy(-100.0) == pytest.approx(312 * ULP)
    assert cell_accuracy(1.0) == cell_accuracy(0.0)


def test_an_empty_optimistic_law_says_nothing_but_zero():
    """One cell for everything: delta >= 0 is all that can be said, and the upper side still holds."""
    lattice = discretise(GaussianPair(1.0), GaussianPair(1.0), 0.0, 30.0, 0.0, np.arange(-1, 2), -30.0)
    assert delta_lower(lattice, 0.5)[0] <= 0.25 <= lattice.delta_upper(0.5)[0]


@pytest.mark.parametrize("silent", [1e-20, 1e-6, 1e-3])
def test_coefficients_that_are_left_out_are_charged(silent, monkeypatch):
    """Also where far too many are left out: the law moves, by no more than the lattice says."""
    pair = Sampled(GaussianPair(0.5), 0.1)
    one = discretise(pair, pair, 1.5, 1e-3, 0.0, np.arange(-150, 2500), -30.0)
    whole = compose([(one, 200)], (-3.0, 6.0), 0.0)
    monkeypatch.setattr(lattices, "SILENT", 0.0)
    everything = compose([(one, 200)], (-3.0, 6.0), 0.0)
    monkeypatch.setattr(lattices, "SILENT", silent)
    fewer = compose([(one, 200)], (-3.0, 6.0), 0.0)
    assert np.abs(whole.masses - everything.masses).sum() <= whole.error
    moved = np.abs(fewer.masses - everything.masses).sum()
    assert moved <= fewer.error
    assert (moved > 1e-9) == (silent > 1e-9)  # the larger ones do leave out what can be seen
