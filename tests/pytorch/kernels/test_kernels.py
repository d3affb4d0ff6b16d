"""Each compiled kernel against its twin in plain PyTorch and against float64."""

import os
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discreet.pytorch.kernels import convolution_weights, lstm, normalised
from discreet.pytorch.kernels import norms as norms_module
from discreet.pytorch.kernels.convolution_grams import pixel_classes
from discreet.pytorch.kernels.norms import (
    PIECE,
    add_inner_products,
    ghost_norms,
    ghost_norms_by_torch,
    gram_norms,
    squared_norms,
    squared_norms_by_torch,
)
from discreet.pytorch.kernels.tiles import LANES
from discreet.pytorch.layer_rules import use
from discreet.pytorch.layer_rules.convolution import ConvolutionWeight, pad
from discreet.pytorch.layer_rules.use import Layout, Scratch, Source
from support.torch_bank import numbers

EXAMPLES = 3
# input channels and size, output channels, kernel, stride, padding, dilation: every width of the inner loop
CONVOLUTIONS = [
    ((2, 9), 5, (3,), (1,), ((1, 1),), (1,)),
    ((3, 8, 7), 8, (3, 2), (2, 1), ((1, 1), (0, 0)), (1, 1)),
    ((2, 9, 9), 13, (3, 3), (1, 2), ((2, 3), (1, 0)), (2, 1)),
    ((4, 6, 6), 24, (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((3, 7, 7), 32, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    ((2, 12, 12), 60, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((2, 5, 6, 5), 9, (3, 1, 2), (1, 2, 1), ((1, 1), (0, 0), (0, 1)), (1, 1, 2)),
]


def use_of(shape, channels, kernel, stride, padding, dilation, dtype):
    """A use of a convolution's weight with random input and output gradient."""
    x = numbers(EXAMPLES, *shape, seed=1)
    weight = nn.Parameter(torch.zeros(channels, shape[0], *kernel, dtype=torch.float64))
    forward = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    out = forward(pad(x, padding), weight, None, stride, 0, dilation)
    use = ConvolutionWeight(
        Source("w", weight, {"w": weight}, True), x.to(dtype), stride, padding, dilation, 1
    )
    use.examples = EXAMPLES
    use.prepare(x.to(dtype), numbers(*out.shape, seed=2).to(dtype), Layout(0))
    return use


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_convolution(case, threads):
    exact = use_of(*case, torch.float64).rows(slice(0, EXAMPLES))
    use = use_of(*case, torch.float32)
    x = pad(use.a, use.padding).contiguous()
    positions = tuple(use.g.shape[2:])
    places = convolution_weights.geometry(tuple(x.shape[1:]), case[1], case[2], case[3], case[5], positions)
    kept = torch.full(places.workspace(EXAMPLES), torch.nan)
    for out in (kept, None):
        squares = convolution_weights.gradients(x, use.g.flatten(2), places, out, threads)
        torch.testing.assert_close(squares, exact.flatten(1).square().sum(1), rtol=1e-6, atol=0)
    found = kept[:, : places.entries, : places.channels].mT.reshape(exact.shape)
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(use.rows(slice(0, EXAMPLES)), exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_of_several_images_of_an_example(case):
    """All images belong to one example: its gradient is the sum of theirs."""
    exact = use_of(*case, torch.float64).rows(slice(0, EXAMPLES)).sum(0)
    use = use_of(*case, torch.float32)
    use.examples, use.folded, use.scratch, use.place = 1, EXAMPLES, Scratch(), "place"
    squares = use.compiled_norms(keep=True)
    torch.testing.assert_close(squares, exact.square().sum()[None], rtol=1e-6, atol=0)
    torch.testing.assert_close(use.weighted_sum(torch.ones(1)), exact.float(), rtol=1e-5, atol=1e-5)


def test_the_twin_of_the_convolution_is_right():
    """The gradient by autograd, one example at a time."""
    case = CONVOLUTIONS[2]
    use = use_of(*case, torch.float64)
    x, weight = pad(use.a, use.padding), use.source.tensor
    for example, row in enumerate(use.rows(slice(0, EXAMPLES))):
        out = F.conv2d(x[example : example + 1], weight, None, case[3], 0, case[5])
        grad = torch.autograd.grad(out, weight, use.g[example : example + 1])[0]
        torch.testing.assert_close(row, grad)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 256), (4, 257), (2, 5000), (0, 7), (7, 300_001)])
def test_squared_norms(shape):
    rows = numbers(*shape).float()
    exact = rows.double().square().sum(1)
    torch.testing.assert_close(squared_norms(rows), exact, rtol=3e-7, atol=0)
    torch.testing.assert_close(squared_norms_by_torch(rows), exact, rtol=3e-7, atol=0)
    torch.testing.assert_close(
        squared_norms(rows[:, ::2]), rows[:, ::2].double().square().sum(1), rtol=3e-7, atol=0
    )


@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1), (5, 3, 7, 2), (4, 16, 30, 40), (0, 2, 3, 3), (2, 8, 4000, 500)]
)
def test_gram_norms(shape):
    examples, positions, into, out = shape
    a, g = numbers(examples, positions, into).float(), numbers(examples, positions, out, seed=1).float()
    a, g = a * 1e-30, g * 1e30  # whose squares are out of the reach of float32
    products = torch.bmm(g.double().mT, a.double())
    for found, exact in zip(gram_norms(a, g), (products, a.double(), g.double()), strict=True):
        torch.testing.assert_close(found, exact.square().sum((1, 2)), rtol=1e-12, atol=0)


