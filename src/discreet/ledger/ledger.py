"""The public ledger: create, open, run, issue. The package's docstring has an example."""

from __future__ import annotations

import math
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import get_args

from discreet.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    PlanViolation,
    one_of,
    without_passwords,
)
from discreet.events import Event
from discreet.files import appears_whole
from discreet.ledger import ledger_texts
from discreet.ledger.filters import GaussianFilter, SpendingRule, TruncatedRenyiFilter
from discreet.ledger.interfaces import Store
from discreet.ledger.ledger_log import LedgerLog, Run, next_row, refuse_beyond_budget, refuse_beyond_spare
from discreet.ledger.ledger_state import (
    Anchor,
    Issued,
    LedgerState,
    RunRecord,
    Statement,
    checked_distance,
    first_entry,
    hex_digest,
)
from discreet.ledger.ledger_views import LedgerViews
from discreet.ledger.store import SQLiteStore, in_memory

Place = str | Path
Key = bytes | str | Path | None


class Ledger(LedgerViews):
    """An append-only, durable record of what was spent. Made by :meth:`create`, :meth:`open`, :meth:`in_memory`.

    Guarantee: what is reserved, by all processes together, stays within the rule's budget, and is on disk before
    it can be released. Whatever goes wrong counts as spent. A ledger that is damaged, altered or older than its
    anchor refuses.
    """

    def __init__(self, journal: LedgerLog, *, durable: bool = True) -> None:
        self._journal = journal
        self.durable = durable

    @classmethod
    def create(cls, place: Place, rule: SpendingRule, *, key: Key = None) -> Ledger:
        """Begin a ledger at a local path or a ``postgresql://`` address that holds none yet.

        ``key`` seals it: a key file, made if it is missing, or the key itself. A path without ``key`` gets a key
        file beside it, ending in ``.key``; keep it where whoever can alter the ledger cannot read it.
        """
        store = _store_kind(place)
        _check_promise(rule)
        if occupant := store.occupant(place):
            raise InvalidParameter("place", without_passwords(str(place)), ledger_texts.occupied(occupant))
        secret = _key(place, key, new=True)
        store.create(place, *next_row(LedgerState(), first_entry(rule), secret))
        return cls.open(place, key=secret)

    @classmethod
    def open(
        cls, place: Place, rule: SpendingRule | None = None, *, key: Key = None, anchor: Anchor | None = None
    ) -> Ledger:
        """Open an existing ledger and verify all of it.

        ``rule``, if given, must be the one it was created with. With an ``anchor`` taken earlier, a ledger that
        was rolled back behind it is refused; without one, an old copy cannot be told from the ledger.
        """
        secret = _key(place, key)
        ledger = cls(LedgerLog(_store_kind(place).existing(place), secret))
        try:
            ledger._check_rule(rule)
            if anchor is not None:
                ledger._check_anchor(anchor)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open_or_create(cls, place: Place, rule: SpendingRule, *, key: str | Path | None = None) -> Ledger:
        """Open the ledger at ``place``; if there is none, begin one with this rule and a key file of its own.

        Guarantee: a ledger that was lost is not begun anew while its key file is there.
        """
        if _store_kind(place).occupant(place):
            return cls.open(place, key=key)
        path = _key_path(place, key)
        if path.exists():
            raise InvalidParameter("key", str(path), ledger_texts.key_without_ledger())
        return cls.create(place, rule, key=key)

    @classmethod
    def in_memory(cls, rule: SpendingRule) -> Ledger:
        """A ledger for one process: the same rules, but nothing survives it."""
        _check_promise(rule)
        secret = os.urandom(32)
        return cls(
            LedgerLog(in_memory(*next_row(LedgerState(), first_entry(rule), secret)), secret), durable=False
        )

    def close(self) -> None:
        """Let go of the database. What is reserved stays reserved."""
        self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self,
        event: Event,
        plan_hash: str,
        *,
        name: str = "run",
        data: str | None = None,
        distance: float = 0.0,
    ) -> Run:
        """Open the run ``name``, or take it over after a crash: then plan, event and data must be the same.

        ``data`` is a name that its owner gives to the data set, such as ``"census 2021 v3"``; it must be the same
        on resuming. The ledger keeps it hashed with its key. ``distance`` is how far the distribution of all that the
        run releases is from that of ``event``, in total variation: whole-number noise has one. A run that does not
        fit into what is left of the budget is refused before it begins. Opening it reserves nothing yet.
        """
        name, plan_hash = _run_name(name), hex_digest("plan_hash", plan_hash)
        if not isinstance(event, Event):
            raise InvalidParameter("event", event, "must be the event of the run's whole plan.")
        apart = checked_distance(distance)
        with self._journal.turn() as turn:
            record = turn.ledger_state.runs.get(name)
            fingerprint = turn.data_tag(_data_name(data))
            if record is None:
                refuse_beyond_budget(turn.ledger_state, event, 1)
                refuse_beyond_spare(turn.ledger_state, apart)
                turn.add(["run", name, plan_hash, fingerprint, event.to_dict(), *([apart] if apart else [])])
            else:
                # Versions before 0.2 may have noted no distance.
                noted = record.distance > 0 or turn.ledger_state.rule.largest_distance < math.inf
                began = record.event.parts(), record.plan_hash, record.data
                nearer = noted and record.distance < apart * (1 - 1e-9)
                if nearer or began != (event.parts(), plan_hash, fingerprint):
                    raise PlanViolation(ledger_texts.departed(record, event, plan_hash, nearer, apart))
                turn.add(["resume", name, record.attempt + 1])
        return Run(self._journal, name, 1 if record is None else record.attempt + 1, event)

    def issue(self, kind: Issued, digest: str) -> None:
        """Write down that a certificate or a report with this SHA-256 was issued. Costs nothing.

        ``Certificate.of`` does so by itself. What was written down before is not written again.

        Guarantee: whoever verifies a certificate or a page with this ledger, or its entries, can tell it from every
        other one. The ledger vouches for it as far as whoever holds its key is trusted.
        """
        one_of("kind", kind, get_args(Issued))
        hex_digest("digest", digest)
        with self._journal.turn() as turn:
            if (kind, digest) not in turn.ledger_state.issued:
                turn.add(["issued", kind, digest])

    @property
    def rule(self) -> SpendingRule:
        """The rule by which this ledger spends."""
        with self._journal.turn() as turn:
            return turn.ledger_state.rule

    def remaining(self, event: Event) -> int:
        """How often ``event`` still fits into the budget."""
        with self._journal.turn() as turn:
            return turn.ledger_state.rule.room(turn.ledger_state.spent(), event)

    def runs(self) -> dict[str, RunRecord]:
        """Return the records of all runs, by name."""
        with self._journal.turn() as turn:
            return dict(turn.ledger_state.runs)

    def anchor(self) -> Anchor:
        """The head, to be kept outside: see :class:`~discreet.ledger.ledger_state.Anchor`."""
        with self._journal.turn() as turn:
            return turn.ledger_state.head

    def statement(self) -> Statement:
        """What the ledger says now: rule, runs and head, all of one moment."""
        with self._journal.turn() as turn:
            return turn.ledger_state.statement()

    def entries(self) -> list[str]:
        """Every entry as JSON text. ``Anchor.of(entries)`` is the anchor, for anybody to check."""
        with self._journal.turn() as turn:
            return turn.entries()

    def _check_rule(self, rule: SpendingRule | None) -> None:
        found = self.rule  # the first turn: everything is read and verified
        if rule is not None and _without_spare(rule) != _without_spare(found):
            raise PlanViolation(f"This ledger spends by {found}, not by {rule}; create another ledger.")

    def _check_anchor(self, anchor: Anchor) -> None:
        """Refuse a ledger that does not lead through ``anchor``: what was spent since would be forgotten."""
        entries = self.entries()
        if len(entries) <= anchor.sequence:
            raise LedgerCorrupted(ledger_texts.before_anchor(len(entries) - 1, anchor.sequence))
        if Anchor.of(entries[: anchor.sequence + 1]) != anchor:
            raise LedgerCorrupted(ledger_texts.other_anchor(anchor.sequence))


