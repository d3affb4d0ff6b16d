"""How much a private mean loses: its error over that of the plain mean of the same records.

The records follow N(m, I) with |m| = 10, and the public knows a ball of radius 50; delta is 1e-5. "whole ball"
makes one release clipped to the ball, "second moment" clips by the best bound for the true E |x|^2. Then the
promises: for each kind of knowledge and several laws, the measured root mean squared error over the predicted
one. It must not exceed 1 by more than the error of measuring it. Seeded, so the tables repeat. Run with
``make bench-mean``.
"""

import itertools
import time

import numpy as np

from discreet import Budget
from discreet.core.mechanisms import laplace_event
from discreet.core.randomness import RandomStream
from discreet.statistics.mean import Ball, FixedClip, Interval, SecondMoment, private_mean
from discreet.statistics.mean.error_bounds import best_clip_norm

RADIUS, LENGTH, DELTA = 50.0, 10.0, 1e-5
GOALS = {(20, 1000, 1.0): 1.25, (20, 10_000, 1.0): 1.05}


class Trials:
    """Errors of repeated estimates, and of the plain means of the same records."""

    def __init__(self, seed):
        self.rng, self.stream = np.random.default_rng(seed), RandomStream(unsafe_seed=seed, threads=1)
        self.squares, self.plain, self.predicted = [], [], []

    def add(self, x, mean, budget, known):
        records = len(x) if budget.neighbours == "add-remove" else None
        estimate = private_mean(x, budget, known, records=records, stream=self.stream)
        self.squares.append(np.sum((estimate.value - mean) ** 2))
        self.plain.append(np.sum((x.mean(axis=0) - mean) ** 2))
        self.predicted.append(estimate.predicted_error**2)

    @property
    def ratio(self):
        return (np.sum(self.squares) / np.sum(self.plain)) ** 0.5

    @property
    def kept(self):
        """Measured over predicted error, and the standard error of that."""
        ratio = (np.sum(self.squares) / np.sum(self.predicted)) ** 0.5
        return ratio, ratio * np.std(self.squares) / np.mean(self.squares) / len(self.squares) ** 0.5 / 2


def cost(dimension, records, budget, known, repeats):
    trials = Trials(seed=dimension + records)
    for _ in range(repeats):
        mean = trials.rng.standard_normal(dimension)
        mean *= LENGTH / np.linalg.norm(mean)
        x = mean + trials.rng.standard_normal((records, dimension))
        trials.add(x, mean, budget, known)
    return trials.ratio


def costs():
    print("error of the private mean over that of the plain mean    replace-one  add-remove:")
    print(
        "dimension  records  epsilon                      ball           ball  goal   whole ball  second moment"
    )
    for dimension, records, epsilon in itertools.product((1, 20), (200, 1000, 10_000), (0.1, 1.0)):
        goal = GOALS.get((dimension, records, epsilon))
        repeats = (300 if records < 10_000 else 60) if goal else 80 if dimension == 1 else 25
        one, other = (Budget(epsilon, DELTA, relation) for relation in ("add-remove", "replace-one"))
        moment = SecondMoment((LENGTH**2 + dimension) ** 0.5)
        ball, whole = Ball(RADIUS), FixedClip(RADIUS)
        found = [
            cost(dimension, records, budget, known, repeats)
            for budget, known in ((other, ball), (one, ball), (one, whole), (one, moment))
        ]
        shown = f"{goal:6.2f}" if goal else " " * 6
        print(
            f"{dimension:9}{records:9}{epsilon:9}{found[0]:26.3f}{found[1]:15.3f}{shown}{found[2]:13.2f}{found[3]:15.2f}",
            flush=True,
        )


def adversarial(rng, size, clip_norm, spread=1.0):
    """The law for which clipping has the largest bias."""
    return 2 * clip_norm * (rng.random(size) < spread**2 / (4 * clip_norm**2))


def promises():
    print("\nmeasured error over predicted error                                   records  epsilon   ratio")
    pure, approximate = Budget(1.0, 0.0, "replace-one"), Budget(1.0, DELTA, "replace-one")
    n, worst = 100, best_clip_norm(laplace_event(pure), 1.0, 100)
    laws = [
        ("bits, p = 0.3, interval", pure, Interval(0, 1), n, lambda r: 1.0 * (r.random(n) < 0.3), 0.3),
        ("bits, p = 0.5, interval", pure, Interval(0, 1), n, lambda r: 1.0 * (r.random(n) < 0.5), 0.5),
        ("the adversarial law, second moment", pure, SecondMoment(1.0), n,
         lambda r: adversarial(r, n, worst), 1 / (2 * worst)),
        ("N(0, 1), second moment", pure, SecondMoment(1.0), n, lambda r: r.standard_normal(n), 0.0),
        ("N(0, I) in 10 dimensions, second moment", approximate, SecondMoment(10**0.5), 1000,
         lambda r: r.standard_normal((1000, 10)), 0.0),
        ("N(3, 1), ball", approximate, Ball(RADIUS), 1000, lambda r: 3 + r.standard_normal(1000), 3.0),
        ("N(3, I) in 20 dimensions, ball", approximate, Ball(RADIUS), 1000,
         lambda r: 3 + r.standard_normal((1000, 20)), 3.0),
        ("t with 3 degrees of freedom, ball", approximate, Ball(RADIUS), 1000,
         lambda r: r.standard_t(3, 1000), 0.0),
        ("exponential (skewed: not promised), ball", approximate, Ball(RADIUS), 1000,
         lambda r: r.exponential(size=1000), 1.0),
    ]  # fmt: skip
    for label, budget, known, records, draw, mean in laws:
        trials = Trials(seed=records)
        for _ in range(1000 if records == n else 100):
            trials.add(draw(trials.rng), mean, budget, known)
        ratio, error = trials.kept
        print(f"{label:68}{records:9}{budget.epsilon:9}{ratio:8.3f} ± {error:.3f}", flush=True)


def main():
    start = time.perf_counter()
    costs()
    promises()
    print(f"\n{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
