"""Lightning, private: a module that says its losses one by one, :class:`PrivateModule`.

    class Digits(PrivateModule):                       # a LightningModule, with losses in place of training_step
        def losses(self, batch): ...                   # one loss per example
        def configure_optimizers(self): ...            # as usual; self.plan.steps is how long it takes

    module = Digits().train_on(records, plan)
    lightning.Trainer(max_epochs=-1).fit(module)
    module.certificate().save("certificate.json")

The trainer keeps its epochs, callbacks, loggers, validation and checkpoints. It never sees a record of the training:
it is handed numbers of batches, and the step is the one of :class:`~discreet.pytorch.run.PrivateRun`. What it would
do with gradients or records besides is refused by the name of its argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from discreet.certificate import Certificate
from discreet.errors import InvalidParameter, PlanViolation, missing_extra
from discreet.plan.plan import Plan
from discreet.pytorch.batches import Batch, Collate
from discreet.pytorch.progress import epoch_ends
from discreet.pytorch.run import PrivateRun
from discreet.pytorch.training_stages import Schedule, checked_plan

try:
    from lightning.pytorch import LightningModule, Trainer, callbacks
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise missing_extra(f"discreet.adapters.lightning_module needs {error.name}", "lightning") from None

REFUSED = {
    "accumulate_grad_batches": (1, "is not needed: Recipe(batch_size=...) is the batch of a step, and "
                                   "physical_batch_size limits how much of it is in memory."),
    "gradient_clip_val": (None, "would clip the mean of a batch; the plan's clip_norm is for each example."),
    "overfit_batches": (0.0, "has no batches of its own here, the plan draws them."),
    "limit_train_batches": (1.0, "would cut epochs short; plan with fewer epochs."),
    "fast_dev_run": (False, "would spend a step of the plan; try with made-up records and a plan for them."),
    "max_steps": (-1, "is the plan's business: Recipe(steps=...)."),
    "precision": ("32-true", "must be '32-true': half precision scales losses, and its sums are not bounded."),
}  # fmt: skip
"""Arguments of a trainer, the value at which they do nothing, and what to do instead."""

INTRUDERS = (
    callbacks.BatchSizeFinder,
    callbacks.GradientAccumulationScheduler,
    callbacks.LearningRateFinder,
    callbacks.StochasticWeightAveraging,
)
"""Callbacks that read records, take steps, or change what a step is."""


class PrivateModule(LightningModule):
    """A ``LightningModule`` that a trainer fits as a plan says and no other way.

    Give it ``losses(batch)``, which returns one loss per example, and ``configure_optimizers``; a learning-rate
    schedule goes by the epoch, or by the step with ``{"scheduler": ..., "interval": "step"}``. ``training_step`` and
    ``train_dataloader`` are taken.

    Guarantee: training costs what ``plan.guarantee`` says at most. It is not for what the module logs of other
    records, in ``validation_step`` for instance; logging within ``losses`` is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._plan: Plan | None = None
        self._begun: PrivateRun | None = None
        self._within_step = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("training_step", "train_dataloader", "manual_backward"):
            if getattr(cls, name) is not getattr(PrivateModule, name):
                remedy = "is overridden, and private training has its own; write losses(batch) instead."
                raise InvalidParameter(name, cls.__name__, remedy)

    def losses(self, batch: Any) -> Tensor:
        """One loss per example of the batch; yours to write."""
        raise NotImplementedError(f"{type(self).__name__} needs losses(batch), one loss per example.")

    def train_on(
        self,
        dataset: Any,
        plan: Plan,
        *,
        collate: Collate | None = None,
        workers: int = 0,
        resume: str | Path | None = None,
        **options: Any,
    ) -> Self:
        """Say what is to be trained on: the next ``trainer.fit(module)`` carries out ``plan`` on ``dataset``.

        ``dataset``, ``collate`` and ``workers`` are those of :meth:`~discreet.pytorch.run.PrivateRun.batches`, which
        takes a ``DataLoader`` apart. ``resume`` is a directory that ``module.run.save`` has written to. ``options``
        are those of :class:`~discreet.pytorch.run.PrivateRun`: ``clipping``, ``physical_batch_size``, ``ledger`` ...
        """
        if self._begun is not None:
            raise PlanViolation("The module was trained by a plan already; make a new one for another plan.")
        self._plan, self._options, self._resume = checked_plan(plan), options, resume
        self._source = {"dataset": dataset, "collate": collate, "workers": workers}
        return self

    @property
    def plan(self) -> Plan:
        """Plan given to ``train_on``; ``plan.steps`` is the length of a schedule."""
        if self._plan is None:
            raise PlanViolation("There is nothing to train on: call module.train_on(dataset, plan) first.")
        return self._plan

    @property
    def run(self) -> PrivateRun:
        """The run of the plan, from the beginning of ``trainer.fit`` on."""
        if self._begun is None:
            raise PlanViolation(
                "Nothing was trained yet, so there is no run; call trainer.fit(module) first."
            )
        return self._begun

    def certificate(self) -> Certificate:
        """Certificate of the releases of training so far."""
        return self.run.certificate()

    def configure_callbacks(self) -> list[Any]:
        """No callbacks of its own, and none of the trainer's that would take part in training."""
        refuse_callbacks(self.trainer)
        return []

    def train_dataloader(self) -> Any:
        """The numbers of the batches, epoch by epoch, for a trainer that does nothing else with them."""
        refuse_trainer(self.trainer)
        if self._begun is None:
            run = PrivateRun(self.plan, self, self._optimizers(), _losses_of_module, **self._options)
            if self._resume is not None:
                run.resume(self._resume, scheduler=[each.scheduler for each in self._schedules()])
            self._begun = run
        return _Epochs(self.run, self.run.batches(**self._source))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step of the plan. Nothing is returned: a training loss would be released without noise."""
        if not isinstance(batch, Batch):
            raise PlanViolation(
                "train_dataloaders and datamodules have no place here: the plan draws the batches from the data set "
                "that module.train_on(dataset, plan) was given."
            )
        counted = self.optimizers()
        first = counted[0] if isinstance(counted, list) else counted
        first._on_before_step()  # the trainer counts steps by those of its own optimizers
        self._within_step = True
        try:
            self.run.step(batch)
        finally:
            self._within_step = False
        first._on_after_step()
        self._follow("step", batch.step)
        ends = tuple(epoch_ends(Schedule(self.run.plan)))
        if batch.step in ends:
            self._follow("epoch", ends.index(batch.step) + 1)
        if self.run.steps_taken >= self.run.plan.steps:
            self.trainer.should_stop = True

    def log(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Theirs, but not within a step."""
        if self._within_step:
            raise PlanViolation(
                f"log({name!r}) within losses would release what the records say, without noise. Log in "
                "validation_step, of records that are not protected."
            )
        super().log(name, *args, **kwargs)

    def _optimizers(self) -> list[Any]:
        found = self.optimizers(use_pl_optimizer=False)
        return found if isinstance(found, list) else [found]

    def _schedules(self) -> list[Any]:
        return list(self.trainer.lr_scheduler_configs)

    def _follow(self, interval: str, count: int) -> None:
        for each in self._schedules():
            if each.interval == interval and count % each.frequency == 0:
                each.scheduler.step()


