"""How much noise does a limit on reconstruction need: by the power of attacks, and by way of epsilon?

``python benchmarks/risk.py`` prints, for each setting, the least noise multiplier for which the certified power at
the baseline stays within the limit, and the least one for which the (epsilon, delta) of the same event at delta
1e-6 proves it (Kairouz et al. 2015). Both bound every attack. The second is what a report of one epsilon allows one
to conclude; with every delta at hand both agree, because the curve and the power say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import discreet as dp
from discreet.accounting.power import power_bound

SETTINGS: tuple[tuple[str, Callable[[float], dp.Event]], ...] = (
    ("one release", lambda noise: dp.Gaussian(noise)),
    ("40 full-batch steps", lambda noise: dp.Gaussian(noise) * 40),
    ("1 000 steps at rate .01", lambda noise: dp.PoissonSampled(0.01, dp.Gaussian(noise)) * 1000),
)
RISKS = (
    ("date of birth, 1/3650, at most doubled", dp.Reconstruction(1 / 3650, 2 / 3650)),
    ("diagnosis, 3 %, at most 6 %", dp.AttributeInference(0.03, 0.06)),
    ("one person of 1000, at most 5 in 1000", dp.Reidentification(1e-3, 5e-3)),
)
DELTA = 1e-6


def by_epsilon(family: Callable[[float], dp.Event], risk: dp.Reconstruction) -> float:
    """The least noise whose epsilon at ``DELTA`` keeps the success within the limit."""
    assert risk.at_most is not None

    def success(noise: float) -> float:
        epsilon = dp.account(family(noise)).epsilon(DELTA)
        return 1.0 if math.isinf(epsilon) else power_bound(epsilon, DELTA, risk.baseline)

    low, high = math.log(0.1), math.log(1e3)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if success(math.exp(middle)) <= risk.at_most else (middle, high)
    return math.exp(high)


def main() -> None:
    """Print the table."""
    print(f"{'event':<26}{'risk':<42}{'by epsilon':>12}{'by power':>12}{'less noise':>12}")
    for name, family in SETTINGS:
        for words, risk in RISKS:
            ours, theirs = dp.calibrate(family, risk=risk), by_epsilon(family, risk)
            print(f"{name:<26}{words:<42}{theirs:>12.3f}{ours:>12.3f}{1 - ours / theirs:>12.1%}")


if __name__ == "__main__":
    main()
