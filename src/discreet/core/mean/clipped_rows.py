"""The only door to the data: noisy sums of clipped contributions.

Whatever is asked of the records (a sum, how many are near, how far they spread) is a sum of one contribution
from each record. :meth:`Records.noisy_mean` clips every contribution right before it is added, so no mistake
in computing one can exceed the sensitivity that is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.core.clipping import clip_rows
from discreet.core.columns import cells_of, floats_of
from discreet.core.mean.error_bounds import Noise, Norm, deviation, norm_of
from discreet.core.noise import BoundedSum, add_noise, grid_for, hardened_sum
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, one_of
from discreet.guarantee import Neighbours, public_records

Array = NDArray[np.float64]

_BLOCK = 2**15  # numbers that are clipped and added at once


class Records:
    """Rows whose number may be private, with the number of records that is public.

    Refusals depend on type and shape alone: nothing about the values of a row can raise or warn.
    """

    def __init__(
        self,
        x: ArrayLike,
        neighbours: Neighbours,
        records: int | None,
        arithmetic: Literal["float", "hardened"],
        stream: RandomStream | None,
    ) -> None:
        array = _real_numbers(x)
        self.rows = array[:, None] if array.ndim == 1 else array
        self.scalar = array.ndim == 1
        self.dimension = self.rows.shape[1]
        self.records = public_records(records, len(self.rows), neighbours)
        self.number_is_exact = neighbours == "replace-one"
        self.arithmetic: Literal["float", "hardened"] = (
            "float" if one_of("arithmetic", arithmetic, ("float", "hardened")) == "float" else "hardened"
        )
        if stream is not None and not isinstance(stream, RandomStream):
            raise InvalidParameter("stream", type(stream), "must be a RandomStream.")
        self.stream = system_stream() if stream is None else stream

    def noisy_mean(
        self, data: NDArray[Any], contribution: Callable[[Array], Array], clip_norm: float, event: Noise
    ) -> Array:
        """The sum of ``contribution(row)`` over the rows of ``data``, over the public number of records.

        ``data`` is :attr:`rows`, or something else with one row for each record.

        Guarantee: costs what ``account(event)`` says, whatever ``contribution`` returns for a row, as long as
        it depends on that row and on earlier releases only.
        """
        total = self._sum((contribution(block) for block in _blocks(data)), clip_norm, event)
        noisy: Array = add_noise(total, event, self.stream)
        return noisy / self.records

    def noisy_fraction(
        self, data: NDArray[Any], amount: Callable[[Array], NDArray[Any]], event: Noise
    ) -> float:
        """The sum of amounts between 0 and 1, one from each record, over the public number of records.

        Guarantee: as :meth:`noisy_mean`.
        """
        limit = self._largest_amount(event)
        released = self.noisy_mean(data, lambda block: amount(block) - (1 - limit), limit, event)
        return float(released[0]) + (1 - limit)

    def fraction_noise(self, event: Noise) -> float:
        """Standard deviation of the noise on a noisy fraction."""
        return deviation(event) * self._largest_amount(event) / self.records

    def _largest_amount(self, event: Noise) -> float:
        """1, or 1/2 by counting from 1/2.

        That halves the noise but counts 1/2 for each record that was declared and is not there. So it needs
        the exact number, or so much noise that this hardly matters.
        """
        return 0.5 if self.number_is_exact or deviation(event) > 0.1 * self.records else 1.0

    def distances(self, center: Array, norm: Norm) -> Array:
        """How far each record is from ``center``, as a column; infinite or NaN where a row is."""
        order = 2 if norm == "l2" else 1
        with np.errstate(all="ignore"):
            parts = [np.linalg.norm(block - center, order, axis=1) for block in _blocks(self.rows)]
        return np.concatenate([*parts, np.empty(0)])[:, None]

    def _sum(self, parts: Iterator[Array], clip_norm: float, event: Noise) -> BoundedSum:
        norm = norm_of(event)
        grid = None if self.arithmetic == "float" else grid_for(event, clip_norm, self.records)
        total = None
        with np.errstate(all="ignore"):
            for part in parts:
                clipped = clip_rows(part, clip_norm, norm)
                added = clipped.sum(0) if grid is None else hardened_sum(clipped, clip_norm, grid, norm).value
                total = added if total is None else total + added
        return BoundedSum(total, clip_norm, norm, grid)


def _blocks(data: NDArray[Any]) -> Iterator[Array]:
    """Some rows at a time, as float64; one empty block if there are none."""
    step = max(1, _BLOCK // data.shape[1])
    for start in range(0, max(1, len(data)), step):
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite, hence zero
            yield data[start : start + step].astype(np.float64)


def _numbers(cells: NDArray[Any]) -> NDArray[Any]:
    """Cells of a list, or of a column with gaps, as numbers: NaN for what is none. No cell decides a refusal."""
    if cells.dtype.kind != "O":
        return cells
    if cells.size and all(isinstance(row, list | tuple) for row in cells.flat):
        raise ValueError("rows of different lengths")
    return floats_of(cells)


def _real_numbers(x: ArrayLike) -> NDArray[Any]:
    try:
        array = x if isinstance(x, np.ndarray) else _numbers(cells_of(x))
    except ValueError:
        raise InvalidParameter("x", "ragged", "must have rows of the same length.") from None
    if array.dtype.kind not in "fiub":
        raise InvalidParameter("x.dtype", str(array.dtype), "must be real numbers, for instance float64.")
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        requirement = "must be (records,) for numbers or (records, coordinates) for vectors."
        raise InvalidParameter("x.ndim" if array.ndim else "x", array.ndim, requirement)
    return array
