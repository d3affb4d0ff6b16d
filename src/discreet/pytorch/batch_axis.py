"""Ownership of the rows of a tensor by examples, proved on the graph of each batch.

A per-example rule reads a row of an output gradient as that of one example. That is right if the row leads to
the loss of this example and to no other. Shapes do not tell, and neither do a few examples tried beforehand: a
model may sort its batch, pick the masked tokens, or subtract a mean. So the walk starts at the losses, where
element i belongs to example i, and follows the graph that this forward pass has left behind, operation by
operation, to the tensors of which rules want to know. Operations that keep examples apart are listed in
:mod:`discreet.pytorch.graph_rules` with what they do to the rows; behind everything else nobody owns anything.

Rows are named without regard to dimensions: in the order in which a tensor's elements are counted, the number of
elements that follow one another with the same example is its *run*, so element f belongs to example
``f // run % examples``. A change of shape leaves that as it is.

In docs/engines.md: E16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from discreet.pytorch.graph_rules import MIXED, RowLayout, Rule, Shape, joint, rule_of
from discreet.pytorch.layer_rules.use import Layout

Place = tuple[Any, int]
"""A node of the graph and the number of its output."""

LEAF: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def place_of(output: Tensor) -> Place:
    """Place of a tensor in the graph."""
    assert output.grad_fn is not None
    return output.grad_fn, output.output_nr


class BatchAxes:
    """The owners of all tensors that lead to ``losses``, one per example, except for leaves of the graph."""

    def __init__(self, losses: Tensor) -> None:
        self.examples = len(losses)
        self.mixes = False
        """Return whether examples may meet anywhere: then even what is known to belong to one may hold others."""
        self.leaves: list[Tensor] = []
        """Where the graph ends: parameters, and whatever else requires a gradient."""
        self.edges: dict[Any, tuple[Place, ...]] = {}
        """All nodes of the graph, each with the places of its inputs."""
        self.readers: dict[Any, int] = {}
        """By how many edges each of them is read."""
        self.runs: dict[Any, dict[int, int]] = {}
        """By node and number of its output: the run of a tensor, SHARED or MIXED."""
        if losses.grad_fn is not None:
            self._follow_edges(losses.grad_fn)
            self.runs[losses.grad_fn] = {losses.output_nr: 1}
            self._walk(losses.grad_fn)

    def run_of(self, place: Place) -> int | None:
        """The run of a tensor, SHARED or MIXED; None if it does not lead to the losses."""
        return self.runs.get(place[0], {}).get(place[1])

    def layout_of(self, place: Place, shape: Shape) -> Layout | None:
        """Return the position of the examples in a tensor of this shape, if each row belongs to one of them."""
        run = self.run_of(place)
        if run is None or run <= 0:
            return None
        found = RowLayout(shape, run, self.examples).location()
        if found is None:
            return None
        return Layout(*found[:2])

    def _follow_edges(self, root: Any) -> None:
        readers, found = self.readers, [root]
        readers[root] = 0
        for node in found:  # which grows as we go
            self.edges[node] = edges = node.next_functions
            for producer, _ in edges:
                if producer is not None:
                    if producer in readers:
                        readers[producer] += 1
                    else:
                        readers[producer] = 1
                        found.append(producer)

    def _walk(self, root: Any) -> None:
        """Visit each node after all that use its outputs."""
        ready, waiting, all_runs = [root], self.readers.copy(), self.runs
        while ready:
            node = ready.pop()
            kind: type = node.__class__
            if kind is LEAF:
                self.leaves.append(node.variable)
                continue
            outputs, rule = self._outputs(node), rule_of(kind)
            for edge, place in enumerate(self.edges[node]):
                producer, number = place
                if producer is None:
                    continue
                runs = all_runs.get(producer)
                if runs is None:
                    runs = all_runs[producer] = {}
                found = _pass_on(rule, node, outputs, edge, place)
                if found is not None:
                    runs[number] = run = joint(runs.get(number), found)
                    if run == MIXED and type(producer) is not LEAF:
                        self.mixes = True
                waiting[producer] -= 1
                if not waiting[producer]:
                    ready.append(producer)

    def _outputs(self, node: Any) -> list[RowLayout]:
        found = []
        for number, run in self.runs[node].items():
            shape = shape_of((node, number))
            if shape is None:
                return [RowLayout((), MIXED, self.examples)]
            found.append(RowLayout(shape, run, self.examples))
        return found


def shape_of(place: Place) -> Shape | None:
    """The shape of a tensor in the graph; None if it has none, as nested ones."""
    try:
        return tuple(place[0]._input_metadata[place[1]].shape)
    except (AttributeError, IndexError, RuntimeError):
        return None


def _pass_on(
    rule: Rule | None, node: Any, outputs: list[RowLayout], edge: int, producer: Place
) -> int | None:
    """Return the owners of one input of a node, from those of its outputs; None if it is empty."""
    if rule is None and not outputs:
        return MIXED
    shape = None if rule is None else shape_of(producer)
    if shape is not None and 0 in shape:
        return None
    result: int | None = None
    for rows in outputs:
        found = rows.run  # what no example owns follows from what no example owns
        if found > 0:
            found = MIXED if rule is None or shape is None else _by_rule(rule, node, rows, edge, shape)
        result = found if result is None else joint(result, found)
    return result


def _by_rule(rule: Rule, node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    try:
        return rule(node, rows, edge, shape)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError):
        return MIXED  # an operation of another kind than its rule was written for


# The graph tells which losses read a tensor, not whether the tensor is made of examples: a mean over the
# batch is read by all losses, just as a weight is. Python numbers are not followed.
# Results that have the size or the type of a tensor and nothing of its values.
_OF_NONE = {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"}
_OF_FIRST = {"to", "type_as", "expand_as", "view_as", "reshape_as"}


class DataFlow:
    """Follows ``tensors`` through calls."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        for tensor in tensors:
            self._known[id(tensor)] = tensor
        self.places: list[tuple[Any, int]] = []
        """Where in the graph there is data."""

    def enters(self, values: Iterable[Any]) -> bool:
        """Return whether one of these holds values of examples, at whatever depth."""
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self._known:
                    return True
            elif isinstance(value, (tuple, list)):
                if self.enters(value):
                    return True
            elif isinstance(value, dict) and self.enters(value.values()):
                return True
        return False

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The result of a call, remembered if values of examples went into it."""
        if not self.enters(_arguments_read(func, args, kwargs)):
            return result
        if not isinstance(result, Tensor) and isinstance(result, Iterator):  # over the rows of a tensor
            result = list(result)
            self._mark(result)
            return iter(result)
        written = args[0] if args and _writes(func) else kwargs.get("out")
        self._mark((result, written, written._base if isinstance(written, Tensor) else None))
        return result

    def _mark(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._known[id(value)] = value
                if value.grad_fn is not None:
                    self.places.append((value.grad_fn, value.output_nr))
            elif isinstance(value, (tuple, list)):
                self._mark(value)
            elif isinstance(value, dict):
                self._mark(value.values())


def _arguments_read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    """The arguments of which values may be in the result."""
    name = _name(func)
    if name in _OF_NONE or name.startswith("new_"):
        return ()
    if name in _OF_FIRST:
        return args[:1]
    return (*args, *kwargs.values()) if kwargs else args


def _writes(func: Any) -> bool:
    name = _name(func)
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name[:3] == "__i"
    )


@lru_cache
def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
