"""Examples of the very batch, worked on alone before the step is paid for: :class:`SpotCheck`.

The check before training tries made-up examples, and the proof by the graph sees what autograd sees. What gets past
both shows when an example of the batch is worked on by itself: a statistic of the batch without a gradient, padding
by the longest record, a loss that changes its ways after a while, rounding that grows, a mistake of ours. So in the
steps that :mod:`~discreet.pytorch.checks.chances` names, the loss of an example and the norm by which it was clipped,
as the step itself has computed them, are compared with those of the example collated and passed alone, by plain
autograd. A difference ends the run before anything is charged or released.

Where a forward pass draws random numbers, an example alone draws others. Then a part of the batch is repeated under
steady draws, and whole gradients are compared; so is one step in :data:`EVERY` in any case.

Rounding. Matrix products add up in another order for one row than for many, so float32 results differ by about 1e-6
of their size, in deep networks by 1e-5. Up to :data:`~discreet.pytorch.checks.mixing.TOLERANCE` a difference counts
as rounding; a larger one has to vanish in float64. Above :data:`~discreet.pytorch.checks.mixing.LOOSE` it is refused
even then: the release is made of float32 numbers, and there one example does change what the others add. Losses are
compared on the scale of the batch's median loss and weighed by the part of a clip norm that their gradient has,
because the loss of an example that is fitted well consists of rounding errors.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
from typing import Any

import torch
from torch import Tensor

from discreet.core.clipping import ClipRule, Flat, PerBlock
from discreet.errors import CheckFailed
from discreet.pytorch.batches import Drawn
from discreet.pytorch.checks.chances import (
    AT_LEAST,
    FIRST_STEPS,
    NORMS,
    SHARE,
    STEADY_STEPS,
    chosen_places,
    one_in,
    steady_is_due,
)
from discreet.pytorch.checks.generators import Draws
from discreet.pytorch.checks.isolation import isolated
from discreet.pytorch.checks.mixing import LOOSE, rounds_coarsely, same_losses
from discreet.pytorch.checks.mixing import TOLERANCE as MOST_ROUNDED
from discreet.pytorch.checks.steady import steady_draws
from discreet.pytorch.clipped_sum import ClippedSum, Seen
from discreet.pytorch.grid_sums import squares_of
from discreet.pytorch.per_example import (
    loss_and_gradients,
    move_like,
    number_of_examples,
    per_example_gradients,
    rebuild,
    select,
    select_alone,
)
from discreet.pytorch.refusals import FOREIGN_GRADIENT, MEETS_OTHERS, MIXES, NOT_ALONE, ROUNDING_GROWS

EVERY = 256
EXAMPLES = 2
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of whole gradients
COARSE = 0.05  # where float64 cannot decide, as in models of half precision
WIDE = 1e-5  # in float64, where a model may well keep to float32 somewhere
LEAST_LOSS = 1e-3  # smaller losses are compared on this scale
LEAST_PART = 1e-3  # of a clip norm: an example counts as much at least


class Alone:
    """The loss and the gradient norms of an example that was passed alone; ``norms`` is None if not asked for."""

    def __init__(self, clipped_sum: ClippedSum, one: Any, with_norms: bool) -> None:
        parameters = list(clipped_sum.parameters.values()) if with_norms else []
        with Draws() as draws:
            value, found = loss_and_gradients(clipped_sum.model, clipped_sum.losses, one, parameters)
        self.norms: Tensor | None = None
        if with_norms:
            self.norms = torch.from_numpy(squares_of(found, list(clipped_sum.blocks().values()))[0]).sqrt()
        self.loss, self.drew = float(value.double()), draws.happened


class SpotCheck:
    """Over the sums of a run. ``every`` is for tests and for sums that are compared in no other way."""

    def __init__(self, clipped_sum: ClippedSum, every: int = EVERY) -> None:
        self._sum, self._every = clipped_sum, every
        self._steps = 0
        self._draws = False  # as far as is known, the model draws nothing
        self._looked = 0  # steps that were asked for by `is_due`
        self._started = self._of_step = self._of_one = 0.0

    # ---- before a step: whole gradients of a part that is repeated ----

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse the model if, on this batch, an example's gradient is not its own. Most steps are not looked at."""
        if count and self.is_due():
            self.check(examples)

    def is_due(self) -> bool:
        """Whether a part of this step is repeated, which nobody can foresee."""
        self._looked += 1
        return (self._every < EVERY and self._looked <= STEADY_STEPS) or secrets.randbelow(self._every) == 0

    def check(self, examples: Any) -> None:
        """:func:`refuse_foreign_gradients` of these examples."""
        refuse_foreign_gradients(self._sum, examples)

    # ---- within a step: what it has computed itself ----

    def before_sum(self, drawn: Drawn, count: int) -> None:
        """Choose the examples to compare, and let the sum write down what it computes for them."""
        self._places: tuple[int, ...] = ()
        self._sum.seen = None
        if count:
            self._steps += 1
            first = self._steps <= FIRST_STEPS
            usually = first or drawn.must_compare or one_in(self._one_in())
            if steady_is_due(self._steps) if self._draws else usually:
                self._places = drawn.places or chosen_places(self._steps, count)
            if self._places and not self._draws:
                self._sum.seen = Seen()
        self._started = time.perf_counter()

    def after_sum(self, examples: Any, drawn: Drawn) -> None:
        """Refuse the step if an example alone is not what it is in the batch.

        Guarantee: none for examples that are not looked at.
        """
        seen, self._sum.seen = self._sum.seen, None
        now = time.perf_counter()
        self._of_step = _follow(self._of_step, now - self._started)
        if drawn.steady is not None:
            refuse_other_losses(self._sum, *drawn.steady)
        if not self._places:
            return
        if self._draws:
            self._draws = self._alone(select_alone(examples, self._places[0]), with_norms=False).drew
            refuse_foreign_gradients(self._sum, examples)
            return
        assert seen is not None
        norms = self._steps <= FIRST_STEPS or drawn.must_compare or seen.losses is None or one_in(NORMS)
        if not self._compare(seen, examples, drawn, norms):
            self._draws = True
            if self._steps <= STEADY_STEPS:
                refuse_foreign_gradients(self._sum, examples)
        elif self._steps > STEADY_STEPS:  # what is compiled or looked up once is not the usual cost
            self._of_one = _follow(self._of_one, (time.perf_counter() - now) / len(self._places))

    def _one_in(self) -> float:
        """In one step of how many an example is compared, by what that costs."""
        affordable = self._of_one / (SHARE * self._of_step) if self._of_step else 1.0
        return min(max(affordable, 1.0), AT_LEAST)

    def _alone(self, one: Any, with_norms: bool) -> Alone:
        try:
            return Alone(self._sum, _on_its_device(self._sum, one), with_norms)
        except Exception:  # whose message may quote the example
            raise CheckFailed(NOT_ALONE) from None

    def _compare(self, seen: Seen, examples: Any, drawn: Drawn, norms: bool) -> bool:
        """Refuse foreign losses and norms; False if something was drawn, so that there is nothing to compare."""
        collated = bool(drawn.alone)
        for number, place in enumerate(self._places):
            one = drawn.alone[number] if collated else select_alone(examples, place)
            found = self._alone(one, norms)
            if found.drew:
                return False
            difference = difference_of(self._sum.rule, seen, found, place, anywhere=collated)
            if difference > self._tolerance():
                self._decide(difference, examples, one, place, collated)
        return True

    def _tolerance(self) -> float:
        kinds = {value.dtype for value in self._sum.parameters.values()}
        return TOLERANCE[torch.float64] if kinds == {torch.float64} else MOST_ROUNDED

    def _decide(self, difference: float, examples: Any, one: Any, place: int, collated: bool) -> None:
        """Refuse what is no rounding, and what is more of it than a release may hold."""
        model, losses = self._sum.model, self._sum.losses
        if difference <= COARSE and rounds_coarsely(model, losses, select_alone(examples, place)):
            return
        rounding = self._agrees_in_float64(examples, one, place, collated)
        if difference > (TOLERANCE[torch.float32] if rounding is None else LOOSE if rounding else 0.0):
            raise CheckFailed(ROUNDING_GROWS if rounding else MEETS_OTHERS if collated else MIXES)

    def _agrees_in_float64(self, examples: Any, one: Any, place: int, collated: bool) -> bool | None:
        """Whether there is no difference in a twin of the model in float64; None if there is no such twin."""
        if self._tolerance() < MOST_ROUNDED:
            return False
        try:
            again = twin_in_float64(self._sum)
            again.seen = seen = Seen()
            again(rebuild(examples, _as_double))
            found = Alone(again, rebuild(one, _as_double), with_norms=True)
        except Exception:  # a model that cannot be copied, or is made for one type only
            return None
        return difference_of(self._sum.rule, seen, found, place, anywhere=collated) <= WIDE


