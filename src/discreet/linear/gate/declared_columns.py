"""What an encoder declares of its columns, and how rows are moved into it: :class:`Columns`.

>>> columns = Columns(numerics=2, groups=(3,))
>>> columns.width, round(columns.reach**2, 9)
(5, 3.0)
>>> columns.admit(np.array([[0.5, 7.0, 0, 1, 0], [np.nan, 0, 1, 0, 0]], np.float32)).tolist()
[[0.5, 1.0, 0.0, 1.0, 0.0]]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_rows
from discreet.errors import real, whole
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import are_bounded, bound_rows


@dataclass(frozen=True)
class Columns:
    """The kinds of an encoded table's columns, from left to right.

    ``numerics`` columns in [0, 1]; then one-hot groups of these sizes (a group of one column is a flag); then a
    block of ``text`` columns whose rows have norm at most ``text_norm``.
    """

    numerics: int
    groups: tuple[int, ...] = ()
    text: int = 0
    text_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "numerics", whole("numerics", self.numerics, at_least=0))
        sizes = tuple(whole("groups", size, at_least=1) for size in self.groups)
        object.__setattr__(self, "groups", sizes)
        object.__setattr__(self, "text", whole("text", self.text, at_least=0))
        object.__setattr__(self, "text_norm", real("text_norm", self.text_norm, at_least=1e-6, at_most=1e6))

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.numerics + sum(self.groups) + self.text

    @property
    def categories(self) -> slice:
        """Where the one-hot columns are."""
        return slice(self.numerics, self.numerics + sum(self.groups))

    @property
    def words(self) -> slice:
        """Where the text columns are."""
        return slice(self.width - self.text, self.width)

    @property
    def text_square(self) -> float:
        """The bound on the squared norm of the text block; 0 if there is none."""
        return self.text_norm**2 if self.text else 0.0

    @property
    def reach(self) -> float:
        """The bound on the norm of a row."""
        return math.sqrt(self.numerics + len(self.groups) + self.text_square)

    def admit(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The rows moved into what is promised, as float32; rows with NaN or infinity are left out.

        Guarantee: numerics are in [0, 1]; the one-hot block has norm at most sqrt(number of groups) and entries
        in [0, 1]; the text block has norm at most ``text_norm``. Every row depends on its own input only.
        """
        return self.sift(rows)[0]

    def sift(
        self, rows: NDArray[Any], in_place: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What :meth:`admit` gives, and which of the rows that are: a copy, unless it may be made in place."""
        if rows.dtype not in (np.float32, np.float64):
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32)
        in_place = in_place and rows.dtype == np.float32 and rows.flags.c_contiguous
        kept, finite = rows if in_place else np.empty(rows.shape, np.float32), np.ones(len(rows), np.bool_)
        good = in_place and are_bounded(rows, self.width - self.text)
        if not good and not bound_rows(readable(rows), self.width - self.text, kept, finite):
            kept = kept[finite]
        excess = kept[:, self.categories].sum(axis=1, dtype=np.float64) > len(self.groups)
        if excess.any():  # only those: a clip could change the last bit of a row that is just within
            block = kept[excess, self.categories]
            kept[excess, self.categories] = clip_rows(block, math.sqrt(max(len(self.groups), 1)))
        if self.text:
            kept[:, self.words] = clip_rows(np.ascontiguousarray(kept[:, self.words]), self.text_norm)
        return kept, finite
