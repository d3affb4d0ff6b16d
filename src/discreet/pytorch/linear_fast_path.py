"""Networks of plain linear layers: the uses of parameters are read off the graph, and no call is recorded.

The graph of a forward pass holds the input of every linear layer, and the backward pass can stop at the layers'
outputs. So where linear layers are all that has parameters, the pass runs as it would without privacy, and nothing
is done for each call but to look whether it is a usual one. That is the way of small networks, in which
:mod:`discreet.pytorch.recording` would take longer than the arithmetic.

What is not understood in full is left to the recording: a call that is not listed, another use of a parameter, one
that is used twice, anything that no example owns by itself.

In docs/engines.md: E16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from discreet.core.clipping import Flat, upper_bound_of
from discreet.pytorch.batch_axis import LEAF, BatchAxes, shape_of
from discreet.pytorch.gradients import LEAST_WEIGHT, MOST_WEIGHT, Gradients, Sums
from discreet.pytorch.graph_rules import SHARED, numbers_read
from discreet.pytorch.kernels import norms
from discreet.pytorch.kernels.linear_layers import (
    Table,
    add_clipped_sums_of_layers,
    add_sums_of_layers,
    norms_of_layers,
)
from discreet.pytorch.layer_rules.elementwise import Shift
from discreet.pytorch.layer_rules.linear import LinearWeight
from discreet.pytorch.layer_rules.use import Layout, Scratch, Source, Use, without

_NAMES = """
    abs add clamp cos div exp flatten float double long log log1p log_softmax logsumexp matmul mean mm mul neg permute
    pow relu reshape sigmoid sin softmax sqrt square squeeze sub sum tanh transpose unsqueeze view dim size
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __neg__ __pow__ __matmul__ __getitem__ __len__
"""
_FUNCTIONAL = """
    linear relu gelu silu elu selu celu mish tanh sigmoid logsigmoid leaky_relu hardtanh hardswish softplus softsign
    softmax log_softmax dropout alpha_dropout cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss
    binary_cross_entropy binary_cross_entropy_with_logits gaussian_nll_loss poisson_nll_loss
"""
USUAL = {
    *(getattr(Tensor, name) for name in _NAMES.split()),
    *(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)),
    *(getattr(F, name) for name in _FUNCTIONAL.split()),
    *(
        vars(torch._C.TensorBase)[name].__get__
        for name in ("shape", "ndim", "dtype", "device", "requires_grad", "T", "mT")
    ),
}
"""Calls that compute a value from values, and leave everything else as it is: they set no hook, write nothing."""

_nodes: Any = torch._C._functions
_PRODUCTS, _TURNED = (_nodes.AddmmBackward0, _nodes.MmBackward0), _nodes.TBackward0
_PLAIN = {Tensor, torch.nn.Parameter}
SMALL = 1 << 17  # multiplications
MOST_KNOWN = 1 << 10  # structures of graphs
_LIMITS = LEAST_WEIGHT[torch.float32], MOST_WEIGHT[torch.float32]
_EXAMPLES = -1  # in place of a size: as many as there are examples
_differentiate = torch.autograd.graph._engine_run_backward
"""All of ``torch.autograd.grad`` but its questions about the arguments, which take as long as a small layer."""
_kept_by_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class UnusualCall(BaseException):
    """Ends a forward pass before anything happens that is not known; no error, so that nobody handles it."""


class UsualCalls(TorchFunctionMode):
    """Looks at the calls of a forward pass, and ends it at the first one that is not usual."""

    def __init__(self) -> None:
        super().__init__()
        self.only = True
        """Return whether all of them were usual, on plain tensors, with nothing else deciding what is saved for the
        backward pass."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = func in USUAL and _PLAIN.issuperset(types) and not (kwargs and "out" in kwargs)
        if not known or _kept_by_hooks(True) is not None:
            self.only = False
            raise UnusualCall
        return func(*args, **kwargs) if kwargs else func(*args)


