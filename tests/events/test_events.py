"""Events as values: composition, merging, hashing, JSON, and the refusal of everything that is no event."""

import json
import math
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import (
    AccuracyNotReached,
    ApproximateDP,
    Budget,
    Composition,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    UnsupportedEvent,
    account,
)
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.sampling import PoissonSampler
from discreet.errors import InvalidParameter
from discreet.events.common import MAX_COUNT
from discreet.ledger import GaussianFilter
from discreet.plan.stage import Stage

positive = st.floats(min_value=1e-3, max_value=1e6)
noises = st.builds(Gaussian, positive) | st.builds(Laplace, positive)
gaussians = st.builds(Gaussian, positive)
simple = st.one_of(
    noises,
    st.builds(ApproximateDP, st.floats(0, 50), st.floats(0, 0.99)),
    st.builds(PoissonSampled, st.floats(1e-9, 1), noises),
    st.builds(
        lambda n, extra, of: FixedSizeSampled(n, n + extra, of),
        st.integers(1, 9),
        st.integers(0, 99),
        gaussians,
    ),
    st.builds(RandomlyAllocated, st.integers(1, 10**6), gaussians),
)
events = st.recursive(
    simple,
    lambda inner: (
        st.builds(lambda e, n: e * n, inner, st.integers(1, 1000))
        | st.builds(lambda a, b: a + b, inner, inner)
    ),
    max_leaves=6,
)


@given(events)
@settings(max_examples=60, deadline=None)
def test_json_round_trip(event):
    text = event.to_json()
    assert Event.from_json(text) == event
    assert Event.from_dict(json.loads(text)) == event
    assert Event.from_json(text).digest() == event.digest()
    assert hash(Event.from_json(text)) == hash(event)


