"""Every public statistic, mean and evaluation leaves rows to the gate, and draws nothing before it has paid."""

import sys
from pathlib import Path

import numpy as np
import pytest

from discreet import Budget, Ledger
from discreet.core.randomness import RandomStream
from discreet.errors import DiscreetError
from discreet.evaluation import evaluate
from discreet.events import Gaussian, Laplace
from discreet.ledger import FixedPlan, GaussianFilter
from discreet.ledger.ledger_log import Run
from discreet.statistics import (
    PrivatePCA,
    private_count,
    private_covariance,
    private_histogram,
    private_quantiles,
    private_sum,
    private_variance,
)
from discreet.statistics.mean import Ball, FixedClip, Interval, SecondMoment, private_mean
from discreet.trusted import TRUSTED_FILES
from discreet.trusted.rows import PrivateRows
from discreet.trusted.session import Session

SOURCE = Path(__file__).parent.parent.parent / "src" / "discreet"
TRUSTED = {str(SOURCE / package / f"{name}.py") for package, names in TRUSTED_FILES.items() for name in names}
PURE, BUDGET = Budget(1.0, 0.0), Budget(1.0, 1e-6)
X = np.random.default_rng(0).random((60, 3))
Y = (X[:, 0] > 0.5).astype(int)


def chances(rows):
    return rows / rows.sum(1)[:, None]


def asked(data, **more):
    return evaluate(chances, X, data, epsilon=1.0, **more)


