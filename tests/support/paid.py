"""Permits for tests, paid from a ledger in memory."""

from discreet.ledger import FixedPlan, Till
from discreet.trusted.permits import StepNoise, pay_at_once


def paid(noise, clip_norm, stream, times=1):
    """The permit of so many charges of ``noise``, which may be an event or a StepNoise."""
    noise = noise if isinstance(noise, StepNoise) else StepNoise.of_event(noise)
    with Till.open(None, FixedPlan.at_its_cost(noise.event * times, 1e-3)) as till:
        return pay_at_once(till, noise, clip_norm, stream, name="test", times=times)
