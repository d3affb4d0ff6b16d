"""The regularised empirical risk of a linear model, and its minimiser.

    F(theta) = (1/n) sum_i loss(<x_i, theta>, y_i) + (regularisation / 2) |theta|^2

with every row x_i scaled down to a public norm ``row_bound`` and a public n. Perturbation and sampling methods
rest on four numbers of it, which :class:`Setting` knows without the data: how far one record can pull (the
Lipschitz constant times the row bound), how curved a record's loss can be, n, and the strong convexity that the
regularisation gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from discreet.core.clipping import clip_norm_of, clip_rows
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, real
from discreet.guarantee import Budget, Guarantee, of_records
from discreet.lecture.release import charge
from discreet.lecture.table import Floats, RecordTable
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss
from discreet.trusted.permits import NoisePermit, StepNoise

_NUDGE = 1e-5  # of the scores, for the slope of the residual
_MOST_STEPS = 500
_REACH = 1e6
_LEAST_REGULARISATION = 1e-8  # of the curvature: below it a Hessian may lose its digits


@dataclass(frozen=True)
class Setting:
    """Public settings: loss, bounds, number of records, and a guess of the optimum's norm."""

    loss: Loss
    row_bound: float
    records: int
    dimension: int
    norm_guess: float

    def __post_init__(self) -> None:
        checked_loss(self.loss)
        if self.loss.outputs != 1 or self.loss.lipschitz is None or self.loss.curvature is None:
            remedy = "needs a bounded slope and one output: Logistic, Huber or SmoothedHinge; or use descent."
            raise InvalidParameter("loss", self.loss, remedy)
        object.__setattr__(self, "row_bound", clip_norm_of("row_bound", self.row_bound))
        object.__setattr__(
            self, "norm_guess", real("norm_guess", self.norm_guess, at_least=1e-50, at_most=1e50)
        )

    @property
    def lipschitz(self) -> float:
        """The longest gradient of one record, rounded up."""
        return float(self.loss.lipschitz or 0.0) * self.row_bound * (1 + 1e-12)

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of the Hessian of one record, rounded up."""
        return float(self.loss.curvature or 0.0) * self.row_bound**2 * (1 + 1e-12)

    def tolerance(self, regularisation: float) -> float:
        """Tolerated gradient norm of the sum at a computed minimiser, half of it for rounding.

        A weak regularisation lets parameters grow to lipschitz / regularisation, and their scores' rounding errors
        add up over the records.
        """
        rounding = 8e-16 * (self.dimension + 4) * (self.records + 1e5) * self.smoothness / regularisation
        return self.lipschitz * (1e-9 * (1 + self.records / 1e5) + rounding)

    def best(self, excess: Callable[[float], float], least: float = 0.0) -> float:
        """The regularisation, not below ``least``, with the least predicted excess risk."""
        grid = np.geomspace(1e-8, 1e2, 41) * self.smoothness
        grid = np.append(grid[grid > least], max(least * (1 + 1e-9), 1e-8 * self.smoothness))
        return float(min(grid, key=excess))

    def check_strength(self, regularisation: object) -> float:
        """The regularisation as a float if Newton's method can work with it, or raise."""
        remedy = "It is public, on the scale of the mean loss, and makes the minimiser unique."
        least = _LEAST_REGULARISATION * self.smoothness
        return real("regularisation", regularisation, at_least=least, at_most=1e50, remedy=remedy)

    def describe(self, method: str, regularisation: float) -> dict[str, Any]:
        """The public numbers of a procedure, for ledgers and reports."""
        return {
            "method": method,
            "loss": repr(self.loss),
            "regularisation": regularisation,
            "row_bound": self.row_bound,
            "norm_guess": self.norm_guess,
            "records": self.records,
        }

    def bias(self, regularisation: float) -> float:
        """Excess risk due to regularisation alone, against a parameter of the guessed norm."""
        return regularisation * self.norm_guess**2 / 2


