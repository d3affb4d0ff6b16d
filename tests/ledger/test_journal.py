"""One run: it does what its plan says, within the budget, and resumes as it began; everything else is refused."""

import math
import random
import re
import threading
from contextlib import suppress

import pytest

import discreet
from discreet import (
    Budget,
    BudgetExceeded,
    Gaussian,
    InvalidParameter,
    Laplace,
    PlanViolation,
    PoissonSampled,
)
from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import FixedPlan, GaussianFilter, Ledger
from discreet.ledger.ledger_state import LedgerState, Statement

HASH = "a" * 64
STEP = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
PLAN = FixedPlan(STEP * 1000, Budget(epsilon=1.0, delta=1e-5))


@pytest.fixture
def ledger():
    with Ledger.in_memory(PLAN) as ledger:
        yield ledger


@pytest.mark.parametrize(
    "other",
    [
        PoissonSampled(0.02, STEP.of),
        PoissonSampled(0.01, Gaussian(3.9)),
        Gaussian(4.0),
        STEP * 2,
        Laplace(1.0),
    ],
)
def test_a_step_with_another_rate_noise_or_loader_is_refused(ledger, other):
    run = ledger.run(STEP * 1000, HASH)
    for action in (run.reserve, lambda _, event: run.next_step(event)):
        with pytest.raises(
            PlanViolation, match=r"has no step .*; its steps are PoissonSampled.* a run of its own"
        ):
            action(1, other)
    assert ledger.spent() is None


def test_a_step_beyond_the_plan_is_refused(ledger):
    run = ledger.run(STEP * 10, HASH)
    run.reserve(4)
    with pytest.raises(
        PlanViolation, match=r"has 6 more steps of .*, not 7. What goes beyond the plan needs a run"
    ):
        run.reserve(7)
    assert list(run.steps()) == [5, 6, 7, 8, 9, 10]
    for beyond in (run.reserve, run.next_step):
        with pytest.raises(PlanViolation, match=r"has 0 more steps of .*, not 1"):
            beyond()


@pytest.mark.parametrize(
    ("event", "plan_hash", "data", "sentence"),
    [
        (
            PoissonSampled(0.02, STEP.of) * 1000,
            HASH,
            "v1",
            r"to release 1000 x Poisson.*0\.01.*, not .*0\.02",
        ),
        (PoissonSampled(0.01, Gaussian(3.9)) * 1000, HASH, "v1", r"to release .*4\.0.*, not .*3\.9"),
        (STEP * 1001, HASH, "v1", r"to release 1000 x .*, not 1001 x"),
        (Gaussian(4.0) * 1000, HASH, "v1", r"to release .*PoissonSampled.*, not 1000 x Gaussian"),
        (STEP * 1000, "b" * 64, "v1", r"with plan aaaaaaaaaaaa, not bbbbbbbbbbbb"),
        (STEP * 1000, HASH, "v2", r"for data of another name \(data=\)"),
        (STEP * 1000, HASH, None, r"for data of another name"),
    ],
)
def test_a_run_resumes_only_as_it_began(ledger, event, plan_hash, data, sentence):
    ledger.run(STEP * 1000, HASH, data="v1").reserve(3)
    before = ledger.anchor()
    with pytest.raises(
        PlanViolation, match=rf"The run 'run' was opened {sentence}.* Resume it .* another name"
    ):
        ledger.run(event, plan_hash, data=data)
    assert ledger.anchor() == before
    assert list(ledger.run(STEP * 1000, HASH, data="v1").reserve(2)) == [4, 5]


def test_the_name_of_the_data_is_kept_as_a_hash_that_tells_nothing_elsewhere(ledger):
    ledger.run(STEP, HASH, data="census 2021 v3")
    mark = ledger.runs()["run"].data
    assert len(mark) == 64
    assert not any("census" in entry for entry in ledger.entries())
    with Ledger.in_memory(PLAN) as other:
        other.run(STEP, HASH, data="census 2021 v3")
        assert other.runs()["run"].data != mark
    ledger.run(STEP, HASH, name="unnamed")
    with pytest.raises(PlanViolation, match="data of another name"):
        ledger.run(STEP, HASH, name="unnamed", data="census 2021 v3")


@pytest.mark.parametrize("data", ["", 3, b"x", "a\nb", "x" * 1001, True])
def test_data_is_named_by_a_short_text(ledger, data):
    with pytest.raises(InvalidParameter, match=r"^data="):
        ledger.run(STEP, HASH, data=data)


def test_a_plan_of_several_kinds_says_which(ledger):
    event = STEP * 10 + Gaussian(50.0)
    with Ledger.in_memory(FixedPlan(event, PLAN.budget)) as ledger:
        run = ledger.run(event, HASH)
        with pytest.raises(
            PlanViolation, match=r"has no step None; its steps are PoissonSampled.*, Gaussian"
        ):
            run.reserve(1)
        run.reserve(1, Gaussian(50.0))
        assert (run.remaining(STEP), run.remaining(Gaussian(50.0))) == (10, 0)
        assert list(run.steps(STEP)) == list(range(2, 12))
        assert ledger.spent() == STEP * 10 + Gaussian(50.0)


