"""Fits on a Dask cluster: :class:`DaskEngine`.

Each release asks every partition once, by a task that is a pure function (:mod:`discreet.linear.partitions`).
Workers and scheduler see exact sums, which are private: they must be trusted as the driver is. And Dask unpickles
what it is sent: who can reach the scheduler can run code on every machine. So plain ``tcp://`` is refused beyond this
machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

from discreet.errors import CannotConnect, InvalidParameter, MissingDependency, PlanViolation, real, whole
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
_GONE = "The scheduler is gone; nothing more is released."
_ANSWER = 5.0  # seconds that a scheduler has to answer a first time


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
        if not isinstance(client, _distributed().Client):
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
        """Let the tally have all answers."""
        try:
            self._ask(release, values, tally)
        except OSError:  # as Dask calls it if nobody is there any more
            raise PlanViolation(_GONE) from None

    def _ask(self, release: int, values: list[Any], tally: Tally) -> None:
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
        client, until = self._engine.client, time.monotonic() + self._engine.patience[0]
        while True:
            if client.status == "closed":
                raise PlanViolation(_GONE)
            workers = sorted(client.scheduler_info(n_workers=-1).get("workers", ()))
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


# ---- the way to a scheduler ----


@contextmanager
def engine_at(scheduler: str) -> Iterator[DaskEngine]:
    """The engine of the cluster whose scheduler has this address, such as ``tls://host:8786``.

    The files of TLS are those of Dask's configuration. Whatever goes wrong is a sentence, after seconds.
    """
    refuse_open_doors(scheduler)
    _refuse_half_addresses(scheduler)
    log, client = logging.getLogger("distributed.client"), _client(scheduler)
    level = log.level
    log.setLevel(logging.CRITICAL)  # what it would say, in tracebacks, a refusal says
    try:
        yield DaskEngine(client)
    finally:
        with suppress(Exception):  # what was fitted stays, also if nobody is there to say goodbye to
            client.close(timeout=_ANSWER)
        log.setLevel(level)


def _refuse_half_addresses(scheduler: str) -> None:
    with suppress(ValueError):  # a port that is none
        parts = urlsplit(scheduler)
        if parts.hostname and parts.port:
            return
    raise InvalidParameter("scheduler", scheduler, "must be an address with a port: tls://host:8786.")


def _client(scheduler: str) -> Any:
    distributed, security = _distributed(), _security(scheduler)
    try:
        asyncio.run(_greet(scheduler, security.get_connection_args("client")))
        return distributed.Client(scheduler, security=security, set_as_default=False)
    except Exception:  # of many kinds, and none of them knows a record
        raise CannotConnect(
            f"No scheduler answered at {scheduler} within {_ANSWER:g} s. Is it running there, with the same version "
            "of Dask, and if it is tls://, with a certificate of the same authority?"
        ) from None


async def _greet(scheduler: str, how: dict[str, Any]) -> None:
    """Raise unless somebody greets back in time: a client would wait for ever for one who is silent."""
    reached = _distributed().comm.connect(scheduler, timeout=_ANSWER, **how)
    (await asyncio.wait_for(reached, _ANSWER)).abort()


def _security(scheduler: str) -> Any:
    """What Dask's configuration says of TLS; refused if an encrypted address would need more."""
    security = _distributed().Security()
    if not scheduler.startswith(("tls:", "wss:")):
        return security
    remedy = (
        "set distributed.comm.tls.ca-file, client.cert and client.key in Dask's configuration, or as variables: "
        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT, ...__CLIENT__KEY. See docs/scale.md."
    )
    try:
        ready = security.get_connection_args("client")["ssl_context"] is not None
    except OSError:  # a file that is not there, or not what it should be
        raise InvalidParameter(
            "scheduler", scheduler, f"has TLS files that cannot be read: {remedy}"
        ) from None
    if not ready:
        raise InvalidParameter("scheduler", scheduler, f"needs to know the files of TLS: {remedy}")
    return security


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingDependency("A cluster needs Dask: pip install 'discreet[dask]'.") from None
    return distributed


def refuse_open_doors(address: str) -> None:
    """Raise if a scheduler is reached without encryption from other machines."""
    try:
        parts = urlsplit(address)
        safe = parts.scheme in ("tls", "wss", "inproc") or parts.hostname == "localhost"
        safe = safe or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        safe = False
    if not safe:
        requirement = (
            "must be tls://: exact sums of private records travel here, and who reaches the scheduler can run code. "
            "See docs/scale.md."
        )
        raise InvalidParameter("scheduler", address, requirement)
