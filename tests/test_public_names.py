"""The public surface, and what importing it costs."""

import ast
import inspect
import logging
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import discreet

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import reference

ROOT = Path(__file__).parent.parent

PUBLIC = {
    "AccuracyNotReached",
    "ApproximateDP",
    "Bounds",
    "Budget",
    "BudgetExceeded",
    "Composition",
    "DiscreetError",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Guarantee",
    "InvalidParameter",
    "Laplace",
    "MissingDependency",
    "PlanViolation",
    "PoissonSampled",
    "PrivacyCurve",
    "RandomlyAllocated",
    "UnsupportedEvent",
    "__version__",
    "account",
    "calibrate",
}


def test_the_accountant_is_public():
    assert set(discreet.__all__) >= PUBLIC


def test_all_is_sorted_complete_and_documented():
    assert discreet.__all__ == sorted(discreet.__all__)
    for name in discreet.__all__:
        assert getattr(discreet, name) is not None
        assert name == "__version__" or getattr(discreet, name).__doc__


def names_for_type_checkers():
    """The names that ``__init__`` imports where only type checkers look, each with its home."""
    tree = ast.parse(Path(discreet.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: line.module for line in guarded.body for alias in line.names}


def test_type_checkers_and_the_interpreter_are_told_the_same():
    assert names_for_type_checkers() == discreet._LATER
    assert {*discreet._LATER, "__version__"} == set(discreet.__all__)


def test_names_are_completed_before_they_are_loaded():
    """And nothing is loaded for it."""
    script = "import discreet, sys; print(*dir(discreet)); assert 'numpy' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(discreet.__all__) <= set(run.stdout.split())
    with pytest.raises(AttributeError, match="no attribute 'acount'"):
        _ = discreet.acount


def test_the_library_is_silent_unless_asked():
    """A line of ours goes nowhere, not even to standard error, until somebody adds a handler."""
    said = "logging.getLogger('discreet').error('heard')"
    for before, heard in (("pass", False), ("logging.basicConfig()", True)):
        script = f"import discreet, logging; {before}; {said}"
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ("heard" in run.stderr) is heard
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger("discreet").handlers)


def test_fit_returns_the_model_that_was_asked():
    from discreet.linear import PrivateLogisticRegression, PublicBounds, SchemaEncoder

    for kind in (PrivateLogisticRegression, PublicBounds, SchemaEncoder):
        assert inspect.signature(kind.fit).return_annotation == "Self"


def test_nothing_of_ours_leaks():
    """What is ours and not in __all__ is a module, or private."""
    extra = {name for name in vars(discreet) if not name.startswith("_")} - set(discreet.__all__)
    ours = {name for name in extra if getattr(vars(discreet)[name], "__module__", "").startswith("discreet")}
    assert ours == set()


def loaded_by(statement):
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_and_accounting_load_numpy_and_scipy_only():
    """The difference to an interpreter that has loaded just these two holds nothing but us."""
    base = loaded_by("import numpy, scipy.fft, scipy.optimize, scipy.special, scipy.stats")
    ours = loaded_by("import discreet; discreet.account(discreet.Gaussian(1.0)).epsilon(1e-5)")
    third_party = {name for name in ours - base if name not in sys.stdlib_module_names}
    assert third_party == {"discreet"}
    assert not ours & {"torch", "numba", "sklearn", "cryptography", "pandas", "matplotlib"}


FACES = {
    room if room == "discreet" else f"discreet.{room}": names
    for room, names in reference.public_names().items()
}
GUIDES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("**/*.py")),
]


@pytest.mark.parametrize("face", FACES)
def test_a_face_holds_what_it_says(face):
    if face.startswith("discreet.pytorch"):
        pytest.importorskip("torch")
    room, names = import_module(face), FACES[face]
    assert len(set(names)) == len(names)
    for name in names:
        try:
            value = getattr(room, name)
        except discreet.MissingDependency as missing:
            assert face == "discreet.adapters", "of what others bring"
            pytest.skip(str(missing))
        own = getattr(value, "__module__", face)
        assert own.startswith("discreet") or not callable(value), f"{face}.{name} is not ours"
        if callable(value) and own.startswith("discreet"):
            assert value.__doc__, f"{face}.{name} has no docstring"


def test_the_reference_holds_every_name():
    expected = reference.pages()
    held = {path: path.read_text() for path in (*reference.FOLDER.glob("*.md"), *expected) if path.exists()}
    assert held == expected, "run `make reference`"
    text = "\n".join(held.values())
    for face, names in FACES.items():
        assert f"::: {face}\n" in text
        assert all(re.search(rf"\b{name}\b", text) for name in names if name != "__version__")


def imported(text):
    """The names that a guide imports from us, each with its room."""
    for room, names in re.findall(r"from (discreet[\w.]*) import (\([^)]*\)|[^\n]*)", text):
        yield from ((room, name) for name in re.findall(r"\w+", re.sub(r" as \w+", "", names)))


def strays(texts):
    """What guides import that no face offers; the command line is called by its entry point."""
    found = ((room, name) for text in texts for room, name in imported(text))
    return {(room, name) for room, name in found if name not in FACES.get(room, ())} - {
        ("discreet.cli", "main")
    }


def test_guides_import_from_faces_only():
    assert strays(guide.read_text() for guide in GUIDES) == set()
    twin = ">>> from discreet.core.clipping import (\n...     Flat,\n... )\nfrom discreet.core import Flat as F, odd"
    assert strays([twin]) == {("discreet.core.clipping", "Flat"), ("discreet.core", "odd")}
