"""The estimators in scikit-learn's habits: every fit charged, certified, and in the table's own units."""

import math
import pickle
import re

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from discreet import Budget, BudgetExceeded, Gaussian, InvalidParameter, account
from discreet.accounting.noise_formulas import analytic_gaussian_noise
from discreet.certificate import Certificate, CertificateRejected
from discreet.core.randomness import RandomStream
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import DeclarationWarning
from discreet.linear.additive.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor
from discreet.linear.classification import PrivateLogisticRegression, PrivateSVC
from discreet.linear.column_kinds import Category, Flag, Numeric
from discreet.linear.declarations import class_weights
from discreet.linear.encoder import BoundedNumbers, record_weights
from discreet.linear.fitting import METHODS
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.glm import glm
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.ranges import learned_ranges
from discreet.linear.losses import Logistic
from discreet.linear.regression import PrivateLinearRegression, PrivatePoissonRegressor
from discreet.linear.schema import Schema
from discreet.linear.storage import Storage
from discreet.linear.transformers import PublicBounds
from discreet.trusted.spending import BudgetAllocator
from support.linear_frames import FRAMES

GENEROUS = {"epsilon": 50.0, "delta": 1e-3, "unsafe_seed": 0, "arithmetic": "float"}
SILENT = "whether it would be refused depends on the records, so it is not"
DIFFERENT = {
    "check_sample_weight_equivalence_on_dense_data": "a weight of 2 is clamped: it would double the sensitivity",
    "check_sample_weight_equivalence_on_sparse_data": "a weight of 2 is clamped: it would double the sensitivity",
    "check_all_zero_sample_weights_error": SILENT,
    "check_estimators_empty_data_messages": SILENT,
    "check_supervised_y_no_nan": SILENT,
}


