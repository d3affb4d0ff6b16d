"""Sections on the model: what it says (:func:`effects`, :func:`curves`), and how good it is (:func:`how_good`).

A coefficient is per unit of its column, and units differ. An effect is what the score changes by when the column
goes from one end of its range to the other, or when a category or flag applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discreet.charts import Series, bar_chart, line_chart
from discreet.report.blocks import Block, FigureBlock, Section, TableBlock, Text

if TYPE_CHECKING:
    from discreet.report.report import Report

_SHOWN, _REACH = 24, 1.959964
_SCORES = {
    "classification": "the logarithm of the odds",
    "regression": "the prediction",
    "counts": "the logarithm of the expected count",
}


def effects(report: Report) -> Section | None:
    """The effects of a linear model of one score, largest first; None for others."""
    model = report.model or {}
    found = _effects(model)
    if not found:
        return None
    score = _SCORES.get(str(model.get("task")), "the score")
    largest = sorted(found.items(), key=lambda pair: -abs(pair[1]))
    shown = largest[:_SHOWN]
    words = (
        f"How {score} changes when a column goes from the lower to the upper end of its range, or when "
        "a category or flag applies. These are released coefficients. They contain noise and describe the model, not "
        "causes."
    )
    chart = bar_chart("Effects", shown)
    rows = [(name, f"{value:+.3g}") for name, value in shown]
    more = f"The {len(shown)} largest of {len(largest)}." if len(largest) > len(shown) else ""
    blocks: list[Block] = [
        Text(words),
        FigureBlock(chart, more),
        TableBlock(("column", "effect"), rows, "effects"),
    ]
    return Section("What the model says", (*blocks, *_summary(model)))


def _summary(model: Mapping[str, Any]) -> list[Block]:
    """Effects with their errors, if they were paid for."""
    told = model.get("inference")
    if not isinstance(told, Mapping):
        return []
    rows = []
    for line in told["lines"]:
        value, error = line["coefficient"], line["standard_error"]
        against = "" if line["against"] is None else f"against {line['against']}"
        known = value is not None and error is not None
        ends = (value - _REACH * error, value + _REACH * error) if known else ()
        numbers = (
            [f"{number:.3g}" for number in (value, error, *ends)] if known else ["not resolved", "", "", ""]
        )
        rows.append((line["name"], *numbers, against))
    words = f"Standard errors cover both sampling error and the noise for privacy; {told['estimand']}"
    heads = ("effect", "coefficient", "standard error", "lower (95 %)", "upper", "")
    return [Text(words), TableBlock(heads, rows, "summary")]


def _effects(model: Mapping[str, Any]) -> dict[str, float]:
    """Coefficient times the width of the column's range, for a model with one score.

    Effects of a category's values have the mean 0 over the records, by released shares where there are any; values
    that noise hides are left out.
    """
    coefficients, ranges = model.get("coefficients"), model.get("clamped_to") or {}
    shares = model.get("shares") or {}
    if not isinstance(coefficients, Mapping) or any(len(values) != 1 for values in coefficients.values()):
        return {}
    found = {
        name: float(values[0]) * (ranges[name][1] - ranges[name][0] if name in ranges else 1.0)
        for name, values in coefficients.items()
    }
    for column, declared in (model.get("schema") or {}).get("columns", {}).items():
        own = [
            name
            for name in (f"{column}={value}" for value in declared.get("categories", ()))
            if name in found
        ]
        weights = {name: float(shares.get(name, 0.0)) for name in own}
        if not sum(weights.values()):
            weights = dict.fromkeys(own, 1.0)
        shift = sum(found[name] * weights[name] for name in own) / max(sum(weights.values()), 1e-300)
        found |= {name: found[name] - shift for name in own}
    return {name: effect for name, effect in found.items() if shares.get(name) != 0.0}


def how_good(report: Report) -> Section | None:
    """Scores with their intervals, and the calibration curve."""
    found = report.evaluation
    if not found:
        return None
    rows = [(str(row["name"]), *map(str, row["cells"])) for row in found["table"]]
    cost = (
        f"{float(found['confidence']):.0%} intervals that cover both noise and the sampling of {found['unit']}s. "
        f"This evaluation was charged, too: {found['guarantee']}."
    )
    blocks: list[Block] = [
        TableBlock(("Score", "Value", "From", "To"), rows, "scores"),
        *(Text(str(note), "caution") for note in found["notes"]),
        *_calibration(found["overall"]["calibration"]),
        Text(cost, "soft"),
    ]
    return Section("How good the model is", tuple(blocks))


def _calibration(points: list[Mapping[str, Any]]) -> tuple[FigureBlock, ...]:
    seen = tuple(
        (float(point["predicted"]), float(point["value"])) for point in points if point["value"] is not None
    )
    if not seen:
        return ()
    words = "; ".join(f"predicted {x:.2f}, observed {y:.2f}" for x, y in seen)
    lines = [Series("as predicted", ((0.0, 0.0), (1.0, 1.0)), "line-2"), Series("observed", seen, "line-1")]
    chart = line_chart("Calibration", lines, "predicted probability", "observed share", description=words)
    return (
        FigureBlock(
            chart, "Calibration: the closer to the dashed line, the better the predicted probabilities."
        ),
    )


Array = NDArray[np.float64]

_WIDTH, _HEIGHT, _LEFT, _TOP, _DOWN = 340.0, 130.0, 52.0, 24.0, 104.0  # of a picture, and where its axes are
_EPOCH = date(1970, 1, 1).toordinal()  # from which days are counted
_MOST_DOTS = 60  # levels that a picture can tell apart
_ABOVE, _BELOW = "#1f5fbf", "#c2571a"  # the colours of a map


def curves(report: Report) -> Section | None:
    """Every effect of an additive model, the strongest first; None for others."""
    effects = (report.model or {}).get("curves")
    if not isinstance(effects, Mapping) or not effects:
        return None
    effects = {name: _with_both(effect) for name, effect in effects.items()}
    words = (
        "The contribution of each column to the score, relative to the average record. Bars under a curve show the "
        "distribution of the records, from noisy counts. Curves contain noise and describe the model, not causes."
    )
    blocks: list[Block] = [Text(words)]
    for name in sorted(effects, key=lambda name: -_reach(effects[name])):
        blocks.append(FigureBlock(picture(name, effects[name])))
        blocks.append(TableBlock((f"{name} is", "adds"), _rows(effects[name]), name))
    return Section("The curves of the model", tuple(blocks))


def _with_both(effect: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the reference level to the effect of a flag; leave other effects unchanged."""
    if effect["kind"] != "levels" or len(effect["at"]) != 1:
        return effect
    return {**effect, "at": [*effect["at"], "otherwise"], "adds": [*effect["adds"], effect["otherwise"]]}


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
    x = _scale(np.array(effect["at"] if curve else range(count), float), _LEFT, _WIDTH - 6)
    low, high = min(float(adds.min()), 0.0), max(float(adds.max()), 0.0)
    y = _DOWN - _scale(np.append(adds.ravel(), [low, high, 0.0]), 0.0, _DOWN - _TOP)
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
    return "".join(marks) + scale + _ends(effect["at"][0], effect["at"][-1], _dates(effect))


