"""The encoders as scikit-learn transformers: :class:`PublicBounds` and :class:`SchemaEncoder`.

Their ``fit`` notes names and number of columns; no value of a record is ever looked at, so they cost nothing.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from discreet.errors import InvalidParameter
from discreet.linear.declarations import bounds_of, declared_width
from discreet.linear.encoder import BoundedNumbers, SchemaEncoding, scale_to_unit, schema_columns
from discreet.linear.inputs import column_names, number_table
from discreet.linear.schema import schema_of


class PublicBounds(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers between public bounds, mapped to [0, 1]. Values outside are clamped; NaN becomes the middle.

    ``lower`` and ``upper`` are one number for all columns, a list with one for each, or a dictionary by column name.

    Guarantee: every row of the output depends on the same row of the input only, and no bound on any row.

    >>> PublicBounds(lower=[0, 18], upper=[10, 98]).fit_transform([[5, 38], [float("nan"), 1e300]])
    array([[0.5 , 0.25],
           [0.5 , 1.  ]])
    """

    def __init__(self, lower: Any = 0.0, upper: Any = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def fit(self, X: Any, y: Any = None) -> Self:
        """Note the columns. ``y`` is ignored."""
        table = number_table(X, declared_width((self.lower, self.upper)))
        validate_data(self, X, skip_check_array=True)
        self.n_features_in_ = table.shape[1]
        bounds_of((self.lower, self.upper), table.shape[1], column_names(X))
        return self

    def transform(self, X: Any) -> Any:
        """The table with every column in [0, 1], of the input's floating-point type."""
        check_is_fitted(self)
        table = number_table(X, self.n_features_in_)
        validate_data(self, X, reset=False, skip_check_array=True)
        encoding = BoundedNumbers(*self._bounds())
        if issparse(table):
            return encoding.encode(table)
        table = table[:]
        return scale_to_unit(table, encoding.lower, encoding.upper).astype(table.dtype)

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """From [0, 1] back to the table's units."""
        check_is_fitted(self)
        lower, upper = self._bounds()
        table = number_table(X, self.n_features_in_)
        table = table.toarray() if isinstance(table, csr_array) else table[:]
        return np.asarray(lower + table * (upper - lower))

    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(names)
        return bounds_of((self.lower, self.upper), self.n_features_in_, names)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The columns of a declared schema: numbers in [0, 1] first, then flags and one-hot categories.

    ``schema`` is a :class:`~discreet.linear.schema.Schema`, its plain data, or the path of a ``schema.toml``. Frames
    are read by column name, whatever else they hold; arrays by place.

    Guarantee: every row of the output depends on the same row of the input only.

    >>> encoder = SchemaEncoder({"columns": {"age": {"bounds": [20, 60]}, "smoker": {"flag": "yes"}}})
    >>> encoder.fit_transform([[30, "yes"], [99, None]])
    array([[0.25, 1.  ],
           [1.  , 0.  ]])
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'smoker']
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compare the columns of the table with the schema. ``y`` is ignored."""
        schema = schema_of(self.schema)
        schema_columns(X, schema)
        self.encoding_ = SchemaEncoding(schema)
        self.feature_names_in_ = np.array(list(schema.features), object)
        self.n_features_in_ = len(schema.features)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The encoded table."""
        check_is_fitted(self)
        return np.asarray(self.encoding_.encode(X), np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The names of the encoded columns."""
        check_is_fitted(self)
        if input_features is not None and list(input_features) != list(self.feature_names_in_):
            raise InvalidParameter("input_features", list(input_features), "must be the schema's features.")
        return np.array(self.encoding_.names, object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags
