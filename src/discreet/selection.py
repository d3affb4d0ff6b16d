"""Hyper-parameter search with its true cost: the best of a *random* number of private trials.

Trying ten settings and publishing the best model costs ten trainings. If instead the number of trials is drawn at
random and kept secret, what is published cannot tell "the best of many" from "a lucky one of few", and the cost
hardly grows (Liu and Talwar 2019; Papernot and Steinke 2022). Ten trials of a training that costs 1.0, and what ten
trainings would cost:

>>> from discreet.events import Gaussian
>>> from discreet.selection import geometric_trials
>>> search = PrivateSearch(trial=Gaussian(noise_multiplier=3.731), trials=geometric_trials(mean=10))
>>> round(search.guarantee(delta=1e-5).epsilon.upper, 3), round(account(Gaussian(3.731) * 10).epsilon(1e-5), 3)
(1.625, 3.618)

The theorem used (in the manner of Koskela, Redberg, Wang 2024) holds for any distribution of the number K of trials.
Let F be its generating function, F(s) = E[s^K], and delta(epsilon) the privacy curve of a trial. Outcomes are ordered
by their score. The best of K trials has the density q(y) F'(Q(y)), where q is the density of a trial and Q(y) the
chance of a lower score; q' and Q' belong to a neighbour. If F'(Q(y)) <= e^s F'(Q'(y)) for every y, then

    q F'(Q) - e^epsilon q' F'(Q')  <=  F'(Q) (q - e^(epsilon - s) q')  <=  E[K] (q - e^(epsilon - s) q')_+

and so the search satisfies, for every total epsilon >= s,

    total delta  <=  E[K] delta(epsilon - s),     that is,     total epsilon  =  s + epsilon(delta / E[K]).

* Truncated negative binomial trials have F'(x) proportional to (1 - (1 - stop) x)^-(1 + shape). From
  1 - Q >= e^-e (1 - Q' - delta(e)) it follows that s = (1 + shape) e serves for every e >= 0 with
  delta(e) <= (e^e - 1) stop / (1 - stop). shape = 1 is the geometric distribution, shape = 0 the logarithmic one.
* Poisson trials have F'(x) = mean e^(mean (x - 1)), so s = mean delta(0) serves, for |Q - Q'| <= delta(0).
  If no trial is drawn, nothing is selected, with the same chance for neighbours. For many trials the theorem of
  Papernot and Steinke on Renyi divergences proves less; at one delta both hold, so the smaller epsilon counts.

Equal scores are told apart by a coin that knows nothing of the data, so there are no ties. Where candidates differ in
their events, the trial's curve is at most the worst of theirs.

Conditions: trials are independent and alike, each on a candidate drawn at random; whatever a score takes from the
private records is part of the trial's event; only the selected trial is seen, and not how many there were or how
long they took.

How many trials a private search makes: a random number, drawn once and kept secret.

Both distributions know what their randomness costs: the ``s`` of the theorem, and the form that
Papernot and Steinke gave it for Renyi divergences.

>>> geometric_trials(mean=10)
NegativeBinomialTrials(stop=0.1, shape=1.0)
>>> logarithmic_trials(mean=10).draw() >= 1
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Generic, NamedTuple, Protocol, TypeVar

from scipy.optimize import brentq

from discreet.accounting.curve import account
from discreet.accounting.divergences import Divergence, negative_binomial_selected, poisson_selected
from discreet.accounting.renyi import epsilon_of_divergence, mean_of_stopping, renyi_divergence
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, UnsupportedEvent, probability, real
from discreet.events import ApproximateDP, BoundedRange, Event, RenyiDP, ZeroConcentratedDP
from discreet.guarantee import Bounds, Guarantee, Neighbours
from discreet.ledger import FixedPlan, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.trusted.permits import NoisePermit, StepNoise, pay_at_once

__all__ = ["PrivateSearch", "geometric_trials"]

MOST_TRIALS = 10_000
ROUND_UP = 1 + 1e-12  # more than the rounding of the closed formulas multiplied by it

_DIGITS = Context(prec=100)


class TrialCurve(Protocol):
    """The privacy curve of one trial."""

    def epsilon(self, delta: float) -> float:
        """Proved epsilon at ``delta``."""

    def estimate(self, delta: float) -> float:
        """About the same, quickly."""

    def advantage(self) -> float:
        """Proved delta at epsilon 0."""


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """At least one trial; P(K = k) proportional to (1 - stop)^k (shape + k - 1 choose k).

    A smaller ``shape`` costs less privacy for the same mean, and spreads the number of trials wider. It lies above
    -1; 1 is the geometric distribution and 0 the logarithmic one.
    """

    stop: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        shape = real("shape", self.shape, above=-1, at_most=100)
        shape = shape if abs(shape) > 1e-20 else 0.0  # the distribution is the same to 1e-18
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stop", real("stop", self.stop, at_least=1e-12, below=1))
        real("mean", self.mean, at_least=1, at_most=2 * MOST_TRIALS, remedy="Choose a larger stop.")

    @property
    def mean(self) -> float:
        """The expected number of trials, rounded up."""
        return mean_of_stopping(self.stop, self.shape) * ROUND_UP

    @property
    def chance_of_any(self) -> float:
        """There is always a trial."""
        return 1.0

    def extra_epsilon(self, trial: TrialCurve) -> float:
        """(1 + shape) e, for some e with delta(e) <= (exp(e) - 1) stop / (1 - stop).

        Let d(x) be the right side at x, which grows with x. For every x, e = max(x, epsilon(d(x))) satisfies the
        condition, for delta(e) <= d(x) <= d(e). The estimate finds a good x.
        """

        def allowed(x: float) -> float:
            return min(math.expm1(min(x, 700.0)) * self.stop / (1 - self.stop), 0.999)

        def excess(x: float) -> float:
            return trial.estimate(allowed(x)) - x

        most = 1e-6
        while excess(most) > 0:
            most *= 2
        x = float(brentq(excess, most / 2, most, rtol=1e-4)) if most > 1e-6 else most
        return (1 + self.shape) * max(x, trial.epsilon(allowed(x) / ROUND_UP)) * ROUND_UP

    def renyi(self, divergence: Divergence) -> Divergence:
        """Renyi divergence of the search from that of a trial."""
        return negative_binomial_selected(divergence, math.log(self.stop), self.mean, self.shape)

    def draw(self, stream: RandomStream | None = None) -> int:
        """A number of trials. It is a secret: against whoever learns it there is no guarantee."""
        stop, shape, one = Decimal(self.stop), Decimal(self.shape), Decimal(1)
        go_on, log_stop = _DIGITS.subtract(one, stop), _DIGITS.ln(stop)
        if shape:
            total = _DIGITS.subtract(_DIGITS.exp(_DIGITS.multiply(-shape, log_stop)), one)
            first = _DIGITS.divide(_DIGITS.multiply(go_on, shape), total)
        else:
            first = _DIGITS.divide(go_on, -log_stop)

        def ratio(k: int) -> Decimal:
            return _DIGITS.divide(_DIGITS.multiply(go_on, _DIGITS.add(shape, Decimal(k))), Decimal(k + 1))

        return _draw(1, first, ratio, stream)


@dataclass(frozen=True)
class PoissonTrials:
    """A Poisson number of trials, possibly none. Cheap in privacy for a few trials only."""

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real("mean", self.mean, at_least=0.01, at_most=MOST_TRIALS))

    @property
    def chance_of_any(self) -> float:
        """The chance that something is selected."""
        return -math.expm1(-self.mean)

    def extra_epsilon(self, trial: TrialCurve) -> float:
        """mean delta(0)."""
        return self.mean * trial.advantage() * ROUND_UP

    def renyi(self, divergence: Divergence) -> Divergence:
        """Renyi divergence of the search from that of a trial."""
        return poisson_selected(divergence, self.mean)

    def draw(self, stream: RandomStream | None = None) -> int:
        """A number of trials. It is a secret: against whoever learns it there is no guarantee."""
        mean = Decimal(self.mean)
        return _draw(0, _DIGITS.exp(-mean), lambda k: _DIGITS.divide(mean, Decimal(k + 1)), stream)


Trials = NegativeBinomialTrials | PoissonTrials
"""The distribution of the number of trials."""


def geometric_trials(mean: float) -> NegativeBinomialTrials:
    """After every trial the search ends with the same chance, 1 / mean."""
    return NegativeBinomialTrials(1 / _check_mean(mean), 1.0)


def logarithmic_trials(mean: float) -> NegativeBinomialTrials:
    """Cheaper than geometric trials of the same mean: more often very few, now and then very many."""
    mean = _check_mean(mean)
    log_stop = brentq(
        lambda x: mean_of_stopping(math.exp(x), 0.0) - mean, math.log(1e-12), -1e-12, xtol=1e-15
    )
    return NegativeBinomialTrials(math.exp(log_stop), 0.0)


def _check_mean(mean: object) -> float:
    remedy = "It is the expected number of trials."
    return real("mean", mean, at_least=1.001, at_most=MOST_TRIALS, remedy=remedy)


def _draw(
    least: int, probability: Decimal, ratio: Callable[[int], Decimal], stream: RandomStream | None
) -> int:
    """A draw from probabilities with known ratios, by 256 random bits and 100 digits: exact to about 1e-77."""
    bits = int.from_bytes((stream or system_stream()).bytes(32), "big")
    left, count = _DIGITS.divide(Decimal(2 * bits + 1), Decimal(2**257)), least
    while left > probability and not (probability < Decimal("1e-80") and ratio(count) < 1):
        left = _DIGITS.subtract(left, probability)
        probability = _DIGITS.multiply(probability, ratio(count))
        count += 1
    return count


Candidate = TypeVar("Candidate")
Outcome = TypeVar("Outcome")

OBSERVER = "sees the selected trial only"
BLACK_BOXES = (ApproximateDP, BoundedRange, RenyiDP, ZeroConcentratedDP)
"""Events of which nothing is known but a bound, which was proved for one kind of neighbours."""


class Selected(NamedTuple, Generic[Candidate, Outcome]):
    """What a search releases."""

    candidate: Candidate
    outcome: Outcome
    score: float


@dataclass(frozen=True)
class PrivateSearch:
    """The best of a random number of trials. One object runs the search and tells its cost.

    ``trial`` is the event of one trial. Where candidates differ in their events, give them all as a tuple: the
    costliest counts.
    """

    trial: Event | tuple[Event, ...]
    trials: Trials

    def __post_init__(self) -> None:
        if not isinstance(self.trials, NegativeBinomialTrials | PoissonTrials):
            remedy = "must be the law of a random number, such as geometric_trials(mean=10); n trials cost n events."
            raise InvalidParameter("trials", self.trials, remedy)
        if not self._events() or not all(isinstance(event, Event) for event in self._events()):
            raise InvalidParameter("trial", self.trial, "must be an event, or a tuple of events.")

    def guarantee(
        self, delta: float, neighbours: Neighbours = "add-remove", group_size: int = 1
    ) -> Guarantee:
        """The cost of releasing the selected trial: candidate, outcome and score.

        Guarantee: the upper bound holds for every score. The lower one is the cost of a useless score; the worst
        score that we know for Gaussian trials costs 85 to 95 % of the upper bound.
        """
        delta = real("delta", delta, at_least=0, below=1)
        trial = self._trial(neighbours, group_size)
        bounds = Bounds(trial.least(self.trials, delta), trial.total(self.trials, delta))
        return Guarantee(bounds, delta, neighbours, group_size, OBSERVER)

    def event(self, delta: float, neighbours: Neighbours = "add-remove") -> ApproximateDP:
        """The search as a black box, to be charged to a ledger or composed with what else is released.

        Guarantee: valid for one record under these neighbours.
        """
        return ApproximateDP(self.guarantee(delta, neighbours).epsilon.upper, delta)

    def second_opinion(self, delta: float, neighbours: Neighbours = "add-remove") -> float:
        """Epsilon by the theorems of Papernot and Steinke on Renyi divergences: mostly larger, proved otherwise."""
        return self._trial(neighbours, 1).renyi_total(self.trials, delta)

    def run(
        self,
        candidates: Sequence[Candidate],
        train: Callable[[Candidate], Outcome],
        score: Callable[[Outcome], float],
        stream: RandomStream | None = None,
        *,
        ledger: AnyLedger = None,
        ledger_key: KeyFile = None,
        delta: float | None = None,
        name: str = "search",
        neighbours: Neighbours = "add-remove",
    ) -> Selected[Candidate, Outcome] | None:
        """Search: draw a number of trials, train a random candidate in each, return the one that scores best.

        ``train`` must release no more than the event of a trial, with fresh noise each time; ``score`` must see
        its outcome and public data only. A score that is no number counts as minus infinity. None if no trial was
        drawn.

        With ``delta`` the whole search is charged first, as one black box: :meth:`event` at this ``delta``, in a run
        of this ``name``, to the ``ledger`` (:mod:`~discreet.ledger.till`) or to one in memory. If it does not fit,
        nothing is trained or drawn. The ledger's rule must hold that event: a FixedPlan that lists it, or a
        TruncatedRenyiFilter; one that is begun here is for this search alone. A ``ledger`` needs ``delta``. Without
        both the search has no price yet and nothing is charged: :meth:`guarantee` tells it at every delta.
        ``neighbours`` are those of a trial that is known by its epsilon alone, such as the ``event()`` of most
        models: then the ledger must be for the same ones. ``train`` itself charges nothing: the number of trials is
        secret.

        Guarantee: :meth:`guarantee`, for an observer who sees the returned value only.
        """
        if len(candidates) == 0:
            raise InvalidParameter("candidates", candidates, "must hold at least one candidate.")
        stream, best = stream or system_stream(), None
        if (ledger, ledger_key, delta) != (None, None, None):
            stream = self._charge(ledger, ledger_key, delta, name, neighbours, stream).randomness()
        for _ in range(self.trials.draw(stream)):
            candidate = candidates[int(stream.integers(len(candidates)))]
            outcome = train(candidate)
            value = _as_score(score(outcome))
            # The first of equal scores wins. Trials are alike, so a coin would give the same distribution.
            if best is None or value > best.score:
                best = Selected(candidate, outcome, value)
        return best

    def _charge(
        self,
        ledger: AnyLedger,
        ledger_key: KeyFile,
        delta: float | None,
        name: str,
        neighbours: Neighbours,
        stream: RandomStream,
    ) -> NoisePermit:
        """Pay for the whole search, and return the permit for its random choices."""
        delta = probability(
            "delta", delta, remedy="It is the part of the budget's delta that the search may use."
        )
        alone = FixedPlan.at_its_cost(self.event(delta, neighbours), delta, neighbours)
        with Till.open(ledger, alone, key=ledger_key) as till:
            if any(isinstance(part, BLACK_BOXES) for event in self._events() for part, _ in event.parts()):
                till.refuse_other_neighbours()
            event = self.event(delta, till.ledger.rule.budget.neighbours)
            return pay_at_once(till, StepNoise.of_choice(event, "random search"), None, stream, name=name)

    def _events(self) -> tuple[Event, ...]:
        return self.trial if isinstance(self.trial, tuple) else (self.trial,)

    def _trial(self, neighbours: Neighbours, group_size: int) -> _Trial:
        return _Trial(self._events(), neighbours, group_size)


def _as_score(value: object) -> float:
    """A number; an error here would tell of a trial that is not selected."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return -math.inf
    return -math.inf if math.isnan(number) else number


