"""The sensitivity of a rank, found by trying all small tables, and bounds of quantiles that are refused."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import Budget, InvalidParameter, PlanViolation
from discreet.trusted.choices import Quantiles, _misses, _sensitivity, _share

POINTS = 3


def missed(records, share):
    """By how much each of three points misses the rank, where ``records`` tells how many records each of them has."""
    up_to = np.cumsum(records)
    return _misses(share * int(sum(records)), up_to - np.array(records), up_to)


def tables(size):
    return [counts for counts in itertools.product(range(size + 1), repeat=POINTS) if sum(counts) == size]


def farthest(neighbours, group_size, share):
    """The most by which what is missed differs between neighbouring tables of at most eight records."""
    found = 0
    for size in range(9 - group_size):
        small = tables(size)
        added = tables(group_size)
        pairs = (
            [(base, tuple(np.add(base, more))) for base in small for more in added]
            if neighbours == "add-remove"
            else [
                (tuple(np.add(base, one)), tuple(np.add(base, other)))
                for base in small
                for one in added
                for other in added
            ]
        )
        for one, other in pairs:
            found = max(found, int(np.abs(missed(one, share) - missed(other, share)).max()))
    return found


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("group_size", [1, 2, 3])
@pytest.mark.parametrize("level", [0.1, 0.5, 0.75])
def test_the_sensitivity_of_a_rank_is_the_largest_difference_of_neighbouring_tables(
    neighbours, group_size, level
):
    budget, share = Budget(1.0, 0.0, neighbours, group_size=group_size), _share(level)
    assert farthest(neighbours, group_size, share) == _sensitivity(share, budget, alone=True)


def test_the_twin_that_forgets_the_group_is_found():
    share = _share(0.5)
    assert farthest("replace-one", 3, share) > _sensitivity(
        share, Budget(1.0, 0.0, "replace-one"), alone=True
    )


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf), (-1e308, 1e308)]
)
def test_bounds_without_an_inside_are_refused(bounds):
    with pytest.raises((InvalidParameter, PlanViolation)):
        Quantiles((0.5,), *bounds, epsilon=1.0)


def test_an_epsilon_that_leaves_nothing_for_the_ends_of_intervals_is_refused():
    least = 3e-5  # enough for one choice, and too little for two ends beside it
    Quantiles((0.5,), 0.0, 1.0, epsilon=least)
    with pytest.raises(InvalidParameter, match="epsilon"):
        Quantiles((0.5,), 0.0, 1.0, epsilon=least, confidence=0.9)


@pytest.mark.parametrize("levels", [(0.5,), (0.1, 0.2, 0.3), tuple(k / 8 for k in range(1, 8))])
@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize("group_size", [1, 3])
def test_the_event_covers_all_choices_in_exact_fractions_and_stays_within_epsilon(
    levels, confidence, group_size
):
    for epsilon in (0.1, 1.0, 3.7):
        query = Quantiles(levels, 0.0, 1.0, epsilon, confidence, group_size=group_size)
        choices = Fraction(query._each) * query._rounds + Fraction(query._side) * 2 * len(levels)
        assert choices / group_size <= Fraction(query.event.epsilon) <= Fraction(epsilon) / group_size


@pytest.mark.parametrize("levels", [(), (0.0,), (1.0,), (0.5, 0.5), (0.6, 0.4), (math.nan,)])
def test_levels_that_are_no_increasing_shares_are_refused(levels):
    with pytest.raises(PlanViolation, match="levels"):
        Quantiles(levels, 0.0, 1.0, epsilon=1.0)
