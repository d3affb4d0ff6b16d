"""A place for Numba's compiled functions where neither the sources nor the home can be written."""

import os
import subprocess
import sys

import pytest

from discreet import numba_cache


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba_cache, "_usual_places", lambda: (str(tmp_path / "a" / "b"), "~/c"))
    return tmp_path


def test_a_writable_place_is_left_alone(places):
    numba_cache.ensure_numba_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_place_that_was_named_is_left_alone(places, monkeypatch):
    monkeypatch.setattr(numba_cache, "_writable", lambda folder: False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "named")
    numba_cache.ensure_numba_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == "named"


@pytest.mark.parametrize("folder", ["/dev/null/none", "~/c", ""])
def test_where_nothing_can_be_written(folder):
    assert not numba_cache._writable(folder)


BEGIN = """
import sys, types
from unittest import mock
{twin}
with mock.patch("os.access", return_value=False), mock.patch("os.makedirs", side_effect=PermissionError):
    import discreet
import numba.core.caching as caching
for name in dir(caching):
    if "Locator" in name and ("InTree" in name or "UserWide" in name):
        getattr(caching, name).ensure_cache_path = mock.Mock(side_effect=OSError)
from numba import njit
import discreet.errors
exec(compile("def f(x): return x", discreet.errors.__file__, "exec"))
njit(cache=True)(f)
print(discreet.numba_cache and __import__("os").environ.get("NUMBA_CACHE_DIR"))
"""
TWIN = """
silent = types.ModuleType("discreet.numba_cache")
silent.ensure_numba_cache = lambda: None
sys.modules["discreet.numba_cache"] = silent
"""


def begun(twin):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    words = [sys.executable, "-c", BEGIN.format(twin=twin)]
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)


def test_functions_are_compiled_where_no_usual_place_can_be_written():
    """In 0.1.0 every command ended with Numba's "no locator available", in services without a home."""
    done = begun("")
    assert done.returncode == 0, done.stderr
    folder = done.stdout.strip()
    assert "discreet-numba-" in folder
    assert not os.path.exists(folder)  # it is removed at the end
    assert "no locator available" in begun(TWIN).stderr
