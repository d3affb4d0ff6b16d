"""What a party brings: its records and its model, behind three functions that give sums and nothing else.

``discreet.linear.linear_holder.LinearHolder`` and ``discreet.pytorch.torch_holder.TorchHolder`` are such holders;
anything else that clips what each record adds can be one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Holder(Protocol):
    """A party's records and model. Everything private stays in it.

    ``dimension`` is the length of the parameter vector; ``records`` the number of rows, which is private unless
    the neighbours are replace-one. No function may fail, warn or log because of what a record says: one with NaN
    or infinity in it counts as zero.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def records(self) -> int: ...

    def clipped_sum(self, theta: Floats, records: Indices | None) -> BoundedSum:
        """The sum of the clipped gradients at ``theta`` of the chosen records, or of all."""

    def hardened_sum(self, theta: Floats, records: Indices | None, grid: float) -> BoundedSum:
        """The same in whole steps of ``grid``."""
