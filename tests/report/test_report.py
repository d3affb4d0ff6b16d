"""The report says what the certificate proves, in three forms, and looks right in a browser."""

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from discreet import (
    Bounds,
    Budget,
    Certificate,
    CertificateRejected,
    InvalidParameter,
    Ledger,
    Recipe,
    account,
)
from discreet.accounting.gaussian import gaussian_mu
from discreet.accounting.power import power_bound
from discreet.certificate import new_signing_key, public_key_of
from discreet.certificate.guarantees import Arithmetic
from discreet.charts import Series, epsilon_scale, line_chart, word_for
from discreet.cli import main
from discreet.events import Gaussian
from discreet.ledger import FixedPlan, GaussianFilter, TruncatedRenyiFilter
from discreet.plan import Plan
from discreet.report import Cover, Report
from discreet.report.blocks import Bullets, CodeBlock, Section, TableBlock, Text
from discreet.report.chapters import SECTIONS
from discreet.report.page import read_page
from support.axe import insist_accessible
from support.browser import needs_chromium, page

BUDGET = Budget(2.0, 1e-6)


@pytest.fixture(scope="module")
def certificate():
    plan = Recipe(records=60_000, batch_size=600, epochs=10, clip_norm=1.0).calibrate(BUDGET)
    with Ledger.in_memory(FixedPlan(plan.event, BUDGET)) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(plan.steps)
        return Certificate.of(ledger, plan)


@pytest.fixture(scope="module")
def report(certificate):
    rows = [
        {"observer": "coordinator", "sees": "all messages", "note": "", "epsilon": 1.00001, "delta": 1e-6},
        {"observer": "owner", "sees": "the records", "note": "it is their data"},
    ]
    observers = {"observers": rows}
    return Report(certificate, "Readmissions <2026>", {"summary": "epsilon is at least 1.7."}, observers)


def filtered(rule):
    procedure = Plan.adaptive("adaptive fit", rule)
    with Ledger.in_memory(rule) as ledger:
        ledger.run(Gaussian(40.0) * 2, procedure.digest()).reserve(2)
        return Certificate.of(ledger, procedure)


def test_the_attack_is_that_of_the_accountant(certificate, report):
    curve = account(certificate.plan.event)
    for alarms, hits in report.facts.roc:
        assert hits == curve.power(alarms)
    assert report.facts.roc[0][1] <= 1e-6 * 1.001  # at no false alarms only delta is left
    assert "at most 2.79%" in report.facts.attack


def test_epsilon_grows_to_the_guarantee(certificate, report):
    steps, epsilons = zip(*report.facts.spending, strict=True)
    assert list(epsilons) == sorted(epsilons)
    assert steps[-1] == certificate.plan.steps
    assert epsilons[-1] == certificate.guarantee.epsilon.upper
    middle = report.facts.spending[12]
    assert middle[1] == account(certificate.plan.stage().charge * int(middle[0])).epsilon(1e-6)


def test_a_filter_promises_its_budget_from_the_start():
    page = Report(filtered(GaussianFilter(BUDGET)))
    gaussian = page.facts
    assert gaussian.spending == ()
    assert "chosen adaptively" in page.to_html()
    assert "Epsilon over training" not in page.to_html()
    general = Report(filtered(TruncatedRenyiFilter(BUDGET, 10.0, 1.0, 1e-7))).facts
    for (alarms, sharp), (_, loose) in zip(gaussian.roc, general.roc, strict=True):
        assert loose == power_bound(2.0, 1e-6, alarms)
        assert sharp <= loose * (1 + 1e-12)


def test_releases_fixed_in_advance_are_said_to_be():
    event = Gaussian(40.0) * 2
    page = Report(filtered(FixedPlan(event, Budget(account(event).epsilon(1e-6), 1e-6)))).to_html()
    assert "fixed in advance" in page
    assert "chosen along the way" not in page


def test_a_distance_of_the_noise_moves_both_rates(certificate):
    hardened = replace(certificate, arithmetic=Arithmetic("hardened", 0.001))
    exact = dict(Report(certificate).facts.roc)
    for alarms, hits in Report(hardened).facts.roc:
        assert hits >= min(1.0, exact[alarms] + 0.001)


