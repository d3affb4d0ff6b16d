"""How accurate are private additive models? Beside lines at the same budget, and boosting without privacy.

Every number is a mean over so many fits; tables without an official split are divided anew for every fit. The
constants of the recipe were chosen with these tables in view. California is given with its pair of columns, longitude
and latitude, declared and without. Run with

    make bench-additive DATA=DIR, or python benchmarks/additive.py --data DIR [--fits 10] [--tables Adult,Credit]

where DIR holds adult/, credit/ and housing/. The seeds make it repeat; a release needs none.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import linear
import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear.additive.curve_recipe import AdditiveRecipe, Declared
from discreet.linear.glm.spending import Spending
from discreet.linear.losses import Poisson, Squared

EPSILONS = (0.1, 0.5, 1.0, 4.0, 8.0)
PAIRS = {"California": ((0, 1),)}
ZEROS = {"Credit": [None] * 2 + [2 / 11] * 6 + [1 / 6] * 6 + [None] * 6}  # of the public bounds


def additive(table, epsilon, seed, pairs):
    x, y, test, truth = linear.split(table, seed)
    zeros = ZEROS.get(table.name, [None] * table.columns.numerics)
    known = tuple(zeros), {}, ("free",) * len(zeros), pairs
    spending = Spending(Budget(epsilon, linear.DELTA), stream=RandomStream(unsafe_seed=seed, threads=1))
    bounds = (0.0, 100.0) if isinstance(table.loss, Poisson) else (0.0, 1.0)
    recipe = AdditiveRecipe(table.loss, Declared(table.columns, *known), spending, bounds)
    start = time.process_time()
    fit = recipe.fit_table(x, y, None)
    seconds = time.process_time() - start
    rows = test if recipe.basis is None else recipe.basis.expanded(test)
    return linear.score(table, fit.scores(rows), truth), seconds


def boosted(table, seed):
    """Boosting without privacy."""
    x, y, test, truth = linear.split(table, seed)
    if isinstance(table.loss, Squared):
        return linear.score(table, HistGradientBoostingRegressor().fit(x, y).predict(test), truth)
    if isinstance(table.loss, Poisson):
        model = HistGradientBoostingRegressor(loss="poisson").fit(x, y)
        return linear.score(table, np.log(model.predict(test)), truth)
    return linear.score(table, HistGradientBoostingClassifier().fit(x, y).decision_function(test), truth)


def measured(table, fits, epsilons):
    ceiling = boosted(table, 0)
    for epsilon in epsilons:
        line = np.mean([linear.private(table, epsilon, seed)[0] for seed in range(fits)])
        for pairs in ((), *([PAIRS[table.name]] if table.name in PAIRS else [])):
            found, seconds = np.transpose([additive(table, epsilon, seed, pairs) for seed in range(fits)])
            name = table.name if not pairs else f"{table.name}, pair"
            error = found.std() / fits**0.5
            print(
                f"{name:18}{table.score:>9}{epsilon:6g}{line:9.4g}{found.mean():10.4g} ± {error:<8.2g}"
                f"{ceiling:9.4g}{seconds.mean():8.2f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of adult/, credit/ and housing/")
    parser.add_argument("--fits", type=int, default=10, help="noise seeds for each line")
    parser.add_argument("--tables", default="California,Credit,Adult,breast_cancer,RAND visits")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    arguments = parser.parse_args()
    makers = {
        "California": lambda: linear_data.housing(arguments.data),
        "Credit": lambda: linear_data.credit(arguments.data),
        "Adult": lambda: linear_data.adult(arguments.data),
        "breast_cancer": linear_data.breast_cancer,
        "RAND visits": linear_data.rand_visits,
    }
    print(f"{'table':18}{'score':>9}{'eps':>6}{'line':>9}{'additive':>10}{'':11}{'boosting':>9}{'CPU s':>8}")
    for name in arguments.tables.split(","):
        measured(makers[name](), arguments.fits, [float(e) for e in arguments.epsilons.split(",")])


if __name__ == "__main__":
    main()
