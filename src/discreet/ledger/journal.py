"""The one way to read and write a ledger: a turn, in which nobody else writes and all that was written is proved.

A turn first reads what others have added since the last one, checks it against the chain and the sealed head,
and adds it to the book. Only then may it add an entry of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from discreet.ledger.book import Book, Entry
from discreet.ledger.seal import LedgerCorrupted, LedgerUnavailable, same_seal, sealed
from discreet.ledger.store import Head, Row, Store, Transaction


class Turn:
    """The book, up to date, and the chance to add one entry to it."""

    def __init__(self, transaction: Transaction, book: Book, key: bytes) -> None:
        self.transaction = transaction
        self.book = book
        self.added: list[Row] = []
        self._key = key

    def add(self, entry: Entry) -> None:
        """Write ``entry``; it is on disk when the turn is over."""
        row = self.book.next_row(entry)
        self.transaction.append(row, sealed_head(row, self._key))
        self.added.append(row)


class Journal:
    """A store, the key to its seal, and the book that was read from it. May be shared by threads."""

    def __init__(self, store: Store, key: bytes) -> None:
        self._store = store
        self._key = key
        self._book = Book()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._refusal = ""

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """An exclusive turn. If anything goes wrong in it, nothing of it is kept."""
        with self._lock:
            self._check_usable()
            try:
                with self._store.transaction() as transaction:
                    self._catch_up(transaction)
                    turn = Turn(transaction, self._book, self._key)
                    yield turn
            except (LedgerCorrupted, LedgerUnavailable) as error:
                # What is on disk after a failed write is known only after reading all of it anew.
                self._refusal = f"This ledger has failed before; open it again. Then it said: {error}"
                raise
            self._book.follow(turn.added)

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise LedgerUnavailable("A ledger cannot be used in a forked process; open it there anew.")
        if self._refusal:
            raise LedgerUnavailable(self._refusal)

    def _catch_up(self, transaction: Transaction) -> None:
        head, book = transaction.head(), self._book
        if not same_seal(head.seal, sealed(self._key, head.sequence, head.hash)):
            raise LedgerCorrupted(
                "The seal on the ledger's head is not from this key: the ledger was altered, or the key is another's."
            )
        if head.sequence < book.sequence:
            raise LedgerCorrupted(rolled_back(head.sequence, book.sequence))
        book.follow(transaction.rows(after=book.sequence))
        if (book.sequence, book.hash) != (head.sequence, head.hash):
            raise LedgerCorrupted(
                f"The ledger's entries end at {book.sequence} and do not lead to its sealed head, {head.sequence}: "
                "some were altered, removed or added."
            )

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            self._refusal = self._refusal or "This ledger is closed; open it again."
            if os.getpid() == self._process:
                self._store.close()


def sealed_head(row: Row, key: bytes) -> Head:
    """The head of a ledger whose last entry is ``row``."""
    return Head(row.sequence, row.hash, sealed(key, row.sequence, row.hash))


def rolled_back(found: int, known: int) -> str:
    """What to say of a ledger that has lost its last entries."""
    return (
        f"The ledger was rolled back: its last entry is {found}, but entry {known} is known to have existed. "
        "Bring back the newest copy; what was spent after an older one would be forgotten."
    )
