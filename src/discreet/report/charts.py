"""Line charts as SVG text: small, sharp at any size, readable aloud, and coloured by the page that shows them.

>>> chart = line_chart("Hits", [Series("proved", ((0.0, 0.0), (1.0, 1.0)))], "false alarms", "hits")
>>> chart.startswith("<svg") and "<title>Hits</title>" in chart
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 16, 52


@dataclass(frozen=True)
class Series:
    """A line with its name. ``style`` is a class that the page's style sheet colours."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "line-1"


@dataclass(frozen=True)
class _Axis:
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


def _axes(lines: Sequence[Series]) -> tuple[_Axis, _Axis]:
    xs = [x for series in lines for x, _ in series.points]
    ys = [y for series in lines for _, y in series.points]
    widest, highest = max(xs, default=1.0) or 1.0, max(ys, default=1.0) or 1.0
    return _Axis(0.0, widest, _LEFT, _WIDTH - _RIGHT), _Axis(0.0, highest * 1.02, _HEIGHT - _BOTTOM, _TOP)


def _path(series: Series, across: _Axis, up: _Axis) -> str:
    return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in series.points)


def _vertical_tick(value: float, across: _Axis) -> str:
    x = f"{across(value):.1f}"
    line = f'<path class="grid" d="M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
    return (
        line
        + f'<text class="tick" x="{x}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{_number(value)}</text>'
    )


def _horizontal_tick(value: float, up: _Axis) -> str:
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
