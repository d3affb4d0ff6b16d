"""From histograms to curves: how many knots the noise allows, where they are, and what their hats weigh.

Post-processing of released numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.bin_edges import choose_knots
from discreet.linear.additive.expanded_rows import hats
from discreet.linear.additive.histograms import FEWEST_PIECES, Histograms
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.glm.marginals import RARE
from discreet.linear.row_views.coordinates import Marginals
from discreet.linear.row_views.curve_bases import Basis, Curve

Array = NDArray[np.float64]

_FOR_NOISE = 0.7  # pieces for each root of the records of a column over the noise of counting them
_FOR_CHANCE = 0.3  # pieces for each root of the records of a column
_MOST_PIECES, _FEW_PIECES = 16, 4
_MOST_HATS = (
    256  # of all columns together, above which each has few pieces: the work of a fit grows with them
)
_RARE_END = 0.001  # least share of the records at an end of a curve
_NARROW = 0.02  # of its limits: a curve that spans less is a line
_LEVEL = 0.1  # weight of the values of a grid beside their differences
_POINTS = (np.arange(8) + 0.5) / 8  # where hats are looked at in a bin


def pieces_for(count: float, signal: float, columns: Columns) -> int:
    """How many straight pieces each curve may have; 1 is a line. Noise, chance and time set limits."""
    room, curves = (
        min(_FOR_NOISE * math.sqrt(signal), _FOR_CHANCE * math.sqrt(count)),
        max(columns.numerics, 1),
    )
    most = min(_MOST_PIECES, max(_FEW_PIECES, _MOST_HATS // curves))
    pieces = int(min(room / math.sqrt(curves), most))
    return pieces if pieces >= FEWEST_PIECES else 1


def choose_curves(
    columns: Columns,
    histograms: Histograms,
    marginals: Marginals,
    pieces: list[int],
    missing: dict[int, int],
) -> tuple[Curve, ...]:
    """A curve for every numeric column; the heaviest hat of each is left to the constant."""
    found = []
    for j in range(columns.numerics):
        counts, edges = histograms.counts[j], histograms.edges[j]
        limits = float(marginals.lower[j]), float(marginals.upper[j])
        held = np.flatnonzero(counts)
        allowed = histograms.pieces(j, pieces[j])
        knots = np.array(limits)
        if allowed > 1:
            wide = min(limits[0], float(edges[held[0]])), max(limits[1], float(edges[held[-1] + 1]))
            inner = held_knots(choose_knots(counts, edges, allowed, wide), counts, edges)
            if len(inner) > 2 and inner[-1] - inner[0] >= _NARROW * (wide[1] - wide[0]):
                knots = inner
        means, _ = hat_moments(counts, edges, knots)
        kept = np.delete(np.arange(len(knots)), int(np.argmax(means)))
        found.append(Curve(j, knots, kept, missing.get(j)))
    return tuple(found)


def held_knots(knots: Array, counts: Array, edges: Array) -> Array:
    """The knots with both ends moved inward until each holds a thousandth of the records; beyond, curves are flat.

    Nothing says how high a curve is at an end that nobody is near: smoothness alone would continue it along the
    last two knots, however near they are to one another.
    """
    narrowest = float(np.diff(edges).min())
    for _ in range(2):  # the upper end, then the lower one
        while len(knots) > 2 and hat_moments(counts, edges, knots)[0][-1] < _RARE_END:
            middle = (knots[-2] + knots[-1]) / 2
            knots = np.append(knots[:-1], middle) if middle - knots[-2] >= narrowest else knots[:-1]
        knots, counts, edges = -knots[::-1], counts[::-1], -edges[::-1]
    return knots


def hat_moments(counts: Array, edges: Array, knots: Array) -> tuple[Array, Array]:
    """Mean and variance of the hats at all knots, as the histogram has it."""
    weights, values = _weigh_points(counts, edges, knots)
    means = weights @ values
    return means, np.maximum(weights @ values**2 - means**2, 0.0)


def hat_covariance(histograms: Histograms, curve: Curve) -> Array:
    """The covariance of the hats of a curve that have a column."""
    counts, edges = histograms.counts[curve.column], histograms.edges[curve.column]
    weights, values = _weigh_points(counts, edges, curve.knots)
    offsets = (values - weights @ values)[:, curve.kept]
    return np.asarray((offsets.T * weights) @ offsets)


def _weigh_points(counts: Array, edges: Array, knots: Array) -> tuple[Array, Array]:
    """Points of the bins: the share of the records at each, and its hats.

    Records lie evenly in their bin, but in the narrowest ones, which are at the ends of a column and at its zero:
    there they are at the landmark itself.
    """
    mass = counts + 1e-9 * max(float(counts.sum()), 1.0)
    widths = np.diff(edges)
    points = edges[:-1, None] + widths[:, None] * _POINTS
    narrowest = widths < min(1.001 * widths.min(), 0.5 * widths.max())
    points[narrowest] = edges[:-1][narrowest, None]
    points[-1] = edges[-1] if narrowest[-1] else points[-1]
    values = hats(points.ravel(), knots).astype(np.float64)
    weights = np.repeat(mass / mass.sum() / len(_POINTS), len(_POINTS))
    return weights, values


def curve_marginals(basis: Basis, histograms: Histograms, marginals: Marginals, count: float) -> Marginals:
    """Centre and scale of the encoded columns: of hats from the histograms, of categories as they were."""
    error = histograms.noise / count
    centres, variances = [], []
    for curve in basis.curves:
        known = histograms.counts[curve.column], histograms.edges[curve.column]
        means, spread = hat_moments(*known, curve.knots)
        if len(curve.knots) == 2:  # a line, as the linear model has it
            j, width = curve.column, curve.knots[1] - curve.knots[0]
            centre = (np.clip(marginals.centre[j], *curve.knots) - curve.knots[0]) / width
            means = np.array([1 - centre, centre])
            spread = np.full(2, (marginals.scale[j] / width) ** 2) - error - RARE
        centres.append(means[curve.kept])
        variances.append(spread[curve.kept] + error + RARE)
    levels = basis.inputs.categories
    centres.append(marginals.centre[levels])
    variances.append(marginals.scale[levels] ** 2)
    for pair in basis.pairs:
        held = pair.shares[pair.kept]
        centres.append(held)
        variances.append(held * (1 - held) + error + RARE)
    centre = np.concatenate(centres)
    nothing = np.zeros(len(centre))
    return Marginals(centre, np.sqrt(np.concatenate(variances)), nothing, nothing + 1, marginals.released)


def roughness_of(basis: Basis, scale: Array) -> Array:
    """How rough curves and grids are: a quadratic form of the standardised coefficients, 0 for lines and levels.

    The sum of the squares of how far each knot is off the line through its neighbours, and of the differences between
    neighbours in a grid.
    """
    form = np.zeros((len(scale), len(scale)))
    first = len(basis.curves) + len(basis.inputs.groups)
    parts: list[tuple[Any, Array]] = [(curve, bends(curve.knots)) for curve in basis.curves]
    starts = [*basis.starts[: len(parts)], *basis.starts[first:-1]]
    parts += [(pair, _steps(*map(len, pair.knots))) for pair in basis.pairs]
    for (part, differences), start in zip(parts, starts, strict=True):
        place = slice(start, start + len(part.kept))
        scaled = differences[:, part.kept] / scale[place]
        form[place, place] = scaled.T @ scaled
    return form


def line_of(curve: Curve, scale: Array) -> Array:
    """The standardised coefficients of a line of slope 1."""
    return np.asarray((curve.knots[curve.kept] - np.delete(curve.knots, curve.kept)[0]) * scale)


def straight_lines(basis: Basis, scale: Array) -> Iterator[Array]:
    """For each curve the standardised coefficients of all columns that make it a line, and nothing else."""
    for curve, start in zip(basis.curves, basis.starts, strict=False):
        place, found = slice(start, start + len(curve.kept)), np.zeros(len(scale))
        found[place] = line_of(curve, scale[place])
        yield found


def bends(knots: Array) -> Array:
    """The matrix from values at knots to how far each inner one is off the line through its neighbours."""
    found = np.zeros((max(len(knots) - 2, 0), len(knots)))
    for i in range(len(found)):
        whole = knots[i + 2] - knots[i]
        found[i, i : i + 3] = -(knots[i + 2] - knots[i + 1]) / whole, 1.0, -(knots[i + 1] - knots[i]) / whole
    return found


def _steps(across: int, up: int) -> Array:
    """The matrix from values in a grid to the differences between neighbours, and, small, to the values."""
    place = np.arange(across * up).reshape(across, up)
    pairs = np.concatenate(
        [
            np.stack([place[1:], place[:-1]], -1).reshape(-1, 2),
            np.stack([place[:, 1:], place[:, :-1]], -1).reshape(-1, 2),
        ]
    )
    steps = np.zeros((len(pairs), across * up))
    steps[np.arange(len(pairs)), pairs[:, 0]] = math.sqrt(0.5)
    steps[np.arange(len(pairs)), pairs[:, 1]] = -math.sqrt(0.5)
    return np.vstack([steps, math.sqrt(_LEVEL) * np.eye(across * up)])