def table(records=4000, columns=3, seed=0):
    """Records between 0 and 10, and a score that is linear in them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, (records, columns))
    return x, (x - 5) @ (np.arange(1, columns + 1) / columns) / 3, rng


def binary(seed=0, **settings):
    x, score, rng = table(seed=seed, **settings)
    return x, (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(int)


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateLogisticRegression(classes="from-data", unsafe_seed=0),
        PrivateSVC(classes="from-data", unsafe_seed=0),
        PrivateLinearRegression(unsafe_seed=0),
        PrivatePoissonRegressor(unsafe_seed=0),
        PrivateAdditiveClassifier(classes="from-data", unsafe_seed=0),
        PrivateAdditiveRegressor(unsafe_seed=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learn_s_own_checks(estimator):
    results = check_estimator(estimator, expected_failed_checks=DIFFERENT, on_skip=None)
    passed = sum(result["status"] == "passed" for result in results)
    assert passed >= len(results) - len(DIFFERENT) - 1  # one is skipped: another array library


@pytest.mark.filterwarnings("ignore:epsilon 50 promises nothing")
def test_a_generous_budget_finds_what_scikit_learn_finds():
    x, score, rng = table(records=20_000)
    coin = rng.random(len(x))
    y = (coin < 1 / (1 + np.exp(-score))).astype(int)
    ours = PrivateLogisticRegression(**GENEROUS, bounds=(0, 10)).fit(x, y)
    theirs = LogisticRegression(C=1e6).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.05)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=0.25)
    assert ours.predict_proba(x[:9]).sum(1) == pytest.approx(1)
    np.testing.assert_allclose(ours.predict_log_proba(x[:9]), np.log(ours.predict_proba(x[:9])))

    classes = np.digitize(score + rng.logistic(size=len(x)), [-1, 1])
    three = PrivateLogisticRegression(**GENEROUS, classes=(0, 1, 2), bounds=(0, 10)).fit(x, classes)
    assert three.coef_.shape == (3, 3)
    assert three.intercept_.shape == (3,)
    reference = LogisticRegression(C=1e6).fit(x, classes).predict_proba(x)
    assert abs(three.predict_proba(x) - reference).mean() < 0.02

    svc = PrivateSVC(**GENEROUS, bounds=(0, 10)).fit(x, y)
    assert svc.score(x, y) > theirs.score(x, y) - 0.01

    numbers = 100 + 20 * score + rng.normal(size=len(x))
    for loss in ("squared", "huber"):
        model = PrivateLinearRegression(**GENEROUS, loss=loss, bounds=(0, 10), target_bounds=(0, 300))
        reference = LinearRegression().fit(x, numbers)
        np.testing.assert_allclose(model.fit(x, numbers).coef_, reference.coef_, rtol=0.02, atol=0.05)
        assert model.intercept_ == pytest.approx(reference.intercept_, rel=0.02)

    counts = rng.poisson(np.exp(score))
    model = PrivatePoissonRegressor(**GENEROUS, bounds=(0, 10), target_bounds=(0, 100)).fit(x, counts)
    reference = PoissonRegressor(alpha=0).fit(x, counts)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=0.05)
    assert model.score(x, counts) == pytest.approx(reference.score(x, counts), abs=0.02)


def test_models_speak_the_units_of_the_table_and_clamp_what_is_outside():
    x, y = binary()
    model = PrivateLogisticRegression(bounds=(0, 10)).fit(x, y)
    np.testing.assert_allclose(model.decision_function(x), x @ model.coef_[0] + model.intercept_, atol=1e-5)
    outside, inside = np.array([[-5.0, 4.0, 1e300]]), np.array([[0.0, 4.0, 10.0]])
    np.testing.assert_array_equal(model.decision_function(outside), model.decision_function(inside))
    mean = np.array([[x[:, 0].mean(), 4.0, 5.0]])  # a missing number counts as the noisy mean of its column
    gap = np.array([[math.nan, 4.0, 5.0]])
    assert model.decision_function(gap) == pytest.approx(model.decision_function(mean), abs=0.5)


def test_the_same_numbers_give_the_same_model_in_every_container(tmp_path):
    x, y = binary(records=300)
    x = np.round(x).astype(np.float32)
    path = tmp_path / "x"
    stored = np.memmap(path, np.float32, "w+", shape=x.shape)
    stored[:] = x
    columns = dict(zip("abc", x.T, strict=True))
    containers = [x, x.astype(float), x.astype(int), x.tolist(), np.asfortranarray(x), stored]
    containers += [csr_array(x), csr_matrix(x)] + [
        make(columns) for make in (FRAMES["pandas"], FRAMES["polars"])
    ]
    model = PrivateLogisticRegression(bounds=(0, 10), unsafe_seed=1)
    expected = clone(model).fit(x, y).coef_
    for container in containers:
        found = clone(model).fit(container, FRAMES["pandas"]({"y": y})["y"])
        np.testing.assert_allclose(found.coef_, expected, rtol=1e-5)
        assert found.predict(container).shape == (300,)
    assert found.feature_names_in_.tolist() == found.coef_names_.tolist() == ["a", "b", "c"]


def test_labels_of_any_kind():
    x, y = binary(records=2000)
    for classes in (("no", "yes"), (False, True), (-1, 1), (3, 7)):
        labels = np.array(classes)[y]
        model = PrivateLogisticRegression(5.0, classes=classes[::-1], bounds=(0, 10), unsafe_seed=0)
        model.fit(x, labels)
        assert model.classes_.tolist() == list(classes)
        assert model.score(x, labels) > 0.6
    same = PrivateLogisticRegression(classes="from-data", bounds=(0, 10)).fit(x, labels)
    assert same.classes_.tolist() == [3, 7]


def test_hashed_text_with_a_declared_norm():
    words = {0: "cold rain cloud", 1: "warm sun beach"}
    y = np.arange(2000) % 2
    texts = [words[label] + f" day {number % 7}" for number, label in enumerate(y)]
    model = make_pipeline(
        HashingVectorizer(n_features=32), PrivateLogisticRegression(epsilon=3.0, row_norm=1.0, unsafe_seed=0)
    )
    assert model.fit(texts, y).score(texts, y) > 0.95


def total(epsilon):
    return GaussianFilter(Budget(epsilon, 1e-6))


def test_every_fit_of_a_search_is_charged(tmp_path):
    x, y = binary(records=400)
    path = tmp_path / "study.ledger"
    Ledger.create(path, total(3.3)).close()
    model = make_pipeline(
        PublicBounds(0, 10), PrivateLogisticRegression(epsilon=1.0, bounds=(0, 1), ledger=str(path))
    )
    cross_val_score(model, x, y, cv=3)
    search = GridSearchCV(model, {"privatelogisticregression__class_weight": [None, {0: 0.5}]}, cv=2)
    search.fit(x, y)
    with Ledger.open(path) as ledger:
        fits = {name.partition("/")[0] for name in ledger.runs()}
        assert len(fits) == 3 + 4 + 1
        assert ledger.guarantee().epsilon.upper == 3.3
    with pytest.raises(BudgetExceeded):
        cross_val_score(model, x, y, cv=3, error_score="raise")


def test_fits_that_no_ledger_adds_up_are_told():
    """What ten and fifty fits cost follows from the accountant; with a ledger, and alone, nothing is said."""
    x, y = binary(records=100)
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10), unsafe_seed=0)
    with pytest.warns(DeclarationWarning, match="GridSearchCV fits several models") as told:
        search = GridSearchCV(model, {"class_weight": [None, {0: 0.5}]}, cv=2).fit(x, y)
    ten = account(Gaussian(analytic_gaussian_noise(1.0, 1e-6)) * 10).epsilon(1e-6)
    assert f"ten of them together {ten:.3g}, fifty" in str(told[0].message)
    certificate = search.best_estimator_.certificate_
    assert "chosen among others" in certificate.headline
    assert Certificate.from_json(certificate.to_json()).headline == certificate.headline
    with pytest.warns(DeclarationWarning, match="cross_val_score fits several models"):
        cross_val_score(model, x, y, cv=2)
    assert "chosen" not in model.fit(x, y).certificate_.headline


def test_what_a_pipeline_learns_before_us_is_not_covered():
    x, y = binary(records=100)
    model = PrivateLogisticRegression(bounds=(0, 10), unsafe_seed=0)
    told = "what StandardScaler learnt of the records before this fit"
    inner = ColumnTransformer(
        [("scaled", make_pipeline(StandardScaler()), [0]), ("as it is", "passthrough", [1])]
    )
    for steps in ([Normalizer(), StandardScaler()], [inner]):
        with pytest.warns(DeclarationWarning, match="does not cover what StandardScaler learnt"):
            fitted = make_pipeline(*steps, clone(model)).fit(x, y)[-1]
        assert [line for line in fitted.certificate_.not_covered if "learnt" in line] == [told]
        assert told in fitted.certificate_.headline
        assert told in Certificate.from_json(fitted.certificate_.to_json()).headline
    clean = [PublicBounds(0, 10), SimpleImputer(strategy="constant", fill_value=0), PolynomialFeatures(1)]
    public = make_pipeline(*clean, model).fit(x, y)[-1].certificate_
    assert "learnt" not in str(public)


def test_what_a_transformed_target_learns_is_not_covered():
    x, y = binary(records=100)
    model = PrivateLinearRegression(bounds=(0, 10), target_bounds=(-3, 3), unsafe_seed=0)
    with pytest.warns(DeclarationWarning, match="StandardScaler learnt"):
        fitted = TransformedTargetRegressor(model, transformer=StandardScaler()).fit(x, y.astype(float))
    assert "StandardScaler learnt" in fitted.regressor_.certificate_.headline


def test_a_clone_spends_from_the_same_ledger():
    x, y = binary(records=100)
    with Ledger.in_memory(total(2.0)) as ledger:
        model = PrivateLogisticRegression(bounds=(0, 10), ledger=ledger, class_weight={0: 0.5})
        copy = clone(model)
        assert copy.ledger is ledger
        assert copy.get_params() == model.get_params()
        assert copy.class_weight is not model.class_weight
        cross_val_score(model, x, y, cv=2)
        assert len({name.partition("/")[0] for name in ledger.runs()}) == 2


def test_a_ledger_that_is_begun_here_is_for_one_fit_alone(tmp_path):
    x, y = binary(records=50)
    model = PrivateLogisticRegression(bounds=(0, 10), ledger=str(tmp_path / "none")).fit(x, y)
    with Ledger.open(tmp_path / "none") as ledger:
        model.certificate_.verify(ledger)
    with pytest.raises(BudgetExceeded, match="no room for another fit"):
        model.fit(x, y)
    with pytest.raises(InvalidParameter, match="must be a Ledger, the path"):
        PrivateLogisticRegression(ledger=7).fit(x, y)


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_certificates_can_be_verified_and_tell_what_is_not_covered(arithmetic):
    x, y = binary(records=200)
    budget = Budget(1.0, 1e-6)
    with Ledger.in_memory(total(2.0)) as ledger:
        model = PrivateLogisticRegression(bounds=(0, 10), ledger=ledger, arithmetic=arithmetic).fit(x, y)
        certificate = model.certificate_
        assert certificate.guarantee.within(budget)
        assert certificate.together.epsilon.upper == 2.0
        certificate.verify(ledger)
    declared = certificate.plan.settings
    assert (declared["classes"], declared["bounds"], declared["epsilon"]) == ([0, 1], [0, 10], 1.0)
    from_data = PrivateLogisticRegression(classes="from-data", bounds=(0, 10)).fit(x, y).certificate_
    assert "taken from the data" in from_data.not_covered[-1]
    assert not any("taken from the data" in line for line in certificate.not_covered)
    seeded = PrivateLogisticRegression(bounds=(0, 10), unsafe_seed=0).fit(x, y).certificate_
    with pytest.raises(CertificateRejected):
        seeded.verify()


def test_two_fits_with_the_same_settings_have_certificates_of_their_own():
    x, y = binary(records=100)
    with Ledger.in_memory(total(2.0)) as ledger:
        model = PrivateLogisticRegression(bounds=(0, 10), ledger=ledger)
        first, second = (model.fit(x, y).certificate_ for _ in range(2))
        assert first.plan.digest() != second.plan.digest()
        assert second.guarantee.epsilon.upper == 1.0
        second.verify(ledger)


def test_going_on_is_charged_and_ends_with_the_budget():
    x, y = binary()
    with pytest.raises(BudgetExceeded, match="fit with a ledger of a larger budget"):
        PrivateLogisticRegression(bounds=(0, 10)).fit(x, y).fit_more(x, y)
    with Ledger.in_memory(total(1.5)) as ledger:
        model = PrivateLogisticRegression(epsilon=1.0, bounds=(0, 10), ledger=ledger).fit(x, y)
        before = model.coef_
        model.fit_more(x, y)
        assert (model.coef_ != before).any()
        assert model.certificate_.guarantee.epsilon.upper == pytest.approx(
            1.4547, abs=1e-4
        )  # of both together
        assert model.certificate_.together.epsilon.upper == 1.5
        model.certificate_.verify(ledger)
        after = model.coef_
        with pytest.raises(BudgetExceeded, match="no room"):
            model.fit_more(x, y)
        np.testing.assert_array_equal(model.coef_, after)


def test_going_on_reduces_the_error():
    """Six pairs; each improves with a chance above 0.85, so at most 3 failures but for one choice of seeds in 200."""
    x, score, rng = table(records=3000)
    numbers = 100 + 20 * score + rng.normal(size=len(x))
    truth = 20 * np.arange(1, 4) / 9
    improved = 0
    for seed in range(6):
        with Ledger.in_memory(total(2.0)) as ledger:
            model = PrivateLinearRegression(
                0.3, 1e-6, (0, 300), bounds=(0, 10), ledger=ledger, unsafe_seed=seed
            )
            once = np.abs(model.fit(x, numbers).coef_ - truth).max()
            for more in range(1, 6):
                model.set_params(unsafe_seed=100 * more + seed).fit_more(x, numbers)
            improved += np.abs(model.coef_ - truth).max() < once
    assert improved >= 3


def test_weights_cannot_exceed_their_declared_maximum():
    wild = [0.5, 2.0, 1e300, -1.0, math.nan, math.inf, None, "x"]
    np.testing.assert_array_equal(record_weights(wild, 8, 2.0), [0.25, 1, 1, 0, 0, 1, 0, 0])
    assert record_weights(None, 8, 2.0) is None
    np.testing.assert_array_equal(class_weights({1: 4.0}, np.array([0, 1])), [0.25, 1])
    for bad in ("balanced", {7: 1.0}, {0: math.nan}, {0: 0.0, 1: 0.0}):
        with pytest.raises(InvalidParameter, match="class_weight"):
            class_weights(bad, np.array([0, 1]))


def test_weights_mean_what_they_say():
    x, y = binary(records=500)
    model = PrivateLogisticRegression(bounds=(0, 10), unsafe_seed=3)
    plain = clone(model).fit(x, y).coef_
    fives = clone(model).set_params(max_weight=5.0).fit(x, y, np.full(500, 5.0)).coef_
    np.testing.assert_allclose(fives, plain, rtol=1e-6)
    kept = np.arange(500) < 400
    left_out = clone(model).fit(x[kept], y[kept]).coef_
    np.testing.assert_allclose(clone(model).fit(x, y, kept.astype(float)).coef_, left_out, rtol=1e-5)
    by_class = clone(model).set_params(class_weight={0: 1.0, 1: 0.5}).fit(x, y).coef_
    np.testing.assert_allclose(clone(model).fit(x, y, np.where(y, 0.5, 1.0)).coef_, by_class, rtol=1e-6)


def test_rows_are_encoded_on_demand_and_the_model_does_not_notice():
    """A table that may not be kept in memory is encoded once, too; nothing else changes."""
    x, y = binary(records=1000)
    encoding = BoundedNumbers(np.zeros(3), np.full(3, 10.0))
    asked = []

    class Watched(np.ndarray):
        def __getitem__(self, rows):
            found = np.asarray(self)[rows]
            asked.extend([rows] * bool(len(found)))  # an empty part tells the types
            return found

    def fitted(memory):
        asked.clear()
        spending = BudgetAllocator(Budget(1.0, 1e-6), stream=RandomStream(unsafe_seed=0))
        rows = encoding.on_demand(x.view(Watched))
        return fit_glm(
            Logistic(), rows, y, encoding.columns, spending, storage=Storage(memory)
        ).coefficients, len(asked)

    (kept, once), (not_kept, again) = fitted(2**31), fitted(0)
    np.testing.assert_array_equal(kept, not_kept)
    assert once == again == 1


def test_ranges_are_found_wherever_the_numbers_are():
    rng = np.random.default_rng(0)
    spread = np.array([1.0, 1e-3, 1e6, 30.0, 0.0])
    centre = np.array([0.0, 0.0, -3e6, 2000.0, 0.0])
    x = centre + spread * rng.uniform(-1, 1, (5000, 5))
    x[0] = [1e300, -math.inf, math.nan, 0.0, 0.0]
    spending = BudgetAllocator(Budget(1.0, 1e-6), stream=RandomStream(unsafe_seed=0))
    found = learned_ranges(RawColumns(x), spending, 0.08).ranges
    for (lower, upper), middle, size in zip(found, centre, spread, strict=True):
        assert lower <= middle - 0.9 * size
        assert upper >= middle + 0.9 * size
        assert upper - lower <= max(10 * size, 1.0)


def range_sums(x):
    """The sums behind two noisy histograms, with what one record may add to each."""
    seen = []

    class Watched(BudgetAllocator):
        def _add_noise(self, total, event):
            seen.append(total)
            return super()._add_noise(total, event)

    spending = Watched(Budget(1.0, 1e-6), stream=RandomStream(unsafe_seed=0))
    learned_ranges(RawColumns(x), spending, 0.08)
    return seen


def test_one_record_moves_the_histograms_of_ranges_as_far_as_is_paid_for():
    """The change of both sums, for records of every kind; a twin that counts a record twice is caught."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4))
    records = [[0.0] * 4, [1e308, -1e308, math.nan, math.inf], [1e-300, 1.0, -1.0, 2.0], [0.5, 0.25, 3, -7]]

    def moved(copies):
        before = range_sums(x)
        for record in records:
            after = range_sums(np.vstack([x, *[[record]] * copies]))
            for one, other in zip(before, after, strict=True):
                yield np.linalg.norm(one.value - other.value) * one.grid / one.clip_norm

    assert 0.5 < max(moved(1)) <= 1
    assert max(moved(2)) > 1


