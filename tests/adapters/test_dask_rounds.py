"""Rounds without a cluster: who is asked by which task, and what follows if answers are missing."""

import asyncio

import numpy as np
import pytest

from discreet.adapters.dask_rounds import Patience, Rounds
from discreet.core.noise import BoundedSum
from discreet.errors import PlanViolation
from discreet.linear.partition_results import PartitionReply, PartitionSums

PLACES = 7
LIKE = BoundedSum(np.zeros(1, np.int64), 1.0, grid=1.0)


class Future:
    def __init__(self, result, status="finished"):
        self.result, self.status = result, status

    def cancel(self):
        self.status = "cancelled"


class Client:
    """Runs every task at once. ``tamper(result)`` may change what a worker says."""

    status = "running"

    def __init__(self, threads, tamper=lambda result: result):
        self.threads, self.tamper, self.asked = threads, tamper, []

    def scheduler_info(self, n_workers):
        return {"workers": {name: {"nthreads": count} for name, count in self.threads.items()}}

    def submit(self, function, calls, workers, **more):
        self.asked.append((workers[0], [place for _, place, _ in calls]))
        return Future(self.tamper(function(calls)))

    async def gather(self, futures, asynchronous):
        return [future.result for future in futures]

    def sync(self, function, callback_timeout):
        return asyncio.run(function())


def round_of(rounds, release):
    """What a round adds up; partition p says 2**p, so that a sum tells who was counted, and how often."""

    def contribution(place, since):
        return PartitionReply("sum", place, release, np.array([2**place]), 1.0, 1.0)

    tally = PartitionSums(release, PLACES, LIKE, [10**9] * PLACES)
    rounds.ask(lambda place, since: (contribution, place, since), tally)
    return int(tally.total()[0])


def test_those_under_way_are_asked_by_one_task_for_each_thread():
    client = Client({"a": 2, "b": 1})
    rounds = Rounds(client, "fit", Patience(5.0, 2))
    everybody = 2**PLACES - 1
    assert [round_of(rounds, release) for release in range(2)] == [everybody] * 2
    assert sorted(client.asked[:PLACES]) == [("a", [k]) for k in (0, 2, 4, 6)] + [
        ("b", [k]) for k in (1, 3, 5)
    ]
    client.asked.clear()
    assert round_of(rounds, 2) == everybody
    assert client.asked == [("a", [0, 4]), ("a", [2, 6]), ("b", [1, 3, 5])]


def test_who_is_left_out_of_an_answer_is_asked_again():
    client = Client({"a": 1})
    rounds = Rounds(client, "fit", Patience(5.0, 2))
    for release in range(2):
        round_of(rounds, release)
    client.tamper = lambda result: result[:-1] if len(result) > 1 else result
    client.asked.clear()
    assert round_of(rounds, 2) == 2**PLACES - 1
    assert client.asked == [("a", list(range(PLACES))), ("a", [PLACES - 1])]


def test_an_answer_for_another_partition_is_not_its_own():
    """A worker that says the first one's sum for all leaves the others missing: nothing is released."""
    client = Client({"a": 1}, tamper=lambda result: [result[0]._replace(place=0, counts=np.array([1]))])
    with pytest.raises(PlanViolation, match="did not answer 2 times"):
        round_of(Rounds(client, "fit", Patience(5.0, 2)), 0)


def test_a_task_that_is_lost_is_asked_again_by_partition():
    client = Client({"a": 1})
    rounds = Rounds(client, "fit", Patience(5.0, 2))
    for release in range(2):
        round_of(rounds, release)
    client.asked.clear()
    honest = client.submit

    def submit(function, calls, **more):
        found = honest(function, calls, **more)
        return Future(None, "error") if len(calls) > 1 else found

    client.submit = submit
    assert round_of(rounds, 2) == 2**PLACES - 1
    assert client.asked == [("a", list(range(PLACES))), *(("a", [place]) for place in range(PLACES))]
