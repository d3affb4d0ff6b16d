"""Private rows show nothing and answer queries of the catalogue: :class:`Opaque`, :class:`AnyRows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from discreet.errors import DiscreetError, PlanViolation
from discreet.trusted.plain_data import refuse_foreign

Result = TypeVar("Result")


def discreetly(function: Callable[..., Result], *known: Any) -> Result:
    """Return what a function of private rows gives, without warnings of NumPy.

    Guarantee: an error that passes is one of ours, which speaks of public things. Any other could quote a record, so
    one sentence stands for all of them, without the error that it replaces.
    """
    try:
        with np.errstate(all="ignore"):
            return function(*known)
    except DiscreetError:
        raise
    except Exception:
        pass
    raise PlanViolation(
        "The rows could not answer a query. What went wrong is withheld, because it may quote a record."
    )


class Opaque:
    """An object that does not show what it holds."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("Private rows have no length, no items and no truth value. Ask a query of them.")

    __len__ = __iter__ = __getitem__ = __array__ = __bool__ = __contains__ = __reduce__ = _refuse
    __eq__ = __hash__ = _refuse

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class AnyRows(Opaque):
    """Rows that answer the queries of :attr:`_answers`; ``_elsewhere`` if other processes hold them."""

    __slots__ = ()

    _answers: ClassVar[tuple[type, ...]] = ()
    _elsewhere: ClassVar[bool] = False

    def _total(self, query: Any, grid: float | None) -> Any:
        """Return the sum that a query asks for, in grid steps. Private: sessions call it, and add noise.

        Guarantee: errors are those of :func:`discreetly`; of rows elsewhere also those of the transport.
        """
        if not isinstance(query, self._answers):
            raise PlanViolation(f"{type(query).__name__} is not a query of the catalogue for these rows.")
        refuse_foreign(query)
        return self._sum(query, grid) if self._elsewhere else discreetly(self._sum, query, grid)

    def _sum(self, query: Any, grid: Any) -> Any:
        raise NotImplementedError
