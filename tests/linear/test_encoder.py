"""Encoders look at no data: every row of the output follows from the same row of the input, by public rules."""

import math

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from discreet import InvalidParameter
from discreet.core.columns import list_width as most_frequent_width
from discreet.linear.classification import PrivateLogisticRegression
from discreet.linear.column_kinds import Category, Flag, Numeric
from discreet.linear.declarations import bounds_of
from discreet.linear.encoder import (
    BoundedNumbers,
    BoundedRows,
    SchemaEncoding,
    one_for_each_row,
    scale_to_unit,
)
from discreet.linear.inputs import cells_of, codes, list_width, number_table, numbers
from discreet.linear.linear_model import LinearModel
from discreet.linear.schema import Schema
from discreet.linear.transformers import PublicBounds, SchemaEncoder
from support.linear_frames import FRAMES, ArrowTable

SCHEMA = Schema(
    {
        "job": Category(("clerk", "farmer", 7)),
        "age": Numeric(20, 60),
        "smoker": Flag("yes"),
        "hours": Numeric(-10, 10, missing="flag"),
        "income": Category(("low", "high")),
    },
    target="income",
)
RECORDS = {
    "job": ["farmer", 7, "pilot", None],
    "age": [30, math.inf, "old", 10],
    "smoker": ["yes", "no", None, "yes"],
    "hours": [0, None, 1e300, -3],
    "name": ["a", "b", "c", "d"],
}
ENCODED = [  # age, hours, job=clerk, job=farmer, job=7, smoker, hours=missing
    [0.25, 0.5, 0, 1, 0, 1, 0],
    [1.0, 0.5, 0, 0, 1, 0, 1],
    [0.5, 1.0, 0, 0, 0, 0, 0],
    [0.0, 0.35, 0, 0, 0, 1, 0],
]
ANY_CELL = st.one_of(
    st.none(), st.floats(), st.integers(-(10**400), 10**400), st.text(max_size=5), st.booleans(), st.just([1])
)


@pytest.mark.parametrize("make", [FRAMES["pandas"], FRAMES["arrow"]], ids=["pandas", "arrow"])
def test_frames_are_read_by_name(make):
    encoded = SchemaEncoding(SCHEMA).encode(make(RECORDS))
    np.testing.assert_allclose(encoded, ENCODED, rtol=1e-6)


def test_columns_of_one_type_are_read_the_same_from_every_frame():
    columns = {
        "hours": [0.0, None, 3.0],
        "smoker": ["yes", None, "no"],
        "age": [20, 40, 60],
        "job": ["clerk", "pilot", None],
    }
    tables = [SchemaEncoding(SCHEMA).encode(make(columns)) for make in FRAMES.values()]
    category = pandas.DataFrame(columns).astype({"job": "category", "smoker": "string", "hours": "Float64"})
    for table in (*tables, SchemaEncoding(SCHEMA).encode(category)):
        expected = [[0, 0.5, 1, 0, 0, 1, 0], [0.5, 0.5, 0, 0, 0, 0, 1], [1, 0.65, 0, 0, 0, 0, 0]]
        np.testing.assert_allclose(table, expected, rtol=1e-6)


def test_arrays_and_lists_are_read_by_place():
    rows = [list(row) for row in zip(*(RECORDS[name] for name in SCHEMA.features), strict=True)]
    encoding = SchemaEncoding(SCHEMA)
    np.testing.assert_allclose(encoding.encode(np.array(rows, object)), ENCODED, rtol=1e-6)
    np.testing.assert_allclose(encoding.encode(rows), ENCODED, rtol=1e-6)
    short = encoding.encode([*rows, ["clerk"]])  # a row of another length counts as missing
    np.testing.assert_allclose(short, [*ENCODED, [0.5, 0.5, 0, 0, 0, 0, 1]], rtol=1e-6)


def test_names_and_kinds_of_the_encoded_columns():
    encoding = SchemaEncoding(SCHEMA)
    names = ("age", "hours", "job=clerk", "job=farmer", "job=7", "smoker", "hours=missing")
    assert encoding.names == names
    assert encoding.columns.numerics == 2
    assert encoding.columns.groups == (3, 1, 1)
    assert encoding.columns.width == len(names)


