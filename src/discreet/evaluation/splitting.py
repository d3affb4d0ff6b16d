"""Training and test records that pay side by side: :func:`split`.

Every record decides by a coin of its own on which side it is: a hash of its cells under a secret key. The first copy
of a record has one coin, the second copy another one, and so on, so that equal records are dealt like any others.
With ``unit``, a person decides: the coin is a hash of the person's id alone, and all rows of a person go together.

**What is proved** (docs/mathematics.md, "Training and test"). For every key, one record more adds one record to one
side and leaves the other side as it was. So what both sides release together, the test after having seen the model,
costs the larger of both budgets under add-remove neighbours, not their sum. Rows come in the order of their hashes: a
side is a function of which records there are, not of their order.

A split by row number, as ``train_test_split`` makes it, has no such theorem: one record more moves all records behind
it, and with them anybody from one side to the other. Nor has one whose coins are drawn anew in every session: a
record may be a training record today and a test record tomorrow. Keep ``key`` to make the same split again.

>>> import numpy as np
>>> x = np.arange(2000.0).reshape(1000, 2)
>>> train, test = split(x, test=0.3, key=b"thirty-two bytes kept by you only")
>>> len(train) + len(test), 200 < len(test) < 400
(1000, True)
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.certificate import Certificate
from discreet.core.arrays import is_tensor, to_numpy
from discreet.core.columns import unmasked
from discreet.core.fp_errors import ignore_fp_errors
from discreet.core.grouping import canonical_user_id
from discreet.errors import InvalidParameter, PlanViolation, probability
from discreet.guarantee import Bounds, Guarantee
from discreet.linear.inputs import cells_of, column_values, is_frame, names_of
from discreet.linear.rows_alone import row_count, rows_of
from discreet.linear.sources import source_of

_SHORTEST_KEY = 16
_MISSING = b"m"


class Split(tuple[Any, ...]):
    """The sides of a split, to be unpacked: ``train, test``; for several tables ``x_train, x_test, y_train, y_test``.

    ``key`` makes the same split again, and tells who is on which side: keep it as you keep the records.
    """

    key: bytes

    @property
    def digest(self) -> str:
        """What names this split in public: the SHA-256 of its key."""
        return hashlib.sha256(b"discreet split\0" + self.key).hexdigest()

    def together(self, train: Certificate, test: Certificate) -> Guarantee:
        """What was given away on both sides together, from the certificates of either side.

        Guarantee: the larger epsilon and the larger delta of what the two ledgers promise, by parallel composition,
        if the one has paid for releases of the training side and the other for those of the test side of this split
        only; a certificate does not name its records. Certificates that do not hold, or of other neighbours than
        add-remove, are refused.
        """
        return together(train, test)


def together(train: Certificate, test: Certificate) -> Guarantee:
    """See :meth:`Split.together`."""
    for name, certificate in (("train", train), ("test", test)):
        if not isinstance(certificate, Certificate):
            raise InvalidParameter(name, type(certificate).__name__, "must be a Certificate.")
        certificate.verify()
        if not certificate.trusted:
            raise PlanViolation(f"A seed made the noise of the {name} side; it promises nothing.")
    ours, theirs = train.together, test.together
    if (ours.neighbours, ours.group_size, ours.unit) != (theirs.neighbours, theirs.group_size, theirs.unit):
        raise PlanViolation("The two sides protect different units or neighbours; they cannot be compared.")
    if ours.neighbours != "add-remove":
        raise PlanViolation(
            "Sides are paid for in parallel under add-remove neighbours only: who takes another's place may stand on "
            "the other side, and then both change. Add both budgets."
        )
    epsilon = Bounds(
        max(ours.epsilon.lower, theirs.epsilon.lower), max(ours.epsilon.upper, theirs.epsilon.upper)
    )
    both = replace(ours, epsilon=epsilon, delta=max(ours.delta, theirs.delta))
    return replace(both, observer="sees every release of both")


@ignore_fp_errors
def split(*tables: Any, test: float, unit: Any = None, key: bytes | None = None) -> Split:
    """Deal the records of a table, or of several with the same rows, to a training and a test side.

    Tables are frames of pandas or polars, pyarrow tables, numpy arrays or sparse matrices; the sides are of the same
    kind, in the order of their coins. ``test`` is the chance of a record to be tested. ``unit`` is the column of the
    first table that says whose record it is, or an array of ids; rows without an id are each on their own.

    ``key`` is secret, of at least 16 bytes; by default a new one is drawn, and kept in the result. Whoever knows the
    key and the result of a side may learn on which side a record would be, never whether it is there.

    Guarantee: see the module's text. Refusals depend on types and shapes alone. Missing cells are all equal.
    """
    share = probability("test", test, remedy="It is the chance of a record to be tested, such as 0.3.")
    if not tables:
        raise InvalidParameter("tables", (), "must be a table, or several with the same rows.")
    secret = _secret(key)
    for table in tables:
        if not isinstance(table, list) and source_of(table) is not None:
            remedy = "must be in memory, to be dealt: collect it; discreet split deals CSV and Parquet files."
            raise InvalidParameter("tables", type(table).__name__, remedy)
    rows = {row_count(table) for table in tables}
    if len(rows) > 1:
        raise InvalidParameter("tables", "of different lengths", "must have the same rows.")
    ids = None if unit is None else unit_ids(tables[0], unit, *rows)
    coins, order = _coins(tables, ids, secret)
    tested = coins[order] < share
    sides = [
        rows_of(table, rows_of_side) for table in tables for rows_of_side in (order[~tested], order[tested])
    ]
    result = Split(sides)
    result.key = secret
    return result


def _secret(key: object) -> bytes:
    if key is None:
        return os.urandom(32)
    if not isinstance(key, bytes) or len(key) < _SHORTEST_KEY:
        remedy = f"must be at least {_SHORTEST_KEY} secret bytes, such as secrets.token_bytes(32); keep them."
        raise InvalidParameter("key", type(key).__name__, remedy)
    return key


def unit_ids(table: Any, unit: Any, rows: int) -> list[bytes | None]:
    """Whose record each row is, by a column or an array, in bytes; None for nobody, as for a fit."""
    if isinstance(unit, str):
        if not is_frame(table):
            raise InvalidParameter("unit", unit, "names a column, and the table has no named columns.")
        if unit not in names_of(table):
            remedy = (
                "is not a column of the table: name one that says whose a row is, or give an id for each row."
            )
            raise InvalidParameter("unit", unit, remedy)
        values = column_values(table, unit)
    else:
        values = cells_of(unit)
        if values.shape != (rows,):
            raise InvalidParameter("unit", values.shape, "must have an id for each row.")
    people = map(canonical_user_id, values.tolist())
    first: dict[Any, Any] = {}  # equal ids are one person, as for a fit, however they are written
    return [None if person is None else _cell(first.setdefault(person, person)) for person in people]


def _coins(
    tables: tuple[Any, ...], ids: list[bytes | None] | None, key: bytes
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A number from [0, 1) for each row, and the order of the rows by what they are hashed to."""
    short = hashlib.sha256(key).digest()
    whose = [] if ids is None else [[cell or _MISSING for cell in ids]]
    records = [
        hashlib.blake2b(b"".join(parts), key=short, digest_size=32).digest()
        for parts in zip(*_columns_in_bytes(tables), *whose, strict=True)
    ]
    copies: dict[bytes, int] = {}
    tickets = []
    for record in records:
        copies[record] = copies.get(record, 0) + 1
        tickets.append(_hash(short, b"record", record, copies[record]))
    deciding = tickets
    if ids is not None:
        deciding = [
            ticket if cell is None else _hash(short, b"unit", cell, 0)
            for cell, ticket in zip(ids, tickets, strict=True)
        ]
    coins = np.array([int.from_bytes(ticket[:6], "big") for ticket in deciding]) * 2.0**-48
    order = sorted(range(len(tickets)), key=tickets.__getitem__)
    return coins.reshape(len(tickets)), np.array(order, np.int64)


