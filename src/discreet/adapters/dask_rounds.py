"""Rounds of questions to the partitions of a table on a Dask cluster: :class:`Rounds`.

A task is a pure function: whoever does not answer is asked again, elsewhere, and what comes twice must be the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from discreet.errors import PlanViolation
from discreet.linear.roll_call import Answer, Roll

_LOOK = 0.25  # seconds between two looks at who is still there
_FETCH = 2.0  # seconds that an answer may take on its way, before it is looked for again
_LOST = ("error", "lost", "cancelled")
_GONE = "The scheduler is gone; nothing more is released."

Ask = Callable[[int, int], tuple[Any, ...]]
"""For a partition, and how many values its worker has seen: the function that a worker calls, and with what."""


class Patience(NamedTuple):
    """How many seconds a partition has to answer, and how often it is asked for one release."""

    deadline: float
    attempts: int


class Rounds:
    """Asks all partitions, round after round; each stays with the worker that has its rows."""

    def __init__(self, client: Any, name: str, patience: Patience) -> None:
        self._client, self.name, self._patience = client, name, patience
        self._seats: dict[int, str] = {}  # the worker of each partition
        self._told: dict[int, int] = {}  # how many values it has seen
        self._number = 0

    def ask(self, ask: Ask, roll: Roll) -> None:
        """Let the roll have all answers."""
        self._number += 1
        try:
            self._ask(ask, roll)
        except OSError:  # as Dask calls it if nobody is there any more
            raise PlanViolation(_GONE) from None

    def sit(self, seats: dict[int, str]) -> None:
        """Ask these workers for these partitions, as long as they are there."""
        self._seats.update(seats)

    def _ask(self, ask: Ask, roll: Roll) -> None:
        late: list[Any] = []
        behind = attempt = 0
        while roll.missing:
            if attempt >= self._patience.attempts + behind:
                raise PlanViolation(
                    f"Partitions {roll.missing[:5]} did not answer {self._patience.attempts} times; nothing is "
                    "released. With a log the fit can go on later."
                )
            workers = self._workers()
            futures = {place: self._submit(ask, place, attempt, workers) for place in roll.missing}
            behind += self._collect(futures, roll)
            late.extend(futures.values())
            attempt += 1
        self._compare(late, roll)

    def _compare(self, late: list[Any], roll: Roll) -> None:
        """What came late counts too: it must say the same."""
        for answer in self._answers(dict(enumerate(late))).values():
            roll.add(answer)
        for future in late:
            if future.status == "pending":
                future.cancel()

    def _submit(self, ask: Ask, place: int, attempt: int, workers: list[str]) -> Any:
        seat = self._seats.get(place)
        if seat not in workers:
            self._seats[place] = seat = workers[place % len(workers)]
            self._told[place] = 0
        call = ask(place, self._told.get(place, 0) if attempt == 0 else 0)
        key = f"discreet-{self.name}-{self._number}-{place}-{attempt}"
        return self._client.submit(
            *call, key=key, workers=[seat], allow_other_workers=False, pure=False, retries=0
        )

    def _workers(self) -> list[str]:
        until = time.monotonic() + self._patience.deadline
        while True:
            if self._client.status == "closed":
                raise PlanViolation(_GONE)
            workers = sorted(self._client.scheduler_info(n_workers=-1).get("workers", ()))
            if workers:
                return workers
            if time.monotonic() > until:
                raise PlanViolation("The cluster has no workers; nothing is released.")
            time.sleep(_LOOK)

    def _collect(self, futures: dict[int, Any], roll: Roll) -> int:
        """Wait for answers until all are there, their workers are gone, or the deadline has passed.

        What was answered is taken out of ``futures``. Says 1 if some worker had lost what it was told before, so that
        asking again is no failed attempt.
        """
        until, behind, open_ = time.monotonic() + self._patience.deadline, 0, set(futures)
        looked = time.monotonic()
        while open_ and time.monotonic() < until:
            done = {place: futures[place] for place in open_ if futures[place].status != "pending"}
            for place, answer in self._answers(done).items():
                open_.discard(place)
                del futures[place]
                self._told[place] = answer.release if answer.code == "sum" else 0
                behind = behind or int(answer.code == "behind")
                roll.add(answer)
            if time.monotonic() - looked > _LOOK:
                looked, workers = time.monotonic(), set(self._workers())
                open_ = {place for place in open_ if self._seats[place] in workers}
            time.sleep(0.005)
        for place in open_:
            self._seats.pop(place)  # it may be stuck: another one is asked
        return behind

    def _answers(self, futures: dict[int, Any]) -> dict[int, Answer]:
        """What workers said, fetched at once; nothing of those whose answers are not to be had just now."""
        found = {
            place: Answer("lost", place, -1) for place, future in futures.items() if future.status in _LOST
        }
        there = {place: future for place, future in futures.items() if future.status == "finished"}
        if not there:
            return found

        async def fetch() -> dict[int, Answer]:
            return await self._client.gather(there, asynchronous=True)  # type: ignore[no-any-return]

        with suppress(
            Exception, asyncio.CancelledError
        ):  # a worker is gone with its answer: the next look shows it
            found |= self._client.sync(fetch, callback_timeout=_FETCH)
        return found
