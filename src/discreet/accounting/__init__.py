"""What a release costs: certified privacy curves, and the classical theorems beside them."""

from discreet.accounting.attack_risks import (
    AttributeInference,
    GaussianDP,
    Membership,
    Reconstruction,
    Reidentification,
    RiskBound,
    gaussian_dp,
)
from discreet.accounting.calibration import calibrate
from discreet.accounting.curve import PrivacyCurve, account
from discreet.accounting.noise_formulas import analytic_gaussian_noise, classic_gaussian_noise
from discreet.accounting.pairs import DiscretePair, Pair
from discreet.accounting.renyi import renyi_epsilon
from discreet.accounting.vectorised import epsilon_bounds

__all__ = [
    "AttributeInference",
    "DiscretePair",
    "GaussianDP",
    "Membership",
    "Pair",
    "PrivacyCurve",
    "Reconstruction",
    "Reidentification",
    "RiskBound",
    "account",
    "analytic_gaussian_noise",
    "calibrate",
    "classic_gaussian_noise",
    "epsilon_bounds",
    "gaussian_dp",
    "renyi_epsilon",
]
