"""A study in one process: the same parties and the same coordinator, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.certificate.signatures import public_key_of
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, whole
from discreet.parties.coordinator import Coordinator, Progress, Strategy, StudyResult
from discreet.parties.messages import DirectTransport, Holder, QuestionTable, Roster
from discreet.parties.party import Party
from discreet.parties.study import Study

Floats = NDArray[np.float64]


def rehearse(
    study: Study,
    holders: Mapping[str, Holder] | Mapping[str, QuestionTable],
    *,
    unsafe_seed: int | None = None,
    progress: bool = False,
    start: Floats | None = None,
    excess_risk: Callable[[Floats], float] | None = None,
    strategy: Strategy | None = None,
) -> StudyResult:
    """Run the whole study here, with a ledger in memory for each party.

    ``unsafe_seed`` makes it repeat itself exactly, and its certificates worthless. ``start`` is the first model.
    ``excess_risk`` tells by how much a model is worse than the best one, to be shown beside what theory predicts:
    for public or synthetic records only, because it is not private. ``strategy`` asks the questions of a study by the
    recipe.

    Guarantee: that of the study, for each party; what is charged is forgotten with the process.
    """
    if set(holders) != set(study.names):
        raise InvalidParameter("holders", sorted(holders), f"must be those of {', '.join(study.names)}.")
    seeds = _streams(len(study.names) + 1, unsafe_seed)
    keys = _signing_keys(study)
    roster = (
        Roster({name: public_key_of(key) for name, key in keys.items()}) if keys else Roster.without_wire()
    )
    parties = {}
    for name, stream in zip(study.names, seeds, strict=False):
        parties[name] = Party(name, study, holders[name], None, keys.get(name), roster, stream=stream)
    transport = DirectTransport({name: party.answer for name, party in parties.items()})
    with progress_bar(study, progress) as tell:
        options: dict[str, Any] = {
            "progress": tell,
            "start": start,
            "stream": seeds[-1],
            "strategy": strategy,
        }
        coordinator = Coordinator(study, transport, roster, **options)
        result = coordinator.run()
    return replace(
        result,
        certificates={name: party.certificate() for name, party in parties.items()},
        measured_excess_risk=None
        if excess_risk is None
        else float(excess_risk(np.asarray(result.recommended))),
    )


def _streams(count: int, seed: int | None) -> list[RandomStream]:
    if seed is None:
        return [RandomStream() for _ in range(count)]
    first = whole("unsafe_seed", seed, at_least=0) * 2**16
    return [RandomStream(unsafe_seed=first + place) for place in range(count)]


def _signing_keys(study: Study) -> dict[str, Ed25519PrivateKey]:
    """Without a wire only secure sums need signatures."""
    secure = study.aggregation.kind == "secure"
    return {name: Ed25519PrivateKey.generate() for name in study.names} if secure else {}


@contextmanager
def progress_bar(study: Study, wanted: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar that counts updates, if it is wanted: planned numbers only."""
    if not wanted:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns) as bar:
        task = bar.add_task(study.name, total=study.updates)
        yield lambda progress: bar.update(task, completed=progress.update)
