"""The one-backward engine as a whole: what it promises about batches, models and bad input."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from discreet.core.clipping import Flat, Normalised, PerBlock
from discreet.errors import InvalidParameter
from discreet.pytorch import check
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.gradients import tied_product
from discreet.pytorch.kernels.norms import ghost_norms_by_torch
from discreet.pytorch.layer_rules.use import rounding_in_any_order, sums_of_squares
from discreet.pytorch.mapped_gradients import per_example_gradients
from support.torch_bank import (
    CLASSES,
    EXAMPLES,
    NAMES,
    WIDTH,
    Forward,
    choices,
    cross_entropy,
    numbers,
    problem,
)

HUGE = 1e30
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own, said once


def plain_gradients(model, batch, losses=cross_entropy):
    found = torch.autograd.grad(losses(model, batch).sum(), list(model.parameters()), allow_unused=True)
    return {name: grad for (name, _), grad in zip(model.named_parameters(), found, strict=True)}


def close(found, wanted, rtol=2e-5):
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.to(found[name].dtype), rtol=rtol, atol=rtol * 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_without_clipping_it_is_the_plain_gradient(name):
    model, batch = problem(name)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    found = ClippedSum(model, cross_entropy, Flat(HUGE))(batch)
    wanted = plain_gradients(model, batch)
    close(found, {key: torch.zeros_like(found[key]) if g is None else g for key, g in wanted.items()})


def test_sums_are_views_of_one_vector_of_their_own():
    """Optimizers keep the vector of a step as gradients, so the next raw sums must not be written there."""
    model, batch = problem("mlp, in-place")
    engine = ClippedSum(model, cross_entropy, Flat(0.3))
    first = engine(batch)
    kept = first.vector.clone()
    assert torch.equal(torch.cat([first[name].flatten() for name in engine.parameters]), kept)
    second = engine(tuple(value[:1] for value in batch))
    assert not torch.equal(second.vector, kept)
    assert torch.equal(first.vector, kept)


def test_a_model_of_two_types_gets_sums_in_the_wider_one():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2).double())

    def losses(model, x):
        return model[2](model[1](model[0](x)).double()).square().sum(1)

    x = numbers(6, 4).float()
    found = ClippedSum(model, losses, Flat(HUGE))(x)
    assert found.vector.dtype == torch.float64
    close(found, plain_gradients(model, x, losses))


@pytest.mark.parametrize("name", ["mlp, in-place", "conv2d groups", "LSTM", "GPT tied", "einsum"])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 99])
def test_physical_batches_change_nothing(name, size):
    model, batch = problem(name, torch.float64)
    whole = ClippedSum(model, cross_entropy, Flat(0.3))
    split = ClippedSum(model, cross_entropy, Flat(0.3), physical_batch_size=size)
    close(split(batch), whole(batch), 1e-9)
    torch.testing.assert_close(split.norms(batch), whole.norms(batch))


class Positions(nn.Module):
    """Two layers at six positions, whose outputs of 7 and 3 numbers have gradients that wait for the norms."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).sum((1, 2))


def test_what_would_hold_too_much_memory_is_worked_off_in_equal_parts(monkeypatch):
    sizes = []

    def losses(model, x):
        sizes.append(len(x))
        return model(x)

    torch.manual_seed(1)
    x, model = numbers(11, 6, 5).float(), Positions()
    engine = ClippedSum(model, losses, Flat(0.3))
    monkeypatch.setattr(
        "discreet.pytorch.clipped_sum.MOST_HELD", 4 * 6 * (7 + 3) * 4
    )  # bytes of four examples
    whole = engine(x)
    assert set(sizes) == {11}  # nothing is known before
    assert [engine.part_size(count) for count in (0, 1, 4, 5, 8, 11, 40)] == [0, 1, 4, 3, 4, 4, 4]
    sizes.clear()
    in_parts = engine(x)
    assert sizes == [4, 4, 3]
    close(in_parts, whole)
    torch.testing.assert_close(engine.norms(x), ClippedSum(model, losses, Flat(0.3)).norms(x))
    monkeypatch.setattr("discreet.pytorch.clipped_sum.MOST_HELD", 1)
    assert engine.part_size(11) == 1
    close(engine(x), whole)


