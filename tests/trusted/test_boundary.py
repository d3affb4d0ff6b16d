"""What is trusted is listed and limited, and nothing else in statistics and evaluation comes near rows or noise."""

import ast
import sys
from pathlib import Path

import pytest

from discreet.core.randomness import RandomStream
from discreet.trusted import TRUSTED_FILES

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "discreet"
sys.path[:0] = [str(ROOT / "benchmarks")]

TRUSTED = {SOURCE / package / f"{name}.py" for package, names in TRUSTED_FILES.items() for name in names}
MOST_LINES = {"trusted": 850, "all": 14_050}

NAMES = {
    *("BoundedSum", "add_noise", "hardened_sum", "system_stream", "urandom", "Till", "choose"),
    *("laplace_mechanism", "gaussian_mechanism", "default_rng", "secrets"),
    *("_numbers", "_weights", "_parts", "_stream", "_use", "_KEY", "places", "Permit("),
}
"""Sums before noise, noise, randomness, charges, and what private rows and permits keep to themselves."""

SAMPLERS = {name for name in vars(RandomStream) if not name.startswith("_")} - {"trusted", "fork"} | {
    "random"
}


def forbidden(tree: ast.Module) -> set[str]:
    """The names in a module that only trusted files may use, also as strings and under another name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found |= {node.id} & NAMES
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & (NAMES | SAMPLERS)
        elif isinstance(node, ast.alias):
            found |= set(node.name.split(".")) & (NAMES | {"random", "draws"})
        elif isinstance(node, ast.ImportFrom):
            found |= set(str(node.module).split(".")) & {"random", "draws"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & NAMES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Permit":
            found.add("Permit(")
    return found


def untrusted():
    paths = [path for room in ("statistics", "evaluation") for path in (SOURCE / room).rglob("*.py")]
    return [path for path in paths if path not in TRUSTED]


def test_statistics_and_evaluation_name_neither_noise_nor_rows():
    paths = untrusted()
    assert len(paths) > 12
    found = {path.name: names for path in paths if (names := forbidden(ast.parse(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "twin",
    [
        "from discreet.core.noise import BoundedSum as Sum",
        "from discreet.core import noise\nnoise.add_noise(total, event)",
        "import os\nos.urandom(8)",
        "getattr(os, 'urandom')(8)",
        "stream.discrete_laplace(3, (2,))",
        "import numpy as np\nnp.random.laplace()",
        "from numpy import random",
        "import secrets",
        "rows._numbers.mean()",
        "Permit(session, event, 1, key)",
        "session._stream.integers(5)",
        "from discreet.core.draws import laplace",
    ],
)
def test_a_module_that_does_is_found(twin):
    """The broken twins."""
    assert forbidden(ast.parse(twin))


def test_the_list_of_trusted_files_is_whole():
    assert all(path.exists() for path in TRUSTED)
    assert set((SOURCE / "trusted").glob("*.py")) <= TRUSTED


def imported(path: Path) -> set[Path]:
    """Files of ours that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("discreet."):
            place = SOURCE.joinpath(*str(node.module).split(".")[1:])
            names = [place / f"{alias.name}.py" for alias in node.names]
            found |= {one for one in names if one.exists()} or {
                place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
            }
    return found


def test_the_gate_imports_trusted_files_only():
    outside = {
        one.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "trusted").glob("*.py")
        for one in imported(path) - TRUSTED
    }
    assert outside == set()


def test_trusted_lines_stay_few():
    """Lines of code, without comments and docstrings. The aim for everything that has to be believed is 10 000."""
    from house import trusted_lines

    gate, everything = trusted_lines()
    print(f"trusted: {gate} lines of code in the gate, {everything} in all")
    assert gate <= MOST_LINES["trusted"]
    assert everything <= MOST_LINES["all"]