def test_gram_norms_of_bad_rows_and_of_what_cancels():
    a, g = torch.ones(4, 2, 3), torch.ones(4, 2, 3)
    a[1, 0, 0], g[2, 1, 2], g[3, 1] = torch.nan, torch.inf, -1.0
    total = gram_norms(a, g)[0]
    assert torch.isfinite(total).tolist() == [True, False, False, True]
    assert total[3] == 0


@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1), (5, 3, 7, 2), (4, 17, 30, 40), (0, 20, 3, 3), (2, 66, 5000, 9), (3, 128, 16, 32)]
)
@pytest.mark.parametrize("kernel", [ghost_norms, ghost_norms_by_torch])
def test_ghost_norms(shape, kernel):
    """Against the gradients themselves, formed in float64; and the twin for other devices."""
    examples, positions, into, out = shape
    a, g = numbers(into, examples, positions).float(), numbers(examples, positions, out, seed=1).float()
    a = a.movedim(0, 2)  # in another order in memory
    exact = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    apart = (a.double().square().sum(2) * g.double().square().sum(2)).sum(1)
    total, unrelated, *of_parts = kernel(a, g)
    torch.testing.assert_close(unrelated, apart, rtol=1e-6, atol=0)
    assert bool(((total - exact).abs() <= 1e-6 * torch.maximum(exact, apart)).all())
    for part, found in zip((a, g), of_parts, strict=False):  # the twin leaves them to others
        torch.testing.assert_close(found, part.double().square().sum((1, 2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-21, 1e-12, 1.0, 1e18, 1e30])
def test_lengths_of_inputs_are_found_where_their_squares_are_out_of_reach(scale):
    """An input that seemed to be nothing would make its gradient seem to be nothing, whatever the other factor is."""
    a, g = numbers(2, 20, 30).float() * scale, numbers(2, 20, 30, seed=1).float()
    for found in (ghost_norms(a, g)[2], ghost_norms(g, a)[3]):
        exact = a.double().square().sum((1, 2))
        if scale > 1e20:  # beyond norms.REACH in any case
            assert bool((found > norms_module.REACH).all())
        else:
            torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


def test_ghost_norms_of_long_rows_are_not_low_and_bad_rows_are_not_finite():
    """Equal numbers, which add up in float32 with errors of one sign."""
    a, g = torch.full((3, 5, 60_001), 0.1), torch.full((3, 5, 2), 0.3)
    g[1, 4, 0], a[2, 1, 60_000] = torch.nan, torch.inf
    total = ghost_norms(a, g)[0]
    exact = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    torch.testing.assert_close(total[:1], exact[:1], rtol=2e-6, atol=0)
    assert torch.isfinite(total).tolist() == [True, False, False]


def one_and_many_small(columns):
    """A one before numbers whose squares are lost beside it, one by one, in float32."""
    rows = np.full((4, columns), 2.0**-12.5, np.float32)
    rows[:, 0] = 1.0
    return rows, (rows[0].astype(np.float64) ** 2).sum()


@pytest.mark.parametrize("columns", [1, LANES, PIECE, PIECE + LANES + 3, 5 * PIECE])
def test_inner_products_round_as_seldom_as_their_order_says(columns):
    """The bound of a piece is that of its longest chain of additions, whatever a compiler might prefer."""
    rows, exact = one_and_many_small(columns)
    found = np.zeros((4, 4))
    add_inner_products(rows, 0, 4, found)
    chain = PIECE // LANES + 4
    low = (1 - chain * 2.0**-24) ** 2  # the lengths that the bound is relative to are sums of the same kind
    assert 2 * chain * 2.0**-24 <= use.ROUNDED * low  # of the product of two of them
    below = np.tril_indices(4)
    assert np.all(abs(found[below] - exact) <= chain * 2.0**-24 * exact)


def test_a_sum_in_one_chain_is_found_out():
    """The broken twin: numbers added one after the other lose more than the bound allows."""
    rows, exact = one_and_many_small(PIECE)
    in_one_chain = np.add.accumulate(rows[0] * rows[0])[-1]
    assert abs(in_one_chain - exact) > (PIECE // LANES + 4) * 2.0**-24 * exact


EIGHT_LANES = """
from llvmlite import binding

known = binding.get_host_cpu_features
def without_wide_registers():
    features = known()
    for name in features:
        if name.startswith("avx512"):
            features[name] = False
    return features
binding.get_host_cpu_features = without_wide_registers

import numpy as np
from discreet.pytorch.kernels import tiles
from discreet.pytorch.kernels.norms import PIECE, add_inner_products
from discreet.pytorch.layer_rules.use import ROUNDED

assert tiles.LANES == 8
chain = PIECE // 8 + 4
assert 2 * chain * 2.0**-24 <= ROUNDED
for columns in (1, 8, 13, PIECE, PIECE + 11, 3 * PIECE):
    random = np.random.default_rng(columns).standard_normal((12, columns)).astype(np.float32)
    worst = np.full((12, columns), 2.0**-12.5, np.float32)  # beside a one, lost if added one by one
    worst[:, 0] = 1
    for rows in (random, worst):
        found = np.zeros((12, 12))
        add_inner_products(rows, 0, 12, found)
        wide = rows.astype(np.float64)
        lengths = np.sqrt((wide**2).sum(1))
        below = np.tril_indices(12)
        error = abs(found - wide @ wide.T)[below] / np.outer(lengths, lengths)[below]
        assert error.max() <= chain * 2.0**-24, (columns, error.max())
print("eight lanes")
"""


def test_eight_lanes(tmp_path):
    """As on processors whose registers hold eight numbers: the same code, compiled for one of them."""
    settings = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", EIGHT_LANES], capture_output=True, text=True, env=settings, check=False
    )
    assert done.stdout.split() == ["eight", "lanes"], done.stderr


@pytest.mark.parametrize(("first", "last"), [(0, 32), (32, 36), (8, 24)])
def test_inner_products_of_a_strip(first, last):
    rows = numbers(36, PIECE + 21).float().numpy()
    found = np.zeros((last - first, 36))
    add_inner_products(rows, first, last, found)
    exact = rows[first:last].astype(np.float64) @ rows.astype(np.float64).T
    known = np.tri(36, dtype=bool)[first:last]
    np.testing.assert_allclose(found[known], exact[known], rtol=0, atol=1e-5 * PIECE)


def test_squared_norms_of_bad_rows():
    rows = torch.ones(4, 300)
    rows[1, 7], rows[2, 299] = torch.nan, torch.inf
    assert torch.isfinite(squared_norms(rows)).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("examples", "times", "into", "threads"), [(1, 1, 3, 1), (5, 7, 10, 2), (8, 3, 160, 3)]
)
def test_lstm(examples, times, into, threads):
    """Outputs, and the gradients of input, state and gates, against torch's own layer in float64."""
    torch.manual_seed(0)
    hidden = 32
    layer = nn.LSTM(into, hidden, batch_first=True).double()
    x, h, c = (
        numbers(examples, *shape, seed=s) for s, shape in enumerate(((times, into), (hidden,), (hidden,)))
    )
    leaves = [value.requires_grad_() for value in (x, h, c)]
    wanted, (end, last) = layer(x, (h[None], c[None]))
    given = [numbers(*value.shape, seed=9) for value in (wanted, end[0], last[0])]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        w_ih, w_hh, b_ih, b_hh = (value.detach().float() for value in layer.parameters())
        small = [value.detach().float() for value in leaves]
        saved = lstm.forward(*small, w_ih, w_hh, b_ih + b_hh)
        kept = (saved[name] for name in ("gates", "cells", "tanh"))
        gates, state, cell = lstm.backward(*kept, w_hh, *(value.float() for value in given))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(saved["outputs"].double(), wanted, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(saved["cells"][:, -1].double(), last[0], rtol=1e-5, atol=2e-6)
    parameters = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0]
    total = sum((a * b).sum() for a, b in zip((wanted, end[0], last[0]), given, strict=True))
    into_x, into_h, into_c, *of_weights = torch.autograd.grad(total, [*leaves, *parameters])
    inputs = saved["inputs"].flatten(0, 1)
    found = [gates @ w_ih, state, cell, *(gates.flatten(0, 1).mT @ inputs).split((into, hidden), 1)]
    for value, exact in zip([*found, gates.sum((0, 1))], [into_x, into_h, into_c, *of_weights], strict=True):
        torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


