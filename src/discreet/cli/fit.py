"""``discreet fit``: a private model of a table, its certificate, and what the budget was spent on."""

from __future__ import annotations

from typing import Any

import click

from discreet.cli.shell import FILE, NUMBER, Answer, command
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
    "--schema", "schema_file", type=FILE, required=True, help="What is publicly known: schema.toml."
)
@click.option("--target", help="The column to be predicted, if the schema does not say.")
@click.option("--epsilon", type=NUMBER, required=True, help="What this fit may spend.")
@click.option("--delta", type=NUMBER, required=True, help="Well below 1 / number of records.")
@click.option("--neighbours", type=click.Choice(NEIGHBOURS), default=NEIGHBOURS[0], show_default=True)
@click.option("--out", type=FILE, help="The folder of the model, which must not exist yet.")
@click.option(
    "--task", type=click.Choice(TASKS), help="By default what the target's column in the schema is."
)
@click.option(
    "--model",
    "family",
    type=click.Choice(["auto", "additive", "linear"]),
    default="auto",
    show_default=True,
    help="Curves, or lines; auto is curves where records and budget carry them.",
)
@click.option(
    "--inference",
    is_flag=True,
    help="Standard errors and intervals, for a share of the budget; with --model linear.",
)
@click.option("--arithmetic", type=click.Choice(["hardened", "float"]), default="hardened", show_default=True)
@click.option("--ledger", type=str, help="A ledger whose budget this fit is charged to: discreet ledger new.")
@click.option("--key", type=FILE, help="The ledger's key file, if it is not beside it.")
@click.option(
    "--sign-with", type=FILE, help="A file with an Ed25519 key, in PEM, that signs the certificate."
)
@click.option("--engine", type=click.Choice(["dask"]), help="Fit Parquet files where they lie, on a cluster.")
@click.option("--scheduler", help="For --engine dask: its address, tls://host:8786.")
@click.option(
    "--log",
    type=FILE,
    help="For --engine dask: a folder from which a fit that was killed goes on, with --ledger.",
)
@click.option(
    "--preview",
    is_flag=True,
    help="Tell what accuracy to expect, from --records and the schema; fit nothing.",
)
@click.option("--records", type=NUMBER, help="For --preview: how many records, or people, there will be.")
@click.option("--best", type=NUMBER, help="For --preview: the accuracy or R2 hoped for without privacy.")
@click.option("--guess", type=NUMBER, help="For --preview: the share of the most frequent class.")
@click.option("--name", default="fit", show_default=True, help="The name of this fit in the ledger.")
def fit(
    preview: bool, records: int | None, best: float | None, guess: float | None, **options: Any
) -> Answer:
    """Fit a private model to TABLE, a CSV, Parquet or Arrow file.

    \b
    discreet fit table.csv --target income --schema schema.toml --epsilon 1 --delta 1e-6 --out model/
    discreet fit --preview --records 50000 --schema schema.toml --epsilon 1 --delta 1e-6

    The model is for classes, for numbers, or with --task counts for counts. It has a curve for every column; with
    few records curves are lines, and the answer says so. With --model linear it is a logistic, linear or Poisson
    regression. Cells that are not what the schema says count as missing, without a word, because any word would
    tell of a record.

    On a cluster, whose machines see the files under the same names; Dask's configuration names the files of TLS:

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
