"""Plans of several stages: each step is sampled, clipped, noised and charged as its own stage says."""

import pytest
import torch
from torch import nn

from discreet import InvalidParameter, PlanViolation, account
from discreet.core.clipping import AdaptiveClip, Flat, Normalised
from discreet.ledger import Ledger
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Stage
from discreet.pytorch import PrivateRun
from discreet.pytorch.progress import cost_so_far
from discreet.trusted.permits import Charger

RECORDS = 40
X = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(0))
WARM = Stage("warm-up", "full-batch", RECORDS, RECORDS, steps=2, clip_norm=1.0, noise_multiplier=9.0)
DESCENT = Stage("descent", "poisson", RECORDS, 10, steps=4, clip_norm=0.5, noise_multiplier=4.0)
EPOCHS = Stage("epochs", "random-allocation", RECORDS, 20, steps=4, clip_norm=2.0, noise_multiplier=6.0)
PLAN = Plan((WARM, DESCENT, EPOCHS), delta=1e-3)


def losses(model, batch):
    return model(batch).square().sum(1)


def begun(plan=PLAN, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses, **options)
    return model, run


def trained(run, until=None):
    for batch in run.batches(X):
        run.step(batch)
        if run.steps_taken == until:
            break


def test_the_stages_are_run_in_their_order_and_charged_each_its_own():
    _, run = begun()
    names = []
    for batch in run.batches(X):
        names.append(run.stage.name)
        run.step(batch)
    assert names == ["warm-up"] * 2 + ["descent"] * 4 + ["epochs"] * 4
    certificate = run.certificate()
    assert run._till.ledger.spent().parts() == PLAN.event.parts()
    assert certificate.verify()
    apart = WARM.charge * 2 + DESCENT.charge * 4 + EPOCHS.charge * 2
    assert certificate.guarantee.epsilon.upper == account(apart).guarantee(1e-3).epsilon.upper
    with pytest.raises(PlanViolation, match="All steps of the plan are taken"):
        run.batches(X)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_noise_divisor_and_clip_norm_are_those_of_the_stage(stage):
    """Of steps without records, so that the gradient is noise alone."""
    wide = nn.Linear(60, 100)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.0)
    run = PrivateRun(PLAN, wide, optimizer, losses, unsafe_seed=5)
    chosen, seen = PLAN.stages[stage], []
    for batch in run.batches(torch.zeros(0, 60)):
        name = run.stage.name
        run.step(batch)
        if name == chosen.name:
            seen.append(torch.cat([p.grad.flatten() for p in wide.parameters()]).double())
    found = float(torch.cat(seen).std())
    # 12 200 numbers or more: a standard deviation is off by 0.64 % each, so 4 of them are a false alarm of 6e-5
    assert found == pytest.approx(chosen.noise_std_of_mean, rel=0.026)
    others = [other for other in PLAN.stages if other is not chosen]
    assert all(abs(found / other.noise_std_of_mean - 1) > 0.05 for other in others)


def test_no_record_moves_a_step_by_more_than_the_clip_norm_of_its_stage():
    """Two runs with the same seed, of which one has a record more: what differs is its clipped gradient."""
    plan = Plan((WARM, Stage("again", "full-batch", RECORDS, RECORDS, 2, 0.25, 9.0)), delta=1e-3)
    sums = []
    for rows in (X, torch.cat([X, torch.full((1, 3), 1e3)])):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.0), losses, unsafe_seed=3)
        found = []
        for batch in run.batches(rows):
            run.step(batch)
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * RECORDS)
        sums.append(found)
    moved = [float((one - other).norm()) for one, other in zip(*sums, strict=True)]
    assert moved == pytest.approx([1.0, 1.0, 0.25, 0.25], rel=1e-3)


def test_the_ledger_grants_no_step_of_a_stage_past_its_end():
    _, run = begun()
    trained(run, until=2)
    with pytest.raises(PlanViolation, match="0 more steps"):
        run._charger._run.next_step(WARM.charge)
    trained(run, until=6)
    with pytest.raises(PlanViolation, match="0 more steps"):
        run._charger._run.next_step(DESCENT.charge)


def test_a_run_that_charges_the_first_stage_in_the_second_is_caught(monkeypatch):
    """The broken twin: warm-up steps are cheap here, and the ledger has no more of them."""
    honest = Charger.next_step

    def cheating(self, noise, clip_norm, lease=1):
        return honest(self, run._noises[0], clip_norm, lease)

    monkeypatch.setattr(Charger, "next_step", cheating)
    _, run = begun()
    trained(run, until=2)
    before = run._till.ledger.spent()
    batches = run.batches(X)
    with pytest.raises(PlanViolation, match="0 more steps"):
        run.step(next(batches))
    assert run._till.ledger.spent() == before


