"""``discreet evaluate``: how good a model is, on records that are private too."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from discreet.cli.shell import FILE, NUMBER, CommandResult, command, note, refuse_existing
from discreet.errors import InvalidParameter
from discreet.files import write_whole
from discreet.folders import insist_writable

_RENAMED = {"x": "TABLE", "table": "TABLE", "model": "MODEL"}
_INTERRUPTED = "Nothing was written. What the ledger had reserved by then stays spent."


@command("evaluate", renamed=_RENAMED, interrupted=_INTERRUPTED)
@click.argument("model", type=FILE)
@click.argument("table", type=FILE)
@click.option("--epsilon", type=NUMBER, required=True, help="The epsilon that this evaluation may spend.")
@click.option(
    "--delta",
    type=NUMBER,
    default=1e-6,
    show_default=True,
    help="Should be well below 1 / number of records.",
)
@click.option("--by", multiple=True, help="Report scores per group of this category or flag. Repeatable.")
@click.option("--unit", help="Column with the person's ID. Default: the one of the fit.")
@click.option(
    "--confidence", type=NUMBER, default=0.9, show_default=True, help="Confidence of the intervals."
)
@click.option("--ledger", type=str, help="Charge this evaluation to a ledger of `discreet ledger new`.")
@click.option("--key", type=FILE, help="Key file of the ledger. Default: beside the ledger.")
@click.option("--name", default="evaluate", show_default=True, help="Name of this evaluation in the ledger.")
@click.option("--out", type=FILE, help="Write the scores as JSON, for `discreet report --evaluation`.")
@click.option("--certificate", type=FILE, help="Write the certificate of this evaluation.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def evaluate(
    model: Path,
    table: Path,
    ledger: str | None,
    key: Path | None,
    name: str,
    out: Path | None,
    certificate: Path | None,
    overwrite: bool,
    **asked: Any,
) -> CommandResult:
    """Evaluate the model in the folder MODEL on TABLE, a CSV, Parquet or Arrow file with the target.

    \b
    discreet evaluate model/ test.csv --epsilon 0.5 --by sex

    Reports accuracy, AUC, log loss and Brier score, or R2, MAE and RMSE for numbers. Each interval covers noise
    and sampling error. All scores are computed from one noisy histogram, which spends the budget. The records
    must differ from the training records; `discreet split` separates them.
    """
    for option, path in (("out", out), ("certificate", certificate)):
        if path is not None:
            refuse_existing(option, path, overwrite)
            insist_writable(path)
    if ledger is None and key is not None:
        raise InvalidParameter("key", str(key), "goes with --ledger.")
    from discreet.evaluation import evaluate as evaluated  # takes seconds to import, --help must not
    from discreet.evaluation.evaluate import unit_for
    from discreet.linear.model_folder import load

    fitted = load(model)
    rows, people = _read(table, fitted.schema, unit_for(fitted, asked.pop("unit")))
    asked["by"] = list(asked["by"]) or None
    with _ledger(ledger, key, name) as book:
        found = evaluated(fitted, rows, unit=people, ledger=book, **asked)
    assert found.certificate is not None
    written = []
    for path, text in (
        (out, json.dumps(found.to_dict(), indent=2, allow_nan=False)),
        (certificate, found.certificate.to_json()),
    ):
        if path is not None:
            write_whole(path, text + "\n")
            written.append(str(path))
    for text in found.notes:
        note(text)
    told = (
        str(found)
        if not found.notes
        else "\n".join(line for line in str(found).splitlines() if not line.startswith("note: "))
    )
    return CommandResult(
        found.to_dict() | {"written": written}, told + "".join(f"\nwritten to {path}" for path in written)
    )


def _ledger(place: str | None, key: Path | None, name: str) -> AbstractContextManager[Any]:
    """The ledger that is charged; without a place, None: one for this alone is made."""
    from discreet.cli.ledger import RUN_NAME, open_ledger

    if not RUN_NAME.fullmatch(name):
        raise InvalidParameter("name", name, "must be 1 to 40 letters, digits and . _ -, such as 'test-1'.")
    return nullcontext() if place is None else open_ledger(place, key, label=f"{name}:", begin=True)


def _read(path: Path, schema: Any, unit: str | None) -> tuple[Any, Any]:
    """The columns of the model, with its target, and whose each row is."""
    import numpy as np

    from discreet.cli.watching import watch_chunks
    from discreet.linear.row_source import join_chunks
    from discreet.linear.tables import table_in

    source, keep = table_in(path), [] if unit is None else [unit]
    if unit is not None and unit not in source.names:
        raise InvalidParameter("unit", unit, "is not a column of the table.")
    chunks = list(watch_chunks("reading", source, schema.columns, keep))
    people = None if unit is None else np.concatenate([chunk.kept[unit] for chunk in chunks] or [np.empty(0)])
    return join_chunks(chunks, schema.columns), people
