"""``discreet schema``: begin a ``schema.toml`` from the names in a table's header line.

Only the header is read: names are public, records are not. What is known of each column (its bounds, its
categories) is asked, or left blank for the data's owner to fill in from knowledge; ``fit`` refuses blanks.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from discreet.cli.refusals import Refusal
from discreet.cli.shell import FILE, NUMBER, Answer, command, refuse_existing
from discreet.errors import InvalidParameter, real
from discreet.files import whole_file
from discreet.linear.schema import Category, Numeric, Schema
from discreet.linear.tables import table_in

KINDS = ("number", "category", "flag", "learn", "skip", "later")
BLANK = "# FILL IN: bounds = [lower, upper], categories = [...], flag = value, or learn = true"
HEAD = """\
# What is publicly known of each column, written from knowledge, never from the records.
#   age    = { bounds = [17, 90] }                      a number; values outside are clamped
#   hours  = { bounds = [0, 100], missing = "flag" }    with a column that says where it was missing
#   gains  = { learn = true }                           bounds unknown: learnt privately, out of the budget
#   job    = { categories = ["clerk", "farmer"] }       any other value counts as none of them
#   smoker = { flag = "yes" }                           the value that counts as yes
# Delete the columns that the model must not use, such as names and numbers of persons.
"""


@command("schema")
@click.argument("table", type=FILE)
@click.option("--target", help="The column that is to be predicted.")
@click.option("--out", type=FILE, default="schema.toml", show_default=True, help="Where to write the schema.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--ask/--blank", default=None, help="Ask for every column, or leave blanks; asks in a terminal."
)
def schema(table: Path, target: str | None, out: Path, overwrite: bool, ask: bool | None) -> Answer:
    """Begin a schema from the header line of TABLE, a CSV or Parquet file.

    \b
    discreet schema table.csv --target income

    No record is read. Bounds and categories are asked, or left as blanks which fit refuses until they are filled
    in. Take them from what is known in general, such as the questionnaire, not from a look at the records.
    """
    refuse_existing("out", out, overwrite)
    names = public_names(table)
    if target is not None and target not in names:
        raise InvalidParameter("target", target, "is not a name in the first line of the table.")
    asked = sys.stdin.isatty() if ask is None else ask
    told = {name: _asked(name) if asked else {} for name in names}
    columns = {name: column for name, column in told.items() if column is not None}
    if asked and columns and all(columns.values()):
        Schema.from_dict({"columns": columns} | ({"target": target} if target else {}))
    with whole_file(out) as file:
        file.write(as_toml(columns, target))
    blank = [name for name, column in columns.items() if not column]
    text = f"written to {out}: {len(columns)} columns, {len(blank)} of them to be filled in"
    return Answer({"out": out, "columns": list(columns), "blank": blank, "target": target}, text)


def public_names(table: Path) -> tuple[str, ...]:
    """The names in the header line, unless it looks like a record: then nothing of it is shown."""
    names = table_in(table).names
    texts = all(name and name.isprintable() and "\ufffd" not in name for name in names)
    if not texts or len(set(names)) < len(names) or any(map(_is_number, names)):
        requirement = "its first line must name the columns: texts, all different, none of them a number."
        raise InvalidParameter("table", str(table), requirement)
    return names


def as_toml(columns: dict[str, dict[str, Any]], target: str | None) -> str:
    """The text of a ``schema.toml``; a column without a declaration is a blank.

    >>> print(as_toml({"age": {"bounds": [17, 90]}, "net income": {}}, "net income").removeprefix(HEAD))
    target = "net income"
    <BLANKLINE>
    [columns]
    age = { bounds = [17, 90] }
    "net income" = { }  # FILL IN: bounds = [lower, upper], categories = [...], flag = value, or learn = true
    <BLANKLINE>
    """
    lines = [f"target = {_quoted(target)}\n" if target else "# target = NAME\n", "[columns]"]
    for name, column in columns.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
        inside = ", ".join(f"{word} = {_quoted(value)}" for word, value in column.items())
        lines.append(f"{key} = {{ {inside} }}" if column else f"{key} = {{ }}  {BLANK}")
    return HEAD + "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    """JSON, which for texts, numbers, booleans and lists of them is TOML too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _asked(name: str) -> dict[str, Any] | None:
    """What the owner says of a column: a declaration, {} for later, None to leave it out."""
    kind = click.prompt(f"{name}: what is it?", type=click.Choice(KINDS), default="number", err=True)
    if kind == "number":
        return _until_right(name, _bounds)
    if kind == "category":
        return _until_right(name, _categories)
    if kind == "flag":
        return {"flag": click.prompt("  the value that counts as yes", err=True)}
    return {"learn": True} if kind == "learn" else None if kind == "skip" else {}


def _until_right(name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Ask again for what cannot be."""
    while True:
        try:
            return ask()
        except (InvalidParameter, Refusal) as error:
            reason = error.requirement if isinstance(error, InvalidParameter) else error.message
            click.echo(f"  {name}: {reason} Once more:", err=True)


def _bounds() -> dict[str, Any]:
    lower = NUMBER.convert(click.prompt("  lowest value", err=True), None, None)
    real("lowest value", lower)
    upper = NUMBER.convert(click.prompt("  highest value", err=True), None, None)
    Numeric(lower, upper)
    return {"bounds": [lower, upper]}


def _categories() -> dict[str, Any]:
    """A line of CSV: a value with commas or quotes in it is quoted as there."""
    line = click.prompt('  its values, with commas between them ("a, b" in quotes is one value)', err=True)
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
