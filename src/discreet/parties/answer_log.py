"""The answers that a party has given in a study by the recipe, on its own disk: :class:`AnswerLog`.

An answer is written down before it leaves. The same question gets the same integers again, also after a restart; so
nothing is answered in two ways, and a coordinator or a party that was killed loses nothing.

With secure sums an answer holds a share of the noise only, so the files are readable by their owner alone.

>>> log = AnswerLog(None)
>>> log.append(AnswerEntry(1, "counts", 0.1, 1, ("Blocks",), "00", 1e-20, np.array([7])))
>>> log.find(1).counts, log.last
(array([7]), 1)
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discreet.errors import LedgerCorrupted
from discreet.files import canonical, parse_json, write_whole

FORMAT = "discreet answer 1"


@dataclass(frozen=True, eq=False)
class AnswerEntry:
    """One answer: the number of the question, the stage that paid for it, its digest, and the noisy integers.

    ``distance`` is that of its noise to continuous noise. ``survivors`` are the parties for whose sum this party has
    revealed its masks, none as long as it has not.
    """

    number: int
    stage: str
    share: float
    steps: int
    kinds: tuple[str, ...]
    digest: str
    distance: float
    counts: NDArray[np.int64]
    survivors: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The entry as an npz file."""
        about = {name: value for name, value in asdict(self).items() if name != "counts"}
        text = np.frombuffer(canonical(about | {"format": FORMAT}).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, about=text, counts=self.counts)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> AnswerEntry:
        """The inverse of :meth:`to_bytes`, or :class:`ValueError` and its relatives."""
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            counts, about = stored["counts"], parse_json(stored["about"].tobytes().decode(), "answer")
        if about.pop("format") != FORMAT or counts.dtype != np.int64 or counts.ndim != 1:
            raise ValueError("not an answer")
        kinds, survivors = tuple(about.pop("kinds")), tuple(about.pop("survivors"))
        return cls(**about, kinds=kinds, survivors=survivors, counts=counts)


class AnswerLog:
    """All answers of one party in one study, in the order of their numbers; in memory without a ``folder``.

    Guarantee: when :meth:`append` or :meth:`reveal` returns, the entry is on disk, if there is a folder. An entry is
    never replaced by another answer.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._entries: dict[int, AnswerEntry] = {}
        if self._folder is not None and self._folder.exists():
            for path in sorted(self._folder.glob("answer-*.npz")):
                entry = _read(path)
                self._entries[entry.number] = entry

    @property
    def entries(self) -> tuple[AnswerEntry, ...]:
        """All answers."""
        return tuple(self._entries.values())

    @property
    def last(self) -> int:
        """The number of the last question that was answered; 0 if there is none."""
        return max(self._entries, default=0)

    def find(self, number: int) -> AnswerEntry | None:
        """The answer to the question of this number."""
        return self._entries.get(number)

    def append(self, entry: AnswerEntry) -> None:
        """Write down an answer, before anybody sees it."""
        if entry.number <= self.last:
            raise LedgerCorrupted("An answer with this number, or a later one, was given before.")
        self._write(entry)

    def reveal(self, number: int, survivors: tuple[str, ...]) -> bool:
        """Note for whose sum the masks of an answer are revealed; False if it was another one before."""
        entry = self._entries[number]
        if not entry.survivors:
            self._write(replace(entry, survivors=survivors))
        return self._entries[number].survivors == survivors

    def _write(self, entry: AnswerEntry) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(
                self._folder / f"answer-{entry.number:06d}.npz", entry.to_bytes(), secret=True, sync=True
            )
        self._entries[entry.number] = entry


def _read(path: Path) -> AnswerEntry:
    try:
        return AnswerEntry.from_bytes(path.read_bytes())
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile):
        raise LedgerCorrupted(
            f"{path} holds no answer of a study. Restore it; without it nothing more can be answered."
        ) from None