class LinearLayer(NamedTuple):
    """A linear layer in the graph; a weight or a bias that is not trained is None."""

    node: Any
    input: Any
    weight: Source | None
    transposed: bool
    bias: Source | None
    layout: Layout

    def at(self, node: Any) -> LinearLayer:
        """Return this layer in the graph of another batch."""
        return LinearLayer(node, _input_of(node), *self[2:])

    def uses(self, grad: Tensor, examples: int, scratch: Scratch) -> list[Use]:
        """The uses of its parameters, measured, from the gradient of its output."""
        shift = None if self.bias is None else Shift(self.bias)
        uses: list[Use] = [] if shift is None else [shift]
        if self.weight is not None:
            use = LinearWeight(self.weight, self.input, self.transposed)
            use.bias = shift
            uses.insert(0, use)
        for each in uses:
            each.receive(grad, self.layout, examples, scratch, self.node)
        for each in uses:
            each.measure()
        return uses


def _input_of(node: Any) -> Any:
    """Return the input that a matrix product has multiplied with its weight."""
    return node._saved_mat1 if type(node) is _nodes.AddmmBackward0 else node._saved_self


class _Layers:
    """Collects the layers of a graph, and claims the nodes of their parameters."""

    def __init__(self, owners: BatchAxes, sources: Mapping[int, Source]) -> None:
        self._owners, self._sources = owners, sources
        self.claimed: set[Any] = set()

    def layer(self, node: Any) -> LinearLayer | None:
        """The layer at a product of matrices; None if nothing in it is trained."""
        edges, shape = self._owners.edges[node], shape_of((node, 0))
        added = len(edges) == 3  # bias, input, weight
        layout = None if shape is None else self._owners.layout_of((node, 0), shape)
        if layout is None or layout.dim or (added and not node._saved_alpha == node._saved_beta == 1):
            return None
        weight, turned = self._weight(edges[-1][0])
        bias = self._claim(edges[0][0]) if added and type(edges[0][0]) is LEAF else None
        if weight is None and bias is None:
            return None
        if bias is not None and tuple(bias.tensor.shape) != shape[1:]:  # type: ignore[index]
            raise KeyError("a bias of another shape")
        return LinearLayer(node, _input_of(node), weight, not turned, bias, layout)

    def _weight(self, node: Any) -> tuple[Source | None, bool]:
        """The weight at this node or behind its transpose, and whether it is turned."""
        if type(node) is LEAF:
            return self._claim(node), False
        if type(node) is _TURNED and self._owners.readers[node] == 1:
            behind = self._owners.edges[node][0][0]
            if type(behind) is LEAF:
                self.claimed.add(node)
                return self._claim(behind), True
        return None, False

    def _claim(self, leaf: Any) -> Source:
        if self._owners.readers[leaf] != 1 or self._owners.run_of((leaf, 0)) != SHARED:
            raise KeyError("used elsewhere, or not by all examples alike")
        self.claimed.add(leaf)
        return self._sources[id(leaf.variable)]


def linear_layers(owners: BatchAxes, sources: Mapping[int, Source]) -> list[LinearLayer] | None:
    """The layers that use ``sources``, by identity, on the way to the losses, or None if that is not all there is.

    Guarantee: each row of the output of a layer belongs to one example, no parameter is used anywhere else, and no
    other tensor is read by several examples.
    """
    if owners.mixes:
        return None
    found = _Layers(owners, sources)
    try:
        layers = [found.layer(node) for node in owners.runs if type(node) in _PRODUCTS]
    except (
        AttributeError,
        KeyError,
        RuntimeError,
    ):  # a use of another kind, or of an input changed meanwhile
        return None
    for node, runs in owners.runs.items():
        if (type(node) is LEAF or SHARED in runs.values()) and node not in found.claimed:
            return None
    return [layer for layer in layers if layer is not None]


