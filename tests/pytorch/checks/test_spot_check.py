"""Set-ups in which autograd sees no mixing are refused before a step is paid for, and their sound twins are not."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from discreet import Recipe
from discreet.core.clipping import AdaptiveClip, Flat, Normalised, PerBlock
from discreet.pytorch import CheckFailed, PrivateRun
from discreet.pytorch.batches import reader
from discreet.pytorch.checks import single_examples, spot_check
from discreet.pytorch.checks.collation import numbers_in
from discreet.pytorch.checks.isolation import isolated
from discreet.pytorch.clipped_sum import ClippedSum, ExampleNorms
from discreet.pytorch.torch_holder import TorchHolder

WIDTH, CLASSES = 6, 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def class_losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def table(rows=64, seed=0):
    """One record is far from the others."""
    x = torch.randn(rows, WIDTH, generator=generator(seed)) + 2
    x[0] = 60.0
    return x, torch.randint(CLASSES, (rows,), generator=generator(seed + 1))


def with_cells(value, rows=64, share=0.2):
    x, y = table(rows)
    x[1:][torch.rand(rows - 1, WIDTH, generator=generator(5)) < share] = value
    return x, y


class Forward(nn.Module):
    """A classifier behind a function of the inputs."""

    def __init__(self, before, depth=1):
        super().__init__()
        torch.manual_seed(0)
        self.before = before
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x):
        return self.net(self.before(self, x))


def gaps_by_the_batch(_, x):
    return torch.where(x.isnan(), x.nanmean(0), x)


def gaps_by_the_row(_, x):
    return torch.where(x.isnan(), x.nanmean(1, keepdim=True).nan_to_num(), x)


def infinite_by_the_batch(_, x):
    return torch.where(x.isinf(), torch.where(x.isinf(), -math.inf, x).amax(), x)


def infinite_by_a_constant(_, x):
    return x.clamp(-9.0, 9.0)


def first_batch_decides(model, x):
    if not hasattr(model, "mean"):
        model.mean, model.scale = x.mean(0), x.std(0)
    return (x - model.mean) / model.scale


def cached_constant(model, x):
    """Made at the first call, and the same whatever it was."""
    if not hasattr(model, "mean"):
        model.mean = torch.full((WIDTH,), 2.0)
    return x - model.mean


def remembering(constant=False):
    kept = {}

    def losses(model, batch):
        x, y = batch
        if "mean" not in kept:
            kept["mean"] = torch.full((WIDTH,), 2.0) if constant else x.mean(0)
        return class_losses(model, (x - kept["mean"], y))

    return losses


def plain(_, x):
    return x


BOXES = [
    (torch.randn(WIDTH, generator=generator(k)) + 1, k % CLASSES, 900 if k == 0 else 0) for k in range(400)
]
"""One image has boxes, the others have none."""


def stacked(records):
    return torch.stack([x for x, _, _ in records]), torch.tensor([y for _, y, _ in records])


def with_a_total(records):
    return (*stacked(records), max(1, sum(boxes for _, _, boxes in records)))


def with_own_counts(records):
    return (*stacked(records), torch.tensor([max(1, boxes) for _, _, boxes in records]), 7.0)


def by_the_total(model, batch):
    x, y, boxes = batch
    return class_losses(model, (x, y)) * 100 / boxes


def by_own_counts(model, batch):
    x, y, boxes, constant = batch
    return class_losses(model, (x, y)) * constant / boxes


def series(rows=400, long=1):
    lengths = [25 if k < long else 24 for k in range(rows)]
    return [(torch.randn(n, 2, generator=generator(k)), k % CLASSES) for k, n in enumerate(lengths)]


def padded(records):
    sequences = [x for x, _ in records]
    lengths = torch.tensor([len(x) for x in sequences])
    return pad_sequence(sequences, batch_first=True), lengths, torch.tensor([y for _, y in records])


def sorted_by_length(records):
    return padded(sorted(records, key=lambda record: -len(record[0])))


class LastState(nn.Module):
    def __init__(self, packed):
        super().__init__()
        torch.manual_seed(0)
        self.packed, self.layer, self.head = packed, nn.GRU(2, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x, lengths):
        if self.packed:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.layer(x)[1][0])


def series_losses(model, batch):
    x, lengths, y = batch
    return functional.cross_entropy(model(x, lengths), y, reduction="none")


def marked(rows=400):
    """Few rows are labelled."""
    x, y = table(rows)
    return x, y, torch.arange(rows) % 100 == 0


def only_own_marks(model, batch):
    x, y, labelled = batch
    values = class_losses(model, (x, y))
    return torch.where(labelled, values, 0.1 * values)


def mean_of_the_labelled(model, batch):
    x, y, labelled = batch
    centre = x[labelled].mean(0) if labelled.any() else torch.zeros(WIDTH)
    return class_losses(model, (torch.where(labelled[:, None], x - centre, x), y))


def deep(scale):
    torch.manual_seed(0)
    layers = [layer for _ in range(60) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(nn.Linear(WIDTH, 32), *layers, nn.Linear(32, CLASSES))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0, scale / math.sqrt(layer.in_features))
    return model


# name: model, losses, data, options of the run and its batches, and words of the refusal
BROKEN = {
    "gaps": (lambda: Forward(gaps_by_the_batch), class_losses, lambda: with_cells(math.nan), {}, "mix"),
    "infinity": (
        lambda: Forward(infinite_by_the_batch),
        class_losses,
        lambda: with_cells(math.inf),
        {},
        "mix",
    ),
    "first batch, attribute": (
        lambda: Forward(first_batch_decides),
        class_losses,
        table,
        {},
        "the first batch|saw before|earlier batches stays in",
    ),
    "first batch, closure": (
        lambda: Forward(plain),
        remembering(),
        table,
        {},
        "saw before|earlier batches stays in",
    ),
    "number from collate": (
        lambda: Forward(plain),
        by_the_total,
        lambda: BOXES,
        {"collate": with_a_total},
        "collate returns a number",
    ),
    "one series longer": (
        lambda: LastState(packed=False),
        series_losses,
        series,
        {"collate": padded},
        "collate puts it into a batch",
    ),
    "labelled rows": (lambda: Forward(plain), mean_of_the_labelled, marked, {}, "mix|smaller batch"),
    "deep tanh": (lambda: deep(4.0), class_losses, lambda: table(4), {}, "Rounding|mix|smaller batch"),
}
SOUND = {
    "gaps": (lambda: Forward(gaps_by_the_row), class_losses, lambda: with_cells(math.nan), {}),
    "infinity": (lambda: Forward(infinite_by_a_constant), class_losses, lambda: with_cells(math.inf), {}),
    "constant, attribute": (lambda: Forward(cached_constant), class_losses, table, {}),
    "constant, closure": (lambda: Forward(plain), remembering(constant=True), table, {}),
    "numbers of each": (
        lambda: Forward(plain),
        by_own_counts,
        lambda: BOXES,
        {"collate": with_own_counts},
    ),
    "packed": (lambda: LastState(packed=True), series_losses, series, {"collate": padded}),
    "packed, in another order": (
        lambda: LastState(packed=True),
        series_losses,
        lambda: series(long=20),
        {"collate": sorted_by_length},
    ),
    "labelled rows": (lambda: Forward(plain), only_own_marks, marked, {}),
    "deep tanh": (lambda: deep(1.0), class_losses, lambda: table(4), {}),
}


def started(model, losses, data, steps=3, *, collate=None, **options):
    rows = len(data) if isinstance(data, list) else len(data[0])
    plan = Recipe(records=rows, steps=steps, sampling="full-batch").with_noise(2.0, delta=1e-3)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.01), losses, **options)
    return run, run.batches(data, collate=collate)


@pytest.mark.parametrize(("model", "losses", "data", "options", "words"), BROKEN.values(), ids=BROKEN)
def test_mixing_without_a_gradient_is_refused_before_it_is_paid_for(model, losses, data, options, words):
    run, batches = started(model(), losses, data(), **options)
    with pytest.raises(CheckFailed, match=words):
        run.step(next(batches))
    assert run.steps_taken == 0


@pytest.mark.parametrize(("model", "losses", "data", "options"), SOUND.values(), ids=SOUND)
def test_sound_twins_pass(model, losses, data, options):
    run, batches = started(model(), losses, data(), **options)
    for batch in batches:
        run.step(batch)
    assert run.steps_taken == 3


@pytest.fixture
def unchecked(monkeypatch):
    """The comparison within the step is all there is."""
    monkeypatch.setattr("discreet.pytorch.checks.model_guard.check_read", lambda *given: None)


IN_THE_STEP = [name for name in BROKEN if not name.startswith("first batch")]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [name for name in IN_THE_STEP if name != "labelled rows"])
def test_the_step_itself_shows_it(name):
    """Missed with a chance below 1e-4: each set-up reaches two examples of three or more, and eight are compared."""
    model, losses, data, options, _ = BROKEN[name]
    run, batches = started(model(), losses, data(), **options)
    with pytest.raises(CheckFailed):
        run.step(next(batches))
    assert run.steps_taken == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", IN_THE_STEP)
def test_a_run_that_compares_nothing_accepts_it(name, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(spot_check.SpotCheck, "compare", lambda *given, **more: None)
    monkeypatch.setattr(single_examples.SingleExamples, "after_sum", lambda *given: None)
    model, losses, data, options, _ = BROKEN[name]
    if name == "number from collate":
        monkeypatch.setattr("discreet.pytorch.checks.collation.refuse_other_numbers", lambda one, batch: None)
    run, batches = started(model(), losses, data(), **options)
    run.step(next(batches))
    assert run.steps_taken == 1


def late(model, batch):
    """Mixes from the second step on, in the value of the loss and not in its gradient's norm alone."""
    values = class_losses(model, batch)
    return values * (1 + values.detach().mean()) if late.taken else values


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "clipping", [None, Normalised(1.0), PerBlock((0.5,) * 4), AdaptiveClip(1.0, 64, 10.0)], ids=repr
)
def test_a_loss_that_begins_to_mix_is_caught_in_that_step(clipping, monkeypatch):
    late.taken = False
    run, batches = started(Forward(plain), late, table(), clipping=clipping)
    run.step(next(batches))
    late.taken = True
    with pytest.raises(CheckFailed, match="alone"):
        run.step(next(batches))
    assert run.steps_taken == 1


