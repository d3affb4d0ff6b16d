"""The two examples of a federation: how many lines it takes to make those of the frameworks private."""

import ast
import difflib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "federation"


def changed_lines(before: Path, after: Path) -> tuple[int, int]:
    """Return how many lines were written, and how many were taken out, in all files of two folders."""
    names = {
        path.relative_to(root) for root in (before, after) for path in root.rglob("*") if is_source(path)
    }
    written = removed = 0
    for name in sorted(names):
        old, new = (read(root / name) for root in (before, after))
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        written += sum(line.startswith("+") for line in lines)
        removed += sum(line.startswith("-") for line in lines)
    return written, removed


def is_source(path: Path) -> bool:
    return path.suffix in (".py", ".toml")


def read(path: Path) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.strip()]


@pytest.mark.parametrize(("framework", "most_removed"), [("nvflare", 26), ("flower", 22)])
def test_an_example_becomes_private_by_fifteen_lines(framework, most_removed):
    written, removed = changed_lines(EXAMPLES / f"{framework}_before", EXAMPLES / framework)
    assert 0 < written <= 15
    assert 0 < removed <= most_removed


def test_lines_of_new_files_would_count(tmp_path):
    for name, text in (
        ("before/a.py", "x = 1\n"),
        ("after/a.py", "x = 2\ny = 3\n"),
        ("after/b.py", "z = 4\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert changed_lines(tmp_path / "before", tmp_path / "after") == (3, 1)


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: str(path.relative_to(EXAMPLES))
)
def test_examples_are_python(path):
    ast.parse(path.read_text())
