"""Private training with your own model, optimizer and loop: :class:`PrivateRun`.

    run = PrivateRun(plan, model, optimizer, losses)     # nothing wrapped, nothing rebound
    for batch in run.batches(dataset):                   # exactly plan.steps of them, some may be empty
        run.step(batch)                                  # pay, clip, sum, noise, optimizer.step()
        scheduler.step()                                 # as usual
    run.certificate().save("certificate.json")

``losses(model, batch)`` returns one loss per example. Before the first step, and when the model's modes or
modules change, model and losses are checked: see :mod:`discreet.pytorch.check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.certificate.procedure import rule_of
from discreet.clipping import AdaptiveClip, ClipRule, Flat, Normalised, PerBlock
from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.ledger import Ledger
from discreet.noise import BoundedSum, add_noise
from discreet.plan import Plan
from discreet.pytorch import checkpoint
from discreet.pytorch.adaptive import Watched, moved
from discreet.pytorch.batches import Batch, Collate, reader
from discreet.pytorch.check import check, refuse_change, signature
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.compatibility import refuse_layers
from discreet.pytorch.constancy import Constancy
from discreet.pytorch.descent import Descent, zeros
from discreet.pytorch.distributed import Processes
from discreet.pytorch.examples import number_of_examples, rebuilt, select
from discreet.pytorch.payments import Payments, check_anchor
from discreet.pytorch.per_example import Losses, trainable
from discreet.pytorch.progress import shown
from discreet.randomness import RandomStream

Drawn = WeakKeyDictionary[Batch, tuple[int, Any]]


class PrivateRun:
    """One plan, carried out on one model.

    ``clipping`` is the rule by which gradients are clipped: ``Flat(plan.clip_norm)`` unless given, else
    :class:`~discreet.clipping.Normalised`, :class:`~discreet.clipping.PerBlock` or
    :class:`~discreet.clipping.AdaptiveClip`. ``physical_batch_size`` limits memory: larger batches are worked
    off in parts, which changes nothing else. ``ledger`` is a :class:`~discreet.ledger.Ledger` or a file name;
    without it the ledger lives in memory and the run cannot be resumed. ``unsafe_seed`` is for tests and makes
    the certificate worthless.

    Guarantee: what the optimizer sees, and so every parameter after every step, costs what
    ``plan.guarantee`` says at most, whatever the loop does: a step that the plan does not hold is refused.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: Optimizer,
        losses: Losses,
        *,
        clipping: ClipRule | AdaptiveClip | None = None,
        physical_batch_size: int | None = None,
        ledger: Ledger | str | Path | None = None,
        progress: bool = False,
        unsafe_seed: int | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise InvalidParameter("plan", type(plan).__name__, "must be a Plan; Recipe.calibrate makes one.")
        self.plan = plan
        self._stage = plan.stage()
        self._model, self._optimizer, self._losses = _bare(model), optimizer, losses
        refuse_layers(self._model)
        self._clipping = _planned_clipping(clipping, self._stage.clip_norm)
        self._processes = Processes.current()
        self._stream = _stream(unsafe_seed, self._processes)
        self._sum = ClippedSum(model, losses, _rule(self._clipping), physical_batch_size=physical_batch_size)
        self._parameters = dict(self._sum.parameters)
        self._descent = Descent(self._parameters, optimizer, self._stage.divisor)
        self._noise = self._processes.share(_noise_of_sum(self._clipping, self._stage.noise))
        self._constancy = Constancy(model)
        self._trusted = self._stream.trusted
        self._progress = progress and self._processes.first
        self._processes.refuse_difference(self._settings())
        self._ledger = _ledger(ledger, plan) if self._processes.first else None
        self._payments: Payments | None = None
        self._drawn: Drawn = WeakKeyDictionary()
        self._signature = signature(model)
        self._checked: set[object] = set()
        self._processes.start_alike(model)

    # ---- training ----

    @property
    def steps_taken(self) -> int:
        """How many of the plan's steps are used up, those lost in a crash included."""
        if self._payments is None and self._ledger is not None:
            known = self._ledger.runs().get(self._stage.name)
            return 0 if known is None else known.reserved * self._stage.steps_per_charge
        return self._taken

    @property
    def _taken(self) -> int:
        """The steps that this run has paid for or resumed after."""
        return 0 if self._payments is None else self._payments.taken

    def batches(self, dataset: Any, *, collate: Collate | None = None, workers: int = 0) -> Iterator[Batch]:
        """The batches of all steps that are left, drawn as the plan says. Some may be empty.

        Each has to be passed to :meth:`step`, in this order. For ``dataset`` and ``collate`` see
        :mod:`discreet.pytorch.batches`; ``workers`` processes read ahead. With several processes, each passes
        the same data set and gets batches of its own part.
        """
        records, start = reader(dataset, collate), self._taken
        if self._processes.size > 1:
            if self._stage.sampling == "fixed-size":
                raise PlanViolation("Fixed-size batches need a single process; plan with Poisson sampling.")
            self._processes.refuse_difference({"the number of rows of the data set": str(records.rows)})
            records = records.part(self._processes.rows(records.rows))
        drawn = self._stage.batches(self._stream, rows=records.rows, start=start)
        read = records.each(drawn, workers)
        kept: Drawn = WeakKeyDictionary()
        self._drawn = kept
        numbered = (_numbered(step, data, kept) for step, data in enumerate(read, start + 1))
        return shown(numbered, self.plan, start) if self._progress else numbered

    def step(self, batch: Batch) -> None:
        """One step of the plan: pay, clip, sum, add noise, divide, and let the optimizer step.

        Afterwards ``parameter.grad`` holds the private gradient.

        Guarantee: nothing of the batch is released but its clipped sum with the plan's noise, after the ledger
        was charged. A batch of other origin and a step beyond the plan are refused.
        """
        data = self._on_device(self._examples_of(batch))
        self._check(data)
        self._paying().pay()
        rule = self._rule_of_step()
        self._constancy.refresh()
        sums = zeros(self._parameters) if data is None else self._sum(data)
        refuse_change(self._model, self._constancy)
        self._descent.step(sums, self._add_noise)
        if isinstance(self._clipping, AdaptiveClip) and isinstance(rule, Watched):
            self._clipping = moved(self._clipping, rule.norms(), self._processes, self._stream)

    def certificate(self) -> Certificate:
        """What this run has released so far, and what it cost at most."""
        self._paying().commit()

        def written() -> str:
            assert self._ledger is not None
            return Certificate.of(self._ledger, self.plan, trusted=self._trusted).to_json()

        return Certificate.from_json(self._processes.text_of_first(written))

    # ---- stopping and going on ----

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint: weights, optimizer, plan, and the head of the ledger. No pickle, no randomness."""
        self._paying().commit()
        if self._ledger is not None:
            adaptive = self._clipping if isinstance(self._clipping, AdaptiveClip) else None
            state = checkpoint.Checkpoint(
                self.plan.digest(), self.steps_taken, self._ledger.anchor(), self._trusted, adaptive
            )
            checkpoint.write(directory, state, self._model, self._optimizer)

    def resume(self, directory: str | Path) -> None:
        """Go on from a checkpoint, one step after the last one that the ledger has ever granted.

        Guarantee: another plan and a ledger older than the checkpoint are refused; batches and noise are fresh.
        """
        if self._payments is not None:
            raise PlanViolation("Resume before the first step, with a new PrivateRun.")
        found = checkpoint.read(directory, self.plan.digest(), self._model, self._optimizer)
        if (found.adaptive is None) == isinstance(self._clipping, AdaptiveClip):
            raise PlanViolation(
                "The checkpoint was made with another kind of clipping; resume with the same."
            )
        if found.adaptive is not None:
            self._clipping = found.adaptive
        self._trusted = self._trusted and found.trusted  # a seed in the first part spoils the whole
        if self._ledger is not None:
            check_anchor(self._ledger, found.anchor)
        self._payments = Payments(self._ledger, self.plan, self._processes, resumed=True)

    # ---- the parts of a step ----

    def _paying(self) -> Payments:
        if self._payments is None:
            self._payments = Payments(self._ledger, self.plan, self._processes)
        return self._payments

    def _settings(self) -> dict[str, str]:
        """What all processes must have in common, by the name used in a refusal."""
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in self._parameters.items()]
        return {
            "their plan": self.plan.digest(),
            "their clipping": repr(self._clipping),
            "the parameters of the model": repr(shapes),
            "whether they have an unsafe_seed": str(self._trusted),
        }

    def _check(self, data: Any) -> None:
        """Check model and losses before the first step, and again when modes, modules or sizes are new."""
        self._refuse_other_parameters()
        now = signature(self._model)
        if now != self._signature:
            refuse_layers(self._model)
            self._signature = now
        if data is None:
            return
        part = select(data, slice(0, self._sum.physical_batch_size))
        situation = (now, number_of_examples(part).bit_length())
        if situation not in self._checked:
            check(self._model, self._losses, part)
            self._checked.add(situation)

    def _refuse_other_parameters(self) -> None:
        now = trainable(self._model)
        names = sorted(now.keys() | self._parameters.keys())
        changed = next((name for name in names if now.get(name) is not self._parameters.get(name)), None)
        if changed is not None:
            raise PlanViolation(
                f"The parameter {changed!r} was frozen, unfrozen or exchanged after the run began. To train others, "
                "make an optimizer and a PrivateRun with a plan of its own; one Budget can pay for both."
            )

    def _examples_of(self, batch: Batch) -> Any:
        """What was drawn for a batch, if it is due."""
        if not isinstance(batch, Batch) or batch not in self._drawn:
            raise PlanViolation(
                "The batch does not come from this run's latest batches(dataset), so nothing is known of how it "
                "was drawn. Pass what batches() yields, as it is; augment examples inside losses."
            )
        step, data = self._drawn[batch]
        if step != self._taken + 1:
            raise PlanViolation(
                f"Step {self._taken + 1} is due and the batch is for step {step}: "
                "every batch is used once, in the order drawn."
            )
        return data

    def _on_device(self, data: Any) -> Any:
        device = next(iter(self._parameters.values())).device
        if data is None or number_of_examples(data) == 0:
            return None
        return rebuilt(data, lambda tensor: tensor.to(device, non_blocking=True))

    def _rule_of_step(self) -> ClipRule:
        if isinstance(self._clipping, AdaptiveClip):
            self._sum.rule = Watched(self._clipping.clip_norm)
        return self._sum.rule

    def _add_noise(self, total: Tensor) -> None:
        """Noise for the sums of this process, which then meet those of the others."""
        add_noise(BoundedSum(total, self._sum.rule.clip_norm), self._noise, self._stream, out=total)
        self._processes.add_up(total)


def _numbered(step: int, data: Any, kept: Drawn) -> Batch:
    """A batch that carries its number only; the examples are kept as long as it is."""
    batch = Batch(step)
    kept[batch] = (step, data)
    return batch


def _bare(model: nn.Module) -> nn.Module:
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if not isinstance(model, nn.Module) or isinstance(model, wrappers):
        remedy = (
            "must be the module itself; PrivateRun lets several processes work together without a wrapper."
        )
        raise InvalidParameter("model", type(model).__name__, remedy)
    return model


def checked_clipping(clipping: object) -> ClipRule | AdaptiveClip:
    """``clipping`` if it is a rule for clipping, or raise."""
    if isinstance(clipping, Flat | Normalised | PerBlock | AdaptiveClip):
        return clipping
    raise InvalidParameter("clipping", clipping, "must be Flat, Normalised, PerBlock or AdaptiveClip.")


def _planned_clipping(clipping: object, clip_norm: float) -> ClipRule | AdaptiveClip:
    if clipping is None:
        return Flat(clip_norm)
    rule = checked_clipping(clipping)
    if not abs(rule.clip_norm - clip_norm) <= 1e-9 * clip_norm:
        remedy = f"must have the clip norm of the plan, {clip_norm:g}; an adaptive one begins there."
        raise InvalidParameter("clipping", clipping, remedy)
    return rule


def _rule(clipping: ClipRule | AdaptiveClip) -> ClipRule:
    return clipping.rule if isinstance(clipping, AdaptiveClip) else clipping


def _noise_of_sum(clipping: ClipRule | AdaptiveClip, planned: Any) -> Any:
    """What is planned, or more where the count of an adaptive clip norm takes its part of a step's cost."""
    return clipping.of_sum(planned) if isinstance(clipping, AdaptiveClip) else planned


def _stream(unsafe_seed: int | None, processes: Processes) -> RandomStream:
    if unsafe_seed is None:
        return RandomStream()
    seed = whole("unsafe_seed", unsafe_seed, at_least=0)
    return RandomStream(unsafe_seed=seed * 2**16 + processes.rank)


def _ledger(ledger: Ledger | str | Path | None, plan: Plan) -> Ledger:
    if isinstance(ledger, Ledger):
        return ledger
    rule = rule_of(plan)
    if ledger is None:
        return Ledger.in_memory(rule)
    if not isinstance(ledger, str | Path):
        raise InvalidParameter("ledger", type(ledger).__name__, "must be a Ledger or the name of its file.")
    return Ledger.open(ledger, rule) if Path(ledger).exists() else Ledger.create(ledger, rule)
