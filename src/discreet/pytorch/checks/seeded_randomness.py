"""Draws that somebody knows: a model, losses or a collation that seed a generator, or bring one of their own.

What is drawn for a batch is divided among its examples one after the other. Where nobody knows the draws, as in a
step (:func:`~discreet.pytorch.checks.generators.unknown_draws`), one example less leaves the distribution of the
others' draws as it is. Where a seed is set on the way, in the forward pass, in the losses or in a collation that
masks words, it gives all others the draws of their neighbours: the clipped sum moves by many clip norms.

So a forward pass and a collation are made after two different seeds, and at every draw the state of its generator is
noted. One that is the same both times was set in between. Generators of one's own begin where they were seeded, and
are refused.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from discreet.errors import CheckFailed
from discreet.pytorch.checks.generators import devices_in_use, states_of_torch
from discreet.pytorch.checks.seeded_generators import global_functions, seeded
from discreet.pytorch.per_example import Losses

State = tuple[str, bytes]
REMEDY = (
    "so one record less would give all others other draws, which no clip norm bounds. Draw from the global "
    "generators of torch, numpy or random, and leave their seeds alone: those of a run are nobody's to know."
)


def refuse_seeded_randomness(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Raise :class:`CheckFailed` if what is drawn for the losses does not follow from the seed before."""
    _refuse("the model or the losses", lambda: losses(model, examples))


def refuse_seeded_collation(collate: Callable[[list[Any]], Any], rows: list[Any]) -> None:
    """Refuse a collation whose draws for ``rows``, alone and together, are known."""
    for some in (rows[:1], rows):
        _refuse("collate", lambda some=some: collate(list(some)))  # type: ignore[misc]


def _refuse(who: str, draw: Callable[[], object]) -> None:
    first, second = (_origins(who, draw, seed) for seed in (1, 2))
    if first & second:
        raise CheckFailed(f"The seed of a generator is set by {who}, {REMEDY}")


def _origins(who: str, draw: Callable[[], object], seed: int) -> set[State]:
    """The states of the global generators from which something is drawn."""
    found: set[State] = set()
    with seeded(seed), _note_draws(found), _Noting(who, found):
        draw()
    return found


class _Noting(TorchFunctionMode):
    """Notes the state of torch's generators before every call that moves them."""

    def __init__(self, who: str, found: set[State]) -> None:
        super().__init__()
        self._who, self._found = who, found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_foreign(kwargs.get("generator")):
            raise CheckFailed(f"A generator with a seed of its own is used by {self._who}, {REMEDY}")
        before = _state_of_torch()
        result = func(*args, **kwargs)
        if _state_of_torch() != before:
            self._found.add(("torch", before))
        return result


def _is_foreign(generator: object) -> bool:
    ours = (torch.default_generator, *(torch.cuda.default_generators if devices_in_use() else ()))
    return isinstance(generator, torch.Generator) and all(generator is not known for known in ours)


def _state_of_torch() -> bytes:
    with torch._C._DisableFuncTorch():  # within vmap even a state would be one of many
        return _hash(*(state.numpy().tobytes() for state in states_of_torch()))


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


@contextmanager
def _note_draws(found: set[State]) -> Iterator[None]:
    """Their functions note from which state they draw."""
    functions = global_functions()
    try:
        for owner, name, function in functions:
            setattr(owner, name, _noting(owner, function, found))
        yield
    finally:
        for owner, name, function in functions:
            setattr(owner, name, function)


def _noting(owner: Any, function: Callable[..., Any], found: set[State]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        found.add((owner.__name__, _state_of_numpy() if owner is np.random else _state_of_random()))
        return function(*args, **kwargs)

    return draw


def _state_of_numpy() -> bytes:
    _, numbers, place, *_ = np.random.get_state()  # noqa: NPY002
    return _hash(np.asarray(numbers).tobytes(), str(place).encode())


def _state_of_random() -> bytes:
    return _hash(repr(random.getstate()).encode())
