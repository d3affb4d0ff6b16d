"""Draws that several examples share: a layer that is left out for all of a batch, one shift for all of its images.

A step may be worked off in parts, and several processes have a part each. Whoever shares a draw shares it with those
in the same part, and who these are depends on who else was drawn: with one record less everybody moves up by one.
Nobody knows the draws, but which examples go together shows in the sum, the more the more parts there are: of 800
examples in parts of two, one of them moved a product of neighbours by ten standard deviations, at a noise multiplier
of 1. Draws of each example's own have the same distribution with and without another one.

So the numbers that are drawn at each place of the code are counted for batches of two sizes. Where they are as many,
one draw serves several examples. It is refused if it matters: if the losses change where that place draws again and
nothing else does. Models that draw whether to leave out a layer, and never do, pass.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from discreet.errors import CheckFailed
from discreet.pytorch.checks.batch_dependence import close
from discreet.pytorch.checks.deterministic_rng import Place
from discreet.pytorch.checks.generators import set_states_of_torch, states_of_torch
from discreet.pytorch.checks.seeded_generators import global_functions, seeded
from discreet.pytorch.per_example import Losses, number_of_examples, select, tensors_of

COUNTS = 8  # seeds: draws that decide about others are not always as many
TRIES = 48  # so that what happens once in ten times is missed in one of a hundred models
TOLERANCE = 1e-4

Site = tuple[str, float]
"""A function that draws, and a number for the place in the code where it is called."""


def refuse_shared_randomness(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Raise :class:`CheckFailed` if one draw decides about several of ``examples``."""
    fewer = select(examples, slice(0, number_of_examples(examples) // 2))
    shared = _shared(lambda: losses(model, examples), lambda: losses(model, fewer))
    if not shared:
        return
    for seed in range(TRIES):
        with seeded(seed):
            first = losses(model, examples).detach()
        with seeded(seed), _redrawing(shared):
            second = losses(model, examples).detach()
        if not close(first.double(), second.double(), TOLERANCE):
            raise CheckFailed(
                "One draw decides about several examples of a batch, as in layer dropout or the stochastic depth of "
                "whole batches. Who shares it depends on who else is in the batch, which no clip norm bounds. Draw "
                "for each example by itself, or leave it out (in transformers: layerdrop=0)."
            )


def _shared(draw: Callable[[], object], draw_for_fewer: Callable[[], object]) -> set[Site]:
    """Return the places at which as many numbers are drawn for all examples as for half of them, for any seed."""
    found: set[Site] | None = None
    for seed in range(COUNTS):
        all_of_them, fewer = (_counts(each, seed) for each in (draw, draw_for_fewer))
        alike = {site for site, count in all_of_them.items() if count == fewer.get(site)}
        found = alike if found is None else found & alike
        if not found:
            break
    return found or set()


def _counts(draw: Callable[[], object], seed: int) -> Counter[Site]:
    counts: Counter[Site] = Counter()

    def note(site: Site, result: Any, again: Callable[[], Any]) -> Any:
        counts[site] += _size(result)
        return result

    with seeded(seed), _watching(note):
        draw()
    return counts


@contextmanager
def _redrawing(shared: set[Site]) -> Iterator[None]:
    """Repeat the draws at these places, and leave all that follow as they were."""
    with _watching(lambda site, result, again: again() if site in shared else result):
        yield


def _size(result: Any) -> int:
    tensors = list(tensors_of(result))
    return sum(tensor.numel() for tensor in tensors) if tensors else int(np.size(result))


Note = Callable[[Site, Any, Callable[[], Any]], Any]
"""Of a site, what was drawn there, and a function that draws it again: what the caller is given."""


@contextmanager
def _watching(note: Note) -> Iterator[None]:
    place, functions = Place(0, entered=0), global_functions()
    try:
        for owner, name, function in functions:
            setattr(owner, name, _watched(owner, name, function, note, place))
        with _Watching(note, place):
            yield
    finally:
        for owner, name, function in functions:
            setattr(owner, name, function)


class _Watching(TorchFunctionMode):
    """Over torch's functions; those within ``vmap`` draw for each example, if they are told to."""

    def __init__(self, note: Note, place: Place) -> None:
        super().__init__()
        self._note, self._place = note, place

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **kwargs)
        before = states_of_torch()
        result = func(*args, **kwargs)
        after = states_of_torch()
        if all(map(torch.equal, before, after)):
            return result

        def again() -> Any:
            drawn = func(*args, **kwargs)
            set_states_of_torch(after)
            return drawn

        return self._note((str(getattr(func, "__name__", func)), self._place()), result, again)


def _watched(
    owner: Any, name: str, function: Callable[..., Any], note: Note, place: Place
) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        def again() -> Any:
            python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
            drawn = function(*args, **kwargs)
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            return drawn

        result = function(*args, **kwargs)
        found = note((f"{owner.__name__}.{name}", place()), args[0] if name == "shuffle" else result, again)
        return None if name == "shuffle" else found  # which changes its argument

    return draw
