"""How close do our audits come to what is claimed, and what do they find?

    python benchmarks/audit.py [--fast]

1. lower bound / claimed epsilon, at delta = 1e-5 and 95 %: medians over seeds, for our own code and for Opacus;
2. honest subjects: how many of 300 audits exceed the claim, against the binomial limit;
3. seeded faults in each of our engines (audit_faults.py), how often an honest one is accused, and careless uses of
   Opacus (opacus_footguns.py): what the detectors say.

``--fast`` takes one seed and leaves Opacus and the faults out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from audit_faults import ALPHA, ENGINES, FAULTS, LIMIT, every_fault, false_alarms
from discreet import Budget, Gaussian, PoissonSampled, calibrate
from discreet.accounting.gaussian import gaussian_mu
from discreet.audit import AuditResult, GradientCanaries, ModelCanaries, OneStep, audit
from discreet.audit.bounds import Guesses, Method, steinke_epsilon
from discreet.audit.claims import Claim
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.events import Event
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.gradient_sum import Clip
from discreet.linear.losses import Logistic
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

DELTA, STEPS, NULL_RUNS = 1e-5, 20, 300
EPSILONS = (1.0, 4.0, 8.0)
TARGETS = {
    "one step, 10^6 draws": (0.99, 0.99, 0.99),
    "full batch, 10 runs of 1000 canaries": (0.85, 0.9, 0.9),
    "the same, final sum only": (0.85, 0.9, 0.9),
    "no assumption, 25 runs of 4000 canaries": (0.75, 0.75, 0.75),
    "GLM, final model only": (0.5, 0.9, 0.95),
}


def noise_for(epsilon: float, steps: int = STEPS) -> float:
    return math.sqrt(steps) / gaussian_mu(epsilon, DELTA)


def core(noise: float, rate: float = 1.0, steps: int = STEPS) -> Callable[[Any], Any]:
    """Clip, sum, add noise: a loop over the trusted core."""
    stream = RandomStream()

    def train(gradients: Any) -> Any:
        clipped = clip_rows(gradients, 1.0, out=gradients)
        total = clipped.sum(axis=0)
        released = []
        for _ in range(steps):
            if rate < 1:
                total = clipped[stream.uniform(len(clipped)) < rate].sum(axis=0)
            released.append(add_noise(BoundedSum(total, 1.0), Gaussian(noise), stream))
        return np.array(released)

    return train


def one_release(noise: float) -> Callable[[int, int], Any]:
    stream = RandomStream()
    return lambda world, draws: add_noise(
        BoundedSum(np.full(draws, float(world)), 1.0), Gaussian(noise), stream
    )


def logistic(noise: float) -> Callable[[Any, Any], Any]:
    """The lecture's descent; only the last coefficients are seen."""
    plan = Plan((Stage("descent", "full-batch", 1000, 1000, STEPS, 1.0, noise),), delta=DELTA)

    def train(X: Any, y: Any) -> Any:
        return private_descent(
            Logistic(), X, y > 0.5, plan, step_size=5.0, route=Clip(1.0), average="last"
        ).value

    return train


