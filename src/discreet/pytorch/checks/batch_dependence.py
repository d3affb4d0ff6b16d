"""Examples must not see each other: change some, and watch the losses of the others.

Three ways of looking, because each sees what the others miss: all other examples changed in few values, half of a
whole batch changed in all values, and the examples alone instead of together. The example whose loss is watched
holds, in turn, what few records hold: NaN, infinity, True and False, constants, because a gap that is filled by the
others shows only where there is one. Where a loss moves, the layer that mixes is found: every module is watched
during two forward passes that differ in one example, and the one whose inputs agree for the other examples and whose
outputs do not is named.

>>> tried = make_up({"x": torch.ones(9, 2), "label": torch.tensor([0, 1, 0] * 3)}, count=4)
>>> tried["x"][:, 0]
tensor([0.6000, 0.7333, 0.8667, 1.0000])
>>> {-100, -1} <= {int(other["label"][-1]) for other in with_others_changed(tried)}
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.checks.seeded_generators import seeded
from discreet.pytorch.checks.withheld import origin
from discreet.pytorch.per_example import Losses, number_of_examples, rebuild, select, tensors_of

Seen = list[tuple[str, nn.Module, list[Tensor], list[Tensor]]]


def dependent_layer(
    model: nn.Module, losses: Losses, one: Any, other: Any, same: Tensor, seed: int = 0
) -> str | None:
    """The innermost module that mixes, as ``'name' (type)``; None if it is the loss itself.

    ``one`` and ``other`` agree in the examples ``same``.
    """
    before, after = _watch_layers(model, losses, one, seed), _watch_layers(model, losses, other, seed)
    for (name, module, inputs, outputs), (_, _, later_inputs, later_outputs) in zip(
        before, after, strict=False
    ):
        if agree(inputs, later_inputs, same) and not agree(outputs, later_outputs, same):
            return (
                f"{name!r} ({type(module).__name__})"
                if name
                else f"the model's forward ({type(module).__name__})"
            )
    return None


def agree(one: list[Tensor], other: list[Tensor], same: Tensor) -> bool:
    """Return whether the rows ``same`` of all tensors are equal up to rounding."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a.ndim and a.shape == b.shape]
    rows = [same[same < len(a)].to(a.device) for a, _ in pairs]  # the first dimension may be another one
    return all(close(a[kept], b[kept]) for (a, b), kept in zip(pairs, rows, strict=True))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal up to rounding on the scale of the larger; NaN agrees with NaN."""
    if a.dtype.itemsize < 4 and a.is_floating_point():
        tolerance = 0.03
    one, other = a.detach().double(), b.detach().double()
    if not one.numel():
        return True
    scale = torch.maximum(one.abs(), other.abs()).nan_to_num().amax().clamp(min=1e-30)
    differs = (one - other).abs() > tolerance * scale
    return not bool(differs.any()) and bool(torch.equal(one.isnan(), other.isnan()))


def same_losses(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Equal up to rounding, each on the scale of its own, so that no large loss hides what happens to others."""
    if one.dtype.itemsize < 4:
        tolerance = 0.03
    a, b = one.double(), other.double()
    scale = torch.maximum(a.abs(), b.abs()).nan_to_num()
    differs = (a - b).abs() > tolerance * scale.clamp(min=max(float(scale.median()), 1e-30))
    return not bool(differs.any()) and torch.equal(a.isnan(), b.isnan())


def _watch_layers(model: nn.Module, losses: Losses, batch: Any, seed: int) -> Seen:
    seen: Seen = []
    with _hooks(model, seen), seeded(seed):
        losses(model, batch)
    return seen


