"""The global generators of torch, numpy and Python with a known seed, for checks, and back to what they were.

>>> before = random_state()
>>> with seeded(7):
...     first = torch.rand(2)
>>> with seeded(7):
...     bool((first == torch.rand(2)).all()), random_state() == before
(True, False)
>>> random_state() == before
True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from discreet.pytorch.checks.generators import seed_devices, set_states_of_torch, states_of_torch

_ADMINISTRATION = ("seed", "get_state", "set_state", "getstate", "setstate", "bytes", "default_rng", "test")


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Two passes with the same seed draw the same masks; afterwards all global generators are what they were."""
    before, python, legacy = states_of_torch(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        torch.default_generator.manual_seed(seed)
        seed_devices(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        set_states_of_torch(before)


def random_state() -> tuple[str, ...]:
    """The state of all global generators, to be compared."""
    tensors = [state.numpy().tobytes().hex() for state in states_of_torch()]
    return (*tensors, repr(random.getstate()), repr(np.random.get_state(legacy=False)))  # noqa: NPY002


def global_functions() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return module, name and function of what draws from the generators of ``numpy.random`` and ``random``."""
    return [
        (owner, name, getattr(owner, name))
        for owner, kind in ((np.random, np.random.RandomState), (random, random.Random))
        for name in dir(kind)
        if not name.startswith("_") and name not in _ADMINISTRATION and callable(getattr(owner, name, None))
    ]