def _without_spare(rule: SpendingRule) -> SpendingRule:
    """The rule without the part of delta that ledgers of versions before 0.2 do not hold back."""
    return replace(rule, spare=0.0) if isinstance(rule, GaussianFilter | TruncatedRenyiFilter) else rule


def _check_promise(rule: SpendingRule) -> None:
    """Raise unless the rule keeps its own budget."""
    if not isinstance(rule, SpendingRule):
        raise InvalidParameter("rule", rule, "must be a FixedPlan, or a filter such as TruncatedRenyiFilter.")
    guarantee = rule.guarantee({})
    if not guarantee.within(rule.budget):
        raise BudgetExceeded(ledger_texts.beyond_own_budget(guarantee, rule.budget.epsilon))


def _store_kind(place: Place) -> type[Store]:
    if not _in_database(place):
        if isinstance(place, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place):
            remedy = "must be a path, or an address that begins with postgresql://."
            raise InvalidParameter("place", place, remedy)
        return SQLiteStore
    from discreet.ledger.postgres import PostgresStore  # needs SQLAlchemy, which is optional

    return PostgresStore


def _in_database(place: Place) -> bool:
    return isinstance(place, str) and place.startswith("postgresql")


def _key_path(place: Place, key: str | Path | None) -> Path:
    if key is not None:
        return Path(key)
    if _in_database(place):
        raise InvalidParameter("key", None, "name the file of the ledger's key, outside the database.")
    return Path(f"{place}.key")


