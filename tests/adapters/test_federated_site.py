"""A site of a federation: rounds of one plan, from one folder, against servers that send anything."""

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import discreet as dp
from discreet.adapters import PrivateSite
from discreet.adapters import federated_site as module
from discreet.certificate import Certificate
from discreet.errors import CheckFailed, InvalidParameter, LedgerCorrupted, PlanViolation, UserCodeFailed
from discreet.ledger import Ledger
from discreet.ledger.filters import TruncatedRenyiFilter
from discreet.pytorch.chosen_weights import REFUSALS, gradients_or_zeros
from discreet.pytorch.integer_gradients import steps_of_batch

RECORDS = 200
X = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.fixture(autouse=True)
def one_thread():
    """Small sums on several threads take most of their time waiting when other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@cache
def plan_of(steps=12, epsilon=2.0):
    return dp.Recipe(RECORDS, batch_size=20, steps=steps).calibrate(dp.Budget(epsilon, 1e-5))


def site_at(folder, plan=None, rounds=3, optimizer=torch.optim.SGD, criterion=losses, **options):
    model = nn.Linear(4, 2)
    steps = optimizer(model.parameters(), lr=0.1)
    plan = plan_of() if plan is None else plan
    return PrivateSite(plan, model, steps, criterion, (X, Y), rounds=rounds, folder=folder, **options)


def weights(value=0.0):
    return {"weight": torch.full((2, 4), value), "bias": torch.full((2,), value)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def charged(folder):
    with Ledger.open(folder / "run" / "site.ledger") as ledger:
        (record,) = ledger.runs().values()
        return record.reserved


def test_the_rounds_share_the_plan_and_then_the_server_gets_its_weights_back(tmp_path, caplog):
    site, sent = site_at(tmp_path), weights()
    for number in (1, 2, 3):
        result = site.train_round(sent)
        assert (result.trained, result.steps, result.note) == (True, 4, "")
        assert not same(result.weights, sent)
        assert charged(tmp_path) == 4 * number
        sent = result.weights
    with caplog.at_level(logging.WARNING):
        last = site.train_round(sent)
    assert (last.trained, last.steps, charged(tmp_path)) == (False, 0, 12)
    assert same(last.weights, sent)
    assert "budget of this site is used up" in last.note
    assert caplog.messages == [last.note]
    assert last.metrics["privacy_trained"] == last.metrics["privacy_steps"] == 0.0
    planned = site.plan.guarantee.epsilon.upper
    assert planned <= last.metrics["privacy_epsilon"] <= planned * (1 + 1e-6)  # integer noise
    certificate = Certificate.load(tmp_path / "certificate.json")
    certificate.verify()
    assert certificate.guarantee.within(dp.Budget(2.0, 1e-5))


def test_a_site_of_another_process_stays_used_up(tmp_path):
    site_at(tmp_path, rounds=1).train_round(weights())
    again = site_at(tmp_path, rounds=1).train_round(weights(1.0))
    assert not again.trained
    assert same(again.weights, weights(1.0))
    assert charged(tmp_path) == 12


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ({"weight": torch.full((2, 4), math.nan)}, "weight"),
        ({"bias": np.array([0.0, np.inf])}, "bias"),
        ({"bias": np.array([0.0, 1e300])}, "bias"),
        ({"weight": torch.zeros(4, 2)}, "weight"),
        ({"bias": torch.tensor(0.0)}, "bias"),
        ({"bias": "zero"}, "bias"),
        ({"bias": [[0.0], [0.0, 1.0]]}, "bias"),
        ({"bias": None}, "bias"),
        ({"scale": torch.ones(2)}, "scale"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name_before_anything_is_charged(tmp_path, broken, name):
    site = site_at(tmp_path)
    with pytest.raises(InvalidParameter, match=f"weights='{name}'"):
        site.train_round(weights() | broken)
    assert charged(tmp_path) == 0
    assert site.train_round(weights()).trained


def test_a_parameter_that_the_server_leaves_out_is_refused_by_name(tmp_path):
    site = site_at(tmp_path)
    with pytest.raises(InvalidParameter, match="weights='weight'"):
        site.train_round({"bias": torch.zeros(2)})
    with pytest.raises(InvalidParameter, match="weights='list'"):
        site.train_round([torch.zeros(2)])
    assert charged(tmp_path) == 0


def test_weights_of_any_size_cost_what_others_cost(tmp_path):
    result = site_at(tmp_path).train_round(weights(3e38))
    assert (result.steps, charged(tmp_path)) == (4, 4)


def test_each_round_in_a_process_of_its_own_loses_no_step(tmp_path):
    """Leases of this plan hold two steps; a round takes all that the ledger has stored for it."""
    plan, sent, steps = plan_of(240), weights(), []
    for _ in range(4):
        site = site_at(tmp_path, plan, rounds=4, optimizer=torch.optim.Adam)
        result = site.train_round(sent)
        sent, steps = result.weights, [*steps, result.steps]
        assert charged(tmp_path) == sum(steps)
    assert sum(steps) == 240
    assert all(58 <= count <= 62 for count in steps)
    assert not site_at(tmp_path, plan, rounds=4, optimizer=torch.optim.Adam).train_round(sent).trained


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (dp.Recipe(RECORDS, batch_size=20, steps=12), {"arithmetic": "float"}),
        (dp.Recipe(RECORDS, batch_size=20, steps=12, noise=(1.5, 1.0)), {}),
        (dp.Recipe(RECORDS, batch_size=20, epochs=3, sampling="random-allocation"), {}),
        (dp.Recipe(RECORDS, batch_size=20, steps=20, bands=2), {"arithmetic": "float"}),
    ],
    ids=["float", "two stages", "random allocation", "correlated noise"],
)
def test_every_kind_of_plan_takes_all_of_its_steps(tmp_path, recipe, options):
    """A charge may pay for several steps, and a round ends where a charge ends."""
    plan, sent, steps = recipe.calibrate(dp.Budget(2.0, 1e-5)), weights(), []
    for _ in range(4):
        result = site_at(tmp_path, plan, **options).train_round(sent)
        sent, steps = result.weights, [*steps, result.steps]
    assert (sum(steps), steps[-1], result.trained) == (plan.steps, 0, False)
    assert all(steps[:3])


def test_the_optimizer_goes_on_in_another_process(tmp_path):
    counts = []
    for _ in range(2):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        site = PrivateSite(plan_of(), model, optimizer, losses, (X, Y), rounds=3, folder=tmp_path)
        site.train_round(weights())
        counts.append(float(optimizer.state[model.bias]["step"]))
    assert counts == [4.0, 8.0]


def test_a_ledger_that_is_used_up_within_a_round_gives_the_weights_back(tmp_path):
    """A ledger of the whole organisation, from which others take all but four steps after the first round."""
    plan = plan_of(steps=30)
    step = plan.stages[0].charge
    ledger = Ledger.in_memory(TruncatedRenyiFilter.for_event(step, dp.Budget(4.0, 1e-5)))
    site = site_at(tmp_path, plan, rounds=3, ledger=ledger)
    first = site.train_round(weights())
    assert (first.trained, first.steps) == (True, 10)
    others = ledger.remaining(step) - 4
    ledger.run(step * others, "0" * 64, name="others").reserve(others)
    for _ in range(2):
        last = site.train_round(first.weights)
        assert (last.trained, last.steps, last.note) == (False, 0, module.NOT_GRANTED)
        assert same(last.weights, first.weights)
        assert same(dict(site.model.state_dict()), first.weights)
    assert ledger.runs()["descent"].reserved == 14


CRASHING = """
import os, signal, sys
import torch
sys.path.insert(0, sys.argv[3])
from test_federated_site import plan_of, site_at, weights

