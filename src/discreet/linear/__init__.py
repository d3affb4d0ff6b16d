"""Private linear models: scikit-learn's habits, no knobs, and a certificate for every fit.

>>> import numpy as np
>>> from discreet.linear import PrivateLogisticRegression
>>> x = np.linspace(0, 10, 5000)[:, None]
>>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10)).fit(x, x[:, 0] > 3)
>>> model.predict([[2.0], [4.0]]).tolist()
[0, 1]
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from discreet.linear.additive.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor
    from discreet.linear.classification import PrivateLogisticRegression, PrivateSVC
    from discreet.linear.column_kinds import Category, Date, Flag, Numeric, Unit
    from discreet.linear.diagnosis import DeclarationWarning
    from discreet.linear.fitted_model import FittedModel
    from discreet.linear.losses import Logistic, Loss, Squared
    from discreet.linear.model_folder import load
    from discreet.linear.partitions import Partitions
    from discreet.linear.regression import PrivateLinearRegression, PrivatePoissonRegressor
    from discreet.linear.schema import Schema
    from discreet.linear.storage import Storage
    from discreet.linear.tables import read_table
    from discreet.linear.transformers import PublicBounds, SchemaEncoder

__all__ = [
    "Category",
    "Date",
    "DeclarationWarning",
    "FittedModel",
    "Flag",
    "Logistic",
    "Loss",
    "Numeric",
    "Partitions",
    "PrivateAdditiveClassifier",
    "PrivateAdditiveRegressor",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivatePoissonRegressor",
    "PrivateSVC",
    "PublicBounds",
    "Schema",
    "SchemaEncoder",
    "Squared",
    "Storage",
    "Unit",
    "load",
    "read_table",
]

# Loaded when first used: the lectures' algorithms in this room do without scikit-learn.
_LATER = {
    "Category": "column_kinds",
    "Date": "column_kinds",
    "DeclarationWarning": "diagnosis",
    "FittedModel": "fitted_model",
    "Flag": "column_kinds",
    "Logistic": "losses",
    "Loss": "losses",
    "Numeric": "column_kinds",
    "Partitions": "partitions",
    "PrivateAdditiveClassifier": "additive.estimators",
    "PrivateAdditiveRegressor": "additive.estimators",
    "PrivateLinearRegression": "regression",
    "PrivateLogisticRegression": "classification",
    "PrivatePoissonRegressor": "regression",
    "PrivateSVC": "classification",
    "PublicBounds": "transformers",
    "Schema": "schema",
    "SchemaEncoder": "transformers",
    "Squared": "losses",
    "Storage": "storage",
    "Unit": "column_kinds",
    "load": "model_folder",
    "read_table": "tables",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        value = getattr(_import_module(f"discreet.linear.{_LATER[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'discreet.linear' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
