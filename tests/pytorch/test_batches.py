"""From a data set to batches: any kind of data set, drawn as planned."""

from contextlib import nullcontext

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from discreet import InvalidParameter, Recipe
from discreet.pytorch import PrivateRun
from discreet.pytorch.batches import reader
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.loaders import unwrap_loader

X, Y = torch.arange(40.0).reshape(20, 2), torch.arange(20)


class Examples(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return X[index], int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Examples())


class Fast(Examples):
    """Reads many at once, as Hugging Face data sets do."""

    def __getitem__(self, index):
        raise AssertionError("read one by one")

    def __getitems__(self, indices):
        return [(X[index], int(Y[index])) for index in indices]


@pytest.mark.parametrize(
    "dataset",
    [
        (X, Y),
        TensorDataset(X, Y),
        Examples(),
        Fast(),
        [(X[i], int(Y[i])) for i in range(20)],
        (X.numpy(), Y.numpy()),
    ],
    ids=["tensors", "tensor data set", "data set", "many at once", "list", "numpy"],
)
def test_every_kind_of_data_set_reads_the_same(dataset):
    read = reader(dataset)
    x, y = read(np.array([3, 7, 19]))
    assert read.rows == 20
    assert torch.equal(x, X[[3, 7, 19]])
    assert torch.equal(y, Y[[3, 7, 19]])
    assert read(np.array([], dtype=np.int64)) is None


def test_dicts_and_single_tensors():
    assert torch.equal(reader({"a": {"b": X}})([1])["a"]["b"], X[[1]])
    assert torch.equal(reader(X)([1, 2]), X[[1, 2]])


def test_a_collate_function_of_ones_own():
    read = reader(Examples(), collate=lambda examples: {"x": torch.stack([x for x, _ in examples])})
    assert torch.equal(read([4])["x"], X[[4]])


@pytest.mark.parametrize("dataset", [DataLoader(Examples()), Stream(), iter([1]), 3, None])
def test_what_draws_its_own_batches_is_refused(dataset):
    with pytest.raises(InvalidParameter, match="the plan draws the batches"):
        reader(dataset)


def test_columns_of_different_length_are_refused():
    with pytest.raises(InvalidParameter, match="common first dimension"):
        reader((X, Y[:-1]))


@pytest.mark.parametrize(
    "column",
    [[1.0, 2.0, 3.0], ["a", "b", "c"], np.array(["a", "b", "c"]), pandas.Series([1, 2, 3]), (1, 2, 3), []],
    ids=["numbers", "texts", "array of texts", "series", "tuple", "nothing"],
)
def test_columns_that_every_batch_would_see_whole_are_refused(column):
    """A list was handed to the losses as it is: all labels had a part in every step, and no check can see that."""
    for dataset in ((torch.zeros(3, 2), column), {"x": torch.zeros(3, 2), "deep": {"y": column}}):
        with pytest.raises(InvalidParameter, match=r"dataset='.* beside tensors'.*torch.tensor"):
            reader(dataset)


def test_columns_may_be_nested_and_have_constants_beside_them():
    read = reader({"x": [torch.zeros(3, 2), np.ones(3)], "name": "a text", "factor": 2.0})
    assert read.rows == 3
    assert read([1])["name"] == "a text"
    assert read([1])["x"][1].shape == (1,)


def test_parts_of_a_data_set_cover_it_once():
    read = reader((X, Y))
    parts = [read.part(range(rank, 20, 3)) for rank in range(3)]
    seen = torch.cat([part(np.arange(part.rows))[1] for part in parts])
    assert sorted(seen.tolist()) == list(range(20))


def drawn(sampling, steps, dataset=(X, Y), **options):
    size = None if sampling == "full-batch" else 5
    neighbours = "replace-one" if sampling == "fixed-size" else "add-remove"
    plan = Recipe(records=20, batch_size=size, steps=steps, sampling=sampling).with_noise(
        2.0, 1e-3, neighbours
    )
    model = nn.Linear(2, 1)
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b[0])[:, 0])
    found = []
    for batch in run.batches(dataset, **options):
        examples = run._turns.drawn_for(batch, batch.step).batch
        found.append([] if examples is None else examples[1].tolist())
        if len(found) == steps:
            break
    return found


