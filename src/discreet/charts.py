"""Charts as SVG text: small, sharp at any size, readable aloud, and coloured by the page that shows them.

A :class:`Picture` brings its own colours, for notebooks and files; nothing has to be installed for it.

>>> chart = line_chart("Hits", [Series("proved", ((0.0, 0.0), (1.0, 1.0)))], "false alarms", "hits")
>>> chart.startswith("<svg") and "<title>Hits</title>" in chart
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from os import PathLike
from pathlib import Path

from discreet.errors import InvalidParameter
from discreet.files import write_whole

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 16, 52


@dataclass(frozen=True)
class Series:
    """A line with its name. ``style`` is a class that the page's style sheet colours."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "line-1"


@dataclass(frozen=True)
class Axis:
    """A range of values laid out on a range of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Four to eight round values."""
        pitch = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(pitch))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= 0.999 * pitch)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


_STYLE = """\
svg.discreet{max-width:640px;height:auto;color:#6b7280}
.discreet text{fill:currentColor;font:12px system-ui,sans-serif}.discreet .label{font-size:13px}
.discreet path{fill:none;stroke:currentColor}.discreet .grid{stroke-opacity:.25}
.discreet .line-1{stroke:#3b7ddd;stroke-width:2.5}.discreet .line-2{stroke-dasharray:6 4;stroke-width:1.5}
.discreet .line-3{stroke:#c2571a;stroke-width:2}.discreet .line-4{stroke:#14804a;stroke-width:2}
.discreet .line-5{stroke:#8a4fc0;stroke-width:2}.discreet .line-6{stroke:#b8890f;stroke-width:2}
.discreet .bar{fill:#3b7ddd}"""


