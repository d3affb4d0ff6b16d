"""The model of a study file: from ``[model]`` to a party's sums, and from the result to a model folder.

    [model]
    kind = "logistic"                # or "linear"
    dimension = 4                    # the intercept and the encoded columns; `discreet study new` counts them
    target = "readmitted"
    unit = "patient"                 # whose each row is; goes with unit = "person" in [privacy]
    [model.columns]                  # as in a schema.toml: written from knowledge, never from the records
    age = { bounds = [18, 100] }
    ward = { categories = ["surgery", "medicine"] }
    readmitted = { flag = "yes" }

Numbers are mapped to [0, 1] by their bounds, categories to columns of 0 and 1: the same at every party. A linear
regression is fitted to the target on its own scale from 0 to 1.

Curves, counts and learnt bounds are those of a study by the recipe (:mod:`discreet.adapters.joint_recipe`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from discreet.errors import CertificateRejected, InvalidParameter, one_of, whole
from discreet.evaluation.question import as_in_the_file
from discreet.linear.cells import declared_codes, declared_numbers
from discreet.linear.column_kinds import Category, Column, Flag, Numeric
from discreet.linear.encoder import SchemaEncoding, declared_labels, scale_to_unit
from discreet.linear.fitted_model import MODEL, WEIGHTS, FittedModel, model_text
from discreet.linear.inputs import codes
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.linear_model import LinearModel
from discreet.linear.losses import Logistic, Loss, Softmax, Squared
from discreet.linear.row_source import Table, join_chunks
from discreet.linear.schema import Schema
from discreet.linear.tables import table_in
from discreet.parties.joint import model_digest
from discreet.parties.study import Study

KINDS = ("logistic", "linear")
_WORDS = {"kind", "dimension", "target", "columns", "unit"}


@dataclass(frozen=True)
class JointModel:
    """What a study trains, as its file declares it."""

    study: Study
    schema: Schema
    made: ClassVar[str] = "The model"
    """What the parties make together, in words."""

    @classmethod
    def of(cls, study: Study) -> JointModel:
        """The model that a study file declares; everything that the command line needs is checked here."""
        model = study.model
        if model["kind"] == "additive" or "curves" in model:
            raise InvalidParameter("model", "curves", "belong to studies with algorithm = 'recipe'.")
        one_of("model.kind", model["kind"], KINDS)
        if unknown := sorted(set(model) - _WORDS):
            raise InvalidParameter("model", unknown, f"unknown words; known are {', '.join(sorted(_WORDS))}.")
        if "columns" not in model or "target" not in model:
            raise InvalidParameter(
                "model", sorted(model), "must declare target and columns, as in a schema.toml."
            )
        schema = Schema.from_dict({"columns": model["columns"], "target": model["target"]})
        made = cls(study, schema)
        check_unit(study)
        if isinstance(made.target, Numeric) != (model["kind"] == "linear"):
            wanted = "bounds" if model["kind"] == "linear" else "categories or a flag"
            raise InvalidParameter("model.kind", model["kind"], f"goes with a target that has {wanted}.")
        if isinstance(made.target, Numeric) and not made.target.declared:
            raise InvalidParameter("model.target", schema.target, "must have declared bounds.")
        expected = dimension(schema)
        whole(
            "model.dimension",
            study.dimension,
            at_least=expected,
            at_most=expected,
            remedy="It follows from columns.",
        )
        return made

    @property
    def target(self) -> Column:
        """The declared column of the target."""
        return self.schema.columns[str(self.schema.target)]

    @property
    def loss(self) -> Loss:
        """What is minimised."""
        classes = _classes(self.target)
        if not classes:
            return Squared()
        return Logistic() if len(classes) == 2 else Softmax(len(classes))

    def holder(self, path: Path) -> LinearHolder:
        """The records in a table, ready to be summed. Cells that are not as declared count as missing, silently."""
        table, people = table_and_people(path, self.schema, self.study.model.get("unit"))
        features = SchemaEncoding(self.schema).encode(table).astype(np.float64)
        targets = self._targets(table[str(self.schema.target)])
        clip_norm = self.study.training.clip_norm
        return LinearHolder(self.loss, features, targets, clip_norm=clip_norm, people=people)

    def _targets(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        column = self.target
        if isinstance(column, Numeric):
            values = declared_numbers(column, cells).astype(np.float64)
            return np.where(np.isfinite(values), scale_to_unit(values, column.lower, column.upper), np.nan)
        if isinstance(column, Flag):
            return declared_labels(column, cells).astype(np.float64)
        found = codes(declared_labels(column, cells), tuple(_classes(column))).astype(np.float64)
        return np.where(found < 0, np.nan, found)

    def unlike_declared(self, path: Path) -> list[str]:
        """The columns of a table in which no cell is as declared, for its owner's eyes only."""
        table = table_in(path).whole(self.schema.columns)
        return [name for name, column in self.schema.columns.items() if not any_declared(column, table[name])]

    def fitted_model(self, theta: NDArray[np.float64]) -> FittedModel:
        """The trained model, as ``discreet predict`` reads it."""
        classes = _classes(self.target)
        outputs = (len(classes),) if len(classes) > 2 else ()
        table = theta.reshape(-1, *outputs)
        intercept, coefficients = table[0], table[1:]
        bounds = None
        if isinstance(self.target, Numeric):
            bounds = (float(self.target.lower or 0.0), float(self.target.upper or 0.0))
            intercept = bounds[0] + (bounds[1] - bounds[0]) * intercept
            coefficients = (bounds[1] - bounds[0]) * coefficients
        limits = (np.zeros(len(coefficients)), np.ones(len(coefficients)))
        model = LinearModel(np.array(coefficients), np.asarray(intercept), 1.0, limits)
        task = "regression" if bounds else "classification"
        return FittedModel(task, SchemaEncoding(self.schema), model, tuple(classes), bounds)

    def write(self, folder: Path, theta: NDArray[np.float64]) -> tuple[Path, Path]:
        """Write the model folder, with the numbers that the parties trained together; the files."""
        about = {
            "study": self.study.to_dict(),
            "digest": self.study.digest(),
            "model_digest": model_digest(theta),
            "parameters": theta.tolist(),
        }
        return self.fitted_model(theta).write(folder, about)

    def describe(self, theta: NDArray[np.float64]) -> str:
        """Lines for a screen: none, since ``discreet report`` shows a model."""
        return ""

    def digest_in(self, folder: Path) -> str:
        """The digest of the model that a folder says it holds."""
        return str(model_text(folder).get("model_digest"))

    def insist_on(self, folder: Path, expected: str) -> str:
        """That the weights in a folder are the model of this digest, in words; else
        :class:`~discreet.errors.CertificateRejected`.

        The digest is computed from the parameters in the folder, and the weights from them, bit by bit: nothing that
        a file says of another is believed.
        """
        try:
            text, found = model_text(folder), FittedModel.read(folder)
            theta = np.array(text["parameters"], np.float64)
            made = self.fitted_model(theta) if theta.shape == (self.study.dimension,) else None
        except (KeyError, TypeError, ValueError, OSError) as error:
            what = "lacks its parameters" if isinstance(error, KeyError) else "cannot be read"
            raise CertificateRejected(f"{folder} is rejected: the model {what}.") from None
        if text.get("digest") != self.study.digest() or found.schema != self.schema:
            raise CertificateRejected(f"{folder} is rejected: {MODEL} is of another study.")
        if made is None or model_digest(theta) != expected:
            raise CertificateRejected(f"{folder} is rejected: it holds another model than {expected[:16]}.")
        if not _same_weights(made, found):
            raise CertificateRejected(
                f"{folder} is rejected: {WEIGHTS} does not follow from the parameters that the digest names."
            )
        return f"the weights in {folder} are the model {expected[:16]}, recomputed"


