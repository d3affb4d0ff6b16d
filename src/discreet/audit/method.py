"""What all methods have in common: a subject is attacked, and hits and false alarms are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from discreet.audit.bounds import Evidence
from discreet.audit.claims import Claim
from discreet.audit.lines import Floats
from discreet.core.randomness import RandomStream

Told = Callable[[int, int], None]
"""Is told how many of how many calls of the subject are done."""


class Method(ABC):
    """A way to attack a subject."""

    name: ClassVar[str]
    group: int = 1
    """By how many records the data sets that are told apart differ."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """How often the subject is called."""

    @property
    @abstractmethod
    def assumptions(self) -> str:
        """What must hold, beside the claim, for the bound to be right."""

    @abstractmethod
    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        """Attack, and count."""


def between(without: Floats, used: Floats) -> tuple[float, float]:
    """The direction in which use moves a score, and the middle of both: a threshold, learned from a pilot."""
    low, high = float(np.median(without)), float(np.median(used))
    return (1.0 if high >= low else -1.0), low + (high - low) / 2
