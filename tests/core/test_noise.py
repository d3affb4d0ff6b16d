"""The function that adds noise: how much, to what, and what it refuses."""

import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.core import noise
from discreet.core.noise import BoundedSum, add_noise, grid_for, noise_steps
from discreet.core.noise_shares import add_noise_share
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import Gaussian, Laplace, PoissonSampled
from support.conformance import THRESHOLD, suspicion

SIZE = 100_000
WIDE = [np.float32, np.float64, np.longdouble, torch.float32, torch.float64]
NARROW = [np.float16, torch.float16, torch.bfloat16]


def ones(dtype, shape=SIZE):
    return torch.ones(shape, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones(shape, dtype)


def plain(array):
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.asarray(array, np.float64)


def seeded():
    return RandomStream(unsafe_seed=1)


def counts(value, event=None, clip_norm=1.0, norm="l2"):
    """A hardened sum for ``event``."""
    grid = grid_for(event or Gaussian(1.0), clip_norm, most_records=1000)
    return BoundedSum(value, clip_norm, norm, grid)


# How much. The streams are seeded; conformance.py states the false-alarm rate.


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_gaussian_noise_is_the_noise_multiplier_times_the_clip_norm(dtype):
    total = BoundedSum(ones(dtype), clip_norm=8.0)
    noise = (plain(add_noise(total, Gaussian(2.5), seeded())) - 1) / 20
    assert suspicion(noise) > THRESHOLD
    assert suspicion(0.98 * noise) < THRESHOLD


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_half_precision_is_added_in_float32_and_rounded_once(dtype):
    noisy = add_noise(BoundedSum(ones(dtype), clip_norm=8.0), Gaussian(2.5), seeded())
    wide = add_noise(BoundedSum(ones(np.float32), clip_norm=8.0), Gaussian(2.5), seeded())
    rounded = (
        torch.from_numpy(wide).to(noisy.dtype) if isinstance(noisy, torch.Tensor) else wide.astype(dtype)
    )
    assert noisy.dtype == dtype
    assert np.array_equal(plain(noisy), plain(rounded))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_laplace_noise_is_the_scale_times_the_clip_norm(dtype):
    total = BoundedSum(ones(dtype), clip_norm=0.5, norm="l1")
    noise = (plain(add_noise(total, Laplace(3.0), seeded())) - 1) / 1.5
    # The mean magnitude of a Laplace variable has variance 1/n; the false-alarm rate is 6e-7.
    assert np.mean(np.abs(noise)) == pytest.approx(1, abs=5 / SIZE**0.5)
    assert np.mean(np.abs(0.98 * noise)) != pytest.approx(1, abs=5 / SIZE**0.5)
    assert stats.kstest(noise, "laplace", method="asymp").pvalue > THRESHOLD


@pytest.mark.parametrize("kind", [np.zeros(SIZE, np.int64), torch.zeros(SIZE, dtype=torch.int64)], ids=type)
def test_hardened_noise_has_the_same_scale(kind):
    noisy = add_noise(counts(kind + 5, Gaussian(2.5), 8.0), Gaussian(2.5), seeded())
    assert suspicion(plain(noisy) / 20) > THRESHOLD
    assert suspicion(plain(noisy) / 20 * 0.98) < THRESHOLD
    noisy = add_noise(counts(kind, Laplace(3.0), 0.5, "l1"), Laplace(3.0), seeded())
    assert stats.kstest(plain(noisy) / 1.5, "laplace", method="asymp").pvalue > THRESHOLD


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("ratio", [0.1, 1.1, 1 / 3, 7e-9, 123456.789])
@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1 / 3, 3e5])
def test_the_scale_rounds_up(ratio, clip_norm, dtype):
    exact = Fraction(ratio) * Fraction(clip_norm)
    total = BoundedSum(np.zeros(2, dtype), clip_norm)
    scale = noise._scale(total, Gaussian(ratio), np.dtype(dtype), total.value)
    assert scale == dtype(scale)
    assert exact <= Fraction(scale) <= exact * (1 + 2 * Fraction(float(np.finfo(dtype).eps)))
    grid = grid_for(Gaussian(ratio), clip_norm, most_records=1)
    assert (
        exact
        <= noise_steps(Gaussian(ratio), clip_norm, grid) * Fraction(grid)
        <= exact * (1 + Fraction(1, 2**30))
    )


