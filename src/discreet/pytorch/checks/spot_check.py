"""Examples of the very batch, worked on alone before the step is paid for: :class:`SpotCheck`.

The check before training tries made-up examples, and the proof by the graph sees what autograd sees. What gets past
both shows when an example of the batch is worked on by itself: a statistic of the batch without a gradient, padding
by the longest record, a loss that changes its ways after a while, rounding that grows, a mistake of ours. So in the
steps that :mod:`~discreet.pytorch.checks.chances` names, the loss of an example and the norm by which it was clipped,
as the step itself has computed them, are compared with those of the example collated and passed alone, by plain
autograd. A difference ends the run before anything is charged or released.

Where a forward pass draws random numbers, an example alone draws others. Then a part of the batch is repeated under
steady draws, and whole gradients are compared; so is one step in :data:`EVERY` in any case.

Small differences may be rounding: :mod:`~discreet.pytorch.checks.rounding` judges those. Differences above
:data:`~discreet.pytorch.checks.differences.COARSE` are refused whatever it says.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import torch
from torch import Tensor

from discreet.errors import CheckFailed
from discreet.pytorch.batches import Drawn
from discreet.pytorch.checks.batch_dependence import same_losses
from discreet.pytorch.checks.chances import (
    AT_LEAST,
    DETERMINISTIC_STEPS,
    FIRST_STEPS,
    NORMS,
    SHARE,
    chosen_places,
    deterministic_check_is_due,
    one_in,
)
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.differences import (
    COARSE,
    TOLERANCE,
    Alone,
    difference_of,
    foreign_gradient,
    tolerance_of,
)
from discreet.pytorch.checks.rounding import foreign_beyond_rounding, problem_beyond_rounding
from discreet.pytorch.clipped_sum import ClippedSum, ExampleNorms
from discreet.pytorch.per_example import move_like, number_of_examples, select, select_alone
from discreet.pytorch.refusals import FOREIGN_GRADIENT, MEETS_OTHERS, MIXES, NOT_ALONE

EVERY = 256
EXAMPLES = 2


class SpotCheck:
    """Over the sums of a run. ``every`` is for tests and for sums that are compared in no other way."""

    def __init__(self, clipped_sum: ClippedSum, every: int = EVERY) -> None:
        self._sum, self._every = clipped_sum, every
        self._steps = 0
        self._draws = False  # as far as is known, the model draws nothing
        self._looked = 0  # steps that were asked for by `is_due`
        self._started = self._of_step = self._of_one = 0.0

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse the model if, on this batch, an example's gradient is not its own. Most steps are not looked at."""
        if count and self.is_due():
            self.check(examples)

    def is_due(self) -> bool:
        """Whether a part of this step is repeated, which nobody can foresee."""
        self._looked += 1
        return (self._every < EVERY and self._looked <= DETERMINISTIC_STEPS) or secrets.randbelow(
            self._every
        ) == 0

    def check(self, examples: Any) -> None:
        """:func:`refuse_foreign_gradients` of these examples."""
        refuse_foreign_gradients(self._sum, examples)

    def before_sum(self, drawn: Drawn, count: int) -> None:
        """Choose the examples to compare, and let the sum write down what it computes for them."""
        self._places: tuple[int, ...] = ()
        self._sum.seen = None
        if count:
            self._steps += 1
            first = self._steps <= FIRST_STEPS
            usually = first or drawn.must_compare or one_in(self._one_in())
            if deterministic_check_is_due(self._steps) if self._draws else usually:
                self._places = drawn.places or chosen_places(self._steps, count)
            if self._places and not self._draws:
                self._sum.seen = ExampleNorms()
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
            if self._steps <= DETERMINISTIC_STEPS:
                refuse_foreign_gradients(self._sum, examples)
        elif self._steps > DETERMINISTIC_STEPS:  # what is compiled or looked up once is not the usual cost
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

    def _compare(self, seen: ExampleNorms, examples: Any, drawn: Drawn, norms: bool) -> bool:
        """Refuse foreign losses and norms; False if something was drawn, so that there is nothing to compare."""
        collated = bool(drawn.alone)
        for number, place in enumerate(self._places):
            one = drawn.alone[number] if collated else select_alone(examples, place)
            found = self._alone(one, norms)
            if found.drew:
                return False
            difference = difference_of(self._sum.rule, seen, found, place, anywhere=collated)
            if difference > tolerance_of(self._sum):
                problem = problem_beyond_rounding(self._sum, difference, examples, one, place, collated)
                if problem is not None or difference > COARSE:
                    raise CheckFailed(problem or MIXES)
        return True


def _on_its_device(of: ClippedSum, batch: Any) -> Any:
    return move_like(batch, next(iter(of.parameters.values())))


def _follow(mean: float, value: float) -> float:
    """A running mean that forgets; the first value is its start."""
    return 0.9 * mean + 0.1 * value if mean else value


def refuse_other_losses(clipped_sum: ClippedSum, batch: Any, alone: tuple[Any, ...]) -> None:
    """Refuse a collation that draws and mixes: all of it was collated under steady draws."""
    count = number_of_examples(batch)
    size = max(1, clipped_sum.part_size(count))

    def losses_of(part: Any) -> Tensor:
        return clipped_sum.losses(clipped_sum.model, _on_its_device(clipped_sum, part)).cpu()

    with deterministic_draws(), torch.no_grad():
        parts = (select(batch, slice(start, start + size)) for start in range(0, count, size))
        together = torch.cat([losses_of(part) for part in parts])
        for one in map(losses_of, alone):
            if not any(same_losses(one, other[None], TOLERANCE[torch.float32]) for other in together):
                raise CheckFailed(MEETS_OTHERS)


def refuse_foreign_gradients(clipped_sum: ClippedSum, batch: Any) -> None:
    """Compare the gradients of a few examples in a part of the batch with their gradients alone.

    Guarantee: none for examples that are not looked at.
    """
    part = _any_part(batch, clipped_sum.part_size(number_of_examples(batch)))
    chosen = [secrets.randbelow(number_of_examples(part)) for _ in range(EXAMPLES)]
    with deterministic_draws():
        if foreign_gradient(clipped_sum, part, chosen) is None:
            return
    name = foreign_beyond_rounding(clipped_sum, part, chosen)
    if name is None:
        with deterministic_draws(varied=False):
            name = foreign_gradient(clipped_sum, part, chosen, COARSE)
    if name is not None:
        raise CheckFailed(f"The gradient of an example at {name!r} {FOREIGN_GRADIENT}")


def _any_part(batch: Any, size: int) -> Any:
    """One of the parts in which a batch is worked off, so that big batches take no more memory here either."""
    start = size * secrets.randbelow(-(-number_of_examples(batch) // size))
    return select(batch, slice(start, start + size))
