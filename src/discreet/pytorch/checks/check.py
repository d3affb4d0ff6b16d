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

The test runs on a few examples put together at random from the columns of a batch, inside the process, and on copies
of model and losses that share the weights, so that nothing they remember of it stays. Which examples are put together
the operating system's randomness decides. Whether it passes is all that it tells, and no message holds a value.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.clipping import Flat
from discreet.errors import CheckFailed, InvalidParameter
from discreet.pytorch.batches import Collate, Reader, reader
from discreet.pytorch.checks.batch_dependence import (
    EXAMPLES,
    LOOSE,
    all_changed,
    close,
    losses_of,
    make_up,
    refuse_batch_dependence,
    refuse_dependence_of_halves,
    refuse_dependence_of_unusual_examples,
    refuse_other_losses_alone,
    rounds_coarsely,
    with_perturbed_weights,
)
from discreet.pytorch.checks.collation import refuse_mixing_collate
from discreet.pytorch.checks.compatibility import (
    insist_function,
    is_fully_sharded,
    refuse_layers,
    unwrap_model,
)
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.isolation import isolated
from discreet.pytorch.checks.plain_state import PlainState, refuse_memory
from discreet.pytorch.checks.seeded_generators import random_state, seeded
from discreet.pytorch.checks.seeded_randomness import refuse_seeded_collation, refuse_seeded_randomness
from discreet.pytorch.checks.shared_randomness import refuse_shared_randomness
from discreet.pytorch.checks.state_guard import StateGuard, refuse_written, write_counts
from discreet.pytorch.checks.withheld import withhold
from discreet.pytorch.clipped_sum import ClippedSum, refuse_coarse_products
from discreet.pytorch.kernels.norms import squared_norms_by_torch
from discreet.pytorch.layer_rules.use import wide
from discreet.pytorch.loaders import unwrap_loader
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.per_example import Losses, number_of_examples, rebuild, select, tensors_of, trainable
from discreet.pytorch.refusals import WRITTEN

SEEDS = 48  # so that of losses that mix one batch in ten, one in a hundred passes
DETERMINISTIC_RUNS = 3  # draws held still in so many ways, as one of them may leave out a part of the model
ROWS = 64  # of a data set, for the batch to check with
MOST_KEPT = 1 << 24  # numbers of a buffer that is put back as it was; larger ones are watched only


def check(
    model: nn.Module,
    losses: Losses,
    batch: Any = None,
    *,
    dataset: Any = None,
    collate: Collate | None = None,
    public: bool = False,
) -> None:
    """Raise :class:`CheckFailed` if training with these losses could break the guarantee.

    Give a batch, or the data set and ``collate`` as for a run: then it is also tried whether ``collate`` lets an
    example depend on those that it meets in a batch.

    An exception of the model or the losses becomes :class:`~discreet.errors.UserCodeFailed`, which withholds its
    message because it may quote records. ``public=True`` says that the batch or data set is public or made up: then
    exceptions and warnings pass as they are, for debugging.

    Guarantee: none for what is not tested. A model that passes has, on the examples tried and with weights near
    its own, losses that depend on one example each, gradients equal to those of single examples, and buffers that
    stay as they are.
    """
    function = _check if public is True else withhold(WHO)(_check)
    try:
        function(model, losses, batch, dataset, collate)
    finally:
        del batch, dataset  # which a traceback with local variables would show


WHO = "the model or the losses"


def _check(model: nn.Module, losses: Losses, batch: Any, dataset: Any, collate: Collate | None) -> None:
    """Check without withholding the messages of the user's code."""
    if (batch is None) == (dataset is None):
        raise InvalidParameter("batch", "both" if dataset is not None else None, "or dataset= must be given.")
    if is_fully_sharded(model):
        raise CheckFailed(
            "The model is sharded; check it before fully_shard. A PrivateRun checks it in any case."
        )
    refuse_coarse_products()
    dataset, collate, _ = unwrap_loader(dataset, collate, 0)
    check_read(
        unwrap_model(model),
        insist_function(losses),
        batch,
        None if dataset is None else reader(dataset, collate),
    )