def test_an_invalid_certificate_is_called_so(certificate, report):
    low = replace(certificate.guarantee, epsilon=Bounds(0.1, 0.2))
    broken = Report(replace(certificate, guarantee=low))
    assert not broken.facts.consistent
    assert "Not valid" in broken.to_html()
    assert "NOT VALID" in broken.to_markdown()
    for text in (report.to_html(), report.to_markdown()):
        assert "Not verified by this page" in text  # which cannot vouch for itself
        assert "✓" not in text
    assert "Not valid" not in report.to_html()


def test_the_promise_is_the_definition_and_weak_ones_are_called_so(certificate):
    facts = Report(certificate).facts
    assert "at most 7.39 times the probability in the other case, plus 1e-06" in facts.promise
    assert len(facts.cautions) == 1
    assert "Proved for real numbers" in facts.cautions[0]  # for these releases were floats
    hardened = replace(certificate, arithmetic=Arithmetic("hardened", 1e-20))
    assert Report(hardened).facts.cautions == ()
    for budget, word in ((Budget(50.0, 1e-6), "weak"), (Budget(1.0, 1e-3), "Delta is large")):
        weak = Report(filtered(GaussianFilter(budget)))
        assert word in " ".join(weak.facts.cautions)
        assert word in weak.to_html()
        assert word in weak.to_markdown()


def test_a_shared_ledger_is_told():
    rule, own = GaussianFilter(Budget(3.0, 1e-6)), GaussianFilter(Budget(1.0, 1e-6))
    procedure = Plan.adaptive("one of several", own, {"columns": ["age"]})
    with Ledger.in_memory(rule) as ledger:
        ledger.run(Gaussian(40.0) * 2, procedure.digest()).reserve(2)
        facts = Report(Certificate.of(ledger, procedure)).facts
    assert "the guarantee is epsilon 3" in facts.cautions[0]
    assert ("setting: columns", '["age"]') in facts.details


def test_the_three_forms_agree(report, tmp_path):
    for name in ("a.html", "a.md", "a.json"):
        report.save(tmp_path / name)
    html, markdown = (tmp_path / "a.html").read_text(), (tmp_path / "a.md").read_text()
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["facts"]["attack"] == report.facts.attack
    for text in (html, markdown):
        assert report.facts.attack in text
        assert "epsilon is at least 1.7." in text
        assert "all messages" in text
        assert "epsilon at most 1.001 at delta 1e-06" in text
        assert "it is their data" in text
        for item in report.facts.not_covered:
            assert item.replace("'", "&#39;") in text or item in text
    with pytest.raises(InvalidParameter, match=r"\.html, \.md or \.json"):
        report.save(tmp_path / "a.pdf")


class Outside(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href") or tag == "script"]


def test_the_page_is_one_small_file_that_fetches_nothing(report):
    html = report.to_html()
    assert len(html) < 100_000
    assert "Readmissions &lt;2026&gt;" in html  # a title is text, whatever it holds
    parser = Outside()
    parser.feed(html)
    assert parser.found == [
        "application/json",
        "discreet-report",
    ]  # what it carries: data, and nothing that runs
    parser.feed('<script src="x"></script>')
    assert parser.found[2:] == ["x"]


HOSTILE = "</script><script>alert(1)</script> & <b>\"'|`"


def test_the_page_carries_its_certificate_and_is_read_back(report, tmp_path):
    cover = Cover(HOSTILE, HOSTILE, HOSTILE, HOSTILE, "2026-11-16")
    given = replace(report, title=HOSTILE, cover=cover, notes=(HOSTILE,), audit={"summary": HOSTILE})
    given.save(tmp_path / "report.html")
    found = read_page(tmp_path / "report.html")
    assert (found.report, found.same, found.digest) == (given, True, given.digest())
    assert "<script>" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ε ≤ 2", "ε ≤ 1"),
        ("at most 2.79%", "at most 1.79%"),
        ("Readmissions &lt;2026&gt;</h1>", "Readmissions</h1>"),
        ("</body>", "<p>It is safe.</p></body>"),
        ('"lower": ', '"lower":  0'),
        ('"observer": "sees', '"observer": "does not see'),
        ("discreet-report", "another"),
        ("application/json", "text/javascript"),
    ],
)
def test_an_altered_page_is_rejected(report, tmp_path, old, new):
    """The broken twins: one word changed, each of them."""
    text = report.to_html()
    assert old in text or old == '"lower": '
    altered = text.replace(old, new, 1) if old in text else text.replace('"epsilon": [1', '"epsilon": [0', 1)
    assert altered != text
    (tmp_path / "report.html").write_text(altered)
    with pytest.raises(CertificateRejected, match="is rejected"):
        read_page(tmp_path / "report.html")