def test_refusals_name_columns_and_types_only():
    encoding = SchemaEncoding(SCHEMA)
    with pytest.raises(InvalidParameter, match=r"\['smoker', 'hours'\]: declared in the schema and missing"):
        encoding.encode(ArrowTable({name: RECORDS[name] for name in ("job", "age")}))
    with pytest.raises(InvalidParameter, match="must have the 4 columns"):
        encoding.encode(np.zeros((3, 2)))
    times = np.zeros((2, 4), "datetime64[s]")
    with pytest.raises(InvalidParameter, match=r"X\['age'\].dtype='datetime64\[s\]': must be numbers"):
        encoding.encode(times)
    with pytest.raises(InvalidParameter, match="Complex data not supported"):
        encoding.encode(np.zeros((2, 4), complex))
    with pytest.raises(InvalidParameter, match="bounds must be declared"):
        SchemaEncoding(Schema({"age": Numeric()}))


@given(st.lists(st.tuples(ANY_CELL, ANY_CELL, ANY_CELL, ANY_CELL), max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_cells_keep_the_promise_and_no_row_sees_another(rows):
    """An oracle for privacy: encoding the rows one by one gives the same, for whatever is in the cells."""
    encoding = SchemaEncoding(SCHEMA)
    encoded = encoding.encode([list(row) for row in rows])
    alone = [encoding.encode([list(row)])[0] for row in rows]
    np.testing.assert_array_equal(encoded, np.reshape(alone, encoded.shape))
    assert np.isfinite(encoded).all()
    assert ((encoded >= 0) & (encoded <= 1)).all()
    assert (encoded[:, 2:5].sum(1) <= 1).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0, 5.0, 5e-324])
def test_scaling_against_python_numbers(value):
    expected = 0.5 if math.isnan(value) else min(max((value - 2) / 6, 0.0), 1.0)
    assert scale_to_unit([value], 2.0, 8.0)[0] == pytest.approx(expected)


def test_a_linear_model_is_the_same_in_either_units():
    rng = np.random.default_rng(0)
    lower, upper = np.array([-1.0, 5.0, 0.0]), np.array([1.0, 9.0, 1e4])
    x = rng.uniform(lower, upper, (20, 3))
    coefficients, intercept = rng.normal(size=(3, 2)), rng.normal(size=2)
    encoding = BoundedNumbers(lower, upper)
    original, constant = encoding.in_units_of_table(coefficients, intercept)
    expected = encoding.encode(x) @ coefficients + intercept
    np.testing.assert_allclose(x @ original + constant, expected, rtol=1e-5, atol=1e-5)

    schema = SchemaEncoding(Schema({"a": Flag(1), "b": Numeric(5, 9)}))
    original, constant = schema.in_units_of_table(np.array([4.0, 2.0]), 1.0)
    assert (original.tolist(), constant) == ([1.0, 2.0], -4.0)


def test_sparse_tables_stay_sparse_and_agree_with_dense_ones():
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((30, 8)) < 0.3, rng.normal(size=(30, 8)) * 5, 0)
    encoding = BoundedNumbers(np.zeros(8), np.full(8, 4.0))
    for sparse in (csr_array(dense), csr_matrix(dense), coo_array(dense)):
        encoded = encoding.encode(sparse)
        assert encoded.nnz <= sparse.nnz
        np.testing.assert_allclose(encoded.toarray(), encoding.encode(dense))
    twice = coo_array(([3.0, 3.0], ([0, 0], [1, 1])), shape=(1, 8))  # one cell, given in two parts
    assert encoding.encode(twice).toarray().max() == 1.0
    with pytest.raises(InvalidParameter, match="lower bounds of 0"):
        BoundedNumbers(np.full(8, -1.0), np.full(8, 4.0)).encode(csr_array(dense))


