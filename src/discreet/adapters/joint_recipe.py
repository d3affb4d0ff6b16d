"""A study by the recipe: the fit of one table, asked of several parties.

    [study]
    algorithm = "recipe"
    [questions]                      # what may be asked at most; `discreet study new` writes it
    kinds = ["classes", "columns", "gradients", ...]
    releases = 400
    [model]
    kind = "classification"          # or "regression", "counts"
    family = "auto"                  # curves where the budget carries them; "linear" for lines
    target = "readmitted"
    [model.columns]                  # as in a schema.toml

The coordinator runs the estimator of one table; its rows are :class:`~discreet.linear.study_rows.StudyRows`, which
stand for everybody's. A party has a :class:`~discreet.linear.party_table.PartyTable`. The model travels as the bytes
of its two files, so every site writes the same folder.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from discreet.adapters.joint_model import any_declared
from discreet.errors import CertificateRejected, InvalidParameter, MalformedMessage, one_of
from discreet.events import Gaussian
from discreet.files import write_whole
from discreet.linear.additive.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor
from discreet.linear.checked_questions import Question
from discreet.linear.classification import PrivateLogisticRegression
from discreet.linear.column_kinds import Column, Numeric
from discreet.linear.diagnosis import DeclarationWarning
from discreet.linear.fitted_model import MODEL, WEIGHTS, FittedModel, model_text
from discreet.linear.partitions import NoRows
from discreet.linear.party_table import KINDS, PartyTable
from discreet.linear.question_codec import question_digest
from discreet.linear.question_writer import encode, parts_of
from discreet.linear.regression import PrivateLinearRegression, PrivatePoissonRegressor
from discreet.linear.schema import TASKS, Schema
from discreet.linear.study_rows import JointBudget, JointSpending, JointSum, StudyTable
from discreet.linear.tables import table_in
from discreet.parties.coordinator import Conversation
from discreet.parties.joint import model_digest
from discreet.parties.study import Study

FAMILIES = ("auto", "additive", "linear")
_WORDS = {"kind", "family", "inference", "target", "columns", "unit", "pairs"}


def kinds_for(schema: Schema, task: str, family: str, inference: bool) -> tuple[str, ...]:
    """The kinds of queries that a fit of these columns may ask."""
    target = schema.columns[str(schema.target)]
    bounded = not isinstance(target, Numeric) or target.declared
    needed = {
        "classes": True,
        "columns": True,
        "norms": True,
        "moments": True,
        "gradients": True,
        "targets": task != "classification",
        "ranges": bool(schema.undeclared) or not bounded,
        "pairs": family != "linear",
        "errors": inference,
        "persons": schema.unit is not None,
    }
    return tuple(sorted(kind for kind, asked in needed.items() if asked))


@dataclass(frozen=True)
class JointRecipe:
    """The model of a study by the recipe, as its file declares it; with the methods of a ``JointModel``."""

    study: Study
    schema: Schema
    made: ClassVar[str] = "The model"

    @classmethod
    def of(cls, study: Study) -> JointRecipe:
        """The model that a study file declares; everything that the command line needs is checked here."""
        model = study.model
        one_of("model.kind", model["kind"], TASKS)
        one_of("model.family", model.get("family", "auto"), FAMILIES)
        if unknown := sorted(set(model) - _WORDS):
            raise InvalidParameter("model", unknown, f"unknown words; known are {', '.join(sorted(_WORDS))}.")
        if "columns" not in model or "target" not in model:
            raise InvalidParameter(
                "model", sorted(model), "must declare target and columns, as in a schema.toml."
            )
        declared = {word: model[word] for word in ("columns", "target", "unit", "pairs") if word in model}
        joint = cls(study, Schema.from_dict(declared))
        if (joint.schema.unit is None) != (study.privacy.unit == "record"):
            raise InvalidParameter("model.unit", model.get("unit"), "goes with unit = 'person' in [privacy].")
        if isinstance(joint.target, Numeric) == (model["kind"] == "classification"):
            kind = "categories or a flag" if model["kind"] == "classification" else "numbers"
            raise InvalidParameter("model.kind", model["kind"], f"goes with a target that has {kind}.")
        if not isinstance(model.get("inference", False), bool):
            raise InvalidParameter("model.inference", model["inference"], "must be true or false.")
        assert study.questions is not None
        if foreign := sorted(set(study.questions.kinds) - set(KINDS)):
            raise InvalidParameter("questions.kinds", foreign, f"must be among {', '.join(KINDS)}.")
        joint.estimator()
        return joint

    @property
    def target(self) -> Column:
        """The declared column of the target."""
        return self.schema.columns[str(self.schema.target)]

    def estimator(self) -> Any:
        """The estimator of one table that is fitted; it knows the schema and the budget."""
        model, budget = self.study.model, self.study.budget
        task, family = model["kind"], model.get("family", "auto")
        settings: dict[str, Any] = {
            "schema": self.schema,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "neighbours": budget.neighbours,
        }
        if model.get("inference", False):
            if family != "linear":
                raise InvalidParameter("model.inference", True, "is for lines: family = 'linear'.")
            settings["inference"] = True
        if family == "linear":
            lines = (PrivateLogisticRegression, PrivateLinearRegression, PrivatePoissonRegressor)
            return lines[TASKS.index(task)](**settings)
        if task == "classification":
            return PrivateAdditiveClassifier(**settings)
        return PrivateAdditiveRegressor(loss="poisson" if task == "counts" else "squared", **settings)

    # A party's side.

    def holder(self, path: Path) -> PartyTable:
        """The records in a table, ready to answer. Cells that are not as declared count as missing, silently."""
        return self.table_of(table_in(path))

    def table_of(self, source: Any) -> PartyTable:
        """The records of a source or a frame, ready to answer."""
        model, trial = self.estimator(), self.estimator()
        table = model._read(source, None, None, None, True)
        empty = trial._read(NoRows(Path("the study"), tuple(self.schema.to_read())), None, None, None, True)
        unit = self.study.privacy.unit
        records = len(table._people._rows) if unit == "person" else table._row_count()
        return PartyTable(table, empty, self.schema, type(model._loss()), unit, records)

    def unlike_declared(self, path: Path) -> list[str]:
        """The columns of a table in which no cell is as declared, for its owner's eyes only."""
        table = table_in(path).whole(self.schema.columns)
        return [name for name, column in self.schema.columns.items() if not any_declared(column, table[name])]

    # The coordinator's side.

    def strategy(self, conversation: Conversation) -> bytes:
        """Fit the model by questions to all parties; the bytes of its files."""
        study, sender = self.study, _Sender(conversation)
        spending = JointSpending(study.budget, study.noise_scale, conversation.noise, sender.ask)
        model = self.estimator()
        model.verbose = conversation.tell
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeclarationWarning)
            model._fit(
                NoRows(Path("the study"), tuple(self.schema.to_read())),
                None,
                None,
                None,
                previous=None,
                partitions=StudyTable(),
                paid=JointBudget(spending),
            )
        more = {
            "estimator": type(model).__name__,
            "notes": list(model.diagnosis_.notes),
            "study": study.to_dict(),
            "digest": study.digest(),
            "questions": spending.questions,
        }
        with TemporaryDirectory() as place:
            weights, text = FittedModel.of(model).write(Path(place), more)
            return pack_files(text.read_bytes(), weights.read_bytes())

    # The result.

    def fitted_model(self, model: NDArray[np.uint8]) -> FittedModel:
        """The model, as ``discreet predict`` reads it."""
        return fitted_in(model)

    def write(self, folder: Path, model: NDArray[np.uint8]) -> tuple[Path, Path]:
        """Write the model folder; the files."""
        return write_files(folder, model)

    def describe(self, model: NDArray[np.uint8]) -> str:
        """Lines for a screen: none, since ``discreet report`` shows a model."""
        return ""

    def digest_in(self, folder: Path) -> str:
        """The digest of the model that a folder holds."""
        return model_digest(files_in(folder))

    def insist_on(self, folder: Path, expected: str) -> str:
        """That the files in a folder are the model of this digest, in words; else
        :class:`~discreet.errors.CertificateRejected`."""
        try:
            files, text, model = files_in(folder), model_text(folder), FittedModel.read(folder)
        except (OSError, ValueError):
            raise CertificateRejected(f"{folder} is rejected: the model cannot be read.") from None
        if text.get("digest") != self.study.digest() or set(model.schema.columns) != set(self.schema.columns):
            raise CertificateRejected(f"{folder} is rejected: {MODEL} is of another study.")
        if model_digest(files) != expected:
            raise CertificateRejected(f"{folder} is rejected: it holds another model than {expected[:16]}.")
        return f"the files in {folder} are the model {expected[:16]}, recomputed"