def torch_run(noise: float) -> Callable[[Any], Any]:
    """A linear model with loss <w, x>, whose per-example gradient is x, trained by PrivateRun."""
    import torch

    from discreet.pytorch import PrivateRun

    plan = Plan((Stage("descent", "full-batch", 1000, 1000, STEPS, 1.0, noise),), delta=DELTA)

    def train(gradients: Any) -> Any:
        model = torch.nn.Linear(gradients.shape[1], 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = torch.utils.data.TensorDataset(torch.tensor(gradients, dtype=torch.float32))
        run = PrivateRun(plan, model, optimizer, lambda model, batch: model(batch[0])[:, 0])
        for batch in run.batches(data):
            run.step(batch)
        return -model.weight.detach().numpy()[0] * plan.divisor

    return train


def opacus_run(noise: float) -> Callable[[Any], Any]:
    """The same model under Opacus' own module wrapper and optimizer."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    def train(gradients: Any) -> Any:
        module = torch.nn.Linear(gradients.shape[1], 1, bias=False)
        torch.nn.init.zeros_(module.weight)
        model = GradSampleModule(module, loss_reduction="sum")
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            expected_batch_size=1,
            loss_reduction="sum",
        )
        x = torch.tensor(gradients, dtype=torch.float32)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        return -module.weight.detach().numpy()[0]

    return train


Case = tuple[str, Callable[[float], tuple[Callable[..., Any], Event]], Method]


def full_batch(subject: Callable[[float], Any]) -> Callable[[float], tuple[Callable[..., Any], Event]]:
    return lambda epsilon: (subject(noise_for(epsilon)), Gaussian(noise_for(epsilon)) * STEPS)


def one_step_case(epsilon: float) -> tuple[Callable[..., Any], Event]:
    return one_release(noise_for(epsilon, 1)), Gaussian(noise_for(epsilon, 1))


def poisson_case(epsilon: float) -> tuple[Callable[..., Any], Event]:
    noise = calibrate(lambda z: PoissonSampled(0.1, Gaussian(z)) * 100, Budget(epsilon, DELTA))
    return core(noise, rate=0.1, steps=100), PoissonSampled(0.1, Gaussian(noise)) * 100


def cases(fast: bool) -> list[Case]:
    def summed(noise: float) -> Callable[[Any], Any]:
        train = core(noise)
        return lambda rows: train(rows).sum(axis=0)

    ours: list[Case] = [
        ("one step, 10^6 draws", one_step_case, OneStep(1_000_000, at_once=100_000)),
        ("full batch, 10 runs of 1000 canaries", full_batch(core), GradientCanaries()),
        ("the same, final sum only", full_batch(summed), GradientCanaries()),
        (
            "no assumption, 25 runs of 4000 canaries",
            full_batch(core),
            GradientCanaries(count=4000, runs=25, independent=False),
        ),
        ("GLM, final model only", full_batch(logistic), ModelCanaries()),
        ("Poisson, rate 0.1, 100 steps", poisson_case, GradientCanaries()),
    ]
    others: list[Case] = [
        ("our PrivateRun, final weights only", full_batch(torch_run), GradientCanaries(runs=4)),
        ("Opacus, final weights only", full_batch(opacus_run), GradientCanaries(runs=4)),
    ]
    return ours if fast else ours + others


def audited(case: Case, epsilon: float, seeds: int) -> list[AuditResult]:
    _, make, method = case
    subject, claim = make(epsilon)
    return [audit(subject, claim, method, delta=DELTA) for _ in range(seeds)]


def closeness(fast: bool) -> int:
    """How many targets are missed."""
    print(f"{'lower bound / claimed epsilon (classic)':42}{'eps 1':>15}{'eps 4':>15}{'eps 8':>15}  seconds")
    missed = 0
    for case in cases(fast):
        name, start, cells = case[0], time.perf_counter(), []
        for column, epsilon in enumerate(EPSILONS):
            steady = fast or name not in TARGETS or ("no assumption" in name and epsilon > 1)
            seeds = 1 if steady else 21 if "one step" in name else 3
            results = audited(case, epsilon, seeds)
            share = statistics.median(result.tightness for result in results)
            target = TARGETS.get(name, (0.0,) * 3)[column]
            missed += share < target
            weak = results[0].evidence
            classic = steinke_epsilon(weak, DELTA, 0.95) if isinstance(weak, Guesses) else results[0].classic
            mark = " " if share >= target else "!"
            cells.append(f"{share:8.3f}{mark}({classic / epsilon:.2f})")
        print(f"{name:42}{''.join(cells)}  {time.perf_counter() - start:7.1f}", flush=True)
    print(
        "'!' marks what is below its target. In brackets: through (epsilon, delta) alone (Steinke for one run). One\n"
        "step at eps 1: a threshold uses 2/pi of what the draws tell, and even the best test would reach .9905.\n"
    )
    return missed


def accusations(method: Method, train: Callable[..., Any], claim: Claim) -> int:
    stream, quiet = RandomStream(), lambda done, total: None
    return sum(
        method.play(train, claim, 0.95, stream, quiet).refutes(claim.lines(0), 0.05) for _ in range(NULL_RUNS)
    )


def calibration() -> bool:
    limit = int(stats.binom.isf(1e-3, NULL_RUNS, 0.05))
    print(f"honest subjects accused, of {NULL_RUNS} at 95 % (limit {limit}: passed once in 1000 times)")
    event = Gaussian(noise_for(2.0)) * STEPS
    poisson = PoissonSampled(0.2, Gaussian(1.0)) * 10
    rows: list[tuple[str, Method, Callable[..., Any], Event, Any]] = [
        ("one step", OneStep(5000), one_release(1.0), Gaussian(1.0), "add-remove"),
        ("gradient canaries", GradientCanaries(200, 2), core(noise_for(2.0)), event, "add-remove"),
        (
            "gradient canaries, replace-one",
            GradientCanaries(400, 2),
            core(noise_for(2.0)),
            event,
            "replace-one",
        ),
        ("gradient canaries, Poisson", GradientCanaries(200, 1), core(1.0, 0.2, 10), poisson, "add-remove"),
        (
            "no assumption",
            GradientCanaries(200, 2, independent=False),
            core(noise_for(2.0)),
            event,
            "add-remove",
        ),
        ("model canaries", ModelCanaries(100, 1), logistic(noise_for(2.0)), event, "add-remove"),
    ]
    within = True
    for name, method, train, claimed, neighbours in rows:
        start = time.perf_counter()
        count = accusations(method, train, Claim.of(claimed, delta=DELTA, neighbours=neighbours))
        within &= count <= limit
        print(f"  {name:40}{count:4d}  {time.perf_counter() - start:6.1f} s", flush=True)
    print()
    return within


def faults() -> bool:
    """The seeded faults of the tests, in each of our engines; and how often an honest one is accused."""
    rows, nulls = every_fault(), false_alarms(NULL_RUNS)
    print(f"  {'seeded fault, found by':36}" + "".join(f"{name:>26}" for name in ENGINES))
    for fault in FAULTS:
        cells = {row["engine"]: row for row in rows if row["fault"] == fault}
        verdicts = [
            f"{'right' if cells[name]['right'] else 'WRONG'} ({len(cells[name]['detectors'])} say so, "
            f"{cells[name]['cpu']:.1f} s)"
            for name in ENGINES
        ]
        print(f"  {fault:36}" + "".join(f"{verdict:>26}" for verdict in verdicts))
    slowest = max(row["cpu"] for row in rows)
    alarms, most = nulls["alarms"], nulls["most"]
    print(
        f"  slowest {slowest:.1f} s (limit {LIMIT:g} s); {alarms:g} false alarms of {NULL_RUNS} at", end=" "
    )
    print(f"{ALPHA:g} (limit {most:g})\n", flush=True)
    return all(row["right"] for row in rows) and slowest <= LIMIT and alarms <= most


def footguns() -> bool:
    """Careless uses of Opacus; the first two subjects are careful ones."""
    script = Path(__file__).with_name("opacus_footguns.py")
    done = subprocess.run([sys.executable, str(script), "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    print("  what is done with Opacus, and what is found")
    for row in rows:
        print(f"  {row['use']:46}{'; '.join(row['found']) or 'nothing'}"[:140])
    print()
    return all(row["passed"] == (number < 2) for number, row in enumerate(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fast", action="store_true")
    fast = parser.parse_args().fast
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    missed = closeness(fast)
    verdicts = {"error rates": calibration()}
    if not fast:
        verdicts |= {"faults": faults(), "careless uses of Opacus": footguns()}
    print(f"targets: {f'{missed} missed, marked with !' if missed else 'all reached'}")
    for what, good in verdicts.items():
        print(f"{what}: {'as they should be' if good else 'NOT as they should be'}")
    print(f"{time.perf_counter() - start:.0f} s")
    sys.exit(0 if all(verdicts.values()) else 1)  # a bound that is too low is no mistake


if __name__ == "__main__":
    main()
