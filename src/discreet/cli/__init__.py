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
    from discreet.cli.shell import Group
except KeyboardInterrupt:  # Ctrl-C before there is anything that could catch it
    sys.stderr.write("error[interrupted]: Stopped by Ctrl-C before anything began.\n")
    raise SystemExit(130) from None

COMMANDS = {  # name: (module:command, what it does), in the order of --help
    "account": (
        "discreet.cli.account:account",
        "What does a release cost? Epsilon and delta, from both sides.",
    ),
    "calibrate": ("discreet.cli.calibrate:calibrate", "How much noise does a budget need?"),
    "explore": ("discreet.cli.explore:explore", "Compare plans: batch sizes, epochs, budgets."),
    "plan": ("discreet.cli.plan:plan", "Fix a training procedure before data is touched: plan.json."),
    "schema": ("discreet.cli.schema:schema", "Begin a schema.toml from the header line of a table."),
    "fit": ("discreet.cli.fit:fit", "Fit a private model to a table: curves or lines."),
    "split": ("discreet.cli.split:split", "Deal a table to training and test records, by keyed coins."),
    "evaluate": ("discreet.cli.evaluate:evaluate", "Score a model on records that are private too."),
    "predict": ("discreet.cli.predict:predict", "Apply a fitted model to a table."),
    "verify": ("discreet.cli.verify:verify", "Recompute a certificate: accepted, or why not."),
    "risk": ("discreet.cli.risk:risk", "What a certificate means for one person, in plain words."),
    "audit": ("discreet.cli.audit:audit", "Attack a procedure, and look for mistakes in its code."),
    "report": ("discreet.cli.report:report", "A certificate as a page for people: HTML, Markdown, JSON."),
    "studio": ("discreet.cli.studio:studio", "Plan in the browser, with certified numbers while you drag."),
    "figures": ("discreet.cli.figures:figures", "Draw the figures of the lecture notes."),
    "ledger": ("discreet.cli.ledger:ledger", "What was spent, and what is left."),
    "study": ("discreet.cli.study:study", "Agree on a study of several parties, and make their kits."),
    "coordinate": ("discreet.cli.coordinate:coordinate", "Run a study of several parties."),
    "join": ("discreet.cli.join:join", "Take part in a study with your own table."),
}


class LazyGroup(Group):
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
Completion of words by the Tab key, for bash (zsh and fish alike):
  eval "$(_DISCREET_COMPLETE=bash_source discreet)"
"""


@click.group(cls=LazyGroup, epilog=COMPLETION, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="discreet")
def main() -> None:
    """Differentially private learning, and proof of what was given away.

    Numbers may be written as 1e-6. Every command takes --json for programs. Errors are one sentence; the exit
    status is 0 for done, 1 for refused, 2 for wrong parameters, 3 for a certificate that nobody vouches for, 130
    for interrupted.
    """
