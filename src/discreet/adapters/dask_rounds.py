"""Rounds of questions to the partitions of a table on a Dask cluster: :class:`Rounds`.

A task is a pure function: whoever does not answer is asked again, elsewhere, and what comes twice must be the same.
Most of what a round costs is the scheduler's work for each task: so partitions that are under way are asked
together, by one task for each thread of their worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from discreet.errors import PlanViolation
from discreet.linear.partition_results import PartitionReply, PartitionResults

_LOOK = 0.25  # seconds between two looks at who is still there
_PAUSE, _LONGER = 0.002, 1.05  # seconds between two looks for answers at first, and how much longer each time
_FETCH = 2.0  # seconds that an answer may take on its way, before it is looked for again
_LOST = ("error", "lost", "cancelled")
_GONE = "The scheduler is gone; nothing more is released."

Ask = Callable[[int, int], tuple[Any, ...]]
"""For a partition, and how many values its worker has seen: the function that a worker calls, and with what."""


class Patience(NamedTuple):
    """How many seconds a partition has to answer, and how often it is asked for one release."""

    deadline: float
    attempts: int


Places = tuple[int, ...]
"""Partitions that are asked by one task."""


class Rounds:
    """Asks all partitions, round after round; each stays with the worker that has its rows."""

    def __init__(self, client: Any, name: str, patience: Patience) -> None:
        self._client, self.name, self._patience = client, name, patience
        self._seats: dict[int, str] = {}  # the worker of each partition
        self._told: dict[int, int] = {}  # how many values it has seen
        self._number = 0

    def ask(self, ask: Ask, roll: PartitionResults) -> None:
        """Let the roll have all answers."""
        self._number += 1
        try:
            self._ask(ask, roll)
        except OSError:  # as Dask calls it if nobody is there any more
            raise PlanViolation(_GONE) from None

    def sit(self, seats: dict[int, str]) -> None:
        """Ask these workers for these partitions, as long as they are there."""
        self._seats.update(seats)

    def _ask(self, ask: Ask, roll: PartitionResults) -> None:
        late: list[tuple[Places, Any]] = []
        behind = attempt = 0
        while roll.missing:
            if attempt >= self._patience.attempts + behind:
                raise PlanViolation(
                    f"Partitions {roll.missing[:5]} did not answer {self._patience.attempts} times; nothing is "
                    "released. With a log the fit can go on later."
                )
            workers = self._workers()
            futures = dict(self._submit_tasks(ask, roll.missing, attempt, workers))
            behind += self._collect(futures, roll)
            late.extend(futures.items())
            attempt += 1
        self._compare(late, roll)

    def _compare(self, late: list[tuple[Places, Any]], roll: PartitionResults) -> None:
        """What came late counts too: it must say the same."""
        for places, future in late:
            for answer in self._answers({places: future}).get(places, ()):
                roll.add(answer)
        for _, future in late:
            if future.status == "pending":
                future.cancel()

    def _submit_tasks(
        self, ask: Ask, missing: list[int], attempt: int, workers: dict[str, int]
    ) -> Iterator[tuple[Places, Any]]:
        """A task for each partition that has to begin, and for those under way one for each thread of a worker."""
        under_way: dict[str, list[int]] = {}
        for place in missing:
            seat = self._seat_of(place, workers)
            if attempt or not self._told.get(place):
                yield (place,), self._submit([ask(place, 0)], f"{place}-{attempt}", seat)
            else:
                under_way.setdefault(seat, []).append(place)
        for seat, places in under_way.items():
            threads = min(workers[seat], len(places))
            for some in (tuple(places[thread::threads]) for thread in range(threads)):
                yield (
                    some,
                    self._submit([ask(place, self._told[place]) for place in some], f"{some[0]}-on", seat),
                )

    def _seat_of(self, place: int, workers: dict[str, int]) -> str:
        """The worker of a partition."""
        seat = self._seats.get(place)
        if seat is None or seat not in workers:
            self._seats[place] = seat = sorted(workers)[place % len(workers)]
            self._told[place] = 0
        return seat

    def _submit(self, calls: list[tuple[Any, ...]], name: str, seat: str) -> Any:
        return self._client.submit(
            answers_to,
            [list(call) for call in calls],
            key=f"discreet-{self.name}-{self._number}-{name}",
            workers=[seat],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _workers(self) -> dict[str, int]:
        """Who is there, and how many threads each has."""
        until = time.monotonic() + self._patience.deadline
        while True:
            if self._client.status == "closed":
                raise PlanViolation(_GONE)
            workers = self._client.scheduler_info(n_workers=-1).get("workers", {})
            if workers:
                return {name: max(1, about.get("nthreads", 1)) for name, about in workers.items()}
            if time.monotonic() > until:
                raise PlanViolation("The cluster has no workers; nothing is released.")
            time.sleep(_LOOK)

    def _collect(self, futures: dict[Places, Any], roll: PartitionResults) -> int:
        """Wait for answers until all are there, their workers are gone, or the deadline has passed.

        What was answered is taken out of ``futures``. Says 1 if some worker had lost what it was told before, so that
        asking again is no failed attempt.
        """
        until, behind, open_ = time.monotonic() + self._patience.deadline, 0, set(futures)
        looked, pause = time.monotonic(), _PAUSE
        while open_ and time.monotonic() < until:
            done = {places: futures[places] for places in open_ if futures[places].status != "pending"}
            for places, answers in self._answers(done).items():
                open_.discard(places)
                del futures[places]
                for place, answer in zip(places, answers, strict=False):
                    self._told[place] = answer.release if answer.code == "sum" else 0
                    behind = behind or int(answer.code == "behind")
                    roll.add(answer)
            if time.monotonic() - looked > _LOOK:
                looked, workers = time.monotonic(), self._workers()
                open_ = {places for places in open_ if self._seats[places[0]] in workers}
            time.sleep(pause)
            pause = min(pause * _LONGER, _LOOK)
        for place in chain.from_iterable(open_):
            self._seats.pop(place)  # it may be stuck: another one is asked
        return behind

    def _answers(self, futures: dict[Places, Any]) -> dict[Places, list[PartitionReply]]:
        """What workers said, fetched at once; nothing of those whose answers are not to be had just now."""
        found = {
            places: [PartitionReply("lost", place, -1) for place in places]
            for places, future in futures.items()
            if future.status in _LOST
        }
        there = {places: future for places, future in futures.items() if future.status == "finished"}
        if not there:
            return found

        async def fetch() -> list[list[PartitionReply]]:
            return await self._client.gather(list(there.values()), asynchronous=True)  # type: ignore[no-any-return]

        with suppress(
            Exception, asyncio.CancelledError
        ):  # a worker is gone with its answer: the next look shows it
            found |= zip(there, self._client.sync(fetch, callback_timeout=_FETCH), strict=True)
        return found


def answers_to(calls: list[list[Any]]) -> list[PartitionReply]:
    """Runs on a worker: each call is a function and what it is called with."""
    return [function(*known) for function, *known in calls]
