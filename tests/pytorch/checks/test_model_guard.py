"""What a run refuses between its steps: edits of weights, hooks, other data, and batches drawn until one pleases."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as of_modules

from discreet import Recipe
from discreet.errors import PlanViolation
from discreet.pytorch import CheckFailed, PrivateRun
from discreet.pytorch.checks.model_guard import ModelGuard

ROWS = 12


@pytest.fixture(autouse=True)
def rare(monkeypatch):
    """Nothing here depends on chance."""
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.ONE_IN", 2**62)


def data(rows=ROWS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def started(loss=losses):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = Recipe(records=ROWS, steps=3, sampling="full-batch").with_noise(2.0, delta=1e-3)
    return model, PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


def second_optimizer(model):
    losses(model, data()).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def in_place(model):
    with torch.no_grad():
        model[0].weight += 1e-3


def through_data(model):
    model[2].bias.data[0] += 1e-3


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_contents_are_compared_bit_by_bit(kind):
    """Zero and minus zero are equal numbers and different bits; NaN is no equal of its own and the same bits."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(5, dtype=kind))
    watch = ModelGuard(model, losses, dict(model.named_parameters()), lambda count: count)
    before = watch._bits()
    assert before.numel() * before.element_size() == 5 * model.weight.element_size()
    model.weight.data[3] = torch.nan
    unset = watch._bits()
    assert not torch.equal(unset, before)
    assert torch.equal(unset, watch._bits())
    model.weight.data[3] = 0.0
    assert torch.equal(watch._bits(), before)
    model.weight.data.view(torch.uint8)[-1] |= 128
    assert not torch.equal(watch._bits(), before)


def test_an_edit_of_the_only_parameter_is_refused():
    """Through ``data``, which no counter sees."""
    model = nn.Linear(4, 3, bias=False)
    plan = Recipe(records=ROWS, steps=3, sampling="full-batch").with_noise(2.0, delta=1e-3)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses)
    batches = run.batches(data())
    run.step(next(batches))
    model.weight.data[0, 0] += 1e-3
    with pytest.raises(PlanViolation, match=r"run\.edited\(\)"):
        run.step(next(batches))


@pytest.mark.parametrize("edit", [second_optimizer, in_place, through_data])
def test_edits_between_steps_are_refused_unless_they_are_named(edit):
    model, run = started()
    batches = run.batches(data())
    edit(model)  # before the first step nothing is private yet
    run.step(next(batches))
    edit(model)
    with pytest.raises(PlanViolation, match=r"run\.edited\(\)"):
        run.step(drawn := next(batches))
    assert run.steps_taken == 1
    run.edited()
    run.step(drawn)
    run.step(next(batches))
    assert run.steps_taken == 3


def test_contents_of_large_models_are_compared_on_a_share_of_the_steps(monkeypatch):
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.SMALL", 0)
    for share, found in ((1, True), (2**62, False)):
        monkeypatch.setattr("discreet.pytorch.checks.model_guard.ONE_IN_INSPECTIONS", share)
        model, run = started()
        batches = run.batches(data())
        run.step(next(batches))
        through_data(model)
        if found:
            with pytest.raises(PlanViolation, match="changed between two steps"):
                run.step(next(batches))
        else:
            run.step(next(batches))


HOOKS = {
    "parameter": lambda model: model[0].weight.register_hook(print),
    "accumulated": lambda model: model[0].weight.register_post_accumulate_grad_hook(print),
    "module": lambda model: model[0].register_full_backward_hook(print),
    "module before": lambda model: model[0].register_full_backward_pre_hook(print),
    "all modules": lambda model: of_modules.register_module_full_backward_hook(print),
    "all modules before": lambda model: of_modules.register_module_full_backward_pre_hook(print),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hooks_that_see_gradients_are_refused_whenever_they_come(hook, request):
    model, run = started()
    batches = run.batches(data())
    run.step(next(batches))
    handle = hook(model)
    request.addfinalizer(handle.remove)
    with pytest.raises(CheckFailed, match="hook"):
        run.step(next(batches))
    with pytest.raises(CheckFailed, match="hook"):
        PrivateRun(run.plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses)


def test_a_forward_that_is_exchanged_is_checked():
    model, run = started()
    batches = run.batches(data())
    run.step(next(batches))
    run.step(next(batches))
    model[1].forward = lambda x: x - x.mean(0)
    with pytest.raises(CheckFailed, match="mixes"):
        run.step(next(batches))


def test_losses_that_mix_after_the_first_step_are_found():
    taken = []

    def late(model, batch):
        values = losses(model, batch)
        return values * values.detach().mean() if taken else values

    _, run = started(late)
    batches = run.batches(data())
    run.step(next(batches))
    taken.append(1)
    with pytest.raises(CheckFailed):
        run.step(next(batches))


def test_the_check_comes_again_at_random(monkeypatch):
    _, run = started()
    batches = run.batches(data())
    run.step(next(batches))
    run.step(next(batches))
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.ONE_IN", 1)
    seen = []
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.check_read", lambda *given: seen.append(given))
    run.step(next(batches))
    assert len(seen) == 1


def test_batches_are_not_drawn_again():
    _, run = started()
    drawn = next(run.batches(data()))
    with pytest.raises(PlanViolation, match="drawn and not used"):
        run.batches(data())
    run.step(drawn)
    with pytest.raises(PlanViolation, match="another data set"):
        run.batches(data(seed=2))
    for batch in run.batches(data()):
        run.step(batch)
    with pytest.raises(PlanViolation, match="All steps"):
        run.batches(data())


def test_a_data_set_three_times_too_long_is_refused():
    _, run = started()
    with pytest.raises(PlanViolation, match="3 times as many rows"):
        run.batches(data(3 * ROWS))
    run.batches(data(3 * ROWS - 1))


def test_the_certificate_names_what_no_run_sees():
    _, run = started()
    for batch in run.batches(data()):
        run.step(batch)
    said = " ".join(run.certificate().not_covered)
    for word in ("depend on other rows", "hooks", "remember", "after the run"):
        assert word in said


def test_parts_are_checked_in_the_size_that_they_have(monkeypatch):
    """Losses that mix examples in parts of five only: a check with all fifteen would let them pass."""

    def mixing(model, batch):
        values = functional.cross_entropy(model(batch[0]).sum(1), batch[1], reduction="none")
        return values * values.detach().mean() if len(values) == 5 else values

    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = Recipe(records=15, steps=3, sampling="full-batch").with_noise(2.0, delta=1e-3)
    x, y = data(15)
    at_once = 5 * 2 * (5 + 3) * 4  # bytes of what waits for the norms of five examples of two positions
    for most, refused in ((3 * at_once, False), (at_once, True)):
        monkeypatch.setattr("discreet.pytorch.clipped_sum.MOST_HELD", most)
        run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), mixing)
        batches = run.batches((x.unsqueeze(1).expand(-1, 2, -1).contiguous(), y))
        run.step(next(batches))
        with pytest.raises(CheckFailed) if refused else nullcontext():
            run.step(next(batches))
