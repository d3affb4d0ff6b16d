"""The page that verifies certificates in a browser comes to the verdicts of the Python verifier.

The two share no code. Certificates of several kinds, signed and not, and several hundred edits of them whose digest
was recomputed, are given to both. Outcomes must be equal, except that the page may call consistent what it has no
theorem for.
"""

import copy
import json
import random
from dataclasses import replace
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet import Budget, Certificate, Gaussian, Ledger, PoissonSampled, account
from discreet.certificate import Arithmetic, public_key_of
from discreet.errors import DiscreetError
from discreet.events import ApproximateDP, Laplace
from discreet.files import canonical, digest
from discreet.ledger import FixedPlan, GaussianFilter
from discreet.plan import Plan, Recipe
from discreet.report import Cover, Report
from discreet.report.verifier_page import script_hash, verifier_page, verifier_script
from support.browser import needs_chromium, page

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def fixed(budget, **recipe):
    plan = Recipe(**recipe).calibrate(budget)
    with Ledger.in_memory(FixedPlan(plan.event, budget)) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(plan.event.parts()[0][1] // 2)
        return Certificate.of(ledger, plan)


def adaptive(budget, wide=None, arithmetic=None, distance=0.0, **settings):
    plan = Plan.adaptive("fit", GaussianFilter(budget), {"clip": 1.5, "note": "zwölf \U0001f512", **settings})
    with Ledger.in_memory(GaussianFilter(wide or budget)) as ledger:
        for stage, noise in enumerate((30.0, 18.0)):
            run = ledger.run(Gaussian(noise) * 3, plan.digest(), name=f"fit/{stage}")
            run.reserve(3)
        if wide:
            ledger.run(Gaussian(9.0) * 1, "a" * 64, name="other").reserve(1)
        checks = ("every example was compared with itself alone",)
        return Certificate.of(ledger, plan, arithmetic=arithmetic, checks=checks)


@cache
def bank():
    """Certificates by name, as they were issued."""
    small = Budget(1.0, 1e-6)
    found = {
        "adaptive": adaptive(small),
        "adaptive, wide ledger": adaptive(small, wide=Budget(3.0, 1e-5)),
        "hardened": adaptive(small, arithmetic=Arithmetic("hardened", 1e-12)),
        "hardened, far": adaptive(small, arithmetic=Arithmetic("hardened", 1e-9)),
        "replace-one": adaptive(Budget(2.0, 1e-6, "replace-one")),
        "persons": adaptive(Budget(2.0, 1e-6, unit="person")),
        "groups": adaptive(Budget(4.0, 1e-6, group_size=2)),
        "poisson": fixed(Budget(2.0, 1e-5), records=10_000, batch_size=100, epochs=2),
        "full batch": fixed(Budget(1.0, 1e-5), records=500, steps=10, sampling="full-batch"),
        "allocation": fixed(
            Budget(2.0, 1e-5), records=1000, batch_size=100, epochs=2, sampling="random-allocation"
        ),
    }
    found["files"] = replace(found["adaptive"], files=(("weights.bin", "0" * 64),))
    found["seeded"] = replace(found["adaptive"], trusted=False)
    return found | {f"{name}, signed": one.signed(KEY) for name, one in found.items()}


def python_outcome(text, signed_by):
    try:
        return Certificate.from_json(text).verify(signed_by=signed_by).outcome
    except DiscreetError:
        return "rejected"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "verify.html"
    path.write_text(verifier_page())
    with page() as shown:
        shown.goto(path.as_uri())
        yield shown


def page_outcome(browser, text, signed_by=None):
    script = (
        "([text, key]) => discreet.verdictOn(text, {trustedKey: key ?? ''}).then((v) => [v.outcome, v.lines])"
    )
    return browser.evaluate(script, [text, signed_by])


def leaves(data, path=()):
    """Paths to all numbers, texts and truth values of a document."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))
    elif data is not None:
        yield path, data


def edits(text, rng):
    """The document with one value changed and its digest recomputed, once for every value."""
    document = json.loads(text)
    for path, value in leaves(document):
        if path[0] == "digest":
            continue
        for other in changed(value, rng):
            if other == value:
                continue
            altered = copy.deepcopy(document)
            place = altered
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = other
            content = {key: part for key, part in altered.items() if key not in ("digest", "signatures")}
            yield path, other, json.dumps(altered | {"digest": digest(content)})


def changed(value, rng):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        # One release in hundreds changes epsilon by less than the page resolves, which is 0.2 %.
        return [value + 1, value - 1, 0] if value < 100 else [value * 2, value // 2, 0]
    if isinstance(value, float):
        return [value * 2, value / 2]
    return [
        rng.choice(("replace-one", "person", "seed", "float", "hardened", "0" * 64, "", "x")),
        value + "x",
    ]


@needs_chromium
@pytest.mark.parametrize("key", [None, KEY, OTHER], ids=["no key", "signer", "another key"])
def test_certificates_get_the_same_verdict(browser, key):
    signed_by = None if key is None else public_key_of(key)
    for name, certificate in bank().items():
        expected = python_outcome(certificate.to_json(), signed_by)
        found, lines = page_outcome(browser, certificate.to_json(), signed_by)
        if name.startswith("allocation") and expected == "accepted":
            expected = "consistent"
            assert any("no theorem" in text for basis, text in lines if basis == "claimed")
        assert (name, found) == (name, expected), lines


@needs_chromium
def test_several_hundred_edits_get_the_same_verdict(browser):
    rng, compared, outcomes = random.Random(7), 0, set()
    chosen = (
        "hardened",
        "adaptive, wide ledger, signed",
        "poisson",
        "full batch, signed",
        "files",
        "persons",
    )
    for name in chosen:
        text = bank()[name].to_json()
        for path, other, edited in edits(text, rng):
            signed_by = public_key_of(KEY) if "signed" in name else None
            expected, (found, lines) = (
                python_outcome(edited, signed_by),
                page_outcome(browser, edited, signed_by),
            )
            assert found == expected, (name, path, other, lines)
            outcomes.add((found, signed_by is None))
            compared += 1
    assert compared >= 300
    assert outcomes == {("rejected", True), ("consistent", True), ("rejected", False)}


EVENTS = [
    (PoissonSampled(0.01, Gaussian(1.0)) * 1000, 1e-5),
    (PoissonSampled(0.004, Gaussian(0.8)) * 5000, 1e-6),
    (PoissonSampled(0.9, Gaussian(3.0)) * 5, 1e-10),
    (PoissonSampled(0.001, Gaussian(0.5)) * 1, 1e-5),
    (PoissonSampled(0.02, Gaussian(2.0)) * 300 + Gaussian(20.0) * 4, 1e-7),
    (Laplace(20.0) * 30 + ApproximateDP(0.1, 1e-8), 1e-6),
    (Gaussian(4.0) * 10, 1e-5),
    (Gaussian(300.0) * 1, 1e-9),
    (Laplace(4.0) * 3, 0.0),
]


def compare_accountants(browser, event, delta):
    lower, upper = account(event).epsilon_bounds(delta)
    found = browser.evaluate(
        "([text, delta]) => discreet.epsilonOf(discreet.partsOf(discreet.readEvent(discreet.parseJson(text)))"
        ".map(([event, count]) => [event, Number(count)]), 'add-remove', 1, delta)",
        [event.to_json(), delta],
    )
    assert lower * (1 - 1e-9) <= found[1] <= upper * 1.002 + 1e-9
    assert found[0] is None or found[0] <= upper


@needs_chromium
@pytest.mark.parametrize(("event", "delta"), EVENTS)
def test_the_accountant_of_the_page_proves_an_upper_bound(browser, event, delta):
    compare_accountants(browser, event, delta)


@needs_chromium
@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("const mu = Math.sqrt(squares);", "const mu = 0.9 * Math.sqrt(squares);"),
        ("const above = Math.expm1(loss) + q;", "q *= 0.8; const above = Math.expm1(loss) + q;"),
        ("scale * tailMass", "0.8 * scale * tailMass"),
    ],
)
def test_a_wrong_accountant_would_be_noticed(browser, tmp_path, line, broken):
    """The broken twins."""
    assert line in verifier_script()
    path = tmp_path / "twin.html"
    path.write_text(
        verifier_page().replace(line, broken).replace("script-src", "script-src 'unsafe-inline'; x")
    )
    twin = browser.context.browser.new_page()
    twin.goto(path.as_uri())
    noticed = False
    for event, delta in (*EVENTS[:4], EVENTS[6]):
        try:
            compare_accountants(twin, event, delta)
        except AssertionError:
            noticed = True
    assert noticed


@needs_chromium
def test_the_canonical_text_is_that_of_python(browser):
    numbers = [
        0.1,
        1.0,
        -0.0,
        1e-5,
        1e-4,
        1e16,
        1e15,
        123456789.25,
        5e-324,
        1.7976931348623157e308,
        1e22,
        2.5e-7,
    ]
    document = {
        "b": numbers,
        "a": [1, 10**14, True, None],
        "ü\U0001f512": '\x7f\n"\\é\ud7ff',
        "a1": {},
        "A": [],
    }
    text = json.dumps(document)
    assert browser.evaluate("(text) => discreet.canonical(discreet.parseJson(text))", text) == canonical(
        document
    )


@needs_chromium
def test_files_that_are_no_certificates_are_refused(browser):
    for text in (
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"a": 1, "a": 2}',
        '{"x": NaN}',
        "<!doctype html><p>",
        "[" * 1000,
    ):
        assert page_outcome(browser, text)[0] == "rejected", text


@needs_chromium
def test_reports_are_accepted_if_the_whole_page_is_signed(browser):
    report = Report(bank()["adaptive"], "Tumours", cover=Cover(owner="Clinic"), evaluation=None)
    signed = report.signed(KEY).to_html()
    assert page_outcome(browser, signed, public_key_of(KEY))[0] == "accepted"
    assert page_outcome(browser, signed)[0] == "consistent"
    assert page_outcome(browser, report.to_html())[0] == "consistent"
    assert page_outcome(browser, report.to_html(), public_key_of(KEY))[0] == "rejected"
    for before, after in (("Tumours", "Tumors"), ("Clinic", "Klinik"), ("one record", "each person")):
        assert before in signed
        assert page_outcome(browser, signed.replace(before, after), public_key_of(KEY))[0] == "rejected"


@needs_chromium
def test_a_file_is_chosen_and_the_verdict_is_shown(browser, tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"weights")
    certificate = bank()["adaptive"].for_files(tmp_path / "weights.bin").signed(KEY)
    (tmp_path / "certificate.json").write_text(certificate.to_json())
    browser.fill("#key", public_key_of(KEY))
    browser.set_input_files("#files", [tmp_path / "certificate.json", tmp_path / "weights.bin"])
    browser.wait_for_selector(".verdict.accepted")
    assert "weights.bin is the file that it names" in browser.inner_text("#result")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.bin").write_bytes(b"other weights")
    browser.set_input_files("#files", [tmp_path / "certificate.json", tmp_path / "other" / "weights.bin"])
    browser.wait_for_selector(".verdict.rejected")


@needs_chromium
def test_a_report_that_embeds_the_verifier_recomputes_itself(browser, tmp_path):
    path, shown = tmp_path / "report.html", browser.context.browser.new_page()
    text = Report(bank()["adaptive"], "Tumours", self_check=True).to_html()
    path.write_text(text)
    shown.goto(path.as_uri())
    shown.wait_for_selector("#discreet-self-check.done")
    words = shown.inner_text("#discreet-self-check")
    assert "recomputed the guarantee: (1, " in words
    assert "cannot vouch for itself" in words
    path.write_text(text.replace('"randomness": "operating system"', '"randomness": "seed"', 1))
    shown.goto(path.as_uri())
    shown.wait_for_selector("#discreet-self-check.bad")


def test_the_policy_of_the_page_allows_its_own_script_only():
    assert f"script-src 'sha256-{script_hash()}'" in verifier_page()
    assert verifier_page().count("<script>") == 1
    assert "http" not in verifier_script().replace("http-equiv", "")


def test_reports_without_the_verifier_are_as_before():
    text = Report(bank()["adaptive"]).to_html()
    assert "<script>" not in text
    assert "self_check" not in text
