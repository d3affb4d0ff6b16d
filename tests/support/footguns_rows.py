"""Foot-guns inside models: rows that move with the data, checkpoints, late weights, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from support.clip_judge import Footgun, Setup, Verdict, judged

WIDTH, CLASSES, WORDS, TIME, ROWS = 6, 3, 12, 24, 15

FOOTGUNS: dict[str, Footgun] = {}


def footgun(
    name: str, hole: int = 0, named: str = ""
) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    """Register a setup under a name."""

    def register(build: Callable[[], Setup]) -> Callable[[], Setup]:
        def attempt() -> Verdict:
            return judged(build, named)

        assert name not in FOOTGUNS
        FOOTGUNS[name] = Footgun(name, hole, attempt)
        return build

    return register


class Forward(nn.Module):
    """A module from parts and a function."""

    def __init__(self, function: Callable[[Any, Any], Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x: Any) -> Tensor:
        return self.function(self, x)


def vectors(rows: int = ROWS, width: int = WIDTH) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, width, generator=generator)
    y = torch.randint(CLASSES, (rows,), generator=generator)
    return list(zip(x, y, strict=True))


def texts(rows: int = ROWS, length: int | None = None) -> list[Any]:
    """Words, how many of them count, and a class; all of one length, or ragged."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, WORDS, (rows, TIME), generator=generator)
    lengths = (
        torch.randint(2, 9, (rows,), generator=generator) if length is None else torch.full((rows,), length)
    )
    return list(zip(words, lengths, torch.randint(CLASSES, (rows,), generator=generator), strict=True))


def text(length: int, word: int = 1) -> Any:
    return torch.full((TIME,), word), torch.tensor(length), torch.tensor(0)


def vector(value: float, y: int = 0, width: int = WIDTH) -> Any:
    return torch.full((width,), value), torch.tensor(y)


def losses(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[-1], reduction="none")


def of_texts(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[:2]), batch[-1], reduction="none")


def mask_of(words: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(words.shape[1]) < lengths[:, None]


def token_losses(select: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """A head on some of the tokens; each example gets the sum of its own."""

    def of(model: Any, batch: Any) -> Tensor:
        words, lengths, _ = batch
        mask = mask_of(words, lengths)
        hidden, owner = select(model.look_up(words), mask)
        values = F.cross_entropy(model.head(hidden), words[mask], reduction="none")
        return torch.zeros(len(words)).index_add(0, owner, values)

    return of


def tokens_model() -> nn.Module:
    return Forward(lambda s, x: x, look_up=nn.Embedding(WORDS, WIDTH), head=nn.Linear(WIDTH, WORDS))


SELECTIONS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "hidden[mask]": lambda h, m: (h[m], m.nonzero()[:, 0]),
    "masked_select": lambda h, m: (
        h.masked_select(m[..., None]).view(-1, h.shape[-1]),
        m.nonzero()[:, 0],
    ),
    "index_select of nonzero": lambda h, m: (
        h.flatten(0, 1).index_select(0, m.flatten().nonzero()[:, 0]),
        m.nonzero()[:, 0],
    ),
    "take_along_dim": lambda h, m: (
        torch.take_along_dim(h.flatten(0, 1), m.flatten().nonzero(), 0),
        m.nonzero()[:, 0],
    ),
    "gather of rows": lambda h, m: (
        h.flatten(0, 1).gather(0, m.flatten().nonzero().expand(-1, h.shape[-1])),
        m.nonzero()[:, 0],
    ),
    "split and cat": lambda h, m: (
        torch.cat([row[: int(k)] for row, k in zip(h, m.sum(1), strict=True)]),
        m.nonzero()[:, 0],
    ),
    "unbind and stack": lambda h, m: (
        torch.stack([t for row, k in zip(h, m.sum(1), strict=True) for t in row[: int(k)].unbind(0)]),
        m.nonzero()[:, 0],
    ),
    "repeat_interleave": lambda h, m: (
        h.mean(1).repeat_interleave(m.sum(1), 0),
        m.nonzero()[:, 0],
    ),
    "tolist index": lambda h, m: (h.flatten(0, 1)[m.flatten().nonzero()[:, 0].tolist()], m.nonzero()[:, 0]),
}

for label, selection in SELECTIONS.items():

    def masked(selection: Any = selection) -> Setup:
        return Setup(tokens_model(), token_losses(selection), texts(length=2), text(2 + 2 * 8, 3))

    footgun(f"masked-token head by {label}", hole=1)(masked)


def restored(order: Tensor) -> Tensor:
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return back


def sorted_forward(undo: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        order = lengths.argsort(descending=True, stable=True)
        hidden = self.body(self.look_up(words[order]).mean(1)).tanh()
        return self.head(undo(hidden, order))

    return forward


UNDOING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda h, order: h[order.argsort()],
    "index_select": lambda h, order: h.index_select(0, order.argsort()),
    "scatter": lambda h, order: torch.zeros_like(h).scatter(0, order[:, None].expand_as(h), h),
    "index_copy": lambda h, order: torch.zeros_like(h).index_copy(0, order, h),
    "index_put": lambda h, order: torch.zeros_like(h).index_put((order,), h),
    "gather": lambda h, order: h.gather(0, restored(order)[:, None].expand_as(h)),
    "matrix": lambda h, order: torch.eye(len(h))[restored(order)] @ h,
}

for label, undoing in UNDOING.items():

    def sorting(undoing: Any = undoing) -> Setup:
        model = Forward(
            sorted_forward(undoing),
            look_up=nn.Embedding(WORDS, WIDTH),
            body=nn.Linear(WIDTH, WIDTH),
            head=nn.Linear(WIDTH, CLASSES),
        )
        falling = sorted(texts(), key=lambda row: -int(row[1]))
        return Setup(model, of_texts, falling, text(20))

    footgun(f"sort by length, un-sort by {label}", hole=1)(sorting)


@footgun("packed sequences", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        packed = nn.utils.rnn.pack_padded_sequence(
            self.look_up(words), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.rnn(packed)[1][0])

    parts = {"look_up": nn.Embedding(WORDS, WIDTH), "rnn": nn.GRU(WIDTH, WIDTH, batch_first=True)}
    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES), **parts)
    return Setup(model, of_texts, texts(length=3), text(19))


