"""Is the rule of thumb of ``model.preview`` right? Measured fits beside the range that it told before them.

Every line is a table of so many records: the mean score over some fits at each epsilon, delta 1e-5, and the range
from records, columns, the score without privacy and the share of the most frequent class. A mean within 0.005 of the
range counts as within it; a mean above the model without privacy does too (private fits are regularised). The
constants of the rule were chosen on the tables "looked at"; of those "held out", counts and many classes widened it
once. Run with

    make bench-preview DATA=DIR, or python benchmarks/preview.py --data DIR [--fits 3] [--only held-out]
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, r2_score

import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.glm import fit_glm
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared
from discreet.linear.preview import Preview
from discreet.trusted.spending import BudgetAllocator

DELTA, EPSILONS, SIZES = 1e-5, (0.1, 0.5, 2.0, 8.0), (300, 2000, 20_000)
TASKS = {Logistic: "classification", Softmax: "classification", Squared: "regression", Poisson: "counts"}


def made_up(columns, factors, size, loss, rare=0.0):
    """60 000 normal records; with ``factors``, three of them are behind all columns. ``rare`` shifts the classes."""
    rng = np.random.default_rng(columns)
    x = rng.normal(size=(60_000, columns))
    if factors:
        x += rng.normal(size=(60_000, 3)) @ rng.normal(size=(3, columns))
        x /= x.std(0)
    score = x @ rng.normal(size=columns)
    score *= size / score.std()
    if isinstance(loss, Logistic):
        y = (rng.random(60_000) < 1 / (1 + np.exp(rare - score))).astype(int)
    else:
        y = np.clip((score + rng.normal(size=60_000) + 8) / 16, 0, 1)
    return loss, np.clip((x + 5) / 10, 0, 1).astype(np.float32), y, Columns(columns)


def categories():
    """Six categories of five values each, and two numbers."""
    rng = np.random.default_rng(0)
    groups = [np.eye(5)[rng.integers(5, size=60_000)] for _ in range(6)]
    x = np.hstack([rng.random((60_000, 2)), *groups]).astype(np.float32)
    score = 2 * (x - x.mean(0)) @ rng.normal(size=32)
    return Logistic(), x, (rng.random(60_000) < 1 / (1 + np.exp(1 - score))).astype(int), Columns(2, (5,) * 6)


def diabetes():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    lower, upper = (18, 1, 15, 50, 80, 30, 15, 2, 3, 50), (80, 2, 45, 140, 320, 250, 100, 10, 6.5, 130)
    return Squared(), scaled(x, lower, upper), linear_data.scaled(y, 20, 350), Columns(10)


def wine():
    x, y = load_wine(return_X_y=True)
    upper = (16, 6, 4, 35, 180, 4, 6, 1, 4, 14, 2, 5, 2000)
    return Softmax(3), scaled(x, np.zeros(13), upper), y, Columns(13)


def digits(of_two):
    x, y = load_digits(return_X_y=True)
    loss, y = (Logistic(), y % 2) if of_two else (Softmax(10), y)
    return loss, scaled(x, np.zeros(64), np.full(64, 16)), y, Columns(64)


def scaled(x, lower, upper):
    return linear_data.scaled(x, np.array(lower, float), np.array(upper, float)).astype(np.float32)


def known(maker, *where):
    table = maker(*where)
    return table.loss, table.x, table.y, table.columns


def looked_at(folder):
    yield "breast cancer", lambda: known(linear_data.breast_cancer)
    yield "diabetes", diabetes
    if folder is not None:
        for name in ("adult", "credit", "housing"):
            yield name, lambda name=name: known(getattr(linear_data, name), folder)
    for columns in (5, 30, 100):
        for factors in (False, True):
            for size in (1.2, 4.0):
                name = f"made up, {columns} columns{', factors' * factors}, size {size}"
                yield name, lambda c=columns, f=factors, s=size: made_up(c, f, s, Logistic())
    for columns in (5, 30):
        for factors in (False, True):
            for size in (0.7, 2.0):
                name = f"made up, {columns} columns{', factors' * factors}, numbers, size {size}"
                yield name, lambda c=columns, f=factors, s=size: made_up(c, f, s, Squared())


def held_out(folder):
    yield "wine", wine
    yield "digits", lambda: digits(False)
    yield "even digits", lambda: digits(True)
    yield "RAND visits", lambda: known(linear_data.rand_visits)
    yield "categories", categories
    yield "made up, 12 columns, rare", lambda: made_up(12, False, 2.0, Logistic(), rare=3.0)
    yield "made up, 60 columns, factors", lambda: made_up(60, True, 2.0, Logistic())
    yield "made up, 12 columns, numbers", lambda: made_up(12, True, 1.2, Squared())


def score(loss, scores, y):
    if isinstance(loss, Squared):
        return r2_score(y, np.clip(scores, 0, 1))
    if isinstance(loss, Poisson):
        return d2_tweedie_score(y, np.clip(np.exp(scores), 1e-9, 100), power=1)
    return np.mean((scores.argmax(1) if scores.ndim == 2 else scores > 0) == y)


def plain(loss, x, y, test, truth):
    if isinstance(loss, Squared):
        return score(loss, LinearRegression().fit(x, y).predict(test), truth)
    if isinstance(loss, Poisson):
        model = PoissonRegressor(alpha=1e-6, max_iter=1000).fit(x, y)
        return score(loss, np.log(model.predict(test)), truth)
    return score(loss, LogisticRegression(C=10, max_iter=3000).fit(x, y).decision_function(test), truth)


def measured(table, records, fits):
    """The score without privacy, that of guessing, and the mean of the private fits at each epsilon."""
    loss, x, y, columns = table
    alone, private = [], {epsilon: [] for epsilon in EPSILONS}
    for seed in range(fits):
        order = np.random.default_rng(seed).permutation(len(x))
        own, rest = order[:records], order[records : records + 20_000]
        alone.append(plain(loss, x[own], y[own], x[rest], y[rest]))
        for epsilon, found in private.items():
            stream = RandomStream(unsafe_seed=seed, threads=1)
            bounds = (0.0, 100.0) if isinstance(loss, Poisson) else (0.0, 1.0)
            spending = BudgetAllocator(Budget(epsilon, DELTA), stream=stream)
            fit = fit_glm(loss, x[own], y[own], columns, spending, target_bounds=bounds)
            found.append(score(loss, fit.scores(x[rest]), y[rest]))
    frequent = np.bincount(y).max() / len(y) if TASKS[type(loss)] == "classification" else 0.5
    return np.mean(alone), frequent, {epsilon: np.mean(found) for epsilon, found in private.items()}


def checked(name, table, fits):
    """Print a line for each size of a table; how many means were within, and how many there were."""
    loss, x, _, columns = table
    within = total = 0
    for records in sorted({min(size, len(x) * 4 // 5) for size in SIZES}):
        best, guess, means = measured(table, records, fits)
        if best <= (guess if TASKS[type(loss)] == "classification" else 0):
            continue
        about = (records, columns.width, DELTA, TASKS[type(loss)], float(best), float(guess), EPSILONS)
        cells = []
        for (epsilon, low, high), mean in zip(Preview(*about).rows, means.values(), strict=True):
            good = low - 0.005 <= mean and (mean <= high + 0.005 or mean >= best - 0.005)
            within, total = within + good, total + 1
            told = "below 0" if low < 0 else f"{low:.2f}"
            cells.append(f"{epsilon:g}: {mean:.3f} ({told} to {high:.2f}){' ' if good else '!'}")
        print(f"{name:40}{records:7}{columns.width:5}{best:7.3f}  {'  '.join(cells)}", flush=True)
    return within, total


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of adult/, credit/ and housing/")
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--only", choices=["looked-at", "held-out"])
    arguments = parser.parse_args()
    print(f"{'table':40}{'records':>7}{'d':>5}{'plain':>7}  epsilon: mean (range)")
    for kind, tables in (("looked-at", looked_at), ("held-out", held_out)):
        if arguments.only in (None, kind):
            found = [checked(name, make(), arguments.fits) for name, make in tables(arguments.data)]
            within, total = np.sum(found, axis=0)
            print(f"{kind}: {within} of {total} means within their range", flush=True)


if __name__ == "__main__":
    main()
