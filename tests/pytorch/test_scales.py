"""Norms at every scale: what float32 cannot square must not escape the clip norm.

Inputs and output gradients between 1e-30 and 1e30, in all pairs, one pair per example. The reference is the
gradient in float64, from the definition.
"""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discreet.core.clipping import Flat, Normalised
from discreet.errors import InvalidParameter
from discreet.pytorch.clipped_sum import ERRORS, ClippedSum
from discreet.pytorch.gradients import Gradients, Sums, within_range
from discreet.pytorch.kernels.norms import squared_norms, squared_norms_by_torch
from discreet.pytorch.layer_rules import use
from discreet.pytorch.layer_rules.convolution import ConvolutionWeight
from discreet.pytorch.layer_rules.elementwise import Scaling, Shift
from discreet.pytorch.layer_rules.embedding import EmbeddingWeight
from discreet.pytorch.layer_rules.linear import LinearWeight
from discreet.pytorch.layer_rules.use import Layout
from support.torch_bank import numbers

SCALES = torch.logspace(-30, 30, 11, dtype=torch.float64)
OF_INPUT, OF_GRAD = (grid.flatten() for grid in torch.meshgrid(SCALES, SCALES, indexing="ij"))
EXAMPLES = len(OF_INPUT)
CLIPPING = (Flat(1e-8), Flat(1.0), Normalised(1e-3, stabiliser=1e-30))


def scaled(scales, *shape, seed):
    """Random float32 numbers, the same for all examples but for the scale."""
    one = numbers(1, *shape, seed=seed)
    return (one * scales.view(-1, *(1,) * len(shape))).float()


def source_of(*shape):
    weight = nn.Parameter(torch.zeros(*shape))
    return use.Source("w", weight, {"w": weight}, True)


def received(one, x, grad):
    one.receive(grad, Layout(0), len(grad), use.Scratch(), "place")
    return one


def a_linear(positions, into, out, transposed=False):
    x, g = scaled(OF_INPUT, *positions, into, seed=1), scaled(OF_GRAD, *positions, out, seed=2)
    shape = (into, out) if transposed else (out, into)
    rows = torch.einsum("b...o,b...i->boi", g.double(), x.double())
    found = received(LinearWeight(source_of(*shape), x, transposed), x, g)
    return [found], rows.mT if transposed else rows


