"""A fitted model for others, to predict without this package: :func:`plain_pipeline` and :func:`onnx_model`.

The steps of the scikit-learn pipeline are the public rules of :mod:`discreet.linear.encoder` in scikit-learn's own
words: numbers clamped to their bounds and mapped to [0, 1], missing ones as in the model; one-hot categories;
everything in single precision, as the model was fitted; then the limits of the model, and its coefficients. They
are fitted to the bounds and categories of the schema, never to a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder
from sklearn.svm import LinearSVC

from discreet.errors import InvalidParameter, MissingDependency, missing_extra
from discreet.linear.additive.additive_model import AdditiveModel
from discreet.linear.column_kinds import Category, Column, Date, Flag, Numeric
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.fitted_model import FittedModel
from discreet.linear.linear_model import LinearModel
from discreet.linear.row_views.curve_bases import Basis, Curve
from discreet.linear.schema import Schema


def plain_pipeline(model: FittedModel) -> Pipeline:
    """The model as a pipeline of scikit-learn's own steps. It takes frames with the columns of the schema.

    Numbers must be numbers, and categories the declared values: how texts in a file are written is not its matter.
    Predictions are the same but for rounding, below 1e-12 of the score.
    """
    if not isinstance(model.model, LinearModel):
        what = model.estimator or "an additive model"
        raise InvalidParameter("to_sklearn", what, "is for linear models; use predict here.")
    encoding = _named(model)
    for name, column in model.schema.features.items():
        _refuse_special(name, column)
    lower, upper = model.model.limits
    return Pipeline(
        [
            ("encode", _encoder(encoding)),
            ("round", FunctionTransformer(np.float32)),
            ("limit", FunctionTransformer(np.clip, kw_args={"a_min": lower, "a_max": upper})),
            ("model", _predictor(model)),
        ]
    )


def _named(model: FittedModel) -> SchemaEncoding:
    """How the model reads a table with named columns."""
    model.schema  # noqa: B018  # refuses rows without names
    assert isinstance(model.encoding, SchemaEncoding)
    return model.encoding


def _refuse_special(name: str, column: Column) -> None:
    special = (
        isinstance(column, Date) or bool(column.missing_values)
        if isinstance(column, Numeric)
        else column.strip or column.casefold
    )
    if special:
        requirement = "dates, missing_values, strip and casefold have no plain scikit-learn step."
        raise InvalidParameter("schema", name, requirement)


def _encoder(encoding: SchemaEncoding) -> ColumnTransformer:
    steps: list[tuple[str, Any, list[str]]] = []
    if encoding.numerics:
        clamp = FunctionTransformer(np.clip, kw_args={"a_min": encoding.lower, "a_max": encoding.upper})
        parts = [("clamp", clamp), ("scale", MinMaxScaler()), ("fill", SimpleImputer(strategy="mean"))]
        steps.append(("numbers", Pipeline(parts), list(encoding.numerics)))
    for name in encoding.groups:
        steps.append((f"group {name}", _group(encoding.schema.features[name]), [name]))
    made = ColumnTransformer(steps, sparse_threshold=0.0).fit(_ends(encoding.schema))
    if encoding.numerics:
        made.named_transformers_["numbers"]["fill"].statistics_ = encoding.fills.copy()
    return made


def _group(column: Column) -> Any:
    if isinstance(column, Numeric):
        return MissingIndicator(features="all", error_on_new=False)
    return OneHotEncoder(categories=[_labels(column)], handle_unknown="ignore", sparse_output=False)


def _labels(column: Category | Flag) -> NDArray[Any]:
    """The declared values, all of one type; numbers are sorted, as scikit-learn wants them."""
    values = list(column.values)
    texts = [isinstance(value, str) for value in values]
    if all(texts):
        return np.array(values, object)
    if any(texts) or values != sorted(values):
        requirement = "must be texts, or numbers from the least to the largest, to be plain one-hot columns."
        raise InvalidParameter("categories", values, requirement)
    return np.array(values)


def _ends(schema: Schema) -> Any:
    """A frame with the lower bounds and the upper ones; a label in both rows."""
    try:
        import pandas
    except ImportError:
        raise MissingDependency("to_sklearn needs pandas for columns by name: pip install pandas.") from None
    cells = {
        name: [column.lower, column.upper] if isinstance(column, Numeric) else [column.values[0]] * 2
        for name, column in schema.features.items()
    }
    return pandas.DataFrame(cells)


def _predictor(model: FittedModel) -> Any:
    width = len(model.model.coefficients)
    coefficients, intercept = np.asarray(model.model.coefficients).T, np.asarray(model.model.intercept)
    if model.task == "classification":
        known = {
            "classes_": model.classes_,
            "coef_": np.atleast_2d(coefficients),
            "intercept_": np.atleast_1d(intercept),
        }
        plain = LinearSVC() if not model.has_probabilities else LogisticRegression()
        return _with(plain, n_features_in_=width, **known)
    line = _with(LinearRegression(), n_features_in_=width, coef_=coefficients, intercept_=float(intercept))
    least, most = model.target_bounds or (-np.inf, np.inf)
    back = [("clamp", _backwards(partial(np.clip, a_min=least, a_max=most)))]
    back += [("link", _backwards(np.exp))] if model.task == "counts" else []  # the last one comes first
    target = Pipeline(back)
    made = TransformedTargetRegressor(LinearRegression(), transformer=target, check_inverse=False)
    return _with(made, regressor_=line, transformer_=target.fit(np.zeros((1, 1))), _training_dim=1)


def _backwards(function: Any) -> FunctionTransformer:
    return FunctionTransformer(inverse_func=function, check_inverse=False)


def _with(estimator: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(estimator, name, value)
    return estimator


# An ONNX graph, which other languages and devices run: onnx_model.
#
# The graph has one input for each column of the schema, with a row for each record: double numbers (NaN where one is
# missing, days since 1970-01-01 for a date), texts for categories of texts. Its nodes are the encoder's public rules
# and the released model. Nothing in it was computed from a record but what was released.

_OPSET, _LABELS, _VERSION = (
    17,
    3,
    8,
)  # of ONNX, of its operators for labels, and of the file: widely supported


def onnx_model(model: FittedModel) -> Any:
    """The model as ``onnx.ModelProto``; predictions are the same but for rounding.

    Outputs are ``label``, ``probabilities`` and ``score`` of classes, or ``prediction`` of numbers and counts.
    """
    for name, column in model.schema.features.items():
        if isinstance(column, Category | Flag) and (column.strip or column.casefold):
            requirement = "strip and casefold have no ONNX operator; bring the cells in order before."
            raise InvalidParameter("schema", name, requirement)
    graph = _Graph()
    encoding = _named(model)
    rows = _encode(graph, encoding)
    score = (
        _curves(graph, model.model, rows)
        if isinstance(model.model, AdditiveModel)
        else _line(graph, model, rows)
    )
    outputs = (
        _classes(graph, model, score) if model.task == "classification" else _numbers(graph, model, score)
    )
    return graph.model(outputs, model)


class _Graph:
    """Nodes in the order in which they are added; every answer is the name of a tensor."""

    def __init__(self) -> None:
        try:
            self.onnx = import_module("onnx")
        except ImportError:
            raise missing_extra("to_onnx needs onnx", "onnx") from None
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._kinds = {
            np.dtype(np.float64): "DOUBLE",
            np.dtype(np.float32): "FLOAT",
            np.dtype(np.int64): "INT64",
        }

    def kind(self, name: str) -> int:
        return int(getattr(self.onnx.TensorProto, name))

    def input(self, name: str, text: bool) -> str:
        shape = ["records", 1]
        kind = self.kind("STRING" if text else "DOUBLE")
        self._inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, values: Any) -> str:
        array, name = np.asarray(values), f"constant {len(self._constants)}"
        helper = self.onnx.helper
        if array.dtype.kind in "OU":
            texts = [str(value).encode() for value in array.tolist()]
            made = helper.make_tensor(name, self.kind("STRING"), array.shape, texts)
        else:
            made = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self._constants.append(made)
        return name

    def add(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """A node; inputs that are not names of tensors become constants."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = f"tensor {len(self._nodes)}"
        node = self.onnx.helper.make_node(operator, names, [output], domain=domain, **attributes)
        self._nodes.append(node)
        return output

    def cast(self, tensor: str, kind: str) -> str:
        return self.add("Cast", tensor, to=self.kind(kind))

    def model(self, outputs: dict[str, tuple[str, str, Sequence[Any]]], model: FittedModel) -> Any:
        """All of it; outputs are named tensors with their kinds and shapes."""
        helper = self.onnx.helper
        for name, (tensor, _, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        told = [
            helper.make_tensor_value_info(name, self.kind(kind), shape)
            for name, (_, kind, shape) in outputs.items()
        ]
        graph = helper.make_graph(self._nodes, "discreet", self._inputs, told, self._constants)
        sets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _LABELS)]
        made = helper.make_model(graph, opset_imports=sets, producer_name="discreet", ir_version=_VERSION)
        if model.certificate_ is not None:
            certificate = {"promise": model.certificate_.headline, "certificate": model.certificate_.digest()}
            helper.set_model_props(made, certificate)
        self.onnx.checker.check_model(made)
        return made


