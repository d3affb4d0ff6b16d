"""Runs with correlated noise: white once it is mixed, begun anew where it must be, and never stored."""

import numpy as np
import pytest
import torch
from torch import nn

from discreet import Budget, InvalidParameter, Plan, PlanViolation, Recipe
from discreet.audit import OneStep, audit
from discreet.core.clipping import AdaptiveClip
from discreet.core.matrix_mechanism import coefficients, length_of_column
from discreet.core.matrix_mechanism_error import error_of_iterates
from discreet.core.randomness import RandomStream
from discreet.errors import UnsupportedEvent, UserCodeFailed
from discreet.events import Gaussian, PoissonSampled, RandomlyAllocated
from discreet.ledger import FixedPlan, Ledger
from discreet.plan.recipe import best_bands
from discreet.pytorch import PrivateRun
from discreet.pytorch.checks.model_guard import ModelGuard
from discreet.pytorch.distributed import Processes
from discreet.pytorch.training_stages import CorrelatedNoise
from discreet.trusted import permits
from discreet.trusted.permits import StepNoise
from support.paid import paid

RECORDS, WIDTH = 60, 2000
NOBODY = torch.zeros(0, WIDTH)


def planned(sampling="random-allocation", bands=4, epochs=5, **more):
    """Batches of 5, so that an epoch has 12 steps."""
    return Recipe(RECORDS, 5, epochs=epochs, sampling=sampling, bands=bands, **more).with_noise(
        3.0, delta=1e-3
    )


def losses(model, batch):
    return model(batch)[:, 0]


