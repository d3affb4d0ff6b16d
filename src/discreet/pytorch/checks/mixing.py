"""Which layer lets one example see another? Found by changing one example and watching the others.

Every module of the model is watched during two forward passes that differ in one example. A module whose inputs
agree for the other examples and whose outputs do not is the one that mixes them.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.pytorch.examples import tensors_of
from discreet.pytorch.per_example import Losses

Seen = list[tuple[str, nn.Module, list[Tensor], list[Tensor]]]


def mixing_layer(
    model: nn.Module, losses: Losses, one: Any, other: Any, same: Tensor, seed: int = 0
) -> str | None:
    """The innermost module that mixes, as ``'name' (type)``; None if it is the loss itself.

    ``one`` and ``other`` agree in the examples ``same``.
    """
    before, after = _watched(model, losses, one, seed), _watched(model, losses, other, seed)
    for (name, module, inputs, outputs), (_, _, later_inputs, later_outputs) in zip(
        before, after, strict=False
    ):
        if agree(inputs, later_inputs, same) and not agree(outputs, later_outputs, same):
            return (
                f"{name!r} ({type(module).__name__})"
                if name
                else f"the model's forward ({type(module).__name__})"
            )
    return None


def agree(one: list[Tensor], other: list[Tensor], same: Tensor) -> bool:
    """Whether the rows ``same`` of all tensors are equal up to rounding."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a.ndim and a.shape == b.shape]
    rows = [same[same < len(a)].to(a.device) for a, _ in pairs]  # the first dimension may be another one
    return all(close(a[kept], b[kept]) for (a, b), kept in zip(pairs, rows, strict=True))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal up to rounding on the scale of the larger; NaN agrees with NaN."""
    if a.dtype.itemsize < 4 and a.is_floating_point():
        tolerance = 0.03
    one, other = a.detach().double(), b.detach().double()
    if not one.numel():
        return True
    scale = torch.maximum(one.abs(), other.abs()).nan_to_num().amax().clamp(min=1e-30)
    differs = (one - other).abs() > tolerance * scale
    return not bool(differs.any()) and bool(torch.equal(one.isnan(), other.isnan()))


def same_losses(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Equal up to rounding, each on the scale of its own, so that no large loss hides what happens to others."""
    if one.dtype.itemsize < 4:
        tolerance = 0.03
    a, b = one.double(), other.double()
    scale = torch.maximum(a.abs(), b.abs()).nan_to_num()
    differs = (a - b).abs() > tolerance * scale.clamp(min=max(float(scale.median()), 1e-30))
    return not bool(differs.any()) and torch.equal(a.isnan(), b.isnan())


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Two passes with the same seed draw the same masks; afterwards all global generators are what they were."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(_devices_in_use()):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def unknown_draws() -> Iterator[None]:
    """Dropout and whatever else is drawn meanwhile begins at seeds from the system; afterwards all is as it was.

    With a seed that is known, one record less would give all others other masks, which no clip norm bounds. Every
    step does this, so numpy's global generator is set aside rather than copied, which takes as long as a small
    model; only a second normal draw that it had ready is lost.
    """
    devices, python, legacy = _devices_in_use(), random.getstate(), _NUMPY.get_bit_generator()
    before = torch.default_generator.get_state(), [torch.cuda.get_rng_state(device) for device in devices]
    try:
        seed = secrets.randbits(63)
        torch.default_generator.manual_seed(seed)  # that of torch does the same for devices that nobody uses
        if devices:
            torch.cuda.manual_seed_all(seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed)
        if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
            torch.xpu.manual_seed_all(seed)
        random.seed(secrets.randbits(256))
        _NUMPY.set_bit_generator(_OWN)
        np.random.seed(np.frombuffer(secrets.token_bytes(64), np.uint32))  # noqa: NPY002
        yield
    finally:
        random.setstate(python)
        _NUMPY.set_bit_generator(legacy)
        torch.default_generator.set_state(before[0])
        for device, state in zip(devices, before[1], strict=True):
            torch.cuda.set_rng_state(state, device)


_NUMPY: Any = np.random  # whose stubs do not know all of it
_OWN = np.random.MT19937()


def random_state() -> tuple[str, ...]:
    """The state of all global generators, to be compared."""
    on_devices = [torch.cuda.get_rng_state(device) for device in _devices_in_use()]
    tensors = [state.numpy().tobytes().hex() for state in (torch.get_rng_state(), *on_devices)]
    return (*tensors, repr(random.getstate()), repr(np.random.get_state(legacy=False)))  # noqa: NPY002


def _devices_in_use() -> range:
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)


def _watched(model: nn.Module, losses: Losses, batch: Any, seed: int) -> Seen:
    seen: Seen = []
    with _hooks(model, seen), seeded(seed):
        losses(model, batch)
    return seen


@contextmanager
def _hooks(model: nn.Module, seen: Seen) -> Iterator[None]:
    def hook(name: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            kept = [t.detach().clone() for t in tensors_of((args, kwargs))]
            seen.append((name, module, kept, [t.detach().clone() for t in tensors_of(output)]))

        return note

    handles = [m.register_forward_hook(hook(name), with_kwargs=True) for name, m in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
