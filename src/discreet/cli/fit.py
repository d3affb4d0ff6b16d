"""``discreet fit``: a private model of a table, its certificate, and what the budget was spent on."""

from __future__ import annotations

from typing import Any

import click

from discreet.cli.shell import FILE, NUMBER, CommandResult, command
from discreet.errors import InvalidParameter
from discreet.guarantee import NEIGHBOURS
from discreet.linear.schema import TASKS

_INTERRUPTED = (
    "No model was written. What the ledger had reserved by then stays spent; "
    "discreet ledger show tells how much."
)
_RENAMED = {
    "table": "TABLE",
    "table_file": "TABLE",
    "schema": "--schema",
    "path": "--sign-with",
    "schema.target": "--target",
}


@command("fit", interrupted=_INTERRUPTED, renamed=_RENAMED)
@click.argument("table_file", metavar="[TABLE]", type=FILE, required=False)
@click.option(
    "--schema",
    "schema_file",
    type=FILE,
    required=True,
    help="The public description of the columns: schema.toml.",
)
@click.option("--target", help="The column to predict, if the schema does not name it.")
@click.option("--epsilon", type=NUMBER, required=True, help="The epsilon that this fit may spend.")
@click.option("--delta", type=NUMBER, required=True, help="Should be well below 1 / number of records.")
@click.option("--neighbours", type=click.Choice(NEIGHBOURS), default=NEIGHBOURS[0], show_default=True)
@click.option("--out", type=FILE, help="Folder of the model; it must not exist yet.")
@click.option(
    "--task", type=click.Choice(TASKS), help="Default: the kind of the target column in the schema."
)
@click.option(
    "--model",
    "family",
    type=click.Choice(["auto", "additive", "linear"]),
    default="auto",
    show_default=True,
    help="Additive (curves) or linear. auto: additive if records and budget suffice.",
)
@click.option(
    "--inference",
    is_flag=True,
    help="Spend part of the budget on standard errors and intervals (--model linear).",
)
@click.option("--arithmetic", type=click.Choice(["hardened", "float"]), default="hardened", show_default=True)
@click.option("--ledger", type=str, help="Charge this fit to a ledger of `discreet ledger new`.")
@click.option("--key", type=FILE, help="Key file of the ledger. Default: beside the ledger.")
@click.option("--sign-with", type=FILE, help="Sign the certificate with this Ed25519 key (PEM file).")
@click.option("--engine", type=click.Choice(["dask"]), help="Fit Parquet files in place, on a cluster.")
@click.option("--scheduler", help="For --engine dask: address of the scheduler, such as tls://host:8786.")
@click.option(
    "--log",
    type=FILE,
    help="For --engine dask with --ledger: folder from which an interrupted fit resumes.",
)
@click.option(
    "--preview",
    is_flag=True,
    help="Predict the accuracy from --records and the schema, without fitting.",
)
@click.option("--records", type=NUMBER, help="For --preview: expected number of records or persons.")
@click.option("--best", type=NUMBER, help="For --preview: expected accuracy or R2 without privacy.")
@click.option("--guess", type=NUMBER, help="For --preview: share of the most frequent class.")
@click.option("--name", default="fit", show_default=True, help="Name of this fit in the ledger.")
def fit(
    preview: bool, records: int | None, best: float | None, guess: float | None, **options: Any
) -> CommandResult:
    """Fit a private model to TABLE, a CSV, Parquet or Arrow file.

    \b
    discreet fit table.csv --target income --schema schema.toml --epsilon 1 --delta 1e-6 --out model/
    discreet fit --preview --records 50000 --schema schema.toml --epsilon 1 --delta 1e-6

    The model predicts classes, numbers, or counts (--task counts). By default it is additive, with a curve for
    each column; with few records the curves become lines, and the result says so. With --model linear it is a
    logistic, linear or Poisson regression. A cell that contradicts the schema counts as missing. No message
    reports it, because a message would reveal a record.

    On a cluster, all machines must see the files under the same paths. Dask's configuration contains the TLS
    files:

    \b
    discreet fit '/data/*.parquet' --engine dask --scheduler tls://host:8786 --schema schema.toml ...

    A key for --sign-with: openssl genpkey -algorithm ed25519 -out key.pem
    """
    from discreet.cli.fitting import fit_table, preview_fit  # takes seconds to import, --help must not

    if preview:
        return preview_fit(records, best, guess, **options)
    for name, value in (("records", records), ("best", best), ("guess", guess)):
        if value is not None:
            raise InvalidParameter(name, value, "goes with --preview.")
    for name, shown in (("table_file", "TABLE"), ("out", "--out")):
        if options[name] is None:
            raise InvalidParameter(name, None, f"{shown} is missing; only --preview does without.")
    return fit_table(**options)
