"""How good studies by the recipe are beside one pooled table, and what dropouts, colluders and plain sums cost.

    python benchmarks/joint.py --data DATA [--studies 10] [--only credit] [--parties 3] [--epsilon 1] [--family auto]
                               [--json rows.json]

Without options it runs the whole table: four tables, lines and curves, 3 and 10 parties, epsilon .5, 1 and 4. With
--json each row is kept when it is finished, and rows that the file holds are printed without running them again.

Each study is a rehearsal: the strategy, the parties' charges, their noise and their secure sums are those of a study
on a network. The score is that of the model on records that nobody trained on: AUC, or R2 for California. The pooled
fit is that of one table with the same budget.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score, roc_auc_score

from discreet.adapters.joint_recipe import JointRecipe, kinds_for
from discreet.linear.fitted_model import FittedModel
from discreet.linear.schema import Schema
from discreet.parties import Study, rehearse

DELTA = 1e-6
PARTIES, EPSILONS, FAMILIES = (3, 10), (0.5, 1.0, 4.0), ("linear", "auto")


class Data(NamedTuple):
    """Records to train on and to try the model on, what is publicly known of them, and the task."""

    train: pd.DataFrame
    test: pd.DataFrame
    schema: Schema
    task: str


def adult(data: Path) -> Data:
    parts = [
        pd.read_csv(data / "adult" / name, skipinitialspace=True) for name in ("adult.data", "adult.test")
    ]
    for frame in parts:
        frame["outcome"] = np.where(frame["outcome"].str.startswith(">50K"), "yes", "no")
    bounds = {"age": [17, 90], "education-num": [1, 16], "capital-gain": [0, 1e5], "capital-loss": [0, 4500]}
    bounds["hours-per-week"] = [1, 99]
    groups = ["workclass", "marital-status", "occupation", "relationship", "race", "sex"]
    return Data(*parts, declared(parts[0], bounds, groups, {"outcome": {"flag": "yes"}}), "classification")


def credit(data: Path) -> Data:
    frame = pd.read_csv(data / "credit" / "UCI_Credit_Card.csv").sample(frac=1, random_state=0)
    frame["class"] = np.where(frame["class"] == 1, "yes", "no")
    bounds: dict[str, Any] = {"LIMIT_BAL": [0, 1e6], "AGE": [18, 100]}
    bounds |= {name: [-2, 9] for name in frame if name.startswith("PAY_") and "AMT" not in name}
    bounds |= {name: [-2e5, 1e6] for name in frame if name.startswith("BILL_AMT")}
    bounds |= {name: [0, 1e6] for name in frame if name.startswith("PAY_AMT")}
    schema = declared(frame, bounds, ["SEX", "EDUCATION", "MARRIAGE"], {"class": {"flag": "yes"}})
    return Data(frame[:20_000], frame[20_000:], schema, "classification")


def california(data: Path) -> Data:
    frame = pd.read_csv(data / "housing" / "housing.csv").sample(frac=1, random_state=0)
    bounds: dict[str, Any] = {
        "longitude": [-125, -114],
        "latitude": [32, 42],
        "housing_median_age": [0, 60],
        "total_rooms": [0, 40_000],
        "total_bedrooms": [0, 7000],
        "population": [0, 36_000],
        "households": [0, 7000],
        "median_income": [0, 15],
    }
    known = {name: pair for name, pair in bounds.items() if name in frame}
    target = next(name for name in ("median_house_value", "class", "target") if name in frame)
    schema = declared(frame, known, [], {target: {"bounds": [0, 500_001]}})
    return Data(frame[:16_000], frame[16_000:], schema, "regression")


def persons(data: Path) -> Data:
    """Made-up visits of people, three each."""
    rng = np.random.default_rng(5)
    people, visits = 8000, 3
    own = np.repeat(rng.normal(size=(people, 2)), visits, axis=0)
    x = own + 0.5 * rng.normal(size=own.shape)
    chance = 1 / (1 + np.exp(-(x[:, 0] - x[:, 1] ** 2 + 0.5)))
    frame = pd.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "who": np.repeat(np.arange(people), visits).astype(str)}
    )
    frame["t"] = np.where(rng.random(len(frame)) < chance, "yes", "no")
    columns = {"a": {"bounds": [-5, 5]}, "b": {"bounds": [-5, 5]}, "t": {"flag": "yes"}}
    schema = Schema.from_dict({"columns": columns, "target": "t", "unit": "who"})
    return Data(frame[:18_000], frame[18_000:], schema, "classification")


def declared(
    frame: pd.DataFrame, bounds: dict[str, Any], groups: list[str], target: dict[str, Any]
) -> Schema:
    columns: dict[str, Any] = {name: {"bounds": pair} for name, pair in bounds.items()}
    columns |= {name: {"categories": sorted(frame[name].unique().tolist())} for name in groups}
    return Schema.from_dict({"columns": columns | target, "target": next(iter(target))})


TABLES = {"adult": adult, "credit": credit, "california": california, "persons": persons}


def study_of(data: Data, family: str, epsilon: float, parties: int, **aggregation: Any) -> Study:
    return Study.from_dict(
        {
            "study": {"name": "joint", "algorithm": "recipe"},
            "parties": {f"p{place:02}": -(-len(data.train) // parties) for place in range(parties)},
            "privacy": {
                "epsilon": epsilon,
                "delta": DELTA,
                "neighbours": "add-remove",
                "unit": "record" if data.schema.unit is None else "person",
            },
            "questions": {"kinds": list(kinds_for(data.schema, data.task, family, False))},
            "aggregation": aggregation,
            "model": {"kind": data.task, "family": family} | data.schema.to_dict(),
        }
    )


def parts_of(data: Data, parties: int, seed: int) -> list[pd.DataFrame]:
    """The training records, shuffled and cut among parties; a person stays with one of them."""
    rng = np.random.default_rng(seed)
    if data.schema.unit is None:
        places = np.array_split(rng.permutation(len(data.train)), parties)
        return [data.train.iloc[rows] for rows in places]
    ids = data.train[data.schema.unit.column]
    owners = np.array_split(rng.permutation(ids.unique()), parties)
    return [data.train[ids.isin(set(own))] for own in owners]


def score(data: Data, model: Any) -> float:
    scores, truth = model.decision_function(data.test), data.test[str(data.schema.target)]
    if data.task == "regression":
        return float(r2_score(truth, np.clip(scores, *model.target_bounds)))
    return float(roc_auc_score(truth == "yes", scores))


def pooled(data: Data, family: str, epsilon: float, seed: int) -> float:
    joint = JointRecipe.of(study_of(data, family, epsilon, 2))
    estimator = joint.estimator()
    estimator.unsafe_seed = seed
    return score(data, FittedModel.of(estimator.fit(data.train)))


def together(data: Data, study: Study, seed: int) -> tuple[float, int]:
    joint = JointRecipe.of(study)
    tables = zip(study.names, parts_of(data, len(study.names), seed), strict=True)
    holders = {name: joint.table_of(frame) for name, frame in tables}
    result = rehearse(study, holders, unsafe_seed=seed, strategy=joint.strategy)
    return score(data, joint.fitted_model(np.asarray(result.theta))), result.updates


def arms(parties: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "secure", {"kind": "secure"}
    yield "one dropout", {"kind": "secure", "dropouts": 1}
    yield "one colluder", {"kind": "secure", "colluders": 1}
    yield "plain", {"kind": "plain"}


def row(
    data: Data, family: str, epsilon: float, parties: int, studies: int, only: list[str] | None
) -> dict[str, Any]:
    begun = time.monotonic()
    found = {"pooled": [pooled(data, family, epsilon, seed) for seed in range(studies)]}
    rounds = 0
    for name, aggregation in arms(parties):
        if only is not None and name not in only:
            continue
        runs = [
            together(data, study_of(data, family, epsilon, parties, **aggregation), s) for s in range(studies)
        ]
        found[name], rounds = [value for value, _ in runs], max(rounds, *(count for _, count in runs))
    told: dict[str, Any] = {
        name: (float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5))
        for name, values in found.items()
    }
    pair = [told[name] for name in ("pooled", "secure") if name in told]
    error = float(np.hypot(*(error for _, error in pair))) if len(pair) == 2 else np.inf
    equal = len(pair) < 2 or abs(pair[0][0] - pair[1][0]) <= 2 * error
    return told | {"rounds": rounds, "as pooled": equal, "seconds": time.monotonic() - begun}


def line(found: dict[str, Any]) -> str:
    """One row of the printed table."""
    cells = [
        f"{found[arm][0]:.3f} ± {found[arm][1]:.3f}" if arm in found else "–"
        for arm in ("pooled", "secure", "one dropout", "one colluder", "plain")
    ]
    model = "lines" if found["family"] == "linear" else "curves"
    told = f"{found['table']}, {model}, {found['parties']}, {found['epsilon']:g}"
    return f"| {told} | {' | '.join(cells)} | {found['rounds']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--parties", type=int, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--arm", action="append", help="pooled and these only, such as secure")
    parser.add_argument("--json", type=Path, help="keep all numbers here, and go on from them")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = json.loads(chosen.json.read_text()) if chosen.json is not None and chosen.json.exists() else []
    print(
        "| table, model, parties, epsilon | pooled | secure | one dropout | one colluder | plain | questions |"
    )
    print("|---|---|---|---|---|---|---|")
    asked = itertools.product(
        chosen.only or TABLES,
        chosen.family or FAMILIES,
        chosen.parties or PARTIES,
        chosen.epsilon or EPSILONS,
    )
    for name, family, parties, epsilon in asked:
        key = {"table": name, "family": family, "parties": parties, "epsilon": epsilon}
        found = next((entry for entry in kept if key.items() <= entry.items()), None)
        if found is None:
            found = key | row(TABLES[name](chosen.data), family, epsilon, parties, chosen.studies, chosen.arm)
            kept.append(found)
            if chosen.json is not None:
                chosen.json.write_text(json.dumps(kept, indent=2) + "\n")
        print(line(found), flush=True)
    apart = [entry for entry in kept if not entry["as pooled"]]
    print(
        f"\n{len(kept) - len(apart)} of {len(kept)} secure studies are within two standard errors of the pooled fit."
    )


if __name__ == "__main__":
    main()
