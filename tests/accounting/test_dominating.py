"""Which theorem covers which release, and the sentence where none does."""

import math

import mpmath
import numpy as np
import pytest

from discreet.accounting.curve import account
from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.dominating import Relation, Tolerances, dominating
from discreet.accounting.pairs import DiscretePair, GaussianPair, LaplacePair, Reversed, Sampled
from discreet.accounting.sampled_pairs import FixedSize, GroupPair
from discreet.errors import UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)
from discreet.guarantee import group_privacy

QUALITY = Tolerances(1e-12, 1e-2)
ADD_REMOVE, REPLACE_ONE = Relation("add-remove", 1), Relation("replace-one", 1)


def pld(event, relation, direction="remove"):
    (found,) = dominating(event, relation).plds_of(direction, QUALITY)
    return found


POISSON = PoissonSampled(0.01, Gaussian(2.0))


@pytest.mark.parametrize(
    ("event", "relation", "remove", "add"),
    [
        (Laplace(4.0), ADD_REMOVE, LaplacePair(0.25), LaplacePair(0.25)),
        (Laplace(4.0), REPLACE_ONE, LaplacePair(0.5), LaplacePair(0.5)),
        (Laplace(4.0), Relation("add-remove", 3), LaplacePair(0.75), LaplacePair(0.75)),
        (Laplace(4.0), Relation("replace-one", 3), LaplacePair(1.5), LaplacePair(1.5)),
        (POISSON, ADD_REMOVE, Sampled(GaussianPair(0.5), 0.01), Reversed(Sampled(GaussianPair(0.5), 0.01))),
        (POISSON, REPLACE_ONE, GroupPair(2.0, 0.01, 1, 1), GroupPair(2.0, 0.01, 1, 1)),
        (
            POISSON,
            Relation("add-remove", 3),
            GroupPair(2.0, 0.01, 3, 0),
            Reversed(GroupPair(2.0, 0.01, 3, 0)),
        ),
        (POISSON, Relation("replace-one", 3), GroupPair(2.0, 0.01, 3, 3), GroupPair(2.0, 0.01, 3, 3)),
        (
            FixedSizeSampled(10, 1000, Gaussian(2.0)),
            REPLACE_ONE,
            FixedSize(GaussianPair(1.0), 0.01),
            FixedSize(GaussianPair(1.0), 0.01),
        ),
        (
            PoissonSampled(0.1, Laplace(2.0)),
            ADD_REMOVE,
            Sampled(LaplacePair(0.5), 0.1),
            Reversed(Sampled(LaplacePair(0.5), 0.1)),
        ),
    ],
)
def test_pair_of_each_event(event, relation, remove, add):
    for direction, pair in (("remove", remove), ("add", add)):
        found = pld(event * 7, relation, direction)
        assert (found.upper, found.lower, found.count) == (pair, pair, 7)


@pytest.mark.parametrize(
    ("neighbours", "group", "reach"), [("add-remove", 1, 1), ("replace-one", 1, 2), ("replace-one", 5, 10)]
)
def test_all_gaussians_are_one(neighbours, group, reach):
    event = Gaussian(2.0) * 3 + Gaussian(0.5) * 2 + PoissonSampled(1.0, Gaussian(1.0))
    parts = dominating(event, Relation(neighbours, group))
    assert parts.mu == pytest.approx(reach * (3 / 4 + 2 / 0.25 + 1) ** 0.5, rel=1e-15)
    assert parts.plds == ()
    assert parts.directions() == ("remove",)


def test_directions_are_separate_unless_every_part_is_symmetric():
    assert dominating(POISSON, ADD_REMOVE).directions() == ("remove", "add")
    assert dominating(POISSON + Laplace(1.0), REPLACE_ONE).directions() == ("remove",)
    assert dominating(Laplace(1.0) + Gaussian(1.0) + ApproximateDP(1.0, 0.1), ADD_REMOVE).directions() == (
        "remove",
    )
    assert dominating(Laplace(1.0) + POISSON, ADD_REMOVE).directions() == ("remove", "add")
    assert dominating(RandomlyAllocated(10, Gaussian(1.0)), ADD_REMOVE).directions() == ("remove", "add")


@pytest.mark.parametrize("group", [1, 4])
def test_black_boxes_are_a_coin_and_a_response(group):
    parts = dominating(ApproximateDP(0.5, 1e-4) * 10, Relation("add-remove", group))
    epsilon, delta = group_privacy(0.5, 1e-4, group)
    exact = float(-mpmath.expm1(10 * mpmath.log1p(-mpmath.mpf(delta))))
    assert parts.infinity_mass.lower <= exact <= parts.infinity_mass.upper
    assert parts.infinity_mass == pytest.approx((exact, exact), rel=1e-13)
    found = parts.plds_of("remove", QUALITY)[0]
    assert isinstance(found, LossDistribution)
    assert isinstance(found.upper, DiscretePair)
    assert found.upper.losses == pytest.approx([-epsilon, epsilon])
    assert found.count == 10


