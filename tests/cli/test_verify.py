"""``discreet verify`` ends with 0 only if the ledger or a trusted key vouches for everything that was not computed.

Two banks of edits. Each edit is what somebody does who has the file, knows how digests are computed, and has neither
the ledger's key nor the signing key. None may end with exit status 0; the files as they were issued must.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

import discreet
from discreet import Budget, Certificate, Gaussian, Ledger
from discreet.accounting.attack_risks import Membership
from discreet.certificate import Arithmetic, new_signing_key, public_key_of
from discreet.certificate.certificate_views import CHOSEN
from discreet.certificate.verification import file_digest
from discreet.cli import main
from discreet.errors import InvalidParameter, LedgerCorrupted, LedgerUnavailable
from discreet.files import digest
from discreet.ledger import GaussianFilter, Till
from discreet.ledger.ledger_state import LedgerState, Statement
from discreet.linear import PrivateLogisticRegression
from discreet.plan import Plan
from discreet.report import Cover, Report
from discreet.report.page import OPEN_SIGNATURES
from discreet.report.report import CLOSE, END

BUDGET = Budget(3.0, 1e-6)


class World(NamedTuple):
    """A folder, the ledger and the signing key in it, and what was certified."""

    folder: Path
    ledger: Path
    key: Any
    certificates: dict[str, Certificate]


def verdict(path, *options):
    """The exit status of ``discreet verify``, and what it says."""
    done = CliRunner().invoke(main, ["verify", str(path), *map(str, options), "--json"])
    return done.exit_code, json.loads(done.stdout) if done.exit_code in (0, 3) else {}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A ledger with four procedures and their certificates, and a key that has signed them."""
    folder = tmp_path_factory.mktemp("world")
    key = new_signing_key(folder / "key.pem")
    (folder / "weights.bin").write_bytes(b"weights")
    certificates = {}
    with Ledger.create(folder / "budget.ledger", GaussianFilter(BUDGET)) as ledger:
        for name, distance, trusted in (
            ("hardened", 1e-12, True),
            ("float", 0.0, True),
            ("seeded", 0.0, False),
        ):
            plan = Plan.adaptive("fit", GaussianFilter(Budget(0.5, 1e-6)), {"run": name, "clip": 1.0})
            Till.open(ledger, plan).pay(Gaussian(40.0), name=name, distance=distance)
            certificates[name] = Certificate.of(
                ledger,
                plan,
                arithmetic=Arithmetic("hardened", distance) if distance else Arithmetic(),
                trusted=trusted,
                not_covered=(CHOSEN,),
                checks=("every example was compared with itself alone",),
            )
        certificates["bound"] = certificates["hardened"].for_files(folder / "weights.bin", ledger=ledger)
    return World(folder, folder / "budget.ledger", key, certificates)


def resealed(certificate, **changed):
    """The certificate's JSON with values replaced and the digest made good; None takes a key out."""
    data = json.loads(certificate.to_json()) | changed
    content = {name: value for name, value in data.items() if value is not None}
    content = {name: value for name, value in content.items() if name not in ("digest", "signatures")}
    more = "files" in content or "checks" in content
    content["format"] = f"discreet certificate {2 if more else 1}"
    return json.dumps(content | {"digest": digest(content), "signatures": []})


def epsilon(certificate, lower=None, upper=None, **more):
    """The certificate's guarantee with other numbers."""
    data = json.loads(certificate.to_json())["guarantee"] | more
    given = data["epsilon"]
    data["epsilon"] = [given[0] if lower is None else lower, given[1] if upper is None else upper]
    return data


def of(certificate, name):
    return json.loads(certificate.to_json())[name]


def with_epsilon(rule, epsilon):
    """A rule whose budget has another epsilon."""
    return rule | {"budget": rule["budget"] | {"epsilon": epsilon}}


def with_fewer_charges(ledger):
    """The statement of a ledger in which the last run has taken nothing."""
    *runs, last = ledger["runs"]
    return ledger | {"runs": [*runs, last | {"taken": [0] * len(last["taken"])}]}


