"""How a model is asked for its answers: :func:`how_to_ask`, and a trial on made-up rows before anything is paid.

Nothing here has to be believed for the guarantee: whatever function is returned is compared, record by record, as a
user's own model is (:mod:`discreet.evaluation.answers`), and the trial sees no record.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from discreet.errors import InvalidParameter
from discreet.evaluation.tasks import Labels, ManyClasses, NumericTask, Task, TwoClasses
from discreet.linear.inputs import codes

Array = NDArray[np.float64]
Ask = Callable[[Any], Any]


def is_ours(model: Any) -> bool:
    """Whether the model is one of this library; others are user code."""
    return type(model).__module__.partition(".")[0] == __name__.partition(".")[0]


def method_of(model: Any, name: str) -> Ask | None:
    """A method of the model, if it has it; scikit-learn hides what a model cannot do."""
    if name == "predict_proba" and getattr(model, "has_probabilities", True) is False:
        return None
    found = getattr(model, name, None)
    return found if callable(found) else None


def how_to_ask(model: Any, task: Task) -> tuple[Ask, int]:
    """A function from a table to rows of answers, and how many numbers a row must have.

    A row of answers that should be probabilities, and is none, is NaN.
    """
    ask, width = _question(model, task)

    def answer(x: Any) -> Array:
        found = _as_rows(ask(x), width)
        if found.ndim == 2 and isinstance(task, TwoClasses | ManyClasses):
            return np.where(((found >= 0) & (found <= 1)).all(1, keepdims=True), found, np.nan)
        return found

    return answer, width


def _question(model: Any, task: Task) -> tuple[Ask, int]:
    if isinstance(task, NumericTask):
        return method_of(model, "predict") or _function(model), 1
    if isinstance(task, Labels):
        predict = method_of(model, "predict") or _function(model)
        return lambda x: np.where((found := codes(predict(x), task.classes)) < 0, np.nan, found), 1
    if isinstance(task, TwoClasses) and not task.probabilities:
        decision = model.decision_function
        return lambda x: _both(expit(np.asarray(_on_host(decision(x)), np.float64))), 2
    return method_of(model, "predict_proba") or _function(model), len(task.labels)


def _function(model: Any) -> Ask:
    if callable(model):
        return model  # type: ignore[no-any-return]
    remedy = "must have predict_proba or predict, or be a function of the table."
    raise InvalidParameter("model", type(model).__name__, remedy)


def _as_rows(said: Any, width: int) -> Array:
    """Answers as an array of numbers; one probability is completed to two."""
    array = np.asarray(_on_host(said), np.float64)
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1 and width == 2):
        array = array.reshape(-1)
        return _both(array) if width == 2 else array[:, None]
    return array


def _on_host(said: Any) -> Any:
    return said.detach().cpu().numpy() if hasattr(said, "detach") else said


def _both(second: Array) -> Array:
    return np.column_stack([1 - second, second])


def try_made_up_rows(model: Any, task: Task, x: Any) -> None:
    """Raise what the model raises for a made-up row of zeros, before anything is paid: shapes are public.

    Refused is also a model that answers otherwise where a row of ones stands beside it. What passes is not proved by
    that; what is found are batch norms and dropout in training mode, ranks, and scaling by the table.
    """
    ask, _ = _question(model, task)
    if not (isinstance(x, np.ndarray) and x.dtype.kind in "fiub" and x.ndim == 2):
        return
    made_up = np.zeros((2, x.shape[1]), x.dtype)
    made_up[1] = 1
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            alone = np.asarray(_on_host(ask(made_up[:1])))
        except Exception as error:
            remedy = f"cannot answer for a made-up row of zeros ({type(error).__name__}: {error})."
            raise InvalidParameter("model", type(ask).__name__, remedy) from None
        try:
            alone = np.concatenate([alone, np.asarray(_on_host(ask(made_up[1:])))])
            beside = np.asarray(_on_host(ask(made_up)))
        except Exception:  # a row of ones may be none that the model knows
            return
    if alone.shape == beside.shape and not _alike(alone, beside):
        remedy = (
            "answers otherwise for a made-up row when another stands beside it, and must answer for each record by "
            "itself. A network may be in training mode: net.eval()."
        )
        raise InvalidParameter("model", type(ask).__name__, remedy)


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True))
