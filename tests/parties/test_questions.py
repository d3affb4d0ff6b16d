"""A party in a study by the recipe: what it answers, what that costs, and what it refuses."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate.signatures import public_key_of
from discreet.core.randomness import RandomStream
from discreet.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupted,
    LedgerUnavailable,
    MalformedMessage,
)
from discreet.guarantee import Budget
from discreet.ledger import GaussianFilter, Ledger
from discreet.ledger.ledger_log import Run
from discreet.parties.answer_log import AnswerEntry, AnswerLog
from discreet.parties.messages import EVERYBODY, Message, Refusal, Roster
from discreet.parties.noise_scale import NoiseScale
from discreet.parties.party import Party
from discreet.parties.party_plan import PartyPlan
from discreet.parties.question_sums import QuestionSums
from discreet.parties.secure.secure_coordinator import SecureCoordinator
from discreet.parties.study import Study
from discreet.trusted.spending import BudgetAllocator

NAMES = ("ann", "bob", "cem")


def study(secure=False, dropouts=0, names=NAMES, **questions):
    return Study.from_dict(
        {
            "study": {"name": "s", "algorithm": "recipe"},
            "parties": dict.fromkeys(names, 100),
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "add-remove"},
            "questions": {"kinds": ["Count"], "releases": 6, "numbers": 4} | questions,
            "aggregation": {"kind": "secure" if secure else "plain", "dropouts": dropouts},
            "model": {"kind": "classification"},
        }
    )


class Table:
    """Rows that answer made-up questions: JSON with the fields of a question and the number of integers."""

    unit, records = "record", 100

    def __init__(self):
        self.looked, self.before_looking = 0, lambda: None

    def read(self, body, kinds, numbers):
        asked = json.loads(body)
        if asked.pop("lost", False):
            raise LookupError
        size, kind = asked.pop("size", 2), asked.pop("kind", "Count")
        if kind not in kinds or size > numbers:
            raise MalformedMessage("not allowed")

        def total(grid):
            self.before_looking()
            self.looked += 1
            return np.full(size, int(50 / grid), np.int64)

        fields = {"stage": "counts", "share": 0.1, "steps": 3} | asked
        bound = fields.pop("bound", 1.0)
        known = {"kinds": (kind,), "digest": body, "bound": bound, "size": size}
        return SimpleNamespace(**fields, **known, total=total, fits=lambda grid: fields.get("fitting", True))


def ask(party, place, message="ask", **question):
    """The array of an answer, or a refusal."""
    body = np.frombuffer(json.dumps({"number": place} | question, sort_keys=True).encode(), np.uint8)
    return reply(party, message, place, body)


NOTHING = np.zeros(0, np.uint8)


def reply(party, kind, number, body=NOTHING):
    frame = Message(party.study.digest(), kind, number, EVERYBODY, body).encode()
    found = Message.decode(party.answer(frame))
    return Refusal(int(found.array[0])) if found.kind == "refused" else found.array


def begun(plan=None, folder=None, table=None, stream=None, greet=True, ledger=None):
    """A party of a study, greeted."""
    plan = study() if plan is None else plan
    ledger, log = (ledger, None) if folder is None else (ledger or folder / "ann.ledger", folder / "answers")
    party = Party("ann", plan, table or Table(), ledger, None, Roster.without_wire(), stream=stream, log=log)
    if greet:
        reply(party, "hello", 0)
    return party


def spent(party):
    """The squared strength of all that was charged, over that of the budget."""
    total = sum(
        count / event.noise_multiplier**2 for event, count in party.ledger.statement().spent().items()
    )
    return total * party.study.noise_multiplier**2


def test_an_answer_is_charged_before_a_row_is_read_and_noise_is_drawn():
    table = Table()
    party = begun(table=table)
    table.before_looking = lambda: seen.append(spent(party))
    seen = []
    value = ask(party, 1)
    assert value.dtype == np.int64
    assert seen == [pytest.approx(0.1 / 3)]
    assert spent(party) == pytest.approx(0.1 / 3)


def test_the_noise_is_that_of_the_share():
    plan = study(releases=2000)
    party = begun(plan)
    event = plan.noise_scale.event(0.5, 2000)
    grid = plan.noise_scale.grid(event, 1.0)
    values = [ask(party, n, share=0.5, steps=2000, size=4) * grid - 50 for n in range(1, 201)]
    assert np.std(values) == pytest.approx(event.noise_multiplier, rel=0.15)


def test_the_scale_is_that_of_a_fit_of_one_table():
    for budget in (Budget(1.0, 1e-6), Budget(0.1, 1e-9, "replace-one"), Budget(8.0, 1e-5, unit="person")):
        scale, single = NoiseScale.of(budget), BudgetAllocator(budget)
        assert (scale.gdp_mu, scale.most_records) == (single.strength, single.most_records)
        stage = single.stage("first", 0.3, 7)
        assert scale.event(0.3, 7) == stage.event
        assert scale.grid(stage.event, 1.5) == stage.grid(1.5)
    with pytest.raises(InvalidParameter):
        NoiseScale.of(Budget(1e9, 1e-6))


def test_the_same_question_gets_the_same_answer():
    table = Table()
    party = begun(table=table)
    first = ask(party, 1)
    ask(party, 2)
    assert np.array_equal(ask(party, 1), first)
    assert table.looked == 2
    assert spent(party) == pytest.approx(0.2 / 3)


@pytest.mark.parametrize(
    ("number", "question", "why"),
    [
        (1, {"size": 3}, Refusal.OTHER_REQUEST),  # this number was answered
        (2, {"kind": "Everything"}, Refusal.NOT_ALLOWED),
        (2, {"size": 5}, Refusal.NOT_ALLOWED),
        (2, {"lost": True}, Refusal.MISSING_PART),
        (2, {"number": 3}, Refusal.MALFORMED),
        (2, {"share": 0.2}, Refusal.NOT_ALLOWED),  # another share of the same stage
        (2, {"steps": 4}, Refusal.NOT_ALLOWED),
        (2, {"stage": "more", "share": 0.95}, Refusal.BEYOND_PLAN),  # shares sum to more than 1
        (2, {"stage": "more", "steps": 7}, Refusal.BEYOND_PLAN),
        (2, {"stage": "more", "bound": 1e-320}, Refusal.NOT_ALLOWED),  # less than integers can count
    ],
)
def test_what_is_not_agreed_is_refused_and_costs_nothing(number, question, why):
    table = Table()
    party = begun(table=table)
    ask(party, 1)
    before = spent(party)
    assert ask(party, number, **question) is why
    assert spent(party) == before
    assert table.looked == 1
    assert party.stopped is None


def test_a_stage_gives_no_more_answers_than_it_has_steps():
    party = begun()
    for number in (1, 2, 3):
        assert isinstance(ask(party, number), np.ndarray)
    assert ask(party, 4) is Refusal.BEYOND_PLAN
    assert spent(party) == pytest.approx(0.1)


def test_a_study_has_no_more_answers_than_were_agreed():
    party = begun()
    for number in range(1, 7):
        assert isinstance(ask(party, number, stage=f"s{number}", steps=1), np.ndarray)
    assert ask(party, 7, stage="s7", steps=1) is Refusal.BEYOND_PLAN


def test_a_number_that_was_passed_is_not_answered_later():
    party = begun()
    ask(party, 3)
    assert ask(party, 2) is Refusal.PAST_ROUND
    assert isinstance(ask(party, 5), np.ndarray)  # what was missed costs nothing
    assert spent(party) == pytest.approx(0.2 / 3)


def test_whatever_is_asked_stays_within_the_budget():
    """A coordinator that takes all it can get."""
    party = begun(study(releases=1000))
    rng = np.random.default_rng(4)
    for number in range(1, 200):
        ask(
            party,
            number,
            stage=f"s{rng.integers(9)}",
            share=float(rng.random()),
            steps=int(rng.integers(1, 5)),
        )
    assert spent(party) <= 1 + 1e-9
    assert party.certificate().guarantee.epsilon.upper <= 1.0
    party.certificate().verify(party.ledger)


class NoNoise(RandomStream):
    def __init__(self):
        super().__init__(unsafe_seed=1)
        self.drawn = 0

    def discrete_gaussian(self, scale, shape):
        self.drawn += 1
        return super().discrete_gaussian(scale, shape)


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_ledger_that_fails_lets_nothing_out(monkeypatch, writes):
    """No noise is drawn after a reservation that failed, whichever it is."""
    table, stream = Table(), NoNoise()
    party = begun(table=table, stream=stream)
    journal, left = party.ledger._journal, [writes]
    turn = journal.turn

    def failing():
        left[0] -= 1
        if left[0] < 0:
            raise LedgerCorrupted("the disk is full")
        return turn()

    monkeypatch.setattr(journal, "turn", failing)
    answers = [ask(party, number) for number in (1, 2, 3)]
    given = [found for found in answers if isinstance(found, np.ndarray)]
    monkeypatch.undo()
    paid = round(spent(party) / (0.1 / 3))
    assert paid >= stream.drawn >= len(given)
    assert answers[-1] is Refusal.STOPPED or len(given) == 3


def test_a_ledger_without_room_is_refused_before_anything_is_promised():
    with pytest.raises(BudgetExceeded):
        begun(ledger=Ledger.in_memory(GaussianFilter(Budget(0.5, 1e-5))))


def test_a_shared_ledger_pays_for_the_study():
    ledger = Ledger.in_memory(GaussianFilter(Budget(4.0, 1e-5)))
    party = begun(ledger=ledger)
    assert isinstance(ask(party, 1), np.ndarray)
    assert party.certificate().guarantee.epsilon.upper <= 4.0


# Restarts.


def test_a_party_that_was_restarted_gives_the_same_answers(tmp_path):
    first = begun(folder=tmp_path)
    answers = [ask(first, number) for number in (1, 2)]
    first.ledger.close()
    table = Table()
    again = begun(folder=tmp_path, table=table)
    assert [np.array_equal(ask(again, n), answers[n - 1]) for n in (1, 2)] == [True, True]
    assert table.looked == 0
    assert isinstance(ask(again, 3), np.ndarray)
    assert ask(again, 4) is Refusal.BEYOND_PLAN
    assert spent(again) == pytest.approx(0.1)


@pytest.mark.parametrize("lost", ["all", "the last"])
def test_a_log_that_was_lost_is_not_answered_anew(tmp_path, lost):
    first = begun(folder=tmp_path)
    for number in (1, 2):
        ask(first, number)
    first.ledger.close()
    paths = sorted((tmp_path / "answers").iterdir())
    for path in paths if lost == "all" else paths[-1:]:
        path.unlink()
    again = begun(folder=tmp_path)
    assert ask(again, 2) is Refusal.STOPPED
    assert "older copy" in again.stopped


def test_an_answer_that_was_charged_and_not_written_is_drawn_again(tmp_path, monkeypatch):
    first = begun(folder=tmp_path)
    ask(first, 1)

    def full(self, entry):
        raise OSError("no space left on device")

    monkeypatch.setattr(AnswerLog, "append", full)
    assert ask(first, 2) is Refusal.STOPPED
    assert first.stopped == "OSError"
    monkeypatch.undo()
    first.ledger.close()
    again = begun(folder=tmp_path)
    assert isinstance(ask(again, 2), np.ndarray)
    assert spent(again) == pytest.approx(0.2 / 3)


def test_a_log_that_cannot_be_read_is_refused(tmp_path):
    first = begun(folder=tmp_path)
    ask(first, 1)
    first.ledger.close()
    (tmp_path / "answers" / "answer-000001.npz").write_bytes(b"nothing")
    with pytest.raises(LedgerCorrupted, match="holds no answer"):
        begun(folder=tmp_path)


def test_a_log_holds_no_pickle_and_is_the_owners_alone(tmp_path):
    party = begun(folder=tmp_path)
    ask(party, 1)
    (path,) = (tmp_path / "answers").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    entry = AnswerEntry.from_bytes(path.read_bytes())
    assert (entry.number, entry.stage, entry.kinds) == (1, "counts", ("Count",))
    with pytest.raises(ValueError, match="not an answer"):
        AnswerEntry.from_bytes(replace(entry, counts=np.zeros(2)).to_bytes())
    with pytest.raises(LedgerCorrupted):
        AnswerLog(tmp_path / "answers").append(entry)


def test_a_certificate_names_what_was_answered():
    party = begun()
    ask(party, 1)
    ask(party, 2)
    certificate = party.certificate()
    assert certificate.checks == ("answered 2 of counts: Count",)
    assert [run.name for run in certificate.ledger.runs] == ["s/ann/counts"]


def test_long_names_fit_into_the_ledger():
    plan = replace(study(names=("p" * 40, "q" * 40)), name="n" * 40)
    assert len(PartyPlan(plan, "p" * 40).run_prefix) + 29 <= 100


# Secure sums.


class Group:
    """Three parties with secure sums, and what their coordinator does by hand."""

    def __init__(self, folder, dropouts=0, names=NAMES):
        self.study, self.folder = study(secure=True, dropouts=dropouts, names=names), folder
        self.keys = {name: Ed25519PrivateKey.generate() for name in names}
        self.roster = Roster({name: public_key_of(key) for name, key in self.keys.items()})
        self.parties = {name: self.party(name) for name in names}
        self.session(names)

    def party(self, name):
        log, ledger = self.folder / f"{name}-answers", self.folder / f"{name}.ledger"
        party = Party(name, self.study, Table(), ledger, self.keys[name], self.roster, log=log)
        reply(party, "hello", 0)
        return party

    def restart(self, name):
        self.parties[name].ledger.close()
        self.parties[name] = self.party(name)

    def session(self, names):
        self.secure = SecureCoordinator(PartyPlan(self.study, names[0]).group(self.roster), 2, 2**62)
        keys = {name: reply(self.parties[name], "advertise", 0).tobytes() for name in names}
        hello = np.frombuffer(self.secure.introduce(keys), np.uint8)
        for name in names:
            assert reply(self.parties[name], "join", 0, hello).size == 0

    def mask(self, number, names):
        found = {name: ask(self.parties[name], number, "mask") for name in names}
        return {name: value.tobytes() for name, value in found.items()}

    def unmask(self, number, masked):
        request = np.frombuffer(self.secure.request(masked), np.uint8)
        return {name: reply(self.parties[name], "unmask", number, request) for name in masked}


def test_a_secure_sum_is_the_same_in_another_session(tmp_path):
    group = Group(tmp_path)
    totals = []
    for _ in range(2):
        answers = group.unmask(1, group.mask(1, NAMES))
        totals.append(group.secure.total({name: value.tobytes() for name, value in answers.items()}))
        group.restart("bob")
        group.session(NAMES)
    assert np.array_equal(*totals)
    assert [party._answering._holder.looked for party in group.parties.values()] == [1, 0, 1]


def test_masks_are_revealed_for_one_set_of_survivors_also_after_a_restart(tmp_path):
    names = ("ann", "bob", "cem", "dan")
    group = Group(tmp_path, dropouts=1, names=names)
    masked = group.mask(1, names)
    group.unmask(1, masked)
    for name in names:
        group.restart(name)
    group.session(names)
    masked = group.mask(1, names)
    del masked["dan"]
    assert set(group.unmask(1, masked).values()) == {Refusal.OTHER_REQUEST}
    assert group.parties["ann"]._log.find(1).survivors == names


def second_set(group, restored):
    """Whether parties whose logs are those of before a reveal unmask another set of survivors."""
    names = tuple(group.parties)
    masked = group.mask(1, names)
    copies = {name: group.folder / f"{name}-copy" for name in names}
    for name in names:
        shutil.copytree(group.folder / f"{name}-answers", copies[name])
    group.unmask(1, masked)
    for name in names:
        if name in restored:
            shutil.rmtree(group.folder / f"{name}-answers")
            copies[name].rename(group.folder / f"{name}-answers")
        group.restart(name)
    group.session(names)
    masked = group.mask(1, names)
    del masked["dan"]
    return group.unmask(1, masked)


FOUR = ("ann", "bob", "cem", "dan")


def test_a_log_of_before_a_reveal_reveals_nothing_for_another_set(tmp_path):
    group = Group(tmp_path, dropouts=1, names=FOUR)
    assert set(second_set(group, FOUR).values()) == {Refusal.STOPPED}
    assert "older copy" in group.parties["ann"].stopped


def test_without_the_mark_in_the_ledger_a_log_of_before_a_reveal_reveals_both_sets(tmp_path, monkeypatch):
    """The broken twin: single answers follow from the two sums."""
    monkeypatch.setattr(Run, "mark", lambda self, place: None)
    group = Group(tmp_path, dropouts=1, names=FOUR)
    answers = second_set(group, FOUR)
    total = group.secure.total({name: value.tobytes() for name, value in answers.items()})
    assert total.shape == (2,)


def test_a_reveal_that_was_written_and_not_marked_is_made_again(tmp_path, monkeypatch):
    group = Group(tmp_path, dropouts=1, names=FOUR)
    masked = group.mask(1, FOUR)

    def fails(self, place):
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Run, "mark", fails)
        assert set(group.unmask(1, masked).values()) == {Refusal.STOPPED}
    for name in FOUR:
        group.restart(name)
    group.session(FOUR)
    answers = group.unmask(1, group.mask(1, FOUR))
    assert group.secure.total({name: value.tobytes() for name, value in answers.items()}).shape == (2,)
    assert isinstance(ask(group.parties["ann"], 2, "mask"), np.ndarray)


def test_marks_of_version_0_2_0_still_show_that_a_secure_log_is_older(tmp_path):
    """That version marked the answers of secure sums as it marks those of plain ones."""
    group = Group(tmp_path)
    party = group.parties["ann"]
    stage = SimpleNamespace(run=None, event=group.study.noise_scale.event(0.1, 3), steps=3)
    party._answering.session._stages["counts"] = stage
    party._answering.session._run("counts", stage).mark(1)
    group.restart("ann")
    group.session(NAMES)
    assert ask(group.parties["ann"], 1, "mask") is Refusal.STOPPED


def test_nothing_is_unmasked_that_was_not_answered_or_for_too_few(tmp_path):
    group = Group(tmp_path)
    masked = group.mask(1, NAMES)
    request = np.frombuffer(group.secure.request(masked), np.uint8)
    assert reply(group.parties["ann"], "unmask", 2, request) is Refusal.OTHER_REQUEST
    assert reply(group.parties["ann"], "unmask", 1, request[:-1]) is Refusal.OTHER_REQUEST
    few = np.frombuffer(bytes([1, 0, 0]) + bytes(request[3:]), np.uint8)
    assert reply(group.parties["ann"], "unmask", 1, few) is Refusal.OTHER_REQUEST
    assert reply(group.parties["ann"], "sum", 1) is Refusal.OTHER_STUDY
    group.restart("ann")
    assert ask(group.parties["ann"], 1, "mask") is Refusal.NOT_BEGUN
    assert reply(group.parties["ann"], "unmask", 1, request) is Refusal.NOT_BEGUN
    reply(group.parties["ann"], "advertise", 1)
    assert ask(group.parties["ann"], 1, "mask") is Refusal.NOT_BEGUN


def test_plain_studies_answer_questions_only():
    party = begun()
    assert reply(party, "sum", 1) is Refusal.OTHER_STUDY
    assert reply(party, "ask", 1, np.zeros(3)) is Refusal.MALFORMED
    assert reply(begun(greet=False), "ask", 1) is Refusal.NOT_BEGUN


def test_the_noise_of_a_sum_follows_from_who_is_present():
    for secure, dropouts, shares in ((False, 0, 1), (True, 0, 4), (True, 1, 3)):
        plan = study(secure, dropouts, ("a", "b", "c", "d"))
        roster = Roster({name: public_key_of(Ed25519PrivateKey.generate()) for name in plan.names})
        sums = QuestionSums(plan, None, None, roster, None)
        assert sums.noise(4) == pytest.approx((4 / shares) ** 0.5)


# The study itself.


def test_a_study_by_the_recipe_refuses_settings_of_others():
    whole = study().to_dict()
    assert "training" not in whole
    assert Study.from_dict(whole).digest() == study().digest()
    for section, word, value in (
        ("privacy", "arithmetic", "float"),
        ("privacy", "noise", "notes"),
        ("privacy", "against", "final model"),
        ("aggregation", "robust", "geometric-median"),
        ("questions", "kinds", []),
        ("questions", "kinds", ["a", "a"]),
        ("questions", "kinds", "Count"),
        ("questions", "releases", 0),
        ("questions", "numbers", 0),
        ("questions", "more", 1),
        ("model", "dimension", 3),
        ("training", "rounds", 3),
    ):
        broken = {name: dict(found) if isinstance(found, dict) else found for name, found in whole.items()}
        broken.setdefault(section, {})[word] = value
        with pytest.raises(InvalidParameter):
            Study.from_dict(broken)
    persons = {**whole, "privacy": whole["privacy"] | {"unit": "person", "persons_across_parties": 2}}
    with pytest.raises(InvalidParameter, match="needs sgd2"):
        Study.from_dict(persons)
    with pytest.raises(InvalidParameter):
        replace(study(), questions=None)
    with pytest.raises(InvalidParameter):
        replace(study(), questions="all")


def test_other_studies_have_no_questions():
    whole = study().to_dict()
    sgd2 = {**whole, "study": {"name": "s", "algorithm": "sgd2"}, "training": {"rounds": 1, "clip_norm": 1.0}}
    sgd2["model"] = {"kind": "logistic", "dimension": 2}
    with pytest.raises(InvalidParameter, match="questions"):
        Study.from_dict(sgd2)
    del sgd2["questions"]
    with pytest.raises(InvalidParameter, match="recipe"):
        replace(Study.from_dict(sgd2), questions=study().questions)


def test_the_observers_of_an_adaptive_budget():
    from discreet.parties.observation.observers import observers

    table = observers(study())
    assert table["coordinator"].guarantee.epsilon.upper == pytest.approx(1.0, rel=1e-6)
    assert table["coordinator"].guarantee.epsilon.upper <= 1.0
    assert table["everybody else"].guarantee.epsilon.upper <= 1.0
    assert table["final model"].guarantee.epsilon.upper < table["another party"].guarantee.epsilon.upper < 1.0
    assert "question" in table["broadcasts"].sees
    secure = observers(study(secure=True))
    assert secure["coordinator"].guarantee.epsilon.upper == pytest.approx(1.0, rel=1e-6)


def test_a_question_that_fits_no_table_on_its_grid_is_refused_unpaid():
    """The trial is on a table without rows, so the refusal says nothing of them; nothing is looked at or charged."""
    table = Table()
    party = begun(table=table)
    assert ask(party, 1, fitting=False) is Refusal.NOT_ALLOWED
    assert (table.looked, spent(party)) == (0, 0)
    assert ask(party, 1).dtype == np.int64


def test_rows_that_cannot_be_added_up_stop_the_party():
    """Whatever went wrong may depend on a row, so that a party that went on would answer a free question."""
    table = Table()
    party = begun(table=table)
    table.before_looking = lambda: 1 / 0
    assert ask(party, 1) is Refusal.STOPPED
    assert ask(party, 2) is Refusal.STOPPED
