"""Which example owns which rows of a tensor: proved on the graph of the very batch at hand.

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

from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.graph_rules import MIXED, Rows, Rule, Shape, joint, rule_of
from discreet.pytorch.layouts import Layout

Place = tuple[Any, int]
"""A node of the graph and the number of its output."""

_LEAF: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def place_of(output: Tensor) -> Place:
    """Where a tensor stands in the graph."""
    assert output.grad_fn is not None
    return output.grad_fn, output.output_nr


class Ownership:
    """The owners of all tensors that lead to ``losses``, one per example, except for leaves of the graph."""

    def __init__(self, losses: Tensor) -> None:
        self.examples = len(losses)
        self.mixes = False
        """Whether examples may meet anywhere: then even what is known to belong to one may hold others."""
        self.leaves: list[Tensor] = []
        """Where the graph ends: parameters, and whatever else requires a gradient."""
        self._runs: dict[Any, dict[int, int]] = {}
        if losses.grad_fn is not None:
            root = losses.grad_fn
            waiting = _consumers(root)
            self._runs[root] = {losses.output_nr: 1}
            self._walk(root, waiting)

    def run_of(self, place: Place) -> int | None:
        """The run of a tensor, SHARED or MIXED; None if it does not lead to the losses."""
        return self._runs.get(place[0], {}).get(place[1])

    def layout_of(self, place: Place, shape: Shape) -> Layout | None:
        """Where the examples are in a tensor of this shape, if each of its rows belongs to one of them."""
        run = self.run_of(place)
        if run is None or run <= 0:
            return None
        found = Rows(shape, run, self.examples).location()
        if found is None:
            return None
        dim, outer, inner = found
        if outer > 1 and inner > 1:
            return None
        return Layout(dim, folded=outer * inner > 1, inner=outer > 1)

    def _walk(self, root: Any, waiting: dict[Any, int]) -> None:
        """Visit each node after all that use its outputs."""
        ready = [root]
        while ready:
            node = ready.pop()
            outputs = self._outputs(node)
            if type(node) is _LEAF:
                self.leaves.append(node.variable)
            rule = rule_of(node.__class__)
            for edge, (producer, number) in enumerate(node.next_functions):
                if producer is None:
                    continue
                runs = self._runs.setdefault(producer, {})
                found = _passed_on(rule, node, outputs, edge, (producer, number))
                if found is not None:
                    runs[number] = joint(runs.get(number), found)
                    self.mixes |= runs[number] == MIXED and type(producer) is not _LEAF
                waiting[producer] -= 1
                if not waiting[producer]:
                    ready.append(producer)

    def _outputs(self, node: Any) -> list[Rows]:
        known = self._runs[node]
        try:
            shapes = [tuple(node._input_metadata[number].shape) for number in known]
        except RuntimeError:  # nested tensors have no shape
            return [Rows((), MIXED, self.examples)]
        return [Rows(shape, run, self.examples) for shape, run in zip(shapes, known.values(), strict=True)]


def _consumers(root: Any) -> dict[Any, int]:
    """All nodes behind ``root``, each with the number of edges that lead to it."""
    counts: dict[Any, int] = {root: 0}
    found = [root]
    for node in found:  # which grows as we go
        for producer, _ in node.next_functions:
            if producer is not None:
                if producer in counts:
                    counts[producer] += 1
                else:
                    counts[producer] = 1
                    found.append(producer)
    return counts


def _passed_on(rule: Rule | None, node: Any, outputs: list[Rows], edge: int, producer: Place) -> int | None:
    """What the owners of a node's outputs make of one of its inputs; None if nothing is read, as it is empty."""
    if rule is None and not outputs:
        return MIXED
    if rule is not None and _is_empty(producer):
        return None
    result: int | None = None
    for rows in outputs:
        found = rows.run  # what no example owns follows from what no example owns
        if found > 0:
            found = MIXED if rule is None else _by_rule(rule, node, rows, edge, producer)
        result = joint(result, found)
    return result


def _is_empty(place: Place) -> bool:
    try:
        return 0 in place[0]._input_metadata[place[1]].shape
    except (AttributeError, IndexError, RuntimeError):
        return False


def _by_rule(rule: Rule, node: Any, rows: Rows, edge: int, producer: Place) -> int:
    try:
        return rule(node, rows, edge, tuple(producer[0]._input_metadata[producer[1]].shape))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError):
        return MIXED  # an operation of another kind than its rule was written for
