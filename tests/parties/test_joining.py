"""The commands of a study: what each refuses, what consent means, and that nothing leaves before it."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from discreet.adapters.joint_model import JointModel, dimension
from discreet.cli import main
from discreet.cli.join import _REFUSED, _tell_refusals
from discreet.ledger import Ledger
from discreet.linear.fitted_model import FittedModel
from discreet.linear.schema import Schema
from discreet.parties import Party, Study
from discreet.parties.messages import Message, Refusal, Roster
from discreet.parties.network.kits import open_kit, revoked_parties
from discreet.parties.party_plan import PartyPlan
from discreet.parties.table_ledger import kit_lock, ledger_lock, table_lock
from support.small_study import free_port

SCHEMA = """
target = "again"
[columns]
"age of patient" = { bounds = [0, 100] }
ward = { categories = ["surgery", "medicine"] }
stay = { bounds = [0, 10], missing = "flag" }
again = { flag = "yes" }
"""
ROWS = """age of patient,ward,stay,again
50,surgery,2,yes
10,medicine,,no
old,pilot,3,yes
200,,1,maybe
"""
NEW = ("study", "new", "demo", "--party", "a=4", "--party", "b=6", "--schema", "schema.toml", "--rounds", "5")
NEW += ("--epsilon", "3", "--delta", "1e-4", "--coordinator", f"localhost:{free_port()}")
JOIN = ("join", "study.toml", "--data", "a.csv", "--kit")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A study and its kits, as the commands make them; copied for every test."""
    place, before = tmp_path_factory.mktemp("original"), os.getcwd()
    (place / "schema.toml").write_text(SCHEMA)
    (place / "a.csv").write_text(ROWS)
    os.chdir(place)
    try:
        assert run(*NEW).exit_code == 0
        assert run("study", "kits", "study.toml").exit_code == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    copied = tmp_path / "copy"
    shutil.copytree(original, copied)
    monkeypatch.chdir(copied)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return copied


def run(*words, **settings):
    return CliRunner().invoke(main, [str(word) for word in words], **settings)


def refused(*words, status=1, **settings):
    """The one sentence with which a command refuses."""
    result = run(*words, **settings)
    assert result.exit_code == status, result.stderr
    assert "Traceback" not in result.stderr
    return next(line for line in result.stderr.splitlines() if line.startswith("error["))


def agreed():
    return Study.load("study.toml")


def test_a_new_study_reads_back_and_counts_its_columns(folder):
    made = agreed()
    assert (
        made.dimension == dimension(Schema.from_toml(SCHEMA)) == 6
    )  # intercept, age, stay, two wards, missing
    assert JointModel.of(made).schema == Schema.from_toml(SCHEMA)
    shown = run("study", "check", "study.toml")
    assert made.digest() in shown.output
    assert "coordinator" in shown.output
    assert "owner" in shown.output
    data = json.loads(run("study", "check", "study.toml", "--json").output)
    assert set(data["spends"]) == {"a", "b"}
    assert data["spends"]["a"] <= 3.0
    assert len(data["observers"]) > 5


def test_study_files_are_not_overwritten_and_parties_need_numbers(folder):
    assert "--out=study.toml" in refused(*NEW, status=2)
    assert "--out=kits" in refused("study", "kits", "study.toml", status=2)
    bad = [word if word != "a=4" else "a=four" for word in NEW]
    assert "NAME=RECORDS" in refused(*bad, "--out", "other.toml", status=2)


def test_keys_and_revocations(folder):
    printed = run("study", "key", "own.key").output.split()[0]
    assert run("study", "key", "own.key").output.split()[0] == printed  # and nothing is overwritten
    Path("text.key").write_text("no key")
    assert "holds no signing key" in refused("study", "key", "text.key", status=2)
    assert run("study", "kits", "study.toml", "--out", "more", "--public-key", f"a={printed}").exit_code == 0
    assert "--key" in refused(*JOIN, "more/a.zip", "--yes")
    assert run("study", "key", "other.key").exit_code == 0
    assert "roster lists for a" in refused(*JOIN, "more/a.zip", "--yes", "--key", "other.key")
    assert run("study", "revoke", "kits", "b").exit_code == 0
    assert revoked_parties("kits") == {"b"}
    assert "PARTY=z" in refused("study", "revoke", "kits", "z", status=2)


