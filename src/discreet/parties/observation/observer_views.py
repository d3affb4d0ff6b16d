"""What each observer sees of an arrangement, as an event for the accountant.

A view is data: a name, what is seen in words, and the event (or the randomly repeated event) that bounds what the
observer learns about **one record of another party**, whichever party that is: the worst one counts. The numbers
refer to docs/observers.md.

Two facts carry all rows. A record lives in one party (a person in ``across`` of them at most), so only that party's
messages depend on it, and the noise of other parties that stays hidden protects it as well as its owner's own. And
seeing less can only help privacy: what follows from a view, such as the final model from all broadcasts, costs no
more than the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from discreet.errors import InvalidParameter, real, whole
from discreet.events import Event, FixedSizeSampled, Gaussian, PoissonSampled
from discreet.parties.arrangement import Arrangement
from discreet.parties.observation.mixtures import RandomRepeats

ObserverEvent = Event | RandomRepeats


@dataclass(frozen=True)
class View:
    """What one observer sees.

    ``faces`` holds an event for each owner who may be the worst off; it is empty where nothing is promised, and
    ``note`` says why. They may fail with probability ``lost``, which is to be taken off delta; where delta is too
    small for that, ``otherwise`` holds for certain.
    """

    observer: str
    sees: str
    faces: tuple[ObserverEvent, ...]
    note: str = ""
    group_size: int = 1
    lost: float = 0.0
    otherwise: tuple[ObserverEvent, ...] = ()

    def at(self, delta: float) -> tuple[tuple[ObserverEvent, ...], float]:
        """What to account for at ``delta``, and the delta that is left for it."""
        if delta > 2 * self.lost:
            return self.faces, delta - self.lost
        return self.otherwise, delta


def other_parties(count: int) -> str:
    """So many parties, in words."""
    return "one other party" if count == 1 else f"{count} other parties together"


OBSERVERS = (
    "final model",
    "contracted final model",
    "broadcasts",
    "messages",
    "traffic",
    "another party",
    "colluding parties",
    "coordinator",
    "coordinator and colluders",
    "everybody else",
    "whole party",
    "owner",
)
"""The names, from the weakest to the strongest; ``"whole party"`` protects all records of a party at once."""


def views(arrangement: Arrangement, coalition: int | None = None) -> list[View]:
    """Every observer of ``arrangement``; ``coalition`` is the size of the colluding group that is shown."""
    others = len(arrangement.parties) - 1
    chosen = max(arrangement.colluders, min(1, others)) if coalition is None else coalition
    size = whole("coalition", chosen, at_least=min(1, others), at_most=others)
    rows = (sgd1_views if arrangement.algorithm == "sgd1" else sgd2_views)(arrangement, size)
    owner = View("owner", "holds the records", (), "a party sees its own records as they are")
    return [*rows, owner]


def party_event(arrangement: Arrangement, party: str) -> Event:
    """What a party's ledger charges: the event against the strongest observer that the arrangement allows for.

    Everybody else together, doing whatever they like; with secure sums, the coordinator and ``colluders`` parties.
    """
    if party not in arrangement.parties:
        raise InvalidParameter("party", party, f"must be one of {', '.join(map(repr, arrangement.parties))}.")
    return (sgd1_party_event if arrangement.algorithm == "sgd1" else sgd2_party_event)(arrangement, party)


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


def _hidden_among(arrangement: Arrangement, noise: Gaussian, coalition: int) -> ObserverEvent:
    """Each step not known to the coalition uses a record of the rest, uniformly; (6).

    The largest parties collude, and the next largest are missing, which shows: the rest is the smallest crowd. A
    balanced order has no theorem that is better than knowing it.
    """
    if arrangement.schedule == "balanced":
        return noise * arrangement.cap
    sizes = sorted(arrangement.parties.values())
    crowd = sum(sizes[: max(1, len(sizes) - coalition - arrangement.dropouts)])
    return _repeated(arrangement, _one_of(crowd, noise), crowd)


def _seen_callers(arrangement: Arrangement, noise: Gaussian) -> ObserverEvent:
    """Each call of the owner uses one of its records, uniformly; (7). The smallest party is the worst owner."""
    if arrangement.schedule == "balanced":
        return noise * arrangement.cap
    smallest = min(arrangement.parties.values())
    return _repeated(arrangement, _one_of(smallest, noise), smallest)


def _known_schedule(arrangement: Arrangement, noise: Gaussian) -> ObserverEvent:
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


def _repeated(arrangement: Arrangement, event: Event, crowd: int) -> ObserverEvent:
    """``event`` for each token that goes to a crowd of so many records."""
    if crowd == arrangement.records:
        return event * arrangement.tokens
    return RandomRepeats(event, arrangement.tokens, crowd / arrangement.records)


def sgd2_party_event(arrangement: Arrangement, party: str) -> Event:
    """All messages of a party; with secure sums, as the coordinator and ``colluders`` parties see them."""
    if arrangement.aggregation == "plain":
        return _rounds(arrangement, _noise_of_messages(arrangement))
    if arrangement.across > 1:  # also in the sums of other groups
        return _group_seen_by(arrangement, arrangement.colluders)
    return _rounds(arrangement, _noise_in_group(arrangement, party, arrangement.colluders))


def sgd2_views(arrangement: Arrangement, coalition: int) -> Iterator[View]:
    """Every observer but the owner; so many parties collude.

    A budget that is spent adaptively by the recipe is one round which spends all of it; (11).
    """
    everything = _rounds(arrangement, _noise_of_messages(arrangement))
    plain = arrangement.aggregation == "plain"
    total = _sum_seen_by(arrangement, 0)
    yield View("final model", "sees the final model only", (total,))
    if arrangement.contraction is not None:
        yield _contracted_view(arrangement)
    recipe = arrangement.algorithm == "recipe"
    broadcast = "question, which follows from the sums so far" if recipe else "model that is broadcast"
    yield View("broadcasts", f"sees every {broadcast}", (total,))
    masked = "sees every message, masked" if not plain else "sees every message of every party"
    yield View("messages", masked, (everything if plain else total,))
    yield View("traffic", masked + ", and who sent it", (everything if plain else total,))
    if coalition:
        sees = "is another party: sees every broadcast and knows its own noise"
        yield View("another party", sees, (_sum_seen_by(arrangement, 1),))
        together = _sum_seen_by(arrangement, coalition)
        sees = f"is {other_parties(coalition)}: sees every broadcast and knows their noise"
        yield View("colluding parties", sees, (together,))
    several = len(arrangement.groups) > 1
    summed = "the sum of each group" if several else "the sum of the parties present"
    sees = "is the coordinator: sees " + ("every party's messages" if plain else summed)
    honest = (
        "" if plain or arrangement.withstands_lies else "only if it follows the protocol: too many dropouts"
    )
    yield View("coordinator", sees, (everything if plain else _group_seen_by(arrangement, 0),), honest)
    if coalition:
        sees = f"is the coordinator with {other_parties(coalition)}"
        pooled = everything if plain else _group_seen_by(arrangement, coalition)
        yield View("coordinator and colluders", sees, (pooled,), honest)
        own = _sum_seen_by(arrangement, len(arrangement.parties) - 1)
        sees = "is everybody but the owner of the record together"
        yield View("everybody else", sees, (everything if plain else own,))
    yield _whole_party_of_sgd2(arrangement)


def _rounds(arrangement: Arrangement, noise: float) -> Event:
    """All rounds, if this much noise stays hidden in each; (1)."""
    assert arrangement.rounds is not None
    step: Event = Gaussian(noise)
    if arrangement.rate < 1:
        step = PoissonSampled(arrangement.rate, Gaussian(noise))
    return step * arrangement.rounds


def _noise_of_messages(arrangement: Arrangement) -> float:
    """Noise of all messages, in units of what one person, known to ``across`` parties, adds to them; (1a)."""
    return arrangement.noise / math.sqrt(arrangement.across) * (1 if arrangement.across == 1 else 1 - 1e-14)


def _sum_seen_by(arrangement: Arrangement, coalition: int) -> Event:
    """What is left to so many parties who know the sum: the least noise over all owners; (2).

    A plain sum follows from the messages, so it costs no more than they do.
    """
    found = min(_hidden_noise(arrangement, owner, coalition) for owner in arrangement.parties)
    if arrangement.across > 1:
        found = found / arrangement.across * (1 - 1e-14)
        if arrangement.aggregation == "plain":
            found = max(found, _noise_of_messages(arrangement))
    return _rounds(arrangement, found)


def _group_seen_by(arrangement: Arrangement, coalition: int) -> Event:
    """What is left to a coordinator with so many parties: it sees the secure sum of the owner's group by itself."""
    return _rounds(
        arrangement, min(_noise_in_group(arrangement, owner, coalition) for owner in arrangement.parties)
    )