class LinearNetworks:
    """:func:`linear_layers`, remembered for graphs of the same structure.

    What it finds depends on the types of the nodes, their edges, the shapes of what goes along them, the numbers that
    rules read of nodes, and which parameters are at the ends: on nothing else. All of that is written down anew for
    the graph of each batch, and is what an earlier answer is found by. Graphs with a rule that reads more, such as
    the indices of a batch, are walked in full each time. Where the examples are the first dimension of everything
    that they own, their number does not matter: see :func:`examples_lead`.
    """

    def __init__(self, sources: Mapping[int, Source]) -> None:
        self._sources = sources
        self._known: dict[tuple[Any, ...], list[tuple[int, LinearLayer]]] = {}

    def layers(self, losses: Tensor) -> list[LinearLayer] | None:
        """The layers behind ``losses``, or None if that is not all there is."""
        found = structure_of(losses)
        if found is None:
            return linear_layers(BatchAxes(losses), self._sources)
        structure, nodes = found
        known = self._known.get(structure) or self._known.get((len(losses), *structure))
        if known is not None:
            try:
                return [layer.at(nodes[place]) for place, layer in known]
            except RuntimeError:  # an input was changed meanwhile
                return None
        owners = BatchAxes(losses)
        layers = linear_layers(owners, self._sources)
        if layers is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            places = {node: place for place, node in enumerate(nodes)}
            key = structure if examples_lead(owners) else (len(losses), *structure)
            self._known[key] = [
                (places[layer.node], layer._replace(node=None, input=None)) for layer in layers
            ]
        return layers


def structure_of(losses: Tensor) -> tuple[tuple[Any, ...], list[Any]] | None:
    """All that :func:`linear_layers` reads of a graph, and its nodes; None if it might read more.

    A first dimension that is as large as the number of examples is not written as a number, but as that.
    """
    if losses.grad_fn is None:
        return None
    nodes: list[Any] = [losses.grad_fn]
    places = {nodes[0]: 0}
    count = len(losses)
    parts: list[Any] = [losses.output_nr, count > 1]
    for node in nodes:  # which grows as we go
        kind: Any = type(node)
        if kind is LEAF:
            parts.append(id(node.variable))
            continue
        names = numbers_read(kind)
        if names is None:
            return None
        edges = node.next_functions
        parts += (kind, len(edges))
        for name in names:
            value = getattr(node, name)
            parts.append(tuple(value) if isinstance(value, list) else value)
        for producer, number in edges:
            if producer is None:
                parts.append(None)
                continue
            place = places.get(producer)
            if place is None:
                place = places[producer] = len(nodes)
                nodes.append(producer)
            shape = tuple(producer._input_metadata[number].shape)
            if shape and shape[0] == count:
                parts += (place, number, _EXAMPLES, shape[1:])
            else:
                parts += (place, number, shape)
    return tuple(parts), nodes


def examples_lead(owners: BatchAxes) -> bool:
    """Return whether everything that examples own has them as its first dimension, one row each, and there are
    several.

    Guarantee: then :func:`linear_layers` gives the same for every other graph of the same :func:`structure_of`, of
    however many examples, if more than one. By induction from the losses: where the rows of a node's output are the
    examples, its rule compares only whole shapes, the first dimension of an input with the number of examples or
    with 1, and dimensions that do not count examples. Written as in the structure, all of them are equal in the one
    graph where they are in the other.
    """
    for node, runs in owners.runs.items():
        for number, run in runs.items():
            shape = shape_of((node, number))
            leads = shape and shape[0] == owners.examples and run == math.prod(shape[1:])
            if run != SHARED and not leads:
                return False
    return owners.examples > 1


def gradients_in_graph(
    parameters: Mapping[str, Tensor], losses: Tensor, layers: list[LinearLayer], scratch: Scratch
) -> Gradients:
    """The gradients of all parameters, by a backward pass that goes no further than the layers."""
    ends, examples = tuple([GradientEdge(layer.node, 0) for layer in layers]), len(losses)
    grads = _differentiate(
        (losses,), (torch.ones_like(losses),), False, False, ends, False, accumulate_grad=False
    )
    if all(map(_is_plain, parameters.values())) and all(
        _is_plain(grad) and len(grad) == examples for grad in grads
    ):
        return LinearGradients(parameters, examples, layers, list(grads))
    uses = [
        use for layer, grad in zip(layers, grads, strict=True) for use in layer.uses(grad, examples, scratch)
    ]
    return Gradients(parameters, examples, uses, {})


def _is_plain(value: Tensor) -> bool:
    """Return whether the compiled loops can read it."""
    return value.dtype == torch.float32 and norms.on_host(value)


