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
from discreet.accounting.saddlepoint import forget_pictures
from discreet.lecture.composition import figure_2_curve_not_a_guarantee
from discreet.lecture.moments import moments_accountant
from timing import ONCE, Result, Targets, in_turns, milliseconds, once, short, table

REFERENCE_ERROR = 1e-7  # relative; see accounting_cases.py
FINE = 2e-5
PEERS = {"dp-accounting PLD": peers.pld, "Opacus PRV": peers.prv, "Opacus RDP": peers.rdp}
IMPORT = """
import sys, time
before, start = set(sys.modules), time.process_time()
import discreet
spent = time.process_time() - start
files = [str(getattr(sys.modules[name], "__file__", "")) for name in set(sys.modules) - before]
print(spent, *sorted({file.split("site-packages/")[1].split("/")[0] for file in files if "site-packages/" in file}))
"""


def ours(case: Case, tolerance: float = 1e-3) -> discreet.Bounds:
    forget_pictures()  # so that no cache helps
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

    def above(self, mine: Result) -> dict[str, float]:
        """How far our upper bound is above that of dp-accounting, where that one is finite."""
        pld = self.peers[0].value or math.inf
        distance = mine.value.upper / pld - 1 if mine.value else math.inf
        return {self.case.name: distance} if pld < math.inf else {}

    def cells(self) -> list[str]:
        lower = self.ours.value.lower if self.ours.value else 0.0
        cells = [self.case.name, f"{self.case.reference:.5g}", excess(self.ours, self.case.reference)]
        cells += [short(self.ours.value.gap) if self.ours.value else "-", milliseconds(self.ours)]
        for peer in self.peers[:2]:
            ratio = peer.ms / self.ours.ms
            slower = f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"
            slower = slower if peer.value or peer.stopped else "-"
            cells += [excess(peer, self.case.reference, lower), milliseconds(peer), slower]
        return [*cells, excess(self.peers[2], self.case.reference, lower)]

    def notes(self) -> list[str]:
        answers = zip(("ours", *PEERS), (self.ours, *self.peers), strict=True)
        return [f"  {self.case.name}, {who}: {r.note}" for who, r in answers if r.note and not r.stopped]