def test_words_of_other_versions_are_not_believed(report, tmp_path, monkeypatch):
    report.save(tmp_path / "report.html")
    for module in ("report", "page"):
        monkeypatch.setattr(f"discreet.report.{module}.current_versions", lambda: (("discreet", "9"),))
    found = read_page(tmp_path / "report.html")
    assert (found.report, found.same) == (report, False)


def test_the_first_screen_says_whose_it_is_and_asks_for_the_unit(certificate):
    asked = Report(certificate, "T").to_html()
    assert "The owner has not said so yet" in asked
    page = Report(
        certificate, "T", cover=Cover("Ward 3", "beds", "stays", "one stay", "2026-11-16")
    ).to_html()
    start = page[page.index("<body>") : page.index("<h2")]
    for words in (
        "Ward 3",
        "beds",
        "stays",
        "one record is one stay",
        "2026-11-16",
        "Is one record one person?",
    ):
        assert words in start


@pytest.mark.parametrize(
    ("name", "value"),
    [("owner", 3), ("purpose", "a\nb"), ("record", "x" * 301), ("date", "today"), ("date", "")],
)
def test_a_bad_cover_is_refused(name, value):
    with pytest.raises(InvalidParameter, match=name):
        Cover(**{name: value})


def test_several_records_cost_what_the_accountant_says(certificate):
    event = certificate.plan.event
    for one in Report(certificate).facts.several:
        assert one.epsilon.upper == account(event, "add-remove", one.group_size).epsilon(1e-6)
    gaussian = Report(filtered(GaussianFilter(BUDGET))).facts.several
    assert [one.group_size for one in gaussian] == [2, 5, 10]
    mu = gaussian_mu(2.0, GaussianFilter(BUDGET).accounted_delta)
    for one in gaussian:  # a group of k is a release with k times the signal
        assert one.epsilon.upper == pytest.approx(
            account(Gaussian(1 / (mu * one.group_size))).epsilon(1e-6), rel=1e-6
        )


def test_stages_are_told_by_name():
    rule = GaussianFilter(BUDGET)
    procedure = Plan.adaptive("fit", rule)
    with Ledger.in_memory(rule) as ledger:
        ledger.run(Gaussian(40.0), procedure.digest(), name="fit/counts").reserve(1)
        ledger.run(Gaussian(80.0) * 12, procedure.digest(), name="fit/gradients").reserve(12)
        report = Report(Certificate.of(ledger, procedure))
    assert [(one.name, one.releases, one.share) for one in report.facts.stages] == [
        ("counts", 1, 0.25),
        ("gradients", 12, 0.75),
    ]
    for text in (report.to_html(), report.to_markdown()):
        assert "the gradient steps that fit the model" in text
        assert "× Gaussian" not in text


def test_effects_are_coefficients_times_ranges(certificate):
    model = {
        "task": "counts",
        "coefficients": {"age": [0.02], "smoker": [-0.5]},
        "clamped_to": {"age": [0.0, 100.0], "smoker": [0, 1]},
    }
    text = Report(certificate, model=model).to_markdown()
    assert "| age | +2 |" in text
    assert "| smoker | -0.5 |" in text
    several = model | {"coefficients": {"age": [0.1, 0.2]}}
    assert "What the model says" not in Report(certificate, model=several).to_markdown()


def test_a_section_of_your_own_is_shown_in_every_form(certificate, monkeypatch):
    """How another module adds to the report."""
    own = Section(
        "Mine",
        (
            Text("a < b", "caution"),
            TableBlock(("x", "y"), (("1", "2|3"),)),
            CodeBlock("a\nb"),
            Bullets(("c",)),
        ),
    )
    monkeypatch.setattr(
        "discreet.report.report.SECTIONS", (*SECTIONS, lambda report: own, lambda report: None)
    )
    report = Report(certificate)
    assert own in report.sections
    assert '<h2 id="mine">Mine</h2>' in report.to_html()
    assert "a &lt; b" in report.to_html()
    assert "2\\|3" in report.to_markdown()


