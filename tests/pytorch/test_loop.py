"""The loops that people write: over epochs, with loaders, several optimizers, schedulers and compiled models."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from discreet import InvalidParameter, PlanViolation, Recipe
from discreet.plan.plan import Plan
from discreet.pytorch import CheckFailed, PrivateRun, check
from discreet.pytorch.layer_rules import RULES, add_rule
from discreet.pytorch.layer_rules.use import KeptRows

RECORDS = 60
X = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (RECORDS,), generator=torch.Generator().manual_seed(2))
RECIPE = Recipe(RECORDS, batch_size=12, epochs=3)
PLAN = RECIPE.with_noise(2.0, delta=1e-4)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3))


def begun(plan=PLAN, model=None, **options):
    model = model or network()
    return PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses, **options)


def counted(run, dataset=(X, Y)):
    """The numbers of the steps, epoch by epoch."""
    found = []
    for epoch in run.epochs(dataset):
        found.append([])
        for batch in epoch:
            run.step(batch)
            found[-1].append(batch.step)
    return found


@pytest.mark.parametrize("dataset", [(X, Y), DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)])
def test_the_usual_two_loops(dataset):
    run = begun()
    assert counted(run, dataset) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]
    assert run.steps_taken == PLAN.steps == 15


def test_there_are_as_many_epochs_as_planned():
    """60 records in batches of 7 make 8.6 steps an epoch; 20 epochs are 172 steps, and no rest is an epoch."""
    run = begun(Recipe(RECORDS, batch_size=7, epochs=20).with_noise(2.0, delta=1e-4))
    lengths = [len(list(epoch)) for epoch in run.epochs((X, Y))]
    assert len(lengths) == 20
    assert sum(lengths) == 172
    assert set(lengths) == {8, 9}


def test_epochs_of_stages_and_of_less_than_one():
    warm = Recipe(RECORDS, steps=2, sampling="full-batch", name="warm").at(9.0)
    part = Recipe(RECORDS, batch_size=12, steps=2, name="part").at(4.0)
    even = Recipe(RECORDS, batch_size=20, epochs=2, sampling="random-allocation", name="even").at(4.0)
    run = begun(Plan((warm, part, even), delta=1e-3))
    assert counted(run) == [[1], [2], [3, 4], [5, 6, 7], [8, 9, 10]]


def test_the_loop_that_seems_right_is_told_what_to_write():
    """It would run all steps in the first epoch, and nothing after it."""
    run = begun()
    for batch in run.batches((X, Y)):
        run.step(batch)
    with pytest.raises(PlanViolation, match=r"all epochs.*for epoch in run.epochs"):
        run.batches((X, Y))
    assert run.steps_taken == PLAN.steps
    with pytest.raises(PlanViolation, match="All steps"):
        run.epochs((X, Y))


def test_drawing_again_is_refused():
    run = begun()
    next(next(run.epochs((X, Y))))
    for again in (run.epochs, run.batches):
        with pytest.raises(PlanViolation, match="drawn and not used"):
            again((X, Y))


def test_an_epoch_that_was_left_goes_on_in_the_next():
    run = begun()
    epochs = run.epochs((X, Y))
    first = next(epochs)
    for batch in first:
        run.step(batch)
        break
    second = []
    for batch in next(epochs):
        run.step(batch)
        second.append(batch.step)
    assert second == list(range(2, 11))
    assert list(first) == []


def test_a_resumed_run_begins_within_an_epoch(tmp_path):
    run = begun(ledger=tmp_path / "ledger")
    for batch in run.batches((X, Y)):
        run.step(batch)
        if batch.step == 7:
            break
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    later = begun(ledger=tmp_path / "ledger")
    later.resume(tmp_path / "checkpoint")
    assert counted(later) == [[8, 9, 10], [11, 12, 13, 14, 15]]


def shared(model):
    muon = torch.optim.Muon([model[0].weight], lr=0.05)
    return [muon, torch.optim.AdamW(model[2].parameters(), lr=0.05)]


def test_several_optimizers_train_all_parameters_and_are_saved(tmp_path):
    model = network()
    optimizers = shared(model)
    schedulers = [CosineAnnealingLR(optimizer, PLAN.steps) for optimizer in optimizers]
    run = PrivateRun(PLAN, model, optimizers, losses, ledger=tmp_path / "ledger")
    start = [value.detach().clone() for value in model.parameters()]
    for batch in run.batches((X, Y)):
        run.step(batch)
        for scheduler in schedulers:
            scheduler.step()
        if batch.step == 4:
            break
    assert all(not torch.equal(one, other) for one, other in zip(start, model.parameters(), strict=True))
    run.save(tmp_path / "checkpoint", scheduler=schedulers)
    run._till.ledger.close()

    again = network()
    later = PrivateRun(PLAN, again, fresh := shared(again), losses, ledger=tmp_path / "ledger")
    with pytest.raises(
        InvalidParameter, match="must be the one of the checkpoint, CosineAnnealingLR, Cosine"
    ):
        later.resume(tmp_path / "checkpoint")
    rates = [CosineAnnealingLR(optimizer, PLAN.steps) for optimizer in fresh]
    later.resume(tmp_path / "checkpoint", scheduler=rates)
    assert all(
        torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True)
    )
    for one, other in zip((*optimizers, *schedulers), (*fresh, *rates), strict=True):
        assert str(one.state_dict()) == str(other.state_dict())


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda model: shared(model)[:1], "does not train '2.weight'"),
        (lambda model: [*shared(model), torch.optim.SGD([model[0].weight])], "twice in a step"),
        (lambda model: [], "does not train"),
        (lambda model: [None], "must be a torch.optim.Optimizer"),
        (lambda model: [torch.optim.LBFGS(model.parameters())], "several times in a step"),
    ],
)
def test_optimizers_that_do_not_share_the_parameters_are_refused(choose, message):
    model = network()
    with pytest.raises(InvalidParameter, match=message):
        PrivateRun(PLAN, model, choose(model), losses)


def test_schedulers_go_by_the_steps_of_the_plan():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateRun(PLAN, model, optimizer, losses)
    scheduler = OneCycleLR(optimizer, max_lr=1.0, total_steps=PLAN.steps + 1)
    rates = []
    for batch in run.batches((X, Y)):
        rates.append(optimizer.param_groups[0]["lr"])
        run.step(batch)
        scheduler.step()
    assert max(rates) > 0.9
    assert rates[-1] < 0.05


def test_a_compiled_model_is_trained_as_the_module_that_it_was_made_of():
    plain, model = network(), network()
    compiled = torch.compile(model, backend="eager")
    check(compiled, losses, (X, Y))
    for given in (plain, compiled):
        run = begun(model=given, unsafe_seed=5)
        for batch in run.batches((X, Y)):
            run.step(batch)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert torch.allclose(compiled(X), plain(X))


class BilinearWeight(KeptRows):
    scale = 1.0

    def __init__(self, source, left, right):
        super().__init__(source, left)
        self.right = right.detach()

    def prepare(self, left, grad, layout):
        self.held = self.scale * torch.einsum("nk,ni,nj->nkij", grad, left, self.right)


class WrongWeight(BilinearWeight):
    scale = 0.5  # its norms are half of what they are


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(5, 5, 3, bias=False)

    def forward(self, x):
        return self.bilinear(x, x.tanh())


@pytest.mark.parametrize("kind", [BilinearWeight, WrongWeight])
def test_a_rule_of_ones_own_is_used_if_it_is_right_and_refused_if_not(kind, monkeypatch):
    calls = []

    def bilinear(record, func, args, kwargs):
        left, right, weight, *_ = args
        calls.append(func)
        source = record.source_of(weight)
        return func(left, right, source.value, None), [kind(source, left, right)]

    monkeypatch.setitem(RULES, torch.bilinear, None)
    del RULES[torch.bilinear]
    add_rule(torch.bilinear, bilinear)
    torch.manual_seed(0)
    if kind is WrongWeight:
        with pytest.raises(CheckFailed):
            check(Pairs(), losses, (X, Y))
    else:
        check(Pairs(), losses, (X, Y))
    assert calls


@pytest.mark.parametrize(
    ("function", "rule", "message"),
    [
        (functional.linear, print, "has a rule"),
        (None, print, "function=.NoneType"),
        (torch.bilinear, 3, "rule=.int"),
    ],
)
def test_a_rule_is_entered_once(function, rule, message):
    with pytest.raises(InvalidParameter, match=message):
        add_rule(function, rule)