class Bench:
    """Runs the sections, prints their tables, and collects which targets are reached."""

    def __init__(self, quick: bool, chosen: str) -> None:
        self.quick, self.chosen = quick, chosen
        self.rounds, self.limit = (1, 0.5) if quick else (5, 20.0)
        self.targets = Targets()

    def select(self, cases: Sequence) -> list:
        return [case for case in cases if self.chosen in case.name]

    def compare(self, title: str, cases: Sequence[Case], limit: float) -> list[Row]:
        rows = []
        for case in self.select(cases):
            calls = [lambda _, f=f, c=case: f(c) for f in (ours, *PEERS.values())]
            mine, *others = in_turns(calls, self.rounds, limit)
            rows.append(Row(case, mine, tuple(others)))
        heads = ("case", "epsilon", "ours", "gap", "ms", "PLD", "ms", "x", "PRV", "ms", "x", "RDP")
        table(title, heads, [row.cells() for row in rows])
        _lines([note for row in rows for note in row.notes()])
        return rows

    def epsilon(self) -> None:
        print("\nExcess over the exact epsilon; CPU ms; x: how many times slower than ours")
        public = self.compare("Public cases", PUBLIC, self.limit)
        rows = public + self.compare("Many steps, small deltas", EXTREME, self.limit / 4)
        answered = {row.case.name: row for row in rows if row.ours.value}
        unsound = [name for name, row in answered.items() if not row.sound]
        gaps = {name: row.ours.value.gap for name, row in answered.items()}
        above = {k: v for row in rows for k, v in row.above(row.ours).items()}
        times = {name: row.ours.ms for name, row in answered.items()}
        typical = {name: ms for name, ms in times.items() if answered[name].case.typical}
        million = {name: ms for name, ms in times.items() if answered[name].case.steps == 10**6}
        more = {name: ms for name, ms in times.items() if name in ("steps_1e8", "steps_1e8_z2")}
        want = self.targets
        want.none("cases without an answer", (row.case.name for row in rows if not row.ours.value))
        want.none("exact epsilon outside of our bounds", unsound)
        want.limit("gap, default", 1e-3, gaps)
        want.limit("above dp-accounting PLD", 1e-3, above)
        self.fine(public if self.quick else rows)
        want.limit("typical DP-SGD to 1e5 steps, ms", 8, typical)
        want.limit("1e6 steps, ms", 60, million)
        want.limit("1e8 steps, rate 1e-5, noise >= 1, ms", 130, more)
        print()
        for place, name in enumerate(list(PEERS)[:2]):
            self.speed_up(name, [(row.ours, row.peers[place]) for row in public])

    def speed_up(self, name: str, pairs: Sequence[tuple[Result, Result]]) -> None:
        """Over the cases that the peer answers with a finite number; a stopped call counts as far as it got."""
        finite = [(a, b) for a, b in pairs if a.value and (b.stopped or math.isfinite(b.value or math.inf))]
        if finite and not self.quick:
            mean = statistics.geometric_mean(b.ms / a.ms for a, b in finite)
            print(f"Speed-up over {name}: {mean:.1f}x (geometric mean of {len(finite)} public cases)")
            size = f"{len(finite)} public cases"
            self.targets.limit(f"speed-up over {name}", 50, {size: mean}, at_least=True)

    def fine(self, rows: Sequence[Row]) -> None:
        cells, notes, gaps, above = [], [], {}, {}
        for row in rows:
            name, reference = row.case.name, row.case.reference
            (mine,) = in_turns([lambda _, c=row.case: ours(c, FINE)], min(self.rounds, 2))
            gaps[name] = mine.value.gap if mine.value else math.inf
            above |= row.above(mine)
            numbers = (excess(mine, reference), short(gaps[name]), milliseconds(mine))
            cells.append([name, *numbers, excess(row.peers[0], reference)])
            notes += [f"  {name}: {mine.note}"] if mine.note else []
        table(f"Ours with tolerance {FINE:g}", ("case", "ours", "gap", "ms", "PLD"), cells)
        _lines(notes)
        self.targets.limit("gap, on request", FINE, gaps)
        self.targets.limit("above dp-accounting PLD, on request", FINE, above)

    def allocation(self) -> None:
        def call(row: Allocation, turn: int) -> discreet.Bounds:
            noise = row.noise * (1 + 1e-12 * turn)  # a new number every time, so that no cache helps
            event = discreet.RandomlyAllocated(row.steps, discreet.Gaussian(noise)) * row.epochs
            return discreet.account(event).epsilon_bounds(row.delta)

        cells, notes, seconds, apart, share = [], [], {}, [], {}
        for row in self.select(ALLOCATIONS):
            (mine,) = in_turns([lambda turn, r=row: call(r, turn)], min(self.rounds, 3))
            lower, upper = bounds = mine.value or discreet.Bounds(0.0, math.inf)
            twin = sgd(row.noise, 1 / row.steps, row.steps * row.epochs)
            poisson = discreet.account(twin).epsilon(row.delta)
            share[row.name] = upper / poisson
            if row.noise >= 0.8:
                seconds[row.name] = mine.ms / 1e3
            if lower > row.upper * (1 + 1e-6) or upper < row.lower * (1 - 1e-6):
                apart.append(row.name)
            numbers = (f"{lower:.6g}", f"{upper:.6g}", short(bounds.gap), milliseconds(mine))
            numbers += (f"{poisson:.5g}", f"{upper / poisson - 1:+.1%}")
            cells.append([row.name, *numbers])
            notes += [f"  {row.name}: {mine.note}"] if mine.note else []
        title = "Random allocation (t steps per epoch, E epochs), and Poisson sampling; no peer has the first"
        table(title, ("noise, t, E", "lower", "upper", "gap", "ms", "Poisson", "saved"), cells)
        _lines(notes)
        if cells:
            self.targets.none("random allocation: outside of brackets", apart)
        self.targets.limit("random allocation: epsilon / Poisson's", 1.0, share)
        self.targets.limit("random allocation, noise >= 0.8, s", 0.5, seconds)

    def calibration(self) -> None:
        def mine(row: Calibration) -> float:
            forget_pictures()
            budget = discreet.Budget(row.epsilon, row.delta)
            return discreet.calibrate(lambda noise: sgd(noise, row.rate, row.steps), budget)

        tools = (mine, peers.calibrated_pld, peers.calibrated_prv)
        cells, milli, noise, speed = [], {}, {}, {}
        for row in self.select(CALIBRATIONS if hasattr(discreet, "calibrate") else ()):
            results = in_turns([lambda _, f=f, r=row: f(r) for f in tools], self.rounds, 3 * self.limit)
            smallest = row.reference * (1 - 1e-6)
            cells.append([row.name, f"{row.reference:.7g}"])
            for result in results:
                cells[-1] += [excess(result, row.reference, smallest), milliseconds(result)]
            milli[row.name] = results[0].ms
            noise[row.name] = (results[0].value or math.inf) / row.reference - 1
            speed[row.name] = results[1].ms / results[0].ms
        title = "Calibration: excess of the noise multiplier over the smallest one (PLD: tol=1e-3)"
        table(title, ("case", "noise", "ours", "ms", "PLD", "ms", "PRV", "ms"), cells)
        self.targets.limit("calibration, ms", 20, milli)
        self.targets.limit("calibration, excess of the noise", 5e-4, noise)
        if not self.quick:
            self.targets.limit("calibration, speed-up over dp-accounting", 100, speed, at_least=True)

    def surface(self) -> None:
        """Settings drawn evenly in logarithms from the promised range (seeded), with epsilon from 1e-3 to 1e6."""
        draw, ranges = random.Random(2), ((-0.7, 4), (-6, 0), (0, 9), (-12, -3))
        answered, refused, points = [], [], 20 if self.quick else 100
        while len(answered) + len(refused) < points:
            noise, rate, steps, delta = (10 ** draw.uniform(*ends) for ends in ranges)
            name = f"{noise:.3g}, {rate:.3g}, {steps:.0f}, {delta:.3g}"
            case = Case(name, sgd(noise, rate, int(steps)), delta, reference=math.nan)
            if 1e-3 <= discreet.account(case.event).estimate_epsilon(delta) <= 1e6:
                result = once(lambda _, c=case: ours(c))
                (refused if result.note else answered).append((result.ms, name, result.note))
        answered.sort()
        middle, late, last = (answered[int(share * (len(answered) - 1))] for share in (0.5, 0.9, 1))
        print(
            f"\nSurface: {len(answered)} of {points} random settings answered; CPU ms: median {middle[0]:.0f},"
        )
        print(
            f"  90 % {late[0]:.0f}, slowest {last[0]:.0f} (noise, rate, steps, delta = {last[1]})", flush=True
        )
        _lines([f"  no answer at {name}: {why}" for _, name, why in refused])
        self.targets.none("surface: settings without an answer", (name for _, name, _ in refused))

    def footprint(self) -> None:
        peaks = {}
        for case in PUBLIC + EXTREME:
            if case.steps <= 10**6:
                tracemalloc.start()
                once(lambda _, c=case: ours(c))
                peaks[case.name] = tracemalloc.get_traced_memory()[1] / 1e6
                tracemalloc.stop()
        worst = max(peaks, key=lambda name: peaks[name])
        runs = [subprocess.check_output([sys.executable, "-c", IMPORT], text=True).split() for _ in range(5)]
        seconds, packages = statistics.median(float(run[0]) for run in runs), runs[0][1:]
        print(f"\nMemory: peak {peaks[worst]:.1f} MB up to 1e6 steps ({worst})")
        print(f"Import: {seconds:.2f} s CPU; third-party packages: {', '.join(packages)}")
        self.targets.limit("memory to 1e6 steps, MB", 25, peaks)
        self.targets.limit("import discreet, CPU s", 0.5, {"": seconds})
        self.targets.none(
            "imported besides numpy and scipy", sorted({*packages} - {"numpy", "scipy", "discreet"})
        )

    def figure_2(self) -> None:
        errors = {}
        for steps, moments, strong in ((10_000, 1.2585747, 9.339065), (40_000, 2.5758725, 24.205145)):
            setting = (0.01, 4.0, steps, 1e-5)
            errors[f"moments, {steps} steps"] = abs(moments_accountant(*setting) - moments)
            errors[f"strong, {steps} steps"] = abs(figure_2_curve_not_a_guarantee(*setting) - strong)
        self.targets.limit("Figure 2: distance from its values", 1e-6, errors)


