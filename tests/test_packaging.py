"""What is installed: every file that the package reads, under one version, and extras that exist."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import discreet

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE = ROOT / "src" / "discreet"


def test_files_that_are_not_python_are_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["discreet"]
    files = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    ]
    assert len(files) > 5
    assert [file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)] == []


def test_every_folder_is_a_package():
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        assert (folder / "__init__.py").exists(), folder


def test_there_is_one_version():
    assert PROJECT["project"]["version"] == discreet.__version__


def test_extras_that_are_recommended_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*SOURCE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {name for path in texts for name in re.findall(r"discreet\[(\w+)\]", path.read_text())}
    assert {"torch", "parties", "studio", "figures"} <= named <= set(extras)
