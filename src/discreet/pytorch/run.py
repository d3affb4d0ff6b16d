"""Private training with your own model, optimizer and loop: :class:`PrivateRun`.

    run = PrivateRun(plan, model, optimizer, losses)     # nothing wrapped, nothing rebound
    for batch in run.batches(dataset):                   # exactly plan.steps of them, some may be empty
        run.step(batch)                                  # clip, sum, pay, noise, optimizer.step()
        scheduler.step()                                 # as usual
    run.certificate().save("certificate.json")

``losses(model, batch)`` returns one loss per example. Before the first step, and when the model's modes or
modules change, model and losses are checked: see :mod:`discreet.pytorch.checks.check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from discreet.core.clipping import AdaptiveClip, ClipRule
from discreet.errors import PlanViolation
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage
from discreet.pytorch import checkpoint
from discreet.pytorch.batches import Batch, Collate, Drawn, Reader
from discreet.pytorch.checkpoint import Schedulers, schedulers
from discreet.pytorch.checks.compatibility import insist_function, refuse_layers, unwrap_model
from discreet.pytorch.checks.model_guard import ModelGuard
from discreet.pytorch.checks.same_rows import same_records
from discreet.pytorch.checks.single_examples import SingleExamples
from discreet.pytorch.clipping_choice import clipping_of_stages, resumed_clipping
from discreet.pytorch.gradients import Sums
from discreet.pytorch.loaders import refuse_many_rows, unwrap_loader
from discreet.pytorch.optimizer_step import OptimizerStep, as_optimizers
from discreet.pytorch.per_example import Losses
from discreet.pytorch.private_steps import PrivateSteps
from discreet.pytorch.progress import epoch_ends, show_progress
from discreet.pytorch.refusals import LEDGER_IN_MEMORY, OTHER_DATA_SET
from discreet.pytorch.training_stages import checked_plan

__all__ = ["Clipping", "PrivateRun"]

Clipping = ClipRule | AdaptiveClip


class PrivateRun(PrivateSteps):
    """One plan, carried out on one model.

    ``optimizer`` is one, or several that share the parameters among them. ``clipping`` is the rule by which gradients
    are clipped: ``Flat(plan.clip_norm)`` unless given, else
    :class:`~discreet.core.clipping.Normalised`, :class:`~discreet.core.clipping.PerBlock` or
    :class:`~discreet.core.clipping.AdaptiveClip`; for a plan of several stages it may be a dictionary of rules by the
    names of the stages. ``physical_batch_size`` limits memory: larger batches are worked off in parts, which changes
    nothing else, and which happens on the CPU by itself where a batch would hold very much. ``ledger`` pays: a
    :class:`~discreet.ledger.Ledger`, a path, or a ``postgresql://`` address with its ``ledger_key``, where a ledger
    is begun if there is none; without it the ledger lives in memory and the run cannot be resumed
    (:mod:`discreet.ledger.till`). ``data`` is a name that you give to the data set; a ledger
    resumes a run for data of the same name only. ``arithmetic="hardened"`` works on each example alone, adds up
    whole steps of a public grid and releases them with whole noise, so that the guarantee holds for the very bits; it
    takes a pass for each example (:mod:`discreet.pytorch.integer_gradients`). ``unsafe_seed`` is for tests and makes
    the certificate worthless.

    Guarantee: what the optimizer sees, and so every parameter after every step, costs what
    ``plan.guarantee`` says at most, whatever the loop does: a step that the plan does not hold is refused.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        losses: Losses,
        *,
        clipping: Clipping | Mapping[str, Clipping] | None = None,
        physical_batch_size: int | None = None,
        ledger: AnyLedger = None,
        ledger_key: KeyFile = None,
        data: str | None = None,
        arithmetic: Literal["float", "hardened"] = "float",
        progress: bool = False,
        unsafe_seed: int | None = None,
    ) -> None:
        self._optimizers, model = as_optimizers(optimizer), unwrap_model(model)
        refuse_layers(model)  # before anything counts parameters, which may have no shape yet
        super().__init__(
            checked_plan(plan),
            model,
            insist_function(losses),
            clipping_of_stages(clipping, plan.stages),
            physical_batch_size=physical_batch_size,
            ledger=ledger,
            ledger_key=ledger_key,
            data=data,
            arithmetic=arithmetic,
            unsafe_seed=unsafe_seed,
        )
        self._singles = SingleExamples(self._sum)
        self._watch = ModelGuard(model, self._sum.losses, self._parameters, self._sum.part_size)
        self._descent = OptimizerStep(self._parameters, self._optimizers)
        self._dataset: Any = None
        self._progress, self._in_memory = progress and self._processes.first, ledger is None
        self._processes.start_alike(model)

    @property
    def steps_taken(self) -> int:
        """Number of the plan's steps that are used up, those lost in a crash included."""
        if self._charger is None and self._till is not None:
            known = self._till.ledger.runs().get(self._schedule.name)
            return 0 if known is None else self._schedule.steps(known.reserved)
        return self._taken

    @property
    def stage(self) -> Stage:
        """The stage of the step that is next; after the last one, the last stage."""
        return self._schedule.span(self._taken + 1).stage

    def batches(self, dataset: Any, *, collate: Collate | None = None, workers: int = 0) -> Iterator[Batch]:
        """The batches of all steps that are left, stage after stage, drawn as the plan says. Some may be empty.

        Each has to be passed to :meth:`step`, in this order. For kinds of data sets see
        :mod:`discreet.pytorch.batches`; ``collate`` makes a batch of a list of records, as in a ``DataLoader``, and
        ``workers`` processes read ahead. A ``DataLoader`` in place of the data set gives its data set, ``collate_fn``
        and ``num_workers``. A plan for people takes a :class:`~discreet.pytorch.per_person.PerPerson`. With several
        processes, each passes the same data set and gets batches of its own part.
        """
        dataset, collate, workers = unwrap_loader(dataset, collate, workers)
        batches = self._draw(dataset, collate, workers)
        return show_progress(batches, self.plan, self._taken) if self._progress else batches

    def _check_records(self, dataset: Any, records: Reader) -> None:
        """Refuse data sets that are not those of earlier calls or of the plan."""
        if self._dataset is not None and not same_records(dataset, self._dataset):
            raise PlanViolation(OTHER_DATA_SET)
        refuse_many_rows(records.rows, self.plan.records)
        self._dataset = dataset
        self._watch.reads(records)

    def _check_batch(self, examples: Any, count: int) -> None:
        """Refuse a model that is not what it was; of a sharded one, sums that are not those of their pieces."""
        if self._sharded is None:
            self._watch.before_step(examples, count)
        else:
            self._sharded.before_step(examples, count, self._watch, self._spot_check)

    def _before_sum(self, count: int, drawn: Drawn) -> None:
        self._watch.before_forward()
        self._descent.forget()
        if self._sharded is None:
            self._singles.before_sum(count, drawn.singles)

    def _after_sum(self, examples: Any, count: int, drawn: Drawn) -> None:
        if count and self._sharded is None:
            self._singles.after_sum(examples, drawn.singles)
        self._watch.after_forward()
        self._descent.refuse_other_parameters()

    def _descend(self, sums: Sums, divisor: float) -> None:
        self._descent.step(sums, divisor)
        self._watch.after_step()

    def epochs(
        self, dataset: Any, *, collate: Collate | None = None, workers: int = 0
    ) -> Iterator[Iterator[Batch]]:
        """Yield the batches epoch by epoch: ``for epoch in run.epochs(dataset): for batch in epoch: ...``.

        There are as many epochs as planned, to the nearest integer. A resumed run begins within one.
        """
        batches, start = self.batches(dataset, collate=collate, workers=workers), self._taken
        drawn = start

        def until(end: int) -> Iterator[Batch]:
            """Yield the next batches, up to the one of step ``end``; a loop that was left goes on where it was."""
            nonlocal drawn
            while drawn < end:
                batch = next(batches, None)
                if batch is None:
                    return
                drawn = batch.step
                yield batch

        return (until(end) for end in epoch_ends(self._schedule) if end > start)

    def edited(self) -> None:
        """Say that weights were changed between two steps by something that knows nothing of the records.

        For instance by a clamp, or by a model average of this run. Otherwise the next step is refused.
        """
        self._watch.edited()

    def save(self, directory: str | Path, *, scheduler: Schedulers = None) -> None:
        """Write a checkpoint: weights, optimizer, scheduler, plan, and the head of the ledger.

        It holds no pickle and no randomness. Call it before the first step as well: a run that ends before its first
        checkpoint cannot be resumed, and its unspent steps are lost.
        """
        if self._in_memory:
            raise PlanViolation(LEDGER_IN_MEMORY)
        self._charging().commit()
        if self._sharded is not None:
            self._sharded.let_go()
        state = None
        if self._till is not None:
            clipping = self._clipping[self._schedule.span(self._taken + 1).index]
            state = checkpoint.Checkpoint(
                self.plan.digest(),
                self.steps_taken,
                self._till.ledger.anchor(),
                self._trusted,
                clipping if isinstance(clipping, AdaptiveClip) else None,
                self._arithmetic,
            )
        if state is not None or self._sharded is not None:
            kept = self._model, self._optimizers, schedulers(scheduler)
            checkpoint.write(directory, state, *kept, self._processes)

    def resume(self, directory: str | Path, *, scheduler: Schedulers = None) -> None:
        """Go on from a checkpoint, one step after the last one that the ledger has ever granted.

        A scheduler that was stepped once in a step goes on there too.

        Guarantee: another plan and a ledger older than the checkpoint are refused; batches and noise are fresh.
        """
        if self._charger is not None:
            raise PlanViolation("Resume before the first step, with a new PrivateRun.")
        if self._sharded is not None:
            self._sharded.let_go()
        kept = self._model, self._optimizers, schedulers(scheduler)
        found = checkpoint.read(
            directory, self.plan.digest(), *kept, self._processes, self._accept_checkpoint
        )
        self._charging()
        checkpoint.catch_up(schedulers(scheduler), found.step, self._taken)

    def _accept_checkpoint(self, found: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint, or raise if it is not one of this run; nothing is loaded before."""
        given = self._clipping[self._schedule.span(found.step + 1).index]
        resumed = resumed_clipping(given, found.adaptive)
        if found.arithmetic != self._arithmetic:
            raise PlanViolation(
                f"The checkpoint was made with arithmetic={found.arithmetic!r}, and a certificate can say only one; "
                "resume with the same."
            )
        self._accept(found.step, resumed, found.anchor, found.trusted)
