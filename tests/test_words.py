"""Words that code and docstrings replace by the terms of the papers may only become rarer.

Each ceiling is the number of uses when it was last lowered. If a rename lowers a count, run this file as a program
and copy the new numbers::

    python tests/test_words.py

To mend a failure, choose the term of the papers (``CONTRIBUTING.md``, *Writing*); do not raise a ceiling.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from metrics import Module, Package

IN_IDENTIFIERS = {
    "aim": 1,
    "anchor": 15,
    "ballot": 0,
    "ballots": 0,
    "bare": 1,
    "buy": 0,
    "census": 0,
    "course": 0,
    "crossing": 4,
    "crossings": 3,
    "door": 3,
    "doors": 0,
    "ear": 0,
    "elsewhere": 6,
    "face": 2,
    "faces": 2,
    "farthest": 8,
    "found": 180,
    "habit": 0,
    "homes": 2,
    "house": 0,
    "insist": 19,
    "kept": 54,
    "knock": 0,
    "known": 107,
    "landmark": 0,
    "landmarks": 0,
    "law": 5,
    "laws": 0,
    "leg": 0,
    "liar": 0,
    "liars": 0,
    "lies": 2,
    "looks": 1,
    "made": 30,
    "nobody": 2,
    "orderly": 0,
    "people": 39,
    "promises": 0,
    "purchase": 0,
    "quiet": 4,
    "reach": 32,
    "roll": 1,
    "room": 33,
    "rooms": 0,
    "scout": 0,
    "shelf": 4,
    "silence": 0,
    "silently": 0,
    "spool": 0,
    "steady": 4,
    "steering": 0,
    "strength": 10,
    "tally": 0,
    "ticket": 1,
    "tickets": 1,
    "till": 14,
    "told": 38,
    "wanted": 28,
    "watched": 2,
    "wealth": 0,
    "whoever": 0,
}
"""Words inside of identifiers; an identifier counts once in each module that defines it."""

IN_FIRST_LINES = {
    "^As": 10,
    "^How": 90,
    "^The same": 40,
    "^What": 210,
    "^Where": 34,
    "^Who": 10,
    "faces?": 3,
    "house": 0,
    "law": 1,
    "laws": 0,
    "nobody": 40,
    "people": 40,
    "rooms?": 19,
    "told": 17,
    "whoever": 11,
    "whole numbers?": 0,
}
"""Expressions in the first lines of docstrings. ``^`` is the beginning of the line."""


def words_of(identifier: str) -> set[str]:
    """The words of a name in snake case or camel case, in small letters.

    >>> sorted(words_of("_LossLaw_of"))
    ['law', 'loss', 'of']
    """
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def identifier_counts(modules: Iterable[Module]) -> Counter[str]:
    names = (name for module in modules for name in set(module.identifiers))
    return Counter(word for name in names for word in words_of(name) & set(IN_IDENTIFIERS))


def first_line_counts(modules: Iterable[Module]) -> Counter[str]:
    lines = [line for module in modules for line in module.first_lines]
    return Counter(
        {
            expression: sum(bool(re.search(rf"{_pattern(expression)}\b", line)) for line in lines)
            for expression in IN_FIRST_LINES
        }
    )


def _pattern(expression: str) -> str:
    return expression if expression.startswith("^") else rf"(?i:\b{expression})"


def excesses(counts: Counter[str], ceilings: dict[str, int]) -> list[str]:
    """A sentence for each word that is used more often than its ceiling."""
    return [
        f"{word!r} is used {counts[word]} times, and at most {most} are allowed."
        for word, most in ceilings.items()
        if counts[word] > most
    ]


@pytest.fixture(scope="module")
def modules():
    return Package().modules


def test_identifiers_use_the_terms_of_the_papers(modules):
    assert excesses(identifier_counts(modules), IN_IDENTIFIERS) == []


def test_docstrings_begin_with_the_terms_of_the_papers(modules):
    assert excesses(first_line_counts(modules), IN_FIRST_LINES) == []


@pytest.mark.parametrize(
    ("twin", "word"),
    [
        ("class NewLaw: ...", "law"),
        ("def f(looks): ...", "looks"),
        ("total_told = 1", "told"),
        ("def f(self):\n    self.wealth = 1", "wealth"),
    ],
)
def test_a_new_identifier_is_found(modules, tmp_path, twin, word):
    """The broken twin: one more module with one more use."""
    path = tmp_path / "discreet" / "twin.py"
    path.parent.mkdir()
    path.write_text(twin)
    before, after = identifier_counts(modules), identifier_counts([*modules, Module(path)])
    assert after - before == Counter({word: 1})
    (complaint,) = excesses(after, before | {word: before[word]})
    assert word in complaint


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        ("The same for a stage.", "^The same"),
        ("As above, but sorted.", "^As"),
        ("Draw from the law of the noise.", "law"),
        ("Return a whole number.", "whole numbers?"),
    ],
)
def test_a_new_first_line_is_found(modules, tmp_path, line, expression):
    path = tmp_path / "discreet" / "twin.py"
    path.parent.mkdir()
    path.write_text(f'def f():\n    """{line}\n\n    The law may stand here.\n    """\n')
    before, after = first_line_counts(modules), first_line_counts([*modules, Module(path)])
    assert after - before == Counter({expression: 1})
    assert excesses(after, dict(before))


if __name__ == "__main__":
    everything = Package().modules
    for name, ceilings, counts in (
        ("IN_IDENTIFIERS", IN_IDENTIFIERS, identifier_counts(everything)),
        ("IN_FIRST_LINES", IN_FIRST_LINES, first_line_counts(everything)),
    ):
        print(f"{name} = { {word: counts[word] for word in ceilings} }")
