"""A fitted model as a plain scikit-learn pipeline, which predicts without this package: :func:`plain_pipeline`.

The steps are the public rules of :mod:`discreet.linear.encoder` in scikit-learn's own words: numbers clamped to their
bounds, missing ones in the middle, all mapped to [0, 1]; one-hot categories; everything in single precision, as the
model was fitted; then the limits of the model, and its coefficients. They are fitted to the bounds and categories of
the schema, never to a record.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder
from sklearn.svm import LinearSVC

from discreet.errors import InvalidParameter, MissingDependency
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.fitted_model import FittedModel
from discreet.linear.fitting import Model
from discreet.linear.schema import Category, Column, Date, Flag, Numeric, Schema


def plain_pipeline(model: FittedModel) -> Pipeline:
    """The model as a pipeline of scikit-learn's own steps. It takes frames with the columns of the schema.

    Numbers must be numbers, and categories the declared values: how texts in a file are written is not its matter.
    Predictions are the same but for rounding, below 1e-12 of the score.
    """
    if not isinstance(model.model, Model):
        what = model.estimator or "an additive model"
        raise InvalidParameter("to_sklearn", what, "is for linear models; use predict here.")
    encoding = SchemaEncoding(model.schema)
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


def _refuse_special(name: str, column: Column) -> None:
    special = (
        isinstance(column, Date) or bool(column.missing_values)
        if isinstance(column, Numeric)
        else column.strip or column.casefold
    )
    if special:
        requirement = "dates, missing_values, strip and casefold have no plain scikit-learn step."
        raise InvalidParameter("schema", name, requirement)


# ---- columns ----


def _encoder(encoding: SchemaEncoding) -> ColumnTransformer:
    steps: list[tuple[str, Any, list[str]]] = []
    if encoding.numerics:
        clamp = FunctionTransformer(np.clip, kw_args={"a_min": encoding.lower, "a_max": encoding.upper})
        parts = [("clamp", clamp), ("fill", SimpleImputer(strategy="mean")), ("scale", MinMaxScaler())]
        steps.append(("numbers", Pipeline(parts), list(encoding.numerics)))
    for name in encoding.groups:
        steps.append((f"group {name}", _group(encoding.schema.features[name]), [name]))
    made = ColumnTransformer(steps, sparse_threshold=0.0)
    return made.fit(_ends(encoding.schema))


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


# ---- the model ----


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