def check_read(model: nn.Module, losses: Losses, batch: Any, read: Reader | None) -> None:
    """:func:`check` with a batch, or with what a reader reads, or both."""
    refuse_layers(model)
    if not trainable(model):
        raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
    if batch is None and read is not None:
        batch = read(range(min(read.rows, ROWS)))
    count = number_of_examples(batch)
    given = model, losses
    with _restoring(*given):
        model, losses = isolated(*given)
        state = PlainState(model, losses)
        for module in model.modules():
            if isinstance(
                module, nn.RReLU
            ):  # it draws where an input is negative, so the others' draws move on
                module.eval()
        watch = StateGuard(model, trained_too=True)
        few, many = _examples(model, losses, batch, count)
        _keeps_batch(model, losses, few)
        _one_loss_each(model, losses, few)
        watch.refuse_change()
        _no_outsiders(model, losses, few)
        refuse_memory(state, model, losses, few)
        _same_twice(model, losses, few)
        refuse_seeded_randomness(model, losses, few)
        _refuse_memory(*given, few, make_up(batch, EXAMPLES))
        refuse_in_double_too(refuse_batch_dependence, model, losses, few)
        watch.refuse_change()
        with _with_other_weights(model, losses, few):
            watch = StateGuard(model, trained_too=True)
            _refuse_memory(*given, many, make_up(batch, max(EXAMPLES, count)))
            _compare(model, losses, few, many)
            refuse_in_double_too(refuse_dependence_of_unusual_examples, model, losses, few)
            if read is not None:
                refuse_mixing_collate(model, losses, read)
            watch.refuse_change()
        refuse_shared_randomness(model, losses, few)
    if read is not None and read.collate is not None and read.rows:
        refuse_seeded_collation(read.collate, read.examples(range(min(read.rows, EXAMPLES))))


def _examples(model: nn.Module, losses: Losses, batch: Any, count: int) -> tuple[Any, Any]:
    """A few made-up examples, and as many as in the batch: scaled ones, or in the support if those fail."""
    few, many = make_up(batch, EXAMPLES), make_up(batch, max(EXAMPLES, count))
    try:
        losses(model, few)
        losses(model, many)
    except Exception:  # for instance a distribution that is defined for integers only
        few, many = (make_up(batch, number_of_examples(each), in_support=True) for each in (few, many))
    return few, many


def _compare(model: nn.Module, losses: Losses, few: Any, many: Any) -> None:
    """Examples with others, alone, and in another order; and gradients by the fast way and by the slow one."""
    refuse_in_double_too(refuse_batch_dependence, model, losses, few)
    refuse_in_double_too(partial(refuse_dependence_of_halves, seeds=1), model, losses, many)
    draws = _draws(model, losses, few)
    if draws:
        refuse_in_double_too(partial(refuse_dependence_of_halves, seeds=SEEDS), model, losses, few)
    for seed in range(DETERMINISTIC_RUNS if draws else 1):
        alone = partial(refuse_in_double_too, refuse_other_losses_alone, model, losses, many)
        _compare_steadily(alone, seed)
    _compare_steadily(partial(refuse_inexact, model, losses, few), 0)


@contextmanager
def _with_other_weights(model: nn.Module, losses: Losses, examples: Any) -> Iterator[None]:
    """With other weights, as far from the model's own as the losses stand without leaving the numbers."""
    for turned in (True, False):
        with with_perturbed_weights(model, turned=turned):
            if _finite(model, losses, examples):
                yield
                return
    yield


def _finite(model: nn.Module, losses: Losses, examples: Any) -> bool:
    try:
        return bool(losses_of(model, losses, examples).isfinite().all())
    except Exception:  # a model that looks at its weights
        return False


def _compare_steadily(refuse: Callable[[], None], seed: int) -> None:
    """Compare what could not be compared while every batch draws anew.

    A refusal must hold for draws that differ along the last dimension and for draws that do not, because a model may
    have its examples there.
    """
    try:
        with deterministic_draws(seed):
            refuse()
    except CheckFailed:
        with deterministic_draws(seed, varied=False):
            refuse()


