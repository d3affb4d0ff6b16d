"""Whom it is for: budgets, plans, ledgers, certificates and reports say it, and do not mix records with people."""

import json

import pytest

from discreet import Budget, Recipe
from discreet.certificate import Certificate
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.events import Gaussian
from discreet.guarantee import Bounds, Guarantee, protected_unit
from discreet.ledger import FixedPlan, GaussianFilter, Ledger, Till
from discreet.linear import PrivateLinearRegression
from discreet.plan.plan import Plan
from discreet.report import Report

PEOPLE = Budget(1.0, 1e-6, unit="person")
RECIPE = Recipe(records=6000, batch_size=100, steps=50, clip_norm=1.0)


def certified(plan):
    till = Till.open(None, plan)
    till.pay(name="run")
    return Certificate.of(till.ledger, plan)


def test_files_of_records_are_what_they_were():
    """A unit of records is not written down, so old files and digests stay as they are, and mean a record."""
    assert "unit" not in Budget(1.0, 1e-6).to_dict()
    plan = RECIPE.calibrate(Budget(1.0, 1e-6))
    assert "unit" not in plan.to_dict()
    certificate = certified(plan)
    assert '"unit"' not in certificate.to_json()
    assert Certificate.from_json(certificate.to_json()).guarantee.unit == "record"


def test_people_go_from_the_wish_to_the_report():
    assert Budget.from_dict(PEOPLE.to_dict()) == PEOPLE
    plan = RECIPE.calibrate(PEOPLE)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.unit == plan.guarantee.unit == plan.rule.budget.unit == "person"
    certificate = certified(plan)
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.verify().guarantee.unit == "person"
    assert "for one person (all of their rows)" in str(again.guarantee)
    assert "Every person, with all of their rows" in plan.explain()
    assert "every person joins the batch" in plan.explain()
    page = Report(certificate).to_html()
    assert "Every person, with all of their rows" in page
    assert "People with several records" not in page


def test_the_certificate_of_a_fit_names_the_column_and_no_value():
    ids = [f"secret-{number}" for number in range(200)]
    model = PrivateLinearRegression(bounds=(0, 1), target_bounds=(0, 1), unit="patient")
    model.fit([[0.5]] * 200, [0.5] * 200, people=ids)
    text = model.certificate_.to_json()
    assert "secret" not in text
    assert json.loads(text)["procedure"]["settings"]["unit"] == {"column": "patient"}
    assert model.certificate_.guarantee.unit == "person"
    assert model.certificate_.verify().guarantee.unit == "person"
    assert "by the column &#39;patient&#39;" in Report(model.certificate_).to_html().replace(
        "&#x27;", "&#39;"
    )


def test_a_certificate_that_claims_people_for_records_is_rejected():
    honest = certified(RECIPE.calibrate(Budget(1.0, 1e-6)))
    data = json.loads(honest.to_json())
    for name in ("guarantee", "together"):
        data[name]["unit"] = "person"
    forged = Certificate._from_dict({key: value for key, value in data.items() if key != "digest"})
    with pytest.raises(CertificateRejected, match="unit='person'"):
        forged.verify()


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_ledger_holds_one_unit(unit, tmp_path):
    other = "person" if unit == "record" else "record"
    ledger = Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-5, unit=unit)))
    Till.open(ledger, GaussianFilter(Budget(1.0, 1e-6, unit=unit)))
    with pytest.raises(InvalidParameter, match=f"protects one {unit}, and this plan one {other}"):
        Till.open(ledger, RECIPE.calibrate(Budget(1.0, 1e-6, unit=other)))
    place = tmp_path / "ledger.sqlite"
    Till.open(place, GaussianFilter(Budget(3.0, 1e-5, unit=unit))).close()
    with pytest.raises(InvalidParameter, match="keep a ledger for each unit"):
        Till.open(place, GaussianFilter(Budget(1.0, 1e-6, unit=other)))
    Till.open(place, GaussianFilter(Budget(1.0, 1e-6, unit=unit))).close()


def test_an_estimator_refuses_a_ledger_of_records_for_people():
    ledger = Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-5)))
    model = PrivateLinearRegression(bounds=(0, 1), target_bounds=(0, 1), unit="patient", ledger=ledger)
    with pytest.raises(InvalidParameter, match="protects one record"):
        model.fit([[0.5]] * 20, [0.5] * 20, people=range(20))
    assert not ledger.runs()


def test_units_are_not_compared():
    rule = FixedPlan.at_its_cost(Gaussian(5.0), 1e-6, unit="person")
    assert rule.guarantee({}).within(rule.budget)
    with pytest.raises(InvalidParameter, match="unit"):
        rule.guarantee({}).within(Budget(100.0, 1e-6))
    with pytest.raises(InvalidParameter, match="unit"):
        Budget(1.0, 1e-6, unit="household")
    assert protected_unit("person", 4) == "group of 4 people"
    assert "a group of 4 people (all" in str(Guarantee(Bounds(0, 1), 1e-6, group_size=4, unit="person"))


def test_delta_is_compared_with_the_number_of_people():
    with pytest.raises(InvalidParameter, match="delta"):
        RECIPE.calibrate(Budget(1.0, 1e-3, unit="person"))
