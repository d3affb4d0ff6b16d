"""A forward pass that writes down every use of a parameter, and leaves model and tensors as they are.

PyTorch shows each call of the forward pass to a function mode. Calls that have a rule run with the values of
their parameters cut off from the graph, so that the backward pass never forms a summed weight gradient, and
a hook on their output hands its gradient to the uses. All other calls run unchanged: if a parameter goes
through one of them into the losses, the backward pass still leads to it, and then it gets no rule.

A call whose result depends on parameters only (a transposed or normalised weight, a table of positions) is a
*constant* call: its result has no examples in it and stands for its parameters from then on.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.errors import InvalidParameter
from discreet.pytorch.layer_rules import ISOMETRIES, RULES, UNROLLED
from discreet.pytorch.layer_rules.use import Scratch, Source, Use
from discreet.pytorch.layouts import Layout

Key = tuple[str, str, int]
"""The n-th call of a function with certain sources: the same place of the model in every forward pass."""


_ASSIGNING = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__"}


class Site:
    """A call with a rule: its output's shape and place in the graph, and the uses that wait for a gradient."""

    def __init__(self, key: Key, output: Tensor, uses: list[Use]) -> None:
        self.key = key
        self.output = output
        self.shape = tuple(output.shape)
        self.uses = uses


class Recorder(TorchFunctionMode, ABC):
    """The mode. Subclasses decide what happens at a site and which calls are constant."""

    def __init__(self, parameters: dict[str, Tensor], constant: Iterable[Key] = ()) -> None:
        super().__init__()
        device = next(iter(parameters.values())).device if parameters else None
        # Makes outputs require a gradient where the input of the first layer does not.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.sources: dict[int, Source] = {
            id(value): Source(name, value, {name: value}, True) for name, value in parameters.items()
        }
        self.parameters = parameters
        self.constant = frozenset(constant)
        self.seen: dict[tuple[str, str], int] = {}
        self.again = False  # in the backward pass, when checkpoints repeat parts of the forward pass
        self.kept: list[Tensor] = []  # results whose identity must not be given to another tensor

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        sources = self.sources_in(args, kwargs)
        if func == torch.embedding_renorm_:
            needed = "must be None: it changes the weights by what a batch contains, outside of the noise."
            raise InvalidParameter("Embedding.max_norm", "set", needed)
        if not sources or not torch.is_grad_enabled() or _transformed():
            return func(*args, **kwargs)
        if func in UNROLLED:
            with self:
                written_out = UNROLLED[func](func, args, kwargs)
            return func(*args, **kwargs) if written_out is None else written_out
        if isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional":
            with self:
                return _body(func)(*args, **kwargs)
        rule = RULES.get(func)
        if rule is None and _called_name(func) in _NO_CALLS:
            return func(*args, **kwargs)
        return self.called(rule, func, args, kwargs, sources)

    def called(
        self, rule: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sources: list[Source]
    ) -> Any:
        place = (_called_name(func), ",".join([source.name for source in sources]))
        key = (*place, self.seen.get(place, 0))
        self.seen[place] = key[2] + 1
        if _in_place(func):
            self.spoiled(sources)
            return func(*args, **kwargs)
        if key in self.constant or (self.again and key[:2] in {known[:2] for known in self.constant}):
            if not self.only_parameters(args, kwargs):
                self.surprised()
            return self.followed(key, func, func(*args, **kwargs), sources)
        found = None if rule is None else rule(self, func, args, kwargs)
        if found is None:
            result = func(*args, **kwargs)
            if self.only_parameters(args, kwargs):
                self.unknown(key, result)
            return result
        output, uses, *result = found
        output = self.attached(output)
        if not self.again:
            self.site(Site(key, output, uses))
        return result[0] if result else output

    @abstractmethod
    def site(self, site: Site) -> None:
        """A call with a rule."""

    def unknown(self, key: Key, result: Any) -> None:
        """A call without a rule, which might be a constant one."""

    def spoiled(self, sources: list[Source]) -> None:
        """Sources that are changed in place: what was read before is not what is there now."""

    def surprised(self) -> None:
        """The forward pass is not the one that was expected."""

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
        """Nothing in the call needs a gradient except for parameters and what follows from them."""
        leaves = [value for value in _leaves(args, kwargs) if isinstance(value, Tensor)]
        return all(id(value) in self.sources for value in leaves if value.requires_grad)

    def attached(self, output: Tensor) -> Tensor:
        """The output as part of the graph, even if nothing before it needs a gradient."""
        return output if output.requires_grad else _Attach.apply(self.anchor, [output])  # type: ignore[no-untyped-call]

    def followed(self, key: Key, func: Any, result: Any, sources: list[Source]) -> Any:
        """Remember the result of a constant call as a source of its own."""
        same_length = len(sources) == 1 and sources[0].isometric and func in ISOMETRIES
        for place, tensor in enumerate(_leaves((result,), {})):
            if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in self.sources:
                roots: dict[str, Tensor] = {}
                for source in sources:
                    roots |= source.roots
                if tensor.dtype in (torch.float16, torch.bfloat16):
                    continue  # a sum rounded to so few digits is not bounded by the clip norm: let it escape
                name = f"{key[0]}({key[1]})[{key[2]}.{place}]"
                self.sources[id(tensor)] = Source(name, tensor, roots, same_length)
                self.kept.append(tensor)
        return result


