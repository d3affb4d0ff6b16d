"""The person as the unit of privacy: all rows of one person, however many, move no sum by more than its clip norm."""

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.guarantee import Budget
from discreet.linear import (
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateSVC,
    Unit,
)
from discreet.linear.gate import compiled_sums as gradients
from discreet.linear.gate import records as store
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import MOST_ROWS, People
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.typical_people import learned_rows
from discreet.linear.kernels.kernel import hardened_clipped_gradient, row_norms
from discreet.linear.kernels.moment_lattice import MomentLattice
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator


class Sulky:
    """A cell that cannot be compared."""

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


def test_rows_without_an_id_count_for_nothing():
    for missing in (None, math.nan, "", "  ", [], Sulky(), np.nan, b""):
        ids = np.empty(3, object)
        ids[:] = ["a", missing, "a"]
        found = People.of(ids)
        assert found._codes.tolist() == [0, -1, 0]
        assert found._rows.tolist() == [2]
        assert found._weights(1)[1] == 0
    assert People.of(np.array([1.5, math.nan, 1.5, 2.0]))._codes.tolist() == [0, -1, 0, 1]
    dates = np.array(["2020-01-01", "NaT", "2020-01-01"], "datetime64[D]")
    assert People.of(dates)._codes.tolist() == [0, -1, 0]
    assert People.of(np.array([], object))._count() == 0
    assert People.of(np.array([None, None], object))._order().tolist() == []


def test_blanks_around_an_id_do_not_make_another_person():
    assert People.of(np.array(["7", " 7", "7 "]))._rows.tolist() == [3]


def test_a_million_rows_of_one_person_weigh_no_more_than_one():
    ids = np.zeros(1_000_003, np.int64)
    ids[[5, 77, 123_456]] = 1
    found = People.of(ids)
    assert found._rows.tolist() == [MOST_ROWS, 3]
    kept = np.flatnonzero((found._codes >= 0) & (ids == 0))
    assert len(kept) == MOST_ROWS
    assert np.ptp(np.diff(kept)) <= 4  # evenly spaced, but for the other's rows
    assert sum_of_weights(found, 1)[0] <= 1


def sum_of_weights(found, least, own=None):
    """The weights of each person's rows, as float32 has them, added up exactly."""
    weights = found._weights(least, own).astype(np.float32).tolist()
    totals = [Fraction(0)] * found._count()
    for code, weight in zip(found._codes.tolist(), weights, strict=True):
        if code >= 0:
            totals[code] += Fraction(weight)
    return totals


@pytest.mark.parametrize("least", [1, 2, 3, 7, 256])
def test_the_weights_of_a_person_sum_to_at_most_one_exactly(least):
    rows = [1, 2, 3, 5, 6, 7, 49, 99, 255, 256, 257, 1000]
    found = People.of(np.repeat(np.arange(len(rows)), rows))
    for own in (None, np.full(sum(rows), np.nextafter(1.0, 0)), np.ones(sum(rows))):
        totals = sum_of_weights(found, least, own)
        assert max(totals) <= 1
        for count, total in zip(rows, totals, strict=True):
            assert total > Fraction(min(count, least), least) * Fraction(999, 1000)


def test_another_person_changes_nobodys_weights():
    ids = np.array(["a", "b", "a", "c", "b", "a"])
    everybody, without = People.of(ids), People.of(ids[ids != "b"])
    np.testing.assert_array_equal(everybody._weights(2)[ids != "b"], without._weights(2))


@pytest.mark.parametrize("each", [1, 4])
def test_the_learned_number_of_rows_is_that_of_most_people(each):
    ids = np.repeat(np.arange(20_000), each)
    spending = BudgetAllocator(
        Budget(8.0, 1e-6), stream=RandomStream(unsafe_seed=4)
    )  # else noise decides once in ten
    found = learned_rows(People.of(ids), spending, size=3)
    assert found.least <= each
    assert found.averaging == pytest.approx(math.sqrt((1 + 1 / each) / 2), rel=0.01)
    assert spending.left == pytest.approx(0.99)
    nobody = learned_rows(People.of(ids[:0]), BudgetAllocator(Budget(0.1, 1e-6)), size=3)
    assert nobody.least in (1, 2, 4, 8, 16, 32, 64, 128, 256)  # noise decides, and nothing breaks


