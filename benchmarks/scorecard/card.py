"""What a row of the scorecard is, and how it is played.

An attack gets a subject, plays with it, and returns what it saw in a line or raises :class:`Broken`. The same attack
is played on what the library offers, which must withstand it, and on broken twins, which must not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Attack = Callable[[Any], str]


class Broken(Exception):
    """The attack worked; the text says what was seen."""


class Missing(Exception):
    """There is no such thing in this version, so nothing could be attacked."""


class Row(NamedTuple):
    """One line of the card."""

    number: int
    title: str
    attack: Attack
    ours: Mapping[str, Any]
    twins: Mapping[str, Any]


class Verdict(NamedTuple):
    """P, F or -, why, and the seconds of the processor that it took."""

    mark: str
    why: str
    seconds: float


ROWS: dict[int, Row] = {}


def row(
    number: int, title: str, *, ours: Mapping[str, Any], twins: Mapping[str, Any]
) -> Callable[[Attack], Attack]:
    """Puts an attack on the card."""

    def enter(attack: Attack) -> Attack:
        ROWS[number] = Row(number, title, attack, ours, twins)
        return attack

    return enter


def withstood(attack: Attack, subject: Any) -> tuple[str, str]:
    """P, F, - or, where the subject ended in an error, E; and why. Warnings on the way are no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "P", attack(subject)
        except Broken as broken:
            return "F", str(broken)
        except Missing as missing:
            return "-", str(missing)
        except Exception as error:
            return "E", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def played(chosen: Row) -> Verdict:
    """The verdict on the library: a row passes if every subject does. What ends in an error does not pass."""
    start = time.process_time()
    found = {name: withstood(chosen.attack, subject) for name, subject in chosen.ours.items()}
    worst = next(mark for mark in "EF-P" if any(mark == seen for seen, _ in found.values()))
    shown: dict[str, list[str]] = {}
    for name, (mark, why) in found.items():
        if mark == worst:
            shown.setdefault(why, []).append(name)
    why = "; ".join(f"{', '.join(names)}: {text}" for text, names in shown.items())
    return Verdict(worst.replace("E", "F"), why, time.process_time() - start)


def twins_played(chosen: Row) -> Verdict:
    """F if every broken twin was caught by the attack itself, as it should be; else P, with the one that was not."""
    start, caught = time.process_time(), []
    for name, twin in chosen.twins.items():
        mark, why = withstood(chosen.attack, twin)
        if mark != "F":
            return Verdict("P", f"{name} was not caught: {why}", time.process_time() - start)
        caught.append(f"{name}: {why}")
    return Verdict("F", "; ".join(caught), time.process_time() - start)