def test_the_owner_alone_is_told_that_a_column_is_not_as_declared(folder):
    table = Path(JOIN[JOIN.index("--data") + 1])
    said = "is as the study declares it"
    assert said not in run(*JOIN, "kits/a.zip", input="n\n").stderr
    lines = table.read_text().splitlines()
    place = lines[0].split(",").index("ward")
    cells = [line.split(",") for line in lines[1:]]
    renamed = [",".join([*row[:place], row[place].upper() + "?", *row[place + 1 :]]) for row in cells]
    table.write_text("\n".join([lines[0], *renamed]) + "\n")
    assert f"no cell of ward in {table.name} {said}" in run(*JOIN, "kits/a.zip", input="n\n").stderr


def test_what_several_parties_cannot_train_is_refused_by_name(folder):
    text = Path("study.toml").read_text().replace('kind = "logistic"', 'kind = "additive"')
    Path("other.toml").write_text(text)
    message = refused("coordinate", "other.toml", "--kit", "kits/coordinator.zip", status=2)
    assert "curves" in message
    assert "recipe" in message


def approved(name, key):
    """A person with a key of his own approves; his public key."""
    public = run("study", "key", key).output.split()[0]
    assert run("study", "approve", "study.toml", "--key", key, "--name", name).exit_code == 0
    return public


def test_a_party_joins_only_with_the_approvals_that_it_asks_for(folder):
    assert "Approved by:\n  nobody" in run("study", "check", "study.toml").output
    lind, omar = approved("A. Lind, data protection", "lind.key"), approved("B. Omar", "omar.key")
    stranger = "0" * 64
    words = (*JOIN, "kits/a.zip", "--approver", lind, "--approver", stranger)
    message = refused(*words, input="n\n")
    assert message.startswith("error[not-consented]: This study was approved by 1 of 2 approvers (A. Lind")
    assert "2 are asked for" in message
    enough = run(*words, "--approvals", 1, input="n\n")
    assert "approved by A. Lind, data protection." in enough.stderr
    assert "You did not consent" in enough.stderr  # the party's own word is asked for all the same
    both = run(*JOIN, "kits/a.zip", "--approver", lind, "--approver", omar, input="n\n")
    assert (
        "approved by A. Lind, data protection, B. Omar." in both.stderr or "B. Omar, A. Lind" in both.stderr
    )
    for bad in (("--approvals", 1), ("--approver", "lind"), ("--approver", lind, "--approvals", 2)):
        refused(*JOIN, "kits/a.zip", *bad, status=2)
    shown = json.loads(run("study", "check", "study.toml", "--json").output)["approvals"]
    assert {one["name"] for one in shown} == {"A. Lind, data protection", "B. Omar"}


def test_approvals_of_another_study_or_that_nobody_signed_count_for_nothing(folder):
    """And one person with two files is one person."""
    lind = approved("A. Lind", "lind.key")
    (path,) = (folder / "approvals").iterdir()
    text = path.read_text()
    path.with_name("copy.json").write_text(text)
    join = (*JOIN, "kits/a.zip", "--approver", lind)
    assert "approved by A. Lind." in run(*join, input="n\n").stderr
    assert len(json.loads(run("study", "check", "study.toml", "--json").output)["approvals"]) == 1
    path.with_name("copy.json").unlink()
    for altered in (
        text.replace("A. Lind", "C. Everybody"),
        text.replace(lind, "1" * 64),
        text.replace('"day"', '"when"'),
        "[]",
        "{" * 100_000,
        "\0",
    ):
        path.write_text(altered)
        assert "approved by 0 of 1 approvers (nobody)" in refused(*join)
    path.write_text(text)
    study = Path("study.toml")
    study.write_text(study.read_text().replace("rounds = ", "rounds = 1"))  # another study since
    assert "Approved by:\n  nobody" in run("study", "check", "study.toml").output
    named = ("study", "approve", "study.toml", "--key", "lind.key", "--name")
    for name in ("", "a\nb", "x" * 300):
        assert "--name=" in refused(*named, name, status=2)


