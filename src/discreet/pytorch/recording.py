"""A forward pass that writes down every use of a parameter, and leaves model and tensors as they are.

PyTorch shows each call of the forward pass to a function mode. Calls that have a rule run with the values of
their parameters cut off from the graph, so that the backward pass never forms a summed weight gradient, and
a hook on their output hands its gradient to the uses. All other calls run unchanged: if a parameter goes
through one of them into the losses, the backward pass still leads to it, and then it gets no rule.

A call whose result depends on parameters only (a transposed or normalised weight, a table of positions) and is read
by all examples is a *constant* call: its result stands for its parameters from then on. By the chain rule that is
right for every result of this kind; which calls are worth it shows in the graph.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.errors import InvalidParameter
from discreet.pytorch.batch_axis import BatchAxes, DataFlow, Place, place_of
from discreet.pytorch.checks.deterministic_rng import body
from discreet.pytorch.graph_rules import SHARED
from discreet.pytorch.layer_rules import RULES, SAVING_NOTHING, UNROLLED, keeps_length
from discreet.pytorch.layer_rules.use import Layout, Scratch, Source, Use

Key = tuple[str, str, int]
"""The n-th call of a function with certain sources: the same place of the model in every forward pass."""


_ASSIGNING = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__"}


class CallSite:
    """A call with a rule: the uses that wait for the gradient of its output, and where the examples are in it."""

    def __init__(self, key: Key, uses: list[Use]) -> None:
        self.key = key
        self.uses = uses
        self.layout: Layout | None = None

    @property
    def names(self) -> Iterator[str]:
        """The parameters behind the uses."""
        return (name for use in self.uses for name in use.source.roots)


class Recording(TorchFunctionMode):
    """The mode, for one forward and one backward pass over ``count`` examples.

    ``constant`` are the constant calls that earlier passes have found; ``data`` are the tensors of the batch.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        constant: Iterable[Key],
        count: int,
        scratch: Scratch,
        data: Iterable[Tensor],
    ) -> None:
        super().__init__()
        device = next(iter(parameters.values())).device if parameters else None
        # Makes outputs require a gradient where the input of the first layer does not.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.sources: dict[int, Source] = {
            id(value): Source.of(name, value) for name, value in parameters.items()
        }
        self.parameters, self.count, self.scratch = parameters, count, scratch
        self.constant = frozenset(constant)
        self.uses: list[Use] = []
        self.losses: Tensor | None = None
        self.distrusted: set[str] = set()
        self.differentiated = (
            False  # the losses differentiate by themselves, so that gradients come too early
        )
        self._sites: list[tuple[CallSite, Place, Tensor]] = []
        self._maybe_constant: list[tuple[Key, Place]] = []
        self._seen: dict[tuple[str, str], int] = {}
        self._ends: list[Tensor] = []  # of the graph, besides the parameters
        self._times_used: Counter[str] = Counter()
        self._data = DataFlow(data)
        self._hooked = False  # something may change gradients behind the back of the graph
        self._again = False  # in the backward pass, when checkpoints repeat parts of the forward pass
        self._repeats = False  # whether there are checkpoints
        self._kept: list[Tensor] = []  # results whose identity must not be given to another tensor

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._again:
            return self.record_call(func, args, kwargs)
        self._hooked = self._hooked or is_hooked(func, args)
        return self._data.after(func, args, kwargs, self.record_call(func, args, kwargs))

    def record_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, in which uses of parameters have been written down."""
        sources = self.sources_in(args, kwargs)
        if func == torch.embedding_renorm_:
            needed = "must be None: it changes the weights by what a batch contains, outside of the noise."
            raise InvalidParameter("Embedding.max_norm", "set", needed)
        if not sources or not torch.is_grad_enabled() or _is_transformed():
            return func(*args, **kwargs)
        if func in UNROLLED:
            with self:
                written_out = UNROLLED[func](func, args, kwargs)
            return func(*args, **kwargs) if written_out is None else written_out
        if isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional":
            with self:
                return body(func)(*args, **kwargs)
        rule = RULES.get(func)
        if rule is None and _called_name(func) in _NO_CALLS:
            return func(*args, **kwargs)
        return self.call_by_rule(rule, func, args, kwargs, sources)

    def call_by_rule(
        self, rule: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sources: list[Source]
    ) -> Any:
        key = self._key(func, sources)
        if _in_place(func):  # what was read before is not what is there now
            self.distrusted.update(name for source in sources for name in source.roots)
            return func(*args, **kwargs)
        if self._is_constant(key, func, args, kwargs):
            return self.follow(key, func, args, func(*args, **kwargs), sources)
        found = None if rule is None else rule(self, func, args, kwargs)
        if found is None or _out_of_reach(found[0]):
            result = func(*args, **kwargs)
            if not self._again:
                self._may_be_constant(key, _differentiable(result), args, kwargs)
            return result
        output, uses, *result = found
        output = self.attach(output)
        if not self._again:
            self._visit(CallSite(key, uses), output)
            if not result:
                self._may_be_constant(key, [output], args, kwargs)
        return result[0] if result else output

    def _key(self, func: Any, sources: list[Source]) -> Key:
        place = (_called_name(func), ",".join([source.name for source in sources]))
        number = self._seen.get(place, 0)
        self._seen[place] = number + 1
        return (*place, number)

    def _is_constant(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._again or is_checkpointed():  # the way back must not need what will be computed again
            tensors = (value for value in _leaves(args, kwargs) if isinstance(value, Tensor))
            return func in SAVING_NOTHING and all(id(value) in self.sources for value in tensors)
        return key in self.constant and self.only_parameters(args, kwargs)

    def _may_be_constant(
        self, key: Key, results: Iterable[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.only_parameters(args, kwargs) and not is_checkpointed():
            self._maybe_constant += [(key, place_of(tensor)) for tensor in results]

    def _visit(self, site: CallSite, output: Tensor) -> None:
        """Wait at the output of a site for its gradient."""
        node, number = place_of(output)
        self._sites.append((site, (node, number), output))
        self._repeats = self._repeats or is_checkpointed()

        def on_arrival(
            grads: tuple[Tensor | None, ...],
        ) -> None:  # which must not hold the node that holds it
            grad = grads[number]
            if not self._again:
                self.differentiated = True
            elif grad is not None and site.layout is not None:
                with torch._C.DisableTorchFunction() if self._repeats else nullcontext():
                    self._receive(site, grad, site.layout)

        node.register_prehook(on_arrival)  # a hook of the tensor costs several times as much

    def settle(self, losses: Tensor) -> set[Key]:
        """Find out where the examples are at every site, and return constant calls that were not known as such.

        Guarantee: a site gets a layout only if the graph of these very losses proves it; the parameters of all
        others are distrusted, and where examples may meet or hooks were set, all parameters are.
        """
        owners = BatchAxes(losses)
        for site, place, output in self._sites:
            layout = owners.layout_of(place, tuple(output.shape))
            if layout is not None and all(use.accepts(layout, output) for use in site.uses):
                site.layout = layout
                self._times_used.update(site.names)
            elif owners.run_of(place) is not None:
                self.distrusted.update(site.names)
        shared_data = any(owners.run_of(place) == SHARED for place in self._data.places)
        if owners.mixes or shared_data or self._hooked:
            self.distrusted.update(self.parameters)
        found = {key for key, place in self._maybe_constant if owners.run_of(place) == SHARED}
        known = {id(value) for value in self.parameters.values()}
        self._ends = [leaf for leaf in owners.leaves if id(leaf) not in known]
        self.forget_graph()
        return found - self.constant

    def forget_graph(self) -> None:
        """Let go of the graph, whose hooks hold on to this recording."""
        self._sites.clear()
        self._maybe_constant.clear()
        self._data.places.clear()

    def differentiate(self, losses: Tensor) -> None:
        """The backward pass of losses that were settled, which brings the gradients to the uses.

        Checkpoints repeat their part of the forward pass under this mode.
        """
        self._again = True
        differentiate = body(torch.autograd.grad)
        inputs = [*self.parameters.values(), *self._ends]  # all ends, so that no hook is left out
        with self if self._repeats else nullcontext():
            found = differentiate(losses, inputs, torch.ones_like(losses), allow_unused=True)
        # What the backward pass reaches by itself went into the losses by a way that has no rule.
        escaped = zip(self.parameters, found, strict=False)
        self.distrusted.update(name for name, grad in escaped if grad is not None)

    def _receive(self, site: CallSite, grad: Tensor, layout: Layout) -> None:
        for use in site.uses:
            use.receive(grad, layout, self.count, self.scratch, site.key)
            if use.source.isometric and all(self._times_used[name] == 1 for name in use.source.roots):
                use.measure()
            self.uses.append(use)

    def source_of(self, value: Any) -> Source | None:
        return self.sources.get(id(value))  # all of them are alive, so no other object has their identity

    def sources_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Source]:
        found = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if id(value) in self.sources:
                found.append(self.sources[id(value)])
            elif isinstance(value, (tuple, list)):
                found += self.sources_in(tuple(value), {})
        return found

    def only_parameters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Nothing in the call needs a gradient except for parameters and what follows from them, nor is it data."""
        leaves = [value for value in _leaves(args, kwargs) if isinstance(value, Tensor)]
        known = all(id(value) in self.sources for value in leaves if value.requires_grad)
        return known and not self._data.enters(leaves)

    def attach(self, output: Tensor) -> Tensor:
        """The output as part of the graph, even if nothing before it needs a gradient."""
        return output if output.requires_grad else _Attach.apply(self.anchor, [output])  # type: ignore[no-untyped-call]

    def follow(self, key: Key, func: Any, args: tuple[Any, ...], result: Any, sources: list[Source]) -> Any:
        """Remember the result of a constant call as a source of its own."""
        same_length = len(sources) == 1 and sources[0].isometric and keeps_length(func, args)
        for place, tensor in enumerate(_leaves((result,), {})):
            if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in self.sources:
                roots: dict[str, Tensor] = {}
                for source in sources:
                    roots |= source.roots
                if tensor.dtype in (torch.float16, torch.bfloat16):
                    continue  # a sum rounded to so few digits is not bounded by the clip norm: let it escape
                name = f"{key[0]}({key[1]})[{key[2]}.{place}]"
                self.sources[id(tensor)] = Source(name, tensor, roots, same_length)
                self._kept.append(tensor)
        return result


