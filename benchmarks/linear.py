"""How accurate are private linear models without knobs? One recipe, the same settings for all tables.

Every number is a mean over so many fits with their standard error; tables without an official split are divided anew
for every fit. Beside it stand what we ask of it ("must"), the best of the peers (a grid of DP-SGD settings
chosen on the test set, or diffprivlib; quoted from measurements on the same tables), and the usual model without
privacy on the same splits. Values far from all others are clamped, so California does better than least squares.
Run with

    make bench-linear DATA=DIR, or python benchmarks/linear.py --data DIR [--fits 20] [--tables Adult,digits]

where DIR holds adult/, credit/ and housing/. The seeds make it repeat; a release needs none.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, r2_score, roc_auc_score

import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear.glm.glm import fit_glm
from discreet.linear.losses import Poisson, Squared
from discreet.trusted.spending import BudgetAllocator

DELTA = 1e-5
GOALS = {  # table: {epsilon: (must, best peer)}
    "Adult": {0.1: (84.8, 82.9), 0.5: (85.1, 84.0), 1.0: (85.2, 84.2), 8.0: (85.2, 84.8)},
    "Credit": {0.1: (0.71, 0.680), 0.5: (0.723, 0.708), 1.0: (0.724, 0.709), 8.0: (0.725, 0.718)},
    "breast_cancer": {0.1: (80, 76), 0.5: (92.5, 89), 1.0: (94.5, 90), 8.0: (97, 92)},
    "California": {0.1: (0.645, 0.588), 0.5: (0.653, 0.594), 1.0: (0.654, 0.594), 8.0: (0.655, 0.594)},
    "digits": {0.5: (82, 77), 1.0: (88.5, 87), 3.0: (93, 92.7)},
    "RAND visits": {0.5: (0.078, 0.033), 1.0: (0.083, 0.039)},
}


def split(table, seed):
    """Training and test part: the official one, or a new one for every seed."""
    count, train = len(table.x), table.train or len(table.x) * 4 // 5
    order = np.arange(count) if table.train else np.random.default_rng(1000 + seed).permutation(count)
    first, second = order[:train], order[train:]
    return table.x[first], table.y[first], table.x[second], table.y[second]


def score(table, scores, y):
    if table.score == "AUC":
        return roc_auc_score(y, scores)
    if table.score == "R2":
        return r2_score(y, scores)
    if table.score == "D2":
        return d2_tweedie_score(y, np.exp(scores), power=1)
    guesses = scores.argmax(1) if scores.ndim == 2 else scores > 0
    return 100 * np.mean(guesses == y)


def private(table, epsilon, seed):
    x, y, test, truth = split(table, seed)
    spending = BudgetAllocator(Budget(epsilon, DELTA), stream=RandomStream(unsafe_seed=seed, threads=1))
    bounds = (0.0, 100.0) if isinstance(table.loss, Poisson) else (0.0, 1.0)
    start = time.process_time()
    fit = fit_glm(table.loss, x, y, table.columns, spending, target_bounds=bounds)
    return score(table, fit.scores(test), truth), time.process_time() - start


def plain(table, seed):
    """Without privacy."""
    x, y, test, truth = split(table, seed)
    if isinstance(table.loss, Squared):
        return score(table, LinearRegression().fit(x, y).predict(test), truth)
    if isinstance(table.loss, Poisson):
        model = PoissonRegressor(alpha=0, max_iter=1000).fit(x, y)
        return score(table, np.log(model.predict(test)), truth)
    return score(table, LogisticRegression(C=100.0, max_iter=5000).fit(x, y).decision_function(test), truth)


def tables(folder):
    makers = {"breast_cancer": linear_data.breast_cancer, "digits": linear_data.digits}
    makers["RAND visits"] = linear_data.rand_visits
    if folder is not None:
        makers |= {"Adult": lambda: linear_data.adult(folder), "Credit": lambda: linear_data.credit(folder)}
        makers |= {"California": lambda: linear_data.housing(folder)}
    return {name: makers[name] for name in GOALS if name in makers}


def measured(table, fits):
    alone = np.mean([plain(table, seed) for seed in range(1 if table.train else min(fits, 10))])
    private(table, 1.0, 0)  # compiles
    for epsilon, (must, peer) in GOALS[table.name].items():
        found, seconds = np.transpose([private(table, epsilon, seed) for seed in range(fits)])
        verdict = "ok" if found.mean() >= must else "below"
        print(
            f"{table.name:14}{table.score:>9}{epsilon:8g}{found.mean():10.4g} ± {found.std() / fits**0.5:<8.2g}"
            f"{must:9.4g} {verdict:6}{peer:10.4g}{alone:12.4g}{seconds.mean():10.2f}",
            flush=True,
        )


def side_by_side(table, python, fits):
    """Ours and the peers on the same records at epsilon 1: accuracy, and CPU seconds for a fit."""
    x, y, test, truth = split(table, 0)
    found, seconds = np.transpose([private(table, 1.0, seed) for seed in range(fits)])
    print(f"\n{table.name} at epsilon 1, side by side{'accuracy':>20}{'ours ahead by':>16}{'CPU s':>10}")
    print(f"{'discreet':36}{found.mean():14.2f}{'':16}{seconds.mean():10.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.npz"
        np.savez(file, x_train=x, y_train=y, x_test=test, y_test=truth)
        command = [python, str(Path(__file__).with_name("linear_peers.py")), str(file), "--delta", str(DELTA)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peers:
            for line in peers.stdout:
                row = json.loads(line)
                ahead = found.mean() - 100 * row["accuracy"]
                print(
                    f"{row['peer']:36}{100 * row['accuracy']:14.2f}{ahead:+16.2f}{row['seconds']:10.2f}",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of adult/, credit/ and housing/")
    parser.add_argument(
        "--peers", help="python of an environment with Opacus and diffprivlib, to run them too"
    )
    parser.add_argument("--fits", type=int, default=20, help="noise seeds for each line")
    parser.add_argument("--tables", default=",".join(GOALS), help="which tables, with commas between them")
    arguments = parser.parse_args()
    known = tables(arguments.data)
    print(
        f"{'table':14}{'score':>9}{'epsilon':>8}{'discreet':>10}{'':11}{'must':>9}{'':7}{'peers':>10}", end=""
    )
    print(f"{'no privacy':>12}{'CPU s':>10}")
    for name in arguments.tables.split(","):
        if name not in known:
            print(f"{name:14} needs --data DIR")
            continue
        try:
            table = known[name]()
        except ImportError as missing:
            print(f"{name:14} needs pip install {missing.name}")
            continue
        measured(table, arguments.fits)
    if arguments.peers and "Adult" in known:
        side_by_side(known["Adult"](), arguments.peers, arguments.fits)


if __name__ == "__main__":
    main()
