"""One site of a federation that trains by federated averaging: :class:`PrivateSite`.

The server of NVFlare, Flower or any other framework sends weights; the site trains them for some local steps and
returns them. Every local step is a step of a :class:`~discreet.pytorch.run.PrivateRun` that the site's own ledger has
stored before. A folder of the site keeps the ledger and a checkpoint, so each round may run in a process of its own.

In docs/observers.md: "Federated averaging with private local steps".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.errors import BudgetExceeded, InvalidParameter, whole
from discreet.folders import whole_folder
from discreet.guarantee import Guarantee
from discreet.ledger import Ledger, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.parties.observation.observers import Observer
from discreet.plan.plan import Plan
from discreet.pytorch.batches import Batch, Collate
from discreet.pytorch.checks.compatibility import unwrap_model
from discreet.pytorch.chosen_weights import ChosenWeightsRun
from discreet.pytorch.per_example import Losses
from discreet.pytorch.training_stages import Schedule, checked_plan

OBSERVERS = (
    ("server", "is the server: sees the weights that this site returns in every round"),
    ("another site", "is another site: sees the weights that the server sends in every round"),
    ("final model", "sees the final model only"),
)
"""Who sees something of a federation; each sees a function of what the one before it sees."""

LEDGER = "site.ledger"
ALL_TAKEN = "The privacy budget of this site is used up: all steps of its plan are taken."
NOT_GRANTED = "The privacy budget of this site is used up: its ledger grants no further step."


@dataclass(frozen=True)
class RoundResult:
    """The answer of a site to one round. Of its fields, only ``weights`` depends on the records.

    ``weights`` is a state dictionary on the CPU, reached by ``steps`` private steps. If the budget is used up,
    ``trained`` is False, ``weights`` are those of the server and ``note`` says why. ``guarantee`` covers all rounds
    of the plan, those to come included: the server may stop when it likes, so no smaller one is proved before.
    """

    weights: dict[str, Tensor]
    steps: int
    trained: bool
    guarantee: Guarantee
    note: str = ""

    @property
    def metrics(self) -> dict[str, float]:
        """The public numbers of the round, for the metrics that a framework collects."""
        return {
            "privacy_epsilon": self.guarantee.epsilon.upper,
            "privacy_delta": self.guarantee.delta,
            "privacy_steps": float(self.steps),
            "privacy_trained": float(self.trained),
        }


class PrivateSite:
    """A site of a federation: one plan, whose steps are the local steps of all rounds.

    The plan's steps are divided evenly among ``rounds``. ``folder`` belongs to the site, and outlives rounds and
    jobs: it keeps the ledger, the checkpoint and ``certificate.json``. ``dataset``, ``collate`` and ``workers`` are
    those of :meth:`~discreet.pytorch.run.PrivateRun.batches`. ``ledger`` and ``ledger_key`` name a ledger elsewhere,
    which may pay for other releases of the same records, too. ``options`` are those of the run, such as
    ``clipping`` and ``data``. ``arithmetic`` is ``"hardened"`` unless you pass ``"float"``, which is faster on large
    models and allows a ``collate`` of your own; then the certificate does not cover refusals of a step.

    Guarantee: all that leaves the site costs what ``plan.guarantee`` says at most, whatever weights the server sends
    and however often it asks. In hardened arithmetic no weights make the site refuse a round because of a record: an
    example whose loss raises adds zeros (:mod:`discreet.pytorch.chosen_weights`). A process that is killed loses
    steps, and takes none that the ledger has not stored.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        losses: Losses,
        dataset: Any,
        *,
        rounds: int,
        folder: str | os.PathLike[str],
        collate: Collate | None = None,
        workers: int = 0,
        ledger: AnyLedger = None,
        ledger_key: KeyFile = None,
        **options: Any,
    ) -> None:
        if distributed.is_initialized():
            raise InvalidParameter("rounds", rounds, "needs a site that trains in a single process.")
        self.plan = checked_plan(plan)
        self.rounds = whole("rounds", rounds, at_least=1, at_most=plan.steps)
        self.steps_per_round = max(1, round(plan.steps / rounds))
        self.folder, self.model, self._schedule = Path(folder), unwrap_model(model), Schedule(plan)
        place, data = self.folder / "run", options.pop("data", None)

        options.setdefault("arithmetic", "hardened")

        def run_of(books: Ledger | None) -> ChosenWeightsRun:
            return ChosenWeightsRun(plan, model, optimizer, losses, ledger=books, data=data, **options)

        run_of(None).check_own_weights(dataset, collate)
        self._checkpoint = place / "checkpoint"
        if ledger is None and not place.exists():
            _begin(place, plan, run_of)
        self._ledger = Till.open(place / LEDGER if ledger is None else ledger, plan, key=ledger_key).ledger
        if not self._checkpoint.exists():
            run_of(self._ledger).save(self._checkpoint)
        self._run = run_of(self._ledger)
        self._run.resume(self._checkpoint)
        self._records = dataset, collate, workers
        self._batches: Iterator[Batch] | None = None
        self._note = ALL_TAKEN if self._run.steps_taken == plan.steps else ""

    def train_round(self, weights: Mapping[str, Any]) -> RoundResult:
        """Train the server's weights for the local steps of one round, if the budget allows it.

        ``weights`` maps each name of the model's state dictionary to a tensor or an array. Weights that are missing,
        not finite or of another shape are refused by name, before anything is charged.

        Guarantee: the result holds the weights as they came, or weights that charged steps have made of them.
        """
        received, start = self._checked(weights), self._run.steps_taken
        if not self._note:
            self._load(received)
            try:
                self._take_steps(start)
            except BudgetExceeded:
                self._note = NOT_GRANTED
                self._load(received)
        if self._note:
            logging.getLogger(__name__).warning(self._note)
            return RoundResult(received, 0, False, self.certificate().guarantee, self._note)
        self._run.save(self._checkpoint)
        steps = self._run.steps_taken - start
        if self._run.steps_taken == self.plan.steps:
            self._note = ALL_TAKEN
        trained = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
        return RoundResult(trained, steps, True, self.certificate().guarantee)

    def certificate(self) -> Certificate:
        """Certify all rounds so far, and write ``certificate.json`` into the folder."""
        found = self._run.certificate()
        found.save(self.folder / "certificate.json")
        return found

    def observers(self) -> tuple[Observer, ...]:
        """List who sees what of this site's records, and what all rounds of the plan cost against them at most.

        Each row is for records that this site alone holds. For a person whose records several sites hold, the
        epsilons and the deltas of these sites add up.
        """
        proved = self.certificate().guarantee
        rows = [Observer(name, sees, replace(proved, observer=sees)) for name, sees in OBSERVERS]
        owner = Observer("owner", "holds the records", None, "a site sees its own records as they are")
        return (*rows, owner)

    def _take_steps(self, start: int) -> None:
        """Take the steps of a round, and those that the ledger has stored with the last of them.

        A process that ends gives up stored steps that it did not take; so none are left at the end of a round.
        """
        if self._batches is None:
            dataset, collate, workers = self._records
            self._batches = self._run.batches(dataset, collate=collate, workers=workers)
        target = self._end_of_round(start)
        for batch in self._batches:
            self._run.step(batch)
            if self._run.steps_taken >= target and self._run.steps_taken >= self._stored_steps():
                return

    def _end_of_round(self, start: int) -> int:
        """Return the number of the last step of the round that begins after ``start`` steps.

        Rounds end at multiples of their length, so that those that took a few steps more or less do not add up.
        """
        length = self.plan.steps / self.rounds
        return min(self.plan.steps, round(round(start / length + 1) * length))

    def _stored_steps(self) -> int:
        """Return how many steps the ledger has stored, those that this process has not taken yet included."""
        return self._schedule.steps(self._ledger.runs()[self._schedule.name].reserved)

    def _checked(self, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a copy of the weights in the types of the model, or raise with the name of one that does not fit."""
        state = self.model.state_dict()
        if not isinstance(weights, Mapping):
            raise InvalidParameter("weights", type(weights).__name__, "must map names to tensors or arrays.")
        for name in [*state, *weights]:
            if name not in weights or name not in state:
                where = "the model has no such parameter" if name in weights else "the server did not send it"
                raise InvalidParameter("weights", name, f"{where}; use the same model at server and site.")
        return {name: _as_tensor(name, weights[name], own) for name, own in state.items()}

    def _load(self, values: dict[str, Tensor]) -> None:
        self.model.load_state_dict(values)
        self._run.edited()


def _begin(place: Path, plan: Plan, run_of: Callable[[Ledger], ChosenWeightsRun]) -> None:
    """Make the ledger and the first checkpoint in a folder that appears with both of them or not at all."""
    with whole_folder(place) as new, Ledger.create(new / LEDGER, plan.rule) as books:
        run_of(books).save(new / "checkpoint")


def _as_tensor(name: str, value: Any, own: Tensor) -> Tensor:
    try:
        found = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError):
        found = None
    if found is None or found.shape != own.shape:
        remedy = f"must have shape {tuple(own.shape)}, as in this site's model."
        raise InvalidParameter("weights", name, remedy) from None
    copied = torch.empty_like(own, device="cpu").copy_(found)
    if not copied.isfinite().all():
        raise InvalidParameter("weights", name, "holds values that are not finite. Nothing was trained.")
    return copied
