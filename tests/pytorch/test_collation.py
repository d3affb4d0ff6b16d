"""``collate`` as part of the check: a record's loss must not depend on the records that it meets in a batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from discreet import Recipe
from discreet.pytorch import CheckFailed, PrivateRun, check
from discreet.pytorch.batches import reader
from discreet.pytorch.torch_holder import TorchHolder

TEXTS = [(torch.arange(1, 4 + length) % 7 + 1, length % 3) for length in (1, 2, 3, 4, 1, 2, 3, 40)]


class Words(nn.Module):
    """The mean over all positions, or over those that hold a word."""

    def __init__(self, masked):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head, self.masked = nn.Embedding(9, 4), nn.Linear(4, 3), masked

    def forward(self, words):
        found = self.head(self.embedding(words))
        mask = (words != 0).float()[..., None] if self.masked else torch.ones(*words.shape, 1)
        return (found * mask).sum(1) / mask.sum(1)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def padded(rows):
    return pad_sequence([words for words, _ in rows], batch_first=True), torch.tensor([y for _, y in rows])


def sorted_by_length(rows):
    return padded(sorted(rows, key=lambda row: -len(row[0])))


def twice(rows):
    return padded([*rows, *rows])


def shortened(rows):
    """Those that are too long give way to the last one that is not."""
    kept = [row for row in rows if len(row[0]) < 20] or rows
    return padded(kept + [kept[-1]] * (len(rows) - len(kept)))


def run(model, collate):
    plan = Recipe(records=len(TEXTS), steps=2, sampling="full-batch").with_noise(2.0, delta=1e-3)
    made = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), losses)
    for batch in made.batches(TEXTS, collate=collate):
        made.step(batch)
    return made


@pytest.mark.parametrize("collate", [padded, sorted_by_length], ids=["padded", "sorted"])
def test_padding_that_is_masked_passes(collate):
    assert run(Words(masked=True), collate).steps_taken == 2
    check(Words(masked=True), losses, dataset=TEXTS, collate=collate)
    TorchHolder(Words(masked=True), TEXTS, losses, 1.0, collate=collate)


@pytest.mark.parametrize(
    ("masked", "collate", "message"),
    [
        (False, padded, "depends on the records with which collate"),
        (True, shortened, "depends on the records with which collate"),
        (True, twice, "more or fewer examples than there are records"),
    ],
    ids=["not masked", "shortened", "twice"],
)
def test_collate_that_mixes_is_refused_before_anything_is_paid(masked, collate, message):
    with pytest.raises(CheckFailed, match=message):
        run(Words(masked), collate)
    with pytest.raises(CheckFailed, match=message):
        check(Words(masked), losses, dataset=TEXTS, collate=collate)
    with pytest.raises(CheckFailed, match=message):
        TorchHolder(Words(masked), TEXTS, losses, 1.0, collate=collate)


def test_a_batch_alone_cannot_show_it():
    """The broken twin: without the data set nothing is seen."""
    check(Words(masked=False), losses, padded(TEXTS))


def test_a_head_of_zeros_does_not_hide_it():
    model = Words(masked=False)
    nn.init.zeros_(model.head.weight)
    with pytest.raises(CheckFailed, match="collate"):
        check(model, losses, dataset=TEXTS, collate=padded)


def test_collate_that_fails_for_one_record_is_refused():
    def pairs(rows):
        assert len(rows) > 1
        return padded(rows)

    with pytest.raises(CheckFailed, match="any number of records"):
        check(Words(masked=True), losses, dataset=TEXTS, collate=pairs)


def test_every_batch_has_as_many_examples_as_records():
    read = reader(TEXTS, lambda rows: padded(rows if len(rows) < 8 else [*rows, rows[0]]))
    assert len(read([0, 1])[0]) == 2
    with pytest.raises(CheckFailed, match="more or fewer"):
        read(range(8))