@given(events, events, st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_algebra(a, b, m, n):
    assert a * m + a * n == a * (m + n)
    assert (a * m) * n == a * (m * n)
    assert (a + b) * n == a * n + b * n
    assert m * a == a * m
    assert dict((a + b).parts()) == dict((b + a).parts())


@given(events)
@settings(max_examples=40, deadline=None)
def test_parts_are_simple_different_and_counted(event):
    parts = (event * 3).parts()
    assert len({part for part, _ in parts}) == len(parts)
    assert all(not isinstance(part, Composition) and count >= 3 for part, count in parts)


def test_merging_keeps_the_order_of_first_appearance():
    run = Gaussian(1.0) + Laplace(2.0) * 3 + Gaussian(1.0) * 4
    assert run.events == ((Gaussian(1.0), 5), (Laplace(2.0), 3))


def test_certain_sampling_is_dropped():
    for event in (
        PoissonSampled(1.0, Gaussian(2.0)),
        FixedSizeSampled(5, 5, Gaussian(2.0)),
        RandomlyAllocated(1, Gaussian(2.0)),
    ):
        assert event * 7 == Gaussian(2.0) * 7


def test_events_are_frozen_values():
    assert Gaussian(1) == Gaussian(1.0) == Gaussian(np.float32(1.0))
    assert Gaussian(1.0) != Laplace(1.0)
    assert len({Gaussian(1.0), Gaussian(1.0), Gaussian(2.0)}) == 2
    with pytest.raises(FrozenInstanceError):
        Gaussian(1.0).noise_multiplier = 2.0


def test_json_is_canonical():
    """The same text for the same event, so that a digest can name it."""
    assert PoissonSampled(0.5, Gaussian(1)).to_json() == (
        '{"event":"poisson-sampled","of":{"event":"gaussian","noise_multiplier":1.0},"rate":0.5}'
    )
    assert Gaussian(1).digest() == Gaussian(np.float32(1)).digest()
    assert len(Gaussian(1).digest()) == 64


def test_counts_are_limited():
    assert (Gaussian(1.0) * MAX_COUNT).events == ((Gaussian(1.0), MAX_COUNT),)
    with pytest.raises(InvalidParameter, match="count"):
        Gaussian(1.0) * (MAX_COUNT + 1)
    with pytest.raises(InvalidParameter, match="count"):
        Gaussian(1.0) * MAX_COUNT + Gaussian(1.0)


@pytest.mark.parametrize("other", [1, None, "x", [Gaussian(1.0)]])
def test_only_events_are_added(other):
    with pytest.raises(TypeError):
        Gaussian(1.0) + other


NEVER = (
    math.nan,
    math.inf,
    -math.inf,
    -1.0,
    -1e-300,
    True,
    False,
    np.True_,
    None,
    "",
    "1",
    b"1",
    [],
    [1.0],
    (1.0,),
    {},
    1 + 0j,
    np.array([1.0]),
    np.array(True),
    np.array(math.nan),
    np.complex64(1),
    np.float64("nan"),
    np.float32("-inf"),
    Decimal("NaN"),
    Decimal("sNaN"),
    10**400,
    object(),
    Gaussian,
)
G = Gaussian(1.0)
ZERO, FRACTIONS, ABOVE_ONE = (0, 0.0, -0.0), (0.5, 1.5, 2.000001), (1.0000001, 2, 1e9)
CURVE = account(PoissonSampled(0.1, G) * 10)
LAPLACES = account(Laplace(2.0) * 3)
QUESTIONS = {
    "noise_multiplier": (Gaussian, {"noise_multiplier": 1.0}, ()),
    "scale": (Laplace, {"scale": 1.0}, ()),
    "epsilon": (ApproximateDP, {"epsilon": 1.0, "delta": 0.1}, ()),
    "delta": (ApproximateDP, {"epsilon": 1.0, "delta": 0.1}, (1, 1.0, *ABOVE_ONE)),
    "rate": (PoissonSampled, {"rate": 0.5, "of": G}, ABOVE_ONE),
    "of": (
        PoissonSampled,
        {"rate": 0.5, "of": G},
        (0, 1.0, PoissonSampled(0.1, G), G + Laplace(1.0), ApproximateDP(1.0)),
    ),
    "batch_size": (FixedSizeSampled, {"batch_size": 2, "records": 5, "of": G}, (*ZERO, *FRACTIONS, 6)),
    "records": (FixedSizeSampled, {"batch_size": 2, "records": 5, "of": G}, (*ZERO, *FRACTIONS)),
    "of ": (FixedSizeSampled, {"batch_size": 2, "records": 5, "of": G}, (0, PoissonSampled(0.1, G))),
    "steps": (RandomlyAllocated, {"steps": 3, "of": G}, (*ZERO, *FRACTIONS)),
    "of  ": (RandomlyAllocated, {"steps": 3, "of": G}, (0, PoissonSampled(0.1, G))),
    "count": (lambda count: G * count, {"count": 2}, (*ZERO, *FRACTIONS, MAX_COUNT + 1, 1e13)),
    "neighbours": (
        lambda **way: account(G, **way),
        {"neighbours": "add-remove"},
        (0, "remove", "add_remove", "replace_one"),
    ),
    "group_size": (lambda **way: account(G, **way), {"group_size": 2}, (*ZERO, *FRACTIONS, 10**9)),
    "event": (account, {"event": G}, (0, 1.0, "gaussian")),
    "delta ": (CURVE.epsilon_bounds, {"delta": 1e-5}, ABOVE_ONE),
    "delta  ": (CURVE.epsilon, {"delta": 1e-5}, ABOVE_ONE),
    "delta   ": (CURVE.guarantee, {"delta": 1e-5}, (1, *ABOVE_ONE)),
    "delta    ": (LAPLACES.epsilon, {"delta": 1e-5}, ABOVE_ONE),
    "delta     ": (CURVE.estimate_epsilon, {"delta": 1e-5}, (0, 1, *ABOVE_ONE)),
    "epsilon ": (CURVE.delta_bounds, {"epsilon": 1.0}, ()),
    "epsilon  ": (LAPLACES.delta, {"epsilon": 1.0}, ()),
    "false_alarms": (CURVE.power, {"false_alarms": 0.1}, ABOVE_ONE),
    "false_alarms ": (LAPLACES.power_bounds, {"false_alarms": 0.1}, ABOVE_ONE),
    "tolerance": (CURVE.epsilon_bounds, {"delta": 1e-5, "tolerance": 0.1}, (*ZERO, 1, 1.5, 1e-30)),
    "tolerance ": (CURVE.delta_bounds, {"epsilon": 1.0, "tolerance": 0.1}, (*ZERO, 1, 1.5, 1e-30)),
    "tolerance  ": (LAPLACES.delta, {"epsilon": 1.0, "tolerance": 0.1}, (*ZERO, 1, 1.5)),
}
BAD = [
    (key, value)
    for key, (_, _, outside) in QUESTIONS.items()
    for value in (*NEVER, *outside)
    if not (value is None and key.strip() == "tolerance")  # no tolerance is one
]


def asked(key, value):
    function, good, _ = QUESTIONS[key]
    return function(**good | {key.strip(): value})


@pytest.mark.parametrize("key", QUESTIONS)
def test_good_questions_have_answers(key):
    function, good, _ = QUESTIONS[key]
    function(**good)


def wrong_answers(pairs):
    """Bad values that were answered, blamed on another parameter, or refused in an unknown way."""
    for key, value in pairs:
        try:
            answer = asked(key, value)
        except InvalidParameter as refusal:
            if isinstance(value, dict) and refusal.name == "event":  # read as the plain form of an event
                continue
            if refusal.name != key.strip() or not str(refusal).startswith(f"{key.strip()}="):
                yield key, value, refusal
        except Exception as error:
            yield key, value, error
        else:
            yield key, value, answer


def test_every_bad_value_is_refused_by_name():
    """More than 500 combinations; none is answered, none raises anything but InvalidParameter with the name."""
    assert len(BAD) >= 500
    assert list(wrong_answers(BAD)) == []


def test_the_check_catches_a_lenient_function(monkeypatch):
    monkeypatch.setitem(QUESTIONS, "rate", (lambda rate: rate, {"rate": 0.5}, ()))
    monkeypatch.setitem(QUESTIONS, "scale", (lambda scale: float(scale), {"scale": 0.5}, ()))
    caught = list(wrong_answers([("rate", math.nan), ("scale", "x"), ("scale", None)]))
    assert len(caught) == 3


GOOD_FLOATS = [1, np.int64(1), np.float32(1.0), np.float64(1.0), np.float16(1.0), Fraction(1)]
GOOD_FLOATS += [Decimal(1), np.array(1.0), torch.tensor(1.0)]


@pytest.mark.parametrize("value", GOOD_FLOATS, ids=repr)
@pytest.mark.parametrize("key", ["noise_multiplier", "scale", "epsilon", "rate", "epsilon ", "false_alarms"])
def test_numbers_of_any_library_are_the_same_question(key, value):
    assert asked(key, value) == asked(key, 1.0)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), 3.0, np.float32(3)], ids=repr)
