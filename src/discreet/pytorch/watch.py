"""What a run looks at in every step: is the model still the one that was checked, and does it keep to itself?

A look costs a few microseconds. The check of model and losses takes as long as several steps; it is made before the
first step, and again when modes, modules, or the size of the batches are new.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from discreet.errors import PlanViolation
from discreet.pytorch.check import check
from discreet.pytorch.compatibility import refuse_layers
from discreet.pytorch.constancy import Constancy
from discreet.pytorch.examples import select
from discreet.pytorch.members import held, signature
from discreet.pytorch.per_example import Losses, trainable


class Watch:
    """Over a model while a run trains ``parameters``, in parts of ``most`` examples if that is a number."""

    def __init__(
        self, model: nn.Module, losses: Losses, parameters: dict[str, nn.Parameter], most: int | None
    ) -> None:
        refuse_layers(model)
        self._model, self._losses, self._parameters, self._most = model, losses, parameters, most
        self._constancy = Constancy(model)
        self._signature, self._held = signature(model), held(model)
        self._checked: set[tuple[object, int]] = set()

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse a model that is not what it was, and check it with ``examples`` if anything is new."""
        now = signature(self._model)
        if now != self._signature:
            self._refuse_other_parameters()
            refuse_layers(self._model)
            self._signature = now
            self._held += held(self._model)  # the verdicts of before stay valid as long as these live
        size = min(count, self._most or count).bit_length()
        if count and (now, size) not in self._checked:
            check(self._model, self._losses, select(examples, slice(0, self._most)))
            self._checked.add((now, size))

    def before_forward(self) -> None:
        """Take the tensors of the model as they are now."""
        self._constancy.refresh()

    def after_forward(self) -> None:
        """Refuse a model that has written to its tensors meanwhile."""
        self._constancy.refuse_change()

    def _refuse_other_parameters(self) -> None:
        now = trainable(self._model)
        names = sorted(now.keys() | self._parameters.keys())
        changed = next((name for name in names if now.get(name) is not self._parameters.get(name)), None)
        if changed is not None:
            raise PlanViolation(
                f"The parameter {changed!r} was frozen, unfrozen or exchanged after the run began. To train others, "
                "make an optimizer and a PrivateRun with a plan of its own; one Budget can pay for both."
            )
