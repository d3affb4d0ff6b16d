"""Every observer's epsilon: the two tables of the theory, and brute force of small arrangements."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from discreet import account
from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.events import Event, FixedSizeSampled, Gaussian, PoissonSampled
from discreet.guarantee import Budget
from discreet.parties.arrangement import OVERRUN, Arrangement
from discreet.parties.notes import sgd1_noise_std
from discreet.parties.observation.binomial import most_likely_count
from discreet.parties.observation.mixtures import MixtureCurve, RandomRepeats
from discreet.parties.observation.observer_views import OBSERVERS, contracted_noise, party_event, views
from discreet.parties.observation.observers import noise_for, observers

TEN = {f"party-{i}": 100 for i in range(10)}
TIGHT = 74.6126326963  # at 100 rounds, (1, 1e-5) against the coordinator


def epsilon(table, name):
    return table[name].guarantee.epsilon.upper


def noises(event):
    """The noise multiplier of a plain Gaussian event, and its count."""
    ((gaussian, count),) = event.parts()
    return gaussian.noise_multiplier, count


def test_sgd2_plain():
    table = observers(Arrangement("sgd2", TEN, TIGHT, rounds=100), 1e-5, coalition=3)
    reference = {
        "final model": 0.284543,
        "broadcasts": 0.284543,
        "messages": 1.0,
        "traffic": 1.0,
        "another party": 0.301348,
        "colluding parties": 0.345547,
        "coordinator": 1.0,
        "coordinator and colluders": 1.0,
        "everybody else": 1.0,
    }
    for name, expected in reference.items():
        assert epsilon(table, name) == pytest.approx(expected, abs=1e-6), name
    assert table["owner"].guarantee is None
    assert [row.name for row in table] == [*reference, "whole party", "owner"]


@pytest.mark.parametrize("weights", [None, {name: 1.0 + place for place, name in enumerate(TEN)}])
def test_who_sees_less_never_learns_more(weights):
    """With all others missing a model holds the owner's noise, exactly as its message does."""
    lonely = Arrangement("sgd2", TEN, TIGHT, rounds=100, dropouts=9, weights=weights)
    table = observers(lonely, 1e-5)
    for name in ("final model", "broadcasts", "another party", "colluding parties"):
        assert epsilon(table, name) <= epsilon(table, "coordinator"), name


@pytest.mark.parametrize(("contraction", "expected"), [(0.9, 0.114992), (0.99, 0.272480)])
def test_sgd2_contracting(contraction, expected):
    arrangement = Arrangement("sgd2", TEN, TIGHT, rounds=100, contraction=contraction)
    row = observers(arrangement, 1e-5)["contracted final model"]
    assert row.guarantee.epsilon.upper == pytest.approx(expected, abs=1e-6)
    assert "only if" in row.note


@pytest.mark.parametrize(("coalition", "expected"), [(1, 1.059586), (3, 1.216745), (9, 3.618592)])
def test_sgd2_secure(coalition, expected):
    table = observers(
        Arrangement("sgd2", TEN, TIGHT, rounds=100, aggregation="secure"), 1e-5, coalition=coalition
    )
    for name in ("final model", "broadcasts", "messages", "traffic", "coordinator"):
        assert epsilon(table, name) == pytest.approx(1.0, abs=1e-6)
    assert epsilon(table, "another party") == pytest.approx(1.059586, abs=1e-6)
    assert epsilon(table, "colluding parties") == pytest.approx(expected, abs=1e-6)
    assert epsilon(table, "coordinator and colluders") == pytest.approx(expected, abs=1e-6)
    assert epsilon(table, "everybody else") == pytest.approx(3.618592, abs=1e-6)


@pytest.mark.parametrize(("colluders", "variance"), [(0, 556.704496), (1, 618.560551), (3, 795.292137)])
def test_secure_shares_allow_for_colluders(colluders, variance):
    arrangement = Arrangement("sgd2", TEN, TIGHT, rounds=100, aggregation="secure", colluders=colluders)
    assert (TIGHT * arrangement.noise_share) ** 2 == pytest.approx(variance, rel=1e-8)
    name = "coordinator and colluders" if colluders else "coordinator"
    assert epsilon(observers(arrangement, 1e-5), name) == pytest.approx(1.0, abs=1e-6)
    party = account(party_event(arrangement, "party-3"), "replace-one").epsilon(1e-5)
    assert party == pytest.approx(1.0, abs=1e-6)


