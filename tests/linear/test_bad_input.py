"""One bad record must not be seen: not in an exception, a warning, an attribute, a line of output.

The detector fits the same estimator, with the same seed, to tables with and without one record, and compares what
an observer gets besides the noisy numbers: the type of an exception and its text, the warnings, the output, the
names, types and shapes of all fitted attributes, and the certificate's settings. Twins that do what estimators
usually do are caught.
"""

import io
import math
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pandas
import pytest
from scipy.sparse import csr_array
from sklearn.utils.validation import check_X_y

from discreet import Budget, InvalidParameter, Ledger, PlanViolation
from discreet.ledger import GaussianFilter
from discreet.linear import DeclarationWarning
from discreet.linear.classification import PrivateLogisticRegression, PrivateSVC
from discreet.linear.column_kinds import Category, Flag, Numeric
from discreet.linear.regression import PrivateLinearRegression, PrivatePoissonRegressor
from discreet.linear.schema import Schema

RECORDS = 60
BAD_ROWS = {
    "NaN": [math.nan, 0.5],
    "inf": [math.inf, -math.inf],
    "huge": [1e308, -1e308],
    "text": ["many", 0.5],
    "nothing": [None, None],
    "complex": [1j, 0.5],
    "list": [[1, 2], 0.5],
    "too short": [0.5],
    "no row": None,
}
BAD_TARGETS = {
    "NaN": math.nan,
    "inf": math.inf,
    "new label": 7,
    "text": "maybe",
    "nothing": None,
    "negative": -1e300,
    "huge": 1e308,
}
# Noisy numbers of records decide how often classes are looked at: with this seed they are far from where that turns.
ESTIMATORS = {
    "logistic": PrivateLogisticRegression(bounds=(0, 1), unsafe_seed=3, verbose=True),
    "learnt": PrivateLogisticRegression(unsafe_seed=3, verbose=True),
    "three classes": PrivateLogisticRegression(classes=(0, 1, 2), bounds=(0, 1), unsafe_seed=7, verbose=True),
    "svc": PrivateSVC(bounds=(0, 1), unsafe_seed=3, verbose=True),
    "linear": PrivateLinearRegression(bounds=(0, 1e-3), target_bounds=(0, 1e-3), unsafe_seed=3, verbose=True),
    "huber": PrivateLinearRegression(loss="huber", unsafe_seed=3, verbose=True),
    "poisson": PrivatePoissonRegressor(bounds=(0, 1), target_bounds=(0, 5), unsafe_seed=3, verbose=True),
    "objective": PrivateLogisticRegression(
        bounds=(0, 1), method="objective-perturbation", records=RECORDS, unsafe_seed=3
    ),
}


def table(records=RECORDS):
    rng = np.random.default_rng(0)
    x = rng.random((records, 2))
    return x.tolist(), (x[:, 0] > 0.5).astype(int).tolist()


def seen(estimator, x, y, **more):
    """All that can be seen of a fit, but for the noisy numbers and the looks that these decide on."""
    output = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, redirect_stdout(output), redirect_stderr(output):
        warnings.simplefilter("always")
        try:
            estimator.fit(x, y, **more)
        except Exception as error:
            return type(error), str(error)
    attributes = {name: shape_of(value) for name, value in vars(estimator).items()}
    settings = dict(estimator.certificate_.plan.settings, run=None)
    shown = [line.split() for line in output.getvalue().splitlines() if "target-zoom" not in line]
    return attributes, [str(warning.message) for warning in warned], shown, settings


