"""The Laplace and the Gaussian mechanism are charged before they draw, and only within their budget."""

import numpy as np
import pytest

from discreet import Budget, BudgetExceeded, Gaussian, Laplace, gaussian_mechanism, laplace_mechanism
from discreet.errors import LedgerUnavailable
from discreet.trusted.noisy_statistic import noisy_statistic
from support.paid import Broken, Noting


def test_every_release_is_charged_once_before_its_noise(monkeypatch):
    for run in (laplace_mechanism, lambda *a, **k: gaussian_mechanism(*a, 1e-6, **k)):
        with monkeypatch.context() as patch:
            stream, ledger = Noting(), Broken(patch, 1)
            run([1.0, 2.0], 3.0, 0.5, stream=stream)
            before = stream.draws
            assert ledger.left == 0
            assert before > 0
            with pytest.raises(LedgerUnavailable):
                run([1.0, 2.0], 3.0, 0.5, stream=stream)
            assert stream.draws == before


def test_noise_that_does_not_fit_the_budget_is_not_drawn():
    """Whoever chooses the event is not believed: a ledger for it alone is not begun."""
    stream = Noting()
    for event, budget in ((Laplace(1.9), Budget(0.5, 0.0)), (Gaussian(1.0), Budget(1.0, 1e-6))):
        with pytest.raises(BudgetExceeded):
            noisy_statistic(np.ones(1), 1.0, event, budget, stream)
    with pytest.raises(BudgetExceeded):
        noisy_statistic(np.ones(1), 1.0, Laplace(2.1), Budget(0.5, 0.0, group_size=2), stream)
    assert stream.draws == 0
    noisy_statistic(np.ones(1), 1.0, Laplace(2.1), Budget(0.5, 0.0), stream)
    assert stream.draws > 0
