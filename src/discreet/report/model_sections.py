"""Two sections on the model: what it says (:func:`effects`), and how good it is (:func:`how_good`).

A coefficient is per unit of its column, and units differ. An effect is what the score changes by when the column
goes from one end of its range to the other, or when a category or flag applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from discreet.charts import Series, bar_chart, line_chart
from discreet.report.blocks import Block, Picture, Section, Table, Text

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
        "a category or flag applies. These are coefficients that were released: they carry noise, and describe the "
        "model, not causes."
    )
    chart = bar_chart("Effects", shown)
    rows = [(name, f"{value:+.3g}") for name, value in shown]
    more = f"The {len(shown)} largest of {len(largest)}." if len(largest) > len(shown) else ""
    blocks: list[Block] = [Text(words), Picture(chart, more), Table(("column", "effect"), rows, "effects")]
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
    words = f"Standard errors are of sampling and of the noise for privacy together; {told['estimand']}"
    heads = ("effect", "coefficient", "standard error", "lower (95 %)", "upper", "")
    return [Text(words), Table(heads, rows, "summary")]


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


# ---- how good the model is, from a private evaluation (``Evaluation.to_dict()``) ----


def how_good(report: Report) -> Section | None:
    """Scores with their intervals, and the calibration curve."""
    found = report.evaluation
    if not found:
        return None
    rows = [(str(row["name"]), *map(str, row["cells"])) for row in found["table"]]
    cost = (
        f"{float(found['confidence']):.0%} intervals, for the noise and the sampling of {found['unit']}s together. "
        f"Measuring this was charged, too: {found['guarantee']}."
    )
    blocks: list[Block] = [
        Table(("Score", "Value", "From", "To"), rows, "scores"),
        *(Text(str(note), "caution") for note in found["notes"]),
        *_calibration(found["overall"]["calibration"]),
        Text(cost, "soft"),
    ]
    return Section("How good the model is", tuple(blocks))


def _calibration(points: list[Mapping[str, Any]]) -> tuple[Picture, ...]:
    seen = tuple(
        (float(point["predicted"]), float(point["value"])) for point in points if point["value"] is not None
    )
    if not seen:
        return ()
    words = "; ".join(f"predicted {x:.2f}, observed {y:.2f}" for x, y in seen)
    lines = [Series("as predicted", ((0.0, 0.0), (1.0, 1.0)), "line-2"), Series("observed", seen, "line-1")]
    chart = line_chart("Calibration", lines, "predicted probability", "observed share", description=words)
    return (
        Picture(chart, "Calibration: the closer to the dashed line, the better probabilities are meant."),
    )
