"""Clipping: the exact bound, non-finite rows, the rules, and the price of an adaptive clip norm."""

import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from discreet.core.clipping import (
    AdaptiveClip,
    ClipRule,
    Flat,
    Normalised,
    PerBlock,
    clip_rows,
    scale_factors,
)
from discreet.errors import InvalidParameter
from discreet.events import Gaussian

FLOATS = (np.float16, np.float32, np.float64)
CLIP_NORMS = (1.0, 0.1, 1 / 3, 1e-3, 37.5, 1e-40, 1e90)


def above(rows, clip_norm, norm="l2"):
    """How many rows have a norm above clip_norm, in exact rational arithmetic. NaN and infinity count."""
    power, limit = (2, Fraction(clip_norm) ** 2) if norm == "l2" else (1, Fraction(clip_norm))
    rows = np.asarray(rows)
    rows = rows[:, None] if rows.ndim == 1 else rows
    finite = np.isfinite(rows).all(axis=1)
    lengths = (sum(abs(Fraction(float(x))) ** power for x in row) for row in rows[finite])
    return int(np.count_nonzero(~finite)) + sum(length > limit for length in lengths)


def adversarial_rows(dtype, clip_norm, seed, count=700):
    """Magnitudes over the whole range of the type, and norms within a few roundings of the clip norm."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    low, high = np.log10(float(np.finfo(dtype).smallest_subnormal)), np.log10(float(np.finfo(dtype).max))
    wild = 10 ** rng.uniform(low, high - 0.01, size=(count, 1)) * rng.uniform(-1, 1, size=(count, size))
    mixed = 10 ** rng.uniform(low, high - 0.01, size=(count, size)) * rng.choice([-1, 1], size=(count, size))
    near = rng.standard_normal((count, size))
    jitter = 1 + rng.uniform(-4, 4, size=(count, 1)) * float(np.finfo(dtype).eps)
    near *= clip_norm / np.linalg.norm(near, axis=1, keepdims=True) * jitter
    with np.errstate(over="ignore"):
        return np.concatenate([wild, mixed, near]).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_never_above_the_clip_norm_in_exact_arithmetic(dtype, norm):
    # 2 norms x 3 types x 7 clip norms x 2100 rows = 88 200 cases, 0 above.
    for seed, clip_norm in enumerate(CLIP_NORMS):
        rows = adversarial_rows(dtype, clip_norm, seed)
        assert above(clip_rows(rows, clip_norm, norm), clip_norm, norm) == 0


def test_the_exact_check_catches_common_clips():
    rows = adversarial_rows(np.float32, 1.0, 0)
    rows = rows[np.isfinite(rows).all(axis=1)]
    with np.errstate(all="ignore"):
        single = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        double = np.sqrt((rows.astype(float) ** 2).sum(axis=1, keepdims=True))
        assert above(rows * np.minimum(1, 1 / (single + np.float32(1e-6))), 1.0) > 100
        assert above(rows * np.minimum(1, 1 / double).astype(np.float32), 1.0) > 100
        wide = adversarial_rows(np.float64, 1.0, 0)
        assert above(wide * np.minimum(1, 1 / np.linalg.norm(wide, axis=1, keepdims=True)), 1.0) > 100


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_loses_no_more_than_a_few_roundings(dtype, norm):
    rng = np.random.default_rng(3)
    eps = float(np.finfo(dtype).eps)
    for size in (2, 7, 64, 1001):
        rows = (10 ** rng.uniform(1, 4, size=(20, 1)) * rng.standard_normal((20, size))).astype(dtype)
        order = 1 if norm == "l1" else 2
        clipped = clip_rows(rows, 0.7, norm).astype(float)
        lengths = np.linalg.norm(clipped, order, axis=1)
        # Coordinates below the normal numbers of float16 lose more: one subnormal step each.
        lost = 4 * eps + (size + 32) * 2.0**-52 + size * float(np.finfo(dtype).smallest_subnormal)
        assert np.all(lengths >= 0.7 * (1 - lost) - lost)
        directions = rows.astype(float) / np.linalg.norm(rows.astype(float), order, axis=1, keepdims=True)
        assert np.allclose(clipped, 0.7 * directions, rtol=lost, atol=lost)


@pytest.mark.parametrize("dtype", FLOATS)
def test_short_rows_pass_bit_for_bit(dtype):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((50, 8)).astype(dtype)
    rows[7] = 0
    assert clip_rows(rows, 100.0).tobytes() == rows.tobytes()
    assert clip_rows(rows[:, 0], 100.0).tobytes() == rows[:, 0].tobytes()


@pytest.mark.parametrize("magnitude", [1e-300, 1e-200, 1e-160, 1e150, 1e160, 1e200, 1e300, 1.7e308])
@pytest.mark.parametrize("size", [2, 3, 1000])
def test_norms_neither_overflow_nor_underflow(magnitude, size):
    rows = np.full((1, size), magnitude)
    clipped = clip_rows(rows, 2.0)
    expected = rows if magnitude < 1 else np.full((1, size), 2 / math.sqrt(size))
    assert np.allclose(clipped, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_row_becomes_zero_and_nothing_is_said(dtype, bad, capfd, caplog):
    rows = np.ones((4, 5), dtype=dtype)
    rows[1, 3] = bad
    rows[2] = bad
    rows[3, 0] = np.finfo(dtype).max
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped = clip_rows(rows, 0.5)
        scalars = clip_rows(rows[:, 3], 0.5)
        factors = scale_factors([1.0, bad, -1.0], 0.5)
    assert np.array_equal(clipped[1:3], np.zeros((2, 5)))
    assert np.allclose(clipped[0], 0.5 / math.sqrt(5), rtol=2e-3)
    assert np.allclose(clipped[3, 0], 0.5, rtol=2e-3)
    assert scalars.tolist() == [0.5, 0, 0, 0.5]
    assert factors[1:].tolist() == [0, 0]
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_a_nan_must_not_unclip_its_neighbours():
    # The bypass min(1, C / nan) = 1 lets the other coordinates through.
    assert above(clip_rows([[math.nan, 1e9, -1e9]], 1.0), 1.0) == 0
    assert clip_rows([[math.nan, 1e9, -1e9]], 1.0).tolist() == [[0, 0, 0]]


@settings(max_examples=200, deadline=None)
@given(
    rows=st.sampled_from((np.float16, np.float32, np.float64)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6))
    ),
    clip_norm=st.floats(1e-100, 1e100),
    norm=st.sampled_from(["l1", "l2"]),
)
def test_any_floats_at_all(rows, clip_norm, norm):
    clipped = clip_rows(rows, clip_norm, norm)
    assert clipped.shape == rows.shape
    assert clipped.dtype == rows.dtype
    assert above(clipped, clip_norm, norm) == 0
    # A row alone gives the same bits, and clipping in place too.
    for i in range(len(rows)):
        assert clip_rows(rows[i : i + 1], clip_norm, norm).tobytes() == clipped[i].tobytes()
    assert clip_rows(rows, clip_norm, norm, out=rows) is rows
    assert rows.tobytes() == clipped.tobytes()


@settings(max_examples=200, deadline=None)
@given(
    values=st.sampled_from((np.float16, np.float32, np.float64)).flatmap(lambda t: hnp.arrays(t, (5,))),
    clip_norm=st.floats(1e-100, 1e100),
)
def test_numbers_are_clamped_exactly(values, clip_norm):
    clipped = clip_rows(values, clip_norm)
    assert above(clipped, clip_norm) == 0
    assert np.array_equal(clip_rows(values[:, None], clip_norm)[:, 0], clipped)
    inside = np.abs(values.astype(float)) <= clip_norm
    assert np.array_equal(clipped[inside], values[inside])
    outside = np.isfinite(values) & ~inside
    with np.errstate(over="ignore"):
        bigger = np.nextafter(np.abs(clipped[outside]), values.dtype.type(np.inf))
    assert np.all(bigger.astype(float) > clip_norm)


def test_integers_booleans_lists_and_layouts():
    whole = np.array([[3, 4], [2**62, 0], [0, 0]])
    assert clip_rows(whole, 2.5).dtype == np.float64
    assert np.allclose(clip_rows(whole, 2.5), [[1.5, 2], [2.5, 0], [0, 0]])
    assert clip_rows(np.array([True, False]), 1.0).tolist() == [1.0, 0.0]
    assert clip_rows([[3.0, 4.0]], 10.0).tolist() == [[3.0, 4.0]]
    rows = np.random.default_rng(0).standard_normal((6, 9))
    assert np.array_equal(clip_rows(np.asfortranarray(rows), 1.0), clip_rows(rows, 1.0))
    assert np.array_equal(clip_rows(rows[::2, ::3], 1.0), clip_rows(rows[::2, ::3].copy(), 1.0))
    assert np.array_equal(clip_rows(rows.astype(">f4"), 1.0), clip_rows(rows.astype("<f4"), 1.0))
    assert clip_rows(np.array([[np.longdouble("1e400"), 1]]), 1.0).tolist() == [[0, 0]]
    rows.flags.writeable = False
    clip_rows(rows, 1.0)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (0, 0), (0, 1)])
def test_nothing_in_nothing_out(shape):
    assert clip_rows(np.zeros(shape), 1.0).shape == shape


@pytest.mark.parametrize("clip_norm", [math.nan, math.inf, 0, -1, True, "1", None, 1e-101, 1e101, [1.0]])
@pytest.mark.parametrize(
    "make", [lambda c: clip_rows([[1.0]], c), Flat, Normalised, lambda c: PerBlock((1.0, c))]
)
def test_bad_clip_norms_are_refused_by_name(clip_norm, make):
    with pytest.raises(InvalidParameter, match=r"clip_norm.*=.*must be a finite number"):
        make(clip_norm)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0], [2.0, 3.0]], "same length"),
        ([["a", "b"]], "real numbers"),
        ([[1j, 2]], "real numbers"),
        (np.zeros((2, 2, 2)), r"\(records, coordinates\)"),
        (1.0, r"\(records, coordinates\)"),
    ],
)
def test_bad_rows_are_refused_without_showing_them(rows, message):
    with pytest.raises(InvalidParameter, match=message):
        clip_rows(rows, 1.0)


def test_bad_options_are_refused():
    with pytest.raises(InvalidParameter, match="norm='linf'"):
        clip_rows([[1.0]], 1.0, "linf")
    rows = np.ones((2, 3))
    for out in (np.ones((3, 2)), np.ones((2, 3), np.float32), np.ones((2, 6))[:, ::2]):
        with pytest.raises(InvalidParameter, match="out="):
            clip_rows(rows, 1.0, out=out)
    for error in (math.nan, -1e-9, 2):
        with pytest.raises(InvalidParameter, match="error="):
            scale_factors([1.0], 1.0, error)
    for stabiliser in (0, math.nan, -1):
        with pytest.raises(InvalidParameter, match="stabiliser="):
            Normalised(1.0, stabiliser)
    with pytest.raises(InvalidParameter, match="at least one block"):
        PerBlock(())
    with pytest.raises(InvalidParameter, match="number of blocks"):
        PerBlock((1.0, 1.0)).factors([1.0, 1.0, 1.0])


NORMS = np.concatenate([[0.0, 5e-324, 1.0, 1.7e308], 10 ** np.random.default_rng(5).uniform(-300, 308, 3000)])


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
@pytest.mark.parametrize("error", [0.0, 1e-12, 1e-6])
def test_factors_round_down_exactly(clip_norm, error):
    limit, grown = Fraction(clip_norm), 1 + Fraction(error)
    for rule in (Flat(clip_norm), Normalised(clip_norm, 0.01)):
        factors = rule.factors(NORMS, error)
        assert all(Fraction(f) * Fraction(x) * grown <= limit for f, x in zip(factors, NORMS, strict=True))
        assert rule.clip_norm == clip_norm
    flat = scale_factors(NORMS, clip_norm, error)
    assert np.all(flat[NORMS * (1 + 2 * error + 1e-15) <= clip_norm] == 1)
    ideal = clip_norm / np.maximum(NORMS, clip_norm)
    assert np.allclose(flat[ideal > 1e-290], ideal[ideal > 1e-290], rtol=2 * error + 1e-14, atol=0)


def test_the_normalised_rule_is_the_published_formula():
    norms = np.array([0.0, 0.005, 0.1, 1.0, 1e6])
    assert np.allclose(Normalised(2.0, 0.01).factors(norms), 2.0 / (norms + 0.01), rtol=1e-11)
    assert Normalised(2.0).factors(math.nan) == 0


def test_blocks_are_clipped_apart_and_bounded_together():
    rule = PerBlock((3.0, 4.0, 1 / 3))
    norms = np.random.default_rng(6).lognormal(1, 2, size=(100, 3))
    factors = rule.factors(norms)
    for k, limit in enumerate(rule.clip_norms):
        assert np.array_equal(factors[:, k], Flat(limit).factors(norms[:, k]))
    total = sum(Fraction(limit) ** 2 for limit in rule.clip_norms)
    assert total <= Fraction(rule.clip_norm) ** 2 <= total * (1 + Fraction(1, 10**14))
    assert PerBlock([2.0]).clip_norm >= 2.0


def test_the_price_of_the_count_is_that_of_two_gaussians():
    adaptive = AdaptiveClip(clip_norm=1.0, batch_size=100, count_noise=5.0)
    combined = adaptive.combined(Gaussian(1.1)).noise_multiplier
    exact = 1 / mpmath.sqrt(mpmath.mpf(1.1) ** -2 + mpmath.mpf(10) ** -2)
    assert combined <= exact
    assert combined == pytest.approx(float(exact), rel=1e-14)
    # Andrew et al. 2021: sum noise (z^-2 - (2 sigma_b)^-2)^(-1/2).
    of_sum = adaptive.of_sum(Gaussian(1.0)).noise_multiplier
    exact = (1 - mpmath.mpf(10) ** -2) ** mpmath.mpf("-0.5")
    assert of_sum >= exact
    assert of_sum == pytest.approx(float(exact), rel=1e-13)


@given(st.floats(0.01, 100), st.floats(0.01, 1e4))
def test_sum_and_combined_are_inverse_on_the_safe_side(noise_multiplier, count_noise):
    adaptive = AdaptiveClip(1.0, batch_size=10, count_noise=count_noise)
    wish = Gaussian(noise_multiplier)
    if not noise_multiplier < 2 * count_noise * (1 - 1e-6):
        return
    paid = adaptive.combined(adaptive.of_sum(wish))
    assert paid.noise_multiplier == pytest.approx(noise_multiplier, rel=1e-8)
    squares = Fraction(1) / Fraction(adaptive.of_sum(wish).noise_multiplier) ** 2
    squares += Fraction(1) / Fraction(2 * count_noise) ** 2
    assert squares <= Fraction(1) / Fraction(noise_multiplier) ** 2


def test_a_count_that_costs_too_much_is_refused():
    adaptive = AdaptiveClip(1.0, batch_size=10, count_noise=0.5)
    with pytest.raises(InvalidParameter, match=r"count_noise=0\.5: must be above 0\.5"):
        adaptive.of_sum(Gaussian(1.0))


@settings(max_examples=50)
@given(hnp.arrays(np.float64, st.integers(0, 20)), st.floats(allow_nan=True))
def test_one_record_moves_the_count_by_one_half(norms, extra):
    adaptive = AdaptiveClip(1.0, batch_size=10, count_noise=1.0)
    assert abs(adaptive.count(np.append(norms, extra)) - adaptive.count(norms)) == 0.5


def test_the_clip_norm_finds_the_quantile():
    rng = np.random.default_rng(7)
    for quantile in (0.3, 0.5, 0.9):
        adaptive = AdaptiveClip(1e-3, batch_size=400, count_noise=20.0, quantile=quantile)
        tail = []
        for step in range(400):
            norms = rng.lognormal(1.0, 0.5, size=rng.binomial(4000, 0.1))
            adaptive = adaptive.updated(adaptive.count(norms) + 20 * rng.standard_normal())
            tail += [math.log(adaptive.clip_norm)] if step >= 200 else []
        normal = {0.3: -0.5244, 0.5: 0.0, 0.9: 1.2816}[quantile]
        assert np.mean(tail) == pytest.approx(1.0 + 0.5 * normal, abs=0.05)
    assert adaptive.rule == Flat(adaptive.clip_norm)


def test_extreme_counts_stay_within_the_legal_clip_norms():
    adaptive = AdaptiveClip(1.0, batch_size=1e-6, count_noise=1.0, learning_rate=10.0)
    assert adaptive.updated(1e300).clip_norm == 1e-100
    assert adaptive.updated(-1e300).clip_norm == 1e100
    for released in (math.nan, math.inf, "1", True):
        with pytest.raises(InvalidParameter, match="released="):
            adaptive.updated(released)


@pytest.mark.parametrize("name", ["batch_size", "count_noise", "learning_rate", "quantile"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1, True, "1"])
def test_adaptive_parameters_are_checked(name, value):
    good = {"clip_norm": 1.0, "batch_size": 10.0, "count_noise": 1.0}
    with pytest.raises(InvalidParameter, match=f"{name}="):
        AdaptiveClip(**good | {name: value})


def test_compiled_factors_are_those_of_the_formula_bit_by_bit():
    draw = np.random.default_rng(5)
    norms = np.exp(draw.uniform(-700, 700, (400, 3)))
    norms[:6, 0] = np.nan, np.inf, -1.0, 0.0, -0.0, 1.0
    norms[6:60] = draw.uniform(0.999999, 1.000001, (54, 3))
    for clip_norm, error in ((1.0, 4e-6), (1e-9, 0.0), (1e30, 1e-12)):
        expected = scale_factors(norms, clip_norm, error)
        assert np.array_equal(Flat(clip_norm).factors(norms, error), expected)
        assert Flat(clip_norm).factors(norms.T[::-1], error).shape == (3, 400)
    assert Flat(1.0).factors(2.0).shape == ()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("odd", [5e-324, 1e-310, 1e-45, 6e-8, 1e308, math.inf, math.nan])
def test_no_row_raises_what_numpy_was_told_to_raise(odd, dtype):
    with np.errstate(all="ignore"):
        rows = np.array([[odd, 0.3, 1e-7], [odd, odd, odd]]).astype(dtype)
    norms = np.abs(rows[:, 0]).astype(np.float64)

    def everything(clip_norm):
        yield clip_rows(rows, clip_norm)
        yield clip_rows(rows[:, 0], clip_norm)
        yield Flat(clip_norm).factors(norms)
        yield Normalised(clip_norm).factors(norms)
        yield PerBlock((clip_norm, 1.0)).factors(np.stack([norms, norms], 1))

    for clip_norm in (1e-99, 1e-45, 1.0, 1e99):
        with np.errstate(all="raise"):
            found = list(everything(clip_norm))
        assert all(map(np.array_equal, found, everything(clip_norm)))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):  # the broken twin: numpy itself
        np.float64(1e-300) / np.float64(1e300)


class Wanting(ClipRule):
    """A rule that wants whatever it was given."""

    def __init__(self, clip_norm, factors):
        self.clip_norm, self._factors = clip_norm, factors

    def wanted(self, norms):
        return self._factors


@given(
    st.floats(1e-50, 1e50),
    st.lists(st.tuples(st.floats(0.0, allow_infinity=True), st.floats(0.0, 1e300)), min_size=1, max_size=8),
)
def test_no_rule_of_a_users_own_lets_a_record_add_more(clip_norm, cases):
    """The oracle are exact fractions: factor times norm times its error is at most the clip norm."""
    norms, wanted = (np.array(part) for part in zip(*cases, strict=True))
    factors = Wanting(clip_norm, wanted).factors(norms, error=1e-6)
    for norm, factor in zip(norms, factors, strict=True):
        if np.isfinite(norm):
            assert Fraction(factor) * Fraction(norm) * (1 + Fraction(1e-6)) <= Fraction(clip_norm)
        else:
            assert factor == 0
    assert (factors <= wanted).all()


@pytest.mark.parametrize("factors", [[1.0], [1.0, 1.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_a_rule_that_wants_no_factors_is_refused(factors):
    with pytest.raises(InvalidParameter, match="one factor for each norm"):
        Wanting(1.0, factors).factors([0.5, 2.0])