def _encode(graph: _Graph, encoding: SchemaEncoding) -> str:
    """The encoded rows, in single precision as the model was fitted, then as doubles."""
    features = encoding.schema.features
    inputs = {name: graph.input(name, _is_text(column)) for name, column in features.items()}
    known = {name: _with_gaps(graph, inputs[name], column) for name, column in encoding.numerics.items()}
    columns = zip(encoding.numerics.items(), encoding.fills.tolist(), strict=True)
    parts = [_scale(graph, known[name], column, missing) for (name, column), missing in columns]
    for name in encoding.groups:
        column = features[name]
        if isinstance(column, Numeric):
            parts.append(graph.cast(graph.add("IsNaN", known[name]), "DOUBLE"))
        else:
            parts.append(_one_hot(graph, inputs[name], column))
    return graph.cast(graph.cast(graph.add("Concat", *parts, axis=1), "FLOAT"), "DOUBLE")


def _is_text(column: Column) -> bool:
    if isinstance(column, Numeric):
        return False
    texts = {isinstance(value, str) for value in column.values}
    if len(texts) > 1:
        raise InvalidParameter(
            "categories", list(column.values), "must be all texts, or all numbers, for ONNX."
        )
    return texts == {True}


def _with_gaps(graph: _Graph, values: str, column: Numeric) -> str:
    """The numbers with NaN in place of codes for missing ones."""
    for code in column.missing_values:
        is_code = graph.add("Equal", values, np.array([[code]], np.float64))
        values = graph.add("Where", is_code, np.array([[np.nan]]), values)
    return values