def test_ranges_without_records_stay_near_one():
    """Where noise is all there is. A histogram without the preference reaches 2**60 in most draws."""
    streams = [RandomStream(unsafe_seed=seed) for seed in range(20)]
    nobody = np.zeros((0, 1))
    found = [
        learned_ranges(RawColumns(nobody), BudgetAllocator(Budget(1.0, 1e-6), stream=s), 0.08).ranges[0]
        for s in streams
    ]
    assert max(abs(edge) for span in found for edge in span) <= 2**40


def test_undeclared_bounds_are_learnt_out_of_the_same_budget():
    x, score, rng = table()
    scales = np.array([1.0, 1e-4, 1e5])
    y = (score > 0).astype(int)
    model = PrivateLogisticRegression(epsilon=2.0, unsafe_seed=0).fit(x * scales + [0, 7, -1e6], y)
    assert model.score(x * scales + [0, 7, -1e6], y) > 0.83
    assert model.certificate_.guarantee.within(Budget(2.0, 1e-6))
    regression = PrivateLinearRegression(epsilon=2.0, unsafe_seed=0).fit(
        x, 1e4 + 1e3 * score + rng.normal(size=len(x))
    )
    assert regression.score(x, 1e4 + 1e3 * score) > 0.8
    with pytest.raises(InvalidParameter, match="only 'recipe' can learn"):
        PrivateLogisticRegression(method="output-perturbation", records=4000).fit(x, y)


