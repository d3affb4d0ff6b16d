"""The newest head of a party's ledger, remembered outside of the ledger: an older copy of it is refused.

A copy of a ledger from a backup is in order, and remembers less than was spent. ``discreet join`` keeps the head (the
number and the hash of the last entry) in the kit's folder and in the user's data folder, and no answer leaves before
the head that paid for it is kept in both. Whoever brings back an old copy of everything, ledger and both folders, is
noticed only with an anchor that was kept elsewhere: ``discreet ledger anchor``, ``discreet join --anchor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from discreet.errors import InvalidParameter, LedgerCorrupted, LedgerUnavailable
from discreet.files import canonical, parse_json, read_text, write_whole
from discreet.ledger import Ledger
from discreet.ledger.ledger_state import Anchor

_ENDING = ".head.json"


class LedgerHeads:
    """The heads that are known of the ledger at ``place``, each in a file in one of ``folders``.

    ``given`` is an anchor that was kept elsewhere.
    """

    def __init__(self, place: Path, *folders: Path, given: Anchor | None = None) -> None:
        self._place, self._folders, self._given = place, folders, given
        self._name, self._kept = "", -1

    def insist_on_newest(self) -> None:
        """Raise if the ledger is older than a head that is known, or is another one than was here before.

        Guarantee: a ledger that passes holds all that was spent up to the newest head that is known of it.
        """
        if not self._place.exists():
            if self._given is not None or any(place == str(self._place) for place, _, _ in self._known()):
                raise LedgerUnavailable(
                    f"The ledger {self._place} has paid for a study and is gone. Restore its newest copy, with its "
                    "key; whoever is sure that it paid for other records names another one with --ledger."
                )
            return
        with Ledger.open(self._place) as book:
            self.check(book)

    def check(self, book: Ledger) -> None:
        """Raise unless an open ledger leads through all heads that are known of it."""
        entries = book.entries()
        name = Anchor.of(entries[:1]).hash
        heads = [] if self._given is None else [self._given]
        for place, ledger, head in self._known():
            if ledger == name:
                heads.append(head)
            elif place == str(self._place):
                raise LedgerCorrupted(
                    f"The ledger {self._place} is not the one that paid from this place before. Restore that one, "
                    "with its key; whoever is sure that it paid for other records names another with --ledger."
                )
        for head in heads:
            until = head.sequence + 1
            if len(entries) < until or Anchor.of(entries[:until]) != head:
                raise LedgerCorrupted(
                    f"The ledger {self._place} was rolled back: it ends at entry {len(entries) - 1}, or was written "
                    f"anew, and entry {head.sequence} is known to have existed. Restore its newest copy; what was "
                    "spent after an older one would be forgotten."
                )

    def keep(self, book: Ledger) -> None:
        """Write down the head of the ledger, unless a newer one is known; nothing may leave before."""
        head = book.anchor()
        if head.sequence <= self._kept:
            return
        name = self._name = self._name or Anchor.of(book.entries()[:1]).hash
        for folder in self._folders:
            page = folder / f"{name[:32]}{_ENDING}"
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                known = max(
                    (head.sequence for _, ledger, head in _heads_in(folder) if ledger == name), default=-1
                )
                if known < head.sequence:
                    text = canonical({"place": str(self._place), "ledger": name} | asdict(head))
                    write_whole(page, text, secret=True, sync=False)
            except OSError as error:
                raise LedgerUnavailable(
                    f"The head of the ledger cannot be kept in {folder} ({error.strerror}), so nothing may be "
                    "released. Free the disk, or make the folder writable."
                ) from None
        self._kept = head.sequence

    def _known(self) -> Iterator[tuple[str, str, Anchor]]:
        for folder in self._folders:
            yield from _heads_in(folder)


def _heads_in(folder: Path) -> Iterator[tuple[str, str, Anchor]]:
    """The heads in a folder: the ledger's place, its name (the hash of its first entry), and the head."""
    for page in sorted(folder.glob(f"*{_ENDING}")):
        found = parse_json(read_text(page), page.name)
        try:
            yield str(found["place"]), str(found["ledger"]), Anchor(found["sequence"], found["hash"])
        except (LookupError, InvalidParameter):
            raise LedgerCorrupted(
                f"{page} does not hold the head of a ledger. Restore it; without it nobody can tell whether the "
                "ledger is an old copy."
            ) from None