def _in_memory(value: Tensor) -> Tensor:
    """Its rows one after the other, each number as it is: a lazy change of sign is not in the memory."""
    return value.contiguous().resolve_neg()


class LinearGradients(Gradients):
    """Gradients of networks whose layers are linear maps of one row per example.

    Norms are found by one call for all layers, and so are the sums of those that are small.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], examples: int, layers: list[LinearLayer], grads: list[Tensor]
    ) -> None:
        super().__init__(parameters, examples, [], {})
        self._layers = layers
        self._hold(
            [
                grad[:, :0] if layer.weight is None else layer.input.detach()
                for layer, grad in zip(layers, grads, strict=True)
            ],
            grads,
        )

    def _hold(self, inputs: list[Tensor], grads: list[Tensor]) -> None:
        self._inputs, self._grads = list(map(_in_memory, inputs)), list(map(_in_memory, grads))

    def _table(self, blocks: Mapping[str, int] | None, sums: Sums | None) -> Table:
        """The layers as the compiled loops read them; without ``blocks`` there is one for all parameters.

        Of ``sums`` they learn those of small layers only.
        """
        rows = []
        for layer, a, g in zip(self._layers, self._inputs, self._grads, strict=True):
            places = [-1, -1, 0, 0]
            told = sums if sums is not None and _is_small(layer, a, g) else None
            for k, source in enumerate((layer.weight, layer.bias)):
                if source is not None:
                    places[k] = 0 if blocks is None else blocks[source.name]
                    if told is not None:
                        places[2 + k] = told[source.name].data_ptr()
            rows.append((a.data_ptr(), g.data_ptr(), a.shape[1], g.shape[1], *places))
        return np.array(rows, np.int64)

    def squared_norms(self, blocks: dict[str, int]) -> Tensor:
        table = self._table(blocks, None)
        return torch.from_numpy(norms_of_layers(table, self.examples, 1 + max(blocks.values())))

    def forget(self, bad: Tensor) -> None:
        self._hold([without(a, bad) for a in self._inputs], [without(g, bad) for g in self._grads])

    def _large(self) -> list[int]:
        """The layers whose sums are products of matrices, because they take longer than a call."""
        layers = zip(self._layers, self._inputs, self._grads, strict=True)
        return [place for place, layer in enumerate(layers) if not _is_small(*layer)]

    def clipped_sums(self, rule: Flat, error: float) -> Sums | None:
        """The sums of clipped gradients by one call for all layers, if all of them are small.

        ``error`` is that of norms and products, as in :meth:`~discreet.core.clipping.Flat.factors`.
        """
        if self._large():
            return None
        sums = Sums(self.parameters)
        add_clipped_sums_of_layers(
            self._table(None, sums), self.examples, rule.clip_norm, upper_bound_of(error), *_LIMITS
        )
        return sums

    def add_to(self, sums: Sums, blocks: dict[str, int], weights: Tensor) -> None:
        rows = add_sums_of_layers(self._table(blocks, sums), weights.numpy(), *_LIMITS)
        for place in self._large():
            layer, a, g = self._layers[place], self._inputs[place], self._grads[place]
            if layer.weight is not None:
                left, right = (a, g) if layer.transposed else (g, a)
                column = torch.from_numpy(rows[blocks[layer.weight.name]])
                _add_products(sums[layer.weight.name], left, right, column)
            if layer.bias is not None:
                column = torch.from_numpy(rows[blocks[layer.bias.name]])
                sums[layer.bias.name].addmv_(g.mT, column)


def _is_small(layer: LinearLayer, a: Tensor, g: Tensor) -> bool:
    """Return whether a layer's sum is found by the compiled loop."""
    return a.numel() * g.shape[1] <= SMALL and not layer.transposed


def _add_products(total: Tensor, left: Tensor, right: Tensor, weights: Tensor) -> None:
    """Add the weighted sum of the products of rows."""
    if left.shape[1] < right.shape[1]:
        total.addmm_((left * weights.unsqueeze(1)).mT, right)
    else:
        total.addmm_(left.mT, right * weights.unsqueeze(1))
