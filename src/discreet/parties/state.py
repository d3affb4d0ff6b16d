"""The coordinator's memory, so that a study goes on after it was killed: one file, replaced all at once, no pickle.

Nothing in it is private to the parties, but with SGD1 it holds the schedule's key, so only its owner can read it.
A lost file costs the model, never privacy: parties count what they released themselves.
"""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.files import canonical, parse_json, write_whole
from discreet.parties.optimizers import Iterate

FORMAT = "discreet study state 2"
_ARRAYS = ("theta", "average", "first", "second")


class ReleasedSum(NamedTuple):
    """The sum of the answers to a question: the digest of the question, the integers, and whose answers they are."""

    digest: str
    counts: NDArray[np.int64]
    present: tuple[str, ...]


@dataclass
class State:
    """The progress of a study: the round reached, the iterate, and for SGD1 the key and how many turns each had.

    And what decides who could learn what: how many parties were missing at once.
    ``finished`` is true once the model is final; from then on it is only handed out.

    In a study by the recipe ``sums`` are all that was released so far, and ``model`` is what follows from them;
    ``survivors`` are the number of the last question with a secure sum, and the parties that are in it.
    """

    study: str
    iterate: Iterate
    round: int = 0
    key: bytes = b""
    calls: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    most_missing: int = 0
    finished: bool = False
    sums: list[ReleasedSum] = field(default_factory=list)
    survivors: tuple[int, tuple[str, ...]] = (0, ())
    model: NDArray[np.uint8] | None = None

    def to_bytes(self) -> bytes:
        """The state as an npz file."""
        about = {
            "format": FORMAT,
            "study": self.study,
            "updates": self.iterate.updates,
            "round": self.round,
            "key": self.key.hex(),
            "calls": self.calls,
            "missed": self.missed,
            "most_missing": self.most_missing,
            "finished": self.finished,
        }
        arrays = {name: getattr(self.iterate, name) for name in _ARRAYS}
        if self.sums or self.model is not None or self.survivors[0]:
            about["sums"] = [[entry.digest, list(entry.present)] for entry in self.sums]
            about["survivors"] = [self.survivors[0], list(self.survivors[1])]
            arrays |= {f"sum-{number}": entry.counts for number, entry in enumerate(self.sums)}
            arrays |= {} if self.model is None else {"model": self.model}
        text = np.frombuffer(canonical(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, about=text, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> State:
        """The inverse of :meth:`to_bytes`, or :class:`ValueError` and its relatives."""
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: np.array(stored[name], np.float64) for name in _ARRAYS}
            about = parse_json(stored["about"].tobytes().decode(), "state")
            number, names = about.pop("survivors", (0, ()))
            about["survivors"] = number, tuple(names)
            about["sums"] = [
                ReleasedSum(digest, np.array(stored[f"sum-{place}"], np.int64), tuple(present))
                for place, (digest, present) in enumerate(about.get("sums", ()))
            ]
            about["model"] = np.array(stored["model"], np.uint8) if "model" in stored else None
        together = np.array(list(arrays.values()))  # raises unless all have the same shape
        if about.pop("format") != FORMAT or together.ndim != 2 or not np.isfinite(together).all():
            raise ValueError("not a state")
        iterate = Iterate(**arrays, updates=int(about.pop("updates")))
        return cls(about.pop("study"), iterate, key=bytes.fromhex(about.pop("key")), **about)


class StateFile:
    """Keeps a state on disk. Saving takes a fiftieth of the time at most: large models are saved less often.

    ``clock`` says what time it is, in seconds; tests bring their own.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(path), clock
        self._due = -math.inf

    def load(self, study: str) -> State | None:
        """The state, or None if there is no file yet."""
        try:
            state = State.from_bytes(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile):
            needed = "is not a coordinator's state; restore it, or name a new file to begin a new study."
            raise InvalidParameter("state_file", str(self._path), needed) from None
        if state.study != study:
            needed = f"belongs to the study {state.study[:12]}, not to this one ({study[:12]})."
            raise InvalidParameter("state_file", str(self._path), needed)
        return state

    def save(self, state: State, *, now: bool = False) -> None:
        """Replace the file, if it is due or has to be ``now``."""
        begun = self._clock()
        if begun < self._due and not now:
            return
        write_whole(self._path, state.to_bytes(), secret=True, sync=now)
        ended = self._clock()
        self._due = ended + 49 * (ended - begun)
