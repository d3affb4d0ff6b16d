"""What a random number costs: ours from AES-256-CTR, beside torch and numpy, in nanoseconds per draw.

The contenders of a row take turns in one process, so that the ratio is fair even on a busy machine; each cell
is the best of its rounds. One-thread columns are CPU time, "2 threads" is wall time and needs two idle cores.
Run with ``make bench-noise``.
"""

import time

import numpy as np
import torch

from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.events import Gaussian

ROUNDS = {10**6: 25, 10**7: 7, 10**8: 2}
ONE, TWO = RandomStream(threads=1), RandomStream(threads=2)


def best(contenders, size, rounds):
    """Nanoseconds per draw of each contender: the minimum over interleaved rounds."""
    for run in contenders.values():
        run()
    seconds = dict.fromkeys(contenders, float("inf"))
    for turn in range(rounds):
        order = list(contenders) if turn % 2 else list(contenders)[::-1]
        for name in order:
            clock = time.perf_counter if name == "2 threads" else time.process_time
            start = clock()
            contenders[name]()
            seconds[name] = min(seconds[name], clock() - start)
    return {name: value / size * 1e9 for name, value in seconds.items()}


def normal(size, dtype):
    """Standard normal draws into an array that exists already."""
    out, tensor = np.empty(size, dtype), torch.empty(size, dtype=getattr(torch, np.dtype(dtype).name))
    generator = np.random.default_rng()
    return {
        "1 thread": lambda: ONE.each_block("normal", out.size, 1.0, out.dtype, out.__setitem__),
        "2 threads": lambda: TWO.each_block("normal", out.size, 1.0, out.dtype, out.__setitem__),
        "torch": lambda: tensor.normal_(),
        "numpy": lambda: generator.standard_normal(out=out, dtype=dtype),
    }


def noise(size):
    """Noise added in place to a sum, with all checks, against torch's draw and addition."""
    total, event = BoundedSum(np.zeros(size, np.float32), clip_norm=1.0), Gaussian(1e-3)
    tensor = torch.zeros(size)
    return {
        "1 thread": lambda: add_noise(total, event, ONE, out=total.value),
        "2 threads": lambda: add_noise(total, event, TWO, out=total.value),
        "torch": lambda: tensor.add_(torch.normal(0.0, 1e-3, (size,))),
    }


def discrete(size):
    """The exact discrete Gaussian."""
    return {
        "1 thread": lambda: ONE.discrete_gaussian(2**38, size),
        "2 threads": lambda: TWO.discrete_gaussian(2**38, size),
    }


def show(label, size, results, goal=""):
    cells = [f"{results[name]:10.2f}" if name in results else " " * 10 for name in ("1 thread", "2 threads")]
    for name in ("torch", "numpy"):
        cells.append(f"{results[name]:8.2f}" if name in results else " " * 8)
    ratio = f"{results['torch'] / results['1 thread']:6.1f}x" if "torch" in results else " " * 7
    print(f"{label:26}{size:8.0e}{''.join(cells)}{ratio}   {goal}", flush=True)


def main():
    torch.set_num_threads(1)
    print(
        "ns per draw                   size  1 thread 2 threads   torch   numpy  ratio   goal (1 and 2 threads)"
    )
    for size, rounds in ROUNDS.items():
        goal = "2.0 and 1.1" if size == 10**7 else ""
        show("normal float32", size, best(normal(size, np.float32), size, rounds), goal)
    show("normal float64", 10**7, best(normal(10**7, np.float64), 10**7, 4))
    show("add_noise float32 in place", 10**7, best(noise(10**7), 10**7, 7))
    show("discrete Gaussian", 10**6, best(discrete(10**6), 10**6, 5), "250 for each thread")
    print("ratio: torch to ours, one thread each")


if __name__ == "__main__":
    main()
