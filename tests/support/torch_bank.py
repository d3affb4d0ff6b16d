"""Small models of every kind that the one-backward engine claims to cover, each with a batch and its losses."""

import copy
import math
import warnings
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

EXAMPLES, TIME, WIDTH, CLASSES, WORDS = 5, 6, 8, 3, 11


def numbers(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def choices(high, *shape, seed=2):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def cross_entropy(model, batch):
    x, y = batch
    out = model(x)
    return F.cross_entropy(out, y, reduction="none") if y.ndim == 1 else _per_token(out, y)


def _per_token(out, y):
    return F.cross_entropy(out.transpose(1, 2), y, reduction="none").mean(1)


class Through(nn.Module):
    """Words (or vectors) through a body into class scores, averaged over time."""

    def __init__(self, body, width=WIDTH, words=True):
        super().__init__()
        self.look_up = nn.Embedding(WORDS, WIDTH, padding_idx=0) if words else nn.Identity()
        self.body = body
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        out = self.body(self.look_up(x))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class Forward(nn.Module):
    """A module from parameters and a function."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def parameter(*shape, seed=3):
    return nn.Parameter(numbers(*shape, seed=seed).float() / math.sqrt(WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.words(x) + self.places(torch.arange(x.shape[1])))))


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = parameter(base.in_features, rank), parameter(rank, base.out_features, seed=4)

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b * 0.5


class WithToken(nn.Module):
    """The start of a vision transformer."""

    def __init__(self):
        super().__init__()
        self.token, self.places = parameter(1, 1, WIDTH), parameter(1, 2 * TIME, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.body(x + self.places[:, : x.shape[1]])


class Attend(nn.Module):
    """Self-attention or attention to something else, time first or not."""

    def __init__(self, same, batch_first, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first, **options)
        self.same, self.batch_first = same, batch_first

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        y = x if self.same else x.flip(-1)
        out = self.attention(x, y, y, need_weights=not self.same)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Folded(nn.Module):
    """Examples and time as one dimension, in either order."""

    def __init__(self, time_outside):
        super().__init__()
        self.layer, self.norm, self.time_outside = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), time_outside

    def forward(self, x):
        x = x.transpose(0, 1) if self.time_outside else x
        out = self.norm(self.layer(x.reshape(-1, WIDTH))).tanh().view(x.shape)
        return out.transpose(0, 1) if self.time_outside else out


def sorted_by_content(self, x):
    """The examples change places inside of the model: their layout depends on the data."""
    order = x[:, 0].argsort()
    return self.b(self.a(x[order]).tanh()[order.argsort()])


def masked_weight(self, x):
    weight = self.a.weight.clone()
    weight[0] = 0
    return self.b(F.linear(x, weight, self.a.bias).tanh())


def frozen(model, *names):
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def images(channels, dims, size=7):
    return numbers(EXAMPLES, channels, *(size,) * dims)


def convolution(layer, x, *more):
    model = nn.Sequential(layer, nn.Tanh(), *more, nn.Flatten(), nn.LazyLinear(CLASSES))
    with warnings.catch_warnings():  # torch says once that padding an even kernel evenly costs a copy
        warnings.simplefilter("ignore")
        model(x.float())  # tells the last layer its width
    return model


def _bank():
    """Name -> (model, input); targets are drawn to fit."""
    vectors, sequences = numbers(EXAMPLES, WIDTH), numbers(EXAMPLES, TIME, WIDTH)
    words, times = choices(WORDS, EXAMPLES, TIME), numbers(EXAMPLES, 3, TIME, WIDTH)
    conv1, conv2, conv3 = images(2, 1, 9), images(4, 2), images(2, 3, 5)
    shared, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    yield "linear", head, vectors
    yield "linear without bias", nn.Linear(WIDTH, CLASSES, bias=False), vectors
    yield "mlp, in-place", nn.Sequential(nn.Linear(8, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)), vectors
    yield (
        "mlp, only biases",
        frozen(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)), "0.weight", "2.weight"),
        vectors,
    )
    yield (
        "mlp, frozen start",
        frozen(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)), "0.weight", "0.bias"),
        vectors,
    )
    yield "linear over time", Through(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), words=False), sequences
    yield (
        "linear over two dimensions",
        Forward(lambda s, x: s.b(s.a(x).tanh().mean((1, 2))), a=nn.Linear(8, 8), b=nn.Linear(8, 3)),
        times,
    )
    yield "used twice", Forward(lambda s, x: s.b(s.a(s.a(x).tanh())), a=shared, b=nn.Linear(8, 3)), vectors
    yield (
        "used at two lengths",
        Forward(lambda s, x: s.b(s.a(s.a(x).tanh().mean(1))), a=nn.Linear(8, 8), b=nn.Linear(8, 3)),
        sequences,
    )
    yield (
        "transposed twin",
        Forward(
            lambda s, x: s.b(F.linear(s.a(x).tanh(), s.a.weight.t())), a=nn.Linear(8, 5), b=nn.Linear(8, 3)
        ),
        vectors,
    )
    yield "matmul and add", Forward(lambda s, x: x @ s.w + s.b, w=parameter(8, 3), b=parameter(3)), vectors
    yield "addmm", Forward(lambda s, x: torch.addmm(s.b, x, s.w), w=parameter(8, 3), b=parameter(3)), vectors
    yield (
        "scales",
        Forward(
            lambda s, x: s.h(s.one * (s.w * x) - s.b),
            h=nn.Linear(8, 3),
            w=parameter(8),
            b=parameter(1, 8),
            one=parameter(),
        ),
        vectors,
    )
    yield (
        "function of a parameter",
        Forward(lambda s, x: s.h(x * s.w.exp() + F.softplus(s.w)), h=nn.Linear(8, 3), w=parameter(8)),
        vectors,
    )
    yield (
        "weight norm",
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), nn.Tanh(), nn.Linear(6, 3)),
        vectors,
    )
    yield "bilinear", Forward(lambda s, x: s.b(x, s.a(x)), a=nn.Linear(8, 8), b=nn.Bilinear(8, 8, 3)), vectors
    yield "PReLU", nn.Sequential(nn.Linear(8, 6), nn.PReLU(6), nn.Linear(6, 3)), vectors
    yield (
        "einsum",
        Forward(lambda s, x: s.h(torch.einsum("bi,ij->bj", x, s.w)), h=nn.Linear(5, 3), w=parameter(8, 5)),
        vectors,
    )
    yield "unused parameter", Forward(lambda s, x: s.h(x), h=nn.Linear(8, 3), extra=parameter(4)), vectors
    yield "conv1d", convolution(nn.Conv1d(2, 4, 3, padding=1), conv1), conv1
    yield "conv1d reflected", convolution(nn.Conv1d(2, 4, 4, padding=2, padding_mode="reflect"), conv1), conv1
    yield "conv2d stride", convolution(nn.Conv2d(4, 4, (3, 2), stride=2, padding=(1, 0)), conv2), conv2
    yield "conv2d same", convolution(nn.Conv2d(4, 3, (4, 3), padding="same", dilation=(1, 2)), conv2), conv2
    yield "conv2d groups", convolution(nn.Conv2d(4, 6, 3, groups=2, bias=False), conv2), conv2
    yield (
        "conv2d depthwise circular",
        convolution(nn.Conv2d(4, 8, 3, groups=4, padding=1, padding_mode="circular"), conv2),
        conv2,
    )
    yield "conv2d 1x1", convolution(nn.Conv2d(4, 6, 1), conv2, nn.MaxPool2d(2)), conv2
    yield "conv3d", convolution(nn.Conv3d(2, 3, 3, stride=(1, 2, 1), dilation=(2, 1, 1)), conv3), conv3
    yield (
        "conv transposed",
        convolution(nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), conv2),
        conv2,
    )
    yield (
        "conv used twice",
        convolution(nn.Sequential(one := nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), one), conv2),
        conv2,
    )
    yield (
        "video frames folded",
        Forward(
            lambda s, x: s.h(s.c(x.flatten(0, 1)[:, None]).tanh().view(len(x), -1)),
            c=nn.Conv2d(1, 2, 3),
            h=nn.Linear(3 * 2 * 24, 3),
        ),
        times,
    )
    yield (
        "resnet",
        convolution(
            nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(True), nn.Conv2d(6, 6, 3)),
            conv2,
            nn.InstanceNorm2d(6, affine=True),
        ),
        conv2,
    )
    yield "layer norm", nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)), vectors
    yield "layer norm 2-d", nn.Sequential(nn.LayerNorm((TIME, 8)), nn.Flatten(), nn.Linear(48, 3)), sequences
    yield "RMS norm", Through(nn.RMSNorm(8), words=False), sequences
    yield "group norm 1-d", Through(nn.GroupNorm(2, TIME), words=False), sequences
    yield "embedding", Through(nn.Identity()), words
    yield (
        "embedding bag",
        Forward(lambda s, x: s.h(s.e(x)), e=nn.EmbeddingBag(WORDS, 8), h=nn.Linear(8, 3)),
        words,
    )
    yield "LSTM", Through(nn.LSTM(8, 8, batch_first=True)), words
    yield "LSTM compiled", Through(nn.LSTM(8, 32, 2, batch_first=True, bidirectional=True), 64), words
    yield "LSTM deep, both ways", Through(nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True)), words
    yield "LSTM projected", Through(nn.LSTM(8, 6, batch_first=True, proj_size=4), 4), words
    yield "GRU", Through(nn.GRU(8, 8, 2, batch_first=True, bias=False)), words
    yield "RNN", Through(nn.RNN(8, 8, batch_first=True, nonlinearity="relu")), words
    yield (
        "LSTM cell",
        Forward(lambda s, x: s.h(s.c(x[:, 1], s.c(x[:, 0]))[0]), c=nn.LSTMCell(8, 8), h=head),
        sequences,
    )
    yield (
        "LSTM time first",
        Forward(lambda s, x: s.h(s.r(x.transpose(0, 1))[0][-1]), r=nn.LSTM(8, 8), h=head),
        sequences,
    )
    yield (
        "GRU cell",
        Forward(lambda s, x: s.h(s.c(x[:, 1], s.c(x[:, 0]))), c=nn.GRUCell(8, 8), h=head),
        sequences,
    )
    yield "attention", Through(Attend(True, True)), words
    yield "attention time first", Through(Attend(True, False, add_bias_kv=True)), words
    yield "attention to other", Through(Attend(False, True, bias=False)), words
    yield "attention of other width", Through(Attend(False, False, kdim=WIDTH, vdim=WIDTH)), words
    yield (
        "transformer layer",
        Through(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        words,
    )
    yield "vision transformer", Through(WithToken(), words=False), sequences
    yield "GPT", GPT(tied=False), words
    yield "GPT tied", GPT(tied=True), words
    yield (
        "LoRA",
        Forward(lambda s, x: s.b(s.a(x).tanh()), a=LoRA(nn.Linear(8, 6)), b=LoRA(nn.Linear(6, 3))),
        vectors,
    )
    yield "sorted by content", Forward(sorted_by_content, a=nn.Linear(8, 8), b=nn.Linear(8, 3)), vectors
    yield "weight changed in place", Forward(masked_weight, a=nn.Linear(8, 8), b=nn.Linear(8, 3)), vectors
    yield "folded", Through(Folded(False), words=False), sequences
    yield "folded, time outside", Through(Folded(True), words=False), sequences
    yield "one by one", Forward(lambda s, x: torch.stack([s.h(row) for row in x]), h=nn.Linear(8, 3)), vectors
    yield (
        "depends on the data",
        Forward(lambda s, x: s.h(x) if float(x.sum()) < 99 else s.h(2 * x), h=nn.Linear(8, 3)),
        vectors,
    )


@cache
def bank():
    torch.manual_seed(0)
    return {name: (model, x) for name, model, x in _bank()}


def problem(name, dtype=torch.float32):
    """The model and the batch of that name, in ``dtype``."""
    model, x = bank()[name]
    y = x if name.startswith("GPT") else choices(CLASSES, EXAMPLES, seed=4)
    return copy.deepcopy(model).to(dtype), ((x.to(dtype) if x.is_floating_point() else x), y)


NAMES = sorted(bank())
