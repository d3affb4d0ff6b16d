"""Noisy means and fractions of private rows, each one query of a session."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from discreet.statistics.mean.error_bounds import Noise, deviation, norm_of
from discreet.statistics.statistic_views import Distance, OffsetFrom, Ones
from discreet.trusted.queries import Blocks, Rows, View
from discreet.trusted.rows import PrivateRows
from discreet.trusted.session import EventPermit, Session

Array = NDArray[np.float64]


class ClippedRecords:
    """Private rows of a session, and the number of records that is public.

    ``number_is_exact`` says that the public number is the true one, as it is under replace-one neighbours.
    """

    def __init__(self, session: Session, permit: EventPermit, rows: PrivateRows, records: int) -> None:
        self._session, self._permit, self._rows = session, permit, rows
        self.records = records
        self.number_is_exact = rows.public_count is not None

    def noisy_mean(self, view: View, size: int, clip_norm: float, event: Noise) -> Array:
        """The noisy sum of a view of each record, clipped to ``clip_norm``, over the public number of records."""
        query = Blocks((Rows(view, size, clip_norm),), clip_norm, norm_of(event))
        return self._session.release(self._permit, self._rows, query, event) / self.records

    def noisy_offset(self, center: Array, clip_norm: float, event: Noise, half_width: float) -> Array:
        """The noisy mean of the records' offsets from a center."""
        return self.noisy_mean(OffsetFrom(tuple(center.tolist()), half_width), len(center), clip_norm, event)

    def noisy_fraction(
        self,
        center: Array,
        radius: float,
        amount: Literal["beyond", "square"],
        event: Noise,
        distance: Literal["l2", "l1"] = "l2",
    ) -> float:
        """The noisy mean of amounts between 0 and 1 that depend on a record's distance from a center."""
        limit = self._largest_amount(event)
        view = Distance(tuple(center.tolist()), radius, amount, distance, shift=1 - limit)
        return float(self.noisy_mean(view, 1, limit, event)[0]) + (1 - limit)

    def noisy_count(self, event: Noise) -> float:
        """The noisy number of records."""
        return self.records * float(self.noisy_mean(Ones(), 1, 1.0, event)[0])

    def fraction_noise(self, event: Noise) -> float:
        """Standard deviation of the noise on a noisy fraction."""
        return deviation(event) * self._largest_amount(event) / self.records

    def _largest_amount(self, event: Noise) -> float:
        """1, or 1/2 by counting from 1/2.

        That halves the noise but counts 1/2 for each record that was declared and is not there. So it needs
        the exact number, or so much noise that this hardly matters.
        """
        return 0.5 if self.number_is_exact or deviation(event) > 0.1 * self.records else 1.0
