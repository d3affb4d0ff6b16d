"""Finds out, once per model, where the examples are at each use of a parameter.

The forward pass runs on two and on three examples: what grows along is the dimension of the examples, and
what does not grow at all has no examples in it. Then each of three losses is differentiated on its own: the
gradient must be zero at all places that the layout gives to other examples. The same with the examples in
reverse order, as a model might sort them. A site that fails a test gets no layout, and its parameters are
left to ``torch.func``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from discreet.pytorch.examples import first_examples
from discreet.pytorch.layouts import Layout, scaling_dimensions
from discreet.pytorch.per_example import Losses, WithLosses, checked_losses
from discreet.pytorch.recording import Key, Recorder, Site, gradients

SMALL, LARGE = 2, 3
DEEPEST = 8  # constant calls of constant calls of ...


@dataclass
class Findings:
    """What the recorder of a training step needs to know."""

    layouts: dict[Key, Layout | None] = field(default_factory=dict)
    constant: set[Key] = field(default_factory=set)


class _Probe(Recorder):
    """Notes shapes and graph edges and never touches a gradient."""

    def __init__(self, parameters: dict[str, Tensor], constant: set[Key]) -> None:
        super().__init__(parameters, constant)
        self.sites: dict[Key, tuple[Site, GradientEdge]] = {}
        self.unknowns: dict[Key, list[tuple[int, ...]]] = {}
        self.free: set[Key] = set()

    def site(self, site: Site) -> None:
        self.sites[site.key] = (site, get_gradient_edge(site.output))

    def called(self, rule: Any, func: Any, args: Any, kwargs: Any, sources: Any) -> Any:
        before = len(self.sites)
        result = super().called(rule, func, args, kwargs, sources)
        if len(self.sites) > before and self.only_parameters(args, kwargs):
            self.free.add(next(reversed(self.sites)))
        return result

    def unknown(self, key: Key, result: Any) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        tensors = [value for value in results if isinstance(value, Tensor) and value.requires_grad]
        if tensors:
            self.unknowns[key] = [tuple(value.shape) for value in tensors]


@torch.enable_grad()
def probe(model: nn.Module, losses: Losses, parameters: dict[str, Tensor], batch: Any) -> Findings:
    """Layouts and constant calls, from the first examples of a batch; leaves no trace in the model."""
    findings = Findings()
    devices = sorted({p.device.index or 0 for p in parameters.values() if p.device.type == "cuda"})
    for _ in range(DEEPEST):
        with torch.random.fork_rng(devices):
            small, _values = _run(model, losses, parameters, batch, SMALL, findings.constant)
            large, values = _run(model, losses, parameters, batch, LARGE, findings.constant)
        new = _constant_calls(small, large)
        if not new:
            break
        findings.constant |= new
    turned = first_examples(batch, LARGE, turned=True)
    with torch.random.fork_rng(devices):
        back, back_values = _run(model, losses, parameters, turned, LARGE, findings.constant)
    single, single_back = _single_gradients(values, large), _single_gradients(back_values, back)
    for key, (site, _edge) in large.sites.items():
        grads = [alone[key] for alone in single]
        grads_back = [alone.get(key) for alone in single_back]
        same = key in back.sites and back.sites[key][0].shape == site.shape
        findings.layouts[key] = _layout(key, site, small, [grads, grads_back]) if same else None
    return findings


def _run(
    model: nn.Module,
    losses: Losses,
    parameters: dict[str, Tensor],
    batch: Any,
    count: int,
    constant: set[Key],
) -> tuple[_Probe, Tensor]:
    recorder = _Probe(parameters, constant)
    copies = {f"model.{name}": value.clone() for name, value in model.named_buffers()}
    whole, examples = WithLosses(model, losses), first_examples(batch, count)
    with recorder:
        values = checked_losses(
            lambda _, part: functional_call(whole, copies, (part,)), model, examples, count
        )
    return recorder, values


def _constant_calls(small: _Probe, large: _Probe) -> set[Key]:
    """Calls whose results are the same size for two and for three examples, and use parameters only."""
    known = {key: [site.shape] for key, (site, _) in large.sites.items() if key in large.free}
    before: dict[Key, Any] = {key: [site.shape] for key, (site, _) in small.sites.items()} | small.unknowns
    return {key for key, shapes in (known | large.unknowns).items() if before.get(key) == shapes}


def _single_gradients(values: Tensor, probe: _Probe) -> list[dict[Key, Tensor | None]]:
    """For each loss alone, the gradients of the outputs of all sites."""
    edges = [edge for _, edge in probe.sites.values()]
    if not edges or not values.requires_grad:
        return [dict.fromkeys(probe.sites) for _ in values]
    probe.again = True
    alone = list(values)
    with probe:
        found = [gradients(value, edges) for value in alone]
    return [dict(zip(probe.sites, grads, strict=True)) for grads in found]


def _layout(key: Key, site: Site, small: _Probe, runs: list[list[Tensor | None]]) -> Layout | None:
    """The one layout that agrees with everything seen, or None."""
    if key not in small.sites or len(small.sites[key][0].shape) != len(site.shape):
        return None
    dims = scaling_dimensions(small.sites[key][0].shape, site.shape, (SMALL, LARGE))
    if len(dims) != 1:
        return None
    folded = site.shape[dims[0]] != LARGE
    possible = [Layout(dims[0], folded, inner) for inner in ((False, True) if folded else (False,))]
    seen = [(place, grad) for grads in runs for place, grad in enumerate(grads) if grad is not None]
    apart = [layout for layout in possible if all(_own_only(layout, grad, place) for place, grad in seen)]
    if len(apart) != 1 or not all(use.accepts(apart[0], site.output) for use in site.uses):
        return None
    return apart[0]


def _own_only(layout: Layout, grad: Tensor, place: int) -> bool:
    """Whether the gradient of one loss stays with its own example."""
    rows = layout.examples_first(grad, LARGE)
    return not any(bool(torch.any(rows[other] != 0)) for other in range(LARGE) if other != place)
