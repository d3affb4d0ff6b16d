"""From a budget and encoded records to a released model and its certificate.

:class:`Charge` is what a fit may spend, from which ledger; :func:`by_recipe` and
:func:`by_theorem` are the ways to fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from scipy.sparse import csr_array, issparse

from discreet.accounting.gaussian import gaussian_epsilon, gaussian_mu
from discreet.certificate import Arithmetic as CertifiedArithmetic
from discreet.certificate import Certificate
from discreet.core.mechanisms import Arithmetic
from discreet.core.noise import SPARED_DELTA_OF_FIT
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import ApproximateDP
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.ledger.filters import SPARE as LEDGER_SPARE
from discreet.ledger.filters import SpendingRule
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.encoder import Encoding, Scaled
from discreet.linear.gate.coordinates import Released
from discreet.linear.gate.private_table import EncodedRows
from discreet.linear.glm.counts import Counts
from discreet.linear.glm.glm import fit_records
from discreet.linear.glm.inference import Inference
from discreet.linear.glm.recording import RecordingSpending, Tape
from discreet.linear.glm.spending import Progress as Told
from discreet.linear.glm.spending import Spending
from discreet.linear.glm.typical_people import Typical
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import score_rows
from discreet.linear.losses import Loss
from discreet.linear.public_log import PublicLog
from discreet.linear.secret_sample import amplified_budget
from discreet.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Charge:
    """One fit's right to spend: its till, its plan, its randomness.

    The plan carries a run name of its own, so that two fits with the same settings are two plans. ``alone``
    if nobody else can charge the ledger.
    """

    budget: Budget
    till: Till
    plan: Plan
    stream: RandomStream
    arithmetic: Arithmetic
    alone: bool = False
    log: PublicLog | None = None
    sample: float | None = None
    tape: Tape | None = None

    @property
    def sampled(self) -> bool:
        """Whether the whole budget is one charge, for which more can be spent on a secret sample."""
        return self.sample is not None and self.budget.neighbours == "add-remove"

    def spending(self) -> Spending:
        """The budget, to be spent in stages; of a sample what the sample is worth, on an account of its own."""
        name = str(self.plan.settings["run"])
        if self.sample is not None and self.log is not None:
            raise InvalidParameter("sample", self.sample, "is for tables of one machine; leave it out.")
        if self.sample is not None and self.sampled:
            return self._spending_of_sample(self.sample, name)
        return self._new_spending(self.budget, self.till, self.stream, self.arithmetic, name, self.log)

    def _new_spending(self, *known: Any, **options: Any) -> Spending:
        if self.tape is None:
            return Spending(*known, **options)
        return RecordingSpending(self.tape, *known, **options)

    def _spending_of_sample(self, sample: float, name: str) -> Spending:
        """What a sample is worth. It is paid for when something is released, and not where that is refused before."""
        self.till.refuse_other_neighbours()
        inner = amplified_budget(_within(self.budget, self.arithmetic), sample)
        try:
            return self._new_spending(
                inner, None, self.stream, self.arithmetic, name, on_first=self.reserve_everything
            )
        except InvalidParameter as error:
            remedy = f"would let the fit spend epsilon={inner.epsilon:.4g} on the sample, which {error.requirement}"
            raise InvalidParameter("sample", sample, remedy) from None

    def refuse_foreign(self, earlier: Iterable[str]) -> None:
        """Raise unless all the plans with these digests were charged to this ledger."""
        known = {run.plan_hash for run in self.till.ledger.statement().runs}
        if not known.issuperset(earlier):
            raise PlanViolation(
                "The model was fitted under another ledger, or none, so this ledger cannot answer for both. Fit it "
                "with this ledger from the beginning."
            )

    def reserve_everything(self) -> Budget:
        """Charge the whole budget at once, for a method that is known by its guarantee only: what it may cost."""
        self.till.refuse_other_neighbours()
        event = _black_box(_within(self.budget, self.arithmetic))
        self.till.pay(event, name=str(self.plan.settings["run"]))
        return replace(self.budget, epsilon=event.epsilon, delta=event.delta)

    def certificate(self, distance: float, not_covered: tuple[str, ...]) -> Certificate:
        """What was spent and what it proves. ``distance`` is of all hardened releases together."""
        return Certificate.of(
            self.till.ledger,
            self.plan,
            arithmetic=self._certified_arithmetic(distance * (1 + 1e-12)),
            trusted=self.stream.trusted and self.tape is None,
            not_covered=not_covered,
        )

    def _certified_arithmetic(self, distance: float) -> CertifiedArithmetic:
        """With the distance that was kept back for; where others share the ledger, with the one that was needed.

        The first makes the guarantee the very budget that was asked for.
        """
        if self.arithmetic == "float":
            return CertifiedArithmetic()
        if self.sampled:  # what was spent on the sample has room for its own distance
            distance = _NONE
        rule = self.plan.rule.budget
        spare = Fraction(self.budget.delta) - Fraction(rule.delta)
        planned = float(spare / (1 + Fraction(math.exp(rule.epsilon) * (1 + 1e-14)))) * (1 - 1e-14)
        return CertifiedArithmetic("hardened", planned if self.alone and distance <= planned else distance)


@contextmanager
def open_charge(
    name: str,
    settings: Mapping[str, Any],
    budget: Budget,
    ledger: AnyLedger,
    ledger_key: KeyFile,
    unsafe_seed: int | None,
    arithmetic: Arithmetic,
    *,
    staged: bool = True,
    sample: float | None = None,
    earlier: Mapping[str, Budget | None] | None = None,
    log: PublicLog | None = None,
    tape: Tape | None = None,
) -> Iterator[Charge]:
    """Open the ledger for one fit, and close it again if it was opened here.

    ``staged`` fits spend by a Gaussian filter; others, and those of a secret ``sample`` under add-remove neighbours,
    reserve their whole budget as one release. ``earlier`` has the digests of the plans that made the model so
    far, and the budget of each: the plan of a fit that goes on from it answers for all of them together. A fit whose
    sums go onto a ``tape`` is not certified as private.
    """
    staged = staged and not (sample is not None and budget.neighbours == "add-remove")
    spent = _within(budget, arithmetic)
    rule: SpendingRule = GaussianFilter(spent, spare=0.0) if staged else FixedPlan(_black_box(spent), spent)
    plan = Plan.adaptive(name, rule, {**settings, "run": run_name(name, log)})
    with Till.open(ledger, plan, key=ledger_key) as opened:
        if earlier:
            plan = _continue(plan, opened.ledger.rule, budget, earlier, staged)
        till = Till.open(opened.ledger, plan)
        stream = system_stream() if unsafe_seed is None else RandomStream(unsafe_seed=unsafe_seed)
        yield Charge(budget, till, plan, stream, arithmetic, ledger is None, log, sample, tape)


def _continue(
    plan: Plan, ledger: SpendingRule, budget: Budget, earlier: Mapping[str, Budget | None], staged: bool
) -> Plan:
    """The plan of a fit that goes on from others: it promises what all of them cost together.

    If all have the same budget and spend it by Gaussian noise, m fits are as private as one with noise that is
    smaller by the root of m. This is proved for each number m: for the process that stops after m fits at the
    latest, whatever the releases of each fit depend on. It does not cover an m that is chosen by what earlier fits
    showed; then, and where budgets differ, all that can be promised is what the ledger promises of everything.
    """
    known = staged and isinstance(ledger, GaussianFilter) and set(earlier.values()) == {budget}
    if not known or budget.delta <= 0:
        return Plan.adaptive(plan.name, ledger, plan.settings)
    one = gaussian_mu(budget.epsilon, budget.delta)
    epsilon = gaussian_epsilon(budget.delta * (1 - LEDGER_SPARE), one * math.sqrt(1 + len(earlier)))
    rule: SpendingRule = GaussianFilter(replace(budget, epsilon=epsilon * (1 + 1e-9)))
    if rule.budget.epsilon >= ledger.budget.epsilon and budget.delta >= ledger.budget.delta:
        rule = ledger  # which has room for no more
    return Plan.adaptive(plan.name, rule, {**plan.settings, "continues": list(earlier)})


def run_name(name: str, log: PublicLog | None = None) -> str:
    """A name of its own for a fit, or the one under which it began."""
    return f"{name}-{os.urandom(8).hex()}" if log is None else log.run


def _within(budget: Budget, arithmetic: Arithmetic) -> Budget:
    """What the releases may cost if the noise were continuous."""
    if arithmetic != "hardened":
        return budget
    return replace(budget, delta=budget.delta * (1 - SPARED_DELTA_OF_FIT))


def _black_box(budget: Budget) -> ApproximateDP:
    """All of the budget but what the rounding of the accountant may add."""
    return ApproximateDP(budget.epsilon * (1 - 1e-12), budget.delta)


_NONE = 1e-300  # a distance of 0, rounded up


# ---- the ways to fit, behind one interface: encoded records in, a Model out ----
#
# ``"recipe"`` is the one without knobs (:func:`~discreet.linear.glm.glm.fit_glm`). The others are those of
# :mod:`discreet.lecture.erm`: they need a loss of bounded slope with one output, and, under add-remove
# neighbours, a public number of records.

Array = NDArray[np.float64]

_CELLS = 2**18  # numbers of which scores are computed at once
METHODS = ("recipe", "descent", "output-perturbation", "objective-perturbation", "exponential")
_THEOREMS = "discreet.lecture.erm"  # loaded for the methods with theorems only


@dataclass(frozen=True, eq=False)
class Model:
    """A released linear model in the units of the encoded columns.

    ``precision`` is one over the variance of a coefficient, in units in which the columns are white, as far as it
    follows from what was released; it weighs models that are joined. ``limits`` are the ends of the part of each
    column in which records were found, beyond which a line means nothing. ``counts`` are the noisy numbers of
    records, None for the methods with theorems, and ``released`` those in each column, where there were enough.
    ``inference`` are estimates with their errors, where they were asked for and there were enough records.
    ``missing`` is what a missing number counts as, for each numeric column: its noisy mean.
    ``borne_out`` is the share of slopes for classes that other records will bear out.
    """

    coefficients: Array
    intercept: Array
    precision: float
    limits: tuple[Array, Array]
    counts: Counts | None = None
    released: Released | None = None
    inference: Inference | None = None
    missing: Array | None = None
    borne_out: float = 1.0

    def scores(self, encoded: Any) -> Array:
        """intercept + row times coefficients, for each row and output; values beyond the limits count as these."""
        lower, upper = self.limits
        if not issparse(encoded):
            return self._dense_scores(encoded)
        zero = np.clip(0.0, lower, upper)  # what an empty cell counts as
        rows = csr_array(encoded, dtype=np.float64, copy=True)
        rows.data = np.clip(rows.data, lower[rows.indices], upper[rows.indices]) - zero[rows.indices]
        return np.asarray(rows @ self.coefficients + zero @ self.coefficients + self.intercept, np.float64)

    def _dense_scores(self, encoded: Any) -> Array:
        """The same of dense rows, block by block; numbers for a single output are scaled on the way."""
        limits = readable(self.limits[0]), readable(self.limits[1])
        weights = readable(self.coefficients.reshape(len(self.coefficients), -1).T)
        table, bounds = encoded, (np.empty(0), np.empty(0), np.empty(0))
        if isinstance(encoded, Scaled) and len(weights) == 1:
            table, bounds = encoded.table, (encoded.lower, encoded.upper, readable(encoded.missing))
        found = np.empty((len(weights), table.shape[0]))
        step = max(1, _CELLS // max(1, table.shape[1]))
        for start in range(0, table.shape[0], step):
            rows, part = readable(table[start : start + step]), found[:, start : start + step]
            for weight, intercept, out in zip(weights, np.atleast_1d(self.intercept), part, strict=True):
                score_rows(rows, *bounds, limits, weight, float(intercept), out)
        return np.ascontiguousarray(found.T).reshape(-1, *self.coefficients.shape[1:])

    def without(self, columns: NDArray[np.bool_], constant: Array) -> Model:
        """The model with coefficients 0 for these columns, whose values are ``constant`` in every record."""
        moved = np.clip(constant, *self.limits)[columns] @ self.coefficients[columns]
        kept = np.where(columns, 0.0, self.coefficients.T).T
        return replace(self, coefficients=kept, intercept=np.asarray(self.intercept + moved))

    def widen(self, seen: NDArray[np.intp], width: int) -> Model:
        """The model of ``width`` columns, of which it knows those at ``seen``; the others have coefficients of 0."""

        def place(values: Array, empty: float) -> Array:
            whole = np.full((width, *values.shape[1:]), empty)
            whole[seen] = values
            return whole

        limits = (place(self.limits[0], 0.0), place(self.limits[1], 1.0))
        coefficients, released = place(self.coefficients, 0.0), self.released
        if released is not None:
            missing, known = width - len(seen), len(released.bins)
            bins = np.zeros((known + missing, released.bins.shape[1]))
            bins[seen[:known]] = released.bins
            released = released._replace(bins=bins)
        means = self.missing
        if means is not None:
            numerics = len(means)
            means = np.full(numerics + width - len(seen), 0.5)
            means[seen[:numerics]] = self.missing
        fitted = replace(self, coefficients=coefficients, limits=limits, released=released)
        return replace(fitted, inference=None, missing=means)

    def join(self, other: Model) -> Model:
        """The mean of two models, each with the weight of its precision."""
        weight = self.precision / (self.precision + other.precision)
        coefficients = weight * self.coefficients + (1 - weight) * other.coefficients
        intercept = weight * self.intercept + (1 - weight) * other.intercept
        limits = (np.minimum(self.limits[0], other.limits[0]), np.maximum(self.limits[1], other.limits[1]))
        precision = self.precision + other.precision
        known = other.counts, other.released, None, self.missing  # which the other was fitted with as well
        return Model(coefficients, intercept, precision, limits, *known)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """The table of a fit with its encoding, and what else is public of it.

    ``bounds`` are those of the target, None for classes; ``typical`` is how many rows people have, if they are the
    unit; ``counts`` are as for :func:`~discreet.linear.glm.glm.fit_glm`. ``sparse`` encoded rows are not narrowed.
    """

    table: Any
    loss: Loss
    encoding: Encoding
    bounds: tuple[float, float] | None
    typical: Typical | None
    counts: Counts | None
    sparse: bool

    def rows(self, seen: NDArray[np.intp] | None = None, whole_rows: bool = False) -> Any:
        """The columns ``seen``, or all, encoded; with ``whole_rows`` if queries about those will be asked."""
        return self.table.rows(self.view(seen, whole_rows))

    def view(self, seen: NDArray[np.intp] | None = None, whole_rows: bool = False) -> EncodedRows:
        least = None if self.typical is None else self.typical.least
        return EncodedRows(self.loss, self.encoding, seen, self.bounds, least, whole_rows)

    @property
    def target_bounds(self) -> tuple[float, float]:
        """Those of the target; (0, 1) for classes."""
        return (0.0, 1.0) if self.bounds is None else self.bounds

    @property
    def averaging(self) -> float:
        """How much shorter the mean gradient of a person is than that of a row."""
        return 1.0 if self.typical is None else self.typical.averaging


def by_recipe(
    records: EncodedTable, spending: Spending, references: Mapping[int, int] | None = None
) -> Model:
    """The recipe without knobs, on all that is left to spend; with ``references``, also which effects are real.

    Columns whose bounds are a guess are left out.
    """
    width = records.encoding.columns.width
    seen = np.setdiff1d(np.arange(width), records.encoding.guessed)
    whole = len(seen) == width or records.sparse
    references = references if whole else None
    fit = fit_records(
        records.rows(None if whole else seen, whole_rows=references is not None),
        spending,
        target_bounds=records.target_bounds,
        averaging=records.averaging,
        references=references,
        counts=records.counts,
    )
    # The variance of sampling, and that of noise as large as a typical row.
    count, size = fit.counts.records, len(fit.coefficients) + 1
    variance = 1 / count + size / (count * spending.strength) ** 2
    intercept = np.asarray(fit.intercept)
    limits = (fit.lower, fit.upper)
    model = Model(
        fit.coefficients,
        intercept,
        1 / variance,
        limits,
        fit.counts,
        fit.released,
        fit.inference,
        fit.missing,
        fit.borne_out,
    )
    return model if whole else model.widen(seen, width)


def by_theorem(method: str, records: EncodedTable, charge: Charge, declared: int | None) -> Model:
    """One of the methods with theorems, on centred columns with a constant.

    Guarantee: that of the method, within the budget, all of which is charged before it begins.
    """
    loss, columns, arrays = records.loss, records.encoding.columns, records.table.arrays(records.view())
    if arrays.weights is not None:
        requirement = f"are not known to the method {method!r}; use method='recipe'."
        raise InvalidParameter("weights", "given", requirement)
    if declared is None and charge.budget.neighbours == "add-remove":
        requirement = f"the method {method!r} needs a public number of records; or use method='recipe'."
        raise InvalidParameter("records", None, requirement)
    if loss.outputs != 1 or loss.lipschitz is None:
        requirement = f"the method {method!r} needs a bounded slope and one output; use method='recipe'."
        raise InvalidParameter("loss", loss, requirement)
    centre = np.zeros(columns.width)
    centre[: columns.numerics] = 0.5
    dense = arrays.x.toarray() if issparse(arrays.x) else arrays.x[:]
    rows = np.column_stack([np.ones(dense.shape[0]), np.asarray(dense, np.float64) - centre])
    row_bound = math.sqrt(1 + columns.numerics / 4 + len(columns.groups) + columns.text_square)
    budget = charge.reserve_everything()
    release = import_module(_THEOREMS).private_minimiser(
        loss,
        rows,
        np.clip(arrays.y[:], *records.target_bounds),
        budget,
        method=method,
        row_bound=row_bound,
        records=declared,
        stream=charge.stream,
    )
    value = np.asarray(release.value, np.float64)
    anywhere = np.full(columns.width, np.inf)
    return Model(value[1:], np.asarray(value[0] - centre @ value[1:]), 1.0, (-anywhere, anywhere))


# ---- a progress bar for long fits: the stages and the steps of the descent, which are public ----


@contextmanager
def show_progress(verbose: Any) -> Iterator[Told | None]:
    """A function to be told of every stage and release, or None if nobody wants to know.

    ``verbose`` may be such a function itself. Otherwise every stage gets a line on standard error; where that is not
    a terminal, all of them are written at the end.
    """
    if not verbose or callable(verbose):
        yield verbose or None
        return
    name = TextColumn("{task.description}")
    with Progress(name, BarColumn(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        lines: dict[str, TaskID] = {}

        def tell(stage: str, done: int, steps: int) -> None:
            if stage not in lines:
                lines[stage] = bar.add_task(stage, total=steps)
            bar.update(lines[stage], completed=done)

        yield tell