class Recording(Recorder):
    """The recorder of a training step: layouts are known, gradients go to the uses as they arrive."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        constant: Iterable[Key],
        layouts: dict[Key, Layout | None],
        count: int,
        scratch: Scratch,
    ) -> None:
        super().__init__(parameters, constant)
        self.layouts, self.count, self.scratch = layouts, count, scratch
        self.uses: list[Use] = []
        self.times_used: Counter[str] = Counter()
        self.distrusted: set[str] = set()
        self.unexpected = False

    def site(self, site: Site) -> None:
        layout = self.layouts.get(site.key)
        names = [name for use in site.uses for name in use.source.roots]
        if site.key not in self.layouts or (layout and not layout.fits(site.output, self.count)):
            self.unexpected = True
        if layout is None or self.unexpected:
            self.distrusted.update(names)
            return
        for name in names:
            self.times_used[name] += 1
        key, uses, place = site.key, site.uses, site.output.output_nr

        def arrived(grads: tuple[Tensor | None, ...]) -> None:
            grad = grads[place]
            if not self.again:
                self.unexpected = True  # the losses differentiate by themselves
            elif grad is not None:
                for use in uses:
                    self.received(use, grad, layout, key)

        assert site.output.grad_fn is not None
        site.output.grad_fn.register_prehook(arrived)  # a hook of the tensor costs several times as much

    def spoiled(self, sources: list[Source]) -> None:
        self.distrusted.update(name for source in sources for name in source.roots)

    def surprised(self) -> None:
        self.unexpected = True

    def received(self, use: Use, grad: Tensor, layout: Layout, key: Key) -> None:
        use.receive(grad, layout, self.count, self.scratch, key)
        if use.source.isometric and all(self.times_used[name] == 1 for name in use.source.roots):
            use.measure()
        self.uses.append(use)


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


_NO_CALLS = {"size", "dim", "numel", "__len__", "is_floating_point"}  # their results carry no gradient


def _transformed() -> bool:
    """Whether the losses are inside of ``torch.func``, where no hook is called: the parameters escape."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@lru_cache
def _called_name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


@lru_cache
def _in_place(func: Any) -> bool:
    name = _called_name(func)
    return name in _ASSIGNING or (name.endswith("_") and not name.endswith("__"))


def _no(*_: Any) -> bool:
    return False


_BODIES: dict[Any, Callable[..., Any]] = {}


def _body(func: Any) -> Callable[..., Any]:
    """The function without the question whether somebody wants to override it, as that would be us again."""
    if func not in _BODIES:
        names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
        namespace = func.__globals__ | dict.fromkeys(names, _no)
        body = types.FunctionType(
            func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__
        )
        body.__kwdefaults__ = func.__kwdefaults__
        _BODIES[func] = body
    return _BODIES[func]


def gradients(outputs: Tensor, inputs: list[Any], weights: Tensor | None = None) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad`` that leaves the mode on, for checkpoints that repeat the forward pass."""
    differentiate = _body(torch.autograd.grad)
    found = differentiate(outputs, inputs, weights, retain_graph=weights is None, allow_unused=True)
    return tuple(found)
