"""A second accountant, which shares no code with the first: it may contradict a certificate, and proves nothing."""

from __future__ import annotations

from collections.abc import Mapping

from discreet.accounting.curve import account
from discreet.accounting.renyi import renyi_epsilon
from discreet.errors import CertificateRejected, UnsupportedEvent
from discreet.events import Composition, Event
from discreet.guarantee import lower_text, upper_text
from discreet.ledger.filters import FixedPlan, SpendingRule

_AGREE = 1e-9  # relative: what another version of the numeric libraries may change in a recomputed epsilon


def second_opinion(rule: SpendingRule, spent: Mapping[Event, int]) -> str:
    """What the Renyi accountant says of these events.

    It bounds from above what the first one bounds from below, so the bounds must not contradict each other.
    """
    event = _event_of(rule, spent)
    neighbours, delta = rule.budget.neighbours, rule.budget.delta
    if event is None or rule.budget.group_size > 1 or delta == 0:
        return "second accountant: has no theorem for this"
    try:
        second = renyi_epsilon(event, delta, neighbours)
    except UnsupportedEvent:
        return "second accountant: has no theorem for these events"
    lower = account(event, neighbours).epsilon_bounds(delta).lower
    if second < lower * (1 - _AGREE):
        raise CertificateRejected(
            f"The certificate is rejected: the second accountant proves {second}, below the lower bound {lower}."
        )
    bounds = f"at most {upper_text(second)}; no accountant can go below {lower_text(lower)}"
    return f"second accountant (Renyi): {bounds}"


def _event_of(rule: SpendingRule, spent: Mapping[Event, int]) -> Event | None:
    if isinstance(rule, FixedPlan):
        return rule.event
    return Composition(tuple(spent.items())) if spent else None
