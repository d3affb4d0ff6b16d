"""``make house``: its counts against files that can be counted by hand, and its complaints on broken twins."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import house

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
def building(tmp_path, monkeypatch):
    """Writes source files, and answers with the house that they are."""
    monkeypatch.setattr(house, "SOURCE", tmp_path / "discreet")

    def build(files):
        for name, text in files.items():
            path = tmp_path / "discreet" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return house.House()

    return build


def test_lines_are_counted_as_by_hand(building):
    (module,) = building({"a.py": FILE}).modules
    assert len(module.code) == 1 + 3 + 1 + 1 + 2 + 1
    assert module.public == ["Public"]


def test_a_cycle_is_found_and_a_lazy_import_is_none(building):
    one = {"x/a.py": "from discreet.y import b", "y/c.py": "import discreet.x.a"}
    eager = building(one | {"y/b.py": "from discreet.y.c import thing"})
    assert eager.cycles() == [["discreet.x.a", "discreet.y.b", "discreet.y.c"]]
    lazy = building(one | {"y/b.py": "def f():\n    from discreet.y.c import thing"})
    assert lazy.cycles() == []
    typed = building(one | {"y/b.py": "if TYPE_CHECKING:\n    from discreet.y.c import thing"})
    assert typed.cycles() == []


def test_a_new_clash_is_found(building, monkeypatch):
    monkeypatch.setattr(house, "CLASHES", {"sums"})
    files = ("x/sums.py", "y/sums.py", "x/new.py", "y/new.py", "x/fit.py", "cli/fit.py", "x/__init__.py")
    both = building(dict.fromkeys(files, ""))
    assert both.clashes() == {"fit": 2, "new": 2, "sums": 2}
    assert both.clashes(commands=False) == {"new": 2, "sums": 2}


def test_a_mirror_is_by_name_or_by_import(building, tmp_path, monkeypatch):
    monkeypatch.setattr(house, "TESTS", tmp_path / "tests")
    for name, text in {
        "x/test_a.py": "",
        "x/test_all.py": "from discreet.x import b",
        "y/test_z.py": "",
    }.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = ("x/a.py", "x/b.py", "x/c.py", "y/b.py", "y/__init__.py")
    assert building(dict.fromkeys(files, "")).mirrored() == (1, 2, 4)


def test_users_are_counted_once_each(building):
    text = "from discreet.x import a\nfrom discreet.x.a import thing"
    assert building({"x/a.py": "", "x/b.py": text, "x/c.py": "import discreet.x.a"}).users() == {
        "discreet.x.a": 2
    }


def test_a_walk_sees_our_files_only():
    import json

    import discreet

    walk = house.Walk().of(lambda: (json.dumps([1]), discreet.Gaussian(1.0).to_dict()))
    assert {Path(file).name for file in walk.files} >= {"common.py"}
    assert all("discreet" in file for file in walk.files)
    assert walk.depth >= 1


def test_the_present_tree_passes():
    assert list(house.complaints(house.House())) == []
