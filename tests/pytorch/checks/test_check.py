"""The privacy type-check: models and losses that would break the guarantee are refused by name."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from discreet import InvalidParameter, Recipe
from discreet.core.clipping import Flat
from discreet.pytorch import CheckFailed, PrivateRun, check, without_batch_norm
from discreet.pytorch.checks.state_guard import StateGuard
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.layer_rules.linear import LinearWeight
from discreet.pytorch.linear_fast_path import LinearGradients
from discreet.pytorch.mapped_gradients import per_example_gradients


def batch(rows=9):
    generator = torch.Generator().manual_seed(2)
    return torch.rand(rows, 6, generator=generator), torch.randint(3, (rows,), generator=generator)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Recorded(nn.Module):
    """A custom statistic in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        self.seen += x.detach().mean(0)
        return x


class MixedBackward(nn.Module):
    """A forward pass that is in order, with gradients that are not."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.mean(0).expand_as(grad)

    def forward(self, x):
        return self.Function.apply(x)


def model(middle=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), middle or nn.Identity(), nn.Tanh(), nn.Linear(6, 3))


WEIGHTS = torch.tensor([1.0, 20.0, 3.0])


def class_weighted(model, batch):
    """F.cross_entropy(weight=...) with its mean, stretched to one number per example."""
    return functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS).expand(len(batch[1])) / len(
        batch[1]
    )


def class_weighted_rows(model, batch):
    values = functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, reduction="none")
    return values / WEIGHTS[batch[1]].sum()


def contrastive(model, batch):
    z = functional.normalize(model(batch[0]), dim=1)
    return functional.cross_entropy(z @ z.T, torch.arange(len(z)), reduction="none")


def token_mean(model, batch):
    """A language model's loss with padding, averaged over all tokens of the batch."""
    lengths = batch[1] + 1
    mask = torch.arange(6) < lengths[:, None]
    return ((model[0](batch[0]) ** 2) * mask).sum(1) / mask.sum()


