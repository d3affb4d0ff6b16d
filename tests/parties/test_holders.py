"""Holders: their sums are those of the clipped gradients of single records, and records cannot make them speak."""

import inspect
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

from discreet.core.clipping import clip_rows
from discreet.errors import InvalidParameter
from discreet.linear.kernels.kernel import clipped_gradient, row_norms
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared
from discreet.parties import rehearse
from discreet.parties.study import Aggregation, Privacy, Study, Training
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.torch_holder import TorchHolder
from support.parties_bank import SIZES, clipped_gradients, study, table, unsigned_party

RNG = np.random.default_rng(0)
GRID = 2.0**-40


@pytest.mark.parametrize("chosen", [None, [3], [0, 7, 29], []])
def test_linear_sums_are_those_of_single_records(chosen):
    X, y = table(30, 0)
    holder, theta = LinearHolder(Logistic(), X, y, clip_norm=1.0), RNG.normal(size=4)
    records = None if chosen is None else np.array(chosen, np.intp)
    rows = clipped_gradients(theta, X, y)
    expected = (rows if chosen is None else rows[chosen]).sum(0)
    total = holder.clipped_sum(theta, records)
    assert np.abs(total.value - expected).max() < 31 * 2.0**-20  # the clip leaves room for a float's rounding
    steps = holder.hardened_sum(theta, records, GRID)
    assert steps.value.dtype == np.int64
    assert np.abs(steps.value * GRID - expected).max() < 31 * GRID
    assert (total.clip_norm, steps.clip_norm, steps.grid) == (1.0, 1.0, GRID)


@pytest.mark.parametrize(("kind", "width", "share"), [(np.float32, 1089, 0.999), (np.float64, 1026, 0.99)])
def test_a_record_that_joins_a_single_one_moves_the_sum_by_the_clip_norm_at_most(kind, width, share):
    targets = [
        share / np.sqrt(width),
        1e6,
    ]  # the first is within the clip norm, the second pulls the other way
    holder = LinearHolder(Squared(), np.ones((2, width), kind), targets, clip_norm=1.0, constant=0.0)
    theta, grid = np.zeros(width + 1), 2.0**-38
    one, two = (holder.hardened_sum(theta, np.arange(count), grid).value for count in (1, 2))
    assert sum(int(step) ** 2 for step in two - one) <= 2**76
    shorter = holder.one_by_one.hardened_sum(theta, np.arange(1), grid).value
    assert 0 < np.abs(shorter - one).max() < 1e-6 / grid


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308])
def test_bad_records_count_as_zero_without_a_word(bad, recwarn, capsys):
    X, y = table(30, 0)
    X[5, 1] = bad
    y[6] = np.nan
    theta = RNG.normal(size=4)
    with_bad = LinearHolder(Logistic(), X, y, clip_norm=1.0)
    good = np.delete(np.arange(30), [5, 6])
    without = LinearHolder(Logistic(), X[good], y[good], clip_norm=1.0)
    difference = with_bad.clipped_sum(theta, None).value - without.clipped_sum(theta, None).value
    limit = 1e-12 if not np.isfinite(bad) else 1.0
    assert np.linalg.norm(difference) <= limit
    assert (list(recwarn), capsys.readouterr()) == ([], ("", ""))