class _Epochs:
    """Each time it is gone through, the batches that are left of the run's epoch.

    A trainer begins anew more often than it finishes, so a batch that was drawn and not used is handed out again: to
    draw another one would be a choice among batches.
    """

    def __init__(self, run: PrivateRun, batches: Iterator[Batch]) -> None:
        self._run, self._batches = run, batches
        self._ends = tuple(epoch_ends(Schedule(run.plan)))
        self._drawn: dict[int, Batch] = {}

    def __iter__(self) -> Iterator[Batch]:
        taken = self._run.steps_taken
        self._drawn = {step: batch for step, batch in self._drawn.items() if step > taken}
        for step in range(taken + 1, next((end for end in self._ends if end > taken), taken) + 1):
            if step not in self._drawn:
                self._drawn[step] = next(self._batches)
            yield self._drawn[step]


def _losses_of_module(module: Any, batch: Any) -> Tensor:
    values: Tensor = module.losses(batch)
    return values


def refuse_trainer(trainer: Trainer) -> None:
    """Refuse a trainer whose arguments and callbacks ask for what private training does not do."""
    for name, (harmless, remedy) in REFUSED.items():
        value = getattr(trainer, name)
        if value != harmless:
            raise InvalidParameter(name, value, remedy)
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        remedy = "wraps the model; use one device, or a loop of your own with PrivateRun and torchrun."
        raise InvalidParameter("strategy", type(trainer.strategy).__name__, remedy)
    if trainer.ckpt_path is not None:
        remedy = (
            "would go on without the ledger of the run. Keep checkpoints by module.run.save(directory), and go on by "
            "module.train_on(..., ledger=..., resume=directory)."
        )
        raise InvalidParameter("ckpt_path", str(trainer.ckpt_path), remedy)
    refuse_callbacks(trainer)


def refuse_callbacks(trainer: Trainer) -> None:
    """Refuse callbacks that read records, take steps, or change what a step is."""
    for callback in trainer.callbacks:
        if isinstance(callback, INTRUDERS):
            remedy = "reads records or changes what a step is, which the plan does not pay for; leave it out."
            raise InvalidParameter("callbacks", type(callback).__name__, remedy)