@footgun("experts chosen by content", 1)
def _() -> Setup:
    def forward(self: Any, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), CLASSES)
        for place, expert in enumerate((self.a, self.b)):
            chosen = ((x[:, 0] > 2).long() == place).nonzero()[:, 0]
            out = out.index_add(0, chosen, expert(x[chosen]))
        return out

    model = Forward(forward, a=nn.Linear(WIDTH, CLASSES), b=nn.Linear(WIDTH, CLASSES))
    return Setup(model, losses, vectors(), vector(9.0))


@footgun("unique words are embedded once", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        found, places = batch[0].unique(return_inverse=True)
        return self.head(self.body(self.look_up(found))[places].mean(1))

    parts = {"look_up": nn.Embedding(WORDS, WIDTH), "body": nn.Linear(WIDTH, WIDTH)}
    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES), **parts)
    return Setup(model, of_texts, [(w % 8 + 1, n, y) for w, n, y in texts()], text(9, 11))


@footgun("flip where the first is large", 1)
def _() -> Setup:
    def forward(self: Any, x: Tensor) -> Tensor:
        if not bool((x > 5).any()):
            return self.head(self.body(x).tanh())
        return self.head(self.body(x.flip(0)).tanh().flip(0))

    model = Forward(forward, body=nn.Linear(WIDTH, WIDTH), head=nn.Linear(WIDTH, CLASSES))
    return Setup(model, losses, vectors(), vector(9.0))


@footgun("rows shuffled at random and put back", 1)
def _() -> Setup:
    def forward(self: Any, x: Tensor) -> Tensor:
        order = torch.randperm(len(x))
        return self.head(self.body(x[order]).tanh()[order.argsort()])

    model = Forward(forward, body=nn.Linear(WIDTH, WIDTH), head=nn.Linear(WIDTH, CLASSES))
    return Setup(model, losses, vectors(), vector(9.0))


