"""How well joint training does: excess-risk bounds of SGD1 and SGD2, with every constant.

The risk is the notes' *sum* of the losses of all records; divide by n for the mean. All bounds rest on the second
moment of an update,

    G^2 = (n lipschitz)^2 + messages * dimension * noise_std^2

where ``messages`` noisy messages make one update: 1 in SGD1, one from each party in SGD2. (With secure sums each of
them carries a share of the noise only, so their sum has the noise of one.) The losses must be convex and clipping
must not be felt; projection onto the set never hurts.

* **Last iterate** (Shamir and Zhang 2013), with the steps of :mod:`discreet.parties.notes`;
* **weighted average** (Lacoste-Julien, Schmidt, Bach 2012): no logarithm;
* **average iterate** with a constant step.

>>> square = second_moment(records=100, lipschitz=1.0, dimension=10, noise_std=11356.25759)
>>> excess = last_excess(diameter=1.0, second_moment=square, steps=100**2)
>>> round(excess, 4), is_vacuous(excess, records=100, lipschitz=1.0, diameter=1.0)
(8051.6653, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from discreet.errors import InvalidParameter, real, whole
from discreet.parties.arrangement import Arrangement


def second_moment(
    records: int, lipschitz: float, dimension: int, noise_std: float, messages: int = 1
) -> float:
    """(n lipschitz)^2 + messages dimension noise_std^2: the expected squared length of an update, at most."""
    length = whole("records", records, at_least=1) * real("lipschitz", lipschitz, above=0)
    noise = real("noise_std", noise_std, at_least=0) ** 2 * whole("dimension", dimension, at_least=1)
    return length**2 + whole("messages", messages, at_least=1) * noise


def last_excess(diameter: float, second_moment: float, steps: int) -> float:
    """Expected excess risk of the last iterate, convex losses: 2 diameter G (2 + ln T) / sqrt(T).

    With steps diameter / (G sqrt(t)), projected onto a convex set of this diameter.
    """
    diameter, square = real("diameter", diameter, above=0), real("second_moment", second_moment, above=0)
    steps = whole("steps", steps, at_least=1)
    return 2 * diameter * math.sqrt(square / steps) * (2 + math.log(steps))


def average_excess(distance: float, second_moment: float, steps: int, step_size: float) -> float:
    """Expected excess risk of the average iterate, convex: distance^2 / (2 T step) + step G^2 / 2.

    ``distance`` is that of the start from the best parameter. Erratum: the notes' (12) has no T in the first term.
    """
    distance, square = real("distance", distance, above=0), real("second_moment", second_moment, above=0)
    steps, step_size = whole("steps", steps, at_least=1), real("step_size", step_size, above=0)
    return distance**2 / (2 * steps * step_size) + step_size * square / 2


def strongly_convex_last_excess(convexity: float, records: int, second_moment: float, steps: int) -> float:
    """Expected excess risk of the last iterate: 17 G^2 (1 + ln T) / (n convexity T), with steps 1 / (n convexity t).

    ``convexity`` is the strong convexity of one record's loss.
    """
    steps = whole("steps", steps, at_least=1)
    return 17 * _per_convexity(convexity, records, second_moment) * (1 + math.log(steps)) / steps


def strongly_convex_weighted_excess(
    convexity: float, records: int, second_moment: float, steps: int
) -> float:
    """Expected excess risk of the average with weights t: 2 G^2 / (n convexity (T + 1)).

    With steps 2 / (n convexity (t + 1)). Erratum: this stands in place of the notes' (11).
    """
    steps = whole("steps", steps, at_least=1)
    return 2 * _per_convexity(convexity, records, second_moment) / (steps + 1)


def is_vacuous(excess: float, records: int, lipschitz: float, diameter: float) -> bool:
    """True where a bound says nothing: no model in the set is worse than n lipschitz diameter.

    For the noise of the notes this is so up to very many records, and should be said.
    """
    worst = whole("records", records, at_least=1) * real("lipschitz", lipschitz, above=0)
    return real("excess", excess, at_least=0) >= worst * real("diameter", diameter, above=0)


@dataclass(frozen=True)
class Prediction:
    """What the theory promises of an arrangement, per record: bounds on the excess of the mean loss."""

    last: float
    strongly_convex_last: float | None
    strongly_convex_average: float | None
    vacuous: bool
    """True where not even the best of them says anything."""


def predict_excess(
    arrangement: Arrangement,
    clip_norm: float,
    dimension: int,
    diameter: float,
    convexity: float | None = None,
) -> Prediction:
    """The bounds for an arrangement with its noise, all records in every round and equal weights.

    ``convexity`` is the strong convexity of one record's loss, if there is any.
    """
    if arrangement.rate < 1 or arrangement.weights is not None:
        raise InvalidParameter(
            "arrangement", arrangement.algorithm, "has bounds for rate=1 and no weights only."
        )
    records, steps, clip_norm = arrangement.records, arrangement.tokens, real("clip_norm", clip_norm, above=0)
    sgd1 = arrangement.algorithm == "sgd1"
    scale = clip_norm * (records if sgd1 else arrangement.noise_share)
    messages = 1 if sgd1 else len(arrangement.parties)
    square = second_moment(records, clip_norm, dimension, arrangement.noise * scale, messages)
    found = [last_excess(diameter, square, steps)]
    if convexity is not None:
        found.append(strongly_convex_last_excess(convexity, records, square, steps))
        found.append(strongly_convex_weighted_excess(convexity, records, square, steps))
    vacuous = is_vacuous(min(found), records, clip_norm, diameter)
    last, strong, average, *_ = [*(excess / records for excess in found), None, None]
    assert last is not None
    return Prediction(last, strong, average, vacuous)


def _per_convexity(convexity: float, records: int, second_moment: float) -> float:
    convexity, records = real("convexity", convexity, above=0), whole("records", records, at_least=1)
    return real("second_moment", second_moment, above=0) / (records * convexity)
