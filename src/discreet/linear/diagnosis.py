"""Does the table look as it was declared? What already released, noisy numbers say of it: :class:`Diagnosis`.

A cell that is not as declared counts as missing, without a word, so a wrong spelling makes a model of nothing. The
fit has paid for a noisy number of records, for each number column a histogram of 64 bins over its bounds, and for
each category how many records have it. Missing numbers are in the middle bin.

Nothing here reads a record, so it costs nothing. Of a table as declared it says nothing wrong, but for one fit in a
hundred: a note needs four standard deviations of noise (three for a flag that nobody has). A note can be right about
a table that is as it should be, for instance when most values of a column really are missing; hence they ask.
What should not be overlooked is said aloud, as a :class:`DeclarationWarning`.

What scikit-learn's tools and pipelines do around a fit costs privacy that nobody pays for, and it can be seen on
the stack: :func:`cost_of_repetition` and :func:`what_callers_did`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.gaussian import gaussian_epsilon, gaussian_mu
from discreet.certificate.certificate_views import CHOSEN, LEARNT
from discreet.guarantee import Budget
from discreet.linear.column_kinds import Category, Column, Date, Flag, Numeric
from discreet.linear.encoder import BoundedNumbers, Encoding, SchemaEncoding
from discreet.linear.gate.records import NARROW
from discreet.linear.glm.budget_split import BudgetSplit
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.glm.marginals import BINS
from discreet.linear.glm.steps import LEAST_SLOPE
from discreet.linear.linear_model import LinearModel
from discreet.linear.row_views.coordinates import Released

Array = NDArray[np.float64]

_SURE, _RARE, _FEW = 4.0, 3.0, 3.0  # standard deviations of noise
_MOST, _ALL = (
    0.5,
    0.96,
)  # shares of records that are noted: elsewhere, and at the lower bound, where zeros may be
_BESIDE_UNHELD = 0.02  # the share of unknown categories that is noted beside a declared one that nobody has
_NAMED = 3  # categories that nobody seems to have are named, so many at most
_RARE_OR_MISSPELT = (
    "too few to be told from noise: they are rare, or spelt otherwise in the table. strip and casefold forgive "
    "blanks and capitals."
)
_SHARP = 0.025  # the largest doubt about a share with which anything is said of a flag
_CENTRE = BINS // 2
_WEAK, _VOID = 10.0, 30.0  # epsilons beyond which a promise is weak, as reports say, and empty
_SCARCE = 3.0  # coefficients over records in units of their noise, from where on little can be learnt


@dataclass(frozen=True)
class Diagnosis:
    """What released numbers say of the table: ``notes``, in sentences, and the noisy shares that they follow from.

    ``records`` is the noisy number of records that counted, None for methods that do not count. ``shares`` has for
    each column the share of records "in the middle" (where missing ones count), "at the lower bound", "at the upper
    bound"; "missing" where it has a column of its own; "yes" for flags, "unknown" for categories. There are none
    where records were too few to look at columns. Columns in which nothing was found are ``empty``: they get the
    coefficient 0. ``scores`` is a sentence on a model whose scores are all the same, or could be chance; of any other
    it is empty.
    """

    records: float | None = None
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    scores: str = ""

    def __str__(self) -> str:
        return "\n".join((*self.notes, *([self.scores] if self.scores else ()))) or "nothing to note"


def diagnosis(
    encoding: Encoding,
    names: Any,
    counts: ClassCounts | None,
    released: Released | None,
    target: tuple[str, tuple[str, ...]] = ("", ()),
    unit: str | None = None,
) -> Diagnosis:
    """What can be said of the columns of an encoding; ``target`` is its name, and what its classes are called.

    ``unit`` is the column of the people who count as one each, if the rows are theirs.
    """
    if counts is None:
        return Diagnosis()
    records, doubt = float(counts.classes.sum()), counts.noise_of_records
    if records < _FEW * doubt:
        note = (
            f"about {max(records, 0):.0f} records were found, which noise alone could explain: does the table hold "
            "records with a target as declared, and is the budget enough for them?"
        )
        return Diagnosis(records, notes=(note,))
    unseen = (*_of_unit(unit), *_of_target(counts, *target), *_unseen(encoding, names))
    if released is None:
        return Diagnosis(records, notes=unseen)
    found = list(_columns(encoding, names, released, records, doubt))
    shares = {column.name: column.shares for column in found}
    notes = (*unseen, *(note for column in found for note in column.notes()))
    return Diagnosis(records, shares, notes, tuple(column.name for column in found if column.is_empty))


def _of_unit(unit: str | None) -> Iterator[str]:
    """What the model is of, where people have several rows. No released number shows whether it matters."""
    if unit is not None:
        yield (
            f"{unit}: everybody counts once, so this is a model of the average person and not of the average row. "
            "If the number of rows depends on the target (such as one row a month until an event), its level is not "
            "that of the rows; one row for each person avoids it."
        )


def _of_target(counts: ClassCounts, name: str, classes: tuple[str, ...]) -> Iterator[str]:
    """Which classes nobody seems to be of, where the counts are sharp enough to tell."""
    error = counts.noise / counts.records
    for label, count in zip(classes, counts.classes, strict=True) if classes and error <= _SHARP else ():
        if count < _RARE * counts.noise:
            share = f"{max(count, 0) / counts.records:.0%}"
            yield f"{name or 'target'}: about {share} are {label}, {_RARE_OR_MISSPELT}"


def _unseen(encoding: Encoding, names: Any) -> Iterator[str]:
    """Which bounds were to be learnt, and were not found."""
    for place in encoding.guessed:
        known = encoding.names if names is None or isinstance(encoding, SchemaEncoding) else names
        name = f"column {place}" if known is None else str(known[place])
        yield f"{name}: its bounds were not found, as noise hides them, so it is not used; can they be declared?"


def note_of_weights(max_weight: float) -> str:
    """What becomes of weights, which no released number shows."""
    told = f"sample_weight: a weight above max_weight={max_weight:g} counts as that"
    return f"{told}; declare the largest there may be."


def without_empty(model: Any, encoding: Encoding, empty: tuple[str, ...]) -> Any:
    """The model with coefficients 0 for empty columns; what they added to every score is in the intercept."""
    if not empty or not isinstance(encoding, SchemaEncoding):
        return model
    owners = _owners(encoding)
    dead = np.isin(owners, empty)
    # What every record has there: what counts for a missing number and its flag, no other flag and no category.
    constant = np.array([float(isinstance(encoding.schema.features[name], Numeric)) for name in owners])
    constant[: len(encoding.numerics)] = encoding.fills
    return model.without(dead, constant)


def _owners(encoding: SchemaEncoding) -> list[str]:
    """For each encoded column, the column of the table that it is of."""
    groups = (name for name, labels in encoding.groups.items() for _ in labels)
    return [*encoding.numerics, *groups]


def _columns(
    encoding: Encoding, names: Any, released: Released, records: float, doubt: float
) -> Iterator[_Seen]:
    """Every column of the table, with its shares."""
    error, zero_within = math.hypot(released.noise, doubt) / records, _zero_within(encoding)
    if not isinstance(encoding, SchemaEncoding):
        for place, histogram in enumerate(released.bins):
            name = f"column {place}" if names is None else str(names[place])
            yield _Seen(
                name, Numeric(), _number_shares(histogram / records), error, zero_within=place in zero_within
            )
        return
    places = {name: place for place, name in enumerate(encoding.numerics)}
    start, categories = 0, {}
    for name, labels in encoding.groups.items():
        categories[name] = released.categories[start : start + len(labels)] / records
        start += len(labels)
    for name, column in encoding.schema.features.items():
        if isinstance(column, Numeric):
            shares = _number_shares(released.bins[places[name]] / records)
            shares |= {"missing": float(categories[name][0])} if name in categories else {}
        else:
            total = float(categories[name].sum())
            shares = {"yes": total} if isinstance(column, Flag) else {"unknown": 1 - total}
        held = categories.get(name, np.zeros(0))
        unheld = tuple(np.flatnonzero(held < _RARE * error).tolist()) if error <= _SHARP else ()
        doubtful = error * math.sqrt(len(held) or 1)
        yield _Seen(name, column, shares, doubtful, unheld, places.get(name) in zero_within)


def _zero_within(encoding: Encoding) -> set[int]:
    """Columns whose bounds were learnt with zero in their middle: noise alone may have put it there."""
    if not isinstance(encoding, BoundedNumbers | SchemaEncoding):
        return set()
    return {int(place) for place in encoding.learnt if encoding.lower[place] == -encoding.upper[place]}


def _number_shares(histogram: Array) -> dict[str, float]:
    return {
        "in the middle": float(histogram[_CENTRE]),
        "at the lower bound": float(histogram[0]),
        "at the upper bound": float(histogram[-1]),
    }


@dataclass(frozen=True)
class _Seen:
    """One column of the table, its noisy shares and the doubt about each, and which values nobody seems to have."""

    name: str
    column: Column
    shares: dict[str, float]
    error: float
    unheld: tuple[int, ...] = ()
    zero_within: bool = False

    @property
    def is_empty(self) -> bool:
        """True if noise alone could explain everything that was found but a constant."""
        if isinstance(self.column, Flag):
            return any(self._of_flag(self.column))
        what = "unknown" if isinstance(self.column, Category) else "in the middle"
        return self._surely(what, _MOST) and self.shares[what] > 1 - _RARE * self.error

    def notes(self) -> Iterator[str]:
        if isinstance(self.column, Flag):
            yield from self._of_flag(self.column)
        elif isinstance(self.column, Category):
            if self._surely("unknown", _BESIDE_UNHELD if self.unheld else _MOST):
                nobody = ", ".join(repr(self.column.values[place]) for place in self.unheld[:_NAMED])
                also = f", and nobody seems to be {nobody}" if nobody else ""
                yield (
                    f"{self.name}: about {self._percent('unknown')} are none of the declared categories{also}: are "
                    "they spelt as in the table? strip and casefold forgive blanks and capitals."
                )
        else:
            yield from self._of_numbers()

    def _of_flag(self, column: Flag) -> Iterator[str]:
        if self.error <= _SHARP and self.shares["yes"] < _RARE * self.error:
            yield f"{self.name}: about {self._percent('yes')} are {column.yes!r}, {_RARE_OR_MISSPELT}"

    def _of_numbers(self) -> Iterator[str]:
        dates = isinstance(self.column, Date)
        remedy = (
            "are dates written as format says?"
            if dates
            else "are they numbers? A schema can declare decimal, thousands, and bounds as dates."
        )
        if "missing" in self.shares:
            if self._surely("missing", _MOST):
                yield f"{self.name}: about {self._percent('missing')} are missing: {remedy}"
        elif self._surely("in the middle", _MOST) and not self.zero_within:  # zeros are no missing cells
            share = self._percent("in the middle")
            yield f"{self.name}: about {share} are missing, or in the middle of the bounds: {remedy}"
        for side, least in (("at the lower bound", _ALL), ("at the upper bound", _MOST)):
            if self._surely(side, least) and not self._is_two_valued:
                share = self._percent(side)
                yield f"{self.name}: about {share} are {side}, or beyond: are they in the units of the bounds?"

    @property
    def _is_two_valued(self) -> bool:
        """True of 0 and 1 within (0, 1): all are at either bound. Those of wrong units are all at the same."""
        ends = [self.shares[f"at the {side} bound"] for side in ("lower", "upper")]
        return min(ends) > _RARE * self.error and sum(ends) > 1 - _RARE * math.sqrt(2) * self.error

    def _surely(self, what: str, least: float) -> bool:
        return self.shares[what] - _SURE * self.error > least

    def _percent(self, what: str) -> str:
        return f"{min(max(self.shares[what], 0.0), 1.0):.0%}"


class DeclarationWarning(UserWarning):
    """What was declared does not fit the data, as far as released, noisy numbers show, or promises nothing."""


def warn_of_width(columns: int) -> None:
    """Say what to declare of a wide sparse table."""
    if columns > NARROW:
        message = (
            f"Nothing is declared of the {columns} columns of a sparse X, so the budget also pays for a range of "
            "each. If its rows have a public norm, as those of TfidfVectorizer have, row_norm=1.0 costs nothing; "
            "for counts, bounds=(0, most)."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=5)


def warn_weak(budget: Budget) -> None:
    """Say so if a budget promises little."""
    if budget.epsilon > _WEAK:
        little = "nothing" if budget.epsilon > _VOID else "little"
        message = (
            f"epsilon {budget.epsilon:g} promises {little}: an attack that succeeds often is not excluded. "
            "Usual budgets are 0.1 to 10."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_undeclared(model: LinearModel, declared: str) -> None:
    """Say so if noisy counts show that many records have a target outside of what was declared.

    Guarantee: depends on released counts only. False alarms: one in about 10**6.
    """
    counts = model.counts
    if counts is not None and counts.other > max(5 * counts.noise_of_other, 0.01 * counts.records):
        message = (
            f"About {counts.other:.0f} records (a noisy count) have a target outside of {declared}: not used."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_unseen(encoding: Encoding) -> None:
    """Say so if most bounds could not be learnt; ``diagnosis_`` names each. Depends on noisy histograms only."""
    if len(encoding.guessed) > encoding.columns.numerics / 2:
        message = (
            f"The bounds of {len(encoding.guessed)} of {encoding.columns.numerics} columns were not found, as noise "
            "hides them: these columns are not used. Declare bounds, or allow a larger epsilon."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_noise(model: LinearModel, strength: float) -> None:
    """Say so if a model has more coefficients than its records can tell, or therefore none. From noisy counts."""
    if model.counts is None:
        return
    counts, size = model.counts, len(model.coefficients) + 1
    split = BudgetSplit(counts.records, strength, 1.0)
    balance = counts.balance if len(counts.classes) > 1 else None
    seen = split.sees_slopes(size) if balance is None else split.compares_classes(balance)
    constant = size > 1 and not (seen or np.any(model.coefficients))
    if size <= _SCARCE * split.overall and not constant:
        return
    # Where the count itself is noise, so would be a factor computed from it, and so is how unequal classes are.
    hidden = counts.records < _FEW * counts.noise_of_records
    balance = 1.0 if hidden and balance is not None else balance
    needed = max(size, split.fewest(size, balance)) if constant else size
    if hidden:
        why = (
            f"noise hides how many records there are; a model of {size} coefficients needs at least about "
            f"{needed / strength:.1g} of them at this epsilon."
        )
    else:
        factor = max(needed / split.overall, 2.0)
        why = f"records times epsilon are too few for its columns by a factor of about {factor:.1g}."
    told = "a constant" if constant else "mostly noise"
    warnings.warn(f"This model is {told}: {why}", DeclarationWarning, stacklevel=4)


def undecided(model: LinearModel) -> str:
    """A sentence on a model whose scores are all the same, or could be chance; empty for any other.

    Follows from the released coefficients and from noisy counts.
    """
    if len(model.coefficients) and not np.any(model.coefficients):
        return (
            "all scores are the same: the columns say nothing of the target, or noise hides it. Predictions are "
            "those of a model without columns; more records or a larger epsilon could tell."
        )
    if model.borne_out <= LEAST_SLOPE:
        return (
            "chance could explain all that the columns say of the target. Scores keep the order that was found, but "
            "probabilities are near those of a model without columns; more records or a larger epsilon could tell."
        )
    return ""


def warn_undecided(model: LinearModel) -> None:
    """Warn of :func:`undecided` models that have slopes; of those without, :func:`warn_noise` tells the reason."""
    told = undecided(model)
    if told and np.any(model.coefficients):
        warnings.warn(f"This model is mostly noise: {told}", DeclarationWarning, stacklevel=4)


_SEARCH, _PIPELINE = "sklearn.model_selection._search", "sklearn.pipeline"
_TARGET = "sklearn.compose._target"
_SEVERAL = (
    "sklearn.model_selection",
    "sklearn.multioutput",
    "sklearn.multiclass",
    "sklearn.ensemble",
    "sklearn.calibration",
    "sklearn.feature_selection",
)


def cost_of_repetition(budget: Budget) -> str | None:
    """What several fits cost together, where scikit-learn makes them; None where it does not."""
    callers = [frame for frame in _frames() if _module(frame).startswith(_SEVERAL)]
    if not callers:
        return None
    ten, fifty = (_together(budget, fits) for fits in (10, 50))
    owner = callers[-1].f_locals.get("self")
    name = callers[-1].f_code.co_name if owner is None else type(owner).__name__
    return (
        f"{name} fits several models on the same records, and each costs epsilon {budget.epsilon:g}, delta "
        f"{budget.delta:g}: ten of them together {ten:.3g}, fifty {fifty:.3g} at that delta. No ledger adds them up: "
        "give all of them the same ledger=. Scores on records are not paid for either: see discreet.selection."
    )


def _together(budget: Budget, fits: int) -> float:
    """Epsilon of so many Gaussian fits, or of fits without a delta."""
    if not budget.delta > 0:
        return fits * budget.epsilon
    return gaussian_epsilon(budget.delta, gaussian_mu(budget.epsilon, budget.delta) * fits**0.5)


def what_callers_did() -> tuple[str, ...]:
    """What scikit-learn did with the records before and around this fit, for the certificate's "not covered"."""
    found = []
    for frame in _frames():
        if _module(frame).startswith(_SEARCH) and CHOSEN not in found:
            found.append(CHOSEN)
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and _module(frame) in (_PIPELINE, _TARGET):
            found += [f"what {name} {LEARNT}" for name in _learners(owner)]
    return tuple(dict.fromkeys(found))


