"""Random small models that index, sort, mask, scatter and checkpoint, and batches that try to break them.

A model is a chain of steps from a grammar over ``h`` of shape (examples, TIME, WIDTH), each of which works on one
example at a time however it moves the rows about. Steps of :data:`MIXING` do not, and must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from discreet.core.clipping import Flat
from discreet.pytorch import check
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.per_example import select
from support.clip_judge import LIMIT, REFUSALS

TIME, WIDTH, CLASSES, KEYS, SHORT = 8, 4, 3, 9, 2

Step = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor, Tensor]  # numbers, a key or length from 1 to TIME, a class


class Chain(nn.Module):
    """Steps that own their parameters, then a head."""

    def __init__(self, kinds: list[str], head: str) -> None:
        super().__init__()
        self.kinds, self.head = kinds, head
        self.owned = nn.ModuleList()
        steps = STEPS | MIXING
        self.steps: list[Step] = [steps[kind](self) for kind in kinds]
        self.out = nn.Linear(WIDTH, CLASSES)

    def own(self, module: nn.Module) -> Any:
        self.owned.append(module)
        return module

    def weight(self, *shape: int) -> Any:
        """A module that has nothing but a ``weight``."""
        holder = nn.Module()
        holder.weight = nn.Parameter(torch.randn(shape) / 2)
        return self.own(holder)

    def forward(self, batch: Batch) -> Tensor:
        h, keys, _ = batch
        for step in self.steps:
            h = step(h, keys)
        return HEADS[self.head](self.out, h, batch)


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch)


def linear(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: torch.tanh(layer(h))


def folded(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: torch.tanh(layer(h.reshape(-1, WIDTH))).view(h.shape)


def time_first(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: (
        torch.tanh(layer(h.transpose(0, 1).reshape(-1, WIDTH))).view(TIME, len(h), WIDTH).transpose(0, 1)
    )


def by_length(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        order = keys.argsort(stable=True)
        return h + layer(h[order]).tanh()[order.argsort()]

    return step


def by_content(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        order = h.detach().nan_to_num().sum((1, 2)).argsort(stable=True)
        moved = layer(h.index_select(0, order)).tanh()
        return h + torch.zeros_like(h).index_copy(0, order, moved)

    return step


def masked(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        mask = torch.arange(TIME) < keys[:, None]
        return h + torch.zeros_like(h).masked_scatter(mask[..., None], layer(h[mask]).tanh())

    return step


def scattered(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        places = (torch.arange(TIME) < keys[:, None]).nonzero(as_tuple=True)
        return h.index_put(places, layer(h[places]).tanh(), accumulate=True)

    return step


def routed(chain: Chain) -> Step:
    one, other = chain.own(nn.Linear(WIDTH, WIDTH)), chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        low, high = (keys <= 2).nonzero()[:, 0], (keys > 2).nonzero()[:, 0]
        out = torch.zeros_like(h).index_add(0, low, one(h[low]).tanh())
        return out.index_add(0, high, other(h[high]).tanh())

    return step


def repeated(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        owner = torch.arange(len(h)).repeat_interleave(keys)
        rows = layer(h.mean(1)[owner]).tanh()
        return h + torch.zeros(len(h), WIDTH).index_add(0, owner, rows)[:, None]

    return step


def unique(chain: Chain) -> Step:
    table, layer = chain.own(nn.Embedding(KEYS, WIDTH)), chain.own(nn.Linear(WIDTH, WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        found, places = keys.unique(return_inverse=True)
        return h + layer(table(found)).tanh()[places][:, None]

    return step


def turned(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: (
        h + (layer(h.flip(0)).tanh().flip(0) if bool((h.detach() > 5).any()) else layer(h).tanh())
    )


def one_by_one(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: (
        h
        + torch.stack(
            [
                F.pad(layer(row[:key]).tanh(), (0, 0, 0, TIME - key))
                for row, key in zip(h, keys.tolist(), strict=True)
            ]
        )
    )


def looked_up(chain: Chain) -> Step:
    table = chain.own(nn.Embedding(KEYS, WIDTH))
    return lambda h, keys: h + table(keys)[:, None]


def gathered(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: layer(
        h.gather(1, ((torch.arange(TIME) + keys[:, None]) % TIME)[..., None].expand_as(h))
    ).tanh()


def checkpointed(chain: Chain) -> Step:
    block = chain.own(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    return lambda h, keys: h + checkpoint(block, h, use_reentrant=False).tanh()


def checkpointed_mask(chain: Chain) -> Step:
    inner = masked(chain)
    return lambda h, keys: checkpoint(inner, h, keys, use_reentrant=False)


def one_number(chain: Chain) -> Step:
    scale, shift = chain.weight(), chain.weight()
    return lambda h, keys: h * scale.weight.exp() + shift.weight


def of_weight(function: Callable[[Tensor], Tensor]) -> Callable[[Chain], Step]:
    def make(chain: Chain) -> Step:
        holder = chain.weight(WIDTH, WIDTH)
        return lambda h, keys: F.linear(h, function(holder.weight))

    return make


def mixed_layers(chain: Chain) -> Step:
    mix = chain.weight(3)
    return lambda h, keys: (torch.stack([h.roll(k, 2) for k in range(3)], 3) * mix.weight.softmax(0)).sum(3)


def twice(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: torch.tanh(layer(h)) - torch.tanh(layer(h.flip(1)))


def tied(chain: Chain) -> Step:
    table = chain.own(nn.Embedding(KEYS, WIDTH))
    return lambda h, keys: h + (h @ table.weight.T).softmax(2) @ table.weight


def convolved(chain: Chain) -> Step:
    layer = chain.own(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
    return lambda h, keys: layer(h.mT).tanh().mT


def normed(chain: Chain) -> Step:
    layer = chain.own(nn.LayerNorm(WIDTH))
    return lambda h, keys: layer(h)


def running(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, WIDTH))
    return lambda h, keys: layer(h.cumsum(1)).tanh()


def attended(chain: Chain) -> Step:
    layer = chain.own(nn.Linear(WIDTH, 3 * WIDTH))

    def step(h: Tensor, keys: Tensor) -> Tensor:
        q, k, v = layer(h).chunk(3, 2)
        mask = (torch.arange(TIME) < keys[:, None])[:, None]
        return h + ((q @ k.mT).masked_fill(~mask, -1e4).softmax(2) @ v).tanh()

    return step


def summed(chain: Chain) -> Step:
    holder = chain.weight(WIDTH, WIDTH)
    return lambda h, keys: torch.einsum("bti,ij->btj", h, holder.weight).tanh()


STEPS: dict[str, Callable[[Chain], Step]] = {
    step.__name__: step
    for step in (
        linear,
        folded,
        time_first,
        by_length,
        by_content,
        masked,
        scattered,
        routed,
        repeated,
        unique,
        turned,
        one_by_one,
        looked_up,
        gathered,
        checkpointed,
        checkpointed_mask,
        one_number,
        mixed_layers,
        twice,
        tied,
        convolved,
        normed,
        running,
        attended,
        summed,
    )
} | {
    "softmax of a weight": of_weight(lambda w: w.softmax(1)),
    "normalised weight": of_weight(lambda w: F.normalize(w, dim=1)),
    "centred weight": of_weight(lambda w: w - w.mean(1, keepdim=True)),
    "standardised weight": of_weight(
        lambda w: (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
    ),
    "weight over its norm": of_weight(lambda w: w / w.norm()),
    "masked weight": of_weight(lambda w: w * torch.ones(WIDTH, WIDTH).tril()),
}

MIXING: dict[str, Callable[[Chain], Step]] = {
    "running over examples": lambda chain: lambda h, keys: h.cumsum(0),
    "centred over examples": lambda chain: lambda h, keys: h - h.mean(0),
    "softmax over examples": lambda chain: lambda h, keys: h * h.softmax(0),
    "rolled examples": lambda chain: lambda h, keys: h + h.roll(1, 0),
    "sorted and left so": lambda chain: lambda h, keys: h + h.sort(0).values,
    "divided by the examples": lambda chain: lambda h, keys: h / len(h),
    "divided by all keys": lambda chain: lambda h, keys: h / keys.sum(),
}


def of_mean(out: nn.Module, h: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(out(h.mean(1)), batch[2], reduction="none")


def of_counted(out: nn.Module, h: Tensor, batch: Batch) -> Tensor:
    mask = (torch.arange(TIME) < batch[1][:, None])[..., None]
    return F.cross_entropy(out((h * mask).sum(1) / batch[1][:, None]), batch[2], reduction="none")


def of_last(out: nn.Module, h: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(out(h[torch.arange(len(h)), batch[1] - 1]), batch[2], reduction="none")


def of_tokens(out: nn.Module, h: Tensor, batch: Batch) -> Tensor:
    mask = torch.arange(TIME) < batch[1][:, None]
    owner = mask.nonzero()[:, 0]
    values = F.cross_entropy(out(h[mask]), batch[2][owner], reduction="none")
    return torch.zeros(len(h)).index_add(0, owner, values)


HEADS = {"mean": of_mean, "counted": of_counted, "last": of_last, "tokens": of_tokens}


def random_model(seed: int, mixing: bool = False) -> Chain:
    """The model of a seed; with ``mixing`` one of its steps lets examples see each other."""
    chance = random.Random(seed)
    kinds = [chance.choice(list(STEPS)) for _ in range(chance.randint(1, 4))]
    if mixing:
        kinds.insert(chance.randrange(len(kinds) + 1), chance.choice(list(MIXING)))
    torch.manual_seed(seed)
    return Chain(kinds, chance.choice(list(HEADS)))


RECORDS: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda x: x,
    "huge": lambda x: x * 1e3,
    "enormous": lambda x: x * 1e7,
    "beyond squares": lambda x: x * 1e25,
    "constant": lambda x: torch.full_like(x, 1e3),
    "constant and enormous": lambda x: torch.full_like(x, 1e7),
    "alternating": lambda x: torch.full_like(x, 1e6) * (1 - 2 * (torch.arange(WIDTH) % 2)),
    "nothing": torch.zeros_like,
    "tiny": lambda x: x * 1e-30,
    "NaN": lambda x: x * torch.nan,
    "infinite": lambda x: torch.full_like(x, torch.inf),
    "one NaN": lambda x: torch.where(torch.arange(WIDTH) == 0, torch.nan, x),
}
LENGTHS = ("all short", "all long", "ragged", "rising", "falling", "one long", "one short")


def ordinary(count: int, chance: random.Random) -> Batch:
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    x = torch.randn(count, TIME, WIDTH, generator=generator)
    keys = torch.randint(1, TIME + 1, (count,), generator=generator)
    return x, keys, torch.randint(CLASSES, (count,), generator=generator)


def regular(count: int, chance: random.Random) -> Batch:
    """Everybody alike and in order already: from such a batch an engine might conclude too much."""
    x, keys, y = ordinary(count, chance)
    return x[x.sum((1, 2)).argsort()], torch.full_like(keys, SHORT), y


def adversarial(chance: random.Random) -> tuple[Batch, int, str]:
    """A batch, the place of the record that it is about, and what it is called."""
    count = chance.choice((2, 3, 4, 5, 6, 8, 9, 12))
    x, keys, y = ordinary(count, chance)
    place, kind, lengths = chance.randrange(count), chance.choice(list(RECORDS)), chance.choice(LENGTHS)
    keys = {
        "all short": torch.full_like(keys, SHORT),
        "all long": torch.full_like(keys, TIME),
        "ragged": keys,
        "rising": keys.sort().values,
        "falling": keys.sort(descending=True).values,
        "one long": torch.full_like(keys, SHORT),
        "one short": torch.full_like(keys, TIME),
    }[lengths]
    if lengths == "one long":  # by so much that all rows together look like those of longer examples
        keys[place] += count if SHORT + count <= TIME else TIME - SHORT
    if lengths == "one short":
        keys[place] -= count if count < TIME else TIME - 1
    x[place] = RECORDS[kind](x[place])
    return (x, keys, y), place, f"{kind}, {lengths}, {count} examples, record {place}"


Engine = Callable[[Any], Any]


def contribution(engine: Engine, batch: Any, place: int, clip_norm: float) -> float:
    """How far the record moves the sum of an engine, in clip norms."""
    count = len(batch[0])
    others = torch.arange(count) != place
    moved = _flat(engine(batch)) - _flat(engine(select(batch, others)))
    value = float(moved.norm()) / clip_norm
    return value if value == value else float("inf")


def _flat(sums: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.double().flatten() for value in sums.values()])


@dataclass
class Tally:
    """What came of many models: how many batches, the worst contribution, and what went wrong."""

    models: int = 0
    batches: int = 0
    refused: int = 0
    worst: float = 0.0
    where: str = ""
    problems: list[str] = field(default_factory=list)


CLIP_NORMS = (0.01, 1.0, 30.0)


def tried(
    seeds: Iterator[int] | range,
    batches: int,
    *,
    mixing: bool = False,
    engine: Callable[..., Engine] = ClippedSum,
    checked: bool = True,
) -> Tally:
    """Every model of ``seeds`` that is accepted, with so many adversarial batches each."""
    tally = Tally()
    for seed in seeds:
        model, chance = random_model(seed, mixing), random.Random(1000 + seed)
        title = f"seed {seed}: {' > '.join(model.kinds)} > {model.head}"
        tally.models += 1
        try:
            if checked:
                check(model, losses, regular(8, chance))
        except REFUSALS as refusal:
            tally.refused += 1
            if not mixing:
                tally.problems.append(f"{title}: refused: {refusal}")
            continue
        except Exception as error:
            tally.problems.append(f"{title}: {type(error).__name__}: {error}")
            continue
        clip_norm = chance.choice(CLIP_NORMS)
        made = engine(model, losses, Flat(clip_norm))
        made(regular(8, chance))
        for _ in range(batches):
            batch, place, name = adversarial(chance)
            try:
                value = contribution(made, batch, place, clip_norm)
            except REFUSALS:
                tally.refused += 1
                break
            except Exception as error:
                tally.problems.append(f"{title}; {name}: {type(error).__name__}: {error}")
                break
            tally.batches += 1
            if value > tally.worst:
                tally.worst, tally.where = value, f"{title}; clip {clip_norm}; {name}"
            if value > LIMIT:
                tally.problems.append(f"{title}; clip {clip_norm}; {name}: moves the sum by {value:.5g} C")
    return tally
