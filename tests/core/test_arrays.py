"""Numpy arrays and torch tensors behind the same functions."""

import numpy as np
import pytest
import torch

from discreet.core.arrays import (
    float_limits,
    is_floating,
    is_tensor,
    new_float_like,
    shared_view,
    store,
    to_numpy,
    type_name,
)

TYPES = ["float16", "float32", "float64", "int64"]


@pytest.mark.parametrize("name", TYPES)
def test_both_kinds_have_the_same_names(name):
    array = np.zeros(2, name)
    tensor = torch.from_numpy(array)
    assert (is_tensor(array), is_tensor(tensor), is_tensor([0.0]), is_tensor(None)) == (
        False,
        True,
        False,
        False,
    )
    assert type_name(array) == type_name(tensor) == name
    assert is_floating(array) == is_floating(tensor) == name.startswith("float")
    if is_floating(array):
        assert float(float_limits(array).max) == float_limits(tensor).max


def test_bfloat16_is_floating():
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    assert (type_name(tensor), is_floating(tensor)) == ("bfloat16", True)
    assert float_limits(tensor).eps == 2.0**-7
    assert to_numpy(tensor + 1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", TYPES)
def test_memory_is_shared_unless_elements_are_narrow(name):
    array = np.ones((2, 3), name)
    for value in (
        array,
        torch.from_numpy(array),
        torch.nn.Parameter(torch.from_numpy(array), name != "int64"),
    ):
        seen = to_numpy(value)
        assert np.shares_memory(seen, array) == (name != "float16")
        assert seen.dtype == (np.float32 if name == "float16" else array.dtype)


def test_views_are_given_only_where_writing_to_them_is_writing_to_the_original():
    float32 = np.dtype(np.float32)
    for out in (np.zeros((2, 3), float32), torch.zeros((2, 3)), torch.nn.Parameter(torch.zeros((2, 3)))):
        view = shared_view(out, float32)
        assert view is not None
        view[:] = 7.0
        assert np.all(to_numpy(out) == 7)
    for out in (
        np.zeros((2, 3)),
        np.zeros((2, 3), float32).T,
        torch.zeros((2, 3)).T,
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(3, device="meta"),  # stands for any other device
    ):
        assert shared_view(out, float32) is None


@pytest.mark.parametrize("name", TYPES)
def test_new_arrays_are_floating(name):
    array = np.zeros((2, 0, 3), name)
    for value in (array, torch.from_numpy(array)):
        new = new_float_like(value)
        assert type(new) is type(value)
        assert tuple(new.shape) == (2, 0, 3)
        assert type_name(new) == (name if is_floating(value) else "float64")


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_storing_rounds_once(name):
    values = np.array([1 / 3, 1e300, -1e-320, 0.0])
    with np.errstate(over="ignore"):
        expected = values.astype(name)
    for out in (np.empty(4, name), torch.from_numpy(np.empty(4, name))):
        store(out, values)
        assert np.array_equal(np.asarray(out), expected)
