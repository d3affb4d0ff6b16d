"""Which targets count, and residuals at a score, for the losses that kernels compute: record by record.

The gate asks :func:`accepted` and :func:`residuals`. A loss that names compiled code is computed here and in
``kernels/coefficients.py`` from that name, its parameter and its number of outputs; none of its methods is called.
A loss without compiled code is code of the user's own, which has to keep records apart: :func:`checked_loss` compares
what it computes for made-up records alone and together, and every pass over the rows compares :data:`COMPARED`
secretly chosen records with themselves alone. A loss that mixes records for a share p of them stays unseen in a pass
with probability (1 - p)^COMPARED.
"""

from __future__ import annotations

import secrets
import warnings
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import InvalidParameter, PlanViolation

Floats = NDArray[np.float64]
Which = NDArray[np.bool_]
Kind = TypeVar("Kind")

COMPARED = 8
"""So many records of each block are computed alone, where a loss is the user's own."""

_NO_LOSS = object()
_LARGEST_EXPONENT = 700.0  # e**700 is a float64 number


def accepted(loss: Any, y: ArrayLike) -> Which:
    """Which targets count.

    Guarantee: whether a target counts depends on that target only, unless the loss is the user's own.
    """
    y, code = np.asarray(y, np.float64), loss.machine_code
    if code is None:
        return _of_user(loss.accepts, y).astype(np.bool_)
    if code[0] == "softmax":
        return is_class(y, loss.outputs)
    return np.asarray(_KNOWN[code[0]][0](y))


def residuals(loss: Any, u: ArrayLike, y: ArrayLike) -> Floats:
    """The derivative of a loss of one score at ``u``; 0 where the target does not count.

    Guarantee: that of a record depends on that record only, unless the loss is the user's own.
    """
    u, y, code = np.asarray(u, np.float64), np.asarray(y, np.float64), loss.machine_code
    if code is None:
        return _of_user(loss.residual, u, y).astype(np.float64)
    accepts, residual = _KNOWN[code[0]]
    return counted(accepts(y), residual(u, y, float(code[1])))


def checked_loss(loss: Kind) -> Kind:
    """The loss, if kernels can compute it, or if it keeps made-up records apart; else a refusal."""
    code: Any = getattr(loss, "machine_code", _NO_LOSS)
    known: Any = loss
    if code is _NO_LOSS:
        raise InvalidParameter("loss", loss, "must be a Loss, for instance Logistic().")
    if code is not None:
        if code[0] != "softmax" and (code[0] not in _KNOWN or known.outputs != 1):
            raise InvalidParameter("loss", loss, "must name compiled code for its number of outputs.")
        return loss
    if known.outputs != 1 or getattr(loss, "kind", None) not in ("classes", "numbers", "counts"):
        raise InvalidParameter("loss", loss, "must have one output and a kind: classes, numbers or counts.")
    u, y = np.array([-2.0, -0.5, 0.0, 0.7, 3.0]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    alone = [np.asarray(known.residual(u[[k]], y[[k]]), np.float64) for k in range(len(u))]
    together = np.asarray(known.residual(u, y), np.float64)
    if together.shape != u.shape or not np.array_equal(np.concatenate(alone), together):
        raise InvalidParameter(
            "loss", loss, "must give every record its own residual, whatever the others are."
        )
    return loss


def _of_user(function: Any, *columns: Floats) -> NDArray[Any]:
    """What a method of a user's loss computes for each record.

    Nothing that it raises or warns of passes, because it may quote a record.
    """
    count = len(columns[0])
    places = secrets.SystemRandom().sample(range(count), min(COMPARED, count))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = np.asarray(function(*columns))
            alone = [np.asarray(function(*(column[[place]] for column in columns))) for place in places]
            fits = found.shape == (count,) and found.dtype.kind in "fiub"
            same = fits and all(_alike(one, found[[at]]) for one, at in zip(alone, places, strict=True))
        except Exception:
            raise PlanViolation(
                "The loss of your own failed for records of this table. Its message is withheld, because it may "
                "quote a record. Let it return one number for each record, whatever the record holds."
            ) from None
    if not same:
        raise PlanViolation(
            "The loss of your own must return one number for each record, which does not depend on other records."
        )
    return found


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two results differ by no more than the order of additions in float64."""
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-9, atol=0.0, equal_nan=True))


def is_bit(y: Floats) -> Which:
    """Targets of two classes."""
    return np.asarray((y == 0) | (y == 1))


def is_class(y: Floats, classes: int) -> Which:
    """Targets of ``classes`` classes."""
    return np.asarray((y >= 0) & (y < classes) & (y == np.floor(y)))


def is_count(y: Floats) -> Which:
    """Targets of a model of counts."""
    return np.asarray(np.isfinite(y) & (y >= 0))


def counted(accepts: Which, values: Any) -> Floats:
    """The values, with 0 where the target does not count."""
    return np.asarray(np.where(accepts, values, 0.0))


def sigmoid(u: Floats) -> Floats:
    """1 / (1 + e^-u)."""
    small = np.exp(-np.abs(u))
    return np.asarray(np.where(u >= 0, 1.0, small) / (1.0 + small))


def exponential(u: Floats) -> Floats:
    """e^u, finite for every finite u."""
    return np.asarray(np.exp(np.minimum(u, _LARGEST_EXPONENT)))


def hinge_slope(u: Floats, y: Floats, smoothness: float) -> Floats:
    """The derivative of the smoothed hinge."""
    missing = 1.0 + smoothness - (2.0 * y - 1.0) * u
    return np.asarray((1.0 - 2.0 * y) * np.clip(missing / (2.0 * smoothness), 0.0, 1.0))


_KNOWN: dict[str, tuple[Any, Any]] = {
    "logistic": (is_bit, lambda u, y, _: sigmoid(u) - y),
    "squared": (np.isfinite, lambda u, y, _: u - y),
    "huber": (np.isfinite, lambda u, y, threshold: np.clip(u - y, -threshold, threshold)),
    "poisson": (is_count, lambda u, y, _: exponential(u) - y),
    "hinge": (is_bit, hinge_slope),
}
"""By the name of the compiled residual: which targets count, and the residual with its parameter."""