def test_without_consent_nothing_is_written_or_sent(folder):
    message = refused(*JOIN, "kits/a.zip", input="n\n")
    assert message.startswith("error[not-consented]")
    assert "nothing was sent and nothing was spent" in message
    assert not list(folder.parent.rglob("*.ledger"))
    assert not list(folder.parent.rglob("*consent*"))


def test_where_nobody_can_be_asked_the_remedy_is_said(folder):
    message = refused(*JOIN, "kits/a.zip", input="", status=2)
    assert "--yes: must be given where nobody can be asked" in message
    assert not list(folder.parent.rglob("*consent*"))


def test_a_new_study_says_how_many_may_be_missing_and_what_that_costs(folder):
    made = run(*NEW, "--out", "more.toml")
    assert "dropouts = 1" in Path("more.toml").read_text()
    assert "1 missing (this study)" in made.output
    assert "0 missing" in made.output
    assert Study.load("more.toml").digest() == agreed().digest()
    prices = json.loads(run(*NEW, "--out", "json.toml", "--json").output)["dropouts"]
    assert prices["0"]["epsilon"] < prices["1"]["epsilon"]


def test_consent_is_asked_once_for_one_study(folder):
    made = agreed()
    words = [*JOIN, "kits/a.zip", "--ledger", "a.ledger", "--wait", 0.1]
    first = run(*words, input="y\n")
    assert "error[nobody-there]: nothing listens" in first.stderr
    assert "everybody else" in first.stderr  # the table of observers
    assert made.digest() in first.stderr
    assert json.loads((folder / "a.ledger.consent.json").read_text()) == [open_kit("kits/a.zip").digest]
    again = run(*words)  # nobody answers a question now
    assert "nothing listens" in again.stderr
    assert "consented" in again.stderr
    with Ledger.open(folder / "a.ledger") as ledger:
        assert ledger.spent() is None
        assert ledger.rule == PartyPlan(made, "a").rule


def test_a_table_with_another_number_of_records_is_refused_on_the_partys_own_screen(folder):
    with (folder / "a.csv").open("a") as file:
        file.write("1,surgery,1,no\n")
    assert "must be 4, as declared" in refused(*JOIN, "kits/a.zip", "--yes", status=2)


def test_kits_are_for_one_study_and_one_role(folder):
    other = (folder / "study.toml").read_text().replace("rounds = 5", "rounds = 6")
    (folder / "other.toml").write_text(other)
    message = refused("join", "other.toml", "--data", "a.csv", "--kit", "kits/a.zip")
    assert message.startswith("error[cannot-connect]: a.zip belongs to another study")
    assert "another study" in refused("coordinate", "other.toml", "--kit", "kits/coordinator.zip")
    assert "use coordinator.zip" in refused("coordinate", "study.toml", "--kit", "kits/a.zip")
    assert "of the coordinator" in refused(*JOIN, "kits/coordinator.zip", "--yes")


def test_cells_that_are_not_as_declared_count_as_missing_without_a_word(folder):
    made = agreed()
    holder = JointModel.of(made).holder(folder / "a.csv")
    assert (holder.records, holder.dimension) == (4, 6)
    # By hand: clipped logistic gradients of (1, age, stay, surgery, medicine, stay missing) at zero.
    rows = np.array(
        [[1, 0.5, 0.2, 1, 0, 0], [1, 0.1, 0.5, 0, 1, 1], [1, 0.5, 0.3, 0, 0, 0], [1, 1.0, 0.1, 0, 0, 0]],
        np.float64,
    )
    gradients = (0.5 - np.array([1, 0, 1, 0]))[:, None] * rows
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    expected = (gradients / np.maximum(norms, 1.0)).sum(axis=0)
    assert np.allclose(holder.clipped_sum(np.zeros(6), None).value, expected, atol=1e-6)


