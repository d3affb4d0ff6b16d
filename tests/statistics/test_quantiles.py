"""Quantiles by noisy choices: the sensitivity, the privacy of the choices themselves, and the intervals."""

import itertools
import json
import math

import numpy as np
import pytest

from discreet import Budget, Ledger
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.ledger import GaussianFilter
from discreet.statistics import private_quantiles
from discreet.trusted import choices as quantiles
from discreet.trusted.choices import POINTS, Quantiles, _Chooser, _scale, _sensitivity, _share

X = np.random.default_rng(0).normal(50, 10, 2000)


class Told:
    """A stream that draws no noise, and remembers its scale."""

    def __init__(self):
        self.scales = []

    def discrete_laplace(self, scale, shape):
        self.scales.append(scale)
        return np.zeros(shape, np.int64)

    def integers(self, bound, shape):
        return np.zeros(shape, np.int64)


def chooser_of(places, budget, levels=1, confidence=None):
    even = tuple((k + 1) / (levels + 1) for k in range(levels))
    query = Quantiles(even, 0.0, 1.0, budget.epsilon, confidence, budget.neighbours, budget.group_size)
    return _Chooser(places, query)


def missed(places, level, aside=0.0, monkey=None):
    """The scores of all points."""
    seen = []

    class Keeping(Told):
        def discrete_laplace(self, scale, shape):
            return np.zeros(shape, np.int64)

    chooser = chooser_of(places, Budget(1.0, 0.0))
    original = np.argmax
    monkey.setattr(quantiles.np, "argmax", lambda scores: seen.append(scores) or original(scores))
    chooser._choose(level, aside, 1.0, Keeping())
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
    assert _scale(_sensitivity(_share(level), Budget(1.0, 0.0), alone=True), 1.0) >= 2 * most


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9])
def test_one_record_exchanged_changes_no_score_by_more_than_the_noise_is_for(level, monkeypatch):
    """All exchanges in small tables. Where the other records are few, a rank beyond them is asked for, too."""
    monkeypatch.setattr(quantiles, "POINTS", 5)
    largest = 0
    for others in itertools.combinations_with_replacement(range(5), 3):
        for aside in (0.0, 9.0):
            tables = [np.array([*others, one]) for one in range(5)]
            scores = [missed(table, level, aside, monkeypatch) for table in tables]
            largest = max(largest, *(np.abs(a - b).max() for a, b in itertools.combinations(scores, 2)))
    assert largest == 2**20 == _sensitivity(_share(level), Budget(1.0, 0.0, "replace-one"), alone=True)


def test_the_choice_itself_is_private(monkeypatch):
    """Frequencies of all outcomes on neighbours, against exp(epsilon). Seeded, 3.5 standard deviations of slack."""
    monkeypatch.setattr(quantiles, "POINTS", 6)
    stream, epsilon, draws = quantiles.RandomStream(unsafe_seed=5), 1.0, 8000
    counts = []
    for places in (np.array([0, 0, 5, 5]), np.array([0, 0, 5, 5, 5])):
        chooser = chooser_of(places, Budget(epsilon, 0.0))
        chosen = [chooser._choose(0.5, 0.0, epsilon, stream) for _ in range(draws)]
        counts.append(np.bincount(chosen, minlength=6))
    one, other = counts
    for a, b in ((one, other), (other, one)):
        assert np.all(a - math.exp(epsilon) * b <= 3.5 * np.sqrt(a + math.exp(2 * epsilon) * b + 1))


class Script:
    """Stands for the draw of one of several places: follows a list, and multiplies the chances of what is on it."""

    def __init__(self, wanted):
        self.wanted, self.log_chance, self.options = list(wanted), 0.0, None

    def choose(self, scores, sizes, scale, stream):
        weights = np.exp(-np.repeat(scores, sizes) / scale)
        if not self.wanted:
            self.options = len(weights)
            raise StopIteration
        place = self.wanted.pop(0)
        self.log_chance += math.log(weights[place] / weights.sum())
        group = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
        return group, place - int(sizes[:group].sum())


def exact_law(spread, budget, levels, monkeypatch):
    """Log chances of all outcomes of a table of these places, by all sequences of choices."""
    law, scripts = {}, [()]
    chooser = chooser_of(np.array([], np.int64), budget, len(levels))
    while scripts:
        taken = scripts.pop()
        script = Script(taken)
        monkeypatch.setattr(quantiles, "exponential_mechanism", script.choose)
        try:
            found = chooser._split(levels, (0.0, 1.0), np.array(spread, np.int64), (0, 3), None)
        except StopIteration:
            scripts += [(*taken, place) for place in range(script.options)]
        else:
            law.setdefault(tuple(found), []).append(script.log_chance)
    assert sum(math.exp(log) for (log,) in law.values()) == pytest.approx(1)
    return {outcome: log for outcome, (log,) in law.items()}


