"""Scores in cells: as if every record were gone through, and no record adds more than the clip norm."""

from fractions import Fraction

import numpy as np
import pytest

from discreet.linear.kernels.score_cells import LARGEST_SCORE, ScoreCells, round_scores
from discreet.linear.losses import Logistic, SmoothedHinge

GRID = 2.0**-30


def one_record(loss, score, target, line, clip_norm):
    """The oracle: a record on its own, in plain floats."""
    residual = float(loss.residual(np.array([line[0] + line[1] * score]), np.array([target]))[0])
    limit = clip_norm * (1 - 2.0**-40) / float(np.hypot(1.0, score))
    residual = min(max(residual, -limit), limit)
    return [int(residual / GRID), int(residual * score / GRID)]


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(0.3)])
@pytest.mark.parametrize("clip_norm", [0.3, 1.2])
def test_the_gradient_is_that_of_one_record_after_the_other(loss, clip_norm):
    rng = np.random.default_rng(0)
    scores, targets = 2 * rng.standard_normal(300), rng.integers(0, 2, 300)
    cells = ScoreCells.count([(scores[:100], targets[:100]), (scores[100:], targets[100:])], unit=0.7)
    near = round_scores(scores, unit=0.7)
    assert np.max(abs(near - np.clip(scores / 0.7, -LARGEST_SCORE, LARGEST_SCORE))) <= 1 / 2048
    line = np.array([0.4, -1.3])
    expected = np.sum(
        [one_record(loss, *pair, line, clip_norm) for pair in zip(near, targets, strict=True)], 0
    )
    assert cells.records.sum() == 300
    assert cells.gradient(loss, line, clip_norm, GRID).tolist() == expected.tolist()


def longest(cells, line, clip_norm):
    """The largest squared norm that one record adds, over the square of the clip norm, exactly."""
    squares = []
    for place in range(len(cells.records)):
        alone = ScoreCells(cells.scores[[place]], cells.classes[[place]], np.ones(1, np.int64))
        steps = alone.gradient(Logistic(), line, clip_norm, GRID).tolist()
        squares.append(sum(Fraction(step) ** 2 for step in steps))
    return max(squares) * Fraction(GRID) ** 2 / Fraction(clip_norm) ** 2


def test_no_record_adds_more_than_the_clip_norm():
    scores = np.linspace(-5, 5, 201)
    cells = ScoreCells.count([(scores, np.arange(201) % 2)], unit=1.0)
    for line in ([0.0, 0.0], [3.0, -7.0], [-1e6, 1e6], [0.0, np.nan]):
        assert longest(cells, np.array(line), clip_norm=0.9) <= 1
    assert longest(cells, np.array([-30.0, 0.0]), clip_norm=0.9) > Fraction(99, 100)


def test_a_limit_that_forgets_the_score_is_caught(monkeypatch):
    """The broken twin."""
    cells = ScoreCells.count([(np.linspace(-5, 5, 201), np.arange(201) % 2)], unit=1.0)
    monkeypatch.setattr(np, "hypot", lambda one, score: np.ones_like(score))
    assert longest(cells, np.array([-30.0, 0.0]), clip_norm=0.9) > 9


def test_what_is_no_number_or_no_class_does_not_count():
    scores = np.array([np.nan, 1.0, np.inf, -np.inf, 0.25], np.float32)
    targets = np.array([1.0, 2.0, 1.0, 0.0, 0.0], np.float32)
    cells = ScoreCells.count([(scores, targets)], unit=1.0)
    assert cells.scores.tolist() == [-3.0, 0.25, 3.0]
    assert cells.classes.tolist() == [0.0, 0.0, 1.0]
