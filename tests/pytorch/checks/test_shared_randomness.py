"""A draw that several examples share tells who is in a part with whom: refused, if it matters."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet.core.clipping import Flat
from discreet.errors import CheckFailed
from discreet.pytorch.checks.check import check_read
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.checks.seeded_generators import random_state
from discreet.pytorch.checks.shared_randomness import refuse_shared_randomness
from discreet.pytorch.clipped_sum import ClippedSum

EXAMPLES = (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 2)


class Drawn(nn.Module):
    """What is between two layers is changed by what ``draw`` makes of it."""

    def __init__(self, draw):
        super().__init__()
        self.first, self.last, self._draw = nn.Linear(6, 5), nn.Linear(5, 2), draw

    def forward(self, rows):
        return self.last(self._draw(self.first(rows)))


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def left_out(hidden, chance=0.2):
    """As layers of transformers are."""
    return hidden if torch.rand([]) >= chance else 0 * hidden


def depth_of_batches(hidden):
    return hidden * torch.empty(1, 1).bernoulli_(0.8)


def one_mask(hidden):
    return hidden * functional.dropout(torch.ones(1, hidden.shape[1]))


def by_numpy(hidden):
    return hidden + np.random.uniform()  # noqa: NPY002


def by_python(hidden):
    return hidden * random.choice([0.5, 2.0])


def one_order(hidden):
    order = list(range(hidden.shape[1]))
    random.shuffle(order)
    return hidden[:, order]


def beside_dropout(hidden):
    """Where each example draws, too."""
    return left_out(functional.dropout(hidden))


SHARED = (left_out, depth_of_batches, one_mask, by_numpy, by_python, one_order, beside_dropout)


@pytest.mark.parametrize("draw", SHARED, ids=lambda draw: draw.__name__)
def test_a_draw_for_several_examples_is_refused(draw):
    torch.manual_seed(0)
    model, before = Drawn(draw), random_state()
    with pytest.raises(CheckFailed, match="One draw decides about several examples"):
        refuse_shared_randomness(model, losses, EXAMPLES)
    assert random_state() == before
    with pytest.raises(CheckFailed):
        check_read(model, losses, EXAMPLES, None)


def never_left_out(hidden):
    """Drawn, and of no consequence: what transformers do without layer dropout."""
    return left_out(hidden, chance=0.0)


def depth_of_each(hidden):
    return hidden * torch.empty(len(hidden), 1).bernoulli_(0.8)


def one_by_one(hidden):
    return torch.stack(
        [row * random.random() + (torch.randn(5) if random.random() < 0.5 else 0) for row in hidden]
    )


def each_by_numpy(hidden):
    return hidden + torch.from_numpy(np.random.uniform(size=(len(hidden), 1))).to(hidden)  # noqa: NPY002


def mapped(hidden):
    return torch.func.vmap(functional.dropout, randomness="different")(hidden)


def penalised(hidden):
    """The losses differentiate on their own."""
    (slope,) = torch.autograd.grad(hidden.square().sum(), hidden, create_graph=True)
    return functional.dropout(slope)


ALONE = (
    lambda hidden: hidden,
    nn.Dropout(0.5),
    nn.AlphaDropout(0.5),
    nn.RReLU(),
    never_left_out,
    depth_of_each,
    one_by_one,
    each_by_numpy,
    mapped,
    penalised,
)


@pytest.mark.parametrize("draw", ALONE)
def test_draws_of_each_example_pass(draw):
    torch.manual_seed(0)
    refuse_shared_randomness(Drawn(draw), losses, EXAMPLES)


def test_who_is_in_a_part_with_whom_shows():
    """The broken twin is a model that is not checked: the product of neighbours tells whether a record is there.

    By six of its standard deviations from the middle; the sum has noise of one clip norm.
    """
    rows, noise = 401, np.random.default_rng(0)

    class Signed(nn.Module):
        def __init__(self, each):
            super().__init__()
            self.layer, self._each = nn.Linear(rows, 1, bias=False), each

        def forward(self, batch):
            return self.layer(batch)[:, 0] * (2.0 * (torch.rand(len(batch) if self._each else 1) < 0.5) - 1)

    def product(each, batch):
        of = ClippedSum(Signed(each), lambda model, batch: model(batch), Flat(1.0), physical_batch_size=2)
        with unknown_draws():
            seen = of(batch).vector.numpy() + noise.normal(size=rows)
        return float((seen[1:-1:2] * seen[2::2]).sum())

    records = torch.eye(rows)
    spread = np.sqrt(
        200 * 3
    )  # of 200 products of two numbers of variance 2, with and without what they share
    for each in (False, True):
        with_it, without = (
            np.mean([product(each, batch) for _ in range(8)]) for batch in (records, records[1:])
        )
        assert abs(with_it) < 6 * spread / np.sqrt(8)
        assert (without > 200 - 6 * spread / np.sqrt(8)) == (not each)
