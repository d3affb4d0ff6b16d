"""What is installed: every file that the package reads, under one version, and extras that exist."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

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


BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel as a release builds it, from a copy: building leaves files behind."""
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(place)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = place.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def test_the_wheel_holds_the_licence_and_every_file(wheel):
    info = f"discreet-{discreet.__version__}.dist-info"
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in wheel.read(f"{info}/METADATA").decode()
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours <= set(wheel.namelist())


def test_the_licence_is_the_whole_text():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.splitlines()) == 202


def test_there_is_one_version(wheel):
    """The source says it, the wheel repeats it, and no other file does."""
    assert "version" not in PROJECT["project"]
    metadata = wheel.read(f"discreet-{discreet.__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {discreet.__version__}\n" in metadata
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_every_test_dependency_is_locked():
    """What the development extra names is pinned to one version, within the range that it states."""
    pins = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [
        line for name in ("all", "docs", "demo", "dev") for line in extras[name] if "discreet[" not in line
    ]
    wanted += [line for name in re.findall(r"\w+", extras["all"][0])[1:] for line in extras[name]]
    for line in wanted:
        if line.startswith("discreet["):
            continue
        requirement = Requirement(line)
        assert pins[requirement.name.lower()] in requirement.specifier, line


def test_extras_that_are_recommended_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*SOURCE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    pattern = r"discreet\[(\w+)\]|missing_extra\([^)]*\"(\w+)\"\)"
    found = {pair for path in texts for pair in re.findall(pattern, path.read_text())}
    named = {name for pair in found for name in pair if name}
    assert {"torch", "parties", "studio", "figures"} <= named <= set(extras)


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_run_what_the_makefile_has_on_every_version_that_is_promised():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = {
        path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
    }
    assert set(workflows) == {"test", "release", "docs", "weekly"}
    words = [
        step["run"].split() for workflow in workflows.values() for step in steps_of(workflow) if "run" in step
    ]
    asked = {target for program, *rest in words if program == "make" for target in rest}
    assert asked <= targets
    assert asked == {
        *("check", "test", "test-all", "test-oldest", "test-compat", "coverage", "dist", "docs", "scorecard"),
        *("torture", "torture-parties", "torture-cluster"),
    }
    versions = workflows["test"]["jobs"]["change"]["strategy"]["matrix"]["python"]
    classifiers = PROJECT["project"]["classifiers"]
    assert [f"Programming Language :: Python :: {version}" for version in versions] == [
        line for line in classifiers if re.search(r"3\.\d+$", line)
    ]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def unpinned_actions(text):
    """Actions that are named by a tag or branch, which its owner can move, instead of a commit."""
    used = re.findall(r"^\s*(?:- )?uses: (\S+)( # v[0-9.]+)?$", text, re.MULTILINE)
    return [name for name, version in used if not (re.search(r"@[0-9a-f]{40}$", name) and version)]


def test_actions_are_pinned_by_digest():
    texts = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    assert sum(text.count("uses: ") for text in texts) > 10
    assert [name for text in texts for name in unpinned_actions(text)] == []
    assert unpinned_actions("      - uses: actions/checkout@v4\n") == [
        "actions/checkout@v4"
    ]  # the broken twin


def test_the_oldest_versions_are_the_lower_bounds():
    """What ``make test-oldest`` installs is what pyproject.toml promises."""
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    oldest = dict(line.split("==") for line in lines if "==" in line)
    extras = PROJECT["project"]["optional-dependencies"]
    promised = [*PROJECT["project"]["dependencies"], *extras["tables"], *extras["torch"]]
    requirements = {one.name: one for one in map(Requirement, promised)}
    assert {"numpy", "scipy", "torch"} <= set(oldest) <= set(requirements)
    for name, version in oldest.items():
        (bound,) = [one.version for one in requirements[name].specifier if one.operator == ">="]
        assert Version(version) == Version(bound), name


def test_the_weekly_run_varies_the_randomness():
    workflow = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())
    steps = workflow["jobs"]["randomness"]["steps"]
    (salt,) = [step["env"]["DISCREET_TEST_SALT"] for step in steps if "env" in step]
    assert "github.run_id" in salt


def test_the_commit_template_holds_comments_only():
    lines = (ROOT / ".gitmessage").read_text().splitlines()
    assert all(not line or line.startswith("#") for line in lines)
    assert "commit.template .gitmessage" in (ROOT / "CONTRIBUTING.md").read_text()


def test_nothing_is_published_with_a_stored_token():
    """Only the job that publishes may ask the forge to vouch for it, and it runs nothing of ours."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "secrets." not in text
    jobs = yaml.safe_load(text)["jobs"]
    assert {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})} == {"publish"}
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


def test_the_slow_tests_are_those_of_the_list():
    """CONTRIBUTING says of every file with slow tests what stands in for them."""
    tests = (ROOT / "tests").rglob("test_*.py")
    marked = {path.relative_to(ROOT).as_posix() for path in tests if "mark" + ".slow" in path.read_text()}
    assert len(marked) >= 2
    listed = set(re.findall(r"^\| `(tests/\S+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert marked == listed
