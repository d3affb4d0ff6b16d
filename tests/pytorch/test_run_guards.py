"""What a run refuses around its permits: norms counted twice, rules that mix, forks, threads, second tries."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from discreet import InvalidParameter, PlanViolation, Recipe
from discreet.core.clipping import AdaptiveClip, ClipRule, Flat
from discreet.errors import CheckFailed, UserCodeFailed
from discreet.pytorch import PrivateRun
from discreet.pytorch.checks import single_examples
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.training_stages import NormRecordingClip, OwnClip

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


def losses(model, batch):
    return model(batch).square().sum(1)


def begun(steps=3, losses=losses, sampling="full-batch", **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    recipe = Recipe(40, sampling=sampling, steps=steps, batch_size=None if sampling == "full-batch" else 10)
    plan = recipe.with_noise(2.0, delta=1e-3)
    return PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses, **options)


def recorded_by_a_comparison():
    """How many norms the rule of a step records while a step is compared with its twin in float64."""
    of_step = NormRecordingClip(1.0)
    of = ClippedSum(nn.Linear(3, 2), losses, of_step)
    assert single_examples.agrees_in_float64(of, X, X[:1], 0, False) is True
    return len(of_step.norms())


def test_norms_that_are_computed_to_compare_a_step_are_not_counted(monkeypatch):
    assert recorded_by_a_comparison() == 0
    monkeypatch.setattr(single_examples, "not_recording", lambda rule: rule)  # the broken twin
    assert recorded_by_a_comparison() >= len(X)


def test_norms_recorded_twice_end_a_step(monkeypatch):
    honest = NormRecordingClip.norms
    monkeypatch.setattr(NormRecordingClip, "norms", lambda rule: np.tile(honest(rule), 2))
    private = begun(clipping=AdaptiveClip(1.0, batch_size=40, count_noise=8.0))
    with pytest.raises(PlanViolation, match="more than once"):
        private.step(next(private.batches(X)))
    assert private.steps_taken == 0


class Mixing(ClipRule):
    """Divides by the largest norm of the batch, and shrinks its own clip norm."""

    def __init__(self):
        self.clip_norm = 1.0

    def wanted(self, norms):
        self.clip_norm /= 2
        return np.full(norms.shape, 1.0 / max(norms.max(), 1e-9))


class Unclipped(ClipRule):
    clip_norm = 1.0

    def wanted(self, norms):
        return np.ones(norms.shape)

    def factors(self, norms, error=1e-12):
        return np.full(np.shape(norms), 1e6)


class Remembering(ClipRule):
    """Divides by the largest norm that it has ever seen."""

    clip_norm = 1.0

    def __init__(self):
        self.largest = 0.0

    def wanted(self, norms):
        self.largest = max(self.largest, float(norms.max()))
        return np.full(norms.shape, 1.0 / max(self.largest, 1e-9))


class Smooth(ClipRule):
    clip_norm = 2.0

    def wanted(self, norms):
        return 2.0 / np.hypot(norms, 2.0)


def test_a_rule_of_a_users_own_forgets_earlier_norms():
    rule = OwnClip(Remembering())
    before = rule.factors([[1.0]])
    rule.factors([[1e9]])
    assert np.array_equal(rule.factors([[1.0]]), before)
    broken = Remembering()  # the twin that is not tabulated
    before = broken.factors([[1.0]])
    broken.factors([[1e9]])
    assert not np.array_equal(broken.factors([[1.0]]), before)


def test_a_tabulated_rule_is_the_rule():
    """Between two points of the table the factor is interpolated: off by 1e-6 at most, and never too long."""
    norms = np.geomspace(1e-5, 1e6, 1001)[:, None]
    tabulated = OwnClip(Smooth()).factors(norms)
    np.testing.assert_allclose(tabulated, Smooth().factors(norms), rtol=1e-6)
    assert (tabulated * norms <= 2.0).all()
    for wrong in (-1.0, np.nan, np.ones(3)):
        rule = Smooth()
        rule.wanted = lambda norms, wrong=wrong: np.full(norms.shape, wrong) if np.ndim(wrong) == 0 else wrong
        with pytest.raises(InvalidParameter, match="one finite, non-negative factor"):
            OwnClip(rule)


def test_a_rule_of_a_users_own_sees_one_norm_at_a_time_and_keeps_its_clip_norm():
    norms = np.array([[1.0], [3.0], [100.0]])
    together = OwnClip(Mixing())
    alone = np.concatenate([OwnClip(Mixing()).factors(norms[[place]]) for place in range(3)])
    assert np.array_equal(together.factors(norms), alone)
    assert together.clip_norm == 1.0
    assert not np.array_equal(Mixing().factors(norms), alone)  # the broken twin sees all norms
    private = begun(clipping=Mixing())
    for batch in private.batches(X):
        private.step(batch)
    with pytest.raises(InvalidParameter, match="must define wanted"):
        begun(clipping=Unclipped())

    class Inherited(Flat):
        def factors(self, norms, error=1e-12):
            return np.full(np.shape(norms), 1e6)

    with pytest.raises(InvalidParameter, match="must define wanted"):
        begun(clipping=Inherited(1.0))


def test_a_forked_process_takes_no_step(tmp_path):
    private = begun(steps=4, sampling="random-allocation")
    batches = private.batches(X)
    private.step(next(batches))
    following = next(batches)
    child = os.fork()
    if child == 0:
        try:
            private.step(following)
        except PlanViolation:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    private.step(following)


def test_one_step_at_a_time():
    private = begun(steps=2)
    batch = next(private.batches(X))
    with (
        private._stepping,
        pytest.raises(PlanViolation, match="under way"),
    ):  # as in another thread, or in losses
        private.step(batch)
    private.step(batch)
    with pytest.raises(PlanViolation, match="is due"):
        private.step(batch)


def test_a_refusal_of_a_real_batch_ends_the_run():
    calls = []

    def mixing(model, batch):
        """Honest until real batches come, then each loss is scaled by its batch's size."""
        calls.append(len(batch))
        return losses(model, batch) * (len(batch) if torch.isin(batch, X).all() else 1)

    private = begun(losses=mixing)
    batch = next(private.batches(X))
    with pytest.raises(CheckFailed):
        private.step(batch)
    for again in (lambda: private.step(batch), private.certificate):
        with pytest.raises(CheckFailed, match="has ended"):
            again()
    assert private.steps_taken == 0


