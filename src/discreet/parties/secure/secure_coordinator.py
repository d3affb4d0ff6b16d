"""The coordinator's side of a secure sum: :class:`SecureCoordinator`.

No guarantee rests on it. A party takes every message of the coordinator for one that may be invented: see
:mod:`discreet.parties.secure.secure_sum`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation, whole
from discreet.parties.secure.masks import KEY, WORD, add_mask
from discreet.parties.secure.secure_group import SecureGroup, flags, seeds_to_reveal
from discreet.parties.secure.secure_sum import sign_of
from discreet.parties.secure.shares import PRIME, SEALED, SHARE


class SecureCoordinator:
    """The coordinator: it introduces the parties to one another, collects masked vectors, and learns their sum.

    ``largest`` bounds every coordinate of an honest sum (:func:`~discreet.core.noise_shares.largest_sum`).
    What is not of the right form counts as missing. Where too few remain, :class:`PlanViolation` says so before
    anything is unmasked, and the round is lost.
    """

    def __init__(self, group: SecureGroup, dimension: int, largest: int) -> None:
        self._group = group
        self.expect(dimension, largest)
        self._names: list[str] = []
        self._survivors: list[str] = []
        self._vector = np.zeros(0, WORD)

    def expect(self, dimension: int, largest: int) -> None:
        """From now on add up vectors of another length, or with another bound."""
        self._dimension = whole("dimension", dimension, at_least=1)
        remedy = "Sums must fit 64 bits with their sign."
        self._largest = whole("largest", largest, at_least=1, at_most=2**63 - 1, remedy=remedy)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Whose vectors are in the sum that was requested last."""
        return tuple(self._survivors)

    def introduce(self, advertisements: Mapping[str, bytes]) -> bytes:
        """The message that begins a session of those whose advertisements came, the same for all of them."""
        known = self._group.names
        present = [name for name in known if self._group.vouches(name, advertisements.get(name, b""))]
        self._enough(present)
        self._names, self._survivors = present, []
        return b"".join((flags(present, known), *(advertisements[name] for name in present)))

    def request(self, masked: Mapping[str, bytes]) -> bytes:
        """The one request that unmasks the sum of ``masked``, the same for all who sent them."""
        size, width = self._dimension * WORD.itemsize, len(self._names)
        length = size + width * width * SEALED
        survivors = [name for name in self._names if len(masked.get(name, b"")) == length]
        self._enough(survivors)
        self._vector = np.zeros(self._dimension, WORD)
        parts = [flags(survivors, self._names)]
        holders = [self._names.index(name) for name in survivors]
        for name in survivors:
            self._vector += np.frombuffer(masked[name], WORD, count=self._dimension)
            pieces = np.frombuffer(masked[name], np.uint8, offset=size).reshape(width, width, SEALED)
            parts.append(pieces[np.ix_(holders, seeds_to_reveal(name, survivors, self._names))].tobytes())
        self._survivors = survivors
        return b"".join(parts)

    def total(self, answers: Mapping[str, bytes]) -> NDArray[np.int64]:
        """The sum of the survivors' vectors.

        Guarantee: exact, if every coordinate of the true sum is at most ``largest`` and the answers are honest.
        """
        survivors, lost = self._survivors, len(self._names) - len(self._survivors)
        length = len(survivors) * (1 + lost) * SHARE
        speakers = [name for name in survivors if len(answers.get(name, b"")) == length]
        self._enough(speakers)
        rows = {
            1 + self._names.index(name): [answers[name][at : at + SHARE] for at in range(0, length, SHARE)]
            for name in speakers[: self._group.threshold]
        }
        seeds = iter(join_shares(rows))
        self._survivors = []
        for name in survivors:
            for place in seeds_to_reveal(name, survivors, self._names):
                add_mask(self._vector, next(seeds), -sign_of(name, self._names[place]))
        total = self._vector.astype(np.int64)
        if total.max() > self._largest or total.min() < -self._largest:
            raise PlanViolation("The sum is larger than honest parties can make it; the round is lost.")
        return total

    def _enough(self, present: Sequence[str]) -> None:
        if len(present) < self._group.threshold:
            needed = f"{len(present)} parties remain where {self._group.threshold} are needed"
            raise PlanViolation(f"{needed}; nothing was unmasked.")


def join_shares(rows: Mapping[int, Sequence[bytes]]) -> list[bytes]:
    """The secrets, from the rows of as many holders as the threshold, by interpolation at 0.

    Shares that do not belong together give other numbers; those that no secret can be are refused.
    """
    weights = [_weight(holder, rows) for holder in rows]
    columns = zip(*rows.values(), strict=True)
    numbers = [
        sum(weight * int.from_bytes(share, "big") for weight, share in zip(weights, column, strict=True))
        % PRIME
        for column in columns
    ]
    if any(number >> 8 * KEY for number in numbers):
        raise PlanViolation("The shares of the parties do not belong together; the round is lost.")
    return [number.to_bytes(KEY, "big") for number in numbers]


def _weight(holder: int, holders: Mapping[int, object]) -> int:
    """What the value at ``holder`` counts in the value at 0."""
    above = below = 1
    for other in holders:
        if other != holder:
            above, below = above * other, below * (other - holder)
    return above * pow(below, -1, PRIME) % PRIME
