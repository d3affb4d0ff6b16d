"""A party's certificate from its own ledger, also where the ledger alone does not say what was carried out."""

import numpy as np
import pytest

from discreet.cli.ledger import certificate_of, remember_plan
from discreet.errors import PlanViolation
from discreet.ledger import Ledger
from discreet.parties.messages import Message
from discreet.parties.party_plan import PartyPlan
from support.parties_bank import DIMENSION, hello, party_of, read, study

KEY = bytes(range(32))


@pytest.mark.parametrize("algorithm", ["sgd2", "sgd1"])
def test_the_certificate_is_the_one_that_the_party_itself_would_have_made(algorithm, tmp_path):
    plan, place = study(algorithm), tmp_path / "ledger"
    terms, key = PartyPlan(plan, "ann"), KEY if algorithm == "sgd1" else b""
    with Ledger.create(place, terms.rule) as ledger:
        party = party_of(plan, "ann", ledger=ledger)
        assert party.plan is None
        party.answer(hello(plan, "ann", key))
        kind, name = ("token", "ann") if key else ("sum", "*")
        question = Message(plan.digest(), kind, 1, name, np.zeros(DIMENSION))
        assert read(party.answer(question.encode())).kind == "noisy"
        remember_plan(place, "tiny/ann", party.plan)
        expected = party.certificate()
    with Ledger.open(place) as ledger:  # the party and its memory are gone
        found = certificate_of(ledger, place, terms)
        assert found.digest() == expected.digest()
        assert found.verify(ledger)
        (tmp_path / "ledger.procedures.json").unlink()
        if key:
            with pytest.raises(PlanViolation, match="nothing to certify"):
                certificate_of(ledger, place, terms)
        else:
            assert certificate_of(ledger, place, terms).digest() == expected.digest()


def test_another_study_of_the_same_name_is_not_certified(tmp_path):
    plan, place = study(), tmp_path / "ledger"
    with Ledger.create(place, PartyPlan(plan, "ann").rule) as ledger:
        party = party_of(plan, "ann", ledger=ledger)
        party.answer(hello(plan, "ann"))
        remember_plan(place, "tiny/ann", party.plan)
        with pytest.raises(PlanViolation, match="another study"):
            certificate_of(ledger, place, PartyPlan(study(rounds=21), "ann"))
