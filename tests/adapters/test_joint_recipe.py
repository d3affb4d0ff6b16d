"""Studies by the recipe: the model that one pooled table would have given, whoever is killed on the way."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.support.recipe_studies import NAMES, Sites, cut, part, study, table

import discreet.linear.fit_budget as fit_budget
from discreet.adapters.joint_recipe import JointRecipe, kinds_for, pack_files, unpack_files
from discreet.adapters.joint_study import joint_of
from discreet.core.randomness import RandomStream
from discreet.errors import CertificateRejected, InvalidParameter, MalformedMessage, StudyStopped
from discreet.linear.checked_questions import CATALOGUE
from discreet.linear.fitted_model import MODEL, FittedModel
from discreet.linear.party_table import KINDS, kinds_of
from discreet.linear.question_codec import decode
from discreet.linear.question_writer import encode
from discreet.parties.joint import JointCertificate, model_digest
from discreet.parties.messages import DirectTransport, Message, Refusal
from discreet.parties.rehearsal import rehearse
from discreet.parties.study import Study
from discreet.trusted.queries import Blocks

pytestmark = pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")


class Recorded(RandomStream):
    """A seeded stream that keeps its noise."""

    def __init__(self, seed):
        super().__init__(unsafe_seed=seed)
        self.drawn = []

    def discrete_gaussian(self, scale, shape):
        found = super().discrete_gaussian(scale, shape)
        self.drawn.append(found.copy())
        return found


class Prescribed(RandomStream):
    """A stream with prescribed noise."""

    def __init__(self, drawn):
        super().__init__(unsafe_seed=0)
        self.left = list(drawn)

    def discrete_gaussian(self, scale, shape):
        found = self.left.pop(0)
        assert found.shape == np.empty(shape).shape
        return found


CASES = {
    "lines": {},
    "curves": {"family": "auto"},
    "classes": {"target": "classes"},
    "numbers": {"target": "regression", "family": "auto"},
    "counts": {"target": "counts"},
    "learnt bounds": {"target": "regression", "learn": True},
    "persons": {"persons": True},
    "inference": {"inference": True},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_secure_sums_give_the_bits_of_the_pooled_fit_with_the_same_noise(case, monkeypatch):
    made = study(secure=True, **case)
    whole = table(2997, case.get("target", "classification"), persons=case.get("persons", False))
    sites = Sites(made, cut(whole))
    for place, name in enumerate(NAMES):
        sites.streams[name] = Recorded(place)
    sites.parties = {name: sites.party(name) for name in NAMES}
    result = sites.coordinator().run()
    noise = [sum(parts) for parts in zip(*(sites.streams[name].drawn for name in NAMES), strict=True)]
    stream = Prescribed(noise)
    monkeypatch.setattr(fit_budget, "system_stream", lambda: stream)
    pooled = sites.joint.estimator().fit(whole)
    assert result.updates == len(noise)
    assert not stream.left
    ours, theirs = sites.joint.fitted_model(result.theta), FittedModel.of(pooled)
    assert ours.tensors().keys() == theirs.tensors().keys()
    for name, values in theirs.tensors().items():
        np.testing.assert_array_equal(ours.tensors()[name], values)
    assert ours.inference == theirs.inference
    assert ours.encoding.schema == theirs.encoding.schema


@pytest.mark.parametrize("secure", [False, True])
def test_a_rehearsal_gives_a_model_and_certificates(secure, tmp_path):
    made, whole = study(family="auto", secure=secure), table(6000)
    joint = joint_of(made)
    holders = {name: joint.table_of(rows) for name, rows in cut(whole).items()}
    result = rehearse(made, holders, unsafe_seed=3, strategy=joint.strategy)
    right = joint.fitted_model(result.theta).predict(whole) == (whole["t"] == "yes")
    assert np.mean(right) > 0.7
    assert result.updates <= 150
    for certificate in result.certificates.values():
        assert certificate.guarantee.epsilon.upper <= 2.0
        assert "answered 40 of gradients: gradients" in certificate.checks
        names = [run.name for run in certificate.ledger.runs]
        assert all(name.startswith("small/") for name in names)
    assert result.observers["coordinator"].guarantee.epsilon.upper <= 2.0


def test_a_model_folder_is_the_same_at_every_site(tmp_path):
    sites = Sites(study(), cut(table()))
    result = sites.coordinator().run()
    sites.joint.write(tmp_path, result.theta)
    digest = model_digest(result.theta)
    assert sites.joint.digest_in(tmp_path) == digest
    assert "recomputed" in sites.joint.insist_on(tmp_path, digest)
    with pytest.raises(CertificateRejected, match="another model"):
        sites.joint.insist_on(tmp_path, "0" * 64)
    other = replace(sites.study, name="other")
    with pytest.raises(CertificateRejected, match="another study"):
        JointRecipe.of(other).insist_on(tmp_path, digest)
    (tmp_path / MODEL).write_text("{}")
    with pytest.raises(CertificateRejected, match="cannot be read"):
        sites.joint.insist_on(tmp_path, digest)
    with pytest.raises(MalformedMessage):
        unpack_files(b"")
    assert unpack_files(pack_files(b"a", b"bc")) == (b"a", b"bc")


# Who is missing, killed or lying.


class Wire(DirectTransport):
    """Calls ``event`` before each broadcast, and lets some parties be silent."""

    def __init__(self, sites, event=lambda count: (), kinds=("ask", "mask", "unmask")):
        super().__init__({name: sites._answer(name) for name in sites.study.names})
        self.count, self._event, self._kinds = 0, event, kinds
        self.bytes = dict.fromkeys(sites.study.names, 0)

    def broadcast(self, parties, message, timeout):
        silent = ()
        if Message.decode(message).kind in self._kinds:
            self.count += 1
            silent = self._event(self.count) or ()
        found = super().broadcast([name for name in parties if name not in silent], message, timeout)
        for name, reply in found.items():
            self.bytes[name] += len(message) + len(reply)
        return found


@pytest.mark.parametrize("secure", [False, True])
def test_parties_that_are_restarted_in_the_middle_change_nothing(secure, tmp_path):
    made, tables = study(secure=secure), cut(table())
    sites = Sites(made, tables, tmp_path)

    def restart(count):
        if count % 7 == 0:
            sites.restart(NAMES[count % 3])

    wire = Wire(sites, restart)
    result = sites.coordinator(transport=wire).run()
    calm = Sites(made, tables, seed=1).coordinator().run()
    assert result.updates == calm.updates
    for name in NAMES:
        entries = sites.parties[name]._log.entries
        assert [entry.number for entry in entries] == list(range(1, result.updates + 1))
        charged = sum(sites.parties[name].ledger.statement().spent().values())
        assert charged == len(entries)
    if not secure:  # with the same seeds masks do not disturb the noise
        np.testing.assert_array_equal(result.theta, calm.theta)


@pytest.mark.parametrize("secure", [False, True])
def test_a_coordinator_that_is_killed_anywhere_goes_on(secure, tmp_path):
    class Killed(BaseException):
        pass

    sites = Sites(study(secure=secure), cut(table()), tmp_path)
    dying = iter([3, 1, 2, 30, 55, 4, 1])

    def kill_at(limit):
        def event(count):
            if count == limit:
                raise Killed

        return event

    result = None
    while result is None:
        wire = Wire(sites, kill_at(next(dying, 0)))
        try:
            result = sites.coordinator(tmp_path / "state", wire).run()
        except Killed:
            continue
    for party in sites.parties.values():
        assert len(party._log.entries) == result.updates
        assert sum(party.ledger.statement().spent().values()) == result.updates
    again = sites.coordinator(tmp_path / "state")
    np.testing.assert_array_equal(again.run().theta, result.theta)


def test_a_coordinator_with_another_strategy_does_not_go_on_from_a_state(tmp_path):
    sites = Sites(study(), cut(table()), tmp_path)
    sites.coordinator(tmp_path / "state").run()
    from discreet.parties.state import StateFile

    state = StateFile(tmp_path / "state").load(sites.study.digest())
    state.finished, state.model = False, None
    state.sums[0] = state.sums[0]._replace(digest="00")
    StateFile(tmp_path / "state").save(state, now=True)
    with pytest.raises(StudyStopped, match="another one"):
        sites.coordinator(tmp_path / "state").run()


def test_a_party_that_is_away_is_done_without_where_the_study_allows_it():
    sites = Sites(study(dropouts=1), cut(table(6000)))
    wire = Wire(sites, lambda count: ("bob",) if 5 <= count < 40 else ())
    result = sites.coordinator(transport=wire).run()
    assert 0 < result.missed["bob"] < result.updates
    bob = sites.parties["bob"]
    assert len(bob._log.entries) == result.updates - result.missed["bob"]
    assert result.arrangement.dropouts == 1


def test_a_study_waits_for_a_party_that_it_needs(tmp_path):
    sites = Sites(study(), cut(table()), tmp_path)
    with pytest.raises(StudyStopped, match="question 4"):
        sites.coordinator(tmp_path / "state", Wire(sites, lambda count: ("bob",) if count > 3 else ())).run()
    assert sites.coordinator(tmp_path / "state").run().updates > 40


def test_a_party_that_lost_its_memory_is_sent_all_parts_again():
    sites = Sites(study(family="auto"), cut(table(6000)))

    def forget(count):
        sites.parties["ann"]._answering._holder._parts.clear()

    result = sites.coordinator(transport=Wire(sites, forget)).run()
    assert result.updates > 60
    assert sites.parties["ann"].refused[Refusal.MISSING_PART] > 10


def test_a_party_refuses_kinds_that_its_study_does_not_list():
    made = study()
    narrow = replace(made, questions=replace(made.questions, kinds=("classes",)))
    sites = Sites(narrow, cut(table()))
    with pytest.raises(StudyStopped, match="none that the study allows"):
        sites.coordinator().run()
    assert [len(party._log.entries) for party in sites.parties.values()] == [1, 1, 1]


def test_a_question_that_does_not_fit_the_columns_is_refused_before_it_is_charged():
    sites = Sites(study(), cut(table()))
    bodies = []
    sites.coordinator(transport=_Spy(sites, bodies)).run()
    gradient = next(body for body in bodies if b"ClippedGradient" in body)
    holder, limits = sites.parties["ann"]._answering._holder, sites.study.questions
    question = decode(gradient, holder._parts, sites.joint.schema)
    for theta in (np.zeros(2), np.zeros((2, 2)), np.zeros(0)):
        broken = question._replace(query=replace(question.query, theta=theta))
        with pytest.raises(MalformedMessage):
            holder.read(encode(broken, ()), limits.kinds, limits.numbers)
    from discreet.linear.losses import Squared

    other = question._replace(view=replace(question.view, loss=Squared()))
    with pytest.raises(MalformedMessage, match="another kind of target"):
        holder.read(encode(other, ()), limits.kinds, limits.numbers)
    with pytest.raises(MalformedMessage, match="does not allow"):
        holder.read(encode(question, ()), limits.kinds, question.query.size - 1)
    assert holder.read(encode(question, ()), limits.kinds, limits.numbers).kinds == kinds_of(question.query)


class _Spy(DirectTransport):
    def __init__(self, sites, bodies):
        super().__init__({name: sites._answer(name) for name in sites.study.names})
        self._bodies = bodies

    def broadcast(self, parties, message, timeout):
        read = Message.decode(message)
        if read.kind == "ask":
            self._bodies.append(read.array.tobytes())
        return super().broadcast(parties, message, timeout)


def test_messages_are_small():
    """30 encoded columns: less than 2 MB for each party."""
    rng = np.random.default_rng(2)
    made = study(family="auto")
    columns = {f"x{place}": {"bounds": [-4, 4]} for place in range(30)}
    told = made.to_dict()
    told["model"] = told["model"] | {"columns": columns | {"t": {"flag": "yes"}}, "pairs": []}
    wide = Study.from_dict(told)
    x = rng.normal(size=(9000, 30))
    from discreet.linear.row_source import Table

    cells = {f"x{place}": x[:, place] for place in range(30)}
    cells["t"] = np.where(x[:, 0] > x[:, 1] ** 2 - 1, "yes", "no").astype(object)
    sites = Sites(wide, cut(Table(cells, 9000)))
    wire = Wire(sites)
    result = sites.coordinator(transport=wire).run()
    assert result.updates <= 150
    assert max(wire.bytes.values()) <= 2 * 2**20


def test_persons_are_counted_once():
    made, whole = study(persons=True), table(3000, persons=True)
    holder = JointRecipe.of(made).table_of(whole)
    assert (holder.unit, holder.records) == ("person", 1000)
    rows = JointRecipe.of(study()).table_of(part(whole, np.arange(40)))
    assert (rows.unit, rows.records) == ("record", 40)


# What a study file declares.


def test_a_study_file_declares_a_model_that_can_be_fitted():
    made = study()
    assert isinstance(joint_of(made), JointRecipe)
    for word, value in (
        ("kind", "evaluation"),
        ("kind", "regression"),
        ("family", "forest"),
        ("inference", "yes"),
        ("unit", "who"),
        ("more", 1),
    ):
        with pytest.raises(InvalidParameter):
            joint_of(replace(made, model={**made.model, word: value}))
    with pytest.raises(InvalidParameter, match="is for lines"):
        joint_of(replace(made, model={**made.model, "family": "auto", "inference": True}))
    with pytest.raises(InvalidParameter, match="target and columns"):
        joint_of(replace(made, model={"kind": "classification"}))
    with pytest.raises(InvalidParameter, match="must be among"):
        joint_of(replace(made, questions=replace(made.questions, kinds=("Everything",))))


def test_the_kinds_of_a_study_are_those_that_its_fit_can_need():
    schema = JointRecipe.of(study()).schema
    lines = kinds_for(schema, "classification", "linear", False)
    assert lines == ("classes", "columns", "gradients", "moments", "norms")
    assert "errors" in kinds_for(schema, "classification", "linear", True)
    assert "pairs" in kinds_for(schema, "classification", "auto", False)
    persons = JointRecipe.of(study(persons=True)).schema
    assert "persons" in kinds_for(persons, "classification", "auto", False)
    with pytest.raises(MalformedMessage, match="no kind"):
        kinds_of(Blocks((), 1.0))


def test_every_kind_names_queries_of_the_catalogue():
    assert {name for names in KINDS.values() for name in names} <= set(CATALOGUE)


def test_a_joint_certificate_names_the_queries(tmp_path):
    sites = Sites(study(secure=True), cut(table()), seed=None)
    result = sites.coordinator().run()
    digest = model_digest(result.theta)
    keys = {name: sites.roster.hexadecimal(name) for name in NAMES}
    certificates = {name: party.certificate(digest) for name, party in sites.parties.items()}
    joint = JointCertificate(sites.study, keys, digest, certificates)
    assert set(joint.own()) == set(NAMES)
    told = json.loads(joint.to_json())["certificates"]["ann"]["checks"]
    assert "answered 40 of gradients: gradients" in told
