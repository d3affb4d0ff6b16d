"""People as examples: their rows are one contribution, clipped once, by one backward pass, for every architecture."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discreet import Budget, Recipe
from discreet.core.clipping import Flat
from discreet.errors import CheckFailed, InvalidParameter, PlanViolation
from discreet.pytorch import PerPerson, PrivateRun
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.per_person import PersonLosses, _draw_places
from support.torch_bank import EXAMPLES, NAMES, cross_entropy, problem

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
ROWS = 3
IDS = [number // 2 if number < 4 else number for number in range(EXAMPLES)]  # two people have two rows each


def people_of(name):
    """A model of the bank, and its examples as people with up to three rows."""
    model, batch = problem(name)
    people = PerPerson(batch, IDS, rows=ROWS)
    return model, batch, people.read(range(len(people)))


def length(sums, parameters):
    return math.sqrt(sum(float(sums[name].double().pow(2).sum()) for name in parameters))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "compiled" in name else ()) for name in NAMES]
)
def test_a_person_adds_the_clip_norm_at_most_and_the_clip_of_the_mean_gradient(name):
    """The mean of a person's gradients, taken row by row, clipped by hand, against one backward pass."""
    model, batch, people = people_of(name)
    gradients = per_example_gradients(model, cross_entropy, batch, None)
    owners, clip = torch.tensor(IDS), 1e9
    means = {
        key: torch.stack([value[owners == one].mean(0) for one in owners.unique()])
        for key, value in gradients.items()
    }
    norms = sum(value.reshape(len(value), -1).double().pow(2).sum(1) for value in means.values()).sqrt()
    clip = float(norms.median()) / 2 + 1e-6
    factors = (clip / norms).clamp(max=1)
    engine = ClippedSum(model, PersonLosses(cross_entropy), Flat(clip), physical_batch_size=2)
    found = engine(people)
    for key, value in means.items():
        wanted = torch.einsum("p,p...->...", factors.to(value.dtype), value)
        torch.testing.assert_close(found[key], wanted.to(found[key].dtype), rtol=2e-4, atol=2e-5)
    for person in range(len(norms)):
        alone = tuple(part[person : person + 1] for part in people[0]), people[1][person : person + 1]
        assert length(engine(alone), engine.parameters) <= clip


def test_clipping_rows_instead_of_people_is_caught():
    """A broken twin: every row an example of its own."""
    model, batch, people = people_of("mlp, in-place")
    clip = 1e-3
    rows = ClippedSum(model, cross_entropy, Flat(clip))(tuple(part[:2] for part in batch))
    mean = ClippedSum(model, PersonLosses(cross_entropy), Flat(clip))(
        (tuple(part[:1] for part in people[0]), people[1][:1])
    )
    names = dict(model.named_parameters())
    assert length(mean, names) <= clip
    assert length(rows, names) > 1.2 * clip


def test_up_to_so_many_rows_are_read_and_weigh_one_together():
    values = torch.arange(30.0)
    ids = np.array([0] * 20 + [1] * 3 + [2] + [np.nan] * 6)
    people = PerPerson((values, values), ids, rows=4)
    assert len(people) == 3
    seen = set()
    for _ in range(60):
        (x, _), weights = people.read([0, 1, 2])
        assert weights.sum(1).tolist() == pytest.approx([1, 1, 1])
        assert len(set(x[0].tolist())) == 4
        assert set(x[1][weights[1] > 0].tolist()) == {20.0, 21.0, 22.0}
        assert x[2].tolist() == [23.0] * 4
        seen |= set(x[0].tolist())
    assert seen == set(values[:20].tolist())


def test_rows_are_drawn_evenly_and_nobody_can_tell_them():
    """20 rows, 4 of them each time, 4000 times: 800 of each, +- 25; six deviations, a false alarm in 2e-8."""
    seen, draws = np.zeros(20), []
    for _ in range(40):
        places = _draw_places(np.full(100, 20), 4)
        assert all(len(set(row)) == 4 for row in places.tolist())
        seen += np.bincount(places.reshape(-1), minlength=20)
        draws.append(places.tobytes())
    assert (abs(seen - 800) < 6 * math.sqrt(4000 * 0.2 * 0.8)).all()
    assert (
        len(set(draws)) == 40
    )  # a generator with a known seed, or one copied to a process, would repeat itself


