"""Was this record used? A membership attack on a released model, against what the certificate allows.

The attacker computes a score for a record, large where the record seems to have been used, and raises an alarm
above some threshold. Hits and false alarms over all thresholds are the attack's ROC curve. A certified privacy
curve leaves a region that no attack on any record can leave.

>>> from discreet.accounting.curve import account
>>> from discreet.events import Gaussian
>>> rng = np.random.default_rng(0)
>>> attack = membership(rng.normal(1, 1, 4000), rng.normal(0, 1, 4000), account(Gaussian(1.0)), delta=1e-5)
>>> print(attack)
attack: 68 % right, 36 % more hits than false alarms; epsilon >= 3.8 at 95 % confidence, claimed 4.378
>>> attack.contradicts
False
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from discreet.accounting.curve import PrivacyCurve
from discreet.audit.bounds import Trials, refuted_step
from discreet.audit.claims import Claim
from discreet.errors import InvalidParameter, probability, real
from discreet.guarantee import lower_text, upper_text

Floats = NDArray[np.float64]
_POINTS = 201


@dataclass(frozen=True, eq=False)
class Membership:
    """Accuracy of a membership inference attack, with the certified bound.

    For the figure: ``hits`` against ``alarms`` is the attack, ``hits_low`` and ``hits_high`` bound its true curve at
    every point at once with probability ``confidence``, and ``most_hits`` is the certified limit.
    """

    alarms: Floats = field(repr=False)
    hits: Floats = field(repr=False)
    hits_low: Floats = field(repr=False)
    hits_high: Floats = field(repr=False)
    most_hits: Floats = field(repr=False)
    accuracy: float
    advantage: float
    lower: float
    claimed: float
    delta: float
    confidence: float
    contradicts: bool

    def __str__(self) -> str:
        verdict = "; THE CLAIM IS CONTRADICTED" if self.contradicts else ""
        return (
            f"attack: {100 * self.accuracy:.0f} % right, "
            + f"{100 * self.advantage:.0f} % more hits than false alarms; "
            + f"epsilon >= {lower_text(self.lower, 2)} at {self.confidence * 100:g} % confidence, "
            + f"claimed {upper_text(self.claimed)}{verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with arrays as lists."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }


def membership(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    curve: PrivacyCurve,
    *,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Membership:
    """Compare an attack's scores of used and of unused records with a certified ``curve``.

    For the bound to mean what it says, each score comes from a training run of its own (or from records whose scores
    are independent, as those of canaries on different coordinates are), and the score is fixed beforehand.
    The threshold is chosen on every second score, and the bound is computed from the others.

    Guarantee: if the curve holds, ``contradicts`` is True with probability at most 1 - ``confidence``.
    """
    if not isinstance(curve, PrivacyCurve):
        raise InvalidParameter(
            "curve", type(curve).__name__, "must be a PrivacyCurve; account(event) makes one."
        )
    used, unused = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    error = 1 - probability("confidence", confidence)
    claim = Claim.of(curve, delta=real("delta", delta, at_least=0, below=1))
    trials = Trials.count(used[1::2], unused[1::2], _best_threshold(used[0::2], unused[0::2]))
    alarms = np.linspace(0, 1, _POINTS) ** 2  # close together where false alarms are few
    hits, low, high = _roc(used, unused, alarms, error)
    thresholds = np.unique(np.concatenate((used, unused)))
    gaps = _above(used, thresholds) - _above(unused, thresholds)
    advantage = float(max(0.0, gaps.max()))
    step = refuted_step(trials, claim, error)
    return Membership(
        alarms,
        hits,
        low,
        high,
        np.array([curve.power(float(rate)) for rate in alarms]),
        0.5 + advantage / 2,
        advantage,
        0.0 if step is None else claim.epsilon_at(step),
        claim.epsilon,
        claim.delta,
        confidence,
        step is not None and step <= 0,
    )


def _scores(name: str, values: ArrayLike) -> Floats:
    scores = np.asarray(values, dtype=np.float64).reshape(-1)
    if scores.size < 4 or np.isnan(scores).any():
        raise InvalidParameter(name, scores.size, "must be at least four scores, none of them NaN.")
    return scores


def _above(scores: Floats, thresholds: Floats) -> Floats:
    """The share of scores above each threshold."""
    return 1 - np.searchsorted(np.sort(scores), thresholds, side="right") / scores.size


def _roc(used: Floats, unused: Floats, alarms: Floats, error: float) -> tuple[Floats, Floats, Floats]:
    """Hits at each rate of false alarms, and a band that holds everywhere at once.

    Both empirical distribution functions are within sqrt(log(4 / error) / 2n) of the true ones everywhere, each
    with probability 1 - error / 2 (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990).
    """
    of_hits, of_alarms = (np.sqrt(np.log(4 / error) / (2 * scores.size)) for scores in (used, unused))

    def hits_at(rates: Floats) -> Floats:
        ordered = np.sort(unused)[::-1]
        place = np.floor(np.clip(rates, 0, 1) * unused.size + 1e-9).astype(np.int64)
        thresholds = np.append(ordered, -np.inf)[place]
        shares = _above(used, thresholds)
        return np.where(place >= unused.size, 1.0, shares)

    low = np.where(alarms < of_alarms, 0.0, hits_at(alarms - of_alarms) - of_hits)
    high = np.where(alarms + of_alarms >= 1, 1.0, hits_at(alarms + of_alarms) + of_hits)
    return hits_at(alarms), np.clip(low, 0, 1), np.clip(high, 0, 1)


def _best_threshold(used: Floats, unused: Floats) -> float:
    """Threshold at which a Gaussian release with these error rates would separate best.

    Rates are pulled away from 0 and 1 by half a count, so that a threshold beyond all scores wins nothing.
    """
    thresholds = np.unique(np.concatenate((used, unused)))
    hits = (_above(used, thresholds) * used.size + 0.5) / (used.size + 1)
    alarms = (_above(unused, thresholds) * unused.size + 0.5) / (unused.size + 1)
    errors = np.sqrt(hits * (1 - hits) / used.size) / _density(hits) + np.sqrt(
        alarms * (1 - alarms) / unused.size
    ) / _density(alarms)
    separation = ndtri(hits) - ndtri(alarms) - 2 * errors
    return float(thresholds[int(np.argmax(separation))])


def _density(rates: Floats) -> Floats:
    """The normal density at the quantile of each rate: how an error of a rate becomes one of its quantile."""
    return np.asarray(np.exp(-0.5 * ndtri(rates) ** 2) / np.sqrt(2 * np.pi))
