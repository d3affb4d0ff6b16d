"""The accountant beside its peers: ``make bench-accounting``, or ``python benchmarks/accounting.py --quick``.

Prints how far each upper bound lies above the exact epsilon, what it costs, and which targets are reached.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # see the header

import argparse
import math
import platform
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import accounting_peers as peers
import discreet
from accounting_cases import ALLOCATIONS, CALIBRATIONS, EXTREME, PUBLIC, Allocation, Calibration, Case, sgd
from discreet.accounting.composition import figure_2_curve_not_a_guarantee
from discreet.accounting.moments import moments_accountant
from timing import ONCE, Result, in_turns, milliseconds, once, short, table

REFERENCE_ERROR = 1e-7  # relative; see accounting_cases.py
FINE = 2e-5
PEERS = {"dp-accounting PLD": peers.pld, "Opacus PRV": peers.prv, "Opacus RDP": peers.rdp}
IMPORT = """
import sys, time
before, start = set(sys.modules), time.process_time()
import discreet
spent = time.process_time() - start
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(spent, *sorted(n for n in new if "site-packages" in str(getattr(sys.modules[n], "__file__", ""))))
"""


def ours(case: Case, tolerance: float = 1e-3) -> discreet.Bounds:
    return discreet.account(case.event, case.neighbours).epsilon_bounds(case.delta, tolerance=tolerance)


def excess(result: Result, reference: float, least: float = 0.0) -> str:
    """How far an answer lies above the exact value. Below ``least`` it is unsound (rounding, 1e-9, is not)."""
    if result.value is None:
        return "-" if not result.note or result.stopped else "error"
    upper = result.value.upper if isinstance(result.value, discreet.Bounds) else result.value
    return "UNSOUND" if upper < least * (1 - 1e-9) else short(upper / reference - 1, "+")


@dataclass(frozen=True)
class Row:
    """One case: our answer and those of the peers, in the order of PEERS."""

    case: Case
    ours: Result
    peers: tuple[Result, ...]

    @property
    def sound(self) -> bool:
        lower, upper = self.ours.value
        return lower * (1 - REFERENCE_ERROR) <= self.case.reference <= upper * (1 + REFERENCE_ERROR)

    def cells(self) -> list[str]:
        lower = self.ours.value.lower if self.ours.value else 0.0
        cells = [self.case.name, f"{self.case.reference:.6g}", excess(self.ours, self.case.reference)]
        cells += [short(self.ours.value.gap) if self.ours.value else "-", milliseconds(self.ours)]
        for peer in self.peers[:2]:
            ratio = peer.ms / self.ours.ms
            slower = "-" if math.isnan(ratio) or milliseconds(peer) == "-" else f"{ratio:.3g}"
            cells += [excess(peer, self.case.reference, lower), milliseconds(peer), slower]
        return [*cells, excess(self.peers[2], self.case.reference, lower)]

    def notes(self) -> list[str]:
        answers = zip(("ours", *PEERS), (self.ours, *self.peers), strict=True)
        return [f"  {self.case.name}, {who}: {r.note[:90]}" for who, r in answers if r.note and not r.stopped]


class Bench:
    """Runs the sections, prints their tables, and collects which targets are reached."""

    def __init__(self, quick: bool, chosen: str) -> None:
        self.rounds, self.limit = (2, 1.0) if quick else (5, 20.0)
        self.chosen = chosen
        self.targets: list[list[str]] = []

    def select(self, cases: Sequence) -> list:
        return [case for case in cases if self.chosen in case.name]

    def target(self, what: str, limit: float, values: Sequence[float], at_least: bool = False) -> None:
        """The worst of ``values`` must be at most ``limit``, or at least that."""
        if values:
            worst = min(values) if at_least else max(values)
            reached = worst >= limit if at_least else worst <= limit
            wish = f"{'>=' if at_least else '<='} {limit:g}"
            self.targets.append([what, wish, f"{worst:.3g}", "ok" if reached else "MISSED"])

    def compare(self, title: str, cases: Sequence[Case]) -> list[Row]:
        rows = []
        for case in self.select(cases):
            calls = [lambda _, f=f, c=case: f(c) for f in (ours, *PEERS.values())]
            mine, *others = in_turns(calls, self.rounds, self.limit)
            rows.append(Row(case, mine, tuple(others)))
        heads = ("case", "epsilon", "ours", "gap", "ms", "PLD", "ms", "x", "PRV", "ms", "x", "RDP")
        table(title, heads, [row.cells() for row in rows])
        print(*(note for row in rows for note in row.notes()), sep="\n", flush=True)
        return rows

    def epsilon(self) -> None:
        print("\nExcess over the exact epsilon; CPU ms; x: how many times slower than ours")
        public = self.compare("Public cases", PUBLIC)
        rows = public + self.compare("Many steps, small deltas", EXTREME)
        answered = [row for row in rows if row.ours.value]
        self.target("cases without an answer", 0, [len(rows) - len(answered)])
        self.target("cases whose exact epsilon is not in our bounds", 0, [sum(not r.sound for r in answered)])
        self.target("gap, default", 1e-3, [row.ours.value.gap for row in answered])
        self.target("above dp-accounting PLD, default", 1e-3, [_above(r.ours, r.peers[0]) for r in answered])
        self.fine(rows)
        self.target("typical DP-SGD to 1e5 steps, ms", 20, [r.ours.ms for r in answered if r.case.typical])
        self.target("1e6 steps, ms", 60, [r.ours.ms for r in answered if r.case.steps == 10**6])
        hundred_million = [r.ours.ms for r in answered if r.case.name in ("steps_1e8", "steps_1e8_z2")]
        self.target("1e8 steps, rate 1e-5, noise 1 and 2, ms", 130, hundred_million)
        print()
        for place, name in enumerate(list(PEERS)[:2]):
            self.speed_up(name, [(row.ours, row.peers[place]) for row in public])

    def speed_up(self, name: str, pairs: Sequence[tuple[Result, Result]]) -> None:
        """Over the cases that the peer answers with a finite number; stopped calls count as their limit."""
        finite = [(a, b) for a, b in pairs if a.value and (b.stopped or math.isfinite(b.value or math.inf))]
        if finite:
            mean = statistics.geometric_mean(b.ms / a.ms for a, b in finite)
            print(
                f"Speed-up over {name}: {mean:.1f}x, geometric mean of the {len(finite)} public cases it answers"
            )
            self.target(f"speed-up over {name}", 25, [mean], at_least=True)

    def fine(self, rows: Sequence[Row]) -> None:
        cells, gaps, above = [], [], []
        for row in rows:
            (mine,) = in_turns([lambda _, c=row.case: ours(c, FINE)], min(self.rounds, 2), 30.0)
            gaps.append(mine.value.gap if mine.value else math.inf)
            above.append(_above(mine, row.peers[0]) if mine.value else math.inf)
            why = mine.note[:50] if mine.note else excess(row.peers[0], row.case.reference)
            cells.append(
                [row.case.name, excess(mine, row.case.reference), short(gaps[-1]), milliseconds(mine), why]
            )
        table(f"Ours with tolerance {FINE:g}", ("case", "excess", "gap", "ms", "PLD's excess"), cells)
        self.target("gap, on request", FINE, gaps)
        self.target("above dp-accounting PLD, on request", FINE, above)

    def allocation(self) -> None:
        def call(row: Allocation, turn: int) -> discreet.Bounds:
            noise = row.noise * (1 + 1e-12 * turn)  # a new number every time, so that no cache helps
            event = discreet.RandomlyAllocated(row.steps, discreet.Gaussian(noise)) * row.epochs
            return discreet.account(event).epsilon_bounds(row.delta)

        cells, seconds, apart, share = [], [], 0, []
        for row in self.select(ALLOCATIONS):
            (mine,) = in_turns([lambda turn, r=row: call(r, turn)], min(self.rounds, 3), 30.0)
            lower, upper = bounds = mine.value or discreet.Bounds(math.nan, math.nan)
            poisson = discreet.account(sgd(row.noise, 1 / row.steps, row.steps * row.epochs))
            share.append(upper / poisson.epsilon(row.delta))
            apart += not (lower <= row.upper * (1 + 1e-6) and row.lower * (1 - 1e-6) <= upper)
            seconds += [mine.ms / 1e3] if row.noise >= 0.8 else []
            numbers = (f"{lower:.6g}", f"{upper:.6g}", short(bounds.gap), milliseconds(mine))
            cells.append(
                [row.name, *numbers, f"{upper / share[-1]:.5g}", f"{share[-1] - 1:+.1%}", mine.note[:30]]
            )
        title = "Random allocation (t steps per epoch, E epochs) and what Poisson sampling would cost; no peer has it"
        table(title, ("noise, t, E", "lower", "upper", "gap", "ms", "Poisson", "saved", ""), cells)
        if cells:
            self.target("random allocation: disagrees with independent brackets", 0, [apart])
            self.target("random allocation: epsilon / Poisson's", 1.0, share)
            self.target("random allocation, noise >= 0.8, s", 0.5, seconds)

    def calibration(self) -> None:
        def mine(row: Calibration) -> float:
            budget = discreet.Budget(row.epsilon, row.delta)
            return discreet.calibrate(lambda noise: sgd(noise, row.rate, row.steps), budget)

        if not callable(getattr(discreet, "calibrate", None)):
            return print("\nCalibration: not in this version")
        tools = (mine, peers.calibrated_pld, peers.calibrated_prv)
        cells, speed, noise, milli = [], [], [], []
        for row in self.select(CALIBRATIONS):
            results = in_turns([lambda _, f=f, r=row: f(r) for f in tools], self.rounds, 3 * self.limit)
            answers = [
                (excess(r, row.reference, row.reference * (1 - 1e-6)), milliseconds(r)) for r in results
            ]
            cells.append([row.name, f"{row.reference:.7g}", *(text for answer in answers for text in answer)])
            milli.append(results[0].ms)
            noise.append((results[0].value or math.inf) / row.reference - 1)
            speed.append(results[1].ms / results[0].ms)
        title = "Calibration: excess of the noise multiplier over the smallest one (PLD: tol=1e-3)"
        table(title, ("case", "noise", "ours", "ms", "PLD", "ms", "PRV", "ms"), cells)
        self.target("calibration, ms", 50, milli)
        self.target("calibration, excess of the noise", 5e-4, noise)
        self.target("calibration, speed-up over dp-accounting PLD", 100, speed, at_least=True)

    def surface(self, points: int = 80) -> None:
        """Settings drawn evenly in logarithms from the promised range (seeded), with epsilon from 1e-3 to 1e6."""
        draw, ranges = random.Random(2), ((-0.7, 4), (-6, 0), (0, 9), (-12, -3))
        answered, refused = [], []
        while len(answered) + len(refused) < points:
            noise, rate, steps, delta = (10 ** draw.uniform(*ends) for ends in ranges)
            case = Case(
                f"{noise:.3g}, {rate:.3g}, {steps:.0f}, {delta:.3g}", sgd(noise, rate, int(steps)), delta, 0
            )
            if 1e-3 <= discreet.account(case.event).estimate_epsilon(delta) <= 1e6:
                result = once(lambda _, c=case: ours(c))
                (refused if result.note else answered).append((result.ms, case.name, result.note[:70]))
        answered.sort()
        middle, late, last = (answered[int(share * (len(answered) - 1))] for share in (0.5, 0.9, 1))
        print(
            f"\nSurface: {len(answered)} of {points} random settings answered; CPU ms: median {middle[0]:.0f}, ",
            end="",
        )
        print(f"90 % {late[0]:.0f}, slowest {last[0]:.0f} (noise, rate, steps, delta = {last[1]})")
        print(*(f"  no answer at {name}: {why}" for _, name, why in refused), sep="\n", flush=True)
        self.target("surface: settings without an answer", 0, [len(refused)])

    def footprint(self) -> None:
        peaks = {}
        for case in PUBLIC + EXTREME:
            if case.steps <= 10**6:
                tracemalloc.start()
                once(lambda _, c=case: ours(c))
                peaks[case.name] = tracemalloc.get_traced_memory()[1] / 1e6
                tracemalloc.stop()
        worst = max(peaks, key=peaks.__getitem__)
        runs = [subprocess.check_output([sys.executable, "-c", IMPORT], text=True).split() for _ in range(5)]
        seconds, packages = statistics.median(float(run[0]) for run in runs), runs[0][1:]
        print(f"\nMemory: peak {peaks[worst]:.1f} MB up to 1e6 steps ({worst})")
        print(f"Import: {seconds:.2f} s CPU; third-party packages: {', '.join(packages)}")
        self.target("memory to 1e6 steps, MB", 25, list(peaks.values()))
        self.target("import discreet, s", 0.5, [seconds])
        self.target(
            "imported besides numpy and scipy", 0, [len({*packages} - {"numpy", "scipy", "discreet"})]
        )

    def figure_2(self) -> None:
        errors = []
        for steps, moments, strong in ((10_000, 1.2585747, 9.339065), (40_000, 2.5758725, 24.205145)):
            errors.append(abs(moments_accountant(0.01, 4.0, steps, 1e-5) - moments))
            errors.append(abs(figure_2_curve_not_a_guarantee(0.01, 4.0, steps, 1e-5) - strong))
        self.target("Figure 2, moments and strong composition: error", 1e-6, errors)


def _above(mine: Result, peer: Result) -> float:
    """How far our upper bound is above a peer's; a peer without an answer is infinitely far up."""
    return mine.value.upper / peer.value - 1 if peer.value else -1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="stop peers after one second: under a minute")
    parser.add_argument("--cases", default="", metavar="NAME", help="only cases whose name contains NAME")
    options = parser.parse_args()
    bench, start = Bench(options.quick, options.cases), time.perf_counter()
    tools = ", ".join(
        f"{name} {version(name)}" for name in ("discreet", "dp-accounting", "opacus", "numpy", "scipy")
    )
    print(
        f"{tools}, Python {platform.python_version()}, {os.cpu_count()} cores, one thread (OMP_NUM_THREADS=1)"
    )
    print(f"CPU ms: median of {bench.rounds} interleaved rounds after a warm-up. ", end="")
    print(f"Calls over {ONCE:g} s are made once and stopped after {bench.limit:g} s.")
    print(
        "Ours: both bounds, tolerance 1e-3. Peers: their defaults. UNSOUND: below our certified lower bound."
    )
    for tool in (ours, *PEERS.values()):
        once(lambda _, f=tool: f(PUBLIC[0]))  # lazy imports and tables
    bench.epsilon()
    bench.allocation()
    bench.calibration()
    if not options.cases:
        bench.surface()
        bench.footprint()
        bench.figure_2()
    table("Targets", ("target", "wanted", "measured", ""), bench.targets)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