def stages_of(model, x, y):
    """The names of the stages that a fit pays for, in their order."""
    seen = []
    model.set_params(verbose=lambda stage, done, steps: seen.append(stage)).fit(x, y)
    return list(dict.fromkeys(seen))


@pytest.mark.parametrize("schema", [None, Schema({"a": Numeric(), "b": Numeric(0, 10), "c": Numeric()})])
def test_bounds_that_too_few_records_would_need_cost_nothing(schema):
    """Learnt and declared bounds are the same model then, drawn with the same noise; with many they are learnt."""
    x, y = binary(records=60)
    declared = PrivateLogisticRegression(epsilon=0.3, unsafe_seed=0, bounds=(0, 10))
    learnt = PrivateLogisticRegression(epsilon=0.3, unsafe_seed=0, schema=schema)
    with pytest.warns(DeclarationWarning, match="were not found"):
        stages = stages_of(learnt, x, y)
    assert "ranges" not in stages
    assert stages == stages_of(declared, x, y)
    assert learnt.predict_proba(x).tolist() == declared.predict_proba(x).tolist()
    assert not learnt.coef_.any()
    many = stages_of(PrivateLogisticRegression(epsilon=3.0, unsafe_seed=0, schema=schema), *binary())
    assert many[:3] == ["counts", "ranges", "ranges-zoom"]
    assert len(many) == len(set(many))


