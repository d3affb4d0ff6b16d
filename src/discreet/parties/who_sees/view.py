"""One observer's view: a name, what is seen in words, and the event to account for."""

from __future__ import annotations

from dataclasses import dataclass

from discreet.events import Event
from discreet.parties.who_sees.mixtures import RandomRepeats

Face = Event | RandomRepeats


@dataclass(frozen=True)
class View:
    """What one observer sees.

    ``faces`` holds an event for each owner who may be the worst off; it is empty where nothing is promised, and
    ``note`` says why. They may fail with probability ``lost``, which is to be taken off delta; where delta is too
    small for that, ``otherwise`` holds for certain.
    """

    observer: str
    sees: str
    faces: tuple[Face, ...]
    note: str = ""
    group_size: int = 1
    lost: float = 0.0
    otherwise: tuple[Face, ...] = ()

    def at(self, delta: float) -> tuple[tuple[Face, ...], float]:
        """What to account for at ``delta``, and the delta that is left for it."""
        if delta > 2 * self.lost:
            return self.faces, delta - self.lost
        return self.otherwise, delta


def other_parties(count: int) -> str:
    """So many parties, in words."""
    return "one other party" if count == 1 else f"{count} other parties together"
