"""Names of ours that messages, docstrings and documents quote exist."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "discreet"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in (ROOT / "docs").glob("*.md") if path.name != "history.md"),  # names of its time
]
DOTTED = re.compile(r"(?<![\w./-])discreet(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)*(?!\w|/|\.md)")
CALLED = re.compile(r"(?<![\w.])((?:[a-z_]\w*\.)+)([a-z_]\w*)\(")
IMPORTED_BY_OTHERS = (
    "discreet.example",
    "discreet.toml",
    "discreet.spec",
    "discreet.service",
    "discreet.json",
    "discreet.cli.as_json",
)
"""What looks like a name of ours: addresses, files, a key."""
OTHERS = {"dp", "pyarrow", "discreet", "np", "torch", "math", "random", "trainer", "json", "nn"}
"""Modules of others and variables of examples that have functions called like some of ours."""


def texts(path):
    """The strings of a Python file, or a document as it is."""
    if path.suffix != ".py":
        return [path.read_text(encoding="utf-8")]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


@cache
def exists(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


def dotted(path):
    """Dotted names of ours that do not exist."""
    found = {name for text in texts(path) for name in DOTTED.findall(text)}
    return {name for name in found if not name.startswith(IMPORTED_BY_OTHERS) and not exists(name)}


@cache
def homes():
    """Module-level functions of ours that no method is called like, and the last names of modules that have them."""
    found, methods = {}, set()
    for path in SOURCE.rglob("*.py"):
        module = path.parent.name if path.stem == "__init__" else path.stem
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, set()).add(module)
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("discreet"):
                for alias in node.names:
                    found.setdefault(alias.name, set()).add(module)
            elif isinstance(node, ast.ClassDef):
                methods |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return {name: modules for name, modules in found.items() if name not in methods}


def called(path):
    """Functions of ours that are quoted as if they were in a module that does not have them."""
    quoted = {pair for text in texts(path) for pair in CALLED.findall(text)}
    owners = {owner + name: (owner.rstrip(".").rpartition(".")[2], name) for owner, name in quoted}
    return {
        f"{text}()"
        for text, (owner, name) in owners.items()
        if name in homes() and owner not in homes()[name] | OTHERS
    }


@pytest.mark.parametrize("path", [SOURCE, *DOCUMENTS], ids=lambda path: path.name)
def test_names_that_are_quoted_exist(path):
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert {
        file.relative_to(ROOT).as_posix(): bad for file in files if (bad := dotted(file) | called(file))
    } == {}


def test_stale_names_are_found(tmp_path):
    """The broken twin quotes two names that have moved."""
    page = tmp_path / "page.md"
    page.write_text(
        "See `discreet.pytorch.check.check`; the grid of `hardened.grid_for()` fits; `core.grid_for()`."
    )
    assert dotted(page) | called(page) == {"discreet.pytorch.check.check", "hardened.grid_for()"}


@cache
def files():
    folders = ("src", "tests", "examples", "benchmarks", "docs")
    return [
        f"/{path.relative_to(ROOT).as_posix()}" for name in folders for path in (ROOT / name).rglob("*.py")
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_files_that_documents_name_exist(path):
    named = set(re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8")))
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in files())} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_examples_stand_in_fences(path):
    """Outside of one, Markdown runs the lines of an example together."""
    fenced, outside = False, []
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= line.lstrip().startswith("```")
        outside += [line] if line.startswith(">>>") and not fenced else []
    assert outside == []
