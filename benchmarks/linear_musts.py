"""What private linear models must keep where records are few, classes many or declarations loose: one line for each.

A line has a table, how it was declared, an epsilon, a mean over the fits with its standard error, what it must reach,
and whether it did. Training records are drawn anew for every fit; scores are on records that the fit did not see.

=============  ========================================================================================
log loss       at most that of the training part's class shares, and .02
accuracy       at least that of its most frequent class, less a point (in per cent)
R2             at least -.05 where records times epsilon are 50 or more, 500 if bounds are learnt
the rest       as said in the line
=============  ========================================================================================

Where one class is frequent and records are very few, no budget of this size can know which: "possible" is what
remains if *all* of it is spent on the class counts (Gaussian noise, shares equally likely beforehand), and no model
can be asked for more. Run with

    python benchmarks/linear_robust.py --must [--fits 20] [--tables "n=50,letters"]
"""

import math
import warnings
from typing import NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from discreet.accounting.gaussian import gaussian_mu
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression

DELTA = 1e-5
_TEST = 4000
EPSILONS = (0.1, 0.5, 1.0, 3.0)


class Sample(NamedTuple):
    """Training and test records, and what is declared of them."""

    x: np.ndarray
    y: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    declared: dict


def two_classes(records, columns, offset=0.0, strength=2.0, bounds=4.0):
    """Records of which five columns tell the class; ``bounds`` None leaves them to be learnt."""

    def sample(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(records + _TEST, columns))
        used = min(5, columns)
        slopes = strength / math.sqrt(used) * np.array([1, -1, 1, -1, 1])[:used]
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-x[:, :used] @ slopes - offset))).astype(int)
        declared = {} if bounds is None else {"bounds": (-bounds, bounds)}
        return Sample(x[:records], y[:records], x[records:], y[records:], declared)

    return sample


