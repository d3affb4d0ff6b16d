"""Frames of Dask are fitted where their rows lie: the bits of one table; other rows than before stop it."""

import logging

import numpy as np
import pandas as pd
import pytest

distributed = pytest.importorskip("distributed")
dataframe = pytest.importorskip("dask.dataframe")

from discreet import Budget, evaluate  # noqa: E402
from discreet.adapters import DaskEngine  # noqa: E402
from discreet.adapters.dask_frames import FrameOnCluster  # noqa: E402
from discreet.errors import InvalidParameter, PlanViolation  # noqa: E402
from discreet.ledger import GaussianFilter, Ledger  # noqa: E402
from discreet.linear import Category, Numeric, PrivateLogisticRegression, Schema  # noqa: E402
from discreet.linear.frame_parts import Description, Descriptions, FramePart, describe_frame  # noqa: E402
from discreet.linear.gate.partitioned_rows import PartitionQuery, QueryContext  # noqa: E402
from discreet.linear.gate.private_table import TargetRows  # noqa: E402
from discreet.linear.losses import Logistic  # noqa: E402
from discreet.linear.packed_questions import Packed  # noqa: E402
from discreet.linear.partition_answers import PartitionTask, Reading, answer  # noqa: E402
from discreet.linear.partition_results import PartitionReply  # noqa: E402
from discreet.linear.row_views.targets import ClassOf  # noqa: E402
from discreet.linear.user_routing import Share  # noqa: E402
from discreet.trusted.queries import Blocks, Cells  # noqa: E402

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("ignore")]  # the cluster's own warnings


def table(rows=900):
    rng = np.random.default_rng(0)
    x = rng.random((rows, 2)) * 10
    found = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "job": rng.choice(["clerk", "farmer"], rows)})
    found["label"] = (x[:, 0] > x[:, 1]).astype(int)
    found["person"] = rng.integers(150, size=rows)
    found.loc[4, "b"] = np.nan
    return found


def model(**more):
    columns = {
        "a": Numeric(0, 10),
        "b": Numeric(0, 10),
        "job": Category(("clerk", "farmer")),
        "label": Category((0, 1)),
    }
    return PrivateLogisticRegression(1.0, schema=Schema(columns, target="label"), unsafe_seed=5, **more)


