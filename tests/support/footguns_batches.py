"""Foot-guns of collates and data sets, and of weights that are not yet what they will be."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.clip_judge import Setup
from support.footguns_rows import (
    CLASSES,
    FOOTGUNS,
    ROWS,
    TIME,
    WIDTH,
    WORDS,
    Forward,
    footgun,
    losses,
    vector,
    vectors,
)

__all__ = ["FOOTGUNS"]


def mlp(middle: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), middle or nn.Identity(), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
    )


def of_losses(loss: Any, record: Any = None, model: nn.Module | None = None, **options: Any) -> Setup:
    return Setup(model or mlp(), loss, vectors(), record or vector(30.0, 1), **options)


def ragged(rows: int = ROWS, long: int = 60) -> tuple[list[Any], Any]:
    generator = torch.Generator().manual_seed(1)
    made = [
        (torch.randint(1, WORDS, (4,), generator=generator), torch.randint(CLASSES, (), generator=generator))
        for _ in range(rows)
    ]
    return made, (torch.ones(long, dtype=torch.long), torch.tensor(0))


def padded(rows: list[Any], left: bool = False) -> tuple[Tensor, Tensor]:
    longest = max(len(words) for words, _ in rows)
    filled = [F.pad(w, (longest - len(w), 0) if left else (0, longest - len(w))) for w, _ in rows]
    return torch.stack(filled), torch.stack([y for _, y in rows])


def words_model(pool: Any) -> nn.Module:
    parts = {"look_up": nn.Embedding(WORDS, WIDTH, padding_idx=0), "head": nn.Linear(WIDTH, CLASSES)}
    return Forward(lambda s, x: s.head(pool(s, x)), places=nn.Embedding(TIME * 4, WIDTH), **parts)


POOLS: dict[str, Any] = {
    "mean over the padded length": lambda s, x: s.look_up(x).mean(1),
    "max over padding that is not zero": lambda s, x: (s.look_up(x) + s.places.weight[0]).amax(1),
    "places counted from the right": lambda s, x: (
        (s.look_up(x) + s.places(torch.arange(x.shape[1]).flip(0))) * (x > 0)[..., None]
    ).sum(1),
    "softmax over padding": lambda s, x: (s.look_up(x) * s.look_up(x).sum(2).softmax(1)[..., None]).sum(1),
    "divided by the longest": lambda s, x: s.look_up(x).sum(1) / x.shape[1],
}

for label, pool in POOLS.items():

    def padding(pool: Any = pool) -> Setup:
        rows, record = ragged()
        return Setup(words_model(pool), losses, rows, record, collate=padded)

    footgun(f"padding to the longest, {label}", hole=3)(padding)


@footgun("padding on the left, places from the left", 3)
def _() -> Setup:
    rows, record = ragged()
    model = words_model(
        lambda s, x: ((s.look_up(x) + s.places(torch.arange(x.shape[1]))) * (x > 0)[..., None]).sum(1)
    )
    return Setup(model, losses, rows, record, collate=lambda rows: padded(rows, left=True))


def stacked(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def collating(change: Any, record: Any = None, loss: Any = losses, **options: Any) -> Setup:
    return of_losses(loss, record, collate=lambda rows: change(*stacked(rows)), **options)


@footgun("collate divides by the largest of the batch", 3)
def _() -> Setup:
    return collating(lambda x, y: (x / x.abs().max(), y))


@footgun("collate subtracts the mean of the batch", 3)
def _() -> Setup:
    return collating(lambda x, y: (x - x.mean(0), y))


@footgun("collate mixes pairs", 3)
def _() -> Setup:
    return collating(lambda x, y: (0.7 * x + 0.3 * x.roll(1, 0), y))


@footgun("collate weighs by the classes of the batch", 3)
def _() -> Setup:
    def losses_of(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") * batch[2]

    def change(x: Tensor, y: Tensor) -> Any:
        return x, y, len(y) / y.bincount(minlength=CLASSES)[y].float()

    return collating(change, loss=losses_of, clip_norms=(1.0, 100.0))


@footgun("collate adds what the others are like", 3)
def _() -> Setup:
    return collating(lambda x, y: (x + x.sum(0) - x, y))


@footgun("collate gives every record twice", 3)
def _() -> Setup:
    return collating(lambda x, y: (torch.cat([x, x.flip(1)]), torch.cat([y, y])))


@footgun("collate cuts long texts into windows", 3)
def _() -> Setup:
    def windows(rows: list[Any]) -> tuple[Tensor, Tensor]:
        parts = [(part, y) for words, y in rows for part in words.split(4)]
        return torch.stack([part for part, _ in parts]), torch.stack([y for _, y in parts])

    rows, record = ragged()
    return Setup(words_model(POOLS["mean over the padded length"]), losses, rows, record, collate=windows)


@footgun("collate packs texts into blocks", 3)
def _() -> Setup:
    def blocks(rows: list[Any]) -> tuple[Tensor, Tensor]:
        words = torch.cat([torch.cat([words, y[None]]) for words, y in rows])
        words = F.pad(words, (0, -len(words) % len(rows)))
        return words.view(len(rows), -1), torch.stack([y for _, y in rows])

    rows, record = ragged()
    return Setup(words_model(POOLS["mean over the padded length"]), losses, rows, record, collate=blocks)


@footgun("collate leaves out who is too long, and fills up with the last", 3)
def _() -> Setup:
    def kept(rows: list[Any]) -> tuple[Tensor, Tensor]:
        fitting = [row for row in rows if len(row[0]) <= 8]
        return padded(fitting + fitting[-1:] * (len(rows) - len(fitting)))

    rows, long = ragged()
    model = words_model(POOLS["mean over the padded length"])
    return Setup(model, losses, [*rows[1:], long], rows[0], collate=kept)


@footgun("a data set that scales by all its rows", 3, named=r"rows? .*depend|data ?set|looks at the data")
def _() -> Setup:
    def scaled(rows: list[Any]) -> Any:
        x, y = stacked(rows)
        return (x - x.mean(0)) / x.std(0), y

    return of_losses(losses, dataset=scaled)


@footgun("a data set whose rows hold their neighbours", 3, named=r"rows? .*depend|data ?set")
def _() -> Setup:
    def linked(rows: list[Any]) -> Any:
        x, y = stacked(rows)
        return x + x.roll(1, 0) + x.roll(-1, 0), y

    return of_losses(losses, dataset=linked)


class HandWritten(nn.Module):
    """Batch normalisation by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