def begun(plan=None, **options):
    model = nn.Linear(WIDTH, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, PrivateRun(plan or planned(), model, optimizer, losses, **options)


def charged_elsewhere(**others):
    """A run that is charged to a ledger with room for its events, which promises more of all runs together."""
    plan = planned("poisson")
    return begun(plan, ledger=Ledger.in_memory(FixedPlan(plan.event, Budget(1e3, 1e-3, **others))))


def noise_of(model, run, batches=None):
    """What was added to each sum, in clip norms; the sums themselves are zero."""
    found = []
    for batch in run.batches(NOBODY) if batches is None else batches:
        run.step(batch)
        found.append(model.weight.grad[0].double().numpy() * run.plan.divisor / run.plan.clip_norm)
    return np.array(found)


def is_white(noise, bands, multiplier=3.0):
    """Whether C times the noise has the standard deviation it must have, and no correlation between steps.

    Limits of 6 standard errors, for one variance and a dozen correlations: a false alarm in ten million runs.
    """
    steps = len(noise)
    mixed = sum(
        coefficients(bands)[j] * np.roll(noise, j, 0) * (np.arange(steps) >= j)[:, None] for j in range(bands)
    )
    mixed = mixed / (multiplier * length_of_column(bands))
    if abs(np.square(mixed).mean() - 1) > 6 * np.sqrt(2 / mixed.size):
        return False
    lags = [(mixed[lag:] * mixed[:-lag]).mean() * np.sqrt(mixed[lag:].size) for lag in range(1, 13)]
    return bool(np.abs(lags).max() < 6)


@pytest.mark.parametrize("sampling", ["random-allocation", "poisson"])
@pytest.mark.parametrize("bands", [2, 4, 12])
def test_the_coefficients_times_the_noise_are_white(sampling, bands):
    plan = planned(sampling, bands, clip_norm=0.5)
    noise = noise_of(*begun(plan))
    assert is_white(noise, bands)
    assert not is_white(noise, 1)  # by itself it is not: it takes back what it gave
    later = noise[-30:].std() / 3.0
    assert later == pytest.approx(plan.noise_std_of_sum / plan.clip_norm / 3.0, rel=0.05)


def too_little_noise(monkeypatch):
    """Draw noise without the length of the coefficients, and do not compare it with the charge."""
    monkeypatch.setattr(permits, "fresh_noise", lambda event, bands: event)
    with pytest.raises(PlanViolation, match="Less noise would be drawn"):
        begun()
    monkeypatch.setattr(permits, "covers", lambda event, draws: True)


def test_noise_without_the_length_of_the_coefficients_is_noticed(monkeypatch):
    too_little_noise(monkeypatch)
    assert not is_white(noise_of(*begun()), 4)


def test_noise_that_is_forgotten_within_a_window_is_noticed(monkeypatch):
    plain = CorrelatedNoise.add_to

    def forgetful(self, total, step, *rest):
        if step % 6 == 0:
            self.forget()
        plain(self, total, step, *rest)

    monkeypatch.setattr(CorrelatedNoise, "add_to", forgetful)
    assert not is_white(noise_of(*begun()), 4)


@pytest.mark.parametrize("forgetful", [False, True])
def test_several_processes_each_filter_their_own_part(forgetful):
    """Three of them, for 60 steps; the broken twin loses the memory of one of them at every sixth step."""
    noises = [CorrelatedNoise(4) for _ in range(3)]
    permit = paid(StepNoise.of_stage(planned("poisson").stage()), 1.0, RandomStream(), times=3 * 60)
    total = torch.zeros(60, WIDTH)
    for step, row in enumerate(total, 1):
        for rank, noise in enumerate(noises):
            if forgetful and rank == 1 and step % 6 == 0:
                noise.forget()
            part = row[Processes(rank, 3).part(WIDTH)]
            noise.add_to(part, step, 1.0, permit)
    assert is_white(total.double().numpy(), 4) is not forgetful
    assert sum(noise._past[0].numel() for noise in noises) == WIDTH  # nobody remembers for the others


def test_charges_are_epochs_or_windows():
    allocated, cyclic = planned().stage(), planned("poisson").stage()
    assert (allocated.steps_per_charge, allocated.charge) == (12, RandomlyAllocated(3, Gaussian(3.0)))
    assert (cyclic.steps_per_charge, cyclic.charge) == (4, PoissonSampled(4 * 5 / RECORDS, Gaussian(3.0)))
    assert cyclic.event == cyclic.charge * 15
    for stage in (allocated, cyclic):
        assert stage.charge == stage.sampler().event(stage.noise)  # no other way to disagree
    _, run = begun(planned("poisson"))
    batches = run.batches(NOBODY)
    for _ in range(5):
        run.step(next(batches))
    assert run._till.ledger.spent().parts()[0][1] >= 2  # the second window has begun
    assert run.certificate().verify()


def test_a_resumed_run_begins_a_window_and_keeps_no_noise(tmp_path):
    plan = planned("poisson")
    _, run = begun(plan, ledger=tmp_path / "ledger")
    batches = run.batches(NOBODY)
    for _ in range(6):
        run.step(next(batches))
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    kept = sum(path.stat().st_size for path in (tmp_path / "checkpoint").iterdir())
    assert kept < 1.5 * 4 * WIDTH  # the weights, and nothing as large besides
    model, later = begun(plan, ledger=tmp_path / "ledger")
    later.resume(tmp_path / "checkpoint")
    batches = later.batches(NOBODY)
    first = next(batches)
    assert (first.step - 1) % 4 == 0
    assert first.step >= 9  # the window that was begun is lost, and stays charged
    later.step(first)
    assert is_white(np.concatenate([[later_noise(model, plan)], noise_of(model, later, batches)]), 4)


def later_noise(model, plan):
    return model.weight.grad[0].double().numpy() * plan.divisor / plan.clip_norm


def test_drawing_batches_anew_begins_the_noise_anew():
    """The turns are drawn anew, too; with the noise of before, columns of one record would overlap."""
    _, run = begun(planned("poisson"))
    for batch in run.batches(NOBODY):
        run.step(batch)
        if batch.step == 4:
            break
    run.batches(NOBODY)
    assert len(run._correlated[0]._past) == 0
    _, run = begun(planned("poisson"))
    batches = run.batches(NOBODY)
    run.step(next(batches))
    with pytest.raises(PlanViolation, match="Step 1 is within 4 steps whose batches are drawn together"):
        run.batches(NOBODY)
    assert len(run._correlated[0]._past) == 1


def test_a_step_that_fails_leaves_no_gap_in_the_noise(monkeypatch):
    """Were it overlooked, a record would take part again before its noise has run out."""

    def failing(self, *_):
        raise ValueError

    _, run = begun(planned("poisson"))
    batches = run.batches(NOBODY)
    for _ in range(2):
        run.step(next(batches))
    assert len(run._correlated[0]._past) == 2
    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "_add_noise", failing)  # after the payment
        with pytest.raises(UserCodeFailed, match="ValueError"):
            run.step(next(batches))
    run.step(next(batches))
    assert len(run._correlated[0]._past) == 1