def test_black_boxes_without_an_epsilon_are_only_a_coin():
    parts = dominating(ApproximateDP(0.0, 0.25) * 2, ADD_REMOVE)
    assert parts.infinity_mass == pytest.approx((1 - 0.75**2,) * 2)
    assert dominating(ApproximateDP(0.0, 0.25), ADD_REMOVE).infinity_mass == (0.25, 0.25)
    assert dominating(Laplace(1.0), ADD_REMOVE).infinity_mass == (0.0, 0.0)
    assert parts.plds == ()
    assert parts.mu == 0


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_random_allocation_encloses_its_law(direction):
    found = pld(RandomlyAllocated(20, Gaussian(1.0)) * 3, ADD_REMOVE, direction)
    for loss in (0.0, 0.3, 1.0):
        upper, lower = (pair.cells(np.array([-np.inf, loss, np.inf])) for pair in (found.upper, found.lower))
        high = upper.p[1] + upper.p_above - np.exp(loss) * upper.q[1]
        low = lower.p[1] - np.exp(loss) * lower.q[1]
        assert low <= high
        assert high - low < 0.1 * high + 1e-9
    assert found.count == 3


FIXED = FixedSizeSampled(10, 1000, Gaussian(1.0))
ALLOCATED = RandomlyAllocated(100, Gaussian(1.0))
REFUSED = [
    (PoissonSampled(0.1, Laplace(1.0)), REPLACE_ONE, ["replace-one", "add-remove", "Gaussian"]),
    (PoissonSampled(0.1, Laplace(1.0)), Relation("add-remove", 2), ["group", "group_size=1", "Gaussian"]),
    (FIXED, ADD_REMOVE, ["number of records", "replace-one", "Poisson"]),
    (FIXED, Relation("replace-one", 2), ["group_size=1", "Poisson"]),
    (FixedSizeSampled(10, 1000, Laplace(1.0)), REPLACE_ONE, ["Gaussian", "Poisson"]),
    (ALLOCATED, REPLACE_ONE, ["add-remove", "Poisson"]),
    (ALLOCATED, Relation("add-remove", 2), ["group_size=1", "Poisson"]),
    (RandomlyAllocated(100, Laplace(1.0)), ADD_REMOVE, ["Gaussian", "Poisson"]),
    (ApproximateDP(1.0, 0.3), Relation("add-remove", 5), ["group of 5", "smaller"]),
]


@pytest.mark.parametrize(("event", "relation", "words"), REFUSED)
@pytest.mark.parametrize("composed", [False, True])
def test_refusals_name_an_alternative(event, relation, words, composed):
    """Alone, repeated, and hidden in a composition with events that are fine."""
    event = Laplace(3.0) + event * 2 if composed else event
    with pytest.raises(UnsupportedEvent) as refusal:
        dominating(event, relation)
    sentence = str(refusal.value)
    for word in words:
        assert word in sentence
    assert "use" in sentence.lower()


@pytest.mark.parametrize(("steps", "noise"), [(10**8, 1.0), (10, 0.01), (10, 1e6), (10**300, 0.3), (7, 0.05)])
def test_allocation_outside_of_its_range_is_between_the_sum_and_no_sampling(steps, noise):
    """(4) from above; from below the sum of all steps, which anybody can form."""
    curve = account(RandomlyAllocated(steps, Gaussian(noise)) * 2)
    whole = account(Gaussian(noise) * 2)
    for delta in (1e-6, 1e-2):
        lower, upper = curve.epsilon_bounds(delta)
        assert upper == pytest.approx(whole.epsilon(delta), rel=2e-3)
        assert lower <= account(Gaussian(noise * math.sqrt(steps)) * 2).epsilon(delta) * (1 + 1e-12)


def test_the_sum_of_all_steps_is_a_lower_bound_of_allocation():
    """Where both are known: what replaces the law outside of its range is below it inside."""
    for steps, noise in ((10, 2.0), (1000, 0.5), (50, 20.0)):
        exact = account(RandomlyAllocated(steps, Gaussian(noise)))
        for delta in (1e-6, 1e-2):
            sums = account(Gaussian(noise * math.sqrt(steps))).epsilon_bounds(delta)
            assert sums.lower <= exact.epsilon(delta)


def test_an_unknown_event_is_refused():
    class Shuffled(Event):
        kind = "shuffled"

    with pytest.raises(UnsupportedEvent):
        dominating(Shuffled(), ADD_REMOVE)
