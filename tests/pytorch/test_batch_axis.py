"""Who owns which rows: every rule against the gradients of single losses, and what mixes must not be owned."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from discreet.pytorch import graph_rules
from discreet.pytorch.batch_axis import BatchAxes, place_of
from discreet.pytorch.graph_rules import MIXED, SHARED, RowLayout, elementwise

B, T, D = 3, 4, 6
INDEX = torch.tensor([2, 0, 1])
LONG = torch.tensor([[1, 0, 2, 1], [0, 0, 3, 2], [3, 1, 1, 0]])


def sum_of_each(out):
    """One loss per example from a tensor with the examples first, by weights that cancel nowhere."""
    weights = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(
        out.dtype
    )
    return (out.abs() if out.is_complex() else out).mul(weights.real).reshape(len(out), -1).sum(1)


def owned(function, shape=(B, T, D)):
    """The run found for the input, and the gradient of each loss by it."""
    start = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    inner = start.requires_grad_() * 1.0
    losses = sum_of_each(function(inner))
    owners = BatchAxes(losses)
    alone = [torch.autograd.grad(loss, inner, retain_graph=True, allow_unused=True)[0] for loss in losses]
    return owners.run_of(place_of(inner)), [torch.zeros_like(inner) if g is None else g for g in alone]


def belongs(run, shape, count=B):
    """For each element the number of its example."""
    return (
        torch.arange(torch.Size(shape).numel()).div(run, rounding_mode="floor").remainder(count).view(shape)
    )


def strays(run, alone):
    """Whether a loss reaches an element of another example."""
    owner = belongs(run, alone[0].shape, len(alone))
    return any(bool((grad[owner != place] != 0).any()) for place, grad in enumerate(alone))


APART = {
    "relu": F.relu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "power": lambda x: x**1.5,
    "exp log": lambda x: x.exp().log1p(),
    "clamp": lambda x: x.clamp(0.3, 0.8),
    "where": lambda x: torch.where(x > 0.5, x, 2 * x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "masked fill": lambda x: x.masked_fill(x > 0.5, 0.0),
    "to float": lambda x: x.float(),
    "broadcast": lambda x: x * torch.rand(T, 1, dtype=x.dtype) + x[:, :1],
    "broadcast columns": lambda x: x + x[:, :, :1],
    "sum": lambda x: x.sum(1),
    "sum, kept": lambda x: x.sum((1, 2), keepdim=True),
    "mean last": lambda x: x.mean(-1),
    "maximum": lambda x: x.max(1)[0],
    "amax": lambda x: x.amax((1, 2)),
    "logsumexp": lambda x: x.logsumexp(2),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((1, 2)),
    "norm": lambda x: x.norm(dim=2),
    "normalise": lambda x: F.normalize(x, dim=1),
    "prod": lambda x: x.prod(1),
    "median": lambda x: x.median(1)[0],
    "softmax": lambda x: x.softmax(-1),
    "safe softmax": lambda x: torch.ops.aten._safe_softmax(x, -1),
    "with nothing": lambda x: torch.cat([x[:, :, :2].exp(), x[:, :, 2:2].exp(), x[:, :, 3:]], -1),
    "sum of nothing": lambda x: x + x[:, 1:1].exp().sum(1, keepdim=True),
    "log softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 2)[0],
    "flip time": lambda x: x.flip(1),
    "roll time": lambda x: x.roll(1, 1),
    "glu": lambda x: F.glu(x, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "slice": lambda x: x[:, 1:3],
    "all of it": lambda x: x[:],
    "select": lambda x: x[:, -1],
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    "chunk": lambda x: x.chunk(3, -1)[1],
    "unbind time": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "cat": lambda x: torch.cat([x, 2 * x], 2),
    "gather": lambda x: x.gather(1, LONG[:, :, None].expand(B, T, D)),
    "index time": lambda x: x[:, torch.tensor([3, 0, 0])],
    "last token": lambda x: x[torch.arange(B), torch.tensor([3, 1, 0])],
    "index select": lambda x: x.index_select(1, torch.tensor([1, 1])),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, LONG[:, :, None].expand(B, T, D), x),
    "take": lambda x: torch.take_along_dim(x, LONG[:, :, None], 1),
    "own rows in place": lambda x: x[torch.arange(B)],
    "transpose twice": lambda x: x.transpose(0, 1).exp().transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1).sin().permute(1, 0, 2),
    "mT": lambda x: x.mT.exp(),
    "fold time": lambda x: x.reshape(B * T, D).exp().view(B, -1),
    "fold time first": lambda x: x.transpose(0, 1).reshape(T * B, D).exp().view(T, B, D).transpose(0, 1),
    "unsqueeze": lambda x: x[:, None].squeeze(1),
    "expand": lambda x: x[:, :1].expand(B, T, D),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "interleave": lambda x: x.repeat_interleave(2, 1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "tril": lambda x: x.tril(),
    "matmul": lambda x: x @ torch.rand(D, 2, dtype=x.dtype),
    "linear": lambda x: F.linear(x, torch.rand(2, D, dtype=x.dtype), torch.rand(2, dtype=x.dtype)),
    "bmm": lambda x: x @ x.mT,
    "vector": lambda x: x[:, 0] @ torch.rand(D, dtype=x.dtype),
    "einsum": lambda x: torch.einsum("btd,bsd->bts", x, x),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :T], x, x.mT),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "attention by hand": lambda x: (x @ x.mT).softmax(-1) @ x,
    "heads": lambda x: F.scaled_dot_product_attention(
        *[x.view(B, T, 2, 3).transpose(1, 2)] * 3, is_causal=True
    ),
    "layer norm": lambda x: F.layer_norm(x, (D,)),
    "rms norm": lambda x: F.rms_norm(x, (D,)),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": F.instance_norm,
    "batch norm in evaluation": lambda x: F.batch_norm(x, torch.zeros(T).double(), torch.ones(T).double()),
    "conv": lambda x: F.conv1d(x, torch.rand(2, T, 3, dtype=x.dtype)),
    "transposed conv": lambda x: F.conv_transpose1d(x, torch.rand(T, 2, 3, dtype=x.dtype)),
    "max pool": lambda x: F.max_pool1d(x, 2),
    "max pool 2d": lambda x: F.max_pool2d(x[:, None], 2),
    "mean pool": lambda x: F.avg_pool2d(x[:, None], 2),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[:, None], 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "pixels": lambda x: F.pixel_shuffle(x.view(B, 4, 2, 3), 2),
    "bilinear pixels": lambda x: F.interpolate(x[:, None], scale_factor=2.0, mode="bilinear"),
    "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "patches": lambda x: F.unfold(x[:, None], 2),
    "fft": lambda x: torch.fft.fft(x).real,
    "rfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "complex": lambda x: torch.view_as_real(
        torch.view_as_complex(x.view(B, T, 3, 2).contiguous()) * (1 + 2j)
    ),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(B, D, dtype=torch.long), reduction="none"),
    "class entropy": lambda x: F.cross_entropy(
        x[:, 0], torch.zeros(B, dtype=torch.long), reduction="none", label_smoothing=0.1
    )[:, None],
    "squares": lambda x: F.mse_loss(x, x.detach() * 2, reduction="none"),
    "binary": lambda x: F.binary_cross_entropy_with_logits(x, x.detach(), reduction="none"),
    "ctc": lambda x: F.ctc_loss(
        x.transpose(0, 1).log_softmax(-1),
        torch.ones(B, 2, dtype=torch.long),
        torch.full((B,), T),
        torch.full((B,), 2),
        reduction="none",
    )[:, None],
    "checkpoint": lambda x: checkpoint(lambda t: (t @ t.mT).relu(), x, use_reentrant=False),
    "in place": lambda x: (x + 1).mul_(2).relu_(),
}

MIXING = {
    "mean over examples": lambda x: x - x.mean(0),
    "cumsum over examples": lambda x: x.cumsum(0),
    "sorted": lambda x: x[x[:, 0, 0].argsort()],
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "index": lambda x: x[INDEX],
    "index select": lambda x: x.index_select(0, INDEX),
    "gather": lambda x: x.gather(0, INDEX[:, None, None].expand(B, T, D)),
    "softmax over examples": lambda x: x.softmax(0),
    "safe softmax over examples": lambda x: torch.ops.aten._safe_softmax(x, 0),
    "flat softmax": lambda x: x.flatten().softmax(0).view(x.shape),
    "similarity": lambda x: x[:, 0] @ x[:, 0].T,
    "distances": lambda x: torch.cdist(x[:, 0], x[:, 0]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "attention over examples": lambda x: F.scaled_dot_product_attention(*[x.transpose(0, 1)[:, None]] * 3)[
        :, 0
    ].transpose(0, 1),
    "mask": lambda x: x[x > x.median()].sum() * x,
    "masked rows": lambda x: torch.zeros_like(x).masked_scatter(LONG[:, :, None].expand(B, T, D) > 1, x),
    "shifted by padding": lambda x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "layer norm over all": lambda x: F.layer_norm(x, (B, T, D)),
    "permutation": lambda x: torch.einsum("ab,bcd->acd", torch.eye(B, dtype=x.dtype)[INDEX], x),
    "slice and pad": lambda x: torch.cat([x[1:], x[:1]]),
    "assigned": lambda x: torch.zeros_like(x).index_put((INDEX,), x),
    "conv over examples": lambda x: F.conv1d(
        x.permute(2, 1, 0), torch.rand(T, T, 3, dtype=x.dtype), padding=1
    ).permute(2, 1, 0),
    "maximum of all": lambda x: x / x.max(),
    "norm of all": lambda x: x / x.norm(),
    "fold the other way": lambda x: x.transpose(0, 1).reshape(B, T, D),
    "repeat": lambda x: x[:1].repeat(B, 1, 1) + 0 * x,
    "unbind": lambda x: torch.stack([x[1], x[0], x[2]]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", APART)
def test_what_keeps_examples_apart_is_owned(name):
    run, alone = owned(APART[name])
    assert run > 0
    assert not strays(run, alone)


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_is_not_owned(name):
    run, alone = owned(MIXING[name])
    assert run in (SHARED, MIXED)
    assert strays(T * D, alone), "a test that cannot fail"


@pytest.mark.parametrize("name", ["flip", "index", "softmax over examples", "fold the other way"])
def test_a_wrong_rule_would_show(name, monkeypatch):
    """The broken twin: everything is taken for an operation on each element."""
    monkeypatch.setattr("discreet.pytorch.batch_axis.rule_of", lambda kind: _careless)
    run, alone = owned(MIXING[name])
    assert run > 0
    assert strays(run, alone)


def _careless(node, rows, edge, shape):
    return rows.run


def test_a_square_batch_is_no_excuse():
    """Time as long as the batch: shapes alone cannot tell what is what."""
    run, alone = owned(lambda x: x + x[0], (B, B, D))
    assert run == MIXED
    run, alone = owned(lambda x: (x @ x.mT).softmax(1), (B, B, B))
    assert run > 0
    assert not strays(run, alone)


def test_channels_of_batch_norm_in_evaluation_are_not_trusted():
    """PyTorch's backward pass reads them in the wrong order if the gradient is not laid out as the input was."""

    def normed_heads(x):
        heads = F.batch_norm(x.view(1, B, T, 1), torch.zeros(B).double(), torch.ones(B).double())
        return F.scaled_dot_product_attention(heads, heads, heads).view(B, T)

    run, _ = owned(normed_heads, (B, T))
    assert run == MIXED