@pytest.mark.parametrize("epsilon", [1e-12, 0.01, 1.0, 99.0, 1e9])
def test_the_scale_has_room_for_every_epsilon(epsilon):
    drawn = epsilon_scale(epsilon)
    x = float(drawn.split('class="pointer" d="M')[1].split()[0])
    assert 0 <= x <= 640
    assert word_for(epsilon) in drawn


@pytest.mark.parametrize(
    ("name", "value"), [("title", ""), ("title", 3), ("certificate", "c.json"), ("cover", "x")]
)
def test_bad_input_is_refused(certificate, name, value):
    with pytest.raises(InvalidParameter, match=name):
        Report(**({"certificate": certificate} | {name: value}))


def test_charts_are_drawn_to_scale():
    chart = line_chart("T", [Series("a", ((0.0, 0.0), (50.0, 1.0), (100.0, 2.0)))], "x", "y")
    path = next(part for part in chart.split("<path") if "line-1" in part)
    points = [tuple(map(float, point.split())) for point in path.split('d="M')[1].split('"')[0].split("L")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y2 < y0


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser(report, tmp_path, dark):
    report.save(tmp_path / "report.html")
    with page(dark=dark, width=390) as shown:  # a phone
        requests = []
        shown.on("request", lambda request: requests.append(request.url))
        shown.goto((tmp_path / "report.html").as_uri())
        assert len(requests) == 1
        assert shown.title() == "Readmissions <2026>"
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        ink, paper = (
            shown.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
        )
        assert contrast(ink, paper) > 7
        assert (brightness(paper) < 0.2) is dark
        assert shown.get_by_role("img", name="What the best attack can do").bounding_box()["width"] > 300
        assert shown.get_by_role("heading", level=2).count() >= 7
        insist_accessible(shown)


@needs_chromium
def test_it_prints_on_a4(report, tmp_path):
    report.save(tmp_path / "report.html")
    with page(width=718) as shown:  # an A4 page less its margins, at 96 dots an inch
        shown.emulate_media(media="print")
        shown.goto((tmp_path / "report.html").as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= 718
        assert shown.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def brightness(colour):
    """Relative luminance of an rgb(...) colour (WCAG 2)."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    high, low = sorted((brightness(first), brightness(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_command_verifies_a_page_and_what_was_signed(certificate, tmp_path):
    key = new_signing_key(tmp_path / "key.pem")
    place = str(tmp_path / "report.html")
    Report(certificate.signed(key), "Signed").save(place)
    words = ["verify", place]
    assert CliRunner().invoke(main, words).exit_code == 3  # consistent; nobody vouches for it
    Report(certificate, "Signed").signed(key).save(place)
    done = CliRunner().invoke(main, [*words, "--signed-by", public_key_of(key)])
    assert done.exit_code == 0
    assert "letter by letter" in done.output
    other = new_signing_key(tmp_path / "other.pem")
    assert CliRunner().invoke(main, [*words, "--signed-by", public_key_of(other)]).exit_code == 1
    (tmp_path / "report.html").write_text("<!doctype html><p>Trust me.")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "carries no whole report" in done.output


LIGHT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
from discreet.cli import main
main(sys.argv[1:])
"""


def light(*words):
    """The command in an installation without extras."""
    absent = {
        "numba",
        "llvmlite",
        "sklearn",
        "torch",
        "safetensors",
        "nvflare",
        "matplotlib",
        "starlette",
        "pandas",
    }
    command = [sys.executable, "-c", LIGHT.format(absent=absent), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_light_installation_verifies_and_says_what_it_cannot(certificate, tmp_path):
    Report(certificate).save(tmp_path / "report.html")
    done = light("verify", tmp_path / "report.html")
    assert done.returncode == 3, done.stderr
    assert "letter by letter" in done.stdout
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    done = light("predict", tmp_path, tmp_path / "t.csv")
    assert done.returncode == 1
    assert "install 'discreet[tables]' from your organisation's package index" in done.stderr


def test_without_a_compiler_nothing_is_clipped_or_drawn():
    """Slow loops in its place would only seem to work."""
    words = "import sys; sys.modules['numba'] = None; from discreet.core.randomness import system_stream as s; s().{}"
    for draw in ("normal((1000,))", "discrete_gaussian(3, (1000,))"):
        done = subprocess.run([sys.executable, "-c", words.format(draw)], capture_output=True, text=True)
        assert "MissingDependency" in done.stderr
