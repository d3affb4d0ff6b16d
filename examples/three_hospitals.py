"""Three hospitals train one model, and no record leaves its hospital: four processes, real TLS, on this machine.

Each hospital holds a part of scikit-learn's breast-cancer records in a table of its own, joins with its kit, adds its
noise itself, and keeps a ledger and a certificate. A quarter is set aside to try the model. Takes a folder, or none.
"""

import contextlib
import csv
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from discreet.parties import Study, observers

FEATURES = ("mean radius", "mean texture", "mean concavity", "worst area")
SCHEMA = """
target = "benign"
[columns]
"mean radius" = { bounds = [8, 22] }
"mean texture" = { bounds = [10, 30] }
"mean concavity" = { bounds = [0, 0.3] }
"worst area" = { bounds = [200, 2000] }
benign = { flag = "yes" }
"""
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")


def start(line, **settings):
    """Start a command of the command line, as a user would."""
    code = "from discreet.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *shlex.split(line)], **settings)


def run(line):
    assert start(line).wait() == 0, line


def write_tables():
    """One table for each hospital and one to try the model on; the words that declare the numbers of records."""
    cancer, order = load_breast_cancer(), np.random.default_rng(7).permutation(569)
    places = [list(cancer.feature_names).index(name) for name in FEATURES]
    parts = dict(zip(("trial", *HOSPITALS), np.split(order, [140, 290, 430]), strict=True))
    for name, rows in parts.items():
        with open(f"{name}.csv", "w", newline="") as file:
            table = [[*cancer.data[row, places], "yes" if cancer.target[row] else "no"] for row in rows]
            csv.writer(file).writerows([[*FEATURES, "benign"], *table])
    return " ".join(f"--party {name}={len(parts[name])}" for name in HOSPITALS)


def agree(parties):
    """What is public: columns and their bounds, the budget, and where the coordinator is found."""
    Path("schema.toml").write_text(SCHEMA)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"--coordinator localhost:{probe.getsockname()[1]}"
    budget = "--epsilon 2 --delta 1e-5"
    run(f"study new hospitals {parties} --schema schema.toml {budget} {place}")
    run("study kits study.toml")


def train():
    """The coordinator and the hospitals, each in a process of its own."""
    lines = {"coordinator": "coordinate study.toml --kit kits/coordinator.zip --out model"}
    for name in HOSPITALS:
        lines[name] = f"join study.toml --data {name}.csv --kit kits/{name}.zip --yes --out {name}"
        lines[name] += f" --ledger {name}.ledger"
    sites = []
    try:
        for name, line in lines.items():
            with open(f"{name}.log", "w") as log:
                sites.append(start(line, stderr=None if name == "coordinator" else log))
        assert [site.wait(300) for site in sites] == [0, 0, 0, 0], "a site failed; see the logs"
    finally:
        for site in sites:
            site.kill()
            site.wait()


def main():
    agree(write_tables())
    train()
    print(f"\nWhat every observer could learn:\n{observers(Study.load('study.toml'))}\n", flush=True)
    for name in HOSPITALS:
        run(f"verify {name} --ledger {name}.ledger")
    run("predict model trial.csv --out predicted.csv")
    with open("trial.csv") as truth, open("predicted.csv") as guesses:
        pairs = zip(csv.DictReader(truth), csv.DictReader(guesses), strict=True)
        hits = sum((row["benign"] == "yes") == (guess["prediction"] == "true") for row, guess in pairs)
    print(f"\nThe joint model is right for {hits} of 140 women of no hospital.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir((*sys.argv, temporary)[1]):
        main()