def test_lstm_gates_at_their_limits():
    """The exponential is cut off where float32 ends; the gates are then 0, 1 or -1 and stay finite."""
    x, state = torch.tensor([[[1e4], [-1e4], [90.0]]]), torch.zeros(1, 32)
    w_ih, w_hh = torch.ones(128, 1), torch.zeros(128, 32)
    saved = lstm.forward(x, state, state, w_ih, w_hh, torch.zeros(128))
    exact = nn.LSTM(1, 32, batch_first=True)
    with torch.no_grad():
        for parameter, value in zip(
            exact.parameters(), (w_ih, w_hh, torch.zeros(128), torch.zeros(128)), strict=True
        ):
            parameter.copy_(value)
        torch.testing.assert_close(saved["outputs"], exact(x)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("one", "other"), [(1, 1), (7, 300), (60_001, 2)])
def test_rounding_in_any_order(one, other):
    """Added up in the worst order, all numbers one after the other, inner products stay within the bound."""
    for kind, numpys in ((torch.float32, np.float32), (torch.float64, np.float64)):
        small = numpys(np.finfo(numpys).eps ** 0.5 / 1.5)  # whose square is lost beside a one
        found, exact = numpys(1), Fraction(1)
        for size in (one, other):
            row = np.array([1, *[small] * (size - 1)], numpys)
            found = found * np.add.accumulate(row * row)[-1]
            exact *= 1 + (size - 1) * Fraction(float(small)) ** 2
        error = abs(Fraction(float(found)) / exact - 1)
        assert error <= use.rounding_in_any_order(one, other, kind)
        if one > 10_000 and kind == torch.float32:  # what holds for a known order would be too little
            assert error > use.ROUNDED


