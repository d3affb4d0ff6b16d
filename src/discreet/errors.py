"""Everything that can be raised, and the one place where parameters are checked.

    DiscreetError
    ├── InvalidParameter   (also a ValueError)   a value that has no meaning here: name, value, remedy
    ├── UnsupportedEvent   (also a ValueError)   no theorem covers this combination: what to use instead
    ├── AccuracyNotReached (also an ArithmeticError)  bounds are known but wider than asked for
    ├── BudgetExceeded                           a release would cost more than the budget allows
    ├── PlanViolation                            an engine was asked to depart from its plan
    ├── LedgerCorrupted                          the ledger was altered, damaged or replaced by an older copy
    ├── LedgerUnavailable  (also an OSError)     the ledger cannot be read or written now: nothing was granted
    ├── CertificateRejected                      what a certificate claims does not follow from what it shows
    ├── CheckFailed        (also a ValueError)   a model or loss would break the guarantee: nothing was released
    ├── UserCodeFailed     (also a RuntimeError) the model, losses or collate raised: type and place, no message
    ├── CannotConnect                            the coordinator cannot be reached, or refuses this kit
    │   └── NotYet                               what may pass by itself: worth trying again
    │       └── NobodyThere                      nothing listens at its address: it may still come
    ├── StudyStopped                             a study of several parties cannot go on now
    ├── PartyStopped                             something failed at this party: it releases nothing more
    ├── AlreadyRunning                           another process uses this kit or ledger: one at a time
    ├── NotConsented                             a party did not agree to a study: nothing was read, sent or spent
    ├── MalformedMessage   (also a ValueError)   bytes that are no message of a study
    └── MissingDependency  (also an ImportError) an optional part is not installed: how to install it

Every scalar that a user can type goes through :func:`real`, :func:`whole`, :func:`probability` or
:func:`one_of`. They are written as "accept only what is surely right", so NaN, infinities, booleans, strings
and arrays are refused without being listed. Arrays and tensors of no dimension, and Decimal, are numbers.

>>> real("noise_multiplier", float("nan"), above=0)
Traceback (most recent call last):
    ...
discreet.errors.InvalidParameter: noise_multiplier=nan: must be a finite number above 0.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from discreet.error_texts import cut as cut
from discreet.error_texts import finite_within, shown
from discreet.error_texts import without_passwords as without_passwords


class DiscreetError(Exception):
    """Base of every error that this library raises on purpose."""


class InvalidParameter(DiscreetError, ValueError):
    """A parameter is outside the values for which the answer means anything."""

    def __init__(self, name: str, value: object, requirement: str) -> None:
        super().__init__(f"{name}={shown(value, _plain_scalar(value))}: {requirement}")
        self.name = name
        self.value = value
        self.requirement = requirement

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.value, self.requirement)


class UnsupportedEvent(DiscreetError, ValueError):
    """No proved theorem covers this event under these neighbours."""


class AccuracyNotReached(DiscreetError, ArithmeticError):
    """The certified bounds are sound but further apart than the tolerance that was asked for.

    ``bounds`` holds them, as (lower, upper).
    """

    def __init__(self, message: str, bounds: tuple[float, float]) -> None:
        super().__init__(message)
        self.bounds = bounds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.bounds)


class BudgetExceeded(DiscreetError):
    """A release would cost more than the budget allows; nothing was released."""


class PlanViolation(DiscreetError):
    """An engine was asked to do something other than its plan."""


class LedgerCorrupted(DiscreetError):
    """The ledger was altered, damaged or replaced by an older copy. Nothing more may be released from it."""


class LedgerUnavailable(DiscreetError, OSError):
    """The ledger cannot be read or written now: nothing was granted, so nothing may be released."""


class CertificateRejected(DiscreetError):
    """What a certificate claims does not follow from what it shows."""


class CheckFailed(DiscreetError, ValueError):
    """The model or the loss would break the guarantee; nothing was released."""


class UserCodeFailed(DiscreetError, RuntimeError):
    """The model, the losses, the data set or ``collate`` raised an exception in a check or a step.

    The text names its type and place. Its message is withheld, because it may quote private records.
    """


class CannotConnect(DiscreetError):
    """The coordinator could not be reached, or refused this kit; the text says why."""


class NotYet(CannotConnect):
    """What may pass by itself: the coordinator is starting, the network is away. Worth trying again."""


class NobodyThere(NotYet):
    """Nothing listens at the coordinator's address: it may still come."""