def twin_in_float64(of: ClippedSum) -> ClippedSum:
    """The same sums of a copy of the model in float64; the model itself keeps nothing of it."""
    model = copy.deepcopy(of.model).double()
    _, losses = isolated(of.model, of.losses, {id(of.model): model})
    return ClippedSum(model, losses, _not_recording(of.rule), physical_batch_size=of.physical_batch_size)


def _on_its_device(of: ClippedSum, batch: Any) -> Any:
    return move_like(batch, next(iter(of.parameters.values())))


def _follow(mean: float, value: float) -> float:
    """A running mean that forgets; the first value is its start."""
    return 0.9 * mean + 0.1 * value if mean else value


def difference_of(rule: ClipRule, seen: Seen, alone: Alone, place: int, *, anywhere: bool) -> float:
    """How far an example alone is from the one in the batch, in parts of its loss and in clip norms.

    With ``anywhere`` a collation may have changed the order: the example that is nearest counts.
    """
    norms, losses = seen.norms, seen.losses
    if norms.numel() and not anywhere:
        norms = norms[place : place + 1]
    found = _of_norms(rule, norms, alone.norms)
    if losses is not None:
        scale = max(float(losses.nan_to_num(0.0, 0.0, 0.0).abs().median()), LEAST_LOSS)
        losses = losses if anywhere else losses[place : place + 1]
        found = torch.maximum(found, _of_losses(losses, alone.loss, scale) * _parts_of_clip_norm(rule, norms))
    return float(found.min())