class _Attach(torch.autograd.Function):
    """Joins a tensor to the graph without copying it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, boxed: list[Tensor]) -> Tensor:
        return boxed[0].data  # in a box it is no input, and as data no view: it may be changed in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.new_zeros(()), None


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """All arguments, also those inside of lists and tuples."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from _leaves(tuple(value), {})
        else:
            yield value


def _differentiable(result: Any) -> list[Tensor]:
    """The tensors of a result that lead back to something."""
    return [
        value for value in _leaves((result,), {}) if isinstance(value, Tensor) and value.grad_fn is not None
    ]


_NO_CALLS = {"size", "dim", "numel", "__len__", "is_floating_point"}  # their results carry no gradient


def _out_of_reach(output: Tensor) -> bool:
    """Nested tensors have no shape to look at; gradients of complex ones are no gradients of real weights."""
    return output.is_nested or output.is_complex()


def _is_transformed() -> bool:
    """Return whether the losses are inside of ``torch.func``, where no hook is called: the parameters escape."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@lru_cache
def _called_name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


@lru_cache
def _in_place(func: Any) -> bool:
    name = _called_name(func)
    return name in _ASSIGNING or (name.endswith("_") and not name.endswith("__"))


# A hook on a tensor may do anything with the gradients of a whole batch, and hooks on saved tensors decide
# what the backward pass reads. Where a forward pass sets one, every gradient is formed from its example
# alone. Checkpoints are such hooks too, of a known kind: they run a part of the forward pass again.
_CHECKPOINTS = "torch.utils.checkpoint"
_HARMLESS = (_CHECKPOINTS, "torch.autograd.graph")  # the latter for tensors that wait in other memory

_HOOKING = {
    Tensor.register_hook,
    vars(torch._C.TensorBase)["grad_fn"].__get__,
    vars(torch._C.TensorBase)["_backward_hooks"].__set__,
}
"""How a forward pass gets at the gradients of a tensor: by itself, or by its node."""


def is_hooked(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether this call, or whatever surrounds it, may change gradients without a node of the graph."""
    return (func in _HOOKING and not _gathers(func, args)) or _keeper() not in (None, *_HARMLESS)


def _gathers(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the hook is that of a sharded layer, which leaves the gradient as it is."""
    states = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if states is None or func is not Tensor.register_hook or len(args) != 2:
        return False
    return getattr(args[1], "__func__", None) is states.FSDPState._pre_backward


def is_checkpointed() -> bool:
    """Return whether what is saved for the backward pass will be computed again."""
    return _keeper() == _CHECKPOINTS


def _keeper() -> str | None:
    """Return the module that decides how tensors are saved for the backward pass, or None."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else str(getattr(hooks[0], "__module__", ""))