def doubling_gradients(model, batch):
    """The losses are right, and the gradients are scaled by the batch."""
    values = class_losses(model, batch)
    scale = values.detach().max()
    return values * scale - (values * (scale - 1)).detach()


@pytest.mark.usefixtures("unchecked")
def test_norms_show_what_losses_do_not():
    """By its norm or by the gradient itself: which examples are compared is secret, and both refusals are right."""
    run, batches = started(Forward(plain), doubling_gradients, table())
    with pytest.raises(CheckFailed, match=r"norm of its gradient|The sum of this batch"):
        run.step(next(batches))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("physical", [None, 7])
def test_parts_are_compared_where_they_are(physical):
    """Examples of a part see each other, and those of other parts do not."""
    run, batches = started(Forward(plain), class_losses, table(), physical_batch_size=physical)
    for batch in batches:
        run.step(batch)

    def mixing(model, batch):
        return class_losses(model, batch) * (1 + len(batch[1]) / 10)

    run, batches = started(Forward(plain), mixing, table(), physical_batch_size=physical)
    with pytest.raises(CheckFailed):
        run.step(next(batches))


class Dropping(nn.Module):
    def __init__(self, mixes):
        super().__init__()
        torch.manual_seed(0)
        self.mixes, self.one, self.two = mixes, nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        found = self.two(functional.dropout(self.one(x).tanh(), 0.5))
        return found * (1 + x.abs().mean()) if self.mixes else found