def _of_losses(losses: Tensor, alone: float, scale: float) -> Tensor:
    other = torch.tensor(alone, dtype=torch.float64)
    same = (losses == other) | (losses.isnan() & other.isnan())
    sizes = torch.maximum(losses.abs(), other.abs()).clamp(min=scale)
    return torch.where(same, 0.0, ((losses - other).abs() / sizes).nan_to_num(math.inf, math.inf))


def _of_norms(rule: ClipRule, norms: Tensor, alone: Tensor | None) -> Tensor:
    """By how many clip norms an example would be too long or too short, with the factor that the step gave it."""
    if alone is None:
        return torch.zeros(len(norms), dtype=torch.float64)
    finite = norms.isfinite().all(1)
    if not bool(alone.isfinite().all()):  # counts as zero, and must do so in the batch
        return torch.where(finite, math.inf, 0.0).double()
    off = _factors(rule, norms) * (norms - alone).abs() / _clip_norms(rule)
    return torch.where(finite, off.nan_to_num(math.inf, math.inf).amax(1), math.inf)


def _parts_of_clip_norm(rule: ClipRule, norms: Tensor) -> Tensor:
    """How much of a clip norm each example adds, not less than :data:`LEAST_PART`; all of it if it is not finite."""
    parts = (_factors(rule, norms) * norms / _clip_norms(rule)).amax(1)
    return parts.nan_to_num(1.0, 1.0, 1.0).clamp(LEAST_PART, 1.0)