def plain_mean(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("middle", "loss", "message"),
    [
        (None, plain_mean, 'one number.*reduction="none"'),
        (None, class_weighted, "the loss function mixes"),
        (
            None,
            class_weighted_rows,
            "the whole batch, as in a mean or a weighted mean|the loss function mixes",
        ),
        (Centred(), losses, r"'1' \(Centred\) mixes them"),
        (None, contrastive, "the loss function mixes them"),
        (None, token_mean, "the whole batch|the loss function mixes"),
        (nn.BatchNorm1d(6), losses, r"'1' \(BatchNorm1d\).*GroupNorm"),
        (Recorded(), losses, r"'1.seen' of '1' \(Recorded\) changes"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__ if callable(value) else "",
)
def test_refused_by_name_with_the_remedy(middle, loss, message):
    with pytest.raises(CheckFailed, match=message):
        check(model(middle), loss, batch())


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_batch_of_any_size_shows_it(rows):
    for middle, loss in ((Centred(), losses), (None, contrastive), (None, class_weighted_rows)):
        with pytest.raises(CheckFailed):
            check(model(middle), loss, batch(rows))


def test_the_weight_of_a_class_that_nobody_has_is_found():
    """Among these records all weights are 1, so the mean weight is too; a record of class 2 would change it."""

    def weighted(model, batch):
        weights = torch.tensor([1.0, 1.0, 500.0])[batch[1]]
        return losses(model, batch) * weights / weights.mean()

    x, y = batch()
    with pytest.raises(CheckFailed, match="the loss function mixes"):
        check(model(), weighted, (x, y % 2))


def test_a_mixing_layer_of_words_is_found():
    """Columns of whole numbers can only be exchanged, not scaled."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
            self.centred = Centred()

        def forward(self, words):
            return self.head(self.centred(self.embedding(words)).mean(1))

    words = torch.arange(35).reshape(5, 7) % 9
    with pytest.raises(CheckFailed, match="'centred' \\(Centred\\) mixes"):
        check(Words(), losses, (words, torch.zeros(5, dtype=torch.long)))


def test_a_trainable_tensor_outside_of_the_model_is_found():
    temperature = torch.ones(1, requires_grad=True)
    with pytest.raises(CheckFailed, match=r"shape \(1,\).*no parameter of the model"):
        check(model(), lambda m, b: losses(m, b) * temperature, batch())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, b: plain_mean(m, b).item(), "a float"),
        (lambda m, b: m(b[0]), r"shape \(4, 3\)"),
        (
            lambda m, b: losses(m, b) if len(b[1]) > 1 else losses(m, b).squeeze(),
            r"shape \(1,\); avoid squeeze",
        ),
        (lambda m, b: losses(m, (b[0].squeeze(), b[1])), "batch of one example"),
    ],
)
def test_losses_of_the_wrong_shape(loss, message):
    with pytest.raises(CheckFailed, match=message):
        check(model(), loss, batch())


def test_wrong_fast_gradients_are_found(monkeypatch):
    """The broken twin of the engine: one layer's sum is too small, or the norms are."""
    with monkeypatch.context() as broken:
        right = ClippedSum.__call__
        broken.setattr(ClippedSum, "__call__", lambda self, batch: _halved(right(self, batch)))
        with pytest.raises(CheckFailed, match=r"3\.bias"):
            check(model(), losses, batch())
    squares = LinearGradients.squared_norms
    with monkeypatch.context() as broken:
        broken.setattr(LinearGradients, "clipped_sums", lambda *_: None)
        broken.setattr(LinearGradients, "squared_norms", lambda self, blocks: squares(self, blocks) * 0.98)
        with pytest.raises(CheckFailed, match="norms"):
            check(model(), losses, batch())
    at_once = LinearGradients.clipped_sums
    monkeypatch.setattr(
        LinearGradients,
        "clipped_sums",
        lambda self, rule, error: at_once(self, Flat(1.01 * rule.clip_norm), error),
    )
    with pytest.raises(CheckFailed, match="not those"):
        check(model(), losses, batch())


def of_positions(model, batch):
    """Sequences of 128 positions: norms by inner products, to which what rounding can do to them is added."""
    return model(batch[0]).square().mean((1, 2))


def test_layers_over_many_positions_pass_though_their_norms_are_upper_bounds():
    check(
        nn.Linear(512, 256),
        of_positions,
        (torch.randn(4, 128, 512, generator=torch.Generator().manual_seed(0)),),
    )


@pytest.mark.parametrize("factor", [1 - 1e-3, 1.1])
def test_norms_that_are_too_short_or_much_too_long_are_found(factor, monkeypatch):
    """A norm that is too short costs privacy, so there is no room for it; one that is too long costs accuracy."""
    measured = LinearWeight.squared_norms
    monkeypatch.setattr(LinearWeight, "squared_norms", lambda use: factor**2 * measured(use))
    with pytest.raises(CheckFailed, match="not exact"):
        check(
            nn.Linear(6, 3, bias=False),
            lambda model, batch: model(batch[0]).square().mean((1, 2)),
            (torch.rand(4, 5, 6),),
        )


def test_a_backward_pass_that_mixes_is_worked_off_one_by_one():
    """No rule fits such a layer, so its gradients are computed for each example alone, and are exact."""
    net = model(MixedBackward())
    check(net, losses, batch())
    rows = per_example_gradients(net, losses, batch())
    for name, total in ClippedSum(net, losses, Flat(1e6))(batch()).items():
        torch.testing.assert_close(total, rows[name].sum(0), atol=1e-5, rtol=1e-4)


def _halved(sums):
    return sums | {"3.bias": sums["3.bias"] / 2}


def mixup(model, batch):
    """Every example is mixed with one that is drawn, itself perhaps."""
    partner = torch.randperm(len(batch[0]))
    return losses(model, (0.7 * batch[0] + 0.3 * batch[0][partner], batch[1]))


def negatives(model, batch):
    """Contrast with one other example, drawn at random."""
    z = model(batch[0])
    other = z[torch.randint(len(z), (len(z),))]
    return losses(model, batch) + (z * other).sum(1).square()


def anchored(model, batch):
    """One example, drawn at random, decides how much all of them count."""
    anchor = batch[0][torch.randint(len(batch[0]), (1,))]
    return losses(model, batch) * anchor.abs().sum()


def first_decides(model, batch):
    return losses(model, batch) * batch[0][:1].abs().sum()


def rarely(model, batch):
    return mixup(model, batch) if torch.rand(()) < 0.1 else losses(model, batch)


def numpy_mixup(model, batch):
    partner = torch.tensor(np.random.permutation(len(batch[0])))  # noqa: NPY002
    return losses(model, (0.7 * batch[0] + 0.3 * batch[0][partner], batch[1]))


def hardest(k):
    def kept(model, batch):
        values = losses(model, batch)
        return values * (values >= values.detach().topk(min(k, len(values))).values.min())

    return kept


def by_size(model, batch):
    return losses(model, batch) * (1.0 if len(batch[0]) < 8 else 100.0)


class CentredIfMany(nn.Module):
    def forward(self, x):
        return x - x.mean(0) if len(x) >= 8 else x


@pytest.mark.parametrize(
    "loss", [mixup, negatives, anchored, first_decides, rarely, numpy_mixup], ids=lambda loss: loss.__name__
)
@pytest.mark.parametrize("middle", [nn.Identity(), nn.Dropout(0.3)], ids=["plain", "dropout"])
def test_mixing_by_chance_is_found(loss, middle):
    with pytest.raises(CheckFailed, match="depends on the other examples"):
        check(model(middle), loss, batch(40))


def test_losses_of_the_hardest_are_found_in_any_batch():
    """Also where all are kept: one that is not a number would change who is."""
    for k in (4, 8):
        with pytest.raises(
            CheckFailed, match=r"depends on the other examples|another one in a smaller batch"
        ):
            check(model(), hardest(k), batch(4))


@pytest.mark.parametrize("loss", [hardest(4), hardest(8), by_size], ids=["4", "8", "size"])
def test_losses_that_mix_in_large_batches_only_are_found(loss):
    if loss is by_size:
        check(model(), loss, batch(4))
    with pytest.raises(CheckFailed, match=r"depends on the other examples|another one in a smaller batch"):
        check(model(), loss, batch(20))


def test_layers_that_mix_in_large_batches_only_are_found():
    check(model(CentredIfMany()), losses, batch(7))
    for layer in (CentredIfMany(), nn.Sequential(CentredIfMany(), nn.Dropout(0.2))):
        with pytest.raises(CheckFailed, match=r"\(CentredIfMany\) mixes"):
            check(model(layer), losses, batch(8))


def test_one_huge_loss_does_not_hide_the_others():
    def outlier(model, batch):
        return anchored(model, batch) * torch.where(batch[0][:, 0] > 1, 1e12, 1.0)

    x, y = batch(20)
    x[3] = 1e3
    with pytest.raises(CheckFailed, match="depends on the other examples"):
        check(model(), outlier, (x, y))


def test_a_generator_of_ones_own_is_refused_by_name():
    generator = torch.Generator().manual_seed(1)

    def augmented(model, batch):
        return losses(model, (batch[0] + torch.rand(len(batch[0]), 1, generator=generator), batch[1]))

    with pytest.raises(CheckFailed, match="global generators"):
        check(model(), augmented, batch())


class Branch(nn.Module):
    """A branch that normalises over the batch, scaled by nothing at first."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        out = self.inner(x)
        return x + self.scale * (out - out.mean(0)) / (out.std(0) + 1)


def zero_head():
    net = model(Centred())
    nn.init.zeros_(net[3].weight)
    return net


def two_zero_heads():
    net = nn.Sequential(*zero_head(), nn.Linear(3, 3))
    nn.init.zeros_(net[4].weight)
    return net


def closed():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Centred(), nn.Linear(6, 3))
    nn.init.constant_(net[0].bias, -50.0)
    return net


@pytest.mark.parametrize("net", [lambda: model(Branch()), zero_head, two_zero_heads, closed])
def test_weights_at_the_start_hide_nothing_and_stay_what_they_are(net):
    net = net()
    before = [value.detach().clone() for value in net.parameters()]
    with pytest.raises(CheckFailed, match="mixes"):
        check(net, losses, batch())
    pairs = zip(before, net.parameters(), strict=True)
    assert all(torch.equal(one.view(torch.int32), now.detach().view(torch.int32)) for one, now in pairs)


def test_weights_are_put_back_after_an_interruption():
    net, calls = model(), []
    net[0].weight.data[0, 0] = -0.0
    before = {name: value.detach().clone() for name, value in net.named_parameters()}

    def stopping(model, batch):
        calls.append(not torch.equal(before["0.weight"], model[0].weight))
        if sum(calls) == 5:
            raise KeyboardInterrupt
        return losses(model, batch)

    with pytest.raises(KeyboardInterrupt):
        check(net, stopping, batch())
    for name, value in net.named_parameters():
        assert torch.equal(before[name].view(torch.int32), value.detach().view(torch.int32))


def careful(model, batch):
    return losses(model, batch) * bool(batch[0].isfinite().all())


def scaled(model, batch):
    largest = batch[0].abs().max()
    return losses(model, (batch[0] / largest if largest > 1e4 else batch[0], batch[1]))


@pytest.mark.parametrize("loss", [careful, scaled], ids=["not finite", "huge"])
def test_care_for_one_record_that_touches_all_is_found(loss):
    with pytest.raises(CheckFailed, match="depends on the other examples"):
        check(model(), loss, batch())


def test_losses_that_remember_are_refused():
    queue = []

    def contrast(model, batch):
        z, earlier = model(batch[0]), list(queue)
        queue[:] = [z.detach().mean(0)]
        return losses(model, batch) + sum(((z - other).square().sum(1) for other in earlier), torch.zeros(()))

    with pytest.raises(CheckFailed, match="remember"):
        check(model(), contrast, batch())


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.logit_scale.exp()


class Cosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return functional.linear(functional.normalize(x), functional.normalize(self.weight))


class Fourier(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real


class InFloat(nn.Module):
    def forward(self, x):
        return x.float().softmax(-1).double()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [Temperature, Cosine, Fourier])
def test_honest_models_pass(middle, seed):
    torch.manual_seed(seed)
    check(model(middle()), losses, batch())


def test_float32_inside_of_float64_passes():
    check(model(InFloat()).double(), losses, (batch()[0].double(), batch()[1]))


def test_functions_of_functions_pass():
    def mapped(model, batch):
        return torch.func.vmap(lambda x, y: functional.cross_entropy(model(x[None]), y[None]))(*batch)

    def penalised(model, batch):
        slopes = torch.func.vmap(torch.func.jacrev(lambda x: model(x[None])[0]))(batch[0])
        return losses(model, batch) + slopes.square().sum((1, 2))

    check(model(), mapped, batch())
    check(model(), penalised, batch())


def test_texts_without_words_pass():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, words):
            return self.head(self.embedding(words).sum(1))

    check(Words(), losses, (torch.zeros(9, 0, dtype=torch.long), batch()[1]))


class Cliff(nn.Module):
    """A step that rounding decides: the sum of a batch of one is formed in another order."""

    def __init__(self, width, height=1e-3):
        super().__init__()
        self.width, self.height = width, height

    def forward(self, x):
        noise = 0.0 if x.dtype == torch.float64 or len(x) > 1 else 1e-6
        return x + (x.detach() * 0 + noise > self.width / 2).to(x.dtype) * self.height


def test_a_difference_in_float32_must_persist_in_float64():
    """A layer that rounding turns a little passes; the broken twins turn much, or in float64 as well."""
    check(model(Cliff(1e-6)), losses, batch())
    with pytest.raises(CheckFailed, match="Rounding errors of float32 grow"):
        check(model(Cliff(1e-6, height=0.3)), losses, batch())
    with pytest.raises(CheckFailed):
        check(
            model(Cliff(1e-6)).double(),
            lambda m, b: losses(m, b) * len(b[0]),
            (batch()[0].double(), batch()[1]),
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (lambda: torch.jit.script(nn.Linear(6, 6)), "before torch.jit"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), "spectral norm"),
        (lambda: Again(True), "use_reentrant=False"),
    ],
    ids=["scripted", "spectral norm", "reentrant"],
)
def test_refused_in_one_sentence(middle, message):
    with pytest.raises(CheckFailed, match=message):
        check(model(middle()), losses, batch())


class Again(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = nn.Linear(6, 6), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def test_what_the_sentences_advise_passes():
    check(model(Again(False)), losses, batch())
    normalised = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    normalised.parametrizations.eval()
    check(model(normalised), losses, batch())


def test_nested_tensors_are_refused_in_one_sentence():
    nested = torch.nested.nested_tensor([torch.rand(2, 6), torch.rand(3, 6)], layout=torch.jagged)
    with pytest.raises(InvalidParameter, match="pad nested ones"):
        check(model(), losses, (nested, batch(2)[1]))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.Embedding(9, 6, max_norm=1.0), r"'1' \(Embedding\) rescales.*max_norm=None"),
        (lambda: nn.EmbeddingBag(9, 6, max_norm=1.0), r"'1' \(EmbeddingBag\) rescales"),
        (lambda: nn.Embedding(9, 6, sparse=True), r"'1' \(Embedding\) has sparse.*sparse=False"),
        (lambda: nn.LazyLinear(6), r"'1\.weight' has no shape yet"),
        (lambda: nn.Linear(6, 6, dtype=torch.complex64), r"'1\.weight' is complex"),
        (
            lambda: torch.compile(nn.Linear(6, 6), backend="eager"),
            r"'1' \(OptimizedModule\) was compiled.*before",
        ),
        (lambda: nn.BatchNorm1d(6), r"'1' \(BatchNorm1d\) normalises"),
    ],
    ids=["max_norm", "bag", "sparse", "lazy", "complex", "compiled", "batch norm"],
)
def test_refused_when_the_run_is_made(layer, message):
    net = nn.Sequential(nn.Linear(6, 6), layer())
    plan = Recipe(records=9, steps=2, sampling="full-batch").with_noise(2.0, delta=1e-3)
    with pytest.raises(CheckFailed, match=message):
        PrivateRun(plan, net, torch.optim.SGD(net[0].parameters(), lr=1), losses)


def test_a_layer_compiled_in_place_is_refused():
    net = model()
    net[3].compile(backend="eager")
    with pytest.raises(CheckFailed, match=r"'3' \(Linear\) was compiled"):
        check(net, losses, batch())


def test_trained_weights_that_the_forward_pass_writes_are_refused_and_put_back():
    class Clamped(nn.Linear):
        def forward(self, x):
            self.weight.data.clamp_(max=float(x.detach().abs().mean()) / 9)
            return super().forward(x)

    net = model(Clamped(6, 6))
    before = net[1].weight.detach().clone()
    with pytest.raises(CheckFailed, match=r"parameter '1\.weight' of '1' \(Clamped\) changes"):
        check(net, losses, batch())
    assert torch.equal(before, net[1].weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("size", [3, 40_001])
def test_every_change_of_contents_is_noticed(dtype, size):
    layer = nn.Module()
    layer.register_buffer("kept", torch.arange(size + 1).to(dtype)[1:])
    layer.register_buffer("other", torch.zeros(2))
    watch = StateGuard(layer)
    assert watch.changed_tensor() is None
    for change in (lambda x: x[:1].logical_not_(), lambda x: x[-1:].logical_not_()):
        change(layer.kept.data)
        assert watch.changed_tensor() == "kept"
        watch.refresh()
    swapped = layer.kept.data[[0, size // 2]].flip(0)
    if not torch.equal(swapped, swapped.flip(0)):
        layer.kept.data[[0, size // 2]] = swapped
        assert watch.changed_tensor() == "kept"


ORDERLY = [
    nn.Dropout(0.5),
    nn.LayerNorm(6),
    nn.GroupNorm(2, 6),
    nn.Sequential(nn.Unflatten(1, (2, 3)), nn.LSTM(3, 3, batch_first=True)),
    nn.BatchNorm1d(6).eval(),
    nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.TransformerEncoderLayer(3, 1, 5, batch_first=True), nn.Flatten()
    ),
]


class First(nn.Module):
    def forward(self, x):
        return (x[0] if isinstance(x, tuple) else x).flatten(1)


@pytest.mark.parametrize("layer", ORDERLY, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("rows", [1, 9])
def test_orderly_models_pass(layer, rows):
    check(model(nn.Sequential(layer, First())), losses, batch(rows))


def test_orderly_losses_pass():
    def weighted(model, batch):
        return losses(model, batch) * WEIGHTS[batch[1]]

    def probabilities(model, batch):  # targets within 0 and 1 have to stay there
        chance = model(batch[0]).sigmoid()[:, 0]
        return functional.binary_cross_entropy(chance, batch[0][:, 0], reduction="none")

    check(model(), weighted, batch())
    check(model(), probabilities, batch())
    check(model().double(), losses, (batch()[0].double(), batch()[1]))


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand,
        lambda n: torch.tensor(np.random.rand(n)),  # noqa: NPY002
        lambda n: torch.tensor([random.random() for _ in range(n)]),
    ],
)
def test_augmentation_inside_the_losses_passes_whatever_it_draws_from(draw):
    def augmented(model, batch):
        shift = draw(len(batch[0])).float()[:, None]
        return losses(model, (batch[0] + shift, batch[1]))

    check(model(), augmented, batch())
    with pytest.raises(CheckFailed, match="Centred"):
        check(model(Centred()), augmented, batch())


def test_losses_with_gradients_of_their_own_pass():
    """A gradient penalty: the losses differentiate the model by themselves."""

    def penalised(model, batch):
        x = batch[0].clone().requires_grad_(True)
        (slopes,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return losses(model, batch) + slopes.square().sum(1)

    check(model(), penalised, batch())


def test_reduced_precision_passes():
    def autocast(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return losses(model, batch).float()

    check(model(), autocast, batch())
    check(model().bfloat16(), losses, (batch()[0].bfloat16(), batch()[1]))


def test_nan_in_the_batch_passes():
    x, y = batch()
    check(model(), losses, (torch.full_like(x, torch.nan), y))


def test_the_check_leaves_no_trace():
    net = model(nn.Sequential(nn.Dropout(0.5), Recorded()))
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(CheckFailed):
        check(net, losses, batch())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert all(module.training for module in net.modules())
    assert all(p.grad is None for p in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


def test_no_message_holds_a_value():
    x, y = batch()
    x = x * 0 + 12345.678
    for middle, loss in (
        (Centred(), losses),
        (None, contrastive),
        (Recorded(), losses),
    ):
        with pytest.raises(CheckFailed) as refusal:
            check(model(middle), loss, (x + torch.rand(9, 1), y))
        assert "123" not in str(refusal.value)


def test_the_first_step_checks_and_refuses_before_it_pays():
    net = model(Centred())
    plan = Recipe(records=9, steps=2, sampling="full-batch").with_noise(2.0, delta=1e-3)
    run = PrivateRun(plan, net, torch.optim.SGD(net.parameters(), lr=1), losses)
    before = net[0].weight.detach().clone()
    drawn = next(run.batches(batch()))
    with pytest.raises(CheckFailed, match="Centred"):
        run.step(drawn)
    assert torch.equal(before, net[0].weight)
    assert run.steps_taken == 0


def test_the_check_is_cheap():
    """Batches of their own size are tried five times and a half, and everything else takes a few examples."""
    calls = []

    def counted(model, batch):
        calls.append(len(batch[0]))
        return losses(model, batch)

    check(model(), counted, batch(500))
    assert sum(calls) <= 5.5 * 500 + 280
    assert len(calls) <= 80


def test_batch_norm_is_repaired():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    )
    with torch.no_grad():
        net[1].weight.fill_(2.0)
    images = (torch.rand(8, 3, 4, 4), torch.arange(8) % 3)
    with pytest.raises(CheckFailed, match="without_batch_norm"):
        check(net, losses, images)
    repaired = without_batch_norm(net)
    check(repaired, losses, images)
    assert isinstance(net[1], nn.BatchNorm2d)
    assert repaired[1].weight.tolist() == [2.0] * 16
    assert (repaired[1].num_groups, repaired[4].num_groups) == (4, 1)
    assert repaired[4](torch.rand(2, 6)).abs().min() > 0  # something is left to normalise
    names = [name for name, _ in net.named_parameters()]
    assert [name for name, _ in repaired.named_parameters()] == names


def test_instance_norm_loses_its_statistics():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Flatten()
    )
    images = (torch.rand(8, 3, 4, 4), torch.arange(8) % 3)
    with pytest.raises(CheckFailed, match="running"):
        check(net, losses, images)
    check(without_batch_norm(net), losses, images)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(InvalidParameter, match="parameter"):
        check(nn.Flatten(), losses, batch())


def test_the_check_frees_what_it_made():
    """Also where a node saves its own output, which a careless hook on saved tensors keeps for ever."""
    made = []

    class Softly(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            out = self.inner(x).sigmoid()
            made.append(weakref.ref(out))
            return out

    check(Softly(), lambda model, batch: model(*batch).sum(1), (torch.randn(6, 3),))
    gc.collect()
    assert len(made) > 5
    assert all(reference() is None for reference in made)
