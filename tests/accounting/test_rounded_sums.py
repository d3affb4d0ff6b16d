"""Sums of rounded variables against brute force: every combination of outcomes, written out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting import rounded_sums
from discreet.accounting.rounded_sums import UNIT, Piece, RoundedSum, positions
from discreet.errors import AccuracyNotReached


def exact_variable(masses: dict[int, list[float]], start: int) -> RoundedSum:
    """A variable that takes grid values only, so that it is its own label: its moments are 0."""
    pieces = {
        exponent: Piece(start * 2**-exponent, np.array([row, [0.0] * len(row)]))
        for exponent, row in masses.items()
    }
    return RoundedSum(1, pieces, 0.0, 0.0, 0.0)


def atoms(pld: RoundedSum) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, the means behind them, and their masses."""
    labels, means, masses = [], [], []
    for exponent, piece in pld.pieces.items():
        at, _ = pld.positions(exponent)
        mass, moment = piece.rows
        seen = mass > 0
        labels.append(at[seen])
        means.append(at[seen] + moment[seen] / mass[seen] * 2.0**exponent)
        masses.append(mass[seen])
    return np.concatenate(labels), np.concatenate(means), np.concatenate(masses)


def written_out(*plds: RoundedSum) -> tuple[np.ndarray, np.ndarray]:
    """The sum of exact variables: all combinations of outcomes, and their masses."""
    values, masses = np.zeros(1), np.ones(1)
    for pld in plds:
        labels, _, label_masses = atoms(pld)
        values = np.add.outer(values, labels).ravel()
        masses = np.multiply.outer(masses, label_masses).ravel()
    return values, masses


def enclosure_faults(pld: RoundedSum, values: np.ndarray, masses: np.ndarray) -> list[str]:
    """Where the labels are not above, or the means not below, the exact law in convex order."""
    labels, means, label_masses = atoms(pld)
    faults, rounding = [], 1e-13 * (masses @ values)
    if not math.isclose(label_masses.sum(), masses.sum(), rel_tol=1e-12):
        faults.append("mass")
    for name, place in (("labels", labels), ("means", means)):
        if not math.isclose(label_masses @ place, masses @ values, rel_tol=1e-12):
            faults.append(f"mean of the {name}")
    for strike in np.unique(np.concatenate([values, labels])):
        exact = masses @ np.maximum(values - strike, 0)
        above, below = (label_masses @ np.maximum(place - strike, 0) for place in (labels, means))
        if not below - rounding <= exact <= above + rounding:
            faults.append(f"call at {strike}")
    return faults


def graded(exponent: int) -> int:
    """Spacing 1/4 below count + 2, 1/2 below count + 10, 1 below count + 18, and so on."""
    return {-2: -(10**6), -1: 4, 0: 10, 1: 9}.get(exponent, 8)


row = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(fine=row, wide=row, start=st.integers(4, 12))
def test_sums_enclose_the_exact_law_in_convex_order(fine, wide, start):
    one = exact_variable({-2: fine, 0: wide}, start)
    two = one.add(one, graded, price=1.0, spare=0.0)
    three = two.add(one, graded, price=1.0, spare=0.0)
    four = two.add(two, graded, price=1.0, spare=0.0)
    assert enclosure_faults(two, *written_out(one, one)) == []
    assert enclosure_faults(three, *written_out(one, one, one)) == []
    assert enclosure_faults(four, *written_out(one, one, one, one)) == []


def upwards(piece: Piece | None) -> Piece | None:
    """A biased rounding, with correct moments."""
    if piece is None:
        return None
    start = piece.start // 2
    rows = np.zeros((2, piece.end // 2 - start + 1))
    for label, (mass, moment) in enumerate(piece.rows.T, piece.start):
        up = -(-label // 2)
        rows[:, up - start] += mass, (moment - (2 * up - label) * mass) / 2
    return Piece(start, rows)


def forgetful(piece: Piece | None) -> Piece | None:
    """A fair rounding that does not note in the moments what it did."""
    if piece is None:
        return None
    fair = coarser(Piece(piece.start, piece.rows * [[1.0], [0.0]]))
    return Piece(fair.start, fair.rows * [[1.0], [0.0]])


coarser = rounded_sums._coarser


@pytest.mark.parametrize(("rounding", "caught"), [(coarser, False), (upwards, True), (forgetful, True)])
def test_the_check_of_convex_order_catches_broken_roundings(monkeypatch, rounding, caught):
    monkeypatch.setattr(rounded_sums, "_coarser", rounding)
    one = exact_variable({-2: [0.2, 0.3, 0.4], 0: [0.1]}, 9)
    two = one.add(one, graded, price=1.0, spare=0.0)
    assert bool(enclosure_faults(two, *written_out(one, one))) is caught


@settings(max_examples=30, deadline=None)
@given(fine=row, wide=row, start=st.integers(4, 12))
def test_labels_stay_within_their_drift(fine, wide, start):
    one = exact_variable({-2: fine, 0: wide}, start)
    two = one.add(one, graded, price=1.0, spare=0.0)
    labels, means, _ = atoms(two.add(two, graded, price=1.0, spare=0.0))
    drift = two.add(two, graded, price=1.0, spare=0.0).drift
    assert np.all(np.abs(np.log(means / labels)) <= drift)
    assert drift < 1.0


def test_what_is_cut_is_cheap_and_is_paid_for():
    one = exact_variable({-2: [1e-9, 1e-3, 0.5, 0.3, 1e-3, 1e-12]}, 9)
    whole = one.add(one, graded, price=3.0, spare=0.0)
    spare = 1e-5
    trimmed = one.add(one, graded, price=3.0, spare=spare)
    labels, _, masses = atoms(whole)
    kept, _, kept_masses = atoms(trimmed)
    gone = ~np.isin(labels, kept)
    assert 0 < gone.sum() < len(labels)
    assert trimmed.cut == pytest.approx(masses[gone] @ (3.0 + labels[gone] / 2), rel=1e-9)
    assert trimmed.cut <= spare
    assert masses.sum() == pytest.approx(kept_masses.sum() + masses[gone].sum(), rel=1e-14)


def test_tiny_masses_keep_their_digits():
    one = exact_variable({-2: [1e-90, 1.0, 1e-70]}, 9)
    two = one.add(one, lambda _: 10**6, price=1.0, spare=0.0)
    _, _, masses = atoms(two)
    exact = [1e-180, 2e-90, 1.0 + 2e-160, 2e-70, 1e-140]
    assert np.all(np.abs(np.log(masses / exact)) <= two.error)
    assert two.error < 200 * UNIT


@pytest.mark.parametrize(("count", "exponent", "start"), [(1, -70, 3 - 2**70), (10**6, -12, -7), (5, 3, 40)])
def test_positions_are_exact_on_both_scales(count, exponent, start):
    at, centred = positions(count, exponent, start, start + 3)
    steps = range(start, start + 3)
    if exponent > 0:
        assert at.tolist() == [count + k * 2**exponent for k in steps]
    else:
        assert at.tolist() == [float(count * 2**-exponent + k) * 2.0**exponent for k in steps]
    assert centred.tolist() == [float(k) * 2.0**exponent for k in steps]


def test_a_grid_too_coarse_for_its_labels_is_refused():
    one = exact_variable({-2: [0.5, 0.5]}, 1)
    with pytest.raises(AccuracyNotReached, match="finer resolution"):
        one.add(one, lambda exponent: -(10**6) if exponent < 2 else 10**6, price=1.0, spare=0.0)