def test_rows_of_a_public_norm_are_left_to_the_fit():
    encoding = BoundedRows(3, row_norm=2.0)
    assert encoding.columns.text == 3
    assert encoding.columns.text_norm == 2.0
    assert encoding.encode([[1e300, 0, 0]])[0, 0] == math.inf  # to be left out there
    with pytest.raises(InvalidParameter, match="row_norm=nan"):
        BoundedRows(3, row_norm=math.nan)


def test_cells_become_numbers_or_nan():
    cells = np.array([1, "2.5", b"3", None, "x", 10**400, -(10**400), True, 1j, [4]], object)
    expected = [1, 2.5, 3, math.nan, math.nan, math.inf, -math.inf, 1, math.nan, math.nan]
    np.testing.assert_array_equal(numbers(cells), expected)
    assert numbers(np.array([1, 2], np.int8)).dtype == np.float64
    single = np.zeros(2, np.float32)
    assert numbers(single) is single


def test_codes_of_known_values():
    known = ("a", 1, 2.5)
    assert codes(np.array(["a", 1.0, True, "1", b"a", None, {}, math.nan], object), known).tolist() == [
        0, 1, 1, -1, 0, -1, -1, -1,
    ]  # fmt: skip
    assert codes(np.array([1.0, 2.5, math.nan]), known).tolist() == [1, 2, -1]
    assert codes(np.array([True, False]), (0, 1)).tolist() == [1, 0]


def test_lists_are_not_believed_about_their_type():
    """numpy would make texts of all cells if one of them is a text."""
    np.testing.assert_array_equal(number_table([[1, 2], ["x", 3]]), [[1, 2], [math.nan, 3]])
    np.testing.assert_array_equal(number_table([[1, 2], [1j, 3]]), [[1, 2], [math.nan, 3]])
    np.testing.assert_array_equal(number_table([[1, 2], [3]], width=2), [[1, 2], [math.nan, math.nan]])
    np.testing.assert_array_equal(number_table([[1, 2], [3], [4, 5]], width=2)[:2], [[1, 2], [math.nan] * 2])
    np.testing.assert_array_equal(
        number_table([[1, 2], None, [[3], 4]], width=2)[1:], [[math.nan] * 2, [math.nan, 4]]
    )


def test_no_row_of_a_list_decides_how_wide_it_is():
    """The declared width counts, however many rows have another. Without one, no record moves it to another."""
    longer = [[1, 2], *[[1, 2, 3]] * 5]
    assert number_table(longer, width=2).shape == (6, 2)
    assert np.isnan(number_table(longer, width=2)[1:]).all()
    assert PublicBounds([0, 0], [1, 1]).fit(longer).n_features_in_ == 2
    assert PublicBounds(0, 1).fit(longer).n_features_in_ == 3
    for unclear in ([[1]], [[1, 2], None], [[1, 2], [3]], [[1], [1, 2], [1, 2, 3]], longer[:3]):
        with pytest.raises(InvalidParameter, match="X='a list': has too few rows of one length"):
            number_table(unclear)


@given(st.lists(st.sampled_from([None, 7, [1], [1, 2], [1, 2, 3]]), max_size=7), st.data())
def test_neighbouring_lists_have_one_width_or_are_refused(rows, data):
    """The width of most rows, as it was, is the broken twin: a tie breaks it."""

    def width(rows):
        try:
            return {list_width(rows)}
        except InvalidParameter:
            return set()

    row = data.draw(st.sampled_from([None, [1], [1, 2], [1, 2, 3]]))
    place = data.draw(st.integers(0, len(rows)))
    if rows:
        for other in ([*rows, row], [*rows[:place], row, *rows[place + 1 :]]):
            assert len(width(rows) | width(other)) <= 1


def test_the_width_of_most_rows_is_decided_by_one_record():
    """The broken twin of the test above."""
    assert most_frequent_width([[1, 2], [1, 2, 3]]) == 2
    assert most_frequent_width([[1, 2], [1, 2, 3], [1, 2, 3]]) == 3


@given(st.lists(st.one_of(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=3)), max_size=5))
def test_a_list_that_is_a_column_has_one_dimension_whatever_its_items_are(items):
    assert one_for_each_row("y", items, len(items)).shape == (len(items),)
    assert cells_of([*items, [1.0, 2.0]]).tolist()[-1] is None


