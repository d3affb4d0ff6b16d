"""What an additive model says: a picture of every curve, over where the records are, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discreet.report.blocks import Block, Picture, Section, Table, Text

if TYPE_CHECKING:
    from discreet.report.report import Report

Array = NDArray[np.float64]

_WIDTH, _HEIGHT, _LEFT, _TOP, _DOWN = 340.0, 130.0, 52.0, 24.0, 104.0  # of a picture, and where its axes are
_MOST_DOTS = 60  # levels that a picture can tell apart
_ABOVE, _BELOW = "#1f5fbf", "#c2571a"  # the colours of a map


def curves(report: Report) -> Section | None:
    """Every effect of an additive model, the strongest first; None for others."""
    effects = (report.model or {}).get("curves")
    if not isinstance(effects, Mapping) or not effects:
        return None
    words = (
        "What each column adds to the score, beside that of the average record. Bars under a curve show where the "
        "records are, by noisy counts. Curves carry noise, and describe the model, not causes."
    )
    blocks: list[Block] = [Text(words)]
    for name in sorted(effects, key=lambda name: -_reach(effects[name])):
        blocks.append(Picture(picture(name, effects[name])))
        blocks.append(Table((f"{name} is", "adds"), _rows(effects[name]), name))
    return Section("The curves of the model", tuple(blocks))


def picture(name: str, effect: Mapping[str, Any]) -> str:
    """A curve, dots for levels, or a map of a pair, as SVG; the table beside it says the same."""
    inside = _map(effect) if effect["kind"] == "pair" else _graph(effect)
    label = escape(f"What {name} adds; the table below has the same numbers")
    head = _words(_LEFT, 14, name, "bold")
    size = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" style="max-width: {1.5 * _WIDTH:g}px"'
    return f'<svg class="chart curve" {size} role="img" aria-label="{label}">{head}{inside}</svg>'


def _graph(effect: Mapping[str, Any]) -> str:
    adds, count = _adds(effect), len(effect["at"])
    if effect["kind"] == "levels" and count > _MOST_DOTS:
        return _words(_LEFT, _DOWN / 2, f"{count} levels: see the table")
    curve = effect["kind"] == "curve"
    x = _scaled(np.array(effect["at"] if curve else range(count), float), _LEFT, _WIDTH - 6)
    low, high = min(float(adds.min()), 0.0), max(float(adds.max()), 0.0)
    y = _DOWN - _scaled(np.append(adds.ravel(), [low, high, 0.0]), 0.0, _DOWN - _TOP)
    zero, heights = float(y[-1]), y[:-3].reshape(adds.shape)
    marks = [_bars(effect, x)] if curve else []
    marks.append(f'<path class="grid" d="M{_LEFT:g},{zero:.1f} H{_WIDTH:g}"/>')
    for column in heights.T:
        points = [f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), column.tolist(), strict=True)]
        if curve:
            marks.append(f'<path class="line-1" d="M{" L".join(points)}"/>')
        else:
            dots = (point.split(",") for point in points)
            marks += [f'<circle cx="{a}" cy="{b}" r="3" fill="currentColor"/>' for a, b in dots]
    scale = _words(0, _TOP + 8, f"{high:+.2g}") + _words(0, _DOWN, f"{low:+.2g}")
    return "".join(marks) + scale + _ends(effect["at"][0], effect["at"][-1])


def _bars(effect: Mapping[str, Any], x: Array) -> str:
    """How many records are around each knot, as bars under the curve: shares over widths."""
    if effect.get("share") is None:
        return ""
    middles = np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
    widths = np.maximum(np.diff(middles), 0.1)
    heights = np.maximum(np.array(effect["share"], float), 0) / widths
    heights *= 26 / max(float(heights.max()), 1e-12)
    bars = zip(middles[:-1].tolist(), widths.tolist(), heights.tolist(), strict=True)
    return "".join(
        f'<rect x="{a:.1f}" y="{_DOWN - h:.1f}" width="{w:.1f}" height="{h:.1f}" fill="currentColor" opacity="0.15"/>'
        for a, w, h in bars
        if h > 0.3
    )


def _map(effect: Mapping[str, Any]) -> str:
    """The cells of a grid: the darker, the more it adds or takes."""
    across, upward = np.transpose(np.array(effect["at"], float))
    adds, sides = _adds(effect)[:, -1], [np.unique(across), np.unique(upward)]
    most = float(np.abs(adds).max(initial=0.0)) or 1.0
    width, height = (_WIDTH - _LEFT - 6) / len(sides[0]), (_DOWN - _TOP) / len(sides[1])
    cells = []
    for a, b, value in zip(across.tolist(), upward.tolist(), adds.tolist(), strict=True):
        left = _LEFT + width * int(np.searchsorted(sides[0], a))
        top = _DOWN - height * (1 + int(np.searchsorted(sides[1], b)))
        cells.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{_ABOVE if value > 0 else _BELOW}" opacity="{abs(value) / most:.2f}"/>'
        )
    corners = _words(0, _TOP + 8, _short(sides[1][-1])) + _words(0, _DOWN, _short(sides[1][0]))
    return "".join(cells) + corners + _ends(sides[0][0], sides[0][-1])


def _rows(effect: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(_place(at), _told(adds)) for at, adds in zip(effect["at"], effect["adds"], strict=True)]
    if effect["kind"] == "pair":
        return rows
    return [*rows, ("otherwise" if effect["kind"] == "levels" else "missing", _told(effect["otherwise"]))]


def _reach(effect: Mapping[str, Any]) -> float:
    """How much the score differs along an effect."""
    return float(np.ptp(_adds(effect), axis=0).max(initial=0.0))


def _adds(effect: Mapping[str, Any]) -> Array:
    return np.array(effect["adds"], float).reshape(len(effect["at"]), -1)


def _scaled(values: Array, first: float, last: float) -> Array:
    """Values brought linearly into a range."""
    width = float(np.ptp(values)) or 1.0
    return np.asarray(first + (last - first) * (values - values.min()) / width)


def _ends(first: Any, last: Any) -> str:
    return _words(_LEFT, _HEIGHT - 8, _short(first)) + _words(
        _WIDTH - 4, _HEIGHT - 8, _short(last), anchor="end"
    )


def _words(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"


def _short(value: Any) -> str:
    text = _place(value)
    return text if len(text) <= 18 else text[:17] + "…"


def _place(at: Any) -> str:
    if isinstance(at, Sequence) and not isinstance(at, str):
        return ", ".join(map(_place, at))
    return f"{at:.4g}" if isinstance(at, int | float) and not isinstance(at, bool) else str(at)


def _told(adds: Any) -> str:
    return ", ".join(f"{value:+.4g}" for value in np.atleast_1d(adds))
