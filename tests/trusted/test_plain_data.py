"""The numbers of a query are plain ones of the declared types, or the query is refused."""

import pickle
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from discreet import PlanViolation
from discreet.errors import DiscreetError
from discreet.evaluation.outcomes import Binned, Classified, Outcome
from discreet.linear.encoder import BoundedNumbers
from discreet.linear.gate.checks import refuse_bad_knots
from discreet.linear.gate.column_blocks import EvenBins
from discreet.linear.gate.compiled_sums import ClippedGradient, SecondMoments
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.private_table import (
    EncodedRows,
    PrivateTable,
    TargetColumn,
    TargetRows,
    UndeclaredColumns,
)
from discreet.linear.losses import Loss, Squared
from discreet.linear.row_views.column_views import HatCells, Offset, RangeCells
from discreet.linear.row_views.coordinates import Marginals, StandardRows
from discreet.linear.row_views.targets import Target, TargetBin
from discreet.statistics.statistic_views import Bin, Code, Distance, OffsetFrom, Polynomial
from discreet.trusted.choices import Quantiles
from discreet.trusted.plain_data import conform, digest_of, refuse_foreign
from discreet.trusted.queries import Blocks, Cells, Rows
from discreet.trusted.rows import PrivateRows

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8]


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_of_numpy_do_not_wrap_in_a_bound(kind):
    most = kind(min(np.iinfo(kind).max, 2**32))
    with pytest.raises(PlanViolation, match="allow a record"):
        Blocks((Cells(Code(0), (1,), (most,)),))
    with pytest.raises(PlanViolation, match="allow a record"):
        Blocks((Rows(OffsetFrom((0.0,)), 1, most),))
    limit = SecondMoments(StandardRows(Marginals(*[np.ones(2)] * 4)), most)
    refuse_foreign(limit)
    assert limit.bound == float(most) ** 2
    bins = EvenBins(Columns(7), kind(100))
    refuse_foreign(bins)
    assert bins.size == 700


@pytest.mark.parametrize("column", [(0,) * 50, None, ..., slice(None), np.zeros(3, int), 0.0, True, "0"])
def test_a_column_is_one_column(column):
    for view in (Code(column), Bin(column, (0.0, 1.0))):
        with pytest.raises(PlanViolation, match="column must be int"):
            Blocks((Cells(view, (1,), (1.0,)),))
    with pytest.raises(PlanViolation, match="column must be int"):
        Blocks((Cells(Polynomial(column, 0.0, 1.0), (1,), (1.0,)),))
    with pytest.raises(PlanViolation, match="column must be int"):
        Quantiles((0.5,), 0.0, 1.0, 1.0, column=column)


@pytest.mark.parametrize(
    "view",
    [
        Polynomial(0, ((0.0,),) * 40, 1.0),
        Polynomial(0, 0.0, 1.0, coefficients=[0.0, 1.0]),
        Polynomial(0, np.zeros(3), 1.0),
        Polynomial(0, 0.0, np.longdouble),
    ],
)
def test_numbers_of_a_view_are_numbers(view):
    with pytest.raises(PlanViolation, match="must be"):
        Blocks((Cells(view, (1,), (1.0,)),))


def test_words_of_a_view_are_those_of_the_catalogue():
    for wrong in ("far", b"beyond", None):
        with pytest.raises(PlanViolation, match="amount must be"):
            Blocks((Rows(Distance((0.0,), 1.0, wrong), 1, 1.0),))


def test_numbers_become_plain_ones():
    query = Blocks(
        (Cells(Bin(np.int64(0), (np.float64(0.0), np.float32(1.0))), (np.int16(1),), (np.float16(0.5),)),)
    )
    block = query.blocks[0]
    assert [type(one) for one in (block.view.column, *block.view.edges, *block.sizes, *block.limits)] == [
        int,
        float,
        float,
        int,
        float,
    ]


def test_arrays_of_other_types_and_subclasses_are_refused():
    knots = np.array([0.0, 0.5, 1.0])
    for wrong in (
        np.array([200, 201, 1], np.uint8),
        np.ma.masked_array(knots, [0, 1, 0]),
        knots.astype(np.float16),
        knots.astype(np.longdouble),
        knots[::-1],
        list(knots),
    ):
        with pytest.raises(PlanViolation):
            refuse_foreign(Blocks((Cells(HatCells((((0, 1), (wrong, knots)),)), (9,), (1.0,)),), 2.0))
    with pytest.raises(PlanViolation):
        refuse_foreign(HatCells((((np.zeros(5, int),) * 2, (knots, knots)),)))
    with pytest.raises(PlanViolation, match="increasing"):
        refuse_bad_knots(np.array([200, 201, 1]))
    with pytest.raises(DiscreetError):
        refuse_foreign(RangeCells(np.zeros(2), np.ones(2), np.float64(3.0)))


