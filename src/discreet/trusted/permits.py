"""Permits: the right to the noise of a step that a ledger has paid for.

>>> import numpy as np
>>> from discreet.events import Gaussian
>>> from discreet.guarantee import Budget
>>> from discreet.ledger import FixedPlan
>>> noise = StepNoise.of_event(Gaussian(4.0))
>>> with Till.open(None, FixedPlan.at_its_cost(Gaussian(4.0), 1e-6)) as till:
...     permit = pay_at_once(till, noise, 1.0, RandomStream(), name="mean")
>>> permit.release(BoundedSum(np.zeros(3), clip_norm=1.0)).shape
(3,)
>>> permit.release(BoundedSum(np.zeros(3), clip_norm=1.0))
Traceback (most recent call last):
    ...
discreet.errors.PlanViolation: The permit holds no further release of sum.

A :class:`StepNoise` has the event that is charged and the noise that is drawn for it, and refuses noise that the
event does not cover. :class:`Charger` and :func:`pay_at_once` charge it and return a :class:`NoisePermit` after the
ledger has stored the reservation. A permit draws its own noise, from its own stream, as often as was paid.

**Why the noise covers the event.** Let the event be a Gaussian mechanism of noise multiplier z, sampled in any way. A
record of norm at most its clip norm moves release i, counted in clip norms, by a vector of squared length w_i at
most: 1, or for correlated noise the squared length of a column of the mixing matrix. In what is released k_i
independent draws of variance v_i add up. All releases of a step are one Gaussian release whose strength is the root
of the sum of w_i / (k_i v_i), so the step costs the event at most if that sum is at most 1 / z**2. It is compared in
exact fractions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from discreet.core.arrays import AnyArray
from discreet.core.clipping import AdaptiveClip
from discreet.core.matrix_mechanism import coefficients, length_of_column
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.noise_shares import add_noise_share
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.events import ApproximateDP, Event, Gaussian, Laplace
from discreet.ledger import Till
from discreet.ledger.ledger_log import Run
from discreet.plan.stage import Stage

COUNT_SENSITIVITY = 0.5
"""What one record changes a count by that counts it as plus or minus one half."""


@dataclass(frozen=True)
class Draw:
    """The noise of one release of a step.

    Args:
        noise: The noise, in clip norms; with ``shares`` above 1 one draw has this variance divided by ``shares``.
        clip_norm: The least sensitivity of the sum; None for the clip norm of the step.
        shares: Equal parts that the noise is drawn in.
        copies: Independent draws that add up in what is released; those of other processes, or honest parties.
        bands: Steps over which the noise is correlated. A record moves one column of the mixing matrix.
    """

    noise: Gaussian | Laplace
    clip_norm: float | None = None
    shares: int = 1
    copies: int = 1
    bands: int = 1

    @property
    def weight(self) -> Fraction:
        """The squared length of what one record moves, in clip norms."""
        return sum((Fraction(float(one)) ** 2 for one in coefficients(self.bands)), Fraction(0))


CHOICES: Mapping[str, type[Event]] = MappingProxyType(
    {
        "exponential mechanism": ApproximateDP,
        "Gibbs sampling": Gaussian,
        "objective perturbation": ApproximateDP,
        "random search": ApproximateDP,
    }
)
"""Theorems by which a random choice costs an event of a kind; each is proved where the choice is made."""


class StepNoise:
    """An event that a ledger is charged, the number of steps that it pays for, and the noise that each step draws.

    ``grid`` is the step in which sums are counted, None in floating point. An event without draws pays for one
    random ``choice``, by one of the theorems of :data:`CHOICES`.

    Guarantee: the draws of a step cost what the event says at most; see the proof above. A bare event pays for one
    step; that of a planned stage for as many as its sampler lets a record take part in once, an epoch or a window.
    """

    def __init__(
        self,
        charge: Event | Stage,
        draws: Mapping[str, Draw],
        *,
        grid: float | None = None,
        choice: str | None = None,
    ) -> None:
        if isinstance(charge, Stage):
            event, self.steps = charge.charge, charge.steps_per_charge
        else:
            event, self.steps = charge, 1
        self.event, self.grid = event, grid
        self.draws: Mapping[str, Draw] = MappingProxyType(dict(draws))
        if not draws and type(event) is not CHOICES.get(choice or ""):
            raise PlanViolation(f"No theorem is known by which the choice {choice!r} costs {event}.")
        if draws and not isinstance(mechanism_of(event), Gaussian | Laplace):
            raise PlanViolation(f"{event} is not one sampled mechanism, so no noise is known to cover it.")
        if draws and not covers(event, self.draws.values()):
            raise PlanViolation(f"Less noise would be drawn than {event} is charged for. Nothing was drawn.")

    @classmethod
    def of_event(cls, event: Event, grid: float | None = None) -> StepNoise:
        """One release of the mechanism in ``event``."""
        mechanism = mechanism_of(event)
        if not isinstance(mechanism, Gaussian | Laplace):
            raise PlanViolation(f"The noise of {type(mechanism).__name__} cannot be added to a sum.")
        return cls(event, {"sum": Draw(mechanism)}, grid=grid)

    @classmethod
    def of_choice(cls, event: Event, theorem: str) -> StepNoise:
        """One random choice that costs ``event`` by a theorem of :data:`CHOICES`."""
        return cls(event, {}, choice=theorem)

    @classmethod
    def of_stage(
        cls,
        stage: Stage,
        adaptive: AdaptiveClip | None = None,
        *,
        grid: float | None = None,
        processes: int = 1,
    ) -> StepNoise:
        """The steps of one stage: its charge, and the noise of the sum.

        With ``adaptive`` clipping a step also releases a count of norms, which takes part of the step's cost; each of
        so many ``processes`` draws a part of its noise. With bands the noise is drawn for a column of the mixing
        matrix.
        """
        if adaptive is not None:
            count = Draw(part_of(adaptive.count_event, processes), COUNT_SENSITIVITY, copies=processes)
            draws = {"sum": Draw(adaptive.of_sum(stage.noise)), "count": count}
        else:
            draws = {"sum": Draw(fresh_noise(stage.noise, stage.bands), bands=stage.bands)}
        return cls(stage, draws, grid=grid)


def mechanism_of(event: Event) -> Event:
    """Return the mechanism of an event without its sampling."""
    while isinstance(inner := getattr(event, "of", None), Event):
        event = inner
    return event


def covers(event: Event, draws: Any) -> bool:
    """Return whether all ``draws`` of one step together cost what ``event`` says at most, in exact fractions."""
    mechanism, draws = mechanism_of(event), tuple(draws)
    if isinstance(mechanism, Laplace):
        alone = len(draws) == 1 and draws[0] == Draw(draws[0].noise)
        return alone and isinstance(draws[0].noise, Laplace) and draws[0].noise.scale >= mechanism.scale
    if not isinstance(mechanism, Gaussian):
        return False
    spent = Fraction(0)
    for draw in draws:
        if not isinstance(draw.noise, Gaussian) or draw.noise.noise_multiplier == 0:
            return False
        variance = Fraction(draw.noise.noise_multiplier) ** 2 / draw.shares
        spent += draw.weight / (draw.copies * variance)
    return spent * Fraction(mechanism.noise_multiplier) ** 2 <= 1


def fresh_noise(event: Gaussian, bands: int) -> Gaussian:
    """Return the noise of each step over ``bands``, for which a record that moves several sums costs ``event``."""
    if bands == 1:
        return event
    return Gaussian(math.nextafter(event.noise_multiplier * length_of_column(bands), math.inf))


def part_of(event: Gaussian, processes: int) -> Gaussian:
    """Return noise of which so many independent draws add up to that of ``event`` or more."""
    if processes == 1:
        return event
    return Gaussian(event.noise_multiplier / math.sqrt(processes) * (1 + 2.0**-50))


class Permit:
    """The right to a number of releases. Made after a charge; each use counts down.

    Guarantee: there is one of it, in the process that has paid.
    """

    __slots__ = ("_left", "_process")

    def __init__(self, left: Mapping[Any, int], key: object) -> None:
        if key is not _KEY:
            raise PlanViolation("Only a charge makes a permit.")
        self._left, self._process = dict(left), os.getpid()

    def __reduce__(self) -> NoReturn:
        raise PlanViolation("A permit cannot be copied: its releases are paid for once.")

    def _refuse_used(self, release: Any) -> None:
        refuse_forked(self._process)
        if self._left.get(release, 0) < 1:
            raise PlanViolation(f"The permit holds no further release of {release}.")

    def _count_down(self, release: Any) -> None:
        self._refuse_used(release)
        self._left[release] -= 1


class NoisePermit(Permit):
    """The right to draw the noise of a number of steps. Made after a charge; each use counts down.

    Guarantee: every draw is that of the :class:`StepNoise` which was charged, on a sum of the sensitivity and the
    grid for which it was charged, at most as often as was paid. A request for anything else raises before a draw.
    """

    __slots__ = ("_clip_norm", "_noise", "_stream")

    def __init__(
        self, noise: StepNoise, clip_norm: float | None, stream: RandomStream, steps: int, key: object
    ) -> None:
        super().__init__(dict.fromkeys(noise.draws or ("choice",), steps), key)
        self._noise, self._clip_norm, self._stream = noise, clip_norm, stream

    def check(self, noise: StepNoise) -> None:
        """Raise unless the permit was made for ``noise``: that of another run or stage is not."""
        if noise is not self._noise:
            raise PlanViolation("The permit was made for other noise.")

    def release(self, total: BoundedSum, which: str = "sum", *, out: AnyArray | None = None) -> AnyArray:
        """Return the sum with the noise of one release, in ``out`` if given; see :func:`core.noise.add_noise`."""
        draw = self._use(total, which)
        if draw.shares != 1:
            raise PlanViolation("The permit is for a share of the noise. Call add_noise_share.")
        return add_noise(total, draw.noise, self._stream, out=out)

    def add_noise_share(self, total: BoundedSum) -> NDArray[np.int64]:
        """Return the integers of the sum with a share of its noise; see :func:`core.noise_shares.add_noise_share`.

        Guarantee: none for one share.
        """
        draw = self._use(total, "sum")
        if not isinstance(draw.noise, Gaussian):
            raise PlanViolation("Only Gaussian noise is drawn in shares.")
        return add_noise_share(total, draw.noise, draw.shares, self._stream)

    def randomness(self) -> RandomStream:
        """Return the stream for one random choice, where the charge was for a choice."""
        self._count_down("choice")
        return self._stream

    def _use(self, total: BoundedSum, release: str) -> Draw:
        if not isinstance(total, BoundedSum):
            raise PlanViolation(f"Noise is for a BoundedSum. Got {type(total).__name__}.")
        draw = self._noise.draws.get(release)
        needed = None if draw is None else draw.clip_norm
        needed = self._clip_norm if needed is None else needed
        if needed is not None and total.clip_norm < needed:
            raise PlanViolation(f"The permit is for sums of clip norm {needed:g}. Got {total.clip_norm:g}.")
        if total.grid != self._noise.grid:
            raise PlanViolation(f"The permit is for sums with grid={self._noise.grid}. Got {total.grid}.")
        self._count_down(release)
        assert draw is not None  # or there was nothing to count down
        return draw


def refuse_forked(process: int) -> None:
    """Raise in a process that was forked: it has a copy of what the other one has paid for."""
    if os.getpid() != process:
        raise PlanViolation("A run cannot be used in a forked process. Begin or resume a run there.")


_KEY = object()  # known to this file alone, as far as Python keeps anything to one

Agree = Callable[[Callable[[], int]], int]
"""Lets one of several processes decide a number, for all of them; raises in all if it raises there."""


class Charger:
    """Charges one run of a ledger step by step, and makes a permit for each step.

    Where several processes train together, ``agree`` lets the one with the ledger charge for all; the others have no
    ``run``. ``reserved`` is the number of charges that the ledger has stored, those of earlier attempts included.

    Guarantee: when a method returns a permit, its charge is in the ledger, on disk if it has one.
    """

    def __init__(self, run: Run | None, stream: RandomStream, agree: Agree | None = None) -> None:
        if run is None and agree is None:
            raise PlanViolation("A charge needs a run of a ledger.")
        self._run, self._stream, self._process = run, stream, os.getpid()
        if run is not None:
            run.seeded = run.seeded or not stream.trusted
        self._agree: Agree = agree or _decide_alone
        self.before = self.reserved = self._agree(lambda: self._of_ledger().reserved)
        """Charges of earlier attempts, which count as released; all of them so far."""
        self._noise: StepNoise | None = None
        self._steps_left = 0

    def next_step(self, noise: StepNoise, clip_norm: float, lease: int = 1) -> NoisePermit:
        """Return the permit of the next step, whose charge is made first unless the last one pays for it.

        The ledger reserves ``lease`` charges at a time.
        """
        refuse_forked(self._process)
        if self._steps_left and noise is not self._noise:
            raise PlanViolation("The last charge pays for further steps, of other noise.")
        if not self._steps_left:
            self.reserved = self._agree(lambda: self._of_ledger().next_step(noise.event, lease=lease))
            self._noise, self._steps_left = noise, noise.steps
        self._steps_left -= 1
        return NoisePermit(noise, clip_norm, self._stream, 1, _KEY)

    def up_to(self, step: int, noise: StepNoise, clip_norm: float, most: int) -> NoisePermit:
        """Return a permit after all charges up to number ``step`` are made; those left out are spent, too.

        Leases double from one, up to ``most`` charges: a run that is killed repeatedly never loses more steps than it
        completed. Several permits may be for one step, where each concerns other records.
        """
        refuse_forked(self._process)
        run = self._of_ledger()
        if step > self.reserved + 1:
            missing = step - run.reserved
            if missing > 0:
                run.reserve(missing, noise.event)
            self.reserved = step
        while self.reserved < step:
            lease = min(most, max(1, self.reserved - self.before))
            self.reserved = max(self.reserved, run.next_step(noise.event, lease=lease))
        return NoisePermit(noise, clip_norm, self._stream, 1, _KEY)

    def _of_ledger(self) -> Run:
        assert self._run is not None  # the process that decides has one
        return self._run


def _decide_alone(decide: Callable[[], int]) -> int:
    return decide()


def pay_at_once(
    till: Till,
    noise: StepNoise,
    clip_norm: float | None,
    stream: RandomStream,
    *,
    name: str,
    times: int | None = None,
    distance: float = 0.0,
) -> NoisePermit:
    """Charge once, or ``times`` times, in a run of this name, and return the permit of all steps that it pays for.

    Guarantee: the ledger has stored the reservation when this returns.
    """
    till.seeded = till.seeded or not stream.trusted
    till.pay(noise.event, times, name=name, distance=distance)
    return NoisePermit(noise, clip_norm, stream, (times or 1) * noise.steps, _KEY)
