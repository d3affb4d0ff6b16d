"""What users do that breaks the promise of a record, each with the record that shows it.

A foot-gun passes if it is refused, if "not covered" names it, or if no record moves the sum by more than the clip
norm. ``make bench-check`` tries all of them; here are those that take little time.
"""

import contextlib

import pytest
import torch

from discreet.pytorch import PrivateRun
from discreet.pytorch.checks.check import check
from support import clip_judge
from support.clip_judge import LIMIT, judged
from support.footguns_batches import of_losses
from support.footguns_loops import FOOTGUNS
from support.footguns_rows import losses, vectors

# Variants of one that stays.
MORE = ("a constant record of 1000 ", "masked-token head by ", "sort by length, un-sort by ")
LEFT = {
    "masked-token head by hidden[mask]",
    "masked-token head by repeat_interleave",
    "sort by length, un-sort by index",
}

# Nobody can see these beforehand: what triggers them comes later, or in no other record. Spot checks of a run stop
# them at some later step, and the bench counts them as not passed.
UNSEEN = {"scaled if anybody is huge", "a loss that mixes from its 500th call on"}


def marks(name):
    return [pytest.mark.slow] if name.startswith(MORE) and name not in LEFT else []


def test_there_are_many():
    assert len(FOOTGUNS) >= 150
    assert {footgun.hole for footgun in FOOTGUNS.values()} >= set(range(7))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks(name)) for name in sorted(set(FOOTGUNS) - UNSEEN)],
)
def test_refused_or_named_or_harmless(name):
    verdict = FOOTGUNS[name].attempt()
    assert verdict.passed, f"{verdict.kind}: {verdict.detail}"


def doubled(model, batch):
    """The last example decides how much all of them count."""
    return losses(model, batch) * batch[0][-1:].abs().sum()


class Blind:
    """In place of whatever watches a run."""

    refusal = ""

    def ending(self):
        return contextlib.nullcontext()

    def __init__(self, *args, **more):
        pass

    def __getattr__(self, name):
        return lambda *args, **more: None


@pytest.fixture
def blind(monkeypatch):
    for name in ("ModelGuard", "SpotCheck", "SingleExamples"):
        for module in ("private_steps", "run"):
            monkeypatch.setattr(f"discreet.pytorch.{module}.{name}", Blind, raising=False)


@pytest.mark.usefixtures("blind")
def test_the_judge_sees_a_loss_that_mixes_where_nobody_checks():
    verdict = judged(lambda: of_losses(doubled, clip_norms=(50.0,)))
    assert verdict.kind == "BROKEN"
    assert verdict.contribution > LIMIT


@pytest.mark.usefixtures("blind")
def test_the_judge_sees_a_release_before_the_refusal(monkeypatch):
    """A run that refuses at its second step has released its first."""
    step = PrivateRun.step

    def late(run, batch):
        if run.steps_taken:
            raise clip_judge.CheckFailed("too late")
        step(run, batch)

    monkeypatch.setattr(PrivateRun, "step", late)
    assert judged(lambda: of_losses(doubled, clip_norms=(50.0,))).kind == "BROKEN"


def test_the_judge_lets_honest_losses_pass():
    verdict = judged(lambda: of_losses(losses))
    assert verdict.kind == "harmless"
    assert 0.99 < verdict.contribution <= LIMIT


def test_the_judge_tells_a_crash_from_a_refusal():
    def broken(model, batch):
        raise KeyError(0)

    assert judged(lambda: of_losses(broken)).kind == "CRASHED"


def test_the_rows_are_ordinary():
    model = of_losses(losses).model
    check(model, losses, (torch.stack([x for x, _ in vectors()]), torch.stack([y for _, y in vectors()])))