def test_default_randomness_is_fresh_every_time():
    total = BoundedSum(np.zeros(100), clip_norm=1.0)
    first, second = add_noise(total, Gaussian(1.0)), add_noise(total, Gaussian(1.0))
    assert not np.any(first == second)


# To what.


@pytest.mark.parametrize("dtype", WIDE + NARROW, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 5)])
def test_kind_type_and_shape_are_kept(dtype, shape):
    value = ones(dtype, shape)
    noisy = add_noise(BoundedSum(value, clip_norm=1.0), Gaussian(1.0), seeded())
    assert type(noisy) is type(value)
    assert noisy.dtype == dtype
    assert tuple(noisy.shape) == shape
    assert np.all(plain(value) == 1)
    assert np.all(plain(noisy) != 1)


@pytest.mark.parametrize("dtype", WIDE + NARROW, ids=str)
def test_in_place(dtype):
    value = ones(dtype, (300, 7))
    expected = add_noise(BoundedSum(value, clip_norm=1.0), Gaussian(2.0), seeded())
    assert add_noise(BoundedSum(value, clip_norm=1.0), Gaussian(2.0), seeded(), out=value) is value
    assert np.array_equal(plain(value), plain(expected))


def test_in_place_needs_no_second_array():
    value = np.zeros(4_000_000, np.float32)
    total, stream = BoundedSum(value, clip_norm=1.0), RandomStream(threads=1)
    add_noise(BoundedSum(value[:10], clip_norm=1.0), Gaussian(1.0), stream)
    tracemalloc.start()
    add_noise(total, Gaussian(1.0), stream, out=value)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_arrays_that_are_not_contiguous():
    value = np.ones((6, 8), np.float32).T[::2]
    out = np.zeros((8, 12), np.float32)[::2, ::2]
    expected = add_noise(BoundedSum(value.copy(), clip_norm=1.0), Gaussian(1.0), seeded())
    for given, target in ((value, None), (value, out), (torch.from_numpy(value), torch.from_numpy(out))):
        noisy = add_noise(BoundedSum(given, clip_norm=1.0), Gaussian(1.0), seeded(), out=target)
        assert np.array_equal(plain(noisy), plain(expected))


def test_tensors_that_require_gradients():
    value = torch.nn.Parameter(torch.ones(50))
    noisy = add_noise(BoundedSum(value, clip_norm=1.0), Gaussian(1.0))
    assert not noisy.requires_grad
    add_noise(BoundedSum(value.detach(), clip_norm=1.0), Gaussian(1.0), seeded(), out=value)
    assert not torch.any(value == 1)


def test_out_may_have_another_type():
    total = BoundedSum(np.ones(1000), clip_norm=1.0)
    narrow = add_noise(total, Gaussian(1.0), seeded(), out=np.empty(1000, np.float32))
    assert np.array_equal(narrow, add_noise(total, Gaussian(1.0), seeded()).astype(np.float32))
    hardened = counts(torch.zeros(1000, dtype=torch.int64))
    narrow = add_noise(hardened, Gaussian(1.0), seeded(), out=torch.empty(1000, dtype=torch.bfloat16))
    wide = add_noise(hardened, Gaussian(1.0), seeded())
    assert wide.dtype == torch.float64
    assert torch.equal(narrow, wide.to(torch.bfloat16))


def test_a_sum_says_its_arithmetic_and_not_its_value():
    total = BoundedSum(np.array([123456.0]), clip_norm=1.0)
    assert total.arithmetic == "float"
    assert "123456" not in repr(total)
    assert counts(np.zeros(1, np.int64)).arithmetic == "hardened"


