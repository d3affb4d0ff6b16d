"""Guard of a model during training: its weights, modules and modes must be those that were checked.

A look costs a few microseconds. The check of model and losses takes as long as several steps; it is made before the
first step, before the second, because the first has moved the weights, again when modes, modules, or the size of the
batches are new, and before one step in four thousand, which the operating system's entropy chooses.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import PlanViolation
from discreet.pytorch.batches import Reader
from discreet.pytorch.checks.check import check_read
from discreet.pytorch.checks.compatibility import refuse_layers
from discreet.pytorch.checks.state_guard import StateGuard, own, signature, to_keep_alive
from discreet.pytorch.per_example import Losses, select, trainable

ONE_IN = 4000
"""Before one step in so many the model is checked again."""
ONE_IN_INSPECTIONS = 8
"""After one step in so many the contents of all weights are compared, not only how often they were set."""
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""By the bytes of a weight, as what its bits are compared: byte by byte it takes four times as long."""
SMALL = 1 << 14
"""With so few weights their contents are compared in every step."""


class ModelGuard:
    """Over a model while a run trains ``parameters``, working on ``part_size`` of so many examples at once."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        parameters: dict[str, nn.Parameter],
        part_size: Callable[[int], int],
    ) -> None:
        refuse_layers(model)
        self._model, self._losses, self._parameters, self._part_size = model, losses, parameters, part_size
        self._constancy = StateGuard(model)
        self._signature, self._held = signature(model), to_keep_alive(model)
        self._checked: set[tuple[object, int]] = set()
        self._read: Reader | None = None
        self._steps = 0
        self._versions: list[int] | None = None
        self._contents: Tensor | None = None
        self._small = sum(value.numel() for value in parameters.values()) <= SMALL

    def reads(self, read: Reader) -> None:
        """Check together with this reader from now on."""
        self._read = read

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse a model that is not what it was, and check it with ``examples`` if anything is new."""
        if self.is_due(count):
            self.check(examples, count)

    def is_due(self, count: int) -> bool:
        """Refuse a model that is not what it was; whether to check it before a step on ``count`` examples."""
        now = signature(self._model)
        if now != self._signature:
            self._refuse_other_parameters()
            refuse_layers(self._model)
            self._signature = now
            self._held += to_keep_alive(
                self._model
            )  # the verdicts of before stay valid as long as these live
        self._refuse_edits()
        return bool(count) and (self._kind(count) not in self._checked or self._by_chance())

    def check(self, examples: Any, count: int) -> None:
        """Check model and losses with these examples."""
        part = select(examples, slice(0, self._part_size(count)))
        check_read(self._model, self._losses, part, self._read)
        self._checked.add(self._kind(count))

    def _kind(self, count: int) -> tuple[object, int]:
        """Return the state that a check covers: the model as it is, and parts of about this size."""
        return self._signature, self._part_size(count).bit_length()

    def _by_chance(self) -> bool:
        """Return whether this is one of the steps before which everything is checked again."""
        self._steps += 1
        return self._steps == 1 or secrets.randbelow(ONE_IN) == 0

    def before_forward(self) -> None:
        """Take the tensors of the model as they are now."""
        self._constancy.refresh()

    def after_forward(self) -> None:
        """Refuse a model that has written to its tensors meanwhile."""
        self._constancy.refuse_change()

    def after_step(self) -> None:
        """Remember the weights that the optimizer has made."""
        self._versions = self._write_counts()
        looked_at = self._small or secrets.randbelow(ONE_IN_INSPECTIONS) == 0
        self._contents = self._bits() if looked_at else None

    def edited(self) -> None:
        """Take the weights as they are now."""
        self._versions = self._contents = None

    def _write_counts(self) -> list[int]:
        return [own(value)._version for value in self._parameters.values()]

    def _refuse_edits(self) -> None:
        moved = self._versions is not None and self._write_counts() != self._versions
        if moved or (self._contents is not None and not torch.equal(self._contents, self._bits())):
            raise PlanViolation(
                "The weights were changed between two steps by something else than the run, which costs what the "
                "plan does not hold if it knows the records: a second optimizer, statistics of the data. If it does "
                "not, call run.edited() after the change."
            )

    def _bits(self) -> Tensor:
        """Return the bits of the weights, so that NaN equals NaN."""
        values = [own(value).detach() for value in self._parameters.values()]
        device = values[0].device
        if len({(value.dtype, value.device) for value in values}) == 1:  # one call for all of them
            flat = torch._C._nn.flatten_dense_tensors(values)  # a copy, but for a single tensor
            return (flat if len(values) > 1 else flat.clone()).view(WHOLE[flat.element_size()])
        return torch.cat([value.to(device).reshape(-1).view(torch.uint8) for value in values])

    def _refuse_other_parameters(self) -> None:
        now = trainable(self._model)
        names = sorted(now.keys() | self._parameters.keys())
        changed = next((name for name in names if now.get(name) is not self._parameters.get(name)), None)
        if changed is not None:
            raise PlanViolation(
                f"The parameter {changed!r} was frozen, unfrozen or exchanged after the run began. To train others, "
                "make an optimizer and a PrivateRun with a plan of its own; one Budget can pay for both."
            )