class _Sender:
    """Sends questions to the parties; a part of a question is sent once."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation, self._sent = conversation, set[str]()

    def ask(self, question: Question, event: Gaussian) -> JointSum:
        """The sum of all answers."""
        whole, fresh = encode(question, ()), encode(question, self._sent)
        query, bound = question.query, float(question.query.bound)

        def body(everything: bool) -> bytes:
            return whole if everything else fresh

        digest = question_digest(whole).hex()
        counts, noise = self._conversation.ask(question.number, body, digest, query.size, bound, event)
        self._sent.update(parts_of(fresh))
        return JointSum(counts, noise)


def pack_files(text: bytes, weights: bytes) -> bytes:
    """The two files of a model as one string of bytes."""
    return b"".join((len(text).to_bytes(8, "little"), text, weights))


def unpack_files(content: bytes) -> tuple[bytes, bytes]:
    """The inverse of :func:`pack_files`, or :class:`MalformedMessage`."""
    end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or end > len(content):
        raise MalformedMessage("not a model")
    return content[8:end], content[end:]


def write_files(folder: Path, model: NDArray[np.uint8]) -> tuple[Path, Path]:
    """Write the two files of a model into a folder; their paths."""
    text, weights = unpack_files(model.tobytes())
    write_whole(folder / WEIGHTS, weights)
    write_whole(folder / MODEL, text)
    return folder / WEIGHTS, folder / MODEL


def fitted_in(model: NDArray[Any]) -> FittedModel:
    """The model in the bytes of its files; anything that does not fit together is refused."""
    with TemporaryDirectory() as place:
        try:
            write_files(Path(place), model)
        except MalformedMessage:
            raise InvalidParameter("model.files", "other bytes", "must be the files of a model.") from None
        return FittedModel.read(Path(place))


def files_in(folder: Path) -> NDArray[np.uint8]:
    """The files of the model in a folder, as one string of bytes."""
    packed = pack_files((folder / MODEL).read_bytes(), (folder / WEIGHTS).read_bytes())
    return np.frombuffer(packed, np.uint8)