def zeroed(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


for label, middle in (("", nn.Identity), (" and dropout", lambda: nn.Dropout(1e-6))):

    def zero_head(middle: Any = middle) -> Setup:
        head = zeroed(nn.Linear(WIDTH, CLASSES))
        return of_losses(losses, model=nn.Sequential(nn.Linear(WIDTH, WIDTH), HandWritten(), middle(), head))

    def zero_heads(middle: Any = middle) -> Setup:
        heads = zeroed(nn.Linear(WIDTH, WIDTH)), zeroed(nn.Linear(WIDTH, CLASSES))
        return of_losses(
            losses, model=nn.Sequential(nn.Linear(WIDTH, WIDTH), HandWritten(), middle(), *heads)
        )

    footgun(f"a head of zeros behind batch normalisation by hand{label}", hole=4)(zero_head)
    footgun(f"two layers of zeros behind batch normalisation by hand{label}", hole=4)(zero_heads)


@footgun("LayerScale of zeros before a branch that mixes", 4)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.head(x + s.scale * HandWritten()(s.body(x))),
        scale=nn.Parameter(torch.zeros(WIDTH)),
        body=nn.Linear(WIDTH, WIDTH),
        head=nn.Linear(WIDTH, CLASSES),
    )
    return of_losses(losses, model=model)


@footgun("ReZero: one number of zero before a branch that mixes", 4)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.head(x + s.gate * (s.body(x) - s.body(x).mean(0))),
        gate=nn.Parameter(torch.zeros(())),
        body=nn.Linear(WIDTH, WIDTH),
        head=nn.Linear(WIDTH, CLASSES),
    )
    return of_losses(losses, model=model)


@footgun("LoRA that begins at zero and mixes", 4)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.base(x) + s.up(s.down(x) - s.down(x).mean(0)),
        base=nn.Linear(WIDTH, CLASSES).requires_grad_(False),
        down=nn.Linear(WIDTH, 2),
        up=zeroed(nn.Linear(2, CLASSES)),
    )
    return of_losses(losses, model=model)


@footgun("attention over the batch with an output of zeros", 4)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.head(x + s.out(torch.softmax(s.q(x) @ s.q(x).T, 1) @ x)),
        q=nn.Linear(WIDTH, WIDTH),
        out=zeroed(nn.Linear(WIDTH, WIDTH)),
        head=nn.Linear(WIDTH, CLASSES),
    )
    return of_losses(losses, model=model)


@footgun("a closed ReLU before a layer that mixes", 4)
def _() -> Setup:
    first = nn.Linear(WIDTH, WIDTH)
    nn.init.constant_(first.bias, -2.0)
    model = nn.Sequential(first, nn.ReLU(), HandWritten(), nn.Linear(WIDTH, CLASSES))
    return of_losses(losses, vector(9.0), model=model, stride=1.0, clip_norms=(0.02, 1.0, 50.0), steps=4)


@footgun("a loss that mixes from the second step on", 4)
def _() -> Setup:
    model = mlp()
    start = model[0].weight.detach().clone()

    def late(model: Any, batch: Any) -> Tensor:
        moved = not torch.equal(model[0].weight, start)
        return losses(model, batch) * (batch[0].abs().sum() if moved else 1.0)

    return of_losses(late, model=model, steps=3, clip_norms=(1.0, 100.0))


@footgun("a loss that mixes from its 500th call on", 4)
def _() -> Setup:
    calls = []

    def late(model: Any, batch: Any) -> Tensor:
        calls.append(0)
        return losses(model, batch) * (batch[0].abs().sum() if len(calls) > 500 else 1.0)

    return of_losses(late, steps=300, clip_norms=(100.0,), stride=0.0)
