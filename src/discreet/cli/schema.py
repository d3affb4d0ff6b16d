"""``discreet schema``: begin a ``schema.toml`` from the names in a table's header line.

Only the header is read: names are public, records are not. What is known of each column (its bounds, its
categories) is asked, or left blank for the data's owner to fill in from knowledge; ``fit`` refuses blanks.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from discreet.cli.refusals import CommandRefusal
from discreet.cli.shell import FILE, NUMBER, CommandResult, command, note, refuse_existing
from discreet.errors import InvalidParameter, real
from discreet.files import whole_file
from discreet.linear.column_kinds import ISO, Category, Date, Numeric
from discreet.linear.schema import Schema
from discreet.linear.tables import table_in

KINDS = ("number", "date", "category", "flag", "person", "learn", "skip", "later", "back")
_WHOSE = {"person", "patient", "customer", "client", "user", "member", "student", "employee", "participant"}
_PERSON = {"unit": True}  # what is told of the column that says whose a row is
_TEXTS = ("string", "large_string", "dictionary", "null")  # how types of texts begin, in Arrow
BLANK = "# FILL IN: bounds = [lower, upper], categories = [...], flag = value, or learn = true"
HEAD = """\
# What is publicly known of each column, written from knowledge, never from the records.
#   age    = { bounds = [17, 90] }                      a number; values outside are clamped
#   hours  = { bounds = [0, 100], missing = "flag" }    with a column that says where it was missing
#   gains  = { learn = true }                           bounds unknown: learnt privately, out of the budget
#   job    = { categories = ["clerk", "farmer"] }       any other value counts as none of them
#   smoker = { flag = "yes" }                           the value that counts as yes
# Delete the columns that the model must not use, such as names and numbers of persons.
# May somebody have several rows? Then protect people, not rows, by the column that says whose a row is, at the end:
#   [unit]
#   column = "person_id"
"""


@command("schema")
@click.argument("table", type=FILE)
@click.option("--target", help="The column to predict.")
@click.option("--out", type=FILE, default="schema.toml", show_default=True, help="File of the schema.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--ask/--blank", default=None, help="Ask about every column, or leave blanks. Default in a terminal: ask."
)
def schema(table: Path, target: str | None, out: Path, overwrite: bool, ask: bool | None) -> CommandResult:
    """Create a schema from the header of TABLE, a CSV, Parquet or Arrow file.

    \b
    discreet schema table.csv --target income

    No record is read. The command asks for bounds and categories, or leaves blanks, which must be filled in
    before a fit. Take them from public knowledge, such as the questionnaire, not from the records.

    Answers may be abbreviated (n for number). "back" returns to the previous column, "<" leaves a question.
    Ctrl-C keeps the answers so far and leaves the rest blank.
    """
    refuse_existing("out", out, overwrite)
    guesses = public_columns(table)
    names = tuple(guesses)
    if target is not None and target not in names:
        raise InvalidParameter("target", target, "is not a name in the first line of the table.")
    asked = sys.stdin.isatty() if ask is None else ask
    told = _interview(guesses) if asked else {name: {} for name in names}
    unit = next((name for name, column in told.items() if column == _PERSON), None)
    columns = {name: column for name, column in told.items() if column is not None and name != unit}
    if asked and columns and all(columns.values()):
        said = {"target": target, "unit": None if unit is None else {"column": unit}}
        Schema.from_dict({"columns": columns} | {key: value for key, value in said.items() if value})
    with whole_file(out) as file:
        file.write(as_toml(columns, target, unit))
    blank = [name for name, column in columns.items() if not column]
    text = f"written to {out}: {len(columns)} columns, {len(blank)} of them to be filled in"
    data = {"out": out, "columns": list(columns), "blank": blank, "target": target}
    return CommandResult(data | ({} if unit is None else {"unit": unit}), text)


def public_columns(table: Path) -> dict[str, str]:
    """The names in the header line, each with a guess what kind of column it is, by its name and declared type.

    If the line looks like a record, it is refused, and nothing of it is shown.
    """
    source = table_in(table)
    names = source.names
    texts = all(name and name.isprintable() and "\ufffd" not in name for name in names)
    if not texts or len(set(names)) < len(names) or any(map(_is_number, names)):
        requirement = "its first line must name the columns: texts, all different, none of them a number."
        raise InvalidParameter("table", str(table), requirement)
    types = getattr(source, "schema", None)  # CSV files have none
    return {name: _by_type(types.field(name).type) if types else _by_name(name) for name in names}


def _by_type(kind: Any) -> str:
    """Suggest a declaration from a column's Arrow type."""
    word = str(kind)
    for guess, beginnings in (("flag", "bool"), ("date", ("date", "timestamp")), ("category", _TEXTS)):
        if word.startswith(beginnings):
            return guess
    return "number"


