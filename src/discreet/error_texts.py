"""Texts of refusals. Whether a value is refused is decided in :mod:`discreet.errors`."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping

_PASSWORD = re.compile(
    r"(?P<user>[a-z][a-z0-9+.-]*:/{1,2}[^\s:@/?#]*):\S*@|(?P<word>password=)[^\s&'\"]+", re.IGNORECASE
)


def without_passwords(text: str) -> str:
    """Replace passwords in addresses by stars: all output passes through here.

    >>> without_passwords("no answer from postgresql://ann:s3cret@host/db?password=s3cret")
    'no answer from postgresql://ann:***@host/db?password=***'
    """
    return _PASSWORD.sub(
        lambda found: f"{found['user']}:***@" if found["user"] else f"{found['word']}***", text
    )


_LONG = 24  # cells of a list that nobody would type


def shown(value: object, plain: object) -> str:
    """Return the text of a value as its owner typed it; ``plain`` is the number in an array of no dimension.

    Of an array, a frame or a long list it names the type only: it may be the records, in the place of another
    parameter.
    """
    if isinstance(plain, numbers.Real) and not isinstance(plain, bool):
        value = int(plain) if isinstance(plain, numbers.Integral) else float(plain)
    shape: object = getattr(value, "shape", None)
    long = isinstance(value, list | tuple | dict | set) and len(value) > _LONG
    if long or shape or hasattr(value, "__dataframe__") or hasattr(value, "__arrow_c_stream__"):
        return f"<{type(value).__name__}>"
    return cut(without_passwords(repr(value)))


def cut(text: str) -> str:
    """Cut a text to 80 characters; a path keeps its end, which identifies the file."""
    if len(text) <= 80:
        return text
    is_path = "/" in text and not any(letter.isspace() or letter in "{}[]" for letter in text)
    return f"{text[:20]}...{text[-57:]}" if is_path else text[:77] + "..."


def finite_within(limits: Mapping[str, float | None]) -> str:
    """State the requirement of a finite number within limits, which are given by their word."""
    words = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
    return f"must be a finite number{' ' if words else ''}{' and '.join(words)}."
