"""Guarantees in words and digits, for people. No text is compared with a budget."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Protocol


class _Epsilon(Protocol):
    @property
    def upper(self) -> float: ...


class GuaranteeText:
    """A guarantee as a sentence."""

    epsilon: _Epsilon
    delta: float
    neighbours: str
    group_size: int
    observer: str
    unit: str

    def __str__(self) -> str:
        """In words; epsilon and delta are rounded up."""
        unit = protected_unit(self.unit, self.group_size)
        unit = f"one {unit}" if self.group_size == 1 else f"a {unit}"
        unit += " (all of their rows)" if self.unit == "person" else ""
        return (
            f"({upper_text(self.epsilon.upper)}, {upper_text(self.delta)})-differentially private for {unit}, "
            f"{self.neighbours} neighbours, against an observer who {self.observer}"
        )


def protected_unit(unit: str, group_size: int = 1) -> str:
    """What is protected, as a noun.

    >>> protected_unit("record"), protected_unit("person", 3)
    ('record', 'group of 3 people')
    """
    if group_size == 1:
        return unit
    return f"group of {group_size} {'people' if unit == 'person' else 'records'}"


def upper_text(value: float, digits: int = 4) -> str:
    """``value`` in so many significant digits, never below it; numbers of fewer digits stay as typed.

    >>> upper_text(0.94681), upper_text(1e-5), upper_text(12345.1)
    ('0.9469', '1e-05', '12350')
    """
    return _text(value, Context(digits, ROUND_CEILING))


def lower_text(value: float, digits: int = 4) -> str:
    """``value`` in so many significant digits, never above it."""
    return _text(value, Context(digits, ROUND_FLOOR))


def _text(value: float, context: Context) -> str:
    return f"{float(context.create_decimal(repr(float(value)))):g}"
