"""What the graph does not show: hooks that change gradients, and data that all examples read like a weight."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from discreet.core.clipping import Flat
from discreet.pytorch.batch_axis import DataFlow
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.recording import Recording

WIDTH, CLASSES, CLIP_NORM = 6, 3, 0.1
RARE = 7.3  # a value that switches something on


class Forward(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.one, self.two = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
        self.square = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.row = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return self.function(self, x)


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows(count=9, width=WIDTH):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, width, generator=generator), torch.randint(
        CLASSES, (count,), generator=generator
    )


def flat(sums):
    return torch.cat([value.double().flatten() for value in sums.values()])


def moved_by_a_rare_record(function):
    """How far the rare record moves the sum of an engine that has seen ordinary ones, in clip norms."""
    model, (x, y) = Forward(function), rows()
    engine = ClippedSum(model, losses, Flat(CLIP_NORM))
    engine((x, y))
    with_it = torch.cat([x, torch.full((1, WIDTH), RARE)]), torch.cat([y, torch.tensor([0])])
    return float((flat(engine(with_it)) - flat(engine((x, y)))).norm()) / CLIP_NORM


def bump(x):
    return 1000 * (1 - 10 * (x[:, :1] - RARE).abs()).relu()


def mean_of_rare(s, x):
    return s.one(x) * (1 + (s.two(x) * bump(x)).mean(0))


def mean_behind_two_layers(s, x):
    return s.one(x) * (1 + (s.two((x @ s.square).tanh()) * bump(x)).mean(0))


def mean_row_by_row(s, x):
    means = sum(torch.tensordot(row, s.square, 1) * bump(row[None])[0] for row in x)
    return s.one(x * (1 + means))


def mean_written_into_a_view(s, x):
    kept = torch.zeros(len(x), WIDTH)
    kept[:].copy_(x)
    return s.one(x) * (1 + (s.two(kept) * bump(x)).mean(0))


def table_of_examples(s, x):
    place = torch.arange(len(x))
    return F.embedding(torch.where(bump(x).any(), (place + 1) % len(place), place), s.one(x))


def weight_of_examples(s, x):
    weight = (s.two(x) * bump(x)).sum(0)[:, None].expand(CLASSES, WIDTH)
    return s.one(x) + F.linear(x, weight)


SHARED_DATA = [
    mean_of_rare,
    mean_behind_two_layers,
    mean_row_by_row,
    mean_written_into_a_view,
    table_of_examples,
    weight_of_examples,
]


@pytest.mark.parametrize("function", SHARED_DATA)
def test_data_that_all_examples_read_is_no_weight(function):
    assert moved_by_a_rare_record(function) <= 1 + 1e-4


@pytest.mark.parametrize("function", SHARED_DATA)
def test_without_following_the_data_it_would_show(function, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(DataFlow, "after", lambda self, func, args, kwargs, result: result)
    monkeypatch.setattr(DataFlow, "enters", lambda self, values: False)
    assert moved_by_a_rare_record(function) > 1.01


def hook_on_a_tensor(s, x):
    h = s.one(x)
    h.register_hook(lambda grad: grad.sum(0, keepdim=True).expand_as(grad) if bump(x).any() else grad)
    return h.tanh()


def hook_behind_an_operation(s, x):
    h = s.one(x).tanh()
    h.register_hook(lambda grad: grad * (1 - 2 * bump(x).any().float()))
    return h


def hook_on_a_node(s, x):
    h = s.one(x).tanh()
    h.grad_fn.register_prehook(lambda grads: (grads[0] * (1 - 2 * bump(x).any().float()),))
    return h


def hook_on_saved_tensors(s, x):
    rare = bool(bump(x).any())
    h = s.one(x)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor, lambda tensor: 5 * tensor if rare else tensor
    ):
        return h.sin()


HOOKS = [hook_on_a_tensor, hook_behind_an_operation, hook_on_a_node, hook_on_saved_tensors]


@pytest.mark.parametrize("function", HOOKS)
def test_hooks_in_the_forward_pass_mix_nobody(function):
    assert moved_by_a_rare_record(function) <= 1 + 1e-4


@pytest.mark.parametrize("function", HOOKS)
def test_unseen_hooks_would_show(function, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr("discreet.pytorch.recording.is_hooked", lambda func, args: False)
    assert moved_by_a_rare_record(function) > 1.01


def difference(model, batch):
    """Between the sums of the engine and those of single examples, in clip norms; and parameters without a rule."""
    found = per_example_gradients(model, losses, batch)
    apart = torch.cat([value.double().flatten(1) for value in found.values()], 1)
    norms = apart.norm(dim=1)
    clip_norm = float(norms.median())
    engine = ClippedSum(model, losses, Flat(clip_norm))
    wanted = ((clip_norm / norms).clamp(max=1)[:, None] * apart).sum(0)
    return float((flat(engine(batch)) - wanted).norm()) / clip_norm, engine._slow


def checkpointed_function_of_a_weight(s, x):
    def part(h):
        return (h @ F.normalize(s.square)).tanh()

    return s.one(
        checkpoint(part, checkpoint(part, x, use_reentrant=False), use_reentrant=False)
        @ F.normalize(s.square, dim=0)
    )


def checkpointed_scale(s, x):
    return s.one(checkpoint(lambda h: (h * (1 + s.row)) @ s.square.t(), x, use_reentrant=False))


def row_of_weights(s, x):
    return s.one(x * F.linear(x[:, None] * torch.arange(1.0, 5)[:, None], s.row).sum(1, keepdim=True))


def complex_numbers(s, x):
    return s.one(((x + 1j * x.sin()) * s.row + s.row).abs())


@pytest.mark.parametrize(
    "function", [checkpointed_function_of_a_weight, checkpointed_scale, row_of_weights, complex_numbers]
)
def test_unusual_uses_of_weights_are_exact(function):
    assert difference(Forward(function), rows())[0] < 1e-4


def weight_of_a_table(s, x):
    """Constants in the size and type of the data hold nothing of it."""
    places = torch.linspace(0, 1, WIDTH).type_as(x) + torch.zeros_like(x[:1])
    return s.one(x + places @ s.square) + s.two(x)


@pytest.mark.parametrize("function", [checkpointed_scale, weight_of_a_table])
def test_these_have_rules(function):
    error, slow = difference(Forward(function), rows())
    assert error < 1e-4
    assert not slow & {"square", "row", "one.weight", "two.weight"}


def test_tensors_kept_elsewhere_have_rules():
    def offloaded(s, x):
        with torch.autograd.graph.save_on_cpu():
            return s.one((x @ s.square).tanh())

    error, slow = difference(Forward(offloaded), rows())
    assert error < 1e-4
    assert not slow


def test_a_recording_forgets_its_data():
    model, batch = Forward(mean_of_rare), rows()
    recording = Recording(dict(model.named_parameters()), (), len(batch[0]), None, batch)
    with recording:
        recording.settle(losses(model, batch))
    assert not recording._data.places
