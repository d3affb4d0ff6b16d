"""Every pair against closed forms: masses of cells, their likelihood ratios, tails, atoms and far tails."""

import mpmath
import numpy as np
import pytest

from discreet.accounting.lattice import cell_accuracy
from discreet.accounting.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Reversed,
    Sampled,
    normal_masses,
)
from discreet.accounting.sampled_pairs import FixedSize, GroupPair
from support import accounting_reference as ref
from support.worlds import worlds

WORLDS = {world.name: world for world in worlds()}
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)


def grid(pair, cells=60, log_tail=-37.0):
    """Boundaries well inside and around the law, on no round number."""
    low, high = pair.p_range(log_tail)
    width = max(high - low, 1e-3)
    return np.linspace(low - 0.1237 * width, high + 0.0731 * width, cells)


@every_world
def test_cells_against_the_closed_form(world):
    """P-mass above each boundary, and H there: masses of all cells follow as differences."""
    boundaries = grid(world.pair)
    cells = world.pair.cells(boundaries)
    above = np.append(np.cumsum(cells.p[::-1])[::-1], 0.0) + cells.p_above
    tail = ref.tail_mass(world.curve, boundaries)
    assert np.all(np.abs(above - tail) <= 4e-15 + 1e-13 * tail)
    scaled_q = np.append(np.cumsum(cells.q[::-1])[::-1], 0.0) * np.exp(boundaries)
    beyond = np.maximum(ref.tail_mass(world.curve, boundaries[-1]), 1e-16)  # Q above all is at most this
    exact = ref.hockey_stick(world.curve, boundaries)
    slack = 1e-14 * (1 + np.exp(boundaries)) + beyond * np.exp(boundaries - boundaries[-1])
    assert np.all(np.abs(above - scaled_q - exact) <= slack)
    assert cells.p_below + cells.p.sum() + cells.p_above == pytest.approx(1.0, abs=3e-15)


@every_world
def test_likelihood_ratio_of_every_cell_lies_between_its_losses(world):
    """e^b Q(cell) <= P(cell) <= e^b' Q(cell): what every bound of the lattice rests on."""
    assert ratio_violations(world.pair, grid(world.pair, 400)) == []


def ratio_violations(pair, boundaries):
    cells = pair.cells(boundaries)
    assert np.all(cells.p >= 0)
    assert np.all(cells.q >= 0)
    filled = (cells.p > 1e-280) & (cells.q > 1e-280)
    ratio = np.log(cells.p[filled]) - np.log(cells.q[filled])
    low, high = boundaries[:-1][filled], boundaries[1:][filled]
    # A mass is a difference of two tails; rounding moves it by a few units of the nearer tail.
    mass = np.minimum(cells.p[filled], cells.q[filled] * np.exp(np.maximum(low, 0.0)))
    nearer = np.minimum(np.cumsum(cells.p)[filled], np.cumsum(cells.p[::-1])[::-1][filled]) + mass
    slack = cell_accuracy(-60.0) * nearer / mass + 1e-12
    wrong = (ratio < low - slack) | (ratio > high + slack)
    return list(zip(low[wrong], ratio[wrong], high[wrong], strict=True))


def test_the_ratio_check_catches_a_wrong_inverse(monkeypatch):
    """Broken twin: the base loss of a sampled pair, with a rate that is off by one percent."""
    pair = Sampled(GaussianPair(1.0), 0.01)
    wrong = Sampled(GaussianPair(1.0), 0.01 * 1.01)
    monkeypatch.setattr(
        Sampled, "_base_loss", lambda self, loss, right=Sampled._base_loss: right(wrong, loss)
    )
    assert len(ratio_violations(pair, grid(pair, 4000))) > 10


@every_world
def test_whole_line_is_one_cell(world):
    cells = world.pair.cells(np.array([-np.inf, np.inf]))
    infinite = getattr(world.pair, "p_infinite", 0.0)
    assert cells.p[0] == pytest.approx(1 - infinite, abs=2e-15)
    assert cells.q[0] == pytest.approx(1.0, abs=2e-15)
    assert cells.p_below == 0
    assert cells.p_above == infinite


@every_world
def test_finer_cells_add_up(world):
    coarse = grid(world.pair, 9)
    fine = np.unique(np.concatenate([coarse, grid(world.pair, 500)]))
    inside = fine[(fine >= coarse[0]) & (fine <= coarse[-1])]
    whole, parts = world.pair.cells(coarse), world.pair.cells(inside)
    owner = np.searchsorted(coarse, inside[1:]) - 1
    assert np.bincount(owner, parts.p) == pytest.approx(whole.p, rel=1e-11, abs=3e-15)
    assert np.bincount(owner, parts.q) == pytest.approx(whole.q, rel=1e-11, abs=3e-15)


