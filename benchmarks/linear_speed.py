"""What a clipped full-batch gradient of a linear model costs, beside the time of reading its rows once.

The contenders of a line take turns, in an order that is reversed every round. A cell is the median CPU time
in milliseconds and, beside it, the median ratio to the read limit of the same round: a sum over the matrix by
vector instructions on as many threads. Beside the clipped and weighted kernel stand two peers that do less:
numpy's two matrix products and torch's autograd, both without clipping. Run with ``make bench-linear-speed``,
on idle cores. The last table is a whole private fit beside one read of its table; ``--fits`` prints no other.
"""

import argparse
import statistics
import time

import numba
import numpy as np
import scipy.sparse as sp
import torch

from discreet.linear import PrivateLogisticRegression
from discreet.linear.kernels.kernel import clipped_gradient, hardened_clipped_gradient, row_norms
from discreet.linear.kernels.rowwise import in_threads, thread_count
from discreet.linear.losses import Logistic, Softmax
from timing import Targets, short, table

LIMIT, OURS, HARDENED, NUMPY, TORCH = "read limit", "discreet", "hardened", "numpy, no clip", "torch, no clip"
FIT, FITS = "whole fit", 5  # the rounds of whole fits, at most
TASKS = 64


@numba.njit(nogil=True, fastmath=True)
def total(values):
    result = values.dtype.type(0)
    for index in range(values.size):
        result += values[index]
    return result


def read(*arrays):
    """Read all numbers once, in threads."""

    def work(task):
        for array in arrays:
            total(array[array.size * task // TASKS : array.size * (task + 1) // TASKS])

    in_threads(TASKS, work)


def records(rows, columns, classes, dtype, sparse, rng):
    """A random matrix and targets; a sparse one has 20 entries in each row."""
    y = rng.integers(0, classes, rows).astype(dtype)
    if not sparse:
        return rng.standard_normal((rows, columns), np.float32).astype(dtype, copy=False), y
    indices = np.sort(rng.integers(0, columns, (rows, 20), np.int32), axis=1).ravel()
    values = rng.standard_normal(rows * 20, np.float32).astype(dtype, copy=False)
    pointers = np.arange(0, rows * 20 + 1, 20, dtype=np.int32)
    return sp.csr_array((values, indices, pointers), shape=(rows, columns)), y


def by_numpy(loss, Z, y, theta):
    """The plain gradient: scores by one product, the sum by another."""
    weights, hot = theta[1:].astype(Z.dtype), np.eye(max(2, loss.outputs), dtype=Z.dtype)[y.astype(int)]

    def run():
        scores = Z @ weights + theta[0].astype(Z.dtype)
        if loss.outputs == 1:
            residuals = 1 / (1 + np.exp(-scores)) - y
        else:
            residuals = np.exp(scores - scores.max(1, keepdims=True))
            residuals /= residuals.sum(1, keepdims=True)
            residuals -= hot
        return Z.T @ residuals

    return run


def by_torch(loss, Z, y, theta):
    """The plain gradient by autograd."""
    rows = torch.from_numpy(Z)
    weights = torch.tensor(theta[1:], dtype=rows.dtype, requires_grad=True)
    offset = torch.tensor(theta[0], dtype=rows.dtype, requires_grad=True)
    targets = torch.from_numpy(y) if loss.outputs == 1 else torch.from_numpy(y).long()
    functional = torch.nn.functional
    cost = functional.binary_cross_entropy_with_logits if loss.outputs == 1 else functional.cross_entropy

    def run():
        weights.grad = offset.grad = None
        cost(rows @ weights + offset, targets, reduction="sum").backward()

    return run


def contenders(loss, Z, y, constant=1.0, clip_norm=1.0):
    shape = (Z.shape[1] + 1, loss.outputs) if loss.outputs > 1 else (Z.shape[1] + 1,)
    theta = 0.1 * np.random.default_rng(1).standard_normal(shape)
    norms = row_norms(Z, constant)
    arrays = (Z.data, Z.indices) if sp.issparse(Z) else (Z.reshape(-1),)
    runs = {
        LIMIT: lambda: read(*arrays),
        OURS: lambda: clipped_gradient(loss, Z, y, theta, constant, norms, clip_norm),
        HARDENED: lambda: hardened_clipped_gradient(loss, Z, y, theta, constant, norms, clip_norm, 2.0**-38),
        NUMPY: by_numpy(loss, Z, y, theta),
    }
    return runs if sp.issparse(Z) else runs | {TORCH: by_torch(loss, Z, y, theta)}


def measure(runs, rounds):
    """Seconds of each contender, round by round."""
    for run in runs.values():
        run()
    seconds = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            runs[name]()
            seconds[name].append(time.process_time() - start)
    return seconds


def ratio(seconds, name, base):
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def fit_and_read(x, y):
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-4.0, 4.0))
    return {LIMIT: lambda: read(x.reshape(-1)), FIT: lambda: model.fit(x, y)}


