"""Three hospitals train one model, and no record leaves its hospital: four processes, real TLS, on this machine.

    python examples/three_hospitals.py [folder]

Each hospital holds a part of scikit-learn's breast-cancer records in a table of its own, joins with its kit, adds its
noise itself, and keeps a ledger and a certificate. A quarter of the records is set aside to try the model.
"""

import csv
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from discreet.parties import Study, observers

FEATURES = {
    "mean radius": (5, 30),
    "mean texture": (5, 40),
    "mean concavity": (0, 0.5),
    "worst area": (100, 4500),
}
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
DISCREET = [sys.executable, "-c", "from discreet.cli import main; main()"]


def discreet(*words, **settings):
    """Run one command as a user would."""
    return subprocess.run([*DISCREET, *map(str, words)], check=True, text=True, **settings)


def write_tables(folder):
    """One table for each hospital and one to try the model on; the number of records of each hospital."""
    cancer = load_breast_cancer()
    places = [list(cancer.feature_names).index(name) for name in FEATURES]
    order = np.random.default_rng(7).permutation(len(cancer.target))
    trial, *parts = np.split(order, [140, 290, 430])
    for name, rows in zip(("trial", *HOSPITALS), (trial, *parts), strict=True):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*FEATURES, "benign"])
            writer.writerows(
                [*cancer.data[row, places], "yes" if cancer.target[row] else "no"] for row in rows
            )
    return {name: len(rows) for name, rows in zip(HOSPITALS, parts, strict=True)}


def write_study(folder, sizes):
    """What is public: columns and their bounds, the budget, and where the coordinator is found."""
    columns = [f"{name!r} = {{ bounds = [{low}, {high}] }}" for name, (low, high) in FEATURES.items()]
    schema = ['target = "benign"', "[columns]", *columns, 'benign = { flag = "yes" }']
    (folder / "schema.toml").write_text("\n".join(schema))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parties = [word for name, size in sizes.items() for word in ("--party", f"{name}={size}")]
    budget = ["--epsilon", 2, "--delta", 1e-5, "--rounds", 40, "--learning-rate", 4]
    place = [
        "--coordinator",
        f"localhost:{port}",
        "--schema",
        folder / "schema.toml",
        "--out",
        folder / "study.toml",
    ]
    discreet("study", "new", "hospitals", *parties, *budget, *place)
    discreet("study", "kits", folder / "study.toml", "--out", folder / "kits")


def train(folder):
    """The coordinator and the hospitals, each in a process of its own."""
    study, kits = folder / "study.toml", folder / "kits"
    orders = {
        "coordinator": ["coordinate", study, "--kit", kits / "coordinator.zip", "--out", folder / "model"]
    }
    for name in HOSPITALS:
        orders[name] = [
            "join",
            study,
            "--data",
            folder / f"{name}.csv",
            "--kit",
            kits / f"{name}.zip",
            "--yes",
        ]
        orders[name] += ["--out", folder / name]
    sites = {}
    for name, words in orders.items():
        with (folder / f"{name}.log").open("w") as log:
            there = {} if name == "coordinator" else {"stdout": log, "stderr": log}
            sites[name] = subprocess.Popen([*DISCREET, *map(str, words)], **there)
    try:
        assert not any(site.wait(300) for site in sites.values()), "a site failed"
    finally:
        for site in sites.values():
            site.kill()
            site.wait()


def main(folder):
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    write_study(folder, write_tables(folder))
    train(folder)
    print("\nWhat every observer could learn:")
    print(observers(Study.load(folder / "study.toml")))
    print("\nEvery hospital has a certificate, which anybody can recompute:", flush=True)
    for name in HOSPITALS:
        discreet("verify", folder / name / "certificate.json")
    discreet(
        "predict",
        folder / "model",
        folder / "trial.csv",
        "--out",
        folder / "predicted.csv",
        capture_output=True,
    )
    with (folder / "trial.csv").open() as truth, (folder / "predicted.csv").open() as guess:
        pairs = list(zip(csv.DictReader(truth), csv.DictReader(guess), strict=True))
    hits = sum((record["benign"] == "yes") == (answer["prediction"] == "true") for record, answer in pairs)
    print(f"\nThe joint model is right for {hits} of {len(pairs)} women of no hospital. See {folder}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
