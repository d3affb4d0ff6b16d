"""How good a joint model is, on private records of several parties: a study of one round, like any other.

    [model]
    kind = "evaluation"
    dimension = 390                  # cells of the histogram; `discreet study evaluate` counts them
    target = "readmitted"
    by = ["ward"]                    # scores for each group, too
    parameters = [0.1, -0.4, 0.2]    # the model that is scored: public, and part of the study's digest
    [model.columns]                  # those of the study that trained it

A record's "gradient" is minus the vector with its share in each cell of a
:class:`~discreet.evaluation.count_layout.CountLayout`, whose norm is 1 at most. One step of rate 1 from zero is the
histogram of everybody's records over their declared number; every score follows from it, as in
:func:`discreet.evaluation.evaluate`. So consent, ledgers, noise, secure sums, the table of observers and certificates
are those of every study, and nothing is left to prove but the norm.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discreet.adapters.joint_model import JointModel, check_unit, table_and_people
from discreet.adapters.joint_model import dimension as parameters_of
from discreet.adapters.joint_recipe import fitted_in
from discreet.core.noise import BoundedSum
from discreet.errors import CertificateRejected, InvalidParameter, whole
from discreet.evaluation.count_layout import CountLayout, Grouping
from discreet.evaluation.declared_task import declared_groups, task_for
from discreet.evaluation.question import EvaluationQuestion
from discreet.evaluation.result import Evaluation, group_name
from discreet.evaluation.scoring import Scoring
from discreet.evaluation.splitting import unit_ids
from discreet.files import parse_json, read_text, write_whole
from discreet.guarantee import Unit
from discreet.linear.fitted_model import FittedModel
from discreet.linear.rows_alone import row_count
from discreet.linear.schema import Schema
from discreet.parties.joint import Model, model_digest
from discreet.parties.study import Study
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import PrivateRows

KIND = "evaluation"
FILE = "evaluation.json"
CONFIDENCE = 0.9
_WORDS = {"kind", "dimension", "target", "columns", "unit", "by", "parameters", "files"}
_TRAINING: dict[str, Any] = {
    "rounds": 1,
    "learning_rate": 1.0,
    "clip_norm": 1.0,
    "optimizer": "sgd",
    "steps": "constant",
    "rate": 1.0,
    "weights": "records",
    "radius": None,
    "party_bound": None,
}
"""How a histogram is trained: in one step."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class JointEvaluation:
    """What a study evaluates, as its file declares it; the face is that of a :class:`JointModel`."""

    study: Study
    schema: Schema
    made: ClassVar[str] = "The evaluation"

    @classmethod
    def of(cls, study: Study) -> JointEvaluation:
        """The evaluation that a study file declares; what would make it something else is refused."""
        model = study.model
        if unknown := sorted(set(model) - _WORDS):
            raise InvalidParameter("model", unknown, f"unknown words; known are {', '.join(sorted(_WORDS))}.")
        missing = sorted({"columns", "target"} - set(model))
        if missing or ("parameters" in model) == ("files" in model):
            needed = (
                "must declare columns, a target and one model; `discreet study evaluate` writes such a study."
            )
            raise InvalidParameter("model", missing or "parameters, files", needed)
        _check_training(study)
        check_unit(study)
        made = cls(study, Schema.from_dict({"columns": model["columns"], "target": model["target"]}))
        if "files" in model:
            if made.fitted.schema.target != made.schema.target:
                raise InvalidParameter("model.files", "a model", "is of another target than the study.")
        else:
            expected, theta = parameters_of(made.schema), np.asarray(model["parameters"])
            if theta.dtype.kind not in "fi" or theta.shape != (expected,) or not np.isfinite(theta).all():
                raise InvalidParameter("model.parameters", theta.shape, f"must be {expected} finite numbers.")
        remedy = "It follows from target and by."
        whole(
            "model.dimension",
            study.dimension,
            at_least=made.layout.size,
            at_most=made.layout.size,
            remedy=remedy,
        )
        return made

    @cached_property
    def fitted(self) -> FittedModel:
        """The model that is scored."""
        if "files" in self.study.model:
            return fitted_in(self._evaluated)
        return JointModel(self.study, self.schema).fitted_model(np.asarray(self._evaluated, np.float64))

    @property
    def _evaluated(self) -> Model:
        """The model that is scored, as it was handed out: its numbers, or the bytes of its files."""
        model = self.study.model
        if "files" not in model:
            return np.array(model["parameters"], np.float64)
        try:
            return np.frombuffer(base64.b64decode(str(model["files"]), validate=True), np.uint8)
        except (ValueError, binascii.Error):
            raise InvalidParameter("model.files", "other text", "must be the files of a model.") from None

    @cached_property
    def layout(self) -> CountLayout:
        """What is counted."""
        return layout_of(self.fitted, self.study.model.get("by", []))

    @property
    def lengths(self) -> Floats:
        """How much a record adds to each block, in records; their norm is below 1."""
        return self.layout.limits("l2")

    def holder(self, path: Path) -> HistogramHolder:
        """The records in a table, ready to be counted. What is not as declared counts as unscored, silently."""
        table, people = table_and_people(path, self.schema, self.study.model.get("unit"))
        by = list(self.study.model.get("by", [])) or None
        layout, rows = EvaluationQuestion(self.fitted, self.layout.task, None, by, people).ask(table)
        records = row_count(table)
        if people is not None:
            records = len(set(unit_ids(table, people, records)) - {None})
        return HistogramHolder(rows, layout.query("l2"), records)

    def unlike_declared(self, path: Path) -> list[str]:
        """The columns of a table in which no cell is as declared, for its owner's eyes only."""
        return JointModel(self.study, self.schema).unlike_declared(path)

    def evaluation(self, theta: Floats) -> Evaluation:
        """The scores that follow from the joint histogram.

        Intervals count on the noise of all parties; where some were missing there is less, and they are too wide.
        """
        study = self.study
        noise = study.noise_multiplier * math.sqrt(len(study.parties) / study.shares)
        scoring = Scoring(float(ndtri(0.5 + CONFIDENCE / 2)))
        found = self.layout.score(theta * study.records, noise, self.lengths, scoring)
        labels, unit = self.layout.task.labels, study.budget.unit
        return Evaluation(
            found.overall, found.groups, found.notes, None, CONFIDENCE, labels, unit, self.promise
        )

    @property
    def promise(self) -> str:
        """What it cost, in words."""
        budget, parties = self.study.budget, ", ".join(self.study.names)
        return (
            f"on records of {parties}: ({budget.epsilon:g}, {budget.delta:g})-differentially private for one "
            f"{budget.unit} of one of them, {budget.neighbours} neighbours, against {self.study.privacy.against!r}"
        )

    def write(self, folder: Path, theta: Floats) -> tuple[Path, ...]:
        """Write the scores and what they follow from; the file."""
        write_whole(folder / FILE, json.dumps(self._text(theta), indent=2, allow_nan=False) + "\n")
        return (folder / FILE,)

    def describe(self, theta: Floats) -> str:
        """The scores, for a screen."""
        found = self.evaluation(theta)
        return f"\n{rates(found)}{found}\n\n"

    def digest_in(self, folder: Path) -> str:
        """The digest of the histogram that a folder says it holds."""
        return str(parse_json(read_text(folder / FILE), FILE).get("model_digest"))

    def insist_on(self, folder: Path, expected: str) -> str:
        """That the scores in a folder follow from the histogram of this digest, in words; else
        :class:`~discreet.errors.CertificateRejected`."""
        try:
            found = parse_json(read_text(folder / FILE), FILE)
            theta = np.array(found["histogram"], np.float64)
        except (KeyError, TypeError, ValueError, OSError):
            raise CertificateRejected(f"{folder} is rejected: {FILE} cannot be read.") from None
        if theta.shape != (self.study.dimension,) or model_digest(theta) != expected:
            raise CertificateRejected(f"{folder} is rejected: its histogram is not {expected[:16]}.")
        if found != parse_json(json.dumps(self._text(theta), allow_nan=False), FILE):
            raise CertificateRejected(f"{folder} is rejected: its scores do not follow from the histogram.")
        return f"the scores in {folder} follow from the histogram {expected[:16]}, recomputed"

    def _text(self, theta: Floats) -> dict[str, Any]:
        about = {
            "study": self.study.to_dict(),
            "digest": self.study.digest(),
            "model_digest": model_digest(theta),
            "evaluated": model_digest(self._evaluated),
            "histogram": theta.tolist(),
        }
        return self.evaluation(theta).to_dict() | about


