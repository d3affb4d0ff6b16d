"""What users do that breaks the promise of a record, each with the record that shows it.

A foot-gun passes if it is refused, if "not covered" names it, or if no record moves the sum by more than the clip
norm. ``make bench-check`` tries all of them; here are those that take little time.
"""

import pytest
import torch

from discreet.pytorch import PrivateRun
from discreet.pytorch.check import check
from support import clip_judge
from support.clip_judge import LIMIT, judged
from support.footguns_batches import of_losses
from support.footguns_loops import FOOTGUNS
from support.footguns_rows import losses, vectors

LONG = {"a loss that mixes from its 500th call on"}  # hundreds of steps
# Variants of one that stays.
MORE = ("a constant record of 1000 ", "masked-token head by ", "sort by length, un-sort by ")
LEFT = {
    "masked-token head by hidden[mask]",
    "masked-token head by repeat_interleave",
    "sort by length, un-sort by index",
}

# Triggered by a value that no other record has: nobody can see it beforehand, and the spot checks of a run stop it at
# some later step only.
UNSEEN = {"scaled if anybody is huge"}


PENDING = {
    "masked-token head by hidden[mask]",
    "masked-token head by masked_select",
    "masked-token head by index_select of nonzero",
    "masked-token head by take_along_dim",
    "masked-token head by gather of rows",
    "masked-token head by split and cat",
    "masked-token head by unbind and stack",
    "masked-token head by repeat_interleave",
    "masked-token head by tolist index",
    "sort by length, un-sort by index",
    "sort by length, un-sort by index_select",
    "sort by length, un-sort by scatter",
    "sort by length, un-sort by index_copy",
    "sort by length, un-sort by index_put",
    "sort by length, un-sort by gather",
    "sort by length, un-sort by matrix",
    "flip where the first is large",
    "nested tensors",
    "checkpoints of width 8, not reentrant",
    "checkpoints of width 8, reentrant",
    "checkpoints of width 64, not reentrant",
    "checkpoints of width 64, reentrant",
    "checkpoint_sequential",
    "LoRA under checkpoints",
    "a masked head under a checkpoint",
    "padding to the longest, mean over the padded length",
    "padding to the longest, max over padding that is not zero",
    "padding to the longest, places counted from the right",
    "padding to the longest, softmax over padding",
    "padding to the longest, divided by the longest",
    "padding on the left, places from the left",
    "collate divides by the largest of the batch",
    "collate subtracts the mean of the batch",
    "collate mixes pairs",
    "collate adds what the others are like",
    "collate gives every record twice",
    "collate cuts long texts into windows",
    "collate packs texts into blocks",
    "collate leaves out who is too long, and fills up with the last",
    "a data set whose rows hold their neighbours",
    "two layers of zeros behind batch normalisation by hand",
    "two layers of zeros behind batch normalisation by hand and dropout",
    "ReZero: one number of zero before a branch that mixes",
    "a closed ReLU before a layer that mixes",
    "a loss that mixes from the second step on",
    "a loss that mixes from its 500th call on",
    "a constant record of 1e+07 and weights that are standardised",
    "a constant record of 1000 and weights that are normalised",
    "a constant record of 1e+07 and weights that are normalised",
    "a constant record of 1e+07 and weights that are layer-normed",
    "weight-standardised convolution",
    "ArcFace",
    "nothing if anything is not finite",
    "scaled if anybody is huge",
    "a second optimizer with plain gradients",
    "weights edited from private data between steps",
    "weights edited through .data between steps",
    "a bias set to the class frequencies between steps",
    "a hook on a parameter reads its gradients",
    "a backward hook of a module reads gradients",
    "a forward hook of a module keeps activations",
    "a running mean as an attribute",
    "three times as many rows as the plan says",
    "every record three times in the data set",
    "batches drawn again until they please",
    "another data set in the middle of the run",
    "the data set changes while it is read",
    "a forward that is exchanged later",
}  # not yet mended


def marks(name):
    late = name in LONG or (name.startswith(MORE) and name not in LEFT)
    pending = [pytest.mark.xfail(strict=False)] if name in PENDING else []
    return [pytest.mark.slow, *pending] if late else pending


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


# ---- the judge itself ----


def doubled(model, batch):
    """The last example decides how much all of them count."""
    return losses(model, batch) * batch[0][-1:].abs().sum()


def test_the_judge_sees_a_loss_that_mixes_where_nobody_checks(monkeypatch):
    monkeypatch.setattr("discreet.pytorch.watch.check", lambda *args, **more: None)
    verdict = judged(lambda: of_losses(doubled, clip_norms=(50.0,)))
    assert verdict.kind == "BROKEN"
    assert verdict.contribution > LIMIT


def test_the_judge_sees_a_release_before_the_refusal(monkeypatch):
    """A run that refuses at its second step has released its first."""
    step = PrivateRun.step

    def late(run, batch):
        if run.steps_taken:
            raise clip_judge.CheckFailed("too late")
        step(run, batch)

    monkeypatch.setattr("discreet.pytorch.watch.check", lambda *args, **more: None)
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
