"""The effects of an additive model as pictures: a figure of matplotlib, and a page of HTML."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from discreet.errors import missing_extra
from discreet.linear.additive.effects import Effect, Effects


def plot_effects(effects: Effects) -> Any:
    """The effects as a figure of matplotlib, one panel for each."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise missing_extra("Plots need matplotlib", "figures") from None
    across = min(4, max(1, len(effects)))
    down = -(-len(effects) // across)
    figure = Figure(figsize=(3.2 * across, 2.6 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, effect in zip(panels, effects.values(), strict=False):
        panel.set_title(effect.name, fontsize=9)
        panel.axhline(0, color="0.8", linewidth=0.8)
        if effect.kind == "pair":
            across, upward = np.transpose(effect.at)
            panel.scatter(across, upward, c=effect.adds.reshape(len(effect.at), -1)[:, -1], s=12)
        elif effect.kind == "curve":
            panel.plot(effect.at, effect.adds)
            if any(effect.dates):
                panel.xaxis.set_major_locator(MaxNLocator(3))
                panel.xaxis.set_major_formatter(lambda day, _, effect=effect: effect.in_words(float(day)))
            if effect.share is not None:  # where the records are: a quarter of the panel, whatever its scale
                heights = 0.25 * effect.share / max(float(effect.share.max()), 1e-9)
                below = {"transform": panel.get_xaxis_transform(), "alpha": 0.15, "color": "0.3"}
                panel.fill_between(effect.at, heights, **below)
        else:
            places, adds = effect.places()
            panel.plot([str(place) for place in places], adds, "o")
            panel.tick_params(axis="x", rotation=90)
    for panel in panels[len(effects) :]:
        panel.set_visible(False)
    return figure


def page(title: str, effects: Effects, headline: str) -> str:
    """The effects as HTML: a small picture of each, and the same as a table for who cannot see it."""
    largest = max(float(np.abs(effect.places()[1]).max(initial=0.0)) for effect in effects.values()) or 1.0
    parts = "".join(_part(effect, largest) for effect in effects.values())
    return f"<div><h3>{escape(title)}</h3><p>{escape(headline)}</p>{parts}</div>"


def _part(effect: Effect, largest: float) -> str:
    rows = "".join(f"<tr><td>{escape(at)}</td><td>{adds}</td></tr>" for at, adds in effect.rows())
    table = f"<table><tr><th>{escape(effect.name)}</th><th>adds</th></tr>{rows}</table>"
    return f"<details><summary>{escape(effect.name)} {_picture(effect, largest)}</summary>{table}</details>"


def _picture(effect: Effect, largest: float) -> str:
    """A curve, or dots, 160 by 40, around a line at 0; a pair has its table only."""
    if effect.kind == "pair":
        return ""
    places, adds = effect.places()
    count = len(places)
    across = np.array(places, float) if effect.kind == "curve" else np.arange(count, dtype=float)
    width = float(across[-1] - across[0]) or 1.0
    x = 4 + 152 * (across - across[0]) / width
    marks = []
    for column in adds.T:
        points = list(zip(x.tolist(), (20 - 18 * column / largest).tolist(), strict=True))
        if effect.kind == "curve":
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            marks.append(f'<polyline points="{line}" fill="none" stroke="currentColor"/>')
        else:
            marks += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="currentColor"/>' for a, b in points]
    axis = '<line x1="0" x2="160" y1="20" y2="20" stroke="#bbb"/>'
    return f'<svg width="160" height="40" aria-hidden="true">{axis}{"".join(marks)}</svg>'
