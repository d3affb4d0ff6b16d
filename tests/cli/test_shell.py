"""What all commands share: errors of one sentence, codes, ``--json``, help without waiting, completion."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from discreet import errors
from discreet.cli import COMMANDS, main
from discreet.cli.shell import NUMBER, NUMBERS, CommandGroup, CommandResult, as_text, group, table


@pytest.fixture
def family() -> CommandGroup:
    """Commands that do what is asked of them, and then go wrong in one way or another."""

    @group("toy")
    def toy() -> None:
        """A toy."""

    @toy.command("fail", renamed={"scale": "--laplace-scale"}, interrupted="The cat is safe.")
    @click.option("--laplace-scale", type=NUMBER)
    @click.option("--file")
    def fail(laplace_scale, file):
        raise PROBLEMS[file or "scale"]

    @toy.command("list")
    @click.option("--numbers", type=NUMBERS)
    def listed(numbers):
        return CommandResult({"numbers": numbers, "far": float("inf")}, f"{numbers}")

    return toy


PROBLEMS = {
    "scale": errors.InvalidParameter("scale", -1.0, "must be above 0."),
    "file": errors.InvalidParameter("file", "secret record of Jane", "is no file of ours."),
    "elsewhere": errors.InvalidParameter("records", 3, "set file= to another."),
    "unsupported": errors.UnsupportedEvent("no theorem; use laplace_scale=2."),
    "budget": errors.BudgetExceeded("too much."),
    "call": errors.BudgetExceeded(
        "see file= and Budget(file=1, laplace_scale=f(2)), [Errno 2] No such thing: 'x'."
    ),
    "rejected": errors.CertificateRejected("rejected: it lies."),
    "missing": errors.MissingDependency("needs x: install 'discreet[x]'"),
    "os": PermissionError(13, "Permission denied", "/some/where"),
    "memory": MemoryError(),
    "interrupt": KeyboardInterrupt(),
    "mistake": ZeroDivisionError("secret record of Jane"),
}


@pytest.mark.parametrize(
    ("problem", "status", "sentence"),
    [
        ("scale", 2, "error[invalid-parameter]: --laplace-scale=-1.0: must be above 0."),
        ("file", 2, "error[invalid-parameter]: --file=file: is no file of ours."),
        ("elsewhere", 2, "error[invalid-parameter]: records=3: set --file= to another."),
        ("unsupported", 2, "error[unsupported-event]: no theorem; use --laplace-scale=2."),
        ("budget", 1, "error[budget-exceeded]: too much."),
        (
            "call",
            1,
            "error[budget-exceeded]: see --file= and Budget(file=1, laplace_scale=f(2)), No such thing.",
        ),
        ("rejected", 1, "error[certificate-rejected]: rejected: it lies."),
        ("missing", 1, "error[missing-dependency]: needs x: install 'discreet[x]'"),
        ("os", 1, "error[file]: /some/where: Permission denied."),
        ("memory", 1, "error[memory]: There is not enough memory for this."),
        ("interrupt", 130, "error[interrupted]: Stopped by Ctrl-C. The cat is safe."),
    ],
)
def test_every_error_is_a_sentence_with_a_code(family, problem, status, sentence):
    words = ["fail"] if problem == "scale" else ["fail", "--file", problem]
    result = CliRunner().invoke(family, words)
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", sentence + "\n")
    result = CliRunner().invoke(family, [*words, "--json"])
    error = json.loads(result.stderr)["error"]
    assert (result.exit_code, f"error[{error['code']}]: {error['message']}") == (status, sentence)


def test_a_mistake_of_ours_quotes_nothing(family, monkeypatch):
    result = CliRunner().invoke(family, ["fail", "--file", "mistake"])
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert "Jane" not in result.stderr
    assert result.stderr.count("\n") == 1
    monkeypatch.setenv("DISCREET_DEBUG", "1")
    assert isinstance(CliRunner().invoke(family, ["fail", "--file", "mistake"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["fail", "--laplace-scale", "much"], "invalid-parameter"),
        (["fail", "--nothing"], "usage"),
        (["nothing"], "usage"),
        (["list", "--numbers", "1,,2"], "invalid-parameter"),
    ],
)
def test_words_that_mean_nothing_are_refused(family, words, code):
    result = CliRunner().invoke(family, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error[{code}]: ")
    assert result.stderr.count("\n") == 1


def test_numbers_and_json(family):
    result = CliRunner().invoke(family, ["list", "--numbers", "1e3,7,nan", "--json"])
    assert json.loads(result.stdout) == {"numbers": [1000.0, 7, None], "far": "infinite"}
    assert CliRunner().invoke(family, ["list", "--numbers", "1,2"]).stdout == "[1, 2]\n"
    assert as_text({"a": (1, 2)}) == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    assert table(("a", "bb"), [("long", "1")]) == "a     bb\nlong   1"


def test_every_command_in_the_table_exists_and_says_what_it_does():
    context = click.Context(main)
    for name, (_, line) in COMMANDS.items():
        found = main.get_command(context, name)
        assert found is not None
        assert found.name == name
        assert line.endswith((".", "?"))
        assert found.help
    assert main.get_command(context, "nothing") is None


@pytest.mark.parametrize("words", [[], ["ledger"]])
def test_no_words_at_all_ask_for_help(words):
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Commands:" in result.stdout


def test_every_command_takes_json():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in COMMANDS]
    leaves = [
        leaf
        for found in commands
        for leaf in (found.commands.values() if isinstance(found, click.Group) else [found])
    ]
    assert len(leaves) >= 11
    for leaf in leaves:
        assert "--json" in [option for parameter in leaf.params for option in parameter.opts], leaf.name


def in_a_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )


def test_help_and_version_wait_for_nothing_heavy():
    code = (
        "import sys\nfrom discreet.cli import main\n"
        "for words in ['--help'], ['--version']:\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert not end.code\n"
        "heavy = {'numpy', 'scipy', 'rich', 'sklearn', 'torch', 'numba'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    result = in_a_new_process(code)
    assert "Commands:" in result.stdout
    assert "discreet, version" in result.stdout
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_completion_offers_commands_without_importing_them():
    code = "import sys\nfrom discreet.cli import main\ntry: main(prog_name='discreet')\nfinally: " + (
        "sys.stderr.write(str('discreet.cli.calibrate' in sys.modules))"
    )
    asked = {"COMP_WORDS": "discreet ca", "COMP_CWORD": "1", "_DISCREET_COMPLETE": "bash_complete"}
    result = in_a_new_process(code, **asked)
    assert result.stdout.split() == ["plain,calibrate"]
    assert result.stderr == "False"


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "nvflare", "matplotlib", "starlette", "pyarrow", "pandas", "polars"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from discreet.cli import COMMANDS, main
for name in COMMANDS:
    main.get_command(None, name)
for words in (["account", "--noise-multiplier", "1", "--delta", "1e-5"], ["schema", "table.parquet"]):
    try: main(words)
    except SystemExit as end: print("status", end.code)
"""


def test_without_optional_packages_the_rest_works(tmp_path):
    result = in_a_new_process(f"import os; os.chdir({str(tmp_path)!r})\n" + WITHOUT)
    assert "status 0" in result.stdout, result.stderr
    assert "status 1" in result.stdout
    assert result.stderr == (
        "error[missing-dependency]: Parquet files need pyarrow: install 'discreet[parquet]' from your organisation's "
        "package index or from its wheel, or use CSV.\n"
    )