@pytest.mark.parametrize(("stop", "goes_on"), [(1, "warm-up"), (2, "descent"), (4, "descent"), (8, "epochs")])
def test_a_run_is_resumed_where_it_was(tmp_path, stop, goes_on):
    model, run = begun(ledger=tmp_path / "ledger")
    trained(run, until=stop)
    run.save(tmp_path / "checkpoint")
    run._till.close()
    again, later = begun(ledger=tmp_path / "ledger")
    later.resume(tmp_path / "checkpoint")
    assert later.steps_taken == stop
    assert later.stage.name == goes_on
    assert torch.equal(model.weight, again.weight)
    trained(later)
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.spent().parts() == PLAN.event.parts()
        assert later.certificate().verify(ledger)


def test_steps_lost_between_a_checkpoint_and_a_crash_stay_lost_across_stages(tmp_path):
    _, run = begun(ledger=tmp_path / "ledger")
    trained(run, until=1)
    run.save(tmp_path / "checkpoint")
    trained(run, until=4)  # crashes in the second stage
    run._till.close()
    _, later = begun(ledger=tmp_path / "ledger")
    later.resume(tmp_path / "checkpoint")
    assert (later.steps_taken, later.stage.name) == (4, "descent")
    trained(later)
    assert later._till.ledger.spent().parts() == PLAN.event.parts()


def test_stages_with_the_same_event_and_another_between_them():
    """Their events are one part of the ledger's plan; leases end with the stage all the same."""
    first = Stage("first", "poisson", RECORDS, 10, steps=250, clip_norm=1.0, noise_multiplier=30.0)
    between = Stage("between", "poisson", RECORDS, 20, steps=3, clip_norm=1.0, noise_multiplier=30.0)
    last = Stage("last", "poisson", RECORDS, 10, steps=251, clip_norm=0.1, noise_multiplier=30.0)
    plan = Plan((first, between, last), delta=1e-3)
    _, run = begun(plan)
    paying, granted = run._charging(), []
    for _ in range(plan.steps):
        paying.pay(paying._schedule.span(paying.taken + 1).stage.clip_norm)
        granted.append(run._till.ledger.runs()["first:between:last"].reserved)
    assert granted[249] == 250
    assert granted[252] == 253
    assert run._till.ledger.spent().parts() == plan.event.parts()
    with pytest.raises(PlanViolation, match="504 steps, and all of them are taken"):
        paying.pay(0.1)


def test_clipping_by_the_names_of_the_stages(tmp_path):
    rules = {"warm-up": Normalised(1.0), "descent": AdaptiveClip(0.5, batch_size=10, count_noise=20.0)}
    _, run = begun(clipping=rules, ledger=tmp_path / "ledger")
    assert run._clipping[2] == Flat(2.0)
    trained(run, until=4)
    moved = run._clipping[1]
    assert moved.clip_norm != 0.5
    run.save(tmp_path / "checkpoint")
    run._till.close()
    _, later = begun(clipping=rules, ledger=tmp_path / "ledger")
    later.resume(tmp_path / "checkpoint")
    assert later._clipping[1] == moved
    trained(later)


@pytest.mark.parametrize(
    ("clipping", "says"),
    [
        (Flat(1.0), "must have the clip norm of the plan, 0.5"),
        ({"descend": Flat(1.0)}, "must name stages of the plan: warm-up, descent, epochs"),
        ({"descent": Flat(1.0)}, "must have the clip norm of the plan, 0.5"),
    ],
)
def test_clipping_that_is_not_that_of_the_stages_is_refused(clipping, says):
    with pytest.raises(InvalidParameter, match=says):
        begun(clipping=clipping)


def test_progress_never_shows_less_than_was_spent():
    for step in range(1, PLAN.steps + 1):
        shown = float(cost_so_far(PLAN, step).split()[1])
        events = WARM.charge * min(step, 2)
        if step > 2:
            events += DESCENT.charge * min(step - 2, 4)
        if step > 6:
            events += EPOCHS.charge * -(-(step - 6) // 2)
        assert shown >= account(events).epsilon(1e-3)
    assert shown == pytest.approx(PLAN.guarantee.epsilon.upper, rel=0.01)


def test_a_run_follows_schedules_of_noise_and_clip_norms():
    """The noise of steps without records, by its size: 12 steps of 2000 numbers each."""
    torch.manual_seed(0)
    model = nn.Linear(1000, 2, bias=False)
    plan = Recipe(10, 1, steps=12, noise=(4.0, 1.0), clip_norms=(1.0, 0.5, 0.25)).with_noise(1e3, 1e-3)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-12)
    run = PrivateRun(plan, model, sgd, lambda m, batch: m(batch).sum(1))
    sizes = []
    for batch in run.batches(torch.zeros(10, 1000)):
        run.step(batch)
        sizes.append(float(model.weight.grad.std()))
    wanted = [4000.0] * 4 + [2000.0] * 2 + [500.0] * 2 + [250.0] * 4
    assert sizes == pytest.approx(wanted, rel=0.1)  # 6 standard deviations: one false alarm in 1e7
    assert run.certificate().verify()