def warn_of_learners(not_covered: tuple[str, ...]) -> None:
    """Say aloud what a pipeline learnt of the records without paying."""
    found = [text for text in not_covered if text.endswith(LEARNT)]
    if found:
        message = (
            f"The guarantee does not cover {'; '.join(found)}. These steps were fitted to the private records "
            "without noise. Declare bounds= or schema= in their place, or use discreet.linear.PublicBounds."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


_STATELESS = {"PolynomialFeatures": {}, "SimpleImputer": {"strategy": "constant"}}
"""Transformers of scikit-learn that learn nothing but shapes, with these parameters."""


def _learners(owner: Any) -> Iterator[str]:
    """The transformers around a model that learn from records; ours say themselves what they are."""
    if hasattr(owner, "steps"):
        steps = [step for _, step in owner.steps[:-1]]
    else:
        steps = [getattr(owner, "transformer", None)]
    for step in steps:
        yield from _learners_within(step)


def _learners_within(step: Any) -> Iterator[str]:
    from sklearn.utils import get_tags

    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    parts = getattr(step, "steps", None) or getattr(step, "transformers", None)
    parts = parts or getattr(step, "transformer_list", None)
    if parts and type(step).__module__.startswith(("sklearn.pipeline", "sklearn.compose")):
        for part in parts:
            yield from _learners_within(part[1])
        return
    ours = type(step).__module__.startswith("discreet.")
    if hasattr(step, "fit") and not ours and not _is_stateless(step) and get_tags(step).requires_fit:
        yield type(step).__name__


def _is_stateless(step: Any) -> bool:
    if not type(step).__module__.startswith("sklearn."):
        return False
    categories = getattr(step, "categories", "auto")
    if type(step).__name__ in ("OneHotEncoder", "OrdinalEncoder"):
        return not isinstance(categories, str)  # declared
    known = _STATELESS.get(type(step).__name__)
    return known is not None and all(getattr(step, name) == value for name, value in known.items())


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