def test_secure_shares_allow_for_dropouts():
    parties = {"a": 10, "b": 10, "c": 10, "d": 10}
    arrangement = Arrangement("sgd2", parties, 30.0, rounds=50, aggregation="secure", dropouts=2, colluders=1)
    assert arrangement.noise_share == 1.0
    needed = account(Gaussian(30.0) * 50, "replace-one").epsilon(1e-6)
    assert epsilon(observers(arrangement, 1e-6), "coordinator and colluders") == pytest.approx(
        needed, rel=1e-9
    )


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize(("coalition", "dropouts"), [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0)])
def test_sgd2_noise_that_stays_hidden_by_linear_algebra(aggregation, coalition, dropouts):
    """All owners, coalitions and missing parties of four with unequal weights, one multivariate normal each."""
    weights = {"a": 1.0, "b": 0.3, "c": 2.5, "d": 1.7}
    arrangement = Arrangement(
        "sgd2",
        dict.fromkeys(weights, 5),
        7.0,
        rounds=3,
        aggregation=aggregation,
        dropouts=dropouts,
        weights=weights,
        neighbours="add-remove",
    )
    least = math.inf
    for owner in weights:
        others = [name for name in weights if name != owner]
        for group in itertools.combinations(others, coalition):
            for missing in itertools.combinations(
                [n for n in others if n not in group], min(dropouts, 3 - coalition)
            ):
                present = [name for name in weights if name not in missing]
                scale = 7.0 * arrangement.noise_share
                seen = [
                    [weights[name] * (name in present) for name in weights]
                ]  # the sum, then the group's own noise
                seen += [[float(name == member) for name in weights] for member in group]
                covariance = scale**2 * np.array(seen) @ np.array(seen).T
                shift = np.array([weights[owner]] + [0.0] * coalition)
                least = min(least, 1 / math.sqrt(shift @ np.linalg.solve(covariance, shift)))
    rows = {view.observer: view for view in views(arrangement, coalition)}
    ((face,),) = (rows["colluding parties"].faces,)
    assert noises(face) == (pytest.approx(least, rel=1e-9), 3)


def test_sgd2_with_secret_samples():
    arrangement = Arrangement("sgd2", {"a": 50, "b": 70}, 2.0, rounds=40, rate=0.1, neighbours="add-remove")
    table = observers(arrangement, 1e-6)
    alone = account(PoissonSampled(0.1, Gaussian(2.0)) * 40).epsilon(1e-6)
    both = account(PoissonSampled(0.1, Gaussian(2.0 * math.sqrt(2))) * 40).epsilon(1e-6)
    assert epsilon(table, "coordinator") == pytest.approx(alone, rel=1e-9)
    assert epsilon(table, "broadcasts") == pytest.approx(both, rel=1e-3)
    assert party_event(arrangement, "a") == PoissonSampled(0.1, Gaussian(2.0)) * 40


def test_a_whole_party():
    parties = {"small": 3, "large": 12}
    row = observers(Arrangement("sgd2", parties, 50.0, rounds=10), 1e-6)["whole party"]
    assert row.guarantee.group_size == 12
    grouped = account(Gaussian(50.0) * 10, "replace-one", group_size=12).epsilon(1e-6)
    assert row.guarantee.epsilon.upper == pytest.approx(grouped, rel=1e-9)
    bounded = observers(Arrangement("sgd2", parties, 50.0, rounds=10, party_bound=2.0), 1e-6)["whole party"]
    alone = account(Gaussian(25.0) * 10, "replace-one").epsilon(1e-6)
    assert bounded.guarantee.epsilon.upper == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(("c", "rounds"), [(0.0, 5), (0.5, 1), (0.9, 100), (0.99, 1000), (1 - 1e-9, 50)])
def test_contraction_by_a_quadratic(c, rounds):
    """theta <- c theta + shift + noise: the last model is normal, and its mean and variance are sums."""
    shift = sum(c**k for k in range(rounds))
    variance = sum(c ** (2 * k) for k in range(rounds))
    assert contracted_noise(3.0, c, rounds) == pytest.approx(3.0 * math.sqrt(variance) / shift, rel=1e-9)


