"""Which targets count, and residuals at a score, for the losses that kernels compute: record by record.

The gate asks :func:`accepted` and :func:`residuals`. A loss that names compiled code is computed by
:mod:`~discreet.linear.loss_functions` and ``kernels/coefficients.py`` from that name, its parameter and its number of
outputs; none of its methods is called. A loss without compiled code is code of the user's own: :func:`checked_loss`
compares what it computes for made-up records alone and together. Every pass over the rows compares secretly chosen
records of each block with themselves alone: :data:`COMPARED`, or 2 for a loss of ours. A loss that mixes records for
a share p of them stays unseen in a block with probability (1 - p)^COMPARED, or (1 - p)^2.
"""

from __future__ import annotations

import secrets
import warnings
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.loss_functions import KNOWN, counted, is_class

Floats = NDArray[np.float64]
Which = NDArray[np.bool_]
Kind = TypeVar("Kind")

COMPARED, COMPARED_OF_OURS = 8, 2
"""So many records of each block are computed alone, for a loss of the user's own, and for one of ours."""

_NO_LOSS = object()
_ROUNDING = 1e-14  # of a difference of probabilities, if exp is rounded otherwise for one number


def accepted(loss: Any, y: ArrayLike) -> Which:
    """Which targets count: each by itself."""
    code = loss.machine_code
    if code is None:
        accepts = loss.accepts
    elif code[0] == "softmax":
        accepts = partial(is_class, classes=loss.outputs)
    else:
        accepts = KNOWN[code[0]][0]
    return _compared(accepts, _compared_of(code), np.asarray(y, np.float64)).astype(np.bool_)


def residuals(loss: Any, u: ArrayLike, y: ArrayLike) -> Floats:
    """The derivative of a loss of one score at ``u``, of each record by itself; 0 where the target does not count."""
    code = loss.machine_code
    residual = loss.residual if code is None else partial(_residual, code)
    return _compared(
        residual, _compared_of(code), np.asarray(u, np.float64), np.asarray(y, np.float64)
    ).astype(np.float64)


def _compared_of(code: Any) -> int:
    return COMPARED if code is None else COMPARED_OF_OURS


def _residual(code: tuple[str, float], u: Floats, y: Floats) -> Floats:
    accepts, residual = KNOWN[code[0]]
    return counted(accepts(y), residual(u, y, float(code[1])))


def checked_loss(loss: Kind) -> Kind:
    """The loss, if kernels can compute it, or if it keeps made-up records apart; else a refusal."""
    code: Any = getattr(loss, "machine_code", _NO_LOSS)
    known: Any = loss
    if code is _NO_LOSS:
        raise InvalidParameter("loss", loss, "must be a Loss, for instance Logistic().")
    if code is not None:
        if code[0] != "softmax" and (code[0] not in KNOWN or known.outputs != 1):
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


def _compared(function: Any, compared: int, *columns: Floats) -> NDArray[Any]:
    """What a function computes for each record, after chosen ones were compared with themselves alone.

    Nothing that a loss of the user's own raises or warns of passes, because it may quote a record.
    """
    count = len(columns[0])
    places = secrets.SystemRandom().sample(range(count), min(compared, count))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = np.asarray(function(*columns))
            alone = [np.asarray(function(*(column[[place]] for column in columns))) for place in places]
            fits = found.shape == (count,) and found.dtype.kind in "fiub"
            same = fits and all(one.shape == (1,) for one in alone)
            if same and places:
                rounding = 0.0 if compared == COMPARED else _ROUNDING
                both = np.concatenate(alone), found[places]
                same = np.allclose(*both, rtol=1e-9, atol=rounding, equal_nan=True)
        except Exception:
            raise PlanViolation(
                "The loss failed for records of this table. Its message is withheld, because it may quote a record. "
                "Let it return one number for each record, whatever the record holds."
            ) from None
    if not same:
        raise PlanViolation(
            "The loss must return one number for each record, which does not depend on other records."
        )
    return found
