"""What is noise of a curve is taken back: :func:`shrunk_parts`. Post-processing of a released model.

In the coordinates of the descent the error of the result is about the same in all directions. So a part of the model,
such as the quick bends of one curve, or the levels of one category, can be compared with what noise alone would make
of it, and is shortened by as much (James and Stein 1961). The rest of the model moves along, as least squares would
have it: only what the part has along its own directions is taken away.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from discreet.linear.additive.basis import Basis, Curve
from discreet.linear.additive.curves import bends, hat_covariance
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.coordinates import Whitened

Array = NDArray[np.float64]

_BANDS = (1, 3, 7)  # the first bend of each band; before the first is the line
_FLAT = 1e-4  # added to moments, so that hats nobody is under do not count


def effect_parts(basis: Basis, histograms: Histograms, coordinates: Whitened) -> list[Array]:
    """For each part of the model an orthonormal basis of its directions, in the coordinates of the descent."""
    rotation, scale = coordinates.rotation[1:], coordinates.marginals.scale
    starts, found = basis.starts, []
    for curve, start in zip(basis.curves, starts, strict=False):
        place = slice(start, start + len(curve.kept))
        for functionals in _bands(curve, histograms):
            found.append((functionals / scale[place]) @ rotation[place])
    for size, start in zip(
        basis.columns.groups[len(basis.curves) :], starts[len(basis.curves) :], strict=False
    ):
        if size > 2:
            found.append(rotation[start : start + size] / scale[start : start + size, None])
    return [_orthonormal(rows) for rows in found]


def shrunk_parts(theta: Array, start: Array, parts: list[Array], variance: float) -> Array:
    """``theta`` with every part shortened toward ``start`` as far as noise of this variance explains it."""
    way = (theta - start)[1:]
    outputs = 1 if way.ndim == 1 else way.shape[1] - 1
    for part in parts:
        own = part @ way
        explained = len(part) * outputs * variance / max(float(np.sum(own**2)), 1e-300)
        way = way - part.T @ (min(explained, 1.0) * own)
    moved = np.array(start)
    moved[1:] += way
    return moved


def _bands(curve: Curve, histograms: Histograms) -> list[Array]:
    """What the bends of a curve are, from slow to quick ones, in bands: functionals of its coefficients."""
    bent = bends(curve.knots)[:, curve.kept]
    if not len(bent):
        return []
    moments = hat_covariance(histograms, curve)
    moments = moments + _FLAT * np.eye(len(moments))
    _, vectors = eigh(bent.T @ bent, moments)  # orthonormal under the moments, the line first
    functionals = vectors.T @ moments
    ends = [*(first for first in _BANDS if first < len(functionals)), len(functionals)]
    return [functionals[a:b] for a, b in pairwise(ends)]


def _orthonormal(rows: Array) -> Array:
    """An orthonormal basis of what the rows span."""
    _, sizes, turned = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(turned[sizes > 1e-6 * max(float(sizes[0]), 1e-12)])
