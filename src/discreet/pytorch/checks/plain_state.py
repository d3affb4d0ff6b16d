"""State outside of parameters and buffers: attributes of modules, closures and globals of the losses.

The check tries NaN and other made-up values. What the model or the losses keep of them in a plain attribute, such as
a running mean, must not stay there: :class:`PlainState` puts all of it back. State that depends on earlier batches is
refused by :func:`refuse_memory`, because in a run it would carry statistics of the records out without noise. An
attribute that only holds something of the latest batch, a counter and a cache of shapes pass.

>>> layer = nn.Linear(1, 1)
>>> layer.mean, layer.log = 0.5, [1]
>>> state = PlainState(layer, lambda model, batch: None)
>>> layer.mean = float("nan"); layer.log.append(2); layer.more = 3
>>> state.restore()
>>> layer.mean, layer.log, hasattr(layer, "more")
(0.5, [1], False)
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.checks.batch_dependence import all_changed, losses_of
from discreet.pytorch.checks.state_guard import modules_of
from discreet.pytorch.per_example import Losses

DEEPEST = 5  # objects within objects
MOST_OBJECTS = 20_000
MOST_NUMBERS = 1 << 24  # of a tensor or an array that is kept
MOST_ENTRIES = 1_000  # of a list or dictionary whose entries are followed

_OF_TORCH = frozenset(nn.Module().__dict__)
_CODE = (type, types.ModuleType, types.BuiltinFunctionType, torch.dtype, torch.device)
_NUMBERS = (bool, int, float, complex, np.generic)


class PlainState:
    """A snapshot of what the model and the losses can reach and change besides parameters and buffers."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._undo: list[Callable[[], None]] = []
        self._numbers: dict[str, Any] = {}
        self._known: set[int] = {id(value) for value in (*model.parameters(), *model.buffers())}
        self._kept: list[object] = []  # so that no other object gets an identity that is known
        names = {id(module): name for name, module in model.named_modules()}
        for module in modules_of(model):
            self._known.add(id(module))
            name = repr(names[id(module)]) if names[id(module)] else "the model"
            of_module = f"the attribute {{}} of {name} ({type(module).__name__})"
            self._dictionary(module.__dict__, of_module, 0, without=_OF_TORCH)
        self._follow(losses, "{} of the losses", 0)

    def restore(self) -> None:
        """Put everything back as it was when the snapshot was taken."""
        for undo in self._undo:
            undo()

    def numbers(self) -> dict[str, Any]:
        """Numbers, tensors and arrays by a description of their place, lists left out."""
        return self._numbers

    def _follow(self, value: Any, place: str, depth: int) -> None:
        if isinstance(value, _NUMBERS):
            self._numbers[place] = value
        if isinstance(value, _CODE) or id(value) in self._known or len(self._known) > MOST_OBJECTS:
            return
        if isinstance(value, Tensor | np.ndarray):
            self._array(value, place)
        elif depth < DEEPEST:
            self._known.add(id(value))
            self._kept.append(value)
            self._container(value, place, depth)

    def _container(self, value: Any, place: str, depth: int) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, place, depth)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__, place, depth)
            self._follow(value.__self__, place, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._follow(part, place, depth)
        elif isinstance(value, dict):
            self._dictionary(value, place, depth)
        elif isinstance(value, list | deque):
            before = list(value)
            self._undo.append(functools.partial(_restore_list, value, before))
            if len(before) <= MOST_ENTRIES:
                for index, part in enumerate(before):
                    self._follow(part, f"{place}[{index}]" if isinstance(part, dict) else "", depth + 1)
        elif isinstance(value, set):
            self._undo.append(functools.partial(_restore_set, value, set(value)))
        elif isinstance(value, tuple):
            for index, part in enumerate(value):
                self._follow(part, f"{place}[{index}]", depth + 1)
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            self._dictionary(
                attributes, place, depth, without=_OF_TORCH if isinstance(value, nn.Module) else ()
            )

    def _dictionary(self, value: dict[Any, Any], place: str, depth: int, without: Any = ()) -> None:
        before = {name: part for name, part in value.items() if name not in without}
        self._undo.append(functools.partial(_restore_dictionary, value, before, without))
        if len(before) <= MOST_ENTRIES:
            for name, part in before.items():
                self._follow(part, _within(place, repr(name)), depth + 1)

    def _function(self, value: types.FunctionType, place: str, depth: int) -> None:
        self._dictionary(value.__dict__, place, depth)
        for part in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            self._follow(part, _within(place, "a default value"), depth + 1)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # a cell that is still empty
                self._undo.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
                self._follow(cell.cell_contents, _within(place, f"the variable {name!r}"), depth + 1)
        globals_of = value.__globals__
        for name in value.__code__.co_names:
            found = globals_of.get(name)
            if name in globals_of and not isinstance(found, (*_CODE, types.FunctionType)):
                self._undo.append(functools.partial(globals_of.__setitem__, name, found))
                self._follow(found, _within(place, f"the global variable {name!r}"), depth + 1)

    def _array(self, value: Any, place: str) -> None:
        self._known.add(id(value))
        self._kept.append(value)
        if isinstance(value, Tensor):
            if value.numel() <= MOST_NUMBERS and value.layout == torch.strided and not value.is_inference():
                self._numbers[place] = before = value.detach().clone()
                self._undo.append(functools.partial(_restore_tensor, value, before))
        elif value.size <= MOST_NUMBERS and value.dtype.kind in "biufc":
            self._numbers[place] = value.copy()
            self._undo.append(functools.partial(_restore_array, value, value.copy()))


def _within(place: str, name: str) -> str:
    """The description of a place within another: the outermost name is enough for a message."""
    return place.format(name) if "{}" in place else f"{place} → {name}"


def _restore_list(value: Any, before: list[Any]) -> None:
    if len(value) != len(before) or any(a is not b for a, b in zip(value, before, strict=True)):
        value.clear()
        value.extend(before)


def _restore_set(value: set[Any], before: set[Any]) -> None:
    if value != before:
        value.clear()
        value.update(before)


def _restore_dictionary(value: dict[Any, Any], before: dict[Any, Any], without: Any) -> None:
    for name in [name for name in value if name not in before and name not in without]:
        del value[name]
    for name, part in before.items():
        if name not in value or value[name] is not part:
            value[name] = part


def _restore_tensor(value: Tensor, before: Tensor) -> None:
    with torch.no_grad():
        if value.shape == before.shape and not _same(value.detach(), before):
            value.detach().copy_(before)


def _restore_array(value: Any, before: Any) -> None:
    if not _same(value, before):
        value[...] = before


def refuse_memory(state: PlainState, model: nn.Module, losses: Losses, examples: Any) -> None:
    """Raise :class:`CheckFailed` if something that is kept after a batch depends on the batch before it.

    ``state`` was taken before the first call of the losses; it is restored here.
    """
    after = []
    for earlier in (examples, all_changed(examples)):
        state.restore()
        with suppress(Exception):  # values that have no meaning here
            losses_of(model, losses, earlier)
        losses_of(model, losses, examples)
        after.append(PlainState(model, losses).numbers())
    state.restore()
    place = next(_different(*after), None)
    if place is not None:
        raise CheckFailed(
            f"What was computed from earlier batches stays in {place}. There it would carry statistics of the "
            "records out of the run without noise, and make the losses of one example depend on others. Keep nothing "
            "of a batch for the next one; use constants that are known without the records."
        )


def _different(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    for place in (*one, *(place for place in other if place not in one)):
        if place and not (place in one and place in other and _same(one[place], other[place])):
            yield place


def _same(one: Any, other: Any) -> bool:
    """Equal in type, shape and contents; NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
