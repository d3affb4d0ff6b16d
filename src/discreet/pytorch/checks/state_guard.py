"""Guard of the tensors of a model, which a forward pass must leave unchanged.

A buffer that a forward pass writes to, or a codebook kept as a frozen parameter, would carry what it saw of the
records out of the run without noise. PyTorch counts the writes to every tensor, but not those through ``.data``,
so contents are compared as well: bit by bit for small tensors, and for large ones by whole-number sums of their
bits along the rows and columns of a matrix.

>>> layer = nn.BatchNorm1d(2)
>>> watch = StateGuard(layer)
>>> layer.running_mean.data += 1.0
>>> watch.changed_tensor()
'running_mean'
>>> watch.refresh()
>>> watch.changed_tensor() is None
True
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from discreet.errors import CheckFailed
from discreet.pytorch.per_example import tensors_of
from discreet.pytorch.refusals import WRITTEN

ROW = 8 * 4096  # bytes

_OF_SPECTRAL_NORM = ("weight_u", "weight_v", "weight.0._u", "weight.0._v")

Place = tuple[nn.Module, str, Tensor]


class StateGuard:
    """Notices tensors of a model that have changed: all that is not trained, or all there is."""

    def __init__(self, model: nn.Module, *, trained_too: bool = False) -> None:
        self._model = model
        self._trained_too = trained_too
        self.refresh()

    def refresh(self) -> None:
        """Take the present state as the one to be kept."""
        self._places = tensors_in(
            self._model
        )  # which keeps the tensors, so that no other gets their identity
        self._counts = _write_counts(self._places)
        self._contents = {
            device: torch.cat(parts) for device, (_, parts) in self._parts(self._places).items()
        }

    def changed_tensor(self) -> str | None:
        """The name of a tensor that was written to, or exchanged, or None."""
        places = tensors_in(self._model)
        if _write_counts(places) != self._counts:
            return self._first_different(places)
        for device, (watched, parts) in self._parts(places).items():
            before = self._contents[device]
            if not torch.equal(torch.cat(parts), before):
                pairs = zip(watched, parts, torch.split(before, [len(part) for part in parts]), strict=True)
                return next(self._name(place) for place, now, then in pairs if not torch.equal(now, then))
        return None

    def refuse_change(self) -> None:
        """Raise if a tensor of the model is not what it was."""
        changed = self.changed_tensor()
        if changed is None:
            return
        owner = changed.rpartition(".")[0]
        layer = type(self._model.get_submodule(owner)).__name__
        if changed.endswith(_OF_SPECTRAL_NORM):
            raise CheckFailed(
                f"The buffer {changed!r} of a spectral norm is updated in every forward pass, and how many there are "
                "depends on the size of the batch. Use torch.nn.utils.parametrizations.spectral_norm, call eval() on "
                "layer.parametrizations, and let it follow the weights between steps, without records: call train() "
                "on it, read layer.weight, and call eval() again."
            )
        what = "parameter" if changed in dict(self._model.named_parameters()) else "buffer"
        raise CheckFailed(
            f"The {what} {changed!r} of {owner!r} ({layer}) changes in the forward pass, so it would carry what it "
            "saw of the records out of the run without noise. Keep it fixed, or turn off its running statistics."
        )

    def _first_different(self, places: list[Place]) -> str:
        then = dict(zip(map(_spot, self._places), self._counts, strict=True))
        now = dict(zip(map(_spot, places), _write_counts(places), strict=True))
        different = next(spot for spot in (*now, *then) if now.get(spot) != then.get(spot))
        return next(self._name(place) for place in (*places, *self._places) if _spot(place) == different)

    def _name(self, place: Place) -> str:
        return full_name(self._model, *place[:2])

    def _parts(self, places: list[Place]) -> dict[torch.device, tuple[list[Place], list[Tensor]]]:
        """Return the guarded tensors and their bits, by device, because one comparison for all is the fastest."""
        found: dict[torch.device, tuple[list[Place], list[Tensor]]] = {}
        known: set[int] = set()  # a shared tensor is compared once
        for place in places:
            value = place[2]
            if (self._trained_too or not value.requires_grad) and id(value) not in known:
                known.add(id(value))
                watched, parts = found.setdefault(value.device, ([], []))
                watched.append(place)
                parts.append(_bits(own(value).detach()))
        return found


def _write_counts(places: list[Place]) -> list[tuple[int, int, bool]]:
    return [(id(value), own(value)._version, value.requires_grad) for _, _, value in places]


def _spot(place: Place) -> tuple[int, str]:
    return id(place[0]), place[1]


def _bits(value: Tensor) -> Tensor:
    """The bytes of a small tensor, or of the sums of a large one; sums of 64 bits may overflow, and stay exact."""
    flat = value.contiguous().flatten().view(torch.uint8)
    rows = len(flat) // ROW
    if rows == 0:
        return flat
    if flat.storage_offset() % 8:
        flat = flat.clone()
    folded = flat[: rows * ROW].view(torch.int64).view(rows, -1)
    return torch.cat([folded.sum(0).view(torch.uint8), folded.sum(1).view(torch.uint8), flat[rows * ROW :]])


def tensors_in(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Parameters and buffers with their module and their name there; a shared one as often as it has a place."""
    return [
        (module, name, value)
        for module in modules_of(model)
        for own in (module._parameters, module._buffers)
        for name, value in own.items()
        if value is not None
    ]


def own(value: Tensor) -> Tensor:
    """The numbers that this process holds: all of them, or its shard."""
    found: Tensor = getattr(value, "_local_tensor", value)
    return found


def full_name(model: nn.Module, owner: nn.Module, name: str) -> str:
    """The name of a tensor as the model's user knows it."""
    prefix = next((path for path, module in model.named_modules() if module is owner), "")
    return f"{prefix}.{name}" if prefix else name


def signature(model: nn.Module) -> tuple[object, ...]:
    """Modules, modes, hooks on gradients, parameters: while they are the same, so is the verdict of the check.

    Objects appear by their identity, so whoever keeps a signature keeps what is :func:`to_keep_alive` along with it.
    """
    parts: list[object] = [hooks_everywhere()]
    for module in modules_of(model):
        hooked = bool(module._backward_hooks or module._backward_pre_hooks)
        parts += (id(module), module.training, hooked, module.__dict__.get("forward"), *module._modules)
        for name, value in module._parameters.items():
            trained = value is not None and value.requires_grad
            parts += (name, id(value), trained, trained and _is_hooked(value))
    return tuple(parts)


def hooks_everywhere() -> bool:
    """Return whether hooks for the gradients of all modules are registered."""
    return bool(of_modules._global_backward_hooks or of_modules._global_backward_pre_hooks)


def _is_hooked(value: Any) -> bool:
    return bool(value._backward_hooks or value._post_accumulate_grad_hooks)


def to_keep_alive(model: nn.Module) -> list[object]:
    """Return the objects that must stay alive so that no other object gets their identity."""
    return [*modules_of(model), *(value for _, _, value in tensors_in(model))]


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules, each once, parents before their children."""
    found, known = [model], {id(model)}
    for module in found:  # which grows as we go
        for child in module._modules.values():
            if child is not None and id(child) not in known:
                known.add(id(child))
                found.append(child)
    return found


def write_counts(batch: Any) -> list[int]:
    """Return the number of writes to each tensor of a batch, as torch counts them."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(batch)]


def refuse_written(batch: Any, before: list[int]) -> None:
    """Raise if a tensor of the batch was written to since its :func:`write_counts` were taken."""
    if write_counts(batch) != before:
        raise CheckFailed(WRITTEN)
