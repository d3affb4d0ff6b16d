"""Private statistics of numbers: root mean squared errors of ours and of peers, on the same budget.

Numbers are normal, N(50, 10), within the declared bounds 0 to 100, in several tables, each with several releases:
where the quantiles of one table lie between its records, and on a peer's grid, is luck. Neighbours are add-remove for
ours and for OpenDP, whereas diffprivlib takes the number of records as public for the variance. OpenDP chooses
quantiles among 1001 points, ours among 65 536. All of it is pure epsilon: no delta is spent. The standard error of
each figure, in percent, is beside it. ``--peers PYTHON`` names an interpreter with diffprivlib and opendp. Run with
``make bench-statistics``.
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
        name: [float(np.mean((ask().value - exact[name]) ** 2)) for _ in range(repeats)]
        for name, ask in asked.items()
    }


def theirs(peers, tables, epsilon, repeats):
    """The squared errors of each peer, for each table."""
    if peers is None:
        return []
    shared = {"epsilon": epsilon, "lower": LOWER, "upper": UPPER, "edges": EDGES.tolist(), "levels": LEVELS}
    jobs = [
        {"values": x.tolist(), "exact": {name: np.asarray(one).tolist() for name, one in exactly(x).items()}}
        for x in tables
    ]
    lines = "".join(json.dumps(shared | job | {"repeats": repeats}) + "\n" for job in jobs)
    script = Path(__file__).with_name("statistics_peers.py")
    done = subprocess.run([peers, script], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def told(parts):
    """The root of the mean of all squared errors, with its standard error from that of the tables."""
    if "error" in parts[0]:
        return parts[0]["error"]
    shown = []
    for what in parts[0]:
        means = np.array([np.mean(part[what]) for part in parts])
        percent = 50 * means.std(ddof=1) / np.sqrt(len(means)) / means.mean()
        shown.append(f"{what} {np.sqrt(means.mean()):.4g} ({percent:.0f} %)")
    return "  ".join(shown)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", help="An interpreter with diffprivlib and opendp.")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10, help="Releases of each table.")
    parser.add_argument("--records", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.1, 1.0])
    asked = parser.parse_args()
    print(f"root mean squared error, {asked.repeats} releases of {asked.tables} tables\n")
    for records in asked.records:
        rng = np.random.default_rng(records)
        tables = [np.clip(rng.normal(50, 10, records), LOWER, UPPER) for _ in range(asked.tables)]
        for epsilon in asked.epsilons:
            print(f"n = {records}, epsilon {epsilon:g}")
            print(f"  {'ours':12} {told([ours(x, epsilon, asked.repeats) for x in tables])}", flush=True)
            found = theirs(asked.peers, tables, epsilon, asked.repeats)
            for name in found[0] if found else ():
                print(f"  {name:12} {told([one[name] for one in found])}", flush=True)


if __name__ == "__main__":
    main()
