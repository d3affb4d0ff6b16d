"""The security scorecard: 31 attacks on the installed package, as an outsider would try them.

    python benchmarks/scorecard [--rows 1,2,24] [--quick] [--twins] [--json]

Each row prints P (withstood), F (broken) or - (not there to be attacked), and why; the last line counts. Ends with
code 1 if a row fails. ``--twins`` plays the same attacks on broken twins, each of which must be called F.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import bad_records  # noqa: F401
import durability  # noqa: F401
import parameters  # noqa: F401
import precision  # noqa: F401
import proof  # noqa: F401
import training_loop  # noqa: F401
from card import ROWS, played, twins_played

ADMITTED = "NOT PROTECTED"
"""A row that says so passes, and is not counted among those that pass strictly."""

QUICK = (9, 10, 11, 12, 18, 19, 27, 31)
"""Rows that take no time worth speaking of: they are played by the tests, with their twins."""


def chosen_rows(arguments: argparse.Namespace) -> list[int]:
    if arguments.rows:
        return [int(number) for number in arguments.rows.split(",")]
    return list(QUICK) if arguments.quick else sorted(ROWS)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="Only these, such as 1,2,24.")
    parser.add_argument("--quick", action="store_true", help="Only rows that take a moment.")
    parser.add_argument("--twins", action="store_true", help="Attack the broken twins: all must be F.")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    play, marks, told = (twins_played if arguments.twins else played), [], []
    for number in chosen_rows(arguments):
        verdict = play(ROWS[number])
        marks.append(verdict.mark)
        told.append({"row": number, "check": ROWS[number].title, **verdict._asdict()})
        if not arguments.json:
            print(f"{number:>2} {verdict.mark} {ROWS[number].title}: {verdict.why}", flush=True)
    counts = {mark: marks.count(mark) for mark in "PF-"}
    if arguments.json:
        print(json.dumps({"rows": told, "counts": counts}, indent=2))
    else:
        used = sum(os.times()[:4])
        print(f"{counts['P']} P, {counts['F']} F, {counts['-']} - of {len(marks)} rows; {used:.0f} s of CPU")
        lenient = [row["row"] for row in told if row["mark"] == "P" and ADMITTED in row["why"]]
        if lenient:  # they pass because every page says what they do not protect
            print(f"strictly {counts['P'] - len(lenient)} P: {lenient} say where they do not protect")
    return int(counts["P"] > 0 if arguments.twins else counts["F"] > 0)


if __name__ == "__main__":
    sys.exit(main())
