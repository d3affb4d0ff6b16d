"""Comparison of losses and gradient norms of single examples with those of the same examples alone.

It costs less than the comparison of whole sums (:mod:`~discreet.pytorch.checks.spot_check`), so it is made more
often: for eight examples in each of the first steps, and for one example in later steps, in all of them where that
takes at most :data:`SHARE` of their time and never in fewer than one of :data:`AT_LEAST`. The guarantee does not rest
on it.

Losses are compared on the scale of the batch's median loss and weighed by the part of a clip norm that their gradient
has, because the loss of an example that is fitted well consists of rounding errors. Matrix products add up in another
order for one row than for many, so float32 results differ by about 1e-6 of their size, in deep networks by 1e-5. A
larger difference has to vanish in float64. Above :data:`~discreet.pytorch.checks.batch_dependence.LOOSE` it is
refused even then: the release is made of float32 numbers, and there one example does change what the others add.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discreet.core.clipping import ClipRule, PerBlock
from discreet.errors import CheckFailed
from discreet.pytorch.checks.batch_dependence import LOOSE, rounds_coarsely
from discreet.pytorch.checks.generators import Draws
from discreet.pytorch.checks.isolation import isolated
from discreet.pytorch.checks.spot_check import not_recording
from discreet.pytorch.clipped_sum import ClippedSum, ExampleNorms
from discreet.pytorch.integer_gradients import squares_of
from discreet.pytorch.per_example import loss_and_gradients, move_like, rebuild, select_alone
from discreet.pytorch.refusals import MEETS_OTHERS, MIXES, NOT_ALONE, ROUNDING_GROWS

FIRST_STEPS, FIRST_EXAMPLES = 20, 8
AT_LEAST = 16
SHARE = 0.01
NORMS = 8
"""After the first steps the norm is compared in one of so many comparisons; the loss in all of them."""

MOST_ROUNDED = {torch.float32: 1e-4, torch.float64: 1e-6}
"""Smaller differences of losses and norms count as rounding."""
TOLERANCE = 1e-3
"""A larger difference is refused where there is no twin in float64."""
COARSE = 0.05
"""A larger difference is refused, whatever the reason."""
WIDE = 1e-5
"""The tolerance in float64, where a model may well keep to float32 somewhere."""
LEAST_LOSS = 1e-3
"""Smaller losses are compared on this scale."""
LEAST_PART = 1e-3
"""Of a clip norm: an example counts as much at least."""

_SYSTEM = secrets.SystemRandom()


class Collated(NamedTuple):
    """Records that ``collate`` has made into batches of their own, with their places among the records of a step.

    ``must_compare`` says that records of different sizes met for one of the first times.
    """

    places: tuple[int, ...]
    alone: tuple[Any, ...]
    must_compare: bool = False


def chosen_places(step: int, count: int) -> tuple[int, ...]:
    """Draw the places of the examples to compare in a step, among ``count``: different ones, all equally likely."""
    wanted = FIRST_EXAMPLES if step <= FIRST_STEPS else 1
    return tuple(_SYSTEM.sample(range(count), min(wanted, count)))


def one_in(number: float) -> bool:
    """Return True with probability 1 / ``number``, by the operating system's randomness."""
    return secrets.randbits(53) * number < 2.0**53


class SingleExamples:
    """Compares examples of the steps of a run whose model draws no random numbers."""

    def __init__(self, clipped_sum: ClippedSum) -> None:
        self._sum = clipped_sum
        self.steps = 0
        self._draws = False  # as far as is known, the model draws nothing
        self._started = self._of_step = self._of_one = 0.0
        self._places: tuple[int, ...] = ()

    def before_sum(self, count: int, collated: Collated | None) -> None:
        """Choose the examples to compare, and let the sum write down what it computes for them."""
        self._places, self._sum.seen = (), None
        if count:
            self.steps += 1
            must = self.steps <= FIRST_STEPS or (collated is not None and collated.must_compare)
            if not self._draws and (must or one_in(self._one_in())):
                self._places = chosen_places(self.steps, count) if collated is None else collated.places
                self._sum.seen = ExampleNorms()
        self._started = time.perf_counter()

    def after_sum(self, examples: Any, collated: Collated | None) -> None:
        """Refuse the step if an example alone is not what it is in the batch."""
        seen, self._sum.seen = self._sum.seen, None
        now = time.perf_counter()
        self._of_step = _follow(self._of_step, now - self._started)
        if seen is None or not self._places:
            return
        must = self.steps <= FIRST_STEPS or (collated is not None and collated.must_compare)
        norms = must or seen.losses is None or one_in(NORMS)
        self._draws = not self._compare(seen, examples, collated, norms)
        if self.steps > 2:  # what is compiled or looked up once is not the usual cost
            self._of_one = _follow(self._of_one, (time.perf_counter() - now) / len(self._places))

    def _one_in(self) -> float:
        """Return in one step of how many an example is compared, by what that costs."""
        affordable = self._of_one / (SHARE * self._of_step) if self._of_step else 1.0
        return min(max(affordable, 1.0), AT_LEAST)

    def _compare(self, seen: ExampleNorms, examples: Any, collated: Collated | None, norms: bool) -> bool:
        """Refuse foreign losses and norms; False if something was drawn, so that there is nothing to compare."""
        for number, place in enumerate(self._places):
            one = select_alone(examples, place) if collated is None else collated.alone[number]
            one = move_like(one, next(iter(self._sum.parameters.values())))
            try:
                found = Alone(self._sum, one, norms)
            except Exception:  # whose message may quote the example
                raise CheckFailed(NOT_ALONE) from None
            if found.drew:
                return False
            difference = difference_of(self._sum.rule, seen, found, place, anywhere=collated is not None)
            if difference > tolerance_of(self._sum):
                problem = problem_beyond_rounding(
                    self._sum, difference, examples, one, place, collated is not None
                )
                if problem is not None or difference > COARSE:
                    raise CheckFailed(problem or MIXES)
        return True


