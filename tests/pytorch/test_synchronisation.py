"""A step waits for a device once: when the sum comes to the host, where the noise is.

There is no device here. Tensors of the host pretend to be elsewhere, so that the code of devices runs, and every call
is counted that would have to wait for one: whatever turns contents into Python's numbers, shapes or decisions.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import discreet as dp
from discreet.core.clipping import ClipRule, Flat, Normalised, PerBlock
from discreet.pytorch import PrivateRun
from discreet.pytorch.checks import model_guard, single_examples
from discreet.pytorch.clipped_sum import ClippedSum, factors_on_device
from discreet.pytorch.kernels import norms
from support.torch_bank import numbers

WAITING = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "equal",
    "allclose",
    "unique",
    "masked_select",
    "is_nonzero",
}
WAITING |= {f"__{name}__" for name in ("bool", "int", "float", "index", "complex")}


class Waits(TorchFunctionMode):
    """Counts calls that wait for a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, places = getattr(func, "__name__", ""), args[1] if len(args) > 1 else None
        masked = name in ("__getitem__", "__setitem__") and any(
            isinstance(place, Tensor) and place.dtype == torch.bool
            for place in (places if isinstance(places, tuple) else (places,))
        )
        if name in WAITING or masked:
            self.found.append(name)
        return func(*args, **kwargs or {})


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.up = nn.Embedding(11, 24), nn.LayerNorm(24), nn.Linear(24, 48)
        self.down, self.head = nn.Linear(48, 24), nn.Linear(24, 11, bias=False)

    def forward(self, x):
        found = self.words(x)
        return self.head(found + self.down(functional.gelu(self.up(self.norm(found)))))


class Tied(Words):
    def __init__(self):
        super().__init__()
        self.head.weight = self.words.weight


def token_losses(model, batch):
    return functional.cross_entropy(model(batch[0]).mT, batch[1], reduction="none").mean(1)


def class_losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def images():
    first = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 64, 3, stride=2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(576, 3))


def rows():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


WORKLOADS = {
    "rows": (rows, class_losses, lambda n: (numbers(n, 6).float(), torch.arange(n) % 3)),
    "images": (images, class_losses, lambda n: (numbers(n, 1, 8, 8).float(), torch.arange(n) % 3)),
    "words": (Words, token_losses, lambda n: (torch.arange(20 * n).view(n, 20) % 11,) * 2),
    "tied words": (Tied, token_losses, lambda n: (torch.arange(20 * n).view(n, 20) % 11,) * 2),
}


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(norms, "on_host", lambda tensor: False)


def waits_of_a_step(name, monkeypatch):
    make, losses, batch = WORKLOADS[name]
    torch.manual_seed(0)
    model = make()
    plan = dp.Recipe(records=8, sampling="full-batch", steps=3).with_noise(1.0, delta=1e-3)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), 0.1), losses)
    batches = run.batches(batch(8))
    for _ in range(2):
        run.step(next(batches))
    run.edited()  # no look at the weights, which waits once in eight steps
    monkeypatch.setattr(model_guard.secrets, "randbelow", lambda bound: 1)
    run._singles.steps = 1000  # as later steps, of which most compare no example
    monkeypatch.setattr(single_examples, "one_in", lambda number: False)
    last, waits = next(batches), Waits()
    with waits:
        run.step(last)
    return [found for found in waits.found if found != "numpy"]  # which always comes after cpu


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_step_waits_once(name, elsewhere, monkeypatch):
    """For the sum that gets its noise."""
    assert waits_of_a_step(name, monkeypatch) == ["cpu"]


def test_the_counter_finds_the_way_of_the_host(elsewhere, monkeypatch):
    """The twin: norms that go to the host and back."""
    monkeypatch.setattr("discreet.pytorch.clipped_sum.factors_on_device", lambda *_: None)
    assert len(waits_of_a_step("rows", monkeypatch)) > 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_sums_are_those_of_the_host(name, monkeypatch):
    make, losses, batch = WORKLOADS[name]
    torch.manual_seed(0)
    model = make()
    here = ClippedSum(model, losses, Flat(0.1))(batch(5)).vector
    monkeypatch.setattr(norms, "on_host", lambda tensor: False)
    there = ClippedSum(model, losses, Flat(0.1))(batch(5)).vector
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-6)


def test_what_is_not_finite_counts_as_zero(elsewhere):
    x, y = WORKLOADS["rows"][2](6)
    total = ClippedSum(rows(), class_losses, Flat(0.1))
    x[2], x[4, 1] = torch.nan, torch.inf
    rest = [0, 1, 3, 5]
    torch.testing.assert_close(total((x, y)).vector, total((x[rest], y[rest])).vector)


def test_doubtful_norms_are_as_large_as_they_can_be(elsewhere):
    """Positions that cancel: on the host such a norm is found the long way, here it is bounded."""
    x = numbers(3, 20, 64).float()
    x[:, 1::2] = x[:, ::2] * (1 + 1e-3 * numbers(3, 10, 64, seed=9).float())
    sign = torch.tensor([1.0, -1.0]).repeat(10)[:, None]
    layer = nn.Linear(64, 64)

    def losses(model, batch):
        return (model(batch) * sign).sum((1, 2))

    found = ClippedSum(layer, losses, Flat(1.0)).norms(x)
    exact = (sign * x.double()).sum(1).norm(dim=1) * 8  # each of 64 outputs has this gradient
    assert bool((found >= exact * (1 - 1e-6)).all())


@pytest.mark.parametrize("rule", [Flat(0.7), Normalised(0.7), PerBlock((0.7, 1e-3))])
def test_factors_are_those_of_arrays(rule):
    """To the last digits, and 0 where a norm is not finite."""
    values = [0.0, 1e-300, 0.69, 0.7, 0.7000001, 3.0, 1e30, 1e308, torch.inf, torch.nan]
    given = torch.tensor([values, values[::-1]], dtype=torch.float64).T
    given = given if isinstance(rule, PerBlock) else given[:, :1]
    found = factors_on_device(rule, given, 4e-6)
    torch.testing.assert_close(found, torch.from_numpy(rule.factors(given.numpy(), 4e-6)), rtol=1e-15, atol=0)


def test_rules_of_ones_own_are_asked_on_the_host(elsewhere):
    class Soft(ClipRule):
        clip_norm = 0.1

        def wanted(self, norms):
            return 0.1 / (norms + 0.1)

    assert factors_on_device(Soft(), torch.ones(2, 1), 0.0) is None
    assert ClippedSum(rows(), class_losses, Soft())(WORKLOADS["rows"][2](4)).vector.norm() < 0.4
