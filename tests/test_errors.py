"""The exception tree and the one place where parameters are checked."""

import ast
import math
import pickle
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import torch

from discreet import errors
from discreet.errors import InvalidParameter, one_of, probability, real, whole

NEVER_NUMBERS = [
    None,
    True,
    False,
    np.True_,
    "1",
    "0.5",
    b"1",
    [0.5],
    (0.5,),
    {0.5: 1},
    {0.5},
    0.5 + 0j,
    np.complex128(0.5),
    np.array(True),
    np.array("0.5"),
    np.array(0.5 + 0j),
    np.array([0.5]),
    np.array([]),
    torch.tensor(True),
    torch.tensor([0.5]),
    torch.empty((), device="meta"),
    object(),
    float,
    lambda: 0.5,
    np.datetime64("2020-01-01"),
    np.str_("0.5"),
]
NEVER_FINITE = [
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    np.array(math.nan),
    torch.tensor(math.nan),
]
NEVER_FINITE += [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf"), 10**400, -(10**400)]


@pytest.mark.parametrize(
    "value", NEVER_NUMBERS + NEVER_FINITE, ids=lambda value: re.sub(r" at 0x.*", "", repr(value))[:30]
)
@pytest.mark.parametrize(
    "check", [lambda v: real("x", v), lambda v: whole("x", v, at_least=0), lambda v: probability("x", v)]
)
def test_what_is_no_finite_number_is_refused_by_name(value, check):
    with pytest.raises(InvalidParameter, match=r"^x=") as refusal:
        check(value)
    assert refusal.value.name == "x"
    assert refusal.value.value is value
    assert len(str(refusal.value)) < 300


HALVES = [
    0.5,
    np.float64(0.5),
    np.float32(0.5),
    np.float16(0.5),
    Fraction(1, 2),
    Decimal("0.5"),
    np.array(0.5),
]
HALVES += [torch.tensor(0.5), torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, dtype=torch.bfloat16)]


@pytest.mark.parametrize("value", HALVES)
def test_numbers_of_any_library_are_accepted_as_floats(value):
    assert real("x", value) == 0.5
    assert type(real("x", value)) is float
    assert probability("x", value) == 0.5


FIVES = [
    5,
    5.0,
    np.int64(5),
    np.uint8(5),
    np.float32(5),
    Fraction(5),
    Decimal(5),
    np.array(5),
    torch.tensor(5),
]


@pytest.mark.parametrize("value", FIVES)
def test_whole_numbers_of_any_library_are_accepted_as_ints(value):
    assert whole("x", value, at_least=1, at_most=5) == 5
    assert type(whole("x", value, at_least=1)) is int


def test_large_whole_numbers_keep_all_digits():
    assert whole("x", 2**60 + 1, at_least=0) == 2**60 + 1
    assert whole("x", Decimal(2**60 + 1), at_least=0) == 2**60 + 1
    with pytest.raises(InvalidParameter):  # its float is a whole number
        whole("x", Decimal("9007199254740993.5"), at_least=0)


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        ({"above": 0}, [5e-324, 1, 1e308], [0, -0.0, -1]),
        ({"at_least": 0}, [0, -0.0, 2], [-5e-324, -1]),
        ({"below": 1}, [math.nextafter(1, 0), -3], [1, 2]),
        ({"at_most": 1}, [1, 0], [math.nextafter(1, 2)]),
        ({"above": 0, "at_most": 1}, [1, 0.5], [0, 1.5]),
    ],
)
def test_limits(limits, inside, outside):
    for value in inside:
        assert real("x", value, **limits) == value
    for value in outside:
        with pytest.raises(InvalidParameter):
            real("x", value, **limits)


@pytest.mark.parametrize("value", [0, -1, 2.5, 11, 1e-300, 0.9999999, 10.000001])
def test_whole_limits(value):
    with pytest.raises(InvalidParameter, match="at least 1 and at most 10"):
        whole("steps", value, at_least=1, at_most=10)


@pytest.mark.parametrize("value", [0, 1, -0.5, 1.5, 0.0, 1.0])
def test_probabilities_are_strictly_inside(value):
    with pytest.raises(InvalidParameter):
        probability("delta", value)


@pytest.mark.parametrize("value", ["c", "A", "", None, 1, ["a"], ("a", "b"), np.array("a")])
def test_one_of(value):
    assert one_of("way", "a", ("a", "b")) == "a"
    with pytest.raises(InvalidParameter, match="'a', 'b'"):
        one_of("way", value, ("a", "b"))


def test_messages_show_name_value_and_remedy():
    with pytest.raises(InvalidParameter) as refusal:
        real("rate", np.float32(1.5), above=0, at_most=1, remedy="Divide by the number of records.")
    assert str(refusal.value) == (
        "rate=1.5: must be a finite number above 0 and at most 1. Divide by the number of records."
    )


def test_long_values_are_cut():
    with pytest.raises(InvalidParameter) as refusal:
        real("rate", "x" * 10_000)
    assert len(str(refusal.value)) < 200


def test_the_tree():
    """Every error is one of ours, and also the builtin that a stranger would catch."""
    builtin = {
        "InvalidParameter": ValueError,
        "UnsupportedEvent": ValueError,
        "AccuracyNotReached": ArithmeticError,
        "MissingDependency": ImportError,
        "BudgetExceeded": Exception,
        "PlanViolation": Exception,
        "LedgerCorrupted": Exception,
        "LedgerUnavailable": OSError,
    }
    for name, base in builtin.items():
        assert issubclass(getattr(errors, name), errors.DiscreetError)
        assert issubclass(getattr(errors, name), base)
        assert name in errors.__doc__


@pytest.mark.parametrize(
    "error",
    [
        InvalidParameter("rate", 2, "must be at most 1."),
        errors.UnsupportedEvent("use something else"),
        errors.AccuracyNotReached("too wide", (0.1, 0.2)),
        errors.LedgerCorrupted("restore it"),
        errors.LedgerUnavailable("open it again"),
    ],
)
def test_errors_survive_a_trip_to_another_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def every_exception():
    """The names of all exceptions of ours, wherever a module defines them."""
    found = {}
    source = Path(errors.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                getattr(base, "id", "") in {"DiscreetError", "CannotConnect", "NotYet"} for base in node.bases
            ):
                found[node.name] = path.relative_to(source).as_posix()
    return found


def test_errors_holds_and_lists_everything_that_can_be_raised():
    found = every_exception()
    assert len(found) > 12
    assert set(found.values()) == {"errors.py"}
    assert all(re.search(rf"─ {name}\b", errors.__doc__) for name in found)
    tree = set(re.findall(r"─ (\w+)", errors.__doc__))
    assert tree == set(found)


@pytest.mark.parametrize(
    "records",
    [
        np.full((3, 2), 987.5),
        np.full(3, 987.5),
        pd.DataFrame({"age": [987.5]}),
        pd.Series([987.5]),
        polars.DataFrame({"age": [987.5]}),
        pyarrow.table({"age": [987.5]}),
        torch.full((2,), 987.5),
        [987.5] * 50,
    ],
    ids=lambda records: type(records).__name__,
)
def test_records_in_the_place_of_a_parameter_are_not_shown(records):
    with pytest.raises(InvalidParameter, match=r"^x=<") as refusal:
        real("x", records)
    assert "987" not in str(refusal.value)
    assert "age" not in str(refusal.value)
    assert "987.5" in str(InvalidParameter("x", [987.5], "what was typed is shown."))
