"""The clip holds for random models that move their rows about, under batches that try to break it."""

import random

import pytest
import torch
from torch import nn

from discreet.core.clipping import Flat
from discreet.pytorch import check
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.per_example import trainable
from support.clip_judge import LIMIT
from support.random_models import (
    MIXING,
    STEPS,
    Chain,
    adversarial,
    contribution,
    losses,
    random_model,
    regular,
    tried,
)

# ``make bench-check`` tries 10 000 batches and more; these are the first of them.
MODELS, BATCHES = 40, 8


@pytest.mark.parametrize("part", range(4))
def test_no_record_moves_the_sum_by_more_than_the_clip_norm(part):
    tally = tried(range(part * MODELS // 4, (part + 1) * MODELS // 4), BATCHES)
    assert not tally.problems
    assert tally.worst <= LIMIT
    assert tally.batches == MODELS // 4 * BATCHES  # none was refused: they are honest models


def test_models_that_mix_are_refused_or_harmless():
    tally = tried([*range(10), 22, 33, 41], 4, mixing=True)
    assert not tally.problems
    assert tally.refused >= 10


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_every_step_of_the_grammar_is_accepted(kind):
    torch.manual_seed(1)
    model = Chain([kind], "mean")
    check(model, losses, regular(6, random.Random(1)))


class Naive:
    """Gradients of single examples from a loop in float32: right, but for rounding."""

    def __init__(self, model, losses, rule):
        self.model, self.losses, self.rule = model, losses, rule

    def rows(self, batch):
        return per_example_gradients(self.model, self.losses, batch)

    def __call__(self, batch):
        rows = self.rows(batch)
        norms = (
            torch.stack([row.double().reshape(len(row), -1).square().sum(1) for row in rows.values()])
            .sum(0)
            .sqrt()
        )
        bad = ~norms.isfinite()
        factors = torch.from_numpy(self.rule.factors(norms[:, None].nan_to_num(0, 0, 0).numpy()))[:, 0]
        factors[bad] = 0
        kept = {name: row.nan_to_num(0, 0, 0) for name, row in rows.items()}
        return {name: torch.einsum("b,b...->...", factors, row.double()) for name, row in kept.items()}


class ByShape(Naive):
    """Hooks on linear layers that share out the rows by their number alone, as libraries of hooks do."""

    def rows(self, batch):
        count, found = len(batch[0]), {}
        names = {id(value): name for name, value in trainable(self.model).items()}
        seen = []
        handles = [
            module.register_forward_hook(lambda module, args, out: seen.append((module, args[0], out)))
            for module in self.model.modules()
            if isinstance(module, nn.Linear)
        ]
        values = self.losses(self.model, batch)
        for handle in handles:
            handle.remove()
        grads = torch.autograd.grad(values.sum(), [out for _, _, out in seen], allow_unused=True)
        for (module, x, _), grad in zip(seen, grads, strict=True):
            if grad is not None and len(grad.reshape(-1, grad.shape[-1])) % count == 0:
                g = grad.reshape(count, -1, grad.shape[-1])
                a = x.detach().reshape(count, -1, x.shape[-1])
                for value, row in ((module.weight, g.mT @ a), (module.bias, g.sum(1))):
                    name = names[id(value)]
                    found[name] = found.get(name, 0) + row
        return super().rows(batch) | found


class KeepsNaN(Naive):
    def __call__(self, batch):
        rows = self.rows(batch)
        norms = (
            torch.stack([row.reshape(len(row), -1).square().sum(1) for row in rows.values()]).sum(0).sqrt()
        )
        factors = (self.rule.clip_norm / norms).clamp(max=1)
        return {name: torch.einsum("b,b...->...", factors, row) for name, row in rows.items()}


class TooLong(ClippedSum):
    """Every gradient is a thousandth too long."""

    def __call__(self, batch):
        return {name: 1.001 * value for name, value in super().__call__(batch).items()}


class Mean(Naive):
    """Divides by the number of examples that there are, as a mean would."""

    def __call__(self, batch):
        return {name: 8 * value / len(batch[0]) for name, value in super().__call__(batch).items()}


@pytest.mark.parametrize("engine", [ByShape, KeepsNaN, TooLong, Mean])
def test_broken_engines_are_caught(engine):
    assert tried(range(8), 8, engine=engine, checked=False).worst > LIMIT


def test_the_loop_passes():
    """The judge does not cry wolf: by the definition everything is in order."""
    assert tried(range(0, 24, 2), 4, engine=Naive, checked=False).worst <= LIMIT


def test_models_that_mix_move_the_sum_where_nobody_checks():
    assert tried(range(5), 6, mixing=True, engine=ByShape, checked=False).worst > LIMIT


def test_cancellation_without_a_floor_is_caught(monkeypatch):
    """1e8 + 8 - 8.000001 - 1e8: the rounding of the parts is longer than what is left of them."""
    torch.manual_seed(0)
    x, scales = torch.randn(4, 1, 64).repeat(1, 3, 1), torch.tensor([[1e8 + 8, -8.000001, -1e8]] * 4)

    def worst():
        engine = ClippedSum(nn.Linear(64, 64, bias=False), of_sums, Flat(1.0))
        return max(contribution(engine, (x, scales), place, 1.0) for place in range(4))

    assert worst() <= 1.01
    monkeypatch.setattr("discreet.pytorch.layer_rules.use.LEAST_LEFT", 0.0)
    assert worst() > 1.5


def of_sums(model, batch):
    return (model(batch[0]).sum(2) * batch[1]).sum(1)


def test_the_grammar_is_rich_and_its_batches_differ():
    assert len(STEPS) >= 30
    assert len(MIXING) >= 7
    chance = random.Random(0)
    assert len({adversarial(chance)[2] for _ in range(200)}) > 150
    assert len({tuple(random_model(seed).kinds) for seed in range(60)}) > 50
