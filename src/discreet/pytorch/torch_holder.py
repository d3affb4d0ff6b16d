"""A party's examples and network, for joint training: sums of clipped gradients, and nothing else.

>>> x, y = torch.zeros(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
>>> def losses(model, batch):
...     return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> holder = TorchHolder(nn.Linear(4, 2), (x, y), losses, clip_norm=1.0)
>>> holder.dimension, holder.records
(10, 6)
>>> holder.clipped_sum(holder.start, None)
BoundedSum(clip_norm=1.0, norm='l2', grid=None)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet.core.clipping import Flat, clip_rows
from discreet.core.noise import BoundedSum, hardened_sum
from discreet.errors import InvalidParameter
from discreet.guarantee import Unit
from discreet.pytorch.batches import Collate, reader
from discreet.pytorch.checks.check import check_read
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.checks.single_examples import SingleExamples
from discreet.pytorch.checks.spot_check import SpotCheck
from discreet.pytorch.checks.withheld import withhold
from discreet.pytorch.clipped_sum import ClippedSum, refuse_coarse_products
from discreet.pytorch.per_example import Losses, gradients_alone, rebuild, silent_gradients

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

WHO = "the model, the losses or the data set"
_MOST_NUMBERS = 1 << 24  # of per-example gradients at once, for sums in grid steps


class TorchHolder:
    """The examples of one party and a model, whose trainable parameters are one vector, in the model's order.

    ``losses(model, batch)`` gives one loss per example; both are checked here, before anything is sent. A data set
    is what :mod:`discreet.pytorch.batches` reads. At most ``physical_batch_size`` examples are worked on at once.
    The model's parameters are overwritten by every request.

    Guarantee: each example adds a vector of norm at most ``clip_norm`` to the sums, provided that its loss depends
    on no other example; gradients that are not finite count as zero. What dropout and collations draw is unknown:
    with a seed that is known, one example less would give all others other masks.
    """

    @withhold(WHO)
    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        losses: Losses,
        clip_norm: float,
        *,
        collate: Collate | None = None,
        physical_batch_size: int = 1024,
    ) -> None:
        self._read = reader(dataset, collate)
        self._sum = ClippedSum(model, losses, Flat(clip_norm), physical_batch_size=physical_batch_size)
        self._spot_check, self._singles = SpotCheck(self._sum), SingleExamples(self._sum)
        self._size = physical_batch_size
        self._parameters = list(self._sum.parameters.values())
        if self._read.rows:
            check_read(model, losses, self._batch(np.arange(min(self._read.rows, 16))), self._read)
        self.start: Floats = _flat(self._parameters)
        """The parameters with which the model came."""

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return sum(value.numel() for value in self._parameters)

    @property
    def records(self) -> int:
        """The number of examples."""
        return self._read.rows

    @property
    def unit(self) -> Unit:
        """The unit that is clipped: each example by itself, so a study of persons refuses this holder."""
        return "record"

    def load(self, theta: Floats) -> None:
        """Put a vector of parameters into the model, for instance the outcome of a study."""
        if theta.shape != (self.dimension,):
            raise InvalidParameter("theta.shape", theta.shape, f"must be ({self.dimension},).")
        start, source = 0, torch.from_numpy(np.array(theta, np.float64))
        with torch.no_grad():
            for value in self._parameters:
                value.copy_(source[start : start + value.numel()].view_as(value))
                start += value.numel()

    @withhold(WHO)
    @unknown_draws()
    @silent_gradients()
    def clipped_sum(self, theta: Floats, records: Indices | None) -> BoundedSum:
        """The sum of the clipped gradients at ``theta`` of the chosen examples, or of all."""
        refuse_coarse_products()  # whatever the examples
        self._spot_check.refuse_if_ended()
        self.load(theta)
        total = np.zeros(self.dimension)
        for some in self._parts(records, self._size):
            drawn = self._read.drawn(some)
            batch = self._on_device(drawn.batch)
            self._singles.before_sum(len(some), drawn.singles)
            sums = self._sum(batch)
            with self._spot_check.ending():
                self._singles.after_sum(batch, drawn.singles)
            self._spot_check.compare(sums.vector, batch, drawn.pieces, collated=drawn.collated)
            total += sums.vector.double().cpu().numpy()
        return BoundedSum(total, self._sum.rule.clip_norm)

    @withhold(WHO)
    @unknown_draws()
    @silent_gradients()
    def hardened_sum(self, theta: Floats, records: Indices | None, grid: float) -> BoundedSum:
        """Return the clipped sum in integer steps of ``grid``; slower, since it needs each example's own gradient.

        Guarantee: what an example adds depends on nothing but itself and the model, to the last step: it is a batch
        of its own, so nobody else is a reason to pad it.
        """
        self.load(theta)
        clip_norm, total = self._sum.rule.clip_norm, np.zeros(self.dimension, np.int64)
        for some in self._parts(records, max(1, min(self._size, _MOST_NUMBERS // self.dimension))):
            rows = np.stack([self._gradient(index) for index in some])
            total += hardened_sum(clip_rows(rows, clip_norm), clip_norm, grid).value
        return BoundedSum(total, clip_norm, grid=grid)

    def _gradient(self, index: int) -> Floats:
        """The gradient of one example, as one vector."""
        one = self._batch(np.array([index]))
        return _flat(gradients_alone(self._sum.model, self._sum.losses, one, 0, self._parameters))

    def _parts(self, records: Indices | None, size: int) -> Iterator[NDArray[Any]]:
        chosen = np.arange(self.records) if records is None else records
        for start in range(0, len(chosen), size):
            yield chosen[start : start + size]

    def _batch(self, indices: NDArray[Any]) -> Any:
        return self._on_device(self._read(indices))

    def _on_device(self, batch: Any) -> Any:
        device = self._parameters[0].device
        return rebuild(batch, lambda tensor: tensor.to(device))


def _flat(values: list[Any]) -> Floats:
    parts: list[Tensor] = [value.detach().double().reshape(-1).cpu() for value in values]
    return np.array(torch.cat(parts).numpy())