def a_convolution(channels, size, out, groups=1, spread=False):
    x = scaled(OF_INPUT, channels, size, size, seed=1)
    shape = (channels, out // groups, 3, 3) if spread else (out, channels // groups, 3, 3)
    call = F.conv_transpose2d if spread else F.conv2d
    weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    g = scaled(OF_GRAD, *call(x[:1].double(), weight, padding=1, groups=groups).shape[1:], seed=2)
    rows = []
    for a, b in zip(x.double(), g.double(), strict=True):
        made = call(a[None], weight, padding=1, groups=groups)
        rows += torch.autograd.grad(made, weight, b[None])
    one = ConvolutionWeight(source_of(*shape), x, (1, 1), ((1, 1), (1, 1)), (1, 1), groups, spread)
    return [received(one, x, g)], torch.stack(rows)


def an_embedding():
    index, g = torch.tensor([[0, 2, 2, 4]]).repeat(EXAMPLES, 1), scaled(OF_GRAD, 4, 6, seed=2)
    rows = torch.zeros(EXAMPLES, 5, 6, dtype=torch.float64).index_add_(1, index[0], g.double())
    return [received(EmbeddingWeight(source_of(5, 6), index, -1), index, g)], rows


def a_tied_pair():
    source = source_of(40, 40)
    x, g, e = (scaled(s, 4, 40, seed=i) for i, s in enumerate((OF_INPUT, OF_GRAD, OF_GRAD)))
    index = torch.tensor([[0, 2, 2, 4]]).repeat(EXAMPLES, 1)
    rows = torch.einsum("bto,bti->boi", g.double(), x.double()).index_add_(1, index[0], e.double())
    uses = [EmbeddingWeight(source, index, -1), LinearWeight(source, x)]
    return [received(one, None, grad) for one, grad in zip(uses, (e, g), strict=True)], rows


def a_repeated_weight():
    source = source_of(30, 20)
    x, g = scaled(OF_INPUT, 20, seed=1), scaled(OF_GRAD, 30, seed=2)
    more_x, more_g = scaled(OF_INPUT, 20, seed=3), scaled(OF_GRAD, 30, seed=4)
    pairs = ((x, g), (more_x, more_g))
    rows = sum(torch.einsum("bo,bi->boi", b.double(), a.double()) for a, b in pairs)
    return [received(LinearWeight(source, a), a, b) for a, b in pairs], rows


def a_scale():
    x, g = scaled(OF_INPUT, 5, 7, seed=1), scaled(OF_GRAD, 5, 7, seed=2)
    return [received(Scaling(source_of(7), x), x, g)], (x.double() * g.double()).sum(1)


def a_shift():
    g = scaled(OF_GRAD, 5, 7, seed=2)
    return [received(Shift(source_of(7)), None, g)], g.double().sum(1)


def a_shared_shift_and_map():
    """One parameter as a weight and added to the activations: no closed form."""
    source = source_of(6, 6)
    x, g, more = scaled(OF_INPUT, 6, seed=1), scaled(OF_GRAD, 6, seed=2), scaled(OF_INPUT, 6, 6, seed=3)
    rows = torch.einsum("bo,bi->boi", g.double(), x.double()) + more.double()
    return [received(LinearWeight(source, x), x, g), received(Shift(source), None, more)], rows


RULES = {
    "linear": lambda: a_linear((), 20, 30),
    "linear, transposed": lambda: a_linear((), 20, 30, True),
    "linear, Gram matrices": lambda: a_linear((5,), 40, 50),
    "linear, Gram matrices, transposed": lambda: a_linear((5,), 40, 50, True),
    "linear, large Gram matrices": lambda: a_linear((20,), 70, 80),
    "linear, gradients": lambda: a_linear((30,), 6, 7),
    "convolution": lambda: a_convolution(3, 6, 5),
    "convolution, Gram matrices": lambda: a_convolution(30, 3, 33),
    "convolution, groups": lambda: a_convolution(4, 5, 6, groups=2),
    "convolution, transposed": lambda: a_convolution(4, 5, 3, spread=True),
    "embedding": an_embedding,
    "embedding and output layer": a_tied_pair,
    "repeated weight": a_repeated_weight,
    "scale": a_scale,
    "shift": a_shift,
    "weight and shift": a_shared_shift_and_map,
}


def longest(uses, rows, above=1e-6):
    """The longest clipped gradient of one example over the clip norm; and which norms are exact, or little above."""
    parameters = {"w": uses[0].source.tensor}
    exact = rows.flatten(1).square().sum(1).sqrt().numpy()
    found = Gradients(parameters, EXAMPLES, uses, {})
    norms = found.squared_norms({"w": 0}).sqrt().numpy()
    bad = ~np.isfinite(norms).all(1)
    found.forget(torch.from_numpy(bad))
    worst = 0.0
    for rule in CLIPPING:
        factors = torch.from_numpy(rule.factors(norms, ERRORS[torch.float32]))
        for alone in torch.diag(factors[:, 0]):
            sums = Sums(parameters)
            found.add_to(sums, {"w": 0}, alone[:, None])
            worst = max(worst, float(sums.vector.double().norm()) / rule.clip_norm)
    right = (norms[:, 0] > exact * (1 - 1e-6) - 1e-30) & (norms[:, 0] < exact * (1 + above) + 1e-30)
    return worst, right, exact


@pytest.fixture
def kept(request, monkeypatch):
    if not request.param:
        for kind in (LinearWeight, ConvolutionWeight):
            monkeypatch.setattr(sys.modules[kind.__module__], "KEEP", 0)


@pytest.mark.parametrize("kept", [True, False], indirect=True)
@pytest.mark.parametrize("name", RULES)
def test_no_scale_escapes(name, kept):
    # Gram matrices round: that is added.
    worst, right, exact = longest(*RULES[name](), above=1e-3 if "Gram" in name else 1e-6)
    assert worst <= 1
    # A norm is exact, or its example counts as zero since it is absurd.
    sensible = (exact < 1e18) & (torch.maximum(OF_INPUT, OF_GRAD) < 1e16).numpy()
    assert sensible.sum() > EXAMPLES / 3
    assert right[sensible].all()


def squares_in_float32(rows):
    """A broken twin: right for the numbers that one usually meets."""
    return rows.reshape(len(rows), -1).square().sum(1).double()


def grams_in_float32(a, g):
    """Another one."""
    total = (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2)).double()
    return total, squares_in_float32(a), squares_in_float32(g)