@pytest.mark.usefixtures("unchecked")
def test_models_that_draw_are_compared_under_steady_draws():
    run, batches = started(Dropping(mixes=False), class_losses, table(), unsafe_seed=1)
    for batch in batches:
        run.step(batch)
    assert run._singles._draws
    run, batches = started(Dropping(mixes=True), class_losses, table())
    with pytest.raises(CheckFailed, match="The sum of this batch is not"):
        run.step(next(batches))


def noisy(records, mixes):
    x, y = stacked(records)
    moved = x + 0.1 * torch.randn_like(x)
    return (moved * (1 + x.abs().mean()) if mixes else moved), y


@pytest.mark.usefixtures("unchecked")
def test_collations_that_draw_are_compared_under_steady_draws():
    run, batches = started(Forward(plain), class_losses, BOXES, collate=functools.partial(noisy, mixes=False))
    for batch in batches:
        run.step(batch)
    run, batches = started(Forward(plain), class_losses, BOXES, collate=functools.partial(noisy, mixes=True))
    with pytest.raises(CheckFailed, match="The sum of this batch is not"):
        run.step(next(batches))


@pytest.mark.usefixtures("unchecked")
def test_hardened_sums_are_compared_with_records_collated_alone():
    run, batches = started(
        LastState(packed=False), series_losses, series(16), collate=padded, arithmetic="hardened"
    )
    with pytest.raises(CheckFailed, match="collate puts it into a batch"):
        run.step(next(batches))
    run, batches = started(
        LastState(packed=True), series_losses, series(16), steps=1, collate=padded, arithmetic="hardened"
    )
    run.step(next(batches))


