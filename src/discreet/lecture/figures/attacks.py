"""What an attacker can do: the region of false alarms and hits that a release allows."""

from __future__ import annotations

from discreet.accounting.account import account
from discreet.accounting.tradeoff import power_bound
from discreet.events import Gaussian, PoissonSampled
from discreet.lecture.figures.canvas import Figure, Line, Panel

ALARMS = (0.0, 0.001, 0.005, *(step / 50 for step in range(1, 50)), 0.995, 1.0)


def attack() -> Figure:
    """Hits against false alarms, without and with sampling."""
    return Figure(
        "The best attack on one record",
        "Left: a Gaussian release against the region that its (epsilon, delta) alone would allow, at delta 1e-5. "
        "Right: the same noise on a Poisson sample of one record in ten.",
        (_gaussian(), _sampled()),
    )


def _gaussian() -> Panel:
    lines = [Line("guessing", (0, 1), (0, 1), "dashed")]
    for noise in (2.0, 1.0, 0.5):
        curve = account(Gaussian(noise))
        lines.append(Line(f"noise multiplier {noise:g}", ALARMS, [curve.power(rate) for rate in ALARMS]))
    epsilon = account(Gaussian(1.0)).epsilon(1e-5)
    allowed = [power_bound(epsilon, 1e-5, rate) for rate in ALARMS]
    lines.append(Line(f"all that ({epsilon:.2f}, 1e-5) allows", ALARMS, allowed, "dashed"))
    return Panel("one Gaussian release", "false alarms", "hits", tuple(lines))


def _sampled() -> Panel:
    whole, sampled = account(Gaussian(0.5)), account(PoissonSampled(0.1, Gaussian(0.5)))
    lines = (
        Line("guessing", (0, 1), (0, 1), "dashed"),
        Line("all records", ALARMS, [whole.power(rate) for rate in ALARMS]),
        Line("a sample of one in ten", ALARMS, [sampled.power(rate) for rate in ALARMS]),
    )
    return Panel("noise multiplier 0.5, with and without sampling", "false alarms", "hits", lines)
