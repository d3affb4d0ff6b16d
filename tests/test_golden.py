"""Numbers that must stay as they are: digests, certified epsilons, and the seeded models of every engine.

Whoever moves code about runs this file. What is written in ``golden/numbers.json`` was true before the move; a
digest must come out again letter for letter, and a number to nine digits (seven where it ends a search), because
processors may differ in the last bits. If a change is meant, it goes under *Guarantees* in the changelog, and
``python tests/test_golden.py`` writes the file anew.
"""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import discreet as dp
from discreet.ledger import FixedPlan, GaussianFilter, Ledger, TruncatedRenyiFilter
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression, PrivatePoissonRegressor
from discreet.parties import rehearse
from discreet.parties.study import Aggregation
from discreet.pytorch import PrivateRun
from support.parties_bank import holders, study
from support.secure_world import World

GOLDEN = Path(__file__).parent / "golden" / "numbers.json"
TOLERANCE = 1e-9
SEARCHED = {"events": 1e-7, "plans": 1e-7}
"""Parts with numbers that end a search: processors that differ in a last bit end it a step earlier or later."""

GAUSSIAN, LAPLACE = dp.Gaussian(noise_multiplier=4.0), dp.Laplace(scale=20.0)
SAMPLED = dp.PoissonSampled(rate=0.01, of=GAUSSIAN)
EVENTS = {
    "gaussian": GAUSSIAN * 10,
    "laplace": LAPLACE * 5,
    "black box": dp.ApproximateDP(epsilon=0.1, delta=1e-7) * 3,
    "poisson": SAMPLED * 1000,
    "fixed size": dp.FixedSizeSampled(batch_size=10, records=1000, of=GAUSSIAN) * 100,
    "allocated": dp.RandomlyAllocated(steps=50, of=dp.Gaussian(noise_multiplier=2.0)) * 2,
    "mixed": SAMPLED * 200 + LAPLACE + GAUSSIAN,
}
RECIPES = {
    "poisson": dp.Recipe(records=1000, batch_size=50, steps=100, clip_norm=1.5),
    "full batch": dp.Recipe(records=1000, steps=20, sampling="full-batch"),
    "fixed size": dp.Recipe(records=1000, batch_size=50, steps=100, sampling="fixed-size"),
}


def neighbours_of(name):
    return "replace-one" if name == "fixed size" else "add-remove"


def bounds(pair):
    return {"lower": pair.lower, "upper": pair.upper}


def events():
    curves = {name: dp.account(event, neighbours_of(name)) for name, event in EVENTS.items()}
    return {
        name: {
            "digest": EVENTS[name].digest(),
            "epsilon at 1e-5": bounds(curve.guarantee(1e-5).epsilon),
            "delta at 1": curve.delta(epsilon=1.0),
        }
        for name, curve in curves.items()
    }


def plans():
    found = {}
    for name, recipe in RECIPES.items():
        plan = recipe.with_noise(2.0, delta=1e-5, neighbours=neighbours_of(name))
        found[name] = {
            "digest": plan.digest(),
            "event": plan.event.digest(),
            "noise for epsilon 1": recipe.calibrate(
                dp.Budget(1.0, 1e-5, neighbours_of(name))
            ).noise_multiplier,
        }
    return found


def ledgers():
    budget = dp.Budget(4.0, 1e-5)
    rules = {
        "fixed": FixedPlan(SAMPLED * 1000, budget),
        "gaussian": GaussianFilter(budget),
        "truncated": TruncatedRenyiFilter.for_event(SAMPLED, budget),
    }
    event = {"fixed": SAMPLED * 1000, "gaussian": GAUSSIAN * 2, "truncated": SAMPLED * 10}
    found = {}
    for name, rule in rules.items():
        with Ledger.in_memory(rule) as ledger:
            ledger.run(event[name], plan_hash="5" * 64, name="fit").reserve(2)
            entries = [json.loads(entry) for entry in ledger.entries()]
        entries[0][2] = "the ledger's own name"
        found[name] = {"entries": entries, "room": rule.room({}, event[name])}
    return found


def told(certificate):
    """A certificate without what is new each time: names of runs, hashes, signatures, versions."""
    data = json.loads(certificate.to_json())
    for name in ("versions", "digest", "signatures"):
        del data[name]
    data["procedure"].pop("digest", None)
    data["procedure"].get("settings", {}).pop("run", None)
    del data["ledger"]["anchor"]["hash"]
    for run in data["ledger"]["runs"]:
        del run["plan_hash"]
        run["name"] = run["name"].rpartition("/")[2]
    return data


def table():
    rng = np.random.default_rng(5)
    rows = rng.uniform(-1, 1, (300, 3))
    return rows, rows @ [1.0, -0.5, 0.25] + 0.1 * rng.standard_normal(300)