class HistogramHolder:
    """A party's records as cells: a :class:`~discreet.parties.messages.Holder` whatever the model that is sent.

    ``records`` is the number of rows, or of persons.

    Guarantee: each record, or person, adds a vector of norm at most 1 to the sums, as its rows answer ``query``.
    """

    def __init__(self, rows: PrivateRows, query: Blocks, records: int) -> None:
        self._rows, self._query, self.records = rows, query, records

    @property
    def dimension(self) -> int:
        """The number of cells."""
        return self._query.size

    @property
    def unit(self) -> Unit:
        """What adds a vector of norm at most 1: ``"person"`` if the rows have ids, ``"record"`` otherwise."""
        return "person" if self._rows.unit == "person" else "record"

    def clipped_sum(self, theta: Floats, records: NDArray[np.intp] | None) -> BoundedSum:
        """Floating-point sums are refused when the study is read."""
        raise NotImplementedError("counts are whole numbers")

    def hardened_sum(self, theta: Floats, records: NDArray[np.intp] | None, grid: float) -> BoundedSum:
        """Minus the histogram, in whole steps of ``grid``; of all records, whatever ``theta`` is."""
        if records is not None:
            raise NotImplementedError("all records are counted")
        return BoundedSum(-self._rows._total(self._query, grid), self._query.bound, grid=grid)