def test_a_step_that_fails_before_it_is_paid_for_is_taken_again(monkeypatch):
    def failing(self):
        raise ValueError

    _, run = begun(planned("poisson"))
    batches = run.batches(NOBODY)
    run.step(next(batches))
    batch = next(batches)
    with monkeypatch.context() as patch:
        patch.setattr(ModelGuard, "before_forward", failing)
        with pytest.raises(UserCodeFailed, match="ValueError"):
            run.step(batch)
    assert run.steps_taken == 1
    with pytest.raises(PlanViolation, match="Step 2 is due and the batch is for step 3"):
        run.step(next(batches))
    run.step(batch)
    assert (run.steps_taken, len(run._correlated[0]._past)) == (2, 2)


def test_without_bands_a_plan_is_what_it_was():
    plain = Recipe(RECORDS, 5, epochs=3).with_noise(2.0, delta=1e-3)
    one = Recipe(RECORDS, 5, epochs=3, bands=1).with_noise(2.0, delta=1e-3)
    assert plain.digest() == one.digest()
    assert "bands" not in plain.to_json()
    several = planned()
    assert Plan.from_json(several.to_json()) == several
    assert several.digest() != planned(bands=3).digest()


def test_steps_are_whole_windows():
    assert planned("poisson", bands=5).steps == 60
    assert planned("poisson", bands=7).steps == 63
    with pytest.raises(InvalidParameter, match="steps=10: correlated noise runs whole windows of 4 steps"):
        Recipe(RECORDS, 5, steps=10, bands=4)


@pytest.mark.parametrize("sampling", ["random-allocation", "poisson"])
def test_the_best_bands_keep_the_budget_and_have_the_least_error(sampling):
    recipe = Recipe(6000, 500, epochs=4, sampling=sampling, bands="best")
    budget = Budget(8.0, 1e-5)
    plan = recipe.calibrate(budget)
    assert plan.guarantee.within(budget)
    chosen = plan.stage().bands
    assert chosen > 1

    def error(bands):
        noise = recipe.changed(bands=bands).calibrate(budget).noise_multiplier
        return noise * error_of_iterates(bands, 48)

    assert error(chosen) <= 1.02 * min(map(error, (1, 2, 3, 4, 6, 12)))


def test_a_small_budget_is_best_without_bands():
    recipe = Recipe(60_000, 1000, epochs=5, bands="best")
    assert best_bands(recipe, Budget(0.5, 1e-5)) == 1


def test_the_learning_rate_follows_the_error_of_the_iterates():
    plain, several = planned(bands=1), planned(bands=12)
    expected = error_of_iterates(1, 60) / error_of_iterates(12, 60)
    assert several.learning_rate(10**9) / plain.learning_rate(10**9) == pytest.approx(expected)