def test_public_bounds_passes_scikit_learn_s_checks():
    failing = {
        "check_estimators_empty_data_messages": "a table of no records is a table: its size is private"
    }
    check_estimator(PublicBounds(), expected_failed_checks=failing, on_skip=None)


def test_public_bounds_never_looks_at_data():
    """Fitting on other records, or on none, changes nothing. A twin that learns its bounds is caught."""

    class Learned(PublicBounds):
        def fit(self, X, y=None):
            super().fit(X)
            self.lower, self.upper = np.min(X), np.max(X) + 1
            return self

    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(50, 3)), rng.normal(size=(5, 3))

    def differs(kind):
        results = [kind(-2, 2).fit(rows).transform(new) for rows in (x, x[:1], 1e9 * x)]
        return any((result != results[0]).any() for result in results)

    assert not differs(PublicBounds)
    assert differs(Learned)


def test_public_bounds_by_name_by_place_and_back():
    frame = pandas.DataFrame({"age": [20, 60, None], "hours": [0, 5, 99]})
    bounds = PublicBounds(lower={"hours": 0, "age": 20}, upper={"hours": 10, "age": 60})
    scaled_rows = bounds.fit(frame).transform(frame)
    np.testing.assert_allclose(scaled_rows, [[0, 0], [1, 0.5], [0.5, 1]])
    np.testing.assert_allclose(bounds.inverse_transform(scaled_rows), [[20, 0], [60, 5], [40, 10]])
    same = PublicBounds([20, 0], [60, 10]).fit(frame)
    np.testing.assert_array_equal(clone(same).fit(frame).transform(frame), scaled_rows)
    sparse = csr_array([[0.0, 5.0]])
    np.testing.assert_allclose(PublicBounds(0, 10).fit(sparse).transform(sparse).toarray(), [[0, 0.5]])
    assert (
        PublicBounds().fit(np.zeros((2, 2), np.float32)).transform(np.ones((1, 2), np.float32)).dtype == "f4"
    )


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (math.nan, 1, "lower=nan"),
        (1, 1, "upper=1"),
        ([0, 0, 0], 1, "one for each of the 2 columns"),
        ({"age": 0}, 1, "which has no names"),
        ("0", 1, "lower='0'"),
        (None, 1, "lower=None"),
    ],
)
def test_public_bounds_refuses_by_what_was_declared(lower, upper, message):
    with pytest.raises(InvalidParameter, match=message):
        PublicBounds(lower, upper).fit(np.zeros((3, 2)))


def test_bounds_must_be_a_pair_and_name_every_column():
    with pytest.raises(InvalidParameter, match="must be \\(lower, upper\\)"):
        bounds_of(3, 2)
    with pytest.raises(InvalidParameter, match="not a pair for each column"):
        bounds_of([(0, 1), (0, 1), (0, 5)], 3)
    with pytest.raises(InvalidParameter, match=r"also \['hours'\]"):
        bounds_of(({"age": 0}, 1), 2, ("age", "hours"))
    with pytest.raises(InvalidParameter, match=r"bounds=\(0, \[1, 2\]\): .*upper='2 values'"):
        bounds_of((0, [1, 2]), 3)


def test_the_schema_encoder_in_scikit_learn_s_habits():
    encoder = SchemaEncoder(SCHEMA)
    np.testing.assert_allclose(encoder.fit_transform(pandas.DataFrame(RECORDS)), ENCODED, rtol=1e-6)
    assert encoder.n_features_in_ == 4
    assert encoder.feature_names_in_.tolist() == list(SCHEMA.features)
    assert encoder.get_feature_names_out().tolist() == list(SchemaEncoding(SCHEMA).names)
    assert clone(encoder).fit(pandas.DataFrame(RECORDS)).transform([["clerk", 20, "yes", 10]]).shape == (1, 7)
    with pytest.raises(InvalidParameter, match="schema's features"):
        encoder.get_feature_names_out(["x"])


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_come_out(kind):
    encoder = SchemaEncoder(Schema({"age": Numeric(0, 10), "job": Category(("a", "b"))}))
    out = encoder.set_output(transform=kind).fit_transform(FRAMES[kind]({"age": [5, 20], "job": ["b", "c"]}))
    assert list(out.columns) == ["age", "job=a", "job=b"]
    assert out["job=b"].to_list() == [1.0, 0.0]
    frame = FRAMES[kind]({"age": [5, 20]})
    assert PublicBounds(0, 10).set_output(transform=kind).fit_transform(frame)["age"].to_list() == [0.5, 1.0]