def linear(model, target):
    fitted = model.fit(table()[0], target)
    return {
        "coefficients": np.ravel(fitted.coef_).tolist(),
        "intercept": np.ravel(fitted.intercept_).tolist(),
        "certificate": told(fitted.certificate_),
    }


def linear_models():
    y = table()[1]
    common = {"epsilon": 2.0, "delta": 1e-5, "bounds": (-1, 1), "unsafe_seed": 3, "arithmetic": "float"}
    return {
        "logistic": linear(PrivateLogisticRegression(**common), (y > 0).astype(int)),
        "three classes": linear(
            PrivateLogisticRegression(**common, classes=(0, 1, 2)), np.digitize(y, [-0.4, 0.4])
        ),
        "squared": linear(PrivateLinearRegression(**common, target_bounds=(-2, 2)), y),
        "huber": linear(PrivateLinearRegression(**common, target_bounds=(-2, 2), loss="huber"), y),
        "poisson": linear(
            PrivatePoissonRegressor(**common, target_bounds=(0, 9)), np.rint(2 * np.exp(y)).clip(0, 9)
        ),
        "hardened": linear(
            PrivateLinearRegression(**common | {"arithmetic": "hardened"}, target_bounds=(-2, 2)), y
        ),
    }


def torch_run():
    rows, target = (torch.from_numpy(part) for part in table())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    plan = dp.Recipe(records=300, batch_size=30, steps=5).with_noise(1.0, delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def losses(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    run = PrivateRun(plan, model, optimizer, losses, data="golden", unsafe_seed=3)
    for batch in run.batches((rows, (target > 0).long())):
        run.step(batch)
    weights = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
    return {"weights": weights, "certificate": told(run.certificate())}


def rehearsal(plan):
    result = rehearse(plan, holders(), unsafe_seed=1)
    return {
        "study": plan.digest(),
        "theta": result.theta.tolist(),
        "average": result.average.tolist(),
        "certificate": told(result.certificates["ann"]),
        "observers": [row.to_dict() for row in result.observers],
    }


def secure_sum():
    world = World(4, dropouts=1).begin()
    return world.sum(1, world.vectors(), lost=("b",)).tolist()


PARTS = {
    "events": events,
    "plans": plans,
    "ledgers": ledgers,
    "linear": linear_models,
    "torch": torch_run,
    "sgd1": lambda: rehearsal(study("sgd1", tokens=50)),
    "sgd2": lambda: rehearsal(study(rounds=5)),
    "secure": lambda: rehearsal(study(rounds=3, aggregation=Aggregation("secure", dropouts=1))),
    "secure sum": secure_sum,
}


def differences(golden, found, where="", tolerance=TOLERANCE):
    """Where two documents differ: words and whole numbers at all, other numbers beyond the tolerance.

    Coordinates of a model (numbers in a list) may be near zero, and are compared on the scale of the model.
    """
    if isinstance(golden, dict) and isinstance(found, dict) and set(golden) == set(found):
        return [
            line
            for key in golden
            for line in differences(golden[key], found[key], f"{where}/{key}", tolerance)
        ]
    if isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = enumerate(zip(golden, found, strict=True))
        return [line for place, pair in pairs for line in differences(*pair, f"{where}/{place}", tolerance)]
    if isinstance(golden, float) and isinstance(found, float):
        least = tolerance if where.rpartition("/")[2].isdigit() else tolerance**2
        same = math.isclose(golden, found, rel_tol=tolerance, abs_tol=least)
    else:
        same = type(golden) is type(found) and golden == found
    return [] if same else [f"{where}: {golden} became {found}"]


def plain(data):
    return json.loads(json.dumps(data))


@pytest.mark.parametrize("part", PARTS)
def test_nothing_has_changed(part):
    golden, tolerance = json.loads(GOLDEN.read_text())[part], SEARCHED.get(part, TOLERANCE)
    assert differences(golden, plain(PARTS[part]()), tolerance=tolerance) == []


def test_the_comparison_sees_a_changed_number_and_a_changed_letter():
    golden = json.loads(GOLDEN.read_text())["events"]
    assert differences(golden, golden) == []
    for key, value in (("digest", "0" * 64), ("epsilon at 1e-5", None), ("delta at 1", {"upper": 1.0})):
        broken = copy.deepcopy(golden)
        broken["gaussian"][key] = value
        assert len(differences(golden, broken)) == 1
    nudged = copy.deepcopy(golden)
    nudged["mixed"]["epsilon at 1e-5"]["upper"] *= 1 + 1e-7
    assert len(differences(golden, nudged)) == 1


if __name__ == "__main__":
    text = json.dumps({part: make() for part, make in PARTS.items()}, indent=1)
    GOLDEN.write_text(text + "\n")