def test_the_plan_says_what_is_kept_in_memory():
    assert "The noise of 3 steps, each as large as the model, is kept in memory" in " ".join(
        planned().explain().split()
    )
    assert "joins a step of its group with probability 0.3333" in " ".join(
        planned("poisson").explain().split()
    )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: planned(bands=5), InvalidParameter, "bands=5: must divide the 12 steps of an epoch"),
        (lambda: planned("poisson", bands=13), InvalidParameter, "bands=13"),
        (lambda: planned(bands="some"), InvalidParameter, "bands='some'"),
        (lambda: planned(bands="best"), InvalidParameter, "bands='best': is chosen for a budget"),
        (lambda: Recipe(RECORDS, steps=4, sampling="full-batch", bands=2), InvalidParameter, "no theorem"),
        (lambda: Recipe(RECORDS, 5, steps=4, sampling="fixed-size", bands=2), InvalidParameter, "no theorem"),
        (
            lambda: Recipe(RECORDS, 5, steps=4, bands=2).calibrate(Budget(1.0, 1e-3, "replace-one")),
            UnsupportedEvent,
            "add-remove",
        ),
        (
            lambda: Recipe(RECORDS, 5, steps=4, bands=2).with_noise(1.0, 1e-3, group_size=2),
            UnsupportedEvent,
            "single records",
        ),
        (lambda: charged_elsewhere(group_size=2), UnsupportedEvent, "single records"),
        (lambda: charged_elsewhere(neighbours="replace-one"), UnsupportedEvent, "single records"),
        (lambda: begun(arithmetic="hardened"), InvalidParameter, "needs a plan with bands=1"),
        (
            lambda: begun(clipping=AdaptiveClip(1.0, batch_size=5, count_noise=2.0)),
            InvalidParameter,
            "must have a fixed clip norm",
        ),
    ],
)
def test_what_has_no_theorem_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_sum_that_is_not_finite_is_not_released():
    total = torch.tensor([1.0, float("nan")])
    with pytest.raises(PlanViolation, match="not finite"):
        CorrelatedNoise(3).add_to(total, 1, 1.0, paid(Gaussian(1.0), 1.0, RandomStream()))


AT_ONCE = 600


def windows_of_records(bands):
    """A release for the audit: what an attacker who knows a record's turn sees of it through C, in one window.

    Each record has a coordinate of its own, so that one run is as many independent draws as there are records. Those
    of the first turn are looked at, whose noise runs its full length within the window.
    """
    column, seeds = np.array(coefficients(bands)), iter(range(10**6))
    width = 2 * bands * AT_ONCE
    plan = Recipe(width, width // bands, epochs=1, sampling="random-allocation", bands=bands).with_noise(
        1.0, 1e-5
    )

    def release(world, draws):
        model = nn.Linear(width, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        run = PrivateRun(plan, model, optimizer, losses, unsafe_seed=next(seeds))
        rows, looked_at, released = torch.eye(width) if world else torch.zeros(0, width), slice(draws), []
        for batch in run.batches(rows):
            if world and batch.step == 1:
                looked_at = run._turns.drawn_for(batch, 1).batch.argmax(1).numpy()[:draws]
            run.step(batch)
            released.append(model.weight.grad[0].double().numpy() * plan.divisor)
        seen = np.array(released)[:, looked_at]  # step by record
        mixed = [sum(column[j] * seen[step - j] for j in range(step + 1)) for step in range(bands)]
        assert seen.shape == (bands, draws)
        return column @ np.array(mixed) / length_of_column(bands)

    assert plan.event == Gaussian(1.0) * 1
    return release


def test_an_attack_finds_no_more_than_is_claimed_and_nearly_all_of_it(monkeypatch):
    """Seeds decide all draws, so there are no false alarms; the broken twin forgets the length of the column."""
    attack = OneStep(draws=2 * AT_ONCE, at_once=AT_ONCE, direction=[1.0])
    honest = audit(windows_of_records(4), Gaussian(1.0), attack, delta=1e-5)
    assert 0.8 < honest.tightness <= 1
    too_little_noise(monkeypatch)
    assert audit(windows_of_records(4), Gaussian(1.0), attack, delta=1e-5).tightness > 1
