"""One odd cell never changes what the others are: not their values, not whose they are."""

from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from discreet import Budget, private_mean
from discreet.core.columns import column_to_array, floats_of
from discreet.core.grouping import canonical_user_id, id_codes
from discreet.evaluation import split
from discreet.evaluation.splitting import _coins, unit_ids
from discreet.linear.inputs import codes, column_values
from discreet.pytorch import PerPerson
from discreet.statistics.mean import Interval
from discreet.trusted.rows import person_weights

IDS = [1_790_000_000_000_000_000 + number for number in range(200)]  # neighbours, and one float to numpy
FRAMES = {
    "pandas": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="Int64")}),
    "pandas with arrow": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="int64[pyarrow]")}),
    "unsigned": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="UInt64")}),
    "pandas categories": lambda cells: pd.DataFrame({"id": pd.Categorical(cells)}),
    "pyarrow dictionary": lambda cells: pa.table({"id": pa.array(cells, pa.int64()).dictionary_encode()}),
    "pandas of a dictionary": lambda cells: pd.DataFrame(
        {
            "id": pd.Series(
                pa.array(cells, pa.int64()).dictionary_encode(),
                dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.int64())),
            )
        }
    ),
    "polars": lambda cells: pl.DataFrame({"id": pl.Series(cells, dtype=pl.Int64)}),
    "pyarrow": lambda cells: pa.table({"id": pa.array(cells, pa.int64())}),
}


@pytest.fixture(params=FRAMES)
def frames(request):
    """A table of ids, and the same with one more row: of nobody."""
    make = FRAMES[request.param]
    return make(IDS), make([*IDS, None])


def test_a_missing_cell_leaves_large_numbers_as_they_are(frames):
    for frame in frames:
        assert column_to_array(frame["id"]).tolist()[:200] == IDS


def test_the_broken_twin_takes_people_for_one_another():
    for name in ("pandas", "polars", "pyarrow"):
        spoilt = np.asarray(FRAMES[name]([*IDS, None])["id"].to_numpy(), np.float64)
        assert len(set(spoilt[:200].tolist())) < 10


def test_people_and_values_stay_who_they_are(frames):
    for frame in frames:
        weights = person_weights(unit_ids(frame, "id", len(frame)))
        assert weights[:200].sum() == 200
        assert codes(frame["id"], tuple(IDS)).tolist()[:200] == list(range(200))
        assert len(PerPerson(torch.zeros(len(frame), 1), frame["id"])) == 200


def test_values_declared_as_floats_are_compared_exactly(frames):
    known = (float(IDS[0]), 0.5)  # which is some whole number, and no other one
    exact = [0 if cell == known[0] else -1 for cell in IDS]
    for frame in frames:
        assert codes(frame["id"], known).tolist()[:200] == exact
    assert codes(np.array([1, 2**53, 2**53 + 1]), (2.0**53, np.float32(1), 1.5, np.inf)).tolist() == [
        1,
        0,
        -1,
    ]


def test_the_broken_twin_rounds_the_column():
    known = float(IDS[0])
    assert (np.array(IDS) == known).sum() > sum(cell == known for cell in IDS)


class OldFloats(pd.Series):
    """As of pandas 2: floats with a gap, unless a type is asked for, are objects."""

    def to_numpy(self, dtype=None, **settings):
        plain = dtype is None and self.isna().any()
        return super().to_numpy(object if plain else dtype, **settings)


@pytest.mark.parametrize("kind", ["Float32", "Float64", "float[pyarrow]", "double[pyarrow]"])
@pytest.mark.parametrize("made", [pd.Series, OldFloats])
def test_a_gap_leaves_floats_as_they_are(kind, made):
    known = (0.1, 0.7)
    full, gap = (column_to_array(made(cells, dtype=kind)) for cells in ([0.1, 0.7, 0.2], [0.1, 0.7, None]))
    assert full.dtype == gap.dtype
    assert codes(full, known).tolist() == [0, 1, -1]
    assert codes(gap, known).tolist() == [0, 1, -1]


def test_the_broken_twin_has_other_floats_beside_a_gap():
    spoilt = OldFloats([0.1, 0.7, None], dtype="Float32").to_numpy()
    assert codes(spoilt, (0.1, 0.7)).tolist() == [-1, -1, -1]


def test_nobody_else_changes_the_side_of_a_split(frames):
    key = b"k" * 32
    sides = [
        {cell for cell in column_to_array(split(frame, test=0.5, key=key)[1]["id"]).tolist() if cell in IDS}
        for frame in frames
    ]
    assert sides[0] == sides[1]
    assert 50 < len(sides[0]) < 150


def test_lists_hold_cells_of_any_type():
    assert column_to_array([-1, 2**63]).tolist() == [-1, 2**63]
    assert column_to_array(["a", "a\0"]).tolist() == ["a", "a\0"]
    assert column_to_array([[1, 2], [3, 4]]).shape == (2, 2)
    assert len(PerPerson(torch.zeros(3, 1), ["a", "a\0", None])) == 2


