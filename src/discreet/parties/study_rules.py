"""Which words of a study go together. What an algorithm would ignore is refused, and what has no theorem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.errors import InvalidParameter
from discreet.parties.arrangement import least_parties, withstands_lies

if TYPE_CHECKING:
    from discreet.parties.study import Study


def check_rules(study: Study) -> None:
    """Raise unless all sections fit the algorithm and one another."""
    training, privacy, secure = study.training, study.privacy, study.aggregation.kind == "secure"
    if study.algorithm == "sgd1":
        if privacy.neighbours != "replace-one":
            needed = "must be 'replace-one' for sgd1, which draws among a public number of records."
            raise InvalidParameter("neighbours", privacy.neighbours, needed)
        if training.rate != 1 or training.rounds is not None or training.weights != "records":
            raise InvalidParameter("training", "rate, rounds, weights", "belong to sgd2; sgd1 has tokens.")
        if training.party_bound is not None:
            raise InvalidParameter("party_bound", training.party_bound, "belongs to sgd2, which sends sums.")
        if study.aggregation.robust != "none":
            raise InvalidParameter(
                "robust", study.aggregation.robust, "needs sgd2: sgd1 hears one at a time."
            )
        if secure:
            raise InvalidParameter("aggregation", "secure", "needs sgd2: in sgd1 one party speaks at a time.")
        return
    if training.rounds is None:
        raise InvalidParameter("rounds", None, "sgd2 needs the number of rounds.")
    if training.tokens is not None:
        raise InvalidParameter("tokens", training.tokens, "belongs to sgd1; sgd2 has rounds.")
    if training.rate < 1 and privacy.neighbours != "add-remove":
        needed = "must be 'add-remove' for rate < 1: records are drawn by independent coins."
        raise InvalidParameter("neighbours", privacy.neighbours, needed)
    if privacy.arithmetic == "float":
        if secure:
            raise InvalidParameter("arithmetic", "float", "needs plain sums: secure ones add whole numbers.")
        if training.party_bound is not None:
            raise InvalidParameter(
                "arithmetic", "float", "must be 'hardened' for a party_bound to be proved."
            )
    if study.aggregation.robust != "none":
        _check_robust(study)
    if secure:
        _check_secure(study)
    if secure and training.weights == "equal":
        raise InvalidParameter(
            "weights", "equal", "needs plain aggregation: a secure sum has one weight for all."
        )


def _check_robust(study: Study) -> None:
    """A median needs three, and nobody who outweighs all others."""
    robust, parties = study.aggregation.robust, study.parties
    if study.aggregation.kind == "secure":
        raise InvalidParameter("robust", robust, "needs plain sums: in a secure one no party's sum is seen.")
    if len(parties) < 3:
        raise InvalidParameter("robust", robust, f"needs three parties at least, not {len(parties)}.")
    if study.training.weights == "records" and 2 * max(parties.values()) >= study.records:
        needed = (
            "would follow the party with half of the records or more; use weights = 'equal', or leave it out."
        )
        raise InvalidParameter("robust", robust, needed)


def _check_secure(study: Study) -> None:
    parties, dropouts, colluders = len(study.parties), study.dropouts, study.aggregation.colluders
    if parties < 2 or dropouts + colluders > parties - 2:
        needed = f"must leave at least two honest parties of {parties}."
        raise InvalidParameter("dropouts + colluders", dropouts + colluders, needed)
    if not withstands_lies(parties, dropouts, colluders):
        needed = (
            f"is too many for {parties} parties and {colluders} colluders: a lying coordinator could unmask one "
            f"party. Allow fewer dropouts, or bring in more parties, at least {least_parties(dropouts, colluders)}."
        )
        raise InvalidParameter("dropouts", dropouts, needed)
