"""``discreet split``: deal the lines of a table to training and test records."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

from discreet.cli.shell import FILE, NUMBER, Answer, command, refuse_existing
from discreet.errors import InvalidParameter
from discreet.files import insist_writable, whole_file, write_whole


@command("split", renamed={"tables": "TABLE", "table": "TABLE"})
@click.argument("table", type=FILE)
@click.option("--test", type=NUMBER, required=True, help="The chance of a record to be tested, such as 0.3.")
@click.option("--train-out", type=FILE, required=True, help="Where the training records go: a CSV file.")
@click.option("--test-out", type=FILE, required=True, help="Where the test records go: a CSV file.")
@click.option(
    "--unit", help="The column that says whose record a line is; all of a person's lines go together."
)
@click.option("--key", type=FILE, help="A file with the secret key of the split; made if it is not there.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def split(
    table: Path,
    test: float,
    train_out: Path,
    test_out: Path,
    unit: str | None,
    key: Path | None,
    overwrite: bool,
) -> Answer:
    """Deal the lines of TABLE, a CSV file, to training and test records.

    \b
    discreet split people.csv --test 0.3 --train-out train.csv --test-out test.csv --key split.key

    Each line decides by a coin of its own, a hash of its text under a secret key. So budgets of training and test do
    not add up: together they cost the larger of both. The same key makes the same split again; without one, do not
    split twice.
    """
    from discreet.evaluation import split as dealt
    from discreet.linear.tables import CsvSource

    for option, path in (("train_out", train_out), ("test_out", test_out)):
        refuse_existing(option, path, overwrite)
        insist_writable(path)
    if train_out.resolve() == test_out.resolve():
        raise InvalidParameter("test_out", str(test_out), "must be another file than --train-out.")
    source = CsvSource(table)
    if unit is not None and unit not in source.names:
        raise InvalidParameter("unit", unit, "is not a column of the table.")
    secret = None if key is None else _key(key)
    people = None
    if unit is not None:
        people = np.concatenate([chunk.kept[unit] for chunk in source.chunks({}, [unit])] or [np.empty(0)])
    with table.open("r", encoding="utf-8-sig", errors="replace") as file:
        header = file.readline().rstrip("\n")
        lines = np.array([line.rstrip("\n") for line in file if not line.isspace()], object)
    sides = dealt(lines, test=test, unit=people, key=secret)
    for path, side in zip((train_out, test_out), sides, strict=True):
        with whole_file(path) as out:
            out.write("".join(f"{line}\n" for line in (header, *side)))
    data = {"train": train_out, "test": test_out, "split": sides.digest}
    return Answer(data, f"written to {train_out} and {test_out}")


def _key(path: Path) -> bytes:
    """The key in a file, which is made, for its owner alone, where there is none."""
    if not path.exists():
        write_whole(path, os.urandom(32).hex() + "\n", secret=True)
    try:
        return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        raise InvalidParameter(
            "key", str(path), "does not hold a key that discreet split has made."
        ) from None
