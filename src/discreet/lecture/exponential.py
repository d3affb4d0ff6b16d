"""The exponential mechanism for linear models: a draw from a distribution that prefers low risk.

**Over all parameters**, :func:`exponential_sampling` draws from the Gibbs distribution

    density(theta) ~ exp(-k F(theta)),      F = mean loss + (regularisation / 2) |theta|^2

(Gopi, Lee, Liu 2022). If the loss is convex and one record changes k F by a function of slope at most k L / n, the
draw is as private as one Gaussian release of strength m = (k L / n) / sqrt(k * regularisation), exactly, at every
epsilon. So k = n^2 regularisation m^2 / L^2, and the expected F exceeds its minimum by at most dimension / k.

The draw is exact, by rejection. Losses are convex, so they lie above their tangents at any point; replacing them by
the tangents at (about) the minimiser makes a normal distribution, from which theta is drawn and kept with probability
exp(-k times the gap between F and its tangent). How near the minimiser the point is decides only how often that
succeeds: no exactness is lost to an inexact one. The gap lies below a quadratic function, so the chance of keeping a
draw is at least a Gaussian integral, (1 + curvature / (regularisation * dimension)) ** (-dimension / 2) in the worst
case, whatever the number of records. Draws are made until the chance that all of them fail is below a thousandth of
delta, which is added to delta.

**Over candidates**, :func:`exponential_choice` picks one of finitely many public parameters, with delta 0 and for
any loss, cut off at a public bound.

>>> from discreet import Budget
>>> from discreet.lecture import private_minimiser
>>> from discreet.linear.losses import Logistic
>>> X = np.random.default_rng(0).normal(size=(5000, 2))
>>> budget = Budget(1.0, 1e-6, neighbours="replace-one")
>>> model = private_minimiser(Logistic(), X, X[:, 0] > 0, budget, method="exponential", row_bound=2.0)
>>> model.event, model.guarantee.within(budget)
(Gaussian(noise_multiplier=8...), True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from discreet.accounting.curve import account
from discreet.core.mechanisms import Release, certified_cost, gaussian_event
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, real
from discreet.guarantee import Budget, of_records
from discreet.lecture.release import LinearRelease, black_box, charge
from discreet.lecture.risk import EmpiricalRisk, MinimiserRequest
from discreet.lecture.table import Floats, RecordTable
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss
from discreet.trusted.permits import StepNoise

_SPARE = 1e-3  # of delta, for draws that all fail
_MOST_DRAWS = 3000  # on average, in the worst case
_BLOCK = 2**22  # numbers made at once


def exponential_sampling(problem: MinimiserRequest) -> LinearRelease:
    """A draw from the Gibbs distribution of the regularised risk.

    Many more rows than were declared make the draw slow.

    Guarantee: ``result.guarantee``, within the budget, whatever the rows hold, for real numbers and if the stream is
    trusted. Nothing depends on how well the risk was minimised.
    """
    budget, (setting, table) = problem.budget, problem.pose()
    failure = _SPARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
    noise = gaussian_event(replace(budget, delta=budget.delta * (1 - _SPARE)))
    rounds = math.expm1(2 * math.log(_MOST_DRAWS) / setting.dimension)
    least = setting.smoothness / (setting.dimension * rounds)

    def temperature(strength: float) -> float:
        """1 / (k / n): what the sum of losses is divided by."""
        return (setting.lipschitz * noise.noise_multiplier) ** 2 / (setting.records * strength)

    def excess(strength: float) -> float:
        return setting.bias(strength) + setting.dimension * temperature(strength) / setting.records

    strength = problem.strength(setting, excess, least)
    if strength < least:
        remedy = f"must be at least {least:.3g}, or almost every draw would be rejected."
        raise InvalidParameter("regularisation", problem.regularisation, remedy)
    settings = setting.describe("exponential", strength)
    guarantee = certified_cost(noise, budget, spare_delta=_SPARE * budget.delta)
    permit = problem.charge(StepNoise.of_choice(noise, "Gibbs sampling"), None, guarantee, settings)
    law = Gibbs(EmpiricalRisk(setting, table, strength), temperature(strength), setting.tolerance(strength))
    value = law.draw(failure, permit.randomness())
    return LinearRelease(value, noise, guarantee, "float", problem.stream.trusted, excess(strength), settings)


class Gibbs:
    """The distribution with density ~ exp(-risk / temperature), for the risk of a sum."""

    def __init__(self, risk: EmpiricalRisk, temperature: float, tolerance: float) -> None:
        self.risk, self.temperature = risk, temperature
        self._anchor = risk.minimiser(np.zeros(risk.rows.shape[1]), tolerance)
        self._scores = risk.rows @ self._anchor
        self._slopes = risk.loss.residual(self._scores, risk.targets)
        self._values = risk.loss.value(self._scores, risk.targets)
        self._spread = math.sqrt(temperature / risk.convexity)
        self._center = -(risk.rows.T @ self._slopes) / risk.convexity

    def acceptance(self) -> float:
        """A lower bound of the chance that one draw is kept: private, and used for nothing but their number."""
        eigenvalues = np.linalg.eigvalsh(self.risk.rows.T @ self.risk.rows) * self.risk.curvature
        off = float(np.sum((self._center - self._anchor) ** 2)) / self.temperature
        exponent = (
            np.log1p(np.maximum(eigenvalues, 0.0) / self.risk.convexity).sum() + eigenvalues.max() * off
        )
        return math.exp(-min(float(exponent) / 2, 700.0))

    def draw(self, failure: float, stream: RandomStream) -> Floats:
        """A draw from the distribution, up to a total variation distance of ``failure``."""
        draws = math.ceil(-math.log(failure) / self.acceptance()) + 1
        block = max(1, min(64, _BLOCK // max(1, len(self.risk.rows))))
        proposed = self._center
        for start in range(0, draws, block):
            size = min(block, draws - start)
            proposals = self._center + self._spread * stream.normal((size, len(self._center)))
            kept = np.log(stream.uniform(size)) < -self._gaps(proposals) / self.temperature
            if kept.any():
                return np.asarray(proposals[int(np.argmax(kept))])
            proposed = proposals[-1]
        return np.asarray(proposed)

    def _gaps(self, proposals: Floats) -> Floats:
        """Gap between the sum of losses and its tangent."""
        scores = self.risk.rows @ proposals.T
        values = self.risk.loss.value(scores, self.risk.targets[:, None])
        tangents = self._values[:, None] + self._slopes[:, None] * (scores - self._scores[:, None])
        return np.asarray(np.maximum(values - tangents, 0.0).sum(0))


@dataclass(frozen=True, eq=False)
class Choice(Release):
    """The chosen candidate and its place among the candidates."""

    index: int


def exponential_choice(
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    candidates: ArrayLike,
    budget: Budget,
    *,
    loss_bound: float,
    records: int | None = None,
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> Choice:
    """One of the public ``candidates``, a parameter in each row, with probability ~ exp(-rate * sum of losses).

    Losses are cut off to between 0 and ``loss_bound``. Adding a record then changes the sums by amounts within one
    range of that width, exchanging one by amounts within two; so rate = epsilon / (width * 1 or 2) is enough, and
    not half of it (bounded range: Durfee and Rogers 2019).

    Guarantee: (epsilon, 0)-DP, for real numbers and if the stream is trusted.
    """
    table = RecordTable.of(X, y, of_records(budget).neighbours, records)
    points = _candidates(candidates, table.dimension, loss)
    bound = real("loss_bound", loss_bound, at_least=1e-50, at_most=1e50)
    event = black_box(budget, 0.0)
    guarantee = account(event, budget.neighbours).guarantee(0.0)
    guarantee = replace(guarantee, group_size=budget.group_size)
    settings = {"method": "exponential-choice", "loss_bound": bound}
    stream = system_stream() if stream is None else stream
    choice = StepNoise.of_choice(event, "exponential mechanism")
    permit = charge(ledger, ledger_key, choice, None, stream, guarantee, settings)
    totals = np.array([_total(loss, table, point, bound) for point in points])
    rate = event.epsilon / (bound * budget.reach) * (1 - 1e-12)
    weights = np.exp(-rate * (totals - totals.min()))
    place = float(permit.randomness().uniform()) * weights.sum()
    index = min(int(np.searchsorted(np.cumsum(weights), place, side="right")), len(points) - 1)
    return Choice(points[index], event, guarantee, "float", stream.trusted, index)


def _candidates(candidates: ArrayLike, dimension: int, loss: Loss) -> Floats:
    if checked_loss(loss).outputs != 1:
        raise InvalidParameter("loss", loss, "must be a loss with one output, for instance Logistic().")
    points = np.asarray(candidates, np.float64)
    if points.ndim != 2 or not len(points) or points.shape[1] != dimension or not np.isfinite(points).all():
        requirement = f"must be finite and have the shape (candidates, {dimension}), one in each row."
        raise InvalidParameter("candidates.shape", points.shape, requirement)
    return points


def _total(loss: Loss, table: RecordTable, point: Floats, bound: float) -> float:
    with np.errstate(all="ignore"):
        values = loss.value(table.rows @ point, table.targets)
    return float(np.clip(np.where(np.isfinite(values), values, 0.0), 0.0, bound).sum())
