"""Is every question answered? ``make bench-accounting-everywhere``; ``--settings 50`` for a first look.

Asks for epsilon at random settings, spread evenly in logarithms over everything that a run may be, and counts
exceptions, infinities and bounds that are further apart than a thousandth. Times are CPU times of single calls.
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

from discreet import Event, Gaussian, PoissonSampled, account
from discreet.accounting.gaussian import gaussian_epsilon

RATE, NOISE, STEPS, DELTA = (1e-7, 1.0), (0.2, 1e4), (1.0, 1e9), (1e-50, 1e-2)
EPSILON = (1e-3, 1e6)
TOLERANCE = 1e-3


class Setting(NamedTuple):
    rate: float
    noise: float
    steps: int
    delta: float
    neighbours: str

    @property
    def event(self) -> Event:
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


def settings(count: int, seed: int) -> list[Setting]:
    """The same for everybody: random settings whose epsilon is worth knowing."""
    dice, found = random.Random(seed), []
    while len(found) < count:
        rate, noise, steps, delta = (
            math.exp(dice.uniform(math.log(low), math.log(high))) for low, high in (RATE, NOISE, STEPS, DELTA)
        )
        setting = Setting(rate, noise, round(steps), delta, dice.choice(["add-remove", "replace-one"]))
        if EPSILON[0] <= setting.about <= EPSILON[1]:
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
    chosen = parser.parse_args()
    account(PoissonSampled(0.01, Gaussian(1.0)) * 100).epsilon(1e-5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = [answer(setting) for setting in settings(chosen.settings, chosen.seed)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = sorted(found.seconds for found in answers)
    narrow = sum(found.gap <= TOLERANCE * 1.000001 for found in answers)
    print(f"settings                  {len(answers)}")
    print(f"exceptions                {sum(bool(found.problem) for found in answers)}")
    print(f"infinities                {sum(found.upper == math.inf for found in answers)}")
    print(f"gap at most {TOLERANCE:g}         {100 * narrow / len(answers):.1f} %")
    print(f"median time               {1e3 * statistics.median(times):.1f} ms")
    print(f"99 in 100 within          {1e3 * times[int(0.99 * len(times))]:.0f} ms")
    print(f"worst time                {1e3 * times[-1]:.0f} ms")
    print(
        f"peak memory               {(peak - before) / 1024:.0f} MB above the {before / 1024:.0f} MB at the start"
    )
    for title, key in (("slowest", lambda found: -found.seconds), ("widest", lambda found: -found.gap)):
        print(f"\n{title}")
        for found in sorted(answers, key=key)[: chosen.worst]:
            rate, noise, steps, delta, neighbours = found.setting
            print(
                f"  rate {rate:.3g} noise {noise:.3g} steps {steps:.3g} delta {delta:.2g} {neighbours}: "
                f"[{found.lower:.6g}, {found.upper:.6g}] gap {found.gap:.1e} "
                f"{1e3 * found.seconds:.0f} ms {found.problem}"
            )


if __name__ == "__main__":
    main()
