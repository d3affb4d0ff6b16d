"""Do the low bits of messages show a record? A million messages of hardened studies, and their float twins.

    python benchmarks/low_bits.py [--messages 1000000]

A coordinate of the sum that is exactly 0 leaves the noise as it is, with bits below those of any record: a message
with a bit below 2**-54 there shows that nobody in it has the mark. SGD1: a patient's sex; SGD2: a disease that nobody
has. Prints hits and false claims; a hardened study must have no hit. Ends with code 1 if one has.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from discreet.core.randomness import RandomStream
from discreet.ledger import FixedPlan, Till
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Study, sgd1, sgd2
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Privacy, Training
from discreet.trusted.permits import pay_at_once

RECORDS = 100
THETA = np.zeros(3)


def study_of(algorithm: str, arithmetic: str) -> Study:
    privacy, parties = Privacy(1.0, 1e-6, arithmetic=arithmetic), {"a": RECORDS, "b": RECORDS}  # type: ignore[arg-type]
    length = {"tokens": 200} if algorithm == "sgd1" else {"rounds": 10}
    model = {"kind": "logistic", "dimension": 3}
    return Study("bits", algorithm, parties, privacy, Training(1.0, **length), model)  # type: ignore[arg-type]


def patients(marked: int) -> LinearHolder:
    X = np.random.default_rng(0).uniform(-1, 1, (RECORDS, 2))
    X[:, 1] = np.arange(RECORDS) < marked
    return LinearHolder(Logistic(), X, np.arange(RECORDS) % 2, clip_norm=1.0)


def shows_zero(value: float) -> bool:
    return not float(np.ldexp(value, 54)).is_integer()


def attacked(algorithm: str, arithmetic: str, messages: int) -> tuple[int, int]:
    """Hits, and those among them that are wrong."""
    terms, stream = PartyPlan(study_of(algorithm, arithmetic), "a"), RandomStream()
    rule = FixedPlan.at_its_cost(terms.step_noise.event * messages, 1e-6)
    with Till.open(None, rule) as till:
        permit = pay_at_once(till, terms.step_noise, 1.0, stream, name="attacked", times=messages)
    worlds, hits, wrong = (patients(RECORDS // 2), patients(0), patients(1)), 0, 0
    for number in range(messages):
        if algorithm == "sgd1":
            record = number % RECORDS
            value, marked = (
                sgd1.noisy_gradient(terms, worlds[0], THETA, record, permit)[2],
                record < RECORDS // 2,
            )
        else:
            marked = bool(number % 2)
            value = sgd2.noisy_sum(terms, worlds[2 if marked else 1], THETA, stream, permit)[2]
        if shows_zero(float(value)):
            hits, wrong = hits + 1, wrong + marked
    return hits, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="Of hardened studies, in all.")
    chosen, failed = parser.parse_args(), False
    print(f"{'':18} {'messages':>9} {'hits':>6} {'wrong':>6} {'us each':>8}")
    for algorithm in ("sgd1", "sgd2"):
        for arithmetic, count in (("float", chosen.messages // 20), ("hardened", chosen.messages // 2)):
            begun = time.process_time()
            hits, wrong = attacked(algorithm, arithmetic, count)
            each = (time.process_time() - begun) / count * 1e6
            print(f"{algorithm} {arithmetic:<13} {count:>9} {hits:>6} {wrong:>6} {each:>8.1f}", flush=True)
            failed |= arithmetic == "hardened" and hits > 0
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