@pytest.mark.parametrize("people", [None, np.arange(30) // 2])
def test_numbers_beyond_a_narrow_type_are_not_a_word_either(people):
    """Whatever numpy was told to raise: an error would tell of a record."""
    X, y = table(30, 0)
    y[6] = 1e300
    with np.errstate(all="raise"):
        holder = LinearHolder(Squared(), X.astype(np.float32), y, clip_norm=1.0, people=people)
        X[5, 1] = 1e-310
        LinearHolder(Squared(), X, y, clip_norm=1.0, people=people)
    assert np.abs(holder.hardened_sum(np.zeros(4), None, GRID).value).max() > 0


@pytest.mark.parametrize("bound", [1e-3, 1.0])
def test_one_record_adds_at_most_the_clip_norm(bound):
    X, y = table(30, 1)
    holder = LinearHolder(Poisson(), 1e6 * X, y, clip_norm=bound)
    for record in range(30):
        value = holder.clipped_sum(RNG.normal(size=4), np.array([record])).value
        assert np.linalg.norm(value) <= bound * (1 + 1e-15)


LOSSES = [Logistic(), Squared(), Huber(0.7), Poisson(), SmoothedHinge()]


@pytest.mark.parametrize("loss", LOSSES, ids=[type(loss).__name__ for loss in LOSSES])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_record_alone_is_what_the_kernel_makes_of_it(loss, dtype):
    """Against the kernel for many rows; and its norm is at most the clip norm in exact arithmetic."""
    X, y = table(60, 3)
    X *= 10.0 ** RNG.integers(-30, 30, (60, 1))
    X[:7, 1] = np.nan, np.inf, -np.inf, 1e38, 0.0, 1e-38, 1e30
    y[7:10] = np.nan, np.inf, -3.0
    X = X.astype(dtype)
    theta = RNG.normal(size=4) * 1e-3
    for clip_norm in (1e-5, 1.0, 50.0):
        holder = LinearHolder(loss, X, y, clip_norm=clip_norm)
        for record in range(60):
            alone = holder.clipped_sum(theta, np.array([record])).value
            kernel = clipped_gradient(
                loss, X[[record]], y[[record]], theta, 1.0, row_norms(X[[record]], 1.0), clip_norm
            )
            assert np.allclose(
                alone, kernel, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=1e-6 * clip_norm
            )
            assert sum(Fraction(float(value)) ** 2 for value in alone) <= Fraction(clip_norm) ** 2


def test_classes_sparse_rows_and_bounds():
    X, y = table(30, 2)
    holder = LinearHolder(Softmax(3), X, RNG.integers(0, 3, 30), clip_norm=1.0)
    assert holder.dimension == 12
    assert holder.clipped_sum(np.zeros(12), None).value.shape == (12,)
    theta = RNG.normal(size=4)
    dense, sparse = (LinearHolder(Squared(), rows, y, clip_norm=1.0) for rows in (X, csr_matrix(X)))
    assert np.allclose(dense.clipped_sum(theta, None).value, sparse.clipped_sum(theta, None).value)
    clamped = LinearHolder(Squared(), X, y, clip_norm=1.0, bounds=([-1, -1, -1], [1, 1, 1]))
    same = LinearHolder(Squared(), np.clip(X, -1, 1), y, clip_norm=1.0)
    assert np.array_equal(clamped.clipped_sum(theta, None).value, same.clipped_sum(theta, None).value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clip_norm": np.nan}, "clip_norm"),
        ({"y": np.zeros(29)}, "y"),
        ({"X": np.zeros(30)}, "X"),
        ({"bounds": ([1, 1, 1], [0, 0, 0])}, "bounds"),
        ({"bounds": ([np.nan] * 3, [1, 1, 1])}, "bounds"),
        ({"constant": -1.0}, "constant"),
    ],
)
def test_linear_settings_are_checked(changes, named):
    X, y = table(30, 0)
    settings = {"X": X, "y": y, "clip_norm": 1.0} | changes
    with pytest.raises(InvalidParameter, match=named):
        LinearHolder(Logistic(), settings.pop("X"), settings.pop("y"), **settings)


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def examples(count, seed, dtype=torch.float64):
    X, y = table(count, seed)
    return torch.tensor(X, dtype=dtype), torch.tensor(y).long()


@pytest.fixture(scope="module")
def torch_holders():
    """Made once, because each checks its model; every request overwrites the parameters."""
    return {
        name: TorchHolder(network(), examples(count, seed), losses, 0.3, physical_batch_size=8)
        for seed, (name, count) in enumerate(SIZES.items())
    }


@pytest.mark.parametrize("chosen", [None, [3], [0, 7, 29], []])
def test_torch_sums_are_those_of_single_examples(chosen, torch_holders):
    model, data, holder = network(), examples(30, 0), torch_holders["ann"]
    theta = holder.start + RNG.normal(size=holder.dimension)
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor(theta), model.parameters())
    found = per_example_gradients(model, losses, data)
    rows = torch.cat([value.reshape(30, -1) for value in found.values()], 1).numpy()
    rows = clip_rows(rows, 0.3)
    expected = (rows if chosen is None else rows[chosen]).sum(0)
    records = None if chosen is None else np.array(chosen, np.intp)
    assert np.abs(holder.clipped_sum(theta, records).value - expected).max() < 1e-10
    assert np.abs(holder.hardened_sum(theta, records, GRID).value * GRID - expected).max() < 31 * GRID
    held = nn.utils.parameters_to_vector(holder._sum.model.parameters())
    assert np.array_equal(held.detach().numpy(), theta)


