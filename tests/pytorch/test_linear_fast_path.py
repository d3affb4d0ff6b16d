"""Uses of parameters read off the graph: right where they are, and left to the recording where they are not."""

import contextlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discreet.core.clipping import Flat, PerBlock
from discreet.pytorch import graph_rules, linear_fast_path
from discreet.pytorch.batch_axis import BatchAxes
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.layer_rules.use import Source
from discreet.pytorch.linear_fast_path import LinearGradients, UsualCalls, linear_layers
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.per_example import trainable

EXAMPLES = 6


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch(seed=0):
    labels = torch.randint(0, 3, (EXAMPLES,), generator=torch.Generator().manual_seed(seed))
    return numbers(EXAMPLES, 5, seed=seed), labels


def cross_entropy(model, given):
    return F.cross_entropy(model(given[0]), given[1], reduction="none")


def network(*more, bias=True):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 7, bias=bias), *more, nn.Linear(7, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3)
    )


def frozen(place, name):
    model = network(nn.ReLU())
    getattr(model[place], name).requires_grad_(False)
    return model


class Products(nn.Module):
    """Layers that have their inputs as rows: x @ W."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(numbers(5, 4, seed=1)), nn.Parameter(numbers(4, 3, seed=2))

    def forward(self, x):
        return torch.relu(x @ self.one) @ self.other


class Folded(nn.Module):
    """A layer that reads two rows of each example."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(5, 3), nn.Linear(6, 3)

    def forward(self, x):
        rows = torch.stack([x, x.flip(1)], 1)
        return self.last(self.layer(rows).tanh().flatten(1))


class ByHand(nn.Module):
    """Two rows of each example without calls that the forward pass of a plain network has not."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(5, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.layer(x.reshape(-1, 1, 5) * torch.ones(2, 1)).tanh().flatten(1))


READABLE = {
    "plain": lambda: network(nn.ReLU()),
    "without bias": lambda: network(nn.GELU(), bias=False),
    "in place": lambda: network(nn.ReLU(inplace=True)),
    "dropout off": lambda: network(nn.Dropout(0.5)).eval(),
    "frozen weight": lambda: frozen(0, "weight"),
    "frozen bias": lambda: frozen(2, "bias"),
    "frozen first": lambda: frozen(2, "weight"),
    "products": Products,
    "wide": lambda: nn.Sequential(
        nn.Linear(5, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)
    ),
}


def spied(monkeypatch):
    """How often gradients were read off the graph."""
    made = []
    whole = linear_fast_path.LinearGradients.__init__

    def counted(self, *args):
        made.append(self)
        whole(self, *args)

    monkeypatch.setattr(LinearGradients, "__init__", counted)
    return made


def clipped(model, losses, given, limits):
    """By hand, in float64: ``limits`` is a clip norm, or one for each parameter."""
    rows = {name: value.double() for name, value in per_example_gradients(model, losses, given).items()}
    count = len(next(iter(rows.values())))
    if isinstance(limits, float):
        squares = sum(value.reshape(count, -1).square().sum(1) for value in rows.values())
        factors = dict.fromkeys(rows, (limits / squares.sqrt()).clamp(max=1.0))
    else:
        factors = {
            name: (limit / rows[name].reshape(count, -1).norm(dim=1)).clamp(max=1.0)
            for name, limit in zip(rows, limits, strict=True)
        }
    return {name: torch.tensordot(factors[name], value, 1) for name, value in rows.items()}


@pytest.mark.parametrize("name", READABLE)
def test_sums_are_those_of_single_examples(name, monkeypatch):
    made, model, given = spied(monkeypatch), READABLE[name](), batch()
    for limits in (0.05, 0.7, tuple(0.1 + 0.1 * k for k in range(len(trainable(model))))):
        rule = Flat(limits) if isinstance(limits, float) else PerBlock(limits)
        found = ClippedSum(model, cross_entropy, rule)(given)
        for key, wanted in clipped(model, cross_entropy, given, limits).items():
            torch.testing.assert_close(found[key].double(), wanted, rtol=2e-5, atol=1e-5)
    assert len(made) == 3


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e12])
def test_all_at_once_is_the_same_as_norms_factors_and_sums(scale, monkeypatch):
    """The loop that does all of it against the three that do a part each, over all sizes of numbers."""
    model, (x, y) = network(nn.ReLU()), batch()
    given, rule = (scale * x, y), Flat(0.3)
    at_once = ClippedSum(model, cross_entropy, rule)(given)
    asked = []
    monkeypatch.setattr(LinearGradients, "clipped_sums", lambda *_: asked.append(1))
    one_by_one = ClippedSum(model, cross_entropy, rule)(given)
    assert asked
    assert torch.equal(at_once.vector, one_by_one.vector)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("make", [Folded, ByHand, lambda: network(nn.ReLU())], ids=["stack", "rows", "plain"])
def test_several_rows_of_an_example_and_other_types(make, kind):
    model, (x, y) = make().to(kind), batch()
    given = (x.to(kind), y)
    found = ClippedSum(model, cross_entropy, Flat(0.3))(given)
    for key, wanted in clipped(model, cross_entropy, given, 0.3).items():
        torch.testing.assert_close(found[key].double(), wanted, rtol=2e-5, atol=1e-5)


def test_rows_are_read_off_the_graph_with_their_positions():
    model, given = ByHand(), batch()
    sources = {id(value): Source.of(name, value) for name, value in model.named_parameters()}
    layers = linear_layers(BatchAxes(cross_entropy(model, given)), sources)
    assert [layer.weight.name for layer in layers] == ["last.weight", "layer.weight"]
    assert [len(layer.input) for layer in layers] == [EXAMPLES, 2 * EXAMPLES]


def test_rows_with_a_lazy_sign_are_added_as_they_are():
    """The memory of such a view holds the opposite numbers."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    turned = torch._neg_view(x)
    assert turned.is_neg()
    assert turned.data_ptr() == x.data_ptr()
    clipped_sum = ClippedSum(model, lambda model, x: model(x).square().sum(1), Flat(0.1))
    torch.testing.assert_close(clipped_sum(turned).vector, clipped_sum(-x).vector)


