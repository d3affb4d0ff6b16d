"""Which effects are real, as a table for people: :class:`Summary`, which ``model.summary()`` gives.

>>> lines = (EffectRow("age", 0.041, 0.008), EffectRow("region=north", None, None, "region=south"))
>>> print(Summary("logistic regression of 'ill'", lines, "what is estimated.", 0.9))
logistic regression of 'ill'
                                 coef  std err        z  P>|z|      [0.05     0.95]
-----------------------------------------------------------------------------------
age                             0.041    0.008    5.125  0.000     0.0278    0.0542
region=north                   not resolved at this budget
-----------------------------------------------------------------------------------
region=...: against region=south
Standard errors are of sampling and of the noise for privacy together; what is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from discreet.errors import InvalidParameter
from discreet.linear.encoder import Encoding
from discreet.linear.glm.inference import Inference
from discreet.linear.row_views.coordinates import Released

Array = NDArray[np.float64]

INTERCEPT = "intercept"
_UNRESOLVED = "not resolved at this budget"
_CLEAR = 3.0  # standard deviations of noise
_NAME, _LONGEST, _SHOWN = 26, 60, 3  # letters of a name, at least and at most; pooled values that are named


class EffectRow(NamedTuple):
    """One effect: its coefficient and standard error in the table's units, None if it is not resolved.

    ``against`` names the value of a category that it is a difference from.
    """

    name: str
    coefficient: float | None
    error: float | None
    against: str | None = None

    @property
    def resolved(self) -> bool:
        return self.coefficient is not None

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Where the coefficient is, with this confidence."""
        if self.coefficient is None or self.error is None:
            return None
        half_width = float(ndtri((1 + confidence) / 2)) * self.error
        return self.coefficient - half_width, self.coefficient + half_width


