"""Fits on a Dask cluster: :class:`DaskEngine`.

Each release asks every partition once, by a task that is a pure function (:mod:`discreet.linear.partitions`).
Workers and scheduler see exact sums, which are private: they must be trusted as the driver is. And Dask unpickles
what it is sent: who can reach the scheduler can run code on every machine. So plain ``tcp://`` is refused beyond this
machine.
"""

from __future__ import annotations

import ipaddress
import os
import time
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

from discreet.errors import InvalidParameter, MissingDependency, PlanViolation, real, whole
from discreet.linear.fitting import run_name
from discreet.linear.partitions import (
    Answer,
    Gathering,
    Partitions,
    PublicLog,
    Tally,
    Task,
    contribution,
    first_file,
)
from discreet.linear.spool import spooled
from discreet.linear.storage import Storage

_LOOK = 0.25  # seconds between two looks at who is still there


class DaskEngine:
    """Fits models over :class:`~discreet.linear.partitions.Partitions` on the cluster of ``client``.

    ``log`` is a folder for the values released so far: with the same folder a fit whose driver was killed goes on.
    ``deadline`` are the seconds after which a partition is asked again, elsewhere; ``attempts`` how often.
    ``memory`` are the bytes of rows of a partition that a worker keeps in memory.
    """

    def __init__(
        self,
        client: Any,
        log: str | os.PathLike[str] | None = None,
        deadline: float = 600.0,
        attempts: int = 5,
        memory: int = 2**27,
    ) -> None:
        try:
            import distributed
        except ImportError:
            raise MissingDependency("A cluster needs Dask: pip install 'discreet[dask]'.") from None
        if not isinstance(client, distributed.Client):
            raise InvalidParameter("client", type(client).__name__, "must be a distributed.Client.")
        refuse_open_doors(str(getattr(client.scheduler, "address", None)))
        self._client, self._log = client, log
        self._deadline = real("deadline", deadline, above=0)
        self._attempts = whole("attempts", attempts, at_least=1)
        self._memory = whole("memory", memory, at_least=0)

    def fit(self, model: Any, partitions: Any, target: Any) -> None:
        """Fit ``model``, an estimator of :mod:`discreet.linear`, over the partitions; ``target`` names a column."""
        if not isinstance(partitions, Partitions):
            kind = type(partitions).__name__
            requirement = "must be Partitions('folder/*.parquet'): files that every worker can read."
            raise InvalidParameter("X", kind, requirement)
        if not isinstance(target, str | None):
            raise InvalidParameter("y", type(target).__name__, "must be the name of a column of the files.")
        if model._unit() is not None:
            requirement = "is not known to a cluster: rows of one person may be in several files."
            raise InvalidParameter("unit", model._unit().column, requirement)
        if model._chosen_arithmetic() != "hardened" or model.method != "recipe":
            raise InvalidParameter("engine", "dask", "needs method='recipe' and hardened arithmetic.")
        first = first_file(partitions)
        columns = model._to_read(first, target, target=target is None)
        nothing = spooled([next(first.chunks(columns))], columns, Storage())  # which refuses unknown names
        seed = "" if model.unsafe_seed is None else " with a seed"  # which certificates tell
        about = f"{type(model).__name__} {model._settings()} {target} {partitions.digest()}{seed}"
        log = PublicLog(self._log, run_name(type(model).__name__), about)
        round_ = _Round(self, model, partitions, target, log.run)
        gathering = Gathering(partitions.parts, log, round_.ask)
        with log.lock():
            model._fit(nothing, target, None, None, None, elsewhere=gathering)

    @property
    def client(self) -> Any:
        return self._client

    @property
    def patience(self) -> tuple[float, int]:
        return self._deadline, self._attempts

    def for_workers(self, model: Any) -> Any:
        """The model as workers need it: parameters only, without ledger, key and seed."""
        plain = type(model)(**deepcopy(model.get_params(deep=False) | {"ledger": None}))
        known = plain.get_params(deep=False)
        nothing = {"ledger_key": None, "unsafe_seed": None, "verbose": False, "memory": self._memory}
        return plain.set_params(**{name: value for name, value in nothing.items() if name in known})


