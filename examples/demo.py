"""The whole product in a minute, on real records: fit, predict, verify, audit, report.

The records are those of the RAND health-insurance experiment, which come with statsmodels: how often somebody sees a
doctor in a year, by insurance and health. They are 20 190 years of 5 912 people, and people are protected, each with
all of their years: the schema names the column that says whose a row is. Everything below is the command line; each
command is shown as it is typed. Run with ``make demo``, or ``python examples/demo.py FOLDER``.
"""

import csv
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

# What is publicly known: the questionnaire, not the records.
SCHEMA = """\
target = "visits"

[unit]
column = "person"                     # all years of a person are protected together

[columns]
coinsurance = { bounds = [0, 4.7] }   # logarithm of the share that the patient pays
deductible  = { flag = 1 }            # a plan with an individual deductible
incentive   = { bounds = [0, 7.2] }   # logarithm of the yearly participation incentive
maximum     = { bounds = [0, 9] }     # logarithm of the maximal expenditure
limitation  = { bounds = [0, 1] }     # physical limitations
diseases    = { bounds = [0, 60] }    # chronic diseases
good        = { flag = 1 }            # self-rated health
fair        = { flag = 1 }
poor        = { flag = 1 }
visits      = { bounds = [0, 80] }    # to a doctor, in a year
"""
NAMES = {
    "person": "zper",
    "visits": "mdvis",
    "coinsurance": "logc",
    "deductible": "idp",
    "incentive": "lpi",
    "maximum": "fmde",
    "limitation": "physlm",
    "diseases": "disea",
    "good": "hlthg",
    "fair": "hlthf",
    "poor": "hlthp",
}
"""The columns of the demo, and what the experiment calls them."""


def main(folder: Path) -> None:
    write_table(folder)
    run(folder, "discreet ledger new budget.ledger --epsilon 3 --delta 1e-6 --unit person")
    run(
        folder,
        "discreet fit people.csv --schema schema.toml --task counts --epsilon 1 --delta 1e-6 --out model "
        "--ledger budget.ledger",
    )
    run(folder, "discreet predict model people.csv --out predicted.csv")
    compare(folder)
    run(folder, "discreet verify model --ledger budget.ledger")
    run(folder, "discreet audit model/certificate.json --json", quietly_to="audit.json")
    run(
        folder,
        "discreet report model/certificate.json --audit audit.json --html report.html --ledger budget.ledger",
    )
    run(folder, "discreet verify report.html --ledger budget.ledger")
    print(
        f"\nThe epsilon of everything above is 1 for each person. Open {folder / 'report.html'} in a browser."
    )


def write_table(folder: Path) -> None:
    package = find_spec("statsmodels")  # its import takes a while
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / "datasets" / "randhie" / "src" / "randhie.csv"
    (folder / "schema.toml").write_text(SCHEMA)
    with source.open(newline="") as file, (folder / "people.csv").open("w", newline="") as out:
        rows = [[row[name] for name in NAMES.values()] for row in csv.DictReader(file)]
        csv.writer(out).writerows([list(NAMES), *rows])


def compare(folder: Path) -> None:
    """How good it is, beside the same model without privacy: a picture in letters.

    These records are public, so it costs nothing here. Of private ones it is a release: ``discreet evaluate`` pays.
    """
    import numpy as np
    from sklearn.linear_model import PoissonRegressor
    from sklearn.metrics import d2_tweedie_score

    table = np.genfromtxt(folder / "people.csv", delimiter=",", skip_header=1)
    visits, columns = table[:, 1], table[:, 2:]
    private = np.genfromtxt(folder / "predicted.csv", delimiter=",", skip_header=1)[:, -1]
    plain = PoissonRegressor(alpha=0, max_iter=5000).fit(columns / np.abs(columns).max(0), visits)
    print("\nhow much of the deviance is explained (0: nothing)")
    for name, guess in (
        ("with privacy, epsilon 1", private),
        ("without, a linear model", plain.predict(columns / np.abs(columns).max(0))),
    ):
        share = d2_tweedie_score(visits, guess, power=1)
        print(f"  {name:26}{share:6.3f}  {'█' * max(0, round(400 * share))}")


def run(folder: Path, command: str, quietly_to: str | None = None) -> None:
    """Show a command, carry it out, and show what it prints."""
    print(f"\n$ {command}" + (f" > {quietly_to}" if quietly_to else ""), flush=True)
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, check=True, text=True, stdout=subprocess.PIPE)
    if quietly_to:
        (folder / quietly_to).write_text(done.stdout)
    else:
        print(done.stdout.rstrip())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        place = Path(sys.argv[1])
        place.mkdir(parents=True, exist_ok=True)
        main(place.resolve())
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
