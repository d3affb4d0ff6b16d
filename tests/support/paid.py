"""Permits for tests, paid from a ledger in memory; ledgers that fail, and streams that count what is drawn."""

from discreet.core.randomness import RandomStream
from discreet.errors import LedgerUnavailable
from discreet.ledger import FixedPlan, Till
from discreet.ledger.ledger_log import Run
from discreet.trusted.permits import StepNoise, pay_at_once


def paid(noise, clip_norm, stream, times=1):
    """The permit of so many charges of ``noise``, which may be an event or a StepNoise."""
    noise = noise if isinstance(noise, StepNoise) else StepNoise.of_event(noise)
    with Till.open(None, FixedPlan.at_its_cost(noise.event * times, 1e-3)) as till:
        return pay_at_once(till, noise, clip_norm, stream, name="test", times=times)


class Noting(RandomStream):
    """A stream that counts what is drawn."""

    def __init__(self, unsafe_seed=1):
        super().__init__(unsafe_seed=unsafe_seed)
        self.draws = 0

    def _fresh_key(self):
        self.draws += 1
        return super()._fresh_key()


class Broken:
    """Lets a run of a ledger reserve so many times, and fail from then on."""

    def __init__(self, monkeypatch, reservations):
        self.left, honest = reservations, Run._reserve

        def failing(run, *rest):
            if self.left == 0:
                raise LedgerUnavailable("The disk is full.")
            self.left -= 1
            return honest(run, *rest)

        monkeypatch.setattr(Run, "_reserve", failing)
