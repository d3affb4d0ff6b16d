"""``discreet split``: deal the records of a table to training and test records."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

from discreet.cli.shell import FILE, NUMBER, CommandResult, command, refuse_existing
from discreet.errors import InvalidParameter
from discreet.files import whole_file, write_whole
from discreet.folders import insist_writable


@command("split", renamed={"tables": "TABLE", "table": "TABLE"})
@click.argument("table", type=FILE)
@click.option(
    "--test", type=NUMBER, required=True, help="Probability that a record becomes a test record, such as 0.3."
)
@click.option(
    "--train-out", type=FILE, required=True, help="File for the training records, in the format of TABLE."
)
@click.option(
    "--test-out", type=FILE, required=True, help="File for the test records, in the format of TABLE."
)
@click.option("--unit", help="Column with the person's ID; all rows of a person stay together.")
@click.option("--key", type=FILE, help="File with the secret key of the split; created if it does not exist.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def split(
    table: Path,
    test: float,
    train_out: Path,
    test_out: Path,
    unit: str | None,
    key: Path | None,
    overwrite: bool,
) -> CommandResult:
    """Split the records of TABLE, a CSV or Parquet file, into training and test records.

    \b
    discreet split people.csv --test 0.3 --train-out train.csv --test-out test.csv --key split.key

    A keyed hash of its own text or cells assigns each record, independently of the others. By parallel
    composition, training and test together cost the larger of the two budgets. The same key repeats the split.
    Without a key, do not split twice.
    """
    for option, path in (("train_out", train_out), ("test_out", test_out)):
        refuse_existing(option, path, overwrite)
        insist_writable(path)
    if train_out.resolve() == test_out.resolve():
        raise InvalidParameter("test_out", str(test_out), "must be another file than --train-out.")
    _refuse_other_kinds(table, train_out, test_out)
    secret = None if key is None else _key(key)
    deal = _deal_parquet if _is_parquet(table) else _deal_csv
    digest = deal(table, (train_out, test_out), test, unit, secret)
    data = {"train": train_out, "test": test_out, "split": digest}
    return CommandResult(data, f"written to {train_out} and {test_out}")


def _deal_csv(
    table: Path, outs: tuple[Path, Path], test: float, unit: str | None, secret: bytes | None
) -> str:
    """Write the lines of either side; answer with the digest of the split."""
    from discreet.evaluation import split as dealt
    from discreet.linear.tables import CsvSource

    source = CsvSource(table)
    _refuse_unknown(unit, source.names)
    people = None
    if unit is not None:
        people = np.concatenate([chunk.kept[unit] for chunk in source.chunks({}, [unit])] or [np.empty(0)])
    lines = np.array([line.rstrip("\n") for records in source.records() for line in records], object)
    sides = dealt(lines, test=test, unit=people, key=secret)
    for path, side in zip(outs, sides, strict=True):
        with whole_file(path, like=table) as out:
            out.write("".join(f"{line}\n" for line in (source.header, *side)))
    return sides.digest


def _deal_parquet(
    table: Path, outs: tuple[Path, Path], test: float, unit: str | None, secret: bytes | None
) -> str:
    """Write the rows of either side, with the types that they have; answer with the digest of the split."""
    from discreet.evaluation import split as dealt
    from discreet.linear.parquet import ParquetSource, pyarrow

    _refuse_unknown(unit, ParquetSource(table).names)
    parquet = pyarrow().parquet
    sides = dealt(parquet.read_table(table), test=test, unit=unit, key=secret)
    for path, side in zip(outs, sides, strict=True):
        with whole_file(path, "wb", like=table) as out:
            parquet.write_table(side, out)
    return sides.digest


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _refuse_other_kinds(table: Path, *outs: Path) -> None:
    """Raise unless the sides are files of the kind of the table: another one could not be read again."""
    if table.suffix.lower() in (".arrow", ".feather", ".ipc"):
        raise InvalidParameter("table", str(table), "must be a CSV or Parquet file.")
    for option, path in zip(("train_out", "test_out"), outs, strict=True):
        if _is_parquet(path) != _is_parquet(table):
            kind = "parquet" if _is_parquet(table) else "csv"
            raise InvalidParameter(option, str(path), f"must end in .{kind}, as the table is such a file.")


def _refuse_unknown(unit: str | None, names: tuple[str, ...]) -> None:
    if unit is not None and unit not in names:
        raise InvalidParameter("unit", unit, "is not a column of the table.")


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