def _follow(mean: float, value: float) -> float:
    """Return a running mean that forgets; the first value is its start."""
    return 0.9 * mean + 0.1 * value if mean else value


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


def tolerance_of(clipped_sum: ClippedSum) -> float:
    """Return the difference up to which losses and norms of a model count as equal."""
    kinds = {value.dtype for value in clipped_sum.parameters.values()}
    return MOST_ROUNDED[torch.float64 if kinds == {torch.float64} else torch.float32]


def difference_of(rule: ClipRule, seen: ExampleNorms, alone: Alone, place: int, *, anywhere: bool) -> float:
    """Return how far an example alone is from the one in the batch, in parts of its loss and in clip norms.

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
    """Return by how many clip norms an example would be too long or too short, with the factor of the step."""
    if alone is None:
        return torch.zeros(len(norms), dtype=torch.float64)
    finite = norms.isfinite().all(1)
    if not bool(alone.isfinite().all()):  # counts as zero, and must do so in the batch
        return torch.where(finite, math.inf, 0.0).double()
    off = _factors(rule, norms) * (norms - alone).abs() / _clip_norms(rule)
    return torch.where(finite, off.nan_to_num(math.inf, math.inf).amax(1), math.inf)


def _parts_of_clip_norm(rule: ClipRule, norms: Tensor) -> Tensor:
    """Return how much of a clip norm each example adds, at least :data:`LEAST_PART`; all of it if not finite."""
    parts = (_factors(rule, norms) * norms / _clip_norms(rule)).amax(1)
    return parts.nan_to_num(1.0, 1.0, 1.0).clamp(LEAST_PART, 1.0)


def _factors(rule: ClipRule, norms: Tensor) -> Tensor:
    return torch.from_numpy(not_recording(rule).factors(norms.nan_to_num(0.0, 0.0, 0.0).numpy()))


def _clip_norms(rule: ClipRule) -> Tensor:
    limits = rule.clip_norms if isinstance(rule, PerBlock) else (rule.clip_norm,)
    return torch.tensor(limits, dtype=torch.float64)


def problem_beyond_rounding(
    of: ClippedSum, difference: float, examples: Any, one: Any, place: int, collated: bool
) -> str | None:
    """Return why a difference of losses or norms is no rounding, or too much of it; None if it may stand."""
    if difference <= COARSE and rounds_coarsely(of.model, of.losses, select_alone(examples, place)):
        return None
    rounding = agrees_in_float64(of, examples, one, place, collated)
    if difference <= (TOLERANCE if rounding is None else LOOSE if rounding else 0.0):
        return None
    return ROUNDING_GROWS if rounding else MEETS_OTHERS if collated else MIXES


def agrees_in_float64(of: ClippedSum, examples: Any, one: Any, place: int, collated: bool) -> bool | None:
    """Return whether there is no difference in a twin of the model in float64; None if there is no such twin."""
    if tolerance_of(of) == MOST_ROUNDED[torch.float64]:
        return False
    try:
        again = twin_in_float64(of)
        again.seen = seen = ExampleNorms()
        again(rebuild(examples, _as_double))
        found = Alone(again, rebuild(one, _as_double), with_norms=True)
    except Exception:  # a model that cannot be copied, or is made for one type only
        return None
    return difference_of(of.rule, seen, found, place, anywhere=collated) <= WIDE


def twin_in_float64(of: ClippedSum) -> ClippedSum:
    """Return the sums of a copy of the model in float64; the model itself keeps nothing of it."""
    model = copy.deepcopy(of.model).double()
    _, losses = isolated(of.model, of.losses, {id(of.model): model})
    return ClippedSum(model, losses, not_recording(of.rule), physical_batch_size=of.physical_batch_size)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
