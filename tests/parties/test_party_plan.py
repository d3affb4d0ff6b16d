"""The numbers that a party enforces: whatever a study says, what is charged covers the noise that is drawn."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.core.randomness import RandomStream
from discreet.errors import DiscreetError, InvalidParameter, PlanViolation
from discreet.events import FixedSizeSampled, Gaussian, PoissonSampled
from discreet.guarantee import Budget
from discreet.ledger import Ledger
from discreet.parties import party_plan as module
from discreet.parties.answer_log import AnswerLog
from discreet.parties.answering import Answering
from discreet.parties.messages import Message, Refused, Roster
from discreet.parties.observation.observer_views import party_event
from discreet.parties.party_plan import AgreedNumbers, PartyPlan
from discreet.parties.study import Aggregation, Privacy, agreed_numbers
from support.parties_bank import DIMENSION, holders, study

ODD = st.one_of(
    st.integers(-3, 200),
    st.floats(),
    st.booleans(),
    st.none(),
    st.just("secure"),
    st.just(np.int64(7)),
    st.just((1,)),
)
FIELDS = sorted(set(AgreedNumbers.__dataclass_fields__) - {"budget", "group", "kinds"})


def numbers(**changed):
    return AgreedNumbers(**(agreed_numbers(study(), "ann") | changed))


STUDIES = {
    "plain": study(),
    "sampled": study(privacy=Privacy(1.0, 1e-6, "add-remove"), rate=0.2),
    "secure": study(aggregation=Aggregation("secure")),
    "secure with a colluder": study(aggregation=Aggregation("secure", colluders=1)),
    "uniform": study("sgd1", schedule="uniform"),
    "balanced": study("sgd1", schedule="balanced"),
    "private": study("sgd1", schedule="private"),
    "persons at two parties": study(privacy=Privacy(1.0, 1e-6, unit="person", persons_across_parties=2)),
}


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_ledger_is_charged_is_what_the_table_of_observers_says_of_everybody_else(name):
    """Two derivations: from the numbers of the party, and from the arrangement of all parties."""
    made = STUDIES[name]
    for party in made.names:
        assert PartyPlan(made, party).event == party_event(made.arrangement, party)
        assert PartyPlan(made, party).grid == made.grid
        assert PartyPlan(made, party).arithmetic == made.arithmetic_of(PartyPlan(made, party).steps)
        assert PartyPlan(made, party).budget.delta == made.accounted_delta


def drawn_variance(terms):
    """The variance of the noise that hides a record, in squared clip norms: of all honest parties in a sum."""
    agreed = terms.numbers
    draw = terms.step_noise.draws["sum"]
    return Fraction(agreed.noise_multiplier) ** 2 * draw.copies / draw.shares


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), ODD, min_size=1, max_size=6))
def test_a_study_that_lies_in_its_numbers_is_refused_or_charged_for_its_noise(monkeypatch_numbers, lies):
    made = study(aggregation=Aggregation("secure", colluders=1))
    monkeypatch_numbers(lambda study, party: agreed_numbers(study, party) | lies)
    try:
        terms = PartyPlan(made, "ann")
        event, variance = terms.step_noise.event, drawn_variance(terms)
    except (DiscreetError, ValueError, OverflowError, ZeroDivisionError):
        return
    mechanism = event.of if isinstance(event, PoissonSampled | FixedSizeSampled) else event
    assert isinstance(mechanism, Gaussian)
    moved = terms.numbers.across if terms.numbers.secure and terms.numbers.algorithm == "sgd2" else 1
    assert Fraction(mechanism.noise_multiplier) ** 2 * moved**2 <= variance
    assert terms.numbers.secure is False or terms.honest <= len(terms.numbers.group) - terms.numbers.colluders


@pytest.fixture(scope="module")
def monkeypatch_numbers():
    before = module.agreed_numbers

    def put(change):
        module.agreed_numbers = change

    yield put
    module.agreed_numbers = before


@pytest.fixture(autouse=True)
def honest_numbers(monkeypatch_numbers):
    monkeypatch_numbers(agreed_numbers)


def test_a_study_that_says_something_else_each_time_is_asked_once(monkeypatch_numbers):
    said = []

    def changing(study, party):
        said.append(party)
        return agreed_numbers(study, party) | {"noise_multiplier": 40.0 / len(said)}

    monkeypatch_numbers(changing)
    terms = PartyPlan(study(), "ann")
    assert terms.event.parts()[0][0] == Gaussian(40.0)
    assert terms.step_noise.draws["sum"].noise == Gaussian(40.0)
    assert said == ["ann"]


@pytest.mark.parametrize(
    "lie", [{"smallest": 30}, {"dropouts": 2}, {"colluders": 3}, {"group": ("bob", "cem")}]
)
def test_too_few_honest_parties_are_refused(monkeypatch_numbers, lie):
    monkeypatch_numbers(lambda study, party: agreed_numbers(study, party) | lie)
    with pytest.raises(InvalidParameter, match="too few honest parties"):
        PartyPlan(study(aggregation=Aggregation("secure")), "ann")


@pytest.mark.parametrize("field", ["rounds", "noise_multiplier", "secure", "algorithm", "schedule"])
def test_numbers_of_another_type_are_refused(field):
    with pytest.raises(PlanViolation, match=f"AgreedNumbers.{field}"):
        numbers(**{field: np.zeros(2)})


def test_less_noise_is_charged_as_less_noise(monkeypatch_numbers):
    """The broken twin reads a tenth of the noise out of the study: the ledger shows the cost before consent."""
    right = PartyPlan(study(), "ann").budget.epsilon
    monkeypatch_numbers(
        lambda study, party: agreed_numbers(study, party) | {"noise_multiplier": study.noise_multiplier / 10}
    )
    assert PartyPlan(study(), "ann").budget.epsilon > 5 * right


def test_anything_that_is_asked_of_the_records_is_paid_refused_or_stops(tmp_path):
    """A hostile caller in place of the party: it can send any request, and gets paid answers or numbers."""
    made = study()
    terms = PartyPlan(made, "ann")
    ledger = Ledger.in_memory(terms.rule)
    log = AnswerLog(None)
    answering = Answering(
        terms, holders()["ann"], lambda: ledger, RandomStream(unsafe_seed=0), log, None, Roster.without_wire()
    )
    theta = np.zeros(DIMENSION)
    with pytest.raises(Refused):
        answering.reply(Message(made.digest(), "sum", 1, "ann", theta))
    assert answering.begin(None) == 1
    answered = 0
    for kind, round, array in [
        ("sum", 1, theta),
        ("sum", 1, theta + 1),
        ("sum", 0, theta),
        ("token", 2, theta),
        ("mask", 2, theta),
        ("sum", 2, theta[:1]),
        ("sum", 2, theta + np.nan),
        ("sum", 10**9, theta),
        ("sum", 3, theta),
        ("sum", 2, theta),
    ]:
        try:
            answering.reply(Message(made.digest(), kind, round, "ann", array))
            answered += 1
        except Refused:
            continue
        assert ledger.runs()["tiny/ann"].reserved >= round
    assert answered == 2
    assert ledger.runs()["tiny/ann"].reserved <= terms.steps


def test_a_failure_leaves_no_text_but_for_the_owner(monkeypatch):
    made = study()
    terms = PartyPlan(made, "ann")
    answering = Answering(
        terms,
        holders()["ann"],
        lambda: Ledger.in_memory(terms.rule),
        RandomStream(unsafe_seed=0),
        AnswerLog(None),
        None,
        Roster.without_wire(),
    )
    answering.begin(None)

    def telling(theta, records, grid):
        raise KeyError("a secret value")

    monkeypatch.setattr(answering._holder, "hardened_sum", telling)
    with pytest.raises(Refused) as refusal:
        answering.reply(Message(made.digest(), "sum", 1, "ann", np.zeros(DIMENSION)))
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert answering.stopped == "KeyError"


def test_the_budget_is_the_studys_own(monkeypatch_numbers):
    budget = Budget(0.5, 1e-7, "add-remove", unit="person")
    monkeypatch_numbers(lambda study, party: agreed_numbers(study, party) | {"budget": budget})
    assert PartyPlan(study(), "ann").budget.unit == "person"
    assert replace(PartyPlan(study(), "ann").budget, epsilon=1.0, delta=1e-7).neighbours == "add-remove"