ATOMS = [
    (LaplacePair(1.0), 1.0, 0.5, 0.5 * np.exp(-1)),
    (LaplacePair(1.0), -1.0, 0.5 * np.exp(-1), 0.5),
    (Reversed(LaplacePair(1.0)), 1.0, 0.5, 0.5 * np.exp(-1)),
    (Reversed(LaplacePair(1.0)), -1.0, 0.5 * np.exp(-1), 0.5),
    (DiscretePair.randomised_response(2.0), 2.0, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))),
    (Reversed(DiscretePair.randomised_response(2.0)), -2.0, 1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))),
    (
        FixedSize(GaussianPair(2.0), 0.1),
        0.0,
        0.9 * (1 - 2 * 0.15865525393145707),
        0.9 * (1 - 2 * 0.15865525393145707),
    ),
]


@pytest.mark.parametrize(("pair", "loss", "p", "q"), ATOMS)
def test_an_atom_belongs_to_the_cell_that_ends_at_it(pair, loss, p, q):
    """Cells are (b, b']: an atom on a boundary is counted once, and in the lower cell."""
    cells = pair.cells(np.array([loss - 1e-9, loss, loss + 1e-9]))
    assert cells.p == pytest.approx([p, 0.0], abs=1e-8)
    assert cells.q == pytest.approx([q, 0.0], abs=1e-8)


@every_world
@pytest.mark.parametrize("log_tail", [-12.0, -40.0, -100.0])
def test_ranges_hold_all_but_the_tail(world, log_tail):
    """P outside of p_range and Q outside of q_range: at most e^log_tail on each side."""
    for side, reverse in ((world.pair.p_range, False), (world.pair.q_range, True)):
        low, high = side(log_tail)
        assert low <= high
        pair = Reversed(world.pair) if reverse else world.pair
        low, high = (-high, -low) if reverse else (low, high)
        edges = np.array([-np.inf, np.nextafter(low, -np.inf), high, np.inf])
        cells = pair.cells(edges)
        allowed = np.exp(log_tail) * (1 + 1e-6)
        assert cells.p[0] <= allowed
        finite_above = cells.p[2]
        assert finite_above <= allowed


@every_world
def test_nodes_increase_and_cover_the_law(world):
    nodes = world.pair.nodes(np.log(1e-12))
    assert np.all(np.diff(nodes) >= 0)
    assert world.pair.cells(nodes).p.sum() > 1 - 2e-3 - getattr(world.pair, "p_infinite", 0.0)


@every_world
def test_reversing_twice_changes_nothing(world):
    boundaries = grid(world.pair)
    once, twice = world.pair.cells(boundaries), Reversed(Reversed(world.pair)).cells(boundaries)
    assert twice.p == pytest.approx(once.p, rel=1e-9, abs=1e-15)
    assert twice.q == pytest.approx(once.q, rel=1e-9, abs=1e-15)


def same_cells(left, right, boundaries, **tolerance):
    ours, theirs = left.cells(boundaries), right.cells(boundaries)
    assert ours.p == pytest.approx(theirs.p, **tolerance)
    assert ours.q == pytest.approx(theirs.q, **tolerance)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.3), (6.0, 1e-4)])
def test_a_group_of_one_is_a_record(noise, rate):
    sampled = Sampled(GaussianPair(1 / noise), rate)
    same_cells(GroupPair(noise, rate, 1, 0), sampled, grid(sampled), rel=1e-10, abs=1e-15)


def test_certain_sampling_is_no_sampling():
    for base in (GaussianPair(0.7), LaplacePair(1.3)):
        same_cells(Sampled(base, 1.0), base, grid(base), rel=1e-12, abs=1e-16)
        same_cells(FixedSize(base, 1.0), base, grid(base), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    "pair", [GroupPair(1.0, 0.05, 3, 3), GroupPair(0.6, 0.01, 1, 1), FixedSize(GaussianPair(1.0), 0.1)]
)
def test_symmetric_pairs(pair):
    same_cells(Reversed(pair), pair, grid(pair), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("noise", "rate", "leaving", "joining"),
    [
        (1.0, 0.999, 6, 0),
        (1.0, 0.01, 40, 0),
        (0.3, 0.001, 12, 12),
        (5.0, 0.5, 100, 0),
        (0.5, 1e-4, 30, 0),
        (20.0, 0.02, 300, 300),
    ],
)
def test_large_groups_are_inverted_correctly(noise, rate, leaving, joining):
    """Losses that jump from mode to mode of the mixture are where Newton's method could go astray."""
    pair = GroupPair(noise, rate, leaving, joining)
    for direction in (pair, Reversed(pair)):
        assert ratio_violations(direction, grid(direction, 1500, -69.0)) == []


