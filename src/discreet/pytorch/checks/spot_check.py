"""Comparison of a step's sum with the sums of pieces of its batch, before the step is charged.

The guarantee needs sums in which each example adds its own clipped gradient, whatever other examples are in the
batch. The fast computation of :mod:`~discreet.pytorch.clipped_sum`, the model, the losses and ``collate`` are not
trusted with that. In secretly chosen steps a batch is divided at random into a few single examples and two halves of
the others. The clipped gradients of the single examples by plain autograd, plus the sums of the two halves, must be
the sum that the step is about to release. A difference ends the run before anything is charged or released.

**What is seen.** Let the presence of one record change what the others add by v in total. The record is in one piece.
The others are in its piece or not with equal probability, so the part of v outside of its piece has norm |v| / 2 or
more with probability 1/2 or more, and that part is measured. A fault in what single examples add is measured if one
of them is computed alone.

Where the model or ``collate`` draws random numbers, all pieces and the batch itself are computed with the draws of
:mod:`~discreet.pytorch.checks.deterministic_rng`, which do not depend on the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discreet.core.clipping import ClipRule, Flat
from discreet.errors import CheckFailed
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.generators import Draws
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.gradients import Sums
from discreet.pytorch.integer_gradients import factors_of, squares_of
from discreet.pytorch.kernels import norms as kernels
from discreet.pytorch.per_example import (
    loss_and_gradients,
    move_like,
    number_of_examples,
    select,
    select_alone,
)
from discreet.pytorch.refusals import NOT_ALONE, NOT_THE_SUM, TOO_LONG

FIRST_STEPS = 2
"""All of so many first steps are compared."""
ONE_IN = 64
"""Later steps are compared with one in so many chances each."""
FIRST_EXAMPLES, EXAMPLES = 8, 2
"""Examples that are computed alone, in the first steps and later."""
LIMIT = 0.05
"""Clip norms by which a sum may differ from that of its pieces."""
ROUNDING = 2.0**-22
"""Clip norms by which it may differ besides, for each example of the batch: rounding of sums in float32."""

_SYSTEM = secrets.SystemRandom()

DESCRIPTION = (
    f"in the first {FIRST_STEPS} steps with records and in one of {ONE_IN} later steps, chosen by the operating "
    "system's randomness, the sum of the batch was compared, before the step was paid for, with the gradients of "
    f"{FIRST_EXAMPLES} examples ({EXAMPLES} in later steps) computed one by one plus the sums of two random halves "
    f"of the others. A difference above {LIMIT} clip norms ends the run. A fault that reaches a share p of the "
    "examples of a step stays unseen in a comparison of k examples with chance (1 - p)^k at most. A record that "
    f"changes what others add by more than {2 * LIMIT} clip norms stays unseen in n later steps that hold it with "
    f"chance at most (1 - 1/{2 * ONE_IN})^n"
)
DETERMINISTIC_DESCRIPTION = (
    "where the model or collate draws random numbers, and for sharded models, the sum of the batch was computed once "
    "more for this comparison, with draws that do not depend on the batch"
)


class Pieces(NamedTuple):
    """A batch in pieces: some examples as batches of one, and the others in two batches.

    ``whole`` is the batch itself, made once more under steady draws; None if making it draws nothing.
    """

    alone: tuple[Any, ...]
    halves: tuple[Any, ...]
    whole: Any = None


def is_due(step: int) -> bool:
    """Return whether step number ``step`` of those with examples is compared, at random."""
    return step <= FIRST_STEPS or secrets.randbelow(ONE_IN) == 0


def divide(step: int, count: int) -> tuple[list[int], list[list[int]]]:
    """Draw the examples of a batch to compute alone, and two halves of the others."""
    order = _SYSTEM.sample(range(count), count)
    alone = FIRST_EXAMPLES if step <= FIRST_STEPS else EXAMPLES
    half = alone + max(0, count - alone) // 2
    return order[:alone], [sorted(part) for part in (order[alone:half], order[half:]) if part]


class SpotCheck:
    """Compares the sums of a run, or of one party.

    Guarantee: a sum that is longer than its number of examples times the clip norm is refused in every step. Sums
    that differ from those of their pieces are refused in the steps that :data:`DESCRIPTION` names, and once one was
    refused, all further ones are.
    """

    def __init__(self, clipped_sum: ClippedSum) -> None:
        self._sum = clipped_sum
        self.steps = 0
        """Steps with examples so far."""
        self.refusal = ""

    def refuse_if_ended(self) -> None:
        """Raise if a sum was refused before: another try would compare other examples."""
        if self.refusal:
            raise CheckFailed(f"This run has ended. {self.refusal}")

    def compare(
        self,
        total: Tensor,
        examples: Any,
        pieces: Pieces | None = None,
        *,
        collated: bool = False,
        sum_of: Callable[[Any], Tensor] | None = None,
    ) -> None:
        """Refuse the sum of a batch if it is too long or, in some steps, if it is not that of its pieces.

        Batches that are ``collated`` come with their ``pieces`` in the steps that are compared. ``sum_of`` computes
        the sum of a batch; the fast one unless given.
        """
        self.refuse_if_ended()
        self.steps += 1
        longest = (1 + 1e-5) * number_of_examples(examples) * self._sum.rule.clip_norm
        with self.ending():
            if kernels.on_host(total) and not float(torch.linalg.vector_norm(total)) <= longest:
                raise CheckFailed(TOO_LONG)
            if pieces is None and not collated and is_due(self.steps):
                pieces = take_apart(examples, self.steps)
            if pieces is not None:
                self._refuse_other_sum(total, examples, pieces, sum_of or self._fast_sum)

    def is_due(self) -> bool:
        """Return whether the next step is compared under steady draws, where no other comparison is made."""
        self.steps += 1
        return is_due(self.steps)

    def compare_steady(self, examples: Any) -> None:
        """Compare the fast sum of a batch with that of its pieces under steady draws."""
        with self.ending():
            self._refuse_other_sum(None, examples, take_apart(examples, self.steps), self._fast_sum)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Remember a refusal, after which :meth:`refuse_if_ended` raises."""
        try:
            yield
        except CheckFailed as refusal:
            self.refusal = str(refusal)
            raise

    def _refuse_other_sum(
        self, total: Tensor | None, examples: Any, pieces: Pieces, sum_of: Callable[[Any], Tensor]
    ) -> None:
        """Compare ``total`` with the pieces or, where something is drawn, a sum of the batch under steady draws."""
        rule, self._sum.rule = self._sum.rule, not_recording(self._sum.rule)
        allowed = (LIMIT + ROUNDING * number_of_examples(examples)) * rule.clip_norm
        try:
            if total is not None and pieces.whole is None:
                with Draws() as draws:
                    left = self._without_alone(total, pieces)
                if not draws.happened:
                    if not self._norm_without_halves(left, pieces, sum_of) <= allowed:
                        raise CheckFailed(NOT_THE_SUM)
                    return
            whole = examples if pieces.whole is None else self._on_device(pieces.whole)
            for varied in (True, False):
                with deterministic_draws(varied=varied):
                    left = self._without_alone(sum_of(whole), pieces)
                    if self._norm_without_halves(left, pieces, sum_of) <= allowed:
                        return
            raise CheckFailed(NOT_THE_SUM)
        finally:
            self._sum.rule = rule

    def _without_alone(self, total: Tensor, pieces: Pieces) -> Tensor:
        """Return a sum minus the clipped gradients of the examples that are computed alone."""
        left = total.clone()
        try:
            for one in pieces.alone:
                left -= clipped_alone(self._sum, self._on_device(one)).vector
        except CheckFailed:
            raise
        except Exception:  # whose message may quote the example
            raise CheckFailed(NOT_ALONE) from None
        return left

    def _norm_without_halves(self, left: Tensor, pieces: Pieces, sum_of: Callable[[Any], Tensor]) -> float:
        for half in pieces.halves:
            left -= sum_of(self._on_device(half))
        return float(torch.linalg.vector_norm(left))

    def _fast_sum(self, batch: Any) -> Tensor:
        return self._sum(batch).vector

    def _on_device(self, batch: Any) -> Any:
        return move_like(batch, next(iter(self._sum.parameters.values())))


def take_apart(examples: Any, step: int) -> Pieces:
    """Return the pieces of a batch whose examples are rows of its tensors."""
    alone, halves = divide(step, number_of_examples(examples))
    return Pieces(
        tuple(select_alone(examples, place) for place in alone),
        tuple(select(examples, torch.tensor(half)) for half in halves),
    )


def clipped_alone(of: ClippedSum, one: Any) -> Sums:
    """Return the clipped gradient of a batch of one example, by plain autograd."""
    parameters, blocks = list(of.parameters.values()), list(of.blocks().values())
    _, found = loss_and_gradients(of.model, of.losses, one, parameters)
    sums = Sums(of.parameters)
    factors = factors_of(squares_of(found, blocks), of.rule, blocks, 1e-12)
    for value, gradient, factor in zip(sums.values(), found, factors, strict=True):
        if factor > 0:
            value.add_(gradient, alpha=factor)
    return sums


def not_recording(rule: ClipRule) -> ClipRule:
    """Return the rule without a record of norms: those that are compared must not be counted."""
    return Flat(rule.clip_norm) if isinstance(rule, Flat) else rule
