"""ledger= means the same to every engine: a Ledger, a path, an address with its key, or nothing."""

import numpy as np
import psycopg
import pytest
import torch

from discreet import Budget, BudgetExceeded, Gaussian, InvalidParameter, PlanViolation, Recipe
from discreet.lecture.erm import private_minimiser
from discreet.lecture.exponential import exponential_choice
from discreet.ledger import FixedPlan, GaussianFilter, Ledger
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.linear.losses import Logistic
from discreet.parties import Party
from discreet.parties.messages import Roster
from discreet.pytorch import PrivateRun
from discreet.selection import PrivateSearch, geometric_trials
from support.parties_bank import hello, holders, study
from support.postgres_server import postgres_server

X = np.random.default_rng(0).random((40, 2))
Y = (X[:, 0] > 0.5).astype(int)
LOOSE = Budget(epsilon=3.0, delta=1e-5)
SEARCH = PrivateSearch(Gaussian(10.0), geometric_trials(5))
PLAN = Recipe(records=40, batch_size=10, steps=3).with_noise(4.0, delta=1e-4)


def linear(**paying):
    PrivateLogisticRegression(bounds=(0, 1), **paying).fit(X, Y)


def theorem(**paying):
    model = PrivateLogisticRegression(bounds=(0, 1), method="objective-perturbation", records=40, **paying)
    model.fit(X, Y)


def lecture(**paying):
    private_minimiser(Logistic(), X, Y, Budget(1.0, 1e-6), method="descent", records=40, **paying)


def choice(**paying):
    points = np.zeros((2, 2))
    exponential_choice(Logistic(), X, Y, points, Budget(1.0, 0.0), loss_bound=1.0, records=40, **paying)


def network(**paying):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateRun(PLAN, model, optimizer, lambda model, batch: model(batch).square().sum(1), **paying)
    for batch in run.batches(torch.as_tensor(X, dtype=torch.float32)):
        run.step(batch)


def party(**paying):
    plan = study("sgd2")
    ledger = paying.pop("ledger")
    made = Party("ann", plan, holders()["ann"], ledger, None, Roster.without_wire(), **paying)
    made.answer(hello(plan, "ann"))


def search(**paying):
    SEARCH.run("ab", lambda candidate: 0.0, float, delta=1e-7, **paying)


ENGINES = {made.__name__: made for made in (linear, theorem, lecture, choice, network, party, search)}


@pytest.fixture(scope="module")
def server():
    with postgres_server() as address:
        yield address


@pytest.fixture(params=list(ENGINES))
def engine(request):
    return ENGINES[request.param]


def begun(place, key=None):
    """How many runs the ledger at a place has."""
    with Ledger.open(place, key=key) as ledger:
        return len(ledger.runs())


def test_a_ledger_is_begun_at_a_path_where_there_is_none_and_opened_where_there_is(engine, tmp_path):
    place = tmp_path / "new.ledger"
    engine(ledger=place)
    first = begun(place)
    assert first >= 1
    if engine is party:  # goes on with its own run
        engine(ledger=str(place))
    else:
        with pytest.raises((BudgetExceeded, PlanViolation)):  # it was for one plan alone
            engine(ledger=str(place))
    assert begun(place) == first


def test_an_address_comes_with_its_key(engine, server, tmp_path):
    schema = f"s_{engine.__name__}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    address, key = f"{server}&options=-csearch_path%3D{schema}", tmp_path / "team.key"
    with pytest.raises(InvalidParameter, match=r"^ledger_key=None: name the file"):
        engine(ledger=address)
    engine(ledger=address, ledger_key=key)
    assert begun(address, key) >= 1


@pytest.mark.parametrize("wrong", [7, b"study.ledger", "mysql://host/db"])
def test_anything_else_is_refused_by_name(engine, wrong):
    with pytest.raises(InvalidParameter, match=r"^ledger="):
        engine(ledger=wrong)


def test_keys_never_reach_certificates():
    key = "/very/secret/place.key"
    model = PrivateLinearRegression(target_bounds=(0, 1), bounds=(0, 1), ledger_key=key)
    with pytest.raises(InvalidParameter, match=r"^ledger_key="):
        model.fit(X, Y)
    assert key not in str(model._settings())


def test_a_shared_ledger_is_charged_and_stays_open(tmp_path):
    with Ledger.create(tmp_path / "a", GaussianFilter(LOOSE)) as ledger:
        for _ in range(2):
            linear(ledger=ledger)
        assert len({name.partition("/")[0] for name in ledger.runs()}) == 2
    with Ledger.create(tmp_path / "b", FixedPlan(SEARCH.event(1e-7) * 2, LOOSE)) as ledger:
        search(ledger=ledger)
        search(ledger=ledger, name="second")
        assert ledger.spent() == SEARCH.event(1e-7) * 2
