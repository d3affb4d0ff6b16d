"""The broken twins: private learning as it is often written. Every function here has a hole, and says which."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng()


def clipped(rows: np.ndarray, clip_norm: float = 1.0) -> np.ndarray:
    """The formula of many libraries, in float32: NaN and infinity pass, and so does rounding above the clip norm."""
    rows = np.asarray(rows, np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        return rows * np.minimum(np.float32(1), np.float32(clip_norm) / (norms + np.float32(1e-6)))


def descent(X: np.ndarray, y: np.ndarray, noise: float = 1.0, steps: int = 5) -> np.ndarray:
    """DP-SGD that divides by the number of rows and trusts them to be finite numbers."""
    theta = np.zeros(X.shape[1])
    for _ in range(steps):
        with np.errstate(all="ignore"):
            residuals = 1 / (1 + np.exp(-X @ theta)) - y
            total = clipped(X * residuals[:, None]).sum(0) + noise * RNG.normal(size=theta.size)
            theta = theta - total / len(X)
    return theta
