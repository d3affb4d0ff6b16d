"""How good a private model of a table may become, before there is a table: a rule of thumb, and called one.

A classifier of n records with d whitened columns finds a direction. Sampling and privacy both put noise on it, and
the more noise, the further it points off. With strength mu of the budget, clip norm C and curvature k of the loss,

    variance of a coefficient  ~  1 / (n k)  +  (1.5 C / (n mu k))^2,      C ~ 0.4 sqrt(d + 1),

and the accuracy follows from the angle. Columns that overlap count less: then d is the root of their number. The two
constants were chosen by looking at made-up tables with independent columns and at two of the benchmark (Adult, breast
cancer); between the two cases lie most tables, within a few points, and below where the budget is tiny.

>>> few, many = (forecast(Table(n, 30, 0.975, 1e-5)) for n in (455, 50_000))
>>> round(few.at(1.0), 2), round(few.at(1.0, overlapping=True), 2), round(many.at(1.0), 3)
(0.8, 0.95, 0.975)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr

from discreet.accounting.gaussian import gaussian_mu
from discreet.errors import InvalidParameter, real, whole

EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_SHARE = 0.6  # of the budget for the descent itself; the rest looks at columns and counts
_RESIDUAL = 1.5 * 0.4  # a typical residual of a logistic model, and what the recipe loses on the way


@dataclass(frozen=True)
class Table:
    """What is known beforehand: records, columns after encoding, and the accuracy hoped for without privacy."""

    records: int
    columns: int
    best: float
    delta: float

    def __post_init__(self) -> None:
        whole("records", self.records, at_least=10, at_most=10**12)
        whole("columns", self.columns, at_least=1, at_most=10**6)
        real("best", self.best, above=0.5, below=1)
        real("delta", self.delta, above=0, below=0.1)


@dataclass(frozen=True)
class Forecast:
    """The rule of thumb for one table."""

    table: Table
    size: float  # of the true coefficients, in whitened columns
    curvature: float

    def at(self, epsilon: float, *, overlapping: bool = False) -> float:
        """The accuracy to expect at ``epsilon``, for columns that are independent or overlap."""
        table, k, free = self.table, self.curvature, float(self.table.columns)
        if overlapping:
            free = math.sqrt(free)
        noise = 0.0
        if math.isfinite(epsilon):
            strength = math.sqrt(_SHARE) * gaussian_mu(epsilon, table.delta)
            noise = _RESIDUAL * math.sqrt(free + 1) / (table.records * strength * k)
        spread = free * (1 / (table.records * k) + noise**2)
        return _accuracy(self.size, self.size / math.hypot(self.size, math.sqrt(spread)))


def forecast(table: Table) -> Forecast:
    """The rule of thumb: coefficients as large as the hoped-for accuracy needs."""
    size = float(brentq(lambda size: _accuracy(size, 1.0) - table.best, 1e-6, 1e4))
    scores = size * _NODES
    curvature = _mean(expit(scores) * expit(-scores))
    return Forecast(table, size, curvature)


def forecast_answer(data: Any) -> dict[str, Any]:
    """The curve over epsilon, and at epsilon 1 a grid of more and fewer records and columns."""
    try:
        table = Table(**data)
    except TypeError as error:
        raise InvalidParameter("table", data, f"is incomplete ({error}).") from None
    found = forecast(table)
    tens = [factor for factor in (0.01, 0.1, 1, 10, 100) if table.records * factor >= 10]
    sizes = [round(table.records * factor) for factor in tens]
    grid = [
        [forecast(Table(size, columns, table.best, table.delta)).at(1.0) for size in sizes]
        for columns in _columns_beside(table.columns)
    ]
    return {
        "epsilon": list(EPSILONS),
        "accuracy": [found.at(epsilon) for epsilon in EPSILONS],
        "overlapping": [found.at(epsilon, overlapping=True) for epsilon in EPSILONS],
        "without": table.best,
        "records": sizes,
        "columns": _columns_beside(table.columns),
        "grid": grid,
    }


def _columns_beside(columns: int) -> list[int]:
    return sorted({max(1, round(columns * factor)) for factor in (0.1, 0.3, 1, 3, 10)})


def _accuracy(size: float, cosine: float) -> float:
    """Of a classifier that points off by an angle, where scores are normal with standard deviation ``size``."""
    off = math.sqrt(max(1e-18, 1 - cosine**2))
    right = ndtr(cosine * np.abs(_NODES) / off)
    good = expit(size * np.abs(_NODES))
    return _mean(right * good + (1 - right) * (1 - good))


def _mean(values: Any) -> float:
    return float(_WEIGHTS @ values / _WEIGHTS.sum())
