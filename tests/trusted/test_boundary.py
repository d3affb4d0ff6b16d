"""What is trusted is listed and limited; nothing else draws noise or charges, nor sees rows in statistics."""

import ast
import sys
from pathlib import Path

import pytest

from discreet.core.randomness import RandomStream
from discreet.trusted import FAST_PYTORCH_FILES, TRUSTED_FILES, VIEW_FILES

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "discreet"
sys.path[:0] = [str(ROOT / "benchmarks")]

TRUSTED = {SOURCE / package / f"{name}.py" for package, names in TRUSTED_FILES.items() for name in names}
FAST = {SOURCE / package / f"{name}.py" for package, names in FAST_PYTORCH_FILES.items() for name in names}
MOST_LINES = {"trusted": 1_310, "all": 12_960, "fast pytorch": 3_570}

NAMES = {
    *(
        "BoundedSum",
        "add_noise",
        "hardened_sum",
        "system_stream",
        "urandom",
        "Till",
        "choose",
        "exponential_mechanism",
    ),
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
            found |= set(node.name.split(".")) & (NAMES | {"random", "float_samplers"})
        elif isinstance(node, ast.ImportFrom):
            found |= set(str(node.module).split(".")) & {"random", "float_samplers"}
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
        "from discreet.core.float_samplers import laplace",
    ],
)
def test_a_module_that_does_is_found(twin):
    """The broken twins."""
    assert forbidden(ast.parse(twin))


# The whole package: outside of trusted files nothing builds a sum that awaits noise, draws noise, or charges.

SUMS_AND_NOISE = {"BoundedSum", "add_noise", "add_noise_share", "hardened_sum", "_KEY"}
CALLS = {"pay", "reserve", "next_step", "discrete_gaussian", "discrete_laplace", "each_block"}

ALLOWED = {
    "core/__init__.py": ({"BoundedSum", "add_noise", "hardened_sum"}, "public names for engines of others"),
    "lecture/perturbation.py": (
        {"BoundedSum", "add_noise"},
        "objective perturbation: a theorem on the minimiser, paid as a choice, with the noise of a permit's stream",
    ),
    "lecture/gradient_sum.py": ({"BoundedSum"}, "the lectures' sum of clipped gradients"),
    "lecture/figures/measured.py": ({"BoundedSum", "add_noise"}, "records are made up"),
    "adapters/audit_subjects.py": ({"BoundedSum", "add_noise"}, "records are made up"),
    "adapters/joint_evaluation.py": ({"BoundedSum"}, "answers a query of the gate; next issue"),
    "linear/linear_holder.py": ({"BoundedSum"}, "the sums of a party's table; next issue"),
    "linear/recording_spending.py": (
        {"BoundedSum"},
        "records the sums of an audited fit, which is never certified",
    ),
    "adapters/dask_engine.py": ({"BoundedSum", "urandom"}, "names the type; draws ids and a key for hashes"),
    "parties/messages.py": ({"BoundedSum"}, "names the type in a protocol"),
    "cli/split.py": ({"urandom"}, "draws a key"),
}
"""Names that a file outside may use, and why. The list may only get shorter."""


def reaches_noise(tree: ast.Module) -> set[str]:
    """The names of sums before noise, noise, charges, permits and the system's randomness in a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found |= {node.id} & (SUMS_AND_NOISE | {"urandom"})
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & (SUMS_AND_NOISE | {"urandom"})
        elif isinstance(node, ast.alias):
            found |= set(node.name.split(".")) & (
                SUMS_AND_NOISE | {"urandom", "float_samplers", "noise_shares"}
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & (SUMS_AND_NOISE | {"urandom"})
        if isinstance(node, ast.Call):
            named = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            found |= {f".{named}("} if named in CALLS else set()
            made = named or getattr(node.func, "id", "")
            found |= {f"{made}("} & {"Permit(", "NoisePermit("}
    return found


def outside():
    return [path for path in SOURCE.rglob("*.py") if path not in TRUSTED]


def test_nothing_outside_draws_noise_or_charges():
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in outside()
        if (names := reaches_noise(ast.parse(path.read_text())))
    }
    assert found == {place: names for place, (names, _) in ALLOWED.items()}  # each of them is still needed


@pytest.mark.parametrize(
    "twin",
    [
        "from discreet.core.noise import BoundedSum as Sum",
        "from discreet.core import noise\nnoise.add_noise(total, event)",
        "from discreet.core.noise_shares import add_noise_share",
        "from discreet.core import float_samplers",
        "till.pay(event)",
        "run.reserve(3)",
        "run.next_step()",
        "stream.discrete_gaussian(3, 5)",
        "stream.each_block('normal', 5, 1.0, kind, take)",
        "NoisePermit(noise, 1.0, stream, 1, key)",
        "permits.NoisePermit(noise, 1.0, stream, 1, key)",
        "from discreet.trusted.permits import _KEY",
        "import os\nos.urandom(8)",
        "getattr(noise, 'add_noise')",
    ],
)
def test_a_module_that_draws_or_charges_is_found(twin):
    """The broken twins."""
    assert reaches_noise(ast.parse(twin))


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
    """Lines of code, without comments and docstrings. The aim is 10 000 for all, and 3 000 for fast PyTorch."""
    from metrics import Module, trusted_lines

    gate, everything = trusted_lines()
    fast = sum(len(Module(path).code) for path in FAST)
    print(f"trusted: {gate} lines of code in the gate, {everything} in all; fast PyTorch: {fast}")
    assert gate <= MOST_LINES["trusted"]
    assert everything <= MOST_LINES["all"]
    assert fast <= MOST_LINES["fast pytorch"]


def test_the_files_of_views_are_whole_and_apart():
    views = {SOURCE / package / f"{name}.py" for package, names in VIEW_FILES.items() for name in names}
    assert all(path.exists() for path in views)
    assert not views & (TRUSTED | FAST)
    assert set((SOURCE / "linear" / "views").glob("*.py")) <= views
    imported_by_the_gate = {
        one for path in (SOURCE / "linear" / "gate").glob("*.py") for one in imported(path)
    }
    assert not imported_by_the_gate & views


def test_the_fast_tier_is_whole_and_apart():
    assert all(path.exists() for path in FAST)
    assert not FAST & TRUSTED
    for folder in ("kernels", "layer_rules"):
        assert set((SOURCE / "pytorch" / folder).glob("*.py")) <= FAST
