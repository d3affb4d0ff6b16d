"""Batches that are not Poisson: fixed-size batches and random allocation, tested step by step.

Given all earlier batches, the next one is drawn from a known law. So for every set of records that the past
determines, the number of its members in the next batch has a known law too, and the numbers of all steps are
independent once each is turned into a normal score. The sets are chosen to show what goes wrong: those who were in
the last batch, those who were drawn least often, the first half of the table, and the neighbours of those drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from discreet.audit.scores import between, binomial_at_most, centre, energy
from discreet.core.randomness import RandomStream

Members = NDArray[np.bool_]


def _p_values(
    steps: dict[str, list[tuple[Any, ...]]], law: Callable[..., Any], stream: RandomStream
) -> dict[str, float]:
    """p-values of each test. A step is a count and what its law needs: ``law(count, *rest)`` is P(X <= count)."""
    found: dict[str, float] = {}
    for name, rows in steps.items():
        count, *rest = np.array(rows).T
        scores = between(law(count - 1, *rest), law(count, *rest), stream)
        found |= {name: float(energy(scores)), f"{name}, total": float(centre(scores))}
    return found


def fixed_size_p_values(members: Members, stream: RandomStream) -> dict[str, float]:
    """The tests of fresh, uniformly random subsets, all of the same size."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    often = np.zeros(members.shape[1], np.int64)
    for step, batch in enumerate(members):
        for name, (chosen, among, drawn) in _sets(batch, members[step - 1] if step else None, often):
            sizes = (
                np.count_nonzero(batch & chosen),
                np.count_nonzero(among),
                np.count_nonzero(chosen),
                drawn,
            )
            found.setdefault(name, []).append(sizes)
        often += batch
    return _p_values(found, stats.hypergeom.cdf, stream)


def _sets(
    batch: Members, last: Members | None, often: NDArray[np.int64]
) -> Iterator[tuple[str, tuple[Members, Members, int]]]:
    """Name; the set, the records that are drawn from, and how many of them are drawn."""
    records, size = batch.size, int(np.count_nonzero(batch))
    everybody, places = np.ones(records, bool), np.arange(records)
    yield "first half of the records", (places < records // 2, everybody, size)
    if last is not None:
        yield "each batch and the next", (last, everybody, size)
        least = np.zeros(records, bool)
        least[np.argsort(often, kind="stable")[: records // 2]] = True
        yield "records drawn least often", (least, everybody, size)
    # Once the even places are known, the odd ones are a random subset of their own.
    odd = places % 2 == 1
    yield "records side by side", (_beside(batch), odd, int(np.count_nonzero(batch & odd)))


def allocation_p_values(members: Members, steps: int, stream: RandomStream) -> dict[str, float]:
    """The tests of epochs of ``steps`` batches in which each record takes part once, at a place of its own."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for start in range(0, len(members), steps):
        left = np.ones(members.shape[1], bool)
        for place, batch in enumerate(members[start : start + steps][: steps - 1]):
            sets = {"batch sizes": left, "records side by side": left & _beside(batch)}
            if start:
                sets["each epoch and the next"] = left & members[start - steps + place]
            for name, chosen in sets.items():
                row = (np.count_nonzero(batch & chosen), np.count_nonzero(chosen), steps - place)
                if row[1]:
                    found.setdefault(name, []).append(row)
            left = left & ~batch
    return _p_values(
        found, lambda count, trials, to_come: binomial_at_most(count, trials, 1 / to_come), stream
    )


def _beside(batch: Members) -> Members:
    """Those at odd places whose neighbour before them is in the batch."""
    beside = np.zeros_like(batch)
    beside[1::2] = batch[0 : batch.size // 2 * 2 : 2]
    return beside


def repeats_within_epochs(members: Members, steps: int) -> int:
    """How many records took part twice in an epoch, or, in a whole one, not at all."""
    wrong = 0
    for start in range(0, len(members), steps):
        part = members[start : start + steps]
        often: Any = part.sum(0)
        wrong += int(
            np.count_nonzero(often > 1) + (np.count_nonzero(often == 0) if len(part) == steps else 0)
        )
    return wrong