class Replay:
    """Records what every release of a fit was made of; a second fit is given the very same noisy answers.

    So both fits ask the same questions, and what they add up can be compared, release by release.
    """

    def __init__(self, patch):
        self.sums, self.answers, self._again = [], [], None
        original = BudgetAllocator._add_noise

        def release(spending, total: BoundedSum, event):
            place = len(self.sums)
            self.sums.append((total.value * (total.grid or 1.0), total.clip_norm))
            if self._again is None:
                self.answers.append(original(spending, total, event))
            return np.array(self.answers[place] if self._again is None else self._again[place])

        patch.setattr(BudgetAllocator, "_add_noise", release)

    def again(self):
        """What the first fit added up; from now on its answers are given."""
        first, self.sums, self._again = self.sums, [], self.answers
        return first


def worst_move(patch, fit, table, without):
    """The largest distance between the sums of two tables, over the clip norm, over all releases of a fit."""
    replay = Replay(patch)
    fit(*table)
    first = replay.again()
    fit(*without)
    assert len(first) == len(replay.sums) > 4
    moves = [
        np.linalg.norm(np.asarray(a, float) - b) / clip
        for (a, clip), (b, _) in zip(first, replay.sums, strict=True)
    ]
    return max(moves)


def panel(people=400, seed=0):
    """Rows of people; the first one has forty, all of them extreme, the others one to three, anywhere."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.zeros(40, int), np.repeat(np.arange(1, people), rng.integers(1, 4, people - 1))])
    x = rng.uniform(0, 10, (len(ids), 3))
    y = rng.poisson(np.exp(0.1 * x[:, 0])).astype(float)
    x[:40], y[:40] = [10.0, 0.0, 10.0], 60.0
    order = rng.permutation(len(ids))
    return x[order], y[order], ids[order]


FITS = {
    "counts": (PrivatePoissonRegressor, {"target_bounds": (0, 60)}, lambda y: y),
    "numbers": (PrivateLinearRegression, {"target_bounds": (0, 60)}, lambda y: y),
    "huber": (PrivateLinearRegression, {"target_bounds": (0, 60), "loss": "huber"}, lambda y: y),
    "learned": (PrivateLinearRegression, {"bounds": None}, lambda y: y),
    "classes": (PrivateLogisticRegression, {}, lambda y: y > 2),
    "svc": (PrivateSVC, {}, lambda y: y > 2),
    "softmax": (PrivateLogisticRegression, {"classes": (0, 1, 2)}, lambda y: np.minimum(y, 2)),
    "errors of counts": (PrivatePoissonRegressor, {"target_bounds": (0, 60), "inference": True}, lambda y: y),
    "errors of numbers": (
        PrivateLinearRegression,
        {"target_bounds": (0, 60), "inference": True},
        lambda y: y,
    ),
    "errors of classes": (PrivateLogisticRegression, {"inference": True}, lambda y: y > 2),
    "curves": (PrivateAdditiveRegressor, {"target_bounds": (0, 60)}, lambda y: y),
}


def fitting(kind, **more):
    estimator, settings, target = FITS[kind]
    settings = {"epsilon": 8.0, "bounds": (0, 10), "unit": "person", **settings, **more}

    def fit(x, y, ids):
        estimator(**settings).fit(x, target(y), people=ids)

    return fit


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
@pytest.mark.parametrize("kind", FITS)
def test_all_rows_of_a_person_move_every_sum_by_the_clip_norm_at_most(kind, epsilon, monkeypatch):
    x, y, ids = panel()
    others = ids != 0
    fit = fitting(kind, epsilon=epsilon)
    moved = worst_move(monkeypatch, fit, (x, y, ids), (x[others], y[others], ids[others]))
    assert 0.5 < moved <= 1


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_exchanging_a_person_moves_every_sum_by_twice_that(arithmetic, monkeypatch):
    x, y, ids = panel()
    other_x, other_y = x.copy(), y.copy()
    other_x[ids == 0], other_y[ids == 0] = [0.0, 10.0, 0.0], 0.0
    fit = fitting("counts", neighbours="replace-one", arithmetic=arithmetic)
    moved = worst_move(monkeypatch, fit, (x, y, ids), (other_x, other_y, ids))
    assert 1 < moved <= 2


def uncapped(found, least, own=None):
    return np.where(found._codes >= 0, 1.0, 0.0)


def per_row(*known):
    """Every row clipped on its own, after it was weighed."""
    return hardened_clipped_gradient(*known[:-2], None, None)


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_mixed_ids_of_one_person_move_every_sum_by_the_clip_norm_at_most(monkeypatch):
    """The ids of the first person are 0, 0.0, "0" and " 0.0", as a file that was read in pieces has them."""
    x, y, ids = panel()
    others, mixed = ids != 0, ids.astype(object)
    mixed[~others] = np.resize(np.array([0, 0.0, "0", " 0.0"], object), 40)
    fit = fitting("counts")
    moved = worst_move(monkeypatch, fit, (x, y, mixed), (x[others], y[others], mixed[others]))
    assert 0.5 < moved <= 1


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_weights_that_are_not_capped_do_no_harm(monkeypatch):
    """The store leaves out people whose weights sum to more than 1."""
    x, y, ids = panel()
    others = ids != 0
    monkeypatch.setattr(People, "_weights", uncapped)
    moved = worst_move(monkeypatch, fitting("counts"), (x, y, ids), (x[others], y[others], ids[others]))
    assert moved <= 1


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("fault", ["weights not limited", "clip after weighing", "wrong column"])
def test_broken_twins_are_caught(fault, monkeypatch):
    x, y, ids = panel()
    others, used = ids != 0, ids
    if fault == "weights not limited":
        monkeypatch.setattr(People, "_weights", uncapped)
        monkeypatch.setattr(People, "_limit", lambda self, weights: weights)
    elif fault == "clip after weighing":
        monkeypatch.setattr(gradients, "hardened_clipped_gradient", per_row)
    else:
        used = np.arange(len(ids)) // 2
    moved = worst_move(monkeypatch, fitting("counts"), (x, y, used), (x[others], y[others], used[others]))
    assert moved > 2


def by_hand(loss, z, y, theta, constant, clip, weights, ids):
    """The gradients of people, clipped, in whole numbers of float arithmetic without tricks."""
    rows = np.column_stack([np.full(len(z), constant), z]).astype(float)
    residuals = loss.residual(rows @ theta, y).reshape(len(z), -1) * weights[:, None]
    total = np.zeros((rows.shape[1], residuals.shape[1]))
    for person in np.unique(ids):
        own = rows[ids == person].T @ residuals[ids == person]
        total += own * min(1.0, clip / np.linalg.norm(own))
    return total if residuals.shape[1] > 1 else total[:, 0]


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson(), Softmax(3)], ids=str)
def test_the_kernel_agrees_with_brute_force(loss):
    rng = np.random.default_rng(1)
    ids = np.repeat(np.arange(150), rng.integers(1, 9, 150))
    n, width = len(ids), 5
    z, y = rng.normal(size=(n, width)).astype(np.float32), rng.integers(0, 2, n).astype(np.float32)
    weights = People.of(ids)._weights(2).astype(np.float32)
    theta = rng.normal(size=(width + 1, loss.outputs) if loss.outputs > 1 else width + 1) / 4
    clip, grid = 0.3, 2.0**-40
    known = (loss, z, y, theta, 0.5, row_norms(z, 0.5), clip, grid, weights)
    found = hardened_clipped_gradient(*known, ids) * grid
    np.testing.assert_allclose(
        found, by_hand(loss, z, y, theta, 0.5, clip, weights.astype(float), ids), rtol=0, atol=2e-4
    )


def test_a_person_adds_the_same_bits_alone_and_within_the_clip_norm():
    rng = np.random.default_rng(2)
    ids = np.repeat(np.arange(500), rng.integers(1, 200, 500))
    z = rng.normal(size=(len(ids), 7)).astype(np.float32) * 100
    z[rng.integers(0, len(ids), 50), 3] = rng.choice([np.nan, np.inf, -np.inf, 3e38], 50)
    y = rng.poisson(3.0, len(ids)).astype(np.float32)
    theta, clip, grid = rng.normal(size=8) / 50, 1.0, 2.0**-30

    def total(which):
        rows = np.ascontiguousarray(z[which])
        weights = np.full(len(rows), 0.01, np.float32)
        known = (Poisson(), rows, y[which], theta, 1.0, row_norms(rows, 1.0), clip, grid, weights)
        return hardened_clipped_gradient(*known, ids[which])

    whole = total(ids >= 0)
    for person in (0, 17, 250, 499):
        alone = total(ids == person)
        np.testing.assert_array_equal(whole - total(ids != person), alone)
        assert sum(int(step) ** 2 for step in alone) <= int(clip / grid) ** 2
    np.testing.assert_array_equal(total(ids < 0), 0)


def test_people_must_go_with_the_rows():
    z = np.ones((3, 2))
    known = (Squared(), z, np.ones(3), np.zeros(3), 1.0, row_norms(z, 1.0), 1.0, 2.0**-30, None)
    for wrong in (np.zeros(2, np.int64), np.zeros(3)):
        with pytest.raises(InvalidParameter, match="people"):
            hardened_clipped_gradient(*known, wrong)


def test_rounding_to_the_nearest_would_break_the_second_moments():
    """256 rows of a person, each a hair above half a step: rounded up they would add too much, cut they do not."""
    lattice = MomentLattice.of(2.0**-24)
    weights = np.full(256, (1 - 2.0**-20) / 256)
    limit = 8.5 * lattice.step / math.sqrt(weights[0])  # the norm of the row
    rows = np.full((256, 1), limit, np.float32)
    exact = (limit / lattice.step) ** 2 * lattice.diagonal
    assert lattice.products(rows, weights)[0] <= exact
    nearest = 256 * np.ceil(8.5) ** 2 * lattice.diagonal
    assert nearest > 1.1 * exact


def test_a_table_in_chunks_gives_the_same_model(monkeypatch):
    x, y, ids = panel()
    people, columns = People.of(ids), Columns(3)
    known = (Poisson(), x / 10, y, columns)

    def fitted(memory):
        from discreet.core.randomness import RandomStream

        spending = BudgetAllocator(Budget(2.0, 1e-6), stream=RandomStream(unsafe_seed=4))
        more = {"target_bounds": (0.0, 60.0), "storage": Storage(memory), "people": people}
        return fit_glm(*known, spending, people._weights(1), **more).coefficients

    whole = fitted(2**31)
    monkeypatch.setattr(store, "_CHUNK", 30)  # ten rows at once, or all of a person
    np.testing.assert_array_equal(fitted(0), whole)


def test_rows_may_be_anywhere():
    x, y, ids = panel()
    order = np.argsort(ids, kind="stable")
    model = PrivatePoissonRegressor(2.0, target_bounds=(0, 60), bounds=(0, 10), unit="id", unsafe_seed=1)
    scattered = model.fit(x, y, people=ids).coef_
    np.testing.assert_array_equal(model.fit(x[order], y[order], people=ids[order]).coef_, scattered)


def test_who_has_one_row_each_is_fitted_as_before():
    """Nearly: the weights are a hair below 1, which makes other draws of the noise."""
    x, y, _ = panel()
    ids = np.arange(len(y))
    settings = {"target_bounds": (0, 60), "bounds": (0, 10), "unsafe_seed": 3, "epsilon": 4.0}
    rows = PrivateLinearRegression(**settings).fit(x, y).predict(x)
    alone = PrivateLinearRegression(**settings, unit=Unit("id", rows=1)).fit(x, y, people=ids).predict(x)
    np.testing.assert_allclose(alone, rows, atol=0.5)
