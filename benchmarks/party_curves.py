"""How good studies of three parties are with lines and with curves, on Adult and Credit, by rehearsal.

    python benchmarks/party_curves.py --data DATA [--studies 4]

Each study is written as ``discreet study new`` writes it, with its own rounds and learning rate; the AUC is that of
the final model on records that nobody trained on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from discreet.adapters.joint_model import JointModel
from discreet.cli.study_file import study_text
from discreet.linear.tables import table_in
from discreet.parties import Study, rehearse

PARTIES = ("a", "b", "c")
Table = tuple[pd.DataFrame, dict[str, tuple[float, float]], list[str], str, int]


def adult(data: Path) -> Table:
    parts = [
        pd.read_csv(data / "adult" / name, skipinitialspace=True) for name in ("adult.data", "adult.test")
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame["outcome"] = np.where(frame["outcome"].str.startswith(">50K"), "yes", "no")
    bounds = {"age": (17, 90), "education-num": (1, 16), "capital-gain": (0, 1e5), "capital-loss": (0, 4500)}
    bounds["hours-per-week"] = (1, 99)
    groups = ["workclass", "marital-status", "occupation", "relationship", "race", "sex"]
    return frame, bounds, groups, "outcome", len(parts[0])


def credit(data: Path) -> Table:
    frame = pd.read_csv(data / "credit" / "UCI_Credit_Card.csv").sample(frac=1, random_state=0)
    frame["class"] = np.where(frame["class"] == 1, "yes", "no")
    bounds: dict[str, tuple[float, float]] = {"LIMIT_BAL": (0, 1e6), "AGE": (18, 100)}
    bounds |= {name: (-2, 9) for name in frame if name.startswith("PAY_") and "AMT" not in name}
    bounds |= {name: (-2e5, 1e6) for name in frame if name.startswith("BILL_AMT")}
    bounds |= {name: (0, 1e6) for name in frame if name.startswith("PAY_AMT")}
    return frame, bounds, ["SEX", "EDUCATION", "MARRIAGE"], "class", 20_000


SETTINGS = (
    (adult, 24_000, 1.0),
    (adult, 6000, 1.0),
    (adult, 24_000, 4.0),
    (credit, 20_000, 1.0),
    (credit, 6000, 1.0),
    (credit, 20_000, 4.0),
)


def schema_text(table: Table) -> str:
    frame, bounds, groups, target, _ = table
    columns: dict[str, str] = {name: f"{{ bounds = {list(pair)} }}" for name, pair in bounds.items()}
    for name in groups:
        columns[name] = f"{{ categories = {json.dumps(sorted(frame[name].unique().tolist()))} }}"
    columns[target] = '{ flag = "yes" }'
    return "\n".join(["[columns]", *(f'"{name}" = {text}' for name, text in columns.items())])


def scores(table: Table, records: int, epsilon: float, curves: int | None, studies: int) -> list[float]:
    frame, _, _, target, trained = table
    train, test = frame[:trained][:records], frame[trained:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "schema.toml").write_text(schema_text(table))
        parts = np.array_split(np.random.default_rng(0).permutation(len(train)), len(PARTIES))
        for party, part in zip(PARTIES, parts, strict=True):
            train.iloc[part].to_csv(folder / f"{party}.csv", index=False)
        test.to_csv(folder / "test.csv", index=False)
        settings: dict[str, Any] = dict.fromkeys(("rounds", "learning_rate", "dropouts", "party_bound"))
        text = study_text(
            name="curves",
            parties=tuple(f"{party}={len(part)}" for party, part in zip(PARTIES, parts, strict=True)),
            schema_file=folder / "schema.toml",
            target=target,
            epsilon=epsilon,
            delta=1e-6,
            clip_norm=1.0,
            secure=False,
            robust=False,
            curves=curves,
            coordinator="localhost:8443",
            **settings,
        )
        study = Study.from_toml(text)
        model = JointModel.of(study)
        holders = {party: model.holder(folder / f"{party}.csv") for party in PARTIES}
        cells, truth = table_in(folder / "test.csv").whole(model.schema.columns), test[target] == "yes"
        found = [rehearse(study, holders, unsafe_seed=seed).theta for seed in range(studies)]
        return [
            float(roc_auc_score(truth, model.fitted_model(theta).decision_function(cells))) for theta in found
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=4)
    chosen = parser.parse_args()
    print("| table, records in all, epsilon | lines | 4 pieces | 8 pieces |\n|---|---|---|---|")
    for read, records, epsilon in SETTINGS:
        table, cells = read(chosen.data), []
        for curves in (None, 4, 8):
            found = scores(table, records, epsilon, curves, chosen.studies)
            cells.append(f"{np.mean(found):.3f} ± {np.std(found, ddof=1) / len(found) ** 0.5:.3f}")
        print(f"| {read.__name__}, {records}, {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