ASKED = {
    "count": lambda **more: private_count(X[:, 0], BUDGET, **more),
    "count, replace-one": lambda **more: private_count(Y > 0, Budget(1.0, 1e-6, "replace-one"), **more),
    "histogram": lambda **more: private_histogram(X[:, 0], BUDGET, (0.0, 0.5, 1.0), **more),
    "categories": lambda **more: private_histogram(Y, BUDGET, (0, 1), categories=True, **more),
    "sum": lambda **more: private_sum(X[:, 0], BUDGET, (0, 2), **more),
    "variance": lambda **more: private_variance(X[:, 0], BUDGET, (0, 2), **more),
    "covariance": lambda **more: private_covariance(X, BUDGET, (0, 2), **more),
    "components": lambda **more: PrivatePCA(2, epsilon=1.0, delta=1e-6, bounds=(0, 1), **more).fit(X),
    "ball": lambda **more: private_mean(X, BUDGET, Ball(9.0), records=60, also=("count", "variance"), **more),
    "interval": lambda **more: private_mean(X[:, 0], BUDGET, Interval(0.0, 1.0), records=60, **more),
    "moment": lambda **more: private_mean(X, BUDGET, SecondMoment(1.0), records=60, **more),
    "clip": lambda **more: private_mean(X, BUDGET, FixedClip(1.0), records=60, arithmetic="float", **more),
    "classes": lambda **more: asked(Y, classes=(0, 1, 2), by={"g": (Y, (0, 1))}, **more),
    "persons": lambda **more: asked(Y, classes=(0, 1, 2), unit=np.arange(60) // 4, **more),
    "two classes": lambda **more: evaluate(lambda x: x[:, 0], X, Y, epsilon=1.0, classes=(0, 1), **more),
    "numbers": lambda **more: evaluate(
        lambda x: x[:, 0], X, X[:, 1], epsilon=1.0, target_bounds=(0, 1), **more
    ),
}
PURE_ONLY = {
    "quantile": lambda **more: private_quantiles(X[:, 0], PURE, 0.5, (0, 2), confidence=0.9, **more),
    "quantiles": lambda **more: private_quantiles(X[:, 0], PURE, (0.2, 0.5), (0, 2), **more),
}
ALL = ASKED | PURE_ONLY


# Tainted rows


class PeekedAt(Exception):
    """Somebody outside of the trusted files touched a private row."""


def check_caller():
    """Raise unless the nearest function of ours on the stack is in a trusted file."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(SOURCE)):
            if name not in TRUSTED:
                raise PeekedAt(name)
            return
        frame = frame.f_back


def plain(value):
    return np.asarray(value.view(np.ndarray)) if isinstance(value, Tainted) else value


class Tainted(np.ndarray):
    """An array that only trusted files may compute with, convert, compare or print."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        check_caller()
        return getattr(ufunc, method)(*map(plain, inputs), **options)

    def __array_function__(self, function, types, args, options):
        check_caller()
        return function(*map(plain, args), **options)


def guarded(name):
    def method(self, *args, **options):
        check_caller()
        return getattr(plain(self), name)(*args, **options)

    return method


for _name in ("__getitem__", "__len__", "__iter__", "__bool__", "__float__", "__repr__", "__str__"):
    setattr(Tainted, _name, guarded(_name))
for _name in ("tolist", "item", "astype", "mean", "sum", "min", "max", "tobytes", "copy", "ravel"):
    setattr(Tainted, _name, guarded(_name))


@pytest.fixture
def tainted(monkeypatch):
    """All private rows are tainted, and their exact sums are asked for by trusted files only."""
    honest, sums, made = PrivateRows.__init__, PrivateRows._total, []

    def read(self, *args):
        honest(self, *args)
        self._numbers = np.array(self._numbers).view(Tainted)
        made.append(self)

    def total(self, *args):
        check_caller()
        return sums(self, *args)

    monkeypatch.setattr(PrivateRows, "__init__", read)
    monkeypatch.setattr(PrivateRows, "_total", total)
    return made


@pytest.mark.parametrize("name", ALL)
def test_tainted_rows_pass_through(name, tainted):
    ALL[name]()
    assert tainted


@pytest.mark.parametrize(
    "peek",
    [
        "rows._numbers.mean()",
        "float(rows._numbers[0, 0])",
        "repr(rows._numbers)",
        "rows._numbers > 0",
        "np.sum(rows._numbers)",
        "rows._numbers.tolist()",
        "len(rows._numbers)",
        "rows._total(None, 1.0)",
    ],
)
def test_a_strategy_that_peeks_is_found(peek, tainted):
    """The broken twins, in a file of the statistics that is not trusted."""
    rows = PrivateRows(np.ones((3, 1)), "add-remove")
    code = compile(
        f"def strategy(rows):\n    return {peek}\n", str(SOURCE / "statistics" / "twin.py"), "exec"
    )
    made = {"np": np}
    exec(code, made)
    with pytest.raises(PeekedAt):
        made["strategy"](rows)


# Ledgers that fail


@pytest.fixture
def drawn(monkeypatch):
    """The samplers of all streams that were asked."""
    found = []
    for name in ("uniform", "normal", "laplace", "each_block", "bytes", "integers"):
        _watch(monkeypatch, name, found)
    for name in ("discrete_laplace", "discrete_gaussian"):
        _watch(monkeypatch, name, found)
    return found


def _watch(monkeypatch, name, found):
    honest = getattr(RandomStream, name)

    def draw(self, *args, **options):
        found.append(name)
        return honest(self, *args, **options)

    monkeypatch.setattr(RandomStream, name, draw)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_drawn_if_the_ledger_is_too_small(name, drawn):
    ALL[name]()
    assert drawn  # the detector sees the noise of an honest release
    drawn.clear()
    with Ledger.in_memory(FixedPlan(Laplace(1000.0), PURE)) as poor, pytest.raises(DiscreetError):
        ALL[name](ledger=poor)
    assert drawn == []


class DiskFull(OSError):
    pass


def failing(monkeypatch, at):
    """Every ledger fails at its reservation of this number; the numbers of all reservations, as they come."""
    honest, made = Run.reserve, []

    def reserve(self, *args, **options):
        made.append(len(made))
        if len(made) == at + 1:
            raise DiskFull
        return honest(self, *args, **options)

    monkeypatch.setattr(Run, "reserve", reserve)
    return made


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_drawn_if_any_reservation_fails(name, drawn, monkeypatch):
    """A mean by several rounds reserves several events: whichever fails, nothing was drawn."""
    with monkeypatch.context() as patch:
        made = failing(patch, -1)
        ALL[name]()
    assert drawn
    for at in range(len(made)):
        drawn.clear()
        with monkeypatch.context() as patch:
            failing(patch, at)
            with pytest.raises(DiskFull):
                ALL[name]()
        assert drawn == []


def test_after_the_reservation_that_failed_nothing_of_a_ledger_is_released(drawn, monkeypatch):
    """One ledger pays for ten releases; it fails at the n-th of them, for all n."""
    names = ("count", "histogram", "categories", "sum", "variance", "covariance", "components")
    questions = [ASKED[name] for name in (*names, "classes", "two classes", "numbers")]

    def ask_all(ledger):
        for question in questions:
            drawn.clear()
            question(ledger=ledger)
            assert drawn

    for at in range(len(questions)):
        with Ledger.in_memory(GaussianFilter(Budget(30.0, 1e-3))) as ledger:
            with monkeypatch.context() as patch:
                made = failing(patch, at)
                with pytest.raises(DiskFull):
                    ask_all(ledger)
            assert len(made) == at + 1
            assert drawn == []
            assert sum(count for _, count in ledger.spent().parts()) == at if at else ledger.spent() is None


def test_a_charge_that_is_forgotten_is_found(drawn, monkeypatch):
    """The broken twin: noise that is drawn before the ledger answers."""
    honest = Session.charge

    def charge(self, **options):
        self._stream.discrete_laplace(3, (1,))
        return honest(self, **options)

    monkeypatch.setattr(Session, "charge", charge)
    failing(monkeypatch, 0)
    with pytest.raises(DiskFull):
        ASKED["count"]()
    assert drawn != []


def test_the_events_of_the_ledger_are_those_of_the_noise():
    with Ledger.in_memory(GaussianFilter(Budget(10.0, 1e-5))) as ledger:
        ASKED["variance"](ledger=ledger)
        assert {type(event) for event, _ in ledger.spent().parts()} == {Gaussian}