@pytest.mark.parametrize("key", ["batch_size", "steps", "count"])
def test_whole_numbers_of_any_library_are_the_same_question(key, value):
    assert asked(key, value) == asked(key, 3)
    assert json.loads(asked(key, value).to_json()) == json.loads(asked(key, 3).to_json())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta ", 0),
        ("delta ", 0.999999),
        ("delta ", 1),
        ("rate", 0),
        ("noise_multiplier", 0),
        ("scale", 0),
        ("epsilon ", 0),
        ("false_alarms", 0),
        ("false_alarms", 1),
    ],
)
def test_ends_of_the_range_are_answered(key, value):
    asked(key, value)


def test_trivial_questions_are_answered():
    """No noise: infinity. The rate 0: nothing. Delta 1: nothing."""
    for event in (Gaussian(0.0), Laplace(0.0), Gaussian(0.0) + G, RandomlyAllocated(5, Gaussian(0.0))):
        assert account(event).epsilon_bounds(1e-5) == (math.inf, math.inf)
        assert account(event).delta(3.0) == 1.0
        assert account(event).epsilon_bounds(1.0) == (0.0, 0.0)
    for event in (PoissonSampled(0.0, G) * 10, PoissonSampled(0.0, Gaussian(0.0))):
        assert account(event).epsilon_bounds(0.0) == (0.0, 0.0)
        assert account(event).delta(0.0) == 0.0
    assert account(PoissonSampled(0.0, G) * 10 + G).epsilon(1e-5) == account(G).epsilon(1e-5)
    assert CURVE.epsilons([1.0, 1e-5])[0] == (0.0, 0.0)


def test_a_sample_without_noise_is_seen_as_often_as_it_is_drawn():
    """Each release shows the record with the probability rate, and nothing otherwise: delta is that of any."""
    for event, neighbours, seen in (
        (PoissonSampled(0.01, Gaussian(0.0)) * 3, "add-remove", 1 - 0.99**3),
        (PoissonSampled(0.01, Laplace(0.0)) * 3, "add-remove", 1 - 0.99**3),
        (FixedSizeSampled(1, 100, Gaussian(0.0)) * 3, "replace-one", 1 - 0.99**3),
    ):
        curve = account(event, neighbours)
        assert curve.delta_bounds(0.0).lower <= seen <= curve.delta_bounds(0.0).upper <= seen * (1 + 1e-9)
        assert curve.delta(50.0) == pytest.approx(seen)
        assert curve.epsilon(0.9 * seen) == math.inf
        assert curve.epsilon(1.1 * seen) == 0.0
    group = account(PoissonSampled(0.01, Gaussian(0.0)), group_size=4)
    assert group.delta(1.0) == pytest.approx(1 - 0.99**4)


def test_less_noise_than_can_be_followed_is_between_none_and_more():
    for event in (Gaussian(1e-9), PoissonSampled(0.1, Gaussian(1e-9)) * 3, Laplace(1e-9)):
        lower, upper = account(event).epsilon_bounds(1e-5)
        assert 1e3 < lower < upper == math.inf


