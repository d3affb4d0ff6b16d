"""Tables in files: one record is one row, whatever is written in it; CSV and Parquet say the same."""

import csv
import io
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidParameter
from discreet.linear import csv_records, tables
from discreet.linear.cells import numbers_in
from discreet.linear.column_kinds import Category, Flag, Numeric
from discreet.linear.tables import table_in

COLUMNS = {"x": Numeric(0, 1), "job": Category(("clerk", 1, 2.5)), "ok": Flag(True), "y": Numeric(0, 1)}


def read(path, columns=COLUMNS, keep=()):
    """All rows as tuples, kept columns last; NaN as None."""
    rows = []
    for chunk in table_in(path).chunks(columns, keep):
        parts = [chunk[name].tolist() for name in columns] + [chunk.kept[name].tolist() for name in keep]
        assert all(len(part) == len(chunk) for part in parts)
        rows += zip(*parts, strict=True)
    return [tuple(None if cell != cell else cell for cell in row) for row in rows]


def rows_of(tmp_path, *lines, header="x,job,ok,y", **settings):
    file = tmp_path / "t.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return read(file, **settings)


def test_cells_are_what_is_declared_or_missing(tmp_path):
    found = rows_of(
        tmp_path,
        "1.5,clerk,true,2",
        '" 1e3 ", clerk ,True,"0"',
        "nan,pilot,no,",
        "1,1.0,1,x",
        "-inf,2.50,,1_0",
        ",,0,1e999",
    )
    assert found == [
        (1.5, "clerk", True, 2.0),
        (1000.0, "clerk", True, 0.0),
        (None, None, None, None),
        (1.0, 1, True, None),
        (float("-inf"), 2.5, None, 10.0),
        (None, None, None, float("inf")),
    ]


def test_lines_that_do_not_parse_count_as_missing(tmp_path):
    found = rows_of(
        tmp_path, "1,clerk,true", "1,clerk,true,2,3", '"1,clerk,true,2', "", "\ufffd", "3,clerk,1,4"
    )
    nothing = (None, None, None, None)
    assert found == [nothing, nothing, nothing, nothing, (3.0, "clerk", True, 4.0)]


def test_columns_are_found_by_name_in_any_order_and_dialect(tmp_path):
    expected = [(1.0, "clerk", True, 2.0)]
    assert rows_of(tmp_path, "2,7,true,clerk,1", header=" y , id ,ok,job,x") == expected
    assert rows_of(tmp_path, "2;a,b;true;clerk;1", header="y;id;ok;job;x") == expected
    assert rows_of(tmp_path, "2\ta,b\ttrue\tclerk\t1", header='y\tid\t"ok"\tjob\tx') == expected
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbfx,job,ok,y\r\n1,clerk,true,2\r\n")
    assert read(tmp_path / "bom.csv") == expected
    assert rows_of(tmp_path, "pilot,5,1", header="job,x,y", columns={"x": COLUMNS["x"]}, keep=["job"]) == [
        (5.0, "pilot")
    ]


LINES = st.one_of(
    st.sampled_from(
        ["1,clerk,true,2", "0.5,pilot,no,7", ",,,", '"1",clerk,1,"2"', '"1,clerk,true,2', "nan,inf,-inf,1e9"]
    ),
    st.text('0123456789.,"eE+-_ nax\t;\x00\x0b\u2028\u0660', max_size=20),
    st.lists(st.floats(), min_size=4, max_size=4).map(lambda row: ",".join(map(str, row))),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(LINES.filter(lambda line: '"' not in line or line.count('"') % 2), max_size=6))
def test_one_line_is_one_row_whatever_is_in_the_others(tmp_path_factory, lines):
    """A stray quote ends with its line as long as nothing closes it."""
    folder = tmp_path_factory.getbasetemp()
    lines = [line for place, line in enumerate(lines) if not ('"' in line and '"' in "".join(lines[:place]))]
    together = rows_of(folder, *lines)
    alone = [row for line in lines for row in rows_of(folder, line)]
    assert together == alone
    assert len(together) <= len(lines)


CELLS = st.lists(st.text('a1.,;"\n\t ', max_size=6), min_size=4, max_size=4)


@settings(deadline=None, max_examples=150)
@given(st.lists(CELLS, max_size=6))
def test_one_record_is_one_row_as_every_writer_quotes_it(tmp_path_factory, records):
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerows([COLUMNS, *records])
    path = tmp_path_factory.getbasetemp() / "quoted.csv"
    path.write_text(written.getvalue(), newline="")
    for size in (7, csv_records.CHUNK):  # a record may begin in one chunk and end in another
        with mock.patch.object(csv_records, "CHUNK", size):
            chunks = list(table_in(path).chunks({}, list(COLUMNS)))
        kept = [zip(*(part.kept[name] for name in COLUMNS), strict=True) for part in chunks]
        assert [list(row) for part in kept for row in part] == records


def test_sixty_line_breaks_are_one_record(tmp_path):
    note = '"' + "line\n" * 60 + '"'
    header = "x,job,ok,y,note"
    lines = [f"{k},clerk,true,1,{note if k == 5 else 'none'}" for k in range(20)]
    assert len(rows_of(tmp_path, *lines, header=header)) == 20
    twin = (tmp_path / "t.csv").read_text().splitlines()  # as it was read before
    assert len(twin) == 1 + 20 + 60