def test_an_outcome_needs_all_its_columns():
    """Otherwise a label beyond the answers would raise, and others would not."""
    view = Classified(5, 5, (Binned("of the label", (0.0, 0.5, 1.0)),))
    query = Blocks((Cells(Outcome(view), (Outcome(view).size,), (1.0,)),))
    for label in (0.0, 3.0):
        with pytest.raises(PlanViolation, match="needs 6 columns"):
            PrivateRows(np.array([[label, 0.2]]), "add-remove")._total(query, 2.0**-20)


def test_the_twin_that_keeps_numbers_as_they_are_is_found(monkeypatch):
    """Without plain numbers a limit of 256 passes for one of 0."""
    monkeypatch.setattr("discreet.linear.gate.compiled_sums.conform", lambda query: None)
    query = SecondMoments(StandardRows(Marginals(*[np.ones(2)] * 4)), np.int16(256))
    assert query.bound == 0  # 256 squared wraps
    monkeypatch.undo()
    assert SecondMoments(StandardRows(Marginals(*[np.ones(2)] * 4)), np.int16(256)).bound == 65536


def test_digests_are_of_numbers_strings_arrays_and_losses():
    class Plain(Loss):
        """A loss without fields that a dataclass declares."""

        kind = machine_code = outputs = None
        accepts = residual = value = mean = start = lambda self, *_: None

        def __init__(self, slope):
            self.slope = slope

    Plain.__abstractmethods__ = frozenset()
    view = Offset(np.zeros(2))
    found = [view, Columns(2), Plain(1.0), Plain(2.0), [1], (1,), np.float32(1), 1, 1.0, True, None, "1"]
    assert len({digest_of(one) for one in found}) == len(found)
    assert Offset(np.zeros(2)).digest == view.digest == pickle.loads(pickle.dumps(view)).digest
    assert hash(view) == hash(Offset(np.zeros(2)))
    assert view != Offset(np.ones(2))
    with pytest.raises(PlanViolation, match="numbers, strings and arrays"):
        digest_of({1})


def test_foreign_classes_are_no_part_of_a_query():
    class OfAnother(TargetBin):
        """A view of somebody else, which a catalogue's view is a class of."""

    for wrong in (OfAnother(0.0, 1.0, 8), "a view", lambda x, y: y, Squared()):
        with pytest.raises(PlanViolation, match="view must be"):
            Cells(wrong, (8,), (1.0,))
        with pytest.raises(PlanViolation, match="view must be"):
            Rows(wrong, 1, 1.0)
        with pytest.raises(PlanViolation, match="view must be"):
            SecondMoments(wrong, 1.0)
    with pytest.raises(PlanViolation, match="coordinates must be"):
        ClippedGradient(Squared(), Offset(np.zeros(2)), Target(), np.zeros(3), 1.0)
    with pytest.raises(PlanViolation, match="blocks must be"):
        Blocks((Offset(np.zeros(2)),), 1.0)
    with pytest.raises(PlanViolation, match="not part of the catalogue"):
        refuse_foreign(Lookup(Words("a"), "b", OfAUser()))


@pytest.mark.parametrize(
    "view",
    [
        lambda: TargetRows("a loss"),
        lambda: TargetRows(Squared(), least=np.ones(3)),
        lambda: UndeclaredColumns(1.5),
        lambda: UndeclaredColumns(1, {"age": None}),
        lambda: TargetColumn(least="all"),
        lambda: EncodedRows(Squared(), None),
        lambda: EncodedRows(Squared(), BoundedNumbers(np.zeros(1), np.ones(1)), [0]),
        lambda: EncodedRows(Squared(), BoundedNumbers(np.zeros(1), np.ones(1)), bounds=(0.0, np.ones(3))),
    ],
)
def test_views_of_a_table_are_plain_data(view):
    with pytest.raises(PlanViolation, match="must be"):
        view()


def test_numbers_of_views_become_plain_ones():
    view = TargetRows(Squared(), np.int8(3))
    assert type(view.least) is int
    object.__setattr__(view, "least", np.ones(3))
    table = PrivateTable(np.zeros((3, 1)), np.zeros(3), None, None)
    for wrong in (view, "a view", Squared()):
        with pytest.raises(PlanViolation, match=r"must be|not part of the catalogue"):
            table.rows(wrong)


class Words(NamedTuple):
    word: str


@dataclass(frozen=True)
class Lookup:
    """Fields of kinds that no query of statistics has."""

    words: Words
    word: str
    loss: Loss


class OfAUser(Squared):
    """A loss that users may extend."""


def test_names_tuples_and_losses_of_users():
    conform(Lookup(Words("a"), "b", OfAUser()))
    for wrong in (
        Lookup(("a",), "b", OfAUser()),
        Lookup(Words(b"a"), "b", OfAUser()),
        Lookup(Words("a"), 1, OfAUser()),
        Lookup(Words("a"), "b", "a loss"),
    ):
        with pytest.raises(PlanViolation, match="must be"):
            conform(wrong)
