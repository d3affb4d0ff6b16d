"""Who calls ``fit``: scikit-learn's tools fit many models on the same records, and pipelines learn before us.

What they do costs privacy that nobody pays for, and it can be seen on the stack: :func:`repeated` and
:func:`what_callers_did`. Nothing here reads a record.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from discreet.accounting.gaussian import gaussian_epsilon, gaussian_mu
from discreet.certificate.certificate import CHOSEN
from discreet.guarantee import Budget

_SEARCH, _PIPELINE = "sklearn.model_selection._search", "sklearn.pipeline"
_SEVERAL = (
    "sklearn.model_selection",
    "sklearn.multioutput",
    "sklearn.multiclass",
    "sklearn.ensemble",
    "sklearn.calibration",
    "sklearn.feature_selection",
)


def repeated(budget: Budget) -> str | None:
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
        if _module(frame) == _PIPELINE and frame.f_code.co_name == "fit":
            found += [f"what {name} learnt of the records before this fit" for name in _learners(owner)]
    return tuple(found)


def _learners(pipeline: Any) -> Iterator[str]:
    """The steps before the last that learn from records, other than ours, which say themselves what they are."""
    from sklearn.utils import get_tags

    for _, step in pipeline.steps[:-1]:
        ours = type(step).__module__.startswith("discreet.")
        if hasattr(step, "fit") and not ours and get_tags(step).requires_fit:
            yield type(step).__name__


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