def test_a_list_of_examples_is_stacked():
    dataset = [{"x": torch.full((2,), float(number)), "y": number % 2} for number in range(6)]
    rows, weights = PerPerson(dataset, "aabbcc", rows=2).read([2, 0])
    assert rows["x"].shape == (2, 2, 2)
    assert rows["y"].tolist() == [[0, 1], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("rows", [0, -1, 1.5, math.nan, True, "8"])
def test_rows_must_be_a_whole_number(rows):
    with pytest.raises(InvalidParameter, match="rows"):
        PerPerson(torch.zeros(4), [1, 1, 2, 2], rows=rows)


def test_ids_must_go_with_the_rows():
    for ids in ([1, 2], np.zeros((4, 2)), []):
        with pytest.raises(InvalidParameter, match="ids"):
            PerPerson(torch.zeros(4), ids)
    with pytest.raises(InvalidParameter, match="dataset"):
        PerPerson(PerPerson(torch.zeros(4), [1, 1, 2, 2]), [1, 2])


def data(people=60):
    generator = torch.Generator().manual_seed(0)
    ids = np.repeat(np.arange(people), np.random.default_rng(0).integers(1, 6, people))
    x = torch.randn(len(ids), 5, generator=generator)
    return (x, (x[:, 0] > 0).long()), ids


def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def begun(unit="person", model=None, **more):
    plan = Recipe(records=60, batch_size=20, steps=4, clip_norm=0.5).calibrate(Budget(4.0, 1e-4, unit=unit))
    model = model or nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    return PrivateRun(plan, model, torch.optim.SGD(model.parameters(), 0.1), losses, **more)


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_a_run_protects_people(arithmetic):
    run, (dataset, ids) = begun(arithmetic=arithmetic, physical_batch_size=7), data()
    for batch in run.batches(PerPerson(dataset, ids, rows=3)):
        run.step(batch)
    assert run.certificate().guarantee.unit == "person"
    assert run.certificate().verify()


def test_plans_and_data_sets_must_mean_the_same():
    dataset, ids = data()
    with pytest.raises(PlanViolation, match="PerPerson"):
        begun().batches(dataset)
    with pytest.raises(PlanViolation, match="unit='person'"):
        begun("record").batches(PerPerson(dataset, ids))
    with pytest.raises(InvalidParameter, match="collate"):
        begun().batches(PerPerson(dataset, ids), collate=list)


def test_a_model_that_mixes_rows_of_several_people_is_refused():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    run, (dataset, ids) = begun(model=Mixing()), data()
    batch = next(run.batches(PerPerson(dataset, ids, rows=3)))
    with pytest.raises(CheckFailed):
        run.step(batch)


def test_a_person_with_a_bad_row_counts_for_nothing():
    (x, y), ids = data()
    x[ids == 0] = math.nan
    people = PerPerson((x, y), ids, rows=5)
    model = nn.Linear(5, 2)
    engine = ClippedSum(model, PersonLosses(losses), Flat(1.0))
    assert length(engine(people.read([0])), engine.parameters) == 0
    one = engine(people.read([1]))["weight"].clone()
    torch.testing.assert_close(engine(people.read([0, 1]))["weight"], one)


@pytest.mark.parametrize("sampling", ["poisson", "random-allocation"])
def test_people_and_correlated_noise(sampling, monkeypatch):
    """The proof of bands is for whoever is drawn: a person, with all rows, has one turn in every window of them."""
    (x, y), ids = data()
    wanted = Recipe(records=60, batch_size=15, epochs=3, clip_norm=0.5, sampling=sampling, bands=4)
    plan = wanted.calibrate(Budget(4.0, 1e-4, unit="person"))
    model, people = nn.Linear(5, 2), PerPerson((x, y), ids, rows=3)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), 0.1), losses)
    turns, read = {}, people.read
    step = 0

    def watched(who):
        for person in np.asarray(who).tolist():
            turns.setdefault(person, set()).add(step % 4)
        return read(who)

    monkeypatch.setattr(people, "read", watched)
    for batch in run.batches(people):
        step = batch.step
        run.step(batch)
    assert len(turns) > 30
    assert all(len(own) == 1 for own in turns.values())
    assert run.certificate().guarantee.unit == "person"
    assert run.certificate().verify()
