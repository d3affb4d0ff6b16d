"""Counts, histograms, sums, variances and covariances: one noisy sum of bounded vectors each.

Every number is moved into its declared bounds, and NaN adds nothing. Under add-remove neighbours the number of
records is private, and is released with the others where it is needed; under replace-one neighbours it is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from discreet.certificate import Certificate
from discreet.core.fp_errors import ignore_fp_errors
from discreet.errors import InvalidParameter, probability, whole
from discreet.guarantee import Budget, neighbours_named, of_records
from discreet.linear.column_kinds import distinct
from discreet.statistics.least_noise import candidates, deviation, norm_of, quantile
from discreet.statistics.mean.known import Interval
from discreet.statistics.reading import bounded_rows, bounded_table, category_rows, counted_rows, number_rows
from discreet.statistics.statistic import Paying, Statistic, Value
from discreet.statistics.statistic_views import Bin, Code, Polynomial, Products
from discreet.trusted.queries import Blocks, Cells, Rows
from discreet.trusted.rows import PrivateRows
from discreet.trusted.session import MOST_NUMBERS, Noise, Session

Array = NDArray[np.float64]

_MARGIN = 1 - 1e-12  # more than the product of a clamped number and its limit is rounded by


@ignore_fp_errors
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
    level = _checked_confidence(budget, confidence)
    rows = counted_rows(x, budget.neighbours)
    if budget.neighbours == "replace-one":  # from 1/2 each record counts half as much
        return _bounded_sum("count", rows, budget, (0.0, 1.0), level, **paying)
    settings, events = {"bounds": [0.0, 1.0]}, candidates(budget, counts=True)
    with Session.open("private count", settings, budget, *events, **paying) as session:
        query = Blocks((Cells(Bin(0, (0.5, 1.5)), (1,), (1.0,)),), norm=norm_of(_noise(session)))
        value = float(session.release(session.charge(), rows, query)[0])
    return _answer("count", session, level, value, deviation(_noise(session)), least=0.0)


@ignore_fp_errors
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
    view: Bin | Code
    if categories:
        known = tuple(distinct("bins", bins))  # type: ignore[arg-type]
        rows, labels = category_rows(x, known, budget.neighbours), tuple(map(str, known))
        view = Code(0)
    else:
        edges = _edges(bins)
        rows = number_rows(x, budget.neighbours)
        labels = tuple(f"{low:g} to {high:g}" for low, high in pairwise(edges.tolist()))
        view = Bin(0, tuple(edges.tolist()))
    settings, size, events = {"bins": list(labels)}, len(labels), candidates(budget, counts=True)
    with Session.open("private histogram", settings, budget, *events, **paying) as session:
        query = Blocks((Cells(view, (size,), (1.0,)),), norm=norm_of(_noise(session)))
        noisy = session.release(session.charge(numbers=size), rows, query)
    noise = np.full(size, deviation(_noise(session)))
    return _answer("histogram", session, level, noisy, noise, labels, least=0.0)


@ignore_fp_errors
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
    return _bounded_sum(
        "sum", number_rows(x, of_records(budget).neighbours), budget, bounds, confidence, **paying
    )


def _bounded_sum(
    name: str,
    rows: PrivateRows,
    budget: Budget,
    bounds: tuple[float, float],
    confidence: float,
    **paying: Unpack[Paying],
) -> Statistic:
    level, known = _checked_confidence(budget, confidence), interval(bounds)
    exact = rows.public_count is not None
    middle = (known.lower + known.upper) / 2 if exact else 0.0
    size = (known.upper - known.lower) / 2 if exact else max(abs(known.lower), abs(known.upper))
    settings, events = {"bounds": [known.lower, known.upper]}, candidates(budget)
    with Session.open(f"private {name}", settings, budget, *events, **paying) as session:
        view = Polynomial(0, known.lower, known.upper, middle, size, factor=_MARGIN)
        query = Blocks((Cells(view, (1,), (1.0,)),), norm=norm_of(_noise(session)))
        total = float(session.release(session.charge(), rows, query)[0])
    least = 0.0 if name == "count" else -math.inf
    value, noise = size * total + (rows.public_count or 0) * middle, size * deviation(_noise(session))
    return _answer(name, session, level, value, noise, least=least)


@ignore_fp_errors
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
    level, known = _checked_confidence(budget, confidence), interval(bounds)
    rows = number_rows(x, budget.neighbours)
    half, middle = (known.upper - known.lower) / 2, (known.upper + known.lower) / 2
    # With u in [-1, 1]: 1, u and 2 u^2 - 1. Squares are counted from 1/2, so that they reach as far to both sides.
    powers = [(1.0,), (0.0, 1.0), (-1.0, 0.0, 2.0)]
    reach = np.array([1.0, 1.0, 0.5])
    if rows.public_count is not None:
        powers, reach = powers[1:], reach[1:]
    settings, size = {"bounds": [known.lower, known.upper]}, len(reach)
    events = candidates(budget, math.sqrt(size))
    with Session.open("private variance", settings, budget, *events, **paying) as session:
        norm = norm_of(_noise(session))
        length = (1 / math.sqrt(size) if norm == "l2" else 1 / size) * (1 - 1e-12)
        views = [
            Polynomial(0, known.lower, known.upper, middle, half, power, length * _MARGIN) for power in powers
        ]
        query = Blocks(tuple(Cells(view, (1,), (length,)) for view in views), norm=norm)
        released = session.release(session.charge(numbers=size), rows, query)
    noisy, noise = released / length * reach, deviation(_noise(session)) * reach / length
    counted = rows.public_count is None
    number, first, second = noisy if counted else (float(rows.public_count or 0), *noisy)
    number = max(number, 1.0)
    mean, square = first / number, second / number + 0.5
    slopes = np.array([-(square - 0.5 - 2 * mean**2), -2 * mean, 1.0])[0 if counted else 1 :] / number
    error = half**2 * float(np.linalg.norm(slopes * noise))
    return _answer("variance", session, level, half**2 * (square - mean**2), error, least=0.0, most=half**2)


@ignore_fp_errors
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
    level = _checked_confidence(budget, confidence)
    rows, lower, upper = bounded_rows(x, bounds, budget.neighbours)
    moments, noise, session = second_moments(rows, lower, upper, "private covariance", budget, **paying)
    value, error = covariance_of(moments, noise, (upper - lower) / 2)
    return _answer("covariance", session, level, value, error)


def second_moments(
    rows: PrivateRows, lower: Array, upper: Array, name: str, budget: Budget, **paying: Unpack[Paying]
) -> tuple[Array, float, Session]:
    """The noisy sum of z z^T for z = (sqrt(d), u), and the noise of each number off the diagonal."""
    width = len(lower)
    size = (width + 1) * (width + 2) // 2
    if size > MOST_NUMBERS:
        raise InvalidParameter("x", f"{width} columns", "has too many columns; 2 894 are the most.")
    # The l1 norm of a vector is at most sqrt(size) times its l2 norm.
    settings, events = {"columns": width}, candidates(budget, math.sqrt(size))
    with Session.open(name, settings, budget, *events, **paying) as session:
        norm = norm_of(_noise(session))
        shrink = 1.0 if norm == "l2" else 1 / math.sqrt(size)
        view = Products(tuple(lower.tolist()), tuple(upper.tolist()), shrink * (1 - 1e-12))
        released = session.release(
            session.charge(numbers=size), rows, Blocks((Rows(view, size, 1.0),), norm=norm)
        )
    first, second = np.triu_indices(width + 1)
    most, stretch = 2.0 * width, np.where(first == second, 1.0, math.sqrt(2))
    moments = np.zeros((width + 1, width + 1))
    moments[first, second] = released / (shrink * (1 - 1e-12)) / stretch * most
    moments = moments + np.triu(moments, 1).T
    return moments, deviation(_noise(session)) / shrink * most, session


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


def _noise(session: Session) -> Noise:
    """The noise of a session's one release."""
    assert isinstance(session.event, Noise)
    return session.event


