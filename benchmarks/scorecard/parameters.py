"""Rows 9 to 12: parameters that make no sense are refused by name where they are given, not later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from card import Broken, row
from engines import study_of

import discreet as dp
from discreet.ledger import GaussianFilter
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.statistics.mean import Ball, FixedClip, Interval, SecondMoment

Take = Callable[[Any], Any]
X, Y = np.zeros((20, 2)), np.arange(20) % 2


def only_negatives_refused(value: float) -> float:
    """The usual check, which NaN passes: it is not below anything."""
    if value < 0:
        raise dp.InvalidParameter("value", value, "must not be negative.")
    return value


def refused(take: Take, good: float, values: Sequence[Any]) -> str:
    """A good value is taken, each of the others refused by an error of the library, or infinity is the answer."""
    take(good)
    for value in values:
        try:
            answer = take(value)
        except dp.DiscreetError:
            continue
        if answer != math.inf:
            raise Broken(f"{value} is accepted")
    return f"{len(values)} refused"


recipe = {"records": 100, "batch_size": 10, "steps": 5}
logistic = {"classes": (0, 1), "bounds": (-1, 1)}


@row(
    9,
    "noise of -1, NaN or infinity is refused; of 0 refused or infinite",
    ours={
        "Gaussian": lambda value: dp.account(dp.Gaussian(noise_multiplier=value)).epsilon(1e-6),
        "Laplace": lambda value: dp.account(dp.Laplace(scale=value)).epsilon(1e-6),
        "DiscreteGaussian": lambda value: dp.DiscreteGaussian(value),
        "Recipe": lambda value: dp.Recipe(**recipe).with_noise(value, 1e-6),
        "mechanism": lambda value: dp.gaussian_mechanism(1.0, value, 1.0, 1e-6),
    },
    twins={"value < 0": only_negatives_refused},
)
def noise(take: Take) -> str:
    return refused(take, 1.0, (-1.0, 0.0, math.nan, math.inf, -math.inf, "1", True, None))


@row(
    10,
    "clip norms and bounds of -1, 0, NaN or infinity are refused",
    ours={
        "Recipe": lambda value: dp.Recipe(**recipe, clip_norm=value),
        "FixedClip": FixedClip,
        "Ball": Ball,
        "SecondMoment": SecondMoment,
        "Interval": lambda value: Interval(0, value),
        "Study": lambda value: study_of(3, {"a": 10, "b": 10}, rounds=5, clip_norm=value),
        "bounds": lambda value: PrivateLogisticRegression(classes=(0, 1), bounds=(0, value)).fit(X, Y),
        "row_norm": lambda value: PrivateLogisticRegression(classes=(0, 1), row_norm=value).fit(X, Y),
        "target": lambda value: PrivateLinearRegression(target_bounds=(0, value), bounds=(0, 1)).fit(X, Y),
    },
    twins={"value < 0": only_negatives_refused},
)
def clip_norm(take: Take) -> str:
    return refused(take, 1.0, (-1.0, 0.0, math.nan, math.inf, -math.inf))


@row(
    11,
    "epsilon of -1, 0, NaN or infinity is refused",
    ours={
        "Budget": lambda value: dp.Budget(value, 1e-6),
        "logistic": lambda value: PrivateLogisticRegression(value, 1e-6, **logistic).fit(X, Y),
        "mechanism": lambda value: dp.gaussian_mechanism(1.0, 1.0, value, 1e-6),
        "Laplace": lambda value: dp.laplace_mechanism(1.0, 1.0, value),
        "Study": lambda value: study_of(3, {"a": 10, "b": 10}, rounds=5, privacy={"epsilon": value}),
        "ledger": lambda value: dp.Ledger.in_memory(GaussianFilter(dp.Budget(value, 1e-6))),
    },
    twins={"value < 0": only_negatives_refused},
)
def epsilon(take: Take) -> str:
    return refused(take, 1.0, (-1.0, 0.0, math.nan, math.inf, -math.inf, "1", True))


@row(
    12,
    "delta of -0.1, 1, 2 or NaN is refused; of 0 refused or infinite",
    ours={
        "Budget": lambda value: dp.Recipe(**recipe).calibrate(dp.Budget(1.0, value)),
        # A delta of 1 promises nothing, so an epsilon of 0 is right.
        "account": lambda value: math.inf if value == 1 else dp.account(dp.Gaussian(1.0)).epsilon(value),
        "mechanism": lambda value: dp.gaussian_mechanism(1.0, 1.0, 1.0, value),
        "logistic": lambda value: PrivateLogisticRegression(1.0, value, **logistic).fit(X, Y),
        "Study": lambda value: study_of(3, {"a": 10, "b": 10}, rounds=5, privacy={"delta": value}),
    },
    twins={"value < 0": only_negatives_refused},
)
def delta(take: Take) -> str:
    return refused(take, 1e-6, (-0.1, 0.0, 1.0, 2.0, math.nan, math.inf))
