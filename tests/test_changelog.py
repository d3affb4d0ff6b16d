"""The changelog: one dated section per version, the newest first, in short bullets."""

import re
from pathlib import Path

import discreet

TEXT = (Path(__file__).parent.parent / "CHANGELOG.md").read_text()
SECTIONS = {"Guarantees", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
MOST_WORDS = 40


def bullets(text):
    return [" ".join(found.split()) for found in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)]


def too_long(text):
    return [bullet for bullet in bullets(text) if len(bullet.split()) > MOST_WORDS]


def test_versions_are_dated_and_the_newest_is_this_one():
    versions = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", version) for version in versions)
    assert versions[0].startswith(f"{discreet.__version__} - ")
    assert set(re.findall(r"^### (.*)$", TEXT, re.MULTILINE)) <= SECTIONS


def test_bullets_are_short():
    assert len(bullets(TEXT)) > 40
    assert too_long(TEXT) == []
    assert too_long("- " + "word " * 20 + "\n  " + "word " * 21) != []
