"""Compare every noisy sum of small seeded fits with those of another commit, bit for bit.

Moving code must not change what is added up. Golden numbers reach about half of the places that form a sum of
records; the cases below reach all of them: linear, softmax, count and additive models, few and many records, persons,
weights, sparse rows, samples, unknown ranges, inference, statistics, means and evaluations. For each release the tape
holds its size, sensitivity, grid and the SHA-256 of the sum before noise. Noise is seeded, so equal sums give equal
releases.

    python benchmarks/tape.py --against main        # make tape REF=main

Both trees run on this machine, because the last bits of a sum may depend on the processor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

ROOT = Path(__file__).parent.parent
SEED = {"unsafe_seed": 7}
Tape = dict[str, list[list[Any]]]


def table(records: int, kind: str, columns: int = 4) -> tuple[Any, Any]:
    """Uniform columns with a slope, an interaction, and a target of the given kind."""
    rng = np.random.default_rng(0)
    x = rng.random((records, columns))
    score = 3 * x[:, 0] - 2 * x[:, 1] + 12 * (x[:, 2] - 0.5) * (x[:, 3] - 0.5)
    if kind == "two classes":
        return x, (score + rng.logistic(size=records) / 2 > 0.5).astype(int)
    if kind == "three classes":
        return x, np.digitize(score + 0.3 * rng.normal(size=records), [0, 1])
    if kind == "counts":
        return x, rng.poisson(np.exp(score - 1))
    return x, score + 0.2 * rng.normal(size=records)


def sparse_table() -> tuple[Any, Any]:
    x = sparse.csr_array(sparse.random(6000, 200, density=0.05, random_state=0, format="csr"))
    return x, (np.asarray(x[:, [0, 1]].sum(1)).ravel() > 0.05).astype(int)


def cases() -> dict[str, Callable[[], Any]]:
    """All cases by name; each returns numbers that follow from what was released."""
    from discreet import Budget, private_covariance, private_histogram, private_quantiles, private_variance
    from discreet.core.mean import Ball, FixedClip, Interval, SecondMoment, private_mean
    from discreet.core.randomness import RandomStream
    from discreet.evaluation import evaluate
    from discreet.linear import (
        PrivateAdditiveClassifier,
        PrivateAdditiveRegressor,
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivatePoissonRegressor,
        PrivateSVC,
    )

    unit, wide = {"bounds": (0, 1)} | SEED, {"target_bounds": (-6, 9), "bounds": (0, 1)} | SEED
    people = np.arange(4000) // 5

    def fit(model: Any, records: int = 4000, kind: str = "two classes", **more: Any) -> Callable[[], Any]:
        def run() -> Any:
            fitted = model.fit(*table(records, kind), **more)
            return np.ravel(getattr(fitted, "coef_", 0.0)).tolist()

        return run

    def on_sparse(model: Any) -> Callable[[], Any]:
        return lambda: np.ravel(model.fit(*sparse_table()).coef_).tolist()

    def mean(known: Any, arithmetic: str, delta: float) -> Callable[[], Any]:
        def run() -> Any:
            rows, budget = table(3000, "number")[0], Budget(1.0, delta, "replace-one")
            stream = RandomStream(unsafe_seed=7)
            return np.ravel(
                private_mean(rows[:, 0], budget, known, arithmetic=arithmetic, stream=stream).value
            ).tolist()

        return run

    def statistic(function: Any, budget: Any, *arguments: Any, **more: Any) -> Callable[[], Any]:
        def run() -> Any:
            values = table(3000, "number")[0]
            given = values if function is private_covariance else values[:, 0]
            return np.ravel(function(given, budget, *arguments, **more, **SEED).value).tolist()

        return run

    def evaluated(people: Any) -> Callable[[], Any]:
        def run() -> Any:
            x, y = table(3000, "two classes")
            groups = {"side": (x[:, 3] > 0.5, (True, False))}

            def model(rows: Any) -> Any:
                return 1 / (1 + np.exp(0.5 - 3 * rows[:, 0] + 2 * rows[:, 1]))

            found = evaluate(model, x, y, epsilon=1.0, classes=(0, 1), by=groups, unit=people, **SEED)
            return [score.value for score in found.overall.scores.values()]

        return run

    def evaluated_too(kind: str, people: Any) -> Callable[[], Any]:
        def run() -> Any:
            x, y = table(3000, kind)
            declared = {"classes": (0, 1, 2)} if kind == "three classes" else {"target_bounds": (-6.0, 9.0)}

            def model(rows: Any) -> Any:
                parts = np.abs(rows[:, :3]) + 0.1
                return parts / parts.sum(1)[:, None] if "classes" in declared else 4 * rows[:, 0] - 1

            found = evaluate(model, x, y, epsilon=1.0, unit=people, **declared, **SEED)
            return [score.value for score in found.overall.scores.values()]

        return run

    found = {
        "logistic": fit(PrivateLogisticRegression(1.0, **unit)),
        "logistic, float": fit(PrivateLogisticRegression(1.0, arithmetic="float", **unit)),
        "logistic, few": fit(PrivateLogisticRegression(0.2, **unit), 200),
        "logistic, very few": fit(PrivateLogisticRegression(0.1, **unit), 60),
        "softmax": fit(PrivateLogisticRegression(1.0, classes=(0, 1, 2), **unit), kind="three classes"),
        "squared": fit(PrivateLinearRegression(1.0, **wide), kind="number"),
        "squared, wide": fit(
            PrivateLinearRegression(1.0, bounds=(-100, 100), target_bounds=(-3e4, 6e4), **SEED),
            20000,
            "number",
        ),
        "squared, some": fit(PrivateLinearRegression(0.3, **wide), 300, "number"),
        "squared, more": fit(PrivateLinearRegression(1.0, **wide), 700, "number"),
        "squared, few": fit(PrivateLinearRegression(0.1, **wide), 60, "number"),
        "counts": fit(
            PrivatePoissonRegressor(1.0, bounds=(0, 1), target_bounds=(0, 60), **SEED), kind="counts"
        ),
        "counts, few": fit(
            PrivatePoissonRegressor(0.3, bounds=(0, 1), target_bounds=(0, 60), **SEED), 400, "counts"
        ),
        "ranges": fit(PrivateLogisticRegression(1.0, **SEED)),
        "target range": fit(PrivateLinearRegression(1.0, **unit), kind="number"),
        "persons": fit(PrivateLogisticRegression(1.0, unit="p", **unit), people=people),
        "persons, inference": fit(
            PrivateLinearRegression(2.0, unit="p", inference=True, **wide), kind="number", people=people
        ),
        "inference": fit(PrivateLogisticRegression(1.0, inference=True, **unit), 20000),
        "weights": fit(PrivateLogisticRegression(1.0, **unit), sample_weight=np.linspace(0, 1, 4000)),
        "sample": fit(PrivateLogisticRegression(1.0, sample=0.5, **unit)),
        "sparse, bounds": on_sparse(PrivateLogisticRegression(2.0, **unit)),
        "sparse, row norm": on_sparse(PrivateLogisticRegression(2.0, row_norm=2.0, **SEED)),
        "sparse, ranges": on_sparse(PrivateLogisticRegression(2.0, **SEED)),
        "row norm": fit(PrivateLogisticRegression(1.0, row_norm=2.0, **SEED)),
        "hinge": fit(PrivateSVC(1.0, **unit)),
        "huber": fit(PrivateLinearRegression(1.0, loss="huber", **wide), kind="number"),
        "additive": fit(PrivateAdditiveClassifier(2.0, **unit), 60000),
        "additive, numbers": fit(PrivateAdditiveRegressor(2.0, **wide), 60000, "number"),
        "additive, pair": fit(PrivateAdditiveRegressor(2.0, pairs=[("x2", "x3")], **wide), 60000, "number"),
        "additive, few": fit(PrivateAdditiveRegressor(0.5, **wide), 500, "number"),
        "additive, softmax": fit(
            PrivateAdditiveClassifier(2.0, classes=(0, 1, 2), **unit), 20000, "three classes"
        ),
        "evaluation": evaluated(None),
        "evaluation, persons": evaluated(np.arange(3000) // 3),
        "evaluation, three classes": evaluated_too("three classes", None),
        "evaluation, three classes, persons": evaluated_too("three classes", np.arange(3000) // 7),
        "evaluation, numbers": evaluated_too("number", None),
        "evaluation, numbers, persons": evaluated_too("number", np.arange(3000) // 7),
        "histogram": statistic(private_histogram, Budget(1.0, 0.0), np.linspace(0, 1, 11)),
        "quantiles": statistic(private_quantiles, Budget(1.0, 0.0), (0.25, 0.5, 0.75), (0.0, 1.0)),
        "quantile with interval": statistic(
            private_quantiles, Budget(1.0, 0.0), 0.5, (0.0, 1.0), confidence=0.9
        ),
    }
    for relation in ("add-remove", "replace-one"):
        for delta in (0.0, 1e-6):
            budget, name = Budget(1.0, delta, relation), f"{relation}, {delta:g}"
            found[f"variance, {name}"] = statistic(private_variance, budget, (0.0, 1.0))
            found[f"covariance, {name}"] = statistic(private_covariance, budget, (0.0, 1.0))
    known = {
        "ball": Ball(10.0),
        "interval": Interval(0.0, 1.0),
        "moment": SecondMoment(1.0),
        "clip": FixedClip(0.7),
    }
    for name, one in known.items():
        for delta in (0.0, 1e-6):
            for arithmetic in ("hardened", "float"):
                found[f"mean, {name}, {delta:g}, {arithmetic}"] = mean(one, arithmetic, delta)
    return found


def record() -> Tape:
    """Run all cases with the functions that add noise replaced by ones that write the sum down first."""
    from discreet.core import noise

    tape: list[list[Any]] = []

    def watch(name: str) -> None:
        honest = getattr(noise, name)

        def add(total: Any, *others: Any) -> Any:
            digest = hashlib.sha256(np.ascontiguousarray(total.value).tobytes()).hexdigest()[:16]
            grid = None if total.grid is None else float(total.grid).hex()
            tape.append([int(np.size(total.value)), float(total.clip_norm).hex(), total.norm, grid, digest])
            return honest(total, *others)

        setattr(noise, name, add)

    watch("_add_hardened")
    watch("_add_float")
    found: Tape = {}
    for name, run in cases().items():
        tape.clear()
        result = run()
        found[name] = [*tape, [float(one).hex() for one in result]]
    return found


def tape_of(tree: Path) -> Tape:
    """The tape of a tree, by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "tape.json"
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--write", str(out)]
        subprocess.run(command, env=environment, check=True)
        return dict(json.loads(out.read_text()))


def compare(before: Tape, after: Tape) -> int:
    """Print what differs, and return in how many cases."""
    differing = 0
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name, []), after.get(name, [])
        if old == new:
            continue
        differing += 1
        first = next(
            (place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), -1
        )
        print(
            f"{name}: {len(old) - 1} releases before, {len(new) - 1} after, the first difference at {first}"
        )
    releases = sum(len(tape) - 1 for tape in after.values())
    print(f"{len(after)} cases, {releases} releases; {differing} cases differ")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="COMMIT", default="main", help="the commit to compare with")
    parser.add_argument("--write", metavar="FILE", help="only write the tape of the installed package")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.write:
        Path(options.write).write_text(json.dumps(record()))
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", str(tree), options.against], cwd=ROOT, check=True
        )
        try:
            before = tape_of(tree)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    sys.exit(1 if compare(before, tape_of(ROOT)) else 0)


if __name__ == "__main__":
    main()
