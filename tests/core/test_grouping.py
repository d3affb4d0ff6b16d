"""Who is one person: the same answer for fits, networks, evaluations and splits, whatever the ids look like."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import discreet
from discreet.core.grouping import MISSING_USER, canonical_user_id, id_codes
from discreet.evaluation.splitting import unit_ids
from discreet.linear.gate.people import People
from discreet.trusted.rows import person_weights

SEVEN = [7, 7.0, "7", " 7", "7.0", "7.", b"7", np.int8(7), np.float32(7), Decimal(7)]
NOBODIES = [None, float("nan"), "", "  ", b"", pd.NA, pd.NaT, np.float64("nan"), [7], {}]


def cells(values):
    column = np.empty(len(values), object)
    for place, value in enumerate(values):
        column[place] = value
    return column


def test_one_person_however_the_id_is_written():
    """Pandas reads a column in pieces, and leaves 7 beside "7": one person, whose rows share a weight of 1."""
    column = cells([*SEVEN, "07", "7a", 8, *NOBODIES])
    codes = id_codes(column)
    assert set(codes[: len(SEVEN)]) == {0}
    assert codes[len(SEVEN) :].tolist() == [1, 2, 3] + [MISSING_USER] * len(NOBODIES)
    people = People.of(column)
    assert people._rows.tolist() == [len(SEVEN), 1, 1, 1]
    assert people._weights(1)[codes == 0].sum() <= 1
    frame = pd.DataFrame({"who": column})
    ids = unit_ids(frame, "who", len(frame))
    weights = person_weights(ids)
    assert weights[: len(SEVEN)].tolist() == pytest.approx([1 / len(SEVEN)] * len(SEVEN))
    assert weights[-len(NOBODIES) :].tolist() == [0.0] * len(NOBODIES)


def test_other_ids_keep_what_they_are():
    day = datetime.date(2020, 1, 2)
    assert canonical_user_id(day) == day
    assert canonical_user_id((1, 2)) == (1, 2)
    assert canonical_user_id(0.5) == 0.5
    assert canonical_user_id(True) == "1"
    assert canonical_user_id("-3.00") == "-3"
    assert canonical_user_id("3.50") == "3.50"
    assert canonical_user_id("1.2.0") == "1.2.0"
    assert canonical_user_id(-0.0) == canonical_user_id(0.0) == "0"


@pytest.mark.parametrize(
    "column",
    [
        np.array([5, 5, 6]),
        np.array([5.0, 5.0, np.nan]),
        np.array(["2020-01-01", "2020-01-01", "NaT"], "M8[ns]"),
        pd.Series([5, 5, None], dtype="Int64"),
        pd.Series(["a", "a", None], dtype="category"),
        pd.Series(["a", "a", None], dtype="string"),
        pd.Series([5, "5", None], dtype=object),
    ],
)
def test_columns_of_every_type(column):
    frame = pd.DataFrame({"who": column})
    ids = unit_ids(frame, "who", 3)
    assert ids[0] == ids[1] != ids[2]
    codes = People.of(frame["who"].to_numpy())._codes
    assert codes[0] == codes[1] == 0
    assert codes[2] == (1 if frame["who"].notna().all() else MISSING_USER)
    assert (ids[2] is None) == (codes[2] == MISSING_USER)


def test_all_rows_of_a_person_are_on_one_side():
    rng = np.random.default_rng(0)
    who = rng.integers(300, size=3000)
    written = cells([[one, float(one), f" {one}", f"{one}.0"][place % 4] for place, one in enumerate(who)])
    frame = pd.DataFrame({"who": written, "x": rng.random(3000)})
    train, test = discreet.split(frame, test=0.4, unit="who")
    sides = [set(map(canonical_user_id, side["who"])) for side in (train, test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == len(set(who.tolist()))