def test_weights_are_shared():
    weight = torch.rand(D, D, requires_grad=True).exp()
    losses = (torch.rand(B, T, D) @ weight.t()).sum((1, 2))
    owners = BatchAxes(losses)
    assert owners.run_of(place_of(weight)) == SHARED
    assert not owners.mixes


def test_functions_in_python_are_not_known_by_their_name():
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.flip(0)

        @staticmethod
        def backward(ctx, grad):
            return grad.flip(0)

    run, alone = owned(Relu.apply)
    assert run == MIXED
    assert strays(T * D, alone)


def test_functions_in_python_may_make_something_of_nothing():
    class Trick(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:0]

        @staticmethod
        def backward(ctx, grad):
            return torch.ones(B, T, D)

    run, _ = owned(lambda x: x + Trick.apply(x).sum())
    assert run == MIXED


def test_a_function_of_ones_own_can_be_declared(monkeypatch):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    graph_rules.rule_of.cache_clear()
    monkeypatch.setattr(graph_rules, "_OWN", dict(graph_rules._OWN))
    graph_rules.add_rule(Double, elementwise)
    run, alone = owned(Double.apply)
    graph_rules.rule_of.cache_clear()
    assert run > 0
    assert not strays(run, alone)


@pytest.mark.parametrize(
    ("shape", "run", "expected"),
    [
        ((5, 4), 4, (0, 1, 1)), ((4, 5), 1, (1, 1, 1)), ((20, 3), 12, (0, 1, 4)), ((20, 3), 3, (0, 4, 1)),
        ((4, 5, 3), 3, (1, 1, 1)), ((5, 5), 5, (0, 1, 1)), ((5, 5), 1, (1, 1, 1)), ((2, 3), 1, None), ((), 1, None),
    ],
)  # fmt: skip
def test_location(shape, run, expected):
    assert RowLayout(shape, run, 5).location() == expected


def test_examples_over_two_dimensions_have_no_place():
    assert RowLayout((2, 3, 4), 4, 6).location() is None


def test_nothing_is_owned_behind_a_module_that_mixes():
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, 1))
    losses = model(torch.rand(B, D)).squeeze(1)
    assert BatchAxes(losses).mixes
