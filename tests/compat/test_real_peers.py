"""The adapters driven by Opacus and dp-accounting in an environment of their own (``make test-compat``)."""

import warnings

import pytest

from discreet import Gaussian, InvalidParameter, PoissonSampled, UnsupportedEvent, account
from discreet.compat import DpAccountant, OpacusAccountant

REASON = "{} is not installed in this environment; `make test-compat` runs this test in one where it is"


@pytest.fixture
def theirs():
    return pytest.importorskip("dp_accounting", reason=REASON.format("dp-accounting"))


def test_their_generic_tests_of_accountants_pass(theirs):
    from unittest import TestLoader, TestResult

    from dp_accounting import privacy_accountant_test

    class Ours(privacy_accountant_test.PrivacyAccountantTest):
        def _make_test_accountants(self):
            return [DpAccountant(relation) for relation in theirs.NeighboringRelation]

    tests, result = TestLoader().loadTestsFromTestCase(Ours), TestResult()
    tests.run(result)
    assert result.testsRun >= 13
    assert result.skipped == result.failures == result.errors == []


@pytest.mark.parametrize("kind", ["noise", "rate"])
def test_their_calibration_finds_what_ours_proves(theirs, kind):
    def event(value):
        noise, rate = (value, 0.1) if kind == "noise" else (2.0, value)
        return theirs.PoissonSampledDpEvent(rate, theirs.GaussianDpEvent(noise))

    found = theirs.calibrate_dp_mechanism(DpAccountant, event, 0.5, 1e-5, tol=1e-3)
    noise, rate = (found, 0.1) if kind == "noise" else (2.0, found)
    lower, upper = account(PoissonSampled(rate, Gaussian(noise))).epsilon_bounds(1e-5)
    assert lower <= 0.5 + 1e-6
    assert 0.48 < upper <= 0.5


def test_the_ledger_is_an_event_of_theirs(theirs):
    accountant = DpAccountant(theirs.NeighboringRelation.REPLACE_ONE)
    assert isinstance(accountant.ledger, theirs.NoOpDpEvent)
    accountant.compose(theirs.GaussianDpEvent(2.0), 3)
    assert accountant.ledger == theirs.SelfComposedDpEvent(theirs.GaussianDpEvent(2.0), 3)
    assert accountant.neighboring_relation is theirs.NeighboringRelation.REPLACE_ONE
    with pytest.raises(UnsupportedEvent) as refusal:
        accountant.compose(theirs.UnsupportedDpEvent())
    assert isinstance(refusal.value, theirs.UnsupportedEventError)


@pytest.fixture
def opacus():
    found = pytest.importorskip("opacus", reason=REASON.format("opacus"))
    from opacus.accountants import register_accountant

    register_accountant("discreet", OpacusAccountant, force=True)
    return found


def trained(opacus, *, noise=1.0, poisson=True, target=None):
    """Two epochs of ten steps as Opacus' own tutorials write them."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Linear(3, 2)
    loader = DataLoader(TensorDataset(torch.randn(200, 3), torch.arange(200) % 2), batch_size=20)
    common = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": loader,
        "max_grad_norm": 1.0,
        "poisson_sampling": poisson,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of theirs: no secure generator, hooks on whole modules
        engine = opacus.PrivacyEngine(accountant="discreet")
        if target is None:
            model, optimizer, loader = engine.make_private(noise_multiplier=noise, **common)
        else:
            model, optimizer, loader = engine.make_private_with_epsilon(
                target_epsilon=target, target_delta=1e-5, epochs=2, **common
            )
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return engine


def test_an_engine_accounts_by_name(opacus):
    engine = trained(opacus)
    assert len(engine.accountant) == 20
    expected = account(PoissonSampled(0.1, Gaussian(1.0)) * 20).epsilon(1e-5)
    assert engine.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-9)


def test_an_engine_is_calibrated_by_name(opacus):
    assert 0.9 < trained(opacus, target=1.0).get_epsilon(1e-5) <= 1.0


def test_steps_without_noise_are_taken_and_cost_everything(opacus):
    assert trained(opacus, noise=0.0).get_epsilon(1e-5) == float("inf")


@pytest.mark.parametrize("target", [None, 1.0])
def test_shuffled_batches_are_refused(opacus, target):
    with pytest.raises(InvalidParameter, match="poisson_sampling=False"):
        trained(opacus, poisson=False, target=target)