@pytest.mark.parametrize("name", ["mlp, in-place", "conv2d groups", "LSTM", "GPT tied", "einsum"])
def test_batches_of_any_size_follow_one_another(name):
    """Also one that is as large as another dimension, which must not be taken for the examples."""
    model, (x, y) = problem(name, torch.float64)
    engine = ClippedSum(model, cross_entropy, Flat(0.3))
    for size in (3, 0, 1, 8, 6, 2, 11):
        pick = torch.arange(size) % EXAMPLES
        rows = per_example_gradients(model, cross_entropy, (x[pick], y[pick]))
        norms = sum((g.flatten(1).square().sum(1) for g in rows.values()), torch.zeros(size)).sqrt()
        factors = (0.3 / norms).clamp(max=1)
        wanted = {key: torch.einsum("b,b...->...", factors.double(), g) for key, g in rows.items()}
        close(engine((x[pick], y[pick])), wanted, 1e-9)


def test_time_first_with_as_many_times_as_examples():
    """The shapes alone do not say which dimension counts the examples."""
    model, (x, y) = problem("attention time first", torch.float64)
    x = torch.cat([x, x], 1)[:, :EXAMPLES]
    engine = ClippedSum(model, cross_entropy, Flat(0.3))
    rows = per_example_gradients(model, cross_entropy, (x, y))
    norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
    torch.testing.assert_close(engine.norms((x, y)), norms)


def test_positions_that_appear_later():
    """With one position per example nothing tells which way it will be folded together with the examples."""
    model, (x, y) = problem("folded, time outside", torch.float64)
    engine = ClippedSum(model, cross_entropy, Flat(0.3))
    for times in (1, 4, 1, 6):
        part = (x[:, :times], y)
        rows = per_example_gradients(model, cross_entropy, part)
        norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
        torch.testing.assert_close(engine.norms(part), norms)


@pytest.mark.parametrize("name", ["mlp, in-place", "resnet", "LSTM", "GPT tied", "bilinear", "weight norm"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e12])
def test_a_bad_example_counts_as_zero_and_harms_nobody(name, poison):
    model, (x, y) = problem(name)

    def losses(model, batch):
        x, y, weight = batch
        return cross_entropy(model, (x, y)) * weight

    weight = torch.ones(EXAMPLES)
    weight[1] = poison
    rest = torch.tensor([0, 2, 3, 4])
    engine = ClippedSum(model, losses, Flat(0.3))
    found = engine((x, y, weight))
    wanted = engine((x[rest], y[rest], weight[rest]))
    if poison == 1e12:  # large is not bad: it is clipped like any other
        one = torch.tensor([1])
        alone = engine((x[one], y[one], torch.full((1,), 1e3)))
        wanted = {key: value + alone[key] for key, value in wanted.items()}
    close(found, wanted)


def test_an_input_that_is_not_finite_harms_nobody():
    model, (x, y) = problem("mlp, in-place")
    engine = ClippedSum(model, cross_entropy, Flat(0.3))
    bad = x.clone()
    bad[2] = math.nan
    rest = torch.tensor([0, 1, 3, 4])
    close(engine((bad, y)), engine((x[rest], y[rest])))


@pytest.mark.parametrize("name", NAMES)
def test_one_example_adds_at_most_the_clip_norm(name):
    model, (x, y) = problem(name)
    engine = ClippedSum(model, cross_entropy, Flat(0.05))
    added = engine((x[:1], y[:1]))
    assert math.sqrt(sum(float(value.double().square().sum()) for value in added.values())) <= 0.05


def test_empty_batches_are_zeros():
    model, (x, y) = problem("conv2d stride")
    engine = ClippedSum(model, cross_entropy, Flat(1.0))
    assert all(bool((value == 0).all()) for value in engine((x[:0], y[:0])).values())
    assert engine.norms((x[:0], y[:0])).shape == (0,)


def test_blocks_are_modules_or_parameters():
    model, batch = problem("mlp, in-place", torch.float64)
    rows = per_example_gradients(model, cross_entropy, batch)
    squares = {name: g.flatten(1).square().sum(1) for name, g in rows.items()}
    for limits, groups in (
        ((0.2, 0.3), [["0.weight", "0.bias"], ["2.weight", "2.bias"]]),
        ((0.1, 0.2, 0.3, 0.1), [[name] for name in rows]),
    ):
        found = ClippedSum(model, cross_entropy, PerBlock(limits))(batch)
        for limit, names in zip(limits, groups, strict=True):
            factor = (limit / sum(squares[name] for name in names).sqrt()).clamp(max=1)
            close(found, {name: torch.einsum("b,b...->...", factor, rows[name]) for name in names}, 1e-9)
    with pytest.raises(InvalidParameter, match=r"per module \(2\) or one per parameter \(4\)"):
        ClippedSum(model, cross_entropy, PerBlock((1.0, 1.0, 1.0)))(batch)


