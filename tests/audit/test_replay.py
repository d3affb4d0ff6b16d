"""Sensitivity by replay: clipped sums pass, and each broken twin is caught."""

import numpy as np
import pytest

from discreet.audit.neighbours import STRANGE, neighbour_pairs, number_of
from discreet.audit.replay import noise_depends_on_data, replay, replay_noisy
from discreet.core.clipping import clip_rows
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter

WIDTH = 5
EXAMPLES = np.random.default_rng(0).normal(size=(30, WIDTH))


def stream():
    return RandomStream(unsafe_seed=0)


def clipped_sum(rows):
    return clip_rows(rows, 1.0).sum(0)


def clipped_mean(rows):
    return clipped_sum(rows) / max(1, len(rows))


def clipped_after(rows):
    return clip_rows(clip_rows(rows, 1e90).sum(0)[None], 1.0)[0] * 10


def per_microbatch(rows):
    """Clips the mean of each four records: half as sensitive as it looks, where a batch is not full."""
    return sum(
        clip_rows(rows[k : k + 4].mean(0)[None], 1.0)[0] * 4 for k in range(0, len(rows), 4)
    ) + np.zeros(WIDTH)


def careless(rows):
    """NaN fails the comparison, so its row passes as it is: a bug of real libraries."""
    norms = np.linalg.norm(rows, axis=1)
    factors = np.where(norms > 1.0, 1.0 / np.maximum(norms, 1e-300), 1.0)
    return (rows * factors[:, None]).sum(0)


def telling(rows):
    if not np.isfinite(rows).all():
        raise ValueError("input contains NaN")
    return clipped_sum(rows)


def centred(rows):
    return clipped_sum(rows - rows.mean(0)) if len(rows) else np.zeros(WIDTH)


BROKEN = {
    "divided by the number of rows": (clipped_mean, 1 / 30, "add-remove"),
    "clipped after the sum": (clipped_after, 1.0, "add-remove"),
    "clipped by microbatch": (per_microbatch, 1.0, "add-remove"),
    "NaN passes": (careless, 1.0, "add-remove"),
    "an error tells": (telling, 1.0, "add-remove"),
    "an error tells, replaced": (telling, 2.0, "replace-one"),
    "records mixed before the clip": (centred, 1.0, "add-remove"),
    "replace-one sold with C": (clipped_sum, 1.0, "replace-one"),
    "a tenth too long": (lambda rows: 1.1 * clipped_sum(rows), 1.0, "add-remove"),
    "an empty data set has another shape": (lambda rows: clipped_sum(rows)[: len(rows)], 1.0, "add-remove"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_sums_are_found(fault):
    sums, sensitivity, neighbours = BROKEN[fault]
    finding = replay(sums, EXAMPLES, sensitivity, neighbours=neighbours, pairs=66, stream=stream())
    assert not finding.passed
    assert finding.measured > finding.limit


@pytest.mark.parametrize(("neighbours", "sensitivity"), [("add-remove", 1.0), ("replace-one", 2.0)])
def test_a_clipped_sum_reaches_its_sensitivity_and_no_more(neighbours, sensitivity):
    finding = replay(clipped_sum, EXAMPLES, sensitivity, neighbours=neighbours, pairs=66, stream=stream())
    assert finding.passed
    assert finding.measured == pytest.approx(sensitivity, rel=1e-9)


def test_the_l1_norm_is_used_for_laplace():
    def sums(rows):
        return clip_rows(rows, 1.0, norm="l1").sum(0)

    assert replay(sums, EXAMPLES, 1.0, norm="l1", pairs=66, stream=stream()).passed
    assert not replay(clipped_sum, EXAMPLES, 1.0, norm="l1", pairs=66, stream=stream()).passed


def test_clean_records_only_if_asked_for():
    assert replay(telling, EXAMPLES, 1.0, hostile=False, pairs=66, stream=stream()).passed


def test_pairs_differ_by_one_record_and_all_kinds_are_tried():
    records = (EXAMPLES, np.arange(30))
    pairs = list(neighbour_pairs(records, "add-remove", 154, stream()))
    assert {pair.kind.split(" record ")[0] for pair in pairs} == set(STRANGE)
    assert {number_of(pair.first) for pair in pairs} == {0, 1, 2, 3, 10, 15, 29}
    for pair in pairs:
        assert number_of(pair.second) == number_of(pair.first) + 1
        assert np.array_equal(pair.second[1][:-1], pair.first[1])
    for pair in neighbour_pairs(records, "replace-one", 44, stream()):
        assert number_of(pair.second) == number_of(pair.first)
        assert np.array_equal(pair.second[0][:-1], pair.first[0][:-1])


def with_noise(sums, std, seed):
    rng = np.random.default_rng(seed)
    return lambda rows: sums(rows) + rng.normal(0, std, WIDTH)


@pytest.mark.parametrize(
    ("sums", "neighbours", "sensitivity"),
    [(clipped_after, "add-remove", 1.0), (clipped_sum, "replace-one", 1.0), (telling, "add-remove", 1.0)],
)
def test_broken_sums_are_found_through_the_noise(sums, neighbours, sensitivity):
    finding = replay_noisy(
        with_noise(sums, 0.5, 1),
        EXAMPLES,
        sensitivity,
        0.5,
        neighbours=neighbours,
        draws=200,
        stream=stream(),
    )
    assert not finding.passed


def test_false_alarms_through_the_noise():
    """60 runs at alpha = 0.05 on the worst honest case: more than 11 alarms have probability 2e-4; seeded."""
    alarms = sum(
        not replay_noisy(
            with_noise(clipped_sum, 0.5, seed),
            EXAMPLES,
            1.0,
            0.5,
            alpha=0.05,
            pairs=6,
            draws=20,
            stream=stream(),
        ).passed
        for seed in range(60)
    )
    assert alarms <= 11


def test_noise_that_follows_the_number_of_records_is_found():
    honest = with_noise(clipped_sum, 1.0, 2)
    assert noise_depends_on_data(honest, EXAMPLES).passed
    rng = np.random.default_rng(3)
    assert not noise_depends_on_data(
        lambda rows: rng.normal(0, 1 / max(1, len(rows)), WIDTH), EXAMPLES
    ).passed
    assert not noise_depends_on_data(
        lambda rows: honest(rows) if len(rows) > 1 else telling(rows * np.nan), EXAMPLES
    ).passed


def test_false_alarms_of_the_noise_comparison():
    """30 runs at alpha = 0.1; more than 10 alarms have probability 1e-4; seeded."""
    alarms = sum(
        not noise_depends_on_data(with_noise(clipped_sum, 1.0, seed), EXAMPLES, alpha=0.1, draws=500).passed
        for seed in range(30)
    )
    assert alarms <= 10


@pytest.mark.parametrize(
    ("name", "records", "sensitivity", "options"),
    [
        ("sensitivity", EXAMPLES, float("nan"), {}),
        ("records", EXAMPLES[:1], 1.0, {}),
        ("records", [1, 2], 1.0, {}),
        ("records", (EXAMPLES, np.arange(3)), 1.0, {}),
        ("pairs", EXAMPLES, 1.0, {"pairs": 0}),
        ("neighbours", EXAMPLES, 1.0, {"neighbours": "swap"}),
        ("norm", EXAMPLES, 1.0, {"norm": "l3"}),
        ("tolerance", EXAMPLES, 1.0, {"tolerance": float("nan")}),
    ],
)
def test_nonsense_is_refused(name, records, sensitivity, options):
    with pytest.raises(InvalidParameter, match=name):
        replay(clipped_sum, records, sensitivity, **options)