def _scale(graph: _Graph, values: str, column: Numeric, missing: float) -> str:
    lower, upper = np.array([[column.lower]]), np.array([[column.upper]])
    inside = graph.add("Div", graph.add("Sub", values, lower), upper - lower)
    filled = graph.add("Where", graph.add("IsNaN", inside), np.array([[missing]]), inside)
    return graph.add("Min", graph.add("Max", filled, np.array([[0.0]])), np.array([[1.0]]))


def _one_hot(graph: _Graph, values: str, column: Category | Flag) -> str:
    if not _is_text(column):
        same = graph.add("Equal", values, np.array([column.values], np.float64))
        return graph.cast(same, "DOUBLE")
    encoded = graph.add(
        "OneHotEncoder", values, domain="ai.onnx.ml", cats_strings=list(column.values), zeros=1
    )
    return graph.cast(graph.add("Reshape", encoded, np.array([-1, len(column.values)])), "DOUBLE")


def _line(graph: _Graph, model: FittedModel, rows: str) -> str:
    lower, upper = (np.asarray(limit, np.float64)[None] for limit in model.model.limits)  # type: ignore[union-attr]
    inside = graph.add("Min", graph.add("Max", rows, lower), upper)
    return _product(graph, inside, model.model.coefficients, model.model.intercept)


def _product(graph: _Graph, rows: str, coefficients: Any, intercept: Any) -> str:
    """Rows times coefficients, and the intercept: one column for each output."""
    slopes = np.asarray(coefficients, np.float64)
    added = graph.add("MatMul", rows, slopes.reshape(len(slopes), -1))
    return graph.add("Add", added, np.atleast_1d(np.asarray(intercept, np.float64))[None])


def _curves(graph: _Graph, model: AdditiveModel, rows: str) -> str:
    total = None
    for weight, part in model.parts():
        own = _product(graph, _expand(graph, part.basis, rows), part.coefficients, part.intercept)
        own = graph.add("Mul", own, np.array([[weight]]))
        total = own if total is None else graph.add("Add", total, own)
    assert total is not None  # a model has at least one part
    return total