def test_steps_are_paid_for_in_hundredths_of_the_plan(ledger):
    run = ledger.run(STEP * 1000, HASH)
    for step in run.steps():
        paid, done = ledger.runs()["run"].reserved, ledger.runs()["run"].committed
        assert paid == -(-step // 10) * 10
        assert done == paid - 10  # what is over was said with the next lease
        if step == 35:
            break
    assert list(run.steps())[:6] == [36, 37, 38, 39, 40, 41]  # who stopped in between has not lost the rest
    record = ledger.runs()["run"]
    assert (record.reserved, record.committed) == (1000, 1000)
    assert len(ledger.entries()) == 2 + 100 + 1


@pytest.mark.parametrize(("lease", "entries"), [(1, 10), (3, 4), (10**6, 1)])
def test_the_lease_can_be_chosen(ledger, lease, entries):
    assert list(ledger.run(STEP * 10, HASH).steps(lease=lease)) == list(range(1, 11))
    assert len(ledger.entries()) == 2 + entries + 1


def test_a_resumed_run_goes_on_after_the_whole_lease(ledger):
    assert [step for step, _ in zip(ledger.run(STEP * 1000, HASH).steps(), range(14), strict=False)][-1] == 14
    run = ledger.run(STEP * 1000, HASH)
    assert run.next_step() == 21
    assert (ledger.runs()["run"].committed, ledger.runs()["run"].reserved) == (10, 30)


def test_steps_of_two_kinds_never_share_a_number_and_only_what_is_over_is_committed():
    event = STEP * 500 + Gaussian(100.0) * 200
    with Ledger.in_memory(FixedPlan(event, PLAN.budget)) as ledger:
        run = ledger.run(event, HASH)
        first = [run.next_step(STEP), run.next_step(Gaussian(100.0)), run.next_step(STEP)]
        assert first == [1, 6, 2]
        assert [run.next_step(Gaussian(100.0)) for _ in range(2)] == [7, 8]
        assert ledger.runs()["run"].committed == 2  # 3, 4 and 5 are paid for and wait
        assert len({*first, 7, 8, *run.steps(STEP), *run.steps(Gaussian(100.0))}) == 700
        assert ledger.runs()["run"].committed == 700


def test_a_lease_shrinks_to_what_the_budget_holds():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-5))) as ledger:  # room for 28
        ledger.run(Gaussian(20.0) * 20, HASH, name="a").reserve(20)
        run = ledger.run(Gaussian(20.0) * 8, HASH, name="b")
        ledger.run(Gaussian(20.0) * 8, HASH, name="c").reserve(3)
        with pytest.raises(BudgetExceeded, match="room for 0"):
            list(run.steps(lease=8))
        assert run.reserved == 5


def test_threads_never_get_the_same_step(ledger):
    run, seen = ledger.run(STEP * 1000, HASH), []
    threads = [
        threading.Thread(target=lambda: seen.extend(run.next_step(lease=7) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 201))


def test_a_forked_process_must_not_use_what_its_parent_has_paid_for(ledger):
    run = ledger.run(STEP * 1000, HASH)
    run.next_step(lease=10)
    run._journal._process += 1  # as a child would see it
    with pytest.raises(LedgerUnavailable, match="forked process"):
        run.next_step()
    run._journal._process -= 1
    assert run.next_step() == 2


@pytest.mark.parametrize("lease", [float("nan"), 0, -1, 2.5, True, "3"])
def test_leases_are_whole_numbers(ledger, lease):
    with pytest.raises(InvalidParameter, match="lease="):
        ledger.run(STEP * 10, HASH).next_step(lease=lease)


def read(entries, at_once):
    """What a book says of these entries, all at once or one by one; None if it refuses."""
    ledger_state = LedgerState()
    try:
        if at_once:
            ledger_state.follow(entries)
        for entry in () if at_once else entries:
            ledger_state.follow([entry])
    except LedgerCorrupted:
        return None
    return ledger_state.runs, ledger_state.sequence, ledger_state.hash, ledger_state.rule


@pytest.mark.parametrize("seed", range(8))
def test_reading_at_once_is_reading_one_by_one_and_alterations_are_noticed(seed):
    """Random runs, leases, commits and resumes, then random alterations."""
    draw, event = random.Random(seed), STEP * 400 + Gaussian(100.0) * 50
    with Ledger.in_memory(FixedPlan(event * 2, Budget(9.0, 1e-5))) as ledger:
        for _ in range(60):
            run = ledger.run(event, HASH, name=draw.choice(["a", "b"]))
            kind, lease = draw.choice([STEP, STEP, Gaussian(100.0)]), draw.choice([1, 1, 2])
            with suppress(PlanViolation):
                for _ in range(draw.randrange(5)):
                    way = draw.randrange(3)
                    last = run.next_step(kind, lease=lease) if way == 0 else run.reserve(lease, kind).last
                    if way == 1:
                        run.commit(last)
        entries = ledger.entries()
    assert read(entries, at_once=True) == read(entries, at_once=False)
    assert read(entries, at_once=True) is not None
    refused = 0
    for _ in range(40):
        altered = list(entries)
        place = draw.randrange(2, len(entries))
        altered[place] = re.sub(
            r"\d+", lambda number: str(int(number[0]) + draw.choice([-1, 0, 1])), altered[place]
        )
        found = read(altered, at_once=True)
        assert found == read(altered, at_once=False)
        refused += found is None
    assert refused > 20


@pytest.mark.parametrize("steps", [float("nan"), 0, -1, 2.5, True, "3", None, 10**13])
def test_steps_are_whole_numbers(steps):
    with Ledger.in_memory(PLAN) as ledger:
        run = ledger.run(STEP * 1000, HASH)
        with pytest.raises(InvalidParameter, match="steps="):
            run.reserve(steps)
        assert ledger.spent() is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((STEP, "nonsense"), "plan_hash"),
        ((STEP, HASH.upper()), "plan_hash"),
        ((0.5, HASH), "event"),
        ((None, HASH), "event"),
    ],
)
def test_a_run_needs_an_event_and_a_hash(arguments, name):
    with Ledger.in_memory(PLAN) as ledger, pytest.raises(InvalidParameter, match=f"^{name}="):
        ledger.run(*arguments)


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "ü", "a\n", None, 3, "\ud800"])
def test_run_names_are_plain(name):
    with Ledger.in_memory(PLAN) as ledger, pytest.raises(InvalidParameter, match=r"^name="):
        ledger.run(STEP, HASH, name=name)


