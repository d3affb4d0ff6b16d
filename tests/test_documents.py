"""Every snippet of the README and the documentation is run, and prints what it says."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_snippets_print_what_they_say(document):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(document), module_relative=False, optionflags=flags)
    assert result.failed == 0


def test_the_documents_hold_snippets():
    parser = doctest.DocTestParser()
    counts = {path.name: len(parser.get_examples(path.read_text())) for path in DOCUMENTS}
    assert counts["accounting.md"] >= 10
    assert counts["README.md"] >= 5