def many_classes(classes, columns, records, distance, seed=7):
    """Classes of two Gaussian clusters each, in small whole numbers that go together, as of printed letters."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(columns) + 0.3 * rng.normal(size=(columns, columns))
    centres = distance * rng.normal(size=(classes, 1, columns))
    centres = (centres + distance * rng.normal(size=(classes, 2, columns))) @ mixing

    def sample(seed):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, classes, records + _TEST)
        x = centres[y, rng.integers(0, 2, len(y))] + rng.normal(size=(len(y), columns)) @ mixing
        x = np.clip(np.round(7.5 + x), 0, 15)
        known = {"bounds": (0, 15), "classes": tuple(range(classes))}
        return Sample(x[:records], y[:records], x[records:], y[records:], known)

    return sample


def numbers(records, columns=10, target_bounds=(0, 300), bounds=4.0, spoilt=0.0):
    """A number near 100 that five columns tell; a share of the targets is ``spoilt``: 9999, a code for missing."""

    def sample(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(records + _TEST, columns))
        y = 100 + 20 / math.sqrt(5) * x[:, :5] @ [1, -1, 1, -1, 1] + 15 * rng.normal(size=len(x))
        seen = np.where(rng.random(len(x)) < spoilt, 9999.0, y)
        declared = {} if bounds is None else {"bounds": (-bounds, bounds)}
        declared |= {} if target_bounds is None else {"target_bounds": target_bounds}
        return Sample(x[:records], seen[:records], x[records:], y[records:], declared)

    return sample


def words(records, width=1000, row_norm=None):
    """Counts of words, each text of one of two subjects, brought to norm 1; ``row_norm`` None says nothing of it."""
    shares = np.random.default_rng(3).dirichlet(np.full(width, 0.1), 2)

    def sample(seed):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, records + 1000)
        mixed = 0.75 * np.eye(2)[y] + 0.25 * np.eye(2)[1 - y]
        x = np.array([rng.multinomial(40, share) for share in mixed @ shares], float)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        declared = {} if row_norm is None else {"row_norm": row_norm}
        return Sample(x[:records], y[:records], x[records:], y[records:], declared)

    return sample


def fitted(model, sample, epsilon, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = {"epsilon": epsilon, "delta": DELTA, "unsafe_seed": seed} | sample.declared
        return model(**known).fit(sample.x, sample.y)


def classified(sample, epsilon, seed):
    """Log loss above that of the class shares, and accuracy in points above the most frequent class; both scores."""
    model = fitted(PrivateLogisticRegression, sample, epsilon, seed)
    chances, labels = model.predict_proba(sample.test), model.classes_
    shares = np.maximum(np.bincount(sample.y, minlength=len(labels)), 0.5)
    prior = log_loss(sample.truth, np.tile(shares / shares.sum(), (len(sample.truth), 1)), labels=labels)
    loss = log_loss(sample.truth, chances, labels=labels)
    accuracy = 100 * np.mean(model.predict(sample.test) == sample.truth)
    majority = 100 * np.mean(sample.truth == shares.argmax())
    return loss, prior, accuracy, majority


def ranked(sample, epsilon, seed):
    model = fitted(PrivateLogisticRegression, sample, epsilon, seed)
    return roc_auc_score(sample.truth, model.decision_function(sample.test))


def explained(sample, epsilon, seed):
    predicted = fitted(PrivateLinearRegression, sample, epsilon, seed).predict(sample.test)
    return 1 - np.mean((sample.truth - predicted) ** 2) / sample.truth.var()


def possible(share, records, epsilon, cells=400):
    """The mean log loss and accuracy of a constant, if all of a Gaussian budget is spent on comparing two classes.

    With noise of one record in mu on each count, the difference of the shares is known to sqrt(2) / (mu n), and a
    constant follows from it by Bayes' rule; all shares are equally likely beforehand.
    """
    error = math.sqrt(2) / gaussian_mu(epsilon, DELTA) / records / 2
    grid = (np.arange(cells) + 0.5) / cells
    seen = share + error * norm.ppf((np.arange(cells) + 0.5) / cells)
    misses = 0.5 * ((seen[:, None] - grid) / error) ** 2
    weight = np.exp(misses.min(axis=1, keepdims=True) - misses)
    mean = weight @ grid / weight.sum(1)
    loss = -share * np.log(mean) - (1 - share) * np.log1p(-mean)
    return loss.mean(), 100 * np.where(mean > 0.5, share, 1 - share).mean()


SMALL = {
    "n=50 d=10": (50, 10, 0.0),
    "n=200 d=10": (200, 10, 0.0),
    "n=300 d=30": (300, 30, 0.0),
    "n=1000 d=30": (1000, 30, 0.0),
    "n=300 d=200": (300, 200, 0.0),
    "70 % n=50": (50, 10, 1.6),
    "70 % n=200": (200, 10, 1.6),
    "70 % n=1000 d=30": (1000, 30, 1.6),
    "87 % n=50": (50, 10, 3.0),
    "87 % n=300": (300, 10, 3.0),
    "87 % n=1000": (1000, 10, 3.0),
    "3 % n=2000": (2000, 10, -5.0),
}
MANY = {
    "26 classes": many_classes(26, 16, 16000, 0.86),
    "500 classes": many_classes(500, 16, 5000, 0.86),
}


class Tally:
    """Prints lines and counts which were reached."""

    def __init__(self, wanted, fits):
        self.wanted, self.fits, self.reached, self.lines = wanted, fits, 0, 0

    def takes(self, name):
        return any(part in name for part in self.wanted)

    def line(self, name, epsilon, what, values, must, sign, note=""):
        mean, error = np.mean(values), np.std(values) / math.sqrt(len(values))
        reached = sign * (mean - must) >= 0
        self.lines, self.reached = self.lines + 1, self.reached + reached
        within = "" if reached or sign * (mean - must) < -2 * error else ", within 2 errors"
        verdict = "reached" if reached else f"MISSED by {abs(mean - must):.3g}{within}"
        print(
            f"{name:32}{epsilon:5g}  {what:9}{mean:8.4g} ±{error:<8.2g}{must:8.4g}  {verdict}{note}",
            flush=True,
        )


def classes(tally, name, sample, epsilons=EPSILONS, share=None):
    if not tally.takes(name):
        return
    samples = [sample(1000 + seed) for seed in range(tally.fits)]
    for epsilon in epsilons:
        found = np.array([classified(s, epsilon, seed) for seed, s in enumerate(samples)])
        loss, prior, accuracy, majority = found.T
        notes = ["", ""]
        if share is not None:
            best = possible(max(share, 1 - share), len(samples[0].y), epsilon)
            notes[0] = f"  (possible {best[0]:.3f})" if best[0] > prior.mean() + 0.02 else ""
            notes[1] = f"  (possible {best[1]:.1f})" if best[1] < majority.mean() - 1 else ""
        tally.line(name, epsilon, "log loss", loss, prior.mean() + 0.02, -1, notes[0])
        tally.line(name, epsilon, "accuracy", accuracy, majority.mean() - 1, 1, notes[1])


def all_musts(fits, wanted):
    tally = Tally(wanted, fits)
    print(f"{'table':32}{'eps':>5}  {'':9}{'mean':>8}  {'':8}{'must':>8}", flush=True)
    few_records(tally)
    without_records(tally)
    small_regressions(tally)
    letters(tally)
    loose(tally)
    print(f"\n{tally.reached} of {tally.lines} reached, means of {fits} fits")


def few_records(tally):
    for name, (records, columns, offset) in SMALL.items():
        for bounds, said in ((4.0, "declared"), (None, "learnt")):
            sample = two_classes(records, columns, offset, bounds=bounds)
            share = float(np.mean(two_classes(20000, columns, offset)(1).y)) if offset else None
            classes(tally, f"{name} {said}", sample, share=share)
    for records in (50, 1000):
        for bounds, said in ((4.0, "declared"), (None, "learnt")):
            sample = two_classes(records, 10, 0.8, strength=0.0, bounds=bounds)
            classes(tally, f"no signal n={records} {said}", sample, share=0.69)


def without_records(tally):
    for bounds, said in ((4.0, "declared"), (None, "learnt")):
        name = f"no rows {said}"
        for epsilon in EPSILONS if tally.takes(name) else ():
            sample = two_classes(0, 10, bounds=bounds)(1)
            models = [fitted(PrivateLogisticRegression, sample, epsilon, seed) for seed in range(tally.fits)]
            farthest = [np.abs(model.predict_proba(sample.test)[:, 1] - 0.5).max() for model in models]
            tally.line(name, epsilon, "|P - 1/2|", farthest, 0.2, -1)


def small_regressions(tally):
    for records in (50, 100, 300, 1000):
        for target, bounds, said in (((0, 300), 4.0, "declared"), (None, None, "learnt")):
            name = f"numbers n={records} {said}"
            for epsilon in EPSILONS if tally.takes(name) else ():
                if records * epsilon < (50 if said == "declared" else 500):
                    continue
                sample = numbers(records, target_bounds=target, bounds=bounds)
                scores = [explained(sample(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
                tally.line(name, epsilon, "R2", scores, -0.05, 1)


def letters(tally):
    name = "26 classes n=16000"
    if tally.takes(name):
        samples = [MANY["26 classes"](1000 + seed) for seed in range(tally.fits)]
        alone = LogisticRegression(C=100, max_iter=500).fit(samples[0].x / 15, samples[0].y)
        print(f"{name}: without privacy {alone.score(samples[0].test / 15, samples[0].truth):.3f}")
        for epsilon, must in ((0.5, 0.70), (1.0, 0.74), (8.0, 0.765)):
            found = [classified(s, epsilon, seed) for seed, s in enumerate(samples)]
            tally.line(name, epsilon, "accuracy", [row[2] / 100 for row in found], must, 1)
    classes(tally, "500 classes n=5000", MANY["500 classes"], (0.1, 1.0, 8.0))


def loose(tally):
    for factor in (1, 10, 100, 1000, 1e6):
        name = f"feature bounds x{factor:g}"
        for epsilon in (0.5, 1.0, 3.0) if tally.takes(name) else ():
            sample = two_classes(2000, 10, bounds=4.0 * factor)
            undeclared = two_classes(2000, 10, bounds=None)
            known = [ranked(undeclared(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
            scores = [ranked(sample(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
            tally.line(name, epsilon, "AUC", scores, np.mean(known) - 0.01, 1)
    for factor in (1, 10, 100, 1000, 1e8):
        name = f"target bounds x{factor:g}"
        for epsilon in (0.5, 1.0) if tally.takes(name) else ():
            sample = numbers(2000, target_bounds=(0, 300 * factor))
            undeclared = numbers(2000, target_bounds=None)
            known = [explained(undeclared(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
            scores = [explained(sample(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
            tally.line(name, epsilon, "R2", scores, np.mean(known) - 0.02, 1)
    for spoilt in (0.0, 0.002, 0.02):
        for records in (2000, 10000):
            name = f"{spoilt:.1%} of y = 9999 n={records}"
            for epsilon in (0.5, 1.0, 3.0) if tally.takes(name) else ():
                sample = numbers(records, target_bounds=None, bounds=None, spoilt=spoilt)
                scores = [explained(sample(1000 + seed), epsilon, seed) for seed in range(tally.fits)]
                tally.line(name, epsilon, "R2", scores, 0.5, 1)
    for epsilon in (1.0, 3.0) if tally.takes("text rows without row_norm") else ():
        known = [ranked(words(3000, row_norm=1.0)(1000 + s), epsilon, s) for s in range(tally.fits)]
        scores = [ranked(words(3000)(1000 + s), epsilon, s) for s in range(tally.fits)]
        tally.line("text rows without row_norm", epsilon, "AUC", scores, np.mean(known) - 0.02, 1)