def _noise_in_group(arrangement: Arrangement, owner: str, coalition: int) -> float:
    """Noise in the secure sum of the owner's group that a coalition, all of it in this group, does not know.

    A person known to several parties, all in this group at worst, adds as many times as much. The sums of other
    groups hold nothing of the owner's records, and noise of their own.
    """
    size = next(len(group) for group in arrangement.groups if owner in group)
    left = max(0, size - 1 - coalition - arrangement.dropouts)
    return (
        arrangement.noise * arrangement.noise_share * math.sqrt(1 + left) / arrangement.across * (1 - 1e-14)
    )


def _hidden_noise(arrangement: Arrangement, owner: str, coalition: int) -> float:
    """Noise in the weighted sum that a coalition does not know, in units of what one record of ``owner`` adds; (2).

    The worst case: the heaviest other parties are in the coalition, the next heaviest are missing; with secure sums
    as many as may be in every group, because a group knows of its own only. Where messages are looked at one by one,
    there is no sum to hide in.
    """
    if arrangement.robust:
        return arrangement.noise
    weights = arrangement.weights or dict.fromkeys(arrangement.parties, 1.0)
    groups = len(arrangement.groups) if arrangement.aggregation == "secure" else 1
    lost = coalition + arrangement.dropouts * groups
    others = sorted(weight for name, weight in weights.items() if name != owner)
    left = others[: max(0, len(others) - lost)]
    if not left and arrangement.aggregation == "plain":
        return arrangement.noise
    # Relative to the owner's weight; the division and the root are rounded far less than the factor allows for.
    ratio = math.hypot(1.0, *(weight / weights[owner] for weight in left))
    return arrangement.noise * arrangement.noise_share * ratio * (1 - 1e-14)