@pytest.mark.parametrize("kept", [False], indirect=True)
@pytest.mark.parametrize(
    "name", ["linear", "linear, Gram matrices", "linear, large Gram matrices", "convolution, Gram matrices"]
)
def test_squares_in_float32_would_escape(name, kept, monkeypatch):
    for module in (use, *(sys.modules[kind.__module__] for kind in (LinearWeight, ConvolutionWeight))):
        monkeypatch.setattr(module, "sums_of_squares", squares_in_float32)
    monkeypatch.setattr(use.norms, "gram_norms", grams_in_float32)
    monkeypatch.setattr(use, "PRECISION", torch.inf)
    worst, _, _ = longest(*RULES[name]())
    assert worst > 1.5


def test_weights_in_float32_would_escape(monkeypatch):
    """Rounded among the smallest numbers of float32, a weight may become a third larger."""
    uses, rows = a_linear((), 20, 30)
    norm = float(rows[(OF_INPUT == 1e18) & (OF_GRAD == 1e18)].norm())
    monkeypatch.setattr(sys.modules[__name__], "CLIPPING", (Flat(2.2e-45 * norm),))
    assert longest(uses, rows)[0] <= 1
    monkeypatch.setattr("discreet.pytorch.gradients.within_range", lambda weights, kind: weights.to(kind))
    assert longest(uses, rows)[0] > 1.2


def test_weights_stay_within_the_range_of_their_type():
    weights = torch.tensor([0.0, 1e-44, 1e-20, 0.5, 1.0, 1e60], dtype=torch.float64)
    found = within_range(weights, torch.float32)
    assert found.tolist() == [0, 0, float(np.float32(1e-20)), 0.5, 1, 2.0**30]


@pytest.mark.parametrize("columns", [1, 127, 128, 600])
@pytest.mark.parametrize("measured", [squared_norms, squared_norms_by_torch])
def test_squared_norms_at_every_scale(columns, measured):
    scales = torch.cat(
        [torch.logspace(-45, 38, 84, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    )
    rows = (numbers(1, columns).clamp(-2, 2) * scales[:, None]).float()
    rows[3, 0] = 1e30  # one large number among small ones
    torch.testing.assert_close(measured(rows), rows.double().square().sum(1), rtol=1e-6, atol=0)


class Deep(nn.Module):
    """An affine map that a stranger fills, a layer in question, and a second stranger's map."""

    def __init__(self, middle, width):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, width), middle, nn.Linear(width, 1, bias=False)

    def forward(self, x):
        out = self.middle(self.first(x))
        return self.last(out[0] if isinstance(out, tuple) else out).flatten(1).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("kind", ["linear", "LSTM", "LayerNorm"])
def test_chosen_weights_do_not_break_the_bound(kind, shape, dtype):
    """Tiny activations and huge gradients in one layer, as a malicious coordinator would send them."""
    if kind == "LSTM" and len(shape) == 1:
        shape = (1, 4)
    width = 64
    layers = {
        "linear": lambda: nn.Linear(width, width, bias=False),
        "LSTM": lambda: nn.LSTM(width, width, batch_first=True),
        "LayerNorm": lambda: nn.LayerNorm(width),
    }
    model = Deep(layers[kind](), width).to(dtype)
    batch = (numbers(1, *shape).to(dtype),)
    engine = ClippedSum(model, lambda m, b: F.softplus(m(*b)), Flat(1e-4))
    ends = (-170, 170) if dtype == torch.float64 else (-40, 37)
    for small in range(ends[0], 1, 10 if dtype == torch.float32 else 40):
        for large in range(0, ends[1], 6 if dtype == torch.float32 else 24):
            with torch.no_grad():
                model.first.weight.zero_()
                model.first.bias.fill_(10.0**small)
                model.last.weight.fill_(10.0**large)
            assert engine(batch).vector.norm() <= 1e-4


def test_a_clip_norm_among_the_smallest_numbers_is_refused():
    model, batch = nn.Linear(3, 2), (numbers(2, 3).float(),)
    with pytest.raises(InvalidParameter, match="clip_norm"):
        ClippedSum(model, lambda m, b: m(*b).sum(1), Flat(1e-30))(batch)
    assert ClippedSum(model.double(), lambda m, b: m(b[0].double()).sum(1), Flat(1e-30))(batch).vector.any()
