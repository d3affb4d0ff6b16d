"""``evaluate``: how good a model is, measured on records that are private too."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discreet.engines import engine_for
from discreet.errors import InvalidParameter, probability
from discreet.evaluation.answers import CHECKED
from discreet.evaluation.asking import is_ours, try_made_up_rows
from discreet.evaluation.count_layout import CountLayout
from discreet.evaluation.declared_task import task_for
from discreet.evaluation.question import Counting, EvaluationQuestion, counts_there
from discreet.evaluation.result import Evaluation
from discreet.evaluation.scoring import Scoring
from discreet.evaluation.tasks import NumericTask
from discreet.guarantee import Budget, Neighbours
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.frame_parts import Frames, empty_frame
from discreet.linear.partitions import Partitions, refuse_other_engines
from discreet.linear.sources import is_dask_frame
from discreet.linear.user_routing import Share
from discreet.statistics.least_noise import candidates, deviation, norm_of
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import MOST_RECORDS, PartitionedRows, PrivateRows
from discreet.trusted.session import Noise, Session

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
    engine: Any = None,
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
    engine : asks :class:`~discreet.linear.partitions.Partitions` where they lie, such as
        :class:`~discreet.adapters.dask_engine.DaskEngine`, of a model with a schema. A Dask frame is asked by its own
        client.

    Guarantee: all of the result costs (epsilon, delta) at most, for one record, or one person if there is a ``unit``.
    Refusals depend on parameters, names, types and shapes. A record that the model fails at, or whose label nobody
    declared, is counted as such and changes nothing else. The model must answer for each record by itself: secretly
    chosen records are compared with their answers alone, before anything is paid.
    """
    unit = unit_for(model, unit)
    budget = Budget(epsilon, delta, neighbours, unit="record" if unit is None else "person")
    half_width = float(ndtri(0.5 + probability("confidence", confidence, remedy="For instance 0.9.") / 2))
    task = task_for(model, classes, target_bounds)
    question = EvaluationQuestion(model, task, y, by, unit)
    if engine is None and is_dask_frame(x):
        engine = engine_for("dask", x)
    if engine is not None:
        refuse_other_engines(engine, "total")
        _refuse_arrays(x, question)
    try_made_up_rows(model, task, x)
    layout, rows = question.ask(_table(x, engine), neighbours)
    if engine is not None:
        gather = RemoteCounts(engine, x, question, layout).total
        rows = PartitionedRows(gather, rows.columns, neighbours, unit is not None)
    with Session.open(
        "evaluation",
        _settings(layout, unit, confidence),
        budget,
        *candidates(budget, float(layout.lengths.sum())),
        ledger=ledger,
        ledger_key=ledger_key,
        unsafe_seed=unsafe_seed,
    ) as session:
        assert isinstance(session.event, Noise)
        norm = norm_of(session.event)
        noisy = _release(session, rows, layout.query(norm))
        certificate = session.certificate((MODEL_NOT_COVERED,), () if is_ours(model) else (CHECKED,))
    found = layout.score(noisy, deviation(session.event), layout.limits(norm), Scoring(half_width))
    return Evaluation(
        found.overall,
        found.groups,
        found.notes,
        certificate,
        confidence,
        task.labels,
        "person" if unit is not None else "record",
    )


def unit_for(model: Any, unit: Any) -> Any:
    """The unit as given; else the column by which the model's own fit has protected people; else None."""
    if unit is not None or getattr(model, "certificate_", None) is None:
        return unit
    declared = model.certificate_.plan.settings.get("unit")
    return declared.get("column") if isinstance(declared, Mapping) else None


def _settings(layout: CountLayout, unit: Any, confidence: float) -> dict[str, Any]:
    """What was declared, for the certificate."""
    task = layout.task
    settings: dict[str, Any] = {
        "blocks": [[block.name, block.size, block.share] for block in task.blocks],
        "by": {one.name: list(one.declared) for one in layout.groups},
        "confidence": confidence,
    }
    if isinstance(task, NumericTask):
        settings["target_bounds"] = list(task.bounds)
    else:
        settings["classes"] = list(task.labels)
    if unit is not None:
        settings["unit"] = {"column": unit if isinstance(unit, str) else "an array of ids"}
    return settings


def _table(x: Any, engine: Any) -> Any:
    """What is read here: nothing but the names, where an engine reads the rows."""
    if is_dask_frame(x):
        return Frames((), empty_frame(x)).without_rows()
    if not isinstance(x, Partitions):
        return x
    return x.pattern if engine is None else x.without_rows()


def _refuse_arrays(x: Any, question: EvaluationQuestion) -> None:
    """Raise unless all that an engine is asked for is in the files, or in the frame."""
    if not isinstance(x, Partitions) and not is_dask_frame(x):
        remedy = "must be Partitions('folder/*.parquet') that every worker can read, or a Dask frame."
        raise InvalidParameter("x", type(x).__name__, remedy)
    if isinstance(x, Partitions) and sum(part.rows for part in x.parts) > MOST_RECORDS:
        raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
    for name, given in (("y", question.y), ("unit", question.unit)):
        if not isinstance(given, str | None):
            raise InvalidParameter(name, type(given).__name__, "must be the name of a column of the files.")


@dataclass(frozen=True)
class RemoteCounts:
    """Counts by an engine, where the rows lie: in files, or in a Dask frame."""

    engine: Any
    partitions: Any
    question: EvaluationQuestion
    layout: CountLayout

    def total(self, query: Blocks, like: Any) -> NDArray[np.int64]:
        """Return the sum over all partitions, of the kind of ``like``."""
        question = without_secrets(self.question)

        def ask(share: Share) -> tuple[Any, Counting]:
            return counts_there, Counting(share, question, query, like.grid)

        public = self.layout.digest(query)
        return self.engine.total(self.partitions, question.unit, ask, like, public)  # type: ignore[no-any-return]


def without_secrets(question: EvaluationQuestion) -> EvaluationQuestion:
    """The same question without ledger, key and seed of the model."""
    known = {"ledger", "ledger_key", "unsafe_seed"} & set(
        vars(question.model) if hasattr(question.model, "ledger") else ()
    )
    model = copy(question.model) if known else question.model
    for name in known:
        setattr(model, name, None)
    return replace(question, model=model)


def _release(session: Session, rows: PrivateRows, query: Blocks) -> Array:
    """Return the noisy sum of what all records add. Partitions that fail cost nothing."""
    if isinstance(rows, PartitionedRows):
        session.prepare(rows, query)
    return session.release(session.charge(numbers=query.size), rows, query)