EDITS = {
    "a seed is called the operating system": ("seeded", lambda c: {"randomness": "operating system"}),
    "floats are called hardened": (
        "float",
        lambda c: {"arithmetic": {"kind": "hardened", "distance": 1e-300}},
    ),
    "floats are called hardened, delta raised": (
        "float",
        lambda c: {
            "arithmetic": {"kind": "hardened", "distance": 1e-20},
            "guarantee": epsilon(c, delta=1.1e-6),
            "together": of(c, "together") | {"delta": 1.1e-6},
        },
    ),
    "hardened is called float": ("hardened", lambda c: {"arithmetic": {"kind": "float", "distance": 0.0}}),
    "a smaller distance": ("hardened", lambda c: {"arithmetic": {"kind": "hardened", "distance": 1e-15}}),
    "chosen by scores is removed": (
        "hardened",
        lambda c: {"not_covered": [text for text in c.not_covered if text != CHOSEN]},
    ),
    "something else is not covered": ("float", lambda c: {"not_covered": [*c.not_covered, "rain"]}),
    "not covered in another order": ("float", lambda c: {"not_covered": list(c.not_covered)[::-1]}),
    "what no run covers is hidden": ("float", lambda c: {"not_covered": list(c.not_covered)[1:]}),
    "invented checks": ("hardened", lambda c: {"checks": [*c.checks, "a proof assistant agreed"]}),
    "other checks": ("hardened", lambda c: {"checks": ["everything was examined"]}),
    "checks removed": ("hardened", lambda c: {"checks": None}),
    "another version": ("float", lambda c: {"versions": of(c, "versions") | {"discreet": "9.9.9"}}),
    "another Python": ("float", lambda c: {"versions": of(c, "versions") | {"python": "2.7"}}),
    "another package": ("float", lambda c: {"versions": of(c, "versions") | {"prover": "1"}}),
    "a weaker epsilon": ("float", lambda c: {"guarantee": epsilon(c, upper=100.0)}),
    "a smaller lower bound": ("float", lambda c: {"guarantee": epsilon(c, lower=0.0)}),
    "a larger delta": ("float", lambda c: {"guarantee": epsilon(c, delta=1e-3)}),
    "a smaller epsilon": ("float", lambda c: {"guarantee": epsilon(c, upper=0.1)}),
    "a smaller delta": ("float", lambda c: {"guarantee": epsilon(c, delta=1e-9)}),
    "another observer": ("float", lambda c: {"guarantee": epsilon(c, observer="sees the model")}),
    "people, not records": ("float", lambda c: {"guarantee": epsilon(c, unit="person")}),
    "more for all runs": ("float", lambda c: {"together": of(c, "together") | {"delta": 1e-3}}),
    "another setting": (
        "float",
        lambda c: {"procedure": of(c, "procedure") | {"settings": {"run": "float", "clip": 9.0}}},
    ),
    "another head": (
        "float",
        lambda c: {"ledger": of(c, "ledger") | {"anchor": {"sequence": 9, "hash": "0" * 64}}},
    ),
    "people in all runs": ("float", lambda c: {"together": of(c, "together") | {"unit": "person"}}),
    "another budget of the procedure": (
        "float",
        lambda c: {"procedure": of(c, "procedure") | {"rule": with_epsilon(of(c, "procedure")["rule"], 0.1)}},
    ),
    "the run of somebody else is left out": (
        "float",
        lambda c: {"ledger": of(c, "ledger") | {"runs": of(c, "ledger")["runs"][1:]}},
    ),
    "fewer charges": ("float", lambda c: {"ledger": with_fewer_charges(of(c, "ledger"))}),
    "the source of randomness is not named": ("float", lambda c: {"randomness": None}),
    "files of somebody else": ("hardened", lambda c: {"files": {"weights.bin": "0" * 64}}),
    "other weights": ("bound", lambda c: {"files": {"weights.bin": "0" * 64}}),
    "one more file": ("bound", lambda c: {"files": of(c, "files") | {"more.bin": "0" * 64}}),
    "another name": ("bound", lambda c: {"files": {"other.bin": dict(c.files)["weights.bin"]}}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_certificate_never_passes_as_fact(world, tmp_path, edit):
    name, change = EDITS[edit]
    path = tmp_path / "certificate.json"
    path.write_text(resealed(world.certificates[name], **change(world.certificates[name])))
    with Ledger.open(world.ledger) as book:
        (tmp_path / "entries").write_text("\n".join(book.entries()))
    for options in (("--ledger", world.ledger), ("--entries", tmp_path / "entries")):
        status, said = verdict(path, *options)
        assert status in (1, 3)
        assert status == 1 or said["claimed"]
        assert options[0] == "--ledger" or "in the ledger: " not in " ".join(said.get("findings", ()))
    assert verdict(path, "--signed-by", public_key_of(world.key))[0] == 1


@pytest.mark.parametrize("name", ["hardened", "float", "bound"])
def test_the_certificate_as_it_was_issued_is_accepted(world, tmp_path, name):
    """The twin of the bank: the same rewriting, with nothing changed."""
    path = tmp_path / "certificate.json"
    path.write_text(resealed(world.certificates[name]))
    status, said = verdict(path, "--ledger", world.ledger)
    assert (status, said["claimed"]) == (0, [])
    assert verdict(path)[0] == 3
    world.certificates[name].signed(world.key).save(path)
    status, said = verdict(path, "--signed-by", public_key_of(world.key))
    assert (status, said["claimed"]) == (0, [])
    assert any(line.startswith("signed: made with discreet ") for line in said["findings"])
    assert said["versions"] == dict(world.certificates[name].versions)
    assert (
        said["versions"]["discreet"] == discreet.__version__ in CliRunner().invoke(main, ["--version"]).output
    )


def test_a_ledger_that_knows_the_certificate_without_its_files_vouches_for_the_rest(world):
    unknown = world.certificates["hardened"].for_files(world.folder / "key.pem")
    with Ledger.open(world.ledger) as book:
        found = unknown.verify(book)
    assert found.claimed == ("it is for the files key.pem",)
    assert found.headline == "consistent; 1 line is only claimed, and nobody vouches for it"


def test_a_ledger_without_such_entries_vouches_for_what_was_spent_only(world, monkeypatch):
    """As those of 0.1.0: their certificates are still read, and are called what they are."""
    with Ledger.open(world.ledger) as book:
        entries = [entry for entry in book.entries() if not entry.startswith('["issued"')]
    plan = world.certificates["float"].plan
    statement = Statement.of_entries(entries)
    certificate = replace(world.certificates["float"], ledger=statement)
    with Ledger.in_memory(GaussianFilter(BUDGET)) as old:
        monkeypatch.setattr(old, "entries", lambda: entries)
        found = certificate.verify(old)
    assert found.outcome == "consistent"
    assert len(found.claimed) == 5
    assert f"in the ledger: procedure {plan.digest()[:12]}" in str(found)
    copied = certificate.verify(entries)
    assert len(copied.claimed) == 7
    assert "in the ledger" not in str(copied)


class Invented(NamedTuple):
    """A certificate and a page of a fit that never happened, under a ledger that somebody made up."""

    certificate: Path
    page: Path
    entries: Path
    ledger: Path


@pytest.fixture(scope="module")
def invented(tmp_path_factory, world):
    folder = tmp_path_factory.mktemp("invented")
    plan = Plan.adaptive("fit", GaussianFilter(Budget(0.5, 1e-6)), {"run": "invented"})
    with Ledger.create(folder / "made-up.ledger", GaussianFilter(BUDGET)) as ledger:
        Till.open(ledger, plan).pay(Gaussian(40.0), name="invented", distance=1e-12)
        certificate = Certificate.of(ledger, plan, arithmetic=Arithmetic("hardened", 1e-12))
        certificate = certificate.for_files(world.folder / "weights.bin", ledger=ledger)
        report = Report(certificate, "Approved", evaluation=INVENTED)
        ledger.issue("report", report.digest())
        (folder / "entries").write_text("\n".join(ledger.entries()))
    certificate.save(folder / "certificate.json")
    report.save(folder / "report.html")
    return Invented(
        folder / "certificate.json", folder / "report.html", folder / "entries", folder / "made-up.ledger"
    )


@pytest.mark.parametrize("what", ["certificate", "page"])
def test_made_up_entries_vouch_for_nothing(world, invented, what):
    """The twin: as a ledger, which only its owner opens, the same entries vouch for everything."""
    path = getattr(invented, what)
    status, said = verdict(path, "--entries", invented.entries)
    assert status == 3
    assert not any("in the ledger" in line.partition(":")[0] for line in said["findings"])
    alone = verdict(path)[1]["claimed"]
    assert set(alone) < set(said["claimed"])
    assert verdict(path, "--ledger", invented.ledger)[0] == 0
    assert verdict(path, "--ledger", world.ledger)[0] == 1


def test_a_signature_covers_the_entries_up_to_its_anchor_and_none_after_it(world, tmp_path):
    certificate = world.certificates["float"].signed(world.key)
    certificate.save(tmp_path / "certificate.json")
    with Ledger.open(world.ledger) as book:
        entries, count = book.entries(), certificate.ledger.anchor.sequence + 1
    options = ("--signed-by", public_key_of(world.key), "--entries", tmp_path / "entries")
    (tmp_path / "entries").write_text("\n".join(entries[:count]))
    assert verdict(tmp_path / "certificate.json", *options)[0] == 0
    (tmp_path / "entries").write_text("\n".join(entries))
    status, said = verdict(tmp_path / "certificate.json", *options)
    claim = "the ledger went on by 3 entries and 0 releases of this procedure"
    assert (status, said["claimed"]) == (3, [claim])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one ledger."""
    place = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    with Ledger.create(place / "budget.ledger", GaussianFilter(BUDGET)):
        pass
    for name, y in (("honest", x[:, 0] > 0), ("other", x[:, 1] > 0)):
        model = PrivateLogisticRegression(
            epsilon=1.0, delta=1e-6, classes=(0, 1), bounds=(-1, 1), ledger=place / "budget.ledger"
        )
        model.fit(x, y.astype(int)).save(place / name)
    return place


def test_weights_swapped_with_a_model_json_made_to_match(folders, tmp_path):
    ledger = folders / "budget.ledger"
    for name in ("honest", "other"):
        status, said = verdict(folders / name, "--ledger", ledger)
        assert (status, said["claimed"]) == (0, []), said
    swapped = tmp_path / "swapped"
    shutil.copytree(folders / "honest", swapped)
    for name in ("weights.safetensors", "model.json"):
        shutil.copy(folders / "other" / name, swapped / name)
    assert verdict(swapped, "--ledger", ledger)[0] == 1
    honest = Certificate.load(folders / "honest" / "certificate.json")
    digests = {name: file_digest(swapped / name) for name, _ in honest.files}
    (swapped / "certificate.json").write_text(resealed(honest, files=digests))
    status, said = verdict(swapped, "--ledger", ledger)
    assert (status, said["claimed"]) == (3, ["it is for the files model.json, weights.safetensors"])


EVALUATION = {
    "table": [{"name": "AUC", "cells": ["0.71", "0.68", "0.74"]}],
    "confidence": 0.9,
    "unit": "record",
    "guarantee": "(0.5, 1e-06)-differentially private for one record",
    "notes": [],
    "overall": {"calibration": []},
}
INVENTED = EVALUATION | {
    "table": [{"name": "AUC", "cells": ["0.999", "0.998", "1"]}],
    "guarantee": "(0.001, 0)-differentially private for one record",
}
MODEL = {"task": "counts", "coefficients": {"age": [0.02]}, "clamped_to": {"age": [0.0, 100.0]}}
OBSERVERS = {"observers": [{"observer": "coordinator", "sees": "all", "epsilon": 1.0, "delta": 1e-6}]}


@pytest.fixture(scope="module")
def honest(world):
    return Report(
        world.certificates["bound"].signed(world.key),
        "Readmissions",
        {"summary": "epsilon is at least 0.1."},
        OBSERVERS,
        ("age: about 3% are missing",),
        Cover("Ward 3", "beds", "stays", "one stay", "2026-11-16"),
        MODEL,
        EVALUATION,
    )


PAGES = {
    "an invented evaluation": {"evaluation": INVENTED},
    "no evaluation": {"evaluation": None},
    "another guarantee of the evaluation": {"evaluation": EVALUATION | {"guarantee": "(0.001, 0)"}},
    "another note of the evaluation": {"evaluation": EVALUATION | {"notes": ["It is perfect."]}},
    "another model": {"model": MODEL | {"coefficients": {"age": [-5.0]}}},
    "no model": {"model": None},
    "an invented note": {"notes": ("the table was examined by an auditor",)},
    "no notes": {"notes": ()},
    "another owner": {"cover": Cover("Somebody", "beds", "stays", "one stay", "2026-11-16")},
    "another purpose": {"cover": Cover("Ward 3", "weapons", "stays", "one stay", "2026-11-16")},
    "another data set": {"cover": Cover("Ward 3", "beds", "census", "one stay", "2026-11-16")},
    "another record": {"cover": Cover("Ward 3", "beds", "stays", "one person", "2026-11-16")},
    "another date": {"cover": Cover("Ward 3", "beds", "stays", "one stay", "2020-01-01")},
    "no cover": {"cover": Cover(date="2026-11-16")},
    "another title": {"title": "Approved by the privacy officer"},
    "an invented audit": {"audit": {"summary": "Nothing was found."}},
    "no audit": {"audit": None},
    "other observers": {"observers": {"observers": [OBSERVERS["observers"][0] | {"epsilon": 0.01}]}},
    "no observers": {"observers": None},
    "an invented risk": {"risks": (Membership(0.5, what="a coin"),)},
    "another certificate of the ledger": {"certificate": "float"},
}


def edited_page(world, honest, edit):
    """The report with one edit; certificates are named by their key in the world."""
    changed = dict(PAGES[edit])
    if "certificate" in changed:
        changed["certificate"] = world.certificates[changed["certificate"]].signed(world.key)
    return replace(honest, **changed)


def statuses(path, world):
    """The exit status with the ledger, with the key, and with both."""
    trusted = ("--signed-by", public_key_of(world.key))
    return [
        verdict(path, *options)[0]
        for options in (("--ledger", world.ledger), trusted, (*trusted, "--ledger", world.ledger))
    ]


@pytest.mark.parametrize("edit", PAGES)
def test_an_edited_report_never_passes_as_fact(world, honest, tmp_path, edit):
    """Around an honest certificate, which the key has signed and the ledger knows; and with a signature pasted."""
    edited = edited_page(world, honest, edit)
    edited.save(tmp_path / "report.html")
    assert statuses(tmp_path / "report.html", world) == [3, 3, 3]
    pasted = replace(edited, signatures=honest.signed(world.key).signatures)
    pasted.save(tmp_path / "report.html")
    assert verdict(tmp_path / "report.html", "--signed-by", public_key_of(world.key))[0] == 1


def test_a_report_that_was_signed_or_issued_as_a_whole_is_accepted(world, honest, tmp_path):
    honest.signed(world.key).save(tmp_path / "report.html")
    assert statuses(tmp_path / "report.html", world) == [3, 0, 0]
    copy = tmp_path / "copy.ledger"
    for path in (world.folder / "budget.ledger", world.folder / "budget.ledger.key"):
        shutil.copy(path, tmp_path / path.name.replace("budget", "copy"))
    with Ledger.open(copy) as book:
        book.issue("report", honest.digest())
    honest.save(tmp_path / "report.html")
    assert verdict(tmp_path / "report.html", "--ledger", copy)[0] == 0
    replace(honest, title="Other").save(tmp_path / "report.html")
    assert verdict(tmp_path / "report.html", "--ledger", copy)[0] == 3
    unsigned = Report(replace(honest.certificate, signatures=()), "Signed as a whole").signed(world.key)
    unsigned.save(tmp_path / "report.html")
    assert verdict(tmp_path / "report.html", "--signed-by", public_key_of(world.key))[0] == 0


def test_words_typed_into_a_page_that_pretends_another_version(world, honest, tmp_path):
    """Words of other versions are not compared, so they are claimed, unless the signature covers them."""
    text = honest.signed(world.key).to_html()
    version = f'"discreet": "{dict(honest.certificate.versions)["discreet"]}"'
    old = text.replace(version, '"discreet": "0.0.9"', 1)  # in what the page carries, beside the certificate
    assert old != text
    path = tmp_path / "report.html"
    path.write_text(old)
    assert statuses(path, world) == [1, 1, 1]  # the signature is of another page
    lines = old.splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(OPEN_SIGNATURES)))
    assert statuses(path, world) == [3, 3, 3]
    assert "not compared" in " ".join(verdict(path)[1]["claimed"])


def test_the_signature_line_has_one_place(world, honest, tmp_path):
    """Elsewhere, for instance within an attribute, it could hide words from a reader."""
    text = honest.signed(world.key).to_html()
    body, _, line = text.removesuffix(END).rpartition("\n")
    assert line.startswith(OPEN_SIGNATURES)
    assert line.endswith(CLOSE)
    path = tmp_path / "report.html"
    for moved in (
        body.replace("<main>", f"{line}\n<main>", 1) + END,
        body.replace('class="verdict"', f"class='{line}'", 1) + END,
        f"{body}\n{line}\n<p>Trust me.</p>{END}",
        f"{body}\n{line}{END}\n<p>Trust me.</p>",
        f"{body}\n{line}\n{line}{END}",
    ):
        path.write_text(moved)
        assert statuses(path, world) == [1, 1, 1]
    path.write_text(text + "\n")
    assert statuses(path, world) == [3, 0, 0]


def test_the_report_command_signs_and_issues_the_page(folders, tmp_path):
    key = new_signing_key(tmp_path / "key.pem")
    ledger, page = folders / "budget.ledger", tmp_path / "report.html"

    def report(*options):
        words = ["report", str(folders / "honest"), "--html", str(page), "--overwrite", *map(str, options)]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output

    def both():
        trusted = verdict(page, "--signed-by", public_key_of(key))[0]
        return trusted, verdict(page, "--ledger", ledger)[0]

    report("--title", "One")
    assert both() == (1, 3)
    report("--title", "One", "--sign-with", tmp_path / "key.pem")
    assert both() == (0, 3)
    report("--title", "One", "--ledger", ledger)
    assert both() == (1, 0)
    report("--title", "Two", "--ledger", ledger, "--sign-with", tmp_path / "key.pem")
    assert both() == (0, 0)


@pytest.mark.parametrize("option", ["--sign-with", "--ledger"])
def test_only_a_page_can_be_vouched_for(folders, tmp_path, option):
    words = ["report", str(folders / "honest"), "--markdown", str(tmp_path / "r.md"), option, "x"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "goes with --html" in done.output) == (2, True)
    assert not (tmp_path / "r.md").exists()


def test_a_ledger_does_not_vouch_for_a_report_of_another_ledger(world, folders, tmp_path):
    words = [
        "report",
        str(folders / "honest"),
        "--html",
        str(tmp_path / "r.html"),
        "--ledger",
        str(world.ledger),
    ]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "is rejected" in done.output) == (1, True)
    assert not (tmp_path / "r.html").exists()


def test_issuing_costs_nothing_and_is_written_once(world, tmp_path):
    with Ledger.create(tmp_path / "a.ledger", GaussianFilter(BUDGET)) as ledger:
        plan = Plan.adaptive("fit", GaussianFilter(BUDGET))
        Till.open(ledger, plan).pay(Gaussian(40.0))
        before, head = ledger.guarantee(), ledger.anchor()
        first = Certificate.of(ledger, plan)
        assert Certificate.of(ledger, plan) == first  # issuing moves the head, not what a certificate says
        assert ledger.entries()[head.sequence + 1 :] == [f'["issued","certificate","{first.digest()}"]']
        assert ledger.guarantee() == before
        for kind, value in (("certificate", "x"), ("letter", "0" * 64), (None, "0" * 64)):
            with pytest.raises(InvalidParameter):
                ledger.issue(kind, value)
        entries = ledger.entries()
    with Ledger.open(tmp_path / "a.ledger", anchor=head) as ledger:  # read anew, from the anchor on
        assert ledger.entries() == entries
        ledger.issue("report", "1" * 64)
        Till.open(ledger, plan).pay(Gaussian(40.0), name="again")
        second = Certificate.of(ledger, plan)
        assert first.verify(ledger).vouched
        assert second.verify(ledger).vouched
    for wrong in ('["issued","letter","' + "0" * 64 + '"]', '["issued","report","x"]', '["issued"]'):
        with pytest.raises(LedgerCorrupted):
            LedgerState().follow([*entries, wrong])
    with pytest.raises(LedgerCorrupted):
        LedgerState().follow(['["issued","report","' + "0" * 64 + '"]'])


def test_a_ledger_that_cannot_be_written_to_does_not_cost_the_certificate(monkeypatch, tmp_path):
    def full(self, kind, digest):
        raise LedgerUnavailable("disk full")

    with Ledger.in_memory(GaussianFilter(BUDGET)) as ledger:
        plan = Plan.adaptive("fit", GaussianFilter(BUDGET))
        Till.open(ledger, plan).pay(Gaussian(40.0))
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "issue", full)
            certificate = Certificate.of(ledger, plan)
        assert certificate.verify(ledger).outcome == "consistent"
        assert Certificate.of(ledger, plan).verify(ledger).outcome == "accepted"


def test_every_edit_of_the_bank_changes_something(world, honest):
    for name, change in EDITS.values():
        certificate = world.certificates[name]
        assert json.loads(resealed(certificate, **change(certificate)))["digest"] != certificate.digest()
    for edit in PAGES:
        assert edited_page(world, honest, edit).digest() != honest.digest()
    assert len(EDITS) >= 32
    assert len(PAGES) >= 20
