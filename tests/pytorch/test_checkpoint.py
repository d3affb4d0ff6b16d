"""Checkpoints: nothing that can run, nothing that forgets, nothing that repeats."""

import json
import pickle
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from discreet import Budget, InvalidParameter, PlanViolation, Recipe
from discreet.core.clipping import AdaptiveClip, Flat
from discreet.errors import LedgerCorrupted
from discreet.ledger import FixedPlan, Ledger
from discreet.pytorch import PrivateRun, checkpoint
from discreet.pytorch.distributed import Processes
from discreet.trusted.permits import covers

RECORDS = 40
X = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(0))


def losses(model, batch):
    return model(batch).square().sum(1)


def network(tied=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    if tied:
        net[2].weight = net[0].weight
    return net


def planned(**changes):
    options = {"batch_size": 10, "steps": 8} | changes
    return Recipe(records=RECORDS, **options).with_noise(2.0, delta=1e-3)


def begun(place, plan=None, kind=torch.optim.Adam, model=None, ledger=None, **options):
    model = model or network()
    optimizer = kind(model.parameters(), lr=0.01)
    ledger = ledger or place / "study.ledger"
    return model, optimizer, PrivateRun(plan or planned(), model, optimizer, losses, ledger=ledger, **options)


def trained(run, steps):
    for batch in run.batches(X):
        run.step(batch)
        if run.steps_taken >= steps:
            break


def same(one, other):
    return all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_model_and_optimizer_come_back(tmp_path, kind):
    model, optimizer, run = begun(tmp_path, kind=kind)
    trained(run, 3)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    again, restored, later = begun(tmp_path, kind=kind)
    later.resume(tmp_path / "checkpoint")
    assert same(model, again)
    assert later.steps_taken == 3
    assert flat(optimizer.state_dict()) == flat(restored.state_dict())
    trained(later, 8)
    assert later.certificate().verify()
    assert later._till.ledger.runs()["descent"].attempt == 2


SCHEDULERS = {
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
    "milestones": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5]),
    "one after the other": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        milestones=[2],
    ),
    "chained": lambda optimizer: torch.optim.lr_scheduler.ChainedScheduler(
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        ]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_scheduler_goes_on_where_it_was(tmp_path, kind):
    """Against one that was never interrupted; without its state it would begin anew."""
    _, optimizer, run = begun(tmp_path)
    scheduler, rates = SCHEDULERS[kind](optimizer), []
    for batch in run.batches(X):
        run.step(batch)
        scheduler.step()
        if batch.step == 3:
            run.save(tmp_path / "checkpoint", scheduler=scheduler)
        rates.append(optimizer.param_groups[0]["lr"])
    model, optimizer, later = begun(tmp_path, ledger=Ledger.in_memory(run._till.ledger.rule))
    fresh = SCHEDULERS[kind](optimizer)
    checkpoint.read(
        tmp_path / "checkpoint", later.plan.digest(), model, [optimizer], [fresh], Processes.current()
    )
    for rate in rates[3:]:
        optimizer.step()
        fresh.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-12)
    assert len(set(rates[3:])) > 1


def test_a_checkpoint_that_is_refused_is_not_loaded(tmp_path):
    """Its weights hold steps that the other ledger has not paid for."""
    _, _, run = begun(tmp_path)
    for batch in run.batches(X):
        run.step(batch)
        if batch.step == 3:
            run.save(tmp_path / "checkpoint")
    model, _, later = begun(tmp_path, ledger=Ledger.in_memory(run._till.ledger.rule))
    before = [value.detach().clone() for value in model.parameters()]
    with pytest.raises(LedgerCorrupted):
        later.resume(tmp_path / "checkpoint")
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("by", ["step", "epoch"])
def test_the_scheduler_follows_the_steps_of_the_plan(tmp_path, kind, by):
    """Two steps are lost after the checkpoint: a schedule by the step skips them, one by the epoch does not."""
    _, optimizer, run = begun(tmp_path)
    scheduler = SCHEDULERS[kind](optimizer)
    for batch in run.batches(X):
        run.step(batch)
        if by == "step" or batch.step == 2:
            scheduler.step()
        if batch.step == 3:
            run.save(tmp_path / "checkpoint", scheduler=scheduler)
        if batch.step == 5:
            break
    run._till.ledger.close()
    _, restored, later = begun(tmp_path)
    fresh = SCHEDULERS[kind](restored)
    later.resume(tmp_path / "checkpoint", scheduler=fresh)
    assert later.steps_taken >= 5
    part = fresh._schedulers[0] if kind == "chained" else fresh
    assert part.last_epoch == (later.steps_taken if by == "step" else 1)
    if by == "step" and later.steps_taken == 5:
        assert restored.param_groups[0]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize("saved", [True, False])
