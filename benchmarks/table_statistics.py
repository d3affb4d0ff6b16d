"""Private statistics of numbers: root mean squared errors of ours and of peers, on the same budget.

Numbers are normal, N(50, 10), within the declared bounds 0 to 100; neighbours are add-remove for ours and for OpenDP,
whereas diffprivlib takes the number of records as public for the variance. All of it is pure epsilon: no delta is
spent. ``--peers PYTHON`` names an interpreter with diffprivlib and opendp. Run with ``make bench-statistics``.
"""

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np

from discreet import Budget
from discreet.statistics import (
    private_count,
    private_histogram,
    private_quantiles,
    private_sum,
    private_variance,
)

LOWER, UPPER, LEVELS = 0.0, 100.0, (0.1, 0.25, 0.5, 0.75, 0.9)
EDGES = np.linspace(LOWER, UPPER, 21)


def exactly(x):
    return {
        "count": float(np.sum(x > 50)),
        "sum": float(x.sum()),
        "variance": float(x.var()),
        "histogram": np.histogram(x, EDGES)[0].astype(float),
        "median": float(np.median(x)),
        "quantiles": np.quantile(x, LEVELS),
    }


def ours(x, epsilon, repeats):
    budget, bounds = Budget(epsilon, 0.0), (LOWER, UPPER)
    asked = {
        "count": lambda: private_count(x > 50, budget),
        "sum": lambda: private_sum(x, budget, bounds),
        "variance": lambda: private_variance(x, budget, bounds),
        "histogram": lambda: private_histogram(x, budget, EDGES),
        "median": lambda: private_quantiles(x, budget, 0.5, bounds),
        "quantiles": lambda: private_quantiles(x, budget, LEVELS, bounds),
    }
    exact = exactly(x)
    return {
        name: float(np.sqrt(np.mean([np.mean((ask().value - exact[name]) ** 2) for _ in range(repeats)])))
        for name, ask in asked.items()
    }


def theirs(peers, x, epsilon, repeats):
    if peers is None:
        return {}
    exact = {name: np.asarray(value).tolist() for name, value in exactly(x).items()}
    job = {"epsilon": epsilon, "values": x.tolist(), "lower": LOWER, "upper": UPPER, "edges": EDGES.tolist()}
    job |= {"levels": LEVELS, "repeats": repeats, "exact": exact}
    script = Path(__file__).with_name("statistics_peers.py")
    done = subprocess.run(
        [peers, script], input=json.dumps(job) + "\n", capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", help="An interpreter with diffprivlib and opendp.")
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"root mean squared error, {asked.repeats} releases each\n")
    for records in (1000, 10_000):
        x = np.clip(rng.normal(50, 10, records), LOWER, UPPER)
        for epsilon in (0.1, 1.0):
            found = {"ours": ours(x, epsilon, asked.repeats)} | theirs(asked.peers, x, epsilon, asked.repeats)
            print(f"n = {records}, epsilon {epsilon:g}")
            for name, errors in found.items():
                told = errors.get("error") or "  ".join(
                    f"{what} {error:.4g}" for what, error in errors.items()
                )
                print(f"  {name:12} {told}", flush=True)


if __name__ == "__main__":
    main()
