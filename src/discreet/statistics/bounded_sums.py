"""Counts, histograms, sums, variances and covariances: one noisy sum of bounded vectors each.

Every number is moved into its declared bounds, and NaN adds nothing. Under add-remove neighbours the number of
records is private, and is released with the others where it is needed; under replace-one neighbours it is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import ndtri

from discreet.certificate import Certificate
from discreet.core.mean.known import Interval
from discreet.core.silence import silently
from discreet.errors import InvalidParameter, probability, whole
from discreet.events import Gaussian
from discreet.guarantee import Budget, neighbours_named, of_records
from discreet.linear.column_kinds import distinct
from discreet.linear.inputs import cells_of, codes, number_table, numbers
from discreet.statistics.purchase import MOST_NUMBERS, MOST_RECORDS, Paying, Purchase, buy
from discreet.statistics.statistic import Statistic, Value

Array = NDArray[np.float64]

_BLOCK = 2**16  # rows that are rounded and added at once


@silently
def private_count(
    x: Any,
    budget: Budget,
    *,
    confidence: float = 0.95,
    **paying: Unpack[Paying],
) -> Statistic:
    """How many records there are in ``x``; of booleans, how many are true.

    Guarantee: costs at most ``budget``, whatever the records hold.

    >>> found = private_count(np.arange(1000) % 4 == 0, Budget(1.0, 0.0))
    >>> abs(found.value - 250) < 30, found.guarantee.delta
    (True, 0.0)
    """
    level, ones = _checked_confidence(budget, confidence), _ones(x)
    if budget.neighbours == "replace-one":  # from 1/2 each record counts half as much
        return _bounded_sum("count", ones, budget, (0.0, 1.0), level, **paying)
    with buy("private count", {"bounds": [0.0, 1.0]}, budget, counts=True, **paying) as purchase:
        total = np.array([np.count_nonzero(ones)], np.int64) * purchase.steps(1.0)
        value = float(purchase.release(total)[0])
    return _answer("count", purchase, level, value, purchase.noise, least=0.0)


@silently
def private_histogram(
    x: Any,
    budget: Budget,
    bins: Sequence[Any] | ArrayLike,
    *,
    categories: bool = False,
    confidence: float = 0.95,
    **paying: Unpack[Paying],
) -> Statistic:
    """How many records there are in each bin: ``bins`` are declared edges, the last one inclusive, as numpy's.

    With ``categories=True`` they are declared values. Whatever is in no bin is not counted. Numbers below 0 are told
    as 0, so those of rare bins are too large on average.

    Guarantee: costs at most ``budget``: a record adds 1 to one number.

    >>> found = private_histogram(["a", "b", "a"], Budget(8.0, 0.0), ("a", "b", "c"), categories=True)
    >>> found.labels
    ('a', 'b', 'c')
    """
    level = _checked_confidence(budget, confidence)
    if categories:
        known = tuple(distinct("bins", bins))  # type: ignore[arg-type]
        cells, labels = one_for_each_record(codes(x, known)), tuple(map(str, known))
    else:
        edges = _edges(bins)
        values = vector(x)
        cells = np.searchsorted(edges, values, side="right") - 1
        cells[values == edges[-1]] = len(edges) - 2
        cells[~((values >= edges[0]) & (values <= edges[-1]))] = -1
        labels = tuple(f"{low:g} to {high:g}" for low, high in pairwise(edges.tolist()))
    settings = {"bins": list(labels)}
    with buy("private histogram", settings, budget, numbers=len(labels), counts=True, **paying) as purchase:
        counted = np.bincount(cells[cells >= 0], minlength=len(labels)).astype(np.int64)
        noisy = purchase.release(counted * purchase.steps(1.0))
    noise = np.full(len(labels), purchase.noise)
    return _answer("histogram", purchase, level, noisy, noise, labels, least=0.0)


@silently
def private_sum(
    x: Any,
    budget: Budget,
    bounds: tuple[float, float],
    *,
    confidence: float = 0.95,
    **paying: Unpack[Paying],
) -> Statistic:
    """The sum of numbers within declared bounds.

    Guarantee: costs at most ``budget``. Under replace-one neighbours a record counts from the middle of the bounds.
    """
    return _bounded_sum("sum", vector(x), budget, bounds, confidence, **paying)


def _bounded_sum(
    name: str,
    values: Array,
    budget: Budget,
    bounds: tuple[float, float],
    confidence: float,
    **paying: Unpack[Paying],
) -> Statistic:
    level, known = _checked_confidence(budget, confidence), interval(bounds)
    exact = budget.neighbours == "replace-one"
    middle = (known.lower + known.upper) / 2 if exact else 0.0
    size = (known.upper - known.lower) / 2 if exact else max(abs(known.lower), abs(known.upper))
    unit = (np.clip(values, known.lower, known.upper) - middle) / size
    with buy(f"private {name}", {"bounds": [known.lower, known.upper]}, budget, **paying) as purchase:
        total = float(_noisy_sum(purchase, unit[:, None], np.ones(1))[0])
    least = 0.0 if name == "count" else -math.inf
    value, noise = size * total + len(values) * middle, size * purchase.noise
    return _answer(name, purchase, level, value, noise, least=least)


@silently
def private_variance(
    x: Any,
    budget: Budget,
    bounds: tuple[float, float],
    *,
    confidence: float = 0.95,
    **paying: Unpack[Paying],
) -> Statistic:
    """The variance of numbers within declared bounds, from their number, sum and sum of squares, released together.

    Guarantee: costs at most ``budget``.
    """
    level, known, values = _checked_confidence(budget, confidence), interval(bounds), vector(x)
    exact = budget.neighbours == "replace-one"
    half, middle = (known.upper - known.lower) / 2, (known.upper + known.lower) / 2
    unit = (np.clip(values, known.lower, known.upper) - middle) / half
    # Squares are counted from 1/2, so that they reach as far to both sides: half as much may be added.
    parts = np.column_stack([np.isfinite(unit), unit, np.square(unit) - 0.5])[:, int(exact) :]
    reach = np.array([1.0, 1.0, 0.5])[int(exact) :]
    settings = {"bounds": [known.lower, known.upper]}
    size = len(reach)
    with buy("private variance", settings, budget, math.sqrt(size), numbers=size, **paying) as purchase:
        lengths = purchase.weights(np.full(len(reach), 1 / math.sqrt(len(reach))))
        noisy = _noisy_sum(purchase, parts / reach, lengths) * reach
    noise = purchase.noise * reach / lengths
    number, first, second = (float(len(values)), *noisy) if exact else noisy
    number = max(number, 1.0)
    mean, square = first / number, second / number + 0.5
    slopes = np.array([-(square - 0.5 - 2 * mean**2), -2 * mean, 1.0])[int(exact) :] / number
    error = half**2 * float(np.linalg.norm(slopes * noise))
    return _answer("variance", purchase, level, half**2 * (square - mean**2), error, least=0.0, most=half**2)


@silently
def private_covariance(
    x: Any,
    budget: Budget,
    bounds: tuple[ArrayLike, ArrayLike],
    *,
    confidence: float = 0.95,
    **paying: Unpack[Paying],
) -> Statistic:
    """The covariance matrix of columns within declared bounds, from all their second moments, released together.

    A row is u, with each column's bounds at -1 and 1, and z = (sqrt(d), u): the entries of z z^T with those off the
    diagonal times sqrt(2) have the l2 norm |z|^2, which is at most 2 d.

    Guarantee: costs at most ``budget``. A row with a NaN adds nothing.
    """
    level, (rows, middle, half) = _checked_confidence(budget, confidence), bounded_rows(x, bounds)
    moments, noise, purchase = second_moments((rows - middle) / half, "private covariance", budget, **paying)
    value, error = covariance_of(moments, noise, half)
    return _answer("covariance", purchase, level, value, error)


# ---- what they share ----


def bounded_rows(x: Any, bounds: tuple[ArrayLike, ArrayLike]) -> tuple[Array, Array, Array]:
    """Rows within the bounds of their columns, and the middle and half width of these."""
    if issparse(x):
        raise InvalidParameter("x", type(x).__name__, "must be a table with all its cells: x.toarray().")
    table = np.asarray(number_table(x, name="x"), np.float64)
    _check_room(table)
    try:
        limits = [np.asarray(end, np.float64) for end in bounds]
    except (TypeError, ValueError):
        limits = []
    if len(limits) != 2 or any(end.shape not in ((), (table.shape[1],)) for end in limits):
        raise InvalidParameter("bounds", bounds, "must be (lower, upper): numbers, or one for each column.")
    lower, upper = (np.broadcast_to(end, (table.shape[1],)) for end in limits)
    for low, high in zip(lower.tolist(), upper.tolist(), strict=True):
        Interval(low, high)
    return np.clip(table, lower, upper), (lower + upper) / 2, (upper - lower) / 2


def second_moments(
    unit: Array, name: str, budget: Budget, **paying: Unpack[Paying]
) -> tuple[Array, float, Purchase]:
    """The noisy sum of z z^T for z = (sqrt(d), u), and the noise of each number off the diagonal."""
    width = unit.shape[1] + 1
    if width * (width + 1) // 2 > MOST_NUMBERS:
        raise InvalidParameter("x", f"{width - 1} columns", "has too many columns; 2 894 are the most.")
    upper = np.triu_indices(width)
    unit = np.clip(unit, -1.0, 1.0)  # bounds a few roundings apart have no middle: rows reach further than 1
    stretch = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    most, root = 2.0 * (width - 1), math.sqrt(width - 1)

    def vectors(rows: Array) -> Array:
        z = np.column_stack([np.full(len(rows), root), rows])
        return np.asarray(z[:, upper[0]] * z[:, upper[1]] * (stretch / most))

    settings, size = {"columns": width - 1}, len(stretch)
    with buy(name, settings, budget, math.sqrt(size), numbers=size, **paying) as purchase:
        # The l1 norm of a vector is at most sqrt(size) times its l2 norm.
        shrink = 1.0 if isinstance(purchase.event, Gaussian) else 1 / math.sqrt(len(stretch))
        total = _noisy_sum(purchase, unit, np.full(len(stretch), shrink * (1 - 1e-12)), vectors)
    moments = np.zeros((width, width))
    moments[upper] = total / stretch * most
    moments = moments + np.triu(moments, 1).T
    return moments, purchase.noise / shrink * most, purchase


def covariance_of(moments: Array, noise: float, half: Array) -> tuple[Array, Array]:
    """The covariance in units of the table, and the standard deviation of its noise, to first order."""
    d = len(half)
    number = max(float(moments[0, 0]) / d, 1.0)
    mean = moments[0, 1:] / math.sqrt(d) / number
    value = moments[1:, 1:] / number - np.outer(mean, mean)
    own = np.where(np.eye(d, dtype=bool), 1.0, 0.5)
    spread = (
        own + (np.square(mean)[:, None] + np.square(mean)) / (2 * d) + np.square(np.outer(mean, mean)) / d**2
    )
    scale = np.outer(half, half)
    return value * scale, np.sqrt(spread) * scale * noise / number


def _noisy_sum(
    purchase: Purchase, rows: Array, lengths: Array, vectors: Callable[[Array], Array] | None = None
) -> Array:
    """The noisy sum of rows whose entries are within [-1, 1], or of vectors made of them, each times its length.

    Every entry is cut toward zero to whole steps; a row with a NaN adds nothing. The lengths are divided out again.
    """
    total = np.zeros(len(lengths), np.int64)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        part = part if vectors is None else vectors(part)
        good = np.isfinite(part).all(1, keepdims=True)
        steps = np.clip(np.where(good, part, 0.0), -1.0, 1.0) * (lengths * (1 - 1e-12) / purchase.grid)
        total += steps.astype(np.int64).sum(0)
    return np.asarray(purchase.release(total) / lengths)


def _checked_confidence(budget: Budget, confidence: float) -> float:
    """The confidence, if it and the budget are ones that rows can be counted with."""
    of_records(budget)
    return probability("confidence", confidence, remedy="For instance 0.95.")


def interval(bounds: tuple[float, float]) -> Interval:
    """Declared bounds of one number."""
    if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str) or len(bounds) != 2:
        raise InvalidParameter("bounds", bounds, "must be (lower, upper), for instance (0, 100).")
    return Interval(*bounds)


def vector(x: Any) -> Array:
    """One number for each record; NaN where it is none."""
    values = np.asarray(numbers(x, "x"), np.float64)
    return np.where(np.isfinite(one_for_each_record(values)), values, np.nan)


def one_for_each_record(values: NDArray[Any]) -> NDArray[Any]:
    """Return ``values`` if a record has just one of them: with more it would count for more than is paid for."""
    if values.ndim != 1:
        raise InvalidParameter("x.ndim", values.ndim, "must have one value for each record.")
    _check_room(values)
    return values


def _ones(x: Any) -> Array:
    """1 for each record that counts: all but what is False; where the type says truths, only what is True.

    What a record is decides about itself alone: a None among truths does not count the others another way.
    """
    array = np.fromiter(x, object, len(x)) if isinstance(x, list | tuple) else cells_of(x)
    if array.ndim == 0:
        raise InvalidParameter("x", type(x).__name__, "must have a row or a value for each record.")
    _check_room(array)
    if array.dtype.kind == "b":
        return one_for_each_record(array).astype(np.float64)
    if array.dtype.kind != "O" or array.ndim > 1:
        return np.ones(len(array))
    kind = str(getattr(x, "dtype", getattr(x, "type", ""))).lower()
    silent = kind not in ("boolean", "bool", "bool[pyarrow]")  # else what is missing is not true
    return np.array([bool(one) if isinstance(one, bool | np.bool_) else silent for one in array], np.float64)


def _check_room(rows: NDArray[Any]) -> None:
    if len(rows) > MOST_RECORDS:
        raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")


def _edges(bins: Any) -> Array:
    try:
        edges = np.asarray(bins, np.float64)
    except (TypeError, ValueError):
        edges = np.empty(0)
    if edges.ndim != 1 or len(edges) < 2 or not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        remedy = "must be two or more increasing edges; declared values go with categories=True."
        raise InvalidParameter("bins", bins, remedy)
    return edges


def _answer(
    name: str,
    purchase: Purchase,
    level: float,
    value: Value,
    noise: Value,
    labels: tuple[str, ...] = (),
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Statistic:
    """The statistic with its interval: exact where a number has its own noise, else of a normal law."""
    plain = name in ("count", "sum", "histogram")
    reach = purchase.farthest(level) if plain else purchase.noise * float(ndtri(0.5 + level / 2))
    times = np.asarray(noise) / purchase.noise  # exactly 1 where noise is the purchase's own
    ends = [np.clip(value + side * reach * times, least, most) for side in (-1, 1)]
    found = np.clip(value, least, most)
    if np.ndim(value) == 0:
        return Statistic(
            name, float(found), float(ends[0]), float(ends[1]), float(noise), level, purchase.certificate
        )
    return Statistic(name, found, ends[0], ends[1], np.asarray(noise), level, purchase.certificate, labels)


# ---- principal components of private rows: PrivatePCA ----


class PrivatePCA:
    """Principal components of columns within declared bounds, from their private covariance matrix.

    Attributes: ``mean_``, ``covariance_``, ``components_`` (a row each, as scikit-learn's), ``explained_variance_``,
    ``certificate_``.

    Guarantee: ``fit`` costs (epsilon, delta) at most, whatever the records hold; the components follow from the
    released matrix.

    >>> rng = np.random.default_rng(0)
    >>> x = np.outer(rng.uniform(-1, 1, 5000), [3.0, 4.0]) / 5
    >>> model = PrivatePCA(1, epsilon=1.0, delta=1e-6, bounds=(-1, 1)).fit(x)
    >>> np.abs(model.components_ @ [0.6, 0.8]).round(2).tolist()
    [1.0]
    """

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        bounds: Any,
        neighbours: str = "add-remove",
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta, self.bounds = n_components, epsilon, delta, bounds
        self.neighbours, self.ledger, self.ledger_key = neighbours, ledger, ledger_key
        self.unsafe_seed = unsafe_seed
        self.certificate_: Certificate

    @silently
    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components, at the cost of (epsilon, delta)."""
        budget = Budget(self.epsilon, self.delta, neighbours_named(self.neighbours))
        rows, middle, half = bounded_rows(X, self.bounds)
        kept = whole("n_components", self.n_components, at_least=1, at_most=rows.shape[1])
        moments, noise, purchase = second_moments(
            (rows - middle) / half,
            "private components",
            budget,
            ledger=self.ledger,
            ledger_key=self.ledger_key,
            unsafe_seed=self.unsafe_seed,
        )
        self.covariance_, _ = covariance_of(moments, noise, half)
        number = max(float(moments[0, 0]) / len(half), 1.0)
        self.mean_: Array = middle + half * np.clip(moments[0, 1:] / np.sqrt(len(half)) / number, -1, 1)
        values, vectors = np.linalg.eigh(self.covariance_)
        self.explained_variance_: Array = np.maximum(values[::-1][:kept], 0.0)
        self.components_: Array = np.ascontiguousarray(vectors[:, ::-1].T[:kept])
        self.certificate_ = purchase.certificate
        return self

    def transform(self, X: Any) -> Array:
        """The rows, within the bounds, in the components."""
        if not hasattr(self, "components_"):
            raise InvalidParameter("X", "before fit", "call fit() first.")
        rows, _, _ = bounded_rows(X, self.bounds)
        return np.asarray((rows - self.mean_) @ self.components_.T)