def test_runs_share_a_fixed_plan():
    with Ledger.in_memory(PLAN) as ledger:
        one, two = ledger.run(STEP * 700, HASH, name="one"), ledger.run(STEP * 700, HASH, name="two")
        one.reserve(700)
        assert ledger.remaining(STEP) == 300
        with pytest.raises(BudgetExceeded, match=r"301 x .* exceed .*epsilon=1, delta=1e-05.* room for 300"):
            two.reserve(301)
        two.reserve(300)
        with pytest.raises(BudgetExceeded, match="room for 0"):
            ledger.run(STEP, HASH, name="three")
        with pytest.raises(BudgetExceeded):
            ledger.run(Gaussian(1e6), HASH, name="other")


def test_a_filter_spends_across_runs_chosen_along_the_way():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-5), spare=0.0)) as ledger:
        for name in ("a", "b", "c"):
            ledger.run(Gaussian(10.0), HASH, name=name).reserve()
        # mu*(1, 1e-5)^2 - 3 * 0.1^2 = 0.204576159^2 (closed form)
        assert ledger.remaining(Gaussian(1 / 0.204576160)) == 0
        assert ledger.remaining(Gaussian(1 / 0.204576158)) == 1
        assert ledger.remaining(Gaussian(20.0)) == 16
        ledger.run(Gaussian(20.0) * 16, HASH, name="d").reserve(16)
        assert ledger.remaining(Gaussian(20.0)) == 0
        guarantee = ledger.guarantee()
        assert guarantee.epsilon.upper == 1.0
        assert 0.97 < guarantee.epsilon.lower < 1.0


def test_the_guarantee_is_computed_from_the_events():
    with Ledger.in_memory(PLAN) as ledger:
        guarantee = ledger.guarantee()
        assert guarantee == discreet.account(STEP * 1000).guarantee(1e-5)
        assert guarantee.within(PLAN.budget)
        assert ledger.spent() is None
        assert not any("epsilon" in entry for entry in ledger.entries()[1:])


def test_a_mark_is_kept_for_whoever_takes_the_run_over_and_costs_nothing(ledger):
    run = ledger.run(STEP * 1000, HASH)
    assert run.marked == 0
    run.mark(7)
    run.mark(3)  # says nothing new
    assert (run.marked, run.reserved, ledger.spent()) == (7, 0, None)
    later = ledger.run(STEP * 1000, HASH)
    assert later.marked == 7
    with pytest.raises(PlanViolation, match="taken over"):
        run.mark(8)
    later.reserve(2)
    later.mark(9)
    later.reserve(2)
    assert (later.marked, later.reserved) == (9, 4)
    for bad in (0, -1, 1.5, math.nan, "2", None, True):
        with pytest.raises(InvalidParameter, match="place"):
            later.mark(bad)


@pytest.mark.parametrize("entry", ['["mark","run",1,2]', '["mark","run",1,0]', '["mark","run",1,2.5]'])
def test_marks_that_make_no_sense_are_refused(ledger, entry):
    run = ledger.run(STEP * 1000, HASH)
    run.mark(2)
    with pytest.raises(LedgerCorrupted, match="makes no sense"):
        Statement.of_entries([*ledger.entries(), entry])
