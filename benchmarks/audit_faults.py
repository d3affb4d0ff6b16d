"""Every seeded fault in every engine, how long it takes to find it, and how often an honest engine is accused.

    python benchmarks/audit_faults.py [--nulls 300] [--json]

The faults are those of tests/support/audit_faults.py. The null runs are of the core loop at alpha = 0.05: the number
of false alarms must be within the binomial limits of that rate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from discreet.audit import examine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.audit_faults import ENGINES, FAULTS, subject

LIMIT, ALPHA = 10.0, 0.05


def every_fault(told: bool = False) -> list[dict[str, Any]]:
    torch.set_num_threads(1)  # seconds of the processor are compared, and idle threads spin
    rows: list[dict[str, Any]] = []
    for name, make in ENGINES.items():
        engine = make()
        engine.run()  # compiles and imports
        for fault in FAULTS:
            start, cpu = time.perf_counter(), time.process_time()
            found = examine(*subject(engine, fault), alpha=1e-4, pairs=22, draws=6000)
            detectors = [finding.name for finding in found.findings if not finding.passed]
            seconds = time.perf_counter() - start
            right = found.passed == (fault == "none")
            rows.append(
                {
                    "engine": name,
                    "fault": fault,
                    "seconds": seconds,
                    "cpu": time.process_time() - cpu,
                    "right": right,
                    "detectors": detectors,
                }
            )
            if told:
                print(
                    f"{name:24} {fault:38} {seconds:5.1f} s  {'; '.join(detectors) or '-'}", file=sys.stderr
                )
    return rows


def false_alarms(runs: int) -> dict[str, float]:
    engine = ENGINES["core loop"]()
    alarms = sum(
        not examine(*subject(engine, "none"), alpha=ALPHA, pairs=6, draws=3000).passed for _ in range(runs)
    )
    return {"runs": runs, "alarms": alarms, "most": float(stats.binom.ppf(0.999, runs, ALPHA))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nulls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, nulls = every_fault(told=True), false_alarms(arguments.nulls)
    wrong = [row for row in rows if not row["right"]]
    if arguments.json:
        print(json.dumps({"faults": rows, "nulls": nulls}, indent=2))
    else:
        slowest = max(row["seconds"] for row in rows)
        print(
            f"{len(rows) - len(wrong)} of {len(rows)} verdicts right, slowest {slowest:.1f} s (limit {LIMIT:g} s)"
        )
        print(
            f"{nulls['alarms']:g} false alarms in {nulls['runs']:g} runs at {ALPHA:g}, at most {nulls['most']:g}"
        )
    return 1 if wrong or nulls["alarms"] > nulls["most"] else 0


if __name__ == "__main__":
    sys.exit(main())
