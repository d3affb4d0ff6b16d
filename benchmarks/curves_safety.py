"""Are curves ever worse than lines? Additive and linear models on tables that are hard for curves.

Rare outcomes, many classes, few records, and columns of every kind: one-hots given as numbers, flags of one per cent,
constants, heavy tails, nearly collinear columns. Each cell is a table and an epsilon. Both models are fitted to the
same training parts and scored on the same test parts (AUC for two classes, accuracy for more, R2 for numbers, D2 for
counts), so the standard error is that of the difference. A cell fails

    "worse"   if curves are below lines by more than 0.01 beyond two standard errors,
    "shifted" if the mean prediction of a number is off by more than 5 % of its bounds, or if more than 1 % of the
              predictions are beyond them by a quarter of their width before they are clamped.

Cells whose difference is not clear after the first fits get up to four times as many. ``constant`` counts the fits of
curves whose scores are all the same. The constants of the recipe were chosen with these tables in view, except those
marked "held out". Run with

    make bench-safety DATA=DIR, or python benchmarks/curves_safety.py --data DIR [--fits 6] [--quick] [--tables X]

where DIR holds adult/, credit/, housing/ and mnist/; without it only made-up tables and those of scikit-learn are
used. The exit code is the number of failed cells. The seeds make it repeat; a release needs none.
"""

import argparse
import gzip
import sys
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.metrics import d2_tweedie_score, log_loss, mean_squared_error, r2_score, roc_auc_score

import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear.additive.fit_additive import PublicColumns, fit_additive
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.glm import fit_glm
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared
from discreet.trusted.spending import BudgetAllocator

DELTA = 1e-5
WORSE, ERRORS = 0.01, 2.0
SHIFT, OUTSIDE, FAR = (
    0.05,
    0.01,
    0.25,
)  # of the bounds; of the predictions; beyond the bounds, in their widths
MOST_FITS = 4  # times the first ones
CREDIT_ZEROS = (None,) * 2 + (2 / 11,) * 6 + (1 / 6,) * 6 + (None,) * 6


class Table(NamedTuple):
    """Encoded records; a test part of at most 20 000 is what is left of them."""

    loss: object
    x: np.ndarray
    y: np.ndarray
    columns: Columns
    zeros: tuple
    records: int  # of the training part


@cache
def read(name, folder):
    return getattr(linear_data, name)(folder)


def real(name, folder, records=None, positives=None):
    """A real table with so many training records, or with so large a share of positives."""
    table = read(name, folder)
    x, y, columns = table.x, table.y, table.columns
    if positives is not None:
        rng = np.random.default_rng(7)
        ones = np.flatnonzero(y == 1)
        wanted = int(positives / (1 - positives) * np.sum(y == 0))
        kept = np.sort(np.concatenate([np.flatnonzero(y == 0), rng.permutation(ones)[:wanted]]))
        x, y = x[kept], y[kept]
    zeros = CREDIT_ZEROS if name == "credit" else (None,) * columns.numerics
    return Table(table.loss, x, y, columns, zeros, records or len(x) * 4 // 5)


def one_hots_as_numbers(table):
    """The table as it is after scikit-learn's OneHotEncoder, every column declared as a number in [0, 1]."""
    width = table.x.shape[1]
    zeros = (*table.zeros, *(0.0,) * (width - len(table.zeros)))
    return table._replace(columns=Columns(width), zeros=zeros)


def expensive_houses(folder):
    """Two classes: the 5 % most expensive blocks of California."""
    table = real("housing", folder)
    return table._replace(loss=Logistic(), y=(table.y > 0.86).astype(int))


def columns_twice(table):
    """Every numeric column again, with a little noise."""
    k, rng = table.columns.numerics, np.random.default_rng(3)
    again = np.clip(table.x[:, :k] + rng.normal(0, 0.002, (len(table.x), k)), 0, 1)
    x = np.hstack([table.x[:, :k], again, table.x[:, k:]]).astype(np.float32)
    return table._replace(x=x, columns=Columns(2 * k, table.columns.groups), zeros=table.zeros * 2)


def mnist_blocks(folder):
    """25 block means of the middle of MNIST's pictures, ten classes, 20 000 pictures for training."""
    with gzip.open(folder / "mnist" / "train-images-idx3-ubyte.gz") as file:
        pictures = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)[:30_000]
    with gzip.open(folder / "mnist" / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)[:30_000].astype(int)
    x = pictures[:, 4:24, 4:24].reshape(-1, 5, 4, 5, 4).mean((2, 4)).reshape(len(y), 25) / 255
    return numbers(Softmax(10), x, y, 20_000)


