"""A budget spent in stages: what is charged, when, and what is refused."""

import copy
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from discreet import Budget, account
from discreet.core.randomness import RandomStream
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation
from discreet.events import Gaussian
from discreet.ledger import GaussianFilter, Ledger, Till, TruncatedRenyiFilter
from discreet.linear.gate.column_blocks import ColumnCells
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.public_log import PublicLog
from discreet.linear.row_views.column_views import PowerCells
from discreet.statistics.statistic_views import Code
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows, View
from discreet.trusted.rows import NumberParts
from discreet.trusted.spending import BudgetAllocator, StagePermit

BUDGET = Budget(1.0, 1e-6)
NOBODY = RawColumns(np.zeros((0, 1)))


def seeded(budget=BUDGET, arithmetic="float", **options):
    return BudgetAllocator(
        budget, stream=RandomStream(unsafe_seed=1, threads=1), arithmetic=arithmetic, **options
    )


def powers(columns):
    """A histogram of the powers of two of each column."""
    block = ColumnCells(PowerCells(columns), columns, PowerCells.cells)
    return Blocks((block,), math.sqrt(columns) * ROUNDING)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_all_stages_together_cost_the_budget(neighbours, group_size, epsilon):
    budget = Budget(epsilon, 1e-6, neighbours, group_size)
    spending = seeded(budget)
    for number, share in enumerate([0.03, 0.1, 1 / 3]):
        spending.stage(f"stage-{number}", share, steps=number + 1)
    spending.stage("rest", steps=40)
    assert spending.left == 0
    # the ledger's composition, accounted by another part of the library as a fixed plan
    spent = account(spending.ledger.spent(), neighbours, group_size).epsilon(budget.delta)
    assert budget.epsilon * (1 - 1e-6) < spent <= budget.epsilon


def test_a_stage_is_charged_before_it_releases():
    spending = seeded()
    stage = spending.stage("counts", 0.5)
    assert spending.ledger.spent() is not None
    spending._add_noise = lambda total, event: 1 / 0
    with pytest.raises(ZeroDivisionError):
        stage.ask(NOBODY, powers(1))
    with pytest.raises(PlanViolation, match="no further release of counts"):  # a failed release is spent too
        stage.ask(NOBODY, powers(1))


def test_no_more_than_there_is():
    spending = seeded()
    spending.stage("first", 0.9)
    with pytest.raises(BudgetExceeded, match=r"asks for 0\.2 of the budget; 0\.1 is left"):
        spending.stage("second", 0.2)
    spending.stage("third")
    with pytest.raises(BudgetExceeded):
        spending.stage("fourth")
    assert len(spending.ledger.runs()) == 2


@pytest.mark.parametrize("share", [math.nan, -0.1, 0.0, math.inf, True, "all"])
def test_shares_that_mean_nothing(share):
    with pytest.raises(InvalidParameter, match="share="):
        seeded().stage("stage", share)


def test_noise_is_as_large_as_stated():
    stage = seeded().stage("noise", 0.25, steps=4)
    query = powers(206)  # 40 170 numbers
    noise = stage.ask(RawColumns(np.zeros((0, 206))), query).value
    assert stage.noise_multiplier * stage.strength == pytest.approx(2.0)  # root of the steps
    # a standard deviation of 40000 draws is off by 0.35 %; the seed makes the draw repeat
    assert noise.std() == pytest.approx(query.bound * stage.noise_multiplier, rel=0.015)
    one = seeded().strength
    assert stage.noise_multiplier == pytest.approx(math.sqrt(4 / 0.25) / one, rel=1e-9)


def test_neighbours_and_groups_need_more_noise():
    alone = seeded().strength
    assert seeded(Budget(1.0, 1e-6, "replace-one")).strength == pytest.approx(alone / 2)
    assert seeded(Budget(1.0, 1e-6, group_size=5)).strength == pytest.approx(alone / 5)


def test_fits_share_a_ledger_until_it_is_empty():
    with Ledger.in_memory(GaussianFilter(Budget(1.5, 1e-6))) as ledger:
        for _ in range(2):
            seeded(till=Till.open(ledger, GaussianFilter(BUDGET))).stage("everything").ask(NOBODY, powers(1))
        assert sorted(ledger.runs()) == ["fit-1/everything", "fit-2/everything"]
        with pytest.raises(BudgetExceeded, match="no room for another fit"):
            seeded(till=Till.open(ledger, GaussianFilter(BUDGET)))
        assert ledger.guarantee().within(Budget(1.5, 1e-6))


