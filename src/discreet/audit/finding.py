"""Results of detectors (:class:`Finding`), and the combination of p-values.

>>> finding = Finding.of("sampling", {"batch sizes": 0.4, "inclusion counts": 1e-9}, alpha=1e-3)
>>> finding.passed, finding.worst
(False, 'inclusion counts')
>>> print(finding)
sampling: CONTRADICTED (inclusion counts: p = 2e-09 after 2 tests, alpha = 0.001)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from discreet.errors import probability

ALPHA = 1e-3
"""How often a correct implementation may be accused, unless said otherwise."""


@dataclass(frozen=True)
class Finding:
    """The verdict of one detector.

    Either ``p_value`` is set: the chance of data at least this strange from a correct implementation, already
    multiplied by the number of tests, with ``alpha`` the rate of false alarms. Or ``measured`` and ``limit``
    are: then nothing was left to chance and ``alpha`` is 0. ``tests`` names all that was computed.
    """

    name: str
    passed: bool
    explanation: str
    alpha: float = 0.0
    p_value: float | None = None
    measured: float | None = None
    limit: float | None = None
    tests: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, name: str, p_values: Mapping[str, float], alpha: float, explanation: str = "") -> Finding:
        """The finding of several tests together.

        Guarantee: whatever the tests have to do with each other, a correct implementation fails with probability
        at most ``alpha`` (Bonferroni), if each p-value is valid by itself.
        """
        alpha = probability("alpha", alpha)
        worst = min(p_values, key=lambda test: p_values[test])
        p_value = min(1.0, len(p_values) * p_values[worst])
        return cls(
            name,
            p_value >= alpha,
            explanation or f"{worst}: p = {p_value:.2g} after {len(p_values)} tests, alpha = {alpha:.2g}",
            alpha,
            p_value,
            tests=tuple(p_values.items()),
        )

    @classmethod
    def exactly(cls, name: str, measured: float, limit: float, explanation: str) -> Finding:
        """The finding of a comparison without chance."""
        return cls(name, measured <= limit, explanation, measured=measured, limit=limit)

    @property
    def worst(self) -> str:
        """The test with the smallest p-value, or an empty text."""
        return min(self.tests, key=lambda test: test[1])[0] if self.tests else ""

    def __str__(self) -> str:
        verdict = "as claimed" if self.passed else "CONTRADICTED"
        return f"{self.name}: {verdict} ({self.explanation})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; numbers that are not finite become strings."""
        data = asdict(self) | {"tests": dict(self.tests)}
        return {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in data.items()
        }
