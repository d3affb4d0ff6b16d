"""Whether a small difference between an example alone and in its batch is rounding.

Matrix products add up in another order for one row than for many, so float32 results differ by about 1e-6 of their
size, in deep networks by 1e-5. A larger difference has to vanish in float64. Above
:data:`~discreet.pytorch.checks.batch_dependence.LOOSE` it is refused even then: the release is made of float32
numbers, and there one example does change what the others add. Differences above
:data:`~discreet.pytorch.checks.differences.COARSE` are refused whatever is found here.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.checks.batch_dependence import LOOSE, rounds_coarsely
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.differences import (
    COARSE,
    TOLERANCE,
    Alone,
    difference_of,
    foreign_gradient,
    not_recording,
    tolerance_of,
)
from discreet.pytorch.checks.isolation import isolated
from discreet.pytorch.clipped_sum import ClippedSum, ExampleNorms
from discreet.pytorch.per_example import rebuild, select_alone
from discreet.pytorch.refusals import MEETS_OTHERS, MIXES, ROUNDING_GROWS

WIDE = 1e-5
"""The tolerance in float64, where a model may well keep to float32 somewhere."""


def problem_beyond_rounding(
    of: ClippedSum, difference: float, examples: Any, one: Any, place: int, collated: bool
) -> str | None:
    """Return why a difference of losses or norms is no rounding, or too much of it; None if it may stand."""
    if difference <= COARSE and rounds_coarsely(of.model, of.losses, select_alone(examples, place)):
        return None
    rounding = agrees_in_float64(of, examples, one, place, collated)
    if difference <= (TOLERANCE[torch.float32] if rounding is None else LOOSE if rounding else 0.0):
        return None
    return ROUNDING_GROWS if rounding else MEETS_OTHERS if collated else MIXES


def agrees_in_float64(of: ClippedSum, examples: Any, one: Any, place: int, collated: bool) -> bool | None:
    """Return whether there is no difference in a twin of the model in float64; None if there is no such twin."""
    if tolerance_of(of) == TOLERANCE[torch.float64]:
        return False
    try:
        again = twin_in_float64(of)
        again.seen = seen = ExampleNorms()
        again(rebuild(examples, _as_double))
        found = Alone(again, rebuild(one, _as_double), with_norms=True)
    except Exception:  # a model that cannot be copied, or is made for one type only
        return None
    return difference_of(of.rule, seen, found, place, anywhere=collated) <= WIDE


def foreign_beyond_rounding(of: ClippedSum, part: Any, chosen: list[int]) -> str | None:
    """Return a parameter whose gradient differs by more than rounding, such as a unit at zero that is switched on."""
    try:
        with deterministic_draws():
            name = foreign_gradient(twin_in_float64(of), rebuild(part, _as_double), chosen)
    except Exception:  # a model that cannot be copied, or is made for one type only
        with deterministic_draws(varied=False):
            name = foreign_gradient(of, part, chosen, COARSE)
    if name is None and not rounds_coarsely(of.model, of.losses, select_alone(part, chosen[0])):
        with deterministic_draws(varied=False):
            name = foreign_gradient(of, part, chosen, LOOSE)
    return name


def twin_in_float64(of: ClippedSum) -> ClippedSum:
    """The same sums of a copy of the model in float64; the model itself keeps nothing of it."""
    model = copy.deepcopy(of.model).double()
    _, losses = isolated(of.model, of.losses, {id(of.model): model})
    return ClippedSum(model, losses, not_recording(of.rule), physical_batch_size=of.physical_batch_size)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
