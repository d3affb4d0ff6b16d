"""The person as the unit: doctor visits of the RAND experiment, 20 190 years of 5 912 people.

For each budget, the held-out share of the Poisson deviance that is explained (D2), mean and standard error over
splits by person, at the same epsilon for a person with all rows:

    unit            unit="zper": rows share a weight of 1, gradients are clipped person by person
    one row         one row of each person, drawn at random
    group           what protects a record so well that five records of one person are protected (most have three)

Run with ``make bench-units``, or ``python benchmarks/units.py --splits 5``.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score

from discreet.accounting.gaussian import gaussian_epsilon, gaussian_mu
from discreet.linear import PrivatePoissonRegressor, Schema
from discreet.linear.encoder import SchemaEncoding

SCHEMA = Schema.from_toml("""
target = "mdvis"

[columns]
logc    = { bounds = [0, 4.7] }   # logarithm of the share that the patient pays
idp     = { flag = 1 }            # a plan with an individual deductible
lpi     = { bounds = [0, 7.2] }   # logarithm of the yearly participation incentive
fmde    = { bounds = [0, 9] }     # logarithm of the maximal expenditure
physlm  = { bounds = [0, 1] }     # physical limitations
disea   = { bounds = [0, 60] }    # chronic diseases
hlthg   = { flag = 1 }            # self-rated health
hlthf   = { flag = 1 }
hlthp   = { flag = 1 }
xage    = { bounds = [0, 65] }
female  = { flag = 1 }
child   = { flag = 1 }
linc    = { bounds = [0, 11] }    # logarithm of the income
educdec = { bounds = [0, 25] }    # years of school
mdvis   = { bounds = [0, 80] }    # visits to a doctor, in a year
""")
DELTA, MOST_YEARS = 1e-6, 5
GOALS = {0.5: 0.072, 1.0: 0.079, 2.0: 0.090}


def main(splits: int) -> None:
    path = Path(statsmodels.__file__).parent / "datasets" / "randhie" / "src" / "randhie.csv"
    table = pd.read_csv(path)
    people = table["zper"].unique()
    found: dict[tuple[float, str], list[float]] = {}
    for split in range(splits):
        tested = np.random.default_rng(split).permutation(people)[: len(people) * 3 // 10]
        held_out = table["zper"].isin(tested)
        train, test = table[~held_out], table[held_out]
        found.setdefault((np.inf, "no privacy"), []).append(not_private(train, test))
        for epsilon in GOALS:
            for name, model, rows in arms(epsilon, train, split):
                found.setdefault((epsilon, name), []).append(model.fit(rows).score(test, test["mdvis"]))
    print(f"{len(table):,} rows of {len(people):,} people, {splits} splits, delta {DELTA:g} for a person\n")
    print("epsilon  how          D2     +-     goal")
    for (epsilon, name), scores in sorted(found.items()):
        goal = f"{GOALS[epsilon]:.3f}" if name == "unit" else ""
        error = np.std(scores) / np.sqrt(len(scores))
        print(f"{epsilon:<8g} {name:<12} {np.mean(scores):.4f} {error:.4f} {goal}", flush=True)


def arms(epsilon, train, seed):
    yield "unit", estimator(epsilon, unit="zper"), train
    yield "one row", estimator(epsilon), train.groupby("zper").sample(1, random_state=seed)
    yield "group", estimator(gaussian_epsilon(DELTA, gaussian_mu(epsilon, DELTA) / MOST_YEARS)), train


def estimator(epsilon, **more):
    return PrivatePoissonRegressor(epsilon, DELTA, schema=SCHEMA, **more)


def not_private(train, test):
    encoding = SchemaEncoding(SCHEMA)
    model = PoissonRegressor(alpha=1e-9, max_iter=3000).fit(encoding.encode(train), train["mdvis"])
    return d2_tweedie_score(test["mdvis"], model.predict(encoding.encode(test)), power=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=40)
    warnings.simplefilter("ignore")
    main(parser.parse_args().splits)