def _keeps_batch(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Writes to the batch would be seen by the passes after; those past torch's counters show in the contents."""
    given = rebuild(examples, torch.clone)
    before = write_counts(given)
    losses(model, given)
    refuse_written(given, before)
    if not all(
        torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(tensors_of(examples), tensors_of(given), strict=True)
    ):
        raise CheckFailed(WRITTEN)


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
        if node.name() == "CheckpointFunctionBackward":
            raise CheckFailed(
                "The model uses gradient checkpoints of the old kind, which hide its layers. Say "
                'use_reentrant=False; in transformers gradient_checkpointing_enable({"use_reentrant": False}).'
            )
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


def _same_twice(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Refuse draws that do not follow the seeds and state that stays, since nothing could be compared."""
    first, second = (losses_of(model, losses, examples) for _ in range(2))
    for others in (all_changed(examples), _without_numbers(examples)):
        with suppress(Exception):  # values that have no meaning here
            losses_of(model, losses, others)
    for later in (second, losses_of(model, losses, examples)):
        if not close(first, later, 1e-4):
            raise CheckFailed(
                "The losses of the same examples differ with the same seeds, so it cannot be seen whether examples "
                "mix. Let neither the model nor the losses remember earlier batches, and draw from the global "
                "generators of torch, numpy or random, without a generator of your own."
            )


def _without_numbers(examples: Any) -> Any:
    """Examples whose floats are NaN: whoever keeps anything of them has lost it afterwards."""
    return rebuild(
        examples, lambda column: torch.full_like(column, math.nan) if column.is_floating_point() else column
    )


def _refuse_memory(model: nn.Module, losses: Losses, examples: Any, others: Any) -> None:
    """Copies that have seen different batches first must agree, or the first batch decides about all others."""
    fresh = isolated(model, losses)
    try:
        first = losses_of(*fresh, examples)
    except Exception:  # told elsewhere
        return
    half = select(examples, slice(0, number_of_examples(examples) // 2))
    for before in (all_changed(others), half):
        fresh = isolated(model, losses)
        with suppress(Exception):  # values that have no meaning here
            losses_of(*fresh, before)
            if not close(first, losses_of(*fresh, examples), 1e-4):
                break
    else:
        return
    raise CheckFailed(
        "The losses depend on the batches that the model or the losses saw before, for instance because the first "
        "batch sets a mean or a scale that is kept. Then its records act in steps that did not pay for them, and "
        "stay in the model without noise. Use constants known beforehand, or statistics of each example's own values."
    )


def _draws(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Return whether a forward pass draws random numbers."""
    before = random_state()
    losses(model, examples)
    return random_state() != before


@contextmanager
def _restoring(model: nn.Module, losses: Losses) -> Iterator[PlainState]:
    """Afterwards modes, parameters, buffers, generators and plain attributes are what they were."""
    state = PlainState(model, losses)
    modes = {module: module.training for module in model.modules()}
    kept = [
        (value, value.detach().clone())
        for value in (*model.parameters(), *model.buffers())
        if value.numel() <= MOST_KEPT
    ]
    with seeded(secrets.randbits(32)), torch.enable_grad():
        try:
            yield state
        finally:
            state.restore()
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for value, before in kept:
                    if value.shape == before.shape and not torch.equal(value, before):
                        value.copy_(before)


Reference = Callable[[nn.Module, Losses, Any], dict[str, Tensor]]

PAIR = 2  # examples whose whole gradients are held at once
LONGER = 0.02
"""By which part a norm may be too long: what rounding can do to the sums of many positions is added to it."""


def refuse_inexact(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Norms, sums and the effect of one example, against gradients of single examples.

    Where a rounding error turns a ReLU they differ. Then they have to agree with single gradients of the same forward
    pass, and with those of single examples in float64.
    """
    try:
        _refuse_other(model, losses, examples, per_example_gradients)
    except CheckFailed:
        again = partial(_refuse_other, reference=per_example_gradients)
        if not passes_in_double(again, model, losses, examples):
            raise
        _refuse_other(model, losses, examples, gradients_of_one_pass)
        refuse_rounding(again, model, losses, examples)


def gradients_of_one_pass(model: nn.Module, losses: Losses, examples: Any) -> dict[str, Tensor]:
    """The gradient of each loss by a backward pass of its own, after one forward pass of all examples."""
    parameters = trainable(model)
    values = losses(model, examples)
    rows = [
        torch.autograd.grad(
            value, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for value in values.unbind()
    ]
    return dict(zip(parameters, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _refuse_other(
    model: nn.Module, losses: Losses, examples: Any, reference: Reference, tolerance: float = 1e-4
) -> None:
    examples = select(examples, slice(0, PAIR))
    rows = reference(model, losses, examples)
    squares = [squared_norms_by_torch(wide(value).reshape(len(value), -1)) for value in rows.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    if not bool(norms.isfinite().all()):
        return  # such gradients count as zero
    if rounds_coarsely(model, losses, examples):
        tolerance = max(tolerance, 0.05)
    fast = ClippedSum(model, losses, Flat(max(float(norms.mean()) / 2, 1e-6)))
    measured = fast.norms(examples).to(norms.device)
    factors = torch.from_numpy(fast.rule.factors(measured.cpu().numpy(), 1e-6))
    sums, limit = fast(examples), tolerance * fast.rule.clip_norm
    for name, value in rows.items():
        expected = torch.tensordot(factors.to(value.device, sums[name].dtype), value.to(sums[name].dtype), 1)
        if not float((sums[name] - expected).double().norm()) <= PAIR * limit:
            raise CheckFailed(
                f"The gradients of {name.rpartition('.')[0] or 'the model'!r} ({name}) in a batch are not those of "
                "its examples one by one: the layer mixes examples, or has a backward pass of its own that does."
            )
    if not (
        close(measured, norms, max(tolerance, LONGER)) and close(measured, measured.maximum(norms), tolerance)
    ):
        raise CheckFailed("The norms of the gradients are not exact for this model; please report this.")
    if reference is gradients_of_one_pass:
        return  # a batch without one of them is another forward pass
    without = fast(select(examples, slice(0, PAIR - 1)))
    moved = math.sqrt(sum(float((sums[name] - without[name]).double().square().sum()) for name in sums))
    if not moved <= fast.rule.clip_norm * (1 + PAIR * tolerance):
        raise CheckFailed(
            "One example changes the clipped sum by more than the clip norm; please report this."
        )


Refusing = Callable[..., None]
"""Raises :class:`CheckFailed` for a model, losses and examples, if they differ by more than a ``tolerance``."""


def refuse_in_double_too(refuse: Refusing, model: nn.Module, losses: Losses, examples: Any) -> None:
    """Refuse what ``refuse`` refuses with the model as it is and with its twin in float64, and large differences."""
    try:
        refuse(model, losses, examples)
    except CheckFailed:
        if not passes_in_double(refuse, model, losses, examples):
            raise
        refuse_rounding(refuse, model, losses, examples)


def refuse_rounding(refuse: Refusing, model: nn.Module, losses: Losses, examples: Any) -> None:
    """Refuse a model in which rounding errors of float32 grow beyond :data:`LOOSE`."""
    try:
        refuse(model, losses, examples, tolerance=LOOSE)
    except CheckFailed:
        raise CheckFailed(
            "Rounding errors of float32 grow so much in this model that the loss or the gradient of an example "
            "changes with the examples around it, by more than a hundredth. Train in float64 (model.double() and the "
            "data), or with smaller weights or fewer layers."
        ) from None


def passes_in_double(refuse: Refusing, model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Return whether the twin in float64 passes. One that cannot be made does not."""
    if all(value.dtype == torch.float64 for value in model.parameters()):
        return False
    try:
        refuse(copy.deepcopy(model).double(), losses, rebuild(examples, _as_double))
    except Exception:  # another refusal, or a model that insists on its type
        return False
    return True


def _as_double(column: Tensor) -> Tensor:
    return column.double() if column.is_floating_point() else column
