"""Quantiles by noisy choices: the sensitivity, the privacy of the choice itself, and the intervals."""

import json
import math

import numpy as np
import pytest

from discreet import Budget, Ledger
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.ledger import GaussianFilter
from discreet.statistics import private_quantiles, quantiles
from discreet.statistics.quantiles import POINTS, _Chooser, _scale, _share

X = np.random.default_rng(0).normal(50, 10, 2000)


class Told:
    """A stream that draws no noise, and remembers its scale."""

    def __init__(self):
        self.scales = []

    def discrete_laplace(self, scale, shape):
        self.scales.append(scale)
        return np.zeros(shape, np.int64)


def missed(places, level, aside=0.0, monkey=None):
    """The scores of all points."""
    seen = []

    class Keeping(Told):
        def discrete_laplace(self, scale, shape):
            return np.zeros(shape, np.int64)

    chooser = _Chooser(places, Budget(1.0, 0.0), 1, None)
    original = np.argmax
    monkey.setattr(quantiles.np, "argmax", lambda scores: seen.append(scores) or original(scores))
    chooser._chosen(level, aside, 1.0, Keeping())
    return seen[0]


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9])
def test_one_record_changes_no_score_by_more_than_the_noise_is_for(level, monkeypatch):
    rng = np.random.default_rng(1)
    monkeypatch.setattr(quantiles, "POINTS", 50)
    most = max(_share(level), 2**20 - _share(level))
    largest = 0
    for _ in range(20):
        places = rng.integers(0, 50, 30)
        for more in (0, 17, 49):
            one, other = (missed(part, level, 3.0, monkeypatch) for part in (places, np.append(places, more)))
            largest = max(largest, np.abs(one - other).max())
    assert largest == most  # reached, and not exceeded: half the noise would be caught
    assert _scale(level, 1.0) >= 2 * most


def test_the_choice_itself_is_private(monkeypatch):
    """Frequencies of all outcomes on neighbours, against exp(epsilon). Seeded, 3.5 standard deviations of slack."""
    monkeypatch.setattr(quantiles, "POINTS", 6)
    stream, epsilon, draws = quantiles.RandomStream(unsafe_seed=5), 1.0, 8000
    counts = []
    for places in (np.array([0, 0, 5, 5]), np.array([0, 0, 5, 5, 5])):
        chooser = _Chooser(places, Budget(epsilon, 0.0), 1, None)
        chosen = [chooser._chosen(0.5, 0.0, epsilon, stream) for _ in range(draws)]
        counts.append(np.bincount(chosen, minlength=6))
    one, other = counts
    for a, b in ((one, other), (other, one)):
        assert np.all(a - math.exp(epsilon) * b <= 3.5 * np.sqrt(a + math.exp(2 * epsilon) * b + 1))


def test_quantiles_are_near_those_of_numpy():
    found = private_quantiles(X, Budget(4.0, 0.0), (0.75, 0.25, 0.5), (0, 100), unsafe_seed=1)
    assert found.value == pytest.approx(np.quantile(X, (0.75, 0.25, 0.5)), abs=0.4)
    assert found.labels == ("quantile 0.75", "quantile 0.25", "quantile 0.5")
    assert np.isnan(found.lower).all()
    assert "nan" not in str(found)
    assert json.loads(json.dumps(found.to_dict()))["lower"] == [None] * 3
    many = np.repeat([3.0, 3.0, 7.0], 500)
    assert private_quantiles(many, Budget(1.0, 0.0), 0.5, (0, 10), unsafe_seed=1).value == pytest.approx(
        3, abs=1e-3
    )
    hard = np.concatenate([X, [math.nan] * 50, [math.inf, -math.inf]])
    assert private_quantiles(hard, Budget(4.0, 0.0), 0.5, (0, 100), unsafe_seed=1).value == pytest.approx(
        50, abs=1
    )


@pytest.mark.parametrize("values", [X, np.round(X, -1), np.repeat([10.0, 90.0], 400)])
def test_intervals_hold_the_quantile_of_these_records(values):
    """At least nine of ten, by a bound; 12 releases, seeded."""
    exact = np.quantile(values, (0.3, 0.5), method="inverted_cdf")
    for seed in range(12):
        found = private_quantiles(
            values, Budget(2.0, 0.0), (0.3, 0.5), (0, 100), confidence=0.9, unsafe_seed=seed
        )
        assert np.all((found.lower <= exact) & (exact <= found.upper))
    assert found.upper[0] - found.lower[0] <= 100


def test_cost_and_ledger(tmp_path):
    for neighbours in ("add-remove", "replace-one"):
        for confidence in (None, 0.9):
            budget = Budget(1.0, 0.0, neighbours)
            found = private_quantiles(X, budget, (0.1, 0.5), (0, 100), confidence=confidence)
            assert found.guarantee.within(budget)
            assert found.guarantee.epsilon.upper > 0.999
            assert found.certificate.verify().outcome == "consistent"
    with Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-5))) as ledger, pytest.raises(UnsupportedEvent):
        private_quantiles(X, Budget(1.0, 0.0), 0.5, (0, 100), ledger=ledger)
    found = private_quantiles(X, Budget(1.0, 1e-6), 0.5, (0, 100), ledger=tmp_path / "q.ledger")
    assert found.guarantee.delta == 0.0


def test_noise_is_geometric():
    """Discrete Laplace noise, folded: its law against exp(-k / scale), exactly."""
    scale = 3.0
    laplace = {k: math.exp(-abs(k) / scale) for k in range(-60, 61)}
    folded = [laplace[k] + laplace[-1 - k] for k in range(60)]
    assert np.diff(np.log(folded)) == pytest.approx(np.full(59, -1 / scale))


def test_all_choices_together_cost_the_budget():
    for levels, confidence in ((1, None), (3, None), (3, 0.9)):
        chooser = _Chooser(np.zeros(5, np.int64), Budget(1.0, 0.0), levels, confidence)
        assert 0.999 < chooser.event.epsilon <= 1.0
        stream, asked = Told(), [0.5] * levels
        chooser.middle(asked, stream)
        if confidence is not None:
            chooser.ends(asked, stream)
        paid = sum(2 * 2**19 / scale for scale in stream.scales)
        assert paid <= chooser.event.epsilon * (1 + 1e-12)
    assert POINTS == 65_536


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"levels": 1.0}, "levels"),
        ({"levels": ()}, "levels"),
        ({"levels": (0.5, math.nan)}, "levels"),
        ({"bounds": (1, 0)}, "upper"),
        ({"confidence": 2.0}, "confidence"),
        ({"budget": 1.0}, "budget"),
        ({"budget": Budget(1e-9, 0.0)}, "epsilon"),
    ],
)
def test_what_means_nothing_is_refused_by_name(wrong, name):
    asked = {"budget": Budget(1.0, 0.0), "levels": 0.5, "bounds": (0, 1)} | wrong
    with pytest.raises(InvalidParameter, match=rf"^{name}="):
        private_quantiles(X, **asked)
