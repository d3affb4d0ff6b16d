"""From a sum that has its noise to a step of the optimizers, and what optimizers a run accepts.

Training without privacy takes the same way, so the two differ by nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet.errors import InvalidParameter, PlanViolation, UserCodeFailed
from discreet.pytorch.checks.withheld import origin
from discreet.pytorch.gradients import Sums
from discreet.pytorch.refusals import OPTIMIZER_FAILED


class OptimizerStep:
    """The parameters of a model and their optimizers."""

    def __init__(self, parameters: dict[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
        self._parameters = parameters
        self._optimizers = checked_optimizers(optimizers, parameters)
        self._groups = _group_sizes(optimizers)

    def forget(self) -> None:
        """Drop the gradients of the last step, which would only take room beside those to come."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def refuse_other_parameters(self) -> None:
        """Raise if the optimizers were given other parameters since the run began."""
        if _group_sizes(self._optimizers) != self._groups:
            raise PlanViolation(
                "The optimizer trains other parameters than when the run began; make a new run."
            )

    def step(self, sums: Sums, divisor: float) -> None:
        """Divide the sums by the public divisor, and let the optimizers step with them as gradients."""
        sums.vector /= divisor
        for name, parameter in self._parameters.items():
            total = sums[name]
            same = total.dtype == parameter.dtype and total.device == parameter.device
            parameter.grad = total if same else total.to(parameter.device, parameter.dtype)
        try:
            for optimizer in self._optimizers:
                optimizer.step()
        except Exception as error:
            raise UserCodeFailed(f"{origin(error, 'the optimizer')} {OPTIMIZER_FAILED}") from None


def as_optimizers(optimizer: object) -> tuple[Optimizer, ...]:
    """One optimizer or several, as a tuple."""
    given = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    for each in given:
        if not isinstance(each, Optimizer):
            remedy = "must be a torch.optim.Optimizer, or a list of them."
            raise InvalidParameter("optimizer", type(each).__name__, remedy)
    return given


def _group_sizes(optimizers: Sequence[Optimizer]) -> list[int]:
    return [len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]


def add_plain_sums(sums: Sums, losses: Tensor, parameters: dict[str, nn.Parameter]) -> None:
    """Add the gradients as they are, for training without privacy."""
    found = torch.autograd.grad(
        losses.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    for total, value in zip(sums.values(), found, strict=True):
        total += value


def checked_optimizers(
    optimizers: Sequence[Optimizer], parameters: dict[str, nn.Parameter]
) -> tuple[Optimizer, ...]:
    """The optimizers, if together they train exactly these parameters, each once, one step at a time."""
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            remedy = "evaluates the loss several times in a step, and each time would cost privacy; use SGD or Adam."
            raise InvalidParameter("optimizer", type(optimizer).__name__, remedy)
    name = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    if not parameters:
        raise InvalidParameter("model", "nothing to train", "must have parameters with requires_grad=True.")
    given = [
        id(value)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for value in group["params"]
        if value.requires_grad
    ]
    trained = set(given)
    missing = [name for name, value in parameters.items() if id(value) not in trained]
    if missing:
        remedy = (
            f"does not train {missing[0]!r}; give it to the optimizer, or call requires_grad_(False) on it."
        )
        raise InvalidParameter("optimizer", name, remedy)
    if len(given) > len(trained):
        remedy = "train one parameter twice in a step; give each parameter to one of them."
        raise InvalidParameter("optimizer", name, remedy)
    if trained - {id(value) for value in parameters.values()}:
        remedy = (
            "trains tensors that are no parameters of the model, so they would be neither clipped nor noised; "
            "make them parameters of the model."
        )
        raise InvalidParameter("optimizer", name, remedy)
    return tuple(optimizers)
