"""How accurate are private additive models? Beside lines at the same budget, DP-EBM, and boosting without privacy.

Every number is a mean over so many fits; tables without an official split are divided anew for every fit.
Predictions of numbers are clamped to the public bounds of the target, as ``predict`` does. The constants of the
recipe were chosen with these tables in view, mostly the first three. Pairs of columns are chosen privately, as they
are by default; California is also given with its pair, longitude and latitude, declared. DP-EBM is that of
interpret, with its defaults, in an environment of its own. Run with

    make bench-additive DATA=DIR, or python benchmarks/additive.py --data DIR [--fits 10] [--tables Adult,Credit]

where DIR holds adult/, credit/ and housing/. The seeds make it repeat; a release needs none.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import linear
import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear import PrivateAdditiveClassifier, PrivateLogisticRegression
from discreet.linear.additive.fit_additive import PublicColumns, fit_additive
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.glm import fit_glm
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared
from discreet.trusted.spending import BudgetAllocator

EPSILONS = (0.1, 0.5, 1.0, 4.0, 8.0)
PAIRS = {"California": ((0, 1),)}
ZEROS = {"Credit": [None] * 2 + [2 / 11] * 6 + [1 / 6] * 6 + [None] * 6}  # of the public bounds
MUST = {
    "California": {0.1: 0.66, 0.5: 0.715, 1.0: 0.735, 4.0: 0.755},
    "Credit": {0.1: 0.757, 0.5: 0.773, 1.0: 0.778, 4.0: 0.780},
    "Adult": {0.1: 85.0, 0.5: 85.8, 1.0: 86.0, 4.0: 86.3},
}


def friedman():
    """Curves, and one pair: a table made for it (Friedman 1991)."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(20_000, 10, noise=1.0, random_state=1)
    return _numbers("Friedman", Squared(), x, y / 40, "R2")


def exclusive():
    """Two classes by one of two columns or the other, but not both, and a line."""
    rng = np.random.default_rng(6)
    x = rng.random((25_000, 8))
    score = 1.5 * np.sign((x[:, 0] - 0.5) * (x[:, 1] - 0.5)) + 2 * (x[:, 2] - 0.5)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(float)
    return _numbers("exclusive or", Logistic(), x, y, "AUC")


