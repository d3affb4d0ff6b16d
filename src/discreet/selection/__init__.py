"""The best of several private fits, paid for: :class:`PrivateSearch`."""

from discreet.selection.search import PrivateSearch

__all__ = ["PrivateSearch"]
