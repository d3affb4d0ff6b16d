"""The end of a study: nobody but the coordinator can end it, everybody gets the same model, and nothing is lost."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate import Arithmetic, Certificate
from discreet.certificate.signatures import public_key_of
from discreet.errors import CertificateRejected, InvalidParameter, MalformedMessage, StudyStopped
from discreet.parties import Coordinator
from discreet.parties.joint import FinalModel, JointCertificate
from discreet.parties.messages import Message, Refusal, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation
from discreet.plan.plan import Plan
from support.parties_bank import KEYS, ROSTER, SIZES, hello, holders, ledger_of, party_of, read, study
from support.parties_wire import Wire

KEY = Ed25519PrivateKey.generate()
EVERYBODY = {**ROSTER, "coordinator": public_key_of(KEY)}
ALL = Roster(EVERYBODY)
PLAN = study(rounds=3)
MODEL = np.array([0.5, -1.0, 2.0, 0.3])
HONEST = FinalModel(PLAN.digest(), Roster(EVERYBODY).digest(), MODEL)


def party(plan=PLAN, roster=EVERYBODY, **settings):
    made = party_of(plan, "ann", roster=roster, **settings)
    greeting = Message(plan.digest(), "hello", 0, "ann", np.zeros(0, np.uint8))
    assert read(made.answer(greeting.encode(KEY, ALL))).kind == "ready"
    return made


def refusal(reply):
    message = read(reply)
    assert message.kind == "refused"
    return Refusal(int(message.array[0]))


def body(ending, **changed):
    message = ending.message()
    return replace(message, **changed)


@pytest.mark.parametrize(
    "frame",
    [
        HONEST.message().encode(),
        HONEST.message().encode(KEYS["stranger"], ALL),
        HONEST.message().encode(KEYS["bob"], ALL),
        FinalModel(PLAN.digest(), Roster(ROSTER).digest(), MODEL).message().encode(KEY, ALL),
        FinalModel(PLAN.digest(), HONEST.roster, MODEL[:3]).message().encode(KEY, ALL),
        FinalModel(PLAN.digest(), HONEST.roster, MODEL * np.nan).message().encode(KEY, ALL),
        body(HONEST, array=HONEST.message().array[:-1]).encode(KEY, ALL),
        body(HONEST, array=HONEST.message().array[:40]).encode(KEY, ALL),
        body(HONEST, array=MODEL).encode(KEY, ALL),
        body(HONEST, round=1).encode(KEY, ALL),
        HONEST.message().encode(KEY, ALL)[:-70] + bytes(6) + HONEST.message().encode(KEY, ALL)[-64:],
    ],
    ids=[
        "unsigned",
        "stranger",
        "a party",
        "roster",
        "size",
        "nan",
        "cut",
        "short",
        "type",
        "round",
        "altered",
    ],
)
def test_what_the_coordinator_did_not_sign_for_this_study_and_roster_ends_nothing(frame):
    """The attack: whoever got through to the party sent a model of his own, and the party believed it."""
    made = party()
    assert refusal(made.answer(frame)) is Refusal.MALFORMED
    assert made.ending is None
    assert not made.wait(0)


def test_the_end_of_another_study_is_not_ours():
    other = study(rounds=4)
    frame = FinalModel(other.digest(), HONEST.roster, MODEL).message().encode(KEY, ALL)
    assert refusal(party().answer(frame)) is Refusal.OTHER_STUDY


def test_without_the_coordinators_key_in_the_roster_nobody_can_end_a_study():
    made = party_of(PLAN, "ann")
    made.answer(hello(PLAN, "ann"))
    frame = (
        FinalModel(PLAN.digest(), Roster(ROSTER).digest(), MODEL)
        .message()
        .encode(KEYS["ann"], Roster(ROSTER))
    )
    assert refusal(made.answer(frame)) is Refusal.MALFORMED
    assert made.ending is None


def test_the_signed_end_brings_the_model_and_the_certificate_goes_back():
    made, frame = party(), HONEST.message().encode(KEY, ALL)
    reply = made.answer(frame)
    assert made.wait(0)
    assert np.array_equal(made.ending.theta, MODEL)
    assert made.ending.model == HONEST.model
    found = Certificate.from_json(read(reply).array.tobytes().decode())
    assert found.verify(signed_by=EVERYBODY["ann"])
    assert found.to_json() == made.certificate(made.ending.model).to_json()
    assert made.ending.model in found.to_json()
    assert made.answer(frame) == reply


def test_after_the_end_there_is_no_other_model_and_no_other_round():
    made = party()
    made.answer(HONEST.message().encode(KEY, ALL))
    other = FinalModel(PLAN.digest(), HONEST.roster, -MODEL).message().encode(KEY, ALL)
    assert refusal(made.answer(other)) is Refusal.OTHER_REQUEST
    question = Message(PLAN.digest(), "sum", 1, "*", MODEL).encode(KEY, ALL)
    assert refusal(made.answer(question)) is Refusal.BEYOND_PLAN
    assert np.array_equal(made.ending.theta, MODEL)
    assert sum(run.reserved for run in made.ledger.runs().values()) == 0


def test_a_party_may_keep_its_certificate():
    made = party()
    made._shows = False
    assert read(made.answer(HONEST.message().encode(KEY, ALL))).array.size == 0
    assert made.ending.model == HONEST.model


def test_a_party_that_cannot_go_on_says_so_to_its_owner_at_once(monkeypatch):
    made = party()
    monkeypatch.setattr(made.ledger, "statement", lambda: 1 / 0)
    assert refusal(made.answer(HONEST.message().encode(KEY, ALL))) is Refusal.STOPPED
    assert made.wait(0)
    assert made.stopped == "ZeroDivisionError"
    assert made.ending is None


def test_bytes_that_are_no_end_are_malformed():
    rng = np.random.default_rng(0)
    good = HONEST.message()
    for _ in range(200):
        array = good.array.copy()
        array[rng.integers(32, len(array))] ^= rng.integers(1, 256, dtype=np.uint8)
        with pytest.raises(MalformedMessage):
            FinalModel.of(replace(good, array=array))


class Noting:
    """A holder that notes what it is asked for."""

    def __init__(self, holder):
        self._holder, self.asked = holder, []

    def __getattr__(self, name):
        return getattr(self._holder, name)

    def clipped_sum(self, theta, records):
        self.asked.append(("clipped", None if records is None else len(records)))
        return self._holder.clipped_sum(theta, records)

    def hardened_sum(self, theta, records, grid):
        self.asked.append(("hardened", None if records is None else len(records)))
        return self._holder.hardened_sum(theta, records, grid)


QUESTIONS = {"sgd2": "sum", "sgd1": "token"}


@pytest.mark.parametrize("algorithm", QUESTIONS)
def test_a_prepared_party_has_done_once_what_the_first_round_asks_for(algorithm):
    """Else whatever is compiled on first use would be compiled while the others wait, and round 1 be lost."""
    plan, holder = study(algorithm), Noting(holders()["ann"])
    made = party_of(plan, "ann", holder=holder)
    made.prepare()
    before = set(holder.asked)
    assert sum(run.reserved for run in made.ledger.runs().values()) == 0
    key = bytes(32) if algorithm == "sgd1" else b""
    assert read(made.answer(hello(plan, "ann", key))).kind == "ready"
    name = "ann" if algorithm == "sgd1" else "*"
    question = Message(plan.digest(), QUESTIONS[algorithm], 1, name, MODEL)
    assert read(made.answer(question.encode())).kind == "noisy"
    assert set(holder.asked) == before


class SignedWire(Wire):
    """Parties that know the coordinator's key."""

    def restart(self, name):
        ledger = self.ledgers.setdefault(name, ledger_of(self.plan, name))
        self.parties[name] = party_of(
            self.plan, name, holder=holders()[name], ledger=ledger, roster=EVERYBODY
        )


