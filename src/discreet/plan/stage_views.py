"""Numbers that follow from a stage, for optimizers and for people.

A sum is divided, and a learning rate chosen, after its noise was added. Nothing that is sampled, charged or drawn
comes from here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from discreet.core.matrix_mechanism_error import error_of_iterates, gain_of_noise
from discreet.errors import real, whole

USUAL_LENGTH = 4.0
"""Of the initial weights of a small network, all together, where nobody says how long they are."""
LENGTHS = (2.0, 14.0)
"""Between these the length of the initial weights counts: from zero a model has to move, too, and one that has learnt
before is not to be overrun."""
LONGEST_STEPS = (0.125, 0.4)
"""The largest learning rate for gradients of length one, in lengths of the initial weights, where noise allows it: of
many steps, and of few, which have to go as far."""
LONGEST_WAY = 68.0
"""So many lengths all steps may go together, where that makes steps longer than those of many."""


class StageViews(ABC):
    """Derived numbers of a stage."""

    sampling: str
    records: int
    batch_size: int
    steps: int
    clip_norm: float
    noise_multiplier: float
    bands: int

    @property
    @abstractmethod
    def steps_per_charge(self) -> int:
        """How many steps the smallest accountable event spans."""

    @property
    def whole_charges(self) -> str:
        """The requirement that a number of steps is a multiple of :attr:`steps_per_charge`, in words."""
        if self.sampling == "random-allocation":
            return f"random allocation runs whole epochs of {self.steps_per_charge} steps"
        return (
            f"correlated noise runs whole windows of {self.steps_per_charge} steps, as many as it has bands"
        )

    @property
    def rate(self) -> float:
        """The chance of one record to be in a batch."""
        return self.divisor / self.records

    @property
    def divisor(self) -> float:
        """What every sum is divided by: the expected batch size, whatever a batch turns out to hold."""
        if self.sampling == "random-allocation":
            return self.records / self.steps_per_charge
        return float(self.batch_size)

    @property
    def epochs(self) -> float:
        """How often a record takes part, on average."""
        return self.steps * self.rate

    @property
    def noise_std_of_sum(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return (
            self.noise_multiplier * self.clip_norm * (1.0 if self.bands == 1 else gain_of_noise(self.bands))
        )

    @property
    def noise_std_of_mean(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum divided by the divisor."""
        return self.noise_std_of_sum / self.divisor

    def learning_rate(self, parameters: int, length: float = USUAL_LENGTH) -> float:
        """A learning rate for SGD with momentum 0.9 that falls to zero in a cosine, from public numbers alone.

        The noise of all steps moves ``parameters`` weights by about ``noise_std_of_mean * sqrt(parameters * steps)``
        times the learning rate; this makes it as much as the ``length`` of the initial weights, the root of the sum
        of their squares, within :data:`LENGTHS`. No step is longer than :data:`LONGEST_STEPS` of that length. It
        suits gradients that are all as long as the clip norm, as ``Normalised`` makes them.
        """
        count = whole("parameters", parameters, at_least=1)
        least, most = LENGTHS
        length = min(max(real("length", length, at_least=0), least), most)
        noise = self.noise_multiplier * self.clip_norm / self.divisor
        if self.bands > 1:
            noise *= error_of_iterates(self.bands, self.steps) / error_of_iterates(1, self.steps)
        by_noise = length / (noise * math.sqrt(count * self.steps))
        of_many, of_few = LONGEST_STEPS
        longest = min(of_few, max(of_many, LONGEST_WAY / self.steps))
        return min(by_noise, longest * length / self.clip_norm)