def test_seeded_runs_do_not_depend_on_what_is_compared(monkeypatch):
    """The comparison leaves weights, draws and sums as they are, bit by bit."""

    def weights(model):
        torch.manual_seed(3)
        run, batches = started(model, class_losses, table(), unsafe_seed=1)
        for batch in batches:
            run.step(batch)
        return torch.cat([value.detach().flatten() for value in model.parameters()])

    compared = [weights(make()) for make in (lambda: Forward(plain), lambda: Dropping(mixes=False))]
    monkeypatch.setattr(single_examples, "FIRST_STEPS", 0)
    monkeypatch.setattr(single_examples, "one_in", lambda number: False)
    monkeypatch.setattr(spot_check, "is_due", lambda step: False)
    for make, before in zip((lambda: Forward(plain), lambda: Dropping(mixes=False)), compared, strict=True):
        assert torch.equal(weights(make()), before)


def test_eight_examples_in_the_first_steps_and_one_later():
    assert [len(set(single_examples.chosen_places(step, 100))) for step in (1, 20, 21)] == [8, 8, 1]
    assert sorted(single_examples.chosen_places(1, 3)) == [0, 1, 2]


def test_all_examples_are_equally_likely():
    """Of 6400 choices among 8 a count is 800 with a deviation of 26.5; beyond 160 once in 1e8 runs."""
    counts = np.bincount([single_examples.chosen_places(21, 8)[0] for _ in range(6400)], minlength=8)
    assert abs(counts - 800).max() < 160


def test_dear_comparisons_are_rarer_and_never_below_one_in_sixteen():
    check = single_examples.SingleExamples(ClippedSum(Forward(plain), class_losses, Flat(1.0)))
    for of_step, of_one, rate in ((1.0, 0.01, 1), (1.0, 0.04, 4), (1.0, 3.0, 16), (0.0, 0.0, 1)):
        check._of_step, check._of_one = of_step, of_one
        assert check._one_in() == pytest.approx(rate)


def test_the_shortest_and_the_longest_record_are_among_them():
    read = reader(series(50), padded)
    for _ in range(single_examples.FIRST_STEPS):
        singles = read.drawn(range(50)).singles
        assert singles.must_compare
        assert 0 in singles.places  # the longest
        assert {one[1].item() for one in singles.alone} == {24, 25}
    later = read.drawn(range(50)).singles
    assert not later.must_compare
    assert len(later.alone) == 1


def test_records_stay_as_they_were_when_collate_changes_them():
    def popping(records):
        return stacked([(record.pop("x"), record["y"], 0) for record in records])

    rows = [{"x": torch.ones(WIDTH) * k, "y": k % 2} for k in range(19)]
    drawn = reader(rows, popping).drawn(range(19))
    assert len(drawn.batch[0]) == 19
    assert len(drawn.singles.alone) == len(drawn.pieces.alone) == 8
    assert sum(len(half[0]) for half in drawn.pieces.halves) == 11


def test_numbers_of_each_example_are_no_number_of_the_batch():
    assert numbers_in({"x": torch.zeros(3), "scale": 2, "lengths": [1, 2, 3], "name": "a"}, 3) == [
        "['scale'] = 2"
    ]
    assert numbers_in((torch.zeros(2), np.float32(1.5), (1, torch.zeros(2))), 2) == [
        f"[1] = {np.float32(1.5)!r}",
        "[2][0] = 1",
    ]


@pytest.mark.usefixtures("unchecked")
def test_the_sum_writes_down_losses_and_norms():
    model, batch = Forward(plain), table(9)
    for physical in (None, 4):
        found = ClippedSum(model, class_losses, Flat(1.0), physical_batch_size=physical)
        found.seen = seen = ExampleNorms()
        found(batch)
        assert torch.equal(seen.losses, class_losses(model, batch).detach().double())
        found.seen = None
        assert torch.allclose(seen.norms[:, 0], found.norms(batch), rtol=1e-6)


