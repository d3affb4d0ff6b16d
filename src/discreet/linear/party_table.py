"""A party's table, which answers the questions of a study: :class:`PartyTable`.

A question is decoded, checked against what the study allows, and tried on a table without rows. So everything that
can be wrong with it is found out from public facts, before anything is charged and before a row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.guarantee import Unit
from discreet.linear.checked_questions import Question, checked_question
from discreet.linear.gate.private_table import EncodedRows, PrivateTable, TargetRows
from discreet.linear.question_codec import decode, question_digest, row_keys
from discreet.linear.schema import Schema
from discreet.linear.views import Views

Integers = NDArray[np.int64]

_PARTS = 2**27  # bytes of arrays that are kept for later questions
_TRIAL_GRID = 2.0**-20


class AskedSum:
    """A question that was read: what it costs, and the sum that it asks for.

    ``kinds`` are those of :data:`KINDS`. ``bound`` is the sensitivity, which follows from the
    query alone, and ``size`` the number of integers.
    """

    def __init__(
        self,
        question: Question,
        digest: bytes,
        total: Callable[[float], Integers],
        trial: Callable[[float], Integers],
    ) -> None:
        self.number, self.stage, self.share, self.steps = question[:4]
        self.digest, self.kinds = digest, kinds_of(question.query)
        self.bound, self.size = float(question.query.bound), int(question.query.size)
        self._total, self._trial = total, trial

    def fits(self, grid: float) -> bool:
        """Whether a table without rows answers with zeros on this grid; nothing depends on a row."""
        try:
            trial = self._trial(grid)
        except Exception:
            return False
        return trial.shape == (self.size,) and trial.dtype == np.int64 and not trial.any()

    def total(self, grid: float) -> Integers:
        """The sum over the party's rows, in grid steps. Private."""
        return self._total(grid)


class PartyTable:
    """The rows of one party, with what the study says of them.

    ``empty`` is the same table without rows. ``loss`` is the kind of loss that the study's model has.

    Guarantee: :meth:`read` depends on the question and on the study alone. A record, or a person with all rows, moves
    the sum of an :class:`AskedSum` by at most its bound, as the rows of a table enforce it.
    """

    def __init__(
        self, table: PrivateTable, empty: PrivateTable, schema: Schema, loss: type, unit: Unit, records: int
    ) -> None:
        self._rows, self._trial = Views(table), Views(empty)
        self._schema, self._loss, self.unit, self.records = schema, loss, unit, records
        self._parts: dict[str, Any] = {}

    def read(self, body: bytes, kinds: Collection[str], numbers: int) -> AskedSum:
        """The question in ``body``, if it has these kinds of queries only and asks for at most so many numbers.

        Raises:
            MalformedMessage: If it is no question, or none that the study allows.
            MissingPart: If a part was sent before and is not known here.
        """
        question = checked_question(decode(body, self._parts, self._schema), self._schema)
        self._let_go()
        view, keys = question.view, row_keys(body)
        if isinstance(view, TargetRows | EncodedRows) and type(view.loss) is not self._loss:
            raise MalformedMessage("the question is about another kind of target")
        if not set(kinds_of(question.query)) <= set(kinds) or question.query.size > numbers:
            raise MalformedMessage("the study does not allow this query")

        def total(views: Views, grid: float) -> Integers:
            rows = views.rows(keys, lambda: view, question.fills, question.basis)
            return np.asarray(rows._total(question.query, grid))

        asked = AskedSum(
            question, question_digest(body), partial(total, self._rows), partial(total, self._trial)
        )
        if not asked.fits(_TRIAL_GRID):
            raise MalformedMessage("the query does not fit the columns of the study")
        return asked

    def _let_go(self) -> None:
        """Forget the oldest parts where they are too large together; a question that needs one is sent again."""
        sizes = [(digest, getattr(part, "nbytes", 2**10)) for digest, part in self._parts.items()]
        excess = sum(size for _, size in sizes) - _PARTS
        for digest, size in sizes:
            if excess <= 0:
                return
            del self._parts[digest]
            excess -= size


KINDS: dict[str, tuple[str, ...]] = {
    "classes": ("ClassOf", "ClassRows"),
    "columns": ("EvenBins", "Bins", "ColumnSums", "Offset", "WindowBin"),
    "ranges": ("PowerCells", "RangeCells"),
    "targets": ("TargetBin", "TargetMoments", "TargetHalfOctave", "TargetOffset"),
    "norms": ("HalfOctaves",),
    "moments": ("SecondMoments",),
    "gradients": ("ClippedGradient", "ScoreLine", "CountExcess"),
    "errors": ("NewtonStep",),
    "pairs": ("RankProducts", "Crossings", "PairCells", "HatCells"),
    "persons": ("RowsOfPeople",),
}
"""The kinds of queries that a study may list, and the classes of the catalogue that each of them covers."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}


def kinds_of(query: Any) -> tuple[str, ...]:
    """The kinds of a query, or of all blocks that it adds up.

    Raises:
        MalformedMessage: If a part of it is of no kind.
    """
    blocks = getattr(query, "blocks", None)
    parts = [query] if blocks is None else [getattr(block, "view", block) for block in blocks]
    kinds = dict.fromkeys(_KIND_OF.get(type(part).__name__, "") for part in parts)
    if not kinds or "" in kinds:
        raise MalformedMessage("the query is of no kind that a study can list")
    return tuple(kinds)