def _key(place: Place, key: Key, *, new: bool = False) -> bytes:
    if isinstance(key, bytes):
        return checked_key(key)
    path = _key_path(place, key)
    # The key file beside a ledger belongs to it alone. If only the key is left, the ledger was lost.
    return new_key_file(path) if new and (key is None or not path.exists()) else read_key_file(path)


def _run_name(name: object) -> str:
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}", name):
        return name
    raise InvalidParameter("name", name, "must be 1 to 100 letters, digits and . _ : / -, such as 'fit-1'.")


def _data_name(data: object) -> str | None:
    if data is None or (isinstance(data, str) and 0 < len(data) <= 1000 and data.isprintable()):
        return data
    raise InvalidParameter(
        "data", data, "must be a short text that names the data set, such as 'census 2021 v3'."
    )


_KEY_BYTES = 32


def new_key_file(path: Path) -> bytes:
    """Make a key and keep it in a new file that only its owner can read."""
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        with appears_whole(path) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(key.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
    except FileExistsError:
        remedy = "exists, so its ledger does or did: open that ledger, or name another key file."
        raise InvalidParameter("key", str(path), remedy) from None
    except OSError as error:
        raise LedgerUnavailable(f"The key file {path} cannot be written: {error}.") from error
    return key


def read_key_file(path: Path) -> bytes:
    """The key in ``path``, which must be readable by its owner only."""
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerUnavailable(ledger_texts.no_key(path, error)) from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidParameter("key", str(path), f"can be read by others; run: chmod 600 {path}")
    if not re.fullmatch(f"[0-9a-f]{{{2 * _KEY_BYTES}}}\\s*", text):
        raise LedgerCorrupted(f"The key file {path} does not hold a key. Restore it from its backup.")
    return bytes.fromhex(text)


def checked_key(key: bytes) -> bytes:
    """A key that was passed directly."""
    if len(key) < _KEY_BYTES:
        remedy = f"must have at least {_KEY_BYTES}, for instance from os.urandom({_KEY_BYTES})."
        raise InvalidParameter("key", f"{len(key)} bytes", remedy)
    return key