def whole_fits(rng, rounds, targets):
    """The lines of whole fits, with all their looks at the table, forty steps and the last correction."""
    for rows, columns in ((300_000, 100), (1_000_000, 20)):
        x = rng.standard_normal((rows, columns), np.float32)
        y = (x[:, 0] + rng.standard_normal(rows, np.float32) > 0).astype(np.int64)
        for dtype in (np.float32, np.float64):
            seconds = measure(fit_and_read(x.astype(dtype, copy=False), y), rounds)
            times = [f"{1e3 * statistics.median(seconds[name]):.1f}" for name in (LIMIT, FIT)]
            found, name = ratio(seconds, FIT, LIMIT), f"{np.dtype(dtype)}, {rows} x {columns}"
            yield [name, *times, f"{short(found)}x"]
            targets.limit(f"whole fit / one read, {name}", 60, {name: found})


def print_fits(rng, rounds, targets):
    title = f"Milliseconds of a whole fit and ratio to the read limit, {thread_count()} threads"
    table(title, ("fit", LIMIT, FIT, "whole fit / one read"), list(whole_fits(rng, rounds, targets)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--fits", action="store_true", help="whole fits only")
    options = parser.parse_args()
    rng, columns = np.random.default_rng(0), options.columns
    if options.fits:
        targets = Targets()
        print_fits(rng, min(options.rounds, FITS), targets)
        targets.print()
        return
    cases = {
        "logistic float32": (Logistic(), columns, np.float32, False),
        "logistic float32, narrow": (Logistic(), 30, np.float32, False),
        "logistic float32, wide": (Logistic(), 784, np.float32, False),
        "logistic float64": (Logistic(), columns, np.float64, False),
        "softmax(10) float32": (Softmax(10), columns, np.float32, False),
        "logistic CSR float32": (Logistic(), 10_000, np.float32, True),
        "softmax(10) CSR float32": (Softmax(10), 10_000, np.float32, True),
    }
    torch.set_num_threads(thread_count())
    lines, targets = [], Targets()
    for name, (loss, width, dtype, sparse) in cases.items():
        rows = options.rows // 4 if width > 500 and not sparse else options.rows
        Z, y = records(rows, width, max(2, loss.outputs), dtype, sparse, rng)
        seconds = measure(contenders(loss, Z, y), options.rounds)
        cells = [
            f"{1e3 * statistics.median(seconds[tool]):.1f}  {short(ratio(seconds, tool, LIMIT))}x"
            if tool in seconds
            else "-"
            for tool in (LIMIT, OURS, HARDENED, NUMPY, TORCH)
        ]
        lines.append([f"{name}, {rows:.0e} x {width}", *cells])
        if name.startswith("logistic float32"):
            targets.limit(
                f"dense step over read limit, {width} columns", 1.45, {name: ratio(seconds, OURS, LIMIT)}
            )
        if name == "logistic float32":
            targets.limit("torch autograd over ours", 5, {name: ratio(seconds, TORCH, OURS)}, at_least=True)
        if name == "logistic CSR float32":
            targets.limit("CSR step over read limit", 4.5, {name: ratio(seconds, OURS, LIMIT)})
    title = f"Milliseconds of a full-batch step and ratio to the read limit, {thread_count()} threads"
    table(title, ("step", LIMIT, OURS, HARDENED, NUMPY, TORCH), lines)
    print_fits(rng, min(options.rounds, FITS), targets)
    targets.print()


if __name__ == "__main__":
    main()
