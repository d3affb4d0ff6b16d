"""Kernels about columns and pairs of columns, against plain references."""

import numpy as np
import pytest

from discreet.linear.kernels import uneven_bins
from discreet.linear.kernels.rank_crossings import CROSSINGS, cross, square_parts
from discreet.linear.kernels.uneven_bins import Edges, count_between


def counted(rows, edges, steps):
    """Each number in the last bin that begins at or below it; the outer bins have no end."""
    found = []
    for column, own in enumerate(edges):
        bins = np.clip(np.searchsorted(own, rows[:, column], side="right") - 1, 0, len(own) - 2)
        found.append(np.bincount(bins, steps, len(own) - 1))
    return np.concatenate(found).astype(np.int64)


def uneven(seed):
    rng = np.random.default_rng(seed)
    edges = [np.unique(np.r_[0.0, rng.random(rng.integers(1, 40)) ** 3, 1.0]) for _ in range(3)]
    rows = rng.choice(np.r_[np.concatenate(edges), rng.random(50), -1.0, 2.0], (200, 4)).astype(np.float32)
    return edges, rows, rng.integers(0, 9, 200)


@pytest.mark.parametrize("seed", range(10))
def test_numbers_are_counted_between_their_edges(seed):
    edges, rows, steps = uneven(seed)
    counts = np.zeros(sum(len(own) - 1 for own in edges), np.int64)
    count_between(rows, Edges.of(edges), steps, counts)
    assert counts.tolist() == counted(rows, edges, steps).tolist()


def test_guides_beyond_a_number_are_found(monkeypatch):
    """The broken twin: a search that begins too far to the right."""
    edges, rows, steps = uneven(0)
    counts, made = np.zeros(sum(len(own) - 1 for own in edges), np.int64), Edges.of(edges)
    late = made._replace(guides=np.minimum(made.guides + 1, np.array([[len(own) - 2] for own in edges])))
    uneven_bins.count_between(rows, late, steps, counts)
    assert counts.tolist() != counted(rows, edges, steps).tolist()


def test_crossings_are_polynomials_of_two_ranks():
    rng = np.random.default_rng(0)
    every, weights, factors = (
        rng.normal(size=(20, 3)),
        rng.normal(size=(2, 10, CROSSINGS)),
        rng.normal(size=20),
    )
    first, second = np.array([0, 2]), np.array([1, 0])
    out, parts = np.empty((20, 2 * CROSSINGS)), np.empty((20, 2))
    cross(every, first, second, weights, factors, out)
    square_parts(out, parts)
    for p in range(2):
        u, v = every[:, first[p]], every[:, second[p]]
        powers = np.stack([u**0, u, v, u**2, v**2, u**3, v**3, u * v, u**2 * v, u * v**2], axis=1)
        expected = factors[:, None] * (powers @ weights[p])
        np.testing.assert_allclose(
            out[:, CROSSINGS * p : CROSSINGS * (p + 1)], expected, rtol=1e-10, atol=1e-12
        )
        np.testing.assert_allclose(parts[:, p], (expected**2).sum(axis=1), rtol=1e-10)
