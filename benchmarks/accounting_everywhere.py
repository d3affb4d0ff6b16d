"""Is every question answered? ``make bench-accounting-everywhere``; ``--settings 50`` for a first look.

Asks for epsilon at random settings, spread evenly in logarithms over everything that a run may be and over deltas
down to 1e-300. Counts exceptions, infinities and bounds that are further apart than a thousandth, of which there must
be none at a delta of at least 1e-30 and an epsilon of at most 100. Times are CPU times of single calls: none may take
more than 1 s; memory may grow by 300 MB. ``--extreme`` asks beyond all of that: rates to 1e-12, 1e12 releases,
noise from 0.02 on, random allocation; there the goal is an answer.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import math
import random
import resource
import statistics
import time
from typing import NamedTuple

from discreet import Event, Gaussian, PoissonSampled, RandomlyAllocated, account
from discreet.accounting.gaussian import gaussian_epsilon

RATE, NOISE, STEPS, DELTA = (1e-7, 1.0), (0.2, 1e4), (1.0, 1e9), (1e-300, 1e-2)
FAR_RATE, FAR_NOISE, FAR_STEPS = (1e-12, 1.0), (0.02, 1e6), (1.0, 1e12)
EPSILON, ANY_EPSILON = (1e-3, 1e6), (1e-9, 1e12)
TOLERANCE = 1e-3
USUAL_DELTA, USUAL_EPSILON = 1e-30, 100.0  # where the tolerance must be met
WORST_SECONDS, WORST_MEGABYTES = 1.0, 300.0


class Setting(NamedTuple):
    rate: float
    noise: float
    steps: int
    delta: float
    neighbours: str
    allocated: bool = False

    @property
    def event(self) -> Event:
        if self.allocated:
            return RandomlyAllocated(max(round(1 / self.rate), 1), Gaussian(self.noise)) * min(
                self.steps, 1000
            )
        return PoissonSampled(self.rate, Gaussian(self.noise)) * self.steps

    @property
    def about(self) -> float:
        """Epsilon by the central limit theorem, or without sampling: a rough idea of what a setting is about."""
        width = 2.0 if self.neighbours == "replace-one" else 1.0
        mu = width * math.sqrt(self.steps) / self.noise
        if self.rate < 1:
            mu = min(mu, width * self.rate * math.sqrt(self.steps * math.expm1(min(self.noise**-2, 700.0))))
        return gaussian_epsilon(self.delta, min(max(mu, 1e-12), 1e4))


class Answer(NamedTuple):
    setting: Setting
    lower: float
    upper: float
    seconds: float
    problem: str

    @property
    def gap(self) -> float:
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0

    @property
    def is_usual(self) -> bool:
        return self.setting.delta >= USUAL_DELTA and self.upper <= USUAL_EPSILON

    @property
    def is_wide(self) -> bool:
        return not self.gap <= TOLERANCE * 1.000001


def settings(count: int, seed: int, extreme: bool = False) -> list[Setting]:
    """The same for everybody: random settings whose epsilon is worth knowing."""
    dice, found = random.Random(seed), []
    ranges = (FAR_RATE, FAR_NOISE, FAR_STEPS, DELTA) if extreme else (RATE, NOISE, STEPS, DELTA)
    least, most = ANY_EPSILON if extreme else EPSILON
    while len(found) < count:
        rate, noise, steps, delta = (
            math.exp(dice.uniform(math.log(low), math.log(high))) for low, high in ranges
        )
        neighbours = dice.choice(["add-remove", "replace-one"])
        allocated = extreme and neighbours == "add-remove" and dice.random() < 0.3
        setting = Setting(rate, noise, round(steps), delta, neighbours, allocated)
        if least <= setting.about <= most:
            found.append(setting)
    return found


def answer(setting: Setting) -> Answer:
    start = time.process_time()
    try:
        lower, upper = account(setting.event, setting.neighbours).epsilon_bounds(setting.delta)
        problem = ""
    except Exception as error:
        (lower, upper), problem = getattr(error, "bounds", (0.0, math.inf)), type(error).__name__
    return Answer(setting, lower, upper, time.process_time() - start, problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--worst", type=int, default=10, help="how many of the slowest and widest to show")
    parser.add_argument("--extreme", action="store_true", help="far beyond what a run may be")
    chosen = parser.parse_args()
    account(PoissonSampled(0.01, Gaussian(1.0)) * 100).epsilon(1e-5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = [answer(setting) for setting in settings(chosen.settings, chosen.seed, chosen.extreme)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = sorted(found.seconds for found in answers)
    narrow = sum(not found.is_wide for found in answers)
    usual = [found for found in answers if found.is_usual]
    slow = sum(found.seconds > WORST_SECONDS for found in answers)
    print(f"settings                  {len(answers)}")
    print(f"exceptions                {sum(bool(found.problem) for found in answers)}")
    print(f"infinities                {sum(found.upper == math.inf for found in answers)}")
    print(f"gap at most {TOLERANCE:g}         {100 * narrow / len(answers):.1f} %")
    print(
        f"wider at usual settings   {sum(found.is_wide for found in usual)} of {len(usual)} "
        f"(delta >= {USUAL_DELTA:g}, epsilon <= {USUAL_EPSILON:g})"
    )
    print(f"median time               {1e3 * statistics.median(times):.1f} ms")
    print(f"99 in 100 within          {1e3 * times[int(0.99 * len(times))]:.0f} ms")
    print(f"worst time                {1e3 * times[-1]:.0f} ms, {slow} above {WORST_SECONDS:g} s")
    print(
        f"peak memory               {(peak - before) / 1024:.0f} MB above the {before / 1024:.0f} MB at the start, "
        f"of {WORST_MEGABYTES:.0f} MB"
    )
    for title, key in (("slowest", lambda found: -found.seconds), ("widest", lambda found: -found.gap)):
        print(f"\n{title}")
        for found in sorted(answers, key=key)[: chosen.worst]:
            rate, noise, steps, delta, neighbours, _ = found.setting
            print(
                f"  rate {rate:.3g} noise {noise:.3g} steps {steps:.3g} delta {delta:.2g} {neighbours}: "
                f"[{found.lower:.6g}, {found.upper:.6g}] gap {found.gap:.1e} "
                f"{1e3 * found.seconds:.0f} ms {found.problem}"
            )


if __name__ == "__main__":
    main()
