"""Auditing a fitted model from its certificate: the same estimator again, on made-up records.

The attack fits the estimator many times, with and without a group of records
(:mod:`~discreet.adapters.audit_subjects`). It sees every noisy sum that a fit releases, from which the model
follows, and tells by the likelihood of all of them which table was used: nothing better can be done. The detectors
look at the parts that every release of a fit is made of: the clipped gradients, and the noise of every stage at the
noise multipliers in the certificate. Where people are the unit, the group is one of people, and so are the records
that the detectors take away.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.adapters.audit_subjects import ROWS_EACH, Estimator, neighbouring_tables
from discreet.audit import AuditResult, Examination, OneStep, Specification, Subject, audit, examine
from discreet.certificate import Certificate
from discreet.core.mechanisms import gaussian_event
from discreet.errors import PlanViolation, whole
from discreet.guarantee import sensitivity_factor
from discreet.linear import DeclarationWarning
from discreet.linear.gate.compiled_sums import sum_of_gradients
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Block
from discreet.linear.kernels.kernel import hardened_clipped_gradient, row_norms
from discreet.linear.recording_spending import Recorded, Tape
from discreet.linear.row_views.column_views import Offset
from discreet.statistics.statistic_views import Code
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows
from discreet.trusted.rows import NumberParts
from discreet.trusted.spending import BudgetAllocator, StagePermit

Floats = NDArray[np.float64]
Told = Callable[[int, int], None]
_WIDTH, _ROWS, _CLIP = 40, 40, 1.0
_CERTAIN = 1e6  # the score of what cannot have happened in the other world


@dataclass(frozen=True)
class FitAudit:
    """Audit of a fit: findings of all detectors, and the bound of the attack if one was run."""

    examination: Examination
    attack: AuditResult | None

    @property
    def passed(self) -> bool:
        """True if nothing contradicts the claim. That is not a proof."""
        attack = self.attack
        return self.examination.passed and (attack is None or attack.lower <= attack.claimed)


def audit_fit(
    certificate: Certificate,
    fits: int = 200,
    confidence: float = 0.99,
    *,
    alpha: float = 1e-3,
    pairs: int = 200,
    draws: int = 20_000,
    progress: Callable[[str], None] | None = None,
    counted: Told | None = None,
) -> FitAudit:
    """Audit the fit that a certificate is of, on made-up records: ``fits`` models with, and as many without, a group.

    ``alpha``, ``pairs`` and ``draws`` are those of :func:`discreet.audit.examine`. ``progress`` is told what begins,
    ``counted`` how many of the models are fitted.
    """
    told = progress or (lambda name: None)
    if fits:
        whole("fits", fits, at_least=50, remedy="Or 0, for the detectors alone.")
    estimator = Estimator.of(certificate)
    found = examination(estimator, told, alpha=alpha, pairs=pairs, draws=draws)
    if not fits:
        return FitAudit(found, None)
    told("fitted models")
    return FitAudit(found, attack(estimator, fits, confidence, counted or (lambda done, total: None)))


def attack(estimator: Estimator, fits: int, confidence: float, told: Told) -> AuditResult:
    """Fit again and again, with and without the group, and tell the two apart by the best score there is.

    The attacker sees what the promise is about: every noisy sum that a fit releases. He knows both tables, so he can
    carry on a fit on either of them as if it had released these sums, and knows what was added up before the noise if
    that was the table. The logarithm of how much likelier all the noise is with the group is the best score of all
    (Neyman and Pearson 1933); no model shows more. Noise on a grid has the same ratios as continuous noise.
    """
    worlds = neighbouring_tables(estimator)

    def release(world: int, draws: int) -> Floats:
        with warnings.catch_warnings():  # that made-up records are few is no news
            warnings.simplefilter("ignore", DeclarationWarning)
            return np.array([_likelihood(estimator.make, worlds, world) for _ in range(draws)])

    score, group = lambda scores: scores[:, 0], estimator.group
    method = OneStep(fits, score=score, at_once=5, group=group, threshold=0.0)
    # In hardened arithmetic the noise is discrete, and nearer to the continuous one than any audit could tell.
    claim, budget = gaussian_event(estimator.budget), estimator.budget
    return audit(
        release, claim, method, confidence, delta=budget.delta, neighbours=budget.neighbours, progress=told
    )


def same_kind(one: Recorded, other: Recorded) -> bool:
    """Whether nothing but the numbers tells two releases apart."""
    return one.total.shape == other.total.shape and one.std == other.std


def likelihood(release: Recorded, without: Floats, used: Floats) -> float:
    """By how much the logarithm of the density is larger if ``used`` was added up, and not ``without``."""
    group, noise = used - without, release.noisy - without
    return float(np.sum(group * (noise - group / 2))) / release.std**2


def _releases_of(
    model: Any, world: Sequence[Any], prescribed: Sequence[Recorded] | None = None
) -> list[Recorded]:
    """All that a fit of the model releases, or would release where something is prescribed."""
    tape = Tape(prescribed)
    model._fit_recorded(tape, *world)
    return tape.releases


def _likelihood(make: Callable[[], Any], worlds: Sequence[tuple[Any, ...]], world: int) -> float:
    """Fit in one world, and tell how much likelier all that was released is in the second than in the first."""
    seen = _releases_of(make(), worlds[world])
    try:
        other = _releases_of(make(), worlds[1 - world], seen)
    except PlanViolation:
        other = []
    pairs = list(zip(seen, other, strict=False))
    if len(other) != len(seen) or not all(same_kind(one, two) for one, two in pairs):
        return _CERTAIN if world else -_CERTAIN  # what is released, or how much noise it has, gives it away
    if world:
        return math.fsum(likelihood(one, two.total, one.total) for one, two in pairs)
    return math.fsum(likelihood(one, one.total, two.total) for one, two in pairs)


def examination(estimator: Estimator, told: Callable[[str], None], **settings: Any) -> Examination:
    """Every detector on what the releases of a fit are made of, at the certificate's noise multipliers."""
    row = max(estimator.stages, key=lambda stage: int(stage["releases"]))
    parts = _Parts(estimator, row)
    sensitivity = float(sensitivity_factor(estimator.budget.neighbours))
    noise = float(row["noise_multiplier"]) * _CLIP
    claim = Specification(sensitivity * _CLIP, noise, estimator.budget.neighbours)
    rng = np.random.default_rng(0)
    records = (rng.normal(size=(_ROWS, _WIDTH)), rng.integers(0, 2, _ROWS))
    draws = int(settings["draws"])
    subject = Subject(
        records, parts.sums, parts.noisy, lambda: noise * parts.noise_of_fit(draws), name=estimator.name
    )
    found = examine(subject, claim, progress=told, **settings)
    if estimator.people:
        counted = Subject(records, parts.count_people, name=estimator.name)
        more = examine(counted, claim, progress=told, **settings).findings
        named = [replace(finding, name=f"{finding.name}, of the weights") for finding in more]
        found = replace(found, findings=(*found.findings, *named))
    full = tuple(text for text in found.not_covered if not text.startswith("who is in a batch"))
    return replace(found, not_covered=full)  # every release is a sum over all records