def test_a_table_cannot_have_a_name_twice():
    frame = pandas.DataFrame([[1, 2]], columns=["age", "age"])
    with pytest.raises(InvalidParameter, match=r"\['age'\]: every column must have a name of its own"):
        SchemaEncoder(Schema({"age": Numeric(0, 10)})).fit(frame)
    with pytest.raises(InvalidParameter, match=r"X.columns=\['age'\]"):
        PrivateLogisticRegression(classes=(0, 1)).fit(frame, [0])


def awkward_numbers(rows, kind):
    """Numbers around [-1, 2], of which some are missing, infinite or far outside."""
    x = np.random.default_rng(7).normal(0.5, 1.0, (rows, 4)).astype(kind)
    x[3, 1], x[5, 0], x[6, 3], x[7, 2] = np.nan, np.inf, -np.inf, 1e30
    x[9] = np.nan
    return x


def by_the_formula(x, model, lower, upper):
    """intercept + sum of coefficient * clamped value, in plain numpy."""
    with np.errstate(all="ignore"):
        inside = np.clip((x.astype(np.float64) - lower) / (upper - lower), 0, 1)
    encoded = np.where(np.isnan(inside), 0.5, inside).astype(np.float32)
    return np.clip(encoded.astype(np.float64), *model.limits) @ model.coefficients + model.intercept


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("outputs", [(), (3,)], ids=["one", "three"])
def test_scores_are_those_of_the_formula_with_and_without_a_schema(kind, outputs):
    rng = np.random.default_rng(8)
    lower, upper = np.array([-1.0, 0.0, -0.3, 0.1]), np.array([2.0, 1.0, 1.7, 0.9])
    limits = np.array([0.1, 0.0, 0.25, 0.0]), np.array([0.8, 1.0, 0.7, 0.9])
    model = LinearModel(rng.normal(0, 3, (4, *outputs)), rng.normal(size=outputs), 1.0, limits)
    x = awkward_numbers(2**18 // 4 + 11, kind)  # more than one block
    expected = by_the_formula(x, model, lower, upper)
    schema = Schema({f"x{j}": Numeric(lower[j], upper[j]) for j in range(4)})
    declared, bounded = SchemaEncoding(schema), BoundedNumbers(lower, upper)
    frame = pandas.DataFrame(x, columns=list(schema.features))
    for encoded in (
        bounded.on_demand(x),
        bounded.on_demand(np.asfortranarray(x)),
        bounded.encode(x),
        declared.on_demand(x),
        declared.on_demand(frame),
    ):
        np.testing.assert_allclose(model.scores(encoded), expected, rtol=0, atol=1e-12)
    alone = np.concatenate([model.scores(bounded.on_demand(x[row : row + 1])) for row in range(12)])
    np.testing.assert_array_equal(model.scores(bounded.on_demand(x))[:12], alone)


def test_scores_of_encoded_rows_keep_nan_and_count_what_is_beyond_the_limits_as_these():
    model = LinearModel(
        np.array([2.0, -4.0]), np.array(1.0), 1.0, (np.array([-1.0, 0.0]), np.array([1.0, 0.5]))
    )
    rows = np.array([[np.nan, 0.0], [-9.0, 9.0], [np.inf, -np.inf], [0.25, 0.25]], np.float32)
    np.testing.assert_array_equal(model.scores(rows), [np.nan, -3.0, 3.0, 0.5])
    assert model.scores(rows[:0]).shape == (0,)
