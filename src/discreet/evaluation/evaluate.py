"""``evaluate``: how good a model is, measured on records that are private too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discreet.errors import InvalidParameter, probability
from discreet.evaluation.answers import answers, task_for
from discreet.evaluation.result import Evaluation
from discreet.evaluation.scoring import Block, Counts, Scoring, Shared
from discreet.evaluation.splitting import row_count, unit_ids
from discreet.evaluation.tasks import Cells, Measured, Numbers, Task
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

_MOST_CELLS = 2**22
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
    task = task_for(model, classes, target_bounds)
    x, unit = _in_memory(model, x, unit)
    rows = row_count(x)
    if rows > MOST_RECORDS:
        raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
    target = _target_column(model)
    y, x = _target(x, y, target[0] if target else None)
    truth = _truth(one_for_each_row("y", y, rows), task, target[1] if target else None)
    groups = _groups(by, x, rows, _schema_columns(model))
    weights = None if unit is None else _weights(unit_ids(x, unit, rows))
    said = answers(model, task, x)
    cells = _placed(task, truth, said)
    blocks, group = task.blocks, _crossed(groups, rows)
    number = math.prod(len(one.declared) + 1 for one in groups)
    if number * sum(block.size for block in blocks) > _MOST_CELLS:
        raise InvalidParameter("by", [one.name for one in groups], "makes too many groups; ask for fewer.")
    settings = _settings(task, groups, unit, confidence)
    lengths = np.sqrt([block.share for block in blocks])
    with bought(
        "evaluation",
        settings,
        budget,
        float(lengths.sum()),
        ledger=ledger,
        ledger_key=ledger_key,
        unsafe_seed=unsafe_seed,
        not_covered=(MODEL_NOT_COVERED,),
    ) as purchase:
        counts = _counted(purchase, blocks, cells, group, number, weights)
    tables = [
        Counts(one.cells.reshape(*(len(part.declared) + 1 for part in groups), block.size), one.noise)
        for one, block in zip(counts, blocks, strict=True)
    ]
    scoring = Scoring(reach)
    overall, unscored = _measured(task, tables, scoring)
    return Evaluation(
        overall,
        {one.name: dict(_by(task, tables, scoring, place, one)) for place, one in enumerate(groups)},
        tuple(_notes(overall, unscored)),
        purchase.certificate,
        confidence,
        task.labels,
        "person" if unit is not None else "record",
    )


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


@dataclass(frozen=True)
class _Groups:
    """A grouping: the declared values, and the place of each record's value among them; the last is for others."""

    name: str
    declared: tuple[Any, ...]
    places: Cells


