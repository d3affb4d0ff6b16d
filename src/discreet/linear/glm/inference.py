"""Standard errors of a fit: one noisy Newton step with all that its error needs (:func:`infer_effects`).

From a model theta that was released already, in coordinates in which rows z are about white, each record adds

    w r z            its residual r (clamped to +-t for numbers and counts)
    w v z z'         its curvature v
    w^2 r^2 z z'     the square of its residual

to g, H and J. The weight w depends on z and theta alone and makes the norm of all three together, in the units of the
release, at most 1 whatever the target is (Mallows 1975). So one release of sensitivity 1 gives

    (I1)  theta' = theta + d,  d = H^-1 g,      Cov = H^-1 (J + s_g^2 I + s_H^2 / 2 (|d|^2 I + d d')) H^-1

with the known noise s_g on g and s_H on H (s_H / sqrt 2 beside the diagonal). Weights that depend on features only
leave the coefficients of a model that holds what they are; of one that does not, theta' estimates where the weighted
residuals of the whole population add up to nothing. Where rows belong to people, they share a weight of 1, and what
is squared for J is the sum of a person's residuals: people are drawn independently, their rows are not.

H and J are mostly noise where records are few. In these coordinates they are nearly diagonal, so what is beside the
diagonal is pulled to 0 as far as noise explains it (James and Stein 1961). Directions in which H does not stand out
of its noise are left as they are; a line that leans on them is not resolved.

The constants below were chosen on four tables (``benchmarks/inference.py``) and not for each.

>>> from discreet.linear.gate.declared_columns import Columns
>>> lines = lines_of(Columns(1, (4,)), np.array([0.5, 0.6, 0.37, 0.02, 0.01]), {}, rare=0.05)
>>> lines.members
((0,), (2,))
>>> lines.against, lines.references, lines.hidden
((None, 1), (1,), (3, 4))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.linear.gate.compiled_sums import NewtonStep, Scale
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm.frames import WhiteFrame
from discreet.linear.glm.problems import DescentProblem
from discreet.linear.glm.public_columns import public_limits
from discreet.linear.glm.triangles import derivatives
from discreet.linear.kernels.coefficients import LOGISTIC, POISSON, SQUARED
from discreet.linear.losses import Loss
from discreet.linear.row_views.coordinates import Marginals, Merged
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]

_RADIUS = 1.5  # rows up to so many typical norms count in full
_FAR = 4.0  # residuals are clamped to so many of their deviations
_CLEAR = 4.0  # a curvature stands out of its noise from so many deviations on
_FLOOR = 0.5  # of second moments, in spectral norms of their noise
_LEAST = 0.15  # of H over its diagonal: flatter directions are not seen
_LEANS = 0.1  # share of a line's variance in directions that are not seen
_TWINS = 0.98  # columns that are more alike than this have no effects of their own
_DOUBT = 1.5  # how far noise in H may turn a line, over its length
_RARE_BY_NOISE = 0.06  # values below so many spectral norms of the second moments' noise have no line
_FOR_FIRST_STEP = 0.25  # of the share of inference, where one Newton step is not exact
_FEWEST = 25.0  # records, each with the information of a number, that a line needs


@dataclass(frozen=True)
class _Kind:
    """Of a loss: its kernel, its largest or twice its typical curvature, and the parts of the release in g, H and J.

    For two classes |r| (1 - |r|) = v, so no record is at the limit of g and of H at once: they add up to more than 1.
    """

    code: int
    bend: float
    parts: tuple[float, float, float]


_KINDS = {
    "logistic": _Kind(LOGISTIC, 0.25, (0.95, 0.75, 0.05)),
    "squared": _Kind(SQUARED, 1.0, (0.40, 0.55, 0.05)),
    "poisson": _Kind(POISSON, 2.0, (0.40, 0.55, 0.05)),
}


def kind_of(loss: Loss) -> _Kind | None:
    """What the step has to know of a loss; None for one that it does not know."""
    return None if loss.machine_code is None else _KINDS.get(loss.machine_code[0])


@dataclass(frozen=True, eq=False)
class Inference:
    """Estimates of an intercept and of :class:`SummaryRows` beside it, in encoded units, and their covariance.

    ``doubt`` says how far it may be off: a combination c of the estimates is resolved if c' doubt c is below
    c' covariance c. ``clamp`` is where residuals are clamped, in the units of the score; None if they are not.
    ``theta`` is where the step ended, in the coordinates that it was made in.
    """

    lines: SummaryRows
    estimates: Array
    covariance: Array
    doubt: Array
    clamp: float | None
    theta: Array = field(default_factory=lambda: np.empty(0))

    def estimate(self, combinations: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """For each row of coefficients: the estimate, its standard error, and whether it is resolved."""
        variances = np.einsum("ij,jk,ik->i", combinations, self.covariance, combinations)
        doubts = np.einsum("ij,jk,ik->i", combinations, self.doubt, combinations)
        resolved = (doubts < variances) & (variances > 0)
        return combinations @ self.estimates, np.sqrt(np.maximum(variances, 0)), resolved

    def without(self, lines: NDArray[np.bool_]) -> Inference:
        """The same with these lines, and all that they take part in, not resolved."""
        doubt = self.doubt + np.diag(np.append(0.0, 2 * lines * np.trace(self.covariance)))
        return replace(self, doubt=doubt)


def infer_effects(
    records: Records,
    problem: DescentProblem,
    white: WhiteFrame,
    theta: Array,
    count: float,
    references: Mapping[int, int],
    spending: BudgetAllocator,
) -> Inference:
    """All that is left of the budget, for one more step from ``theta`` and for its error."""
    kind = problem.loss.kind
    coefficients, intercept = white.back(theta)
    shares = white.marginals.centre
    informed = min(1.0, 4 * problem.curvature) / 4 if kind == "classes" else 1.0
    rare = max(_RARE_BY_NOISE * white.noise, _FEWEST / (informed * count))
    lines = lines_of(records.columns, shares, references, rare)
    own = coordinates_of(lines, white, records.columns)
    start = start_of(lines, own, coefficients, float(intercept), shares)
    scale = scale_for(problem, own.width, _typical_residual(problem, white, theta))
    if kind != "numbers":
        # A Newton step is exact for squares only: where the model is far from the best one, a first step comes
        # closer, so that the error of the last one is small beside what noise and sampling leave open.
        stage = spending.stage("inference-start", _FOR_FIRST_STEP * spending.left)
        start = infer(problem, records, lines, own, start, scale, stage).theta
    found = infer(problem, records, lines, own, start, scale, spending.stage("inference"))
    return found.without(twins_in(lines, white))


def _typical_residual(problem: DescentProblem, white: WhiteFrame, theta: Array) -> float:
    """For numbers of variance 1, what the features leave of it."""
    if problem.loss.kind != "numbers":
        return problem.residual
    constant = white.inverse[0]
    slopes = theta[1:] - constant * (constant @ theta[1:]) / (constant @ constant)
    return math.sqrt(max(1 - float(slopes @ slopes), 0.1))


def scale_for(problem: DescentProblem, size: int, residual: float) -> Scale:
    """The units of a release, for rows of ``size`` numbers and residuals of a typical size."""
    kind = _KINDS[problem.loss.machine_code[0]]  # type: ignore[index]
    far = 1.0 if kind.code == LOGISTIC else _FAR * residual
    bend = kind.bend * (problem.curvature if kind.code == POISSON else 1.0)
    g, h, j = (math.sqrt(part) for part in kind.parts)
    radius = _RADIUS * math.sqrt(size)
    return Scale(kind.code, g / (radius * far), h / (bend * radius**2), j / (far * radius) ** 2, far)


def infer(
    problem: DescentProblem,
    records: Records,
    lines: SummaryRows,
    white: WhiteFrame,
    theta: Array,
    scale: Scale,
    stage: StagePermit,
) -> Inference:
    """The step from ``theta``, in the white coordinates of the lines."""
    query = NewtonStep(Merged(lines.matrix, white.map), problem.target, theta, scale)
    noisy, noise, grid = stage.ask(records, query)
    sums, errors = derivatives(query, noisy, grid), (noise / unit for unit in scale.units[:3])
    step, covariance, doubt = newton_step(*sums, *errors)
    back = _back_to_lines(white) * problem.scale
    estimates = back @ (theta + step)
    estimates[0] += problem.shift
    clamp = None if scale.code == LOGISTIC else scale.clamp * problem.scale
    found = back @ covariance @ back.T, back @ doubt @ back.T
    return Inference(lines, estimates, *found, clamp, theta + step)


def newton_step(
    g: Array, h: Array, j: Array, noise_g: float, noise_h: float, noise_j: float
) -> tuple[Array, Array, Array]:
    """(I1) from what was released: the step, its covariance, and the doubt about it. Post-processing.

    The doubt is that of noise in H, which turns H^-1 c by a vector that is known by its size, and what a line has in
    directions that are not seen, as if they were like the others; both over what is tolerated of them.
    """
    h, left = _pull_to_diagonal(h, noise_h)
    j = _positive(_pull_to_diagonal(j, noise_j)[0])
    clear, roots = np.diag(h) >= _CLEAR * noise_h, _roots(h, noise_h)
    values, vectors = np.linalg.eigh(h * np.outer(clear, clear) / np.outer(roots, roots))
    directions = vectors / roots[:, None]
    seen, unseen = directions[:, values >= _LEAST], directions[:, values < _LEAST]
    inverse = (seen / values[values >= _LEAST]) @ seen.T
    step = inverse @ g
    spread = j + noise_g**2 * np.eye(len(g)) + _mean_of_products(left, np.outer(step, step))
    covariance = inverse @ spread @ inverse
    doubt = inverse @ _mean_of_products(left, covariance) @ inverse / _DOUBT**2
    unseen = unseen / np.linalg.norm(unseen, axis=0)
    typical = float(np.median(np.diag(covariance)[clear])) if clear.any() else 0.0
    return step, covariance, doubt + typical * (unseen @ unseen.T) / _LEANS


def coordinates_of(lines: SummaryRows, white: WhiteFrame, columns: Columns) -> WhiteFrame:
    """White coordinates of the lines, from the second moments of all columns.

    A fit clamps its columns to where most records are, because it cannot afford long rows. A model that holds does
    not hold of clamped columns, so here they reach to their bounds, and long rows have small weights instead.
    """
    merge, every = lines.matrix, white.marginals
    scale = np.sqrt(every.scale**2 @ merge)
    lower, upper = (limit @ merge for limit in public_limits(columns))
    marginals = Marginals(every.centre @ merge, scale, lower, upper)
    eigenvalues, vectors = np.linalg.eigh(_second_moments(lines, white))
    noise = white.noise * math.sqrt((len(scale) + 1) / white.width)
    roots = np.sqrt(np.maximum(eigenvalues, _FLOOR * noise + 1e-3))
    return WhiteFrame(marginals, vectors / roots, vectors * roots)


def twins_in(lines: SummaryRows, white: WhiteFrame) -> NDArray[np.bool_]:
    """Which lines are nearly the same as another one, as far as the noise of the second moments lets one tell."""
    moments = _second_moments(lines, white)[1:, 1:]
    roots = np.sqrt(np.maximum(np.diag(moments), 1e-9))
    alike = abs(moments / np.outer(roots, roots)) - np.eye(len(roots))
    error = white.noise / (2 * math.sqrt(white.width))  # of one number, from the spectral norm of all
    return np.asarray((alike > _TWINS - error).any(axis=1))


def _second_moments(lines: SummaryRows, white: WhiteFrame) -> Array:
    """Those of a constant and the lines, each over its scale."""
    if white.moments is None:
        raise PlanViolation("The second moments of these coordinates were not released.")
    merge, every = lines.matrix, white.marginals
    moved = np.zeros((white.width, merge.shape[1] + 1))
    moved[0, 0] = 1.0
    moved[1:, 1:] = every.scale[:, None] * merge / np.sqrt(every.scale**2 @ merge)
    return np.asarray(moved.T @ white.moments @ moved)


def start_of(
    lines: SummaryRows, white: WhiteFrame, coefficients: Array, intercept: float, shares: Array
) -> Array:
    """A model of all columns in the white coordinates of the lines; pooled values have their mean effect."""
    shares = np.maximum(shares, 1e-9)
    means = [np.average(coefficients[list(own)], weights=shares[list(own)]) for own in lines.members]
    slopes = np.array(means) - [0.0 if j is None else coefficients[j] for j in lines.against]
    constant = intercept + coefficients[list(lines.references)].sum() + white.marginals.centre @ slopes
    return np.asarray(white.inverse.T @ np.append(constant, slopes * white.marginals.scale))


def _back_to_lines(white: WhiteFrame) -> Array:
    """The matrix that makes parameters in white coordinates an intercept and coefficients of the lines."""
    slopes = white.rotation[1:] / white.marginals.scale[:, None]
    return np.vstack([white.rotation[0] - white.marginals.centre @ slopes, slopes])


def _pull_to_diagonal(matrix: Array, noise: float) -> tuple[Array, Array]:
    """A noisy matrix with what is beside its diagonal pulled to 0, and the variance of noise left in each number."""
    size, beside = len(matrix), ~np.eye(len(matrix), dtype=bool)
    found = max(float(np.sum(matrix[beside] ** 2)), 1e-300)
    kept = np.where(beside, max(0.0, 1 - noise**2 / 2 * size * (size - 1) / found), 1.0)
    return matrix * kept, kept * np.where(beside, noise**2 / 2, noise**2)


def _roots(matrix: Array, noise: float) -> Array:
    return np.asarray(np.sqrt(np.maximum(np.diag(matrix), _CLEAR * noise)))


def _mean_of_products(variances: Array, covariance: Array) -> Array:
    """The mean of E C E for a symmetric E whose numbers have mean 0 and these variances."""
    beside = variances * covariance
    return np.asarray(beside + np.diag(variances @ np.diag(covariance) - np.diag(beside)))


def _positive(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0)) @ vectors.T)


# The lines of a summary: encoded columns without a reference for each group and what is too rare.
#
# A one-hot group and an intercept say the same twice, so the effects of a group are differences from one of its
# values: a declared one, or the most frequent by the noisy counts that the fit has released. Values that are hardly
# to be told from noise are one line together; if that is too rare, too, they count with the reference.


@dataclass(frozen=True)
class SummaryRows:
    """Which encoded columns each line is of, ``members``, and ``against`` which reference, if any.

    ``references`` are those of all groups of several columns; ``hidden`` columns are too rare to have a line.
    """

    width: int
    members: tuple[tuple[int, ...], ...]
    against: tuple[int | None, ...]
    references: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()

    @property
    def matrix(self) -> Array:
        """Encoded rows times this are rows of lines."""
        found = np.zeros((self.width, len(self.members)))
        for line, columns in enumerate(self.members):
            found[list(columns), line] = 1.0
        return found


def lines_of(columns: Columns, shares: Array, declared: Mapping[int, int], rare: float) -> SummaryRows:
    """The lines of columns in which these shares of the records were found.

    ``declared`` has the place of a declared reference within its group, by the number of the group. Values below the
    share ``rare`` are pooled.
    """
    lines: list[tuple[tuple[int, ...], int | None]] = [((j,), None) for j in range(columns.numerics)]
    references, hidden, start = [], [], columns.numerics
    for number, size in enumerate(columns.groups):
        own, reference = list(range(start, start + size)), None
        start += size
        if size > 1:
            reference = own[declared.get(number, int(np.argmax(shares[own])))]
            references.append(reference)
            own.remove(reference)
        few = [j for j in own if shares[j] < rare]
        lines += [((j,), reference) for j in own if j not in few]
        if len(few) > 1 and shares[few].sum() >= rare:
            lines.append((tuple(few), reference))
        else:
            hidden += few
    lines += [((j,), None) for j in range(columns.width - columns.text, columns.width)]
    members, against = zip(*lines, strict=True) if lines else ((), ())
    return SummaryRows(columns.width, members, against, tuple(references), tuple(hidden))
