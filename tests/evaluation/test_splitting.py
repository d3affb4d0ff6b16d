"""Keyed coins: one record more moves one record of one side, whatever the table."""

import inspect
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.sparse import csr_array

from discreet import Budget, Certificate, Gaussian, Ledger, Plan
from discreet.errors import InvalidParameter, PlanViolation
from discreet.evaluation import evaluate, split, splitting
from discreet.ledger import GaussianFilter

KEY = b"a key of thirty-two secret bytes"


def tables(rng, rows):
    """The same records as tables of several kinds; many are equal, some cells are missing."""
    numbers = rng.integers(0, 3, (rows, 2)).astype(float)
    numbers[rng.random(rows) < 0.2, 0] = np.nan
    words = rng.choice(["a", "b", ""], rows).astype(object)
    words[rng.random(rows) < 0.1] = None
    return {
        "array": numbers,
        "whole numbers": np.nan_to_num(numbers).astype(np.int64),
        "frame": pd.DataFrame({"x": numbers[:, 0], "y": numbers[:, 1], "w": words}),
        "sparse": csr_array(np.nan_to_num(numbers)),
        "words": words,
    }


def content(side):
    """The records of a side, in order."""
    if isinstance(side, pd.DataFrame):
        return [repr(row) for row in side.itertuples(index=False)]
    side = side.toarray() if hasattr(side, "toarray") else np.asarray(side)
    return [repr(row.tolist() if hasattr(row, "tolist") else row) for row in side]


def distance(one, other):
    """How many records two lists differ by."""
    left, right = Counter(one), Counter(other)
    return sum(((left - right) + (right - left)).values())


def is_insertion(shorter, longer):
    """True if the one list is the other with one element more, all others in the same order."""
    return any(longer[:place] + longer[place + 1 :] == shorter for place in range(len(longer)))


def moved(dealt, table, place, rows):
    """What removing one row changes in either side."""
    with_it, without = dealt(table), dealt(splitting.rows_of(table, np.delete(np.arange(rows), place)))
    return [
        (distance(content(a), content(b)), content(a) == content(b) or is_insertion(content(b), content(a)))
        for a, b in zip(with_it, without, strict=True)
    ]


@pytest.mark.parametrize("kind", ["array", "whole numbers", "frame", "sparse", "words"])
def test_one_record_more_is_one_record_more_on_one_side(kind):
    rng, rows = np.random.default_rng(3), 60
    table = tables(rng, rows)[kind]
    for place in range(0, rows, 7):
        changes = moved(lambda part: split(part, test=0.4, key=KEY), table, place, rows)
        assert sorted(change for change, _ in changes) == [0, 1]
        assert all(inserted for _, inserted in changes)


def of_arrays(kind, images):
    """The same images as cells of different kinds of tables."""
    return {
        "arrays": images,
        "tensors": [torch.tensor(image) for image in images],
        "dictionaries": [{"image": torch.tensor(image), "at": [0, image]} for image in images],
        "columns": pd.DataFrame({"image": [image.reshape(-1) for image in images]}),
    }[kind]


def places(side, images):
    """Which images there are on a side, by their number."""
    cells = side["image"] if hasattr(side, "columns") else side
    arrays = (np.asarray(cell["image"] if isinstance(cell, dict) else cell).reshape(-1) for cell in cells)
    known = {image.tobytes(): place for place, image in enumerate(images)}
    return {known[array.tobytes()] for array in arrays}


@pytest.mark.parametrize("kind", ["arrays", "tensors", "dictionaries", "columns"])
def test_records_that_hold_arrays_have_coins_of_their_own(kind, monkeypatch):
    images = [np.full((40, 40), 1e-9 * place) for place in range(60)]

    def difference():
        both = [split(of_arrays(kind, part), test=0.4, key=KEY) for part in (images, images[1:])]
        return sorted(
            len(places(one, images) ^ places(other, images)) for one, other in zip(*both, strict=True)
        )

    assert difference() == [0, 1]
    monkeypatch.setattr(splitting, "_array_bytes", lambda array: b"m")  # the broken twin
    assert difference()[1] > 2


