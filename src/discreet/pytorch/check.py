"""The privacy type-check: does the guarantee hold for *this* model and *this* loss?

DP-SGD bounds what one example adds to a sum of gradients. That is true only if an example's loss depends on no
other example, and if the fast gradients are right. Both are tested here, on the user's own model, before the
first release; the refusal names the layer or the loss, and the remedy.

====================================  =========================================================================
what is refused                       because
====================================  =========================================================================
batch norm, other changing buffers    statistics of the records get into the model without noise
one loss for the batch (a mean)       there is nothing to clip by example
a weighted or token mean              one example's weight rescales all the others
``x - x.mean(0)``, contrastive loss   one example changes the gradients of all the others
tensors trained outside of the model  they would be neither clipped nor noised
fast gradients that are not exact     the clip would not bound what it says
====================================  =========================================================================

The test runs on a few examples put together at random from the columns of a batch, inside the process. Whether
it passes is all that it tells, and no message holds a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discreet.clipping import Flat
from discreet.errors import DiscreetError, InvalidParameter
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.examples import select
from discreet.pytorch.mixing import close, mixing_layer, random_state, seeded
from discreet.pytorch.per_example import Losses, per_example_gradients, trainable
from discreet.pytorch.trial_examples import made_up, with_others_changed

EXAMPLES = 4
PAIR = 2  # examples whose whole gradients are held at once


class CheckFailed(DiscreetError, ValueError):
    """The model or the loss would break the guarantee; nothing was released."""


def check(model: nn.Module, losses: Losses, batch: Any) -> None:
    """Raise :class:`CheckFailed` if training with these losses could break the guarantee.

    Guarantee: none for what is not tested. A model that passes has, on the examples tried, losses that depend on
    one example each, gradients equal to those of single examples, and buffers that stay as they are.
    """
    if not trainable(model):
        raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
    refuse_batch_norm(model)
    with _undisturbed(model):
        examples = made_up(batch, EXAMPLES)
        _one_loss_each(model, losses, examples)
        _buffers_stay(model, losses, examples)
        _no_outsiders(model, losses, examples)
        _no_mixing(model, losses, examples)
        if _draws(model, losses, examples):
            model.eval()  # dropout draws anew for each batch, so its losses cannot be compared
        if not _draws(model, losses, examples):
            _alone_as_together(model, losses, examples)
            _gradients_exact(model, losses, examples)


# ---- what cannot be private ----


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse layers that normalise over the batch, unless they are frozen in eval mode."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and _over_the_batch(module):
            raise CheckFailed(
                f"The layer {name!r} ({type(module).__name__}) normalises over the batch, so each example's "
                "gradient depends on all others. Use GroupNorm: discreet.pytorch.without_batch_norm(model) does."
            )


def _over_the_batch(module: nn.modules.batchnorm._BatchNorm) -> bool:
    return module.training or module.running_mean is None


def _one_loss_each(model: nn.Module, losses: Losses, examples: Any) -> None:
    values = losses(model, examples)
    if not isinstance(values, Tensor):
        raise CheckFailed(
            f"The losses are a {type(values).__name__}; return a tensor with one loss per example."
        )
    if tuple(values.shape) == (EXAMPLES,):
        return
    if values.numel() == 1:
        raise CheckFailed(
            'The losses are one number for the whole batch, a mean or a sum. Use reduction="none"; with class '
            "weights multiply each example's loss by its own weight, with tokens average each example's own."
        )
    raise CheckFailed(
        f"The losses have shape {tuple(values.shape)} for {EXAMPLES} examples; return one loss per example, for "
        "instance the mean over each example's own tokens or outputs: values.flatten(1).mean(1)."
    )


def _buffers_stay(model: nn.Module, losses: Losses, examples: Any) -> None:
    watch = BufferWatch(model)
    losses(model, examples)
    watch.refuse_change()


class BufferWatch:
    """Notices buffers that a forward pass has changed, by the counter that PyTorch keeps of every tensor."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.refresh()

    def refresh(self) -> None:
        """Take the present state as the one to be kept."""
        self._known = self._state()

    def refuse_change(self) -> None:
        """Raise if a buffer is not the one it was, or was written to."""
        now = self._state()
        if now == self._known:
            return
        changed = next((name for name in now if now[name] != self._known.get(name)), "")
        owner = changed.rpartition(".")[0]
        kind = type(self._model.get_submodule(owner)).__name__
        raise CheckFailed(
            f"The buffer {changed!r} of {owner!r} ({kind}) changes in the forward pass, so it would carry what it "
            "saw of the records out of the run without noise. Keep it fixed, or turn off its running statistics."
        )

    def _state(self) -> dict[str, tuple[int, int]]:
        return {name: (id(value), value._version) for name, value in self._model.named_buffers()}