def _hash(key: bytes, kind: bytes, content: bytes, copy: int) -> bytes:
    return hashlib.blake2b(
        content + struct.pack("<q", copy), key=key, digest_size=16, person=kind.ljust(16, b"\0")
    ).digest()


def _columns_in_bytes(tables: tuple[Any, ...]) -> Iterator[list[bytes]]:
    for table in tables:
        if issparse(table):
            yield _sparse_rows(table)
        elif is_frame(table):
            for name in names_of(table):
                yield _cells(column_values(table, name))
        elif isinstance(table, list | tuple):  # whose type would come from its cells
            yield [_row_bytes(row) for row in table]
        elif hasattr(table, "to_numpy") and not isinstance(getattr(table, "dtype", None), np.dtype):
            yield _cells(cells_of(table))  # a column of which numpy would make others, beside a missing cell
        else:
            array = np.asarray(table.to_numpy() if hasattr(table, "to_numpy") else unmasked(table))
            array = array.reshape(len(array), math.prod(array.shape[1:]))
            if array.dtype.kind in "fiub":
                yield _number_rows(array)
            else:
                for column in array.T:
                    yield _cells(column)


def _number_rows(array: NDArray[Any]) -> list[bytes]:
    """The rows as bytes. That a column holds floats, not integers, plays no part: one missing cell does that."""
    wide = array.astype(np.float64) + 0.0  # there is one zero, not two
    wide[np.isnan(wide)] = np.nan  # and one NaN
    rest = _rest(array, wide) if array.dtype.kind in "iu" else np.zeros(wide.shape)
    both = np.concatenate([wide, rest.astype(np.float64)], axis=1)  # integers beyond 2**53 differ in the rest
    return [row.tobytes() for row in both]


