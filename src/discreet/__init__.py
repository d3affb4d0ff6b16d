"""Discreet: differentially private learning by gradient descent, and proof of what was given away."""

from discreet.accounting.account import account
from discreet.accounting.curve import PrivacyCurve
from discreet.calibrate import calibrate
from discreet.errors import (
    AccuracyNotReached,
    BudgetExceeded,
    DiscreetError,
    InvalidParameter,
    MissingDependency,
    PlanViolation,
    UnsupportedEvent,
)
from discreet.events import (
    ApproximateDP,
    Composition,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)
from discreet.guarantee import Bounds, Budget, Guarantee

__version__ = "0.1.0"

__all__ = [
    "AccuracyNotReached",
    "ApproximateDP",
    "Bounds",
    "Budget",
    "BudgetExceeded",
    "Composition",
    "DiscreetError",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Guarantee",
    "InvalidParameter",
    "Laplace",
    "MissingDependency",
    "PlanViolation",
    "PoissonSampled",
    "PrivacyCurve",
    "RandomlyAllocated",
    "UnsupportedEvent",
    "__version__",
    "account",
    "calibrate",
]
