"""The number of records that may be known to everybody."""

from __future__ import annotations

from discreet.errors import InvalidParameter, whole
from discreet.guarantee import Neighbours


def public_records(records: int | None, rows: int, neighbours: Neighbours, table: str = "x") -> int:
    """The number of records that everybody may know: of the rows of ``table``, or the declared one."""
    if neighbours == "add-remove":
        if records is None:
            requirement = (
                "must be declared: under add-remove neighbours the number of rows is private. "
                'Give a public number of records, or use Budget(..., neighbours="replace-one").'
            )
            raise InvalidParameter("records", records, requirement)
        return whole("records", records, at_least=1, at_most=10**12)
    if rows == 0:
        raise InvalidParameter(
            table, "no rows", "must hold at least one record under replace-one neighbours."
        )
    if records is not None and whole("records", records, at_least=1) != rows:
        requirement = "is not the number of rows, which replace-one neighbours make public; leave it out."
        raise InvalidParameter("records", records, requirement)
    return rows