def test_the_models_folder_is_one_that_predict_reads(folder):
    made = JointModel.of(agreed())
    theta = np.array([0.5, -1.0, 2.0, 0.25, -0.25, 3.0])
    made.fitted_model(theta).write(folder, {})
    model = FittedModel.read(folder)
    assert model.classes == (False, True)
    assert np.allclose(model.model.coefficients, theta[1:])
    assert float(model.model.intercept) == 0.5


def test_a_regression_comes_back_in_the_units_of_its_target(folder):
    text = SCHEMA.replace('again = { flag = "yes" }', "again = { bounds = [10, 30] }")
    (folder / "schema.toml").write_text(text)
    assert run(*NEW, "--overwrite").exit_code == 0
    made = JointModel.of(agreed())
    fitted = made.fitted_model(np.array([0.5, 0.1, 0.0, 0.0, 0.0, 0.0]))
    assert float(fitted.model.intercept) == 20.0
    assert np.isclose(fitted.model.coefficients[0], 2.0)
    assert fitted.target_bounds == (10.0, 30.0)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ('kind = "logistic"', 'kind = "linear"', "bounds"),
        ('kind = "logistic"', 'kind = "forest"', "one of"),
        ("dimension = 6", "dimension = 7", "follows from columns"),
        ('target = "again"', 'target = "age"', "declared column"),
        ('target = "again"', 'target = "again"\nlabel = 1', "unknown words"),
    ],
)
def test_a_model_section_that_does_not_fit_together_is_refused(folder, before, after, word):
    text = (folder / "study.toml").read_text()
    assert before in text
    (folder / "study.toml").write_text(text.replace(before, after))
    assert word in refused("coordinate", "study.toml", "--kit", "kits/coordinator.zip", status=2)


@pytest.mark.parametrize("missing", ["study.toml", "a.csv", "kits/a.zip"])
def test_a_missing_file_is_one_sentence(folder, missing):
    (folder / missing).unlink()
    message = run(*JOIN, "kits/a.zip", "--yes").stderr
    assert missing.rpartition("/")[2] in message
    assert "error[" in message
    assert not list(folder.parent.rglob("*.ledger"))


def joined(kit, *words, table="a.csv"):
    """What ``join`` says on the party's screen, up to the coordinator that is not there."""
    result = run("join", "study.toml", "--data", table, "--kit", kit, "--yes", "--wait", 0.1, *words)
    assert "error[nobody-there]" in result.stderr, result.stderr
    return result.stderr


def ledgers(folder):
    return sorted((folder.parent / "home").rglob("*.ledger"))


def spend(place, steps):
    """What a party does in so many rounds."""
    terms = PartyPlan(agreed(), "a")
    with Ledger.open(place) as ledger:
        ledger.run(terms.event, terms.plan().digest(), name="demo/a").reserve(steps)


def test_new_kits_are_not_a_second_budget(folder):
    """The attack on 0.1.0: kits issued again, in a new folder, found a new ledger and were answered all over."""
    assert "epsilon 0 spent so far -> 3" in joined("kits/a.zip")
    (place,) = ledgers(folder)
    assert not list(folder.rglob("*.ledger"))  # nothing lies with the kit
    spend(place, 5)
    assert run("study", "kits", "study.toml", "--out", "more").exit_code == 0
    said = joined("more/a.zip")
    assert str(place) in said
    assert "epsilon 3 spent so far -> 3" in said
    assert ledgers(folder) == [place]
    with Ledger.open(place) as ledger:
        holder = JointModel.of(agreed()).holder(folder / "a.csv")
        kit = open_kit("more/a.zip")
        party = Party("a", agreed(), holder, ledger, kit.signing_key(), kit.roster)
        coordinator, roster = open_kit("more/coordinator.zip").signing_key(), Roster(kit.roster)
        for kind, round, array in (("hello", 0, np.zeros(0, np.uint8)), ("sum", 1, np.zeros(6))):
            request = Message(agreed().digest(), kind, round, "*" if round else "a", array)
            reply = Message.decode(party.answer(request.encode(coordinator, roster)))
        assert reply.kind == "refused"


