"""A cluster without one: all workers in this process."""

import numpy as np
import pandas as pd

from discreet.linear import Partitions, PrivateLogisticRegression
from discreet.linear.contributions import Task, contribution
from discreet.linear.homes import Census, Ids, Register, homes_of, people_in
from discreet.linear.public_log import Gathering, PublicLog
from discreet.linear.spool import spooled
from discreet.linear.storage import Storage


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


def homes_in(partitions, column):
    """Where everybody is added up."""
    ids = Ids(column, b"a key")
    register = Register([part.rows for part in partitions.parts])
    for place, part in enumerate(partitions.parts):
        register.add(people_in(Census(place, part, ids)))
    return homes_of(register.answers(), ids, partitions.parts)


class Here:
    """The engine. ``tamper`` may change what is asked and answered."""

    def __init__(self, partitions, target="label", log=None, tamper=None, run="fit-0"):
        self.partitions, self.target, self.tamper = partitions, target, tamper
        self.log, self.run, self.asked, self.values = log, run, 0, []

    def fit(self, fitted, partitions, target):
        columns, unit = fitted._to_read(partitions.first(), target, target=target is None), fitted._unit()
        workers, log = for_workers(fitted), PublicLog(self.log, self.run, partitions.digest())
        homes = None if unit is None else homes_in(partitions, unit.column)

        def ask(release, values, tally):
            for place, part in enumerate(partitions.parts):
                self.asked += 1
                home = None if homes is None else homes[place]
                task = Task(log.run, release, place, part, workers, target, 0, tuple(values), home)
                for answer in [contribution(task)] if self.tamper is None else self.tamper(task):
                    tally.add(answer)

        empty = spooled((), columns, Storage())
        rows = [part.rows for part in partitions.parts] if homes is None else [home.rows for home in homes]
        with log.lock():
            fitted._fit(empty, target, None, None, None, elsewhere=Gathering(rows, log, ask))
        self.values = log.values