def _groups(by: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> list[_Groups]:
    if by is None:
        return []
    wanted = dict(by) if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    return [_group(name, declared, x, rows, schema) for name, declared in wanted.items()]


def _group(name: str, declared: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> _Groups:
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
        if not isinstance(column, Category | Flag):
            remedy = (
                "needs its declared values, such as by={'sex': ('F', 'M')}; those in the records are private."
            )
            raise InvalidParameter("by", name, remedy)
        declared = column.values if isinstance(column, Category) else (True, False)
        values = declared_labels(column, one_for_each_row("by", values, rows))
    known = tuple(distinct("by", declared))
    places = codes(one_for_each_row("by", values, rows), known)
    return _Groups(name, known, np.where(places < 0, len(known), places))


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


def _settings(task: Task, groups: list[_Groups], unit: Any, confidence: float) -> dict[str, Any]:
    """What was declared, for the certificate."""
    settings: dict[str, Any] = {
        "blocks": [[block.name, block.size, block.share] for block in task.blocks],
        "by": {one.name: list(one.declared) for one in groups},
        "confidence": confidence,
    }
    if isinstance(task, Numbers):
        settings["target_bounds"] = list(task.bounds)
    else:
        settings["classes"] = list(task.labels)
    if unit is not None:
        settings["unit"] = {"column": unit if isinstance(unit, str) else "an array of ids"}
    return settings


# ---- counting ----


def _weights(ids: list[bytes | None]) -> Array:
    """1 over the number of a person's rows, for each row; 0 for rows of nobody."""
    many: dict[bytes, int] = {}
    for one in ids:
        if one is not None:
            many[one] = many.get(one, 0) + 1
    return np.array([0.0 if one is None else 1.0 / many[one] for one in ids], np.float64)


def _placed(task: Task, truth: Array, said: Array) -> list[Shared]:
    """The cells of all records: those that cannot be scored are in the last cell of the first block only."""
    good = np.isfinite(truth) & np.isfinite(said).all(1)
    placed = []
    for number, (block, part) in enumerate(
        zip(task.blocks, task.cells(truth[good], said[good]), strict=True)
    ):
        cells = np.full((len(truth), part.cells.shape[1]), block.size - 1, np.int64)
        shares = np.zeros(cells.shape)
        if number == 0:
            shares[:, 0] = 1.0
        cells[good], shares[good] = part
        placed.append(Shared(cells, shares))
    return placed


def _crossed(groups: list[_Groups], rows: int) -> Cells:
    """The number of each record's group among all combinations of groups."""
    place = np.zeros(rows, np.int64)
    for one in groups:
        place = place * (len(one.declared) + 1) + one.places
    return place


def _counted(
    purchase: Purchase,
    blocks: tuple[Block, ...],
    placed: list[Shared],
    group: Cells,
    groups: int,
    weights: Array | None,
) -> list[Counts]:
    """The noisy number of records in each cell of each group, block by block.

    Guarantee: as the purchase. A record adds to the cells of each block, all together, what :meth:`Purchase.weights`
    allows it, and a person's rows together no more, because their weights add up to 1.
    """
    lengths = purchase.weights(np.sqrt([block.share for block in blocks]))
    totals = [
        _spread(where, group, groups, block.size, purchase.steps(length), weights)
        for block, where, length in zip(blocks, placed, lengths, strict=True)
    ]
    noisy = purchase.release(np.concatenate(totals))
    parts = np.split(noisy, np.cumsum([total.size for total in totals])[:-1])
    return [
        Counts(part / length, purchase.noise / length) for part, length in zip(parts, lengths, strict=True)
    ]


def _spread(
    where: Shared, group: Cells, groups: int, size: int, steps: int, weights: Array | None = None
) -> Cells:
    """Whole numbers, at most ``steps`` in all from each record, in its cells.

    Each is cut toward zero. What shares and weights are above 1 together by their rounding is less than one step in
    ``steps``, which is below 2^48; so a sum of whole numbers cannot be above ``steps`` by it.
    """
    total = np.zeros(groups * size, np.int64)
    for cells, shares in zip(where.cells.T, where.shares.T, strict=True):
        amounts = (shares if weights is None else shares * weights) * steps
        np.add.at(total, group * size + cells, amounts.astype(np.int64))
    return total


# ---- scoring ----


def _measured(task: Task, tables: list[Counts], scoring: Scoring) -> tuple[Measured, Counts]:
    """The scores of all groups together, and how many records could not be scored."""
    summed = []
    for table in tables:
        flat = table.cells.reshape(-1, table.cells.shape[-1])
        summed.append(Counts(flat.sum(0), table.noise * math.sqrt(len(flat))))
    unscored = summed[0].of(slice(-1, None))
    summed[0] = summed[0].of(slice(-1))
    return task.measured(summed, scoring), unscored


def _by(
    task: Task, tables: list[Counts], scoring: Scoring, axis: int, groups: _Groups
) -> Iterator[tuple[Any, Measured]]:
    for place, value in enumerate(groups.declared):
        part = [Counts(np.take(table.cells, place, axis), table.noise) for table in tables]
        yield value, _measured(task, part, scoring)[0]


def _notes(overall: Measured, unscored: Counts) -> Iterator[str]:
    """What released numbers say of the table, in sentences."""
    records = overall["records"]
    if records.value < 4 * records.noise:
        yield (
            f"about {max(records.value, 0):.0f} records could be scored, which noise alone could explain: does the "
            "table hold records with labels as declared, and is the budget enough for them?"
        )
    share = unscored.total / max(unscored.total + records.value, 1.0)
    if unscored.total > 6 * unscored.noise and share > 0.01:
        yield (
            f"about {min(share, 1):.0%} of the records could not be scored: their label is none of those declared, "
            "or the model failed at them or did not answer with probabilities; try it on a made-up record."
        )
