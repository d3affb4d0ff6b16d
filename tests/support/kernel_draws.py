"""Runs every compiled kernel of the samplers and of clipping on fixed inputs, and collects what it returns.

``python -m support.kernel_draws FILE`` writes the results to a file; with NUMBA_DISABLE_JIT=1 it runs the same source
as plain Python.
"""

import sys
from fractions import Fraction

import numpy as np

from discreet.core import float_samplers, randomness
from discreet.core.clipping import Flat, clip_rows
from discreet.core.noise import _all_finite
from discreet.core.randomness import RandomStream

SPARE = np.arange(float_samplers.SPARE_WORDS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
NEAR = np.array(
    [0, -1, 1, -2, 5, 2**40, -(2**40), 2**51, -(2**51), 2**60]
)  # words near an end of (0, 1), and one


def floats():
    """Arrays of floats, which compiled code may round differently in the last place."""
    stream = RandomStream(unsafe_seed=3, threads=1)
    found = {
        "normal64": stream.normal(601),
        "normal32": stream.normal(600, np.float32),
        "laplace": stream.laplace(300),
    }
    angles = np.linspace(-(2**62), 2**62, len(NEAR)).astype(np.int64)
    out = np.empty(2 * len(NEAR))
    float_samplers.normal64(np.concatenate([NEAR, angles]), SPARE, out, 1.5)
    found["near64"] = out.copy()
    float_samplers.laplace(np.concatenate([NEAR, angles]), SPARE, out[: len(NEAR)], 2.0)
    found["near laplace"] = out[: len(NEAR)].copy()
    near = np.append(np.clip(NEAR[1:], -(2**19), 2**19), 2**28).astype(np.int32)
    single = np.empty(2 * len(NEAR), np.float32)
    float_samplers.normal32(np.concatenate([near, (angles >> 32).astype(np.int32)]), SPARE, single, 1.5)
    found["near32"] = single
    rows = np.array([[3.0, 4.0], [0.1, 0.2], [1e300, -1e300], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]])
    for norm in ("l1", "l2"):
        found[f"clipped {norm}"] = clip_rows(rows, 1.5, norm)
        found[f"clipped {norm} in float32"] = clip_rows(rows[[0, 1, 3]].astype(np.float32), 1.5, norm)
        inside = rows[:2].copy()
        found[f"clipped {norm} in place"] = clip_rows(inside, 1.5, norm, out=inside)
    norms = [0.0, 1.0, 1.5, 7.0, 1e308, np.nan, np.inf, -1.0]
    found["factors"] = Flat(1.5).factors(norms)
    found["tiny factors"] = Flat(1e-100).factors([1e250])
    return found


def integers():
    """Arrays of integers, which must not differ at all."""
    stream = RandomStream(unsafe_seed=4, threads=1)
    found = {
        "integers": stream.integers(6, 60),
        "long integers": stream.integers(2**63, 20),
        "discrete laplace": stream.discrete_laplace(Fraction(7, 2), 60),
        "discrete gaussian": stream.discrete_gaussian(Fraction(9, 2), 600),
        "wide gaussian": stream.discrete_gaussian(2**40, 12),
        "narrow gaussian": stream.discrete_gaussian(Fraction(1, 3), 30),
    }
    words = np.array([0, 7, 0, 0, 11, 2**64 - 1], np.uint64)  # 0 is below 2**64 mod 3, and passed over
    out = np.zeros(4, np.int64)
    found["passed over"] = np.append(randomness.integers(words, out, 3), out)
    for kernel in (randomness.discrete_laplace, randomness.discrete_gaussian):
        found[f"{len(found)} short of words"] = np.array(kernel(words[:0], out, 5, 2))
    finite = np.ones(5)
    found["finite"] = np.array([_all_finite(finite), _all_finite(np.append(finite, np.inf))])
    return found


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        np.savez(sys.argv[1], **floats(), **integers())