class _Round:
    """Asks all partitions for one release after the other; each stays with the worker that has its rows."""

    def __init__(self, engine: DaskEngine, model: Any, partitions: Partitions, target: Any, fit: str) -> None:
        self._engine, self._model = engine, engine.for_workers(model)
        self._parts, self._target, self._fit = partitions.parts, target, fit
        self._homes: dict[int, str] = {}
        self._told: dict[int, int] = {}  # how many values the worker of a partition has seen

    def ask(self, release: int, values: list[Any], tally: Tally) -> None:
        deadline, attempts = self._engine.patience
        asked: list[Any] = []
        behind = 0
        attempt = 0
        while tally.missing:
            if attempt >= attempts + behind:
                raise PlanViolation(
                    f"Partitions {tally.missing[:5]} did not answer {attempts} times; nothing is released. "
                    "With a log the fit can go on later."
                )
            futures = {place: self._submit(release, values, place, attempt) for place in tally.missing}
            asked.extend(futures.values())
            behind += self._collect(futures, tally, deadline)
            attempt += 1
        for future in asked:  # what came late counts too: it must say the same
            if future.status == "finished":
                tally.add(future.result())
            else:
                future.cancel()

    def _submit(self, release: int, values: list[Any], place: int, attempt: int) -> Any:
        workers = self._workers()
        home = self._homes.get(place)
        if home not in workers:
            self._homes[place] = home = workers[place % len(workers)]
            self._told[place] = 0
        since = self._told.get(place, 0) if attempt == 0 else 0
        known = (self._fit, release, place, self._parts[place], self._model, self._target)
        task = Task(*known, since, tuple(values[since:]))
        key = f"discreet-{self._fit}-{release}-{place}-{attempt}"
        return self._engine.client.submit(
            contribution, task, key=key, workers=[home], allow_other_workers=False, pure=False, retries=0
        )

    def _workers(self) -> list[str]:
        until = time.monotonic() + self._engine.patience[0]
        while True:
            workers = sorted(self._engine.client.scheduler_info(n_workers=-1)["workers"])
            if workers:
                return workers
            if time.monotonic() > until:
                raise PlanViolation("The cluster has no workers; nothing is released.")
            time.sleep(_LOOK)

    def _collect(self, futures: dict[int, Any], tally: Tally, deadline: float) -> int:
        """Wait for answers until all are there, their workers are gone, or the deadline has passed.

        Says 1 if some worker had lost what it was told before, so that asking again is no failed attempt.
        """
        until, behind, open_ = time.monotonic() + deadline, 0, dict(futures)
        looked = time.monotonic()
        while open_ and time.monotonic() < until:
            for place, future in list(open_.items()):
                if future.status == "pending":
                    continue
                del open_[place]
                answer = future.result() if future.status == "finished" else Answer("lost", place, -1)
                self._told[place] = answer.release if answer.code == "sum" else 0
                behind = behind or int(answer.code == "behind")
                tally.add(answer)
            if time.monotonic() - looked > _LOOK:
                looked, workers = time.monotonic(), set(self._workers())
                open_ = {place: future for place, future in open_.items() if self._homes[place] in workers}
            time.sleep(0.005)
        for place in open_:
            self._homes.pop(place)  # it may be stuck: another one is asked
        return behind


def refuse_open_doors(address: str) -> None:
    """Raise if a scheduler is reached without encryption from other machines."""
    parts = urlsplit(address)
    if parts.scheme in ("tls", "wss", "inproc"):
        return
    try:
        safe = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        safe = False
    if not safe:
        requirement = (
            "must be tls://: exact sums of private records travel here, and who reaches the scheduler can run code. "
            "See docs/scale.md."
        )
        raise InvalidParameter("scheduler", address, requirement)