def shape_of(value):
    """The type of a value, its shape, and that of its parts."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape
    parts = (
        vars(value) if hasattr(value, "__dict__") and type(value).__module__.startswith("discreet") else {}
    )
    return type(value), {
        name: shape_of(part) for name, part in parts.items() if name not in ("ledger", "_encoded")
    }


def gives_away(estimator, row, target, weight=None):
    x, y = table()
    more = {} if weight is None else {"sample_weight": [1.0] * len(y)}
    without = seen(estimator, x, y, **more)
    more = {} if weight is None else {"sample_weight": [1.0] * len(y) + [weight]}
    return seen(estimator, [*x, row], [*y, target], **more) != without


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_no_bad_record_is_seen(estimator):
    for row in BAD_ROWS.values():
        assert not gives_away(estimator, row, 1)
    for target in BAD_TARGETS.values():
        assert not gives_away(estimator, [0.5, 0.5], target)
    if estimator.method == "recipe":
        for weight in (math.nan, -1.0, 1e300, "x"):
            assert not gives_away(estimator, [0.5, 0.5], 1, weight)


class Validating(PrivateLogisticRegression):
    """What estimators usually do: refuse NaN."""

    def fit(self, X, y, sample_weight=None):
        check_X_y(X, y)
        return super().fit(X, y, sample_weight)


class Counting(PrivateLogisticRegression):
    """Says how many records it has seen."""

    def fit(self, X, y, sample_weight=None):
        print(len(y))
        return super().fit(X, y, sample_weight)


class Collecting(PrivateLogisticRegression):
    """Takes the classes from the data without saying so."""

    def fit(self, X, y, sample_weight=None):
        self.classes = tuple(sorted(set(y)))
        return super().fit(X, y, sample_weight)


class Keeping(PrivateLogisticRegression):
    """Keeps a table of its own."""

    def fit(self, X, y, sample_weight=None):
        self.seen_ = np.zeros(len(y))
        return super().fit(X, y, sample_weight)


class Warning_(PrivateLogisticRegression):
    """Warns of a label that it does not know."""

    def fit(self, X, y, sample_weight=None):
        if set(y) - {0, 1}:
            warnings.warn("unknown labels", stacklevel=2)
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize(
    ("twin", "row", "target"),
    [
        (Validating, [math.nan, 0.5], 1),
        (Counting, [0.5, 0.5], 1),
        (Collecting, [0.5, 0.5], 7),
        (Keeping, [0.5, 0.5], 1),
        (Warning_, [0.5, 0.5], 7),
    ],
)
def test_the_detector_catches_estimators_that_tell(twin, row, target):
    assert gives_away(twin(bounds=(0, 1), unsafe_seed=3), row, target)


def test_classes_from_the_data_are_seen_which_the_certificate_says():
    """The opt-in does what it says, and is caught by the same detector."""
    assert gives_away(PrivateLogisticRegression(classes="from-data", unsafe_seed=3), [0.5, 0.5], 7)


@pytest.mark.parametrize("name", ["logistic", "learnt", "three classes", "svc", "linear", "huber", "poisson"])
def test_no_record_one_record_one_class(name):
    estimator = ESTIMATORS[name]
    empty = seen(estimator, np.zeros((0, 2)), np.zeros(0))
    assert isinstance(empty[0], dict)
    assert seen(estimator, np.zeros((1, 2)), np.zeros(1)) == empty
    assert estimator.predict(np.full((3, 2), 0.5)).shape == (3,)
    assert np.isfinite(estimator.coef_).all()
    x, y = table()
    assert isinstance(seen(estimator, x, [1] * len(y))[0], dict)
    assert isinstance(seen(estimator, x, [9] * len(y))[0], dict)  # not one label that was declared
    assert np.isfinite(estimator.coef_).all()


def test_bad_cells_of_frames_and_sparse_tables():
    schema = Schema(
        {"age": Numeric(0, 1), "job": Category(("a", "b")), "smoker": Flag(1), "gains": Numeric()}
    )
    good = [[0.5, "a", 1, 3.0], [0.2, "b", 0, 5.0]] * 30
    model = PrivateLogisticRegression(schema=schema, unsafe_seed=3)
    expected = seen(model, pandas.DataFrame(good, columns=list(schema.features)), [0, 1] * 30)
    assert isinstance(expected[0], dict)
    for bad in ([None, None, None, None], [math.inf, "z", 7, math.nan], ["x", math.nan, "yes", 1e300]):
        frame = pandas.DataFrame([*good, bad], columns=list(schema.features))
        assert seen(model, frame, [0, 1] * 30 + [1]) == expected
    model = PrivateLogisticRegression(bounds=(0, 1), unsafe_seed=3)
    sparse = [csr_array(np.eye(60)), csr_array(np.vstack([np.eye(60), np.full((1, 60), math.nan)]))]
    assert seen(model, sparse[0], [0, 1] * 30) == seen(model, sparse[1], [0, 1] * 30 + [1])


def test_nothing_released_holds_the_number_of_records():
    x, y = table(records=1237)
    model = PrivateLogisticRegression(bounds=(0, 1), unsafe_seed=3).fit(x, y)
    numbers = re.findall(r"[-+.\w]+", model.certificate_.to_json() + str(vars(model)))
    assert "1237" not in numbers  # as a number of its own: digits of noise may hold it


def test_shapes_that_disagree_are_refused_without_telling_how_many():
    x, y = table(records=123)
    for refused in ((x, y[:-1]), (x[:-1], y)):
        with pytest.raises(InvalidParameter) as caught:
            PrivateLogisticRegression(bounds=(0, 1)).fit(*refused)
        assert "same number of rows" in str(caught.value)
        assert "12" not in str(caught.value)
    model = PrivateLogisticRegression(bounds=(0, 1)).fit(x, y)
    with pytest.raises(ValueError, match="X has 3 features, but PrivateLogisticRegression is expecting 2"):
        model.predict(np.zeros((1, 3)))
    with pytest.raises(InvalidParameter, match="one for each of the 2 columns"):
        PrivateLogisticRegression(bounds=([0] * 3, 1)).fit(np.array(x), y)
    assert PrivateLogisticRegression(bounds=([0] * 3, 1)).fit(x, y).n_features_in_ == 3  # a list has no shape
    with pytest.raises(InvalidParameter, match="no row of 2 cells"):
        model.predict([[1, 2, 3]])
    with pytest.raises(InvalidParameter, match="Expected 2D array"):
        model.fit(np.zeros(5), np.zeros(5))
    with pytest.raises(InvalidParameter, match="1d array"):
        model.fit(x, np.zeros((123, 2)))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("epsilon", math.nan),
        ("epsilon", 0.0),
        ("epsilon", "1"),
        ("epsilon", 1e9),
        ("delta", math.nan),
        ("delta", 0.0),
        ("neighbours", "replace"),
        ("method", "magic"),
        ("arithmetic", "exact"),
        ("classes", (0,)),
        ("classes", "automatic"),
        ("classes", (0, "a")),
        ("classes", 2),
        ("bounds", (0, math.nan)),
        ("bounds", 3),
        ("max_weight", math.nan),
        ("row_norm", -1.0),
        ("schema", "no/such/schema.toml"),
        ("class_weight", "balanced"),
        ("unsafe_seed", "seed"),
    ],
)
def test_parameters_are_refused_by_name(parameter, value):
    x, y = table()
    with pytest.raises(InvalidParameter, match=parameter.replace("unsafe_", "")):
        PrivateLogisticRegression().set_params(**{parameter: value}).fit(x, y)
    for other in (PrivateLinearRegression(target_bounds=(1, 0)), PrivateLinearRegression(loss="cubic")):
        with pytest.raises(InvalidParameter, match=r"target_bounds|loss"):
            other.fit(x, y)
    with pytest.raises(InvalidParameter, match="Only binary"):
        PrivateSVC(classes=(0, 1, 2)).fit(x, y)


def test_warnings_come_from_noisy_counts_only():
    rng = np.random.default_rng(0)
    x = rng.random((5000, 2))
    model = PrivateLogisticRegression(bounds=(0, 1), unsafe_seed=3)
    with pytest.warns(DeclarationWarning, match="outside of classes="):
        model.fit(x, rng.integers(0, 3, 5000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, np.append(rng.integers(0, 2, 4999), 7))


def test_a_model_of_another_ledger_is_not_continued(tmp_path):
    """Else a small ledger would answer for what was spent elsewhere."""
    x, y = np.random.default_rng(0).uniform(0, 1, (300, 3)), np.arange(300) % 2
    places = []
    for name in ("a", "b"):
        places.append(str(tmp_path / name))
        Ledger.create(places[-1], GaussianFilter(Budget(1.0, 1e-6))).close()
    for first in (None, places[0]):
        model = PrivateLogisticRegression(0.4, bounds=(0, 1), ledger=first).fit(x, y)
        with pytest.raises(PlanViolation, match="fitted under another ledger, or none"):
            model.set_params(ledger=places[1]).fit_more(x, y)
    model.set_params(ledger=places[0]).fit_more(x, y)
    assert 0.4 < model.certificate_.guarantee.epsilon.upper < 0.6
    assert model.certificate_.together.epsilon.upper == 1.0


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("index", [4, 5000, 2**31 - 1, -1])
@pytest.mark.parametrize("declared", [{"row_norm": 1.0}, {"bounds": (0, 1)}, {}])
def test_entries_of_columns_that_do_not_exist_are_dropped(index, declared):
    table = csr_array(np.random.default_rng(0).uniform(0, 1, (50, 4)))
    data, indices = np.append(table.data, 1.0), np.append(table.indices, index)
    hostile = csr_array((data, indices, np.append(table.indptr, len(data))), shape=(51, 4))
    clean = csr_array((table.data, table.indices, np.append(table.indptr, len(data) - 1)), shape=(51, 4))
    models = [
        PrivateLogisticRegression(unsafe_seed=1, **declared).fit(rows, np.arange(51) % 2)
        for rows in (hostile, clean)
    ]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert np.array_equal(models[0].predict(hostile), models[0].predict(clean))


class Hostile:
    def __float__(self):
        raise RuntimeError("secret")

    __hash__ = __eq__ = __float__


def test_cells_that_raise_count_as_missing():
    x = np.random.default_rng(0).uniform(0, 1, (50, 2)).astype(object)
    y = (np.arange(50) % 2).astype(object)
    x[3, 1] = y[7] = Hostile()
    PrivateLogisticRegression(bounds=(0, 1)).fit(x, y, sample_weight=[Hostile()] + [1.0] * 49)


def test_hardened_fits_charge_their_distance_within_delta():
    x, y = np.random.default_rng(0).uniform(0, 1, (300, 3)), np.arange(300) % 2
    certificate = PrivateLogisticRegression(bounds=(0, 1), arithmetic="hardened").fit(x, y).certificate_
    assert 0 < certificate.arithmetic.distance < 1e-9
    assert certificate.verify().guarantee.delta == 1e-6


class Loud:
    def __float__(self):
        warnings.warn("I am a record", stacklevel=1)
        return 0.5


@pytest.mark.parametrize("cell", [Loud(), np.complex128(1 + 2j)])
def test_no_cell_is_heard(cell):  # a warning is an error in these tests
    x = np.random.default_rng(0).uniform(0, 1, (50, 2)).astype(object)
    y = (np.arange(50) % 2).astype(object)
    x[3, 1] = y[7] = cell
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeclarationWarning)
        PrivateLogisticRegression(bounds=(0, 1)).fit(x, y, sample_weight=[cell] + [1.0] * 49)


@pytest.mark.parametrize("odd", [5e-324, 1e-300, 1e308, math.inf, math.nan])
@pytest.mark.parametrize("bounds", [(0, 1), None])
def test_no_record_raises_what_numpy_was_told_to_raise(odd, bounds):
    draw = np.random.default_rng(0)
    x, y, weights = draw.uniform(0, 1, (800, 2)), draw.integers(0, 2, 800).astype(float), np.ones(800)
    x[3], y[5], weights[7] = odd, odd, odd
    known = {"epsilon": 3.0, "bounds": bounds, "unsafe_seed": 1}
    for make in (
        lambda: PrivateLogisticRegression(classes=(0, 1), **known),
        lambda: PrivateLinearRegression(target_bounds=(0, 1), **known),
        lambda: PrivatePoissonRegressor(target_bounds=(0, 9), **known),
    ):
        with np.errstate(all="raise"):
            loud = make().fit(x, y, sample_weight=weights)
        assert np.array_equal(loud.coef_, make().fit(x, y, sample_weight=weights).coef_)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):  # the broken twin: numpy itself
        np.array([1e-300]).astype(np.float32)
