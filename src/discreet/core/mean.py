"""Deprecated name of :mod:`discreet.statistics.mean`."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_MOVED = "discreet.statistics.mean"
_NAMES = ("Ball", "FixedClip", "Interval", "MeanEstimate", "SecondMoment", "private_mean")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"discreet.core.mean moves to {_MOVED} and goes in 0.4: write `from {_MOVED} import {name}`.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(import_module(_MOVED), name)
