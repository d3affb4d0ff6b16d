"""Every parameter of every public function must refuse what has no meaning: the list of such values."""

import math
from collections.abc import Callable, Iterator

from discreet.errors import InvalidParameter

NONSENSE = (math.nan, math.inf, -math.inf, True, "1", None, [0.5], 1 + 0j)


def accepted_nonsense(function: Callable, good: dict, outside: dict[str, tuple]) -> Iterator[str]:
    """Each way in which ``function`` accepted a bad value, or blamed another parameter for it.

    ``good`` is a call that works. ``outside`` names the parameters to try, with values beyond their limits.
    """
    function(**good)
    for name, values in outside.items():
        for value in (*NONSENSE, *values):
            try:
                function(**good | {name: value})
            except InvalidParameter as error:
                if error.name == name and str(error).startswith(f"{name}="):
                    continue
                yield f"{function.__name__}: {name}={value!r} raised {error}"
            except (TypeError, ValueError, ArithmeticError) as error:
                yield f"{function.__name__}: {name}={value!r} raised {error!r}"
            else:
                yield f"{function.__name__} accepted {name}={value!r}"


def lenient(rate: float, steps: int) -> float:
    """A function that checks only one of its parameters: the twin that the check must catch."""
    if not 0 < rate <= 1:
        raise InvalidParameter("rate", rate, "must be a rate.")
    return rate * steps