def _expand(graph: _Graph, basis: Basis, rows: str) -> str:
    parts = [_curve(graph, curve, rows) for curve in basis.curves]
    levels = np.arange(basis.inputs.width)[basis.inputs.categories]
    if len(levels):
        parts.append(_columns(graph, rows, levels))
    for pair in basis.pairs:
        sides = [
            _hats(graph, _columns(graph, rows, [j]), k) for j, k in zip(pair.columns, pair.knots, strict=True)
        ]
        first = graph.add("Reshape", sides[0], np.array([-1, len(pair.knots[0]), 1]))
        second = graph.add("Reshape", sides[1], np.array([-1, 1, len(pair.knots[1])]))
        cells = graph.add("Mul", first, second)
        flat = graph.add("Reshape", cells, np.array([-1, len(pair.knots[0]) * len(pair.knots[1])]))
        parts.append(_columns(graph, flat, pair.kept))
    return graph.add("Concat", *parts, axis=1)


def _curve(graph: _Graph, curve: Curve, rows: str) -> str:
    found = _hats(graph, _columns(graph, rows, [curve.column]), curve.knots)
    found = _columns(graph, found, curve.kept)
    if curve.missing is None:
        return found
    known = graph.add("Sub", np.array([[1.0]]), _columns(graph, rows, [curve.missing]))
    return graph.add("Mul", found, known)


def _hats(graph: _Graph, values: str, knots: NDArray[np.float64]) -> str:
    """At each knot the lower of the line that rises to it and the one that falls from it, at least 0."""
    widths = np.diff(knots)
    inside = graph.add("Min", graph.add("Max", values, knots[None, :1]), knots[None, -1:])
    rising = graph.add("Sub", inside, np.append(knots[0] - 1, knots[:-1])[None])
    rising = graph.add("Div", rising, np.append(1.0, widths)[None])
    falling = graph.add("Sub", np.append(knots[1:], knots[-1] + 1)[None], inside)
    falling = graph.add("Div", falling, np.append(widths, 1.0)[None])
    return graph.add("Max", graph.add("Min", rising, falling), np.zeros((1, 1)))


def _columns(graph: _Graph, rows: str, places: Any) -> str:
    return graph.add("Gather", rows, np.asarray(places, np.int64), axis=1)


def _classes(graph: _Graph, model: FittedModel, score: str) -> dict[str, tuple[str, str, Sequence[Any]]]:
    several, count = len(model.classes) > 2, len(model.classes)
    if several:
        places = graph.add("ArgMax", score, axis=1, keepdims=0)
        chances = graph.add("Softmax", score, axis=1)
    else:
        above = graph.cast(graph.add("Greater", score, np.zeros((1, 1))), "INT64")
        places = graph.add("Squeeze", above, np.array([1]))
        chance = graph.add("Sigmoid", score)
        chances = graph.add("Concat", graph.add("Sub", np.ones((1, 1)), chance), chance, axis=1)
    labels, kind = _onnx_labels(model.classes)
    answer: dict[str, tuple[str, str, Sequence[Any]]] = {
        "label": (graph.add("Gather", labels, places), kind, ["records"]),
        "score": (score, "DOUBLE", ["records", count if several else 1]),
    }
    if model.has_probabilities:
        answer["probabilities"] = (chances, "DOUBLE", ["records", count])
    return answer


def _onnx_labels(classes: Sequence[Any]) -> tuple[NDArray[Any], str]:
    """The classes as they are if they are integers, or true and false; else as texts."""
    kinds = {type(label) for label in classes}
    if kinds == {bool}:
        return np.array(classes, np.bool_), "BOOL"
    if kinds == {int}:
        return np.array(classes, np.int64), "INT64"
    return np.array(list(map(str, classes)), object), "STRING"


def _numbers(graph: _Graph, model: FittedModel, score: str) -> dict[str, tuple[str, str, Sequence[Any]]]:
    mean = graph.add("Exp", score) if model.task == "counts" else score
    least, most = model.target_bounds or (-np.inf, np.inf)
    inside = graph.add("Min", graph.add("Max", mean, np.array([[least]])), np.array([[most]]))
    return {"prediction": (inside, "DOUBLE", ["records", 1])}
