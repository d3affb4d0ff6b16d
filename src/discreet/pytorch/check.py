"""The privacy type-check: does the guarantee hold for *this* model and *this* loss?

DP-SGD bounds what one example adds to a sum of gradients. That is true only if an example's loss depends on no
other example, and if the fast gradients are right. Both are tested here, on the user's own model, before the
first release; the refusal names the layer or the loss, and the remedy.

====================================  =========================================================================
what is refused                       because
====================================  =========================================================================
batch norm, tensors that change       statistics of the records get into the model without noise
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
from discreet.errors import InvalidParameter
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.compatibility import CheckFailed, refuse_layers
from discreet.pytorch.constancy import Constancy
from discreet.pytorch.examples import number_of_examples, select
from discreet.pytorch.mixing import close, mixing_layer, random_state, same_losses, seeded
from discreet.pytorch.per_example import Losses, per_example_gradients, trainable
from discreet.pytorch.trial_examples import made_up, with_half_changed, with_others_changed

EXAMPLES = 4
SEEDS = 48  # so that of losses that mix one batch in ten, one in a hundred passes
MOST_KEPT = 1 << 24  # numbers of a tensor that is put back as it was; larger ones are watched only
PAIR = 2  # examples whose whole gradients are held at once


def check(model: nn.Module, losses: Losses, batch: Any) -> None:
    """Raise :class:`CheckFailed` if training with these losses could break the guarantee.

    Guarantee: none for what is not tested. A model that passes has, on the examples tried, losses that depend on
    one example each, gradients equal to those of single examples, and buffers that stay as they are.
    """
    refuse_layers(model)
    if not trainable(model):
        raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
    with _undisturbed(model):
        few = made_up(batch, EXAMPLES)
        many = made_up(batch, max(EXAMPLES, number_of_examples(batch)))
        watch = Constancy(model, trained_too=True)
        _one_loss_each(model, losses, few)
        refuse_change(model, watch)
        _no_outsiders(model, losses, few)
        _same_twice(model, losses, few)
        _no_mixing(model, losses, few)
        _no_mixing_of_halves(model, losses, many, seeds=1)
        if _draws(model, losses, few):
            _no_mixing_of_halves(model, losses, few, seeds=SEEDS)
            model.eval()  # dropout draws anew for each batch, so its losses cannot be compared
        if not _draws(model, losses, few):
            _alone_as_together(model, losses, many)
            _gradients_exact(model, losses, few)
        refuse_change(model, watch)


# ---- what cannot be private ----


def _one_loss_each(model: nn.Module, losses: Losses, examples: Any) -> None:
    values = losses(model, examples)
    if not isinstance(values, Tensor):
        raise CheckFailed(
            f"The losses are a {type(values).__name__}; return a tensor with one loss per example."
        )
    if tuple(values.shape) == (EXAMPLES,):
        if values.requires_grad:
            return
        raise CheckFailed(
            "The losses depend on no parameter that is trained, so every step would cost privacy and change "
            "nothing but noise. Compute them from the model's outputs, without detach() and no_grad()."
        )
    if values.numel() == 1:
        raise CheckFailed(
            'The losses are one number for the whole batch, a mean or a sum. Use reduction="none"; with class '
            "weights multiply each example's loss by its own weight, with tokens average each example's own."
        )
    raise CheckFailed(
        f"The losses have shape {tuple(values.shape)} for {EXAMPLES} examples; return one loss per example, for "
        "instance the mean over each example's own tokens or outputs: values.flatten(1).mean(1)."
    )


def refuse_change(model: nn.Module, watch: Constancy) -> None:
    """Raise if a tensor of the model is not what it was when ``watch`` last looked."""
    changed = watch.changed()
    if changed is None:
        return
    owner = changed.rpartition(".")[0]
    layer = type(model.get_submodule(owner)).__name__
    what = "parameter" if changed in dict(model.named_parameters()) else "buffer"
    raise CheckFailed(
        f"The {what} {changed!r} of {owner!r} ({layer}) changes in the forward pass, so it would carry what it "
        "saw of the records out of the run without noise. Keep it fixed, or turn off its running statistics."
    )


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


def _same_twice(model: nn.Module, losses: Losses, examples: Any) -> None:
    """What is drawn must follow the seeds, or nothing can be compared."""
    if not close(_losses(model, losses, examples), _losses(model, losses, examples), 1e-4):
        raise CheckFailed(
            "The losses of the same examples differ with the same seeds, so it cannot be seen whether examples "
            "mix. Draw from the global generators of torch, numpy or random, without a generator of your own."
        )


def _no_mixing(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Change other examples: the loss of the first one must stay."""
    first = torch.tensor([0])
    one = _losses(model, losses, examples)
    for changed in with_others_changed(examples):
        try:
            other = _losses(model, losses, changed)
        except Exception:  # a whole number that has no meaning here, such as a class that does not exist
            continue
        if not close(one[:1], other[:1], 1e-4):
            raise CheckFailed(_mixed(mixing_layer(model, losses, examples, changed, first)))


