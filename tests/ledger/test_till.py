"""The till: one meaning of ledger= for every engine, and paying before anything is released."""

import pytest

from discreet import Budget, BudgetExceeded, Gaussian, InvalidParameter, PlanViolation, Recipe
from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import Anchor, FixedPlan, GaussianFilter, Ledger, Till

BUDGET = Budget(epsilon=1.0, delta=1e-6)
RULE = GaussianFilter(BUDGET)
PLAN = Recipe(records=1000, batch_size=100, steps=40).with_noise(2.0, delta=1e-6)


def test_a_ledger_is_taken_as_it_is_and_stays_open():
    with Ledger.in_memory(GaussianFilter(Budget(9.0, 1e-5))) as ledger:
        with Till.open(ledger, RULE) as till:
            assert till.ledger is ledger
            till.pay(Gaussian(50.0), 3, name="a")
        assert ledger.spent() == Gaussian(50.0) * 3


def test_a_ledger_that_hides_how_many_records_there_are_pays_for_no_plan_that_tells():
    """To replace-one neighbours the number is public, and a sum around a narrow middle is that number."""
    public, hidden = (GaussianFilter(Budget(1.0, 1e-6, kind)) for kind in ("replace-one", "add-remove"))
    with Ledger.in_memory(hidden) as ledger, pytest.raises(InvalidParameter, match="makes public"):
        Till.open(ledger, public)
    with Ledger.in_memory(public) as ledger:
        Till.open(ledger, hidden).pay(Gaussian(50.0))  # which costs twice the sensitivity there
        assert ledger.statement().spent() == {Gaussian(50.0): 1}


def test_without_a_ledger_there_is_one_in_memory_for_this_plan_alone():
    with Till.open(None, PLAN) as till:
        assert (till.ledger.durable, till.ledger.rule) == (False, PLAN.rule)
        till.pay(name="all")
        assert till.ledger.spent().parts() == PLAN.event.parts()
        assert till.ledger.runs()["all"].plan_hash == PLAN.digest()


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_a_path_is_opened_or_begun(tmp_path, kind):
    place = kind(tmp_path / "study.ledger")
    with Till.open(place, RULE) as till:
        till.pay(Gaussian(50.0), 3, name="first")
    assert (tmp_path / "study.ledger.key").exists()
    with Till.open(place, GaussianFilter(Budget(2.0, 1e-5))) as till:  # another plan, the same ledger
        assert till.ledger.rule == RULE
        assert till.ledger.spent() == Gaussian(50.0) * 3


def test_a_ledger_that_was_lost_is_not_begun_anew(tmp_path):
    """Else whoever deletes a ledger, or mistypes its folder, has a second budget."""
    for name, key in (("beside", None), ("apart", tmp_path / "apart.key")):
        place = tmp_path / name
        Till.open(place, RULE, key=key).close()
        for file in tmp_path.glob(f"{name}*"):
            if not file.name.endswith(".key"):
                file.unlink()
        with pytest.raises(InvalidParameter, match=r"^ledger_key=.*restore the ledger"):
            Till.open(place, RULE, key=key)
        assert not place.exists()


@pytest.mark.parametrize(
    ("ledger", "key", "says"),
    [
        (7, None, "^ledger='int': must be a Ledger, the path"),
        (b"study.ledger", None, "^ledger='bytes'"),
        ("mysql://ann:s3cret@host/db", None, "^ledger=.*must be a path, or an address"),
        (None, "some.key", "^ledger_key='some.key': goes with a path"),
        ("study.ledger", b"k" * 32, "^ledger_key='bytes': must be the name"),
    ],
)
def test_what_is_no_ledger_is_refused_by_the_name_that_was_typed(ledger, key, says):
    with pytest.raises(InvalidParameter, match=says) as refused:
        Till.open(ledger, RULE, key=key)
    assert "s3cret" not in str(refused.value)
    assert "kkk" not in str(refused.value)


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path):
    place = tmp_path / "notes.txt"
    place.write_text("dear diary")
    with pytest.raises((LedgerCorrupted, LedgerUnavailable)):
        Till.open(place, RULE)
    assert place.read_text() == "dear diary"


def test_what_does_not_fit_is_not_paid():
    with Till.open(None, RULE) as till:
        room = till.ledger.remaining(Gaussian(20.0))
        with pytest.raises(BudgetExceeded):
            till.pay(Gaussian(20.0), room + 1)
        assert till.ledger.spent() is None
        till.pay(Gaussian(20.0), room)
        with pytest.raises(BudgetExceeded):
            till.pay(Gaussian(20.0), name="again")


def test_a_plan_that_chooses_along_the_way_says_what_it_pays_for():
    with Till.open(None, RULE) as till, pytest.raises(InvalidParameter, match="event"):
        till.pay()


def test_a_run_is_taken_over_with_the_same_plan_and_data_only(tmp_path):
    with Till.open(tmp_path / "a", PLAN, data="census") as till:
        assert till.run("fit").next_step() == 1
    with Till.open(tmp_path / "a", PLAN, data="census") as till:
        assert till.run("fit").next_step() == 2
    with Till.open(tmp_path / "a", PLAN, data="other") as till, pytest.raises(PlanViolation, match="data"):
        till.run("fit")
    other = Recipe(records=1000, batch_size=100, steps=40, clip_norm=2.0).with_noise(2.0, delta=1e-6)
    with Till.open(tmp_path / "a", other, data="census") as till, pytest.raises(PlanViolation, match="plan"):
        till.run("fit")


def test_an_older_copy_is_refused(tmp_path):
    with Till.open(tmp_path / "a", PLAN) as till:
        till.insist_on(till.ledger.anchor())
        before = Anchor.of(till.ledger.entries())
        till.run("fit").next_step()
        later = till.ledger.anchor()
        till.insist_on(before)
    with Till.open(None, PLAN) as other, pytest.raises(LedgerCorrupted, match="rolled back"):
        other.insist_on(later)


def test_free_names_count_on():
    with Till.open(None, RULE) as till:
        assert till.free_name("fit") == "fit-1"
        till.pay(Gaussian(90.0), name="fit-1/counts")
        assert till.free_name("fit") == "fit-2"


def test_a_bare_rule_is_known_by_what_is_released_or_by_a_given_digest():
    event = Gaussian(30.0)
    for digest in (None, "a" * 64):
        with Till.open(None, FixedPlan(event, BUDGET), digest=digest) as till:
            till.pay(event)
            assert till.ledger.runs()["run"].plan_hash == (digest or event.digest())