def digits():
    x, y = load_digits(return_X_y=True)
    return numbers(Softmax(10), x / 16, y)


def zero_or_not():
    """Two classes, one of 10 %."""
    x, y = load_digits(return_X_y=True)
    return numbers(Logistic(), x / 16, (y == 8).astype(int))


def breast_cancer():
    table = linear_data.breast_cancer()
    return Table(table.loss, table.x, table.y, table.columns, (None,) * 30, len(table.x) * 4 // 5)


def diabetes():
    x, y = load_diabetes(return_X_y=True)
    return numbers(Squared(), (x + 0.25) / 0.5, y / 400)


def numbers(loss, x, y, records=None):
    x = np.clip(x, 0, 1).astype(np.float32)
    return Table(loss, x, y, Columns(x.shape[1]), (None,) * x.shape[1], records or len(x) * 4 // 5)


def classes_from(score, share, rng):
    """0 and 1 with these log odds, moved so that about this share is 1."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(1 / (1 + np.exp(-score - middle))) < share else (low, middle)
    return (rng.random(len(score)) < 1 / (1 + np.exp(-score - low))).astype(int)


def every_kind(records, share=None, counts=False):
    """Columns of every kind, for a number, or for two classes of which one has this share.

    Four ordinary columns (one of them bent), a heavy-tailed one, a nearly constant and a constant one, two flags of
    1 % and .05 % and a category of five as one-hots given as numbers, and two that are nearly collinear.
    """
    rng = np.random.default_rng(11)
    total = records + min(20_000, max(4 * records, 4000))
    plain = rng.uniform(0, 1, (total, 4))
    heavy = np.exp(rng.normal(0, 1.3, total)) / 500
    flat = 0.3 + 1e-4 * rng.normal(size=total)
    flags = rng.random((total, 2)) < [0.01, 0.0005]
    hots = np.eye(5)[rng.choice(5, total, p=[0.5, 0.3, 0.15, 0.0495, 0.0005])]
    near = plain[:, :2] + 0.01 * rng.normal(size=(total, 2))
    x = np.column_stack([plain, heavy, flat, np.full(total, 0.5), flags, hots, near])
    score = 3 * plain[:, 0] - 2 * plain[:, 1] + 6 * (plain[:, 2] - 0.5) ** 2 + np.log(heavy + 1e-3) / 2
    score += flags @ [1.0, 1.0] + hots @ [0, 0.5, -0.5, 1.0, 1.0]
    if counts:
        y = rng.poisson(np.exp(np.clip(0.7 * (score - score.mean()), -4, 3))).astype(float)
        return numbers(Poisson(), x, np.clip(y, 0, 100), records)
    if share is not None:
        return numbers(Logistic(), x, classes_from(1.3 * score, share, rng), records)
    y = np.clip((score + rng.normal(0, 0.5, total) + 6) / 12, 0, 1)
    return numbers(Squared(), x, y, records)


def by_the_hour():
    """A count by the hour, 13 000 records, season and weather as one-hots given as numbers, one of them nearly
    always 0."""
    rng = np.random.default_rng(12)
    total = 17_000
    hour, working = rng.integers(24, size=total), rng.random(total) < 0.68
    season = rng.integers(4, size=total)
    weather = rng.choice(4, total, p=[0.66, 0.26, 0.0797, 0.0003])
    warm = np.clip(0.3 + 0.15 * season - 0.03 * season**2 + rng.normal(0, 0.12, total), 0, 1)
    wet = np.clip(rng.normal(0.63, 0.19, total), 0, 1)
    rush = np.exp(-(((hour - 8) / 2) ** 2)) + 1.3 * np.exp(-(((hour - 17.5) / 2.5) ** 2)) + 0.3 * (hour > 6)
    y = 250 * rush * (0.4 + 1.2 * warm) * (1 - 0.5 * wet) * np.array([1, 0.9, 0.5, 0.3])[weather]
    y = np.clip(y + rng.normal(0, 30, total), 0, 1000) / 1000
    x = np.column_stack([hour / 23, working, warm, wet, np.eye(4)[season], np.eye(4)[weather]])
    return numbers(Squared(), x, y, 13_000)


def steep_and_rare(share=0.023):
    """2.3 % positives that few columns tell well."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=(24_000, 10)).clip(-4, 4)
    score = 1.6 * x[:, 0] + 1.2 * x[:, 1] - 1.0 * x[:, 2] + 0.4 * x[:, 3] ** 2
    return numbers(Logistic(), x / 8 + 0.5, classes_from(score, share, rng), 16_000)


def hospital(share=0.038):
    """Deaths in a hospital: age, skewed laboratory values with generous bounds, flags and a ward."""
    rng = np.random.default_rng(14)
    total = 20_000
    age = np.clip(rng.normal(62, 18, total), 18, 100)
    crp, lactate = np.exp(rng.normal(3, 1.2, total)), np.exp(rng.normal(0.4, 0.5, total))
    pressure = rng.normal(125, 22, total)
    flags, ward = rng.random((total, 3)) < [0.2, 0.08, 0.01], rng.integers(5, size=total)
    score = 0.05 * (age - 62) + 0.35 * np.log(crp) + 0.9 * np.log(lactate) + flags @ [0.4, 0.7, 1.0]
    score += 3e-4 * (pressure - 125) ** 2
    lower, upper = [0, 0, 0, 0], [120, 500, 30, 300]
    x = linear_data.scaled(np.column_stack([age, crp, lactate, pressure]), np.array(lower, float), upper)
    x = np.hstack([x, flags, np.eye(5)[ward]]).astype(np.float32)
    columns = Columns(4, (1, 1, 1, 5))
    return Table(Logistic(), x, classes_from(score, share, rng), columns, (0.0,) * 4, 14_000)


def text(records=4400, words=256):
    """Messages of some 15 words hashed to 256 columns, rows of length 1, of which 13 % are unwanted."""
    rng = np.random.default_rng(17)
    total = records + 4000
    common = 1 / np.arange(1, 4001) ** 1.05
    unwanted = common * np.exp(rng.normal(0, 1.2, 4000))
    y = (rng.random(total) < 0.13).astype(int)
    home, x = rng.integers(words, size=4000), np.zeros((total, words))
    for kind, law in enumerate((common, unwanted)):
        rows = np.flatnonzero(y == kind)
        lengths = rng.poisson(14, len(rows)) + 1
        found = home[rng.choice(4000, lengths.sum(), p=law / law.sum())]
        np.add.at(x, (np.repeat(rows, lengths), found), 1.0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return numbers(Logistic(), x, y, records)._replace(zeros=(0.0,) * words)


def nothing_but_lines(records, share=None):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(records + 6000, 12)).clip(-4, 4) / 8 + 0.5
    score = (x - 0.5) @ rng.normal(size=12)
    if share is not None:
        return numbers(Logistic(), x, classes_from(6 * score, share, rng), records)
    return numbers(Squared(), x, np.clip((score + rng.normal(0, 0.25, len(x))) / 4 + 0.5, 0, 1), records)


def clusters(classes=26, records=16_000, whole=True):
    """Whole numbers from 0 to 15 around three centres for each class; or classes of unequal spread."""
    rng = np.random.default_rng(15)
    y = rng.integers(classes, size=records + 4000)
    if whole:
        centres = rng.normal(7.5, 1.5, (classes, 1, 16)) + rng.normal(0, 2.5, (classes, 3, 16))
        x = centres[y, rng.integers(3, size=len(y))] + rng.normal(0, 1.5, (len(y), 16))
        return numbers(Softmax(classes), np.rint(x).clip(0, 15) / 15, y, records)
    middle, spread = rng.normal(0, 1, (classes, 16)), np.exp(rng.normal(0, 0.6, (classes, 16)))
    x = middle[y] + spread[y] * rng.normal(size=(len(y), 16))
    return numbers(Softmax(classes), x.clip(-6, 6) / 12 + 0.5, y, records)


def nearly_linear(classes=26, records=16_000, rare=False):
    weights = None if not rare else [1 - 0.04 * (classes - 1)] + [0.04] * (classes - 1)
    x, y = make_classification(
        records + 4000, 16, n_informative=12, n_redundant=2, n_classes=classes, n_clusters_per_class=1,
        class_sep=2.0, weights=weights, random_state=16,
    )  # fmt: skip
    return numbers(Softmax(classes), x.clip(-10, 10) / 20 + 0.5, y, records)


def cells(folder):
    """Name, epsilons, and how to make the table."""
    if folder is not None:
        for positives in (0.01, 0.02, 0.04, 0.08, 0.15):
            epsilons = (0.5, 1, 4) if positives != 0.04 else (0.1, 0.5, 1, 4, 8)
            yield f"Credit {positives:.0%}", epsilons, lambda p=positives: real("credit", folder, None, p)
        yield "Credit as it is", (0.1, 1, 8), lambda: real("credit", folder)
        for records in (300, 1000, 4000):
            yield f"Credit {records}", (1, 4), lambda n=records: real("credit", folder, n)
        for positives in (0.01, 0.05):
            yield f"Adult {positives:.0%}", (0.5, 4), lambda p=positives: real("adult", folder, None, p)
        yield "Adult as it is", (0.1, 1, 8), lambda: real("adult", folder)
        for records in (300, 1000):
            yield f"Adult {records}", (0.5, 1, 4), lambda n=records: real("adult", folder, n)
        yield "Adult one-hots", (0.5, 1, 4), lambda: one_hots_as_numbers(real("adult", folder))
        yield "California as it is", (0.1, 1, 8), lambda: real("housing", folder)
        for records in (300, 1000, 2000, 4000):
            yield f"California {records}", (0.5, 1, 4), lambda n=records: real("housing", folder, n)
        yield "California one-hots", (0.5, 1, 4), lambda: one_hots_as_numbers(real("housing", folder))
        yield "California twice", (0.5, 1, 4), lambda: columns_twice(real("housing", folder))
        yield "California 5 %", (0.1, 0.5, 1, 8), lambda: expensive_houses(folder)
        yield "MNIST blocks", (0.1, 0.5, 1, 4), lambda: mnist_blocks(folder)
    yield "digits", (0.5, 1, 4, 8), digits
    yield "digits, 8 or not", (0.5, 1, 4), zero_or_not
    yield "breast cancer", (0.5, 1, 4), breast_cancer
    yield "diabetes", (1, 4), diabetes
    for records in (1000, 4000, 50_000):
        yield f"every kind {records}", (0.1, 0.5, 1, 8), lambda n=records: every_kind(n)
    for records, share in ((300, 0.3), (2000, 0.1), (13_000, 0.02), (50_000, 0.01)):
        name = f"every kind {records}, {share:.0%}"
        yield name, (0.1, 0.5, 1, 8), lambda n=records, p=share: every_kind(n, p)
    yield "every kind, counts", (0.5, 1, 4), lambda: every_kind(8000, counts=True)
    yield "by the hour", (0.5, 1, 4), by_the_hour
    yield "steep and rare", (0.5, 1, 4), steep_and_rare
    yield "hospital", (0.5, 1, 4), hospital
    yield "text", (0.1, 0.5, 1, 4), text
    yield "text 20000", (0.1, 1, 8), lambda: text(20_000)
    for records in (1000, 4000):
        yield f"lines {records}", (0.5, 1, 4), lambda n=records: nothing_but_lines(n)
    yield "lines 10000, 3%", (0.1, 0.5, 1, 4), lambda: nothing_but_lines(10_000, 0.03)
    yield "clusters 26", (0.5, 1, 4, 8), clusters
    yield "clusters 5", (0.1, 0.5, 4), lambda: clusters(5, 8000)
    yield "spreads 26", (0.5, 1, 4), lambda: clusters(whole=False)
    yield "nearly linear 26", (0.1, 0.5, 0.7, 1, 4), nearly_linear
    yield "nearly linear 30", (0.5, 1, 8), lambda: nearly_linear(30, 50_000)
    yield "nearly linear 8", (0.1, 0.5, 4), lambda: nearly_linear(8, 8000)
    yield "rare classes 5", (0.1, 0.5, 4), lambda: nearly_linear(5, 8000, rare=True)


QUICK = {
    "Credit 4%": (1,), "Adult one-hots": (0.5,), "California 1000": (1,), "digits": (1,), "every kind 4000": (0.5, 8),
    "every kind 13000, 2%": (1,), "by the hour": (0.5,), "hospital": (1,), "clusters 26": (4,),
    "nearly linear 26": (0.5,),
}  # fmt: skip


def split(table, seed):
    order = np.random.default_rng(1000 + seed).permutation(len(table.x))
    own, rest = order[: table.records], order[table.records : table.records + 20_000]
    return table.x[own], table.y[own], table.x[rest], table.y[rest]


def bounds(table):
    return (0.0, 100.0) if isinstance(table.loss, Poisson) else (0.0, 1.0)


def spending(epsilon, seed):
    return BudgetAllocator(Budget(epsilon, DELTA), stream=RandomStream(unsafe_seed=seed, threads=1))


def scores_of(table, kind, epsilon, seed, parts):
    x, y, test, _ = parts
    if kind == "line":
        fit = fit_glm(table.loss, x, y, table.columns, spending(epsilon, seed), target_bounds=bounds(table))
        return fit.scores(test)
    declared = PublicColumns(table.columns, table.zeros, {}, ("free",) * len(table.zeros), None)
    fit = fit_additive(table.loss, x, y, declared, spending(epsilon, seed), target_bounds=bounds(table))
    return fit.scores(test)


class Found(NamedTuple):
    """What one fit is worth: score, loss, how far its mean is off, the share outside, and whether it is constant."""

    score: float
    loss: float
    shift: float
    outside: float
    constant: bool


def found_by(table, scores, truth):
    constant = bool(np.ptp(scores, axis=0).max() < 1e-9)
    if isinstance(table.loss, Squared):
        clamped = np.clip(scores, 0, 1)
        outside = float(np.mean((scores < -FAR) | (scores > 1 + FAR)))
        shift = abs(float(clamped.mean() - truth.mean()))
        return Found(r2_score(truth, clamped), mean_squared_error(truth, clamped), shift, outside, constant)
    if isinstance(table.loss, Poisson):
        means = np.clip(np.exp(np.minimum(scores, 50)), 1e-9, 100)
        score = d2_tweedie_score(truth, means, power=1)
        shift = abs(float(means.mean() - truth.mean())) / 100
        return Found(score, 1 - score, shift, float(np.mean(scores > np.log(100 * (1 + FAR)))), constant)
    if isinstance(table.loss, Logistic):
        chances = np.clip(1 / (1 + np.exp(-scores)), 1e-12, 1 - 1e-12)
        return Found(roc_auc_score(truth, scores), log_loss(truth, chances), 0.0, 0.0, constant)
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    loss = -np.mean(np.log(np.maximum(chances[np.arange(len(truth)), truth], 1e-12)))
    return Found(float(np.mean(scores.argmax(1) == truth)), loss, 0.0, 0.0, constant)


class Cell:
    """The fits of both models to one table at one epsilon."""

    def __init__(self, table, epsilon):
        self.table, self.epsilon, self.lines, self.curves = table, epsilon, [], []

    def fit(self, count):
        for seed in range(len(self.lines), len(self.lines) + count):
            parts = split(self.table, seed)
            for kind, found in (("line", self.lines), ("curves", self.curves)):
                scores = scores_of(self.table, kind, self.epsilon, seed, parts)
                found.append(found_by(self.table, scores, parts[3]))

    def column(self, name):
        return [np.array([getattr(one, name) for one in found]) for found in (self.lines, self.curves)]

    @property
    def deficit(self):
        """How far curves are below lines, and the standard error of that."""
        lines, curves = self.column("score")
        below = lines - curves
        return float(below.mean()), float(below.std(ddof=1) / len(below) ** 0.5)

    @property
    def unclear(self):
        below, error = self.deficit
        return below > WORSE / 2 and below - ERRORS * error < WORSE < below + ERRORS * error

    @property
    def verdict(self):
        below, error = self.deficit
        (line, own), (_, outside) = self.column("shift"), self.column("outside")
        shifted = own.max() > max(SHIFT, 1.5 * line.max()) or outside.max() > OUTSIDE
        return "worse" if below - ERRORS * error > WORSE else "shifted" if shifted else "ok"

    def line(self, name):
        (lines, curves), (loss, bent), below = self.column("score"), self.column("loss"), self.deficit
        error = [found.std(ddof=1) / len(found) ** 0.5 for found in (lines, curves)]
        _, shift = self.column("shift")
        _, outside = self.column("outside")
        constant = sum(one.constant for one in self.curves)
        return (
            f"{name:24}{self.epsilon:5g}{len(lines):5}{lines.mean():8.3f} ±{error[0]:5.3f}"
            f"{curves.mean():8.3f} ±{error[1]:5.3f}{-below[0]:+8.3f} ±{below[1]:5.3f}"
            f"{loss.mean():8.4f}{bent.mean():8.4f}{shift.max():7.3f}{outside.max():7.3f}{constant:4} {self.verdict}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of adult/, credit/, housing/ and mnist/")
    parser.add_argument("--fits", type=int, default=6, help="fits of each model in a cell, at first")
    parser.add_argument("--quick", action="store_true", help="a few cells, three fits each")
    parser.add_argument(
        "--tables", default="", help="only those whose names begin so, with commas between them"
    )
    parser.add_argument("--epsilons", help="only these, with commas between them")
    arguments = parser.parse_args()
    begun, fits = time.time(), 3 if arguments.quick else arguments.fits
    only = tuple(arguments.tables.split(","))
    wanted = None if arguments.epsilons is None else set(map(float, arguments.epsilons.split(",")))
    verdicts = []
    print(
        f"{'table':24}{'eps':>5}{'fits':>5}{'lines':>8}{'':7}{'curves':>8}{'':7}{'differ':>8}{'':7}"
        f"{'loss':>8}{'loss':>8}{'shift':>7}{'out':>7}{'const':>4} verdict"
    )
    for name, epsilons, make in cells(arguments.data):
        epsilons = QUICK.get(name, ()) if arguments.quick else epsilons
        epsilons = [one for one in epsilons if wanted is None or one in wanted]
        if not epsilons or not name.startswith(only):
            continue
        table = make()
        for epsilon in epsilons:
            cell = Cell(table, epsilon)
            cell.fit(fits)
            while not arguments.quick and cell.unclear and len(cell.lines) < MOST_FITS * fits:
                cell.fit(fits)
            verdicts.append(cell.verdict)
            print(cell.line(name), flush=True)
    failed = sum(verdict != "ok" for verdict in verdicts)
    print(f"{len(verdicts)} cells, {failed} failed, {time.time() - begun:.0f} s")
    sys.exit(min(failed, 125))


if __name__ == "__main__":
    main()