def _lines(lines: Sequence[str]) -> None:
    print("".join(line[:118] + "\n" for line in lines), end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="stop slow peers early: under a minute")
    parser.add_argument("--cases", default="", metavar="NAME", help="only cases whose name contains NAME")
    options = parser.parse_args()
    bench, start = Bench(options.quick, options.cases), time.perf_counter()
    names = ("discreet", "dp-accounting", "opacus", "numpy", "scipy")
    print(*(f"{name} {version(name)}" for name in names), f"Python {platform.python_version()}", sep=", ")
    print(f"CPU ms of one call, one thread (OMP_NUM_THREADS=1) of {os.cpu_count()} cores: median of")
    print(f"{bench.rounds} interleaved rounds after a warm-up; calls over {ONCE:g} s: once;", end=" ")
    print(
        f"peers stopped after {bench.limit:g} s (extreme cases: a quarter).\nOurs: both bounds, tolerance 1e-3.",
        end=" ",
    )
    print("Peers: upper bound, their defaults; UNSOUND if below our lower bound.")
    for tool in (ours, *PEERS.values()):
        once(lambda _, f=tool: f(PUBLIC[0]))  # lazy imports and tables
    bench.epsilon()
    bench.allocation()
    bench.calibration()
    if not options.cases:
        bench.surface()
        bench.footprint()
        bench.figure_2()
    bench.targets.print()
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
