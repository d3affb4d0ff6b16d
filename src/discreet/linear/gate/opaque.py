"""Private rows have no length, no items and no truth value: :class:`Opaque`."""

from __future__ import annotations

from typing import NoReturn


class Opaque:
    """An object that does not show what it holds."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("Private rows have no length, no items and no truth value. Ask a query of them.")

    __len__ = __iter__ = __getitem__ = __array__ = __bool__ = __contains__ = __reduce__ = _refuse