def test_few_counts_without_bounds_leave_a_share_for_gradients():
    """What comes last was set aside before the target took its share, and sometimes all that was left."""
    x, score, rng = table(records=60)
    y = rng.poisson(np.exp(score))
    for seed in range(10):
        model = PrivatePoissonRegressor(epsilon=3.0, unsafe_seed=seed).fit(x, y)
        assert model.certificate_.guarantee.within(Budget(3.0, 1e-6))


def test_a_schema_with_everything():
    rng = np.random.default_rng(0)
    records = 4000
    columns = {
        "age": rng.integers(20, 60, records),
        "job": rng.choice(["clerk", "farmer", "pilot"], records),
        "smoker": rng.choice(["yes", "no"], records),
        "gains": 1e4 * rng.random(records),
        "name": rng.choice(["a", "b"], records),
    }
    y = (columns["job"] == "farmer") | (columns["smoker"] == "yes") & (columns["gains"] > 5e3)
    schema = Schema(
        {
            "age": Numeric(20, 60),
            "job": Category(("clerk", "farmer")),
            "smoker": Flag("yes"),
            "gains": Numeric(missing="flag"),
        }
    )
    for make in FRAMES.values():
        model = PrivateLogisticRegression(epsilon=5.0, schema=schema, unsafe_seed=0).fit(make(columns), y)
        assert model.score(make(columns), y) > 0.75
    names = ["age", "gains", "job=clerk", "job=farmer", "smoker", "gains=missing"]
    assert model.coef_names_.tolist() == names
    assert model.coef_.shape == (1, 6)
    assert model.n_features_in_ == 4
    assert model.certificate_.plan.settings["schema"] == schema.to_dict()
    with pytest.raises(InvalidParameter, match="declare one of"):
        PrivateLogisticRegression(schema=schema, bounds=(0, 1)).fit(make(columns), y)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_same_interface(method):
    x, y = binary()
    model = PrivateLogisticRegression(epsilon=3.0, bounds=(0, 10), method=method, records=4000)
    assert clone(model).set_params(unsafe_seed=0).fit(x, y).score(x, y) > 0.6
    model.fit(x, y)
    assert model.certificate_.guarantee.within(Budget(3.0, 1e-6))
    model.certificate_.verify()


