"""A fitted model as it is saved: weights, and what they mean. Nothing in its files could run.

* ``weights.safetensors``: coefficients and intercept of the encoded columns, and the range of each.
* ``model.json``: the task, the schema with all bounds, the classes; for each encoded column, by name and in the
  table's units, its coefficients and the range that it is ``clamped_to``; the hash of the weights. Additive models
  have knots, curves, levels and grids in their weights, and show their ``curves`` in the table's units. Models of
  rows with a declared norm, such as hashed text, have a ``row_norm`` and a ``width`` in place of a schema.

:mod:`discreet.linear.model_folder` adds the certificate, and tells whether it is of this model.

A prediction is intercept + sum of coefficient * clamped value, through the link of its task: ``model.json`` suffices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from discreet.certificate import Certificate
from discreet.errors import CertificateRejected, InvalidParameter, one_of, probability, real, whole
from discreet.files import parse_json, read_text, write_whole
from discreet.linear.additive.additive_model import AdditiveModel, additive_model, additive_tensors
from discreet.linear.additive.effects import Effects, effects_of, places_of
from discreet.linear.additive.pictures import page, plot_effects
from discreet.linear.column_kinds import Numeric
from discreet.linear.declarations import declared_classes, target_range
from discreet.linear.encoder import BoundedNumbers, BoundedRows, Encoding, SchemaEncoding
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.linear_model import LinearModel
from discreet.linear.losses import Logistic, Loss, Poisson, Softmax, Squared
from discreet.linear.named_coefficients import Coefficients, named_coefficients
from discreet.linear.schema import TASKS, Schema
from discreet.linear.summary import EffectRow, Summary, cut_columns, estimand_of, lines_from, summary_lines

FORMAT = "discreet model 1"
WEIGHTS, MODEL = "weights.safetensors", "model.json"
_MODELS = {
    "classification": "logistic regression",
    "regression": "least squares",
    "counts": "Poisson regression",
}
_SCORES = {"classification": "log odds", "regression": "prediction", "counts": "log count"}
_RARE = 3.0  # standard deviations of noise, up to which a number of records could be noise alone
_TENSORS = {"coefficients", "intercept", "lower", "upper"}


@dataclass(frozen=True, eq=False)
class FittedModel:
    """What ``predict`` needs: it knows nothing of the records that the model was fitted to.

    ``encoding`` is how it reads a table. ``classes`` are those of a classification, ``target_bounds`` those of a
    regression. ``estimator`` is the name of the class that was fitted, where it is known; ``certificate_`` is the
    one that was found to be of this model; ``notes`` are what its diagnosis said of the table. ``inference`` are
    its effects with their errors, and what they estimate, if they were paid for. ``shares`` are the noisy shares
    of records with each category or flag, 0 where noise alone could explain it; there are none where columns were
    not looked at.
    """

    task: str
    encoding: SchemaEncoding | BoundedRows
    model: LinearModel | AdditiveModel
    classes: tuple[Any, ...] = ()
    target_bounds: tuple[float, float] | None = None
    estimator: str = ""
    certificate_: Certificate | None = None
    notes: tuple[str, ...] = ()
    inference: tuple[tuple[EffectRow, ...], str] | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: Any) -> FittedModel:
        """The model of a fitted estimator."""
        task: str = fitted._task
        bounds = None if task == "classification" else fitted._usable(fitted.target_bounds_)
        classes = tuple(fitted.classes_.tolist()) if task == "classification" else ()
        return cls(
            task,
            _name_columns(fitted._encoding, getattr(fitted, "feature_names_in_", None)),
            fitted._model,
            classes,
            bounds,
            type(fitted).__name__,
            fitted.certificate_,
            fitted.diagnosis_.notes,
            _inference_of(fitted) if fitted.inference else None,
            _shares_of(fitted),
        )

    @property
    def schema(self) -> Schema:
        """The columns that it reads, if they have names."""
        if isinstance(self.encoding, SchemaEncoding):
            return self.encoding.schema
        requirement = "the model is of rows without names: ask its predict() in Python."
        raise InvalidParameter("row_norm", self.encoding.columns.text_norm, requirement)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the probabilities."""
        return np.array(self.classes)

    def decision_function(self, table: Any) -> NDArray[np.float64]:
        """intercept + encoded row times coefficients."""
        return self.model.scores(self.encoding.on_demand(table))

    def predict(self, table: Any) -> NDArray[Any]:
        """The most likely class, or the expected target within its bounds, of each row."""
        scores = self.decision_function(table)
        if self.target_bounds is not None:
            return np.clip(self._loss().mean(scores), *self.target_bounds)
        places = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.int64)
        return np.asarray(np.array(self.classes, object)[places])

    @property
    def curves_(self) -> Effects:
        """What each column of an additive model adds to the score; none of a linear one."""
        return self._effects()[0]

    def _effects(self) -> tuple[Effects, Any]:
        if not isinstance(self.model, AdditiveModel) or isinstance(self.encoding, BoundedRows):
            return {}, self.model.intercept
        places = places_of(self.encoding, list(self.schema.features))
        return effects_of(self.model, places)

    def in_units_of_table(self) -> dict[str, Any]:
        """The model by names of columns: what ``model.json`` shows of the weights."""
        if isinstance(self.model, AdditiveModel):
            effects, average = self._effects()
            shown = {name: effect.to_dict() for name, effect in effects.items()}
            return {"curves": shown, "intercept": np.atleast_1d(average).tolist()}
        if isinstance(self.encoding, BoundedRows):
            return {"intercept": np.atleast_1d(self.model.intercept).tolist()}
        encoding, (lower, upper) = self.encoding, self.model.limits
        coefficients, intercept = encoding.in_units_of_table(self.model.coefficients, self.model.intercept)
        indicators = len(lower) - len(encoding.lower)  # of flags and categories: from 0 to 1, as they are
        least = np.append(encoding.lower, np.zeros(indicators))
        most = np.append(encoding.upper, np.ones(indicators))
        ends = [least + (most - least) * np.clip(limit, 0.0, 1.0) for limit in (lower, upper)]
        names, rows = encoding.names or (), coefficients.reshape(len(lower), -1)
        return {
            "coefficients": dict(zip(names, rows.tolist(), strict=True)),
            "intercept": np.atleast_1d(intercept).tolist(),
            "clamped_to": dict(zip(names, np.column_stack(ends).tolist(), strict=True)),
        }

    @property
    def has_probabilities(self) -> bool:
        """Whether the model tells how likely a class is: a regression and a support vector machine do not."""
        return self.task == "classification" and self.estimator != "PrivateSVC"

    def predict_proba(self, table: Any) -> NDArray[np.float64]:
        """The probability of each class, for each row."""
        if not self.has_probabilities:
            what = self.estimator or f"a model for {self.task}"
            raise InvalidParameter("probabilities", what, "has none: they are of a logistic regression.")
        chances = self._loss().mean(self.decision_function(table))
        return chances if chances.ndim == 2 else np.column_stack([1 - chances, chances])

    def coefficients(self) -> Coefficients:
        """The coefficients by name, in the table's units; the values of a category have the mean 0."""
        schema, told = self.schema, self.in_units_of_table()
        names = [str(label) for label in self.classes] if len(self.classes) > 2 else [_SCORES[self.task]]
        values = np.array(list(told["coefficients"].values())), np.array(told["intercept"])
        ends = np.array(list(told["clamped_to"].values()))
        return named_coefficients(schema, *values, ends, names, self.shares)

    def plot(self, count: int = 10) -> Any:
        """The effects: bars of the largest ones, or the curves of an additive model."""
        return plot_effects(self.curves_) if self.curves_ else self.coefficients().plot(count)

    def _repr_html_(self) -> str:
        promise = "nothing is certified" if self.certificate_ is None else self.certificate_.headline
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        name = self.estimator or f"a model for {self.task}"
        if self.curves_:
            return page(name, self.curves_, promise) + f"<ul>{notes}</ul>"
        head = f"<h3>{escape(name)}</h3><p>{escape(promise)}</p><ul>{notes}</ul>"
        if isinstance(self.encoding, BoundedRows):  # no column has a name
            return f"<div>{head}</div>"
        shown = self.coefficients()
        return f"<div>{head}{shown.plot().svg}{shown._repr_html_()}</div>"

    def summary(self, confidence: float = 0.95) -> Summary:
        """The effects with their errors, if the model was fitted with ``inference=True``."""
        if self.inference is None:
            raise InvalidParameter(
                "inference", False, "the model was fitted without; errors were not paid for."
            )
        target = self.schema.target
        of = "" if target is None else f" of {target!r}"
        about = f", log odds of {self.classes[-1]!r}" if self.classes else ""
        title = f"private {_MODELS[self.task]}{of}{about}"
        return Summary(title, *self.inference, probability("confidence", confidence))

    def _loss(self) -> Loss:
        if self.task == "classification":
            return Logistic() if len(self.classes) == 2 else Softmax(len(self.classes))
        return Poisson() if self.task == "counts" else Squared()

    def to_sklearn(self) -> Any:
        """A plain scikit-learn pipeline with the same predictions, for machines without this package."""
        from discreet.linear.export import plain_pipeline

        return plain_pipeline(self)

    def to_onnx(self) -> Any:
        """The model as an ``onnx.ModelProto`` with the same predictions, for other languages and devices.

        It has an input for each column; ``onnx.save(model.to_onnx(), "model.onnx")`` writes it.
        """
        from discreet.linear.export import onnx_model

        return onnx_model(self)

    def tensors(self) -> dict[str, NDArray[np.float64]]:
        """All numbers of the model by name, as they are in the file of its weights."""
        return _tensors(self.model)

    def write(self, folder: Path, more: dict[str, Any]) -> tuple[Path, Path]:
        """Write weights and ``model.json``, which are returned, into a folder; ``more`` is added to the text."""
        content = safetensors.numpy.save(self.tensors())
        write_whole(folder / WEIGHTS, content)
        text = {
            "format": FORMAT,
            "task": self.task,
            "classes": list(self.classes),
            "target_bounds": self.target_bounds,
            **_declarations(self.encoding),
            "weights": hashlib.sha256(content).hexdigest(),
            **self.in_units_of_table(),
        }
        if self.shares:
            text["shares"] = dict(self.shares)
        if self.inference is not None:
            lines, estimand = self.inference
            keys = ("name", "coefficient", "standard_error", "against")
            text["inference"] = {
                "lines": [dict(zip(keys, line, strict=True)) for line in lines],
                "estimand": estimand,
            }
        write_whole(folder / MODEL, json.dumps(text | more, indent=2, allow_nan=False) + "\n")
        return folder / WEIGHTS, folder / MODEL

    @classmethod
    def read(cls, folder: Path) -> FittedModel:
        """Read what :meth:`write` has written; anything that does not fit together is refused."""
        text, content = model_text(folder), (folder / WEIGHTS).read_bytes()
        if text.get("weights") != hashlib.sha256(content).hexdigest():
            raise CertificateRejected(f"{folder} is rejected: {WEIGHTS} is not the file that {MODEL} names.")
        try:
            loaded = cls._assemble(text, safetensors.numpy.load(content))
            shown = loaded.in_units_of_table()
            altered = [part for part in shown if part in text and not _same(text[part], shown[part])]
        except (LookupError, TypeError, ValueError, AttributeError, safetensors.SafetensorError) as error:
            raise InvalidParameter("model", str(folder), f"is not a model ({error}).") from None
        if altered:
            raise CertificateRejected(
                f"{folder} is rejected: {altered[0]} in {MODEL} and in {WEIGHTS} differ."
            )
        return loaded

    @classmethod
    def _assemble(cls, text: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> FittedModel:
        encoding, task = _read_encoding(text), one_of("task", text["task"], TASKS)
        classes = tuple(declared_classes(text["classes"]).tolist()) if task == "classification" else ()
        bounds = None if classes else target_range(text["target_bounds"])
        if not classes and bounds is None:
            raise ValueError("it has neither classes nor bounds of its target")
        columns, outputs = encoding.columns, (len(classes),) if len(classes) > 2 else ()
        model = (_linear_model if set(tensors) == _TENSORS else additive_model)(tensors, columns, outputs)
        notes = tuple(map(str, text.get("notes", ())))
        told = text.get("inference")
        inference = None if told is None else (lines_from(told["lines"]), str(told["estimand"]))
        estimator = str(text.get("estimator", ""))
        told = text.get("shares", {})
        shares = {str(name): real("shares", told[name], at_least=0, at_most=1) for name in told}
        return cls(
            task, encoding, model, classes, bounds, estimator, notes=notes, inference=inference, shares=shares
        )


def _inference_of(fitted: Any) -> tuple[tuple[EffectRow, ...], str]:
    """The effects of a fitted estimator, and what they estimate."""
    model, encoding = fitted._model, fitted._encoding
    names = fitted.coef_names_
    if names is None:
        names = [f"x{place}" for place in range(encoding.columns.width)]
    clamp = None if model.inference is None else model.inference.clamp
    told = list(map(str, names))
    cut, learnt = cut_columns(model.released, told), [told[place] for place in encoding.learnt]
    estimand = estimand_of(clamp, fitted._unit() is not None, cut, learnt)
    return summary_lines(model.inference, encoding, names), estimand


def _shares_of(fitted: Any) -> dict[str, float]:
    """The released shares of categories and flags, by the names of their encoded columns."""
    model, encoding = fitted._model, fitted._encoding
    if model.released is None or model.counts is None or not isinstance(encoding, SchemaEncoding):
        return {}
    held, names = model.released.categories, encoding.names or ()
    shares = np.where(held < _RARE * model.released.noise, 0.0, held / model.counts.records)
    return dict(zip(names[len(encoding.numerics) :], np.clip(shares, 0.0, 1.0).tolist(), strict=True))


def _tensors(model: LinearModel | AdditiveModel) -> dict[str, NDArray[np.float64]]:
    if isinstance(model, AdditiveModel):
        return additive_tensors(model)
    lower, upper = model.limits
    tensors = {
        "coefficients": model.coefficients,
        "intercept": model.intercept,
        "lower": lower,
        "upper": upper,
    }
    return {name: np.asarray(tensor, np.float64, order="C") for name, tensor in tensors.items()}


def _linear_model(
    tensors: Mapping[str, NDArray[Any]], columns: Columns, outputs: tuple[int, ...]
) -> LinearModel:
    width = (columns.width,)
    expected = {"coefficients": (*width, *outputs), "intercept": outputs, "lower": width, "upper": width}
    if {name: tensors[name].shape for name in _TENSORS} != expected:
        raise ValueError("its weights do not fit its schema")
    return LinearModel(
        tensors["coefficients"], tensors["intercept"], 1.0, (tensors["lower"], tensors["upper"])
    )


def _name_columns(encoding: Encoding, names: Any) -> SchemaEncoding | BoundedRows:
    """An encoding that knows its columns by name, if they have any: bounds alone are a schema of numbers."""
    if isinstance(encoding, SchemaEncoding | BoundedRows):
        return encoding
    assert isinstance(encoding, BoundedNumbers)
    found = [f"x{place}" for place in range(encoding.columns.width)] if names is None else names
    bounds = zip(encoding.lower.tolist(), encoding.upper.tolist(), strict=True)
    columns = {str(name): Numeric(*pair) for name, pair in zip(found, bounds, strict=True)}
    named = SchemaEncoding(Schema(columns))
    named.missing = encoding.missing
    return named


def _declarations(encoding: SchemaEncoding | BoundedRows) -> dict[str, Any]:
    """What an encoding knows of tables, as plain data."""
    if isinstance(encoding, SchemaEncoding):
        known: dict[str, Any] = {"target": encoding.schema.target, "schema": encoding.schema.to_dict()}
        if encoding.missing is not None and len(encoding.missing):
            known["missing"] = dict(zip(encoding.numerics, encoding.missing.tolist(), strict=True))
        return known
    return {"target": None, "row_norm": encoding.columns.text_norm, "width": encoding.columns.text}


def _read_encoding(text: Mapping[str, Any]) -> SchemaEncoding | BoundedRows:
    """The inverse of :func:`_declarations`."""
    if "row_norm" in text:
        return BoundedRows(whole("width", text["width"], at_least=1), text["row_norm"])
    encoding = SchemaEncoding(Schema.from_dict(text["schema"]))
    told = text.get("missing")  # which versions before 0.2 did not write: then it is the middle
    if told is not None:
        if list(told) != list(encoding.numerics):
            raise ValueError("what counts for missing numbers does not fit its schema")
        encoding.missing = np.array([real("missing", told[name], at_least=0, at_most=1) for name in told])
    return encoding


def model_text(folder: Path) -> dict[str, Any]:
    """What the ``model.json`` in a folder says."""
    text = parse_json(read_text(folder / MODEL), "model")
    if text.get("format") != FORMAT:
        raise InvalidParameter("model", str(folder), f"is not a {FORMAT!r}; fit it again.")
    return text


def _same(told: Any, held: Any) -> bool:
    """True if both are the same numbers by the same names, but for the last digits."""
    if isinstance(held, dict):
        same_names = isinstance(told, dict) and list(told) == list(held)
        return same_names and all(_same(told[name], value) for name, value in held.items())
    if held is None or isinstance(held, str) or (isinstance(held, list) and _has_text(held)):
        return bool(told == held)
    theirs, ours = np.asarray(told, np.float64), np.asarray(held, np.float64)
    return theirs.shape == ours.shape and bool(np.allclose(theirs, ours, rtol=1e-9, atol=1e-300))


def _has_text(values: list[Any]) -> bool:
    return any(isinstance(value, str) for value in values)