def test_what_is_not_finite_counts_as_zero(monkeypatch):
    made, model, (x, y) = spied(monkeypatch), network(nn.ReLU()), batch()
    whole = ClippedSum(model, cross_entropy, Flat(0.3))((x[1:], y[1:]))
    for bad in (torch.nan, torch.inf, 1e30):
        broken = x.clone()
        broken[0, 2] = bad
        found = ClippedSum(model, cross_entropy, Flat(0.3))((broken, y))
        assert found.vector.isfinite().all()
        if not abs(bad) < torch.inf:
            torch.testing.assert_close(found.vector, whole.vector, rtol=1e-5, atol=1e-6)
    assert len(made) == 4


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e15])
def test_no_example_adds_more_than_the_clip_norm(scale):
    """Inputs so small and gradients so large that their squares do not fit."""
    model, (x, y) = network(nn.Identity()), batch()
    with torch.no_grad():
        model[0].weight.mul_(scale)
    for index in range(EXAMPLES):
        given = (x[index : index + 1] / scale, y[index : index + 1])
        found = ClippedSum(model, lambda m, b: cross_entropy(m, b) * 1e12, Flat(0.3))(given)
        assert float(found.vector.double().norm()) <= 0.3


class Changed(nn.Module):
    """A network in which ``change(model, h)`` is between two layers."""

    def __init__(self, change, last=None):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second, self.free = nn.Linear(5, 4), nn.Linear(4, 3), nn.Parameter(torch.ones(4))
        self.change = change

    def forward(self, x):
        return self.second(self.change(self, torch.tanh(self.first(x))))


class Doubling(torch.autograd.Function):
    """Gives each example the gradient of all."""

    @staticmethod
    def forward(ctx, h):
        return h * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad.sum(0, keepdim=True).expand_as(grad)


class Own(torch.Tensor):
    """A kind of tensors that may do anything in every call."""


def hooked(model, h):
    h.register_hook(lambda grad: grad.flip(0))
    return h


