"""The exponential mechanism in whole numbers: its law, its powers of 1/e, and scores that are far apart."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from discreet.core import choice
from discreet.core.choice import _BLOCKS, _DIGITS, _falling_powers, exponential_mechanism
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter


def frequencies(scores, sizes, scale, draws=4000, seed=3):
    stream, counts = RandomStream(unsafe_seed=seed), [np.zeros(size) for size in sizes]
    for _ in range(draws):
        group, point = exponential_mechanism(np.array(scores), np.array(sizes), scale, stream)
        counts[group][point] += 1
    return np.concatenate(counts)


def chi_square(found, weights):
    wanted = weights / weights.sum() * found.sum()
    return float(np.sum((found - wanted) ** 2 / wanted))


def test_every_point_has_the_probability_of_the_closed_form():
    """Seeded. Beyond 45 with 9 degrees of freedom: once in a million."""
    scores, sizes, scale = [3, 0, 7, 29, 5], [2, 1, 4, 3, 0], 4
    weights = np.repeat(np.exp(-np.array(scores) / scale), sizes)
    assert chi_square(frequencies(scores, sizes, scale), weights) < 45


def test_a_scale_that_is_off_is_noticed():
    """The broken twin: half the scale, as if the sensitivity were half of what it is."""
    scores, sizes = [3, 0, 7, 29], [2, 1, 4, 3]
    weights = np.repeat(np.exp(-np.array(scores) / 4), sizes)
    assert chi_square(frequencies(scores, sizes, 2), weights) > 200


def test_what_is_kept_without_its_rest_is_noticed(monkeypatch):
    """The broken twin: blocks alone, without the last rejection."""
    monkeypatch.setattr(choice, "_is_kept", lambda part, scale, stream: True)
    weights = np.exp(-np.array([0, 3, 7, 29]) / 4)
    assert chi_square(frequencies([0, 3, 7, 29], [1] * 4, 4), weights) > 200


def test_powers_are_those_of_one_over_e():
    with localcontext() as context:
        context.prec = 200
        for turns, power in enumerate(_falling_powers()):
            exact = (-Decimal(turns)).exp() * 2**_DIGITS
            assert 0 <= exact - power < Decimal("1.000001")
            assert exact - power < exact / 2**100
    assert len(_falling_powers()) == _BLOCKS


def test_far_scores_never_vanish_and_billions_of_points_are_cheap():
    """All that is further than 127 scales has the weight of that, so the law is private for any scores."""
    stream = RandomStream(unsafe_seed=1)
    far = np.array([10**15, 10**15 + 10**12])
    for _ in range(50):  # the other has a chance of 2**59 exp(-127)
        assert exponential_mechanism(far, np.array([1, 2**59]), 10, stream) == (0, 0)
    assert exponential_mechanism(np.array([5, 10**12]), np.array([0, 7]), 3, stream)[0] == 1


@pytest.mark.parametrize("sizes", [[0, 0], [], [2**60, 1]])
def test_no_points_or_too_many_are_refused(sizes):
    scores = np.zeros(len(sizes), np.int64)
    with pytest.raises(InvalidParameter, match="sizes="):
        exponential_mechanism(scores, np.array(sizes, np.int64), 1, RandomStream(unsafe_seed=1))
