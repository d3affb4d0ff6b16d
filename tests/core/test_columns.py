"""One odd cell never changes what the others are: not their values, not whose they are."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from discreet.core.columns import cells_of
from discreet.core.grouping import id_codes
from discreet.evaluation import split
from discreet.evaluation.splitting import unit_ids
from discreet.evaluation.tally import person_weights
from discreet.linear.inputs import codes
from discreet.pytorch import PerPerson

IDS = [1_790_000_000_000_000_000 + number for number in range(200)]  # neighbours, and one float to numpy
FRAMES = {
    "pandas": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="Int64")}),
    "pandas with arrow": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="int64[pyarrow]")}),
    "unsigned": lambda cells: pd.DataFrame({"id": pd.Series(cells, dtype="UInt64")}),
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
        assert cells_of(frame["id"]).tolist()[:200] == IDS
    spoilt = np.asarray(frames[1]["id"].to_numpy(), np.float64)  # the broken twin
    assert len(set(spoilt[:200].tolist())) < 10


def test_people_and_values_stay_who_they_are(frames):
    for frame in frames:
        weights = person_weights(unit_ids(frame, "id", len(frame)))
        assert weights[:200].sum() == 200
        assert codes(frame["id"], tuple(IDS)).tolist()[:200] == list(range(200))
        assert len(PerPerson(torch.zeros(len(frame), 1), frame["id"])) == 200


def test_nobody_else_changes_the_side_of_a_split(frames):
    key = b"k" * 32
    sides = [
        {cell for cell in cells_of(split(frame, test=0.5, key=key)[1]["id"]).tolist() if cell in IDS}
        for frame in frames
    ]
    assert sides[0] == sides[1]
    assert 50 < len(sides[0]) < 150


def test_lists_hold_cells_of_any_type():
    assert cells_of([-1, 2**63]).tolist() == [-1, 2**63]
    assert cells_of(["a", "a\0"]).tolist() == ["a", "a\0"]
    assert cells_of([[1, 2], [3, 4]]).shape == (2, 2)
    assert len(PerPerson(torch.zeros(3, 1), ["a", "a\0", None])) == 2


def test_equal_ids_are_one_person_however_they_are_written():
    ids = np.empty(5, object)
    ids[:] = [7.5, Decimal("7.5"), Decimal("7.50"), Fraction(15, 2), np.float32(7.5)]
    assert set(id_codes(ids).tolist()) == {0}
    assert person_weights(unit_ids(np.zeros((5, 1)), ids, 5)).sum() == pytest.approx(1)
    many = np.empty(40, object)
    many[:] = [Decimal("7.5" + "0" * zeros) for zeros in range(40)]
    assert sorted(map(len, split(np.arange(40.0).reshape(-1, 1), test=0.5, unit=many))) == [0, 40]