def contracted_noise(noise_multiplier: float, contraction: float, rounds: int) -> float:
    """The noise multiplier of one release that costs as much as the last of many contracting updates; (4).

    Guarantee (Bok, Su, Altschuler 2024, by shifted interpolation): if every noise-free update brings any two models
    closer by the factor ``contraction``, whatever the data and whichever parties answer, the step is constant, all
    records take part, and each update adds noise of ``noise_multiplier`` (in clip norms, before step size and
    projection), then the last model is a Gaussian release with the result. A strongly convex and smooth loss
    has such a factor for steps below 2 / smoothness *if* clipping is never felt; quadratics attain the bound.

    >>> round(contracted_noise(1.0, contraction=0.9, rounds=100), 6), round(contracted_noise(1.0, 0.0, 100), 6)
    (0.229422, 1.0)
    """
    noise = real("noise_multiplier", noise_multiplier, above=0)
    c, rounds = real("contraction", contraction, at_least=0, below=1), whole("rounds", rounds, at_least=1)
    forgotten = -math.expm1(rounds * math.log(c)) if c > 0 else 1.0  # 1 - c^T
    growth = forgotten / (2 - forgotten) * (1 + c) / (1 - c)
    return noise / math.sqrt(growth) * (1 - 1e-14)


def _contracted_view(arrangement: Arrangement) -> View:
    c = real("contraction", arrangement.contraction, at_least=0, below=1)
    noise = min(_hidden_noise(arrangement, owner, 0) for owner in arrangement.parties)
    note = f"only if each noise-free update, with a constant step, contracts by {c:g} for any data"
    sees = "sees the final model only"
    event = Gaussian(contracted_noise(noise, c, arrangement.tokens)) * 1
    return View("contracted final model", sees, (event,), note)


def _whole_party_of_sgd2(arrangement: Arrangement) -> View:
    """All records of one party at once, before the coordinator and the colluders; (5)."""
    worst, least = "", math.inf
    for owner, size in sorted(arrangement.parties.items(), key=lambda party: -party[1]):
        noise = arrangement.noise
        if arrangement.aggregation == "secure":
            noise = _noise_in_group(arrangement, owner, arrangement.colluders) * arrangement.across
        reach = size if arrangement.party_bound is None else min(size, arrangement.party_bound)
        if noise / reach < least:
            worst, least = owner, noise / reach
    sees = "is the coordinator with all colluders, and asks about all records of one party"
    event = Gaussian(least * (1 - 1e-14)) * arrangement.tokens
    return View("whole party", sees, (event,), "", arrangement.parties[worst])
