"""Mixtures of Gaussians: a record, or a person, moves the sum by one of several amounts, each with a probability."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from discreet.accounting.pairs import Array, GroupPair


@dataclass(frozen=True)
class MixturePair(GroupPair):
    """sum_i weights_i N(shifts_i, noise^2) against N(0, noise^2): the direction in which P has the record.

    It dominates all contributions of norm at most shifts_i with probability weights_i, independent of the others: the
    inner products of the shifts are extreme together when they are collinear. Binomial weights are a group.
    """

    shifts: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, noise: float, shifts: tuple[float, ...], weights: tuple[float, ...]) -> MixturePair:
        """``shifts`` increase from 0 or more, ``weights`` are positive and add up to 1."""
        return cls(noise, 0.5, max(1, math.ceil(shifts[-1])), 0, shifts, weights)

    def _mixture(self, size: int) -> tuple[Array, Array]:
        if size == 0:
            return np.zeros(1), np.ones(1)
        return np.array(self.shifts), np.array(self.weights)

    def _limits(self) -> tuple[float, float]:
        return (math.log(self.weights[0]) if self.shifts[0] == 0 else -np.inf), np.inf
