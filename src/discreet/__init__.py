"""Discreet: differentially private learning by gradient descent, and proof of what was given away."""

import logging as _logging
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from discreet.engines import enter_engine as _enter_engine
from discreet.numba_cache import ensure_numba_cache as _ensure_numba_cache

if _TYPE_CHECKING:
    from discreet.accounting.attack_risks import (
        AttributeInference,
        Membership,
        Reconstruction,
        Reidentification,
    )
    from discreet.accounting.calibration import calibrate
    from discreet.accounting.curve import PrivacyCurve, account
    from discreet.certificate import Certificate
    from discreet.errors import (
        AccuracyNotReached,
        BudgetExceeded,
        CertificateRejected,
        DiscreetError,
        InvalidParameter,
        MissingDependency,
        PlanViolation,
        UnsupportedEvent,
    )
    from discreet.evaluation import evaluate, split
    from discreet.events import (
        ApproximateDP,
        BoundedRange,
        Composition,
        DiscreteGaussian,
        DiscreteLaplace,
        Event,
        FixedSizeSampled,
        Gaussian,
        Laplace,
        MixtureOfGaussians,
        PoissonSampled,
        RandomisedResponse,
        RandomlyAllocated,
        RenyiDP,
        RepeatAndSelect,
        SampledWithReplacement,
        SparseVector,
        TreeAggregation,
        TruncatedPoissonSampled,
        ZeroConcentratedDP,
    )
    from discreet.guarantee import Bounds, Budget, Guarantee
    from discreet.ledger import Ledger
    from discreet.linear.model_folder import load
    from discreet.plan.plan import Plan
    from discreet.plan.recipe import Recipe
    from discreet.statistics import (
        private_count,
        private_covariance,
        private_histogram,
        private_quantiles,
        private_sum,
        private_variance,
    )
    from discreet.statistics.mean import private_mean
    from discreet.statistics.noise_mechanisms import gaussian_mechanism, laplace_mechanism

__version__ = "0.3.0"

__all__ = [
    "AccuracyNotReached",
    "ApproximateDP",
    "AttributeInference",
    "BoundedRange",
    "Bounds",
    "Budget",
    "BudgetExceeded",
    "Certificate",
    "CertificateRejected",
    "Composition",
    "DiscreetError",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Guarantee",
    "InvalidParameter",
    "Laplace",
    "Ledger",
    "Membership",
    "MissingDependency",
    "MixtureOfGaussians",
    "Plan",
    "PlanViolation",
    "PoissonSampled",
    "PrivacyCurve",
    "RandomisedResponse",
    "RandomlyAllocated",
    "Recipe",
    "Reconstruction",
    "Reidentification",
    "RenyiDP",
    "RepeatAndSelect",
    "SampledWithReplacement",
    "SparseVector",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "UnsupportedEvent",
    "ZeroConcentratedDP",
    "__version__",
    "account",
    "calibrate",
    "evaluate",
    "gaussian_mechanism",
    "laplace_mechanism",
    "load",
    "private_count",
    "private_covariance",
    "private_histogram",
    "private_mean",
    "private_quantiles",
    "private_sum",
    "private_variance",
    "split",
]

_logging.getLogger("discreet").addHandler(_logging.NullHandler())  # whoever wants to hear us adds a handler

_ensure_numba_cache()

# Loaded when first used: ``discreet --help`` must not wait for numpy and scipy.
_LATER = {
    "AccuracyNotReached": "discreet.errors",
    "ApproximateDP": "discreet.events",
    "AttributeInference": "discreet.accounting.attack_risks",
    "BoundedRange": "discreet.events",
    "Bounds": "discreet.guarantee",
    "Budget": "discreet.guarantee",
    "BudgetExceeded": "discreet.errors",
    "Certificate": "discreet.certificate",
    "CertificateRejected": "discreet.errors",
    "Composition": "discreet.events",
    "DiscreetError": "discreet.errors",
    "DiscreteGaussian": "discreet.events",
    "DiscreteLaplace": "discreet.events",
    "Event": "discreet.events",
    "FixedSizeSampled": "discreet.events",
    "Gaussian": "discreet.events",
    "Guarantee": "discreet.guarantee",
    "InvalidParameter": "discreet.errors",
    "Laplace": "discreet.events",
    "Ledger": "discreet.ledger",
    "Membership": "discreet.accounting.attack_risks",
    "MissingDependency": "discreet.errors",
    "MixtureOfGaussians": "discreet.events",
    "Plan": "discreet.plan.plan",
    "PlanViolation": "discreet.errors",
    "PoissonSampled": "discreet.events",
    "PrivacyCurve": "discreet.accounting.curve",
    "RandomisedResponse": "discreet.events",
    "RandomlyAllocated": "discreet.events",
    "Recipe": "discreet.plan.recipe",
    "Reconstruction": "discreet.accounting.attack_risks",
    "Reidentification": "discreet.accounting.attack_risks",
    "RenyiDP": "discreet.events",
    "RepeatAndSelect": "discreet.events",
    "SampledWithReplacement": "discreet.events",
    "SparseVector": "discreet.events",
    "TreeAggregation": "discreet.events",
    "TruncatedPoissonSampled": "discreet.events",
    "UnsupportedEvent": "discreet.errors",
    "ZeroConcentratedDP": "discreet.events",
    "account": "discreet.accounting.curve",
    "calibrate": "discreet.accounting.calibration",
    "evaluate": "discreet.evaluation",
    "gaussian_mechanism": "discreet.statistics.noise_mechanisms",
    "laplace_mechanism": "discreet.statistics.noise_mechanisms",
    "load": "discreet.linear.model_folder",
    "private_count": "discreet.statistics",
    "private_covariance": "discreet.statistics",
    "private_histogram": "discreet.statistics",
    "private_mean": "discreet.statistics.mean",
    "private_quantiles": "discreet.statistics",
    "private_sum": "discreet.statistics",
    "private_variance": "discreet.statistics",
    "split": "discreet.evaluation",
}


def _dask_engine(frame: _Any) -> _Any:
    return _import_module("discreet.adapters.dask_engine").engine_of(frame)


_enter_engine("dask", _dask_engine)  # loaded for frames of Dask only


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        value = getattr(_import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
