"""``discreet predict``: apply a fitted model to a table, chunk by chunk."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import numpy as np

from discreet.cli.shell import CERTIFICATE, FILE, CommandResult, command, note, refuse_existing, wants_json
from discreet.cli.watching import watch_chunks
from discreet.errors import InvalidParameter
from discreet.files import whole_file
from discreet.linear.row_source import Source
from discreet.linear.tables import table_in

if TYPE_CHECKING:
    from discreet.linear.fitted_model import FittedModel

Columns = Mapping[str, Any]
PARQUET = (".parquet", ".pq")


@command("predict")
@click.argument("model", type=FILE)
@click.argument("table", type=FILE)
@click.option("--out", type=FILE, help="A .csv or .parquet file. Default: CSV on standard output.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--probabilities", is_flag=True, help="Add the probability of each class.")
@click.option(
    "--keep",
    help="Columns to copy, separated by commas, instead of the row number.",
)
def predict(
    model: Path, table: Path, out: Path | None, overwrite: bool, probabilities: bool, keep: str | None
) -> CommandResult | None:
    """Apply the model in the folder MODEL to TABLE, a CSV, Parquet or Arrow file, or - for CSV from standard input.

    \b
    discreet predict model/ new.csv --out predictions.csv

    Each non-blank row gives one prediction, preceded by its row number, starting at 1. A missing cell counts as
    the middle of its bounds. With --json and without --out, the predictions are printed as JSON.
    """
    if out is not None:
        if out.suffix.lower() not in (".csv", *PARQUET):
            raise InvalidParameter(
                "out", str(out), "must end in .csv or .parquet, which says what is written."
            )
        refuse_existing("out", out, overwrite)
    fitted = _certified_model(model)
    if probabilities and not fitted.has_probabilities:
        requirement = f"are of classes, by a logistic regression; this is {fitted.estimator or fitted.task}."
        raise InvalidParameter("probabilities", None, requirement)
    kept = keep.split(",") if keep else []
    chunks = predictions(fitted, table_in(table), kept, probabilities)
    if out is None and wants_json():
        return CommandResult(as_data(chunks) | {"task": fitted.task, "target": fitted.schema.target}, "")
    if out is None:
        write_csv(sys.stdout, chunks)
        return None
    if out.suffix.lower() in PARQUET:
        with whole_file(out, "wb") as file:
            write_parquet(file, chunks)
    else:
        with whole_file(out) as file:
            write_csv(file, chunks)
    return CommandResult(
        {"out": out, "task": fitted.task, "target": fitted.schema.target}, f"written to {out}"
    )


def _certified_model(folder: Path) -> FittedModel:
    """The model in a folder, which must be the one that its certificate is for, if there is one."""
    from discreet.linear.model_folder import (
        load,  # what it needs takes seconds to import, and --help must not
    )

    fitted = load(folder)
    if fitted.certificate_ is None:
        joint, told = folder / "joint.json", "nobody can check what this model gave away"
        found = f"its parties have theirs, discreet study verify {joint}" if joint.exists() else told
        note(f"there is no {CERTIFICATE} in {folder}: {found}.")
    return fitted


def predictions(
    model: FittedModel, source: Source, keep: list[str], probabilities: bool
) -> Iterator[Columns]:
    """The columns of the answer, chunk by chunk: those to keep, or the numbers of the rows."""
    done = 0
    for chunk in watch_chunks("predicting", source, model.schema.features, keep):
        rows, done = np.arange(done + 1, done + len(chunk) + 1), done + len(chunk)
        columns: dict[str, Any] = dict(chunk.kept) if keep else {"row": rows}
        columns["prediction"] = model.predict(chunk)
        if probabilities:
            chances = model.predict_proba(chunk)
            columns |= {f"probability of {label}": chances[:, k] for k, label in enumerate(model.classes)}
        yield columns


def as_data(chunks: Iterator[Columns]) -> dict[str, Any]:
    """All columns as lists: the predictions, and the others by name."""
    columns: dict[str, list[Any]] = {}
    for chunk in chunks:
        for name, values in chunk.items():
            columns.setdefault(name, []).extend(values.tolist())
    return {"predictions": columns.pop("prediction"), "columns": columns}


def write_csv(file: IO[str], chunks: Iterator[Columns]) -> None:
    """Write the columns, with their names in the first line."""
    writer = csv.writer(file, lineterminator="\n")
    for number, columns in enumerate(chunks):
        if number == 0:
            writer.writerow(map(_harmless, columns))
        writer.writerows(zip(*(_texts(values) for values in columns.values()), strict=True))


def _texts(values: Any) -> list[Any]:
    return [str(value).lower() if isinstance(value, bool) else _harmless(value) for value in values.tolist()]


_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|\t")


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with an apostrophe before it; numbers stay as they are."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", " ")  # which is not quoted, and would begin a line
    if not _FORMULA.match(value) or len(value) < 2:
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_parquet(file: Any, chunks: Iterator[Mapping[str, Any]]) -> None:
    """Write columns, chunk by chunk; the first one, which is empty, counts if there is no other."""
    from discreet.linear.parquet import pyarrow

    arrow = pyarrow()
    tables = (arrow.table(dict(chunk)) for chunk in chunks)
    empty = next(tables)
    first = next(tables, empty)
    with arrow.parquet.ParquetWriter(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