class _Parts:
    """Components of a fit: sums of clipped gradients, and stages that add the charged noise."""

    def __init__(self, estimator: Estimator, row: dict[str, Any]) -> None:
        self._budget, self._rows, self._row = estimator.budget, estimator.stages, row
        self._arithmetic: Any = estimator.settings.get("arithmetic") or "hardened"
        self._loss = estimator.loss()
        self._theta = np.zeros(_WIDTH + 1)
        self._each = ROWS_EACH if estimator.people else 1

    def stage(self, row: dict[str, Any], spent: BudgetAllocator | None = None) -> StagePermit:
        """A stage of a fit, as it would be paid for again."""
        spent = spent or BudgetAllocator(self._budget, arithmetic=self._arithmetic)
        share = row["releases"] / (row["noise_multiplier"] * spent.strength) ** 2
        return spent.stage(str(row["stage"]), min(share, spent.left), int(row["releases"]))

    def noisy(self, records: tuple[Floats, Floats]) -> Floats:
        """One release of the descent."""
        made = _MadeUp(partial(sum_of_gradients, self._loss, self._whole(records), self._theta, _CLIP))
        return self.stage(self._row).ask(made, _query(self._theta.size)).value

    def sums(self, records: tuple[Floats, Floats]) -> Floats:
        """Return the sums without noise."""
        block = next(iter(self._whole(records)))
        known = (self._loss, block.z, block.y, self._theta, 0.0, block.norms, _CLIP)
        grid = self.stage(self._row).grid(_CLIP)
        found = hardened_clipped_gradient(*known, grid, block.weights, block.people)
        return np.asarray(found * grid, np.float64)

    def count_people(self, records: tuple[Floats, Floats]) -> Floats:
        """Number of persons by the weights of their rows, as counts and histograms compute it."""
        block, grid = next(iter(self._whole(records))), self.stage(self._row).grid(_CLIP)
        query = Blocks((Cells(Code(0), (1,), (1.0,)),))
        total = query.total(NumberParts(np.zeros((len(block.z), 1)), block.weights), grid)
        return np.asarray(total * grid, np.float64)

    def _whole(self, records: tuple[Floats, Floats]) -> _Whole:
        if self._each == 1:
            return _Whole(*records)
        z, y = (np.repeat(part, self._each, axis=0) for part in records)
        people = People.of(np.repeat(np.arange(len(records[0])), self._each))
        return _Whole(z, y, weights=people._weights(1), people=people._codes)

    def noise_of_fit(self, draws: int) -> Floats:
        """Every release of a whole fit, where the records add nothing, over the certificate's noise."""
        spent = BudgetAllocator(self._budget, arithmetic=self._arithmetic)
        width = max(3, math.ceil(draws / sum(row["releases"] for row in self._rows)))
        nothing, found = _MadeUp(lambda grid: np.zeros(width, np.int64)), []
        for row in self._rows:
            stage = self.stage(row, spent)
            for _ in range(row["releases"]):
                found.append(stage.ask(nothing, _query(width)).value / (row["noise_multiplier"] * _CLIP))
        return np.array(found)


def _query(size: int) -> Blocks:
    """A query of so many numbers, of which only the sensitivity matters here."""
    return Blocks((Rows(Offset(np.zeros(size)), size, _CLIP / ROUNDING),), _CLIP)


@dataclass(frozen=True)
class _MadeUp:
    """Made-up records that add what a function says, whatever is asked."""

    make: Callable[[float], NDArray[np.int64]]

    def _total(self, query: Blocks, grid: float) -> NDArray[np.int64]:
        return self.make(grid)


@dataclass(frozen=True, eq=False)
class _Whole:
    """All records as one block."""

    z: Floats
    y: Floats
    constant: float = 0.0
    weights: Floats | None = None
    people: NDArray[np.int64] | None = None
    centre: None = None

    def __iter__(self) -> Iterator[Block]:
        z = np.ascontiguousarray(self.z, np.float64)
        y, norms = np.asarray(self.y, np.float64), row_norms(z, self.constant)
        yield Block(z, y, self.weights, norms, self.people)
