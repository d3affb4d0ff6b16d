"""A run on weights that somebody else chooses, such as the server of a federation: :class:`ChosenWeightsRun`.

Whether a step is refused can depend on a record: a loss raises at some weights, or a comparison of an example in the
batch with the example alone fails. A server that chooses the weights can arrange that, and a refusal tells it with
certainty that a record is there. Charging for it would not help, because a refusal has no noise. Neither would zeros
in place of a sum that cannot be computed: one record would move the sum of all others.

So in hardened arithmetic, where each example is worked on alone, an example that cannot be computed adds zeros, and
everything else stays as it is: one record still moves the sum by its clip norm at most. Nothing is compared within
steps, because there is nothing that examples could share. Model and losses are checked once, before foreign weights
are loaded, at the weights of their owner.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import InvalidParameter
from discreet.pytorch.batches import Collate
from discreet.pytorch.checks.withheld import withhold
from discreet.pytorch.gradients import Sums
from discreet.pytorch.integer_gradients import steps_of_batch
from discreet.pytorch.loaders import unwrap_loader
from discreet.pytorch.per_example import Losses, gradients_alone, number_of_examples
from discreet.pytorch.per_person import reader_for
from discreet.pytorch.run import PrivateRun
from discreet.pytorch.training_stages import StageSpan

_ROWS = 64  # of the data set, for the check

REFUSALS = (
    "refusals of a step, from which whoever chooses the weights may learn that a record is there "
    "(arithmetic='float')"
)
"""Not covered by runs in floating point."""


class ChosenWeightsRun(PrivateRun):
    """A :class:`~discreet.pytorch.run.PrivateRun` of which no step is refused because of a record.

    Guarantee: in hardened arithmetic, whether a step succeeds does not depend on the records, as far as model and
    losses keep no memory. In floating point it may, and the certificate says so.
    """

    @withhold("the model or the losses")
    def check_own_weights(self, dataset: Any, collate: Collate | None) -> None:
        """Check model and losses at the present weights, which must be those of the owner."""
        dataset, collate, _ = unwrap_loader(dataset, collate, 0)
        if self._arithmetic == "float":
            return
        if collate is not None:
            needed = (
                "needs arithmetic='float': records that a collation pads are compared within steps, and whoever "
                "chooses the weights learns from a comparison that fails. Pad the records in the data set instead."
            )
            raise InvalidParameter("collate", type(collate).__name__, needed)
        records = reader_for(self.plan, dataset, collate)
        examples = records(range(min(records.rows, _ROWS)))
        if examples is not None:
            self._watch.reads(records)
            self._watch.check(self._on_device(examples), number_of_examples(examples))

    @property
    def _not_covered(self) -> tuple[str, ...]:
        return (*super()._not_covered, *([REFUSALS] if self._arithmetic == "float" else []))

    def _check_batch(self, examples: Any, count: int) -> None:
        if self._arithmetic == "float":
            super()._check_batch(examples, count)
        else:
            self._watch.is_due(0)  # which refuses weights and modules that were exchanged

    def _sum_up(self, examples: Any, count: int, span: StageSpan) -> tuple[Sums, Tensor | None]:
        grid = self._grids[span.index]
        if grid is None:
            return super()._sum_up(examples, count, span)
        steps = steps_of_batch(self._sum, examples if count else None, grid, gradients_or_zeros)
        return Sums(self._parameters), steps


def gradients_or_zeros(
    model: nn.Module, losses: Losses, batch: Any, index: int, parameters: list[nn.Parameter]
) -> list[Tensor]:
    """The gradient of one example's loss; zeros if it cannot be computed.

    Guarantee: as of :func:`~discreet.pytorch.per_example.gradients_alone`; no exception tells of the example.
    """
    try:
        return gradients_alone(model, losses, batch, index, parameters)
    except Exception:
        return [torch.zeros_like(value, requires_grad=False) for value in parameters]