def largest_loss(neighbours, monkeypatch, levels=(0.2, 0.5, 0.9), epsilon=1.5):
    """Over all small tables, their neighbours and all outcomes of three choices."""
    budget, laws, most = Budget(epsilon, 0.0, neighbours), {}, 0.0
    for size in range(5):
        for spread in itertools.combinations_with_replacement(range(4), size):
            laws[spread] = exact_law(spread, budget, list(levels), monkeypatch)
    for spread, law in laws.items():
        less = [spread[:i] + spread[i + 1 :] for i in range(len(spread))]
        if neighbours == "replace-one":
            near = [tuple(sorted((*part, other))) for part in less for other in range(4)]
        else:
            near = less
        for other in near:
            most = max(most, *(abs(law[outcome] - laws[other][outcome]) for outcome in law))
    return most


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_all_rounds_together_are_private_on_all_small_tables(neighbours, monkeypatch):
    """The exact law of the code's own choices: brute force over tables, neighbours and outcomes."""
    assert 0.5 * 1.5 < largest_loss(neighbours, monkeypatch) <= 1.5


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_half_the_sensitivity_is_found_out(neighbours, monkeypatch):
    """The broken twin of the test above."""
    monkeypatch.setattr(quantiles, "_sensitivity", lambda *asked, **how: _sensitivity(*asked, **how) // 2)
    assert largest_loss(neighbours, monkeypatch) > 1.5


def one_more_changes_one_part_by_one(parted):
    """Over all small tables: a record more is in one part, and the other records stay where they were."""
    tables = [table for size in range(4) for table in itertools.combinations_with_replacement(range(4), size)]
    for table, more, place in itertools.product(tables, range(4), range(4)):
        before, after = (
            [sorted(part.tolist()) for part in parted(np.sort(np.array(records, np.int64)), place)]
            for records in (table, (*table, more))
        )
        side = int(more > place)
        before[side] = sorted([*before[side], more])
        if before != after:
            return False
    return True


def test_which_part_a_record_is_in_depends_on_nobody_else():
    assert one_more_changes_one_part_by_one(quantiles._part)
    by_rank = lambda spread, place: (spread[: len(spread) // 2], spread[len(spread) // 2 :])  # noqa: E731
    assert not one_more_changes_one_part_by_one(by_rank)
    assert not one_more_changes_one_part_by_one(lambda spread, place: (spread, spread))


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


def test_intervals_of_few_records_reach_the_bounds():
    """Where so much aside there is no record, the end is the bound: no point that merely has most of them."""
    few = np.array([10.0, 20.0, 30.0, 70.0, 90.0])
    for seed in range(20):
        found = private_quantiles(few, Budget(1.0, 0.0), 0.9, (0, 100), confidence=0.95, unsafe_seed=seed)
        assert found.lower <= 90 <= found.upper


def test_cost_and_ledger(tmp_path):
    asked = itertools.product(("add-remove", "replace-one"), (1, 3), (None, 0.9))
    for neighbours, group_size, confidence in asked:
        budget = Budget(1.0, 0.0, neighbours, group_size=group_size)
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


@pytest.mark.parametrize(("levels", "confidence"), [(1, None), (3, None), (3, 0.9), (7, None)])
def test_all_choices_together_cost_the_budget(levels, confidence, monkeypatch):
    chooser = chooser_of(np.zeros(5, np.int64), Budget(1.0, 0.0), levels, confidence)
    even = tuple((k + 1) / (levels + 1) for k in range(levels))
    event = Quantiles(even, 0.0, 1.0, 1.0, confidence).event
    assert 0.999 < event.epsilon <= 1.0
    stream, rounds = Told(), []

    def choose(scores, sizes, scale, stream):
        rounds.append(scale)
        return int(np.argmax(sizes)), 0

    monkeypatch.setattr(quantiles, "exponential_mechanism", choose)
    chooser.middle(list(even), stream)  # all split their part in half
    if confidence is not None:
        chooser.ends((0.5,) * levels, 0.05, stream)
    paid = sum(2 * 2**19 / scale for scale in stream.scales)
    if rounds:
        assert len(rounds) == levels
        paid += math.log2(levels + 1) * 2 * 2**19 / min(rounds)
    assert 0.999 < paid <= event.epsilon * (1 + 1e-12)
    assert POINTS == 65_536


def test_many_equal_numbers_are_split():
    """Of 80 % zeros the quartiles are 0, and what is above them is found among the others."""
    values = np.concatenate([np.zeros(8000), np.linspace(1, 9, 2000)])
    found = private_quantiles(values, Budget(4.0, 0.0), (0.25, 0.5, 0.75, 0.9), (0, 10), unsafe_seed=3)
    assert found.value == pytest.approx([0, 0, 0, 5], abs=0.1)


def test_several_levels_cost_less_than_one_by_one():
    """Seven levels pay three times, not seven, and less for those beside the middle. 20 releases each, seeded."""

    def error(budget, asked):
        found = [private_quantiles(X, budget, asked, (0, 100), unsafe_seed=k).value for k in range(20)]
        return np.sqrt(np.mean((np.array(found) - np.quantile(X, asked)) ** 2, axis=0))

    together = error(Budget(1.0, 0.0), [k / 8 for k in range(1, 8)])
    assert together[0] < 0.6 * error(Budget(1 / 7, 0.0), 0.125)
    assert together[3] < 0.8 * error(Budget(1 / 7, 0.0), 0.5)


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
