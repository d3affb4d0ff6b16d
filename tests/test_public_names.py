"""The public surface, and what importing it costs."""

import subprocess
import sys

import discreet

PUBLIC = {
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
}


def test_the_accountant_is_public():
    assert set(discreet.__all__) >= PUBLIC


def test_all_is_sorted_complete_and_documented():
    assert discreet.__all__ == sorted(discreet.__all__)
    for name in discreet.__all__:
        assert getattr(discreet, name) is not None
        assert name == "__version__" or getattr(discreet, name).__doc__


def test_nothing_of_ours_leaks():
    """What is ours and not in __all__ is a module, or private."""
    extra = {name for name in vars(discreet) if not name.startswith("_")} - set(discreet.__all__)
    ours = {name for name in extra if getattr(vars(discreet)[name], "__module__", "").startswith("discreet")}
    assert ours == set()


def loaded_by(statement):
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_and_accounting_load_numpy_and_scipy_only():
    """The difference to an interpreter that has loaded just these two holds nothing but us."""
    base = loaded_by("import numpy, scipy.fft, scipy.optimize, scipy.special, scipy.stats")
    ours = loaded_by("import discreet; discreet.account(discreet.Gaussian(1.0)).epsilon(1e-5)")
    third_party = {name for name in ours - base if name not in sys.stdlib_module_names}
    assert third_party == {"discreet"}
    assert not ours & {"torch", "numba", "sklearn", "cryptography", "pandas", "matplotlib"}