def test_the_threads_of_torch_are_left_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    add_noise(BoundedSum(torch.zeros(2**22), clip_norm=1.0), Gaussian(1.0), RandomStream(threads=2))
    now = torch.get_num_threads()
    torch.set_num_threads(before)
    assert now == 1


def test_numpy_users_need_no_torch():
    script = (
        "import sys, numpy as np, discreet.core.noise as h, discreet.events as e, discreet.core.noise as n;"
        "n.add_noise(h.hardened_sum(np.ones((2, 3)), 2.0, 2.0**-30), e.Gaussian(1.0));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=100).returncode == 0


# The precision attack (Haney et al. 2022): where sum + noise comes out near 0, the last bits show the sum.


def fine_share(outputs, unit):
    """Share of the outputs near 0 that are no multiple of ``unit``."""
    near = plain(outputs)[np.abs(plain(outputs)) < 0.25]
    assert near.size > 10_000
    return np.mean(near / unit != np.floor(near / unit))


@pytest.mark.parametrize(
    ("dtype", "unit"), [(np.float32, 2.0**-24), (np.float64, 2.0**-53), (torch.bfloat16, 2.0**-12)]
)
def test_precision_attack_fails_on_hardened_sums(dtype, unit):
    event, clip_norm = Gaussian(1.0), 1.0
    grid = grid_for(event, clip_norm, most_records=1000)
    shares, below_grid = [], []
    for value in (0, 1):
        total = BoundedSum(np.full(SIZE, round(value / grid)), clip_norm, grid=grid)
        noisy = add_noise(total, event, seeded())
        if isinstance(dtype, torch.dtype):
            outputs = torch.from_numpy(noisy).to(dtype)
        else:
            outputs = add_noise(total, event, seeded(), out=np.empty(SIZE, dtype))
        shares.append(fine_share(outputs, unit))
        below_grid.append(fine_share(outputs, grid))
    assert below_grid == [0, 0]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)  # 5 standard errors where the share is 1/16


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2.0**-24), (np.float64, 2.0**-53)])
def test_precision_attack_succeeds_on_float_sums(dtype, unit):
    # The broken twin, and why a float sum says so: near 0 the bits tell a sum of 0 from a sum of 1.
    zero, one = (BoundedSum(np.full(SIZE, value, dtype), clip_norm=1.0) for value in (0, 1))
    assert fine_share(add_noise(zero, Gaussian(1.0), seeded()), unit) > 0.4
    assert fine_share(add_noise(one, Gaussian(1.0), seeded()), unit) == 0


# Refusals.


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, torch.float32, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_sum_that_is_not_finite_is_refused_before_anything_is_written(dtype, bad):
    value = ones(dtype, 1000)
    value[500] = bad
    before = plain(value).copy()
    with pytest.raises(PlanViolation, match=r"^The sum is not finite\. A clip turns") as refusal:
        add_noise(BoundedSum(value, clip_norm=1.0), Gaussian(1.0), out=value)
    assert np.array_equal(plain(value), before, equal_nan=True)
    assert not any(character.isdigit() for character in str(refusal.value))


def test_a_share_of_the_noise_has_its_part_of_the_variance_in_whole_steps():
    event = Gaussian(2.5)
    total = counts(np.full(SIZE, 7, np.int64), event)
    shared = add_noise_share(total, event, 9, seeded())
    assert shared.dtype == np.int64
    assert np.array_equal(total.value, np.full(SIZE, 7))
    noise = (shared - 7) * total.grid * 3 / 2.5
    assert suspicion(noise) > THRESHOLD
    assert suspicion(0.98 * noise) < THRESHOLD


@pytest.mark.parametrize("shares", [1, 2, 9, 1000])
def test_the_steps_of_a_share_are_the_smallest_that_suffice(shares):
    exact, scale = Fraction(2.5) * 3 / Fraction(2.0**-30), noise_steps(Gaussian(2.5), 3.0, 2.0**-30, shares)
    assert shares * (scale - 1) ** 2 < exact**2 <= shares * scale**2


