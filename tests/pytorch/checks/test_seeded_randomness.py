"""Draws that somebody knows are refused, whatever the way in which a seed was set; all others pass."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from discreet.core.clipping import Flat
from discreet.errors import CheckFailed
from discreet.pytorch.batches import reader
from discreet.pytorch.checks.check import check_read
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.checks.seeded_generators import random_state
from discreet.pytorch.checks.seeded_randomness import refuse_seeded_randomness
from discreet.pytorch.clipped_sum import ClippedSum

EXAMPLES = (torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2)


class Masked(nn.Module):
    """Half of the hidden numbers count, chosen by ``mask``, which is told how many."""

    def __init__(self, mask):
        super().__init__()
        self.first, self.last, self._mask = nn.Linear(6, 16), nn.Linear(16, 2), mask

    def forward(self, rows):
        hidden = self.first(rows)
        return self.last(hidden * self._mask(hidden))


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def dropped(hidden):
    return functional.dropout(torch.ones_like(hidden))


def by_numpy(hidden):
    return torch.from_numpy(np.random.random(hidden.shape) < 0.5).to(hidden)  # noqa: NPY002


def by_python(hidden):
    return torch.tensor([random.random() < 0.5 for _ in range(hidden.numel())]).view_as(hidden)


def seeded(hidden):
    torch.manual_seed(0)
    return dropped(hidden)


def seeded_generator(hidden):
    torch.default_generator.manual_seed(0)
    return dropped(hidden)


def seeded_aside(hidden):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return dropped(hidden)


def put_back(hidden):
    torch.set_rng_state(torch.Generator().manual_seed(0).get_state())
    return dropped(hidden)


def own(hidden):
    return torch.rand(hidden.shape, generator=torch.Generator().manual_seed(0)) < 0.5


def in_place(hidden):
    return torch.empty_like(hidden).bernoulli_(0.5, generator=torch.Generator())


def seeded_numpy(hidden):
    np.random.seed(0)  # noqa: NPY002
    return by_numpy(hidden)


def seeded_python(hidden):
    random.seed(0)
    return by_python(hidden)


def seeded_and_mapped(hidden):
    torch.manual_seed(0)
    return torch.func.vmap(dropped, randomness="different")(hidden)


def beside_others(hidden):
    """What is known is known although something else is drawn before, which nobody knows."""
    return dropped(hidden) * seeded_aside(hidden)


KNOWN = (
    seeded,
    seeded_generator,
    seeded_aside,
    put_back,
    own,
    in_place,
    seeded_numpy,
    seeded_python,
)


@pytest.mark.parametrize("mask", [*KNOWN, seeded_and_mapped, beside_others])
def test_a_seed_that_somebody_knows_is_refused(mask):
    model, before = Masked(mask), random_state()
    with pytest.raises(CheckFailed, match="one record less would give all others other draws"):
        refuse_seeded_randomness(model, losses, EXAMPLES)
    assert random_state() == before


@pytest.mark.parametrize("mask", KNOWN)
def test_one_record_moves_the_draws_of_all_others(mask):
    """The broken twin is a model that is not checked: what is unknown in a step is known again within it."""
    torch.manual_seed(0)
    of = ClippedSum(Masked(mask), losses, Flat(1.0))

    def total(chosen):
        with unknown_draws():
            return of(tuple(column[chosen] for column in EXAMPLES)).vector

    everybody, others = torch.arange(40), torch.arange(1, 40)
    assert torch.equal(total(everybody), total(everybody))
    assert float((total(everybody) - total(others)).norm()) > 2


def nothing(hidden):
    return torch.ones_like(hidden)


def aside(hidden):
    with torch.random.fork_rng():
        return dropped(hidden)


def again(hidden):
    return checkpoint(dropped, hidden, use_reentrant=False)


def of_a_law(hidden):
    return torch.distributions.Bernoulli(torch.full_like(hidden, 0.5)).sample()


def mapped(hidden):
    return torch.func.vmap(dropped, randomness="different")(hidden)


def of_all(hidden):
    return torch.rand(hidden.shape, generator=torch.default_generator) < 0.5


@pytest.mark.parametrize(
    "mask",
    [nothing, dropped, by_numpy, by_python, aside, again, of_a_law, mapped, of_all],
    ids=lambda mask: mask.__name__,
)
def test_draws_that_follow_the_seed_pass(mask):
    refuse_seeded_randomness(Masked(mask), losses, EXAMPLES)


@pytest.mark.parametrize("mask", [seeded_aside, own])
def test_the_check_of_a_run_asks(mask):
    with pytest.raises(CheckFailed, match=r"seed of a generator|seed of its own"):
        check_read(Masked(mask), losses, EXAMPLES, None)
    check_read(Masked(dropped), losses, EXAMPLES, None)


ROWS = list(zip(*EXAMPLES, strict=True))


def masked_by(mask):
    """A collation that blanks out half of the numbers, as those for masked words do."""

    def collate(rows):
        numbers, labels = map(torch.stack, zip(*rows, strict=True))
        return numbers * mask(numbers).to(numbers), labels

    return collate


@pytest.mark.parametrize("mask", KNOWN)
def test_a_collation_whose_draws_are_known_is_refused(mask):
    """The twin that is not checked moves the sum by several clip norms."""
    torch.manual_seed(0)
    model, collate = nn.Linear(6, 2), masked_by(mask)
    of = ClippedSum(model, losses, Flat(1.0))

    def total(rows):
        with unknown_draws():
            return of(reader(rows, collate)(range(len(rows)))).vector

    assert float((total(ROWS) - total(ROWS[1:])).norm()) > 2
    with pytest.raises(CheckFailed, match="collate, so one record less would give all others other draws"):
        check_read(model, losses, EXAMPLES, reader(ROWS, collate))


@pytest.mark.parametrize("mask", [nothing, dropped, by_numpy, by_python, aside, of_all])
def test_a_collation_whose_draws_follow_the_seed_passes(mask):
    check_read(nn.Linear(6, 2), losses, EXAMPLES, reader(ROWS, masked_by(mask)))
