"""Do private linear models hold on tables nobody tuned them on, declared carelessly? The public estimators, no knobs.

Every line is one table: few records, loose bounds, odd units, useless or doubled columns, more columns than records,
rare positives, heavy tails, counts. Training records are drawn anew for every fit. Scores are accuracy in per cent
for classes, R2 for numbers and D2 (deviance) for counts, on records the fit did not see. "floor" is the majority
class or the mean of the training part, "no privacy" the usual model of scikit-learn. A line ends with "below" if its
mean is below the floor by more than twice its standard error and a point (0.01 of R2 or D2). Run with

    python benchmarks/linear_robust.py [--fits 10] [--tables x10,wine] [--declared yes|no|both] [--must]

which takes some minutes. ``--must`` prints what has to be kept instead, line by line, and whether it was
(:mod:`linear_musts`). The seeds make it repeat; a release needs none.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.metrics import d2_tweedie_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression, PrivatePoissonRegressor
from linear_musts import all_musts

DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 3.0)
_TEST = 2000  # fresh records, where they can be drawn


class Sample(NamedTuple):
    """Training and test records, and what is declared of them."""

    x: np.ndarray
    y: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    bounds: tuple
    target_bounds: tuple | None = None


def drawn(records, columns, kind, rng, tails=None, offset=0.0, strength=2.0):
    """Features, and a target that a few of them explain."""
    x = rng.normal(size=(records, columns)) if tails is None else rng.standard_t(tails, (records, columns))
    slopes = np.zeros(columns)
    slopes[: min(5, columns)] = (
        strength / np.sqrt(min(5, columns)) * np.array([1, -1, 1, -1, 1])[: min(5, columns)]
    )
    score = np.clip(x, -4, 4) @ slopes + offset
    if kind == "classes":
        return x, (rng.random(records) < 1 / (1 + np.exp(-score))).astype(int)
    if kind == "counts":
        return x, rng.poisson(np.exp(np.clip(0.4 * score + 0.5, -5, 4))).astype(float)
    return x, 100 + 10 * score + 15 * rng.normal(size=records)


def synthetic(kind, records, columns=10, loose=1.0, change=None, reach=4.0, **known):
    """A maker of samples whose declared bounds are ``loose`` times too wide; ``change`` maps the features."""
    targets = {"classes": None, "counts": (0, 50 * loose), "numbers": (0, 300 * loose)}[kind]

    def sample(seed):
        rng = np.random.default_rng(seed)
        x, y = drawn(records + _TEST, columns, kind, rng, **known)
        lower, upper = np.full(columns, -reach * loose), np.full(columns, reach * loose)
        if change is not None:
            x, lower, upper = change(x), change(lower[None])[0], change(upper[None])[0]
            upper = np.where(upper > lower, upper, lower + 1)
        return Sample(x[:records], y[:records], x[records:], y[records:], (lower, upper), targets)

    return sample


def other_units(x):
    """Millions, millionths, and years far from zero."""
    scale, shift = np.resize([1e6, 1e-6, 1.0, 30.0], x.shape[1]), np.resize([0, 0, 2000, -500], x.shape[1])
    return x * scale + shift


def useless(x):
    """Two constant columns, and every other one twice."""
    return np.hstack([x, x, np.full((len(x), 1), 7.0), np.zeros((len(x), 1))])


def packaged(load, records, loose=1.0, target_bounds=None):
    """A table of scikit-learn, divided anew for every seed; bounds are round numbers around its values."""
    x, y = load(return_X_y=True)
    half = loose * 2.0 ** np.ceil(np.log2(np.maximum(abs(x).max(axis=0), 1e-3)))
    lower = np.where(x.min(axis=0) < 0, -half, 0.0)

    def sample(seed):
        order = np.random.default_rng(seed).permutation(len(x))
        first, last = order[:records], order[records:]
        return Sample(x[first], y[first], x[last], y[last], (lower, half), target_bounds)

    return sample


TABLES = {
    "classes n=50": ("classes", synthetic("classes", 50)),
    "classes n=200": ("classes", synthetic("classes", 200)),
    "classes n=1000": ("classes", synthetic("classes", 1000)),
    "classes n=5000": ("classes", synthetic("classes", 5000)),
    "70 % positive n=50": ("classes", synthetic("classes", 50, offset=1.6)),
    "70 % positive n=200": ("classes", synthetic("classes", 200, offset=1.6)),
    "no signal n=1000": ("classes", synthetic("classes", 1000, strength=0.0, offset=0.8)),
    "bounds x10": ("classes", synthetic("classes", 2000, loose=10)),
    "bounds x100": ("classes", synthetic("classes", 2000, loose=100)),
    "other units": ("classes", synthetic("classes", 2000, change=other_units)),
    "constant, doubled": ("classes", synthetic("classes", 2000, change=useless)),
    "d=500 > n=300": ("classes", synthetic("classes", 300, columns=500)),
    "1 % positive": ("classes", synthetic("classes", 5000, offset=-6.5)),
    "heavy tails": ("classes", synthetic("classes", 2000, tails=2, reach=50)),
    "iris": ("classes", packaged(load_iris, 110)),
    "wine": ("classes", packaged(load_wine, 140)),
    "breast_cancer x10": ("classes", packaged(load_breast_cancer, 450, loose=10)),
    "numbers n=100": ("numbers", synthetic("numbers", 100)),
    "numbers n=300": ("numbers", synthetic("numbers", 300)),
    "numbers n=1000": ("numbers", synthetic("numbers", 1000)),
    "numbers x10": ("numbers", synthetic("numbers", 2000, loose=10)),
    "numbers, units": ("numbers", synthetic("numbers", 2000, change=other_units)),
    "numbers, doubled": ("numbers", synthetic("numbers", 2000, change=useless)),
    "numbers d > n": ("numbers", synthetic("numbers", 300, columns=500)),
    "numbers, tails": ("numbers", synthetic("numbers", 2000, tails=2, reach=50)),
    "no signal": ("numbers", synthetic("numbers", 500, strength=0.0)),
    "diabetes": ("numbers", packaged(load_diabetes, 350, target_bounds=(0, 400))),
    "counts n=200": ("counts", synthetic("counts", 200)),
    "counts n=1000": ("counts", synthetic("counts", 1000)),
    "counts x10": ("counts", synthetic("counts", 5000, loose=10)),
}


def quality(kind, truth, predicted, typical):
    """Accuracy in per cent, or the share of the squares or the deviance around ``typical`` that is explained.

    The mean of the training part has the score 0 by definition.
    """
    if kind == "classes":
        return 100 * np.mean(truth == predicted)
    if kind == "numbers":
        return 1 - np.mean((truth - predicted) ** 2) / np.mean((truth - typical) ** 2)
    deviance = [1 - d2_tweedie_score(truth, np.maximum(p, 1e-9), power=1) for p in (predicted, typical)]
    return 1 - deviance[0] / deviance[1]


def private(kind, sample, epsilon, seed, declared):
    budget = {"epsilon": epsilon, "delta": DELTA, "unsafe_seed": seed}
    if declared:
        budget["bounds"] = sample.bounds
        if kind != "classes":
            budget["target_bounds"] = sample.target_bounds
    if kind == "classes":
        model = PrivateLogisticRegression(classes=tuple(range(int(sample.truth.max()) + 1)), **budget)
    else:
        model = (PrivateLinearRegression if kind == "numbers" else PrivatePoissonRegressor)(**budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(sample.x, sample.y).predict(sample.test)


def plain(kind, sample):
    model = {
        "classes": LogisticRegression(max_iter=5000),
        "numbers": RidgeCV(np.logspace(-3, 3, 7)),
        "counts": PoissonRegressor(alpha=1e-3, max_iter=2000),
    }[kind]
    if len(np.unique(sample.y)) < 2:
        return np.full(len(sample.test), sample.y[0])
    return make_pipeline(StandardScaler(), model).fit(sample.x, sample.y).predict(sample.test)


def simple(kind, sample):
    """The majority class or the mean."""
    value = np.bincount(sample.y.astype(int)).argmax() if kind == "classes" else sample.y.mean()
    return np.full(len(sample.test), value)


def measured(name, fits, declarations):
    kind, maker = TABLES[name]
    samples = [maker(1000 + seed) for seed in range(fits)]
    floors = [simple(kind, sample) for sample in samples]

    def scores(predictions):
        return np.array(
            [quality(kind, s.truth, p, f) for s, p, f in zip(samples, predictions, floors, strict=True)]
        )

    floor, alone = scores(floors), scores([plain(kind, sample) for sample in samples])
    misses = 0
    for declared in declarations:
        print(f"{name:20}{'declared' if declared else 'learned':>9}{floor.mean():8.3g}", end="")
        below = []
        for epsilon in EPSILONS:
            found = scores([private(kind, s, epsilon, i, declared) for i, s in enumerate(samples)])
            error = (found - floor).std() / fits**0.5
            point = 1.0 if kind == "classes" else 0.01
            if (found - floor).mean() < -2 * error - point:
                below.append(f"{epsilon:g}")
            print(f"{found.mean():9.3g} ±{found.std() / fits**0.5:<5.2g}", end="", flush=True)
        print(f"{alone.mean():11.3g}  {'below at ' + ', '.join(below) if below else ''}", flush=True)
        misses += len(below)
    return misses, len(declarations) * len(EPSILONS)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=10, help="seeds for each number")
    parser.add_argument("--tables", help="only tables whose names hold one of these, with commas between")
    parser.add_argument(
        "--declared", choices=("yes", "no", "both"), default="both", help="bounds declared or learnt"
    )
    parser.add_argument("--must", action="store_true", help="what has to be kept, and whether it is")
    arguments = parser.parse_args()
    wanted = arguments.tables.split(",") if arguments.tables else [""]
    if arguments.must:
        all_musts(arguments.fits, wanted)
        return
    declarations = {"yes": [True], "no": [False], "both": [True, False]}[arguments.declared]
    start = time.perf_counter()
    print(
        f"{'table':20}{'bounds':>9}{'floor':>8}" + "".join(f"{f'eps {e:g}':>9}{'':7}" for e in EPSILONS),
        end="",
    )
    print(f"{'no privacy':>11}")
    found = [
        measured(name, arguments.fits, declarations) for name in TABLES if any(w in name for w in wanted)
    ]
    misses, total = np.sum(found, axis=0)
    print(f"\n{misses} of {total} below the floor; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