@pytest.mark.parametrize("case", [*CONVOLUTIONS, ((35, 7, 6), 40, (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 2))])
@pytest.mark.parametrize("threads", [1, 3])
def test_ghost_norms_of_pixels(case, threads, monkeypatch):
    """Against the gradients themselves in float64; rounding is only ever added."""
    monkeypatch.setattr(norms_module, "_WORTH_A_THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exact, use_in_float32 = pixel_case(case)
        found = use_in_float32.ghost_norms_of_pixels(classes_of(use_in_float32))
    finally:
        torch.set_num_threads(before)
    assert bool((found >= exact * (1 - 1e-6)).all())
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)


def pixel_case(case):
    narrow, wide = use_of(*case, torch.float32), use_of(*case, torch.float64)
    return wide.rows(slice(0, EXAMPLES)).flatten(1).square().sum(1), narrow


def classes_of(found):
    shape = tuple(size + sum(pair) for size, pair in zip(found.a.shape[2:], found.padding, strict=True))
    positions = tuple(found.g.shape[2:])
    return pixel_classes(shape, found.kernel, found.stride, found.dilation, positions)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_pixels_that_are_shifted_wrongly_are_found_out(case):
    """The broken twin: the first place of the kernel stands for all of them."""
    exact, narrow = pixel_case(case)
    classes = classes_of(narrow)
    shifts = classes.shifts.copy()
    shifts[:] = shifts[0]
    found = narrow.ghost_norms_of_pixels(classes._replace(shifts=shifts))
    assert not bool(torch.isclose(found, exact, rtol=1e-2).all())