def test_a_scheduler_that_is_missing_or_new_is_refused(tmp_path, saved):
    _, optimizer, run = begun(tmp_path)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    run.save(tmp_path / "checkpoint", scheduler=scheduler if saved else None)
    run._till.ledger.close()
    _, optimizer, later = begun(tmp_path)
    other = None if saved else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(InvalidParameter, match=r"scheduler=.*must be the one of the checkpoint"):
        later.resume(tmp_path / "checkpoint", scheduler=other)


def test_a_scheduler_that_has_seen_nothing_yet_goes_on():
    """Its best is infinite, and JSON has no infinity."""
    state = {"best": float("inf"), "worst": [-float("inf")], "lr": 0.1}
    text = json.loads(json.dumps(checkpoint._without_tensors(state, "scheduler", {}), allow_nan=False))
    assert checkpoint._with_tensors(text, {}) == state


def test_a_scheduler_with_code_in_its_state_is_refused(tmp_path):
    _, optimizer, run = begun(tmp_path)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scheduler.rule = lambda step: 0.5**step
    with pytest.raises(InvalidParameter, match=r"scheduler='state': keeps a function in 'scheduler.rule'"):
        run.save(tmp_path / "checkpoint", scheduler=scheduler)


def test_a_run_resumes_for_data_of_the_same_name_only(tmp_path):
    _, _, run = begun(tmp_path, data="census 2021 v3")
    trained(run, 2)
    run.save(tmp_path / "checkpoint")
    assert "census" not in "".join(run._till.ledger.entries())  # hashed with the key of the ledger
    run._till.ledger.close()
    for other in ("census 2022", None):
        _, _, later = begun(tmp_path, data=other)
        with pytest.raises(PlanViolation, match="data of another name"):
            later.resume(tmp_path / "checkpoint")
        later._till.ledger.close()
    _, _, later = begun(tmp_path, data="census 2021 v3")
    later.resume(tmp_path / "checkpoint")
    trained(later, 8)


@pytest.mark.parametrize("data", ["", "two\nlines", 3])
def test_a_name_of_data_that_is_none_is_refused(tmp_path, data):
    _, _, run = begun(tmp_path, data=data)
    with pytest.raises(InvalidParameter, match="names the data set"):
        trained(run, 1)
    assert run.steps_taken == 0


def flat(state):
    if isinstance(state, torch.Tensor):
        return (str(state.dtype), state.tolist())
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return [flat(value) for value in state] if isinstance(state, list | tuple) else state


def test_what_was_done_after_the_checkpoint_stays_spent(tmp_path):
    _, _, run = begun(tmp_path)
    trained(run, 3)
    run.save(tmp_path / "checkpoint")
    trained(run, 6)
    run._till.ledger.close()
    _, _, later = begun(tmp_path)
    later.resume(tmp_path / "checkpoint")
    assert [batch.step for batch in later.batches(X)] == [7, 8]


def test_random_allocation_goes_on_with_a_whole_epoch(tmp_path):
    plan = planned(sampling="random-allocation", steps=12)
    _, _, run = begun(tmp_path, plan)
    trained(run, 5)  # the second epoch is paid for and not finished
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    _, _, later = begun(tmp_path, plan)
    later.resume(tmp_path / "checkpoint")
    assert [batch.step for batch in later.batches(X)] == [9, 10, 11, 12]


def test_noise_and_batches_are_fresh(tmp_path):
    """Two resumptions of the same checkpoint, in two copies of the ledger, draw different noise."""
    _, _, run = begun(tmp_path)
    trained(run, 2)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    grads = []
    for _ in range(2):
        model, _, later = begun(tmp_path)
        later.resume(tmp_path / "checkpoint")
        trained(later, later.steps_taken + 1)
        grads.append(model[0].weight.grad.clone())
        later._till.ledger.close()
    assert not torch.equal(*grads)


def test_a_seed_in_the_first_part_spoils_the_whole(tmp_path):
    _, _, run = begun(tmp_path, unsafe_seed=1)
    trained(run, 2)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    _, _, later = begun(tmp_path)
    later.resume(tmp_path / "checkpoint")
    assert not later.certificate().trusted


def test_a_seed_of_an_attempt_that_no_checkpoint_remembers_spoils_the_whole(tmp_path):
    """The second attempt has a seed, and its checkpoint is never used: the ledger remembers."""
    for options in ({}, {"unsafe_seed": 1}):
        _, _, run = begun(tmp_path, **options)
        if options:
            run.resume(tmp_path / "first")
        trained(run, run.steps_taken + 2)
        run.save(tmp_path / ("second" if options else "first"))
        run._till.ledger.close()
    _, _, later = begun(tmp_path)
    later.resume(tmp_path / "first")
    trained(later, later.steps_taken + 1)
    assert not later.certificate().trusted