def test_a_table_keeps_its_ledger_when_it_moves_or_changes(folder):
    joined("kits/a.zip")
    (place,) = ledgers(folder)
    spend(place, 2)
    shutil.move("a.csv", "moved.csv")
    assert str(place) in joined("kits/a.zip", table="moved.csv")
    (folder / "moved.csv").write_text(ROWS.replace("50,", "51,"))
    said = joined("kits/a.zip", table="moved.csv")
    assert str(place) in said
    assert ledgers(folder) == [place]
    elsewhere = joined("kits/a.zip", "--ledger", "mine.ledger", table="moved.csv")
    assert f"Besides, {place} has spent epsilon" in elsewhere


def test_a_ledger_that_paid_for_nothing_does_not_stand_in_the_way(folder):
    joined("kits/a.zip")
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace("rounds = 5", "rounds = 6"))
    assert run("study", "kits", "study.toml", "--out", "more").exit_code == 0
    joined("more/a.zip")
    assert len(ledgers(folder)) == 2
    second = next(place for place in ledgers(folder) if place.stem.endswith("-2"))
    spend(second, 1)  # from now on it is the table's, for the first study too
    (folder / "study.toml").write_text(text)
    assert str(second) in joined("kits/a.zip")
    second.unlink()
    assert "has paid for this table and is gone" in refused(*JOIN, "kits/a.zip", "--yes", "--wait", 0.1)


def test_other_keys_are_another_consent(folder):
    joined("kits/a.zip")
    assert "consented" in joined("kits/a.zip")
    assert run("study", "kits", "study.toml", "--out", "more").exit_code == 0
    message = refused(*JOIN, "more/a.zip", "--wait", 0.1, input="n\n")
    assert message.startswith("error[not-consented]")


def test_a_second_join_is_refused_before_it_touches_anything(folder):
    """In 0.1.0 it took over the run of the first, which lost its rounds."""
    joined("kits/a.zip")
    (place,) = ledgers(folder)
    spend(place, 1)
    with Ledger.open(place) as ledger:
        before = ledger.entries()
    with kit_lock(folder / "kits/a.zip"):
        message = refused(*JOIN, "kits/a.zip", "--yes", "--wait", 0.1)
    assert message.startswith("error[already-running]: Another process runs with kits/a.zip;")
    shutil.copytree("kits", "copied")
    with table_lock(folder / "a.csv"):
        message = refused(*JOIN, "copied/a.zip", "--yes", "--wait", 0.1)
    assert message.startswith("error[already-running]: Another process takes part in a study with a.csv;")
    with ledger_lock(place, "demo", "a"):
        message = refused(*JOIN, "copied/a.zip", "--yes", "--wait", 0.1)
    assert message.startswith("error[already-running]: Another process takes part in demo as a and pays from")
    with Ledger.open(place) as ledger:
        assert ledger.entries() == before


