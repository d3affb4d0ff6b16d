"""``discreet schema``: names from the header line, nothing from the records, blanks that fit refuses."""

import json
import tomllib

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from discreet.cli import main
from discreet.cli.schema import as_toml
from discreet.linear.schema import Schema


def run(*words, **extra):
    return CliRunner().invoke(main, ["schema", *map(str, words)], **extra)


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text('age,job,"net income",id\n39,clerk,1000,Jane\n')
    return file


def test_blanks_name_every_column_and_are_refused_by_fit(table, tmp_path):
    out = tmp_path / "schema.toml"
    result = run(table, "--target", "net income", "--out", out, "--json")
    names = ["age", "job", "net income", "id"]
    assert json.loads(result.stdout) == {
        "out": str(out),
        "columns": names,
        "blank": names,
        "target": "net income",
    }
    assert tomllib.loads(out.read_text()) == {"target": "net income", "columns": {name: {} for name in names}}
    assert "Jane" not in out.read_text()
    words = ["fit", table, "--schema", out, "--epsilon", "1", "--delta", "1e-6", "--out", tmp_path / "m"]
    refused = CliRunner().invoke(main, list(map(str, words)))
    assert refused.exit_code == 2
    assert "columns.age={}: must have one of bounds, learn, categories, flag" in refused.stderr


def test_what_is_asked_makes_a_schema(table, tmp_path):
    out = tmp_path / "schema.toml"
    said = "number\n17\n90\ncat\nclerk, farmer\nle\n\n"  # abbreviated; an id is left out by itself
    result = run(table, "--target", "net income", "--out", out, "--ask", input=said)
    assert result.exit_code == 0, result.stderr
    schema = Schema.load(out)
    assert schema.to_dict() == {
        "columns": {
            "age": {"bounds": [17.0, 90.0]},
            "job": {"categories": ["clerk", "farmer"]},
            "net income": {"learn": True},
        },
        "target": "net income",
    }
    assert result.stdout == f"written to {out}: 3 columns, 0 of them to be filled in\n"


def test_wrong_answers_are_asked_again(table, tmp_path):
    """Bounds that are reversed, infinite or no numbers, values that occur twice or are empty, open quotes."""
    out = tmp_path / "schema.toml"
    bounds = ["number", "90", "17", "inf", "many", "0", "nan", "17", "90"]
    values = ["category", "a,,b", "a, a", 'a, "b', '"east, coast", "the ""wild"" west", Zürich']
    said = "\n".join([*bounds, *values, "nonsense", "learn", "flag", "yes"]) + "\n"
    result = run(table, "--out", out, "--ask", input=said)
    assert result.exit_code == 0, result.stderr
    columns = tomllib.loads(out.read_text())["columns"]
    assert columns["age"] == {"bounds": [17, 90]}
    assert columns["job"] == {"categories": ["east, coast", 'the "wild" west', "Zürich"]}
    assert result.stderr.count("  age: ") == 4
    assert result.stderr.count("  job: ") == 3
    assert "  age: must be a finite number above 90" in result.stderr


def test_half_an_interview_writes_nothing(table, tmp_path):
    out = tmp_path / "schema.toml"
    result = run(table, "--out", out, "--ask", input="number\n")  # and then the terminal is closed
    assert (result.exit_code, out.exists()) == (130, False)


def test_there_is_a_way_back(table, tmp_path):
    """Out of the bounds to the kind, and from a column to the one before, as far as the first."""
    out = tmp_path / "schema.toml"
    first = ["back", "n", "1", "<", "n", "1", "5"]  # back before anything; out of the bounds; wrong ones
    again = ["back", "n", "17", "90"]
    said = [*first, *again, "flag", "yes", "later", "skip"]
    result = run(table, "--out", out, "--ask", input="\n".join(said) + "\n")
    assert result.exit_code == 0, result.stderr
    columns = tomllib.loads(out.read_text())["columns"]
    assert columns == {"age": {"bounds": [17, 90]}, "job": {"flag": "yes"}, "net income": {}}


def test_who_stops_keeps_the_answers(table, tmp_path):
    out = tmp_path / "schema.toml"
    result = run(table, "--out", out, "--ask", input="n\n17\n90\nc\nclerk, farmer\n")  # and then Ctrl-C
    assert result.exit_code == 0, result.stderr
    assert "the answers so far are kept" in result.stderr
    assert tomllib.loads(out.read_text())["columns"] == {
        "age": {"bounds": [17, 90]},
        "job": {"categories": ["clerk", "farmer"]},
        "net income": {},
        "id": {},
    }