@pytest.fixture(scope="module")
def client():
    """Workers in this process: what they do is the same."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


@pytest.mark.parametrize("unit", [None, "person"])
def test_a_frame_is_fitted_by_its_own_client(client, unit):
    frame = dataframe.from_pandas(table(), npartitions=3, sort=False)
    found = model(unit=unit).fit(frame, y="label")
    np.testing.assert_array_equal(found.coef_, model(unit=unit).fit(table(), y="label").coef_)


@pytest.mark.parametrize("unit", [None, "person"])
def test_an_evaluation_of_a_frame_gives_the_scores_of_one_table(client, unit):
    fitted, rows = model(unit=unit).fit(table()), table()
    rows.loc[7, "label"] = 9  # a class that nobody declared
    frame = dataframe.from_pandas(rows, npartitions=3, sort=False)
    there = evaluate(fitted, frame, epsilon=1.0, by="job", unsafe_seed=3)
    assert str(there) == str(evaluate(fitted, rows, epsilon=1.0, by="job", unsafe_seed=3))
    assert there.certificate.guarantee.unit == ("record" if unit is None else "person")


def test_an_evaluation_of_too_many_rows_or_of_others_releases_nothing(client, monkeypatch, tmp_path):
    fitted = model().fit(table())
    path = tmp_path / "a.ledger"
    Ledger.create(path, GaussianFilter(Budget(5.0, 1e-5))).close()

    def asked(frame):
        return evaluate(fitted, frame, epsilon=1.0, delta=1e-7, ledger=path)

    frame = dataframe.from_pandas(table(), npartitions=3, sort=False)
    other = dataframe.from_pandas(table()[["a", "b"]], npartitions=2, sort=False)
    with pytest.raises(InvalidParameter, match="'job'"):
        asked(other)
    monkeypatch.setattr("discreet.adapters.dask_engine.MOST_RECORDS", 899)
    with pytest.raises(InvalidParameter, match="must have at most 899"):
        asked(frame)
    with Ledger.open(path) as ledger:
        assert ledger.spent() is None
    monkeypatch.undo()
    asked(frame)
    with Ledger.open(path) as ledger:
        assert ledger.spent() is not None


def test_without_a_client_it_is_refused_and_never_pulled(monkeypatch):
    monkeypatch.setattr(distributed, "default_client", lambda: (_ for _ in ()).throw(ValueError))
    frame = dataframe.from_pandas(table(20), npartitions=2, sort=False)
    with pytest.raises(InvalidParameter, match=r"no client of it.*not pulled into this process"):
        model().fit(frame, y="label")


def test_arrays_and_columns_of_dask_are_no_frames(client):
    frame = dataframe.from_pandas(table(), npartitions=3, sort=False)
    for other in (frame[["a", "b"]].to_dask_array(), frame["a"]):
        with pytest.raises(InvalidParameter, match="must be a frame with named columns"):
            model().fit(other, y="label")
        with pytest.raises(InvalidParameter, match="must be a frame with named columns"):
            evaluate(model().fit(table()), other, epsilon=1.0)


def test_unknown_names_are_refused_before_anything_is_computed(client, monkeypatch):
    monkeypatch.delattr(FrameOnCluster, "compute")
    frame = dataframe.from_pandas(table(20), npartitions=2, sort=False)
    with pytest.raises(InvalidParameter, match="lable"):
        model().fit(frame, y="lable", engine=DaskEngine(client))


def described(frame):
    found = Descriptions(1)
    found.add(describe_frame(Description(0, frame)))
    return found.parts()[0]


def task(fit, part):
    query = Blocks((Cells(ClassOf(Logistic()), (3,), (1.0,)),), bound=1.0, everybody=True)
    view, asked = Packed.of(TargetRows(Logistic())), Packed.of(QueryContext(query))
    question = PartitionQuery(0, view.data, asked.data, {**view.parts, **asked.parts}, 2.0**-10)
    return PartitionTask(fit, Share(0, part), Reading(model(), "label"), question)


@pytest.mark.parametrize("other", ["order", "cell", "row", "name"])
def test_rows_that_come_back_as_others_stop_the_fit(other):
    part, again = described(table(60)), table(60)
    assert answer(task(f"same {other}", part._replace(frame=again.copy()))).code == "sum"
    if other == "order":
        again = again.iloc[::-1]
    elif other == "cell":
        again.loc[3, "a"] += 1e-9
    elif other == "row":
        again = again.iloc[1:]
    else:
        again = again.rename(columns={"a": "c"})
    assert answer(task(other, part._replace(frame=again))).code == "changed"


def test_what_is_no_description_stops_the_fit():
    with pytest.raises(PlanViolation, match="no description"):
        Descriptions(1).add(PartitionReply("sum", 0, 0, np.array([5])))
    mixed = pd.DataFrame({"a": ["secret-cell", 1, object()]})
    answer = describe_frame(Description(0, mixed))
    assert answer.code == "refused"
    assert "secret" not in repr(answer) + repr(Description(0, mixed)) + repr(FramePart("0", 3, "", mixed))


@pytest.mark.parametrize("cell", [3, 1.5, True, b"a", [1], 10**400, "x\ud800", None, float("nan"), object()])
def test_no_cell_decides_the_type_of_a_column(cell):
    plain = pd.DataFrame({"job": pd.Series(["clerk", "farmer", "clerk"], dtype=object), "a": [1.0, 2.0, 3.0]})
    odd = plain.copy()
    odd.at[1, "job"] = cell
    tables = [FramePart("p", 3, "", frame).source() for frame in (plain, plain[:0], odd)]
    assert len({str(found.schema) for found in tables}) == 1
    assert describe_frame(Description(0, odd)).code == "sum"


def test_no_log_of_a_worker_quotes_a_record(client):
    """A cell that pandas cannot parse ends the task of its partition, whose exception a worker would write down."""
    lines = []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    def partition(number):
        return pd.DataFrame(
            {"a": [float(cell) for cell in ("1", "SECRET77" if number else "2")], "label": [0, 1]}
        )

    meta = pd.DataFrame({"a": [1.0], "label": [0]})
    frame = dataframe.from_map(partition, [0, 1], meta=meta)
    logger, handler = logging.getLogger("distributed.worker"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        logger.filters.clear()
        assert client.compute(frame.to_delayed()[1]).exception() is not None
        assert "SECRET77" in "".join(lines)  # the twin: what Dask writes
        lines.clear()
        with pytest.raises(PlanViolation) as caught:
            PrivateLogisticRegression(1.0, bounds=(0, 10)).fit(frame, y="label")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert lines
    assert "SECRET77" not in "".join([*lines, str(caught.value), str(caught.value.__context__)])