def _no_outsiders(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Of the tensors to which the graph of the losses leads, all that last must be parameters of the model."""
    ours = {id(value) for value in trainable(model).values()}
    first, second = (
        _ends(losses(model, examples)) for _ in range(2)
    )  # what is made anew each time is no parameter
    lasting = {id(leaf) for leaf in first}
    for leaf in second:
        if id(leaf) in lasting and id(leaf) not in ours:
            raise CheckFailed(
                f"The losses depend on a tensor of shape {tuple(leaf.shape)} that requires a gradient and is no "
                "parameter of the model, so it would be neither clipped nor noised. Make it a parameter of the "
                "model, or detach it."
            )


def _ends(values: Tensor) -> list[Tensor]:
    """The tensors at the ends of the graph of ``values``."""
    found, visited, waiting = [], set(), [values.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


# ---- examples must not see each other ----


def _no_mixing(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Change other examples: the loss of the first one must stay."""
    first = slice(0, 1)
    one = _losses(model, losses, examples)
    for changed in with_others_changed(examples):
        try:
            other = _losses(model, losses, changed)
        except Exception:  # a whole number that has no meaning here, such as a class that does not exist
            continue
        if not close(one[first], other[first], 1e-4):
            raise CheckFailed(_mixed(mixing_layer(model, losses, examples, changed, first)))


def _mixed(layer: str | None) -> str:
    if layer is None:
        return (
            "The loss of one example depends on the other examples of its batch: the loss function mixes them. "
            "Contrast or normalise within each example; do not divide by sums over the batch."
        )
    return (
        f"The loss of one example depends on the other examples of its batch: {layer} mixes them. Let it work "
        "on each example alone, for instance with LayerNorm or with constants known beforehand."
    )


def _alone_as_together(model: nn.Module, losses: Losses, examples: Any) -> None:
    """The loss of an example in a batch of its own must be its loss in the batch."""
    together = _losses(model, losses, examples)
    alone = []
    for index in range(EXAMPLES):
        try:
            alone.append(_losses(model, losses, select(examples, slice(index, index + 1))))
        except Exception as error:
            raise CheckFailed(
                "The losses cannot be computed for a batch of one example, and sampled batches may hold one. "
                "A squeeze() without a dimension is the usual reason."
            ) from error
    if any(value.shape != (1,) for value in alone):
        raise CheckFailed("The losses of a batch of one example must have shape (1,); avoid squeeze().")
    if close(torch.cat(alone), together, 1e-4):
        return
    raise CheckFailed(
        "The loss of an example is another one in a batch of its own: the losses are divided by something of the "
        "whole batch, as in a mean or a weighted mean, or padded by it. Return each example's own loss "
        '(reduction="none"), with its own weight.'
    )


def _losses(model: nn.Module, losses: Losses, batch: Any) -> Tensor:
    with seeded():
        return losses(model, batch).detach()


# ---- fast gradients must be exact ----


def _gradients_exact(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Norms, sums and the effect of one example, against gradients of single examples."""
    examples = select(examples, slice(0, PAIR))
    rows = per_example_gradients(model, losses, examples)
    norms = torch.stack([value.flatten(1).double().square().sum(1) for value in rows.values()]).sum(0).sqrt()
    if not bool(norms.isfinite().all()):
        return  # such gradients count as zero
    tolerance = 0.05 if _rounds_coarsely(model, losses, examples) else 1e-4
    fast = ClippedSum(model, losses, Flat(max(float(norms.mean()) / 2, 1e-6)))
    factors = torch.from_numpy(fast.rule.factors(norms.cpu().numpy(), 1e-6))
    sums, limit = fast(examples), tolerance * fast.rule.clip_norm
    for name, value in rows.items():
        expected = torch.tensordot(factors.to(value.device), value.double(), 1)
        if not float((sums[name].double() - expected).norm()) <= PAIR * limit:
            raise CheckFailed(
                f"The gradients of {name.rpartition('.')[0] or 'the model'!r} ({name}) in a batch are not those of "
                "its examples one by one: the layer mixes examples, or has a backward pass of its own that does."
            )
    if not close(fast.norms(examples).cpu(), norms.cpu(), tolerance):
        raise CheckFailed("The norms of the gradients are not exact for this model; please report this.")
    without = fast(select(examples, slice(0, PAIR - 1)))
    moved = math.sqrt(sum(float((sums[name] - without[name]).double().square().sum()) for name in sums))
    if not moved <= fast.rule.clip_norm * (1 + PAIR * tolerance):
        raise CheckFailed(
            "One example changes the clipped sum by more than the clip norm; please report this."
        )


def _rounds_coarsely(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether anything is computed in 16 bits, by the types of what is kept for the backward pass."""
    kept: set[torch.dtype] = {parameter.dtype for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses(model, examples)
    return any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in kept)


# ---- leaving no trace ----


def _draws(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether a forward pass draws random numbers."""
    before = random_state()
    losses(model, examples)
    return random_state() != before


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards modes, buffers and generators are what they were."""
    modes = {module: module.training for module in model.modules()}
    kept = {name: value.clone() for name, value in model.named_buffers()}
    with seeded(), torch.enable_grad():
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for name, value in model.named_buffers():
                    if name in kept and value.shape == kept[name].shape:
                        value.copy_(kept[name])