def test_whose_a_row_is_becomes_the_unit(tmp_path):
    """One column may say so; the guess is by its name."""
    table, out = tmp_path / "t.csv", tmp_path / "schema.toml"
    table.write_text("patient_id,age,ill,nurse\n")
    said = ["", "n", "0", "100", "flag", "yes", "person", "skip"]
    result = run(table, "--target", "ill", "--out", out, "--ask", input="\n".join(said) + "\n")
    assert result.exit_code == 0, result.stderr
    assert "nurse: one column says whose a row is" in result.stderr
    schema = Schema.load(out)
    assert (schema.unit.column, list(schema.columns)) == ("patient_id", ["age", "ill"])


def test_dates_are_asked_for(table, tmp_path):
    out = tmp_path / "schema.toml"
    said = ["d", "2020-13-01", "2020-12-31", "", "2020-01-01", "2020-12-31", "%d.%m.%Y", "s", "s", "s"]
    result = run(table, "--out", out, "--ask", input="\n".join(said) + "\n")
    assert result.exit_code == 0, result.stderr
    expected = {"bounds": ["2020-01-01", "2020-12-31"], "format": "%d.%m.%Y"}
    assert tomllib.loads(out.read_text())["columns"] == {"age": expected}
    assert Schema.load(out).to_dict()["columns"] == {"age": expected}


def test_guesses_come_from_names_and_declared_types_only(tmp_path):
    """The cells say otherwise, and are not looked at."""
    file, out = tmp_path / "t.arrow", tmp_path / "s.toml"
    columns = {"a": pyarrow.array(["1", "2"]), "ill": pyarrow.array([True, False]), "n": [1, 2]}
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    result = run(file, "--out", out, "--ask", input="\nx, y\n\nyes\n\n0\n5\n")
    assert result.exit_code == 0, result.stderr
    assert tomllib.loads(out.read_text())["columns"] == {
        "a": {"categories": ["x", "y"]},
        "ill": {"flag": "yes"},
        "n": {"bounds": [0, 5]},
    }


def test_parquet_has_names_too(tmp_path):
    file, out = tmp_path / "t.parquet", tmp_path / "s.toml"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1], "b c": ["x"]}), file)
    assert json.loads(run(file, "--out", out, "--json").stdout)["columns"] == ["a", "b c"]


def test_names_of_every_kind_survive():
    names = ['quote"', "back\\slash", "ü", "tab\t", "a.b", "#", "del\x7f", "1e"]
    text = as_toml({name: {"flag": name} for name in names}, names[0])
    assert tomllib.loads(text) == {"target": names[0], "columns": {name: {"flag": name} for name in names}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"39,State-gov,Jane\n",
        b"age,age\n1,2\n",
        b"age,,job\n",
        bytes(range(128, 256)) * 4,
        b"\x00\x01,b\n",
    ],
)
def test_a_first_line_that_may_be_a_record_is_not_repeated(tmp_path, content):
    file, out = tmp_path / "t.csv", tmp_path / "s.toml"
    file.write_bytes(content)
    result = run(file, "--out", out)
    assert (result.exit_code, out.exists()) == (2, False)
    assert result.stderr.endswith(
        "its first line must name the columns: texts, all different, none of them a number.\n"
    )


def test_refusals(table, tmp_path):
    assert "--target=size: is not a name" in run(table, "--target", "size", "--out", tmp_path / "s").stderr
    assert "exists; choose another name" in run(table, "--out", table).stderr
    missing = run(tmp_path / "none.csv", "--out", tmp_path / "s")
    assert (missing.exit_code, "No such file or directory" in missing.stderr) == (1, True)
    nowhere = run(table, "--out", table / "s.toml")
    assert (nowhere.exit_code, "Not a directory" in nowhere.stderr) == (1, True)


def test_utf_16_is_named(tmp_path):
    file = tmp_path / "t.csv"
    for encoding in ("utf-16", "utf-16-be"):
        file.write_bytes(b"\xfe\xff" * (encoding == "utf-16-be") + "age,job\n39,Jane\n".encode(encoding))
        result = run(file, "--out", tmp_path / "s.toml")
        assert (result.exit_code, "is written in UTF-16; save it as UTF-8" in result.stderr) == (2, True)