class _Trial:
    """The privacy curve of one trial: the worst of its candidates."""

    def __init__(self, events: tuple[Event, ...], neighbours: Neighbours, group_size: int) -> None:
        self.events, self.neighbours, self.group_size = events, neighbours, group_size
        self.curves = [account(event, neighbours, group_size) for event in events]

    def epsilon(self, delta: float) -> float:
        return max(curve.epsilon(delta) for curve in self.curves)

    def estimate(self, delta: float) -> float:
        return max(curve.estimate_epsilon(delta) for curve in self.curves)

    def advantage(self) -> float:
        return max(curve.delta(0.0, tolerance=1e-3) for curve in self.curves)

    def total(self, trials: Trials, delta: float) -> float:
        """The theorem: s + epsilon(delta / E[K]); or, for many Poisson trials, what Renyi divergences prove."""
        extra = trials.extra_epsilon(self)
        bound = (extra + self.epsilon(delta / (trials.mean * ROUND_UP))) * ROUND_UP
        # Where s is not the larger part, the other theorem proves more and takes longer; this choice is a guess.
        if isinstance(trials, PoissonTrials) and delta > 0 and self.group_size == 1 and 2 * extra > bound:
            with suppress(UnsupportedEvent):
                return min(bound, self.renyi_total(trials, delta))
        return bound

    def renyi_total(self, trials: Trials, delta: float) -> float:
        """Epsilon by the theorem on Renyi divergences, at the worst candidate of each order."""

        def divergence(order: float) -> float:
            return max(renyi_divergence(event, order, self.neighbours) for event in self.events)

        return epsilon_of_divergence(trials.renyi(divergence), delta)

    def least(self, trials: Trials, delta: float) -> float:
        """What the search costs at least: with a useless score it releases one trial, unless none is drawn."""
        raised = min(delta * ROUND_UP / trials.chance_of_any, 0.999)
        return max(curve.epsilon_bounds(raised).lower for curve in self.curves)