def test_every_place_of_the_kernel_meets_its_pixels():
    """The tables against plain counting: place o of position t is pixel t * stride + o * dilation."""
    classes = pixel_classes((9, 8), (3, 2), (2, 1), (2, 3), (3, 5))
    for number, (o, p) in enumerate(product(range(3), range(2))):
        one, shift = classes.shifts[number]
        for position, (i, j) in enumerate(product(range(3), range(5))):
            wanted = (2 * i + 2 * o) * 8 + (j + 3 * p)
            assert classes.pixels[one][classes.positions[one][position] + shift] == wanted


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_patches_of_a_pixel(case):
    """All patches together are no longer than so many images; counted by an input of ones, one pixel at a time."""
    found = use_of(*case, torch.float64)
    classes = classes_of(found)
    met = np.zeros(int(classes.pixels.max()) + 1, int)
    for one, shift in classes.shifts:
        met[classes.pixels[one][classes.positions[one] + shift]] += 1
    assert met.max() <= classes.patches_of_a_pixel


def of_size(scale, of_grad):
    """Squared norms by pixels and exact ones, of inputs and gradients of these sizes; channels fill a tile."""
    _, narrow = pixel_case(((32, 6, 6), 32, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)))
    a, g = narrow.a * scale, narrow.g * of_grad
    narrow.a, narrow.g = a.double(), g.double()
    exact = narrow.rows(slice(0, EXAMPLES)).flatten(1).square().sum(1)
    narrow.a, narrow.g = a, g
    return narrow.ghost_norms_of_pixels(classes_of(narrow)), exact


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e10, 1e18])
def test_norms_of_pixels_of_every_size(scale):
    """Where squares are no numbers of float32, too."""
    found, exact = of_size(scale, 1 / scale)
    assert bool((found >= exact * (1 - 1e-6)).all())


def test_lengths_in_float32_would_hide_small_inputs(monkeypatch):
    """The broken twin: inputs whose squares are lost seem to be zero, and so do their gradients."""
    lost = lambda rows: rows.flatten(1).square().sum(1).double()  # noqa: E731
    monkeypatch.setattr(sys.modules[ConvolutionWeight.__module__], "sums_of_squares", lost)
    found, exact = of_size(1e-30, 1.0)
    assert bool((found < exact).all())


def test_norms_of_pixels_that_are_not_finite_or_cancel():
    _, narrow = pixel_case(CONVOLUTIONS[5])
    narrow.a[1, 0, 3, 3] = torch.nan
    narrow.g[2] = 0
    found = narrow.ghost_norms_of_pixels(classes_of(narrow))
    assert torch.isfinite(found).tolist() == [True, False, True]
    assert float(found[2]) == 0
    narrow = pixel_case(CONVOLUTIONS[5])[1]
    narrow.a[:] = 1 + 1e-4 * narrow.a  # nearly the same everywhere, with gradients that cancel
    narrow.g -= narrow.g.mean((2, 3), keepdim=True)
    exact = narrow.rows(slice(0, EXAMPLES)).double().flatten(1).square().sum(1)
    assert bool((narrow.ghost_norms_of_pixels(classes_of(narrow)) >= exact * (1 - 1e-6)).all())


