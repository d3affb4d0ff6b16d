"""Who belongs to a model at this moment: its modules and tensors, by a walk that is quick enough for every step.

``named_modules`` and its sisters take longer than the forward pass of a small model, and a step has to look
several times. Names are made only when somebody must be told one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules, each once, parents before their children."""
    found, known = [model], {id(model)}
    for module in found:  # which grows as we go
        for child in module._modules.values():
            if child is not None and id(child) not in known:
                known.add(id(child))
                found.append(child)
    return found


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

    Objects appear by their identity, so whoever keeps a signature has to keep :func:`held` along with it.
    """
    parts: list[object] = []
    for module in modules_of(model):
        hooked = bool(module._backward_hooks or module._backward_pre_hooks)
        parts += (id(module), module.training, hooked, module.__dict__.get("forward"), *module._modules)
        for name, value in module._parameters.items():
            trained = value is not None and value.requires_grad
            parts += (name, id(value), trained, trained and _hooked(value))
    return tuple(parts)


def _hooked(value: Any) -> bool:
    return bool(value._backward_hooks or value._post_accumulate_grad_hooks)


def held(model: nn.Module) -> list[object]:
    """What must stay alive so that nothing else gets its identity."""
    return [*modules_of(model), *(value for _, _, value in tensors_in(model))]