def test_what_a_method_cannot_do_is_refused_before_anything_is_spent():
    x, y = binary(records=100)
    with Ledger.in_memory(total(2.0)) as ledger:
        one = PrivateLogisticRegression(bounds=(0, 10), method="objective-perturbation", ledger=ledger)
        with pytest.raises(InvalidParameter, match="public number of records"):
            one.fit(x, y)
        with pytest.raises(InvalidParameter, match="weights"):
            one.fit(x, y, np.ones(100))
        with pytest.raises(InvalidParameter, match="bounded slope"):
            PrivateLinearRegression(
                method="output-perturbation", bounds=(0, 10), target_bounds=(0, 1), records=100, ledger=ledger
            ).fit(x, y)
        with pytest.raises(InvalidParameter, match="is for method='recipe'"):
            one.set_params(arithmetic="hardened").fit(x, y)
        assert ledger.spent() is None


def test_fitted_models_survive_pickle_and_keep_their_certificate():
    x, y = binary(records=200)
    model = pickle.loads(pickle.dumps(PrivateLogisticRegression(bounds=(0, 10)).fit(x, y)))
    assert model.certificate_.verify()
    assert model.predict(x).shape == (200,)


def test_a_bar_shows_stages_and_steps_and_nothing_else(capsys, tmp_path, monkeypatch):
    """Also for a table on disk that may not be kept in memory, as if it were larger than that."""
    monkeypatch.setattr(glm.fit_glm, "__kwdefaults__", {**glm.fit_glm.__kwdefaults__, "storage": Storage(0)})
    x, y = binary(records=2000)
    np.save(tmp_path / "x.npy", x)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    PrivateLogisticRegression(bounds=(0, 10), verbose=True).fit(on_disk, y)
    lines = [line.split() for line in capsys.readouterr().err.splitlines() if line.strip()]
    shown = {line[0]: line[-1] for line in lines}
    assert next(iter(shown)) == "counts"
    assert shown["gradients"] == "40/40"
    assert all(re.fullmatch(r"[a-z-]+ \S+ \d+/\d+", " ".join(line)) for line in lines)


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize(
    "make", [PrivateLinearRegression, PrivatePoissonRegressor, PrivateLogisticRegression]
)
@pytest.mark.parametrize("records", [0, 3, 100, 400])
def test_small_tables_never_run_out_of_budget_half_way(make, records):
    """Shares follow noisy numbers; together they must stay within the budget whatever these turn out to be."""
    rng = np.random.default_rng(records)
    x, y = rng.uniform(0, 1, (records, 3)), rng.integers(0, 2, records)
    for seed in range(6):
        for epsilon in (0.1, 1.0):
            make(epsilon, unsafe_seed=seed).fit(x, y)


