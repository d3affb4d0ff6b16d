"""What a run looks at in every step: is the model still the one that was checked, and does it keep to itself?

A look costs a few microseconds. The check of model and losses takes as long as several steps; it is made before the
first step, before the second, because the first has moved the weights, again when modes, modules, or the size of the
batches are new, and before one step in four thousand, which the operating system's entropy chooses.

:class:`SpotCheck` is the second line of defence. The check before training tries made-up examples, and the proof by
the graph sees what autograd sees. What gets past both (statistics of the batch without a gradient, a loss that
changes its ways after a while, a mistake of ours) shows when an example of the very batch is worked on by itself.
That costs about as much as a step, so it happens at random, one step in :data:`EVERY`, and nobody can foresee when.
A difference ends the run before anything is charged or released.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed, PlanViolation
from discreet.pytorch.batches import Reader
from discreet.pytorch.checks.check import check_read
from discreet.pytorch.checks.compatibility import refuse_layers
from discreet.pytorch.checks.constancy import Constancy, own, signature, to_keep_alive
from discreet.pytorch.checks.steady import steady_draws
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.per_example import (
    Losses,
    number_of_examples,
    per_example_gradients,
    rebuild,
    select,
    trainable,
)

ONE_IN = 4000
"""Before one step in so many the model is checked again."""
ONE_IN_LOOKS = 8
"""After one step in so many the contents of all weights are compared, not only how often they were set."""
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""By the bytes of a weight, as what its bits are compared: byte by byte it takes four times as long."""
SMALL = 1 << 14
"""With so few weights their contents are compared in every step."""


class Watch:
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
        self._constancy = Constancy(model)
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
        """What a check is good for: the model as it is, and parts of about this size."""
        return self._signature, self._part_size(count).bit_length()

    def _by_chance(self) -> bool:
        """Whether this is one of the steps before which everything is checked again."""
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
        looked_at = self._small or secrets.randbelow(ONE_IN_LOOKS) == 0
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
        """What the weights are, bit by bit, so that NaN is NaN."""
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


# ---- the second line of defence: on random steps, gradients in the batch are compared with gradients alone ----


EVERY = 256
EXAMPLES = 2
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE = 0.05  # where float64 cannot decide, as in models of half precision

DESCRIPTION = (
    f"on one step in {EVERY}, at random, the gradients of {EXAMPLES} examples were compared with those alone"
)


class SpotCheck:
    """Over the sums of a run. ``every`` is for tests."""

    def __init__(self, clipped_sum: ClippedSum, every: int = EVERY) -> None:
        self._sum, self._every = clipped_sum, every

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse the model if, on this batch, an example's gradient is not its own. Most steps are not looked at."""
        if count and self.is_due():
            self.check(examples)

    def is_due(self) -> bool:
        """Whether this step is looked at, which nobody can foresee."""
        return secrets.randbelow(self._every) == 0

    def check(self, examples: Any) -> None:
        """:func:`refuse_foreign_gradients` of these examples."""
        refuse_foreign_gradients(self._sum, examples)


def refuse_foreign_gradients(clipped_sum: ClippedSum, batch: Any) -> None:
    """Compare the gradients of a few examples in a part of the batch with their gradients alone.

    Guarantee: none for examples that are not looked at.
    """
    model, losses = clipped_sum.model, clipped_sum.losses
    part = _any_part(batch, clipped_sum.part_size(number_of_examples(batch)))
    chosen = [secrets.randbelow(number_of_examples(part)) for _ in range(EXAMPLES)]
    with steady_draws():
        if _foreign(clipped_sum, part, chosen) is None:
            return
    name = _foreign_in_float64(model, losses, clipped_sum, part, chosen)
    if name is not None:
        raise CheckFailed(
            f"The gradient of an example at {name!r} in its batch is not the one that it has alone: the losses or "
            "the model mix examples. The run ends here; nothing of this step was released. Return each example's own "
            "loss, from its own values only."
        )


def _any_part(batch: Any, size: int) -> Any:
    """One of the parts in which a batch is worked off, so that big batches take no more memory here either."""
    start = size * secrets.randbelow(-(-number_of_examples(batch) // size))
    return select(batch, slice(start, start + size))


def _foreign(
    clipped_sum: ClippedSum, part: Any, chosen: list[int], tolerance: float | None = None
) -> str | None:
    """The name of a parameter whose gradient differs, or None."""
    together = clipped_sum.gradients_of(part, chosen)
    where = torch.tensor(chosen)
    few = rebuild(part, lambda tensor: tensor[where.to(tensor.device)])
    with torch.enable_grad():
        alone = per_example_gradients(clipped_sum.model, clipped_sum.losses, few)
    for place in range(len(chosen)):
        one = {name: rows[place].double() for name, rows in alone.items()}
        length = torch.stack([value.norm() for value in one.values()]).norm()
        if not bool(length.isfinite()):
            continue  # counts as zero either way
        for name, value in one.items():
            allowed = tolerance or TOLERANCE.get(alone[name].dtype, COARSE)
            if not bool((together[name][place].double() - value).norm() <= allowed * length):
                return name
    return None


def _foreign_in_float64(
    model: nn.Module, losses: Losses, clipped_sum: ClippedSum, part: Any, chosen: list[int]
) -> str | None:
    """The same where rounding cannot be the reason, such as a unit at zero that a batch switches on."""
    try:
        wide = copy.deepcopy(model).double()
        doubled = rebuild(part, _as_double)
        with steady_draws():
            return _foreign(ClippedSum(wide, losses, clipped_sum.rule), doubled, chosen)
    except Exception:  # a model that cannot be copied, or is made for one type only
        with steady_draws(varied=False):
            return _foreign(clipped_sum, part, chosen, COARSE)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
