"""Frames of every kind that estimators are given, each made from columns by name."""

import numpy as np
import pandas
import polars


class Column:
    """A column as pyarrow has it."""

    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return np.array(self._values, object)


class ArrowTable:
    """What is used of a pyarrow table, which calls its columns otherwise than pandas and polars do."""

    def __init__(self, columns):
        self._columns = columns
        self.column_names = list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return Column(self._columns[name])

    def take(self, rows):
        return ArrowTable({name: [values[row] for row in rows] for name, values in self._columns.items()})


FRAMES = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": ArrowTable}
