"""Numpy's warnings and errors about numbers, switched off where records are worked on.

After ``np.seterr(all="raise")`` a number too small for its type would end a fit by an error, and say that a record
holds it.

>>> @ignore_fp_errors
... def narrow(value):
...     return np.float32(value)
>>> with np.errstate(all="raise"):
...     float(narrow(1e-300)), np.geterr()["under"]
(0.0, 'raise')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def ignore_fp_errors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, within which numpy raises and warns of nothing; afterwards it does what it was told to.

    Not one ``np.errstate`` for all calls: before numpy 2 one that is entered twice forgets what was there before.
    """

    @wraps(function)
    def silent(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return silent