@contextmanager
def _hooks(model: nn.Module, seen: Seen) -> Iterator[None]:
    def hook(name: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            kept = [t.detach().clone() for t in tensors_of((args, kwargs))]
            seen.append((name, module, kept, [t.detach().clone() for t in tensors_of(output)]))

        return note

    handles = [m.register_forward_hook(hook(name), with_kwargs=True) for name, m in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


EXAMPLES = 4
"""So few are enough where gradients or single losses are compared."""
TOLERANCE = 1e-4
"""A loss that moves by a larger part of itself does so for another reason than the order of additions, or has to
stay in float64."""
LOOSE = 1e-2
"""A difference in float32 above this part is refused even if there is none in float64: the release is in float32."""


def make_up(batch: Any, count: int, *, in_support: bool = False) -> Any:
    """Examples whose columns come from different records at random, scaled so that no two are alike.

    ``in_support`` leaves integers and rows that sum to one as they are, for losses that accept nothing else.
    """

    def column(tensor: Tensor) -> Tensor:
        known = tensor.detach()
        if in_support and known.is_floating_point():
            finite = known[known.reshape(len(known), -1).isfinite().all(1)]
            known, scaled = (finite, False) if is_constrained(finite) else (known, True)
        else:
            scaled = known.is_floating_point()
        rows = known[torch.randint(len(known), (count,), device=known.device)]
        return _scale_rows(rows) if scaled else rows

    return rebuild(batch, column)


def is_constrained(column: Tensor) -> bool:
    """Return whether a column of floats holds integers only, or non-negative rows that sum to one.

    Counts, flags, classes in one-hot form and proportions are such columns, of which losses from
    ``torch.distributions`` refuse other values.

    >>> is_constrained(torch.tensor([3.0, 0.0])), is_constrained(torch.tensor([[0.25, 0.75]]))
    (True, True)
    >>> is_constrained(torch.tensor([3.5, 0.0])), is_constrained(torch.tensor([[0.25, 0.7]]))
    (False, False)
    """
    if not column.is_floating_point() or not column.numel():
        return False
    return bool((column == column.round()).all()) or _on_simplex(column)


def _on_simplex(column: Tensor) -> bool:
    tolerance = 1e-5 if column.dtype.itemsize >= 4 else 1e-2
    return (
        column.ndim > 1
        and bool((column >= 0).all())
        and bool(((column.double().sum(-1) - 1).abs() <= tolerance).all())
    )


def with_others_changed(examples: Any) -> Iterator[Any]:
    """Batches that agree with ``examples`` in the first example only.

    Columns get values that these records may not have, because the weight of a rare class shows only if the
    class occurs, and the care for huge numbers and NaN only if they do.
    """
    yield rebuild(examples, _others_changed)
    for place, column in enumerate(tensors_of(examples)):
        for value in (*_whole_numbers(column), *_extremes(column), *_of_support(column)):
            yield _with_column_set(examples, place, value)


def with_first_set(examples: Any) -> Iterator[Any]:
    """Batches whose first example has gaps, extremes, marks or constants in one column, and is else as it was."""
    for place, column in enumerate(tensors_of(examples)):
        whole = (slice(0, 1),)
        for value in _test_values(column):
            yield _with_entries_set(examples, place, whole, value)
        if column.is_floating_point() and column[0].numel() > 1:
            one = (slice(0, 1), *(slice(0, 1) for _ in column.shape[1:]))
            for value in (math.nan, math.inf):
                yield _with_entries_set(examples, place, one, value)


def with_others_moved(examples: Any) -> Iterator[Any]:
    """Batches that agree with ``examples`` in the first example only, in whatever way the others are marked."""
    yield rebuild(examples, _others_changed)
    yield rebuild(examples, lambda column: _enlarge_others(column) if column.is_floating_point() else column)
    for place, column in enumerate(tensors_of(examples)):
        if column.dtype == torch.bool:
            yield _with_column_set(examples, place, True)
            yield _with_column_set(examples, place, False)


def all_changed(examples: Any) -> Any:
    """Other examples of the same shape."""
    return rebuild(
        examples, lambda column: _change_except(column, torch.zeros(len(column), dtype=torch.bool))
    )


def with_half_changed(examples: Any) -> Iterator[tuple[Tensor, Any]]:
    """A random half of the examples, and a batch that agrees with ``examples`` there only; then the other half."""
    order = torch.randperm(number_of_examples(examples))
    for kept in order.tensor_split(2):
        stays = torch.zeros(len(order), dtype=torch.bool)
        stays[kept] = True
        yield kept, rebuild(examples, partial(_change_except, stays=stays))


def _scale_rows(rows: Tensor) -> Tensor:
    """Rows shrunk by different factors, which keeps them within whatever range they have."""
    factors = torch.linspace(0.6, 1.0, len(rows), dtype=rows.dtype, device=rows.device)
    return rows.nan_to_num(0.0, 0.0, 0.0) * factors.view(-1, *[1] * (rows.ndim - 1))


def _others_changed(column: Tensor) -> Tensor:
    return _change_except(column, torch.arange(len(column)) == 0)


def _change_except(column: Tensor, stays: Tensor) -> Tensor:
    """Numbers become smaller; integers and proportions become those of the example before."""
    if column.is_floating_point() and not is_constrained(column):
        other = column / 2
    else:
        before = column.roll(1, 0)
        other = before.flip(-1) if column.ndim > 1 else before
    shape = (-1, *[1] * (column.ndim - 1))
    return torch.where(stays.to(column.device).view(shape), column, other)


def _enlarge_others(column: Tensor) -> Tensor:
    other = -3 * column
    other[:1] = column[:1]
    return other


def _with_column_set(examples: Any, place: int, value: float | Tensor) -> Any:
    return _with_entries_set(examples, place, (slice(1, None),), value)


def _with_entries_set(examples: Any, place: int, entries: tuple[slice, ...], value: float | Tensor) -> Any:
    places = itertools.count()

    def change(column: Tensor) -> Tensor:
        if next(places) != place:
            return column
        changed = column.clone()
        changed[entries] = value
        return changed

    return rebuild(examples, change)


def _whole_numbers(column: Tensor) -> list[int]:
    """Values to try in a column of classes or words. Beyond those that occur only where an error is harmless."""
    if column.is_floating_point() or column.dtype == torch.bool or not column.numel():
        return []
    low, high = int(column.min()), int(column.max())
    inside = [low + (high - low) * part // 4 for part in range(5)]
    outside = [-100, -1, *(range(16) if column.ndim == 1 else ()), high + 1]
    return sorted({*inside, *(outside if column.device.type == "cpu" else ())})


def _test_values(column: Tensor) -> list[float]:
    """Values to try in the example that is watched."""
    if column.dtype == torch.bool:
        return [True, False]
    if column.is_floating_point():
        return [math.nan, math.inf, -math.inf, 0.0, 1.0]
    if not column.numel() or column.is_complex():
        return []
    inside = {int(column.min()), int(column.max())}
    return sorted(inside | ({-100, -1, 0, 1} if column.device.type == "cpu" else set()))


def _extremes(column: Tensor) -> list[float]:
    """Numbers that few records have and that losses may treat in a way of its own."""
    if not column.is_floating_point() or column.device.type != "cpu":
        return []
    return [math.nan, 1e6, -1e6] if column.dtype.itemsize >= 4 else [math.nan]


def _of_support(column: Tensor) -> list[float | Tensor]:
    """Values to try in a column of floats that holds integers or proportions only."""
    if not is_constrained(column):
        return []
    if _on_simplex(column):
        size = column.shape[-1]
        corners = torch.eye(size, dtype=column.dtype, device=column.device)[:MOST_CORNERS]
        return [*corners.unbind(), 1 / size]
    low, high = int(column.min()), int(column.max())
    return sorted({0.0, 1.0, *(float(low + (high - low) * part // 4) for part in range(5))})


MOST_CORNERS = 16


def losses_of(model: nn.Module, losses: Losses, batch: Any, seed: int = 0) -> Tensor:
    """The losses of a batch, with what is drawn decided by the seed."""
    with seeded(seed):
        return losses(model, batch).detach()


def refuse_batch_dependence(
    model: nn.Module, losses: Losses, examples: Any, tolerance: float = TOLERANCE
) -> None:
    """Change other examples: the loss of the first one must stay."""
    one = losses_of(model, losses, examples)
    _refuse_change(model, losses, examples, one, with_others_changed(examples), tolerance)


def refuse_dependence_of_unusual_examples(
    model: nn.Module, losses: Losses, examples: Any, tolerance: float = TOLERANCE
) -> None:
    """Change other examples while the first one has gaps, extremes, marks or constants: its loss must stay."""
    for unusual in with_first_set(examples):
        try:
            one = losses_of(model, losses, unusual)
        except Exception:  # a value that has no meaning here
            continue
        _refuse_change(model, losses, unusual, one, with_others_moved(unusual), tolerance)


def _refuse_change(
    model: nn.Module, losses: Losses, examples: Any, one: Tensor, others: Iterator[Any], tolerance: float
) -> None:
    first = torch.tensor([0])
    for changed in others:
        try:
            other = losses_of(model, losses, changed)
        except Exception:  # an integer that has no meaning here, such as a class that does not exist
            continue
        if not close(one[:1], other[:1], tolerance):
            raise CheckFailed(_dependence_message(dependent_layer(model, losses, examples, changed, first)))


def refuse_dependence_of_halves(
    model: nn.Module, losses: Losses, examples: Any, tolerance: float = TOLERANCE, *, seeds: int
) -> None:
    """Change one half of the examples, then the other: what stays must keep its losses, whatever is drawn."""
    for seed in range(seeds):
        one = losses_of(model, losses, examples, seed)
        for kept, changed in with_half_changed(examples):
            try:
                other = losses_of(model, losses, changed, seed)
            except Exception:  # values that do not go together, such as lengths in another order
                continue
            if not same_losses(one[kept], other[kept], tolerance):
                raise CheckFailed(
                    _dependence_message(dependent_layer(model, losses, examples, changed, kept, seed))
                )


def _dependence_message(layer: str | None) -> str:
    if layer is None:
        return (
            "The loss of one example depends on the other examples of its batch: the loss function mixes them. "
            "Contrast or normalise within each example; do not divide by sums over the batch."
        )
    return (
        f"The loss of one example depends on the other examples of its batch: {layer} mixes them. Let it work "
        "on each example alone, for instance with LayerNorm or with constants known beforehand."
    )


def refuse_other_losses_alone(
    model: nn.Module, losses: Losses, examples: Any, tolerance: float = TOLERANCE
) -> None:
    """The loss of an example in a batch of its own, or in half a batch, must be its loss in the batch."""
    together = losses_of(model, losses, examples)
    if rounds_coarsely(model, losses, select(examples, slice(0, EXAMPLES))):
        tolerance = max(tolerance, 0.03)
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
        values = losses_of(model, losses, examples)
    except Exception as error:
        raise CheckFailed(
            "The losses cannot be computed for a batch of one example, and sampled batches may hold one. "
            f"A squeeze() without a dimension is the usual reason. {origin(error, 'the model or the losses')}"
        ) from None
    if values.shape != (count,):
        raise CheckFailed("The losses of a batch of one example must have shape (1,); avoid squeeze().")
    return values


# Every trained number gets a random sign and a random push, so that no layer is closed, and all of them are
# put back bit by bit, whatever happens meanwhile.
PUSH = 0.1  # of the usual size of the number


@contextmanager
def with_perturbed_weights(model: nn.Module, *, turned: bool) -> Iterator[None]:
    """The trained parameters a little elsewhere; if ``turned``, with random signs as well."""
    kept = [(value, value.detach().clone()) for value in model.parameters() if value.requires_grad]
    try:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(_push(before, turned))
        yield
    finally:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(before)


def _push(value: Tensor, turned: bool) -> Tensor:
    fan_in = max(1, value.numel() // max(1, len(value))) if value.ndim > 1 else 1
    usual = value.float().square().mean().sqrt().nan_to_num().clamp(min=1 / math.sqrt(fan_in))
    pushed = value + (PUSH * usual).to(value.dtype) * torch.randn_like(value)
    return pushed * torch.randint_like(value, 2).mul_(2).sub_(1) if turned else pushed


def rounds_coarsely(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Return whether anything is computed in 16 bits, by the types of what is kept for the backward pass."""
    kept: set[torch.dtype] = {parameter.dtype for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor.detach()  # an output as it is, held by the node that made it, would never be freed

    with (
        suppress(RuntimeError),  # torch.func has no such hooks
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        losses(model, examples)
    return any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in kept)
