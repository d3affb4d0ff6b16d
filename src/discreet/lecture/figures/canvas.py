"""A figure as data: panels with lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Line:
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
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """One or more panels, and the sentence that says what to see in them."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
