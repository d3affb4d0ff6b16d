"""Spending that records the sums of a fit before noise, for audits: :class:`RecordingSpending`.

What it releases is never certified as private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import PlanViolation
from discreet.trusted.spending import BudgetAllocator

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A release: the sum, the standard deviation of its noise, and the noisy value."""

    total: Array
    std: float
    noisy: Array


@dataclass(frozen=True, eq=False)
class Tape:
    """All releases of a fit in order. If others are ``prescribed``, their values are released without any noise."""

    prescribed: Sequence[Recorded] | None = None
    releases: list[Recorded] = field(default_factory=list)


class RecordingSpending(BudgetAllocator):
    """Spending of a fit that writes every release onto a tape."""

    def __init__(self, tape: Tape, *known: Any, **options: Any) -> None:
        super().__init__(*known, **options)
        self._tape = tape

    @property
    def trusted(self) -> bool:
        """False: the sums are known."""
        return False

    def _add_noise(self, total: BoundedSum, event: Any) -> Array:
        """The sum with noise, or the value that is prescribed in its place."""
        value = np.asarray(total.value, np.float64).reshape(-1) * (1.0 if total.grid is None else total.grid)
        place, prescribed = len(self._tape.releases), self._tape.prescribed
        if prescribed is None:
            noisy = super()._add_noise(total, event)
        elif place < len(prescribed) and prescribed[place].total.size == value.size:
            noisy = prescribed[place].noisy.reshape(np.shape(total.value))
        else:
            raise PlanViolation("This table leads to another release than the one that was seen.")
        std = event.noise_multiplier * total.clip_norm
        self._tape.releases.append(Recorded(value, std, noisy.reshape(-1)))
        return noisy
