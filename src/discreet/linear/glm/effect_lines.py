"""The lines of a summary: encoded columns without a reference for each group, and without what is too rare.

A one-hot group and an intercept say the same twice, so the effects of a group are differences from one of its
values: a declared one, or the most frequent by the noisy counts that the fit has released. Values that are hardly to
be told from noise are one line together; if that is too rare, too, they count with the reference.

>>> from discreet.linear.glm.columns import Columns
>>> lines = lines_of(Columns(1, (4,)), np.array([0.5, 0.6, 0.37, 0.02, 0.01]), {}, rare=0.05)
>>> lines.members
((0,), (2,))
>>> lines.against, lines.references, lines.hidden
((None, 1), (1,), (3, 4))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.columns import Columns

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """Which encoded columns each line is of, ``members``, and ``against`` which reference, if any.

    ``references`` are those of all groups of several columns; ``hidden`` columns are too rare to have a line.
    """

    width: int
    members: tuple[tuple[int, ...], ...]
    against: tuple[int | None, ...]
    references: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()

    @property
    def matrix(self) -> Array:
        """Encoded rows times this are rows of lines."""
        found = np.zeros((self.width, len(self.members)))
        for line, columns in enumerate(self.members):
            found[list(columns), line] = 1.0
        return found


def lines_of(columns: Columns, shares: Array, declared: Mapping[int, int], rare: float) -> Lines:
    """The lines of columns in which these shares of the records were found.

    ``declared`` has the place of a declared reference within its group, by the number of the group. Values below the
    share ``rare`` are pooled.
    """
    lines: list[tuple[tuple[int, ...], int | None]] = [((j,), None) for j in range(columns.numerics)]
    references, hidden, start = [], [], columns.numerics
    for number, size in enumerate(columns.groups):
        own, reference = list(range(start, start + size)), None
        start += size
        if size > 1:
            reference = own[declared.get(number, int(np.argmax(shares[own])))]
            references.append(reference)
            own.remove(reference)
        few = [j for j in own if shares[j] < rare]
        lines += [((j,), reference) for j in own if j not in few]
        if len(few) > 1 and shares[few].sum() >= rare:
            lines.append((tuple(few), reference))
        else:
            hidden += few
    lines += [((j,), None) for j in range(columns.width - columns.text, columns.width)]
    members, against = zip(*lines, strict=True) if lines else ((), ())
    return Lines(columns.width, members, against, tuple(references), tuple(hidden))
