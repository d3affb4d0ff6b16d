"""The clipped gradient of a single row, without the preparations that pay off for many."""

from __future__ import annotations

import numpy as np

from discreet.linear.kernels.coefficients import BLOCK, Array, OneScore, compiled, replace_by_residuals


@compiled
def gradient_of_row(
    loss: OneScore, row: Array, target: float, theta: Array, constant: float, limit: float, out: Array
) -> None:
    """Overwrite ``out``, which holds zeros, with the residual, moved into [-limit, limit], times (constant, row).

    A residual that is not a number leaves the zeros.

    Guarantee: norm at most ``limit`` times that of (constant, row), up to the rounding of the products.
    """
    score = theta[0] * constant
    for column in range(row.size):
        score += row[column] * theta[column + 1]
    scores, targets = np.zeros(BLOCK), np.zeros(BLOCK)  # the kernels for many rows know no smaller block
    scores[0], targets[0] = score, target
    replace_by_residuals(loss.code, scores, targets, loss.parameter)
    residual = scores[0]
    if residual == residual:
        residual = min(max(residual, -limit), limit)
        out[0] = residual * constant
        for column in range(row.size):
            out[column + 1] = row[column] * residual
