"""What an evaluation found: :class:`Evaluation`, as text, as a table for notebooks, and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from discreet.certificate import Certificate
from discreet.errors import one_of
from discreet.evaluation.scoring import Score
from discreet.evaluation.tasks import Measured

FORMAT = "discreet evaluation 1"


@dataclass(frozen=True)
class Evaluation:
    """Scores with intervals, and what they cost.

    ``evaluation["AUC"]`` is a :class:`Score`; :attr:`scores` has all of them by name. ``overall`` holds the confusion
    matrix and the calibration curve too. :meth:`by` gives the same for the groups that were asked for. ``notes`` say
    what looks wrong, from released numbers. Where people are protected, "records" is the number of people.
    """

    overall: Measured
    groups: Mapping[str, Mapping[Any, Measured]]
    notes: tuple[str, ...]
    certificate: Certificate | None
    confidence: float
    classes: tuple[Any, ...] = ()
    unit: str = "record"
    promise: str = ""
    """What it cost, in words, where there is no certificate of all of it: in a study each party has its own."""

    @property
    def scores(self) -> Mapping[str, Score]:
        """All scores by name."""
        return self.overall.scores

    def __getitem__(self, name: str) -> Score:
        return self.scores[one_of("name", name, self.scores)]

    def by(self, name: str) -> Mapping[Any, Measured]:
        """The scores of each group of a column that was named in ``by=``; those of other values are under None."""
        return self.groups[one_of("by", name, self.groups)]

    def __str__(self) -> str:
        width = max(len(self._name_shown(name)) for name in self.scores)
        lines = [
            f"{self._name_shown(name):{width}}  {score_in_words(name, score)}"
            for name, score in self.scores.items()
        ]
        for label, name, score in self._of_groups():
            lines.append(f"{label}  {score_in_words(name, score)}")
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join([*lines, self._cost()])

    def _name_shown(self, name: str) -> str:
        """A score's name on screens and pages."""
        return "persons" if name == "records" and self.unit == "person" else name

    def _of_groups(self) -> Iterator[tuple[str, str, Score]]:
        """For each group what is shown before its score, the score's name, and the score."""
        for column, groups in self.groups.items():
            for value, measured in groups.items():
                name = headline(measured)
                yield f"{column} {group_name(value)}: {name}", name, measured[name]

    def _cost(self) -> str:
        what = "noise and sampling" if self.unit == "record" else "noise and the sampling of persons"
        cost = self.promise if self.certificate is None else self.certificate.headline
        return f"{self.confidence:.0%} intervals, for {what}; {cost}"

    def _repr_html_(self) -> str:
        head = "<tr><th>score</th><th>value</th><th>from</th><th>to</th></tr>"
        rows = "".join(
            f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for name, row in self._rows()
        )
        notes = "".join(f"<li>{escape(text)}</li>" for text in self.notes)
        return f"<table>{head}{rows}</table><ul>{notes}</ul><p>{escape(self._cost())}</p>"

    def _rows(self) -> Iterator[tuple[str, tuple[str, str, str]]]:
        for name, score in self.scores.items():
            yield self._name_shown(name), _cells(name, score)
        for label, name, score in self._of_groups():
            yield label, _cells(name, score)

    def to_dict(self) -> dict[str, Any]:
        """All that was found, as plain data for JSON; what is not resolved is null."""
        return {
            "format": FORMAT,
            "confidence": self.confidence,
            "unit": self.unit,
            "classes": list(self.classes),
            "overall": _plain(self.overall),
            "groups": {
                column: [{"value": value, **_plain(measured)} for value, measured in groups.items()]
                for column, groups in self.groups.items()
            },
            "notes": list(self.notes),
            "guarantee": self.promise if self.certificate is None else str(self.certificate.guarantee),
            "certificate": None if self.certificate is None else self.certificate.digest(),
            "table": [{"name": name, "cells": list(cells)} for name, cells in self._rows()],
        }


def group_name(value: Any) -> str:
    """A group on screens and pages: that of all values which nobody declared is kept under None."""
    return "(other)" if value is None else str(value)


def headline(measured: Measured) -> str:
    """The score that stands for the others."""
    return "accuracy" if "accuracy" in measured.scores else "R2"


def score_in_words(name: str, score: Score) -> str:
    """A score in words."""
    value, lower, upper = _cells(name, score)
    return value if not lower else f"{value}  ({lower} to {upper})"


def _cells(name: str, score: Score) -> tuple[str, str, str]:
    if not score.resolved:
        return "not resolved at this budget", "", ""
    form = ",.0f" if name == "records" else ".4g"
    return f"{score.value:{form}}", f"{score.lower:{form}}", f"{score.upper:{form}}"


def _plain(measured: Measured) -> dict[str, Any]:
    points = [{"predicted": point.predicted, **_score(point.observed)} for point in measured.calibration]
    confusion = None if measured.confusion is None else measured.confusion.tolist()
    scores = {name: _score(score) for name, score in measured.scores.items()}
    return {"scores": scores, "confusion": confusion, "calibration": points}


def _score(score: Score) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(score).items()}
