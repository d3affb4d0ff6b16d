"""Tests of ``make metrics``: counts of files that can be counted by hand, and complaints about broken twins."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import metrics

FILE = '''"""A docstring
of two lines."""

import os
from discreet.events import (  # a comment
    Event,
)

# a comment


class Public:
    """Said."""

    def method(self):
        """Said."""
        return """not
a docstring"""


def _private(): ...
'''


@pytest.fixture
def package_of(tmp_path, monkeypatch):
    """A function that writes source files and returns the package that they form."""
    monkeypatch.setattr(metrics, "SOURCE", tmp_path / "discreet")

    def build(files):
        for name, text in files.items():
            path = tmp_path / "discreet" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return metrics.Package()

    return build


def test_lines_are_counted_as_by_hand(package_of):
    (module,) = package_of({"a.py": FILE}).modules
    assert len(module.code) == 1 + 3 + 1 + 1 + 2 + 1


def test_a_cycle_is_found_and_a_lazy_import_is_none(package_of):
    one = {"x/a.py": "from discreet.y import b", "y/c.py": "import discreet.x.a"}
    eager = package_of(one | {"y/b.py": "from discreet.y.c import thing"})
    assert eager.cycles() == [["discreet.x.a", "discreet.y.b", "discreet.y.c"]]
    lazy = package_of(one | {"y/b.py": "def f():\n    from discreet.y.c import thing"})
    assert lazy.cycles() == []
    typed = package_of(one | {"y/b.py": "if TYPE_CHECKING:\n    from discreet.y.c import thing"})
    assert typed.cycles() == []


def test_a_clash_is_found_unless_one_of_the_two_is_a_command(package_of, monkeypatch):
    monkeypatch.setattr("test_layers.violations", lambda imports: [])
    files = ("x/new.py", "y/new.py", "x/fit.py", "cli/fit.py", "x/__init__.py", "y/__init__.py")
    package = package_of(dict.fromkeys(files, ""))
    assert package.clashes() == {"fit": 2, "new": 2}
    assert package.clashes(commands=False) == {"new": 2}
    assert any("new.py" in complaint for complaint in metrics.complaints(package))
    assert not any("fit.py" in complaint for complaint in metrics.complaints(package))


def test_a_mirror_is_by_name_or_by_import(package_of, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "TESTS", tmp_path / "tests")
    for name, text in {
        "x/test_a.py": "",
        "x/test_all.py": "from discreet.x import b",
        "y/test_z.py": "",
    }.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = ("x/a.py", "x/b.py", "x/c.py", "y/b.py", "y/__init__.py")
    assert package_of(dict.fromkeys(files, "")).mirrored() == (1, 2, 4)


WORDING = '''"""As above."""

# ---- laws ----


class Stage:
    """The same for a stage."""


def draw(law, a, b, c, d, e, f, g, h, i):
    """Assume a Law; the law of large numbers is not one."""
    class Stage: ...


@click.option("--a")
def command(a, b, c, d, e, f, g, h, i, j): ...


class PrivateModel:
    def __init__(self, a, b, c, d, e, f, g, h, i, j): ...
'''


def test_words_are_counted_as_by_hand(package_of):
    package = package_of({"wording.py": WORDING})
    (module,) = package.modules
    assert package.repeated_classes() == {"Stage": 2}
    assert module.long_signatures == ["draw"]
    assert len(metrics.LAW.findall(module.text)) == 3  # the banner, the parameter and the docstring
    assert len(metrics.BANNER.findall(module.text)) == 1
    assert [bool(metrics.UNCLEAR_START.match(line)) for line in module.first_lines] == [True, True, False]


def test_identifiers_are_the_names_that_a_module_defines(package_of):
    text = "import os\nlimit = os.cpu_count()\nclass A:\n    def f(self, x):\n        self.y = x\n"
    (module,) = package_of({"wording.py": text}).modules
    assert sorted(module.identifiers) == ["A", "f", "limit", "self", "wording", "x", "y"]


def test_a_walk_sees_our_files_only():
    import json

    import discreet

    walk = metrics.Walk().of(lambda: (json.dumps([1]), discreet.Gaussian(1.0).to_dict()))
    assert {Path(file).name for file in walk.files} >= {"common.py"}
    assert all("discreet" in file for file in walk.files)
    assert walk.depth >= 1


def test_the_present_tree_passes():
    assert list(metrics.complaints(metrics.Package())) == []
