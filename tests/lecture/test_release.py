"""The methods of the lectures are charged before they draw, also without a ledger, and draw what was charged."""

from dataclasses import replace

import numpy as np
import pytest

from discreet import Budget, BudgetExceeded, Gaussian, PlanViolation, Recipe
from discreet.errors import LedgerUnavailable
from discreet.lecture import certified_descent
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.erm import METHODS, private_minimiser
from discreet.lecture.exponential import exponential_choice
from discreet.ledger import Ledger
from discreet.linear.losses import Logistic
from support.paid import Broken, Noting

X = np.random.default_rng(0).normal(size=(60, 2)) / 2
Y = (X[:, 0] > 0).astype(float)
PLANS = {
    "poisson": Recipe(60, 10, steps=4),
    "cyclic poisson": Recipe(60, 10, steps=4, bands=2),
    "random allocation": Recipe(60, 10, steps=12, sampling="random-allocation"),
    "full batch": Recipe(60, sampling="full-batch", steps=4),
}


def minimiser(method):
    def run(**options):
        return private_minimiser(Logistic(), X, Y, Budget(1.0, 1e-6), method=method, records=60, **options)

    return run


def choice(**options):
    points = np.zeros((3, 2))
    return exponential_choice(
        Logistic(), X, Y, points, Budget(1.0, 0.0), loss_bound=1.0, records=60, **options
    )


def descent(plan):
    def run(**options):
        return private_descent(Logistic(), X, Y, plan.with_noise(3.0, delta=1e-3), step_size=1.0, **options)

    return run


RUNS = {
    **{method: minimiser(method) for method in METHODS},
    "exponential-choice": choice,
    **{name: descent(plan) for name, plan in PLANS.items()},
}


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_drawn_after_a_reservation_has_failed(name, in_memory, monkeypatch, tmp_path):
    for reservations in range(3):
        with monkeypatch.context() as patch:
            stream = Noting()
            Broken(patch, reservations)
            places = (
                None if in_memory else tmp_path / f"{reservations}-{n}" for n in range(reservations + 1)
            )
            for _ in range(reservations):
                RUNS[name](stream=stream, ledger=next(places))
            before = stream.draws
            with pytest.raises(LedgerUnavailable):
                RUNS[name](stream=stream, ledger=next(places))
            assert stream.draws == before
            assert (before > 0) == (reservations > 0)


@pytest.mark.parametrize("name", RUNS)
def test_all_that_is_drawn_is_in_the_ledger(name, tmp_path):
    release = RUNS[name](ledger=tmp_path / "study.ledger")
    with Ledger.open(tmp_path / "study.ledger") as ledger:
        assert ledger.spent().parts() == release.event.parts()
    with pytest.raises((BudgetExceeded, PlanViolation)):
        RUNS[name](ledger=tmp_path / "study.ledger")


def test_a_descent_that_draws_less_noise_than_it_charges_is_refused(monkeypatch):
    """The broken twin: the noise of another plan."""
    honest, stream = certified_descent._decide, Noting()
    monkeypatch.setattr(certified_descent, "_decide", lambda *a: replace(honest(*a), noise=Gaussian(2.9)))
    for plan in PLANS.values():
        with pytest.raises(PlanViolation, match="Less noise would be drawn"):
            descent(plan)(stream=stream)
    assert stream.draws == 0


def test_a_descent_that_makes_more_steps_than_it_charges_is_stopped(monkeypatch):
    """The broken twin: another step on the way."""
    honest, stream = certified_descent.descend, Noting()

    def longer(gradient, start, steps, *rest):
        return honest(gradient, start, steps + 1, *rest)

    monkeypatch.setattr(certified_descent, "descend", longer)
    monkeypatch.setattr(certified_descent._Decided, "batches", lambda self, stream, rows: iter([None] * 99))
    for plan in PLANS.values():
        with pytest.raises(PlanViolation, match="no further release"):
            descent(plan)(stream=stream)
