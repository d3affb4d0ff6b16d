"""Three routes to bounded gradients, and the sum that each of them makes.

Without a bound, one record can move the sum of gradients as far as it likes, and no noise hides it. The lecture
names three ways to get one:

=============================  ====================================================================================
route                          what bounds the gradient of a record
=============================  ====================================================================================
``Clip(clip_norm)``            it is scaled down to this norm; for any loss, at the price of a bias
``BoundedData(row, target)``   rows and targets are brought within public bounds, parameters into a ball: then the
                               largest gradient follows from the loss, and nothing else is cut
``Declared(lipschitz)``        your promise that no gradient of this loss is longer
=============================  ====================================================================================

All three end in the same sum, which is clipped at the bound. Where the bound holds this changes nothing; where a
promise was wrong it costs accuracy, and not privacy. For a linear model the gradient of a record is a number times
its row, so clipping it is clipping that number: the result is the gradient of another convex loss, linear where
the first one was too steep (Song, Steinke, Thakkar, Thakurta 2021).

>>> from discreet.linear.losses import Logistic
>>> table = RecordTable.of([[3.0, 4.0], [0.0, 0.1]], [0, 1], "replace-one")
>>> total = GradientSum(Logistic(), table, Clip(1.0))
>>> total.clip_norm, total.at(np.zeros(2)).value.round(3)
(1.0, array([0.6 , 0.75]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_norm_of, clip_rows
from discreet.core.descent import OntoBall, Projection
from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter, real
from discreet.lecture.table import Floats, RecordTable
from discreet.linear.kernels.kernel import clipped_gradient, row_norms
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss

_UP = 1 + 1e-12


@dataclass(frozen=True)
class Clip:
    """Gradients longer than ``clip_norm`` are scaled down to it."""

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm_of("clip_norm", self.clip_norm))

    def bound(self, loss: Loss, project: Projection | None) -> float:
        return self.clip_norm

    def prepare(self, table: RecordTable) -> RecordTable:
        return table


@dataclass(frozen=True)
class Declared:
    """No gradient of this loss is longer than ``lipschitz``: assumed, as in the rank theorem."""

    lipschitz: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lipschitz", clip_norm_of("lipschitz", self.lipschitz))

    def bound(self, loss: Loss, project: Projection | None) -> float:
        return self.lipschitz

    def prepare(self, table: RecordTable) -> RecordTable:
        return table


@dataclass(frozen=True)
class BoundedData:
    """Rows are scaled down to the norm ``row``, targets are moved to between -``target`` and ``target``.

    A loss whose slope is bounded needs nothing else. The squared and the Poisson loss need ``target``, and
    parameters in a ball: ``project=OntoBall(radius)``.
    """

    row: float
    target: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", clip_norm_of("row", self.row))
        if self.target is not None:
            object.__setattr__(self, "target", real("target", self.target, above=0, at_most=1e100))

    def bound(self, loss: Loss, project: Projection | None) -> float:
        return clip_norm_of("row", self.row * self.steepest(loss, project) * _UP)

    def steepest(self, loss: Loss, project: Projection | None) -> float:
        """The largest slope of the loss that these data and parameters allow."""
        if loss.lipschitz is not None:
            return float(loss.lipschitz)
        if self.target is None:
            remedy = "must be given: the slope of this loss grows with the targets."
            raise InvalidParameter("target", None, remedy)
        if not (isinstance(project, OntoBall) and project.center == 0):
            remedy = "must be OntoBall(radius) around 0: the slope of this loss grows with the parameters."
            raise InvalidParameter("project", project, remedy)
        score = self.row * project.radius
        steepest = loss.steepest(score, self.target)
        if steepest is not None:
            return steepest
        raise InvalidParameter("row", self.row, "gives no bound for this loss; use Clip(clip_norm).")

    def prepare(self, table: RecordTable) -> RecordTable:
        targets = table.targets
        if self.target is not None:
            targets = np.clip(targets, -self.target, self.target)
        return replace(table, rows=clip_rows(table.rows, self.row), targets=targets)


Route = Clip | BoundedData | Declared


class GradientSum:
    """The sum over a table of the gradients at a point, each bounded by ``clip_norm``."""

    def __init__(
        self, loss: Loss, table: RecordTable, route: Route, project: Projection | None = None
    ) -> None:
        checked_loss(loss)
        if not isinstance(route, Route):
            raise InvalidParameter("route", route, "must be a Clip, BoundedData or Declared.")
        self.loss = loss
        self.clip_norm = route.bound(loss, project)
        self._table = route.prepare(table)
        self._norms = row_norms(self._table.rows, 0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters: one column for each output of the loss, if there are several."""
        return (self._table.dimension,) + ((self.loss.outputs,) if self.loss.outputs > 1 else ())

    def at(
        self, theta: Floats, batch: NDArray[np.int64] | None = None, norm: Literal["l2", "l1"] = "l2"
    ) -> BoundedSum:
        """The sum over the records of a batch, or over all of them.

        Guarantee: each record adds a vector of norm at most ``clip_norm``, which depends on the record and on
        ``theta`` only; a record with NaN or infinity adds nothing. A single number is bounded in the l1 norm too.
        """
        if norm == "l1" and math.prod(self.shape) != 1:
            raise InvalidParameter("norm", norm, "gradients of several coordinates are bounded in l2 only.")
        rows, targets, norms = self._table.rows, self._table.targets, self._norms
        if batch is not None:
            rows, targets, norms = rows[batch], targets[batch], norms[batch]
        below = np.zeros((1, *self.shape[1:]))  # the kernel's intercept, which is not used
        stacked = np.concatenate([below, theta])
        total = clipped_gradient(self.loss, rows, targets, stacked, 0.0, norms, self.clip_norm)
        return BoundedSum(total[1:], self.clip_norm, norm)
