"""The scorecard's quick rows pass, their broken twins do not, and a row that fails fails the command."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCORECARD = Path(__file__).parent.parent / "benchmarks" / "scorecard"
QUICK = (9, 10, 11, 12, 18, 19, 27, 31)


@pytest.fixture
def command(monkeypatch):
    """What ``python benchmarks/scorecard`` runs."""
    monkeypatch.syspath_prepend(str(SCORECARD))
    found = spec_from_file_location("scorecard_command", SCORECARD / "__main__.py")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("arguments", "mark"), [((), "P"), (("--twins",), "F")], ids=["library", "twins"])
def test_quick_rows(command, capsys, arguments, mark):
    assert command.main(["--quick", "--json", *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["row"]: row["mark"] for row in rows} == dict.fromkeys(QUICK, mark), rows


def test_all_rows_are_there_with_a_twin_each(command):
    assert sorted(command.ROWS) == list(range(1, 32))
    assert all(row.ours and row.twins for row in command.ROWS.values())


def test_a_row_that_fails_or_ends_in_an_error_fails_the_card(monkeypatch):
    monkeypatch.syspath_prepend(str(SCORECARD))
    import card

    def attack(subject):
        if subject == "broken":
            raise card.Broken("seen")
        if subject == "missing":
            raise card.Missing("not there")
        return {"fine": "held"}[subject]

    def marks(*subjects):
        chosen = card.Row(0, "", attack, {name: name for name in subjects}, {name: name for name in subjects})
        return card.played(chosen).mark, card.twins_played(chosen).mark

    assert marks("fine") == ("P", "P")
    assert marks("fine", "broken") == ("F", "P")
    assert marks("broken") == ("F", "F")
    assert marks("fine", "missing") == ("-", "P")
    assert marks("an error") == ("F", "P")  # a twin must be caught by the attack, not by a mistake of its own