def hooked_by_its_node(model, h):
    h.grad_fn.register_prehook(lambda grads: (grads[0].flip(0),))
    return h


def kept_by_hooks(model, h):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.flip(0)):
        return torch.tanh(h)


def differentiated(model, h):
    return h * torch.autograd.grad((h * h).sum(), h, retain_graph=True)[0].norm()


def differentiated_by_hand(model, h):
    torch.autograd.backward(h.sum(), retain_graph=True)
    found = model.first.weight.grad
    model.first.weight.grad = None
    return h if found is None else h * found.norm()


UNREADABLE = {
    "a mean over the batch": lambda model, h: h - h.mean(0),
    "a product of examples": lambda model, h: torch.softmax(h @ h.T, 1) @ h,
    "sorted": lambda model, h: h.sort(0).values,
    "added to": lambda model, h: h + model.free,
    "multiplied": lambda model, h: h * model.free,
    "a bias used twice": lambda model, h: h + model.first.bias,
    "a weight used twice": lambda model, h: h + (model.first.weight.sum() * 0.1),
    "a layer used twice": lambda model, h: F.linear(h, model.second.weight.T @ model.second.weight),
    "its own gradient": lambda model, h: Doubling.apply(h),
    "hooked": hooked,
    "hooked by its node": hooked_by_its_node,
    "kept by hooks": kept_by_hooks,
    "differentiated": differentiated,
    "differentiated by hand": differentiated_by_hand,
    "written to": lambda model, h: h.clone().mul_(2.0),
    "written to by name": lambda model, h: h + torch.add(h.detach(), 1.0, out=torch.empty(0)),
    "a tensor of its own kind": lambda model, h: h.as_subclass(Own) * 1.0,
    "taken out of the graph": lambda model, h: h * float(h.detach().sum()),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_other_networks_are_left_to_the_recording(name, monkeypatch):
    made, model = spied(monkeypatch), Changed(UNREADABLE[name])
    ClippedSum(model, cross_entropy, Flat(0.3))(batch())
    assert made == []


def test_a_pass_ends_before_an_unusual_call():
    """So that what a model counts or writes is not counted twice, and is not handled as an error either."""
    seen = []

    def counted(model, h):
        try:
            h.clone()
        except Exception as error:
            seen.append(error)
        seen.append("once")
        return h

    engine = ClippedSum(Changed(counted), cross_entropy, Flat(0.3))
    engine(batch())
    engine(batch())
    assert seen == ["once", "once"]


def test_inputs_that_need_a_gradient_are_left_to_the_recording(monkeypatch):
    made, (x, y) = spied(monkeypatch), batch()
    ClippedSum(network(nn.ReLU()), cross_entropy, Flat(0.3))((x.requires_grad_(), y))
    assert made == []


def test_a_term_of_the_weights_is_left_to_the_recording(monkeypatch):
    made, model = spied(monkeypatch), network(nn.ReLU())

    def decayed(model, given):
        return cross_entropy(model, given) + 0.1 * model[0].weight.square().sum()

    found = ClippedSum(model, decayed, Flat(0.3))(batch())
    assert made == []
    for key, wanted in clipped(model, decayed, batch(), 0.3).items():
        torch.testing.assert_close(found[key].double(), wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["hooked", "hooked by its node", "kept by hooks"])
def test_without_a_look_at_the_calls_hooks_would_break_the_clip(name, monkeypatch):
    """The graph alone does not show them: that is why calls are looked at."""
    blind = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))  # noqa: E731
    monkeypatch.setattr(UsualCalls, "__torch_function__", blind)
    made, model = spied(monkeypatch), Changed(UNREADABLE[name])
    found = ClippedSum(model, cross_entropy, Flat(1e6))(batch())
    wanted = clipped(model, cross_entropy, batch(), 1e6)
    assert made
    assert not np.allclose(found["first.weight"], wanted["first.weight"], atol=1e-3)


