"""How good a private model of a table may become, before there is a table: :class:`Preview`, a rule of thumb.

Known beforehand are the number of records n, the encoded columns d, and what the budget allows: a strength mu, that
of one Gaussian release. Of what a model without privacy gains over guessing, a private one keeps a share of about

    1 / sqrt(1 + (c w / (n mu))^2)        from w = d + 5, c = 7        to w = sqrt(d) + 1, c = 1.5,

the first where every column says something of its own, the second where a few directions say it all. For numbers and
counts the share is squared, as R2 is. With so few records that even the mean is unsure, a model can be worse than
guessing. The constants were chosen by looking at measured fits, of tables that were made up and of real ones; means
of three fits lay within the range in 368 cases of 372 (``benchmarks/preview.py``).

>>> table = Preview(records=2000, columns=40, delta=1e-6, best=0.85)
>>> print(table)
2,000 records, 40 columns after encoding, delta 1e-06: a rule of thumb from these numbers, no record was read
epsilon  accuracy
    0.1  0.51 to 0.84
    0.3  0.62 to 0.85
    0.5  0.69 to 0.85
      1  0.78 to 0.85
      2  0.83 to 0.85
      4  0.84 to 0.85
      8  0.85 to 0.85
without privacy 0.85, by guessing 0.50
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from discreet.accounting.gaussian import gaussian_mu
from discreet.charts import Picture, Series, html_table, line_chart
from discreet.errors import one_of, real, whole
from discreet.guarantee import Budget, Neighbours, neighbours_named, sensitivity_factor
from discreet.linear.subsampling import amplified_budget

EPSILONS = (0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0)
SCORES = {"classification": "accuracy", "regression": "R2", "counts": "D2"}
_OWN, _SHARED = 7.0, 1.5  # the constants c, where columns say something of their own, and where they share it
_MORE = 5.0  # columns' worth of what every fit spends besides
_NOTHING = 0.15  # a share so small may as well be nothing: directions that noise hides are left out
_UNSURE = 0.7  # a share of the mean itself, below which a regression may be of no use


@dataclass(frozen=True)
class Preview:
    """What to expect of a fit: ranges, at several epsilons. No record is read for it.

    ``columns`` are counted after encoding. ``best`` is the score hoped for without privacy (accuracy, R2, or D2 for
    counts), ``guess`` the accuracy of always naming the most frequent class. Without ``best`` the ranges are of the
    share that is kept of what a model without privacy gains over guessing. ``sample`` is the share of the records
    that are looked at (:mod:`~discreet.linear.subsampling`).
    """

    records: int
    columns: int
    delta: float
    task: str = "classification"
    best: float | None = None
    guess: float = 0.5
    epsilons: tuple[float, ...] = EPSILONS
    neighbours: Neighbours = "add-remove"
    unit: str = "record"
    sample: float = 1.0

    def __post_init__(self) -> None:
        whole("records", self.records, at_least=1, at_most=10**12)
        whole("columns", self.columns, at_least=1, at_most=10**6)
        real("delta", self.delta, above=0, below=0.1)
        one_of("task", self.task, SCORES)
        neighbours_named(self.neighbours)
        real("guess", self.guess, above=0, below=1)
        if self.best is not None:
            real("best", self.best, above=self.guess if self.task == "classification" else 0, at_most=1)
        real("sample", self.sample, above=0, at_most=1)
        for epsilon in self.epsilons:
            real("epsilons", epsilon, above=0)

    @property
    def rows(self) -> tuple[tuple[float, float, float], ...]:
        """Epsilon, and the lower and the upper end of what to expect there; -inf is worse than no model."""
        return tuple((epsilon, *self.at(epsilon)) for epsilon in self.epsilons)

    def at(self, epsilon: float) -> tuple[float, float]:
        """The range at this epsilon, of the score or, without ``best``, of the share of the gain that is kept."""
        low = max(0.0, self._share_kept(epsilon, self.columns + _MORE, _OWN) - _NOTHING) / (1 - _NOTHING)
        high = self._share_kept(epsilon, math.sqrt(self.columns) + 1, _SHARED)
        mean = self._share_kept(epsilon, 1 + _MORE, _OWN)
        if self.task != "classification":
            best = 1.0 if self.best is None else self.best
            lost = (
                (1 + best) / 2 * (1 - low**2 + (1 - low**2) ** 2)
            )  # weak effects lose more of what they have
            return (best - lost if mean > _UNSURE else -math.inf), best * high**2
        if self.best is None:
            return low, high
        # What the classes' frequencies bring is lost too, where there is hardly a record.
        known = 0.5 if self.guess >= 0.5 else 0.0
        least = self.guess + low * (self.best - self.guess) - (self.guess - known) * (1 - mean)
        return max(known, least), self.guess + high * (self.best - self.guess)

    def _share_kept(self, epsilon: float, size: float, constant: float) -> float:
        """The share that is kept, if so many columns' worth has to be found."""
        inner = Budget(epsilon, self.delta, self.neighbours)
        if self.sample < 1:
            inner = amplified_budget(inner, self.sample)
        strength = gaussian_mu(inner.epsilon, inner.delta) / sensitivity_factor(self.neighbours)
        return 1 / math.hypot(1, constant * size / (self.records * self.sample * strength))

    @property
    def score(self) -> str:
        """What the ranges are of."""
        return "keeps of the gain over guessing" if self.best is None else SCORES[self.task]

    def __str__(self) -> str:
        rows = "\n".join(f"{epsilon:7g}  {told}" for epsilon, told in self._lines())
        parts = [self._about(), f"epsilon  {self.score}", rows]
        if self.best is not None:
            guess = f", by guessing {self.guess:.2f}" if self.task == "classification" else ""
            parts.append(f"without privacy {self.best:.2f}{guess}")
        return "\n".join(parts)

    def _about(self) -> str:
        who = "people" if self.unit == "person" else "records"
        columns = "1 column" if self.columns == 1 else f"{self.columns:,} columns"
        sampled = "" if self.sample == 1 else f"a secret sample of {self.sample:.3g} of "
        return (
            f"{sampled}{self.records:,} {who}, {columns} after encoding, delta {self.delta:g}: a rule of thumb from "
            "these numbers, no record was read"
        )

    def _lines(self) -> list[tuple[float, str]]:
        told = [(epsilon, f"{self._number(low)} to {self._number(high)}") for epsilon, low, high in self.rows]
        if self.sample == 1:
            return told
        of_all = dict(replace(self, sample=1.0)._lines())
        return [(epsilon, f"{own}, of all records {of_all[epsilon]}") for epsilon, own in told]

    def _number(self, value: float) -> str:
        if value < 0:
            return "below 0"
        return f"{value:.0%}" if self.best is None else f"{value:.2f}"

    def plot(self) -> Picture:
        """Both ends of the range against epsilon."""
        low, high = ([(row[0], max(0.0, row[place])) for row in self.rows] for place in (1, 2))
        lines = [Series("at most", high), Series("at least", low, "line-2")]
        return Picture(line_chart("What to expect", lines, "epsilon", self.score))

    def _repr_html_(self) -> str:
        rows = [(f"{epsilon:g}", told) for epsilon, told in self._lines()]
        return html_table(("epsilon", self.score), rows, self._about()) + self.plot().svg

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an end that is worse than no model is None."""
        rows = [
            {"epsilon": epsilon, "low": low if math.isfinite(low) else None, "high": high}
            for epsilon, low, high in self.rows
        ]
        return {
            "records": self.records,
            "columns": self.columns,
            "delta": self.delta,
            "unit": self.unit,
            "score": "share of the gain" if self.best is None else self.score,
            "best": self.best,
            "guess": self.guess if self.task == "classification" else None,
            "expected": rows,
        } | ({} if self.sample == 1 else {"sample": self.sample})