def printed(n, delta=None):
    delta = 0.1 / n**3 if delta is None else delta
    parties = {f"party-{i}": n // 10 for i in range(10)}
    return Arrangement("sgd1", parties, sgd1_noise_std(n, 1.0, 0.9, delta) / n)


# n, and the references of outsider, another party, traffic (central limit approximations), coordinator (exact)
SGD1 = [
    (100, 1e-7, 0.071500, 0.075594, 0.241031, 0.834467),
    (1000, 1e-10, 0.064890, 0.068522, 0.213329, 2.353479),
]


@pytest.mark.parametrize(("n", "delta", "outsider", "another", "traffic", "coordinator"), SGD1)
def test_sgd1(n, delta, outsider, another, traffic, coordinator):
    table = observers(printed(n, delta), delta)
    approximate = {
        "final model": outsider,
        "broadcasts": outsider,
        "messages": outsider,
        "another party": another,
        "colluding parties": another,
        "traffic": traffic,
    }
    for name, value in approximate.items():  # the approximation is too low, by less than 1.5 %
        assert value * 1.001 < epsilon(table, name) < value * 1.015, name
        assert value < table[name].guarantee.epsilon.lower, name
    for name in ("coordinator", "coordinator and colluders"):
        assert epsilon(table, name) == pytest.approx(coordinator, rel=3e-4)
        assert table[name].guarantee.epsilon.lower <= coordinator + 1e-6
        assert coordinator - 1e-6 <= epsilon(table, name)
    assert epsilon(table, "everybody else") > coordinator
    assert table["owner"].guarantee is None


def test_sgd1_rigorous_values_for_a_hundred_records():
    noise = Gaussian(printed(100).noise_multiplier)
    outsider = account(FixedSizeSampled(1, 100, noise) * 10_000, "replace-one").epsilon_bounds(1e-7)
    assert outsider.lower <= 0.072024 <= outsider.upper * 1.0002
    known_calls = account(FixedSizeSampled(1, 10, noise) * 1000, "replace-one").epsilon_bounds(1e-7)
    assert known_calls.lower <= 0.242644 <= known_calls.upper * 1.0002
    mixed = observers(printed(100), 1e-7)["traffic"].guarantee.epsilon
    assert known_calls.lower < mixed.upper  # the number of calls is random as well


@pytest.mark.parametrize(
    ("n", "expected"), [(2000, 3.246592), (10**4, 6.965914), (10**5, 21.85), (10**6, 75.77)]
)
def test_the_coordinator_of_a_larger_sgd1(n, expected):
    arrangement, delta = printed(n), 0.1 / n**3
    (face,) = next(view for view in views(arrangement) if view.observer == "coordinator").faces
    assert MixtureCurve(face, "replace-one").epsilon(delta) == pytest.approx(expected, rel=2e-3)


def test_sgd1_balanced():
    parties = {f"party-{i}": 100 for i in range(10)}
    arrangement = Arrangement("sgd1", parties, 164731.1335 / 1000, schedule="balanced")
    table = observers(arrangement, 1e-10)
    for name in ("messages", "traffic", "another party", "coordinator", "everybody else"):
        assert epsilon(table, name) == pytest.approx(2.342438, abs=2e-6)
    assert party_event(arrangement, "party-0") == Gaussian(arrangement.noise_multiplier) * 1000
    budget = Budget(0.9, 1e-10, "replace-one")
    assert noise_for(arrangement, budget, against="coordinator") * 1000 == pytest.approx(410631.15, rel=3e-4)


def test_sgd1_private():
    """The repair: the coordinator learns no more than the traffic shows."""
    arrangement = Arrangement("sgd1", {"a": 300, "b": 500, "c": 1200}, 20.0, schedule="private")
    table = observers(arrangement, 1e-6)
    assert epsilon(table, "coordinator") == epsilon(table, "traffic")
    assert epsilon(table, "coordinator") < epsilon(table, "everybody else")
    known = observers(Arrangement("sgd1", {"a": 300, "b": 500, "c": 1200}, 20.0), 1e-6)
    assert epsilon(known, "traffic") == pytest.approx(epsilon(table, "traffic"), rel=1e-4)
    assert epsilon(known, "coordinator") > 3 * epsilon(table, "coordinator")
    calls = most_likely_count(2000**2, 300 / 2000, OVERRUN / 3)
    assert party_event(arrangement, "a") == FixedSizeSampled(1, 300, Gaussian(20.0)) * calls


def test_the_smallest_party_is_seen_through_most_easily():
    """Why one size is enough for the row of traffic: the others' curves lie below."""
    tokens, noise = 30, Gaussian(5.0)
    events = [RandomRepeats(FixedSizeSampled(1, size, noise), tokens, size / 20) for size in (2, 5, 13)]
    found = [MixtureCurve(event, "replace-one").delta_bounds(0.3) for event in events]
    assert found[0].lower > found[1].upper > found[1].lower > found[2].upper


def exact_delta(level, epsilon, seen):
    """delta(epsilon) of two steps by brute force, for others at -1 and a record at 1 or -1.

    ``seen`` lists (chance, rate): what the observer sees of a step, and the record's chance given that.
    """
    x = np.linspace(-1 - 9 * level, 1 + 9 * level, 700)
    width = x[1] - x[0]
    without = norm.pdf(x, -1, level) * width
    total = np.zeros(2)
    for (first, p), (second, q) in itertools.product(seen, repeat=2):
        one, two = (rate * norm.pdf(x, 1, level) * width + (1 - rate) * without for rate in (p, q))
        here, there = np.outer(one, two), np.outer(without, without)
        for index, (a, b) in enumerate([(here, there), (there, here)]):
            total[index] += first * second * np.maximum(a - math.exp(epsilon) * b, 0).sum()
    return total.max()


GAMES = {  # the owner is the party of two records
    "messages": [(1, 1 / 5)],
    "traffic": [(2 / 5, 1 / 2), (3 / 5, 0)],
    "another party": [(2 / 5, 1 / 2), (3 / 5, 0)],  # the other one knows its own calls
    "coordinator": [(1 / 5, 1), (4 / 5, 0)],
}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("eps", [0.1, 0.7])
def test_sgd1_brute_force(name, eps):
    """Two parties, five records, two tokens: nothing that the schedule does is left to a theorem."""
    arrangement = Arrangement("sgd1", {"a": 2, "b": 3}, 1.5, rounds=2)
    exact = exact_delta(1.5, eps, GAMES[name])
    (face,) = next(view for view in views(arrangement) if view.observer == name).faces
    curve = account(face, "replace-one") if isinstance(face, Event) else MixtureCurve(face, "replace-one")
    assert exact * (1 - 2e-4) <= curve.delta(eps) < 1.15 * exact


@pytest.mark.parametrize(
    ("seen", "holds"), [([(1 / 2, 1 / 2), (1 / 2, 0)], True), ([(1 / 4, 1), (3 / 4, 0)], False)]
)
def test_a_missing_party_shows_who_was_not_asked(seen, holds):
    """If the party of two records is missing, a message is from the other two; knowing the record is worse."""
    arrangement = Arrangement("sgd1", {"a": 2, "b": 1, "c": 1}, 1.5, rounds=2, dropouts=1)
    (face,) = next(view for view in views(arrangement) if view.observer == "messages").faces
    bound = MixtureCurve(face, "replace-one").delta(0.5)
    assert (exact_delta(1.5, 0.5, seen) * (1 - 2e-4) <= bound) == holds


def test_a_whole_party_in_sgd1():
    table = observers(Arrangement("sgd1", {"a": 20, "b": 30}, 200.0), 1e-6)
    calls = account(Gaussian(200.0) * 1500, "replace-one").epsilon(1e-6)  # on average
    assert calls < epsilon(table, "whole party") < 1.1 * calls
    assert table["whole party"].guarantee.group_size == 30


def test_refusals_are_paid_for():
    """A cap that an honest schedule often meets: then the ledgers' own event is all that holds."""
    parties = {"a": 40, "b": 60}
    capped = observers(Arrangement("sgd1", parties, 30.0, most_uses=110), 1e-6)
    assert epsilon(capped, "messages") == epsilon(capped, "everybody else")
    assert epsilon(capped, "everybody else") == account(Gaussian(30.0) * 110, "replace-one").epsilon(1e-6)
    free = Arrangement("sgd1", parties, 30.0)
    assert 0 < free.overrun <= OVERRUN
    assert free.cap == most_likely_count(100**2, 1 / 100, OVERRUN / 100)
    assert epsilon(observers(free, 1e-6), "messages") < epsilon(capped, "messages") / 5
    assert epsilon(observers(free, 1e-12), "messages") == epsilon(observers(free, 1e-12), "everybody else")


CALIBRATED = [
    (Arrangement("sgd2", TEN, rounds=100), "coordinator", 1),
    (Arrangement("sgd2", TEN, rounds=100), "broadcasts", 1),
    (Arrangement("sgd2", TEN, rounds=100, aggregation="secure", colluders=2), "coordinator and colluders", 2),
    (Arrangement("sgd2", {"a": 5, "b": 10**7}, rounds=30), "whole party", 1),
    (Arrangement("sgd2", {"a": 5, "b": 5}, rounds=30, weights={"a": 1.0, "b": 3.0}), "another party", 1),
    (Arrangement("sgd1", {"a": 30, "b": 50}), "coordinator", 1),
    (Arrangement("sgd1", {"a": 800, "b": 900}, schedule="private"), "coordinator", 1),
    (Arrangement("sgd1", {"a": 800, "b": 900}, schedule="private"), "everybody else", 1),
]


@pytest.mark.parametrize(("arrangement", "against", "coalition"), CALIBRATED)
def test_noise_is_enough_and_hardly_more(arrangement, against, coalition):
    budget = Budget(0.8, 1e-6, "replace-one")
    noise = noise_for(arrangement, budget, against=against, coalition=coalition)
    found = epsilon(observers(arrangement.with_noise(noise), 1e-6, coalition=coalition), against)
    assert 0.8 * (1 - 1e-3) < found <= 0.8
    assert epsilon(observers(arrangement.with_noise(noise * 0.998), 1e-6, coalition=coalition), against) > 0.8


def test_secure_sums_need_less_noise_by_the_root_of_the_parties():
    budget = Budget(1.0, 1e-5, "replace-one")
    plain = Arrangement("sgd2", TEN, rounds=100)
    secure = Arrangement("sgd2", TEN, rounds=100, aggregation="secure")
    noise = noise_for(plain, budget, against="coordinator")
    share = noise_for(secure, budget, against="coordinator") * secure.noise_share
    assert noise == pytest.approx(TIGHT, rel=3e-4)
    assert share == pytest.approx(23.5945861542, rel=3e-4)


def test_what_cannot_be_calibrated():
    arrangement = Arrangement("sgd2", TEN, rounds=10)
    with pytest.raises(InvalidParameter, match="cannot be protected against"):
        noise_for(arrangement, Budget(1.0, 1e-6, "replace-one"), against="owner")
    with pytest.raises(InvalidParameter, match="must be one of"):
        noise_for(arrangement, Budget(1.0, 1e-6, "replace-one"), against="the press")
    with pytest.raises(InvalidParameter, match="use the same in both"):
        noise_for(arrangement, Budget(1.0, 1e-6), against="coordinator")
    with pytest.raises(InvalidParameter, match="single records"):
        noise_for(arrangement, Budget(1.0, 1e-6, "replace-one", group_size=2), against="coordinator")
    with pytest.raises(BudgetExceeded):
        noise_for(
            Arrangement("sgd2", TEN, rounds=10**12), Budget(1e-8, 1e-12, "replace-one"), against="coordinator"
        )


def test_the_table_prints_and_travels():
    table = observers(Arrangement("sgd2", {"a": 10, "b": 20}, 40.0, rounds=10), 1e-6)
    lines = str(table).splitlines()
    assert len(lines) == len(table) + 2
    column = lines[0].index("epsilon")
    assert all(line[column - 2 : column] == "  " for line in lines[1:-1])
    assert lines[-1] == "at delta = 1e-06, replace-one neighbours"
    data = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert data["arrangement"]["parties"] == {"a": 10, "b": 20}
    assert [row["observer"] for row in data["observers"]] == [row.name for row in table]
    assert all(row["delta"] == 1e-6 for row in data["observers"][:-1])
    assert set(table.names) <= set(OBSERVERS)
    assert "is the coordinator" in str(table["coordinator"].guarantee)
    with pytest.raises(InvalidParameter, match="observer"):
        table["the press"]


def test_a_study_is_as_good_as_its_arrangement():
    class Privacy:
        delta = 1e-6

    class Study:
        arrangement = Arrangement("sgd2", {"a": 10, "b": 20}, 40.0, rounds=10)
        privacy = Privacy()
        arithmetic = None

    assert str(observers(Study())) == str(observers(Study.arrangement, 1e-6))
    with pytest.raises(InvalidParameter, match="delta"):
        observers(Study.arrangement)


def test_a_row_that_is_beyond_arithmetic_says_so():
    row = observers(Arrangement("sgd2", {"a": 10**5, "b": 5}, 0.01, rounds=1), 1e-6)["whole party"]
    assert row.guarantee is None
    assert "party_bound would bound them" in row.note


def test_one_party_alone():
    for arrangement in (Arrangement("sgd2", {"a": 9}, 40.0, rounds=5), Arrangement("sgd1", {"a": 9}, 40.0)):
        names = [row.name for row in observers(arrangement, 1e-6)]
        assert "coordinator" in names
        assert "another party" not in names


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0, -1, True, "1", None])
def test_nonsense_is_refused(bad):
    good = {"algorithm": "sgd2", "parties": {"a": 5, "b": 6}, "noise_multiplier": 2.0, "rounds": 3}
    assert Arrangement(**good).records == 11
    for name in ("algorithm", "neighbours", "aggregation", "schedule", "rate", "rounds", "parties"):
        with pytest.raises(InvalidParameter, match=name):
            Arrangement(**(good | {name: bad}))
    if bad is not None:
        for name in ("noise_multiplier", "contraction", "party_bound", "weights"):
            if (name, bad) != ("contraction", 0):
                with pytest.raises(InvalidParameter, match=name):
                    Arrangement(**(good | {name: bad}))
    if bad != 0:
        for name in ("dropouts", "colluders"):
            with pytest.raises(InvalidParameter, match=name):
                Arrangement(**(good | {name: 2 if bad is True else bad}))
    with pytest.raises(InvalidParameter, match="parties"):
        Arrangement(**(good | {"parties": {"a": bad}}))
    with pytest.raises(InvalidParameter, match="delta"):
        observers(Arrangement(**good), bad)
    if bad is not None and bad is not True:
        with pytest.raises(InvalidParameter, match="coalition"):
            observers(Arrangement(**good), 1e-6, coalition=bad)
    with pytest.raises(InvalidParameter):
        contracted_noise(1.0, -1.0 if bad == 0 else bad, 5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "sgd1", "neighbours": "add-remove"}, "replace-one"),
        ({"algorithm": "sgd1", "aggregation": "secure"}, "hides nothing"),
        ({"algorithm": "sgd1", "rate": 0.5}, "SGD2 only"),
        ({"algorithm": "sgd1", "schedule": "private", "most_uses": 5}, "leave it out"),
        ({"most_uses": 5}, "leave it out"),
        ({"aggregation": "secure", "dropouts": 1, "colluders": 1}, "no honest party"),
        ({"aggregation": "secure", "robust": True}, "False for secure"),
        ({"robust": 1}, "True or False"),
        ({"robust": True, "contraction": 0.9}, "robust=False"),
        ({"algorithm": "sgd1", "robust": True}, "SGD2 only"),
        ({"algorithm": "sgd1", "party_bound": 2.0}, "SGD2 only"),
        ({"contraction": 0.9, "rate": 0.5}, "rate=1"),
        ({"weights": {"a": 1.0}}, "every party"),
        ({"rounds": None}, "rounds"),
    ],
)
def test_what_has_no_theorem_is_refused(settings, sentence):
    with pytest.raises(InvalidParameter, match=sentence):
        Arrangement(**({"algorithm": "sgd2", "parties": {"a": 5, "b": 6}, "rounds": 3} | settings))


def test_noise_is_needed_for_a_table():
    with pytest.raises(InvalidParameter, match="noise_for"):
        observers(Arrangement("sgd2", TEN, rounds=3), 1e-6)
    with pytest.raises(InvalidParameter, match="party"):
        party_event(Arrangement("sgd2", TEN, 1.0, rounds=3), "nobody")
