"""The trusted part of private training: draw, clip, sum, compare, charge, add noise. :class:`PrivateSteps`.

:class:`~discreet.pytorch.run.PrivateRun` is what users hold: it adds optimizers, checks of the model, progress,
epochs and checkpoints. It gets batches that cannot be opened and sums that have their noise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet.certificate import Certificate
from discreet.core.clipping import AdaptiveClip, ClipRule
from discreet.core.noise import BoundedSum
from discreet.errors import DiscreetError, PlanViolation
from discreet.ledger import Till
from discreet.ledger.ledger_state import Anchor
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.plan import Plan
from discreet.plan.procedure import refuse_uncovered_bands
from discreet.pytorch.batches import Batch, BatchRegistry, Collate, Drawn, Draws, Reader
from discreet.pytorch.checks.compatibility import is_fully_sharded
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.checks.same_rows import refuse_other_rows
from discreet.pytorch.checks.spot_check import DESCRIPTION, DETERMINISTIC_DESCRIPTION, SpotCheck
from discreet.pytorch.checks.withheld import withhold
from discreet.pytorch.clipped_sum import ClippedSum, refuse_coarse_products
from discreet.pytorch.distributed import Processes, stream_of
from discreet.pytorch.gradients import Sums
from discreet.pytorch.integer_gradients import PADDED, checked_arithmetic, grids_of, steps_of_batch
from discreet.pytorch.per_example import (
    Losses,
    move_like,
    number_of_examples,
    silent_gradients,
    trainable,
)
from discreet.pytorch.per_person import losses_for, reader_for
from discreet.pytorch.refusals import ANOTHER_PROCESS
from discreet.pytorch.training_stages import (
    CorrelatedNoise,
    NormRecordingClip,
    Schedule,
    StageSpan,
    StepCharger,
    checked_plan,
    enforced,
    follow_norms,
    noises_of,
    refuse_bands,
    rule_of_step,
)
from discreet.trusted.permits import NoisePermit

if TYPE_CHECKING:
    from discreet.pytorch.sharded import Shards

READING = "the data set or collate"
END = object()

NOT_COVERED = (
    "rows of the data set that depend on other rows, change while it is read, or hold one record more than once",
    "what the model, the losses or hooks remember, keep or print of the records",
    "anything else done to the model with the records, also after the run: edits of weights, statistics of batches",
)
ROUNDED = (
    "the rounding of gradients and their sums, by which one record may move what the others add: usually about 1e-7 "
    "clip norms for each example of a batch in float32"
)
"""Not covered by steps in floating point; ``arithmetic="hardened"`` covers it."""


class PrivateSteps:
    """One plan, carried out on one model, up to the sums that have their noise.

    Guarantee: what the hook ``_descend`` gets, and so every parameter after every step, costs what ``plan.guarantee``
    says at most, whatever the loop does: a step that the plan does not hold is refused.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        losses: Losses,
        clipping: Sequence[ClipRule | AdaptiveClip],
        *,
        physical_batch_size: int | None,
        ledger: AnyLedger,
        ledger_key: KeyFile,
        data: str | None,
        arithmetic: Literal["float", "hardened"],
        unsafe_seed: int | None,
    ) -> None:
        self.plan = checked_plan(plan)
        self._schedule, self._model, self._data = Schedule(plan), model, data
        self._clipping = list(map(enforced, clipping))
        self._processes = Processes.current()
        alone = self._processes.size == 1 and not is_fully_sharded(model)
        self._arithmetic = checked_arithmetic(arithmetic, list(self._clipping), alone)
        refuse_bands(plan.stages, self._clipping, arithmetic)
        self._correlated = [CorrelatedNoise(stage.bands) for stage in plan.stages]
        self._stream = stream_of(unsafe_seed, self._processes)
        shards, rule = self._shards_of(model), rule_of_step(self._clipping[0])
        with nullcontext() if shards is None else shards.whole():
            losses = losses_for(plan, losses)
            self._sum = ClippedSum(model, losses, rule, physical_batch_size=physical_batch_size)
        self._sharded = None if shards is None else shards.sum_of(self._sum)
        self._parameters = trainable(model)
        self._spot_check = SpotCheck(self._sum)
        dimension = sum(value.numel() for value in self._parameters.values())
        clip_norms = [rule.clip_norm for rule in self._clipping]
        self._grids, self._certified = grids_of(self._arithmetic, plan, clip_norms, dimension)
        self._noises = noises_of(plan, self._clipping, self._grids, self._processes.size)
        self._trusted = self._stream.trusted
        self._draws: Draws = unknown_draws if self._trusted else nullcontext
        """What models and collations draw is unknown, unless noise is seeded, too."""
        self._processes.refuse_difference(self._settings())
        first = self._processes.first
        self._till = Till.open(ledger, plan, key=ledger_key, data=data) if first else None
        if self._till is not None:  # whose ledger covers all runs together
            refuse_uncovered_bands(plan.stages, self._till.ledger.rule.budget)
        self._charger: StepCharger | None = None
        self._resumed = False
        self._turns = BatchRegistry()
        self._stepping = threading.Lock()

    @property
    def _taken(self) -> int:
        """The steps that this run has paid for or resumed after."""
        return 0 if self._charger is None else self._charger.taken

    @withhold(READING)
    def _draw(self, dataset: Any, collate: Collate | None, workers: int) -> Iterator[Batch]:
        """Draw the batches of all steps that are left, as the plan says.

        Guarantee: each process draws from its own part of the rows; a batch that was drawn is used, or no other is.
        """
        records, start = reader_for(self.plan, dataset, collate), self._taken
        self._turns.refuse_again(start, self.plan.steps)
        self._check_records(dataset, records)
        if self._processes.size > 1:
            if any(stage.sampling == "fixed-size" for stage in self.plan.stages):
                raise PlanViolation("Fixed-size batches need a single process; plan with Poisson sampling.")
            self._processes.refuse_difference({"the number of rows of the data set": str(records.rows)})
            refuse_other_rows(self._processes, records)
            if self._sharded is not None:
                self._sharded.spare = lambda whole=records: self._on_device(whole([0]))  # type: ignore[misc]
            records = records.part(self._processes.rows(records.rows))
        drawn = self._schedule.batches(self._stream, records.rows, start)
        self._turns = BatchRegistry(start)
        for noise in self._correlated:  # whose records draw new turns
            noise.forget()
        with self._draws():
            read = records.each(drawn, workers, self._draws)
        return map(self._turns.batch_of, enumerate(self._each(read), start + 1))

    def _each(self, read: Iterator[Any]) -> Iterator[Any]:
        following = withhold(READING)(partial(next, read, END))
        while True:
            with self._draws():
                batch = following()
            if batch is END:
                return
            yield batch
            del batch  # or a traceback through this frame would hold it

    @withhold("the model, the losses or the optimizer")
    @silent_gradients()
    def step(self, batch: Batch) -> None:
        """Take one step of the plan: clip, sum, pay, add noise, divide, and let the optimizer step.

        Afterwards ``parameter.grad`` holds the private gradient.

        Guarantee: nothing of the batch is released but its clipped sum with the plan's noise, after the ledger was
        charged. A batch of other origin and a step beyond the plan are refused; so is a sum that is not the sum of
        what its examples add alone, before the ledger is charged. That ends the run for good: another try would
        compare other examples.
        """
        if not self._stepping.acquire(blocking=False):
            raise PlanViolation("A step of this run is under way, in another thread or in its own losses.")
        try:
            self._spot_check.refuse_if_ended()
            self._descend(*self._release(batch))
        finally:
            self._stepping.release()

    def _release(self, batch: Batch) -> tuple[Sums, float]:
        """Return the sum of a batch with its noise, and its public divisor."""
        refuse_coarse_products()  # before paying, and whatever the batch
        drawn = self._turns.drawn_for(batch, self._taken + 1)
        examples = drawn.batch
        count = 0 if examples is None else number_of_examples(examples)
        if count:
            examples = self._on_device(examples)
        with self._ending():
            self._check_batch(examples, count)
        charger, span = self._charging(), self._schedule.span(self._taken + 1)
        charger.refuse_past_the_end()
        clipping = self._clipping[span.index]
        rule = self._sum.rule = rule_of_step(clipping)
        with self._draws(), self._ending():
            sums, in_steps, norms = self._compared_sums(examples, count, span, drawn)
        permit = charger.pay(rule.clip_norm)
        self._add_noise(permit, sums, in_steps, span)
        if isinstance(clipping, AdaptiveClip):
            least = self._sum.least_clip_norm
            self._clipping[span.index] = follow_norms(clipping, norms, self._processes, permit, least)
        return sums, span.divisor

    def _check_records(self, dataset: Any, records: Reader) -> None:
        """Hook that is called with all records before any is drawn, and may raise."""

    def _check_batch(self, examples: Any, count: int) -> None:
        """Hook that is called before anything is computed, and may raise."""

    def _before_sum(self, count: int, drawn: Drawn) -> None:
        """Hook that is called before a sum is computed, and may raise."""

    def _after_sum(self, examples: Any, count: int, drawn: Drawn) -> None:
        """Hook that is called between a sum and its charge, and may raise."""

    def _descend(self, sums: Sums, divisor: float) -> None:
        """Hook that is called with a sum that has its noise, and the number to divide it by."""

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Store a refusal by a comparison in the ledger: it ends the run for good."""
        try:
            yield
        except DiscreetError:
            if self._spot_check.refusal:
                self._charging().refuse_from_now_on()
            raise

    def certificate(self) -> Certificate:
        """Return what this run has released so far and its cost; refused for a run whose examples mix."""
        self._spot_check.refuse_if_ended()
        self._charging().commit()

        def write() -> str:
            assert self._till is not None
            return Certificate.of(
                self._till.ledger,
                self.plan,
                arithmetic=self._certified,
                trusted=self._trusted,
                not_covered=self._not_covered,
                checks=(DESCRIPTION, DETERMINISTIC_DESCRIPTION) if self._arithmetic == "float" else (),
            ).to_json()

        return Certificate.from_json(self._processes.text_of_first(write))

    @property
    def _not_covered(self) -> tuple[str, ...]:
        """Sentences of the certificate about what it does not cover."""
        return (*NOT_COVERED, ROUNDED if self._arithmetic == "float" else PADDED)

    def _accept(self, step: int, clipping: ClipRule | AdaptiveClip, head: Anchor, trusted: bool) -> None:
        """Go on after a step of an earlier attempt, with its clipping if that is adaptive, or raise.

        Guarantee: a ledger older than the checkpoint is refused.
        """

        def compare() -> int:
            assert self._till is not None  # of the first process
            self._till.insist_on(head)
            return 0

        self._processes.let_first_decide(compare)
        index = self._schedule.span(step + 1).index
        if isinstance(self._clipping[index], AdaptiveClip):  # others are as they were given
            self._clipping[index] = enforced(clipping)
        self._resumed = True
        self._trusted = self._trusted and trusted  # a seed in the first part spoils the whole

    def _charging(self) -> StepCharger:
        if self._charger is None:
            known = (self._till, self.plan, self._processes, self._noises, self._stream)
            self._charger = StepCharger(*known, self._certified.distance, resumed=self._resumed)
        return self._charger

    def _settings(self) -> dict[str, str]:
        """Return the settings that all processes must have in common, by the name used in a refusal."""
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in self._parameters.items()]
        return {
            "their plan": self.plan.digest(),
            "their clipping": repr(self._clipping),
            "the name of the data set": repr(self._data),
            "their arithmetic": self._arithmetic,
            "the parameters of the model": repr(shapes),
            "whether they have an unsafe_seed": str(self._trusted),
        }

    def _on_device(self, examples: Any) -> Any:
        return move_like(examples, next(iter(self._parameters.values())))

    def _compared_sums(
        self, examples: Any, count: int, span: StageSpan, drawn: Drawn
    ) -> tuple[Sums, Tensor | None, NDArray[np.float64]]:
        """Return :meth:`_sum_up` and the norms that the rule has recorded, refused in all processes if in one of
        them.

        The norms are those of the sum, and none that were computed to compare it.
        """
        self._before_sum(count, drawn)
        sums, in_steps = self._sum_up(examples, count, span)
        rule = self._sum.rule
        norms = rule.norms() if isinstance(rule, NormRecordingClip) else np.empty(0)
        if self._sharded is None and len(norms) > count:
            raise PlanViolation("A norm was recorded more than once. Nothing of this step was released.")
        problem: Exception | None = None
        try:
            with self._spot_check.ending():
                self._after_sum(examples, count, drawn)
                if count and self._sharded is None:
                    self._compare(examples, sums, in_steps, span, drawn)
        except Exception as found:
            problem = found
            if self._processes.size == 1:
                raise
        if self._processes.size > 1:
            failed, refused = self._processes.most([problem is not None, bool(self._spot_check.refusal)])
            if refused:
                self._spot_check.refusal = self._spot_check.refusal or ANOTHER_PROCESS
            if failed:
                raise problem or PlanViolation(ANOTHER_PROCESS)
        return sums, in_steps, norms

    def _compare(
        self, examples: Any, sums: Sums, in_steps: Tensor | None, span: StageSpan, drawn: Drawn
    ) -> None:
        """Compare the sum with that of pieces of the batch; hardened sums are of examples that were alone already."""
        grid, pieces = self._grids[span.index], drawn.pieces
        if grid is None or in_steps is None:
            self._spot_check.compare(sums.vector, examples, pieces, collated=drawn.collated)
        elif drawn.collated:

            def sum_of(batch: Any) -> Tensor:
                return steps_of_batch(self._sum, batch, grid) * grid

            self._spot_check.compare(in_steps * grid, examples, pieces, collated=True, sum_of=sum_of)

    def _sum_up(self, examples: Any, count: int, span: StageSpan) -> tuple[Sums, Tensor | None]:
        """Return the clipped sums of this process's records, or its shard of all; or zeros, and integer steps."""
        if self._sharded is not None:
            return self._sharded(examples, count), None
        if self._arithmetic == "hardened":
            grid = self._grids[span.index]
            assert grid is not None  # of a hardened run
            return Sums(self._parameters), steps_of_batch(self._sum, examples if count else None, grid)
        return self._sum(examples) if count else Sums(self._parameters), None

    def _shards_of(self, model: nn.Module) -> Shards | None:
        if not is_fully_sharded(model):
            return None
        from discreet.pytorch.sharded import Shards  # which takes long to import

        return Shards(model, self._processes)

    def _add_noise(self, permit: NoisePermit, sums: Sums, in_steps: Tensor | None, span: StageSpan) -> None:
        """Add the noise of the permit, in each process to the part of the sum that it finishes."""
        clip_norm = self._sum.rule.clip_norm

        def finish(total: Tensor) -> None:
            if span.stage.bands > 1:
                self._correlated[span.index].add_to(total, self._taken, clip_norm, permit)
            else:
                permit.release(BoundedSum(total, clip_norm), out=total)

        if in_steps is not None:
            permit.release(BoundedSum(in_steps, clip_norm, grid=self._grids[span.index]), out=sums.vector)
        elif self._sharded is not None or self._processes.size == 1:
            finish(sums.vector)
        else:
            self._processes.add_up_in_parts(sums.vector, finish)
