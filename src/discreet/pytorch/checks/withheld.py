"""Errors and warnings of the user's code, without their messages, which may quote private records.

``torch.distributions`` prints the labels outside of a support, a failed matrix product prints the number of examples
in the batch, and an exception of the user's own prints what the user formats into it. Whatever leaves a check, a step
or the reading of a batch is therefore an error of this library: it names the type of the original exception and the
place in the code where it was raised, and holds neither its message nor its traceback, whose frames hold the records.

>>> @withhold("the losses")
... def losses(label):
...     raise ValueError(f"no such label: {label}")
>>> losses(7)  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
discreet.errors.UserCodeFailed: ValueError was raised by the losses at ... in losses. Its message is withheld...
"""

from __future__ import annotations

import sysconfig
import traceback
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import torch

from discreet.errors import DiscreetError, UserCodeFailed

P = ParamSpec("P")
R = TypeVar("R")

_LIBRARIES = (str(Path(__file__).parents[2]), *torch.__path__, *np.__path__)


def withhold(who: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that runs code of the user, called ``who`` in messages, on private records.

    Guarantee: an exception that leaves it is a :class:`~discreet.errors.DiscreetError` without a chain to others and
    without the frames of the function; no warning leaves it. ``KeyboardInterrupt`` and its like pass.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def withheld(*args: P.args, **kwargs: P.kwargs) -> R:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    return function(*args, **kwargs)
                except DiscreetError as error:
                    refusal: DiscreetError = error
                except Exception as error:
                    refusal = UserCodeFailed(f"{origin(error, who)} {REMEDY}")
            del args, kwargs  # which a traceback with local variables would show
            refusal.__cause__ = refusal.__context__ = None
            try:
                raise refusal.with_traceback(None)
            finally:
                del refusal  # or it and this frame would keep each other alive

        return withheld

    return decorate


REMEDY = (
    "Its message is withheld because it may quote private records. To see it, call the losses with public or made-up "
    "rows: discreet.pytorch.check(model, losses, batch, public=True)."
)


def origin(error: Exception, who: str) -> str:
    """Type and place of an exception in a sentence, with nothing of its message."""
    frames = [
        (frame.f_code.co_filename, f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [place for file, place in frames if not _of_library(file)]
    innermost = frames[-1][1]
    place = own[-1] if own else innermost
    within = "" if place == innermost else f", within {innermost}"
    return f"{type(error).__name__} was raised by {who} at {place}{within}."


def _of_library(file: str) -> bool:
    """Return whether a file belongs to this library, torch, numpy or Python."""
    of_python = file.startswith(sysconfig.get_paths()["stdlib"]) and "-packages" not in file
    return of_python or file.startswith(("<frozen", *_LIBRARIES))
