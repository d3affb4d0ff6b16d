"""The best of several private fits, paid for: :class:`PrivateSearch`."""

from discreet.selection.search import PrivateSearch, geometric_trials

__all__ = ["PrivateSearch", "geometric_trials"]