class Noting(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        with open(sys.argv[2], "a") as file:
            file.write("step\\n")
        if len(open(sys.argv[2]).readlines()) == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)

site = site_at(sys.argv[1], plan_of(240), rounds=4, optimizer=Noting)
sent = weights()
while True:
    result = site.train_round(sent)
    if not result.trained:
        break
    sent = result.weights
"""


def test_a_site_that_is_killed_goes_on_without_an_unpaid_step(tmp_path):
    """The optimizer notes every step that was released; a kill in the first round, one in the second, then none."""
    folder, notes = tmp_path / "site", tmp_path / "steps"
    single = os.environ | {"OMP_NUM_THREADS": "1"}
    for kill_at in (30, 90, -1):
        words = [str(folder), str(notes), str(Path(__file__).parent), str(kill_at)]
        ended = subprocess.run(
            [sys.executable, "-c", CRASHING, *words], env=single, capture_output=True, text=True
        )
        assert ended.returncode == (-signal.SIGKILL if kill_at > 0 else 0), ended.stderr
        released = len(notes.read_text().splitlines())
        assert released <= charged(folder) <= 240
        assert charged(folder) - released <= 2  # one step of a lease for each kill
    assert charged(folder) == 240


def test_a_folder_appears_with_ledger_and_checkpoint_or_not_at_all(tmp_path, monkeypatch):
    def killed(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            site_at(tmp_path)
    assert not (tmp_path / "run").exists()
    assert site_at(tmp_path).train_round(weights()).trained


def test_a_folder_of_another_plan_is_refused(tmp_path):
    site_at(tmp_path)
    with pytest.raises(PlanViolation, match="plan"):
        site_at(tmp_path, plan_of(steps=24))
    with pytest.raises(PlanViolation, match="data of another name"):
        site_at(tmp_path, data="another table")


@pytest.mark.parametrize("lost", [["site.ledger"], ["site.ledger", "site.ledger.key"]])
def test_a_lost_ledger_is_not_begun_anew(tmp_path, lost):
    site_at(tmp_path).train_round(weights())
    for path in (tmp_path / "run").glob("site.ledger*"):
        if path.name in lost or path.suffix != ".key":
            path.unlink()
    with pytest.raises((InvalidParameter, LedgerCorrupted)):
        site_at(tmp_path).train_round(weights())


def test_an_older_copy_of_the_ledger_is_refused(tmp_path):
    site_at(tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    site_at(tmp_path).train_round(weights())
    for path in (tmp_path / "run").glob("site.ledger*"):
        path.unlink()
    for path in (tmp_path / "older").glob("site.ledger*"):
        shutil.copy2(path, tmp_path / "run")
    with pytest.raises(LedgerCorrupted, match="rolled back"):
        site_at(tmp_path)


def test_errors_of_the_losses_leave_no_record_behind(tmp_path):
    def telling(model, batch):
        raise ValueError(f"labels {batch[1].tolist()}")

    with pytest.raises(UserCodeFailed) as refusal:
        site_at(tmp_path, criterion=telling).train_round(weights())
    assert "[" not in str(refusal.value).split(" at ")[0]
    assert not os.listdir(tmp_path)


RECORD = torch.tensor([9.0, 9.0, 9.0, 9.0])


def raises_at_large_scores(model, batch):
    scores = model(batch[0])
    if scores.abs().max() > 1e4:
        raise ValueError("a score out of range")
    return functional.cross_entropy(scores, batch[1], reduction="none")


def mixes_at_large_scores(model, batch):
    found = losses(model, batch)
    mixes = model.weight.abs().max() > 100 and model(batch[0]).abs().max() > 1e4
    return found + found.mean() if mixes else found


class OfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(context, scores):
        context.large = bool(scores.abs().max() > 1e4)
        return scores

    @staticmethod
    def backward(context, gradient):
        if context.large:
            raise ValueError("a gradient out of range")
        return gradient


def raises_in_backward(model, batch):
    return functional.cross_entropy(OfItsOwn.apply(model(batch[0])), batch[1], reduction="none")


def rounds_of(folder, criterion, holds_record, arithmetic):
    """What a server sees of two rounds at weights for which the scores of one record alone are large."""
    x = torch.cat([X, RECORD[None]]) if holds_record else X
    y = torch.cat([Y, torch.ones(1, dtype=Y.dtype)]) if holds_record else Y
    plan = dp.Recipe(RECORDS, batch_size=RECORDS, steps=4).calibrate(dp.Budget(8.0, 1e-5))  # all of them
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"rounds": 2, "folder": folder, "arithmetic": arithmetic}
    site = PrivateSite(plan, model, optimizer, criterion, (x, y), **options)
    sent = weights() | {"weight": torch.full((2, 4), 500.0)}
    seen = []
    for _ in range(2):
        try:
            result = site.train_round(sent)
        except (CheckFailed, PlanViolation, UserCodeFailed) as refusal:
            seen.append(type(refusal).__name__)
        else:
            seen.append((result.trained, result.steps, result.note))
    return seen, charged(folder)


HOSTILE = [raises_at_large_scores, mixes_at_large_scores, raises_in_backward]


@pytest.mark.parametrize("criterion", HOSTILE)
def test_a_server_that_chooses_weights_sees_no_refusal_because_of_a_record(tmp_path, criterion):
    with_record = rounds_of(tmp_path / "with", criterion, True, "hardened")
    assert with_record == rounds_of(tmp_path / "without", criterion, False, "hardened")
    assert with_record == ([(True, 2, ""), (True, 2, "")], 4)


@pytest.mark.parametrize("criterion", HOSTILE)
def test_in_floating_point_a_refusal_tells_that_the_record_is_there(tmp_path, criterion):
    """The broken twin, of which a certificate says that refusals are not covered."""
    seen, _ = rounds_of(tmp_path / "with", criterion, True, "float")
    assert seen[0] in ("CheckFailed", "UserCodeFailed")
    certificate = site_at(tmp_path / "site", arithmetic="float").certificate()
    assert REFUSALS in certificate.not_covered
    assert REFUSALS not in site_at(tmp_path / "other").certificate().not_covered


def test_an_example_whose_loss_raises_adds_zeros_and_changes_no_other(tmp_path):
    run = site_at(tmp_path, criterion=raises_at_large_scores)._run
    run._model.load_state_dict(weights(500.0))
    x, y = torch.cat([X[:9], RECORD[None]]), torch.cat([Y[:9], Y[:1]])
    alone = steps_of_batch(run._sum, (X[:9], Y[:9]), 2.0**-30, gradients_or_zeros)
    assert alone.any()
    assert torch.equal(alone, steps_of_batch(run._sum, (x, y), 2.0**-30, gradients_or_zeros))
    with pytest.raises(ValueError, match="out of range"):
        steps_of_batch(run._sum, (x, y), 2.0**-30)


def test_a_collation_needs_floating_point(tmp_path):
    def collate(rows):
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    with pytest.raises(InvalidParameter, match="Pad the records in the data set"):
        site_at(tmp_path, collate=collate)
    assert site_at(tmp_path, collate=collate, arithmetic="float").train_round(weights()).trained


def test_model_and_losses_are_checked_at_the_weights_of_the_site(tmp_path):
    def mixing(model, batch):
        found = losses(model, batch)
        return found + found.mean()

    with pytest.raises(CheckFailed):
        site_at(tmp_path, criterion=mixing)
    assert not os.listdir(tmp_path)


def test_every_observer_has_an_epsilon_and_its_owner_none(tmp_path):
    site = site_at(tmp_path)
    rows = {row.name: row for row in site.observers()}
    assert list(rows) == ["server", "another site", "final model", "owner"]
    for name in ("server", "another site", "final model"):
        assert rows[name].guarantee.epsilon.upper == pytest.approx(site.plan.guarantee.epsilon.upper)
        assert rows[name].sees in str(rows[name].guarantee)
    assert rows["owner"].guarantee is None


@pytest.mark.parametrize("rounds", [0, 13, 2.5])
def test_rounds_that_the_plan_has_no_steps_for_are_refused(tmp_path, rounds):
    with pytest.raises(InvalidParameter, match="rounds"):
        site_at(tmp_path, rounds=rounds)
    assert not os.listdir(tmp_path)


def test_a_site_of_several_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module.distributed, "is_initialized", lambda: True)
    with pytest.raises(InvalidParameter, match="single process"):
        site_at(tmp_path)