def _not_recording(rule: ClipRule) -> ClipRule:
    """The rule without a record of norms: those that are compared must not be counted."""
    return Flat(rule.clip_norm) if isinstance(rule, Flat) else rule


def _factors(rule: ClipRule, norms: Tensor) -> Tensor:
    return torch.from_numpy(_not_recording(rule).factors(norms.nan_to_num(0.0, 0.0, 0.0).numpy()))


def _clip_norms(rule: ClipRule) -> Tensor:
    limits = rule.clip_norms if isinstance(rule, PerBlock) else (rule.clip_norm,)
    return torch.tensor(limits, dtype=torch.float64)


def refuse_other_losses(clipped_sum: ClippedSum, batch: Any, alone: tuple[Any, ...]) -> None:
    """Refuse a collation that draws and mixes: all of it was collated under steady draws."""
    count = number_of_examples(batch)
    size = max(1, clipped_sum.part_size(count))

    def losses_of(part: Any) -> Tensor:
        return clipped_sum.losses(clipped_sum.model, _on_its_device(clipped_sum, part)).cpu()

    with steady_draws(), torch.no_grad():
        parts = (select(batch, slice(start, start + size)) for start in range(0, count, size))
        together = torch.cat([losses_of(part) for part in parts])
        for one in map(losses_of, alone):
            if not any(same_losses(one, other[None], TOLERANCE[torch.float32]) for other in together):
                raise CheckFailed(MEETS_OTHERS)


def refuse_foreign_gradients(clipped_sum: ClippedSum, batch: Any) -> None:
    """Compare the gradients of a few examples in a part of the batch with their gradients alone.

    Guarantee: none for examples that are not looked at.
    """
    model, losses = clipped_sum.model, clipped_sum.losses
    part = _any_part(batch, clipped_sum.part_size(number_of_examples(batch)))
    chosen = [secrets.randbelow(number_of_examples(part)) for _ in range(EXAMPLES)]
    with steady_draws():
        if _foreign(clipped_sum, part, chosen) is None:
            return
    name = _foreign_in_float64(clipped_sum, part, chosen)
    if name is None and not rounds_coarsely(model, losses, select_alone(part, chosen[0])):
        with steady_draws(varied=False):
            name = _foreign(clipped_sum, part, chosen, LOOSE)
    if name is not None:
        raise CheckFailed(f"The gradient of an example at {name!r} {FOREIGN_GRADIENT}")


def _any_part(batch: Any, size: int) -> Any:
    """One of the parts in which a batch is worked off, so that big batches take no more memory here either."""
    start = size * secrets.randbelow(-(-number_of_examples(batch) // size))
    return select(batch, slice(start, start + size))


def _foreign(
    clipped_sum: ClippedSum, part: Any, chosen: list[int], tolerance: float | None = None
) -> str | None:
    """The name of a parameter whose gradient differs, or None."""
    together = clipped_sum.gradients_of(part, chosen)
    where = torch.tensor(chosen)
    few = rebuild(part, lambda tensor: tensor[where.to(tensor.device)])
    with torch.enable_grad():
        alone = per_example_gradients(clipped_sum.model, clipped_sum.losses, few)
    for place in range(len(chosen)):
        one = {name: rows[place].double() for name, rows in alone.items()}
        length = torch.stack([value.norm() for value in one.values()]).norm()
        if not bool(length.isfinite()):
            continue  # counts as zero either way
        for name, value in one.items():
            allowed = tolerance or TOLERANCE.get(alone[name].dtype, COARSE)
            if not bool((together[name][place].double() - value).norm() <= allowed * length):
                return name
    return None


def _foreign_in_float64(clipped_sum: ClippedSum, part: Any, chosen: list[int]) -> str | None:
    """The same where rounding cannot be the reason, such as a unit at zero that a batch switches on."""
    try:
        with steady_draws():
            return _foreign(twin_in_float64(clipped_sum), rebuild(part, _as_double), chosen)
    except Exception:  # a model that cannot be copied, or is made for one type only
        with steady_draws(varied=False):
            return _foreign(clipped_sum, part, chosen, COARSE)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