def test_another_plan_is_refused(tmp_path):
    _, _, run = begun(tmp_path)
    trained(run, 2)
    run.save(tmp_path / "checkpoint")
    weaker = Recipe(records=RECORDS, batch_size=10, steps=8).with_noise(1.0, delta=1e-3)
    _, _, other = begun(tmp_path / "..", weaker, ledger=ledger_in_memory(weaker))
    with pytest.raises(PlanViolation, match="belongs to plan"):
        other.resume(tmp_path / "checkpoint")


def ledger_in_memory(plan):
    return Ledger.in_memory(FixedPlan(plan.event, Budget(plan.guarantee.epsilon.upper, plan.delta)))


def test_an_older_ledger_is_refused(tmp_path):
    plan = planned()
    budget = Budget(plan.guarantee.epsilon.upper, plan.delta)
    Ledger.create(tmp_path / "study.ledger", FixedPlan(plan.event, budget)).close()
    old = (tmp_path / "study.ledger").read_bytes()
    _, _, run = begun(tmp_path)
    trained(run, 3)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    for file in tmp_path.glob("study.ledger-*"):
        file.unlink()
    (tmp_path / "study.ledger").write_bytes(old)
    _, _, later = begun(tmp_path)
    with pytest.raises(LedgerCorrupted, match="rolled back"):
        later.resume(tmp_path / "checkpoint")
    _, _, elsewhere = begun(tmp_path, ledger=ledger_in_memory(plan))
    with pytest.raises(LedgerCorrupted, match="not the one of this checkpoint"):
        elsewhere.resume(tmp_path / "checkpoint")


def test_an_adaptive_clip_norm_comes_back(tmp_path):
    clipping = AdaptiveClip(1.0, batch_size=10.0, count_noise=5.0)
    _, _, run = begun(tmp_path, clipping=clipping)
    trained(run, 3)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    _, _, later = begun(tmp_path, clipping=clipping)
    later.resume(tmp_path / "checkpoint")
    assert later._clipping == run._clipping != [clipping]
    _, _, flat_one = begun(tmp_path)
    with pytest.raises(PlanViolation, match="another kind of clipping"):
        flat_one.resume(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "change", [{"count_noise": 1e6}, {"batch_size": 20.0}, {"quantile": 0.9}, {"learning_rate": 1.0}]
)
def test_another_adaptive_clip_norm_is_refused(tmp_path, change, monkeypatch):
    given = AdaptiveClip(1.0, batch_size=10.0, count_noise=1.01)
    _, _, run = begun(tmp_path, clipping=given)
    trained(run, 3)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    _, _, later = begun(tmp_path, clipping=replace(given, **change))
    with pytest.raises(PlanViolation, match="another kind of clipping"):
        later.resume(tmp_path / "checkpoint")
    # The broken twin takes over what was kept: its sums have the noise of one rule, its counts that of another.
    monkeypatch.setattr("discreet.pytorch.run.resumed_clipping", lambda _, kept: kept)
    later.resume(tmp_path / "checkpoint")
    noise = later._noises[0]
    together = later._clipping[0].combined(noise.draws["sum"].noise).noise_multiplier
    assert (together < 0.75 * later.plan.stages[0].noise_multiplier) == ("count_noise" in change)
    assert covers(noise.event, noise.draws.values())  # permits draw both by one rule all the same


def test_shared_parameters_and_frozen_buffers_come_back(tmp_path):
    def build():
        net = network(tied=True)
        net.register_buffer("positions", torch.arange(3.0))
        return net

    model, _, run = begun(tmp_path, model=build())
    model.positions += 1
    trained(run, 2)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    again, _, later = begun(tmp_path, model=build())
    later.resume(tmp_path / "checkpoint")
    assert same(model, again)
    assert again[0].weight is again[2].weight


def test_another_model_is_refused_untouched(tmp_path):
    _, _, run = begun(tmp_path)
    run.save(tmp_path / "checkpoint")
    other = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5))
    before = [p.detach().clone() for p in other.parameters()]
    _, _, later = begun(tmp_path, model=other)
    with pytest.raises(InvalidParameter, match=r"differs in '0\."):
        later.resume(tmp_path / "checkpoint")
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_another_kind_of_optimizer_is_refused(tmp_path):
    _, _, run = begun(tmp_path)
    run.save(tmp_path / "checkpoint")
    _, _, later = begun(tmp_path, kind=torch.optim.SGD)
    with pytest.raises(InvalidParameter, match=r"optimizer='SGD'.*Adam"):
        later.resume(tmp_path / "checkpoint")


