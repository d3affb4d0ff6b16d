"""Every example runs and prints something, without a warning."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
MARKS = {"demo.py": pytest.mark.slow, "lora.py": pytest.mark.slow, "three_hospitals.py": pytest.mark.network}


@pytest.mark.parametrize(
    "example", [pytest.param(path, marks=MARKS.get(path.name, ()), id=path.name) for path in EXAMPLES]
)
def test_example_runs(example, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert "epsilon" in capsys.readouterr().out
