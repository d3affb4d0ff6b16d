"""Discreet's accountant in the shapes of other libraries. Nothing of theirs is imported."""

from discreet.compat.dp_accounting import DpAccountant
from discreet.compat.opacus import OpacusAccountant

__all__ = [
    "DpAccountant",
    "OpacusAccountant",
]
