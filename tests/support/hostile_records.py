"""Records with hostile numbers, weights and targets, and the comparison of integer sums of neighbouring data."""

from fractions import Fraction

import numpy as np
from scipy.sparse import csr_array

from discreet.errors import DiscreetError
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records
from discreet.linear.glm.frames import DiagonalFrame
from discreet.linear.losses import Huber, Logistic, Poisson, Softmax, Squared
from discreet.linear.row_views import column_views as columns
from discreet.linear.row_views.coordinates import Marginals, SmoothCurves, Standardised, Whitened
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair
from discreet.linear.row_views.targets import Target
from discreet.linear.storage import Storage

HOSTILE = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-308, 0.0, -0.0, 1.0, 0.5, -3.0, 7.0])
REFUSALS = (DiscreetError, ValueError, OverflowError, IndexError)


def answer(records, query, grid):
    """The sum, or the words of a refusal."""
    try:
        return records._total(query, grid)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"


def some(rng, *shape, hostile=0.2):
    """Numbers of which a share is hostile."""
    plain = rng.normal(size=shape)
    return np.where(rng.random(shape) < hostile, rng.choice(HOSTILE, shape), plain)


def number(rng, hostile=0.2):
    return float(some(rng, hostile=hostile))


class World:
    """Records of some kind, which can be asked with and without one of them, or one person."""

    def __init__(self, rng, kind):
        self.rng, self.kind = rng, kind
        self.loss = [Logistic(), Softmax(3), Squared(), Poisson(), Huber(1.0)][rng.integers(5)]
        numerics, groups = int(rng.integers(2, 4)), tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
        if kind == "sparse":
            self.columns = Columns(numerics) if rng.random() < 0.5 else Columns(0, text=4, text_norm=1.5)
        else:
            text = int(rng.choice([0, 0, 2]))
            self.columns = Columns(numerics, groups, text=text, text_norm=1.5)
        size = int(rng.integers(1, 12))
        x = rng.random((size, self.columns.width)) * rng.choice([1.0, 1.0, 3.0])
        self.x = np.where(rng.random(x.shape) < 0.05, rng.choice(HOSTILE, x.shape), x)
        self.y = np.where(rng.random(size) < 0.1, rng.choice(HOSTILE, size), rng.integers(0, 3, size))
        self.weights = np.where(rng.random(size) < 0.1, rng.choice(HOSTILE, size), rng.random(size))
        self.ids = rng.integers(0, 4, size)

    def records(self, keep=slice(None)):
        x, y = self.x[keep], self.y[keep]
        weights = self.weights[keep] if self.kind in ("weights", "sparse") else None
        people = People.of(self.ids[keep]) if self.kind == "people" else None
        if people is not None:
            weights = people._weights(2)
        table = csr_array(x) if self.kind == "sparse" else x
        sparse, shelf = self.kind == "sparse", Storage(0 if self.kind == "disk" else 2**30).shelf()
        return Records(self.loss, table, y, self.columns, weights, people, shelf, sparse)

    def neighbours(self):
        """The rows that stay if one record, or one person with all rows, goes."""
        if self.kind == "people":
            return self.ids != self.rng.choice(self.ids)
        return np.arange(len(self.y)) != self.rng.integers(len(self.y))

    # Public numbers, some of them hostile.

    def marginals(self, width=None):
        width = self.columns.width if width is None else width
        centre, lower, upper = (some(self.rng, width) for _ in range(3))
        return Marginals(centre, some(self.rng, width), lower, upper)

    def target(self):
        return Target(*(number(self.rng) for _ in range(4)))

    def basis(self):
        knots = [np.sort(self.rng.random(4)) for _ in range(4)]
        curves = tuple(Curve(j, knots[j % 4], np.arange(1, 4), None) for j in range(self.columns.numerics))
        grid = Pair((0, 1), (knots[0], knots[1]), np.arange(1, 16), np.full(16, 1 / 16))
        return Basis(self.columns, curves, (grid,))

    def coordinates(self):
        rng, width = self.rng, self.columns.width
        kind = rng.integers(4)
        if self.kind == "sparse" or kind == 0:
            return DiagonalFrame.of(self.marginals(), abs(number(rng)), self.kind == "sparse").map
        if kind == 1:
            return Standardised(self.marginals(), number(rng), bool(rng.random() < 0.5))
        if kind == 2 or self.columns.text or self.columns.numerics < 2:
            square = some(rng, width + 1, width + 1, hostile=0.02)
            return Whitened(self.marginals(), square)
        basis = self.basis()
        width = basis.columns.width
        square = some(rng, width + 1, width + 1, hostile=0.02)
        return SmoothCurves(self.marginals(width), square, basis)

    def two_classes(self):
        return self.loss if isinstance(self.loss, Logistic) else Logistic()

    def theta(self, coordinates, outputs=1):
        shape = (coordinates.width + 1,) if outputs == 1 else (coordinates.width + 1, outputs)
        return some(self.rng, *shape, hostile=0.05)

    def ranks(self):
        edges = tuple(np.sort(self.rng.random(5)) for _ in range(self.columns.numerics))
        return columns.Ranks(edges, tuple(some(self.rng, 4) for _ in edges))

    def residual(self):
        basis = self.basis()
        coefficients = some(self.rng, basis.columns.width, hostile=0.05)
        known = self.loss if self.loss.outputs == 1 else Squared()
        return columns.Residual(basis, coefficients, np.zeros(()), known, self.target(), number(self.rng))


def moved_too_far(query, with_it, without, grid):
    """Whether two sums differ by more than the bound in the l2 norm, in exact integers."""
    steps = [int(one) - int(other) for one, other in zip(with_it, without, strict=True)]
    return sum(step * step for step in steps) > (Fraction(query.bound) / Fraction(grid)) ** 2


def grid_of(query):
    return 2.0 ** np.floor(np.log2(query.bound / 2.0**30))
