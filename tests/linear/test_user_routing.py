"""People with rows in several files: each is added up in one place, and moves a sum as one record may."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow
import pytest

from discreet.errors import PlanViolation
from discreet.linear import (
    Partitions,
    PrivateAdditiveClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    Unit,
)
from discreet.linear.gate.partitioned_rows import PartitionQuery
from discreet.linear.partition_answers import PartitionTask, Reading, answer
from discreet.linear.partition_results import PartitionReply
from discreet.linear.user_routing import Ids, UserCounts, UserCountTask, count_users, route_users
from support.partitions_here import Here, for_workers, model, shares_of

IDS = Ids("person", b"a key")


def frame(rows=900, people=150, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 2)) * 10
    y = (x[:, 0] - x[:, 1] + rng.logistic(size=rows) > 0).astype(np.int64)
    who = rng.integers(people, size=rows).astype(float)
    who[5] = np.nan  # nobody's
    found = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y, "person": who})
    found.loc[7, "b"] = np.nan
    return found


def written(folder, table, cuts=(0, 250, 250, 600)):
    """In files of which one is empty; most people have rows in several."""
    folder.mkdir()
    for number, (start, stop) in enumerate(zip(cuts, (*cuts[1:], None), strict=True)):
        table.iloc[start:stop].to_parquet(folder / f"part-{number}.parquet", index=False)
    return Partitions(folder / "part-*.parquet")


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (PrivateLogisticRegression, {"unit": "person"}),
        (PrivateLinearRegression, {"unit": Unit("person", rows=4), "inference": True}),
        (PrivateAdditiveClassifier, {"unit": "person"}),
    ],
)
def test_people_in_several_files_give_the_bits_of_one_table(tmp_path, make, more):
    partitions = written(tmp_path / "files", frame(3000))
    target = "b" if make is PrivateLinearRegression else "label"
    local = model(make, **more).fit(partitions, y=target)
    found = model(make, **more).fit(partitions, y=target, engine=Here(partitions))
    table = frame(50, seed=1).drop(columns=[target, "person"])
    ask = "predict" if make is PrivateLinearRegression else "decision_function"
    np.testing.assert_array_equal(getattr(found, ask)(table), getattr(local, ask)(table))
    assert found.certificate_.guarantee == local.certificate_.guarantee
    assert found.certificate_.guarantee.unit == "person"


def sums(shares, questions):
    """The sum of every release over all partitions, in whole numbers, and the largest norm of one addition."""
    reading, fit = Reading(for_workers(model(unit="person")), "label"), str(shares)
    found = []
    for question in questions:
        answers = [answer(PartitionTask(fit, share, reading, question)) for share in shares]
        assert {one.code for one in answers} == {"sum"}
        total = np.sum([one.counts for one in answers], axis=0)
        found.append((total, answers[0].clip_norm / answers[0].grid))
    return found


@pytest.mark.parametrize("broken", [False, True])
def test_a_person_in_all_files_moves_every_sum_by_the_clip_norm_at_most(tmp_path, broken):
    """Twenty rows, far out, in all files. The broken twin lets each file have its own share of the person."""
    table = frame(600)
    mine = pd.DataFrame({"a": 10.0, "b": 0.0, "label": 0, "person": 1000.0}, index=range(20))
    with_me = pd.concat([table[:200], mine[:7], table[200:400], mine[7:13], table[400:], mine[13:]])
    there = written(tmp_path / "with", with_me, cuts=(0, 207, 413))
    without = written(tmp_path / "without", table, cuts=(0, 200, 400))
    engine = Here(there)
    model(unit="person").fit(there, y="label", engine=engine)

    both = [shares_of(partitions, None if broken else "person") for partitions in (there, without)]
    pairs = zip(*(sums(shares, engine.questions) for shares in both), strict=True)
    moved = [np.linalg.norm((one - other).astype(float)) / most for (one, most), (other, _) in pairs]
    assert len(moved) > 40
    assert max(moved) > 0.5  # somebody whom one sees
    assert (max(moved) > 1) == broken


def test_every_row_is_read_once_and_all_of_a_person_in_one_place():
    rng = np.random.default_rng(3)
    rows = [rng.integers(40, size=count) for count in (60, 0, 1, 90, 30)]
    files = [np.array(np.unique(file, return_counts=True), np.int64) for file in rows]
    routes = route_users(files, IDS)
    whose: dict[int, set[int]] = {}
    for number, file in enumerate(rows):
        held = np.array([route.holds(file, number) for route in routes])
        assert (held.sum(0) == 1).all()
        for id_hash, place in zip(file.tolist(), held.argmax(0).tolist(), strict=True):
            whose.setdefault(id_hash, set()).add(place)
            assert number in routes[place].files
    assert all(len(places) == 1 for places in whose.values())
    held = [sum(int(route.holds(file, number).sum()) for number, file in enumerate(rows)) for route in routes]
    assert held == [route.rows for route in routes]


def test_one_person_has_one_ticket_whatever_the_type():
    columns = [
        pyarrow.array([7, 8, None]),
        pyarrow.array([7.0, 8.0, float("nan")]),
        pyarrow.array([" 7", "8.0", ""]),
        pyarrow.array(["7", "8", None]).dictionary_encode(),
        pyarrow.array([Decimal("7.00"), Decimal("8.00"), None]),
    ]
    found = [IDS.id_hashes(column).tolist() for column in columns]
    assert all(id_hashes == found[0] for id_hashes in found)
    assert found[0][2] == -1
    assert len(set(found[0])) == 3
    halves = [pyarrow.array([7.5]), pyarrow.array([Decimal("7.50")])]
    assert len({IDS.id_hashes(column)[0] for column in halves}) == 1
    days = IDS.id_hashes(pyarrow.array([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]))
    assert len(set(days.tolist())) == 1  # all at one route


def test_large_ids_beside_a_missing_one_have_their_tickets():
    ids = [2**60 + 1, 2**60 + 2]
    np.testing.assert_array_equal(
        IDS.id_hashes(pyarrow.array(ids)), IDS.id_hashes(pyarrow.array([*ids, None]))[:2]
    )


def test_a_home_says_nothing_of_people():
    route = route_users([np.array([[77], [1]]), np.array([[77], [1]])], IDS)[0]
    assert "77" not in repr(route)
    assert "key" not in repr(route)


def test_files_that_changed_or_have_no_such_column_are_told_by_codes(tmp_path):
    first, second = shares_of(written(tmp_path / "files", frame(30, 5), cuts=(0, 15)))
    assert count_users(UserCountTask(first, Ids("nobody", b""))).code == "refused"
    (tmp_path / "files" / "part-0.parquet").unlink()
    assert count_users(UserCountTask(first, IDS)).code == "unreadable"
    written_again = frame(31, 5)
    written_again.to_parquet(tmp_path / "files" / "part-1.parquet")
    assert count_users(UserCountTask(second, IDS)).code == "changed"


def test_a_guest_whose_file_changed_stops_the_fit(tmp_path):
    """The own file is as it was; the one that rows are fetched from is not."""
    partitions = written(tmp_path / "files", frame(60, 5), cuts=(0, 30))
    share = next(share for share in shares_of(partitions, "person") if share.route.files == (0, 1))
    frame(61, 5).to_parquet(tmp_path / "files" / f"part-{1 - share.place}.parquet")
    reading = Reading(for_workers(model(unit="person")), "label")
    assert (
        answer(PartitionTask("guest", share, reading, PartitionQuery(0, b"", b"", {}, 1.0))).code == "changed"
    )


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[2, 1], [1, 1]], "no list of people"),
        ([[1, 1], [1, 1]], "no list of people"),
        ([[-1, 1], [1, 1]], "no list of people"),
        ([1, 2], "no list of people"),
        ([[1, 2], [9, 9]], "fewer rows than it says"),
    ],
)
def test_lists_that_no_file_could_give_stop_the_fit(counts, said):
    with pytest.raises(PlanViolation, match=said):
        UserCounts([10]).add(PartitionReply("sum", 0, 0, np.array(counts, np.int64)))


def test_two_lists_that_differ_stop_the_fit():
    register = UserCounts([10, 10])
    register.add(PartitionReply("sum", 0, 0, np.array([[1], [2]])))
    register.add(PartitionReply("sum", 0, 0, np.array([[1], [2]])))
    with pytest.raises(PlanViolation, match="two different sums"):
        register.add(PartitionReply("sum", 0, 0, np.array([[1], [3]])))
    with pytest.raises(PlanViolation, match="gave no sum"):
        register.answers()
