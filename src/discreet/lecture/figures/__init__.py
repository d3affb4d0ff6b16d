"""The figures of the lecture notes, redrawn from the library: what was claimed, what is proved, what is measured.

>>> len(FIGURES), *list(FIGURES)[:3]
(11, 'noise-by-steps', 'composition', 'moments-accountant')
>>> figure = FIGURES["moments-accountant"]()
>>> figure.panels[0].lines[-1].label
'certified'

A figure is data (:mod:`discreet.lecture.figures.canvas`), so it can be tested and drawn by anything;
:mod:`discreet.lecture.figures.canvas` draws it with matplotlib. ``discreet figures --out DIR`` draws all of them.
"""

from collections.abc import Callable

from discreet.lecture.figures.canvas import Figure
from discreet.lecture.figures.measured import (
    attack,
    audit_over_training,
    descent,
    mean_clip,
    membership,
    rank,
    toy_leakage,
)
from discreet.lecture.figures.proved import (
    composition,
    moments_accountant,
    noise_by_steps,
    observers,
    parties_risk,
)

FIGURES: dict[str, Callable[[], Figure]] = {
    "noise-by-steps": noise_by_steps,
    "composition": composition,
    "moments-accountant": moments_accountant,
    "mean-clip": mean_clip,
    "attack": attack,
    "membership": membership,
    "audit-over-training": audit_over_training,
    "descent": descent,
    "rank": rank,
    "parties-risk": parties_risk,
    "observers": observers,
}
"""All figures, by name, in the order of the notes."""

__all__ = ["FIGURES", "toy_leakage"]
