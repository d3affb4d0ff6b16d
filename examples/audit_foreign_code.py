"""Somebody else's DP-SGD step, audited from outside: is it as private as it says?

The step below looks right, and is what many tutorials show: clip each gradient, add noise to the sum, divide. It
divides by the number of records in the batch, and its loader shuffles. Both are mistakes that leave no trace
in the accuracy. The mended version passes.
"""

import numpy as np

import discreet as dp
from discreet.audit import Specification, Subject, examine
from discreet.lecture.figures import toy_leakage

RECORDS, BATCH, CLIP, NOISE, STEPS = 1000, 50, 1.0, 1.0, 200
rng = np.random.default_rng()


def clipped_sum(gradients: np.ndarray) -> np.ndarray:
    gradients = np.clip(np.nan_to_num(gradients, posinf=0.0, neginf=0.0), -1e100, 1e100)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients * np.minimum(1.0, CLIP / np.maximum(norms, 1e-12))).sum(axis=0)


def tutorial_step(gradients: np.ndarray, noise: float = NOISE) -> np.ndarray:
    total = clipped_sum(gradients) + noise * CLIP * rng.normal(size=gradients.shape[1])
    return total / max(1, len(gradients))


def tutorial_batches() -> list[np.ndarray]:
    epochs = STEPS * BATCH // RECORDS
    return [part for _ in range(epochs) for part in np.split(rng.permutation(RECORDS), RECORDS // BATCH)]


def mended_step(gradients: np.ndarray, noise: float = NOISE) -> np.ndarray:
    return (clipped_sum(gradients) + noise * CLIP * rng.normal(size=gradients.shape[1])) / BATCH


def mended_batches() -> list[np.ndarray]:
    return [np.flatnonzero(rng.random(RECORDS) < BATCH / RECORDS) for _ in range(STEPS)]


def main() -> None:
    event = dp.PoissonSampled(BATCH / RECORDS, dp.Gaussian(NOISE)) * STEPS
    print(f"Both say: {dp.account(event).guarantee(1e-5)}.\n")
    claim = Specification(CLIP / BATCH, NOISE * CLIP / BATCH, rate=BATCH / RECORDS, records=RECORDS)
    examples = rng.normal(size=(BATCH, 20))  # made up: an audit needs no real records
    for name, step, batches in (
        ("tutorial", tutorial_step, tutorial_batches),
        ("mended", mended_step, mended_batches),
    ):
        subject = Subject(
            examples, sums=lambda rows, step=step: step(rows, 0.0), noisy=step, batches=batches, name=name
        )
        print(examine(subject, claim, alpha=1e-6, draws=5000), "\n")

    print("The lectures' example: was Bob's record used? The model alone is asked.")
    print("  with noise   ", toy_leakage(runs=4000))
    print("  without noise", toy_leakage(runs=4000, noise_multiplier=None))


if __name__ == "__main__":
    main()
