"""Foot-guns of losses: cancellation behind functions of parameters, chance, and losses of every day."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from support.clip_judge import Setup
from support.footguns_batches import mlp, of_losses
from support.footguns_rows import (
    CLASSES,
    FOOTGUNS,
    TIME,
    WIDTH,
    WORDS,
    Forward,
    footgun,
    losses,
    text,
    texts,
    vector,
    vectors,
)

__all__ = ["FOOTGUNS"]


def behind(function: Any, record: Any, shape: tuple[int, ...] = (WIDTH, WIDTH), **options: Any) -> Setup:
    """A weight that is a function of a parameter, before a head that is not trained."""
    model = Forward(
        lambda s, x: s.head(F.linear(x, function(s.weight))),
        weight=nn.Parameter(torch.randn(shape)),
        head=nn.Linear(shape[0], CLASSES).requires_grad_(False),
    )
    return of_losses(losses, record, model=model, **options)


FUNCTIONS: dict[str, Any] = {
    "softmax": lambda w: w.softmax(1),
    "softmax over rows": lambda w: w.softmax(0),
    "centred": lambda w: w - w.mean(1, keepdim=True),
    "standardised": lambda w: (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5),
    "normalised": lambda w: F.normalize(w, dim=1),
    "log-softmax": lambda w: w.log_softmax(1),
    "layer-normed": lambda w: F.layer_norm(w, w.shape[1:]),
    "differences": lambda w: w - w.roll(1, 1),
    "antisymmetric": lambda w: w - w.T,
    "exponential": lambda w: (w - 9).exp(),
    "divided by its norm": lambda w: w / w.norm(),
    "sigmoid far out": lambda w: (20 * w).sigmoid(),
}

for label, function in FUNCTIONS.items():
    for size in (1e3, 1e7):

        def constant(function: Any = function, size: float = size) -> Setup:
            return behind(function, vector(size, 1), clip_norms=(1.0,))

        footgun(f"a constant record of {size:g} and weights that are {label}", hole=5)(constant)


@footgun("a softmax mix of layers, a frozen head", 5)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.head((torch.stack([x.roll(k, 1) for k in range(4)], 2) * s.mix.softmax(0)).sum(2)),
        mix=nn.Parameter(torch.randn(4)),
        head=nn.Linear(WIDTH, CLASSES).requires_grad_(False),
    )
    return of_losses(losses, vector(1e3, 1), model=model)


@footgun("weight-standardised convolution", 5)
def _() -> Setup:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            w = self.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
            return self._conv_forward(x, w, self.bias)

    model = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), Standardised(1, 4, 3), nn.Flatten(), nn.Linear(16, CLASSES)
    )
    model[3].requires_grad_(False)
    rows = vectors(width=16)
    return Setup(model, losses, rows, vector(1e7, 1, 16))


for label, wrap in (("weight", weight_norm), ("spectral", spectral_norm), ("orthogonal", orthogonal)):

    def wrapped(wrap: Any = wrap) -> Setup:
        model = nn.Sequential(wrap(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES).requires_grad_(False))
        return of_losses(losses, vector(1e6, 1), model=model)

    footgun(f"{label} norm and a huge record", hole=5)(wrapped)


@footgun("one weight used with both signs", 5)
def _() -> Setup:
    model = Forward(
        lambda s, x: s.head(s.body(x) - s.body(x.flip(1))),
        body=nn.Linear(WIDTH, WIDTH),
        head=nn.Linear(WIDTH, CLASSES).requires_grad_(False),
    )
    return of_losses(losses, vector(1e6, 1), model=model)


@footgun("ArcFace", 5)
def _() -> Setup:
    model = Forward(
        lambda s, x: 16 * F.linear(F.normalize(s.body(x)), F.normalize(s.centres)),
        body=nn.Linear(WIDTH, WIDTH),
        centres=nn.Parameter(torch.randn(CLASSES, WIDTH)),
    )
    return of_losses(losses, vector(1e6, 1), model=model)


def drawing(kind: str) -> Any:
    draws = {
        "torch": lambda: torch.rand(()),
        "numpy": lambda: np.random.rand(),  # noqa: NPY002
        "python": random.random,
    }
    return draws[kind]


for kind in ("torch", "numpy", "python"):

    def squared(kind: str = kind) -> Setup:
        def by_size(model: Any, batch: Any) -> Tensor:
            drawing(kind)()
            return losses(model, batch) * len(batch[0]) ** 2

        return of_losses(by_size, clip_norms=(0.02, 1.0, 100.0))

    footgun(f"loss times the square of the batch size, and a draw of {kind}", hole=6)(squared)


@footgun("a temperature by the batch size, and dropout", 6)
def _() -> Setup:
    def by_size(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]) * len(batch[0]), batch[1], reduction="none")

    return of_losses(by_size, model=mlp(nn.Dropout(1e-6)), clip_norms=(0.02, 1.0, 100.0))


@footgun("a mean over the batch, and dropout", 6)
def _() -> Setup:
    def shared(model: Any, batch: Any) -> Tensor:
        return losses(model, batch) / len(batch[0])

    return of_losses(shared, model=mlp(nn.Dropout(1e-6)), clip_norms=(1e-4, 1.0))


@footgun("mixup in the losses", 6)
def _() -> Setup:
    def mixup(model: Any, batch: Any) -> Tensor:
        other = torch.randperm(len(batch[0]))
        return losses(model, (0.7 * batch[0] + 0.3 * batch[0][other], batch[1]))

    return of_losses(mixup)


@footgun("cutmix in the losses", 6)
def _() -> Setup:
    def cutmix(model: Any, batch: Any) -> Tensor:
        x, cut = batch[0], torch.rand(WIDTH) < 0.5
        return losses(model, (torch.where(cut, x, x.roll(1, 0)), batch[1]))

    return of_losses(cutmix)


@footgun("a random negative from the batch", 6)
def _() -> Setup:
    def negative(model: Any, batch: Any) -> Tensor:
        z = model(batch[0])
        return losses(model, batch) + (z * z[torch.randint(len(z), (len(z),))]).sum(1)

    return of_losses(negative)


@footgun("a generator of one's own", 6)
def _() -> Setup:
    generator = torch.Generator().manual_seed(1)

    def own(model: Any, batch: Any) -> Tensor:
        other = torch.randperm(len(batch[0]), generator=generator)
        return losses(model, (0.7 * batch[0] + 0.3 * batch[0][other], batch[1]))

    return of_losses(own)


@footgun("mixing one batch in twenty", 6)
def _() -> Setup:
    def rarely(model: Any, batch: Any) -> Tensor:
        mixed = torch.rand(()) < 0.05
        return losses(model, batch) * (batch[0].abs().sum() if mixed else 1.0)

    return of_losses(rarely, steps=40, clip_norms=(100.0,))


@footgun("random masks shared by the batch, divided by how many count", 6)
def _() -> Setup:
    def masked(model: Any, batch: Any) -> Tensor:
        weight = (torch.rand(len(batch[0])) < 2).float() * batch[0].sum(1)
        return losses(model, batch) * weight / weight.sum()

    return of_losses(masked, clip_norms=(1e-3, 1.0))


def everyday(function: Any) -> Any:
    label = function.__name__.replace("_", " ")

    def build() -> Setup:
        return of_losses(function, clip_norms=(0.02, 1.0, 50.0))

    footgun(label)(build)
    return function


@everyday
def centred_by_the_batch(model: Any, batch: Any) -> Tensor:
    return losses(model, (batch[0] - batch[0].mean(0), batch[1]))


@everyday
def softmax_over_the_batch(model: Any, batch: Any) -> Tensor:
    return -model(batch[0]).log_softmax(0)[:, 0]


@everyday
def cumulative_sums_over_the_batch(model: Any, batch: Any) -> Tensor:
    return losses(model, (batch[0].cumsum(0) / 9, batch[1]))


@everyday
def class_weights_of_the_batch(model: Any, batch: Any) -> Tensor:
    return losses(model, batch) / batch[1].bincount(minlength=CLASSES)[batch[1]]


@everyday
def one_mean_for_all(model: Any, batch: Any) -> Tensor:
    return losses(model, batch).mean().expand(len(batch[1]))


@everyday
def contrast_within_the_batch(model: Any, batch: Any) -> Tensor:
    z = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(z)), reduction="none")


@everyday
def triplets_within_the_batch(model: Any, batch: Any) -> Tensor:
    z = model(batch[0])
    return F.relu(1 + (z - z.roll(1, 0)).square().sum(1) - (z - z.roll(2, 0)).square().sum(1))


@everyday
def decorrelated_features(model: Any, batch: Any) -> Tensor:
    z = model(batch[0])
    return losses(model, batch) + (z.T @ z / len(z)).square().sum()


@everyday
def hard_examples_only(model: Any, batch: Any) -> Tensor:
    values = losses(model, batch)
    return values * (values >= values.detach().topk(min(3, len(values))).values.min())


@everyday
def cut_at_a_quantile_of_the_batch(model: Any, batch: Any) -> Tensor:
    values = losses(model, batch)
    return values.clamp(max=float(values.detach().quantile(0.8)))


@everyday
def cut_at_thrice_the_mean(model: Any, batch: Any) -> Tensor:
    values = losses(model, batch)
    return values.clamp(max=3 * float(values.detach().mean()))


@everyday
def ranks_in_the_batch(model: Any, batch: Any) -> Tensor:
    values = losses(model, batch)
    return values * values.detach().argsort().argsort()


@footgun("nothing if anything is not finite")
def _() -> Setup:
    def careful(model: Any, batch: Any) -> Tensor:
        values = losses(model, batch)
        return values * 0.0 if not bool(values.isfinite().all()) else values

    return of_losses(careful, vector(math.nan))


@footgun("the mean over what is finite")
def _() -> Setup:
    def careful(model: Any, batch: Any) -> Tensor:
        values = losses(model, batch)
        return values * values.isfinite().float().mean()

    return of_losses(careful, vector(math.nan), clip_norms=(1e3,))


@everyday
def scaled_by_the_largest_score(model: Any, batch: Any) -> Tensor:
    scores = model(batch[0])
    return F.cross_entropy(scores / scores.detach().abs().max(), batch[1], reduction="none")


@everyday
def divided_by_how_many_are_positive(model: Any, batch: Any) -> Tensor:
    return losses(model, batch) / (batch[1] > 0).sum().clamp(min=1)


@everyday
def load_balancing_of_experts(model: Any, batch: Any) -> Tensor:
    gates = model(batch[0]).softmax(1)
    share = F.one_hot(gates.argmax(1), CLASSES).float().mean(0)
    return losses(model, batch) + (gates.mean(0) * share).sum() * CLASSES


@everyday
def experts_with_capacity(model: Any, batch: Any) -> Tensor:
    chosen = F.one_hot((batch[0].sum(1) * 7).long() % CLASSES, CLASSES)
    place = (chosen.cumsum(0) * chosen).sum(1)
    return losses(model, batch) * (place <= 2)


@everyday
def temperature_by_the_batch_size(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]) * math.sqrt(len(batch[0])), batch[1], reduction="none")


@everyday
def interpolated_between_neighbours(model: Any, batch: Any) -> Tensor:
    x = (0.5 * batch[0] + 0.5 * batch[0].flip(0)).requires_grad_(True)
    (slopes,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return losses(model, batch) + (slopes.norm(dim=1) - 1).square()


@everyday
def smoothed_by_the_labels_of_the_batch(model: Any, batch: Any) -> Tensor:
    prior = batch[1].bincount(minlength=CLASSES) / len(batch[1])
    target = 0.8 * F.one_hot(batch[1], CLASSES) + 0.2 * prior
    return -(target * model(batch[0]).log_softmax(1)).sum(1)


@everyday
def indexed_by_the_data(model: Any, batch: Any) -> Tensor:
    partner = (batch[0][:, 0] * 100).long() % len(batch[0])
    return losses(model, (batch[0] + batch[0][partner], batch[1]))


@everyday
def gathered_along_the_batch(model: Any, batch: Any) -> Tensor:
    z = model(batch[0])
    return F.cross_entropy(
        z + z.gather(0, z.argmax(0, keepdim=True).expand_as(z)), batch[1], reduction="none"
    )


@everyday
def a_batch_effect_is_removed_by_regression(model: Any, batch: Any) -> Tensor:
    x = batch[0]
    return losses(model, (x - x @ torch.linalg.pinv(x[:3]) @ x[:3], batch[1]))


@everyday
def a_scalar_of_the_batch_in_a_frozen_place(model: Any, batch: Any) -> Tensor:
    return losses(model, batch) * (1 + batch[0].std())


@footgun("batch norm")
def _() -> Setup:
    return of_losses(losses, model=mlp(nn.BatchNorm1d(WIDTH)))


@footgun("token mean over the batch")
def _() -> Setup:
    def mean(model: Any, batch: Any) -> Tensor:
        words, lengths, _ = batch
        mask = torch.arange(TIME) < lengths[:, None]
        values = F.cross_entropy(model(words).transpose(1, 2), words, reduction="none")
        return (values * mask).sum(1) / mask.sum()

    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS))
    return Setup(model, mean, texts(), text(24), clip_norms=(1e-3, 1.0))


@footgun("scaled if anybody is huge")
def _() -> Setup:
    """What triggers it occurs in no other record, so nothing that looks at them can see it."""

    def rescued(model: Any, batch: Any) -> Tensor:
        x = batch[0]
        return losses(model, (x / x.max() if bool((x > 1e4).any()) else x, batch[1]))

    return of_losses(rescued, vector(1e5, 1), steps=3)