def layout_of(fitted: FittedModel, by: Any) -> CountLayout:
    """What is counted for a model, in groups of these columns."""
    if not isinstance(by, list | tuple) or len(set(map(str, by))) < len(by):
        raise InvalidParameter("by", by, "must be a list of different columns.")
    columns = fitted.schema.columns
    if fitted.schema.target in by:
        raise InvalidParameter("by", fitted.schema.target, "is the target; groups are of other columns.")
    groups = (Grouping(str(name), declared_groups(str(name), columns.get(str(name)))) for name in by)
    return CountLayout(task_for(fitted, None, None), tuple(groups))


def rates(found: Evaluation) -> str:
    """All scores of each group, side by side; nothing without groups."""
    lines = []
    for column, groups in found.groups.items():
        for name in found.scores:
            cells = [
                f"{group_name(value)} {score.value:.3g} ({score.lower:.3g} to {score.upper:.3g})"
                if score.resolved
                else f"{group_name(value)} not resolved"
                for value, measured in groups.items()
                for score in (measured[name],)
            ]
            lines.append(f"{column}, {name}: {'; '.join(cells)}")
    return "".join(f"{line}\n" for line in lines)


def _check_training(study: Study) -> None:
    """A histogram is one noisy sum, of integers."""
    if study.algorithm != "sgd2":
        raise InvalidParameter("algorithm", study.algorithm, "must be 'sgd2' for an evaluation.")
    for name, needed in _TRAINING.items():
        if getattr(study.training, name) != needed:
            raise InvalidParameter(
                f"training.{name}", getattr(study.training, name), f"must be {needed} for an evaluation."
            )
    if study.privacy.arithmetic != "hardened":
        raise InvalidParameter(
            "arithmetic", study.privacy.arithmetic, "must be 'hardened' for an evaluation."
        )
    if study.aggregation.robust != "none":
        raise InvalidParameter("robust", study.aggregation.robust, "must be 'none': counts are added up.")
