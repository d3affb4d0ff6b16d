"""Compiled samplers and clips beside the same source run as plain Python, on inputs that reach every branch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support import kernel_draws


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "draws.npz"
    tests = str(Path(__file__).parent.parent)
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.kernel_draws", str(path)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths},
        check=True,
        timeout=300,
    )
    with np.load(path) as found:
        return dict(found)


def differences(compiled, plain, tolerance):
    """The names whose values differ by more than a relative tolerance."""
    return {
        name
        for name, values in compiled.items()
        if not np.allclose(values, plain[name], rtol=tolerance[np.dtype(values.dtype).name], atol=0.0)
    }


def test_floats_agree_to_the_last_places(interpreted):
    """Fused multiplications may move the last place; a draw near zero loses as many places as its sine does."""
    compiled = kernel_draws.floats()
    assert set(compiled) <= set(interpreted)
    assert all(interpreted[name].dtype == values.dtype for name, values in compiled.items())
    assert differences(compiled, interpreted, {"float64": 1e-13, "float32": 1e-5}) == set()


def test_integers_agree_exactly(interpreted):
    for name, values in kernel_draws.integers().items():
        assert np.array_equal(values, interpreted[name]), name


def test_a_kernel_that_differs_is_seen(interpreted):
    """The broken twin: one draw in a thousand is a little longer."""
    compiled = kernel_draws.floats()
    compiled["normal64"] = compiled["normal64"] * np.where(np.arange(601) == 300, 1 + 1e-9, 1.0)
    assert differences(compiled, interpreted, {"float64": 1e-13, "float32": 1e-5}) == {"normal64"}