NAN = float("nan")
ZEROS = np.zeros(3)
HARD = np.zeros(3, np.int64)
SHARED = BoundedSum(HARD, 1.0, grid=2.0**-30)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: BoundedSum(ZEROS, NAN), "clip_norm"),
        (lambda: BoundedSum(ZEROS, 0.0), "clip_norm"),
        (lambda: BoundedSum(ZEROS, -1.0), "clip_norm"),
        (lambda: BoundedSum(ZEROS, float("inf")), "clip_norm"),
        (lambda: BoundedSum(ZEROS, True), "clip_norm"),
        (lambda: BoundedSum(ZEROS, 1.0, norm="l3"), "norm"),
        (lambda: BoundedSum(HARD, 1.0), "value"),
        (lambda: BoundedSum(np.zeros(3, complex), 1.0), "value"),
        (lambda: BoundedSum(np.array(["a"]), 1.0), "value"),
        (lambda: BoundedSum(torch.zeros(3, dtype=torch.int32), 1.0), "value"),
        (lambda: BoundedSum(ZEROS, 1.0, grid=2.0**-30), "value"),
        (lambda: BoundedSum(HARD.astype(np.int32), 1.0, grid=2.0**-30), "value"),
        (lambda: BoundedSum(HARD, 1.0, grid=0.3), "grid"),
        (lambda: BoundedSum(HARD, 1.0, grid=NAN), "grid"),
        (lambda: BoundedSum(HARD, 1.0, grid=-1.0), "grid"),
        (lambda: add_noise(ZEROS, Gaussian(1.0)), "total"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), 1.0), "event"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), PoissonSampled(0.1, Gaussian(1.0))), "event"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Laplace(1.0)), "norm"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0, norm="l1"), Gaussian(1.0)), "norm"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Gaussian(1.0), np.random.default_rng(0)), "stream"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Gaussian(1.0), out=np.zeros(4)), "out"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Gaussian(1.0), out=HARD), "out"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Gaussian(1.0), out=[0.0, 0.0, 0.0]), "out"),
        (lambda: add_noise(BoundedSum(ZEROS, 1.0), Gaussian(1.0), out=torch.zeros(3)), "out"),
        (lambda: add_noise(BoundedSum(torch.zeros(3), 1.0), Gaussian(1.0), out=ZEROS), "out"),
        (lambda: add_noise(BoundedSum(ZEROS.astype(np.float32), 1e38), Gaussian(10.0)), "clip_norm"),
        (lambda: add_noise(BoundedSum(ZEROS.astype(np.float32), 1e-30), Gaussian(1e-30)), "clip_norm"),
        (lambda: add_noise(BoundedSum(ZEROS.astype(np.float16), 1e4), Gaussian(1.0)), "clip_norm"),
        (lambda: add_noise(BoundedSum(ZEROS, 1e300), Gaussian(1e300)), "clip_norm"),
        (lambda: add_noise(BoundedSum(HARD, 1.0, grid=2.0**-10), Gaussian(1.0)), "grid"),
        (lambda: add_noise(BoundedSum(HARD, 1.0, grid=2.0**-50), Gaussian(1.0)), "grid"),
        (lambda: add_noise_share(ZEROS, Gaussian(1.0), 2), "total"),
        (lambda: add_noise_share(BoundedSum(ZEROS, 1.0), Gaussian(1.0), 2), "total"),
        (lambda: add_noise_share(BoundedSum(HARD, 1.0, "l1", 2.0**-30), Laplace(1.0), 2), "total"),
        (lambda: add_noise_share(SHARED, Laplace(1.0), 2), "norm"),
        (lambda: add_noise_share(SHARED, PoissonSampled(0.1, Gaussian(1.0)), 2), "event"),
        (lambda: add_noise_share(SHARED, Gaussian(1.0), NAN), "shares"),
        (lambda: add_noise_share(SHARED, Gaussian(1.0), 0), "shares"),
        (lambda: add_noise_share(SHARED, Gaussian(1.0), 2**22), "grid"),
        (lambda: add_noise_share(SHARED, Gaussian(1.0), 2, np.random.default_rng(0)), "stream"),
    ],
)
def test_refusals(call, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        call()