def test_resuming_after_the_first_step_is_refused(tmp_path):
    _, _, run = begun(tmp_path)
    trained(run, 1)
    run.save(tmp_path / "checkpoint")
    with pytest.raises(PlanViolation, match="before the first step"):
        run.resume(tmp_path / "checkpoint")


def test_a_missing_checkpoint_is_refused(tmp_path):
    _, _, run = begun(tmp_path)
    with pytest.raises(InvalidParameter, match="holds no checkpoint"):
        run.resume(tmp_path)


def test_a_checkpoint_holds_no_pickle_and_replaces_the_last_one(tmp_path):
    _, _, run = begun(tmp_path)
    for steps in (1, 2):
        trained(run, steps)
        run.save(tmp_path / "checkpoint")
    files = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert [name.split("-")[0] for name in files] == ["run.json", "tensors"]
    text = json.loads((tmp_path / "checkpoint" / "run.json").read_text())
    assert text["step"] == 2
    assert text["plan"] == run.plan.digest()
    content = (tmp_path / "checkpoint" / files[1]).read_bytes()
    with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError)):
        pickle.loads(content)


def test_damaged_checkpoints_are_refused_or_harmless(tmp_path):
    """A hundred random changes of one byte: refused, or read as the same state."""
    _, _, run = begun(tmp_path)
    trained(run, 1)
    run.save(tmp_path / "checkpoint")
    draw = random.Random(0)
    refused = 0
    for path in sorted((tmp_path / "checkpoint").iterdir()):
        whole = path.read_bytes()
        for _ in range(50):
            content = bytearray(whole)
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            path.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
            _, _, later = begun(tmp_path, ledger=run._till.ledger)
            refused += harmless_or_refused(later, tmp_path / "checkpoint")
        path.write_bytes(whole)
    assert refused >= 95


def harmless_or_refused(run, place):
    try:
        run.resume(place)
    except InvalidParameter:
        return 1
    return 0


def test_an_optimizer_with_strange_state_is_refused(tmp_path):
    _, optimizer, run = begun(tmp_path)
    optimizer.param_groups[0]["strange"] = object()
    with pytest.raises(InvalidParameter, match=r"keeps a object in 'optimizer\.param_groups\.0\.strange'"):
        run.save(tmp_path / "checkpoint")


def test_a_run_that_was_killed_before_its_first_checkpoint_is_told_what_is_lost(tmp_path):
    _, _, run = begun(tmp_path)
    run.step(next(run.batches(X)))
    run._till.ledger.close()  # as if the process had been killed
    _, _, later = begun(tmp_path)
    with pytest.raises(
        PlanViolation, match=r"its unspent steps cannot be used: call save\(directory\) before"
    ):
        later.step(next(later.batches(X)))
    assert later.steps_taken == 1


def test_a_checkpoint_before_the_first_step_keeps_the_unspent_steps(tmp_path):
    _, _, run = begun(tmp_path)
    run.save(tmp_path / "checkpoint")
    trained(run, 3)
    run._till.ledger.close()
    _, _, later = begun(tmp_path)
    later.resume(tmp_path / "checkpoint")
    for batch in later.batches(X):
        later.step(batch)
    assert later.steps_taken == 8
    assert later.certificate().trusted


def test_a_checkpoint_of_a_ledger_in_memory_is_refused(tmp_path):
    model = network()
    run = PrivateRun(planned(), model, torch.optim.SGD(model.parameters(), lr=0.01), losses)
    trained(run, 2)
    with pytest.raises(PlanViolation, match="in memory and ends with this process"):
        run.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    with Ledger.in_memory(planned().rule) as ledger:  # which the caller keeps
        begun(tmp_path, ledger=ledger)[2].save(tmp_path / "checkpoint")
        begun(tmp_path, ledger=ledger)[2].resume(tmp_path / "checkpoint")


def test_no_other_clip_norm_is_taken_over_than_an_adaptive_one(tmp_path, monkeypatch):
    """What compares the clipping of a checkpoint is not trusted: a fixed rule stays the one that was given."""
    _, _, run = begun(tmp_path)
    run.save(tmp_path / "checkpoint")
    run._till.ledger.close()
    _, _, later = begun(tmp_path)
    monkeypatch.setattr("discreet.pytorch.run.resumed_clipping", lambda *_: Flat(1e-6))
    later.resume(tmp_path / "checkpoint")
    assert later._clipping == [Flat(1.0)]
