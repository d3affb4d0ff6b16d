"""Clipped gradients of sparse rows less a public centre, without making them dense: :func:`centred_gradient`.

The gradient of a row z - m is its residual r times (constant, z) less r m. The sum of the first is one over entries,
the sum of the second is the sum of all residuals times m. Both are gathered in integers, and so is what becomes
of them.

>>> from scipy.sparse import csr_array
>>> from discreet.linear.losses import Squared
>>> Z, y, centre = csr_array([[0.0, 2.0], [1.0, 0.0]]), np.array([0.5, 0.0]), Centre.near(np.array([0.5, 1.0]))
>>> norms = centred_norms(Z, 1.0, centre)
>>> centred_gradient(centre, Squared(), Z, y, np.zeros(3), 1.0, norms, 10.0, 2.0**-20) * 2.0**-20
array([-0.5 ,  0.25, -0.5 ])
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import InvalidParameter
from discreet.linear.kernels.coefficients import compiled
from discreet.linear.kernels.kernel import hardened_clipped_gradient, readable, row_norms
from discreet.linear.losses import Loss

Floats = NDArray[np.float64]

_BITS = 20
_SLACK = 2.0**-40  # of a squared norm before cancellation: more than its roundings


class Centre(NamedTuple):
    """A row to be taken off all others: whole multiples of 2**-20."""

    steps: NDArray[np.int64]

    @classmethod
    def near(cls, values: Floats) -> Centre:
        """The nearest centre to some public numbers, none of which may be beyond 2**20."""
        return cls(np.rint(np.clip(values, -(2.0**_BITS), 2.0**_BITS) * 2.0**_BITS).astype(np.int64))

    @property
    def values(self) -> Floats:
        """The row."""
        return np.asarray(self.steps * 2.0**-_BITS, np.float64)

    def times(self, total: NDArray[np.int64]) -> NDArray[np.int64]:
        """total * values, each rounded down to an integer: exactly, but for multiples of 2**64."""
        high, low = total >> _BITS, total & (2**_BITS - 1)
        steps = self.steps.reshape(-1, *(1,) * total.ndim)
        return np.asarray(high[None] * steps + (low[None] * steps >> _BITS))


def centred_norms(Z: Any, constant: float, centre: Centre) -> Floats:
    """Upper bounds of the norms of (constant, z - centre), for each row z of CSR; infinity where z is not finite.

    Guarantee: never below the exact norm.
    """
    _refuse_other_centre(centre, Z.shape[1])
    norms, values = row_norms(Z, constant), centre.values
    length = float(np.linalg.norm(values))
    products = np.empty(len(norms))
    _products(readable(Z.data), readable(Z.indices), readable(Z.indptr), norms, values, products)
    with np.errstate(all="ignore"):
        squares = norms**2 - 2 * products + length**2 + _SLACK * (norms + length) ** 2
        found = np.sqrt(np.maximum(squares, constant**2)) * (1 + 2.0**-50)
    return np.where(norms < 2.0**400, found, norms * 2 + length)


def _refuse_other_centre(centre: Centre, width: int) -> None:
    """Refuse a centre of another width, which compiled code would read beyond, or one whose products overflow."""
    steps = centre.steps
    if steps.dtype != np.int64 or steps.shape != (width,) or not (np.abs(steps) <= 2 ** (2 * _BITS)).all():
        requirement = f"must have {width} multiples of 2**-{_BITS}, none beyond 2**{_BITS}."
        raise InvalidParameter("centre", "steps", requirement)


@compiled
def _products(data: Any, indices: Any, indptr: Any, norms: Any, values: Any, out: Any) -> None:
    """Rows times the centre; 0 for rows whose norm says that they do not count."""
    for i in range(out.size):
        total = 0.0
        if norms[i] < math.inf:
            for p in range(indptr[i], indptr[i + 1]):
                total += np.float64(data[p]) * values[indices[p]]
        out[i] = total


def centred_gradient(
    centre: Centre,
    loss: Loss,
    Z: Any,
    y: ArrayLike,
    theta: Floats,
    constant: float,
    norms: Floats,
    clip_norm: float,
    grid: float,
    weights: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """As :func:`~discreet.linear.kernels.kernel.hardened_clipped_gradient`, of the rows of CSR less a centre.

    ``norms`` are :func:`centred_norms` of the same rows, and the constant must be 1.

    Guarantee: adding or removing a row changes the result by a vector of norm at most ``clip_norm / grid``
    (docs/engines.md: E20). With a residual r that is clipped by the norm of (1, z - m), in steps of the grid, the row
    changes the first number by k, which is r cut to a whole one, and another by r z_j, cut, less k m_j, and by less
    than 1 more, as the sum of all k times m_j is rounded. So it is off r (1, z - m) by at most 1 + sqrt(d) + |m| +
    sqrt(d), for which the clip leaves room.
    """
    if constant != 1.0:
        raise InvalidParameter("constant", constant, "must be 1 where rows have a centre.")
    _refuse_other_centre(centre, Z.shape[1])
    values = centre.values
    length = float(np.linalg.norm(values))
    off = math.sqrt(loss.outputs) * (1 + 2 * math.sqrt(len(values)) + length)
    clip = (clip_norm - off * grid) * (1 - _SLACK * (1 + length))
    if not (clip > clip_norm / 2 and (1 + length) * clip_norm / grid <= 2.0**62):
        requirement = (
            "must be far below clip_norm over the root of the columns, and above clip_norm * 2**-62."
        )
        raise InvalidParameter("grid", grid, requirement)
    moved = np.array(theta, np.float64)
    moved[0] -= values @ moved[1:]
    total = hardened_clipped_gradient(loss, Z, y, moved, constant, norms, clip, grid, weights)
    total[1:] -= centre.times(total[0])
    return total