@footgun("embedding bag with offsets", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        offsets = lengths.cumsum(0) - lengths
        return self.head(self.bag(words[mask_of(words, lengths)], offsets))

    model = Forward(forward, bag=nn.EmbeddingBag(WORDS, WIDTH), head=nn.Linear(WIDTH, CLASSES))
    return Setup(model, of_texts, texts(length=2), text(18))


@footgun("buckets of equal length", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        out = torch.zeros(len(words), CLASSES)
        for length in lengths.unique().tolist():
            chosen = lengths == length
            hidden = self.body(self.look_up(words[chosen, :length]).flatten(0, 1)).tanh()
            out[chosen] = self.head(hidden.view(int(chosen.sum()), length, -1).mean(1))
        return out

    parts = {"look_up": nn.Embedding(WORDS, WIDTH), "body": nn.Linear(WIDTH, WIDTH)}
    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES), **parts)
    return Setup(model, of_texts, texts(length=2), text(18))


@footgun("nested tensors", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        rows = [self.look_up(row[: int(k)]) for row, k in zip(words, lengths, strict=True)]
        out = self.body(torch.nested.as_nested_tensor(rows))
        return self.head(torch.stack([row.mean(0) for row in out.unbind()]))

    parts = {"look_up": nn.Embedding(WORDS, WIDTH), "body": nn.Linear(WIDTH, WIDTH)}
    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES), **parts)
    return Setup(model, of_texts, texts(), text(20))


@footgun("the last word of each text", 1)
def _() -> Setup:
    def forward(self: Any, batch: Any) -> Tensor:
        words, lengths = batch
        hidden = self.body(self.look_up(words))
        return self.head(hidden[torch.arange(len(words)), lengths - 1])

    parts = {"look_up": nn.Embedding(WORDS, WIDTH), "body": nn.Linear(WIDTH, WIDTH)}
    model = Forward(forward, head=nn.Linear(WIDTH, CLASSES), **parts)
    return Setup(model, of_texts, texts(), text(20))


def checkpointed(wide: int, reentrant: bool) -> Setup:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.start(x)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
        return self.head(hidden)

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(wide, wide), nn.Tanh()) for _ in range(2))
    model = Forward(forward, start=nn.Linear(WIDTH, wide), blocks=blocks, head=nn.Linear(wide, CLASSES))
    return Setup(model, losses, vectors(2 * wide - 1), vector(50.0))


for wide in (8, 64):
    for reentrant in (False, True):
        kind = "reentrant" if reentrant else "not reentrant"

        def checkpoints(wide: int = wide, reentrant: bool = reentrant) -> Setup:
            return checkpointed(wide, reentrant)

        footgun(f"checkpoints of width {wide}, {kind}", hole=2)(checkpoints)


@footgun("checkpoint_sequential", 2)
def _() -> Setup:
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
    model = Forward(
        lambda s, x: s.head(checkpoint_sequential(s.blocks, 2, s.start(x), use_reentrant=False)),
        start=nn.Linear(WIDTH, 16),
        blocks=blocks,
        head=nn.Linear(16, CLASSES),
    )
    return Setup(model, losses, vectors(31), vector(50.0))


@footgun("LoRA under checkpoints", 2)
def _() -> Setup:
    base = nn.Linear(16, 16).requires_grad_(False)
    a, b = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    model = Forward(
        lambda s, x: s.head(
            checkpoint(lambda h: (s.base(h) + s.b(s.a(h))).tanh(), s.start(x), use_reentrant=False)
        ),
        start=nn.Linear(WIDTH, 16).requires_grad_(False),
        base=base,
        a=a,
        b=b,
        head=nn.Linear(16, CLASSES),
    )
    return Setup(model, losses, vectors(31), vector(50.0))


@footgun("a masked head under a checkpoint", 2)
def _() -> Setup:
    def of(model: Any, batch: Any) -> Tensor:
        words, lengths, _ = batch
        mask = mask_of(words, lengths)
        scores = checkpoint(lambda h: model.head(h[mask]), model.look_up(words), use_reentrant=False)
        values = F.cross_entropy(scores, words[mask], reduction="none")
        return torch.zeros(len(words)).index_add(0, mask.nonzero()[:, 0], values)

    return Setup(tokens_model(), of, texts(length=2), text(18, 3))
