"""What a model is asked in an evaluation, from parameters and from what the model says of itself: :func:`task_for`.

Nothing here has to be believed for the guarantee: no record is looked at, and whatever task is chosen, the rows cut
what each record, or each person, adds to its query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from discreet.errors import InvalidParameter
from discreet.evaluation.asking import method_of
from discreet.evaluation.tasks import Labels, ManyClasses, NumericTask, Task, TwoClasses
from discreet.linear.column_kinds import Category, Column, Flag, distinct
from discreet.linear.declarations import target_range
from discreet.linear.schema import schema_of


def task_for(model: Any, classes: Any, target_bounds: Any) -> Task:
    """What the model is asked, from what was declared, or from what a fitted model says of itself."""
    if classes is not None and target_bounds is not None:
        requirement = "is for numbers, and classes= for classes: not both."
        raise InvalidParameter("target_bounds", target_bounds, requirement)
    if target_bounds is None:
        known = _classes(model, classes)
        if known:
            return _task_of_classes(model, known)
        target_bounds = getattr(model, "target_bounds_", None) or getattr(model, "target_bounds", None)
    if target_bounds is None:
        remedy = "does not say what it answers: declare classes=(0, 1), or target_bounds=(lower, upper) for numbers."
        raise InvalidParameter("model", type(model).__name__, remedy)
    return NumericTask(_interval(target_bounds))


def _classes(model: Any, declared: Any) -> tuple[Any, ...]:
    """The classes in the order of the model's probabilities; none for a model of numbers."""
    own = getattr(model, "classes_", None)
    own = () if own is None else tuple(np.asarray(own).tolist())
    if declared is None:
        return own
    known = distinct("classes", declared if isinstance(declared, Iterable) else ())
    if len(known) < 2:
        raise InvalidParameter("classes", declared, "must be two labels or more, such as (0, 1).")
    if own and set(own) != set(known):
        raise InvalidParameter("classes", declared, f"are not those of the model, {own}; leave them out.")
    return own or tuple(known)


def _task_of_classes(model: Any, known: tuple[Any, ...]) -> Task:
    if method_of(model, "predict_proba") is None and not is_function(model):
        scored = len(known) == 2 and method_of(model, "decision_function") is not None
        return TwoClasses(known, probabilities=False) if scored else Labels(known)
    return TwoClasses(known) if len(known) == 2 else ManyClasses(known)


def _interval(bounds: Any) -> tuple[float, float]:
    found = target_range(bounds)
    if found is None:
        raise InvalidParameter("target_bounds", bounds, "must be (lower, upper), declared.")
    return float(found[0]), float(found[1])


def is_function(model: Any) -> bool:
    """True for a model that is a function of the table."""
    return callable(model) and method_of(model, "predict") is None


def declared_groups(name: str, column: Column | None) -> tuple[Any, ...]:
    """The groups that a schema declares for a column."""
    if not isinstance(column, Category | Flag):
        remedy = (
            "needs its declared values, such as by={'sex': ('F', 'M')}; those in the records are private."
        )
        raise InvalidParameter("by", name, remedy)
    return tuple(column.values) if isinstance(column, Category) else (True, False)


def columns_of(model: Any) -> Mapping[str, Column]:
    """The columns of a model's schema; none without a schema."""
    schema = getattr(model, "schema", None)
    return {} if schema is None else schema_of(schema).columns


def target_of(model: Any) -> tuple[str | None, Column | None]:
    """The name of the target in a model's schema, and its column."""
    schema = getattr(model, "schema", None)
    target = None if schema is None else schema_of(schema).target
    return target, None if target is None else columns_of(model)[target]
