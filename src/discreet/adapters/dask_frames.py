"""Dask frames: partitions that lie in the memory of a cluster, and stay there: :class:`FrameOnCluster`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from discreet.adapters.dask_rounds import Rounds
from discreet.linear.frame_parts import (
    Description,
    Descriptions,
    FramePart,
    Frames,
    describe_frame,
    empty_frame,
)
from discreet.linear.partition_results import PartitionReply
from discreet.linear.user_routing import Share


class FrameOnCluster(Frames):
    """A Dask frame. Its partitions are computed once, and workers are asked where they lie."""

    def __init__(self, client: Any, frame: Any) -> None:
        super().__init__((), empty_frame(frame))
        self._client, self._frame = client, frame
        self._futures: list[Any] = []

    def compute(self, rounds: Rounds) -> None:
        """Let the cluster compute the partitions, and hear of each what rows it has."""
        self._futures = self._client.compute(self._frame.to_delayed())
        found = Descriptions(len(self._futures))
        rounds.ask(lambda place, since: (_describe, place, self._futures[place]), found)
        self.parts = tuple(found.parts())

    def seats(self) -> dict[int, str]:
        """A worker for each partition that has it already."""
        where = self._client.who_has(self._futures)
        return {place: where[one.key][0] for place, one in enumerate(self._futures) if where.get(one.key)}

    def call(self, function: Callable[[Any], PartitionReply], task: Any) -> tuple[Any, ...]:
        """What a worker is to call, with the rows of all partitions that its share of the table reads."""
        share: Share = task.share
        places = sorted({share.place, *(() if share.route is None else share.route.files)})
        return _with_rows, function, task, places, [self._futures[place] for place in places]


_LOGS = ("distributed.worker", "distributed.core", "distributed.protocol.core", "distributed.protocol.pickle")


class _NoRecords(logging.Filter):
    """Leaves out what a failed task was called with and what it raised."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or "Failed" in str(record.msg):
            record.msg, record.args = "A task failed. What it raised is left out: it may quote a record.", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True


def quiet_logs() -> None:
    """Let the logs of this process tell of no record. Runs on workers, once or often."""
    for name in _LOGS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _NoRecords) for known in logger.filters):
            logger.addFilter(_NoRecords())


def quiet_workers(plugin: Any) -> Any:
    """A ``plugin`` of Dask that makes the logs of all workers quiet, also of those that come later."""

    class QuietWorkers(plugin):
        name = "discreet-quiet-logs"

        def setup(self, worker: Any) -> None:
            quiet_logs()

    return QuietWorkers()


def _describe(place: int, frame: Any) -> PartitionReply:
    return describe_frame(Description(place, frame))


def _with_rows(
    function: Callable[[Any], PartitionReply], task: Any, places: list[int], frames: list[Any]
) -> PartitionReply:
    """Runs on a worker, which was sent the rows."""
    rows = dict(zip(places, frames, strict=True))

    def fill(place: int, part: Any) -> FramePart:
        return part._replace(frame=rows[place])  # type: ignore[no-any-return]

    share: Share = task.share
    if share.route is not None:
        parts = tuple(map(fill, share.route.files, share.route.parts))
        share = share._replace(route=share.route._replace(parts=parts))
    return function(task._replace(share=share._replace(part=fill(share.place, share.part))))