def test_poisson_batches_have_the_planned_rate():
    """400 steps of 20 records at rate 1/4: sizes have mean 5 and variance 3.75; 5 standard errors."""
    sizes = np.array([len(batch) for batch in drawn("poisson", 400)])
    assert abs(sizes.mean() - 5) < 5 * np.sqrt(3.75 / 400)
    assert abs(sizes.var() / 3.75 - 1) < 5 * np.sqrt(2 / 400)


def test_the_other_laws():
    assert [len(set(batch)) for batch in drawn("fixed-size", 8)] == [5] * 8
    assert drawn("full-batch", 2) == [list(range(20))] * 2
    epoch = drawn("random-allocation", 4)
    assert sorted(index for batch in epoch for index in batch) == list(range(20))


def test_workers_read_ahead():
    found = drawn("full-batch", 3, workers=1)
    assert found == [list(range(20))] * 3
    with pytest.raises(InvalidParameter, match="workers=-1"):
        drawn("poisson", 1, workers=-1)


class Drawing:
    """A data set whose rows are drawn anew each time, as augmented images are."""

    def __len__(self):
        return 4

    def __getitem__(self, place):
        return torch.rand(())


@pytest.mark.parametrize("draws", [unknown_draws, nullcontext])
def test_workers_draw_what_nobody_knows(draws):
    """The broken twin has its seeds from the generator of the process that reads."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(torch.cat([one.batch for one in reader(Drawing()).each([[0, 1], [2, 3]], 1, draws)]))
    assert torch.equal(*found) == (draws is nullcontext)
    assert len(set(found[0].tolist())) == 4


def test_a_loader_gives_its_data_set_collate_and_workers():
    def collate(examples):
        return default_collate(examples)

    examples = Examples()
    for loader in (DataLoader(examples), DataLoader(examples, batch_size=3, shuffle=True, drop_last=True)):
        assert unwrap_loader(loader, None, 0) == (examples, None, 0)
    assert unwrap_loader(DataLoader(examples, collate_fn=collate, num_workers=1), None, 0) == (
        examples,
        collate,
        1,
    )
    assert unwrap_loader(DataLoader(examples, collate_fn=collate, num_workers=1), tuple, 2) == (
        examples,
        tuple,
        2,
    )
    assert unwrap_loader((X, Y), None, 3) == ((X, Y), None, 3)


def test_a_run_reads_from_a_loader():
    loader = DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True)
    assert drawn("full-batch", 2, dataset=loader) == [list(range(20))] * 2
    sizes = [len(batch) for batch in drawn("poisson", 60, dataset=loader)]  # by the plan: 5 on average, not 2
    assert len(set(sizes)) > 3
    assert abs(np.mean(sizes) - 5) < 6 * np.sqrt(3.75 / 60)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Examples(), sampler=WeightedRandomSampler([1.0] * 20, 20)), "WeightedRandomSampler"),
        (DataLoader(Examples(), sampler=RandomSampler(range(20), replacement=True)), "RandomSampler"),
        (DataLoader(Examples(), sampler=RandomSampler(range(20), num_samples=5)), "RandomSampler"),
        (DataLoader(Examples(), sampler=range(7)), "range"),
        (DataLoader(Examples(), batch_sampler=[[1, 2]]), "list"),
        (DataLoader(Examples(), batch_size=None), "SequentialSampler"),
        (DataLoader(Examples(), worker_init_fn=print), "worker_init_fn"),
        (DataLoader(Stream()), r"is a stream.*list\(stream\)"),
    ],
)
def test_loaders_that_draw_in_a_way_of_their_own_are_refused(loader, message):
    with pytest.raises(InvalidParameter, match=message):
        unwrap_loader(loader, None, 0)


def test_streams_are_refused_with_the_remedy():
    with pytest.raises(InvalidParameter, match=r"dataset=.Stream.: is a stream.*without streaming"):
        reader(Stream())
    with pytest.raises(InvalidParameter, match=r"loader\.dataset"):
        reader(DataLoader(Examples()))
