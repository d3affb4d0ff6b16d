"""The records of a CSV file, as texts: :class:`CsvRecords`.

A CSV file holds records as spreadsheets and databases write them: a cell in quotes may hold line breaks, and a quote
in it is doubled. One record more or less, written so, changes one record of the file. A quote that is opened and not
closed by one before a delimiter or the end of a line, within a million characters, ends with its own line. So a stray
quote, which no such writer makes, costs its own record, unless a later cell in quotes begins with a delimiter. Blank
lines are not records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import TextIOWrapper
from typing import IO, TextIO

CHUNK = 2**17  # characters that are parsed at once: what fits into a processor's cache
DELIMITERS = ",;\t"
_LONGEST = 2**20  # characters of a record with line breaks in it


class CsvRecords:
    """Splits lines into records; ``delimiter`` is that of the header line which has most of them."""

    def __init__(self, header: str) -> None:
        self.delimiter = max(DELIMITERS, key=header.count)
        # Quotes that close on their line may be followed by anything. Those with line breaks in them must be followed
        # by a delimiter or the end of a line.
        other = f"[^{self.delimiter}\n]*+"
        one_line = rf'"[^"\n]*+(?:""[^"\n]*+)*+"{other}'
        within = '"[^"]*+(?:""[^"]*+)*+'
        cell = rf'(?>{one_line}|{within}"(?=[{self.delimiter}\n]|\Z)|(?!"){other})'
        self._record = re.compile(rf"{cell}(?:{self.delimiter}{cell})*+(?:\n|\Z)")
        self._open = re.compile(f"(?:{cell}{self.delimiter})*+{within}")

    def read(self, file: TextIO) -> Iterator[tuple[list[str], int]]:
        """Yield records with the ends of their lines, some at a time, and how many characters were read for them."""
        while lines := file.readlines(CHUNK):
            records = self.join(lines, file)
            read = sum(map(len, records))
            yield [record for record in records if not record.isspace()], read

    def join(self, lines: list[str], file: TextIO) -> list[str]:
        """Return the records of these lines, and of as many more as the last one needs."""
        if not any('"' in line for line in lines):
            return lines
        records, place = [], 0
        while place < len(lines):
            end = place + self._line_count(lines, place, file)
            records.append("".join(lines[place:end]))
            place = end
        return records

    def _line_count(self, lines: list[str], start: int, file: TextIO) -> int:
        """The number of lines of the record that begins at a line; 1 if a quote in it is not closed."""
        text, end, length = lines[start], start + 1, len(lines[start])
        while not (record := self._record.match(text)):
            count, is_open = end - start, self._open.fullmatch(text)
            while is_open and end - start < 2 * count and length <= _LONGEST:
                if end == len(lines):
                    lines.extend(file.readlines(1))
                if end == len(lines):
                    break
                length, end = length + len(lines[end]), end + 1
            if end - start == count:
                return 1
            text = "".join(lines[start:end])
        return text.count("\n", 0, record.end() - 1) + 1


def open_text(file: IO[bytes]) -> TextIO:
    """Return the file as text; bytes that are not UTF-8 are replaced."""
    return TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
