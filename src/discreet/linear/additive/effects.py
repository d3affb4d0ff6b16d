"""What a person sees of an additive model: the effect of each column, as numbers.

Everything here was released: the curves with the model, the densities under them with the histograms.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.additive_model import AdditiveModel
from discreet.linear.additive.curves import bends, hat_moments
from discreet.linear.column_kinds import EPOCH, Category, Date
from discreet.linear.encoder import BoundedNumbers, Encoding, SchemaEncoding

Array = NDArray[np.float64]

OTHERWISE = "otherwise"
"""The place of whatever is not among the levels of an effect."""


@dataclass(frozen=True, eq=False)
class Effect:
    """What a column adds to the score.

    ``at`` are the knots of a curve in the table's units, or the values of a category; ``adds`` is what the score
    grows by there, beside that of the average record; with several classes, a column for each. Between knots a curve
    is straight, beyond them flat. ``share`` is the noisy share of records around each knot, where a histogram was
    released. ``otherwise`` is what a missing value or an unknown category adds. The effect of a pair of ``columns``
    is that of the two together, beside what each adds alone; it is interpolated in both directions. ``dates`` says of
    each number of a place whether it is a day, counted from 1970.
    """

    name: str
    kind: str
    at: tuple[Any, ...]
    adds: Array
    otherwise: Any
    share: Array | None = None
    columns: tuple[int, int] | None = None
    dates: tuple[bool, ...] = (False,)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        at = [list(place) if isinstance(place, tuple) else place for place in self.at]
        share = None if self.share is None else self.share.tolist()
        adds, otherwise = self.adds.tolist(), np.asarray(self.otherwise).tolist()
        found = {"kind": self.kind, "at": at, "adds": adds, "otherwise": otherwise, "share": share}
        return found | ({"dates": list(self.dates)} if any(self.dates) else {})

    def places(self) -> tuple[list[Any], Array]:
        """Where, and what it adds there, a row each; a flag has a second place, for whoever does not have it."""
        places, adds = list(self.at), self.adds.reshape(len(self.at), -1)
        if self.kind == "levels" and len(places) == 1:
            return [*places, OTHERWISE], np.vstack([adds, np.reshape(self.otherwise, (1, -1))])
        return places, adds

    def in_words(self, place: Any) -> str:
        """A place as a text."""
        return place_in_words(place, self.dates)

    def ends(self, rare: Collection[Any] = ()) -> tuple[tuple[str, float], tuple[str, float]]:
        """Where the effect is least and greatest, and what it adds there; ``rare`` levels are left out.

        With several classes, of the one for which they are farthest apart.
        """
        places, adds = self.places()
        known = [place for place, at in enumerate(places) if at not in rare] or list(range(len(places)))
        held = adds[known][:, np.ptp(adds[known], axis=0).argmax()]
        least, most = int(held.argmin()), int(held.argmax())
        return tuple((self.in_words(places[known[k]]), float(held[k])) for k in (least, most))  # type: ignore[return-value]

    def rows(self) -> list[tuple[str, str]]:
        """The same as texts: where, and how much."""
        told = list(zip(map(self.in_words, self.at), map(_numbers_as_text, self.adds), strict=True))
        if self.kind == "pair":
            return told
        return [*told, (OTHERWISE if self.kind == "levels" else "missing", _numbers_as_text(self.otherwise))]


Effects = dict[str, Effect]


def place_in_words(place: Any, dates: Sequence[bool] = (False,)) -> str:
    """A number, a day, a value, or several of them.

    >>> place_in_words([0.5, 365.0], [False, True])
    '0.5, 1971-01-01'
    """
    if isinstance(place, tuple | list):
        return ", ".join(place_in_words(one, [day]) for one, day in zip(place, [*dates, False], strict=False))
    if dates[0] and isinstance(place, float):
        return str(date.fromordinal(EPOCH + round(place)))
    return f"{place:.6g}" if isinstance(place, float) else str(place)


@dataclass(frozen=True)
class Places:
    """Where a column of the table is among the encoded ones: its number, or its levels (first, how many)."""

    numeric: int | None
    levels: tuple[int, int] | None
    values: tuple[Any, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    date: bool = False
    missing: float = 0.5


def places_of(encoding: Encoding, names: list[str]) -> dict[str, Places]:
    """Each column of the table, by name."""
    if isinstance(encoding, BoundedNumbers):
        pairs = zip(encoding.lower.tolist(), encoding.upper.tolist(), strict=True)
        told = zip(names, pairs, encoding.fills.tolist(), strict=True)
        return {
            name: Places(j, None, (), pair, missing=missing) for j, (name, pair, missing) in enumerate(told)
        }
    assert isinstance(encoding, SchemaEncoding)
    numerics, found, first = list(encoding.numerics), {}, len(encoding.numerics)
    levels = {}
    for name, labels in encoding.groups.items():
        levels[name] = (first, len(labels))
        first += len(labels)
    for name, column in encoding.schema.features.items():
        if name in numerics:
            j = numerics.index(name)
            bounds = float(encoding.lower[j]), float(encoding.upper[j])
            known = bounds, isinstance(column, Date), float(encoding.fills[j])
            found[name] = Places(j, levels.get(name), (), *known)
        else:
            values = column.values if isinstance(column, Category) else (getattr(column, "yes", True),)
            found[name] = Places(None, levels[name], tuple(values))
    return found


def effects_of(model: AdditiveModel, places: dict[str, Places]) -> tuple[Effects, Any]:
    """The effect of every column, and the score of the average record, of which they tell the difference."""
    found: Effects = {}
    intercept: Any = sum(weight * part.intercept for weight, part in model.parts())
    for name, place in places.items():
        found[name], average = (
            _levels(model, name, place) if place.numeric is None else _curve(model, name, place)
        )
        intercept = intercept + average
    for pair in sorted({pair.columns for _, part in model.parts() for pair in part.basis.pairs}):
        effect = _pair(model, pair, places)
        found[effect.name] = effect
    return found, _plain(intercept)


def in_words(model: AdditiveModel) -> str:
    """Curves or lines, and why: it follows from noisy counts and the budget."""
    pieces = max((len(curve.knots) - 1 for curve in model.basis.curves), default=0)
    if pieces > 1 and not model.basis.pairs and _straight(model):
        return "lines: noise explains what the curves had of bends"
    if pieces > 1:
        pairs = len(model.basis.pairs)
        grids = "" if not pairs else f", and {pairs} pair{'s' if pairs > 1 else ''} of columns"
        return f"curves of at most {pieces} pieces{grids}: there are enough records for this budget"
    if not model.basis.curves:
        return "levels: no column is a number"
    return "lines: there are too few records for curves at this budget"


def _straight(model: AdditiveModel) -> bool:
    """Whether all curves are lines, but for rounding."""
    for curve, start in zip(model.basis.curves, model.basis.starts, strict=False):
        values = np.zeros((len(curve.knots), *model.coefficients.shape[1:]))
        values[curve.kept] = model.coefficients[start : start + len(curve.kept)]
        if np.abs(bends(curve.knots) @ values).max(initial=0) > 1e-6 * np.abs(values).max(initial=0):
            return False
    return True


def contributions(
    model: AdditiveModel, row: Array, places: dict[str, Places], effects: Effects, intercept: Any
) -> dict[str, Any]:
    """What each column adds to the score of one encoded row, beside ``"intercept"``; together they are the score."""
    found = {"intercept": intercept}
    for name, place in places.items():
        effect = effects[name]
        if place.levels is not None:
            held = np.flatnonzero(row[place.levels[0] : sum(place.levels)])
            if place.numeric is None:
                found[name] = _plain(effect.adds[held[0]] if len(held) else effect.otherwise)
                continue
            if len(held):
                found[name] = _plain(effect.otherwise)
                continue
        assert place.numeric is not None
        lower, upper = place.bounds
        value = lower + (upper - lower) * float(row[place.numeric])
        knots = np.array(effect.at)
        columns = effect.adds.reshape(len(knots), -1)
        adds = np.array([np.interp(value, knots, column) for column in columns.T])
        found[name] = _plain(adds if effect.adds.ndim > 1 else adds[0])
    for name, effect in effects.items():
        if effect.columns is not None:
            together = [
                weight * part.together(effect.columns, row[None])[0] for weight, part in model.parts()
            ]
            found[name] = _plain(sum(together))
    return found


def _curve(model: AdditiveModel, name: str, place: Places) -> tuple[Effect, Any]:
    j = place.numeric
    assert j is not None
    parts = list(model.parts())
    knots = np.unique(np.concatenate([part.basis.curves[j].knots for _, part in parts]))
    adds = sum(weight * part.addition(j, knots) for weight, part in parts)
    share = None
    if model.histograms is not None:
        known = model.histograms
        share, _ = hat_moments(known.counts[j], known.edges[j], knots)
    average = np.tensordot(np.full(len(knots), 1 / len(knots)) if share is None else share, adds, 1)
    if place.levels is None:
        otherwise = sum(weight * part.addition(j, np.array([place.missing]))[0] for weight, part in parts)
    else:
        otherwise = sum(weight * _missing(part, j, place) for weight, part in parts)
    lower, upper = place.bounds
    at = tuple((lower + (upper - lower) * knots).tolist())
    told = np.asarray(adds - average), _plain(otherwise - average), share
    return Effect(name, "curve", at, *told, dates=(place.date,)), average


def _pair(model: AdditiveModel, pair: tuple[int, int], places: dict[str, Places]) -> Effect:
    """What two columns add together, beside what each adds alone, at the knots of their grid."""
    parts = list(model.parts())
    sides, told = [], []
    for side in (0, 1):
        name, place = next((n, p) for n, p in places.items() if p.numeric == pair[side])
        grids = [p.knots[side] for _, part in parts for p in part.basis.pairs if p.columns == pair]
        sides.append(np.unique(np.concatenate(grids)))
        told.append((name, place))
    cells = np.array([(a, b) for a in sides[0] for b in sides[1]])
    rows = np.zeros((len(cells), parts[0][1].basis.inputs.numerics))
    rows[:, pair] = cells
    adds = np.asarray(sum(weight * part.together(pair, rows) for weight, part in parts))
    lower, upper = np.transpose([place.bounds for _, place in told])
    at = tuple(map(tuple, (lower + (upper - lower) * cells).tolist()))
    name, dates = " × ".join(name for name, _ in told), tuple(place.date for _, place in told)
    return Effect(name, "pair", at, adds, 0.0 * adds[0], columns=pair, dates=dates)


def _missing(part: AdditiveModel, column: int, place: Places) -> Any:
    """What the flag of a missing value adds, and the curve at its mean where that counts as well."""
    assert place.levels is not None
    level = part.levels(place.levels[0], 1)[0]
    apart = part.basis.curves[column].missing is not None
    return level if apart else level + part.addition(column, np.array([place.missing]))[0]


def _levels(model: AdditiveModel, name: str, place: Places) -> tuple[Effect, Any]:
    assert place.levels is not None
    adds = np.asarray(sum(weight * part.levels(*place.levels) for weight, part in model.parts()))
    average = adds.mean(axis=0) if len(adds) > 1 else adds[0] * 0
    return Effect(name, "levels", place.values, adds - average, _plain(0.0 - average)), average


def _numbers_as_text(adds: Any) -> str:
    return ", ".join(f"{value:+.4g}" for value in np.atleast_1d(adds))


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else np.asarray(value)