def _rest(array: NDArray[Any], wide: NDArray[np.float64]) -> NDArray[Any]:
    """Integers minus their nearest floats, of which the largest is one more than its type holds."""
    most = np.iinfo(array.dtype).max
    beyond = wide >= float(most)
    near = np.where(beyond, 0.0, wide).astype(array.dtype)
    return np.asarray(np.where(beyond, array - array.dtype.type(most), array - near))


def _sparse_rows(table: Any) -> list[bytes]:
    rows = table.tocsr()
    rows.sum_duplicates()
    rows.eliminate_zeros()
    values = rows.data.astype(np.float64)
    return [
        rows.indices[start:end].astype("<i8").tobytes() + values[start:end].tobytes()
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]


def _cells(column: NDArray[Any]) -> list[bytes]:
    """Each cell in bytes that say where they end."""
    return [_cell(value) for value in column.tolist()]


def _row_bytes(row: Any) -> bytes:
    cells = row if isinstance(row, list | tuple | np.ndarray) else [row]
    return struct.pack("<q", len(cells)) + b"".join(map(_cell, cells))


def _array_bytes(array: NDArray[Any]) -> bytes:
    """An image or an embedding: its text would leave out most of the numbers, and different ones would be equal."""
    shape = struct.pack(f"<{array.ndim + 1}q", array.ndim, *array.shape)
    if array.dtype.kind in "fiub":
        return b"a" + shape + _number_rows(array.reshape(1, array.size))[0]
    return b"a" + shape + b"".join(_cells(array.reshape(-1)))


def _cell(value: Any) -> bytes:
    """A cell in bytes: equal for equal cells, different for different ones, and all missing ones are equal."""
    try:
        if getattr(value, "ndim", 0):
            return _array_bytes(to_numpy(value) if is_tensor(value) else np.asarray(value))
        if isinstance(value, dict):
            return b"d" + _row_bytes([part for item in value.items() for part in item])
        if isinstance(value, list | tuple):
            return b"l" + _row_bytes(value)
        if value is None or value != value:
            return _MISSING
        if isinstance(value, float) and not value.is_integer():
            return b"n" + struct.pack("<d", value)
        if isinstance(value, int | float):
            return _text(b"i", str(int(value)))
        if isinstance(value, str):
            return _text(b"s", value)
        return _text(b"o", f"{type(value).__name__} {value!r}")
    except Exception:  # whatever a cell may raise: no record may stop the split
        return _MISSING


def _text(kind: bytes, text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return kind + struct.pack("<q", len(content)) + content
