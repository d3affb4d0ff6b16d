"""Wide sparse tables: the sums of dense ones, the sensitivity of a record, and nothing made dense on the way."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import discreet.linear.gate.records as store
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression, PrivatePoissonRegressor
from discreet.linear.diagnosis import DeclarationWarning
from discreet.linear.gate import records as gate_records
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.gate.records import Records
from discreet.linear.glm import whitening
from discreet.linear.glm.frames import DiagonalFrame
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.marginals import measure_marginals
from discreet.linear.glm.ranges import learned_ranges
from discreet.linear.kernels.csr_entries import in_order
from discreet.linear.kernels.kernel import row_norms
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator
from support.kept_coordinates import kept_coordinates

NUMBERS, TEXT = Columns(numerics=6), Columns(0, text=6, text_norm=1.5)


def sparse_table(rows, columns, seed=0, share=0.3):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, columns)) < share, rng.random((rows, columns)), 0.0)


def labelled(rows, columns, seed=0):
    x = sparse_table(rows, columns, seed)
    return x, (x[:, 0] - x[:, 1] + 0.2 * np.random.default_rng(seed).normal(size=rows) > 0).astype(float)


class Kept(BudgetAllocator):
    """Keeps every sum. Answers with noise, or with the answers of another fit."""

    def __init__(self, answers=None, epsilon=12.0, arithmetic="hardened"):
        stream = RandomStream(unsafe_seed=3, threads=1)
        super().__init__(Budget(epsilon, 1e-6), stream=stream, arithmetic=arithmetic)
        self.sums, self.answers, self.given = [], [], answers

    def _add_noise(self, total, event):
        exact = total.value.astype(object) if total.grid else total.value
        self.sums.append((exact, total.clip_norm, total.grid or 1.0))
        noisy = super()._add_noise(total, event) if self.given is None else self.given[len(self.answers)]
        self.answers.append(noisy)
        return noisy


@pytest.mark.parametrize("columns", [NUMBERS, Columns(0, text=6, text_norm=9.0)], ids=["numbers", "text"])
@pytest.mark.parametrize("weighted", [False, True])
def test_marginals_are_sums_of_the_same_whole_numbers(columns, weighted):
    x, y = labelled(300, 6)
    x[3, 2], x[4, 1], x[5] = np.nan, 7.0, 0.0
    weights = np.random.default_rng(1).random(300) if weighted else None
    found = []
    for sparse in (False, True):
        records = Records(Logistic(), csr_array(x), y, columns, weights, sparse=sparse)
        spending = Kept()
        marginals = measure_marginals(records, 300.0, spending.stage("marginals", 0.5))
        found.append((spending.sums[0], marginals))
    (dense, seen), (sparse, also) = found
    np.testing.assert_array_equal(dense[0], sparse[0])
    assert dense[1:] == sparse[1:]
    np.testing.assert_array_equal(seen.scale, also.scale)


@pytest.mark.parametrize("weighted", [False, True])
def test_learnt_ranges_are_the_same(weighted):
    x = 100 * (sparse_table(400, 5) - 0.2 * (sparse_table(400, 5) > 0.5))
    x[7, 3] = np.nan
    weights = np.random.default_rng(1).random(400) if weighted else None
    found = [
        learned_ranges(RawColumns(table, weights), Kept(), 0.3, records=400.0) for table in (x, csr_array(x))
    ]
    assert found[0].ranges == found[1].ranges
    assert found[0].found.tolist() == found[1].found.tolist()


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (Logistic(), lambda y: y),
        (Softmax(3), lambda y: 2 * y),
        (Squared(), lambda y: y),
        (Poisson(), lambda y: y),
    ],
    ids=["two classes", "three classes", "numbers", "counts"],
)
def test_a_sparse_fit_is_the_dense_one_with_a_diagonal(monkeypatch, loss, target):
    """Centred in sums and norms only, or row by row: the same steps but for roundings to another lattice."""
    x, y = labelled(3000, 6)
    monkeypatch.setattr(whitening, "WIDEST", 3)
    coordinates = kept_coordinates(monkeypatch)
    dense = fit_glm(loss, x, target(y), TEXT, Kept(), target_bounds=(0.0, 9.0))
    monkeypatch.setattr(gate_records, "NARROW", 3)
    sparse = fit_glm(loss, csr_array(x), target(y), TEXT, Kept(), target_bounds=(0.0, 9.0))
    assert [type(one) for one in coordinates] == [DiagonalFrame, DiagonalFrame]
    assert coordinates[0].map.centre is None
    assert coordinates[1].map.centre is not None
    np.testing.assert_allclose(
        sparse.coefficients, dense.coefficients, atol=2e-3 * np.abs(dense.coefficients).max()
    )
    np.testing.assert_allclose(sparse.intercept, dense.intercept, atol=2e-3)


HOSTILE = {
    "all ones": np.ones(6),
    "nothing": np.zeros(6),
    "out of range": np.r_[1e300, -1e300, 7.0, 0, 0, 1.0],
    "one corner": np.r_[0, 0, 1.5, 0, 0, 0],
    "nan": np.r_[np.nan, np.ones(5)],
}


def moves(columns, row, target, epsilon, arithmetic, loss):
    """For each release, how far a record moves the sum, in clip norms."""
    x, y = labelled(150, 6)
    x[:, 5] = np.abs(x[:, 5]) + 0.9  # far from 0 in every record: the centre counts
    first = Kept(None, epsilon, arithmetic)
    fit_glm(loss, csr_array(x), y, columns, first)
    second = Kept(first.answers, epsilon, arithmetic)
    fit_glm(loss, csr_array(np.vstack([x, row])), np.append(y, target), columns, second)
    assert len(first.sums) == len(second.sums)
    return [
        float(np.sqrt(np.sum(((b - a) * grid) ** 2))) / clip_norm
        for (a, clip_norm, grid), (b, _, _) in zip(first.sums, second.sums, strict=True)
    ]


@pytest.mark.parametrize("columns", [NUMBERS, TEXT], ids=["numbers", "text"])
@pytest.mark.parametrize("epsilon", [12.0, 0.3], ids=["rich", "poor"])
@pytest.mark.parametrize(("arithmetic", "loss"), [("hardened", Logistic()), ("float", Softmax(3))])
def test_no_record_moves_a_sum_by_more_than_its_clip_norm(monkeypatch, columns, epsilon, arithmetic, loss):
    monkeypatch.setattr(gate_records, "NARROW", 3)
    largest = {
        name: max(moves(columns, row, 1.0, epsilon, arithmetic, loss)) for name, row in HOSTILE.items()
    }
    assert max(largest.values()) <= 1
    assert largest["nan"] == 0
    assert largest["all ones"] > 0.9


def test_a_sum_whose_norms_forget_the_centre_is_caught(monkeypatch):
    """The broken twin: rows are clipped by their own norm, and centred afterwards."""
    monkeypatch.setattr(gate_records, "NARROW", 3)
    assert max(moves(TEXT, HOSTILE["nothing"], 1.0, 12.0, "hardened", Logistic())) <= 1
    monkeypatch.setattr(store, "centred_norms", lambda z, constant, centre: row_norms(z, constant))
    assert max(moves(TEXT, HOSTILE["nothing"], 1.0, 12.0, "hardened", Logistic())) > 1.2


def test_wide_tables_are_never_made_dense(monkeypatch):
    rng = np.random.default_rng(0)
    x = csr_array((rng.random(6000), rng.integers(0, 3000, 6000), np.arange(0, 6001, 3)), shape=(2000, 3000))
    y = rng.integers(0, 2, 2000)
    for name in ("toarray", "todense"):
        monkeypatch.setattr(csr_array, name, lambda *_: pytest.fail("made dense"))
    for model in (
        PrivateLogisticRegression(2.0, bounds=(0, 1)),
        PrivateLogisticRegression(2.0, row_norm=1.0),
        PrivateLinearRegression(2.0, target_bounds=(0, 1), bounds=(0, 1)),
        PrivatePoissonRegressor(2.0, target_bounds=(0, 1), bounds=(0, 1)),
    ):
        model.set_params(unsafe_seed=1).fit(x, y)
        assert model.predict(x).shape == (2000,)
        assert model.coef_.shape[-1] == 3000


def test_a_scratch_file_changes_no_bit(monkeypatch):
    x, y = labelled(900, 200)
    monkeypatch.setattr("discreet.linear.kernels.csr_rows._ENTRIES", 5000)
    found = [
        fit_glm(Logistic(), csr_array(x), y, Columns(200), Kept(), storage=Storage(memory))
        for memory in (0, 2**30)
    ]
    np.testing.assert_array_equal(found[0].coefficients, found[1].coefficients)


def test_sparse_rows_in_any_disorder_are_the_rows_that_they_are():
    clean = csr_array(np.array([[1.0, 0, 0.5], [0, 0.25, 0]]))
    assert in_order(clean.data, clean.indices, clean.indptr, 3)
    for indices, ends in (([2, 0, 1], [0, 2, 3]), ([0, 0, 1], [0, 2, 3]), ([0, 9, 1], [0, 2, 3])):
        assert not in_order(clean.data, np.array(indices), np.array(ends), 3)
    for ends in ([0, 2, 9], [0, 3, 2], [-1, 2, 3]):
        assert not in_order(clean.data, clean.indices, np.array(ends), 3)
    assert not in_order(clean.data, clean.indices[:2], clean.indptr, 3)


def test_text_without_a_declared_norm_gets_a_hint():
    x, y = labelled(300, 200)
    with pytest.warns(DeclarationWarning, match=r"row_norm=1\.0"):
        PrivateLogisticRegression(1.0).fit(csr_array(x), y)