def precision_of_convolutions():
    cudnn = torch.backends.cudnn
    return cudnn.conv.fp32_precision if hasattr(cudnn, "conv") else cudnn.allow_tf32


EXACTLY = ("ieee", False)


@pytest.mark.parametrize("fails", [False, True])
def test_sums_on_cuda_have_all_digits_and_others_keep_their_setting(fails, monkeypatch):
    use, seen = use_of(*CONVOLUTIONS[1], torch.float32), []
    plain, before = torch.ops.aten.convolution_backward, precision_of_convolutions()
    assert before not in EXACTLY  # PyTorch's default

    def noting(*args):
        seen.append(precision_of_convolutions())
        if fails:
            raise RuntimeError("out of memory")
        return plain(*args)

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", noting)
    weights = torch.tensor([1.0, 0.0, 2.0])
    here = None if fails else use.weighted_sum(weights)
    monkeypatch.setattr(sys.modules[ConvolutionWeight.__module__], "on_cuda", lambda tensor: True)
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext():
        torch.testing.assert_close(use.weighted_sum(weights), here)
    assert seen[-1] in EXACTLY
    assert seen[:-1] == ([] if fails else [before])  # on the CPU nothing is set
    assert precision_of_convolutions() == before


@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 5, 16), (3, 40, 257)])
def test_gradients_of_a_layer_norm(shape):
    x, grad = (3 + numbers(*shape, seed=seed) for seed in (1, 2))
    weight, bias = normalised.of_layer_norm(x.float(), grad.float(), shape[0], shape[2], 1e-5)
    wanted = (grad * F.layer_norm(x, shape[2:], eps=1e-5)).sum(1), grad.sum(1)
    for found, exact in zip((weight, bias), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "groups"), [((2, 4, 1), 2), ((3, 6, 5, 7), 3), ((2, 8, 30, 31), 1)])
def test_gradients_of_a_group_norm(shape, groups):
    x, grad = (3 + numbers(*shape, seed=seed) for seed in (1, 2))
    weight, bias = normalised.of_group_norm(x.float(), grad.float(), groups, 1e-5)
    wanted = (grad * F.group_norm(x, groups, eps=1e-5)).flatten(2).sum(2), grad.flatten(2).sum(2)
    for found, exact in zip((weight, bias), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [True, False])
def test_ghost_norms_are_no_less_where_positions_nearly_cancel(compiled, monkeypatch):
    """Rows that are nearly alike with gradients of both signs: rounding is relative to what cancels."""
    if not compiled:
        monkeypatch.setattr(use.norms, "on_host", lambda tensor: False)
    draw = torch.Generator().manual_seed(0)
    for _ in range(8):
        first, second = 1 + torch.rand(2, generator=draw)
        a = torch.full((1, 400, 1024), float(first))
        a[:, 1::2] = float(second) if torch.rand((), generator=draw) < 0.5 else float(first) * 1.0146
        g = torch.ones(1, 400, 600)
        g[:, ::2] = -1
        exact = float((g[0].double().T @ a[0].double()).square().sum())
        long_way = torch.tensor(
            torch.inf, dtype=torch.float64
        )  # so that only those that are not doubtful count
        total, _ = use.ghost_norms(a, g, lambda index, found=long_way: found)
        assert float(total) >= exact


def test_many_positions_leave_more_of_what_cancels():
    assert use.not_cancelled(torch.zeros(1), torch.ones(1), 1).sqrt() == pytest.approx(1e-4)
    assert use.not_cancelled(torch.zeros(1), torch.ones(1), 2100).sqrt() == pytest.approx(1e-4 * 2100 / 52)
    assert use.not_cancelled(torch.zeros(1), torch.ones(1), 10**6).sqrt() == pytest.approx(2e-4)