class StudyStopped(DiscreetError):
    """The study cannot go on now; the text says why and what to do. What was reached is in the state file."""


class PartyStopped(DiscreetError):
    """Something failed at this party, its own screen says what: it releases nothing more until it joins again."""


class AlreadyRunning(DiscreetError):
    """Another process uses this kit or this ledger for the same study; nothing was touched."""


class NotConsented(DiscreetError):
    """The party did not agree to the study; nothing was read, sent or spent."""


class MalformedMessage(DiscreetError, ValueError):
    """Bytes that are no message of ours."""


class MissingDependency(DiscreetError, ImportError):
    """An optional part of the library is not installed."""


def missing_extra(needs: str, extra: str, otherwise: str = "") -> MissingDependency:
    """Return the error for an optional dependency that is not installed.

    The message names no public index: the project's name is not registered there, so whoever registers it first
    would decide what ``pip install`` by name fetches.

    >>> print(missing_extra("Plots need matplotlib", "figures"))
    Plots need matplotlib: install 'discreet[figures]' from your organisation's package index or from its wheel.
    """
    remedy = f"install 'discreet[{extra}]' from your organisation's package index or from its wheel"
    return MissingDependency(f"{needs}: {remedy}{otherwise}.")


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    remedy: str = "",
) -> float:
    """Return ``value`` as a finite float inside the given limits, or raise :class:`InvalidParameter`.

    >>> real("rate", 0.25, above=0, at_most=1)
    0.25
    >>> real("rate", True, above=0, at_most=1)
    Traceback (most recent call last):
        ...
    discreet.errors.InvalidParameter: rate=True: must be a finite number above 0 and at most 1.
    """
    number = _as_float(value)
    inside = (
        math.isfinite(number)
        and (above is None or number > above)
        and (at_least is None or number >= at_least)
        and (below is None or number < below)
        and (at_most is None or number <= at_most)
    )
    if inside:
        return number + 0.0  # there is one zero, not two
    limits = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    raise InvalidParameter(name, value, f"{finite_within(limits)} {remedy}".rstrip())


def whole(name: str, value: object, *, at_least: int, at_most: int | None = None, remedy: str = "") -> int:
    """Return ``value`` as an int inside the given limits, or raise :class:`InvalidParameter`.

    Floats that hold an integer, such as ``1e6``, are accepted.

    >>> whole("steps", 1e6, at_least=1)
    1000000
    >>> whole("steps", 2.5, at_least=1)
    Traceback (most recent call last):
        ...
    discreet.errors.InvalidParameter: steps=2.5: must be a whole number of at least 1.
    """
    number = _as_float(value)
    if math.isfinite(number) and number == math.floor(number):
        plain = _plain_scalar(value)
        exact = int(plain) if isinstance(plain, numbers.Integral | Decimal) else int(number)
        if plain == exact >= at_least and (at_most is None or exact <= at_most):
            return exact
    limit = f"must be a whole number of at least {at_least}"
    limit += f" and at most {at_most}." if at_most is not None else "."
    raise InvalidParameter(name, value, f"{limit} {remedy}".rstrip())


def probability(name: str, value: object, *, remedy: str = "") -> float:
    """Return ``value`` as a float strictly between 0 and 1, or raise :class:`InvalidParameter`."""
    return real(name, value, above=0, below=1, remedy=remedy)


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise :class:`InvalidParameter`."""
    names = tuple(choices)
    if isinstance(value, str) and value in names:
        return value
    raise InvalidParameter(name, value, f"must be one of {', '.join(map(repr, names))}.")


def _plain_scalar(value: object) -> object:
    """Return the Python number inside an array or a tensor of no dimension; any other value as it is."""
    if type(value) in (float, int, str) or getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception:  # a tensor without data, whatever its library raises
        return value


def _as_float(value: object) -> float:
    if type(value) is float:
        return value
    plain = _plain_scalar(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real | Decimal):
        return math.nan
    try:
        return float(plain)
    except OverflowError:
        return math.inf
    except ValueError:  # a signalling NaN of decimal
        return math.nan
