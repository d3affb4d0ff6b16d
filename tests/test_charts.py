"""What notebooks show: each object as HTML that parses, with its numbers in it and every text escaped."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas
import pytest

import discreet as dp
from discreet.charts import Picture, bar_chart, html_table
from discreet.linear import PrivateAdditiveClassifier, PrivateLogisticRegression
from discreet.linear.fitted_model import FittedModel
from discreet.plan.explore import explore
from discreet.report import Report

HOSTILE = "<script>alert(1)</script>&amp;\"'"


def parsed(html):
    """The markup as a tree; anything that is not well-formed raises."""
    return ElementTree.fromstring(f"<body>{html}</body>")


def words(html):
    return " ".join(" ".join(parsed(html).itertext()).split())


@pytest.fixture(scope="module")
def plan():
    recipe = dp.Recipe(records=10_000, batch_size=100, epochs=2)
    return recipe.calibrate(dp.Budget(2.0, 1e-6))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({HOSTILE: rng.random(4000), "b": rng.random(4000)})
    return frame, (frame[HOSTILE] > 0.5).astype(int)


@pytest.fixture(scope="module")
def lines(table):
    model = PrivateLogisticRegression(epsilon=2.0, delta=1e-6, bounds=(0, 1), unsafe_seed=1)
    return model.fit(*table)


@pytest.fixture(scope="module")
def curves(table):
    model = PrivateAdditiveClassifier(epsilon=8.0, delta=1e-6, bounds=(0, 1), unsafe_seed=1)
    return model.fit(*table)


def test_a_curve_shows_epsilon_from_both_sides(plan):
    curve = plan.curve
    shown = words(curve._repr_html_())
    assert f"1e-06 {curve.epsilon(1e-6):.4g} {curve.epsilon_bounds(1e-6).lower:.4g}" in shown
    assert "What the best attack finds" in shown


def test_a_plan_explains_itself_and_plots_epsilon_step_by_step(plan):
    assert plan.explain() == parsed(plan._repr_html_()).find("pre").text
    picture = plan.plot()
    assert f"Epsilon at delta {plan.delta:g}" in words(picture._repr_html_())
    last = parsed(picture.svg).find(".//{*}path[@class='line-1']").get("d").rpartition("L")[2]
    right, height = map(float, last.split())  # where the line ends: at the plan's own epsilon, its largest
    assert (right, 15 < height < 25) == (624.0, True)


def test_adaptive_plans_and_their_certificates_plot_the_attack(lines):
    certificate = lines.certificate_
    for shown in (certificate.plan, certificate):
        assert "guessing" in words(shown.plot()._repr_html_())
    assert certificate.digest() in words(certificate._repr_html_())
    assert certificate.headline in words(certificate._repr_html_())


@pytest.mark.parametrize("varied", [{"batch_size": [100, 200], "epochs": [1, 2]}, {"sampling": ["poisson"]}])
def test_an_exploration_is_a_table_and_a_chart(varied):
    recipe = dp.Recipe(records=10_000, batch_size=100, epochs=2)
    found = explore(recipe, dp.Budget(2.0, 1e-6), **varied)
    assert words(found._repr_html_()).startswith(next(iter(varied)))
    assert "signal to noise" in words(found.plot()._repr_html_())
    with pytest.raises(dp.InvalidParameter, match="must be one of"):
        found.plot(by="beauty")
    with pytest.raises(dp.InvalidParameter, match="was not asked for"):
        found.plot(by="seconds")


def test_models_show_effects_promise_and_notes(lines, curves):
    for model in (lines, FittedModel.of(lines), FittedModel.of(curves), curves):
        shown = model._repr_html_()
        assert HOSTILE in words(shown)
        assert model.certificate_.headline in words(shown)
        assert "<script" not in shown
    for model in (lines, FittedModel.of(lines), lines.coefficients()):
        assert "The largest effects" in words(model.plot()._repr_html_())
    assert len(FittedModel.of(curves).plot().axes) == 2


def test_before_a_fit_a_model_shows_what_scikit_learn_shows():
    assert "PrivateLogisticRegression" in PrivateLogisticRegression()._repr_html_()


def test_a_report_is_shown_in_a_frame_of_its_own(lines):
    report = Report(lines.certificate_, "Trial")
    frame = parsed(report._repr_html_()).find("iframe")
    assert frame.get("srcdoc").split() == report.to_html().split()
    assert "guessing" in words(report.plot()._repr_html_())


def test_pictures_are_saved_as_they_are(tmp_path):
    picture = Picture(bar_chart(HOSTILE, [(HOSTILE, 1.0), ("b", -2.0)]))
    picture.save(tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.find("{*}title").text == HOSTILE
    with pytest.raises(dp.InvalidParameter, match="must end in"):
        picture.save(tmp_path / "a.png")


def test_tables_escape_what_they_hold():
    assert words(html_table((HOSTILE,), [(HOSTILE,)], HOSTILE)) == " ".join([HOSTILE] * 3)


def test_lazy_names_are_completed():
    import discreet.linear

    for room in (dp, discreet.linear):
        assert set(room.__all__) <= set(dir(room))