class Fickle(nn.Module):
    """Square in all directions, so that shapes do not tell which way it goes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.one, self.other = nn.Linear(EXAMPLES, EXAMPLES), nn.Linear(EXAMPLES, EXAMPLES)
        self.way = lambda self, h: h.log_softmax(-1)
        self.order = ("one", "other")

    def forward(self, x):
        first, second = (getattr(self, name) for name in self.order)
        return second(self.way(self, torch.tanh(first(x))))


WAYS = {
    "another dimension": lambda self, h: h.log_softmax(0),
    "summed over examples": lambda self, h: h.log_softmax(-1) + h.sum(0),
    "less the mean": lambda self, h: h.log_softmax(-1) - h.mean(0, keepdim=True),
    "alpha": lambda self, h: torch.addmm(self.other.bias, h, self.other.weight.t(), alpha=3.0),
}


def sums_after_a_change(change):
    """The sums of a model that has gone one way three times, and those of single examples where that makes sense."""
    model, given = Fickle(), (numbers(EXAMPLES, EXAMPLES), torch.arange(EXAMPLES) % 3)
    clipped_sum = ClippedSum(model, cross_entropy, Flat(0.3))
    for _ in range(3):
        clipped_sum(given)
    change(model)
    return clipped_sum(given), ClippedSum(model, cross_entropy, Flat(0.3))(given)


@pytest.mark.parametrize("name", WAYS)
def test_a_model_that_changes_its_ways_is_walked_anew(name):
    found, wanted = sums_after_a_change(lambda model: setattr(model, "way", WAYS[name]))
    torch.testing.assert_close(found.vector, wanted.vector, rtol=2e-5, atol=1e-6)


def test_weights_that_change_places_are_seen():
    found, wanted = sums_after_a_change(lambda model: setattr(model, "order", ("other", "one")))
    torch.testing.assert_close(found.vector, wanted.vector, rtol=2e-5, atol=1e-6)


def test_a_structure_without_the_numbers_would_be_too_little(monkeypatch):
    """The broken twin: along which dimension a softmax goes is left out, and examples meet unnoticed."""
    monkeypatch.setattr(linear_fast_path, "numbers_read", lambda kind: ())
    found, wanted = sums_after_a_change(lambda model: setattr(model, "way", WAYS["another dimension"]))
    assert not torch.allclose(found.vector, wanted.vector, rtol=1e-3, atol=1e-4)


def test_the_walk_is_spared_where_the_structure_is_known(monkeypatch):
    model, clipped_sum, walks = network(nn.ReLU()), None, []
    walk = linear_fast_path.linear_layers
    monkeypatch.setattr(linear_fast_path, "linear_layers", lambda *args: walks.append(1) or walk(*args))
    clipped_sum = ClippedSum(model, cross_entropy, Flat(0.3))
    for seed in range(4):
        given = batch(seed)
        found = clipped_sum(given)
        for key, wanted in clipped(model, cross_entropy, given, 0.3).items():
            torch.testing.assert_close(found[key].double(), wanted, rtol=2e-5, atol=1e-5)
    x, y = batch()
    for size in (2, 6, 2):
        clipped_sum((x[:size], y[:size]))
    assert len(walks) == 1
    clipped_sum((x[:1], y[:1]))  # from several nothing follows for one
    assert len(walks) == 2


class Turning(nn.Module):
    """``way`` is between two layers."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(7)
        self.way, self.one, self.other = way, nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.other(self.way(torch.tanh(self.one(x))))


TURNS = {
    "as it is": lambda h: h * 1.0,
    "softmax of rows": lambda h: h.softmax(-1),
    "softmax of columns": lambda h: h.softmax(0),
    "softmax of two halves": lambda h: h.reshape(2, -1).log_softmax(1).reshape(-1, 4),
    "softmax of pairs": lambda h: h.reshape(-1, 8 if len(h) % 2 == 0 else 4).log_softmax(1).reshape(-1, 4),
    "in columns": lambda h: h.T.softmax(0).T,
    "across columns": lambda h: h.T.softmax(1).T,
    "turned where square": lambda h: h.T * 1.0 if len(h) == 4 else h,
    "less the mean": lambda h: h - h.mean(0),
    "less its own mean": lambda h: h - h.mean(1, keepdim=True),
    "flat": lambda h: h.reshape(-1).exp().reshape(-1, 4),
    "three dimensions": lambda h: h.reshape(-1, 2, 2).softmax(1).reshape(-1, 4),
    "examples inside": lambda h: h.reshape(2, -1, 4).softmax(0).reshape(-1, 4) if len(h) % 2 == 0 else h,
}


