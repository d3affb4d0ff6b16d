"""What a release costs: certified privacy curves, and the classical theorems beside them."""

from discreet.accounting.calibration import calibrate
from discreet.accounting.curve import PrivacyCurve, account
from discreet.accounting.many import epsilon_bounds
from discreet.accounting.noise_formulas import analytic_gaussian_noise, classic_gaussian_noise
from discreet.accounting.pairs import DiscretePair, Pair
from discreet.accounting.renyi import renyi_epsilon

__all__ = [
    "DiscretePair",
    "Pair",
    "PrivacyCurve",
    "account",
    "analytic_gaussian_noise",
    "calibrate",
    "classic_gaussian_noise",
    "epsilon_bounds",
    "renyi_epsilon",
]
