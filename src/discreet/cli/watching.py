"""A table in a file, read with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from discreet.cli.shell import progress

if TYPE_CHECKING:
    from discreet.linear.schema import Column, Unit
    from discreet.linear.tables import Source, Table


def watched(
    what: str, source: Source, columns: Mapping[str, Column | Unit], keep: Sequence[str] = ()
) -> Iterator[Table]:
    """The chunks of a table, with a progress bar."""
    with progress() as bar:
        task = bar.add_task(what, total=1.0)
        for chunk in source.chunks(columns, keep):
            yield chunk
            bar.update(task, completed=source.progress())