def straight():
    """Nothing but lines: curves cannot win here, and should not lose."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(10_000, 20)).clip(-4, 4) / 8 + 0.5
    y = (x - 0.5) @ rng.normal(size=20) + rng.normal(0, 0.25, 10_000)
    return _numbers("straight", Squared(), x, np.clip(y / 4 + 0.5, 0, 1), "R2")


def diabetes():
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return _numbers("diabetes", Squared(), (x + 0.25) / 0.5, y / 400, "R2")


def wine():
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    upper = np.array([16, 7, 4, 40, 200, 5, 7, 1, 5, 16, 2, 5, 2000])
    return _numbers("wine", Softmax(3), x / upper, y, "accuracy")


def _numbers(name, loss, x, y, score):
    x = np.clip(x, 0, 1).astype(np.float32)
    return linear_data.Table(name, loss, x, y, Columns(x.shape[1]), None, score)


def makers(folder):
    return {
        "California": lambda: linear_data.housing(folder),
        "Credit": lambda: linear_data.credit(folder),
        "Adult": lambda: linear_data.adult(folder),
        "breast_cancer": linear_data.breast_cancer,
        "RAND visits": linear_data.rand_visits,
        "Friedman": friedman,
        "exclusive or": exclusive,
        "straight": straight,
        "diabetes": diabetes,
        "wine": wine,
        "digits": linear_data.digits,
    }


def spending(epsilon, seed):
    return BudgetAllocator(Budget(epsilon, linear.DELTA), stream=RandomStream(unsafe_seed=seed, threads=1))


def scored(table, scores, truth):
    return linear.score(table, np.clip(scores, 0, 1) if table.score == "R2" else scores, truth)


def bounds(table):
    return (0.0, 100.0) if isinstance(table.loss, Poisson) else (0.0, 1.0)


def line(table, epsilon, seed):
    x, y, test, truth = linear.split(table, seed)
    start = time.process_time()
    fit = fit_glm(table.loss, x, y, table.columns, spending(epsilon, seed), target_bounds=bounds(table))
    seconds = time.process_time() - start
    return scored(table, fit.scores(test), truth), seconds


def additive(table, epsilon, seed, pairs):
    x, y, test, truth = linear.split(table, seed)
    zeros = ZEROS.get(table.name, [None] * table.columns.numerics)
    declared = PublicColumns(table.columns, tuple(zeros), {}, ("free",) * len(zeros), pairs)
    start = time.process_time()
    fit = fit_additive(table.loss, x, y, declared, spending(epsilon, seed), target_bounds=bounds(table))
    seconds = time.process_time() - start
    return scored(table, fit.scores(test), truth), seconds


def boosted(table, seed):
    """Boosting without privacy."""
    x, y, test, truth = linear.split(table, seed)
    if isinstance(table.loss, Squared):
        return scored(table, HistGradientBoostingRegressor().fit(x, y).predict(test), truth)
    if isinstance(table.loss, Poisson):
        model = HistGradientBoostingRegressor(loss="poisson").fit(x, y)
        return scored(table, np.log(model.predict(test)), truth)
    return scored(table, HistGradientBoostingClassifier().fit(x, y).decision_function(test), truth)


def dp_ebm(table, epsilons, fits, python):
    """By epsilon: score and CPU seconds of the peer; nothing for targets that it does not know."""
    if python is None or not isinstance(table.loss, Squared | Logistic):
        return {}
    found = {epsilon: [] for epsilon in epsilons}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(fits):
            x, y, test, truth = linear.split(table, seed)
            columns = {"numerics": table.columns.numerics, "groups": table.columns.groups}
            file = Path(folder) / "table.npz"
            np.savez(file, x_train=x, y_train=y, x_test=test, y_test=truth, score=table.score, **columns)
            words = [python, str(Path(__file__).with_name("additive_peers.py")), str(file)]
            words += ["--delta", str(linear.DELTA), "--seed", str(seed)]
            words += ["--epsilons", ",".join(map(str, epsilons))]
            told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            for row in map(json.loads, told.splitlines()):
                found[row["epsilon"]].append((row["score"], row["seconds"]))
    return {epsilon: np.mean(rows, axis=0) for epsilon, rows in found.items()}


def of_many_rows(rows, columns):
    """CPU seconds and memory beyond the table, of a line and of curves, for two classes at epsilon 1."""
    import scale

    x, y = scale.made(rows, columns)
    for kind in (PrivateLogisticRegression, PrivateAdditiveClassifier):
        kind(1.0, 1e-9, bounds=(0, 10)).fit(x[:20_000], y[:20_000])  # compiles
        most, before = scale.Peak(), scale.resident("RssAnon")
        seconds = scale.cpu(
            lambda kind=kind, most=most: kind(1.0, 1e-9, bounds=(0, 10), verbose=most).fit(x, y)
        )
        yield seconds, most.anonymous - before


def measured(table, fits, epsilons, peers, peer_fits):
    ceiling = boosted(table, 0)
    theirs = dp_ebm(table, epsilons, peer_fits, peers)
    line(table, 1.0, 0), additive(table, 1.0, 0, None)  # compiles
    for epsilon in epsilons:
        lines, fast = np.transpose([line(table, epsilon, seed) for seed in range(fits)])
        for pairs in (None, *([PAIRS[table.name]] if table.name in PAIRS else [])):
            found, seconds = np.transpose([additive(table, epsilon, seed, pairs) for seed in range(fits)])
            name = table.name if not pairs else f"{table.name}, pair"
            must = MUST.get(table.name, {}).get(epsilon)
            verdict = "" if must is None else f"{must:g} {'ok' if found.mean() >= must else 'below'}"
            peer, slow = theirs.get(epsilon, (np.nan, np.nan))
            print(
                f"{name:18}{table.score:>9}{epsilon:6g}{lines.mean():9.4f}{found.mean():10.4f} ± "
                f"{found.std() / fits**0.5:<8.2g}{verdict:>12}{peer:9.4f}{ceiling:9.4f}"
                f"{fast.mean():8.2f}{seconds.mean():8.2f}{slow:8.2f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of adult/, credit/ and housing/")
    parser.add_argument("--fits", type=int, default=10, help="noise seeds for each line")
    parser.add_argument("--peers", help="python of an environment with interpret, to run DP-EBM too")
    parser.add_argument("--peer-fits", type=int, default=10, help="the same for DP-EBM")
    parser.add_argument("--tables", default=",".join(makers(None)), help="which, with commas between them")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--many", help="instead: rows and columns of a made table, such as 1000000,50")
    arguments = parser.parse_args()
    if arguments.many:
        (fast, small), (slow, large) = of_many_rows(*map(int, arguments.many.split(",")))
        print(
            f"line {fast:.2f} CPU s, {small:.0f} MB beyond the table; additive {slow:.2f} CPU s, {large:.0f} MB;"
        )
        print(f"ratio {slow / fast:.1f} (must 6), {large:.0f} MB (must 200)")
        return
    print(
        f"{'table':18}{'score':>9}{'eps':>6}{'line':>9}{'additive':>10}{'':11}{'must':>12}{'DP-EBM':>9}",
        end="",
    )
    print(f"{'boosting':>9}{'CPU s':>8}{'CPU s':>8}{'CPU s':>8}")
    for name in arguments.tables.split(","):
        table = makers(arguments.data)[name]()
        epsilons = list(map(float, arguments.epsilons.split(",")))
        measured(table, arguments.fits, epsilons, arguments.peers, arguments.peer_fits)


if __name__ == "__main__":
    main()
