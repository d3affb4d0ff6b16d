"""Are the batches drawn as claimed? :func:`sampler_test` finds a shuffled loader that is sold as Poisson sampling.

A shuffled loader shows every record exactly once in an epoch, and its batches have the same size. The noise hides
less of that than of independent draws: accounting it as Poisson sampling understates epsilon, up to
several times (Chua et al. 2024; Annamalai et al. 2024).

>>> from discreet.core.sampling import PoissonSampler
>>> sampler = PoissonSampler(records=500, rate=0.05)
>>> sampler_test(sampler.batches(100, RandomStream(unsafe_seed=0)), records=500, rate=0.05).passed
True
>>> order = np.random.default_rng(0).permutation(500)
>>> sampler_test(np.split(order, 20) * 5, records=500, rate=0.05).worst
'inclusion counts'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln

from discreet.audit.finding import ALPHA, Finding
from discreet.audit.scores import between, binomial, binomial_at_most, centre, count_scores, energy
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.plan.stage import Sampling

Members = NDArray[np.bool_]
_MOST_CELLS = 2**28  # of the table of steps by records


def sampler_test(
    batches: Iterable[Any],
    records: int,
    rate: float,
    *,
    sampling: Sampling | str = "poisson",
    alpha: float = ALPHA,
    stream: RandomStream | None = None,
) -> Finding:
    """Test batches, given as arrays of row numbers, against Poisson sampling at ``rate``.

    What is tested: the total, the batch sizes (binomial; a fixed size varies too little), how often each record is
    included (binomial; shuffling makes it too even), how often records that stand side by side, and random pairs, are
    included together, how much each batch shares with the next, and batches that are alike. Counts become normal
    scores with the help of a few random numbers from ``stream``, which makes each test exact; about 100 batches are
    enough. A rate of 1 means full batches: then every batch must hold all records. For the other values of
    ``sampling`` see :mod:`discreet.audit.samplers`; ``rate`` is the batch size / records, or 1 / steps of an epoch.

    Guarantee: batches drawn as claimed are accused with probability at most ``alpha``, all tests together.
    """
    rows = whole("records", records, at_least=1)
    rate = real("rate", rate, above=0, at_most=1)
    one_of("sampling", sampling, get_args(Sampling))
    members, faulty = _members(batches, rows)
    if faulty:
        return Finding("sampling", False, faulty, alpha, 0.0)
    stream = stream or system_stream()
    if rate == 1:
        missing = int(members.size - np.count_nonzero(members))
        return Finding.exactly("sampling", missing, 0, "every batch must hold every record")
    if sampling == "fixed-size":
        return _test_fixed_size(members, rate, alpha, stream)
    if sampling == "random-allocation":
        return _test_allocation(members, rate, alpha, stream)
    return Finding.of("sampling", _p_values(members, rate, stream), alpha)


def _test_fixed_size(members: Members, rate: float, alpha: float, stream: RandomStream) -> Finding:
    records = members.shape[1]
    size = round(rate * records)
    if not bool((members.sum(1) == size).all()):
        return Finding("sampling", False, f"not every batch holds {size} records", alpha, 0.0)
    p_values = fixed_size_p_values(members, stream)
    log_subsets = gammaln(records + 1) - gammaln(size + 1) - gammaln(records - size + 1)
    return Finding.of(
        "sampling", {"two batches alike": _alike(members, -float(log_subsets))} | p_values, alpha
    )


def _test_allocation(members: Members, rate: float, alpha: float, stream: RandomStream) -> Finding:
    steps = round(1 / rate)
    wrong = repeats_within_epochs(members, steps)
    if wrong:
        return Finding("sampling", False, "not every record takes part once in an epoch", alpha, 0.0)
    return Finding.of("sampling", allocation_p_values(members, steps, stream), alpha)


def _members(batches: Iterable[Any], records: int) -> tuple[Members, str]:
    """Steps by records: who is in which batch; or what is wrong with them."""
    rows: list[Members] = []
    for batch in batches:
        indices = np.asarray(batch)
        if indices.size and indices.dtype.kind not in "iu":
            raise InvalidParameter(
                "batches", str(indices.dtype), "must hold row numbers, an array for each step."
            )
        if (len(rows) + 1) * records > _MOST_CELLS:
            raise InvalidParameter("batches", "too many", f"steps x records must be at most {_MOST_CELLS}.")
        counts = np.zeros(records, np.int64)
        indices = indices.reshape(-1).astype(np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < records):
            return np.zeros((0, records), bool), "a batch holds rows beyond the declared records"
        np.add.at(counts, indices, 1)
        if counts.max(initial=0) > 1:
            return np.zeros((0, records), bool), "a batch holds the same record twice"
        rows.append(counts.astype(bool))
    if len(rows) < 2:
        raise InvalidParameter("batches", len(rows), "must be at least two.")
    return np.array(rows), ""


def _p_values(members: Members, rate: float, stream: RandomStream) -> dict[str, float]:
    steps, records = members.shape
    total = int(np.count_nonzero(members))
    both = rate * rate
    sizes = count_scores(members.sum(1), records, rate, stream)
    included = count_scores(members.sum(0), steps, rate, stream)
    found = {
        "two batches alike": _alike(members, records * float(np.log(rate**2 + (1 - rate) ** 2))),
        "rate": binomial(total, steps * records, rate),
        "batch sizes": float(energy(sizes)),
        "inclusion counts": float(energy(included)),
    }
    if records > 1:
        shuffled = members[:, np.argsort(stream.uniform(records))]
        for name, table in (("records side by side", members), ("pairs of records", shuffled)):
            together = (table[:, 0 : records // 2 * 2 : 2] & table[:, 1::2]).sum(0)
            scores = count_scores(together, steps, both, stream)
            found |= {name: float(energy(scores)), f"{name}, total": float(centre(scores))}
    shared = (members[0 : steps // 2 * 2 : 2] & members[1::2]).sum(1)
    scores = count_scores(shared, records, both, stream)
    return found | {
        "each batch and the next": float(energy(scores)),
        "each batch and the next, total": float(centre(scores)),
    }


def _alike(members: Members, log_equal: float) -> float:
    """1 if no two batches are equal, else the chance of it, at most: two given ones are with exp(log_equal)."""
    steps = len(members)
    if len({row.tobytes() for row in members}) == steps:
        return 1.0
    return float(min(1.0, np.exp(np.log(steps * (steps - 1) / 2) + log_equal)))


# Batches that are not Poisson: fixed-size batches and random allocation, tested step by step.
#
# Given all earlier batches, the next one is drawn from a known distribution. So for every set of records that the
# past determines, the number of its members in the next batch has a known distribution too, and the numbers of all
# steps are independent once each is turned into a normal score. The sets are chosen to show what goes wrong: those
# who were in the last batch, those who were drawn least often, the first half of the table, and the neighbours of
# those drawn.


def _p_values_of_seconds(
    steps: dict[str, list[tuple[Any, ...]]], law: Callable[..., Any], stream: RandomStream
) -> dict[str, float]:
    """p-values of each test. A step is a count and what it needs: ``law(count, *rest)`` is P(X <= count)."""
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
    return _p_values_of_seconds(found, stats.hypergeom.cdf, stream)


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
    return _p_values_of_seconds(
        found, lambda count, trials, to_come: binomial_at_most(count, trials, 1 / to_come), stream
    )


def _beside(batch: Members) -> Members:
    """Those at odd places whose neighbour before them is in the batch."""
    beside = np.zeros_like(batch)
    beside[1::2] = batch[0 : batch.size // 2 * 2 : 2]
    return beside


def repeats_within_epochs(members: Members, steps: int) -> int:
    """Number of records that occur twice in an epoch or, in a complete epoch, never."""
    wrong = 0
    for start in range(0, len(members), steps):
        part = members[start : start + steps]
        often: Any = part.sum(0)
        wrong += int(
            np.count_nonzero(often > 1) + (np.count_nonzero(often == 0) if len(part) == steps else 0)
        )
    return wrong
