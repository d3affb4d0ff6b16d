"""The risk of one person in the report, on the command line, and the checklist of NIST SP 800-226."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import discreet as dp
from discreet import Budget, Certificate, InvalidParameter, Ledger, Recipe
from discreet.certificate.guarantees import Arithmetic
from discreet.cli import main
from discreet.ledger import FixedPlan
from discreet.report import Cover, Report
from discreet.report.nist import checklist
from discreet.report.page import read_page, verify_page
from discreet.report.risks import USUAL, CertifiedPower, assess_all, risk_from, risk_from_dict, risk_to_dict

BUDGET = Budget(2.0, 1e-6)
OWN = (
    dp.Reconstruction(1 / 3650, 2 / 3650, "a date of birth"),
    dp.AttributeInference(0.03, 0.5, "the <diagnosis>"),
    dp.Membership(0.01),
)


@pytest.fixture(scope="module")
def certificate():
    plan = Recipe(records=60_000, batch_size=600, epochs=10, clip_norm=1.0).calibrate(BUDGET)
    with Ledger.in_memory(FixedPlan(plan.event, BUDGET)) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(plan.steps)
        return Certificate.of(ledger, plan)


@pytest.fixture
def saved(certificate, tmp_path):
    place = tmp_path / "certificate.json"
    place.write_text(certificate.to_json())
    return place


def test_the_power_is_the_accountants(certificate):
    curve = certificate.plan.rule.curve()
    for rate in (0.0, 1e-6, 0.01, 0.5, 1.0):
        assert CertifiedPower(certificate)(rate) == pytest.approx(curve.power(rate), rel=1e-12)


def test_the_page_tells_the_owners_risks_and_is_read_back(certificate, tmp_path):
    report = Report(certificate, risks=OWN)
    text = report.to_html()
    assert "a date of birth" in text
    assert "the &lt;diagnosis&gt;" in text
    assert "EXCEEDS the declared limit of 0.0547%" in text
    assert "is within the declared limit of 50%" in text
    report.save(tmp_path / "report.html")
    page = read_page(tmp_path / "report.html")
    assert page.same
    assert page.report.risks == OWN
    claimed = [
        line.text for line in verify_page(tmp_path / "report.html")[1].lines if line.basis == "claimed"
    ]
    assert any("without the results" in line for line in claimed)


def test_an_altered_baseline_is_found(certificate, tmp_path):
    page = Report(certificate, risks=OWN).to_html()
    (tmp_path / "report.html").write_text(page.replace('"baseline": 0.03', '"baseline": 0.02'))
    with pytest.raises(dp.CertificateRejected, match="altered"):
        read_page(tmp_path / "report.html")


def test_without_risks_of_their_own_examples_are_told(certificate):
    report = Report(certificate)
    assert [bound.risk for bound in report.risk_bounds][1:] == list(USUAL[1:])
    assert report.risk_bounds[0].risk.what == "a record was used"
    people = replace(certificate, guarantee=replace(certificate.guarantee, unit="person"))
    assert [bound.risk for bound in assess_all(people)] == list(USUAL)
    assert "These are examples" in report.to_markdown()
    facts = json.loads(report.to_json())["facts"]
    assert [one["kind"] for one in facts["risks"]][:2] == ["membership", "attribute-inference"]
    assert all(one["baseline"] < one["success_at_most"] < 1 for one in facts["risks"])


def test_the_checklist_says_where_each_answer_comes_from(certificate):
    lines = checklist(Report(certificate, cover=Cover(record="one person", purpose="triage")))
    by_question = {line.question: line for line in lines}
    assert by_question["What are epsilon and delta?"].basis == "computed"
    assert "2 at delta 1e-06" in by_question["What are epsilon and delta?"].answer
    assert by_question["Where does the randomness come from?"].basis == "certificate"
    assert by_question["What are the results for?"].answer == "The owner says: triage."
    blank = by_question["Who could read the records while the procedure was developed?"]
    assert blank.basis == "to be answered"
    assert set(blank.answer) == {"_"}
    assert len(lines) == len(by_question)


def test_the_checklist_follows_the_certificate(certificate):
    people = replace(certificate.guarantee, unit="person", neighbours="replace-one", delta=0.0)
    other = replace(certificate, guarantee=people, trusted=False, arithmetic=Arithmetic("hardened", 1e-20))
    answers = {line.question: line.answer for line in checklist(Report(other))}
    assert "A SEED DECIDED THE NOISE" in answers["Where does the randomness come from?"]
    assert "Replace-one" in answers["Which data sets are neighbours?"]
    assert answers["Who or what is protected?"] == "One person, with all of their rows."
    assert "Pure" in answers["Which variant of differential privacy is it?"]
    assert "released bits" in answers["Does the proof cover floating-point arithmetic?"]
    checked = replace(certificate, checks=("8 examples of each step were compared",))
    answers = {line.question: line.answer for line in checklist(Report(checked))}
    assert "8 examples" in answers["How is the sensitivity bounded?"]


@pytest.mark.parametrize("risk", OWN)
def test_risks_are_plain_data(risk):
    assert risk_from_dict(json.loads(json.dumps(risk_to_dict(risk)))) == risk


@pytest.mark.parametrize("typed", ["", "half", "1/0", "nan", "1e999", "2/1"])
def test_what_is_no_probability_is_refused(typed):
    with pytest.raises(InvalidParameter) as error:
        risk_from("membership", typed)
    assert error.value.name == "baseline"


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidParameter, match="membership, reconstruction"):
        risk_from("identity theft", "0.1")


@pytest.mark.parametrize("risks", [[dp.Membership(0.01)], ("membership",), None])
def test_a_report_takes_risks_only(certificate, risks):
    with pytest.raises(InvalidParameter) as error:
        Report(certificate, risks=risks)
    assert error.value.name == "risks"


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_command_tells_risks(saved, certificate):
    found = run("risk", saved, "--risk", "reconstruction", "1/3650", "a date of birth", "--json")
    data = json.loads(found.output)
    assert found.exit_code == 0
    (only,) = data["risks"]
    assert only["success_at_most"] == CertifiedPower(certificate)(1 / 3650)
    assert "membership: a record was used" in run("risk", saved).output
    assert run("risk", saved, "--risk", "reconstruction", "2", "x").exit_code == 2


def test_the_command_refuses_a_certificate_that_does_not_follow(saved):
    saved.write_text(saved.read_text().replace("2.0", "1.0", 1))
    assert run("risk", saved).exit_code != 0


def test_the_report_command_takes_risks(saved, tmp_path):
    found = run(
        *("report", saved, "--html", tmp_path / "report.html"),
        *("--risk", "re-identification", "1/500", "the right patient"),
    )
    assert found.exit_code == 0, found.output
    assert "the right patient" in (tmp_path / "report.html").read_text()


def test_noise_can_be_calibrated_to_a_risk_on_the_command_line():
    words = ("--rate", "0.01", "--steps", "1000", "--delta", "1e-6")
    found = run("calibrate", "--risk", "reconstruction", "1/3650", "2/3650", *words, "--json")
    data = json.loads(found.output)
    assert data["risk"]["success_at_most"] <= 2 / 3650
    assert data["noise_multiplier"] == pytest.approx(
        dp.calibrate(
            lambda noise: dp.PoissonSampled(0.01, dp.Gaussian(noise)) * 1000,
            risk=dp.Reconstruction(1 / 3650, 2 / 3650),
        )
    )
    both = run("calibrate", "--epsilon", "1", "--risk", "membership", "0.01", "0.02", *words)
    assert "exactly one of the two" in both.output
    assert run("calibrate", *words).exit_code == 2
    assert run("calibrate", "--risk", "membership", "0.02", "0.01", *words).exit_code == 2