PLANS = {
    "sgd2": PLAN,
    "sgd1": study("sgd1", tokens=30, schedule="balanced"),
    "secure": study(rounds=2, aggregation=Aggregation("secure")),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_who_was_away_at_the_end_gets_model_and_certificate_later(plan, tmp_path):
    """The loss: a party that was charged, but not there at the end, had neither."""
    wire, state = SignedWire(plan), tmp_path / "state"
    first = Coordinator(plan, wire, EVERYBODY, state, signing_key=KEY)
    with pytest.raises(StudyStopped, match="not come to its end"):
        first.finish(["ann"])
    result = first.run()
    taken = first.finish(["ann", "cem"])
    assert set(taken) == {"ann", "cem"}
    wire.restart("bob")  # killed, and started again without memory
    charged = sum(run.reserved for run in wire.ledgers["bob"].runs().values())
    again = Coordinator(plan, wire, EVERYBODY, state, signing_key=KEY)
    assert again.finished
    assert np.array_equal(again.run().theta, result.theta)
    taken |= again.finish(["bob"])
    models = {name: wire.parties[name].ending.model for name in SIZES}
    assert set(models.values()) == {first.ending.model}
    assert np.array_equal(wire.parties["bob"].ending.theta, result.theta)
    assert sum(run.reserved for run in wire.ledgers["bob"].runs().values()) == charged
    for name, found in taken.items():
        assert found.verify(wire.ledgers[name], signed_by=EVERYBODY[name])
    joint = JointCertificate(plan, EVERYBODY, again.ending.model, taken).signed(KEY)
    assert set(joint.verify()) == set(SIZES)


def test_certificates_of_others_are_not_taken_for_a_partys_own():
    wire = SignedWire(PLAN)

    def swapped(wire, party, message, deliver):
        reply = deliver()
        if party != "bob" or read(reply).kind != "certified":
            return reply
        theirs = wire.parties["ann"].certificate().to_json().encode()
        return replace(read(reply), array=np.frombuffer(theirs, np.uint8)).encode(KEYS["bob"], ALL)

    coordinator = Coordinator(PLAN, wire, EVERYBODY, signing_key=KEY)
    coordinator.run()
    wire.fault = swapped
    taken = coordinator.finish(SIZES)
    assert [name for name, found in taken.items() if found is None] == ["bob"]


@pytest.fixture(scope="module")
def joint():
    wire = SignedWire(PLAN)
    coordinator = Coordinator(PLAN, wire, EVERYBODY, signing_key=KEY)
    coordinator.run()
    return JointCertificate(PLAN, EVERYBODY, coordinator.ending.model, coordinator.finish(SIZES)).signed(KEY)


def test_a_joint_certificate_is_read_back_and_verified(joint, tmp_path):
    joint.save(tmp_path / "joint.json")
    read_back = JointCertificate.load(tmp_path / "joint.json")
    assert read_back.digest() == joint.digest()
    assert {
        name for name, found in read_back.verify().items() if found.guarantee.epsilon.upper <= 1.0
    } == set(SIZES)
    assert read_back.missing == ()
    without = replace(joint, certificates={"ann": joint.certificates["ann"]})
    assert without.missing == ("bob", "cem")


@pytest.mark.parametrize(
    "change",
    [
        lambda joint: replace(joint, model="0" * 64),
        lambda joint: replace(joint, signature=""),
        lambda joint: replace(joint, signature="00" * 64),
        lambda joint: joint.signed(KEYS["stranger"]),
        lambda joint: replace(
            joint, certificates=joint.certificates | {"bob": joint.certificates["ann"]}
        ).signed(KEY),
        lambda joint: replace(joint, study=study(rounds=4)).signed(KEY),
        lambda joint: replace(joint, roster=joint.roster | {"ann": EVERYBODY["bob"]}).signed(KEY),
        lambda joint: replace(joint, roster=joint.roster | {"x": "0" * 64}).signed(KEY),
    ],
    ids=["model", "unsigned", "garbage", "stranger", "swapped", "study", "roster", "no party"],
)
def test_a_joint_certificate_that_was_put_together_otherwise_is_rejected(joint, change):
    with pytest.raises(CertificateRejected):
        change(joint).verify()


def test_the_roster_is_compared_by_128_bits_or_more(joint):
    """64 bits took minutes to collide for a coordinator, which makes both rosters."""
    whole = joint.roster_digest
    assert joint.has_roster(joint.fingerprint)
    assert joint.has_roster(joint.fingerprint.replace(" ", "").upper())
    assert joint.has_roster(whole)
    assert not joint.has_roster(whole[:31] + ("0" if whole[31] != "0" else "1"))
    assert not joint.has_roster(whole[:63] + ("0" if whole[63] != "0" else "1"))
    for digits in (whole[:16], whole[:31], "", "x" * 32, whole + "0"):
        with pytest.raises(InvalidParameter, match="32 digits"):
            joint.has_roster(digits)


def test_parties_and_coordinators_refuse_a_roster_with_strangers():
    strange = EVERYBODY | {"x": EVERYBODY["ann"]}
    with pytest.raises(InvalidParameter, match="no party of the study"):
        Coordinator(PLAN, SignedWire(PLAN), strange, signing_key=KEY)


def test_a_coordinator_that_says_another_model_than_it_handed_out_is_found_out(joint):
    """It holds its own key, so before the parties signed for the model nobody could tell."""
    assert set(joint.given) == set(SIZES)
    with pytest.raises(CertificateRejected, match="ann was given another model"):
        replace(joint, model="0" * 64).signed(KEY).verify()


def test_certificates_of_before_name_no_model_and_vouch_for_none(joint):
    older = {
        name: replace(found, files=(), signatures=()).signed(KEYS[name])
        for name, found in joint.certificates.items()
    }
    found = replace(joint, certificates=older).signed(KEY)
    assert set(found.verify()) == set(SIZES)
    assert found.given == ()


def resigned(joint, **changes):
    """A certificate of ann's of something else, which she signed herself."""
    theirs = replace(joint.certificates["ann"], signatures=(), **changes).signed(KEYS["ann"])
    return replace(joint, certificates=joint.certificates | {"ann": theirs}).signed(KEY)


def test_a_party_cannot_certify_something_else_than_the_study_asks(joint):
    """What follows from the study is computed again: the party's word that it carried it out is not enough."""
    plan = joint.certificates["ann"].plan
    other = PartyPlan(study(rounds=9), "ann").rule
    cheaper = PartyPlan(study(rounds=3, privacy=(0.5, 1e-3)), "ann").rule
    invented = {"study": study(rounds=9).to_dict(), "digest": PLAN.digest(), "party": "ann"}
    for changed in (
        Plan.adaptive(plan.name, other, plan.settings),
        Plan.adaptive(plan.name, cheaper, plan.settings),
        Plan.adaptive(plan.name, plan.rule, invented),
        Plan.adaptive(plan.name, plan.rule, plan.settings | {"party": "bob"}),
    ):
        twin = resigned(joint, plan=changed)
        with pytest.raises(CertificateRejected, match="ann is not its own, or not of what the study asks"):
            twin.verify()
        assert "ann" not in twin.own()
    with pytest.raises(CertificateRejected, match="not of what the study asks"):
        resigned(joint, arithmetic=Arithmetic()).verify()
    assert set(resigned(joint).own()) == set(SIZES)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "discreet joint certificate 1"}', "{" * 50])
def test_a_text_that_is_no_joint_certificate_is_refused(text):
    with pytest.raises(InvalidParameter):
        JointCertificate.from_json(text)