def test_fixed_size_is_above_both_orders_of_the_ordered_pair():
    """The curve that holds in both orders dominates each of them, and is attained by one on either side of 0."""
    both, one = FixedSize(GaussianPair(0.5), 0.05), Sampled(GaussianPair(0.5), 0.05)
    losses = np.linspace(-0.2, 0.3, 101)
    curve = ref.FixedSizeCurve(4.0, 0.05)
    orders = [ref.SampledCurve(ref.GaussianCurve(0.5), 0.05)]
    orders.append(ref.ReversedCurve(orders[0]))
    high = np.max([ref.hockey_stick(order, losses) for order in orders], axis=0)
    ours = hockey_sticks(both, losses)
    assert ours == pytest.approx(ref.hockey_stick(curve, losses), abs=2e-15)
    assert ours == pytest.approx(high, abs=2e-15)
    assert np.all(ours - hockey_sticks(one, losses) >= -2e-15)
    assert np.max(ours - hockey_sticks(one, losses)) > 1e-4


def hockey_sticks(pair, losses):
    return np.array([_hockey_stick(pair, loss) for loss in losses])


def _hockey_stick(pair, loss):
    cells = pair.cells(np.array([-np.inf, loss, np.inf]))
    return cells.p[1] + cells.p_above - np.exp(loss) * cells.q[1]


def exact_masses(z):
    with mpmath.workdps(40):
        tails = [mpmath.ncdf(-abs(mpmath.mpf(x))) for x in z]
        return [
            1 - tails[i] - tails[i + 1] if z[i] < 0 <= z[i + 1] else abs(tails[i + 1] - tails[i])
            for i in range(len(z) - 1)
        ]


@pytest.mark.parametrize("end", [3.0, 10.0, 37.4])
def test_normal_masses_against_forty_digits(end):
    """The error of a mass is counted in units of the nearer tail, as cell_accuracy says."""
    rng = np.random.default_rng(3)
    z = np.sort(np.concatenate([rng.uniform(-end, end, 150), [0.0], [-end, end]]))
    for left, right, mass, exact in zip(z[:-1], z[1:], normal_masses(z), exact_masses(z), strict=True):
        tail = float(mpmath.ncdf(-min(abs(left), abs(right)))) if left * right > 0 else 0.5
        assert abs(mass - exact) <= cell_accuracy(np.log(tail)) / 2 * tail


def test_normal_masses_at_infinity_and_on_one_side():
    assert normal_masses(np.array([-np.inf, 0.0, np.inf])) == pytest.approx([0.5, 0.5])
    assert normal_masses(np.array([-np.inf, -40.0])) == pytest.approx([0.0], abs=1e-300)
    assert normal_masses(np.array([1.0, 2.0, np.inf])).sum() == pytest.approx(0.15865525393145707, rel=1e-15)
    assert normal_masses(np.array([-np.inf, -2.0, -1.0])).sum() == pytest.approx(
        0.15865525393145707, rel=1e-15
    )


def exact_sampled(noise, rate, loss):
    """P- and Q-mass above a loss of the sampled Gaussian, in fifty digits; then those below it."""
    with mpmath.workdps(50):
        noise, rate, loss = (mpmath.mpf(float(x)) for x in (noise, rate, loss))
        base = mpmath.log((mpmath.exp(loss) - (1 - rate)) / rate)
        x = base * noise + 1 / (2 * noise)  # the outcome, in standard deviations
        q, p = mpmath.ncdf(-x), mpmath.ncdf(1 / noise - x)
        above = (1 - rate) * q + rate * p, q
        q, p = mpmath.ncdf(x), mpmath.ncdf(x - 1 / noise)
        return above, (q, (1 - rate) * q + rate * p)


@pytest.mark.parametrize(("noise", "rate"), [(4.0, 0.01), (1.0, 1e-4), (0.4, 0.2), (20.0, 0.5)])
def test_one_step_curve_is_as_accurate_as_the_lattice_assumes(noise, rate):
    """|H computed - H| <= cell_accuracy(log tail) * tail in both directions, from the body to masses of 1e-238."""
    pair = Sampled(GaussianPair(1 / noise), rate)
    low, high = pair.p_range(-550.0)
    losses = [*np.linspace(0.999 * low, 0.05 * high, 40), *np.linspace(0.05 * high, high, 40)]
    for loss in losses:
        (p, q), (rp, rq) = exact_sampled(noise, rate, loss)
        for direction, at, exact_p, exact_q in ((pair, loss, p, q), (Reversed(pair), -loss, rp, rq)):
            cells = direction.cells(np.array([-np.inf, at, np.inf]))
            with mpmath.workdps(50):
                scale = mpmath.exp(mpmath.mpf(float(at)))
                error = (cells.p[1] - scale * mpmath.mpf(cells.q[1])) - (exact_p - scale * exact_q)
                allowed = cell_accuracy(float(mpmath.log(exact_p))) * exact_p
            assert abs(error) <= allowed