def test_huber_with_a_small_threshold_still_arrives():
    """At epsilon 3 the slopes are found to a tenth; the step rule without the threshold stops half-way."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20_000, 2))
    y = x @ [3.0, -2.0] + 0.1 * rng.standard_t(2, len(x))
    model = PrivateLinearRegression(
        3.0, 1e-6, (-10, 10), loss="huber", huber_threshold=1.0, bounds=(-1, 1), unsafe_seed=0
    )
    np.testing.assert_allclose(model.fit(x, y).coef_, [3, -2], atol=0.3)


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize("bounds", [(-4, 4), None])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_few_records_make_modest_probabilities(bounds, epsilon):
    """The mean log loss of 10 fits with fixed seeds to 60 records; scores as the descent finds them reach 1 to 4."""
    rng, losses = np.random.default_rng(5), []
    for seed in range(10):
        x, test = rng.normal(size=(60, 8)), rng.normal(size=(500, 8))
        y, truth = (x[:, 0] > 0).astype(int), (test[:, 0] > 0).astype(int)
        model = PrivateLogisticRegression(epsilon, 1e-5, bounds=bounds, unsafe_seed=seed).fit(x, y)
        losses.append(-model.predict_log_proba(test)[np.arange(500), truth].mean())
    assert np.mean(losses) < math.log(2) + 0.03


@pytest.mark.filterwarnings("ignore:This model is mostly noise")
def test_a_table_without_records_answers_nothing():
    with pytest.warns(DeclarationWarning, match="The bounds of 5 of 5 columns were not found"):
        model = PrivateLogisticRegression(unsafe_seed=0).fit(np.zeros((0, 5)), np.zeros(0))
    assert abs(model.predict_proba(np.zeros((1, 5)))[0, 1] - 0.5) < 0.2
    assert not model.coef_.any()