def _checked_confidence(budget: Budget, confidence: float) -> float:
    """The confidence, if it and the budget are ones that rows can be counted with."""
    of_records(budget)
    return probability("confidence", confidence, remedy="For instance 0.95.")


def interval(bounds: tuple[float, float]) -> Interval:
    """Declared bounds of one number."""
    if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str) or len(bounds) != 2:
        raise InvalidParameter("bounds", bounds, "must be (lower, upper), for instance (0, 100).")
    return Interval(*bounds)


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
    session: Session,
    level: float,
    value: Value,
    noise: Value,
    labels: tuple[str, ...] = (),
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Statistic:
    """The statistic with its interval: exact where a number has its own noise, else of a normal distribution."""
    plain = name in ("count", "sum", "histogram")
    own = deviation(_noise(session))
    reach = quantile(_noise(session), level) if plain else own * float(ndtri(0.5 + level / 2))
    times = np.asarray(noise) / own  # exactly 1 where noise is the release's own
    ends = [np.clip(value + side * reach * times, least, most) for side in (-1, 1)]
    found = np.clip(value, least, most)
    if np.ndim(value) == 0:
        return Statistic(
            name, float(found), float(ends[0]), float(ends[1]), float(noise), level, session.certificate()
        )
    return Statistic(name, found, ends[0], ends[1], np.asarray(noise), level, session.certificate(), labels)


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

    @ignore_fp_errors
    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components, at the cost of (epsilon, delta)."""
        budget = Budget(self.epsilon, self.delta, neighbours_named(self.neighbours))
        rows, lower, upper = bounded_rows(X, self.bounds, budget.neighbours)
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        kept = whole("n_components", self.n_components, at_least=1, at_most=rows.columns)
        moments, noise, session = second_moments(
            rows,
            lower,
            upper,
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
        self.certificate_ = session.certificate()
        return self

    def transform(self, X: Any) -> Array:
        """The rows, within the bounds, in the components."""
        if not hasattr(self, "components_"):
            raise InvalidParameter("X", "before fit", "call fit() first.")
        table, lower, upper = bounded_table(X, self.bounds)
        return np.asarray((np.clip(table, lower, upper) - self.mean_) @ self.components_.T)
