"""What each observer sees of SGD2: everybody's sum in every round."""

from __future__ import annotations

import math
from collections.abc import Iterator

from discreet.errors import real, whole
from discreet.events import Event, Gaussian, PoissonSampled
from discreet.parties.arrangement import Arrangement
from discreet.parties.who_sees.view import View, other_parties


def sgd2_party_event(arrangement: Arrangement, party: str) -> Event:
    """All messages of a party; with secure sums, as the coordinator and ``colluders`` parties see them."""
    if arrangement.aggregation == "plain":
        return _rounds(arrangement, arrangement.noise)
    return _rounds(arrangement, _hidden_noise(arrangement, party, arrangement.colluders))


def sgd2_views(arrangement: Arrangement, coalition: int) -> Iterator[View]:
    """Every observer but the owner; so many parties collude."""
    everything = _rounds(arrangement, arrangement.noise)
    plain = arrangement.aggregation == "plain"
    total = _sum_seen_by(arrangement, 0)
    yield View("final model", "sees the final model only", (total,))
    if arrangement.contraction is not None:
        yield _contracted_view(arrangement)
    yield View("broadcasts", "sees every model that is broadcast", (total,))
    masked = "sees every message, masked" if not plain else "sees every message of every party"
    yield View("messages", masked, (everything if plain else total,))
    yield View("traffic", masked + ", and who sent it", (everything if plain else total,))
    if coalition:
        sees = "is another party: sees every broadcast and knows its own noise"
        yield View("another party", sees, (_sum_seen_by(arrangement, 1),))
        together = _sum_seen_by(arrangement, coalition)
        sees = f"is {other_parties(coalition)}: sees every broadcast and knows their noise"
        yield View("colluding parties", sees, (together,))
    sees = "is the coordinator: sees " + (
        "every party's messages" if plain else "the sum of the parties present"
    )
    honest = (
        "" if plain or arrangement.withstands_lies else "only if it follows the protocol: too many dropouts"
    )
    yield View("coordinator", sees, (everything if plain else total,), honest)
    if coalition:
        sees = f"is the coordinator with {other_parties(coalition)}"
        yield View("coordinator and colluders", sees, (everything if plain else together,), honest)
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


def _sum_seen_by(arrangement: Arrangement, coalition: int) -> Event:
    """What is left to so many parties who know the sum: the least noise over all owners; (2)."""
    return _rounds(
        arrangement, min(_hidden_noise(arrangement, owner, coalition) for owner in arrangement.parties)
    )


def _hidden_noise(arrangement: Arrangement, owner: str, coalition: int) -> float:
    """Noise in the weighted sum that a coalition does not know, in units of what one record of ``owner`` adds; (2).

    The worst case: the heaviest other parties are in the coalition, the next heaviest are missing. Where messages are
    looked at one by one, there is no sum to hide in.
    """
    if arrangement.robust:
        return arrangement.noise
    weights = arrangement.weights or dict.fromkeys(arrangement.parties, 1.0)
    lost = coalition + arrangement.dropouts
    others = sorted(weight for name, weight in weights.items() if name != owner)
    left = others[: max(0, len(others) - lost)]
    # Relative to the owner's weight; the division and the root are rounded far less than the factor allows for.
    ratio = math.hypot(1.0, *(weight / weights[owner] for weight in left))
    return arrangement.noise * arrangement.noise_share * ratio * (1 - 1e-14)


def contracted(noise_multiplier: float, contraction: float, rounds: int) -> float:
    """The noise multiplier of one release that costs as much as the last of many contracting updates; (4).

    Guarantee (Bok, Su, Altschuler 2024, by shifted interpolation): if every noise-free update brings any two models
    closer by the factor ``contraction``, whatever the data and whichever parties answer, the step is constant, all
    records take part, and each update adds noise of ``noise_multiplier`` (in clip norms, before step size and
    projection), then the last model is a Gaussian release with the result. A strongly convex and smooth loss
    has such a factor for steps below 2 / smoothness *if* clipping is never felt; quadratics attain the bound.

    >>> round(contracted(1.0, contraction=0.9, rounds=100), 6), round(contracted(1.0, 0.0, 100), 6)
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
    event = Gaussian(contracted(noise, c, arrangement.tokens)) * 1
    return View("contracted final model", sees, (event,), note)


def _whole_party_of_sgd2(arrangement: Arrangement) -> View:
    """All records of one party at once, before the coordinator and the colluders; (5)."""
    worst, least = "", math.inf
    for owner, size in sorted(arrangement.parties.items(), key=lambda party: -party[1]):
        noise = arrangement.noise
        if arrangement.aggregation == "secure":
            noise = _hidden_noise(arrangement, owner, arrangement.colluders)
        reach = size if arrangement.party_bound is None else min(size, arrangement.party_bound)
        if noise / reach < least:
            worst, least = owner, noise / reach
    sees = "is the coordinator with all colluders, and asks about all records of one party"
    event = Gaussian(least * (1 - 1e-14)) * arrangement.tokens
    return View("whole party", sees, (event,), "", arrangement.parties[worst])