def test_a_reader_that_lets_quotes_run_on_would_be_caught(tmp_path):
    lines = ['"1,clerk,true,2', "3,clerk,1,4"]
    assert len(list(csv.reader(lines))) == 1  # one record has swallowed its neighbour
    assert len(rows_of(tmp_path, *lines)) == 2


def test_numpys_parser_and_ours_agree(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=500), 10.0 ** rng.uniform(-300, 300, 500), [0.1, -0.0, 5e-324]])
    lines = [f"{value!r},clerk,true,{value:.3f}" for value in values.tolist()]
    fast = rows_of(tmp_path, *lines)
    monkeypatch.setattr(tables.CsvSource, "_numbers", lambda self, lines, names: {})
    assert rows_of(tmp_path, *lines) == fast
    assert [row[0] for row in fast] == values.tolist()


def test_chunks_do_not_matter(tmp_path, monkeypatch):
    lines = [f"{k},clerk,true,{k % 7}" for k in range(1000)]
    whole = rows_of(tmp_path, *lines)
    monkeypatch.setattr(csv_records, "CHUNK", 50)
    assert rows_of(tmp_path, *lines) == whole
    table = table_in(tmp_path / "t.csv").whole(COLUMNS)
    assert (len(table), table.column_names) == (1000, tuple(COLUMNS))
    assert table["x"].tolist() == list(range(1000))


def test_an_empty_table_has_no_rows_but_columns(tmp_path):
    assert rows_of(tmp_path) == []
    assert [len(chunk) for chunk in table_in(tmp_path / "t.csv").chunks(COLUMNS, ["x"])] == [0]
    assert len(table_in(tmp_path / "t.csv").whole(COLUMNS)) == 0


def parquet(tmp_path, **columns):
    file = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file


def test_parquet_says_the_same(tmp_path):
    file = parquet(
        tmp_path,
        x=pyarrow.array([1.5, None, 3.0], pyarrow.float32()),
        job=pyarrow.array(["clerk", "pilot", None]).dictionary_encode(),
        ok=pyarrow.array([True, False, None]),
        y=pyarrow.array([2, 3, None], pyarrow.int16()),
        other=pyarrow.array([[1], [], None]),
    )
    found = read(file, keep=["job"])
    assert found == [
        (1.5, "clerk", True, 2.0, "clerk"),
        (None, None, None, 3.0, "pilot"),
        (3.0, None, None, None, None),
    ]
    texts = parquet(tmp_path, x=["1.5", "many"], job=[1, 7], ok=["true", "x"], y=[0.5, float("nan")])
    assert read(texts) == [(1.5, 1, True, 0.5), (None, None, None, None)]
    with pytest.raises(InvalidParameter, match="column 'x' holds list"):
        read(parquet(tmp_path, x=[[1]]), {"x": Numeric(0, 1)})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_wrong_columns_are_refused_by_the_declared_name_only(tmp_path, kind):
    file = tmp_path / f"t.{kind}"
    if kind == "csv":
        file.write_text("39,State-gov,Jane\n40,Private,Joe\n")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"Jane": [1]}), file)
    with pytest.raises(InvalidParameter, match="has no column 'x'") as refusal:
        read(file)
    assert "Jane" not in str(refusal.value)
    twice = tmp_path / "twice.csv"
    twice.write_text("x,job,ok,y,x\n")
    with pytest.raises(InvalidParameter, match="more than one column 'x'"):
        read(twice)


def test_garbage_is_no_parquet(tmp_path):
    file = tmp_path / "t.parquet"
    file.write_bytes(b"PAR1" + bytes(range(256)))
    with pytest.raises(InvalidParameter, match="is not a Parquet file"):
        table_in(file)


def test_numbers_of_any_cell():
    cells = [True, 0, "0", 0.0, None, "", "1e3", object(), 10**400, "\u0663"]
    found = numbers_in(cells).tolist()
    assert [None if x != x else x for x in found] == [
        1,
        0,
        0,
        0,
        None,
        None,
        1000,
        None,
        np.inf,
        3,
    ]  # as in memory


@pytest.mark.parametrize("odd", "\x1c\x1d\x1e\x1f\x0b\x0c\x85\xa0\u2003\u3000")
def test_how_a_line_is_read_depends_on_that_line_only(odd, tmp_path):
    """numpy's parser takes some characters for blanks that float() does not; an empty cell asks for the latter."""
    lines, found = [f"1{odd},0.5" if place % 2 else f"{place},0.25" for place in range(20)], []
    for name, more in (("a.csv", []), ("b.csv", [",0.5"])):
        (tmp_path / name).write_text("\n".join(["u,v", *lines, *more]) + "\n", newline="\n")
        whole = table_in(tmp_path / name).whole({"u": Numeric(0, 30), "v": Numeric(0, 1)})
        found.append(np.asarray(whole["u"], np.float64)[:20])
    assert np.array_equal(*found, equal_nan=True)


@pytest.mark.parametrize("header", ['x,"y\n', '"x\n\n\na",y\n'], ids=["not closed", "four lines"])
def test_quotes_in_the_header_cost_no_record(header, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(header + "".join(f"{number},1\n" for number in range(9)))
    source = table_in(path)
    assert len(source.names) == 2
    table = source.whole(dict.fromkeys(source.names, Numeric(0, 9)))
    assert table[source.names[0]].tolist() == list(range(9))
