"""What does hardened arithmetic cost a private linear fit? CPU time beside a fit in floating point, in one run.

The contenders of a line take turns. "float" is the same fit with continuous noise; both add up whole numbers.
``--against SRC`` is the source folder of another version of the library, whose fits in floating point are timed in
between, in a process of its own: the sums of 0.1.0 were floats, for instance. Run with

    python benchmarks/linear_arithmetic.py [--rounds 5] [--against ../old/src]

A cell is the least CPU time of a fit, on one thread; a ratio is that of the least times.
"""

import argparse
import json
import os
import subprocess
import sys
import time

THREADS = {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
TABLES = {
    "2,000 x 30, two classes": (2_000, 30, "Logistic"),
    "30,000 x 14, two classes": (30_000, 14, "Logistic"),
    "30,000 x 100, two classes": (30_000, 100, "Logistic"),
    "300,000 x 50, two classes": (300_000, 50, "Logistic"),
    "300,000 x 50, numbers": (300_000, 50, "Squared"),
    "60,000 x 50, five classes": (60_000, 50, "Softmax"),
}


def table(rows, columns, name):
    import numpy as np

    from discreet.linear import losses

    rng = np.random.default_rng(0)
    x = rng.random((rows, columns), np.float32)
    scores = (x - 0.5) @ rng.normal(size=(columns, 5))
    if name == "Softmax":
        return losses.Softmax(5), x, (scores + rng.gumbel(size=scores.shape)).argmax(1)
    if name == "Squared":
        return losses.Squared(), x, scores[:, 0] + rng.normal(size=rows)
    return losses.Logistic(), x, scores[:, 0] + rng.logistic(size=rows) > 0


def seconds(records, arithmetic):
    from discreet import Budget
    from discreet.linear.gate.declared_columns import Columns
    from discreet.linear.glm.glm import fit_glm
    from discreet.trusted.spending import BudgetAllocator

    loss, x, y = records
    start = time.process_time()
    spending = BudgetAllocator(Budget(1.0, 1e-6), arithmetic=arithmetic)
    fit_glm(loss, x, y, Columns(numerics=x.shape[1]), spending, target_bounds=(-10.0, 10.0))
    return time.process_time() - start


def serve():
    """Time fits as they are asked for, one line each: the tables and the arithmetic."""
    known = {}
    for line in sys.stdin:
        name, arithmetic = json.loads(line)
        if name not in known:
            known = {name: table(*TABLES[name])}
        print(seconds(known[name], arithmetic), flush=True)


class Contender:
    """A version of the library in a process of its own."""

    def __init__(self, source, arithmetic):
        paths = [source, os.environ.get("PYTHONPATH", "")] if source else [os.environ.get("PYTHONPATH", "")]
        environment = os.environ | THREADS | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        self.arithmetic = arithmetic
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def time(self, name):
        self.process.stdin.write(json.dumps([name, self.arithmetic]) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="fits for each cell, after one that compiles")
    parser.add_argument("--against", help="the source folder of another version, fitted in floating point")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    contenders = {"hardened": Contender(None, "hardened"), "float": Contender(None, "float")}
    if arguments.against:
        contenders["other float"] = Contender(arguments.against, "float")
    names = list(contenders)
    ratios = "".join(f"{'/ ' + name:>15}" for name in names[1:])
    print(f"{'CPU seconds of a fit':28}{''.join(f'{name:>13}' for name in names)}{ratios}")
    for title in TABLES:
        times = {name: [] for name in names}
        for turn in range(arguments.rounds + 1):
            for name, contender in contenders.items():
                taken = contender.time(title)
                if turn:
                    times[name].append(taken)
        least = {name: min(found) for name, found in times.items()}
        cells = "".join(f"{least[name]:13.3f}" for name in names)
        shown = "".join(f"{least['hardened'] / least[name]:15.2f}" for name in names[1:])
        print(f"{title:28}{cells}{shown}", flush=True)
    for contender in contenders.values():
        contender.close()


if __name__ == "__main__":
    main()