def test_normalised_gradients():
    model, batch = problem("mlp, in-place", torch.float64)
    rows = per_example_gradients(model, cross_entropy, batch)
    norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
    wanted = {name: torch.einsum("b,b...->...", 2 / (norms + 0.01), g) for name, g in rows.items()}
    close(ClippedSum(model, cross_entropy, Normalised(2.0))(batch), wanted, 1e-9)


def traces(model):
    """Everything that could have been left on a model."""
    modules = [
        (sorted(vars(m)), len(m._forward_hooks), len(m._backward_hooks), m.training) for m in model.modules()
    ]
    tensors = [(sorted(vars(p)), p.requires_grad, p._version, p.grad) for p in model.parameters()]
    return modules, tensors


class Broken(Exception):
    pass


@pytest.mark.parametrize("name", ["GPT tied", "LSTM", "einsum", "weight norm"])
def test_nothing_is_left_behind(name):
    model, batch = problem(name)
    before, states = traces(model), torch.get_rng_state()
    engine = ClippedSum(model, cross_entropy, Flat(1.0))
    engine(batch)
    assert traces(model) == before
    assert torch.equal(torch.get_rng_state(), states)
    assert torch.is_grad_enabled()

    def broken(model, batch):
        cross_entropy(model, batch)
        raise Broken

    with pytest.raises(Broken):
        ClippedSum(model, broken, Flat(1.0))(batch)
    assert traces(model) == before
    assert not torch.overrides._get_current_function_mode_stack()


def test_gradients_of_the_user_stay():
    model, batch = problem("GPT tied")
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    ClippedSum(model, cross_entropy, Flat(1.0))(batch)
    assert all(bool((parameter.grad == 7).all()) for parameter in model.parameters())


def test_dropout_draws_what_plain_training_draws():
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES))
    batch = (numbers(EXAMPLES, WIDTH).float(), choices(CLASSES, EXAMPLES))
    engine = ClippedSum(model, cross_entropy, Flat(HUGE))
    engine(batch)
    torch.manual_seed(1)
    found = engine(batch)
    torch.manual_seed(1)
    close(found, plain_gradients(model, batch))


def test_buffers_do_not_notice_the_first_look():
    """The layouts are found by a forward pass on copies of the buffers."""

    def forward(self, x):
        self.count += 1
        return self.head(x)

    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES))
    model.register_buffer("count", torch.zeros(()))
    ClippedSum(model, cross_entropy, Flat(1.0))(
        (numbers(EXAMPLES, WIDTH).float(), choices(CLASSES, EXAMPLES))
    )
    assert model.count == 1


def test_losses_that_differentiate_themselves():
    """A penalty on the gradient by the input needs second derivatives: right, by a loop."""
    model, batch = problem("mlp, in-place", torch.float64)
    model[1] = nn.Tanh()

    def losses(model, batch):
        x = batch[0].clone().requires_grad_()
        value = cross_entropy(model, (x, batch[1]))
        slope = torch.autograd.grad(value.sum(), x, create_graph=True)[0]
        return value + slope.square().sum(1)

    rows = per_example_gradients(model, losses, batch)
    norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
    torch.testing.assert_close(ClippedSum(model, losses, Flat(1.0)).norms(batch), norms)


def test_checkpointing_works():
    model, batch = problem("mlp, in-place", torch.float64)
    wanted = ClippedSum(model, cross_entropy, Flat(0.3))(batch)

    def losses(model, batch):
        hidden = checkpoint(model[:2], batch[0], use_reentrant=False)
        return F.cross_entropy(model[2](hidden), batch[1], reduction="none")

    close(ClippedSum(model, losses, Flat(0.3))(batch), wanted, 1e-9)


def test_an_input_changed_in_place_is_refused():
    model = Forward(lambda s, x: s.b(s.a(x).tanh() + x.zero_()), a=nn.Linear(8, 8), b=nn.Linear(8, 3))
    with pytest.raises(RuntimeError, match="changed in place"):
        ClippedSum(model, cross_entropy, Flat(1.0))((numbers(EXAMPLES, 8).float(), choices(3, EXAMPLES)))


def test_autocast():
    model, batch = problem("GPT tied")

    def losses(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch).float()

    wanted = ClippedSum(model, cross_entropy, Flat(0.3))(batch)
    found = ClippedSum(model, losses, Flat(0.3))(batch)
    size = sum(value.square().sum() for value in wanted.values()).sqrt()
    assert sum((found[name] - wanted[name]).square().sum() for name in wanted).sqrt() / size < 0.05


