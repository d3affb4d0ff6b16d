"""Every example runs and prints something, without a warning."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SLOW = {"demo.py", "lora.py", "three_hospitals.py"}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.slow if path.name in SLOW else (), id=path.name)
        for path in EXAMPLES
    ],
)
def test_example_runs(example, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert "epsilon" in capsys.readouterr().out