def test_ledgers_that_count_something_else():
    with pytest.raises(InvalidParameter, match="GaussianFilter"):
        seeded(till=Till.open(None, TruncatedRenyiFilter(Budget(9.0, 1e-5), 8.0, 1.0, 1e-7)))
    with pytest.raises(InvalidParameter, match="same unit"):
        seeded(
            till=Till.open(
                Ledger.in_memory(GaussianFilter(Budget(9.0, 1e-5, "replace-one"))), GaussianFilter(BUDGET)
            )
        )
    with pytest.raises(InvalidParameter, match="till="):
        seeded(till="study.ledger")


@pytest.mark.parametrize(
    ("budget", "name"), [(1.0, "budget"), (Budget(1.0, 0.0), "delta"), (Budget(1e9, 1e-6), "epsilon")]
)
def test_budgets_that_gaussian_noise_cannot_serve(budget, name):
    with pytest.raises(InvalidParameter, match=f"{name}="):
        BudgetAllocator(budget)


def test_other_parameters():
    with pytest.raises(InvalidParameter, match="arithmetic="):
        BudgetAllocator(BUDGET, arithmetic="exact")
    with pytest.raises(InvalidParameter, match="stream="):
        BudgetAllocator(BUDGET, stream=7)
    assert BudgetAllocator(BUDGET).trusted
    assert not seeded().trusted


def test_hardened_noise_leaves_room_for_its_distance():
    spending = seeded(arithmetic="hardened")
    assert spending.strength < seeded().strength
    stage = spending.stage("stage", steps=50)
    for _ in range(50):
        stage.ask(RawColumns(np.zeros((0, 5))), powers(5))  # 975 numbers
    assert 0 < (1 + math.exp(BUDGET.epsilon)) * spending.distance < 1e-5 * BUDGET.delta


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.5, 0.0, 0.3])])
def test_sums_agree_in_both_arithmetics(weights):
    cells, rows = np.array([0, 2, 2, 1]), np.random.default_rng(0).normal(size=(4, 3))
    made = []
    for arithmetic in ("float", "hardened"):
        grid = seeded(arithmetic=arithmetic).stage("stage").grid(10.0)
        query = Blocks((Cells(Code(0), (3,), (0.7,)), Rows(Products3(), 3, 9.0)), 10.0)
        numbers = NumberParts(np.column_stack([cells, rows]), weights)
        made.append(query.total(numbers, grid) * grid)
    own = np.ones(4) if weights is None else weights
    ones = [0.7 * own[cells == cell].sum() for cell in range(3)]
    np.testing.assert_allclose(made[0], [*ones, *(1.5 * own @ rows)], atol=10.0 * 2.0**-27)
    np.testing.assert_allclose(made[1], made[0], atol=1e-6)


@pytest.mark.parametrize("weight", [None, 0.3])
def test_values_are_clamped_to_their_limits_and_cells_out_of_range_count_for_nothing(weight):
    """Exact sums of small dyadic numbers; a forgotten clamp would add infinity, 1e300 or a cell of a neighbour."""
    wild = np.array([[np.nan, 1e300], [-np.inf, -1e300], [1e300, 0.25], [0.125, np.nan]])
    own, grid = 1.0 if weight is None else weight, 2.0**-30

    def total(view, sizes, limits, numbers):
        weights = None if weight is None else np.full(len(numbers), weight)
        around = Cells(Code(0), (1,), (1.0,))  # neighbours of the cells, which are not theirs
        query = Blocks((around, Cells(view, sizes, limits), around), 9.0)
        parts = NumberParts(np.column_stack([np.full(len(numbers), -1.0), numbers]), weights)
        with np.errstate(all="ignore"):
            return query.total(parts, grid)

    for row in wild:
        steps = total(Amounts(), (1, 1), (0.5, 2.0), row[None])
        assert (np.abs(steps * grid) <= own * np.array([0.0, 0.5, 2.0, 0.0])).all()
    steps = total(Amounts(), (1, 1), (0.5, 2.0), wild)
    np.testing.assert_allclose(steps * grid, own * np.array([0.0, 0.125, 0.25, 0.0]), atol=4 * grid)
    for cells in ([-1.0, 2.0, 7.0, 1.0], [0.0, 1.0, np.nan, 1e300]):
        steps = total(Code(1), (2,), (1.0,), np.array(cells)[:, None])
        assert steps[[0, 3]].tolist() == [0, 0]
        assert (steps * grid <= own).all()


def of_statistics(kind):
    """Let a class pass for one of the catalogue."""
    kind.__module__ = "discreet.statistics.statistic_views"
    return kind