@dataclass(frozen=True)
class Summary:
    """The effects of a model with their errors: printed, or shown by a notebook, as statisticians are used to.

    ``lines`` are the effects, ``estimand`` says in words what is estimated, ``confidence`` is of the intervals.
    """

    title: str
    lines: tuple[EffectRow, ...]
    estimand: str
    confidence: float = 0.95

    def __getitem__(self, name: str) -> EffectRow:
        """The line of this name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise InvalidParameter("name", name, f"must be one of {', '.join(line.name for line in self.lines)}.")

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain data, which makes a frame: ``pandas.DataFrame(summary.to_dict())``."""
        return [self._row(line) for line in self.lines]

    def _row(self, line: EffectRow) -> dict[str, Any]:
        row = {"name": line.name, "coefficient": line.coefficient, "standard_error": line.error}
        interval = line.interval(self.confidence) or (None, None)
        row |= {"lower": interval[0], "upper": interval[1], "against": line.against}
        return row | {"resolved": line.resolved}

    @property
    def _heads(self) -> tuple[str, ...]:
        tail = (1 - self.confidence) / 2
        return "coef", "std err", "z", "P>|z|", f"[{tail:.4g}", f"{1 - tail:.4g}]"

    def _cells(self, line: EffectRow) -> tuple[str, ...] | None:
        interval = line.interval(self.confidence)
        if line.coefficient is None or line.error is None or interval is None:
            return None
        z = line.coefficient / line.error
        numbers = [f"{value:.3g}" for value in (line.coefficient, line.error, *interval)]
        return *numbers[:2], f"{z:.3f}", f"{2 * ndtr(-abs(z)):.3f}", *numbers[2:]

    def __str__(self) -> str:
        widths = (10, 8, 8, 6, 10, 9)
        heads = " ".join(f"{head:>{width}}" for head, width in zip(self._heads, widths, strict=True))
        size = min(max(_NAME, *(len(line.name) for line in self.lines)), _LONGEST)
        rule = "-" * (size + 1 + len(heads))
        rows = [f"{_short(line.name, size):<{size}} {self._text(line, widths)}" for line in self.lines]
        return "\n".join([self.title, " " * (size + 1) + heads, rule, *rows, rule, *self._notes()])

    def _text(self, line: EffectRow, widths: tuple[int, ...]) -> str:
        cells = self._cells(line)
        if cells is None:
            return f"    {_UNRESOLVED}"
        return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))

    def _notes(self) -> list[str]:
        references = {}
        for line in self.lines:
            if line.against is not None:
                references[line.against] = f"{line.against.partition('=')[0]}=...: against {line.against}"
        told = "Standard errors are of sampling and of the noise for privacy together; "
        return [*references.values(), told + self.estimand]

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(head)}</th>" for head in ("", *self._heads))
        body = []
        for line in self.lines:
            cells = self._cells(line)
            rest = (
                f'<td colspan="{len(self._heads)}">{_UNRESOLVED}</td>'
                if cells is None
                else "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            )
            body.append(f"<tr><th>{escape(line.name)}</th>{rest}</tr>")
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        table = f"<table><caption>{escape(self.title)}</caption><tr>{heads}</tr>{''.join(body)}</table>"
        return table + notes


def summary_lines(
    inference: Inference | None, encoding: Encoding, names: Iterable[str]
) -> tuple[EffectRow, ...]:
    """The lines of a fit in the table's units; without an inference, none of them is resolved."""
    columns = list(map(str, names))
    if inference is None:
        return tuple(EffectRow(name, None, None) for name in (INTERCEPT, *columns))
    lines, merge = inference.lines, inference.lines.matrix
    slopes, shifts = encoding.in_units_of_table(merge, np.zeros(merge.shape[1]))
    combinations = np.zeros((merge.shape[1] + 1, merge.shape[1] + 1))
    combinations[0] = np.append(1.0, shifts)
    for place, members in enumerate(lines.members):
        combinations[place + 1, place + 1] = slopes[members[0], place]
    labels = [(INTERCEPT, None)] + [
        (_pooled_name([columns[j] for j in members]), None if against is None else columns[against])
        for members, against in zip(lines.members, lines.against, strict=True)
    ]
    told = zip(labels, *(values.tolist() for values in inference.estimate(combinations)), strict=True)
    found = [
        EffectRow(name, value if clear else None, error if clear else None, against)
        for (name, against), value, error, clear in told
    ]
    return (*found, *(EffectRow(columns[j], None, None) for j in lines.hidden))


def lines_from(data: Iterable[Mapping[str, Any]]) -> tuple[EffectRow, ...]:
    """The lines of a saved model."""
    keys = ("name", "coefficient", "standard_error", "against")
    return tuple(EffectRow(*(line[key] for key in keys)) for line in data)


def estimand_of(
    clamp: float | None, of_people: bool = False, cut: Sequence[str] = (), learnt: Sequence[str] = ()
) -> str:
    """What is estimated, in words: under any truth, and if the model holds.

    ``cut`` names columns of which many records are beyond a bound, as far as released numbers show, and ``learnt``
    those whose bounds nobody declared: they leave out what noise hides, such as the end of a long tail.
    """
    shared = ", the rows of a person share one weight among all people" if of_people else ""
    residuals = "" if clamp is None else f", residuals beyond +-{clamp:.3g} count as that"
    symmetric = "" if clamp is None else ", with errors that are as large on either side"
    many = (
        f" Many records seem to be beyond a bound of {', '.join(cut)}: the coefficients are then those of the "
        "clamped column, and not those of a model that holds without bounds."
        if cut
        else ""
    )
    if learnt:
        many += (
            f" The bounds of {', '.join(learnt)} were learnt, and a long tail may be beyond them: the coefficients "
            "are those of the clamped columns. Declared bounds give those of the model."
        )
    return (
        "the coefficients are those at which weighted residuals of the population add up to nothing, where columns "
        f"are clamped to their bounds{residuals}, and rows far from all others have less weight, by their columns "
        f"alone{shared}. If the model holds within the bounds{symmetric}, these are its coefficients.{many}"
    )


def cut_columns(released: Released | None, names: Sequence[str]) -> list[str]:
    """The numeric columns whose outermost bin holds far more records than the one beside it, which is not empty.

    So many were clamped to the bound. Values of a scale, such as 0 and 1, have empty bins beside them. Depends on
    released numbers only; false alarms are one in a thousand columns at most for a smooth density.
    """
    if released is None:
        return []
    bins, clear = released.bins, _CLEAR * released.noise
    ends = (bins[:, 0], bins[:, 1], bins[:, 2]), (bins[:, -1], bins[:, -2], bins[:, -3])
    found = [
        (beside > clear) & (after > clear) & (last - 2 * beside > 3 * clear) for last, beside, after in ends
    ]
    return [name for name, one in zip(names, found[0] | found[1], strict=False) if one]


def _pooled_name(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    column, more = names[0].partition("=")[0], len(names) - _SHOWN
    values = [name.partition("=")[2] for name in names[:_SHOWN]]
    return f"{column}={' | '.join(values)}" + (f" | {more} more" if more > 0 else "")


def _short(name: str, size: int) -> str:
    return name if len(name) <= size else f"{name[: size - 3]}..."
