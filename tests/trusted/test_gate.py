"""The gate: sums move by at most the sensitivity whatever is asked, and no noise is drawn without a charge."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Budget, Gaussian, Laplace, Ledger
from discreet.core.noise import grid_for
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation
from discreet.events import Composition, DiscreteLaplace
from discreet.ledger import GaussianFilter
from discreet.statistics.statistic_views import Bin, Code, Distance, OffsetFrom, Ones, Polynomial, Products
from discreet.trusted import queries
from discreet.trusted.choices import Quantiles
from discreet.trusted.opaque import AnyRows
from discreet.trusted.queries import Blocks, Cells, Rows
from discreet.trusted.rows import NumberParts, PartitionedRows, PrivateRows
from discreet.trusted.session import EventPermit, Session

PURE = Budget(1.0, 0.0)
ONE = Blocks((Cells(Code(0), (1,), (1.0,)),), norm="l1")
WIDTH = 3

wild = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.5, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 2.0**62]
    ),
)
numbers = st.floats(-1e6, 1e6)
points = st.tuples(*[numbers] * WIDTH)


@st.composite
def bins(draw):
    edges = tuple(sorted(draw(st.sets(numbers, min_size=2, max_size=6))))
    return Bin(draw(st.integers(0, WIDTH - 1)), edges)


@st.composite
def polynomials(draw):
    lower, upper = sorted(draw(st.tuples(numbers, numbers)))
    coefficients = draw(st.lists(wild, min_size=1, max_size=4))
    return Polynomial(0, lower, upper, draw(wild), draw(wild), tuple(coefficients))


row_views = st.one_of(
    st.builds(lambda: (Ones(), 1)),
    st.builds(
        lambda centre, half: (OffsetFrom(centre, half), WIDTH),
        points,
        st.sampled_from([math.inf, 1e3, 1e308]),
    ),
    st.builds(
        lambda centre, radius, amount, shift: (Distance(centre, radius, amount, "l2", shift), 1),
        points,
        st.floats(1e-6, 1e6),
        st.sampled_from(["beyond", "square"]),
        wild,
    ),
    st.builds(lambda ends, factor: (Products(*ends, factor), 10), st.tuples(points, points), wild),
)


@st.composite
def blocks(draw, norm):
    """Any query of the catalogue, with limits that use its sensitivity up."""
    count = draw(st.integers(1, 4))
    share = Fraction(1, count) if norm == "l1" else Fraction(math.isqrt(2**80 // count), 2**40)
    limit, made = float(share) * (1 - 2**-40), []
    for _ in range(count):
        kind = draw(st.sampled_from(["cell", "value", "row"]))
        if kind == "cell":
            view = draw(st.one_of(bins(), st.just(Code(1))))
            made.append(Cells(view, (draw(st.integers(1, 5)),), (limit,)))
        elif kind == "value":
            made.append(Cells(draw(polynomials()), (1,), (limit,)))
        else:
            view, size = draw(row_views)
            made.append(Rows(view, size, limit))
    return Blocks(tuple(made), 1.0, norm)


def moved_too_far(query, table, more, grid):
    """Whether one row more moves the sum by more than the sensitivity, in exact arithmetic."""
    before, after = (
        PrivateRows(np.array(rows).reshape(-1, WIDTH), "add-remove") for rows in (table, [*table, more])
    )
    difference = [int(one) for one in after._total(query, grid) - before._total(query, grid)]
    steps = Fraction(query.bound) / Fraction(grid)
    if query.norm == "l1":
        return sum(abs(one) for one in difference) > steps
    return sum(one**2 for one in difference) > steps**2


tables = st.lists(st.tuples(*[wild] * WIDTH), max_size=4)


@settings(max_examples=150, deadline=None)
@given(query=st.one_of(blocks("l1"), blocks("l2")), table=tables, more=st.tuples(*[wild] * WIDTH))
def test_no_row_moves_a_sum_by_more_than_the_sensitivity(query, table, more):
    noise = Gaussian(2.0) if query.norm == "l2" else Laplace(2.0)
    assert not moved_too_far(query, table, more, grid_for(noise, 1.0, 1000))


def test_a_forgotten_clip_is_found(monkeypatch):
    """The broken twin: coordinates within the limit, and a norm beyond it."""
    query = Blocks((Rows(OffsetFrom((0.0,) * WIDTH), WIDTH, 1.0),))
    far = ([(1.0, 1.0, 1.0)], (9.0, 9.0, 9.0), 2.0**-30)
    assert not moved_too_far(query, *far)
    monkeypatch.setattr(queries, "clip_rows", lambda rows, *_: np.clip(np.nan_to_num(rows), -1, 1))
    assert moved_too_far(query, *far)


def test_limits_that_are_not_compared_are_found(monkeypatch):
    """The broken twin: two blocks that use the sensitivity up twice."""
    cell = Cells(Bin(0, (0.0, 10.0)), (1,), (1.0,))
    monkeypatch.setattr(queries, "Fraction", lambda number: Fraction(0))
    query = Blocks((cell, cell))
    assert moved_too_far(query, [], (9.0, 9.0, 9.0), 2.0**-30)


def test_limits_are_compared_exactly():
    half = math.sqrt(0.5)
    with pytest.raises(PlanViolation, match="allow a record to add"):
        Blocks(
            (
                Cells(Code(0), (1,), (math.nextafter(half, 1),)),
                Cells(Code(1), (1,), (math.nextafter(half, 1),)),
            )
        )
    limit = half * (1 - 2.0**-44)  # room for one rounding of a weight times a limit
    Blocks((Cells(Code(0), (1,), (limit,)), Cells(Code(1), (1,), (limit,))))
    with pytest.raises(PlanViolation, match="allow a record to add"):
        Blocks((Rows(Ones(), 1, math.nextafter(1.0, 2)),))
    Blocks((Cells(Code(0), (1,), (1.0,)),))  # exact for every weight


def test_queries_are_data():
    query = Blocks((Rows(OffsetFrom((0.0, 1.0)), 2, 1.0),))
    assert query == Blocks((Rows(OffsetFrom((0.0, 1.0)), 2, 1.0),))
    assert len({query, Blocks((Rows(OffsetFrom((0.0, 1.0)), 2, 1.0),))}) == 1
    assert query.digest != Blocks((Rows(OffsetFrom((0.0, -1.0)), 2, 1.0),)).digest


def test_rows_tell_nothing():
    rows = PrivateRows(np.array([[123.0], [456.0]]), "add-remove")
    assert "123" not in repr(rows)
    assert rows.public_count is None
    assert PrivateRows(np.zeros((7, 1)), "replace-one").public_count == 7
    for peek in (len, list, bool, iter, hash, np.asarray, lambda one: one[0], lambda one: one == one):
        with pytest.raises(TypeError, match="Private rows"):
            peek(rows)
    for strange in (object(), "everything", lambda rows: rows):
        with pytest.raises(PlanViolation, match="not a query"):
            rows._total(strange, 1.0)
    with pytest.raises(PlanViolation):
        PrivateRows(np.array([["a"]]), "add-remove")


def test_no_error_quotes_a_record():
    """A view that fails raises one sentence, without the error that it replaces; those of ours pass."""
    rows = PrivateRows(np.array([[123.0]]), "add-remove")
    for place in (2, -2):
        with pytest.raises(PlanViolation, match="could not answer a query") as refused:
            rows._total(Blocks((Cells(Code(place), (1,), (1.0,)),)), 2.0**-20)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None
    with pytest.raises(PlanViolation, match="3 numbers was declared"):
        rows._total(Blocks((Rows(Ones(), 3, 1.0),)), 2.0**-20)
    with pytest.raises(NotImplementedError):
        AnyRows()._sum(ONE, 1.0)
    assert repr(AnyRows()) == "AnyRows()"


def test_an_error_of_another_machine_passes():
    """It is that of the transport, and says what to do."""

    def lost(query, like):
        raise ConnectionError("The scheduler is gone.")

    with pytest.raises(ConnectionError, match="scheduler"):
        PartitionedRows(lost, 1, "add-remove", False)._total(ONE, 1.0)


# Permits


def test_a_permit_is_used_once_and_by_its_session():
    rows = PrivateRows(np.zeros((5, 1)), "add-remove")
    with pytest.raises(PlanViolation, match="Only a charge"):
        EventPermit(None, Laplace(1.0), 1, None, object())
    with (
        Session.open("one", {}, PURE, Laplace(1.01)) as one,
        Session.open("two", {}, PURE, Laplace(1.01)) as two,
    ):
        permit = one.charge()
        with pytest.raises(PlanViolation, match="another session"):
            two.release(permit, rows, ONE)
        with pytest.raises(PlanViolation, match="needs a permit"):
            one.release(Laplace(1.01), rows, ONE)
        with pytest.raises(PlanViolation, match="1 numbers"):
            one.release(permit, rows, Blocks((Cells(Code(0), (2,), (1.0,)),), norm="l1"))
        one.release(permit, rows, ONE)
        with pytest.raises(PlanViolation, match="no further release"):
            one.release(permit, rows, ONE)
        with pytest.raises(PlanViolation, match="has been charged"):
            one.charge()
        other = two.charge()
        with pytest.raises(PlanViolation, match="other norm"):
            two.release(other, rows, Blocks((Cells(Code(0), (1,), (1.0,)),), norm="l2"))


def test_noise_and_query_have_to_fit():
    rows = PrivateRows(np.zeros((5, 1)), "add-remove")
    with Session.open("count", {}, PURE, DiscreteLaplace(1.01)) as session:
        permit = session.charge(bound=None)
        with pytest.raises(PlanViolation, match="sensitivity 1"):
            session.release(permit, rows, Blocks((Cells(Code(0), (1,), (1.0,)),), bound=2.0, norm="l1"))
    query = Quantiles((0.5,), 0.0, 1.0, 1.0)
    with Session.open("median", {}, PURE, query.event) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match="other neighbours"):
            session.release(permit, rows, Quantiles((0.5,), 0.0, 1.0, 1.0, None, "replace-one"))
    with Session.open("median", {}, PURE, query.event) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match="was paid"):
            session.release(permit, rows, Quantiles((0.5,), 0.0, 1.0, 2.0))
    with Session.open("median", {}, PURE, query.event) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match="Gaussian or Laplace"):
            session.release(permit, rows, ONE)


def test_a_session_cannot_cost_more_than_its_budget():
    with pytest.raises(BudgetExceeded), Session.open("dear", {}, PURE, Laplace(0.5)) as session:
        session.charge()


def test_a_permit_is_for_the_sensitivity_that_was_charged():
    """The distance to continuous noise was paid for this one, and is up to four times as large for others."""
    rows, wide = (
        PrivateRows(np.zeros((5, 1)), "add-remove"),
        Blocks((Cells(Code(0), (1,), (1.0,)),), 1.5, "l1"),
    )
    with Session.open("one", {}, PURE, Laplace(1.01)) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match=r"sensitivity 1\.0\. Got 1\.5"):
            session.release(permit, rows, wide)
    with Session.open("any", {}, PURE, Laplace(1.01)) as session:
        session.release(session.charge(bound=None), rows, wide)


def test_events_of_several_kinds_are_named():
    rows, both = PrivateRows(np.zeros((5, 1)), "add-remove"), (Laplace(2.1), Laplace(2.2))
    with Session.open("two", {}, PURE, Composition(tuple((one, 1) for one in both))) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match="several kinds"):
            session.release(permit, rows, ONE)
        for one in both:
            session.release(permit, rows, ONE, one)
        with pytest.raises(PlanViolation, match="no further release"):
            session.release(permit, rows, ONE, both[0])


def test_a_session_answers_about_its_own_rows_and_the_catalogue():
    rows = PrivateRows(np.zeros((5, 1)), "add-remove")
    with Session.open("one", {}, PURE, Laplace(1.01)) as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match=r"about PrivateRows\. Got list"):
            session.release(permit, [[1.0]], ONE)
        with pytest.raises(PlanViolation, match="not a query of the catalogue"):
            session.release(permit, rows, lambda rows: rows)
        for other in (
            PrivateRows(np.zeros((5, 1)), "replace-one"),
            PrivateRows(np.zeros((1, 1)), "add-remove", [b"a"]),
        ):
            with pytest.raises(PlanViolation, match="The rows are for"):
                session.release(permit, other, ONE)
        with pytest.raises(PlanViolation, match="can be prepared"):
            session.prepare(rows, Quantiles((0.5,), 0.0, 1.0, 1.0))
        session.prepare(rows, ONE)
        session.release(permit, rows, ONE)
    with pytest.raises(InvalidParameter, match=r"^budget"), Session.open("x", {}, 1.0, Laplace(1.0)):
        pass


def test_noise_too_far_from_gaussian_noise_is_refused_before_it_is_paid():
    budget = Budget(30.0, 1e-6)
    with (
        Ledger.in_memory(GaussianFilter(Budget(100.0, 1e-3))) as ledger,
        Session.open("far", {}, budget, Gaussian(0.3), ledger=ledger) as session,
    ):
        with pytest.raises(PlanViolation, match="too far from Gaussian"):
            session.charge(numbers=2**20)
        assert ledger.spent() is None


def test_a_session_that_was_not_charged_has_spent_nothing():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        with Session.open("nothing", {}, Budget(1.0, 1e-6), Gaussian(5.0), ledger=ledger):
            pass
        assert ledger.spent() is None


def test_floating_point_sums_are_of_rows():
    rows = PrivateRows(np.zeros((5, 1)), "add-remove")
    with Session.open("float", {}, PURE, Laplace(1.01), arithmetic="float") as session:
        permit = session.charge()
        with pytest.raises(PlanViolation, match="one block of rows"):
            session.release(permit, rows, ONE)


def test_quantiles_under_replace_one_neighbours_pay_for_a_whole_rank():
    query = Quantiles((0.5,), 0.0, 1.0, 1.0, None, "replace-one")
    rows = PrivateRows(np.linspace(0, 1, 2001)[:, None], "replace-one")
    with Session.open("median", {}, Budget(1.0, 0.0, "replace-one"), query.event) as session:
        found = session.release(session.charge(), rows, query)
    assert found[0] == pytest.approx(0.5, abs=0.1)  # 100 of 2001 ranks: exp(-50) for each of 65 536 points


def test_rows_that_are_no_table_are_refused(monkeypatch):
    monkeypatch.setattr("discreet.trusted.rows.MOST_RECORDS", 3)
    with pytest.raises(InvalidParameter, match="at most 3"):
        PrivateRows(np.zeros((4, 1)), "add-remove")
    with pytest.raises(PlanViolation, match="one id of a person"):
        PrivateRows(np.zeros((3, 1)), "add-remove", [b"a", None])


def test_partitions_are_asked_once_for_each_sum():
    asked = []

    def gather(query, like):
        asked.append((query, like.clip_norm, like.norm, like.grid))
        return np.full(like.value.shape, 1000, np.int64)

    rows = PartitionedRows(gather, 1, "add-remove", False)
    with Session.open("there", {}, PURE, DiscreteLaplace(1.01), unsafe_seed=1) as session:
        session.prepare(rows, ONE)
        found = session.release(session.charge(), rows, ONE)
    assert asked == [(ONE, 1.0, "l1", 1.0)]
    assert abs(found[0] - 1000) < 100
    with pytest.raises(PlanViolation, match="in integers"):
        rows._total(ONE, None)
    with pytest.raises(PlanViolation, match="not a query of the catalogue"):
        rows._total(Quantiles((0.5,), 0.0, 1.0, 1.0), None)
    rows._total(ONE, 0.5)
    assert len(asked) == 2


def test_views_that_mix_or_leave_out_records_are_refused():
    part = queries.Part(np.arange(6.0).reshape(6, 1))
    with pytest.raises(PlanViolation, match="each record by itself"):
        queries.evaluate(lambda x, y: x[:, 0].mean() + np.zeros(len(x)), part, np.float64)
    with pytest.raises(PlanViolation, match="other arrays"):
        queries.evaluate(lambda x, y: x[1:], part, np.float64)
    cells = Cells(Code(0), (1,), (1.0,))
    object.__setattr__(cells, "view", lambda x, y: (np.zeros((len(x), 1), np.int64), np.zeros((len(x), 2))))
    with pytest.raises(PlanViolation, match="other numbers than cells"):
        cells.add(np.zeros(1, np.int64), part, 1.0, "l2")


def test_queries_of_other_columns_and_choices_of_persons_are_refused(monkeypatch):
    rows = PrivateRows(np.zeros((2, 1)), "add-remove", [b"a", b"b"])
    with pytest.raises(PlanViolation, match="sums only"):
        rows._sum(Quantiles((0.5,), 0.0, 1.0, epsilon=1.0), None)
    numbers_of_rows = NumberParts(np.zeros((2, 1)), None)
    with pytest.raises(PlanViolation, match="themselves only"):
        next(numbers_of_rows.parts("others"))
    monkeypatch.setattr(Cells, "columns", 7, raising=False)
    with pytest.raises(PlanViolation, match="other columns"):
        ONE.total(numbers_of_rows, 1.0)
