"""The section on how good the model is, from a private evaluation (``Evaluation.to_dict()``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from discreet.charts import Series, line_chart
from discreet.report.blocks import Block, Picture, Section, Table, Text

if TYPE_CHECKING:
    from discreet.report.report import Report


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
