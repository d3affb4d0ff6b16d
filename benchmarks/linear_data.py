"""The tables of the linear benchmark, encoded by public knowledge alone.

Every bound and every category below is written down here, never read off the records: numerics are clipped to
their bounds and scaled to [0, 1], categories become one-hot columns, and flags are categories of one column.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from discreet.linear.gate.declared_columns import Columns
from discreet.linear.losses import Logistic, Poisson, Softmax, Squared


class Table(NamedTuple):
    """Encoded records, a target in the loss's own terms, and how many records belong to the training part."""

    name: str
    loss: object
    x: np.ndarray
    y: np.ndarray
    columns: Columns
    train: int | None  # None: shuffle and take four fifths
    score: str


def scaled(values, lower, upper):
    """Numerics in [0, 1]."""
    return np.clip((np.asarray(values, float) - lower) / (np.asarray(upper, float) - lower), 0, 1)


def one_hot(values, categories):
    return (np.asarray(values)[:, None] == np.asarray(categories)).astype(float)


def table(name, loss, y, numerics, lower, upper, groups, train, score):
    numerics = scaled(numerics, np.asarray(lower, float), upper)
    x = np.hstack([numerics, *groups]).astype(np.float32)
    columns = Columns(numerics.shape[1], tuple(group.shape[1] for group in groups))
    return Table(name, loss, x, np.asarray(y), columns, train, score)


ADULT_NUMERICS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5000),
    "hours-per-week": (1, 99),
}
ADULT_CATEGORIES = (
    "workclass",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
)


def adult(folder):
    documented = {}
    for line in (folder / "adult" / "adult.names").read_text().splitlines():
        name, colon, values = line.partition(":")
        if colon and not line.startswith("|"):
            documented[name] = [*values.strip().rstrip(".").split(", "), "?"]
    parts = [_rows(folder / "adult" / name) for name in ("adult.data", "adult.test")]
    rows, train = parts[0] + parts[1], len(parts[0])
    column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    lower, upper = zip(*ADULT_NUMERICS.values(), strict=True)
    numerics = np.column_stack([column[name].astype(float) for name in ADULT_NUMERICS])
    lists = [(name, documented[name][: -1 if name in _COMPLETE else None]) for name in ADULT_CATEGORIES]
    groups = [one_hot(column[name], known) for name, known in lists]
    y = np.char.startswith(column["outcome"], ">50K").astype(int)
    return table("Adult", Logistic(), y, numerics, lower, upper, groups, train, "accuracy")


_COMPLETE = ("marital-status", "relationship", "race", "sex")


def credit(folder):
    rows = _rows(folder / "credit" / "UCI_Credit_Card.csv")
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    bounds = {"LIMIT_BAL": (0, 1e6), "AGE": (18, 100)}
    bounds |= {name: (-2, 9) for name in column if name.startswith("PAY_") and "AMT" not in name}
    bounds |= {name: (-2e5, 1e6) for name in column if name.startswith("BILL_AMT")}
    bounds |= {name: (0, 1e6) for name in column if name.startswith("PAY_AMT")}
    groups = [one_hot(column["SEX"], [1, 2]), one_hot(column["EDUCATION"], range(7))]
    groups.append(one_hot(column["MARRIAGE"], range(4)))
    lower, upper = zip(*bounds.values(), strict=True)
    numerics = np.column_stack([column[name] for name in bounds])
    return table(
        "Credit", Logistic(), column["class"].astype(int), numerics, lower, upper, groups, None, "AUC"
    )


MISSING_BEDROOMS = 500  # in a block of houses whose bedrooms nobody counted


def housing(folder):
    bounds = {
        "longitude": (-125, -114), "latitude": (32, 42), "housing_median_age": (0, 52), "total_rooms": (0, 40_000),
        "total_bedrooms": (0, 7000), "population": (0, 40_000), "households": (0, 7000), "median_income": (0, 15),
    }  # fmt: skip
    rows = _rows(folder / "housing" / "housing.csv")
    numerics = np.array([[float(row[name] or MISSING_BEDROOMS) for name in bounds] for row in rows])
    seas = ["<1H OCEAN", "INLAND", "ISLAND", "NEAR BAY", "NEAR OCEAN"]
    groups = [one_hot([row["ocean_proximity"] for row in rows], seas)]
    y = scaled([float(row["median_house_value"]) for row in rows], 0, 500_001)
    lower, upper = zip(*bounds.values(), strict=True)
    return table("California", Squared(), y, numerics, lower, upper, groups, None, "R2")


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    mean = [30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]
    error = [3, 5, 25, 600, 0.04, 0.15, 0.4, 0.06, 0.08, 0.03]
    worst = [40, 50, 300, 4500, 0.25, 1.2, 1.5, 0.3, 0.7, 0.25]
    return table("breast_cancer", Logistic(), y, x, np.zeros(30), mean + error + worst, [], None, "accuracy")


def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return table("digits", Softmax(10), y, x, np.zeros(64), np.full(64, 16.0), [], None, "accuracy")


def rand_visits():
    from statsmodels.datasets import randhie

    data = randhie.load().data
    flags = ["idp", "hlthg", "hlthf", "hlthp"]
    bounds = {"lncoins": (0, 5), "lpi": (0, 8), "fmde": (0, 9), "physlm": (0, 1), "disea": (0, 60)}
    groups = [np.asarray(data[name], float)[:, None] for name in flags]
    numerics = np.column_stack([np.asarray(data[name], float) for name in bounds])
    lower, upper = zip(*bounds.values(), strict=True)
    y = np.clip(np.asarray(data["mdvis"], float), 0, 100)
    return table("RAND visits", Poisson(), y, numerics, lower, upper, groups, None, "D2")


def rand_people():
    """Whose each row of the visits is."""
    import statsmodels

    path = Path(statsmodels.__file__).parent / "datasets" / "randhie" / "src" / "randhie.csv"
    with path.open(newline="") as file:
        return np.array([row["zper"] for row in csv.DictReader(file)])


def _rows(path: Path):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file, skipinitialspace=True) if None not in row.values()]
