"""``evaluate``: how good a model is, measured on records that are private too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discreet.errors import InvalidParameter, probability
from discreet.evaluation.answers import answers, task_for
from discreet.evaluation.result import Evaluation
from discreet.evaluation.scoring import Scoring, Shared
from discreet.evaluation.splitting import row_count, unit_ids
from discreet.evaluation.tally import Grouping, Tally, person_weights
from discreet.evaluation.tasks import Cells, Numbers, Task
from discreet.guarantee import Budget, Neighbours
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.cells import declared_numbers
from discreet.linear.inputs import codes, column_names, column_values
from discreet.linear.schema import Category, Column, Flag, Numeric, distinct, schema_of
from discreet.linear.sources import source_of
from discreet.linear.tables import joined
from discreet.linear.targets import declared_labels, one_for_each_row, target_numbers
from discreet.statistics.purchase import MOST_RECORDS, Purchase, bought

Array = NDArray[np.float64]

MODEL_NOT_COVERED = "the model: it is public, or paid for elsewhere, and answers for each record by itself"


def evaluate(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    epsilon: float,
    delta: float = 1e-6,
    by: Any = None,
    classes: Any = None,
    target_bounds: Any = None,
    unit: Any = None,
    neighbours: Neighbours = "add-remove",
    confidence: float = 0.9,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
    unsafe_seed: int | None = None,
) -> Evaluation:
    """Score ``model`` on private records, at the cost of (epsilon, delta) for everything together.

    Parameters
    ----------
    model : anything with ``predict_proba``, ``decision_function`` or ``predict``, ours or not; or a function of ``x``
        that answers with probabilities (a column for each class, or one for the second of two) or with numbers.
    x, y : the records and what is true of them. ``y`` may be the name of a column of ``x``; None takes the target of
        the model's schema. For a model with a schema ``x`` may be a file or what else a fit reads in chunks.
    by : a column of ``x`` with its declared values, ``{"sex": ("F", "M")}``, or several: scores for each group. With
        an array in place of a column, ``{"sex": (array, ("F", "M"))}``. Just the name, if the model's schema has it.
    classes, target_bounds : what ``y`` may be, declared, where the model does not say it. Numbers and answers beyond
        the bounds are moved there.
    unit : the column of ``x``, or an array, that says whose record it is: then a person is protected with all rows,
        and counts as one, whatever their number. Rows without an id do not count. None takes the unit of the model's
        own fit, so that who was protected there as a person is so here.
    confidence : of the intervals, which are for noise and sampling together.
    ledger, ledger_key : what pays, as for every fit. None is a ledger in memory, for this alone.

    Guarantee: all of the result costs (epsilon, delta) at most, for one record, or one person if there is a ``unit``.
    Refusals depend on parameters, names, types and shapes. A record that the model fails at, or whose label nobody
    declared, is counted as such and changes nothing else. The model must answer for each record by itself.
    """
    unit = unit_for(model, unit)
    budget = Budget(epsilon, delta, neighbours, unit="record" if unit is None else "person")
    reach = float(ndtri(0.5 + probability("confidence", confidence, remedy="For instance 0.9.") / 2))
    cast = ballots(model, x, y, by=by, classes=classes, target_bounds=target_bounds, unit=unit)
    with bought(
        "evaluation",
        _settings(cast.tally, unit, confidence),
        budget,
        float(cast.tally.lengths.sum()),
        ledger=ledger,
        ledger_key=ledger_key,
        unsafe_seed=unsafe_seed,
        not_covered=(MODEL_NOT_COVERED,),
    ) as purchase:
        noisy, lengths = release(purchase, cast)
    found = cast.tally.scored(noisy, purchase.noise, lengths, Scoring(reach))
    return Evaluation(
        found.overall,
        found.groups,
        found.notes,
        purchase.certificate,
        confidence,
        cast.tally.task.labels,
        "person" if unit is not None else "record",
    )


class Ballots(NamedTuple):
    """Where each record falls in a tally, and what it weighs; private."""

    tally: Tally
    placed: list[Shared]
    group: Cells
    weights: Array | None = None

    def total(self, steps: Sequence[int]) -> Cells:
        """:meth:`Tally.total` of them."""
        return self.tally.total(self.placed, self.group, steps, self.weights)


def ballots(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    by: Any = None,
    classes: Any = None,
    target_bounds: Any = None,
    unit: Any = None,
) -> Ballots:
    """The cells of all records, by the model's answers and what is true of them; words as in :func:`evaluate`."""
    task = task_for(model, classes, target_bounds)
    x, unit = _in_memory(model, x, unit)
    rows = row_count(x)
    if rows > MOST_RECORDS:
        raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
    target = _target_column(model)
    y, x = _target(x, y, target[0] if target else None)
    truth = _truth(one_for_each_row("y", y, rows), task, target[1] if target else None)
    groups = _groups(by, x, rows, _schema_columns(model))
    weights = None if unit is None else person_weights(unit_ids(x, unit, rows))
    tally = Tally(task, tuple(one for one, _ in groups))
    placed = tally.placed(truth, answers(model, task, x))
    return Ballots(tally, placed, tally.crossed([places for _, places in groups], rows), weights)


