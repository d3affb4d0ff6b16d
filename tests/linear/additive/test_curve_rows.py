"""Rows of curves that are never written out, against the same rows written out."""

import numpy as np
import pytest

from discreet.linear.additive.expanded_rows import expand
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records, WhiteNorms
from discreet.linear.losses import Squared
from discreet.linear.row_views import coordinates
from discreet.linear.row_views.coordinates import Marginals, SmoothCurves
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair, gather_rows
from discreet.linear.row_views.targets import Target
from discreet.linear.storage import Storage

COLUMNS = Columns(numerics=3, groups=(3, 1))


def made(seed):
    """A basis with a flag, a pair and a hat left out of each curve; rows at knots, between and beyond them."""
    rng = np.random.default_rng(seed)
    knots = [np.unique(np.r_[0.1, rng.random(rng.integers(1, 9)) * 0.8 + 0.1, 0.9]) for _ in range(3)]
    left_out = [np.delete(np.arange(len(some)), rng.integers(len(some))) for some in knots]
    curves = tuple(Curve(j, knots[j], left_out[j], 6 if j == 1 else None) for j in range(3))
    cells = np.flatnonzero(rng.random(len(knots[0]) * len(knots[2])) < 0.7)
    shares = np.full(len(knots[0]) * len(knots[2]), 0.1)
    basis = Basis(COLUMNS, curves, (Pair((0, 2), (knots[0], knots[2]), cells, shares),) if len(cells) else ())
    rows = np.zeros((300, 7), np.float32)
    rows[:, :3] = rng.choice(np.concatenate([*knots, rng.random(50), [0.0, 1.0]]), (300, 3))
    rows[:, 3:6] = np.eye(3)[rng.integers(3, size=300)]
    rows[:, 6] = rng.integers(2, size=300)
    return rng, basis, rows


@pytest.mark.parametrize("seed", range(20))
def test_gathered_rows_are_those_written_out(seed):
    rng, basis, rows = made(seed)
    written = expand(basis, rows)
    width = written.shape[1]
    assert (gather_rows(rows, basis, np.eye(width), np.zeros(width)) == written).all()
    matrix, constant = rng.normal(size=(width, 7)), rng.normal(size=7)
    for some in (matrix, matrix * (rng.random(matrix.shape) < 0.1)):  # and one that is mostly zeros
        assert gather_rows(rows, basis, some, constant) == pytest.approx(written @ some + constant, abs=1e-5)


def test_a_wrong_hat_would_be_noticed():
    """A broken twin: the layout of another basis, whose knots are elsewhere."""
    _, basis, rows = made(1)
    moved = [Curve(c.column, np.sqrt(c.knots), c.kept, c.missing) for c in basis.curves]
    basis.__dict__["layout"] = Basis(COLUMNS, tuple(moved), basis.pairs).layout
    width = basis.columns.width
    assert not (gather_rows(rows, basis, np.eye(width), np.zeros(width)) == expand(basis, rows)).all()


def test_a_row_is_gathered_by_itself():
    rng, basis, rows = made(2)
    matrix = rng.normal(size=(basis.columns.width, 33))
    together = gather_rows(rows, basis, matrix, np.ones(33))
    alone = np.vstack([gather_rows(row[None], basis, matrix, np.ones(33)) for row in rows])
    assert (together == alone).all()


@pytest.mark.parametrize("memory", [2**20, 0], ids=["kept", "on disk"])
def test_rows_are_kept_once_and_aimed_at_any_target(monkeypatch, memory):
    rng, basis, rows = made(3)
    y = rng.random(300)
    y[7] = np.nan  # does not count
    records = Records(Squared(), rows, y, COLUMNS, shelf=Storage(memory).shelf())
    store = records.in_curves(basis)._store
    width = basis.columns.width
    centre, scales, matrix = rng.random(width), 1 + rng.random(width), rng.normal(size=(width + 1, width + 1))
    marginals = Marginals(centre, scales, np.zeros(width), np.ones(width))
    white, calls = SmoothCurves(marginals, matrix, basis), []

    def counting(x, *known):
        calls.append(len(x))
        return gather_rows(x, *known)

    monkeypatch.setattr(coordinates, "gather_rows", counting)
    counted = np.isfinite(y)
    written = np.column_stack([np.ones(counted.sum()), (expand(basis, rows[counted]) - centre) / scales])
    for scale in (1.0, 3.0):
        equal = SmoothCurves(marginals, matrix.copy(), basis)  # by value, not by name
        working = store.working(equal, Target(scale=1 / scale))
        z, found = (np.concatenate(parts) for parts in zip(*((b.z, b.y) for b in working), strict=True))
        assert z == pytest.approx(written @ matrix, abs=1e-4)
        assert found == pytest.approx(scale * y[counted])
    norms = np.concatenate([part.x[:, 0] for part in store.parts(WhiteNorms(white))])
    assert (norms >= np.linalg.norm(z.astype(float), axis=1)).all()
    assert sum(size for size in calls if size > 1) == counted.sum()  # no row was transformed twice
    other = SmoothCurves(marginals, 2 * matrix, basis)
    doubled = np.concatenate([block.z for block in store.working(other, Target())])
    assert doubled == pytest.approx(2 * z, abs=1e-4)  # what was kept is not given out for other coordinates
    assert sum(size for size in calls if size > 1) == 2 * counted.sum()
