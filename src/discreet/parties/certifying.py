"""The certificate of a party, from its ledger, with everything that it does not cover."""

from __future__ import annotations

from collections import Counter

from discreet.certificate import Certificate
from discreet.ledger import Ledger
from discreet.parties.answer_log import AnswerLog
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Study
from discreet.plan.plan import Plan

NOT_COVERED = (
    "what the party's own computer, its operators and its network reveal",
    "when and how often messages are sent, and whether a party is present",
)
FLOAT = (
    "the low bits of floating-point messages, which can show a record with certainty (arithmetic = 'float')"
)


def certify_party(
    terms: PartyPlan, ledger: Ledger, plan: Plan, *, trusted: bool = True, checks: tuple[str, ...] = ()
) -> Certificate:
    """The certificate of a party, from its ledger alone; ``checks`` name the questions that it has answered."""
    return Certificate.of(
        ledger,
        plan,
        arithmetic=terms.arithmetic,
        trusted=trusted,
        not_covered=not_covered(terms.study),
        checks=checks,
    )


def not_covered(study: Study) -> tuple[str, ...]:
    """Everything that certificates of the parties of a study do not cover."""
    covered_by_bits = () if study.privacy.arithmetic == "hardened" else (FLOAT,)
    listed = (*covered_by_bits, *NOT_COVERED, _persons(study), _byzantine(study))
    if study.aggregation.kind == "plain":
        return listed
    colluders = study.aggregation.colluders
    return (*listed, f"a coordinator with whom more than {colluders} of the other parties collude")


def answered_questions(log: AnswerLog) -> tuple[str, ...]:
    """The answers of each stage in words, for a certificate."""
    counted = Counter((entry.stage, entry.kinds) for entry in log.entries)
    return tuple(
        f"answered {count} of {stage}: {', '.join(kinds)}" for (stage, kinds), count in counted.items()
    )


def _persons(study: Study) -> str:
    """Persons who are not covered."""
    if study.privacy.unit == "record":
        return "a person with several records, at this party or at several: it is for one record, and theirs add up"
    most = study.privacy.persons_across_parties
    known = "one party" if most == 1 else f"{most} parties"
    return f"a person whom more than {known} know, or whose rows have several ids at one of them"


def _byzantine(study: Study) -> str:
    """Damage that a party can do which lies about its records or its noise."""
    if study.aggregation.kind == "secure":
        return "a party that lies about its records or noise: it can spoil the model, and the protection of others"
    if study.model["kind"] == "evaluation":
        return "a party that lies about its records: it can move every score"
    if study.algorithm == "recipe":
        return "a party that lies: alone it can spoil the model"
    if study.aggregation.robust == "none":
        return "a party that lies: alone it can turn the model into its opposite (robust = 'none')"
    return "parties that lie and together have half of the weight or more: they can spoil the model"
