"""The command line: ``discreet``. The same words as the library, and every command is loaded when it is called.

``discreet --help`` imports nothing but click, so it answers at once. A new command is one file in this folder and
one line in ``COMMANDS``; :mod:`discreet.cli.shell` says how the file looks.

Completion: ``eval "$(_DISCREET_COMPLETE=bash_source discreet)"`` in ``~/.bashrc``; ``zsh_source`` for zsh in
``~/.zshrc``; for fish ``_DISCREET_COMPLETE=fish_source discreet > ~/.config/fish/completions/discreet.fish``.
"""

from __future__ import annotations

import sys
from importlib import import_module

try:
    import click
    from click.shell_completion import CompletionItem

    from discreet import __version__
    from discreet.cli.shell import CommandGroup
except KeyboardInterrupt:  # Ctrl-C before there is anything that could catch it
    sys.stderr.write("error[interrupted]: Stopped by Ctrl-C before anything began.\n")
    raise SystemExit(130) from None

COMMANDS = {  # name: (module:command, what it does), in the order of --help
    "account": (
        "discreet.cli.account:account",
        "Compute the privacy cost of a release: lower and upper bounds.",
    ),
    "calibrate": ("discreet.cli.calibrate:calibrate", "Find the least noise that stays within a budget."),
    "explore": (
        "discreet.cli.explore:explore",
        "Compare plans with different batch sizes, epochs and budgets.",
    ),
    "plan": ("discreet.cli.plan:plan", "Fix a training procedure before any data is read: plan.json."),
    "schema": ("discreet.cli.schema:schema", "Create a schema.toml from the header of a table."),
    "fit": ("discreet.cli.fit:fit", "Fit a private additive or linear model to a table."),
    "split": ("discreet.cli.split:split", "Split a table into training and test records with a keyed hash."),
    "evaluate": ("discreet.cli.evaluate:evaluate", "Evaluate a model on private test records."),
    "predict": ("discreet.cli.predict:predict", "Apply a fitted model to a table."),
    "verify": ("discreet.cli.verify:verify", "Recompute a certificate and accept or reject it."),
    "verifier": ("discreet.cli.verifier:verifier", "Write a page that verifies reports in a browser."),
    "risk": ("discreet.cli.risk:risk", "Bound what an attack on one person can achieve, in plain words."),
    "audit": ("discreet.cli.audit:audit", "Audit a procedure: attack it and test its implementation."),
    "report": (
        "discreet.cli.report:report",
        "Write a readable report of a certificate: HTML, Markdown, JSON.",
    ),
    "studio": ("discreet.cli.studio:studio", "Plan in the browser, with certified numbers."),
    "figures": ("discreet.cli.figures:figures", "Draw the figures of the lecture notes."),
    "ledger": (
        "discreet.cli.ledger:ledger",
        "Create and inspect privacy ledgers: budget, spending, remainder.",
    ),
    "study": ("discreet.cli.study:study", "Prepare a study of several parties and their kits."),
    "coordinate": ("discreet.cli.coordinate:coordinate", "Run a study of several parties."),
    "join": ("discreet.cli.join:join", "Join a study with your own table."),
}


class LazyGroup(CommandGroup):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands for ``--help``, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, from the table."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        lines = COMMANDS.items()
        return [CompletionItem(name, help=line) for name, (_, line) in lines if name.startswith(incomplete)]


COMPLETION = """\b
Tab completion for bash (replace bash by zsh or fish for those shells):
  eval "$(_DISCREET_COMPLETE=bash_source discreet)"
"""


@click.group(cls=LazyGroup, epilog=COMPLETION, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="discreet")
def main() -> None:
    """Train models with differential privacy, and prove how much was revealed.

    Numbers may be written as 1e-6. Every command accepts --json. The exit status is 0 for success, 1 for a
    refusal, 2 for an invalid parameter, 3 for a certificate that is consistent but not verified, and 130 for an
    interruption.
    """