@dataclass(frozen=True, eq=False)
class MinimiserRequest:
    """Arguments of :func:`~discreet.lecture.erm.private_minimiser`."""

    loss: Loss
    X: ArrayLike
    y: ArrayLike
    budget: Budget
    regularisation: float | None
    row_bound: float
    norm_guess: float
    records: int | None
    stream: RandomStream
    ledger: AnyLedger
    ledger_key: KeyFile

    def pose(self) -> tuple[Setting, RecordTable]:
        """Check the arguments and separate public settings from private rows."""
        table = RecordTable.of(self.X, self.y, of_records(self.budget).neighbours, self.records)
        remedy = "A delta of 1 / number of records would allow to publish a whole record."
        real("delta", self.budget.delta, at_least=0, below=1 / table.records, remedy=remedy)
        return Setting(self.loss, self.row_bound, table.records, table.dimension, self.norm_guess), table

    def strength(self, setting: Setting, excess: Callable[[float], float], least: float = 0.0) -> float:
        """The regularisation that was asked for, or the best by the predicted excess risk."""
        if self.regularisation is None:
            return setting.best(excess, least)
        return setting.check_strength(self.regularisation)

    def charge(
        self, noise: StepNoise, clip_norm: float | None, guarantee: Guarantee, settings: dict[str, Any]
    ) -> NoisePermit:
        """Charge ``noise`` before anything is released, and return the permit to draw it."""
        return charge(self.ledger, self.ledger_key, noise, clip_norm, self.stream, guarantee, settings)


class EmpiricalRisk:
    """The risk of one table, n times as large: the sum over its records, and its regularisation."""

    def __init__(self, setting: Setting, table: RecordTable, regularisation: float) -> None:
        self.loss = setting.loss
        self.rows: Floats = clip_rows(table.rows, setting.row_bound)
        # A target far beyond every score only says "higher" or "lower"; nearer ones leave digits for the rest.
        reach = _REACH * (float(setting.loss.lipschitz or 0.0) + setting.row_bound * setting.norm_guess)
        self.targets: Floats = np.clip(table.targets, -reach, reach)
        self.convexity = setting.records * regularisation
        self.curvature = float(setting.loss.curvature or 0.0)

    def gradient(self, theta: Floats) -> Floats:
        residual = self.loss.residual(self.rows @ theta, self.targets)
        return np.asarray(self.rows.T @ residual + self.convexity * theta)

    def minimiser(self, tilt: Floats, tolerance: float) -> Floats:
        """A point where the gradient plus ``tilt`` is not longer than ``tolerance``, by Newton's method.

        Steps are halved until the risk falls along all of them (its derivative there is not positive) or the
        gradient is half as long; strong convexity and bounded curvature make this end.
        """
        theta = np.zeros(self.rows.shape[1])
        slope = self.gradient(theta) + tilt
        for _ in range(_MOST_STEPS):
            if np.linalg.norm(slope) <= tolerance / 2:  # the other half is for rounding
                break
            step = -cho_solve(cho_factor(self._hessian(theta)), slope)
            size = 1.0
            while True:
                moved = theta + size * step
                there = self.gradient(moved) + tilt
                shorter = np.linalg.norm(there) <= 0.5 * np.linalg.norm(slope)
                if shorter or there @ step <= 0 or size < 1e-12:
                    break
                size /= 2
            theta, slope = moved, there
        return theta

    def _hessian(self, theta: Floats) -> Floats:
        scores = self.rows @ theta
        ahead = self.loss.residual(scores + _NUDGE, self.targets)
        behind = self.loss.residual(scores - _NUDGE, self.targets)
        curvature = np.clip((ahead - behind) / (2 * _NUDGE), 0.0, self.curvature)
        hessian = self.rows.T @ (curvature[:, None] * self.rows)
        hessian[np.diag_indices_from(hessian)] += self.convexity
        return np.asarray(hessian)
