"""Do intervals of private models cover? Coverage, answered lines and width on real tables.

    python benchmarks/inference.py --data FOLDER [--fits 60] [--tables adult,credit] [--epsilons 1,2,8]
    python benchmarks/inference.py --populations [--fits 100] [--epsilons 2]

A table stands for its population: every fit is of as many records, or people, drawn with replacement. What an
interval has to cover is what the fit says it estimates, for the population: the coefficients at which its weighted,
clamped residuals add up to nothing, found here without noise. Two columns are added that mean nothing, a number and a
flag, drawn anew for every fit; how often their intervals leave out 0 is how often an effect is called that is none.

Six made-up populations of 10 000 records come after the real ones (--tables made): classes, numbers and counts, for
each one in which the model holds, and one in which it does not (bends, columns that act together, errors that grow).

``--populations`` asks for the truth itself: of twelve populations in which a linear model holds, with columns of
every kind, how often do 95 % intervals of a fit through the public interface hold the coefficients that made it?
"""

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import linear_data
from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear import (
    DeclarationWarning,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.glm import inference
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.typical_people import declared_rows
from discreet.linear.kernels.rowwise import LOGISTIC, SQUARED, times
from discreet.linear.losses import Logistic, Poisson, Squared
from discreet.trusted.spending import BudgetAllocator

TABLES = {
    "adult": linear_data.adult,
    "credit": linear_data.credit,
    "california": linear_data.housing,
    "rand": lambda folder: linear_data.rand_visits(),
    "people": lambda folder: (
        linear_data.rand_visits()
    ),  # the same rows, of people who are drawn with all of theirs
}
REACH, FARTHER = 1.6448536269514722, 1.959963984540054  # of 90 and of 95 % intervals
HEADS = (
    "table       ",
    "lines",
    "epsilon",
    "answered",
    "of columns",
    "covered +- error",
    "95 % cover +- error",
    "nulls called +- error",
    "width",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path)
    options.add_argument("--populations", action="store_true", help="the truth of twelve populations")
    options.add_argument("--records", type=int, default=20_000, help="of each of these populations")
    options.add_argument("--fits", type=int, default=60)
    options.add_argument("--tables", default=",".join([*TABLES, "made"]))
    options.add_argument("--epsilons", default="1,2,8")
    chosen = options.parse_args()
    if chosen.populations:
        for epsilon in map(float, chosen.epsilons.split(",")):
            print_populations(chosen.fits, epsilon, chosen.records)
        return
    if chosen.data is None:
        options.error("--data is needed, the folder of the real tables; or --populations.")
    print(
        f"{chosen.fits} fits each; wanted: answered .60 at epsilon 1, .95 at 8; covered .87 to .93, .93 to .97 of "
        "95 %; nulls .10\n"
    )
    print("  ".join(HEADS))
    for name in chosen.tables.replace("made", ",".join(MADE)).split(","):
        population = with_nulls(MADE[name]() if name in MADE else TABLES[name](chosen.data))
        for epsilon in map(float, chosen.epsilons.split(",")):
            ids = linear_data.rand_people() if name == "people" else None
            print(row(name, population, epsilon, chosen.fits, ids))
            sys.stdout.flush()


def row(name: str, population: Any, epsilon: float, fits: int, ids: Any) -> str:
    found = [one_fit(population, epsilon, number, ids) for number in range(fits)]
    width = np.median(np.concatenate([fit["widths"] for fit in found]))
    cells = (
        name,
        f"{np.mean([fit['lines'] for fit in found]):.0f}",
        f"{epsilon:g}",
        f"{np.mean([fit['answered'] for fit in found]):.2f}",
        f"{np.mean([fit['of_columns'] for fit in found]):.2f}",
        share([abs(fit["scores"]) < REACH for fit in found]),
        share([abs(fit["scores"]) < FARTHER for fit in found]),
        share([abs(fit["nulls"]) > REACH for fit in found]),
        f"{width:.2f}",
    )
    return "  ".join(f"{cell:>{len(head)}}" for cell, head in zip(cells, HEADS, strict=True))


def share(of_fits: list[Any]) -> str:
    """Of all lines of all fits; lines of one fit hang together, so the error is that of means over fits."""
    total = np.concatenate(of_fits).mean()
    sums = [one.sum() - total * len(one) for one in of_fits]
    error = np.sqrt(np.sum(np.square(sums))) / sum(len(one) for one in of_fits)
    return f"{total:.3f} +- {error:.3f}"


def made(loss: Any, holds: bool) -> Any:
    """A population of 10 000 records, with three numbers and a category, in which the model holds, or does not."""
    rng, size = np.random.default_rng(7), 10_000
    numbers, levels = rng.beta(2, 3, (size, 3)), rng.choice(4, size, p=[0.5, 0.3, 0.15, 0.05])
    score = numbers @ [2.0, -1.0, 0.5] + np.array([0.0, 0.4, -0.4, 0.8])[levels] - 0.6
    if not holds:
        score += 2 * (numbers[:, 0] - 0.4) ** 2 + numbers[:, 1] * (levels == 1)
    if isinstance(loss, Logistic):
        y = (rng.random(size) < 1 / (1 + np.exp(-score))).astype(float)
    elif isinstance(loss, Poisson):
        y = rng.poisson(np.exp(score) * (1 if holds else rng.gamma(2, 0.5, size))).astype(float)
    else:
        spread = 0.08 if holds else 0.03 + 0.2 * numbers[:, 0]
        y = np.clip(0.4 + 0.1 * score + spread * rng.normal(size=size), 0, 1)
    return linear_data.table(
        "made", loss, y, numbers, (0,) * 3, (1,) * 3, [np.eye(4)[levels]], None, "coverage"
    )


MADE = {
    f"{name}{'' if holds else '-bent'}": partial(made, loss, holds)
    for name, loss in {"classes": Logistic(), "numbers": Squared(), "counts": Poisson()}.items()
    for holds in (True, False)
}


def with_nulls(table: Any, seed: int = 0) -> Any:
    """The table with a number and a flag that mean nothing."""
    rng, columns = np.random.default_rng(seed), table.columns
    place, size = columns.numerics, len(table.x)
    number, flag = rng.beta(2, 5, size), rng.random(size) < 0.3
    x = np.column_stack([table.x[:, :place], number, flag, table.x[:, place:]]).astype(np.float32)
    return table._replace(x=x, columns=Columns(place + 1, (1, *columns.groups)))


def one_fit(population: Any, epsilon: float, number: int, ids: Any) -> dict[str, Any]:
    """One fit of records, or people, drawn from the population, beside what it estimates."""
    everybody = People.of(np.arange(len(population.y)) if ids is None else ids)
    drawn, owners = resampled(everybody, np.random.default_rng(1000 + number))
    people = None if ids is None else People.of(owners)
    y, first = np.asarray(population.y, float), population.columns.numerics - 1
    x = population.x[drawn]
    x[:, first : first + 2] = np.random.default_rng(2000 + number).permutation(x[:, first : first + 2])
    spending = BudgetAllocator(Budget(epsilon, 1e-6), stream=RandomStream(unsafe_seed=number))
    bounds = (0.0, 100.0) if population.loss.kind == "counts" else (0.0, 1.0)
    with Spy() as seen:
        fit = fit_glm(
            population.loss,
            x,
            y[drawn],
            population.columns,
            spending,
            None if people is None else people.weights(least=1),
            target_bounds=bounds,
            references={},
            people=people,
            averaging=1.0 if people is None else declared_rows(3).averaging,
        )
    truth, plain = estimand(seen, population.x, y, everybody)
    estimates, errors, resolved = fit.inference.estimate(np.eye(len(truth)))
    resolved[0] = False
    lines = fit.inference.lines
    null = [place + 1 for place, own in enumerate(lines.members) if own in ((first,), (first + 1,))]
    truth[null] = 0.0
    scores = (estimates - truth) / errors
    return {
        "lines": len(truth) - 1,
        "answered": resolved[1:].mean(),
        "of_columns": resolved.sum() / (population.columns.width - len(lines.references)),
        "scores": scores[resolved],
        "nulls": scores[[place for place in null if resolved[place]]],
        "widths": (errors / plain)[resolved],
    }


def resampled(people: People, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rows of as many people, drawn with replacement, and whose each of them is."""
    order, starts = people.order(), np.cumsum(people.rows) - people.rows
    drawn = rng.integers(len(people), size=len(people))
    counts = people.rows[drawn]
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(starts[drawn], counts) + places], np.repeat(np.arange(len(drawn)), counts)


class Population(NamedTuple):
    """A linear model that holds: its columns, their bounds, its coefficients, and how its targets are drawn."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    bounds: tuple[float, float] | None
    slopes: tuple[float, ...]
    target: str = "numbers"
    spread: Callable[[np.ndarray], np.ndarray | float] = lambda x: 1.0


def flags(rng: np.random.Generator, rows: int) -> np.ndarray:
    return (rng.random((rows, 3)) < [0.01, 0.03, 0.5]).astype(float)


def mixed(rng: np.random.Generator, rows: int) -> np.ndarray:
    """A log-normal number that is 0 for most, a count, a flag of 5 %."""
    gain = rng.lognormal(0, 0.8, rows) * (rng.random(rows) < 0.2)
    return np.column_stack([gain, rng.poisson(2, rows), rng.random(rows) < 0.05]).astype(float)


def alike(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Three exponential columns, two of which are correlated by .9."""
    x = rng.exponential(1.0, (rows, 3))
    x[:, 1] = 0.9 * x[:, 0] + math.sqrt(1 - 0.81) * x[:, 1]
    return x


def exponential(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.exponential(1.0, (rows, 3))


def log_normal(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.lognormal(0.0, 1.0, (rows, 3))


POPULATIONS = {
    "uniform": Population(lambda rng, rows: rng.random((rows, 3)), (0, 1), (2.0, -1.0, 0.0)),
    "normal": Population(lambda rng, rows: rng.normal(size=(rows, 3)), (-8, 8), (1.0, -0.5, 0.0)),
    "exponential": Population(exponential, (0, 20), (1.0, -0.5, 0.0)),
    "exponential, bounds learnt": Population(exponential, None, (1.0, -0.5, 0.0)),
    "log-normal": Population(log_normal, (0, 100), (0.5, -0.25, 0.0)),
    "heavy-tailed (t3)": Population(
        lambda rng, rows: rng.standard_t(3, (rows, 3)), (-100, 100), (1.0, -0.5, 0.0)
    ),
    "mixed": Population(mixed, (0, 50), (0.5, -0.3, 1.0)),
    "rare flags": Population(flags, (0, 1), (1.0, -1.0, 0.0)),
    "alike": Population(alike, (0, 30), (1.0, -0.5, 0.0)),
    "heteroscedastic": Population(
        exponential, (0, 20), (1.0, -0.5, 0.0), spread=lambda x: 0.3 + 0.5 * x[:, 0]
    ),
    "classes, log-normal": Population(log_normal, (0, 100), (0.5, -0.25, 0.0), "classes"),
    "counts, exponential": Population(exponential, (0, 20), (0.3, -0.2, 0.0), "counts"),
}
WIDEST_TARGETS = {"numbers": (-100.0, 100.0), "counts": (0.0, 200.0)}


def fitted_lines(population: Population, epsilon: float, rows: int, number: int) -> list[Any]:
    """The lines of one fit to records of a population."""
    rng = np.random.default_rng(number)
    x = population.draw(rng, rows)
    score = x @ population.slopes
    common: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": 1e-6,
        "bounds": population.bounds,
        "inference": True,
    }
    common["unsafe_seed"] = number
    model: Any
    if population.target == "classes":
        y = (rng.random(rows) < 1 / (1 + np.exp(0.5 - score))).astype(int)
        model = PrivateLogisticRegression(classes=(0, 1), **common)
    elif population.target == "counts":
        y = rng.poisson(np.exp(score))
        model = PrivatePoissonRegressor(target_bounds=WIDEST_TARGETS["counts"], **common)
    else:
        y = score + population.spread(x) * rng.normal(size=rows)
        model = PrivateLinearRegression(target_bounds=WIDEST_TARGETS["numbers"], **common)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeclarationWarning)
        return list(model.fit(x, y).summary().lines[1:])


def coverage_of(
    population: Population, epsilon: float, rows: int, fits: int
) -> tuple[float, list[np.ndarray]]:
    """The share of lines that are answered, and for each fit which of its 95 % intervals hold the truth."""
    answered, held = [], []
    for number in range(fits):
        lines = fitted_lines(population, epsilon, rows, number)
        intervals = [line.interval(0.95) for line in lines]
        answered += [interval is not None for interval in intervals]
        pairs = zip(intervals, population.slopes, strict=True)
        held.append(np.array([low[0] <= slope <= low[1] for low, slope in pairs if low is not None]))
    return float(np.mean(answered)), held


def print_populations(fits: int, epsilon: float, rows: int) -> None:
    print(f"{fits} fits each of {rows} records at epsilon {epsilon:g}; wanted: .93 to .97 covered\n")
    print("Where bounds are learnt, summaries say that coefficients are those of the clamped columns.\n")
    print(f"{'population':28}{'answered':>10}{'95 % cover +- error':>22}")
    for name, population in POPULATIONS.items():
        answered, held = coverage_of(population, epsilon, rows, fits)
        print(f"{name:28}{answered:10.2f}{share(held):>22}")
        sys.stdout.flush()


class Spy:
    """Keeps what the last step of a fit was made with: its coordinates, start, weights and clamp."""

    def __enter__(self) -> "Spy":
        self._infer = inference.infer
        inference.infer = self._watched
        return self

    def __exit__(self, *_: Any) -> None:
        inference.infer = self._infer

    def _watched(self, problem, records, lines, white, theta, scale, stage):
        self.problem, self.lines, self.white, self.theta, self.scale = problem, lines, white, theta, scale
        return self._infer(problem, records, lines, white, theta, scale, stage)


def estimand(seen: Spy, x: np.ndarray, y: np.ndarray, people: People) -> tuple[np.ndarray, np.ndarray]:
    """Where the weighted residuals of the population add up to nothing, and the error of sampling alone."""
    z = seen.white(times(x, seen.lines.matrix), None).astype(float)
    y, weights, theta = seen.problem.target(y), mallows(seen, z) * people.weights(least=1), seen.theta
    for _ in range(25):
        slopes, bends = derivatives(seen.scale, z @ theta, y)
        bent = (z * (weights * bends)[:, None]).T @ z
        ridge = 1e-7 * np.trace(bent) / len(bent) * np.eye(len(bent))
        step = np.linalg.solve(bent + ridge, z.T @ (weights * slopes))
        theta = theta + step * min(1.0, 3 / abs(z @ step).max())
        if abs(step).max() < 1e-6:
            break
    inverse, squares = np.linalg.pinv(bent), np.zeros((len(people), z.shape[1]))
    np.add.at(squares, people.codes, z * (weights * slopes)[:, None])
    slopes = seen.white.rotation[1:] / seen.white.marginals.scale[:, None]
    back = (
        np.vstack([seen.white.rotation[0] - seen.white.marginals.centre @ slopes, slopes])
        * seen.problem.scale
    )
    truth = back @ theta
    truth[0] += seen.problem.shift
    covariance = back @ inverse @ squares.T @ squares @ inverse @ back.T
    return truth, np.sqrt(np.diag(covariance))


def derivatives(scale: Any, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if scale.code == LOGISTIC:
        mean = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
        return y - mean, mean * (1 - mean)
    mean = scores if scale.code == SQUARED else np.exp(scores)
    bends = np.ones(len(mean)) if scale.code == SQUARED else mean
    return np.clip(y - mean, -scale.clamp, scale.clamp), bends * (abs(y - mean) < scale.clamp)


def mallows(seen: Spy, z: np.ndarray) -> np.ndarray:
    """The weights of the rows, by their definition."""
    scale, square = seen.scale, (z**2).sum(1)
    scores = z @ seen.theta
    mean = 1 / (1 + np.exp(-scores)) if scale.code == LOGISTIC else np.exp(np.minimum(scores, 100))
    bend = (
        mean * (1 - mean) if scale.code == LOGISTIC else np.ones_like(mean) if scale.code == SQUARED else mean
    )
    most = np.maximum(mean, 1 - mean) if scale.code == LOGISTIC else scale.clamp
    norm = (scale.slope * most) ** 2 * square
    norm += ((scale.curvature * bend) ** 2 + (scale.square * most**2) ** 2) * square**2
    return 1 / np.maximum(1, np.sqrt(norm))


if __name__ == "__main__":
    main()
