"""What each observer sees of an arrangement, as an event for the accountant.

A view is data: a name, what is seen in words, and the event (or the randomly repeated event) that bounds what the
observer learns about **one record of another party**, whichever party that is: the worst one counts. The numbers
refer to docs/observers.md.

Two facts carry all rows. A record lives in one party, so only that party's messages depend on it, and the noise of
other parties that stays hidden protects it as well as its owner's own. And seeing less can only help privacy:
what follows from a view, such as the final model from all broadcasts, costs no more than the view.
"""

from __future__ import annotations

from discreet.errors import InvalidParameter, whole
from discreet.events import Event
from discreet.parties.arrangement import Arrangement
from discreet.parties.who_sees.sgd1_views import sgd1_party_event, sgd1_views
from discreet.parties.who_sees.sgd2_views import sgd2_party_event, sgd2_views
from discreet.parties.who_sees.view import View

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