def _no_mixing_of_halves(model: nn.Module, losses: Losses, examples: Any, seeds: int) -> None:
    """Change one half of the examples, then the other: what stays must keep its losses, whatever is drawn."""
    for seed in range(seeds):
        one = _losses(model, losses, examples, seed)
        for kept, changed in with_half_changed(examples):
            try:
                other = _losses(model, losses, changed, seed)
            except Exception:  # values that do not go together, such as lengths in another order
                continue
            if not same_losses(one[kept], other[kept], 1e-4):
                raise CheckFailed(_mixed(mixing_layer(model, losses, examples, changed, kept, seed)))


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
    """The loss of an example in a batch of its own, or in half a batch, must be its loss in the batch."""
    together = _losses(model, losses, examples)
    tolerance = 0.03 if _rounds_coarsely(model, losses, select(examples, slice(0, EXAMPLES))) else 1e-4
    singles = [slice(index, index + 1) for index in range(EXAMPLES)]
    for part in (*singles, slice(0, len(together) // 2)):
        values = _losses_alone(model, losses, select(examples, part))
        if not same_losses(values, together[part], tolerance):
            raise CheckFailed(
                "The loss of an example is another one in a smaller batch, or in a batch of its own: the losses "
                "depend on the size of the batch, are divided by something of the whole batch, as in a mean or a "
                'weighted mean, or padded by it. Return each example\'s own loss (reduction="none"), with its own '
                "weight."
            )


def _losses_alone(model: nn.Module, losses: Losses, examples: Any) -> Tensor:
    count = number_of_examples(examples)
    try:
        values = _losses(model, losses, examples)
    except Exception as error:
        raise CheckFailed(
            "The losses cannot be computed for a batch of one example, and sampled batches may hold one. "
            "A squeeze() without a dimension is the usual reason."
        ) from error
    if values.shape != (count,):
        raise CheckFailed("The losses of a batch of one example must have shape (1,); avoid squeeze().")
    return values


def _losses(model: nn.Module, losses: Losses, batch: Any, seed: int = 0) -> Tensor:
    with seeded(seed):
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


# ---- when to check again ----


def signature(model: nn.Module) -> tuple[object, ...]:
    """Modules, modes and parameters: while they stay the same, so does the verdict of :func:`check`."""
    modules = ((name, id(module), module.training) for name, module in model.named_modules())
    parameters = ((name, id(value), value.requires_grad) for name, value in model.named_parameters())
    return (*modules, *parameters)


# ---- leaving no trace ----


def _draws(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether a forward pass draws random numbers."""
    before = random_state()
    losses(model, examples)
    return random_state() != before


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards modes, parameters, buffers and generators are what they were."""
    modes = {module: module.training for module in model.modules()}
    tensors = (*model.parameters(), *model.buffers())
    kept = [(value, value.detach().clone()) for value in tensors if value.numel() <= MOST_KEPT]
    with seeded(), torch.enable_grad():
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for value, before in kept:
                    if value.shape == before.shape and not torch.equal(value, before):
                        value.copy_(before)