def _by_name(name: str) -> str:
    """Suggest a declaration from a column's name.

    >>> [_by_name(name) for name in ("age", "person_id", "is_smoker", "birth_date", "idle")]
    ['number', 'person', 'flag', 'date', 'number']
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    if _WHOSE & set(words) and {"id", "number", "no", "key"} & set(words):
        return "person"
    for kind, known in (
        ("skip", {"id", "name", "email"}),
        ("date", {"date", "day"}),
        ("flag", {"is", "has"}),
    ):
        if known & set(words):
            return kind
    return "number"


def as_toml(columns: dict[str, dict[str, Any]], target: str | None, unit: str | None = None) -> str:
    """The text of a ``schema.toml``; a column without a declaration is a blank.

    >>> print(as_toml({"age": {"bounds": [17, 90]}, "net income": {}}, "net income").removeprefix(HEAD))
    target = "net income"
    <BLANKLINE>
    [columns]
    age = { bounds = [17, 90] }
    "net income" = { }  # FILL IN: bounds = [lower, upper], categories = [...], flag = value, or learn = true
    <BLANKLINE>
    """
    lines = [f"target = {_quote(target)}\n" if target else "# target = NAME\n", "[columns]"]
    for name, column in columns.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)
        inside = ", ".join(f"{word} = {_quote(value)}" for word, value in column.items())
        lines.append(f"{key} = {{ {inside} }}" if column else f"{key} = {{ }}  {BLANK}")
    if unit is not None:
        lines += [
            "",
            "[unit]",
            f"column = {_quote(unit)}  # whose a row is: people are protected with all rows",
        ]
    return HEAD + "\n".join(lines) + "\n"


def _quote(value: Any) -> str:
    """JSON, which for texts, numbers, booleans and lists of them is TOML too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Back(Exception):
    """The owner wants to go back."""


def _interview(guesses: Mapping[str, str]) -> dict[str, dict[str, Any] | None]:
    """Ask the owner about each column; answers given before an interruption are kept."""
    click.echo(
        f"One of {', '.join(KINDS)}; n, d, c ... will do. < goes back, Ctrl-C keeps the answers.\n"
        "person: the column that says whose a row is, if somebody may have several rows; skip: not used.",
        err=True,
    )
    names, told = list(guesses), dict[str, dict[str, Any] | None]()
    try:
        while len(told) < len(names):
            name = names[len(told)]
            try:
                found = _ask_column(name, guesses[name])
                if found == _PERSON and _PERSON in told.values():
                    click.echo(
                        f"  {name}: one column says whose a row is, and there is one. Once more:", err=True
                    )
                else:
                    told[name] = found
            except _Back:
                if told:
                    told.popitem()
    except (click.Abort, KeyboardInterrupt):
        if not any(told.values()):
            raise  # nothing that would be worth a file
        note("stopped: the answers so far are kept, the other columns are left blank.")
    return told | {name: {} for name in names if name not in told}


def _ask_column(name: str, guess: str) -> dict[str, Any] | None:
    """Ask the owner about a column. Returns a declaration, {} to decide later, or None to leave it out."""
    kind = _prompt(f"{name}: what is it?", _kind, default=guess)
    if kind == "back":
        raise _Back
    questions = {"number": _bounds, "date": _dates, "category": _categories, "flag": _flag}
    try:
        if kind in questions:
            return _until_right(name, questions[kind])
    except _Back:
        return _ask_column(name, guess)  # out of the bounds, to the kind of the same column
    plain: dict[str, dict[str, Any] | None] = {"learn": {"learn": True}, "person": _PERSON, "skip": None}
    return plain.get(kind, {})


def _kind(text: str) -> str:
    """The kind that a text is the beginning of."""
    found = [kind for kind in KINDS if kind.startswith(text.strip().lower())]
    if len(found) != 1:
        raise click.UsageError(f"must be one of {', '.join(KINDS)}, or the beginning of one.")
    return found[0]


def _prompt(text: str, read: Callable[[str], Any] = str, **settings: Any) -> Any:
    """Prompt for a line of input; ``<`` goes back."""

    def proc(typed: str) -> Any:
        if typed.strip() == "<":
            raise _Back
        return read(typed)

    return click.prompt(text, err=True, value_proc=proc, **settings)


def _flag() -> dict[str, Any]:
    return {"flag": _prompt("  the value that counts as yes")}


def _dates() -> dict[str, Any]:
    """Bounds as dates, in the ISO format; how the file writes them is declared beside."""
    first, last = (_prompt(f"  {side} day, such as 2020-12-31") for side in ("first", "last"))
    form = _prompt("  how the file writes days, as in strftime", default=ISO, show_default=True)
    Date(first, last, format=form)
    return {"bounds": [first, last]} | ({} if form == ISO else {"format": form})


def _until_right(name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Ask again for what cannot be."""
    while True:
        try:
            return ask()
        except (InvalidParameter, CommandRefusal) as error:
            reason = error.requirement if isinstance(error, InvalidParameter) else error.message
            click.echo(f"  {name}: {reason} Once more:", err=True)


def _bounds() -> dict[str, Any]:
    lower = NUMBER.convert(_prompt("  lowest value"), None, None)
    real("lowest value", lower)
    upper = NUMBER.convert(_prompt("  highest value"), None, None)
    Numeric(lower, upper)
    return {"bounds": [lower, upper]}


def _categories() -> dict[str, Any]:
    """A line of CSV: a value with commas or quotes in it is quoted as there."""
    line = _prompt('  its values, with commas between them ("a, b" in quotes is one value)')
    try:
        values = [value.strip() for value in next(csv.reader([line], skipinitialspace=True, strict=True))]
    except csv.Error:
        raise InvalidParameter("categories", None, "a quote is not closed, or is within a value.") from None
    if not all(values):
        raise InvalidParameter("categories", None, "a value is empty.")
    return Category(tuple(values)).to_dict()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
