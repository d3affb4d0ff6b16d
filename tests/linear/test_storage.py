"""Rows in memory or in a scratch file: the same bits, bounded memory, and nothing left behind."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array

from discreet.errors import InvalidParameter
from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    Storage,
)
from discreet.linear.gate import records as store


class Piece(NamedTuple):
    x: np.ndarray
    note: object
    none: np.ndarray | None = None


def pieces(count=5, rows=1000):
    return [
        Piece(np.arange(k, k + rows, dtype=np.float32).reshape(-1, 2), f"piece {k}") for k in range(count)
    ]


def table(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 3)) * 10
    return x, (x[:, 0] - x[:, 1] + rng.logistic(size=rows) > 0).astype(int)


@pytest.mark.parametrize("memory", [0, 5000, 2**30])
def test_what_is_kept_comes_back_as_it_was_again_and_again(memory):
    kept = Storage(memory).shelf().keep(pieces())
    for _ in range(3):
        for before, after in zip(pieces(), kept, strict=True):
            assert isinstance(after, Piece)
            assert after.x.dtype == np.float32
            np.testing.assert_array_equal(after.x, before.x)
            assert (after.note, after.none) == (before.note, None)
    assert len(kept) == 5
    assert kept.on_disk == (memory < 5 * 4000)


def test_all_arrays_are_counted_and_what_fits_stays_in_memory():
    shelf = Storage(9000).shelf()
    first = shelf.keep([(np.zeros(500), np.zeros(500))])  # 8000 bytes
    second = shelf.keep([(np.zeros(100),), (np.zeros(100),)])  # 800 more, twice
    assert not first.on_disk
    assert second.on_disk
    assert [piece[0].flags.writeable for piece in second] == [True, False]


def test_arrays_stay_right_after_their_pages_were_given_back():
    kept = Storage(0).shelf().keep(pieces())
    held = [piece.x for piece in kept]  # all of them passed, and their pages forgotten
    for before, after in zip(pieces(), held, strict=True):
        np.testing.assert_array_equal(after, before.x)


def test_the_scratch_file_has_no_name_and_is_gone_with_the_last_piece(tmp_path):
    def files():
        return [f for f in os.listdir("/proc/self/fd") if str(tmp_path) in _target(f)]

    kept = Storage(0, tmp_path).shelf().keep(pieces())
    assert list(tmp_path.iterdir()) == []
    if os.path.isdir("/proc/self/fd"):
        assert len(files()) == 1
        assert all(_target(f).endswith("(deleted)") for f in files())
        del kept
        assert files() == []


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.mark.parametrize(
    "make",
    [
        lambda memory: PrivateLogisticRegression(1.0, bounds=(0, 10), unsafe_seed=3, memory=memory),
        lambda memory: PrivateLogisticRegression(1.0, unsafe_seed=3, memory=memory),
        lambda memory: PrivateLinearRegression(
            1.0, bounds=(0, 10), inference=True, unsafe_seed=3, memory=memory
        ),
        lambda memory: PrivateAdditiveClassifier(5.0, bounds=(0, 10), unsafe_seed=3, memory=memory),
    ],
    ids=["declared", "learnt", "regression", "additive"],
)
def test_models_are_the_same_to_the_bit(monkeypatch, make):
    x, y = table()
    expected = make(None).fit(x, y)
    monkeypatch.setattr(store, "_CHUNK", 3 * 700)
    found = make(0).fit(x, y)
    ask = "decision_function" if hasattr(found, "classes_") else "predict"
    np.testing.assert_array_equal(getattr(found, ask)(x), getattr(expected, ask)(x))
    assert found._settings() == expected._settings()  # where rows lie is none: certificates stay as they are


def test_sparse_rows_and_people_in_a_scratch_file(monkeypatch):
    x, y = table()
    ids = np.random.default_rng(1).integers(0, 900, len(x))
    monkeypatch.setattr(store, "_CHUNK", 3 * 700)

    def fitted(x, memory, **more):
        model = PrivateLogisticRegression(1.0, bounds=(0, 10), unsafe_seed=3, memory=memory)
        return model.set_params(unit="id" if more else None).fit(x, y, **more).coef_

    np.testing.assert_array_equal(fitted(csr_array(x), 0), fitted(csr_array(x), None))
    np.testing.assert_array_equal(fitted(x, 0, people=ids), fitted(x, None, people=ids))


@pytest.mark.parametrize("memory", [-1, float("nan"), "2 GB", True, 1.5])
def test_bad_memory_is_refused_before_anything_is_spent(memory):
    model = PrivateLogisticRegression(1.0, bounds=(0, 10), memory=memory)
    with pytest.raises(InvalidParameter, match="memory"):
        model.fit(*table(50))


def test_a_folder_that_is_none_or_full_is_told_by_name(tmp_path):
    with pytest.raises(InvalidParameter, match=r"memory\.folder.*must be a folder"):
        Storage(0, tmp_path / "nowhere")
    if os.path.exists("/dev/full"):
        shelf = Storage(0, tmp_path).shelf()
        with (
            open("/dev/full", "wb", buffering=0) as full,
            pytest.raises(InvalidParameter, match="No space left"),
        ):
            shelf._write(full, pieces()[0])


MEASURED = """
import resource, sys
import numpy as np
from discreet.linear.storage import Storage

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

before = anonymous()
kept = Storage(2**22).shelf().keep((np.ones((2**18,)),) for _ in range(200))  # 400 MB
total = sum(float(piece[0].sum()) for _ in range(2) for piece in kept)
assert total == 2 * 200 * 2**18, total
print(anonymous() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux only")
def test_four_hundred_megabytes_of_rows_take_a_few_of_memory():
    found = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 40