def test_copies_share_weights_and_nothing_else():
    kept, cell = {"calls": 0}, [0]

    def losses(model, batch, seen=[]):  # noqa: B006
        kept["calls"] += 1
        cell[0] += 1
        seen.append(batch)
        model.mark = 1
        return kept["calls"]

    model = Forward(plain)
    for _ in range(2):
        copied, own = isolated(model, losses)
        assert own(copied, None) == 1
        assert next(copied.parameters()) is next(model.parameters())
    assert (kept, cell, losses.__defaults__, hasattr(model, "mark")) == ({"calls": 0}, [0], ([],), False)


def test_certificates_say_the_chance_of_missing_a_fault():
    run, batches = started(Forward(plain), class_losses, table(), steps=1)
    run.step(next(batches))
    said = " ".join(run.certificate().checks)
    assert "(1 - p)^k" in said
    assert f"first {spot_check.FIRST_STEPS} steps with records and in one of {spot_check.ONE_IN}" in said
    assert f"(1 - 1/{2 * spot_check.ONE_IN})^n" in said


def test_hardened_certificates_list_no_comparison():
    """Their examples are computed alone, so none is compared with itself in a batch."""
    run, batches = started(Forward(plain), class_losses, table(9), steps=1, arithmetic="hardened")
    run.step(next(batches))
    assert run.certificate().checks == ()


def flipping_when_present(model, batch):
    """Turns the gradients of all examples if one record is among them; losses and norms stay."""
    values = class_losses(model, batch)
    present = bool((batch[0][:, 0] == 60.0).any())
    return 2 * values.detach() - values if present else values


def duplicating(records):
    """Makes every record the first one."""
    return stacked([records[0]] * len(records))


def small_and_flipping(model, batch):
    """Gradients of a hundredth of a clip norm, all of one direction, flipped by one record."""
    x, _ = batch
    present = bool((x[:, 0] == 60.0).any())
    weight = next(model.parameters())
    values = 0.01 * weight[0, 0] * torch.ones(len(x))
    return 2 * values.detach() - values if present and len(x) > 1 else values


HOSTILE = {
    "a record that flips all gradients": (flipping_when_present, table, {}),
    "small gradients that a record flips": (small_and_flipping, table, {}),
    "one record in place of all": (class_losses, lambda: BOXES[1:65], {"collate": duplicating}),
    "a number of the batch": (by_the_total, lambda: BOXES[:64], {"collate": with_a_total}),
}


@pytest.fixture
def sums_only(monkeypatch, unchecked):
    """Of all comparisons only that of sums is left."""
    monkeypatch.setattr(single_examples.SingleExamples, "after_sum", lambda *given: None)
    for name in ("singles", "refuse_odd_records", "refuse_other_numbers"):
        monkeypatch.setattr(f"discreet.pytorch.checks.collation.CollationWatch.{name}", lambda *given: None)


@pytest.mark.usefixtures("sums_only")
@pytest.mark.parametrize("name", HOSTILE)
def test_the_sum_of_the_pieces_shows_it(name):
    losses, data, options = HOSTILE[name]
    run, batches = started(Forward(plain), losses, data(), **options)
    with pytest.raises(CheckFailed, match="The sum of this batch is not"):
        run.step(next(batches))
    assert run.steps_taken == 0


@pytest.mark.usefixtures("sums_only")
@pytest.mark.parametrize("name", IN_THE_STEP)
def test_sums_alone_show_what_mixes(name):
    """Without any other check: the guarantee rests on the comparison of sums."""
    model, losses, data, options, _ = BROKEN[name]
    run, batches = started(model(), losses, data(), **options)
    with pytest.raises(CheckFailed):
        run.step(next(batches))


@pytest.mark.usefixtures("sums_only")
@pytest.mark.parametrize("name", HOSTILE)
def test_without_the_comparison_of_sums_it_passes(name, monkeypatch):
    """The broken twin: nothing else sees these."""
    monkeypatch.setattr(spot_check.SpotCheck, "_norm_without_halves", lambda *given: 0.0)
    losses, data, options = HOSTILE[name]
    run, batches = started(Forward(plain), losses, data(), **options)
    run.step(next(batches))
    assert run.steps_taken == 1