def test_splits_by_row_number_or_without_order_are_caught():
    """The broken twins: a split by row number moves many, and input order lets copies change places."""
    table, rows = np.arange(60.0)[:, None], 60

    def by_number(part):
        cut = len(part) * 6 // 10
        order = np.random.default_rng(0).permutation(len(part))
        return part[order[:cut]], part[order[cut:]]

    assert max(sum(c for c, _ in moved(by_number, table, place, rows)) for place in range(5)) > 2

    copies = pd.DataFrame({"x": [0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6]})

    def in_order_of_rows(part):
        return [side.sort_index() for side in split(part, test=0.5, key=KEY)]

    assert not all(ok for place in range(12) for _, ok in moved(in_order_of_rows, copies, place, 12))
    ours = [moved(lambda part: split(part, test=0.5, key=KEY), copies, place, 12) for place in range(12)]
    assert all(ok for changes in ours for _, ok in changes)


def test_a_missing_cell_of_another_record_changes_no_coin():
    """One missing cell turns a column of whole numbers into floats; everybody else stays where he was."""
    whole = pd.DataFrame({"a": np.arange(100), "b": np.arange(100) % 3})
    more = pd.concat([whole, pd.DataFrame({"a": [None], "b": [1]})], ignore_index=True)
    assert more["a"].dtype != whole["a"].dtype
    for old, new in zip(split(whole, test=0.3, key=KEY), split(more, test=0.3, key=KEY), strict=True):
        assert set(old["a"]) <= set(new["a"])


def test_whole_numbers_beyond_floats_are_different_records():
    ids = np.array([2**60, 2**60 + 1, 2**60, 7])[:, None]
    assert len(set(splitting._number_rows(ids))) == 3
    assert splitting._number_rows(np.array([[7]])) == splitting._number_rows(np.array([[7.0]]))
    assert splitting._cell(2**60) != splitting._cell(2**60 + 1)
    assert splitting._cell(True) == splitting._cell(1.0) == splitting._cell(1)
    assert splitting._cell(None) == splitting._cell(float("nan")) == splitting._cell(pd.NA)
    assert splitting._cell("1") != splitting._cell(1)


def test_copies_are_dealt_one_by_one():
    """A table of equal records is dealt like any other. False alarm: 1e-6."""
    train, test = split(np.ones((5000, 1)), test=0.3)
    assert stats.binomtest(len(test), 5000, 0.3).pvalue > 1e-6
    assert len(train) + len(test) == 5000


def test_a_person_stays_together_whatever_the_rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": rng.integers(0, 200, 2000), "x": rng.random(2000)})
    train, test = split(frame, test=0.5, unit="who", key=KEY)
    assert not set(train["who"]) & set(test["who"])
    again, _ = split(frame.assign(x=0.0), test=0.5, unit="who", key=KEY)
    assert set(again["who"]) == set(train["who"])
    assert set(split(frame, test=0.5, unit=frame["who"].to_numpy(), key=KEY)[1]["who"]) == set(test["who"])


def test_several_tables_keep_their_rows_together_and_keys_repeat_a_split():
    x, y = np.arange(200.0).reshape(100, 2), np.arange(100)
    x_train, x_test, y_train, y_test = first = split(x, y, test=0.2, key=KEY)
    assert (x_train[:, 0] == 2 * y_train).all()
    assert (x_test[:, 0] == 2 * y_test).all()
    again = split(x, y, test=0.2, key=KEY)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert first.digest == again.digest != split(x, y, test=0.2).digest
    assert KEY.hex() not in first.digest


