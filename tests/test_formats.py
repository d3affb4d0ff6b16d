"""What docs/formats.md promises: a file that was written in a format is read as long as the format is."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

import discreet as dp
from discreet.errors import InvalidParameter
from discreet.ledger import Ledger
from discreet.ledger.ledger_state import Statement
from discreet.parties import Study

FILES = Path(__file__).parent / "golden" / "formats"
PAGE = Path(__file__).parent.parent / "docs" / "formats.md"
SOURCE = Path(dp.__file__).parent
KEY = bytes(range(32))  # of the ledger among the files


def text(name):
    return (FILES / name).read_text()


def test_an_event_is_read_as_it_was_written():
    event = dp.Event.from_json(text("event.json"))
    assert event.to_json() + "\n" == text("event.json")


def test_a_plan_of_format_1():
    plan = dp.Plan.load(FILES / "plan-1.json")
    assert plan.to_json() + "\n" == text("plan-1.json")
    assert plan.steps == 100


def test_a_certificate_of_format_1_against_the_entries_of_its_ledger():
    certificate = dp.Certificate.load(FILES / "certificate-1.json")
    entries = text("entries-2.jsonl").splitlines()
    found = certificate.verify(entries)
    assert (found.outcome, len(found.claimed)) == ("consistent", 6)  # anybody can write entries
    assert certificate.to_json() + "\n" == text("certificate-1.json")
    head = hashlib.sha256(text("entries-2.jsonl").encode()).hexdigest()
    assert Statement.of_entries(entries).anchor.hash == head  # anybody can compute it, without this library


def test_a_ledger_of_format_2(tmp_path):
    path = shutil.copy(FILES / "ledger-2.sqlite", tmp_path / "study.ledger")
    with Ledger.open(path, key=KEY) as ledger:
        assert list(ledger.entries()) == text("entries-2.jsonl").splitlines()
        (run,) = ledger.statement().runs
        assert run.taken == (40,)
        found = dp.Certificate.load(FILES / "certificate-1.json").verify(ledger)
        # the ledger knows what was spent, and nothing of randomness or arithmetic
        assert (found.outcome, len(found.claimed)) == ("consistent", 4)


def test_a_study_of_format_2():
    study = Study.load(FILES / "study-2.toml")
    assert study.digest() == "caa1b2186176da07a69b21bcb4b0f596b5f8562c6c9962405898aac48a049db1"


@pytest.mark.parametrize("name", ["plan-1.json", "certificate-1.json"])
def test_a_format_to_come_is_refused_by_name(name):
    kind = {"plan-1.json": dp.Plan, "certificate-1.json": dp.Certificate}[name]
    later = re.sub(r'("format": "discreet \w+) \d"', r'\1 9"', text(name), count=1)
    assert later != text(name)
    with pytest.raises(InvalidParameter):
        kind.from_json(later)


def test_the_page_lists_every_format():
    """Formats are texts such as ``discreet plan 1``, in the module that reads them."""
    pattern = re.compile(r'"(discreet (?:[a-z]+ )+\d)"')
    named = {format for path in SOURCE.rglob("*.py") for format in pattern.findall(path.read_text())}
    assert len(named) > 5
    assert {format for format in named if f"`{format}`" not in PAGE.read_text()} == set()
