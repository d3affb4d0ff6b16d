"""The lean lock of a site: versions that were tested, and enough of them for both commands."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SITES = (
    "discreet.cli.join",
    "discreet.cli.coordinate",
    "discreet.adapters.joint_model",
    "discreet.linear.tables",
    "discreet.parties.network.nvflare",
    "discreet.parties.network.status",
    "nvflare.private.fed.app.client.client_train",
    "nvflare.private.fed.app.server.server_train",
)

BLOCKED = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NotInstalled())
"""


def pinned(name):
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pairs}


def imports_without(forbidden):
    """Whether a process in which these modules cannot be imported loads all that sites need; what it said."""
    program = "\n".join([BLOCKED.format(sorted(forbidden)), *(f"import {name}" for name in SITES)])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_lock_has_the_versions_of_the_tests():
    lean, tested = pinned("constraints-parties.txt"), pinned("constraints.txt")
    assert lean.items() <= tested.items()
    assert not {"flask", "docker", "aiohttp", "gunicorn", "sqlalchemy", "requests"} & set(lean)


def test_sites_load_nothing_that_is_not_in_the_lock():
    """Everything else that is installed here cannot be imported in this process."""
    lean = {*pinned("constraints-parties.txt"), "discreet", "setuptools", "pip"}
    found = importlib.metadata.packages_distributions().items()
    forbidden = {
        module
        for module, owners in found
        if module.isidentifier()
        and not module.startswith("_")
        and not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & lean
    }
    assert {"flask", "docker", "aiohttp"} <= forbidden
    honest = imports_without(forbidden)
    assert honest.returncode == 0, honest.stderr
    twin = imports_without({*forbidden, "msgpack"})
    assert twin.returncode != 0  # what is needed is missed
