"""Is the noise what was claimed? :func:`conformance` on coordinates that hold nothing but noise.

>>> from discreet.core.randomness import RandomStream
>>> draws = RandomStream(unsafe_seed=1).normal((40, 250))
>>> print(conformance(2.0 * draws, expected_std=2.0))
noise: as claimed (each step and the next: p = 1 after 19 tests, alpha = 0.001)
>>> conformance(1.8 * draws, expected_std=2.0).worst
'amount'
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from discreet.audit.finding import ALPHA, Finding
from discreet.audit.scores import (
    Array,
    binomial,
    centre,
    energy,
    evenly,
    gaussian_scores,
    grid_scores,
    laplace_scores,
    shape,
    two_sided,
)
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, one_of, real

_FINE = 2.0**14  # a grid with more steps in a standard deviation cannot be told from none
_MOST_COMPARED = 1000  # steps (or coordinates) that are compared with each other
_TAILS = (2.0, 3.0, 4.0)


def conformance(
    draws: ArrayLike,
    expected_std: float,
    *,
    alpha: float = ALPHA,
    law: str = "gaussian",
    grid: float | None = None,
    stream: RandomStream | None = None,
) -> Finding:
    """Test noise of shape ``(steps, coordinates)`` against independent draws of the claimed distribution.

    ``draws`` is what a run releases where the data add nothing: from records whose gradients are zero, or
    less the sum without noise. ``law`` is "gaussian" or "laplace"; hardened noise has a ``grid``, which every
    draw must lie on. What is tested: the amount (a chi-square test, so too little and too much), the centre,
    the shape (Kolmogorov-Smirnov and tails), correlation of each step and each coordinate with the next and
    with every other, evenness over steps and over coordinates, and steps that repeat bit for bit.

    Guarantee: honest noise is accused with probability at most ``alpha``, all tests together.
    """
    std = real("expected_std", expected_std, above=0)
    one_of("law", law, ("gaussian", "laplace"))
    values = _table(draws)
    if not np.isfinite(values).all():
        return Finding("noise", False, "some draws are not finite", alpha, 0.0)
    p_values = {} if grid is None else {"on the grid": _on_grid(values, real("grid", grid, above=0))}
    scores = _scores(values, std, law, grid, stream or system_stream())
    ratio = float(np.sqrt(np.mean(values**2))) / std
    finding = Finding.of("noise", p_values | _p_values(scores, values), alpha)
    if finding.passed:
        return finding
    shown = f"{finding.explanation}; the noise has {ratio:.4g} of the claimed standard deviation"
    return Finding.of("noise", dict(finding.tests), alpha, shown)


def _table(draws: ArrayLike) -> Array:
    try:
        values = np.asarray(draws, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameter("draws", type(draws).__name__, "must be an array of numbers.") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.size < 20:
        raise InvalidParameter(
            "draws.shape", values.shape, "must be (steps, coordinates), 20 numbers at least."
        )
    return values


def _on_grid(values: Array, grid: float) -> float:
    steps = values / grid
    return 1.0 if bool((steps == np.rint(steps)).all()) else 0.0


def _scores(values: Array, std: float, law: str, grid: float | None, stream: RandomStream) -> Array:
    if grid is not None and std / grid < _FINE:
        return grid_scores(values, std, grid, law, stream)
    return gaussian_scores(values, std) if law == "gaussian" else laplace_scores(values, std)


def _p_values(scores: Array, values: Array) -> dict[str, float]:
    found = {"steps that repeat": _repeats(values)} if values.shape[1] >= 3 else {}
    found |= {"amount": float(energy(scores)), "centre": float(centre(scores))}
    found["shape"] = shape(scores)
    for tail in _TAILS:
        beyond = int(np.count_nonzero(np.abs(scores) > tail))
        found[f"tail beyond {tail:g}"] = binomial(beyond, scores.size, float(2 * special.ndtr(-tail)))
    for name, table in (("step", scores), ("coordinate", scores.T)):
        if len(table) > 1:
            found |= {f"each {name} and the next": _neighbours_alike(table)}
            found |= {f"{test} {name}s, amount": p for test, p in evenly(energy(table, axis=1)).items()}
            found |= {f"{test} {name}s, centre": p for test, p in evenly(centre(table, axis=1)).items()}
        if len(table) > 1 and table.shape[1] >= 5:
            found[f"likeness of {name}s"] = _most_alike(table[:_MOST_COMPARED])
    return found


def _neighbours_alike(table: Array) -> float:
    """Lag-1 correlation, exactly: if a and b are independent normal, so are a + b and a - b.

    Rows are paired as (0, 1), (2, 3), ... and as (1, 2), (3, 4), ...; each pairing gives an F test.
    """
    p_values = []
    for first in (table, table[1:]):
        a, b = first[0 : len(first) // 2 * 2 : 2], first[1::2]
        if a.size:
            together, apart = float(np.sum((a + b) ** 2)), float(np.sum((a - b) ** 2))
            ratio = together / apart if apart > 0 else np.inf
            tails = (law(a.size, a.size, ratio) for law in (special.fdtr, special.fdtrc))
            p_values.append(float(two_sided(*tails)) if 0 < ratio < np.inf else 0.0)
    return min(1.0, len(p_values) * min(p_values))


def _most_alike(table: Array) -> float:
    """The largest correlation of any two rows, by the exact distribution of a correlation about 0."""
    size = table.shape[1]
    lengths = np.sqrt(np.sum(table**2, axis=1, keepdims=True))
    unit = table / np.where(lengths > 0, lengths, 1.0)
    above = np.triu_indices(len(table), 1)
    largest = min(1.0, float(np.abs((unit @ unit.T)[above]).max()))
    # The square of a correlation about 0 is Beta(1/2, (size - 1) / 2).
    return float(min(1.0, len(above[0]) * special.betainc((size - 1) / 2, 0.5, 1 - largest**2)))


def _repeats(values: Array) -> float:
    """0 if two steps are equal in every bit: independent draws of three or more floats never are."""
    rows = np.ascontiguousarray(values + 0.0)  # one zero for both signs
    return 1.0 if len({row.tobytes() for row in rows}) == len(rows) else 0.0