def release(purchase: Purchase, cast: Ballots) -> tuple[Array, Array]:
    """The noisy sum of what all records add, and how much of it a record may add to each block.

    Guarantee: as the purchase. A record adds to the cells of each block, all together, what :meth:`Purchase.weights`
    allows it, and a person's rows together no more, because their weights add up to 1.
    """
    lengths = purchase.weights(cast.tally.lengths)
    return purchase.release(cast.total([purchase.steps(length) for length in lengths])), lengths


# ---- what is asked for ----


def unit_for(model: Any, unit: Any) -> Any:
    """The unit as given; else the column by which the model's own fit has protected people; else None."""
    if unit is not None or getattr(model, "certificate_", None) is None:
        return unit
    declared = model.certificate_.plan.settings.get("unit")
    return declared.get("column") if isinstance(declared, Mapping) else None


def _in_memory(model: Any, x: Any, unit: Any) -> tuple[Any, Any]:
    """The columns of the model's schema, and whose each row is, if ``x`` is read from elsewhere."""
    source = source_of(x)
    if source is None:
        return x, unit
    columns = _schema_columns(model)
    if not columns:
        raise InvalidParameter("x", type(x).__name__, "must be in memory for a model without a schema.")
    named = isinstance(unit, str)
    if named and unit not in source.names:
        raise InvalidParameter("unit", unit, "is not a column of the table.")
    chunks = list(source.chunks(columns, [unit] if named else []))
    ids = np.concatenate([chunk.kept[unit] for chunk in chunks] or [np.empty(0)]) if named else unit
    return joined(chunks, columns), ids


Places = tuple[
    Grouping, Cells
]  # a grouping, and the place of each record's value in it; the last is for others


def _groups(by: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> list[Places]:
    if by is None:
        return []
    wanted = dict(by) if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    return [_group(name, declared, x, rows, schema) for name, declared in wanted.items()]


def _group(name: str, declared: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> Places:
    values = None
    if isinstance(declared, tuple) and len(declared) == 2 and hasattr(declared[0], "__len__"):
        values, declared = (None, declared) if isinstance(declared[0], str) else declared
    if values is None:
        if name not in (column_names(x) or ()):
            remedy = "must be a column of x, or come with an array: by={name: (array, declared values)}."
            raise InvalidParameter("by", name, remedy)
        values = column_values(x, name)
    column = schema.get(name)
    if declared is None:
        declared = declared_groups(name, column)
        assert column is not None
        values = declared_labels(column, one_for_each_row("by", values, rows))
    known = tuple(distinct("by", declared))
    places = codes(one_for_each_row("by", values, rows), known)
    return Grouping(name, known), np.where(places < 0, len(known), places)


def declared_groups(name: str, column: Column | None) -> tuple[Any, ...]:
    """The groups that a schema declares for a column."""
    if not isinstance(column, Category | Flag):
        remedy = (
            "needs its declared values, such as by={'sex': ('F', 'M')}; those in the records are private."
        )
        raise InvalidParameter("by", name, remedy)
    return tuple(column.values) if isinstance(column, Category) else (True, False)


def _target(x: Any, y: Any, name: str | None) -> tuple[Any, Any]:
    """The target, and the table without it if it is one of its columns."""
    if y is None and name is None:
        raise InvalidParameter("y", None, "must be the labels, or the name of their column in x.")
    wanted = name if y is None else y
    if not isinstance(wanted, str):
        return wanted, x
    if wanted not in (column_names(x) or ()):
        raise InvalidParameter("y", wanted, "is not a column of x.")
    found = column_values(x, wanted)
    if hasattr(x, "drop_columns"):
        return found, x.drop_columns([wanted])
    if hasattr(x, "drop"):
        return found, x.drop(columns=[wanted]) if hasattr(x, "iloc") else x.drop(wanted)
    return found, x


def _schema_columns(model: Any) -> Mapping[str, Column]:
    schema = getattr(model, "schema", None)
    return {} if schema is None else schema_of(schema).columns


def _target_column(model: Any) -> tuple[str, Column] | None:
    schema = getattr(model, "schema", None)
    target = None if schema is None else schema_of(schema).target
    return None if target is None else (target, schema_of(schema).columns[target])


def _truth(y: NDArray[Any], task: Task, column: Column | None) -> Array:
    """The target as a class's place or a number; NaN for what nobody declared."""
    if isinstance(task, Numbers):
        return target_numbers(declared_numbers(column, y, "y") if isinstance(column, Numeric) else y)
    if isinstance(column, Category | Flag):
        y = declared_labels(column, y)
    places = codes(y, task.labels)
    return np.where(places < 0, np.nan, places)


def _settings(tally: Tally, unit: Any, confidence: float) -> dict[str, Any]:
    """What was declared, for the certificate."""
    task = tally.task
    settings: dict[str, Any] = {
        "blocks": [[block.name, block.size, block.share] for block in task.blocks],
        "by": {one.name: list(one.declared) for one in tally.groups},
        "confidence": confidence,
    }
    if isinstance(task, Numbers):
        settings["target_bounds"] = list(task.bounds)
    else:
        settings["classes"] = list(task.labels)
    if unit is not None:
        settings["unit"] = {"column": unit if isinstance(unit, str) else "an array of ids"}
    return settings
