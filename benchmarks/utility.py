"""Predicted and measured excess risk of private linear models, on synthetic rows of norm at most 1.

1. The rank theorem: rows that span 5 directions, in more and more dimensions. The rank bound and the measured risk
   are flat in the dimension; the plain bound grows.
2. The same in 40 dimensions with more and more rank: all grow.
3. The four methods, predicted against measured.
4. The noise that lecture 4 asks for, by the number of steps.

Every number is a mean over seeded runs, so the tables repeat. delta = 1e-5, replace-one neighbours. Run with
``make bench-utility``.
"""

import time

import numpy as np
from scipy.optimize import minimize

from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.erm import METHODS, private_minimiser
from discreet.lecture.gradient_sum import Declared
from discreet.lecture.lecture_noise import exact_noise, noise_by_steps
from discreet.lecture.rank_bound import Span, enough_steps, rank_bound
from discreet.lecture.utility import average_excess, best_step_size
from discreet.linear.losses import Logistic

RUNS, RECORDS, EPSILON, MOST_STEPS = 10, 1000, 1.0, 400
BUDGET = Budget(EPSILON, 1e-5, neighbours="replace-one")
LOSS = Logistic()


def rows(records, dimension, rank, seed=0):
    """Rows in a random subspace of ``rank`` directions, and labels from a logistic model."""
    rng = np.random.default_rng(seed)
    inner = rng.normal(size=(records, rank))
    inner /= np.maximum(1.0, np.linalg.norm(inner, axis=1))[:, None]
    y = (rng.random(records) < 1 / (1 + np.exp(-3 * inner[:, 0]))).astype(float)
    basis = np.linalg.qr(np.random.default_rng(dimension).normal(size=(dimension, rank)))[0]
    return inner @ basis.T, y


def best(X, y):
    """The least risk and the norm of where it is attained, within the span of the rows."""
    span = Span.of(X)
    inner = X @ span.basis
    found = minimize(lambda t: LOSS.value(inner @ t, y).mean(), np.zeros(span.rank))
    return found.fun, float(np.linalg.norm(found.x)), span.rank


def by_rank(dimension, rank):
    X, y = rows(RECORDS, dimension, rank)
    least, norm, rank = best(X, y)
    steps = min(enough_steps(BUDGET, RECORDS, rank), MOST_STEPS)
    noise = exact_noise(BUDGET, 1.0, RECORDS, steps)
    step = best_step_size(norm, 1.0, noise, rank, steps)
    risks = [
        LOSS.value(X @ fit.value, y).mean() - least
        for fit in (
            private_descent(
                LOSS, X, y, BUDGET, steps=steps, step_size=step, route=Declared(1.0),
                stream=RandomStream(unsafe_seed=k, threads=1),
            )
            for k in range(RUNS)
        )
    ]  # fmt: skip
    error = np.std(risks) / RUNS**0.5
    promised = rank_bound(BUDGET, RECORDS, rank, 1.0, norm, steps)
    generic = average_excess(norm, 1.0, noise, dimension, steps)
    print(
        f"{dimension:9}{rank:6}{steps:7}{np.mean(risks):10.4f} ± {error:.4f}{promised:12.4f}{generic:13.4f}",
        flush=True,
    )


def methods():
    print(
        "\nmethod                    epsilon  records  columns    measured           predicted  seconds per fit"
    )
    for epsilon, records, columns in ((0.5, 5000, 5), (1.0, 5000, 5), (1.0, 5000, 30), (4.0, 5000, 5)):
        X, y = rows(records, columns, columns)
        least, norm, _ = best(X, y)
        budget = Budget(epsilon, 1e-5, neighbours="replace-one")
        for method in METHODS:
            start, risks = time.process_time(), []
            for k in range(RUNS):
                fit = private_minimiser(
                    LOSS, X, y, budget, method=method, norm_guess=norm,
                    stream=RandomStream(unsafe_seed=k, threads=1),
                )  # fmt: skip
                risks.append(LOSS.value(X @ fit.value, y).mean() - least)
            seconds, error = (time.process_time() - start) / RUNS, np.std(risks) / RUNS**0.5
            print(
                f"{method:24}{epsilon:9}{records:9}{columns:9}{np.mean(risks):12.5f} ± {error:.5f}"
                f"{fit.predicted_excess:12.5f}{seconds:17.3f}",
                flush=True,
            )


def main():
    print("dimension  rank  steps  measured           rank bound  plain bound")
    for dimension in (5, 20, 100, 500):
        by_rank(dimension, 5)
    print()
    for rank in (1, 4, 16, 40):
        by_rank(40, rank)
    methods()
    print("\nnoise on the mean gradient, clip norm 1:\n  steps      basic    lecture 4      exact")
    for row in noise_by_steps(BUDGET, 1.0, RECORDS, (10, 100, 1000, 10_000)):
        print(f"{row.steps:7}{row.basic:11.4f}{row.lecture:13.4f}{row.exact:11.4f}")


if __name__ == "__main__":
    main()