def _bars(effect: Mapping[str, Any], x: Array) -> str:
    """Density of records around each knot, as bars under the curve."""
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
    first, second = ([day] for day in (*_dates(effect), False)[:2])
    low, high = (_short(float(end), second) for end in (sides[1][0], sides[1][-1]))
    corners = _words(0, _TOP + 8, high) + _words(0, _DOWN, low)
    return "".join(cells) + corners + _ends(float(sides[0][0]), float(sides[0][-1]), first)


def _rows(effect: Mapping[str, Any]) -> list[tuple[str, str]]:
    dates = _dates(effect)
    rows = [(_place(at, dates), _tell(adds)) for at, adds in zip(effect["at"], effect["adds"], strict=True)]
    if effect["kind"] == "pair" or effect["at"][-1] == "otherwise":
        return rows
    return [*rows, ("otherwise" if effect["kind"] == "levels" else "missing", _tell(effect["otherwise"]))]


def _reach(effect: Mapping[str, Any]) -> float:
    """Range of the score along an effect."""
    return float(np.ptp(_adds(effect), axis=0).max(initial=0.0))


def _adds(effect: Mapping[str, Any]) -> Array:
    return np.array(effect["adds"], float).reshape(len(effect["at"]), -1)


def _scale(values: Array, first: float, last: float) -> Array:
    """Values brought linearly into a range."""
    width = float(np.ptp(values)) or 1.0
    return np.asarray(first + (last - first) * (values - values.min()) / width)


def _dates(effect: Mapping[str, Any]) -> Sequence[bool]:
    """Of each number of a place, whether it is a day."""
    return effect.get("dates") or [False] * 2


def _ends(first: Any, last: Any, dates: Sequence[bool]) -> str:
    low, high = _short(first, dates), _short(last, dates)
    return _words(_LEFT, _HEIGHT - 8, low) + _words(_WIDTH - 4, _HEIGHT - 8, high, anchor="end")


def _words(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"


def _short(value: Any, dates: Sequence[bool]) -> str:
    text = _place(value, dates)
    return text if len(text) <= 18 else text[:17] + "…"


def _place(at: Any, dates: Sequence[bool]) -> str:
    if isinstance(at, Sequence) and not isinstance(at, str):
        return ", ".join(_place(one, [day]) for one, day in zip(at, dates, strict=True))
    if dates[0] and isinstance(at, int | float):
        return str(date.fromordinal(_EPOCH + round(at)))
    return f"{at:.4g}" if isinstance(at, int | float) and not isinstance(at, bool) else str(at)


def _tell(adds: Any) -> str:
    return ", ".join(f"{value:+.4g}" for value in np.atleast_1d(adds))
