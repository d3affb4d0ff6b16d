"""What a private statistic is: a number or an array, how far noise may have moved it, and what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from discreet.certificate import Certificate
from discreet.guarantee import Guarantee
from discreet.ledger.till import AnyLedger, KeyFile

Value = float | NDArray[np.float64]


class Paying(TypedDict, total=False):
    """The parameters that say what pays: ``ledger``, ``ledger_key``; and ``unsafe_seed``, for tests."""

    ledger: AnyLedger
    ledger_key: KeyFile
    unsafe_seed: int | None


@dataclass(frozen=True, eq=False)
class Statistic:
    """A number, or an array of numbers, of a private table.

    Each number of these very records lies between its ``lower`` and ``upper`` with the chance ``confidence``: the
    interval is for the noise, not for the drawing of the records. ``noise`` is its standard deviation. Both are NaN
    where they were not asked for, or have no such meaning. ``labels`` name the numbers of an array.
    """

    name: str
    value: Value
    lower: Value
    upper: Value
    noise: Value
    confidence: float
    certificate: Certificate
    labels: tuple[str, ...] = ()

    @property
    def guarantee(self) -> Guarantee:
        """What it cost."""
        return self.certificate.guarantee

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Label, value and interval of each number."""
        parts = [np.ravel(part).tolist() for part in (self.value, self.lower, self.upper)]
        labels = self.labels or tuple(
            "".join(f"[{i}]" for i in place) or self.name for place in np.ndindex(np.shape(self.value))
        )
        return list(zip(labels, *parts, strict=True))

    def __str__(self) -> str:
        told = math.isfinite(self.confidence)
        lines = [
            f"{label}: {value:.6g}" + (f" ({low:.6g} to {high:.6g})" if told else "")
            for label, value, low, high in self.rows()
        ]
        what = f"{self.confidence:.0%} intervals, for the noise; " if told else ""
        return "\n".join([*lines, f"{what}{self.certificate.headline}"])

    def _repr_html_(self) -> str:
        head = "<tr><th></th><th>value</th><th>from</th><th>to</th></tr>"
        rows = "".join(
            f"<tr><td>{escape(label)}</td><td>{value:.6g}</td><td>{low:.6g}</td><td>{high:.6g}</td></tr>"
            for label, value, low, high in self.rows()
        )
        return f"<table>{head}{rows}</table><p>{escape(self.certificate.headline)}</p>"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data for JSON; what was not asked for is null."""
        parts = ("value", "lower", "upper", "noise", "confidence")
        return {
            "name": self.name,
            **{part: _plain(getattr(self, part)) for part in parts},
            "labels": list(self.labels),
            "guarantee": str(self.guarantee),
            "certificate": self.certificate.digest(),
        }


def _plain(value: Value) -> Any:
    """Numbers for JSON, None for NaN."""
    if np.ndim(value):
        return [_plain(part) for part in np.asarray(value)]
    return float(value) if math.isfinite(float(value)) else None
