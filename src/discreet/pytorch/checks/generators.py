"""The global generators of torch, numpy and Python while private records are worked on, and afterwards."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def unknown_draws() -> Iterator[None]:
    """Dropout and whatever else is drawn meanwhile begins at states from the system; afterwards all is as it was.

    With a seed that is known, one record less would give all others other masks, which no clip norm bounds. Every
    step does this, so numpy's global generator is set aside rather than copied, which takes as long as a small
    model; only a second normal draw that it had ready is lost.
    """
    before, python, legacy = states_of_torch(), random.getstate(), _NUMPY.get_bit_generator()
    try:
        entropy = secrets.token_bytes(8 + 32 + 64)  # for devices, Python and numpy, by one call to the system
        seed = int.from_bytes(entropy[:8]) >> 1
        torch.default_generator.set_state(_unknown_state())
        seed_devices(seed)
        random.seed(int.from_bytes(entropy[8:40]))
        _NUMPY.set_bit_generator(_OWN)
        np.random.seed(np.frombuffer(entropy, np.uint32, offset=40))  # noqa: NPY002
        yield
    finally:
        random.setstate(python)
        _NUMPY.set_bit_generator(legacy)
        set_states_of_torch(before)


def seed_devices(seed: int) -> None:
    """Seed the generators of the devices in use.

    ``torch.manual_seed`` seeds all devices. For a device that is not initialised, torch stores the seed with the
    formatted stack of its caller, and applies it when the device is initialised.
    """
    if devices_in_use():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        torch.xpu.manual_seed_all(seed)


def _unknown_state() -> Tensor:
    """A state for torch's generator on the host, made of the system's random words.

    A seed would not do: torch takes the last 32 bits of one, so that somebody could try all of them. The words of its
    Mersenne twister are kept as 64 bits each; one that was just seeded makes them all anew before it draws.
    """
    state = _JUST_SEEDED.clone()
    state.numpy()[_WHERE].view(np.uint64)[:] = np.frombuffer(secrets.token_bytes(4 * _WORDS), np.uint32)
    return state


_WORDS = 624
_WHERE = slice(24, 24 + 8 * _WORDS)
_JUST_SEEDED = torch.Generator().manual_seed(0).get_state()
_NUMPY: Any = np.random  # whose stubs do not know all of it
_OWN = np.random.MT19937()


class Draws:
    """Notices whether anything is drawn from the global generators meanwhile, and puts their states back if so.

    >>> with Draws() as draws:
    ...     _ = random.random()
    >>> draws.happened
    True
    """

    happened = False

    def __enter__(self) -> Draws:
        self._torch, self._python = states_of_torch(), random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002
        return self

    def __exit__(self, *_: object) -> None:
        now: Any = np.random.get_state()  # noqa: NPY002
        then: Any = self._numpy
        same = (
            all(map(torch.equal, states_of_torch(), self._torch))
            and random.getstate() == self._python
            and now[2:] == then[2:]
            and np.array_equal(now[1], then[1])
        )
        if not same:
            self.happened = True
            set_states_of_torch(self._torch)
            random.setstate(self._python)
            np.random.set_state(then)  # noqa: NPY002


def states_of_torch() -> list[Tensor]:
    """The states of torch's generators: on the host, then on each graphics processor in use."""
    return [
        torch.default_generator.get_state(),
        *(torch.cuda.get_rng_state(device) for device in devices_in_use()),
    ]


def set_states_of_torch(states: list[Tensor]) -> None:
    """Restore the states that :func:`states_of_torch` returned."""
    torch.default_generator.set_state(states[0])
    for device, state in enumerate(states[1:]):
        torch.cuda.set_rng_state(state, device)


def devices_in_use() -> range:
    """The graphics processors that have generators of their own by now."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)
