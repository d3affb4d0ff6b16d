"""What is asked of a model's answers: into which cells a record falls, and which scores follow from their counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.evaluation.outcomes import Binned, Classified, Feature, Miss, TargetPoints
from discreet.evaluation.scoring import (
    CellBlock,
    Nodes,
    NoisyCounts,
    Score,
    ScoreBins,
    Scoring,
    error_bins,
    probability_bins,
)

Array = NDArray[np.float64]
View = Classified | Miss | TargetPoints
_CHANCES, _COARSE, _ERRORS = probability_bins(32), probability_bins(16), error_bins(18)
_MISSES = Nodes(error_bins(32).edges, 2)  # down to 1e-4 of the bounds: those of counts and amounts are wide
_TARGETS, _FEW = Nodes(_COARSE.edges, 1), Nodes(np.linspace(0, 1, 5), 1)
_GROUPS = 8  # points of a calibration curve
_MANY = 8  # classes from which on recalls have cells of their own: the noise of a row of the confusion matrix adds up
_MOST_ALIKE = 0.9  # the correlation of squared errors and squared distances that noise may make us believe in


@dataclass(frozen=True)
class CalibrationPoint:
    """Records of similar predicted probability: what was predicted, and the share for which it was so."""

    predicted: float
    observed: Score


@dataclass(frozen=True)
class Measured:
    """The scores of some records. ``confusion[i, j]`` is the noisy number of those of class i taken for class j."""

    scores: Mapping[str, Score]
    confusion: Array | None = None
    calibration: tuple[CalibrationPoint, ...] = ()

    def __getitem__(self, name: str) -> Score:
        return self.scores[name]


def _chord() -> float:
    """By how much a number is more than its two points say, on average, where it is spread evenly between them.

    Their shares keep the mean of its square, and a root is above its chord.
    """
    ratio = float(_MISSES.points[-1] / _MISSES.points[-2])
    return (1 + ratio) / 2 / (1 + (ratio - 1) * (ratio + 2) / (3 * (ratio + 1)))


_CHORD = _chord()


class Task(ABC):
    """A kind of answer. The last cell of the first block is for records that cannot be scored."""

    blocks: tuple[CellBlock, ...]
    names: tuple[str, ...]

    @property
    @abstractmethod
    def views(self) -> tuple[View, ...]:
        """For each block the cells of a record whose label and answer are as they should be."""

    @abstractmethod
    def measure(self, counts: list[NoisyCounts], scoring: Scoring) -> Measured:
        """The scores, from the noisy counts of each block without its last cell."""

    @property
    def labels(self) -> tuple[Any, ...]:
        """The classes, if there are such."""
        return ()


@dataclass(frozen=True)
class TwoClasses(Task):
    """Probabilities of the second class, or scores on the same scale that are no probabilities."""

    classes: tuple[Any, ...]
    probabilities: bool = True
    blocks: tuple[CellBlock, ...] = field(
        default=(CellBlock("label and bin of the score", 2 * _CHANCES.size + 1),)
    )

    @property
    def labels(self) -> tuple[Any, ...]:
        return self.classes

    @property
    def views(self) -> tuple[View, ...]:
        return (Classified(2, 2, ("label", Binned("second", _edges(_CHANCES)))),)

    def measure(self, counts: list[NoisyCounts], scoring: Scoring) -> Measured:
        bins, (both,) = _CHANCES, counts
        negative, positive = both.of(slice(bins.size)), both.of(slice(bins.size, None))
        taken = (bins.middle > 0.5).astype(float)
        right = np.concatenate([1 - taken, taken])
        scores = {
            "records": scoring.number(both),
            "accuracy": scoring.mean(both, right, most=1.0),
            "AUC": scoring.area(negative, positive),
            "recall": scoring.mean(positive, taken, most=1.0),
            "specificity": scoring.mean(negative, 1 - taken, most=1.0),
            "precision": scoring.mean(both.of(np.tile(taken, 2) > 0), _second(bins.size // 2), most=1.0),
            "prevalence": scoring.mean(both, _second(bins.size), most=1.0),
        }
        points: tuple[CalibrationPoint, ...] = ()
        if self.probabilities:
            backwards = slice(None, None, -1)
            surprise, square = bins.surprise, bins.square
            scores["log loss"] = scoring.mean(both, np.concatenate([surprise[backwards], surprise]))
            scores["Brier score"] = scoring.mean(both, np.concatenate([square, square[backwards]]), most=1.0)
            points = tuple(_calibration(both.cells.reshape(2, -1), both.noise, scoring))
        half = both.cells.reshape(2, 2, -1).sum(2)
        return Measured(scores, half, points)


def _edges(bins: ScoreBins) -> tuple[float, ...]:
    return tuple(bins.edges.tolist())


def _second(size: int) -> Array:
    """1 in the second half of the cells."""
    return np.repeat([0.0, 1.0], size)


def _calibration(cells: Array, noise: float, scoring: Scoring) -> Iterator[CalibrationPoint]:
    """Shares of positive records in groups of bins; ``cells`` has the negative ones in its first row."""
    each = cells.shape[1] // _GROUPS
    middle = (_CHANCES if cells.shape[1] == _CHANCES.size else _COARSE).middle
    for group in range(_GROUPS):
        where = slice(group * each, (group + 1) * each)
        part = NoisyCounts(cells[:, where].reshape(-1), noise)
        if part.enough:
            weights = np.maximum(cells[:, where].sum(0), 0.0) + 1e-9
            predicted = float(weights @ middle[where] / weights.sum())
            yield CalibrationPoint(predicted, scoring.mean(part, _second(each), most=1.0))


@dataclass(frozen=True)
class ManyClasses(Task):
    """Probabilities of three or more classes.

    With many of them a label is counted with "right or wrong", beside its row of the confusion matrix: a recall then
    has the noise of two cells, not of a whole row.
    """

    classes: tuple[Any, ...]

    @property
    def labels(self) -> tuple[Any, ...]:
        return self.classes

    @property
    def blocks(self) -> tuple[CellBlock, ...]:  # type: ignore[override]
        return (
            CellBlock("right or wrong", 3, 0.2),
            CellBlock("label and answer", len(self.classes) ** 2, 0.15 if self._are_many else 0.3),
            CellBlock("bin of the label's probability", _CHANCES.size, 0.2),
            CellBlock("bin of the Brier score", _ERRORS.size, 0.1),
            CellBlock("right or wrong, and bin of the confidence", 2 * _COARSE.size, 0.2),
            *(
                (CellBlock("label, and right or wrong", 2 * len(self.classes), 0.15),)
                if self._are_many
                else ()
            ),
        )

    @property
    def _are_many(self) -> bool:
        return len(self.classes) >= _MANY

    @property
    def views(self) -> tuple[View, ...]:
        features: list[tuple[Feature | Binned, ...]] = [
            ("right",),
            ("label", "answer"),
            (Binned("of the label", _edges(_CHANCES)),),
            (Binned("Brier score", _edges(_ERRORS)),),
            ("right", Binned("largest", _edges(_COARSE))),
        ]
        if self._are_many:
            features.append(("label", "right"))
        return tuple(Classified(len(self.classes), len(self.classes), one) for one in features)

    def measure(self, counts: list[NoisyCounts], scoring: Scoring) -> Measured:
        right, table, chances, brier, confidence, *own = counts
        scores = {
            "records": scoring.number(right),
            "accuracy": scoring.mean(right, np.array([0.0, 1.0]), most=1.0),
            **_recalls(own[0] if own else table, self.classes, scoring),
            "log loss": scoring.mean(chances, _CHANCES.surprise),
            "Brier score": scoring.mean(
                brier, 2 * _ERRORS.leaning(1), 4 * (_ERRORS.square - _ERRORS.middle**2), most=2.0
            ),
        }
        points = tuple(_calibration(confidence.cells.reshape(2, -1), confidence.noise, scoring))
        return Measured(scores, table.cells.reshape(len(self.classes), -1), points)


@dataclass(frozen=True)
class Labels(Task):
    """Classes without probabilities."""

    classes: tuple[Any, ...]

    @property
    def labels(self) -> tuple[Any, ...]:
        return self.classes

    @property
    def blocks(self) -> tuple[CellBlock, ...]:  # type: ignore[override]
        return (CellBlock("label and answer", len(self.classes) ** 2 + 1),)

    @property
    def views(self) -> tuple[View, ...]:
        return (Classified(len(self.classes), 1, ("label", "answer")),)

    def measure(self, counts: list[NoisyCounts], scoring: Scoring) -> Measured:
        (table,) = counts
        scores = {
            "records": scoring.number(table),
            "accuracy": scoring.mean(table, np.eye(len(self.classes)).reshape(-1), most=1.0),
            **_recalls(table, self.classes, scoring),
        }
        return Measured(scores, table.cells.reshape(len(self.classes), -1))


def _recalls(table: NoisyCounts, classes: tuple[Any, ...], scoring: Scoring) -> dict[str, Score]:
    """From rows of the confusion matrix, or of (wrong, right)."""
    size = table.cells.size // len(classes)
    right = np.eye(size) if size == len(classes) else np.tile([0.0, 1.0], (len(classes), 1))
    return {
        f"recall of {label}": scoring.mean(
            table.of(slice(place * size, (place + 1) * size)), right[place], most=1.0
        )
        for place, label in enumerate(classes)
    }


@dataclass(frozen=True)
class NumericTask(Task):
    """Numbers within declared bounds; answers beyond them are moved there.

    A record's place among targets is that of two sets of points: it is in the second, which has fewer of them, with
    the share of its squared error. So it is known how squared errors go together with the distance of the target
    from its mean, which the error of R2 depends on.
    """

    bounds: tuple[float, float]
    blocks: tuple[CellBlock, ...] = field(
        default=(
            CellBlock("place of the error", _MISSES.size + 1, 0.7),
            CellBlock("place of the target, shared by its squared error", _TARGETS.size + _FEW.size, 0.3),
        )
    )

    @property
    def views(self) -> tuple[View, ...]:
        targets, few = tuple(_TARGETS.points.tolist()), tuple(_FEW.points.tolist())
        misses = tuple(_MISSES.points.tolist())
        return (Miss(*self.bounds, misses, _MISSES.power), TargetPoints(*self.bounds, targets, few))

    def measure(self, counts: list[NoisyCounts], scoring: Scoring) -> Measured:
        errors, targets = counts
        width = self.bounds[1] - self.bounds[0]
        absolute = scoring.mean(errors, _MISSES.points * _CHORD)
        square = scoring.mean(errors, _MISSES.points**2)
        scores = {
            "records": scoring.number(errors),
            "R2": self._share_explained(square, targets, scoring),
            "MAE": _scale(absolute, width),
            "RMSE": _root(square, width, scoring),
        }
        return Measured(scores)

    def _share_explained(self, square: Score, targets: NoisyCounts, scoring: Scoring) -> Score:
        """1 - mean squared error / variance, and the error of this ratio."""
        if not (square.resolved and targets.enough):
            return scoring.unresolved(-math.inf, 1.0)
        points = np.concatenate([_TARGETS.points, _FEW.points])
        squares = points**2 - np.concatenate([_TARGETS.above, _FEW.above])
        mean = float(targets.cells @ points) / targets.total
        far = squares - 2 * mean * points + mean**2
        variance = float(targets.cells @ far) / targets.total
        noise, sampling = targets.error((far - variance) / targets.total)
        spread = scoring.score(variance, (noise, sampling))
        together = (
            float(targets.cells[_TARGETS.size :] @ (far - variance)[_TARGETS.size :]) / targets.total**2
        )
        most = _MOST_ALIKE * square.sampling * sampling
        return scoring.missing_share(square, spread, min(max(together, -most), most))


def _scale(score: Score, width: float) -> Score:
    return Score(
        score.value * width,
        score.lower * width,
        score.upper * width,
        score.noise * width,
        score.sampling * width,
    )


def _root(score: Score, width: float, scoring: Scoring) -> Score:
    if not (score.resolved and score.value > 0):  # noise that hides all of it would have no interval
        return scoring.unresolved()
    root = math.sqrt(score.value)
    slope = 1 / max(2 * root, math.sqrt(max(score.upper, 1e-300)))
    lower, upper = math.sqrt(score.lower), math.sqrt(score.upper)
    return _scale(Score(root, lower, upper, score.noise * slope, score.sampling * slope), width)
