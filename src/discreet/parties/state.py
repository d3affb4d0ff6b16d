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

import numpy as np

from discreet.errors import InvalidParameter
from discreet.files import canonical, parse_json, write_whole
from discreet.parties.optimizers import Iterate

FORMAT = "discreet study state 2"
_ARRAYS = ("theta", "average", "first", "second")


@dataclass
class State:
    """Where a study stands: the round reached, the iterate, and for SGD1 the key and how many turns each had.

    And what decides who could learn what: how many parties were missing at once.
    ``finished`` is true once the model is final; from then on it is only handed out.
    """

    study: str
    iterate: Iterate
    round: int = 0
    key: bytes = b""
    calls: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    most_missing: int = 0
    finished: bool = False

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
        text = np.frombuffer(canonical(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, about=text, **{name: getattr(self.iterate, name) for name in _ARRAYS})
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> State:
        """The inverse of :meth:`to_bytes`, or :class:`ValueError` and its relatives."""
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: np.array(stored[name], np.float64) for name in _ARRAYS}
            about = parse_json(stored["about"].tobytes().decode(), "state")
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
