"""Views of a label and of a model's answer: the cells of an evaluation that a record falls into.

A row holds the label (the number of a class, or a target), then the answers, then the code of the record's group in
each grouping. A record with a label or an answer that cannot be scored adds to one cell for such records, if the
block has one, and to no other.

>>> outcome = Outcome(Classified(2, 2, ("label", Binned("second", (0.0, 0.5, 1.0)))), unscored=True)
>>> cells, shares = outcome(np.array([[1.0, 0.2, 0.8], [0.0, 0.9, 0.1], [np.nan, 0.9, 0.1]]), None)
>>> cells.ravel().tolist(), shares.ravel().tolist()
([3, 0, 4], [1.0, 1.0, 1.0])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from discreet.errors import PlanViolation, whole
from discreet.trusted.plain_data import Array, Data, Integers
from discreet.trusted.queries import View

Number = Literal["second", "of the label", "Brier score", "largest"]
Feature = Literal["label", "answer", "right"]


class Shared(NamedTuple):
    """The cells that records add to, in shape (records, some), and the share of each record in each cell."""

    cells: Integers
    shares: Array


@dataclass(frozen=True)
class Binned(Data):
    """The bin between increasing edges of a number that follows from label and probabilities.

    An edge belongs to the bin below it; numbers beyond the first and the last edge belong to the first and last bin.
    The number is the probability of the second class, of the label, half the Brier score, or the largest probability.
    """

    number: Number
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.number not in get_args(Number) or len(self.edges) < 2:
            raise PlanViolation("A bin is between two or more edges, of a number of the catalogue.")

    def bins(self, label: Integers, said: Array) -> Integers:
        records = np.arange(len(label))
        if self.number == "second":
            values = said[:, 1]
        elif self.number == "of the label":
            values = said[records, label]
        elif self.number == "largest":
            values = said[records, said.argmax(1)]
        else:
            brier = (np.square(said).sum(1) - 2 * said[records, label] + 1) / 2
            values = np.clip(brier, 0, 1)
        return np.searchsorted(np.array(self.edges[1:-1]), values, side="left").astype(np.int64)


@dataclass(frozen=True)
class Classified(Data):
    """One cell of a table of features, of a label and of answers: a probability for each class, or a class."""

    classes: int
    answers: int
    features: tuple[Feature | Binned, ...]

    def __post_init__(self) -> None:
        whole("classes", self.classes, at_least=2)
        binned = [feature for feature in self.features if isinstance(feature, Binned)]
        if self.answers != self.classes and (self.answers != 1 or binned):
            raise PlanViolation("Answers are a probability for each class, or one class without bins.")
        others = [feature for feature in self.features if not isinstance(feature, Binned)]
        if not self.features or not set(others) <= set(get_args(Feature)):
            raise PlanViolation("The features of an outcome are those of the catalogue.")

    @property
    def size(self) -> int:
        return math.prod(map(self._size, self.features))

    def scored(self, label: Array, said: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        known = (label >= 0) & (label < self.classes)
        return known & (said[:, 0] >= 0) & (said[:, 0] < self.classes) if self.answers == 1 else known

    def place(self, truth: Array, said: Array) -> Shared:
        label = truth.astype(np.int64)
        answer = said[:, 0].astype(np.int64) if self.answers == 1 else said.argmax(1)
        cells = np.zeros(len(label), np.int64)
        for feature in self.features:
            if isinstance(feature, Binned):
                part = feature.bins(label, said)
            else:
                part = {"label": label, "answer": answer, "right": answer == label}[feature].astype(np.int64)
            cells = cells * self._size(feature) + part
        return Shared(cells[:, None], np.ones((len(label), 1)))

    def _size(self, feature: Feature | Binned) -> int:
        if isinstance(feature, Binned):
            return len(feature.edges) - 1
        return 2 if feature == "right" else self.classes


@dataclass(frozen=True)
class _Numbers(Data):
    """A target and one answer, moved into declared bounds, and from there into [0, 1]."""

    lower: float
    upper: float

    @property
    def answers(self) -> int:
        return 1

    def scored(self, truth: Array, said: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.ones(len(truth), np.bool_)

    def _units(self, truth: Array, said: Array) -> tuple[Array, Array]:
        width = self.upper - self.lower
        target, answer = (np.clip((part - self.lower) / width, 0, 1) for part in (truth, said[:, 0]))
        return target, answer


@dataclass(frozen=True)
class Miss(_Numbers):
    """The two of some points between which the error lies, in shares that keep its mean power exact."""

    points: tuple[float, ...]
    power: int

    @property
    def size(self) -> int:
        return len(self.points)

    def place(self, truth: Array, said: Array) -> Shared:
        target, answer = self._units(truth, said)
        return _between(np.abs(target - answer), self.points, self.power)


@dataclass(frozen=True)
class TargetPoints(_Numbers):
    """The two of some points between which the target lies; its squared error is its share in a coarser set."""

    points: tuple[float, ...]
    fewer: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.points) + len(self.fewer)

    def place(self, truth: Array, said: Array) -> Shared:
        target, answer = self._units(truth, said)
        square = np.square(target - answer)[:, None]
        most, few = _between(target, self.points, 1), _between(target, self.fewer, 1)
        cells = np.hstack([most.cells, few.cells + len(self.points)])
        return Shared(cells, np.hstack([most.shares * (1 - square), few.shares * square]))


def _between(values: Array, points: tuple[float, ...], power: int) -> Shared:
    known = np.array(points)
    place = np.interp(values**power, known**power, np.arange(float(len(known))))
    first = np.minimum(place.astype(np.int64), len(known) - 2)
    beyond = place - first
    return Shared(np.stack([first, first + 1], 1), np.stack([1 - beyond, beyond], 1))


@dataclass(frozen=True)
class Outcome(View):
    """The cells of a record within its combination of groups, whose numbers are ``groups``."""

    view: Classified | Miss | TargetPoints
    groups: tuple[int, ...] = ()
    unscored: bool = False

    def __post_init__(self) -> None:
        if type(self.view) not in (Classified, Miss, TargetPoints):
            raise PlanViolation(f"{type(self.view).__name__} is not a view of the catalogue.")

    @property
    def size(self) -> int:
        return math.prod(self.groups) * self._each

    @property
    def _each(self) -> int:
        return self.view.size + self.unscored

    def __call__(self, x: Array, y: None) -> tuple[Integers, Array]:
        columns = 1 + self.view.answers + len(self.groups)
        if x.shape[1] < columns:
            raise PlanViolation(f"The outcome needs {columns} columns. The rows have {x.shape[1]}.")
        truth, said = x[:, 0], x[:, 1 : 1 + self.view.answers]
        good = np.isfinite(truth) & np.isfinite(said).all(1)
        good &= self.view.scored(truth, said)
        placed = self.view.place(truth[good], said[good])
        cells = np.full((len(x), placed.cells.shape[1]), self._each - 1, np.int64)
        shares = np.zeros(cells.shape)
        shares[:, 0] = float(self.unscored)
        cells[good], shares[good] = placed
        group = np.zeros(len(x), np.int64)
        for number, size in enumerate(self.groups, 1 + self.view.answers):
            codes = x[:, number]
            group = group * size + np.where((codes >= 0) & (codes < size), codes, size - 1).astype(np.int64)
        return group[:, None] * self._each + cells, shares
