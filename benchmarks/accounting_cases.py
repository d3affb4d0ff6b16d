"""What ``accounting.py`` measures: events, deltas and reference values.

Origin of the references. Full batches, the single step and one Laplace release: closed form. Composed Laplace
releases: an independent certified lattice, good to 1e-7 (the sampled one was noted with eight digits). All
others: numerical inversion of the characteristic function of the privacy loss, a contour integral that shares
nothing with our lattice and whose three settings agree to 2e-8. Random allocation: brackets of an independent
lattice that composes the epoch by FFT. Calibration: root of the contour integral.
"""

from __future__ import annotations

from dataclasses import dataclass

from discreet import Event, Gaussian, Laplace, PoissonSampled


@dataclass(frozen=True)
class Case:
    """An event and the exact epsilon at ``delta``. ``typical``: an ordinary DP-SGD run of up to 1e5 steps."""

    name: str
    event: Event
    delta: float
    reference: float
    typical: bool = False
    neighbours: str = "add-remove"

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.event.parts())


def sgd(noise: float, rate: float, steps: int) -> Event:
    return PoissonSampled(rate, Gaussian(noise)) * steps


def sum_of(events: list[Event]) -> Event:
    first, *others = events
    return sum(others, start=first)


TEN_PHASES = [sgd((8 + i) / 10, 0.002 * (i + 1), 200 * (i + 1)) for i in range(10)]

PUBLIC = (
    Case("abadi_T100", sgd(4.0, 0.01, 100), 1e-5, 0.07951380304, typical=True),
    Case("abadi_T1000", sgd(4.0, 0.01, 1_000), 1e-5, 0.272136057417, typical=True),
    Case("abadi_T10000", sgd(4.0, 0.01, 10_000), 1e-5, 0.94686680076, typical=True),
    Case("abadi_T40000", sgd(4.0, 0.01, 40_000), 1e-5, 2.03306526506, typical=True),
    Case("mnist_tutorial", sgd(1.1, 256 / 60_000, 14_062), 1e-5, 2.38159692142, typical=True),
    Case("high_privacy", sgd(10.0, 0.001, 1_000), 1e-6, 0.00973735554611, typical=True),
    Case("lownoise_0.5", sgd(0.5, 0.01, 1_000), 1e-5, 13.3608239853),
    Case("lownoise_0.3", sgd(0.3, 0.001, 2_000), 1e-6, 26.286108443),
    Case("tinyq_1e6", sgd(1.0, 1e-4, 1_000_000), 1e-7, 0.598094148162),
    Case("fullbatch_small", sgd(50.0, 1.0, 1_000), 1e-5, 2.594383380527607),
    Case("fullbatch_eps92", sgd(1.0, 1.0, 100), 1e-5, 91.81728962466374),
    Case("huge_eps78", sgd(0.6, 0.1, 1_000), 1e-5, 78.6485221798),
    Case("delta_1e-12", sgd(1.0, 0.01, 1_000), 1e-12, 3.91429815604, typical=True),
    Case("delta_1e-20", sgd(1.0, 0.01, 1_000), 1e-20, 6.36170020408),
    Case("delta_1e-50", sgd(2.0, 0.01, 1_000), 1e-50, 3.49807973724),
    Case("laplace_T1", Laplace(1.0), 1e-6, 0.999997999999),
    Case("laplace_T100", Laplace(10.0) * 100, 1e-6, 4.692667014),
    Case("sub_laplace", PoissonSampled(0.05, Laplace(1.0)) * 500, 1e-6, 5.2092269),
    Case("two_phase", sgd(1.0, 0.01, 1_000) + sgd(2.0, 0.02, 2_000), 1e-6, 3.0738518813, typical=True),
    Case("ten_phase", sum_of(TEN_PHASES), 1e-6, 5.98245833491),
    Case("replace_one", sgd(1.0, 0.01, 1_000), 1e-5, 2.84344025927, True, "replace-one"),
    Case("single_step", sgd(1.0, 0.01, 1), 1e-5, 0.199450447795915),
)

EXTREME = (
    Case("steps_1e5", sgd(1.0, 1e-3, 10**5), 1e-6, 1.86104745896, typical=True),
    Case("steps_1e6", sgd(2.0, 1e-3, 10**6), 1e-8, 2.90465693047),
    Case("steps_1e8", sgd(1.0, 1e-5, 10**8), 1e-9, 0.710067466641),
    Case("steps_1e8_z2", sgd(2.0, 1e-5, 10**8), 1e-9, 0.278078684189),
    Case("steps_1e8_z0.8", sgd(0.8, 1e-5, 10**8), 1e-9, 1.07169472941),
    Case("steps_1e9", sgd(4.0, 1e-5, 10**9), 1e-9, 0.425905137614),
    Case("small_delta_12", sgd(4.0, 0.01, 10_000), 1e-12, 1.71114373999, typical=True),
    Case("small_delta_13", sgd(1.0, 0.01, 1_000), 1e-13, 4.22981135912, typical=True),
)


@dataclass(frozen=True)
class Allocation:
    """Balls in bins: ``epochs`` of ``steps`` each, and a certified bracket of epsilon at ``delta``."""

    noise: float
    steps: int
    epochs: int
    delta: float
    lower: float
    upper: float

    @property
    def name(self) -> str:
        return f"z={self.noise:g} t={self.steps} E={self.epochs}"


ALLOCATIONS = (
    Allocation(1.0, 100, 1, 1e-5, 0.620933, 0.620948),
    Allocation(1.0, 1000, 1, 1e-6, 0.171725, 0.171734),
    Allocation(1.0, 1000, 10, 1e-6, 0.539966, 0.540186),
    Allocation(0.8, 235, 10, 1e-5, 1.788881, 1.789620),
    Allocation(1.1, 234, 60, 1e-5, 2.340250, 2.341039),
    Allocation(2.0, 100, 100, 1e-5, 2.140446, 2.141160),
    Allocation(4.0, 100, 100, 1e-5, 0.942261, 0.942564),
    Allocation(1.0, 10, 10, 1e-5, 6.116067, 6.117973),
    Allocation(1.0, 200, 50, 1e-8, 3.699191, 3.700385),
    Allocation(0.6, 1000, 5, 1e-6, 2.702018, 2.702834),
    Allocation(0.5, 1000, 20, 1e-6, 7.489389, 7.493882),
    Allocation(0.4, 1000, 5, 1e-6, 11.345148, 11.352466),
)


@dataclass(frozen=True)
class Calibration:
    """The smallest noise multiplier with which DP-SGD stays within (epsilon, delta)."""

    name: str
    rate: float
    steps: int
    epsilon: float
    delta: float
    reference: float


CALIBRATIONS = (
    Calibration("calib_eps3", 0.004, 5_000, 3.0, 1e-5, 0.749764607),
    Calibration("calib_eps8_cifar", 16_384 / 50_000, 875, 8.0, 1e-5, 5.8817128),
    Calibration("calib_eps1_lm", 0.002, 20_000, 1.0, 1e-8, 1.6142953),
)
