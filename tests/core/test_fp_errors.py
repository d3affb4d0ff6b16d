"""Numpy is silent within, however deep, and what it was told to do comes back."""

import inspect

import numpy as np
import pytest

from discreet.core.fp_errors import ignore_fp_errors


@ignore_fp_errors
def narrow(value, deeper=False):
    """Underflows, overflows, divides by zero."""
    if deeper:
        narrow(value)
    return np.float32(value), np.float64(1e300) * value, np.float64(1) / np.zeros(1)


@ignore_fp_errors
def fail():
    raise ValueError("as ever")


def test_nothing_is_raised_within_and_all_of_it_afterwards():
    with np.errstate(all="raise"):
        narrow(np.float64(1e-300), deeper=True)
        narrow(np.float64(1e300), deeper=True)
        with pytest.raises(ValueError, match="as ever"):
            fail()
        assert set(np.geterr().values()) == {"raise"}
        with pytest.raises(FloatingPointError):  # the twin that nobody has silenced
            narrow.__wrapped__(np.float64(1e-300))


def test_a_silent_function_looks_like_itself():
    assert narrow.__doc__ == "Underflows, overflows, divides by zero."
    assert list(inspect.signature(narrow).parameters) == ["value", "deeper"]