def test_a_renamed_export_with_one_byte_more_is_asked_about(folder):
    """Nobody can tell from the files that the records are the same, so all ledgers are shown and the owner says."""
    words = ("join", "study.toml", "--data", "renamed.csv", "--kit", "kits/a.zip", "--wait", 0.1)
    (folder / "renamed.csv").write_text(ROWS + "\n")
    assert "other ledgers" not in run(*words, input="n\n").stderr
    joined("kits/a.zip")
    assert "other ledgers" not in run(*words, input="n\n").stderr  # it has spent nothing yet
    (place,) = ledgers(folder)
    spend(place, 2)
    asked = run(*words, input="y\n")
    assert f"  {place}: epsilon " in asked.stderr
    assert "Has one of them paid for records that are in renamed.csv too?" in asked.stderr
    assert "would be a second budget for the same records" in asked.stderr
    assert ledgers(folder) == [place]
    assert "You did not consent" in run(*words, input="n\nn\n").stderr
    assert "must be given where nobody can be asked" in run(*words, input="").stderr
    said = joined("kits/a.zip", table="renamed.csv")
    assert "with --yes you say that none of them has paid" in said
    assert len(ledgers(folder)) == 2


def test_a_ledger_that_was_rolled_back_does_not_join(folder):
    joined("kits/a.zip")
    (place,) = ledgers(folder)
    spend(place, 1)
    shutil.copy(place, "old.ledger")
    spend(place, 2)
    anchor = run("ledger", "anchor", place)
    (folder / "anchor.json").write_text(anchor.output)
    assert (
        "nobody-there" in run(*JOIN, "kits/a.zip", "--yes", "--wait", 0.1, "--anchor", "anchor.json").stderr
    )
    shutil.copy("old.ledger", place)
    for file in place.parent.glob(f"{place.name}-*"):
        file.unlink()
    joined("kits/a.zip")  # nothing here remembers more
    message = refused(*JOIN, "kits/a.zip", "--yes", "--wait", 0.1, "--anchor", "anchor.json")
    assert message.startswith("error[ledger-corrupted]")
    assert "was rolled back" in message
    (folder / "anchor.json").write_text("nan")
    assert "anchor" in refused(*JOIN, "kits/a.zip", "--yes", "--anchor", "anchor.json", status=2)


def test_sgd1_without_tokens_says_how_many_messages_it_plans(folder):
    """It planned the square of the number of records, and said nothing of it."""
    text = (folder / "study.toml").read_text()
    text = text.replace('algorithm = "sgd2"', 'algorithm = "sgd1"').replace("rounds = 5\n", "")
    text = text.replace("a = 4", "a = 1200").replace("b = 6", "b = 800")
    (folder / "sgd1.toml").write_text(text)
    said = run("study", "check", "sgd1.toml").output
    assert (
        "2,000 squared = 4,000,000 messages, one after the other: about 11 hours at a hundred a second"
        in said
    )
    (folder / "few.toml").write_text(text.replace("[training]\n", "[training]\ntokens = 5000\n"))
    assert "squared" not in run("study", "check", "few.toml").output
    assert "squared" not in run("study", "check", "study.toml").output


def test_the_owner_is_told_once_for_each_reason_that_a_request_was_refused(capsys):
    """In 0.1.0 a party that refused waited on in silence."""
    party = SimpleNamespace(refused=Counter({Refusal.OTHER_PLAN: 3, Refusal.PAST_ROUND: 1}))
    told = set()
    _tell_refusals(party, told)
    said = capsys.readouterr().err
    assert said.count("was refused") == 1
    assert "lost its state file" in " ".join(said.split())
    _tell_refusals(party, told)
    party.refused[Refusal.MALFORMED] += 1
    _tell_refusals(party, told)
    assert capsys.readouterr().err.count("was refused") == 1
    assert set(_REFUSED) <= set(Refusal.__members__)


def test_a_party_counts_what_it_refuses(folder):
    kit = open_kit("kits/a.zip")
    holder = JointModel.of(agreed()).holder(folder / "a.csv")
    with Ledger.in_memory(PartyPlan(agreed(), "a").rule) as ledger:
        party = Party("a", agreed(), holder, ledger, kit.signing_key(), kit.roster)
        party.answer(b"nonsense")
        party.answer(b"nonsense")
    assert party.refused == {Refusal.MALFORMED: 2}
