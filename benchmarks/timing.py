"""Fair timing of several tools in one process, plain tables, and targets.

A time is CPU milliseconds of one call: the median over rounds in which all tools take turns, after a warm-up
round that is dropped. A call that takes more than three seconds is made once.
"""

from __future__ import annotations

import math
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

ONCE, PATIENCE = 3.0, 60.0  # seconds: slower calls are not repeated, and are stopped


@dataclass(frozen=True)
class Result:
    """What a tool answered and how long it took; ``note`` says why there is no answer."""

    value: Any = None
    ms: float = math.nan
    note: str = ""

    @property
    def stopped(self) -> bool:
        return self.note.startswith(">")


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop by the wall clock: a CPU-time alarm would make Linux round the CPU clock to whole ticks."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def once(call: Callable[[int], object], turn: int = 0, limit: float = PATIENCE) -> Result:
    start = time.process_time()
    try:
        with warnings.catch_warnings(), at_most(limit):
            warnings.simplefilter("ignore")
            value = call(turn)
    except TimeoutError:
        return Result(ms=1e3 * (time.process_time() - start), note=f">{limit:g} s")
    except Exception as error:  # whatever a tool raises is its answer
        return Result(note=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Result(value, 1e3 * (time.process_time() - start))


def in_turns(calls: Sequence[Callable[[int], object]], rounds: int, limit: float = PATIENCE) -> list[Result]:
    """One result per call. Every call is told its turn, so that it may dodge caches.

    ``limit`` holds for all calls but the first: ours.
    """
    limits = [PATIENCE] + [limit] * (len(calls) - 1)
    seen = [[once(call, 0, most)] for call, most in zip(calls, limits, strict=True)]
    for turn in range(1, rounds + 1):
        for call, runs, most in zip(calls, seen, limits, strict=True):
            if not runs[0].note and runs[0].ms < 1e3 * ONCE:
                runs.append(once(call, turn, most))
    return [replace(runs[-1], ms=statistics.median(run.ms for run in runs[1:] or runs)) for runs in seen]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left; nothing if it has no rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {first[0]:<{first[1]}} |" + "".join(f" {cell:>{width}} |" for cell, width in others)

    rule = line(["-" * width for width in widths])
    print(f"\n{title}", line(heads), rule, *map(line, rows), sep="\n", flush=True)


def short(number: float, sign: str = "") -> str:
    """Two digits or so: 1.3e-4, 0.12, 45."""
    if number == 0 or not math.isfinite(number):
        return f"{number:{sign}g}"
    if not 0.01 <= abs(number) < 10_000:
        return f"{number:{sign}.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{number:{sign}.2g}" if abs(number) < 10 else f"{number:{sign}.0f}"


def milliseconds(result: Result) -> str:
    if result.stopped:
        return result.note
    return "-" if result.value is None else short(result.ms)


class Targets:
    """Which wishes came true."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def limit(self, what: str, limit: float, values: dict[str, float], at_least: bool = False) -> None:
        """The worst of ``values`` must be at most ``limit``, or at least that."""
        if values:
            worst = (min if at_least else max)(values, key=lambda name: values[name])
            reached = values[worst] >= limit if at_least else values[worst] <= limit
            wish = f"{'>=' if at_least else '<='} {limit:g}"
            self.rows.append([what, wish, f"{values[worst]:.3g}", worst, "ok" if reached else "MISSED"])

    def none(self, what: str, names: Iterable[str]) -> None:
        """There must be none of these."""
        found = list(names)
        text = "; ".join(found)
        shown = text if len(text) <= 40 else text[:37] + "..."
        self.rows.append([what, "none", str(len(found)), shown, "MISSED" if found else "ok"])

    def print(self) -> None:
        table("Targets", ("target", "wanted", "measured", "worst at", ""), self.rows)
