"""Storage of ledger entries: two tables and exclusive transactions, in SQLite and PostgreSQL.

A transaction is exclusive: from its first read to its commit nobody else can add an entry. Its commit returns
only when the entry is on disk. That is all a ledger asks of a store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from discreet.errors import InvalidParameter, LedgerCorrupted, LedgerUnavailable
from discreet.files import appears_whole
from discreet.ledger import ledger_texts
from discreet.ledger.local_disk import refuse_network

# A slot is the beginning of a reservation, up to its run, attempt and first step; the rest of its text is in
# ``entry``. So the database itself refuses to reserve a step twice, and nothing is written down twice.
TABLES = (
    "CREATE TABLE ledger_entries (sequence INTEGER PRIMARY KEY, slot TEXT UNIQUE, entry TEXT NOT NULL)",
    "CREATE TABLE ledger_head (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), "
    "sequence INTEGER NOT NULL, hash TEXT NOT NULL, seal TEXT NOT NULL)",
)
READ_HEAD = "SELECT sequence, hash, seal FROM ledger_head"

_PATIENCE = 60.0  # seconds to wait for others, whose turns take milliseconds

Execute = Callable[[str, dict[str, Any]], Iterable[Any]]


class LedgerRow(NamedTuple):
    """One entry as it is stored. Its text is ``slot``, if there is one, followed by ``entry``."""

    sequence: int
    slot: str | None
    entry: str


class Head(NamedTuple):
    """The last entry's number and hash, and the seal on both."""

    sequence: int
    hash: str
    seal: str


class Transaction:
    """Reads and writes of one exclusive transaction."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def head(self) -> Head:
        """The sealed head."""
        for sequence, hash, seal in self._execute(READ_HEAD, {}):
            if isinstance(sequence, int):
                return Head(sequence, str(hash), str(seal))
        raise LedgerCorrupted(ledger_texts.NO_HEAD)

    def last(self) -> object:
        """The highest number of an entry. Numbers are unique, so with so many entries none is missing."""
        ((sequence,),) = self._execute("SELECT max(sequence) FROM ledger_entries", {})
        return sequence

    def entries(self, after: int, until: int) -> Iterator[str]:
        """The texts of the entries with numbers above ``after`` and up to ``until``, in order."""
        sql = (
            "SELECT coalesce(slot, '') || entry FROM ledger_entries "
            "WHERE sequence > :after AND sequence <= :until ORDER BY sequence"
        )
        return map(itemgetter(0), self._execute(sql, {"after": after, "until": until}))

    def append(self, row: LedgerRow, head: Head) -> None:
        """Add an entry and move the head to it."""
        self._execute(
            "INSERT INTO ledger_entries (sequence, slot, entry) VALUES (:sequence, :slot, :entry)",
            row._asdict(),
        )
        self._execute(
            "UPDATE ledger_head SET sequence = :sequence, hash = :hash, seal = :seal", head._asdict()
        )

    def begin_book(self, row: LedgerRow, head: Head) -> None:
        """Make the tables of a new ledger, with its first entry."""
        for table in TABLES:
            self._execute(table, {})
        self._execute("INSERT INTO ledger_head VALUES (1, :sequence, :hash, :seal)", head._asdict())
        self.append(row, head)


class SQLiteStore:
    """A file on a local disk, written ahead and synced at every commit. Several processes may share it."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._files: dict[Path, tuple[int, int]] = {}  # which files these were when they were first seen
        self._place = Path(path).absolute()  # wherever this process works later on
        self._refuse_another(self._place)
        with _sqlite_errors(path):
            self._database = sqlite3.connect(
                path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                self._set_up()
            except BaseException:
                self.close()
                raise

    def _set_up(self) -> None:
        """Require durable writes, our tables and nothing else (a trigger could undo them), and no damaged page.

        Copying the write-ahead log into the file first writes anew whatever an earlier failed sync may have
        left in memory only.
        """
        run = self._database.execute
        run("PRAGMA trusted_schema = OFF")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")
        if self._path == ":memory:":
            return
        if run("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise LedgerUnavailable(ledger_texts.not_local(self._path))
        run("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        tables = run("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rootpage").fetchall()
        if tuple(sql for (sql,) in tables) != TABLES:
            raise LedgerCorrupted(ledger_texts.other_tables(self._path))
        if run("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise LedgerCorrupted(ledger_texts.damaged(self._path))

    @classmethod
    def occupant(cls, place: Path | str) -> str:
        refuse_network(Path(place))
        taken = (file.name for file in (Path(place), *side_files(Path(place))) if file.exists())
        return next(taken, "")

    @classmethod
    def create(cls, place: Path | str, row: LedgerRow, head: Head) -> None:
        path = Path(place)
        try:
            with appears_whole(path) as temporary, _sqlite_errors(path):
                database = sqlite3.connect(temporary, isolation_level=None)
                try:
                    database.execute("PRAGMA synchronous = EXTRA")
                    database.execute("BEGIN IMMEDIATE")
                    Transaction(database.execute).begin_book(row, head)
                    database.execute("COMMIT")
                finally:
                    database.close()
        except FileExistsError:
            raise InvalidParameter("place", str(path), ledger_texts.CREATED_MEANWHILE) from None
        except OSError as error:
            raise LedgerUnavailable(f"The ledger {path} cannot be created: {error}.") from error

    @classmethod
    def existing(cls, place: Path | str) -> SQLiteStore:
        if not Path(place).is_file():
            raise LedgerUnavailable(ledger_texts.no_ledger(place))
        refuse_network(Path(place))
        return cls(Path(place))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with _sqlite_errors(self._path):
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield Transaction(self._database.execute)
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
        self._refuse_other_files()

    def _refuse_other_files(self) -> None:
        """Raise if the ledger, or what is written ahead of it, is no longer the file that this process writes to."""
        for file in (self._place, side_files(self._place)[0]):  # which nobody removes while we are connected
            self._refuse_another(file)

    def _refuse_another(self, file: Path) -> None:
        """SQLite goes on with a file that was deleted or replaced meanwhile, and what it writes there is gone."""
        if self._path == ":memory:":
            return
        found = None
        with suppress(FileNotFoundError):
            about = os.stat(file)
            found = about.st_dev, about.st_ino
        if found is not None:
            self._files.setdefault(file, found)
        if self._files.get(file) != found:
            raise LedgerUnavailable(ledger_texts.replaced(file))

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()


def in_memory(row: LedgerRow, head: Head) -> SQLiteStore:
    """A store that lives and dies with the process."""
    store = SQLiteStore(":memory:")
    with store.transaction() as transaction:
        transaction.begin_book(row, head)
    return store


def side_files(path: Path) -> list[Path]:
    """The files that SQLite keeps beside a database. One left over from another ledger would be replayed."""
    return [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal")]


@contextmanager
def _sqlite_errors(path: Path | str) -> Iterator[None]:
    """Say what SQLite's error means for the ledger: not now, or never again.

    A message that quotes damaged bytes arrives as UnicodeDecodeError. SQLITE_ERROR is a missing table or column.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(error, sqlite3.OperationalError) and code not in (None, sqlite3.SQLITE_ERROR):
            raise LedgerUnavailable(ledger_texts.unusable(path, error)) from error
        raise LedgerCorrupted(ledger_texts.damaged(f"The ledger {path}", error)) from error
