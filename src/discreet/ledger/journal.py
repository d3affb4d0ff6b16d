"""The one way to read and write a ledger: a turn, in which nobody else writes and all that was written is proved.

A turn first reads what others have added since the last one, checks it against the sealed head, and adds it to
the book. Only then may it add an entry of its own.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger.book import Book, Entry
from discreet.ledger.seal import Anchor, same_seal, sealed
from discreet.ledger.store import Head, Row, Store, Transaction


class Turn:
    """The book, up to date, and the chance to add one entry to it."""

    def __init__(self, transaction: Transaction, book: Book, key: bytes) -> None:
        self.book = book
        self.added: list[str] = []
        self._transaction = transaction
        self._key = key

    def add(self, entry: Entry) -> None:
        """Write ``entry``; it is on disk when the turn is over."""
        row = self.book.next_row(entry)
        self._transaction.append(row, sealed_head(self.book, row, self._key))
        self.added.append(row.text)

    def data_tag(self, data: str | None) -> str | None:
        """How entries name the data of a run: only who has the key can tell which name it was."""
        return None if data is None else hmac.digest(self._key, f"data {data}".encode(), "sha256").hex()

    def entries(self) -> list[str]:
        """Every entry."""
        return list(self._transaction.entries(after=-1, until=self.book.sequence))


class Journal:
    """A store, the key to its seal, and the book that was read from it. May be shared by threads.

    With an ``anchor``, the first turn refuses a ledger that does not lead through it.
    """

    def __init__(self, store: Store, key: bytes, anchor: Anchor | None = None) -> None:
        self._store = store
        self._key = key
        self._anchor = anchor
        self._book = Book()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._refusal = ""

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """An exclusive turn. If anything goes wrong in it, nothing of it is kept."""
        with self._lock:
            self.check_usable()
            try:
                with self._store.transaction() as transaction:
                    self._catch_up(transaction)
                    turn = Turn(transaction, self._book, self._key)
                    yield turn
            except (LedgerCorrupted, LedgerUnavailable) as error:
                # What is on disk after a failed write is known only after reading all of it anew.
                self._refusal = f"This ledger has failed before; open it again. Then it said: {error}"
                raise
            self._follow(turn.added)

    def check_usable(self) -> None:
        """Raise if this handle was closed, has failed, or belongs to another process."""
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
            raise LedgerCorrupted(_rolled_back(head.sequence, book.sequence))
        self._pass_anchor(transaction, head)
        self._follow(transaction.entries(after=book.sequence, until=head.sequence))
        if not transaction.last() == head.sequence == book.sequence or head.hash != book.hash:
            raise LedgerCorrupted(
                f"The ledger's entries end at {book.sequence} and do not lead to its sealed head, {head.sequence}: "
                "some were altered, removed or added by another hand. Restore the ledger from a backup and open it "
                "with its anchor."
            )

    def _pass_anchor(self, transaction: Transaction, head: Head) -> None:
        anchor, book = self._anchor, self._book
        if anchor is None:
            return
        if head.sequence < anchor.sequence:
            raise LedgerCorrupted(_rolled_back(head.sequence, anchor.sequence))
        self._follow(transaction.entries(after=book.sequence, until=anchor.sequence))
        if (book.sequence, book.hash) != (anchor.sequence, anchor.hash):
            raise LedgerCorrupted(
                f"Entry {anchor.sequence} is not the one that the anchor remembers: this is another ledger, or "
                "one that was rolled back and then written to."
            )
        self._anchor = None

    def _follow(self, entries: Iterable[str]) -> None:
        self._refusal = "This ledger was interrupted while it was read; open it again."
        self._book.follow(entries)
        self._refusal = ""

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            self._refusal = self._refusal or "This ledger is closed; open it again."
            if os.getpid() == self._process:
                self._store.close()


def sealed_head(book: Book, row: Row, key: bytes) -> Head:
    """The head of a ledger when ``row`` has been added to ``book``."""
    hash = book.hash_after(row)
    return Head(row.sequence, hash, sealed(key, row.sequence, hash))


def _rolled_back(found: int, known: int) -> str:
    return (
        f"The ledger was rolled back: its last entry is {found}, but entry {known} is known to have existed. "
        "Bring back the newest copy; what was spent after an older one would be forgotten."
    )