def test_batches_may_be_nested():
    model, (x, y) = problem("mlp, in-place")
    wanted = ClippedSum(model, cross_entropy, Flat(0.3))((x, y))
    nested = ClippedSum(model, lambda m, b: cross_entropy(m, (b["in"]["x"], b["y"][0])), Flat(0.3))
    close(nested({"in": {"x": x}, "y": [y], "task": "a"}), wanted)


def test_refusals_do_not_tell_how_many_examples_there_are():
    model, _ = problem("mlp, in-place")
    engine = ClippedSum(model, lambda model, batch: model(batch[0]), Flat(1.0))
    for batch in ((torch.zeros(4321, WIDTH),), (torch.zeros(4321, WIDTH), torch.zeros(4320))):
        with pytest.raises(InvalidParameter) as refusal:
            engine(batch)
        assert "432" not in f"{refusal.value} {refusal.value.value!r}"


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum, lambda v: v[:, None], lambda v: v[1:]])
def test_losses_that_are_not_one_per_example_are_refused(reduce):
    model, batch = problem("mlp, in-place")
    with pytest.raises(InvalidParameter, match="one loss per example"):
        ClippedSum(model, lambda m, b: reduce(cross_entropy(m, b)), Flat(1.0))(batch)


def test_refusals():
    model, (x, y) = problem("mlp, in-place")
    with pytest.raises(InvalidParameter, match="common first dimension"):
        ClippedSum(model, cross_entropy, Flat(1.0))((x, y[:2]))
    with pytest.raises(InvalidParameter, match="physical_batch_size"):
        ClippedSum(model, cross_entropy, Flat(1.0), physical_batch_size=0)
    with pytest.raises(InvalidParameter, match="parameter to train"):
        ClippedSum(copy.deepcopy(model).requires_grad_(False), cross_entropy, Flat(1.0))
    renormalising = nn.Sequential(nn.Embedding(9, WIDTH, max_norm=1.0), nn.Flatten(), nn.Linear(WIDTH, 3))
    with pytest.raises(InvalidParameter, match="max_norm"):
        ClippedSum(renormalising, cross_entropy, Flat(1.0))((choices(9, 5, 1), y))
    by_frequency = nn.Sequential(nn.Embedding(9, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(InvalidParameter, match="scale_grad_by_freq"):
        ClippedSum(by_frequency, cross_entropy, Flat(1.0))((choices(9, 5, 1), y))


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "replace"])
def test_other_parameters_than_at_the_start_are_refused(change):
    """They would stay untrained, or be trained, without a word."""
    model, batch = problem("mlp, in-place")
    model[0].bias.requires_grad_(change != "unfreeze")
    engine = ClippedSum(model, cross_entropy, Flat(1.0))
    engine(batch)
    if change == "replace":
        model[2] = nn.Linear(6, CLASSES)
    else:
        model[0].bias.requires_grad_(change == "unfreeze")
    with pytest.raises(InvalidParameter, match="trainable parameters"):
        engine(batch)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_fewer_digits_are_refused(precision, count):
    clipped_sum = ClippedSum(nn.Linear(2, 1), lambda model, x: model(x).sum(1), Flat(1.0))
    try:
        torch.set_float32_matmul_precision(precision)
        with pytest.raises(InvalidParameter, match="highest"):
            clipped_sum(torch.ones(count, 2))
    finally:
        torch.set_float32_matmul_precision("highest")
    clipped_sum(torch.ones(count, 2))


def test_autocast_around_the_engine_is_refused_and_within_the_losses_is_not():
    """Around it the sums of convolutions were rounded to 8 digits: one example moved them by more than it may."""

    def half(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model, batch)

    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 144, CLASSES)
    model = nn.Sequential(*layers)
    batch = torch.randn(65, 3, 16, 16) + 100, torch.randint(0, CLASSES, (65,))
    without = tuple(part[:-1] for part in batch)
    engine = ClippedSum(model, half, Flat(1.0))
    moved = engine(batch).vector.double() - engine(without).vector.double()
    assert float(moved.norm()) <= 1.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(InvalidParameter, match=r"autocast='cpu'.*inside losses"):
            engine(batch)
        with pytest.raises(InvalidParameter, match="inside losses"):
            check(model, cross_entropy, batch)


def test_precision_that_was_set_for_one_backend_is_refused(monkeypatch):
    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    with pytest.raises(InvalidParameter, match="mixed"):
        ClippedSum(nn.Linear(2, 1), lambda model, x: model(x).sum(1), Flat(1.0))(torch.ones(1, 2))


