"""What a model answers, record by record; a record that it cannot answer for is told by NaN, never by an error."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from discreet.errors import InvalidParameter
from discreet.evaluation.splitting import row_count, rows_of
from discreet.evaluation.tasks import Labels, ManyClasses, Numbers, Task, TwoClasses
from discreet.linear.inputs import codes

Array = NDArray[np.float64]
Ask = Callable[[Any], Any]

COMPARED = 8
"""So many records of each block that is read are asked about alone."""

CHECKED = (
    f"in each block of records that was read, {COMPARED} records, chosen by the operating system's randomness, were "
    "given to the model alone before anything was paid for, and its answers compared with those among the others. A "
    f"model that mixes records for a share p of them stays unseen in a block with chance (1 - p)^{COMPARED}"
)
"""For certificates."""


def answers(model: Any, task: Task, x: Any) -> Array:
    """A row of answers for each record: probabilities of the classes, a class's place, or a number.

    Warnings of the model are not passed on: one record may be their reason. A model whose answer for a secretly
    chosen record depends on the others is refused, before anything is paid.
    """
    ask, width = _question(model, task)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        refuse_if_deaf(ask, x)

        def ask_rows(rows: NDArray[np.int64]) -> Array:
            return _ask_rows(lambda part: _as_rows(_said(ask, part), width), x, rows, width)

        found = ask_rows(np.arange(row_count(x)))
        if not is_ours(model):
            _refuse_mixing(model, ask_rows, found)
    if isinstance(task, TwoClasses | ManyClasses):
        found = np.where(((found >= 0) & (found <= 1)).all(1, keepdims=True), found, np.nan)
    return found


def _question(model: Any, task: Task) -> tuple[Ask, int]:
    """How the model is asked, and how many numbers it answers with."""
    if isinstance(task, Numbers):
        return method_of(model, "predict") or _function(model), 1
    if isinstance(task, Labels):
        predict = method_of(model, "predict") or _function(model)
        return lambda x: np.where((found := codes(predict(x), task.classes)) < 0, np.nan, found), 1
    if isinstance(task, TwoClasses) and not task.probabilities:
        decision = model.decision_function
        return lambda x: _both(expit(_numbers(decision(x)))), 2
    return method_of(model, "predict_proba") or _function(model), len(task.labels)


def method_of(model: Any, name: str) -> Ask | None:
    """A method of the model, if it has it; scikit-learn hides what a model cannot do."""
    if name == "predict_proba" and getattr(model, "has_probabilities", True) is False:
        return None
    found = getattr(model, name, None)
    return found if callable(found) else None


def _function(model: Any) -> Ask:
    if callable(model):
        return model  # type: ignore[no-any-return]
    remedy = "must have predict_proba or predict, or be a function of the table."
    raise InvalidParameter("model", type(model).__name__, remedy)


def refuse_if_deaf(ask: Ask, x: Any) -> None:
    """Raise what the model raises for a made-up row of zeros, before anything is paid: shapes are public.

    Refused is also a model that answers otherwise where a row of ones stands beside it. What passes is not proved by
    that; what is found are batch norms and dropout in training mode, ranks, and scaling by the table.
    """
    if not (isinstance(x, np.ndarray) and x.dtype.kind in "fiub" and x.ndim == 2):
        return
    made_up = np.zeros((2, x.shape[1]), x.dtype)
    made_up[1] = 1
    try:
        alone = _numbers_or_texts(ask(made_up[:1]))
    except Exception as error:
        remedy = f"cannot answer for a made-up row of zeros ({type(error).__name__}: {error})."
        raise InvalidParameter("model", type(ask).__name__, remedy) from None
    try:
        alone = np.concatenate([alone, _numbers_or_texts(ask(made_up[1:]))])
        beside = _numbers_or_texts(ask(made_up))
    except Exception:  # a row of ones may be none that the model knows
        return
    if alone.shape == beside.shape and not _alike(alone, beside):
        remedy = (
            "answers otherwise for a made-up row when another stands beside it, and must answer for each record by "
            "itself. A network may be in training mode: net.eval()."
        )
        raise InvalidParameter("model", type(ask).__name__, remedy)


def is_ours(model: Any) -> bool:
    """Whether the model is one of this library, which maps every row by itself; others are user code."""
    return type(model).__module__.partition(".")[0] == __name__.partition(".")[0]


def _refuse_mixing(model: Any, ask_rows: Callable[[NDArray[np.int64]], Array], found: Array) -> None:
    """Raise if the answer for one of :data:`COMPARED` secretly chosen records is another one without the others."""
    for place in secrets.SystemRandom().sample(range(len(found)), min(COMPARED, len(found))):
        if not _alike(ask_rows(np.array([place]))[0], found[place]):
            remedy = (
                "answers otherwise for a record of this table alone than among the others, and must answer for each "
                "record by itself. Batch statistics, ranks and scaling by the table are the usual reasons."
            )
            raise InvalidParameter("model", type(model).__name__, remedy)


def _numbers_or_texts(said: Any) -> NDArray[Any]:
    return np.asarray(said.detach().cpu().numpy() if hasattr(said, "detach") else said)


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True))


def _said(ask: Ask, part: Any) -> Any:
    """What the model answers; whatever it raises, refusals of ours included, may quote a record."""
    try:
        return ask(part)
    except Exception:
        raise ValueError from None


def _ask_rows(ask: Ask, x: Any, rows: NDArray[np.int64], width: int) -> Array:
    """Answers for these rows; where the model fails, halves are asked, down to the records at which it fails.

    So a record that a model cannot take changes the answer for itself only.
    """
    try:
        found = ask(x if len(rows) == row_count(x) else rows_of(x, rows))
        if found.shape != (len(rows), width):
            raise ValueError
        return np.asarray(found, np.float64)
    except InvalidParameter:
        raise
    except Exception:
        if len(rows) <= 1:
            return np.full((len(rows), width), np.nan)
    half = len(rows) // 2
    return np.concatenate([_ask_rows(ask, x, part, width) for part in (rows[:half], rows[half:])])


def _as_rows(said: Any, width: int) -> Array:
    """Answers as an array of numbers; one probability is completed to two."""
    array = _numbers(said)
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1 and width == 2):
        array = array.reshape(-1)
        return _both(array) if width == 2 else array[:, None]
    if array.ndim != 2 or array.shape[1] != width:
        remedy = f"must answer with {width} number(s) for each record."
        raise InvalidParameter("model", "other answers", remedy)
    return array


def _numbers(said: Any) -> Array:
    said = said.detach().cpu().numpy() if hasattr(said, "detach") else said
    return np.asarray(said, np.float64)


def _both(second: Array) -> Array:
    return np.column_stack([1 - second, second])
