"""Private evaluation: how often 90 % intervals hold the truth, and how exact the scores are.

A private model is fitted on one part of each table (Adult: its own training part), and its answers on the other part
are the population: scikit-learn's scores of it are the truth. Test tables of the same size are drawn from it, with
replacement, and evaluated by ``discreet.evaluate``. Laplace noise is that of a ledger of its own, Gaussian noise that
of a ledger shared with Gaussian fits. Drawing and noise are seeded. Run with ``make bench-units``.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import linear_data
from discreet import Budget, Ledger, evaluate
from discreet.ledger import GaussianFilter
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression

EPSILONS, DELTA = (0.5, 1.0, 4.0), 1e-6


def parts(table, rng):
    """Rows to fit on, and rows to evaluate on."""
    order = rng.permutation(len(table.y))
    return (order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]) if table.train is None else (
        np.arange(table.train), np.arange(table.train, len(table.y))
    )  # fmt: skip


def classified(table, rng):
    """Probabilities of the population, its labels, and the true scores."""
    train, test = parts(table, rng)
    model = PrivateLogisticRegression(epsilon=1.0, delta=DELTA, bounds=(0, 1), unsafe_seed=1)
    p, y = model.fit(table.x[train], table.y[train]).predict_proba(table.x[test])[:, 1], table.y[test]
    truths = {
        "accuracy": np.mean((p > 0.5) == y),
        "AUC": roc_auc_score(y, p),
        "log loss": log_loss(y, p),
        "Brier score": brier_score_loss(y, p),
    }
    return p, y, truths, {"classes": (0, 1)}


def predicted(table, rng):
    """Predictions for the population, its targets, and the true scores."""
    train, test = parts(table, rng)
    model = PrivateLinearRegression(
        epsilon=1.0, delta=DELTA, bounds=(0, 1), target_bounds=(0, 1), unsafe_seed=1
    )
    p, y = model.fit(table.x[train], table.y[train]).predict(table.x[test]), table.y[test]
    error = y - p
    square = np.mean(error**2)
    truths = {"R2": 1 - square / y.var(), "MAE": np.mean(np.abs(error)), "RMSE": np.sqrt(square)}
    return p, y, truths, {"target_bounds": (0.0, 1.0)}


def trials(population, epsilon, repeats, rng, gaussian):
    """Errors of each score, and how often its interval held the truth."""
    p, y, truths, declared = population
    errors, hits = ({name: [] for name in truths} for _ in range(2))
    for repeat in range(repeats):
        rows = rng.integers(len(y), size=len(y))
        ledger = Ledger.in_memory(GaussianFilter(Budget(epsilon, DELTA))) if gaussian else None
        found = evaluate(
            lambda x: x[:, 0], p[rows, None], y[rows], epsilon=epsilon, delta=DELTA * 0.999,
            ledger=ledger, unsafe_seed=repeat, **declared,
        )  # fmt: skip
        for name, truth in truths.items():
            errors[name].append(found[name].value - truth)
            hits[name].append(found[name].lower <= truth <= found[name].upper)
    return errors, hits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--repeats", type=int, default=400)
    asked = parser.parse_args()
    rng, began = np.random.default_rng(0), time.process_time()
    tables = [
        ("Adult", classified(linear_data.adult(asked.data), rng)),
        ("Credit", classified(linear_data.credit(asked.data), rng)),
        ("California", predicted(linear_data.housing(asked.data), rng)),
    ]
    print(f"{asked.repeats} resamples each; wanted: 90 % intervals cover .87 to .95\n")
    print(f"{'table':11}{'noise':10}{'score':13}{'truth':>8}", end="")
    print("".join(f"   eps {epsilon:<4g} covers    rms" for epsilon in EPSILONS))
    for name, population in tables:
        for gaussian in (False, True):
            runs = [trials(population, epsilon, asked.repeats, rng, gaussian) for epsilon in EPSILONS]
            for score, truth in population[2].items():
                print(f"{name:11}{'Gaussian' if gaussian else 'Laplace':10}{score:13}{truth:8.4f}", end="")
                for errors, hits in runs:
                    rms = np.sqrt(np.mean(np.square(errors[score])))
                    print(f"       {np.mean(hits[score]):13.3f} {rms:6.4f}", end="")
                print(flush=True)
    p, y, truths, _ = tables[0][1]
    drawn = (rng.integers(len(y), size=len(y)) for _ in range(asked.repeats))
    plain = [roc_auc_score(y[rows], p[rows]) - truths["AUC"] for rows in drawn]
    print(
        f"\nAdult, n = {len(y)}: AUC by sampling alone, rms {np.sqrt(np.mean(np.square(plain))):.4f}; ",
        end="",
    )
    print(f"wanted at epsilon 1: 0.004 at most. {time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
    main()