@dataclass(frozen=True)
class Picture:
    """A chart that a notebook shows, and that can be saved; legible on light and dark pages."""

    svg: str

    def __post_init__(self) -> None:
        styled = self.svg.replace('class="chart', 'class="discreet chart', 1)
        styled = styled.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        object.__setattr__(self, "svg", styled.replace("<title>", f"<style>{_STYLE}</style><title>", 1))

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture; the name must end in .svg."""
        if Path(path).suffix.lower() != ".svg":
            raise InvalidParameter("path", str(path), "must end in .svg.")
        write_whole(path, self.svg + "\n")


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A plain table for notebooks; all texts are escaped."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{top}</tr>{body}</table>"


def line_chart(
    title: str, lines: Sequence[Series], x_label: str, y_label: str, *, description: str = "", marks: str = ""
) -> str:
    """The chart as one ``<svg>`` element. ``marks`` is SVG that is drawn last."""
    across, up = _axes(lines)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="chart">',
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
        *(_vertical_tick(value, across) for value in across.ticks()),
        *(_horizontal_tick(value, up) for value in up.ticks()),
        f'<path class="frame" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>',
        *(f'<path class="{series.style}" d="{_path(series, across, up)}"/>' for series in lines),
        *(_legend(index, series) for index, series in enumerate(lines) if len(lines) > 1),
        f'<text class="label" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"{escape(x_label)}</text>",
        f'<text class="label" transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>',
        marks,
        "</svg>",
    ]
    return "".join(parts)


def attack_chart(power: Callable[[float], float]) -> str:
    """Hits against false alarms of the best attack, beside guessing."""
    alarms = [0.0, 0.001, 0.01, 0.03, *(step / 16 for step in range(1, 17))]
    lines = [
        Series("best attack", [(rate, power(rate)) for rate in alarms]),
        Series("guessing", ((0.0, 0.0), (1.0, 1.0)), "line-2"),
    ]
    return line_chart("What the best attack finds", lines, "false alarms", "records found")


_BANDS = ((0.01, "very strong"), (0.3, "strong"), (2.0, "fair"), (8.0, "weak"), (100.0, ""))
"""Where words for epsilon change: usage, not a theorem. The best attack is what counts."""


def epsilon_scale(epsilon: float) -> str:
    """Epsilon on a logarithmic scale, with words for its parts."""
    across = Axis(math.log(_BANDS[0][0]), math.log(_BANDS[-1][0]), 12, _WIDTH - 12)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} 96" role="img" class="chart scale">',
        f"<title>Epsilon on a scale</title><desc>{escape(f'{epsilon:.3g} is {word_for(epsilon)}.')}</desc>",
    ]
    for index, ((start, word), (end, _)) in enumerate(pairwise(_BANDS)):
        left, right = across(math.log(start)), across(math.log(end))
        parts.append(
            f'<rect class="band-{index}" x="{left:.1f}" y="34" width="{right - left:.1f}" height="16"/>'
            f'<text class="tick" x="{(left + right) / 2:.1f}" y="90" text-anchor="middle">{word}</text>'
        )
    for value in (0.01, 0.1, 1.0, 10.0, 100.0):
        anchor = {0.01: "start", 100.0: "end"}.get(value, "middle")
        parts.append(
            f'<text class="tick" x="{across(math.log(value)):.1f}" y="68" text-anchor="{anchor}">{value:g}</text>'
        )
    x = across(math.log(max(epsilon, 1e-9)))
    parts.append(f'<path class="pointer" d="M{x:.1f} 52L{x - 9:.1f} 28H{x + 9:.1f}Z"/>')
    side = "start" if x < 120 else "end" if x > _WIDTH - 120 else "middle"
    parts.append(f'<text class="label strong" x="{x:.1f}" y="20" text-anchor="{side}">this one</text></svg>')
    return "".join(parts)


def word_for(epsilon: float) -> str:
    """The word that is usual for an epsilon of this size."""
    return next(
        (word for (_, word), (end, _) in pairwise(_BANDS) if epsilon <= end), "no protection to speak of"
    )


def bar_chart(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Named bars to the left and right of zero."""
    row, left = 24, 190
    height = row * len(values) + 8
    most = max((abs(value) for _, value in values), default=1.0) or 1.0
    across = Axis(-most, most, left, _WIDTH - 60)
    zero = across(0.0)
    words = ", ".join(f"{name} {value:+.3g}" for name, value in values)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" class="chart bars">',
        f"<title>{escape(title)}</title><desc>{escape(words)}</desc>",
        f'<path class="frame" d="M{zero:.1f} 0V{height}"/>',
    ]
    for index, (name, value) in enumerate(values):
        y, end = 4 + row * index, across(value)
        shown = name if len(name) <= 22 else name[:21] + "…"
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="bar" x="{min(zero, end):.1f}" y="{y + 3}" height="{row - 8}" '
            f'width="{abs(end - zero):.1f}"/>'
            f'<text class="tick" x="{max(zero, end) + 6:.1f}" y="{y + 16}">{value:+.3g}</text>'
        )
    return "".join([*parts, "</svg>"])


def _axes(lines: Sequence[Series]) -> tuple[Axis, Axis]:
    xs = [x for series in lines for x, _ in series.points]
    ys = [y for series in lines for _, y in series.points]
    widest, highest = max(xs, default=1.0) or 1.0, max(ys, default=1.0) or 1.0
    return Axis(0.0, widest, _LEFT, _WIDTH - _RIGHT), Axis(0.0, highest * 1.02, _HEIGHT - _BOTTOM, _TOP)


def _path(series: Series, across: Axis, up: Axis) -> str:
    return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in series.points)


def _vertical_tick(value: float, across: Axis) -> str:
    x = f"{across(value):.1f}"
    line = f'<path class="grid" d="M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
    return (
        line
        + f'<text class="tick" x="{x}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{_number(value)}</text>'
    )


def _horizontal_tick(value: float, up: Axis) -> str:
    y = f"{up(value):.1f}"
    line = f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
    return (
        line
        + f'<text class="tick" x="{_LEFT - 7}" y="{up(value) + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    )


def _legend(index: int, series: Series) -> str:
    y = _HEIGHT - _BOTTOM - 14 - 18 * index
    x = _WIDTH - _RIGHT - 12
    return (
        f'<path class="{series.style}" d="M{x - 26} {y - 4}H{x}"/>'
        f'<text class="tick" x="{x - 32}" y="{y}" text-anchor="end">{escape(series.name)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
