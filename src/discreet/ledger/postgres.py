"""Storage of a shared ledger in PostgreSQL, through SQLAlchemy.

One ledger lives in one schema. Several ledgers on a server use several databases, or several schemas chosen in
the address: ``postgresql://user@host/database?options=-csearch_path=study_7``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from discreet.errors import (
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    missing_extra,
    without_passwords,
)
from discreet.ledger import ledger_texts
from discreet.ledger.store import READ_HEAD, Head, LedgerRow, Transaction

try:
    import psycopg  # noqa: F401
    import sqlalchemy
except ImportError as error:
    raise missing_extra("A ledger in PostgreSQL needs SQLAlchemy and psycopg", "postgres") from error


class PostgresStore:
    """One connection. The head's row lock makes transactions exclusive; the server syncs every commit."""

    def __init__(self, address: str) -> None:
        with _database_errors():
            url = _url(address)
            # Read committed: after waiting for the head's lock, what others have written is seen.
            self._engine = sqlalchemy.create_engine(
                url, poolclass=sqlalchemy.NullPool, isolation_level="READ COMMITTED"
            )
            self._connection = self._engine.connect()
            try:
                self._check_durable()
            except BaseException:
                self.close()
                raise

    def _check_durable(self) -> None:
        with self._connection.begin():
            for setting in ("fsync", "full_page_writes"):
                if self._connection.exec_driver_sql(f"SHOW {setting}").scalar() != "on":
                    raise LedgerUnavailable(ledger_texts.server_forgets(setting))

    def _execute(self, sql: str, parameters: dict[str, Any]) -> Iterable[Any]:
        return self._connection.execute(sqlalchemy.text(sql), parameters)

    @classmethod
    def occupant(cls, place: Path | str) -> str:
        with closing(cls(str(place))) as store, store._committed():
            found = store._execute("SELECT to_regclass('ledger_entries') IS NOT NULL", {})
            return "A ledger in this schema" if any(row[0] for row in found) else ""

    @classmethod
    def create(cls, place: Path | str, row: LedgerRow, head: Head) -> None:
        with closing(cls(str(place))) as store, store._committed() as transaction:
            transaction.begin_book(row, head)

    @classmethod
    def existing(cls, place: Path | str) -> PostgresStore:
        return cls(str(place))

    @contextmanager
    def _committed(self) -> Iterator[Transaction]:
        with _database_errors(), self._connection.begin():
            self._execute("SET LOCAL synchronous_commit = on", {})
            yield Transaction(self._execute)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._committed() as transaction:
            self._execute(f"{READ_HEAD} FOR UPDATE", {})
            yield transaction

    def close(self) -> None:
        with suppress(sqlalchemy.exc.SQLAlchemyError):
            self._connection.close()
        self._engine.dispose()


def _url(address: str) -> Any:
    """The address as SQLAlchemy reads it; its errors might quote a password."""
    try:
        return sqlalchemy.make_url(address).set(drivername="postgresql+psycopg")
    except (sqlalchemy.exc.ArgumentError, ValueError):
        remedy = "is not a database address; special characters of a password are written as %40, %2F, %3A."
        raise InvalidParameter("place", "...", remedy) from None


_MAY_NOT_WRITE = ("42501", "25006")  # insufficient privilege, and a transaction that is read-only


@contextmanager
def _database_errors() -> Iterator[None]:
    """Say what the database's error means for the ledger: not now, or never again."""
    try:
        yield
    except sqlalchemy.exc.ArgumentError:
        raise InvalidParameter("place", "...", "is not a database address.") from None
    except sqlalchemy.exc.DBAPIError as error:
        reason = without_passwords(str(error.orig).strip())
        if isinstance(error, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError):
            raise LedgerUnavailable(ledger_texts.server_unusable(reason)) from None
        if getattr(error.orig, "sqlstate", None) in _MAY_NOT_WRITE:
            raise LedgerUnavailable(ledger_texts.server_read_only(reason)) from None
        raise LedgerCorrupted(f"The ledger's database is not in order ({reason}).") from None