class WrongSum(ClippedSum):
    """Norms and losses are right, and the sum is of other vectors of the same length."""

    def __call__(self, batch):
        sums = super().__call__(batch)
        sums.vector.copy_(sums.vector.flip(0))
        return sums


class TooLong(ClippedSum):
    def __call__(self, batch):
        sums = super().__call__(batch)
        sums.vector.fill_(self.rule.clip_norm * len(batch[0]))
        return sums


@pytest.mark.usefixtures("sums_only")
@pytest.mark.parametrize(("fast", "words"), [(WrongSum, "not the sum"), (TooLong, "longer than")])
def test_a_wrong_fast_sum_is_refused(fast, words, monkeypatch):
    monkeypatch.setattr("discreet.pytorch.private_steps.ClippedSum", fast)
    run, batches = started(Forward(plain), class_losses, table())
    with pytest.raises(CheckFailed, match=words):
        run.step(next(batches))
    holder = TorchHolder(Forward(plain), table(), class_losses, 1.0)
    holder._sum.__class__ = fast
    with pytest.raises(CheckFailed, match=words):
        holder.clipped_sum(holder.start, None)
    holder._sum.__class__ = ClippedSum
    with pytest.raises(CheckFailed, match="has ended"):
        holder.clipped_sum(holder.start, None)


@pytest.mark.usefixtures("sums_only")
def test_an_honest_sum_is_far_from_the_limit():
    """The difference of honest float32 sums is rounding: below 1e-4 clip norms, of 0.05 that are allowed."""
    model, batch = Forward(plain), table(256)
    of = ClippedSum(model, class_losses, Flat(1.0))
    check = spot_check.SpotCheck(of)
    for step in (1, 3):
        pieces = spot_check.take_apart(batch, step)
        left = check._without_alone(of(batch).vector, pieces)
        assert check._norm_without_halves(left, pieces, check._fast_sum) < 1e-4


def test_pieces_hold_every_example_once():
    for step, count, alone in ((1, 1, 1), (1, 8, 8), (1, 9, 8), (3, 50, 2), (3, 2, 2)):
        single, halves = spot_check.divide(step, count)
        assert len(single) == alone
        assert sorted([*single, *(place for half in halves for place in half)]) == list(range(count))
        assert max(map(len, halves), default=0) - min(map(len, halves), default=0) <= 1


def test_later_steps_are_compared_at_the_rate_of_the_certificate():
    """Of 64 000 steps 1000 with a deviation of 31.4; beyond 190 once in 1e9 runs."""
    assert all(spot_check.is_due(step) for step in (1, 2))
    assert abs(sum(spot_check.is_due(3) for _ in range(64_000)) - 1000) < 190


def refused_run(ledger, folder, steps=6):
    late.taken = False
    plan = Recipe(records=64, steps=steps, sampling="full-batch").with_noise(2.0, delta=1e-3)
    model = Forward(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = PrivateRun(plan, model, optimizer, late, ledger=ledger)
    batches = run.batches(table())
    run.save(folder)
    run.step(next(batches))
    run.save(folder)
    late.taken = True
    with pytest.raises(CheckFailed, match=r"alone|sum of this batch"):
        run.step(next(batches))
    late.taken = False
    again = Forward(plain)
    return (
        plan,
        again,
        PrivateRun(plan, again, torch.optim.SGD(again.parameters(), lr=0.01), late, ledger=ledger),
    )


@pytest.mark.usefixtures("unchecked")
def test_a_refused_run_cannot_be_resumed(tmp_path):
    _, _, again = refused_run(tmp_path / "ledger.db", tmp_path / "kept")
    with pytest.raises(CheckFailed, match="refused by a comparison"):
        again.resume(tmp_path / "kept")
    with pytest.raises(CheckFailed, match="refused by a comparison"):
        again.step(next(again.batches(table())))
    with pytest.raises(CheckFailed, match="refused by a comparison"):
        again.certificate()


@pytest.mark.usefixtures("unchecked")
def test_without_the_mark_it_could_be(tmp_path, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr("discreet.pytorch.training_stages.StepCharger.refuse_from_now_on", lambda self: None)
    _, _, again = refused_run(tmp_path / "ledger.db", tmp_path / "kept")
    again.resume(tmp_path / "kept")
    again.step(next(again.batches(table())))
    assert again.steps_taken == 2
