"""Every snippet of the README and the documentation is run, and prints what it says: Python and commands."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from discreet.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_snippets_print_what_they_say(document):
    assert failures(document.read_text(), document.name) == 0


def failures(text, name):
    """Noise is fresh: of a score that a comment says is one of many fits, the first digit is enough."""
    text = re.sub(r"^(>>> .*# .* fits; .*\n0)\.\d+$", r"\1...", text, flags=re.MULTILINE)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    return runner.run(doctest.DocTestParser().get_doctest(text, {}, name, name, 0)).failed


def test_of_a_score_of_many_fits_the_rest_is_noise(capsys):
    assert failures(">>> print(0.934)  # 0.92 to 0.96 in thirty fits; more\n0.94\n", "noise") == 0
    assert failures(">>> print(1.934)  # 0.92 to 0.96 in thirty fits; more\n0.94\n", "another digit") == 1
    assert failures(">>> print(0.934)\n0.94\n", "no word about fits") == 1


def commands(text):
    """The commands of all console blocks, each with what it should print; a backslash continues a line."""
    for block in CONSOLE.findall(text):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if CONSOLE.search(path.read_text())], ids=lambda path: path.name
)
def test_commands_print_what_they_say(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path)
    text = document.read_text()
    if schema := TOML.search(text):
        (tmp_path / "schema.toml").write_text(schema[1])
    check = doctest.OutputChecker()
    for command, expected in commands(text):
        program, *words = shlex.split(command)
        assert program == "discreet"
        printed = CliRunner().invoke(main, words).output
        assert check.check_output(expected, printed, FLAGS), f"$ {command}\n{printed}"


def test_a_wrong_output_would_be_noticed(tmp_path):
    ((command, expected),) = commands("```console\n$ discreet --version\ndiscreet, version 9\n```\n")
    printed = CliRunner().invoke(main, shlex.split(command)[1:]).output
    assert not doctest.OutputChecker().check_output(expected, printed, FLAGS)


def write_people(folder):
    """A made-up table for the commands."""
    rng = np.random.default_rng(0)
    age, smoker, south = rng.integers(18, 100, 3000), rng.random(3000) < 0.3, rng.random(3000) < 0.5
    visits = rng.poisson(np.exp(-1 + 0.02 * age + 0.4 * smoker))
    lines = (
        f"{a},{'yes' if s else 'no'},{'south' if r else 'north'},{v}\n"
        for a, s, r, v in zip(age, smoker, south, visits, strict=True)
    )
    (folder / "people.csv").write_text("age,smoker,region,visits\n" + "".join(lines))


def test_the_documents_hold_snippets():
    parser = doctest.DocTestParser()
    pages = [path for path in DOCUMENTS if path.parent.name != "reference"]  # which have names of pages again
    counts = {path.name: len(parser.get_examples(path.read_text())) for path in pages}
    assert counts["accounting.md"] >= 10
    assert counts["README.md"] >= 5
    assert sum(len(list(commands(path.read_text()))) for path in DOCUMENTS) >= 10


BY_NAME = re.compile(r"pip install (?:-\S+ )*[\"']?discreet(?![-\w])")


def test_nothing_tells_to_install_by_a_name_that_is_not_published():
    """On a public index the name may be registered by anybody; the history of versions keeps its words."""
    source = ROOT / "src" / "discreet"
    files = [*DOCUMENTS, ROOT / "constraints-parties.txt", *source.rglob("*.py"), *source.rglob("*.html")]
    files = [path for path in files if path.name != "history.md"]
    assert [path.name for path in files if BY_NAME.search(path.read_text())] == []
    for words in (
        "pip install discreet",
        "pip install 'discreet[torch]'",
        "pip install --no-deps discreet\n",
    ):
        assert BY_NAME.search(words)
    assert not BY_NAME.search("pip install ./discreet-*.whl")
