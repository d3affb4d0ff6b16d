"""Figures as data (panels with lines), and their drawing with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from discreet.errors import missing_extra
from discreet.files import write_whole


@dataclass(frozen=True)
class PlotLine:
    """A named line; ``"dashed"`` for what is predicted or claimed, ``"dots"`` for what was measured."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["solid", "dashed", "dots"] = "solid"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[PlotLine, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """One or more panels with a title and a caption. Jupyter shows it as a picture."""

    title: str
    caption: str
    panels: tuple[Panel, ...]

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        _drawing(self).savefig(written, dpi=72, metadata={"Software": None})
        return written.getvalue()


_STYLES: dict[str, dict[str, Any]] = {
    "solid": {"linestyle": "-"},
    "dashed": {"linestyle": "--"},
    "dots": {"linestyle": ":", "marker": "o", "markersize": 4},
}
_COLOURS = ("#1f5fbf", "#b4541a", "#14683f", "#7b3fa0", "#5c6475")  # told apart by the colour-blind, too


def draw(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png`` into ``folder`` and return their paths."""
    drawing = _drawing(figure)
    files = [folder / f"{name}.{ending}" for ending in ("svg", "png")]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {}  # the same figure gives the same file
        drawing.savefig(file, dpi=130, metadata=metadata, transparent=file.suffix == ".svg")
    write_whole(files[0], _of_the_page(files[0].read_text()), sync=False)
    return files


def _drawing(figure: Figure) -> Any:
    """The figure as one of matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise missing_extra("Figures need matplotlib", "figures") from None
    drawing = Drawing(figsize=(6.4 * len(figure.panels), 4.2), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(1, len(figure.panels), squeeze=False)[0]
    for axis, panel in zip(axes, figure.panels, strict=True):
        _fill(axis, panel)
    drawing.suptitle(figure.title, fontsize=12, fontweight="bold")
    return drawing


def _of_the_page(svg: str) -> str:
    """The drawing in the colours of the page that it is part of; alone, in those of a light or a dark screen."""
    for index, colour in enumerate(_COLOURS, 1):
        svg = svg.replace(colour, f"var(--figure-{index}, {colour})")
    alone = "@media (prefers-color-scheme: dark) {:root.discreet-figure{color: #e7eaf0}}"
    return (
        svg.replace("#000000", "currentColor")
        .replace("<svg ", '<svg class="discreet-figure" fill="currentColor" ', 1)
        .replace('<style type="text/css">*{', f'<style type="text/css">{alone} .discreet-figure *{{', 1)
    )


def _fill(axis: Any, panel: Panel) -> None:
    for index, line in enumerate(panel.lines):
        colour = _COLOURS[index % len(_COLOURS)]
        axis.plot(line.x, line.y, label=line.label, color=colour, linewidth=1.8, **_STYLES[line.style])
    axis.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    if panel.log_x:
        axis.set_xscale("log")
    if panel.log_y:
        axis.set_yscale("log")
    axis.grid(visible=True, alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
