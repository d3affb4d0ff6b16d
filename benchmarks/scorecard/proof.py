"""Rows 30 and 31: what the audit room finds, and that it finds what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from card import Broken, row
from engines import gradients, vector_run
from naive import RNG

import discreet as dp
from discreet.audit import GradientCanaries, Specification, Subject, audit, examine

CANARIES, RUNS, STEPS = 500, 10, 20
PLAN = dp.Recipe(records=CANARIES, steps=STEPS, sampling="full-batch").calibrate(dp.Budget(4.0, 1e-5))


def run_of(rows: np.ndarray) -> np.ndarray:
    run, model = vector_run(PLAN, rows.shape[1])
    return np.array(list(gradients(run, model, torch.tensor(np.asarray(rows, float))))) * CANARIES


def half_the_noise(rows: np.ndarray) -> np.ndarray:
    total = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)).sum(0)
    return total + PLAN.stage().noise.noise_multiplier / 2 * RNG.normal(size=(STEPS, total.size))


@row(
    30,
    "audit at epsilon 4: 0.8 to 1 of the claim, in 60 s",
    ours={"PrivateRun": run_of},
    twins={"half the noise": half_the_noise},
)
def audited(train: Callable[[np.ndarray], np.ndarray]) -> str:
    """At 99.9 %, so a correct engine is accused once in a thousand times."""
    start = time.process_time()
    found = audit(train, PLAN, GradientCanaries(count=CANARIES, runs=RUNS), confidence=0.999)
    seconds = time.process_time() - start
    if found.contradicts(PLAN.guarantee) or found.tightness < 0.8 or seconds > 60:
        raise Broken(f"{found.tightness:.2f} of the claim, {seconds:.0f} s")
    return f"{found.tightness:.2f} of the claim, {seconds:.0f} s"


RECORDS, WIDTH, NOISE, DIVISOR = 40, 200, 2.0, 40
FAULTS = (
    "noise x 0.5",
    "noise x 0.9",
    "clip after mean",
    "1 of 4 microbatches noised",
    "realised batch size",
    "seed reused",
    "replace-one sold with C",
)


def clipped(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1 at most, whatever they hold."""
    rows = np.where(np.isfinite(rows).all(1, keepdims=True), rows, 0.0)
    largest = np.maximum(np.abs(rows).max(1, keepdims=True, initial=0), 1.0)
    norms = largest * np.linalg.norm(rows / largest, axis=1, keepdims=True)
    return rows / np.maximum(norms, 1.0) * (1 - 1e-12)


def subject_with(fault: str | None) -> tuple[Subject, Specification]:
    """A descent in a few lines of numpy, with one fault or none, and what it is sold as."""
    scale = {"noise x 0.5": 0.5, "noise x 0.9": 0.9, "1 of 4 microbatches noised": 0.5}.get(fault or "", 1.0)

    def sums(rows: np.ndarray) -> np.ndarray:
        if fault == "clip after mean":
            finite = np.where(np.isfinite(rows).all(1, keepdims=True), rows, 0.0)
            return clipped(finite.mean(0, keepdims=True) if len(rows) else np.zeros((1, WIDTH)))[0]
        return clipped(rows).sum(0) / (max(1, len(rows)) if fault == "realised batch size" else DIVISOR)

    def noise(rows: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(7) if fault == "seed reused" else RNG
        divisor = max(1, len(rows)) if fault == "realised batch size" else DIVISOR
        return scale * NOISE * rng.normal(size=WIDTH) / divisor

    def run() -> np.ndarray:
        return np.array([noise(np.zeros((size, WIDTH))) for size in RNG.binomial(400, 0.1, size=120)])

    rows = np.random.default_rng(0).normal(size=(RECORDS, WIDTH))
    relation = "replace-one" if fault == "replace-one sold with C" else "add-remove"
    claim = Specification(1 / DIVISOR, NOISE / DIVISOR, relation)
    return Subject(rows, sums, lambda rows: sums(rows) + noise(rows), run, name=fault or "none"), claim


def examined(subject: Subject, claim: Specification) -> bool:
    return examine(subject, claim, alpha=1e-7, pairs=22, draws=6000).passed


def spread_only(subject: Subject, claim: Specification) -> bool:
    """Is the noise about as large as it should be? What many tests of private training ask."""
    return bool(abs(np.std(subject.noise()) / claim.noise_std - 1) < 0.2)


@row(
    31,
    "seven seeded faults are found, an honest engine is not accused",
    ours={"examine": examined},
    twins={"spread of the noise only": spread_only},
)
def seeded_faults(passes: Callable[[Subject, Specification], bool]) -> str:
    """An honest engine is accused once in ten million times, so a card once in two million."""
    missed = [fault for fault in FAULTS if passes(*subject_with(fault))]
    alarms = sum(not passes(*subject_with(None)) for _ in range(5))
    if missed or alarms:
        raise Broken(f"{len(missed)} missed ({', '.join(missed)}), {alarms} of 5 honest engines accused")
    return "7 of 7, 0 of 5 honest engines accused"
