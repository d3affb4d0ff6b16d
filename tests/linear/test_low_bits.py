"""The last bits of what is released tell nothing: on the default path they are the same on neighbouring tables.

A float is finer near zero than elsewhere. So the noisy count of a class that nobody has can hold bits that the count
of a class with one record cannot, and to see one of them is to know (Mironov 2012). The streams have seeds, so these
tests give the same answer every time.
"""

import numpy as np
import pytest

from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateSVC,
)
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm.counts import count_classes
from discreet.linear.losses import Logistic
from discreet.trusted.spending import BudgetAllocator

DRAWS = 1500
BELOW = 2.0**-54  # no number with an exponent of a half or more has bits there


def finest_bit(values):
    """The value of the lowest bit that is set, for each number; infinity for 0."""
    fraction, exponent = np.frexp(np.asarray(values, np.float64))
    digits = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
    return np.where(digits == 0, np.inf, np.ldexp((digits & -digits).astype(float), exponent - 53))


def noisy_counts(records_of_the_class, arithmetic):
    """The released number of records of a class, again and again."""
    y = np.r_[np.zeros(5), np.ones(records_of_the_class)]
    records = Records(Logistic(), np.full((len(y), 1), 0.5), y, Columns(numerics=1))
    stream = RandomStream(unsafe_seed=7 + records_of_the_class, threads=1)
    stage = BudgetAllocator(Budget(8.0, 1e-6), stream=stream, arithmetic=arithmetic).stage("counts", 0.5)
    stage._left["counts"] = DRAWS  # as if it were fitted again and again
    return np.array([count_classes(records, 2, stage).classes[1] for _ in range(DRAWS)])


def rate_gap(arithmetic):
    """How much more often one table than its neighbour shows a bit below all bits of numbers near one."""
    near_zero = [
        np.mean((np.abs(counts) < 0.5) & (finest_bit(counts) < BELOW))
        for counts in (noisy_counts(0, arithmetic), noisy_counts(1, arithmetic))
    ]
    return abs(near_zero[0] - near_zero[1])


def test_neighbouring_tables_can_be_told_apart_by_bits_of_floats_and_not_by_the_default():
    assert rate_gap("float") > 0.1  # the broken twin: floats that hide the count, and tell it by their bits
    assert rate_gap("hardened") == 0


def test_the_residues_of_whole_numbers_are_the_same_on_neighbouring_tables():
    """Every residue is possible and as likely: gaps beyond 5 deviations are 1 in 10**6 by chance."""
    for steps in (2, 8):
        shares = []
        for records in (0, 1):
            counts = noisy_counts(records, "hardened")
            grid = BudgetAllocator(Budget(8.0, 1e-6)).stage("counts", 0.5).grid(1.0)
            whole = counts / grid
            assert np.array_equal(whole, np.rint(whole))
            shares.append(np.bincount((whole % steps).astype(int), minlength=steps) / DRAWS)
        assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(2 / steps / DRAWS)


MODELS = {
    "logistic": (PrivateLogisticRegression, {}),
    "three classes": (PrivateLogisticRegression, {"classes": (0, 1, 2)}),
    "support vectors": (PrivateSVC, {}),
    "numbers": (PrivateLinearRegression, {"target_bounds": (0, 2)}),
    "learnt bounds": (PrivateLinearRegression, {"bounds": None}),
    "counts": (PrivatePoissonRegressor, {"target_bounds": (0, 5)}),
}


def lattices(model, rows, monkeypatch, released):
    """For each release of a default fit the steps it may be a multiple of, from public numbers, and its values."""
    seen = []

    def release(self, total, event):
        noisy = released(self, total, event)
        seen.append((total.arithmetic, total.grid, noisy))
        return noisy

    monkeypatch.setattr(BudgetAllocator, "_add_noise", release)
    rng = np.random.default_rng(0)
    x, y = rng.random((401, 3)), rng.integers(0, 2, 401)
    model.fit(x[:rows], y[:rows])
    return seen


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_every_release_of_a_default_fit_is_whole_steps_of_a_public_grid(name, epsilon, monkeypatch):
    kind, settings = MODELS[name]
    released = BudgetAllocator._add_noise
    for rows in (400, 401):
        model = kind(epsilon=epsilon, **{"bounds": (0, 1), **settings})
        seen = lattices(model, rows, monkeypatch, released)
        assert len(seen) > 5
        for arithmetic, grid, noisy in seen:
            assert arithmetic == "hardened"
            assert (finest_bit(noisy) >= grid).all()
        certificate = model.certificate_
        assert certificate.arithmetic.kind == "hardened"
        assert (certificate.guarantee.epsilon.upper, certificate.guarantee.delta) == (epsilon, 1e-6)
        assert any("the bits that were released" in finding for finding in certificate.verify().findings)


def test_floats_say_that_they_are_floats():
    x, y = np.random.default_rng(0).random((300, 2)), np.arange(300) % 2
    settings = {"epsilon": 1.0, "bounds": (0, 1), "arithmetic": "float"}
    certificate = PrivateLogisticRegression(**settings).fit(x, y).certificate_
    assert certificate.arithmetic.kind == "float"
    assert certificate.plan.settings["arithmetic"] == "float"
    assert "floating point" in certificate.headline
    hardened = PrivateLogisticRegression(epsilon=1.0, bounds=(0, 1)).fit(x, y).certificate_
    assert hardened.plan.settings["arithmetic"] == "hardened"
    assert "floating point" not in hardened.headline
    by_theorem = {"epsilon": 1.0, "bounds": (0, 1), "method": "output-perturbation", "records": 300}
    assert PrivateLogisticRegression(**by_theorem).fit(x, y).certificate_.arithmetic.kind == "float"