def test_polars_and_arrow_come_back_as_they_were():
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": list("wxyz")})
    wanted = [list(side["a"]) for side in split(frame, test=0.5, key=KEY)]
    sides = split(pa.Table.from_pandas(frame), test=0.5, key=KEY)
    assert [side.column("a").to_pylist() for side in sides] == wanted
    pl = pytest.importorskip("polars")
    sides = split(pl.DataFrame({"a": [1, 2, 3, 4], "b": list("wxyz")}), test=0.5, key=KEY)
    assert [side["a"].to_list() for side in sides] == wanted


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"test": 0.0}, "test"),
        ({"test": float("nan")}, "test"),
        ({"test": 0.3, "key": b"short"}, "key"),
        ({"test": 0.3, "key": "text" * 10}, "key"),
        ({"test": 0.3, "unit": "who"}, "unit"),
        ({"test": 0.3, "unit": [1, 2]}, "unit"),
    ],
)
def test_what_means_nothing_is_refused(wrong, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        split(np.ones((5, 1)), **wrong)
    with pytest.raises(InvalidParameter, match=r"^tables="):
        split(np.ones((5, 1)), np.ones(4), test=0.3)


def certificate(epsilon, neighbours="add-remove", trusted=True, unit="record"):
    budget = Budget(epsilon, 1e-6, neighbours, unit=unit)
    plan = Plan.adaptive("side", GaussianFilter(budget), {"epsilon": epsilon})
    with Ledger.in_memory(plan.rule) as ledger:
        ledger.run(Gaussian(20.0), plan.digest()).reserve(1)
        return Certificate.of(ledger, plan, trusted=trusted)


def test_both_sides_cost_the_larger_of_both():
    sides = split(np.ones((5, 1)), test=0.5)
    both = sides.together(certificate(1.0), certificate(2.0))
    assert both.epsilon.upper == 2.0
    assert both.delta == 1e-6


def test_what_is_not_parallel_is_refused():
    sides = split(np.ones((5, 1)), test=0.5)
    with pytest.raises(PlanViolation, match="add-remove"):
        sides.together(certificate(1.0, "replace-one"), certificate(1.0, "replace-one"))
    with pytest.raises(PlanViolation, match="different"):
        sides.together(certificate(1.0), certificate(1.0, "replace-one"))
    with pytest.raises(PlanViolation, match="different"):
        sides.together(certificate(1.0), certificate(1.0, unit="person"))
    with pytest.raises(Exception, match="seed"):
        sides.together(certificate(1.0), certificate(1.0, trusted=False))
    with pytest.raises(InvalidParameter, match=r"^test="):
        sides.together(certificate(1.0), None)


def test_one_ledger_for_both_sides_promises_what_it_promises():
    x, y = np.ones((50, 1)), np.zeros(50)
    with Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-5))) as ledger:
        one, other = (
            evaluate(lambda rows: np.full(len(rows), 0.5), x, y, classes=(0, 1), epsilon=0.5, ledger=ledger)
            for _ in range(2)
        )
    both = split(x, test=0.5).together(one.certificate, other.certificate)
    assert both.epsilon.upper == 3.0


def test_the_split_is_keyword_only_where_numbers_could_be_mistaken():
    assert inspect.signature(split).parameters["test"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("odd", [None, "x", [1, 2, 3], (), 1j, float("nan"), b"1", {}])
def test_one_odd_row_of_a_list_moves_nobody_else(odd):
    """numpy would make texts of all cells for one text among them, and so toss all coins anew."""
    rows = [[2**60 + i, i / 3] for i in range(40)]
    before = split(rows, test=0.5, key=KEY)
    after = split([*rows, odd], test=0.5, key=KEY)
    assert [[row for row in side if row in rows] for side in after] == list(before)
    ids = [2**60 + i for i in range(40)]
    before = split(rows, test=0.5, unit=ids, key=KEY)
    after = split(
        [*rows, [0, 0.0]], test=0.5, unit=[*ids, odd if isinstance(odd, str | float) else None], key=KEY
    )
    assert [[row for row in side if row in rows] for side in after] == list(before)
