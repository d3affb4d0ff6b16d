"""Fits on a Dask cluster: :class:`DaskEngine`.

Each release asks every partition once, by a task that is a pure function (:mod:`discreet.linear.partition_answers`).
Workers and scheduler see exact sums, which are private: they must be trusted as the driver is. And Dask unpickles
what it is sent: who can reach the scheduler can run code on every machine. So plain ``tcp://`` is refused beyond this
machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from discreet.adapters.dask_frames import FrameOnCluster, quiet_workers
from discreet.adapters.dask_rounds import Patience, Rounds
from discreet.core.noise import BoundedSum
from discreet.errors import CannotConnect, InvalidParameter, missing_extra, real, whole
from discreet.linear.fit_budget import run_name
from discreet.linear.gate.partitioned_rows import PartitionedTable, PartitionQuery
from discreet.linear.partition_answers import PartitionTask, Reading, answer
from discreet.linear.partition_results import PartitionReply, PartitionSums
from discreet.linear.partitions import Partitions
from discreet.linear.public_log import PublicLog
from discreet.linear.sources import is_dask_frame
from discreet.linear.user_routing import Ids, Share, UserCounts, UserCountTask, count_users, route_users
from discreet.trusted.rows import MOST_RECORDS

Table = Partitions | FrameOnCluster

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
        if not isinstance(client, _import_distributed().Client):
            raise InvalidParameter("client", type(client).__name__, "must be a distributed.Client.")
        refuse_unencrypted_scheduler(str(getattr(client.scheduler, "address", None)))
        self.client, self._log = client, log
        attempts = whole("attempts", attempts, at_least=1)
        self._patience = Patience(real("deadline", deadline, above=0), attempts)
        self._memory = whole("memory", memory, at_least=0)

    def fit(self, model: Any, partitions: Any, target: Any) -> None:
        """Fit ``model``, an estimator of :mod:`discreet.linear`, over the partitions; ``target`` names a column.

        ``partitions`` may be a Dask frame: it is computed once, and its rows stay where they are.
        """
        if not isinstance(target, str | None):
            raise InvalidParameter("y", type(target).__name__, "must be the name of a column.")
        if model._chosen_arithmetic() != "hardened" or model.method != "recipe":
            raise InvalidParameter("engine", "dask", "needs method='recipe' and hardened arithmetic.")
        table, unit = self._table(partitions), model._unit()
        nothing = table.without_rows()
        nothing.chunks(model._columns_to_read(nothing, target))  # which refuses unknown names
        if isinstance(table, FrameOnCluster):
            table.compute(self._rounds("frame"))
        seed = "" if model.unsafe_seed is None else " with a seed"  # which certificates tell
        about = f"{type(model).__name__} {model._settings()} {target} {table.digest()}{seed}"
        log = PublicLog(self._log, run_name(type(model).__name__), about)
        with log.lock():
            rounds = self._rounds(log.run)
            shares = self._shares(rounds, table, None if unit is None else unit.column)
            questions = _Questions(rounds, table, Reading(self.for_workers(model), target), shares)
            partitions = PartitionedTable([share.rows for share in shares], questions.ask)
            model._fit(nothing, target, None, None, None, partitions=partitions, log=log)

    def _table(self, partitions: Any) -> Table:
        if is_dask_frame(partitions):
            # What the tasks of a frame raise may quote a record: workers no longer write it into their logs.
            self.client.register_plugin(quiet_workers(_import_distributed().WorkerPlugin))
            return FrameOnCluster(self.client, partitions)
        if isinstance(partitions, Partitions):
            return partitions
        requirement = "must be Partitions('folder/*.parquet') that every worker can read, or a Dask frame."
        raise InvalidParameter("X", type(partitions).__name__, requirement)

    def total(
        self,
        partitions: Any,
        column: str | None,
        ask: Callable[[Share], tuple[Callable[[Any], PartitionReply], Any]],
        like: BoundedSum,
        public: str,
    ) -> NDArray[np.int64]:
        """One sum of integers over all partitions, of the kind of ``like``; ``column`` says whose a row is.

        ``ask`` is the function that a worker calls for its share of the table, and with what.
        """
        rounds, table = self._rounds("evaluation"), self._table(partitions)
        if isinstance(table, FrameOnCluster):
            table.compute(rounds)
        shares = self._shares(rounds, table, column)
        if sum(share.rows for share in shares) > MOST_RECORDS:
            raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
        sums = PartitionSums(0, len(shares), like, [share.rows for share in shares], public)
        rounds.ask(lambda place, since: _call(table, *ask(shares[place])), sums)
        return sums.total()

    def _rounds(self, name: str) -> Rounds:
        """Rounds under a name that no driver had before: what workers remember of another one is not used."""
        return Rounds(self.client, f"{name}-{os.urandom(4).hex()}", self._patience)

    def _shares(self, rounds: Rounds, table: Table, column: str | None) -> list[Share]:
        """What each partition adds up; with a column of ids, everybody in one of them."""
        shares = [Share(place, part) for place, part in enumerate(table.parts)]
        if isinstance(table, FrameOnCluster):
            rounds.sit(table.seats())
        if column is None:
            return shares
        ids, register = Ids(column, os.urandom(32)), UserCounts([part.rows for part in table.parts])
        rounds.ask(
            lambda place, since: _call(table, count_users, UserCountTask(shares[place], ids)), register
        )
        routes = route_users(register.answers(), ids, table.parts)
        return [share._replace(route=route) for share, route in zip(shares, routes, strict=True)]

    def for_workers(self, model: Any) -> Any:
        """The model as workers need it: parameters only, without ledger, key and seed."""
        plain = type(model)(**deepcopy(model.get_params(deep=False) | {"ledger": None}))
        known = plain.get_params(deep=False)
        nothing = {"ledger_key": None, "unsafe_seed": None, "verbose": False, "memory": self._memory}
        return plain.set_params(**{name: value for name, value in nothing.items() if name in known})


class _Questions:
    """The questions of a fit to its partitions. A large array is sent to a worker once."""

    def __init__(self, rounds: Rounds, table: Table, reading: Reading, shares: list[Share]) -> None:
        self._rounds, self._table, self._reading, self._shares = rounds, table, reading, shares
        self._first: dict[bytes, int] = {}  # the question in which a part was sent first

    def ask(self, question: PartitionQuery, sums: PartitionSums) -> None:
        """Let the tally have all answers."""
        for key in question.parts:
            self._first.setdefault(key, question.release)

        def call(place: int, since: int) -> tuple[Any, ...]:
            if not since:
                task = PartitionTask(self._rounds.name, self._shares[place], self._reading, question)
                return _call(self._table, answer, task)
            # It has read its rows, and answered all questions before.
            new = {key: part for key, part in question.parts.items() if self._first[key] > since}
            share = self._shares[place]._replace(route=None)
            return answer, PartitionTask(self._rounds.name, share, None, question._replace(parts=new))

        self._rounds.ask(call, sums)


def _call(table: Table, function: Callable[[Any], PartitionReply], task: Any) -> tuple[Any, ...]:
    """What a worker is to call: rows of a frame are sent along, files it reads itself."""
    return table.call(function, task) if isinstance(table, FrameOnCluster) else (function, task)


def engine_of(frame: Any) -> DaskEngine:
    """The engine of the cluster that a frame of Dask is computed on: that of the current client."""
    try:
        return DaskEngine(_import_distributed().default_client())
    except ValueError:
        requirement = (
            "lies on a cluster, and there is no client of it: make a distributed.Client before, or give "
            "engine=DaskEngine(client). It is not pulled into this process."
        )
        raise InvalidParameter("X", type(frame).__name__, requirement) from None


@contextmanager
def engine_at(scheduler: str, log: str | os.PathLike[str] | None = None) -> Iterator[DaskEngine]:
    """The engine of the cluster whose scheduler has this address, such as ``tls://host:8786``.

    The files of TLS are those of Dask's configuration. Whatever goes wrong is a sentence, after seconds.
    """
    refuse_unencrypted_scheduler(scheduler)
    _refuse_half_addresses(scheduler)
    said, client = logging.getLogger("distributed.client"), _client(scheduler)
    level = said.level
    said.setLevel(logging.CRITICAL)  # what it would say, in tracebacks, a refusal says
    try:
        yield DaskEngine(client, log)
    finally:
        with suppress(Exception):  # what was fitted stays, also if nobody is there to say goodbye to
            client.close(timeout=_ANSWER)
        said.setLevel(level)


def _refuse_half_addresses(scheduler: str) -> None:
    with suppress(ValueError):  # a port that is none
        parts = urlsplit(scheduler)
        if parts.hostname and parts.port:
            return
    raise InvalidParameter("scheduler", scheduler, "must be an address with a port: tls://host:8786.")


def _client(scheduler: str) -> Any:
    distributed, security = _import_distributed(), _security(scheduler)
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
    reached = _import_distributed().comm.connect(scheduler, timeout=_ANSWER, **how)
    (await asyncio.wait_for(reached, _ANSWER)).abort()


def _security(scheduler: str) -> Any:
    """What Dask's configuration says of TLS; refused if an encrypted address would need more."""
    security = _import_distributed().Security()
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


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise missing_extra("A cluster needs Dask", "dask") from None
    return distributed


def refuse_unencrypted_scheduler(address: str) -> None:
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