def test_torch_clips_examples_so_a_study_of_persons_refuses_it(torch_holders):
    holder = torch_holders["ann"]
    model = {"kind": "custom", "dimension": holder.dimension}
    records = replace(study(clip_norm=0.3), model=model)
    persons = replace(records, privacy=replace(records.privacy, unit="person"))
    unsigned_party(records, "ann", holder=holder)
    with pytest.raises(InvalidParameter, match=r"holder\.unit='record': must be 'person'.*TorchHolder"):
        unsigned_party(persons, "ann", holder=holder)


def test_torch_refuses_what_mixes_examples():
    mixing = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    with pytest.raises(Exception, match="BatchNorm"):
        TorchHolder(mixing, examples(30, 0), losses, clip_norm=1.0)


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_what_a_network_draws_is_nobodys_to_know(arithmetic):
    """With known draws, one example less gives all others other masks: many clip norms, and not one."""
    data = examples(30, 0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.Linear(5, 2)).double()
    holder = TorchHolder(model, data, losses, 1.0)

    def total(ask, records):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        if arithmetic == "float":
            found = ask(holder.clipped_sum)(holder.start, records).value
        else:
            found = ask(holder.hardened_sum)(holder.start, records, GRID).value * GRID
        return found, torch.equal(torch.get_rng_state(), before)

    def bare(method):
        return partial(inspect.unwrap(method.__func__), holder)

    everybody, others = np.arange(30), np.arange(1, 30)
    first, untouched = total(lambda method: method, everybody)
    again, _ = total(lambda method: method, everybody)
    assert untouched
    assert np.linalg.norm(first - again) > 1  # whatever the seed
    known, _ = total(bare, everybody)  # the broken twin
    assert np.array_equal(known, total(bare, everybody)[0])
    assert np.linalg.norm(known - total(bare, others)[0]) > 2


def test_a_long_record_pads_nobody_else_in_hardened_sums():
    """Padded to another length, an example is read by another matrix product: its last bits are others."""

    def padded(records):
        length = max(map(len, records))
        rows = [nn.functional.pad(record, (0, 0, 0, length - len(record))) for record in records]
        return torch.stack(rows), torch.tensor([[len(record)] for record in records])

    def attended(model, batch):
        rows, lengths = batch
        held = torch.tanh(model(rows))
        beyond = torch.arange(rows.shape[1]) >= lengths
        weights = held[..., 0].masked_fill(beyond, -1e9).softmax(1)
        return torch.bmm(weights[:, None], held)[:, 0].square().sum(1)

    generator = torch.Generator().manual_seed(0)
    records = [torch.randn(2 + place % 7, 6, generator=generator) for place in range(30)]
    records.append(torch.randn(200, 6, generator=generator))
    torch.manual_seed(0)
    holder = TorchHolder(nn.Linear(6, 8), records, attended, 1.0, collate=padded)

    def total(chosen):
        return holder.hardened_sum(holder.start, np.array(chosen), GRID).value

    everybody, others = total(range(31)), total(range(30))
    assert np.array_equal(everybody - others, total([30]))
    together = per_example_gradients(holder._sum.model, attended, padded(records))  # the broken twin
    apart = per_example_gradients(holder._sum.model, attended, padded(records[:30]))
    assert not torch.equal(together["weight"][:30], apart["weight"])


def test_torch_theta_has_one_length(torch_holders):
    with pytest.raises(InvalidParameter, match="theta"):
        torch_holders["ann"].load(np.zeros(3))


@pytest.mark.parametrize(
    "aggregation", [Aggregation(), Aggregation("secure", dropouts=1)], ids=["plain", "secure"]
)
def test_networks_are_trained_together(aggregation, torch_holders):
    data, start = torch_holders, torch_holders["ann"].start
    plan = Study(
        "network",
        "sgd2",
        SIZES,
        Privacy(50.0, 1e-3),
        Training(0.3, rounds=8, learning_rate=3.0),
        {"kind": "torch", "dimension": len(start)},
        aggregation,
    )
    result = rehearse(plan, data, start=start, unsafe_seed=0)
    holder = data["ann"]
    x, y = examples(200, 9)
    before, after = [], []
    for theta, found in ((start, before), (result.theta, after)):
        holder.load(theta)
        with torch.no_grad():
            found.append(losses(holder._sum.model, (x, y)).mean().item())
    assert after[0] < before[0] - 0.03
