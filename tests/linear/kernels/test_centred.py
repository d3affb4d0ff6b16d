"""Gradients of sparse rows less a centre, beside brute force, and what a row can move."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from discreet.errors import InvalidParameter
from discreet.linear.kernels.centred import Centre, centred_gradient, centred_norms
from discreet.linear.kernels.kernel import row_norms
from discreet.linear.losses import Logistic, Softmax, Squared

GRID = 2.0**-30


def rows_and_targets(rows=60, columns=9, seed=0):
    rng = np.random.default_rng(seed)
    Z = np.where(rng.random((rows, columns)) < 0.4, rng.normal(size=(rows, columns)), 0.0)
    return Z, rng.integers(0, 2, rows).astype(float), Centre.near(rng.normal(size=columns))


def brute_force(loss, Z, y, theta, centre, clip_norm):
    """Row by row in float64, of rows with all their zeros."""
    total = np.zeros_like(theta)
    for z, target in zip(Z, y, strict=True):
        whole = np.r_[1.0, z - centre.values]
        gradient = np.multiply.outer(whole, loss.residual(whole @ theta, np.float64(target)))
        total += gradient * min(1.0, clip_norm / max(np.linalg.norm(gradient), 1e-300))
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(2)], ids=lambda loss: type(loss).__name__)
def test_it_is_the_sum_of_clipped_centred_gradients(loss, dtype):
    Z, y, centre = rows_and_targets()
    Z = Z.astype(dtype)
    theta = np.random.default_rng(1).normal(size=(10, loss.outputs) if loss.outputs > 1 else 10)
    sparse = csr_array(Z)
    norms = centred_norms(sparse, 1.0, centre)
    found = centred_gradient(centre, loss, sparse, y, theta, 1.0, norms, 0.7, GRID) * GRID
    np.testing.assert_allclose(found, brute_force(loss, Z, y, theta, centre, 0.7), atol=2e-5)


def test_norms_are_upper_bounds_and_close():
    Z, _, centre = rows_and_targets(200)
    Z[0] = centre.values  # nothing is left but the constant
    Z[1], Z[2, 0] = 1e300, np.inf
    found = centred_norms(csr_array(Z), 1.0, centre)
    exact = np.linalg.norm(np.c_[np.ones(197), Z[3:] - centre.values], axis=1)
    assert (found[3:] >= exact).all()
    assert 1 <= found[0] < 1 + 1e-9
    assert found[1] >= 3e300
    assert found[2] == np.inf
    np.testing.assert_allclose(found[3:], exact, rtol=1e-9)


def hostile_rows(centre):
    columns = len(centre.steps)
    return [
        centre.values,
        np.zeros(columns),
        1e6 * np.ones(columns),
        -centre.values,
        np.eye(columns)[0] * 1e-9,
    ]


@pytest.mark.parametrize("grid", [2.0**-30, 2.0**-12])
@pytest.mark.parametrize("loss", [Squared(), Softmax(2)], ids=lambda loss: type(loss).__name__)
def test_a_row_moves_the_sum_by_the_clip_norm_at_most(loss, grid):
    theta = np.random.default_rng(1).normal(size=(10, loss.outputs) if loss.outputs > 1 else 10)
    for seed in range(20):
        Z, y, centre = rows_and_targets(seed=seed)

        def total(more, Z=Z, y=y, centre=centre):
            table = csr_array(np.vstack([Z, *more]))
            targets = np.append(y, [1.0] * len(more))
            norms = centred_norms(table, 1.0, centre)
            return centred_gradient(centre, loss, table, targets, theta, 1.0, norms, 0.5, grid)

        for row in hostile_rows(centre):
            move = (total([row]) - total([])).astype(object)
            assert np.sum(move**2) <= (0.5 / grid) ** 2


def test_without_room_for_rounding_a_row_moves_more():
    """The broken twin: the same sums, clipped to the whole norm, on a coarse grid."""
    worst, grid, theta = 0.0, 2.0**-7, np.random.default_rng(1).normal(size=10)
    for seed in range(200):
        Z, y, centre = rows_and_targets(seed=seed)
        room = grid * (1 + 2 * np.sqrt(9) + np.linalg.norm(centre.values))
        sums = []
        for table, targets in ((Z, y), (np.vstack([Z, Z[0]]), np.append(y, 9.0))):
            sparse = csr_array(table)
            norms = centred_norms(sparse, 1.0, centre)
            known = (centre, Squared(), sparse, targets, theta, 1.0, norms, 1.0 + room, grid)
            sums.append(centred_gradient(*known))
        worst = max(worst, float(np.linalg.norm((sums[1] - sums[0]) * grid)))
    assert worst > 1


def test_products_with_a_centre_are_exact_and_rounded_down():
    centre = Centre.near(np.array([0.3, -2.7, 0.0, 1e9]))
    assert centre.steps[3] == 2**40
    for total in (0, 5, -5, 2**40 + 3, -(2**40) - 3):
        expected = [(total * int(step)) // 2**20 for step in centre.steps[:3]]
        assert centre.times(np.array(total))[:3].tolist() == expected


@pytest.mark.parametrize(("constant", "grid", "name"), [(0.3, GRID, "constant"), (1.0, 0.4, "grid")])
def test_what_has_no_proof_is_refused(constant, grid, name):
    Z, y, centre = rows_and_targets()
    norms = row_norms(csr_array(Z), 1.0)
    with pytest.raises(InvalidParameter, match=name):
        centred_gradient(centre, Logistic(), csr_array(Z), y, np.zeros(10), constant, norms, 1.0, grid)