def test_the_broken_twin_multiplies_in_fewer_digits():
    """As matrix products in bfloat16 do, which "medium" allows: 0.4 % of the norm are gone."""
    a, g = torch.full((1, 40, 64), 1.0038), torch.full((1, 40, 64), 1.0038)
    true = float(sums_of_squares(g.mT @ a))
    room = rounding_in_any_order(64, 64, torch.float32) * float(sums_of_squares(a) * sums_of_squares(g))
    found = [float(ghost_norms_by_torch(*pair)[0]) + room for pair in ((a, g), (a.bfloat16().float(),) * 2)]
    assert found[0] >= true * (1 - 1e-6)
    assert found[1] < true * 0.99


def test_long_norms_are_not_biased():
    """torch's own norm of such a row is low by several parts in ten thousand."""
    rows = torch.full((2, 3_000_001), 0.1)
    wanted = rows.double().square().sum(1)
    assert abs(float(torch.linalg.vector_norm(rows[0])) ** 2 / float(wanted[0]) - 1) > 1e-5
    torch.testing.assert_close(sums_of_squares(rows), wanted, rtol=5e-7, atol=0)


def test_ghost_norms_survive_cancellation():
    """Positions that cancel leave a small gradient, of which Gram matrices in float32 keep no digit."""
    layer = nn.Linear(64, 64)
    x = numbers(EXAMPLES, 8, 64).float()
    sign = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    x[:, 1::2] = x[:, ::2] * (1 + 1e-3 * numbers(EXAMPLES, 4, 64, seed=9).float())

    def losses(model, batch):
        return (model(batch) * sign).sum((1, 2))

    rows = per_example_gradients(copy.deepcopy(layer).double(), losses, x.double())
    norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
    torch.testing.assert_close(ClippedSum(layer, losses, Flat(1.0)).norms(x), norms, rtol=1e-5, atol=0)


@pytest.mark.parametrize("width", [1, 3, 300, 5000])
def test_the_product_of_tied_gradients_is_not_low(width, monkeypatch):
    """Of numbers that are lost beside a one: the worst order of additions loses them all, and is allowed for."""
    inputs, rows = (torch.full((2, 3, width), 2.0**-12.5) for _ in range(2))
    inputs[..., 0] = rows[..., 0] = 1
    grads, index = numbers(2, 3, 7, seed=4).abs().float(), torch.tensor([[0, 3, 3], [6, 1, 0]])
    looked_up, applied = SimpleNamespace(index=index, g=rows), SimpleNamespace(by_position=(inputs, grads))

    def in_one_chain(one, other):  # in place of torch.bmm: all additions one after the other, in float32
        products = one[:, :, None, :] * other.mT[:, None, :, :]
        total = products[..., 0].clone()
        for place in range(1, width):
            total += products[..., place]
        return total

    exact = torch.zeros(2, dtype=torch.float64)
    for example in range(2):
        of_layer = grads[example].double().mT @ inputs[example].double()
        of_table = torch.zeros_like(of_layer).index_add_(0, index[example], rows[example].double())
        exact[example] = 2 * (of_layer * of_table).sum()
    monkeypatch.setattr(torch, "bmm", in_one_chain)
    found, _ = tied_product(looked_up, applied)
    assert bool((found >= exact * (1 - 1e-12)).all())
    if width == 5000:  # the twin, without room for rounding, is low
        monkeypatch.setattr("discreet.pytorch.gradients.inner_product_error", lambda numbers, kind: 0.0)
        assert bool((tied_product(looked_up, applied)[0] < exact).all())


@pytest.mark.parametrize(("positions", "into", "out"), [(3, 64, 64), (2, 8, 4), (3, 1000, 10)])
def test_parts_that_cancel_do_not_exceed_the_clip_norm_by_their_rounding(positions, into, out, monkeypatch):
    """1e8 - 1e8 leaves rounding errors that are longer than the gradient; the twin lets them through."""
    torch.manual_seed(0)
    model = nn.Linear(into, out, bias=False)
    x = torch.randn(4, 1, into).repeat(1, positions, 1)
    scales = torch.tensor([[1e8 + 8, -8.000001, -1e8] if positions == 3 else [1e8, -1e8 * (1 - 1e-7)]] * 4)
    engine = ClippedSum(model, lambda model, batch: (model(batch[0]).sum(2) * batch[1]).sum(1), Flat(1.0))

    def moved():
        rest = [torch.arange(4) != i for i in range(4)]
        whole = engine((x, scales))["weight"]
        return max((whole - engine((x[keep], scales[keep]))["weight"]).norm().item() for keep in rest)

    assert moved() <= 1.01
    monkeypatch.setattr("discreet.pytorch.layer_rules.use.LEAST_LEFT", 0.0)
    if positions == 3 and into == 64:
        assert moved() > 1.5