@of_statistics
@dataclass(frozen=True, eq=False)
class Products3(View):
    """1.5 times the numbers beside the first."""

    def __call__(self, x, y):
        return 1.5 * x[:, 1:]


@of_statistics
@dataclass(frozen=True, eq=False)
class Amounts(View):
    """The numbers beside the first, for a cell of their own each."""

    def __call__(self, x, y):
        return np.zeros((len(x), x.shape[1] - 1), np.int64), np.ascontiguousarray(x[:, 1:])


class Wrong:
    """Rows whose sum is not what was asked for."""

    def __init__(self, total):
        self.total = total

    def _total(self, query, grid):
        return self.total


def test_only_whole_numbers_of_the_declared_size_are_released():
    query = powers(1)
    for arithmetic in ("float", "hardened"):
        stage = seeded(arithmetic=arithmetic).stage("stage")
        for wrong, shown in (
            (np.zeros(query.size), "float64"),
            (np.zeros(query.size + 1, np.int64), "int64"),
            (np.zeros((query.size, 1), np.int64), "int64"),
        ):
            with pytest.raises(PlanViolation, match=f"A sum of {query.size} integers .* Got {shown}"):
                stage.ask(Wrong(wrong), query)
        assert stage.ask(RawColumns(np.zeros((3, 1))), query).value.shape == (query.size,)


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_an_answer_tells_its_noise_and_a_used_stage_is_refused_before_rows_are_read(arithmetic):
    stage, query = seeded(arithmetic=arithmetic).stage("stage", 0.5), powers(200)
    answer = stage.ask(RawColumns(np.full((7, 200), 1e300)), query)
    assert answer.noise == stage.noise_multiplier * query.bound
    assert answer.grid == stage.grid(query.bound)
    left = answer.value.reshape(200, -1) - 7.0 * (np.arange(PowerCells.cells) == PowerCells.cells - 1)
    # a standard deviation of 39 000 draws is off by 0.36 %; the seed makes the draw repeat
    assert left.std() == pytest.approx(answer.noise, rel=0.015)
    with pytest.raises(PlanViolation, match="no further release of stage"):
        stage.ask(None, query)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (8.0, 1e-6), (16.0, 1e-5)])
def test_hardened_fits_have_room_for_millions_of_records(epsilon, delta):
    assert seeded(Budget(epsilon, delta), "hardened").most_records >= 2**20
    if epsilon <= 1:
        assert seeded(Budget(epsilon, delta), "hardened").most_records == 2**30


def test_a_budget_that_hardened_noise_cannot_keep_is_refused_before_anything_is_spent():
    with pytest.raises(InvalidParameter, match=r"epsilon=60.*choose arithmetic='float'"):
        BudgetAllocator(Budget(60.0, 1e-6))
    assert seeded(Budget(60.0, 1e-6), "float").most_records == 2**32


class Counted:
    """So many rows."""

    def __init__(self, rows):
        self._row_count = lambda: rows


def test_more_rows_than_can_be_added_up_are_refused():
    spending = seeded(Budget(16.0, 1e-6), "hardened")
    spending.admit(Counted(spending.most_records))
    with pytest.raises(InvalidParameter, match="too many rows"):
        spending.admit(Counted(spending.most_records + 1))


def test_fits_that_race_for_the_last_budget_are_told_so():
    """Both find room for a whole fit, and there is room for one and a half. Before, the refusal was a dump of
    ``Composition(...)``."""
    with Ledger.in_memory(GaussianFilter(Budget(1.25, 1e-6))) as ledger:
        first, second = (seeded(till=Till.open(ledger, GaussianFilter(BUDGET)), name=name) for name in "ab")
        first.stage("counts", 0.1).ask(NOBODY, powers(1))
        second.stage("counts", 0.1).ask(NOBODY, powers(1))
        first.stage("gradients", steps=40)
        paid = ledger.spent()
        with pytest.raises(BudgetExceeded) as refused:
            second.stage("gradients", steps=40)
        told = str(refused.value)
        assert "Other runs have used the ledger while this fit was under way" in told
        assert "10% of epsilon=1" in told
        assert "(" not in told, "no event is printed"
        assert ledger.spent() == paid, "what was refused was not reserved"
        assert ledger.guarantee().within(Budget(1.25, 1e-6))


def test_no_refusal_of_a_ledger_prints_a_composition():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        event = Gaussian(3.0) * 5
        with pytest.raises(BudgetExceeded) as refused:
            ledger.run(event, event.digest())
        assert "Composition" not in str(refused.value)
        assert str(refused.value).startswith("5 x Gaussian(noise_multiplier=3.0) would exceed")


