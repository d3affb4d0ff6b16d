"""An ordinary script becomes a private one by a few lines, which the documentation shows."""

import difflib
import runpy
import sys
from pathlib import Path

import pytest

from discreet.certificate import Certificate

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = (ROOT / "examples" / "conversion" / f"{name}.py" for name in ("before", "after"))


def changed_lines(before, after):
    """How many lines were replaced, added or taken away; of a replaced passage the longer side counts."""
    steps = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(
        max(old, new) for kind, a, b, c, d in steps if kind != "equal" for old, new in [(b - a, d - c)]
    )


def test_a_script_of_71_lines_needs_at_most_15_others():
    before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
    assert len(before) == 71
    assert changed_lines(before, after) <= 15


def test_lines_are_counted():
    assert changed_lines(list("abcdef"), list("abcdef")) == 0
    assert changed_lines(list("abcdef"), list("abXYZdef")) == 3
    assert changed_lines(list("abcdef"), list("abf")) == 3
    assert changed_lines(list("abc"), list("xabcy")) == 2


def test_the_documentation_shows_the_difference():
    before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
    text = (ROOT / "docs" / "pytorch.md").read_text()
    shown = text.split("```diff\n")[1].split("```")[0].splitlines()
    compared = list(difflib.unified_diff(before, after, n=0, lineterm=""))
    first_line = 5  # below the names of the files, and the first lines of both, which say what they are
    expected = [line for line in compared[first_line:] if not line.startswith("@@") and line[1:]]
    assert expected == [line for line in shown if line.startswith(("+", "-"))]
    assert f"changing {changed_lines(before, after)} lines" in text


@pytest.mark.parametrize("script", [BEFORE, AFTER], ids=["before", "after"])
def test_both_run(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--epochs", "1", "--batch-size", "500"])
    runpy.run_path(str(script), run_name="__main__")
    assert "epoch 1: " in capsys.readouterr().out
    if script is AFTER:
        assert Certificate.load(tmp_path / "digits.certificate.json").verify()
