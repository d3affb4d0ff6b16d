"""What a guarantee means for one person: how often an attack can succeed, beside guessing.

An attacker wants to find out a secret about one person: whether they took part (:class:`Membership`), what their
record says (:class:`Reconstruction`), one value of it (:class:`AttributeInference`), or which record is theirs
(:class:`Reidentification`). The *baseline* is the attacker's chance without the person's record: they may know every
other record, and what the results would have been without the one that they are after. The success with the results
is at most the power of the best membership test at that false positive rate.

>>> from discreet.accounting import account
>>> from discreet.events import Gaussian
>>> birthday = Reconstruction(baseline=1 / 3650, what="a date of birth")
>>> bound = birthday.assess(account(Gaussian(4.0)))
>>> print(bound)
Somebody who reconstructs a date of birth with probability 0.0273% without the results does so with probability at \
most 0.0673% with them.

``calibrate(..., risk=Reconstruction(baseline=1 / 3650, at_most=2 / 3650))`` finds the least noise that keeps the
success within a limit.

Proof (Kulynych et al. 2025, arXiv 2507.06969; docs/mathematics.md has it in full). Let z be the person's record,
drawn from what the attacker believes, and D all others. Test "the results are from D and z" against "they are from D
alone, and z was drawn apart" by whether the attack succeeds on z. In the second case the results say nothing about z,
so the test is positive with at most the probability ``baseline``; in the first it is positive whenever the attack
succeeds. For every z the power of a test is at most the certified one, which is concave in the false positive rate,
so the mean over z is at most the certified power at the mean false positive rate.

No (epsilon, delta) that is charged or certified is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from discreet.accounting.gaussian import gaussian_delta_bounds
from discreet.accounting.noise_formulas import gaussian_power
from discreet.errors import InvalidParameter, real
from discreet.guarantee import Bounds, lower_text, upper_text

_MOST_LETTERS = 100


class AttackedCurve(Protocol):
    """A privacy curve, as far as attacks on it are concerned."""

    def power_bounds(self, false_alarms: float) -> Bounds: ...


@dataclass(frozen=True)
class Risk:
    """An attack with its chance without the results. ``at_most`` is the success that is still acceptable, if any.

    Use one of the kinds: :class:`Membership`, :class:`Reconstruction`, :class:`AttributeInference`,
    :class:`Reidentification`.
    """

    baseline: float
    at_most: float | None = None
    what: str = ""

    kind: ClassVar[str] = ""
    usually: ClassVar[str] = ""
    _SENTENCE: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if type(self) is Risk:
            names = ", ".join(RISKS)
            raise InvalidParameter("risk", "Risk", f"must be one of its kinds: {names}.")
        remedy = "It is the attacker's chance of success without the results, for instance 1 / 365."
        baseline = real("baseline", self.baseline, above=0, below=1, remedy=remedy)
        object.__setattr__(self, "baseline", baseline)
        if self.at_most is not None:
            remedy = "It must exceed the baseline: no noise makes an attack worse than guessing."
            at_most = real("at_most", self.at_most, above=baseline, below=1, remedy=remedy)
            object.__setattr__(self, "at_most", at_most)
        if not (isinstance(self.what, str) and len(self.what) <= _MOST_LETTERS and self.what.isprintable()):
            raise InvalidParameter("what", self.what, f"must be one line of at most {_MOST_LETTERS} letters.")

    def assess(self, attacked: AttackedCurve) -> RiskBound:
        """Bound the success of the attack on whatever has this privacy curve.

        Guarantee: no attack succeeds more often than ``success.upper``. No analysis of the same event can prove less
        than ``success.lower``.
        """
        return RiskBound(self, attacked.power_bounds(self.baseline))

    def sentence(self, success: float) -> str:
        """Say in one sentence what a bound on the success means."""
        with_results, without = percent(success), percent(self.baseline, lower=True)
        return self._SENTENCE.format(what=self.what or self.usually, success=with_results, baseline=without)


class Membership(Risk):
    """Find out whether a person took part: ``baseline`` is the false positive rate, the success is the power."""

    kind = "membership"
    _SENTENCE = (
        "Somebody who tests whether {what}, and accuses {baseline} of those who did not, finds at most {success} of "
        "those who did."
    )
    usually = "a person took part"


class Reconstruction(Risk):
    """Reconstruct a part of a record, such as a date of birth or a picture, as closely as it takes to succeed."""

    kind = "reconstruction"
    _SENTENCE = (
        "Somebody who reconstructs {what} with probability {baseline} without the results does so with probability "
        "at most {success} with them."
    )
    usually = "a record"


class AttributeInference(Risk):
    """Infer one value of a record, such as a diagnosis, by somebody who may know all other values of it."""

    kind = "attribute inference"
    _SENTENCE = (
        "Somebody who guesses {what} correctly with probability {baseline} without the results does so with "
        "probability at most {success} with them."
    )
    usually = "an attribute of a person"


class Reidentification(Risk):
    """Single out whose record it is, for instance among the ``1 / baseline`` people whom the attacker considers."""

    kind = "re-identification"
    _SENTENCE = (
        "Somebody who singles out {what} with probability {baseline} without the results does so with probability at "
        "most {success} with them."
    )
    usually = "the right person"


RISKS: dict[str, type[Risk]] = {
    kind.__name__: kind for kind in (Membership, Reconstruction, AttributeInference, Reidentification)
}
"""The kinds of attacks, by name."""


class RiskBound(NamedTuple):
    """A risk, and what is proved about the success of the attack."""

    risk: Risk
    success: Bounds

    @property
    def acceptable(self) -> bool | None:
        """Whether the success stays within ``at_most``; None if no limit was declared."""
        return None if self.risk.at_most is None else self.success.upper <= self.risk.at_most

    def __str__(self) -> str:
        return self.risk.sentence(self.success.upper)


def percent(probability: float, *, lower: bool = False) -> str:
    """A probability in percent, rounded up to three digits; down where it is the chance without the results.

    >>> percent(0.0123456), percent(0.0123456, lower=True), percent(1.0)
    ('1.24%', '1.23%', '100%')
    """
    text = lower_text if lower else upper_text
    return f"{text(100 * probability * (1 if lower else 1 - 1e-12), 3)}%"


class GaussianDP(NamedTuple):
    """A single Gaussian release that is at least as easy to attack, up to ``slack``.

    Guarantee: at every false positive rate the power of every test is at most that of a Gaussian release whose
    noise multiplier is 1 / ``mu``, plus ``slack``. ``regret`` is how far that statement exceeds the certified lower
    bound on the power where it is loosest, among the rates that were tried; it is no part of the guarantee.
    """

    mu: float
    slack: float
    regret: float

    def __str__(self) -> str:
        slack = f" up to {upper_text(self.slack, 2)}" if self.slack else ""
        return (
            f"{upper_text(self.mu)}-GDP{slack} (overstates the power by at most {upper_text(self.regret, 2)})"
        )


class _Curve(AttackedCurve, Protocol):
    def deltas(self, epsilons: list[float]) -> np.ndarray: ...


def gaussian_dp(curve: _Curve, slack: float = 1e-6) -> GaussianDP:
    """Summarise a privacy curve by one number, mu (Gomez et al. 2025, arXiv 2503.10945), proved up to ``slack``.

    Proof: with H and G the deltas of the curve and of the Gaussian release, H(e) <= G(e) + slack for every e >= 0
    bounds the power of every test by the Gaussian one plus slack, since the power is the least of H(e) + exp(e) a
    over all e, and the curve is the worse of both directions. Between two grid points H is at most its value at the
    left one and G at least its value at the right one. From the last one on, H is at most ``slack``.

    >>> from discreet.accounting import account
    >>> from discreet.events import Gaussian
    >>> found = gaussian_dp(account(Gaussian(2.0)))
    >>> 0.5 <= found.mu < 0.502, found.regret < 1e-3
    (True, True)
    """
    slack = real("slack", slack, at_least=1e-12, below=1, remedy="For instance 1e-6.")
    last = _last_epsilon(curve, slack)
    grid = np.concatenate([[0.0], last * np.linspace(1 / _POINTS, 1, _POINTS)])
    deltas = np.minimum.accumulate(np.asarray(curve.deltas(grid.tolist()), np.float64))
    if deltas[-1] > slack:
        raise InvalidParameter("slack", slack, "is less than the accountant can resolve for this event.")

    def holds(mu: float) -> bool:
        # Where the curve is below the slack there is nothing to show.
        return all(
            delta <= slack or delta <= gaussian_delta_bounds(float(right), mu).lower + slack
            for delta, right in zip(deltas[:-1], grid[1:], strict=True)
        )

    low, high = 0.0, 1e-3
    while not holds(high):
        low, high = high, 2 * high
        if high > _LARGEST_MU:
            raise InvalidParameter("curve", "event", f"is less private than {_LARGEST_MU:g}-GDP.")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    rates = (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
    loosest = max(gaussian_power(rate, high) + slack - curve.power_bounds(rate).lower for rate in rates)
    return GaussianDP(high, slack, max(0.0, min(1.0, loosest)))


_POINTS = 2_000  # of the grid between epsilon 0 and where delta is below the slack
_LARGEST_MU = 100.0


def _last_epsilon(curve: _Curve, slack: float) -> float:
    """An epsilon at which the delta is at most ``slack``."""
    last = 0.125
    while float(curve.deltas([last])[0]) > slack and last < 1e4:
        last *= 2
    low = 0.0
    for _ in range(12):
        middle = (low + last) / 2
        low, last = (low, middle) if float(curve.deltas([middle])[0]) <= slack else (middle, last)
    return last


def limit_on_power(risk: object) -> tuple[float, float]:
    """The false positive rate and the power that a risk with a limit allows, for calibration."""
    if not isinstance(risk, Risk):
        raise InvalidParameter("risk", type(risk).__name__, f"must be one of {', '.join(RISKS)}.")
    if risk.at_most is None:
        raise InvalidParameter("risk.at_most", None, "is needed: the success that is still acceptable.")
    return risk.baseline, risk.at_most