def test_a_stage_is_made_by_its_budget_only_and_cannot_be_copied():
    """Either would make releases that nobody has paid for."""
    spending = seeded()
    with pytest.raises(PlanViolation, match="Only a charge"):
        StagePermit(spending, "free", 1.0, 1000, Gaussian(1e-3))
    stage = spending.stage("paid")
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PlanViolation, match="cannot be copied"):
            duplicate(stage)
    stage.ask(NOBODY, powers(1))
    with pytest.raises(PlanViolation, match="no further release of paid"):
        stage.ask(NOBODY, powers(1))


# Logs: each release is paid on its own, and written down before anybody sees it.


def logged(ledger, entries=()):
    """Spending on a ledger, with a log that holds these entries."""
    log = PublicLog(None, "fit-1", "a fit")
    log.entries += entries
    return seeded(till=Till.open(ledger, GaussianFilter(BUDGET)), log=log), log


def test_a_resumed_fit_returns_what_was_released_and_reads_no_row():
    with Ledger.in_memory(GaussianFilter(Budget(1.5, 1e-6))) as ledger:
        spending, log = logged(ledger)
        stage = spending.stage("counts", 0.5, steps=2)
        assert ledger.spent() is None
        first = stage.ask(NOBODY, powers(1)).value
        paid = ledger.spent()
        again, _ = logged(ledger, log.entries)
        stage = again.stage("counts", 0.5, steps=2)
        assert stage.ask(None, powers(1)).value is first
        assert ledger.spent() == paid
        stage.ask(NOBODY, powers(1))
        assert account(ledger.spent()).epsilon(1e-6) > account(paid).epsilon(1e-6)
        assert sorted(ledger.runs()) == ["fit-1/counts"]


def test_a_release_that_was_seen_and_is_not_in_the_log_is_not_drawn_again():
    with Ledger.in_memory(GaussianFilter(Budget(1.5, 1e-6))) as ledger:
        logged(ledger)[0].stage("counts", 0.5, steps=2).ask(NOBODY, powers(1))
        older, _ = logged(ledger)
        older._add_noise = None
        with pytest.raises(PlanViolation, match="older copy"):
            older.stage("counts", 0.5, steps=2).ask(NOBODY, powers(1))


def test_a_release_that_was_paid_and_seen_by_nobody_is_drawn_at_no_cost():
    def interrupted(*_):
        raise KeyboardInterrupt

    with Ledger.in_memory(GaussianFilter(Budget(1.5, 1e-6))) as ledger:
        spending, _ = logged(ledger)
        spending._add_noise = interrupted
        with pytest.raises(KeyboardInterrupt):
            spending.stage("counts", 0.5, steps=2).ask(NOBODY, powers(1))
        paid = ledger.spent()
        logged(ledger)[0].stage("counts", 0.5, steps=2).ask(NOBODY, powers(1))
        assert ledger.spent() == paid


def test_a_logged_release_that_the_ledger_refuses_is_not_drawn():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        spending, log = logged(ledger)
        stage = spending.stage("counts", 0.5, steps=2)
        event = Gaussian(1.01 / spending.strength)
        Till.open(ledger, GaussianFilter(BUDGET)).pay(event, name="another")
        spending._add_noise = None
        with pytest.raises(BudgetExceeded, match="cannot begin, and nothing was released"):
            stage.ask(NOBODY, powers(1))
        assert not log.entries


def test_progress_and_a_first_charge_are_told_once():
    told, first = [], []
    spending = seeded(on_first=lambda: first.append("charged"))
    spending.progress = lambda *words: told.append((*words, list(first)))
    spending.stage("counts", 0.5, steps=2).ask(NOBODY, powers(1))
    spending.stage("rest")
    assert told == [("counts", 0, 2, ["charged"]), ("counts", 1, 2, ["charged"]), ("rest", 0, 1, ["charged"])]


def test_releases_beyond_the_distance_that_was_kept_back_are_refused():
    spending = seeded(Budget(16.0, 1e-6), "hardened")
    stage = spending.stage("stage", steps=2)
    spending._allowed = 1e-300
    with pytest.raises(InvalidParameter, match=r"epsilon=16.*too large for hardened noise"):
        stage.ask(NOBODY, powers(1))
    with pytest.raises(InvalidParameter, match=r"ledger=.*a ledger of a smaller epsilon"):
        seeded(
            arithmetic="hardened",
            till=Till.open(Ledger.in_memory(GaussianFilter(Budget(60.0, 1e-6))), GaussianFilter(BUDGET)),
        )
