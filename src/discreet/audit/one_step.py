"""The simplest attack: one release, called many times on two neighbouring data sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from discreet.audit.bounds import Evidence, Method, Told, Trials, between
from discreet.audit.claims import Claim
from discreet.audit.tradeoff_bound import Floats
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, real, whole

Score = Callable[[Floats], ArrayLike]

_FAR = 1e300  # the score of a release that is not a number, which tells all there is to tell


@dataclass(frozen=True, eq=False)
class OneStep(Method):
    """Call the release many times on two neighbouring data sets, and tell them apart.

    The subject is ``release(world, draws)``: ``world`` 0 is without the record (or with the first one), 1 is with
    it (or with the second one); it returns ``draws`` independent releases, shape (draws,) or (draws, d).
    ``direction`` is how the record moves a release before noise, up to a factor; without it, it is learned.
    ``score`` replaces the projection on it by any function of the releases, one number for each. One draw in a
    hundred is for the pilot, which finds the direction and the threshold; the others are counted. With a
    ``threshold`` of the score, which is above it where the record was used, nothing has to be found. ``group`` is by
    how many records the two data sets differ; the bound is for as many as the claim protects all the same.
    """

    draws: int = 100_000
    direction: ArrayLike | None = None
    score: Score | None = None
    at_once: int = 10_000
    group: int = 1
    threshold: float | None = None
    name: ClassVar[str] = "one step"

    def __post_init__(self) -> None:
        whole("draws", self.draws, at_least=2 * self._fewest)
        whole("at_once", self.at_once, at_least=1)
        whole("group", self.group, at_least=1, at_most=10_000)
        if self.threshold is not None:
            real("threshold", self.threshold)
            if self.score is None:
                raise InvalidParameter("threshold", self.threshold, "is one of a score; give that, too.")

    @property
    def calls(self) -> int:
        return 2 * sum(len(self._sizes(draws)) for draws in (self._pilot, self.draws - self._pilot))

    @property
    def assumptions(self) -> str:
        return "The draws are independent of each other."

    def play(
        self, train: Callable[..., Any], claim: Claim, confidence: float, stream: RandomStream, told: Told
    ) -> Evidence:
        done = 0

        def releases(world: int, draws: int, score: Score | None) -> Floats:
            nonlocal done
            found = []
            for size in self._sizes(draws):
                seen = _rows(train(world, size), size)
                found.append(seen if score is None else _numbers(score(seen), size))
                done += 1
                told(done, self.calls)
            return np.concatenate(found)

        if self.score is not None and self.threshold is not None:
            without, used = (releases(world, self.draws, self.score) for world in (0, 1))
            return Trials.count(used, without, self.threshold)
        pilot = [releases(world, self._pilot, None) for world in (0, 1)]
        score = self.score or _projection(self._direction(*pilot))
        sign, middle = between(*(_numbers(score(seen), len(seen)) for seen in pilot))
        without, used = (releases(world, self.draws - self._pilot, score) for world in (0, 1))
        return Trials.count(sign * used, sign * without, sign * middle)

    @property
    def _pilot(self) -> int:
        if self.threshold is not None:
            return 0
        return max(self._fewest, self.draws // 100)

    @property
    def _fewest(self) -> int:
        """Draws of the pilot: a threshold is found sooner than a direction."""
        return 100 if self.direction is None and self.score is None else 25

    def _sizes(self, draws: int) -> list[int]:
        return [min(self.at_once, draws - start) for start in range(0, draws, self.at_once)]

    def _direction(self, without: Floats, used: Floats) -> Floats:
        if self.direction is None:
            return np.asarray(used.mean(axis=0) - without.mean(axis=0))
        direction = np.asarray(self.direction, dtype=float).reshape(-1)
        if direction.shape == without.shape[1:] and np.isfinite(direction).all() and direction.any():
            return direction
        raise InvalidParameter(
            "direction", self.direction, f"must be {without.shape[1]} finite numbers, not all zero."
        )


def _projection(direction: Floats) -> Score:
    largest = np.abs(direction).max()
    unit = direction / largest if largest > 0 else np.ones_like(direction)
    return lambda seen: seen @ unit


def _rows(returned: Any, draws: int) -> Floats:
    seen = np.asarray(returned, dtype=float)
    if seen.ndim == 0 or seen.shape[0] != draws:
        raise InvalidParameter("release", seen.shape, f"must return {draws} releases, one in each row.")
    return np.asarray(np.nan_to_num(seen.reshape(draws, -1), nan=_FAR, posinf=_FAR, neginf=-_FAR))


def _numbers(scores: ArrayLike, draws: int) -> Floats:
    found = np.asarray(scores, dtype=float)
    if found.shape != (draws,):
        raise InvalidParameter("score", found.shape, f"must return {draws} numbers, one for each release.")
    return np.asarray(np.nan_to_num(found, nan=_FAR, posinf=_FAR, neginf=-_FAR))