def check_unit(study: Study) -> None:
    """Raise unless a study of persons says whose each row is, and no other does."""
    column, persons = study.model.get("unit"), study.privacy.unit == "person"
    if persons and not (isinstance(column, str) and column):
        raise InvalidParameter("model.unit", column, "must name the column that says whose each row is.")
    if column is not None and not persons:
        raise InvalidParameter("model.unit", column, "goes with unit = 'person' in [privacy].")
    if persons and column in study.model["columns"]:
        raise InvalidParameter("model.unit", column, "is no feature; leave it out of the columns.")


def table_and_people(path: Path, schema: Schema, unit: str | None) -> tuple[Table, NDArray[Any] | None]:
    """The declared columns of a table, and whose each row is, if somebody's."""
    if unit is None:
        return table_in(path).whole(schema.columns), None
    chunks = list(table_in(path).chunks(schema.columns, [unit]))
    ids = np.concatenate([as_in_the_file(chunk.kept[unit]) for chunk in chunks])
    return join_chunks(chunks, schema.columns), ids


def any_declared(column: Column, cells: NDArray[Any]) -> bool:
    """Whether a cell of a column is as declared, for its owner's eyes only."""
    if isinstance(column, Numeric):
        return bool(np.isfinite(declared_numbers(column, cells).astype(np.float64)).any())
    return bool((declared_codes(column, cells) >= 0).any())


def _same_weights(one: FittedModel, other: FittedModel) -> bool:
    pairs = (one.tensors(), other.tensors())
    same = pairs[0].keys() == pairs[1].keys() and one.classes == other.classes
    same = same and one.target_bounds == other.target_bounds
    return same and all(np.array_equal(pairs[0][name], pairs[1][name]) for name in pairs[0])


def dimension(schema: Schema) -> int:
    """The number of parameters: for each output an intercept and the encoded columns."""
    classes = _classes(schema.columns[str(schema.target)])
    outputs = len(classes) if len(classes) > 2 else 1
    return outputs * (1 + SchemaEncoding(schema).columns.width)


def _classes(column: Column) -> list[Any]:
    if isinstance(column, Category):
        return sorted(column.values, key=_order)
    return [False, True] if isinstance(column, Flag) else []


def _order(value: Any) -> tuple[int, Any]:
    return (1, value) if isinstance(value, str) else (0, math.inf if value is None else value)
