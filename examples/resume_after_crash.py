"""A training process is killed without warning, and the next one goes on: nothing is lost, nothing is free.

The ledger is on disk before every step, so whatever was released has been paid for. The second process continues
with the next step and fresh noise. Run with ``python examples/resume_after_crash.py``.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import discreet as dp
from discreet.core import BoundedSum, add_noise, clip_rows
from discreet.ledger import FixedPlan

BUDGET = dp.Budget(epsilon=2.0, delta=1e-6)
PLAN = dp.Recipe(records=2000, batch_size=200, epochs=10, clip_norm=1.0).calibrate(BUDGET)


def train(folder: Path, dies_after: int | None) -> None:
    """Estimate the center of made-up records by noisy descent; perhaps die on the way."""
    records = np.random.default_rng(0).normal(1.0, 0.2, (2000, 3))
    with dp.Ledger.open(folder / "ledger") as ledger:
        run = ledger.run(PLAN.event, PLAN.digest(), name="center")
        done = run.reserved
        saved = folder / "center.npy"
        center = np.load(saved) if saved.exists() else np.zeros(3)
        batches = PLAN.stage().batches(rows=len(records), start=done)
        for step, batch in zip(run.steps(lease=1), batches, strict=True):
            total = clip_rows(records[batch] - center, PLAN.clip_norm).sum(0)
            center = center + add_noise(BoundedSum(total, PLAN.clip_norm), PLAN.stage().noise) / PLAN.divisor
            np.save(saved, center)
            if step == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dp.Ledger.create(folder / "ledger", FixedPlan(PLAN.event, BUDGET)).close()
        subprocess.run([sys.executable, __file__, name, "37"])
        with dp.Ledger.open(folder / "ledger") as ledger:
            print(f"killed; the ledger has charged {ledger.runs()['center'].reserved} of {PLAN.steps} steps")
        subprocess.run([sys.executable, __file__, name], check=True)
        with dp.Ledger.open(folder / "ledger") as ledger:
            print(f"resumed; the ledger has charged {ledger.runs()['center'].reserved} of {PLAN.steps} steps")
            certificate = dp.Certificate.of(ledger, PLAN)
        print(f"center, released: {np.load(folder / 'center.npy').round(2)}")
        print(f"epsilon at most {certificate.verify().guarantee.epsilon.upper:.4g}, as planned")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
