"""Draws held still: an example sees the same ones alone and in a batch, and so every test of the check can run."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from discreet.pytorch import CheckFailed, check
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.seeded_generators import random_state

X = torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(0))
LSTM = nn.LSTM(6, 4, 2, dropout=0.5, batch_first=True)


def column(values):
    return torch.as_tensor(values, dtype=torch.float32)[:, None, None]


DRAWS = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "layers": nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU()),
    "dropout2d": lambda x: functional.dropout2d(x[:, None], 0.5),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "encoder": nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "lstm": lambda x: LSTM(x)[0],
    "rand": lambda x: x + torch.rand(x.shape),
    "randn_like": lambda x: x + torch.randn_like(x),
    "uniform_": lambda x: x + torch.empty(len(x), 1, 1).uniform_(-1, 2),
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "randint": lambda x: x + torch.randint(0, 10, (len(x), 7, 1)),
    "randint of one limit": lambda x: x + torch.randint(10, (len(x), 7, 6)),
    "gumbel": functional.gumbel_softmax,
    "pooling": lambda x: functional.fractional_max_pool2d(x[:, None], 2, output_size=(3, 3)),
    "multinomial": lambda x: torch.multinomial(x[:, 0].softmax(-1), 2).float(),
    "multinomial with replacement": lambda x: torch.multinomial(x[:, 0].softmax(-1), 9, True).float(),
    "normal": lambda x: torch.normal(x, x.abs()),
    "normal_": lambda x: x + torch.empty_like(x).normal_(1.0, std=2.0),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(2.0),
    "beta": lambda x: x * column(torch.distributions.Beta(0.4, 0.4).sample((len(x),))),
    "categorical": lambda x: torch.distributions.Categorical(logits=x).sample().float(),
    "poisson": lambda x: torch.poisson(x.abs()),
    "permuted positions": lambda x: x[:, torch.randperm(7)],
    "masked positions": lambda x: x.gather(1, torch.rand(len(x), 7).argsort(1)[..., None].expand(-1, -1, 6)),
    "one by one": lambda x: torch.stack([example + torch.randn(example.shape) for example in x]),
    "time first": lambda x: (x.transpose(0, 1) + torch.rand(7, len(x), 6)).transpose(0, 1),
    "numpy": lambda x: x + column(np.random.beta(0.2, 0.3, size=len(x))),  # noqa: NPY002
    "random": lambda x: x * column([random.random() for _ in x]),
    "choices": lambda x: x * column(random.choices([1.0, 2.0, 3.0], k=len(x))),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_an_example_sees_the_same_draws_alone_and_in_a_batch(draw):
    before = random_state()
    with deterministic_draws():
        alone = torch.cat(list(map(draw, X.split(1))))
        (together,) = map(draw, [X])
    torch.testing.assert_close(alone, together)
    assert random_state() == before
    assert np.random.rand.__self__ is np.random.mtrand._rand
    assert random.random.__self__ is random._inst


def test_places_and_seeds_make_a_difference():
    def views():
        return torch.rand(2, 8), torch.rand(2, 8)

    with deterministic_draws():
        one, other = views()
    with deterministic_draws(1):
        later, _ = views()
    assert len({float(view[0, 0]) for view in (one, other, later)}) == 3
    assert len(set(one[0].tolist())) == 8


def test_examples_in_the_last_dimension_need_draws_that_do_not_vary():
    def last(x):
        return x.movedim(0, -1) + torch.rand(7, 6, len(x))

    for varied in (True, False):
        with deterministic_draws(varied=varied):
            alone = torch.cat(list(map(last, X.split(1))), -1)
            (together,) = map(last, [X])
        assert torch.equal(alone, together) is not varied


def test_a_checkpoint_draws_the_same_when_it_runs_again():
    drawn = []

    def segment(x):
        drawn.append(torch.rand(x.shape))
        return (x * drawn[-1]).square().sum()

    x = X.clone().requires_grad_()
    with deterministic_draws():
        checkpoint(segment, x, use_reentrant=False).backward()
        torch.autograd.grad(checkpoint(segment, x, use_reentrant=False), x)
    assert len(drawn) == 4
    assert all(torch.equal(drawn[0], values) for values in drawn)


def test_generators_are_put_back_after_an_exception():
    before = random_state()
    with pytest.raises(KeyError), deterministic_draws():
        {}[torch.rand(3)]
    assert random_state() == before
    assert random.random.__self__ is random._inst


def batch(rows=9):
    generator = torch.Generator().manual_seed(2)
    return torch.rand(rows, 6, generator=generator), torch.randint(3, (rows,), generator=generator)


def model(middle=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), middle or nn.Identity(), nn.Tanh(), nn.Linear(6, 3))


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def augmented(model, batch):
    return losses(model, (batch[0] + torch.rand(len(batch[0]), 1), batch[1]))


BY_SIZE = {
    "the square of the size": lambda m, b: augmented(m, b) * len(b[0]) ** 2,
    "a mean": lambda m, b: augmented(m, b) / len(b[0]),
    "numpy": lambda m, b: losses(m, b) * np.random.rand() * len(b[0]),  # noqa: NPY002
    "random": lambda m, b: losses(m, b) * random.random() * len(b[0]),
}


@pytest.mark.parametrize("loss", BY_SIZE.values(), ids=BY_SIZE)
@pytest.mark.parametrize("middle", [nn.Identity(), nn.Dropout(0.3)], ids=["plain", "dropout"])
def test_augmented_losses_that_depend_on_the_size_of_the_batch_are_refused(loss, middle):
    with pytest.raises(CheckFailed, match="smaller batch"):
        check(model(middle), loss, batch())


def test_gradients_of_losses_that_draw_are_compared(monkeypatch):
    """The broken twin: an engine with wrong norms behind random augmentation."""
    from discreet.pytorch.clipped_sum import ClippedSum

    norms = ClippedSum.norms
    check(model(nn.Dropout(0.3)), augmented, batch())
    monkeypatch.setattr(ClippedSum, "norms", lambda self, batch: norms(self, batch) * 0.99)
    with pytest.raises(CheckFailed, match="not those of its examples one by one"):
        check(model(nn.Dropout(0.3)), augmented, batch())


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        keep = torch.rand(len(x), 1) < 0.5
        return x + self.inner(x) * keep


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("middle", [nn.Dropout, StochasticDepth, nn.RReLU, nn.AlphaDropout])
def test_honest_models_that_draw_pass(middle, seed):
    net = model(middle())
    torch.manual_seed(seed)
    for value in net.parameters():
        nn.init.normal_(value, std=0.5)
    check(net, augmented, batch(20))