def found_layers(networks, model, size):
    given = numbers(size, 5, seed=size), torch.arange(size) % 3
    losses = cross_entropy(model, given)
    sources = {id(value): Source.of(name, value) for name, value in model.named_parameters()}
    fresh = linear_layers(BatchAxes(losses), sources)
    return _told(networks.layers(losses)), _told(fresh)


def _told(layers):
    if layers is None:
        return None
    return [
        (layer.node, layer.weight.name, layer.transposed, layer.bias.name, layer.layout) for layer in layers
    ]


def networks_of(model):
    return linear_fast_path.LinearNetworks(
        {id(value): Source.of(name, value) for name, value in model.named_parameters()}
    )


@pytest.mark.parametrize("name", TURNS)
def test_what_is_known_of_one_size_is_right_for_every_other(name):
    """The oracle is a walk from scratch; sizes are those of layers too, in every order."""
    sizes = (6, 2, 4, 8, 3, 5, 1, 7, 10)
    for order in (sizes, sizes[::-1], sorted(sizes)):
        model = Turning(TURNS[name])
        networks = networks_of(model)
        for size in (*order, *order):
            found, fresh = found_layers(networks, model, size)
            assert found == fresh, size


def test_a_structure_without_shapes_would_be_too_little(monkeypatch):
    """The broken twin: at two examples halves are rows, and at four examples meet in them unnoticed."""
    whole = linear_fast_path.structure_of

    def without_shapes(losses):
        parts, nodes = whole(losses)
        return tuple(part for part in parts if not isinstance(part, tuple) and part != -1), nodes

    monkeypatch.setattr(linear_fast_path, "structure_of", without_shapes)
    model = Turning(TURNS["softmax of two halves"])
    networks = networks_of(model)
    assert found_layers(networks, model, 2)[0] is not None
    found, fresh = found_layers(networks, model, 4)
    assert found is not None
    assert fresh is None


def test_sums_of_large_layers_overwrite_and_those_of_unused_weights_are_zero():
    """In memory that is not cleared before: parts of a batch add up, and nothing is left of what was there."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(5, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3))
    model.spare = nn.Linear(300, 300)
    model.forward = lambda x: nn.Sequential.forward(model[:5], x)
    given = batch()
    whole = ClippedSum(model, cross_entropy, Flat(0.3))(given)
    parts = ClippedSum(model, cross_entropy, Flat(0.3), physical_batch_size=2)(given)
    torch.testing.assert_close(whole.vector, parts.vector, rtol=1e-5, atol=1e-6)
    assert not whole["spare.weight"].any()
    assert not whole["spare.bias"].any()
    for key, wanted in clipped(model[:5], cross_entropy, given, 0.3).items():
        torch.testing.assert_close(whole[key].double(), wanted, rtol=2e-5, atol=1e-5)


class Listed:
    """A node that has numbers and tells of everything else that is asked of it."""

    def __init__(self, names, value):
        self.names, self.value = names, value

    def __getattr__(self, name):
        assert name in self.names, f"{name} is read and not listed"
        return self.value


@pytest.mark.parametrize("name", graph_rules._READING)
def test_rules_read_no_more_than_is_listed(name):
    rule = graph_rules._RULES[name]
    for value in (0, 1, (0,), (1,), True):
        for shape, run, examples in (((6, 4), 4, 6), ((6,), 1, 6), ((2, 6, 4), 4, 6), ((6, 6), 1, 6)):
            for edge in range(3):
                for given in (shape, (1, *shape), shape[1:], (*shape, 3), (6, 6)):
                    node = Listed(graph_rules._READING[name], value)
                    with contextlib.suppress(
                        IndexError, TypeError, ZeroDivisionError
                    ):  # of shapes that do not go together
                        rule(node, graph_rules.RowLayout(shape, run, examples), edge, given)
