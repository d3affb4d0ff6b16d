"""A cluster without one: all workers in this process."""

import os

import numpy as np
import pandas as pd

from discreet.linear import Partitions, PrivateLogisticRegression
from discreet.linear.gate.partitioned_rows import PartitionedTable
from discreet.linear.partition_answers import PartitionTask, Reading, answer
from discreet.linear.partition_results import PartitionSums
from discreet.linear.public_log import PublicLog
from discreet.linear.user_routing import Ids, Share, UserCounts, UserCountTask, count_users, route_users


def model(make=PrivateLogisticRegression, **more):
    return make(1.0, bounds=(0, 10), unsafe_seed=5, **more)


def written(folder, rows=(700, 0, 500, 301)):
    """Files of so many rows, in each of which a cell is missing."""
    rng = np.random.default_rng(0)
    for number, count in enumerate(rows):
        x = rng.random((count, 3)) * 10
        y = (x[:, 0] - x[:, 1] + rng.logistic(size=count) > 0).astype(np.int64)
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y})
        if count:
            frame.loc[1, "b"] = np.nan
        frame.to_parquet(folder / f"part-{number}.parquet", index=False)
    return Partitions(folder / "part-*.parquet")


def for_workers(fitted):
    return type(fitted)(**(fitted.get_params(deep=False) | {"ledger": None, "unsafe_seed": None}))


def shares_of(partitions, column=None):
    """What each partition adds up."""
    shares = [Share(place, part) for place, part in enumerate(partitions.parts)]
    if column is None:
        return shares
    ids, register = Ids(column, b"a key"), UserCounts([part.rows for part in partitions.parts])
    for share in shares:
        register.add(count_users(UserCountTask(share, ids)))
    routes = route_users(register.answers(), ids, partitions.parts)
    return [share._replace(route=route) for share, route in zip(shares, routes, strict=True)]


class Here:
    """The engine. ``tamper`` may change what is asked and answered; ``questions`` are all that were asked."""

    def __init__(self, partitions, log=None, tamper=None, run="fit-0"):
        self.partitions, self.tamper = partitions, tamper
        self.log, self.run, self.asked, self.questions = log, run, 0, []

    def fit(self, fitted, partitions, target):
        unit, reading = fitted._unit(), Reading(for_workers(fitted), target)
        log = PublicLog(self.log, self.run, partitions.digest())
        shares = shares_of(partitions, None if unit is None else unit.column)
        name = f"{log.run}-{os.urandom(4).hex()}"  # that no driver had before

        def ask(question, tally):
            self.questions.append(question)
            for share in shares:
                self.asked += 1
                task = PartitionTask(name, share, reading, question)
                for found in [answer(task)] if self.tamper is None else self.tamper(task):
                    tally.add(found)

        table = PartitionedTable([share.rows for share in shares], ask)
        with log.lock():
            fitted._fit(partitions.without_rows(), target, None, None, None, partitions=table, log=log)

    def total(self, partitions, column, ask, like, public):
        shares = shares_of(partitions, column)
        tally = PartitionSums(0, len(shares), like, [share.rows for share in shares], public)
        for share in shares:
            function, task = ask(share)
            tally.add(function(task))
        return tally.total()