def test_equal_ids_are_one_person_however_they_are_written():
    ids = np.empty(5, object)
    ids[:] = [7.5, Decimal("7.5"), Decimal("7.50"), Fraction(15, 2), np.float32(7.5)]
    assert set(id_codes(ids).tolist()) == {0}
    assert person_weights(unit_ids(np.zeros((5, 1)), ids, 5)).sum() == pytest.approx(1)
    many = np.empty(40, object)
    many[:] = [Decimal("7.5" + "0" * zeros) for zeros in range(40)]
    assert sorted(map(len, split(np.arange(40.0).reshape(-1, 1), test=0.5, unit=many))) == [0, 40]


def test_a_missing_cell_is_missing_and_not_the_last_value_of_a_dictionary():
    """numpy reads the place of a missing cell from the end: one record's new value would be everybody's."""
    few = ["x", "y", *[None] * 400]
    for more in ([], ["z"]):
        column = pa.chunked_array([pa.array(few + more).dictionary_encode()])
        assert column_to_array(column).tolist()[:402] == few
        table = pa.table({"c": column})
        assert codes(column_values(table, "c"), ("x", "y", "z")).tolist()[:402] == [0, 1, *[-1] * 400]
    twin = column.to_numpy().tolist()
    assert twin[5] == "z"
    assert column_to_array(pa.chunked_array([pa.array([None, None]).dictionary_encode()])).tolist() == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="Int64")}),
        lambda cells: pl.DataFrame({"id": pl.Series(cells, dtype=pl.Int64)}),
        lambda cells: pd.array(cells, dtype="UInt64"),
        deque,
        lambda cells: [[cell] for cell in cells],
        lambda cells: pd.Index(cells, dtype="Int64"),
        lambda cells: pa.array(cells, pa.uint64()),
    ],
)
def test_other_things_than_columns_too(make):
    for ids in (IDS, [*IDS, None]):
        assert column_to_array(make(ids)).ravel().tolist()[:200] == IDS


def test_what_is_no_sequence_is_left_to_be_refused():
    for thing in (5, {1, 2}, {"a": 1}, "text", None):
        assert column_to_array(thing).ndim == 0
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert column_to_array(twice).tolist() == [[1, 2]]


def test_ids_that_are_tensors_or_scalars_are_those_of_their_numbers():
    """Each tensor has a hash of its own: one person of four rows would be four people."""
    for ids in (
        [torch.tensor(7) for _ in range(4)],
        [np.array(7) for _ in range(4)],
        [pa.scalar(7, pa.int32()), pa.scalar(7, pa.int64()), pa.scalar("7"), 7],
    ):
        assert len(PerPerson(torch.zeros(4, 1), ids)) == 1
        assert person_weights(unit_ids(np.zeros((4, 1)), ids, 4)).sum() == 1
    assert canonical_user_id(object()) is None


LARGE = [2**60 + number for number in range(400)]


@pytest.mark.parametrize(
    ("make", "cells", "more"),
    [
        (lambda cells: pd.Series(cells, dtype="Int64"), LARGE, None),
        (lambda cells: pl.Series(cells, dtype=pl.Int64), LARGE, None),
        (lambda cells: pa.array(cells, pa.int64()), LARGE, None),
        (lambda cells: pd.Series(pd.Categorical(cells)), LARGE, None),
        (lambda cells: pd.DataFrame({"a": pd.Categorical(cells)}), LARGE, None),
        (lambda cells: pd.Series(cells, dtype="boolean"), [True, False] * 200, None),
        (lambda cells: pl.Series(cells, dtype=pl.Boolean), [True, False] * 200, None),
        (lambda cells: pa.table({"a": pa.array(cells).dictionary_encode()}), ["x", "y", *[None] * 398], "z"),
        (
            lambda cells: pa.chunked_array([pa.array(cells).dictionary_encode()]),
            ["x", "y", *[None] * 398],
            "z",
        ),
        (lambda cells: pd.Series(cells, dtype=object), list(range(400)), "q"),
        (list, list(range(400)), "q"),
    ],
)
def test_one_more_record_leaves_the_coins_of_all_others(make, cells, more):
    one, other = (_coins((make(table),), None, b"k" * 32)[0][:400] for table in (cells, [*cells, more]))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("cell", [None, "x", b"x", 10**400, [3.0], object(), torch.tensor(1.0)])
def test_no_cell_of_a_list_decides_whether_a_mean_is_refused(cell):
    budget, known = Budget(1.0, 1e-6), Interval(0.0, 3.0)
    private_mean([1.0, cell, *[2.0] * 98], budget, known, records=100)
    private_mean(pd.Series([1, None, *[2] * 98], dtype="Int64"), budget, known, records=100)


class Huge:
    """Beyond all floats, and of no sign."""

    def __float__(self):
        raise OverflowError("secret")


def test_floats_of_cells_of_every_kind():
    cells = np.empty(7, object)
    cells[:] = [1, "2.5", None, 10**400, -(10**400), [3], Huge()]
    expected = [1.0, 2.5, np.nan, np.inf, -np.inf, np.nan, np.nan]
    assert np.array_equal(floats_of(cells), expected, equal_nan=True)