@pytest.mark.parametrize(
    "hostile", [Unclipped(), type("Counting", (AdaptiveClip,), {})(1.0, 40, 8.0), object()]
)
def test_whatever_chooses_the_clipping_it_is_enforced(monkeypatch, hostile):
    """The choice is not trusted: a rule of its own is asked for single factors, and any other object is refused."""
    monkeypatch.setattr("discreet.pytorch.run.clipping_of_stages", lambda *_: [hostile])
    if not isinstance(hostile, ClipRule):
        with pytest.raises(InvalidParameter, match="must be a ClipRule, or AdaptiveClip itself"):
            begun()
        return
    private = begun()
    sums = private._sum(X[:1])
    assert hostile.factors([1.0])[0] == 1e6  # the broken twin
    assert sums.vector.norm() <= 1.0


def test_batches_within_a_window_say_what_to_keep():
    recipe = Recipe(40, batch_size=10, epochs=2, sampling="random-allocation")
    model = nn.Linear(3, 2)
    private = PrivateRun(
        recipe.with_noise(2.0, delta=1e-3), model, torch.optim.SGD(model.parameters(), lr=0.1), losses
    )
    first = private.batches(X)
    private.step(next(first))
    with pytest.raises(PlanViolation, match="Keep the iterator that batches"):
        private.batches(X)
    for batch in first:
        private.step(batch)
    assert private.steps_taken == 8


class Failing(torch.optim.SGD):
    broken = True

    def step(self, closure=None):
        if self.broken:
            raise ValueError("the rate of the warm-up is missing")
        return super().step(closure)


def test_an_optimizer_that_raises_is_named_with_what_to_do():
    model = nn.Linear(3, 2)
    plan = Recipe(40, sampling="full-batch", steps=3).with_noise(2.0, delta=1e-3)
    optimizer = Failing(model.parameters(), lr=0.1)
    private = PrivateRun(plan, model, optimizer, losses)
    batches = private.batches(X)
    with pytest.raises(UserCodeFailed, match=r"by the optimizer at .*call optimizer.step\(\)") as refusal:
        private.step(next(batches))
    assert "model" not in str(refusal.value).partition(" at ")[0]
    assert private.steps_taken == 1
    with pytest.raises(ValueError, match="warm-up"):
        optimizer.step()
    optimizer.broken = False
    optimizer.step()
    private.edited()
    for batch in batches:
        private.step(batch)
    assert private.steps_taken == 3


def test_an_adaptive_clip_norm_stops_at_the_least_that_sums_allow():
    """Without a floor the norm of a model that is fitted perfectly would sink until a step is refused."""
    adaptive = AdaptiveClip(1.0, batch_size=40, count_noise=20.0, quantile=0.01, learning_rate=30.0)
    private = begun(steps=6, clipping=adaptive, losses=lambda model, batch: 0 * model(batch).sum(1))
    for batch in private.batches(X):
        private.step(batch)
    assert private._clipping[0].clip_norm == private._sum.least_clip_norm == 1e-9


def test_whatever_judges_rounding_a_large_difference_is_refused(monkeypatch):
    """The judge of small differences is not trusted: above 0.05 clip norms nobody asks for its verdict."""

    def mixing(model, batch):
        return losses(model, batch) * (1 + batch.detach().abs().sum())

    monkeypatch.setattr("discreet.pytorch.checks.single_examples.problem_beyond_rounding", lambda *_: None)
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.check_read", lambda *_: None)
    private = begun(losses=mixing)
    with pytest.raises(CheckFailed, match="mix examples"):
        private.step(next(private.batches(X)))
    assert private.steps_taken == 0