def test_no_noise_may_be_accounted_and_is_never_released():
    """Every door of the engines refuses it: noise is drawn, planned and paid for only where there is some."""
    none = BoundedSum(np.zeros(3), 1.0, "l2"), Gaussian(0.0)
    for release in (
        lambda: add_noise(*none),
        lambda: add_noise(BoundedSum(np.zeros(3), 1.0, "l1"), Laplace(0.0)),
        lambda: Stage("descent", "poisson", 100, 10, steps=1, clip_norm=1.0, noise_multiplier=0.0),
        lambda: GaussianFilter(Budget(1.0, 1e-6)).prices(Gaussian(0.0)),
        lambda: PoissonSampler(records=100, rate=0.0),
    ):
        with pytest.raises(InvalidParameter, match=r"noise_multiplier|scale|rate"):
            release()


@pytest.mark.parametrize("value", [1e-300, 1e-100, 1e100, 1.7e308])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: Gaussian(v),
        lambda v: Laplace(v),
        lambda v: PoissonSampled(0.1, Gaussian(v)) * 3,
        lambda v: ApproximateDP(v) * 3,
    ],
)
def test_extreme_numbers_are_answered_or_refused_in_words(make, value):
    """Finite, but absurd: a sound answer, or a sentence. Never a warning, a hang or a wrong number."""
    try:
        event = make(value)
        lower, upper = account(event).epsilon_bounds(1e-5)
    except (UnsupportedEvent, AccuracyNotReached, InvalidParameter):
        return
    strong = value > 1 if not isinstance(event.parts()[0][0], ApproximateDP) else value < 1
    assert 0 <= lower <= upper
    assert upper <= 1e-3 if strong else lower > 1e3


BAD_DATA = [
    None,
    1,
    "gaussian",
    [],
    {},
    {"event": None},
    {"event": "gaussian"},
    {"event": "Gaussian", "noise_multiplier": 1.0},
    {"event": "gaussian", "noise_multiplier": 1.0, "extra": 1},
    {"event": "gaussian", "sigma": 1.0},
    {"noise_multiplier": 1.0},
    {"event": ["gaussian"], "noise_multiplier": 1.0},
    {"event": "laplace", "scale": "1"},
    {"event": "poisson-sampled", "rate": 0.5},
    {"event": "poisson-sampled", "rate": 0.5, "of": None},
    {"event": "poisson-sampled", "rate": 0.5, "of": {"event": "gaussian"}},
    {"event": "poisson-sampled", "rate": 0.5, "of": {"event": "poisson-sampled"}},
    {"event": "composition"},
    {"event": "composition", "events": []},
    {"event": "composition", "events": None},
    {"event": "composition", "events": {}},
    {"event": "composition", "events": [[]]},
    {"event": "composition", "events": [1]},
    {"event": "composition", "events": [[{"event": "gaussian", "noise_multiplier": 1.0}]]},
    {"event": "composition", "events": [[{"event": "gaussian", "noise_multiplier": 1.0}, 0]]},
    {"event": "composition", "events": [[{"event": "gaussian", "noise_multiplier": 1.0}, 1.5]]},
    {"event": "composition", "events": [[{"event": "gaussian", "noise_multiplier": 1.0}, None]]},
    {"event": "composition", "events": [[{"event": "gaussian", "noise_multiplier": 1.0}, 1, 2]]},
    {"event": "composition", "events": [[None, 1]]},
    {"event": "composition", "events": [], "extra": 1},
]


@pytest.mark.parametrize("data", BAD_DATA, ids=lambda data: str(data)[:60])
def test_bad_data_is_refused(data):
    for read in (lambda: Event.from_dict(data), lambda: Event.from_json(json.dumps(data))):
        with pytest.raises(InvalidParameter):
            read()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        '{"event":"gaussian","noise_multiplier":NaN}',
        '{"event":"gaussian","noise_multiplier":Infinity}',
        None,
        3,
        b"\xff",
        "[" * 100_000,
    ],
)
def test_bad_text_is_refused(text):
    with pytest.raises(InvalidParameter):
        Event.from_json(text)


words = st.sampled_from(["gaussian", "laplace", "composition", "poisson-sampled", "", None, 1.0, True])
fields = st.sampled_from(["event", "events", "of", "rate", "scale", "noise_multiplier"])


@given(
    st.dictionaries(
        fields, words | st.lists(words, max_size=2) | st.dictionaries(fields, words, max_size=2), max_size=4
    )
)
@settings(max_examples=100, deadline=None)
def test_random_data_is_an_event_or_refused(data):
    try:
        event = Event.from_dict(data)
    except InvalidParameter:
        return
    assert Event.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ((G, 0),),
        ((G, 1.5),),
        ((G, True),),
        (("gaussian", 1),),
        ((None, 1),),
        ((G,),),
        (G,),
        None,
        3,
        "ab",
    ],
)
def test_bad_compositions_are_refused(parts):
    with pytest.raises(InvalidParameter):
        Composition(parts)
