"""What each observer sees of SGD1: one record at a time, and a schedule that some of them know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from discreet.events import Event, FixedSizeSampled, Gaussian
from discreet.parties.arrangement import Arrangement
from discreet.parties.who_sees.mixtures import RandomRepeats
from discreet.parties.who_sees.view import Face, View, other_parties


def sgd1_party_event(arrangement: Arrangement, party: str) -> Event:
    """What a party answers at most, whatever the coordinator asks; (9)."""
    noise = Gaussian(arrangement.noise)
    if arrangement.schedule != "private":
        return noise * arrangement.cap
    return FixedSizeSampled(1, arrangement.parties[party], noise) * arrangement.calls(party)


def sgd1_views(arrangement: Arrangement, coalition: int) -> Iterator[View]:
    """Every observer but the owner; so many parties collude."""
    noise = Gaussian(arrangement.noise)
    outside = _hidden_among(arrangement, noise, 0)
    yield _hidden(arrangement, View("final model", "sees the final model only", (outside,)))
    yield _hidden(arrangement, View("broadcasts", "sees every update that is broadcast", (outside,)))
    sees = "sees every answer, but neither its sender and number nor the schedule's keys"
    yield _hidden(arrangement, View("messages", sees, (outside,)))
    traffic = _seen_callers(arrangement, noise)
    seen = View("traffic", "sees every answer and who sent it, but not the schedule's keys", (traffic,))
    yield seen if arrangement.schedule == "private" else _hidden(arrangement, seen)
    if coalition:
        sees = "is another party: sees every update and knows its own calls"
        yield _hidden(arrangement, View("another party", sees, (_hidden_among(arrangement, noise, 1),)))
        sees = f"is {other_parties(coalition)}: sees every update and knows their calls"
        faces = (_hidden_among(arrangement, noise, coalition),)
        yield _hidden(arrangement, View("colluding parties", sees, faces))
    known = "who was called" if arrangement.schedule == "private" else "which record was used"
    sees = f"is the coordinator: sees every message and knows {known}"
    coordinator = _known_schedule(arrangement, noise)
    yield View("coordinator", sees, (coordinator,))
    if coalition:
        sees = f"is the coordinator with {other_parties(coalition)}"
        yield View("coordinator and colluders", sees, (coordinator,))
    sees = "is everybody but the owner of the record together, and chooses the schedule at will"
    yield View("everybody else", sees, _ledgers(arrangement))
    yield _whole_party_of_sgd1(arrangement, noise)


def _hidden(arrangement: Arrangement, view: View) -> View:
    """A view without the schedule, of which an owner's refusal beyond the cap would show something: a rare event.

    What a party refuses after a restart follows from the number of the last call, which is public.
    """
    if arrangement.schedule == "balanced":
        return view
    return replace(view, lost=arrangement.overrun, otherwise=_ledgers(arrangement))


def _hidden_among(arrangement: Arrangement, noise: Gaussian, coalition: int) -> Face:
    """Each step not known to the coalition uses a record of the rest, uniformly; (6).

    The largest parties collude, and the next largest are missing, which shows: the rest is the smallest crowd. A
    balanced order has no theorem that is better than knowing it.
    """
    if arrangement.schedule == "balanced":
        return noise * arrangement.cap
    sizes = sorted(arrangement.parties.values())
    crowd = sum(sizes[: max(1, len(sizes) - coalition - arrangement.dropouts)])
    return _repeated(arrangement, _one_of(crowd, noise), crowd)


def _seen_callers(arrangement: Arrangement, noise: Gaussian) -> Face:
    """Each call of the owner uses one of its records, uniformly; (7). The smallest party is the worst owner."""
    if arrangement.schedule == "balanced":
        return noise * arrangement.cap
    smallest = min(arrangement.parties.values())
    return _repeated(arrangement, _one_of(smallest, noise), smallest)


def _known_schedule(arrangement: Arrangement, noise: Gaussian) -> Face:
    """The coordinator drew the records, so nothing is hidden but the noise; (8)."""
    if arrangement.schedule == "balanced":
        return noise * arrangement.cap
    if arrangement.schedule == "private":
        return _seen_callers(arrangement, noise)
    return RandomRepeats(noise, arrangement.tokens, 1 / arrangement.records, arrangement.cap)


def _ledgers(arrangement: Arrangement) -> tuple[Event, ...]:
    """What the owners' ledgers charge, whatever the coordinator asks; (9)."""
    of_size = {size: name for name, size in arrangement.parties.items()}
    return tuple(dict.fromkeys(sgd1_party_event(arrangement, name) for name in of_size.values()))


def _whole_party_of_sgd1(arrangement: Arrangement, noise: Gaussian) -> View:
    """Every call of a party concerns one of its records, so all of them count; (10)."""
    largest = max(arrangement.parties, key=lambda name: arrangement.parties[name])
    size = arrangement.parties[largest]
    faces = _repeated(arrangement, noise, size)
    if arrangement.schedule == "balanced":
        faces = noise * arrangement.calls(largest)
    sees = "is the coordinator with all colluders, and asks about all records of one party"
    return View("whole party", sees, (faces,), "", size)


def _one_of(crowd: int, noise: Gaussian) -> Event:
    return FixedSizeSampled(1, crowd, noise)


def _repeated(arrangement: Arrangement, event: Event, crowd: int) -> Face:
    """``event`` for each token that goes to a crowd of so many records."""
    if crowd == arrangement.records:
        return event * arrangement.tokens
    return RandomRepeats(event, arrangement.tokens, crowd / arrangement.records)
