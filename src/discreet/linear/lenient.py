"""Lazy queries of polars, DuckDB and pyarrow in which a cell that cannot be parsed is missing.

These libraries stop at the first such cell and quote it, or its whole line, in the exception. Whether a query stops
would then depend on one record. So the query itself is changed, by its public text: strict casts become lenient ones,
and parsers of CSV files leave out what they cannot parse. Where no cell fails, the result is the same to the bit.

A query that cannot be rewritten is used as it is. One that raises on the way ends with the sentence of
:func:`~discreet.linear.parquet.guarded`, which quotes nothing; that it ends tells that some record cannot be
evaluated, and docs/scale.md says so. No record is seen here: the guarantee is for the rows that a query yields.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from typing import Any

_MOST_TEXT = 2**20  # characters of a plan that are rewritten: a longer one holds a table
_VIEW = "discreet_source"  # what DuckDB calls a relation while another query is asked beside it
_CSV_READERS, _CSV_FILES = ("read_csv", "read_csv_auto"), (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def lenient_lazy_frame(frame: Any) -> Any:
    """A polars LazyFrame with lenient casts and CSV parsers; the frame itself if its plan cannot be rewritten."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the JSON form of a plan is deprecated
            text = frame.serialize(format="json")
            if len(text) > _MOST_TEXT:
                return frame
            plan = json.dumps(_rewritten(json.loads(text), _lenient_plan))
            return type(frame).deserialize(io.StringIO(plan), format="json")
    except Exception:
        return frame


def _rewritten(node: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A plan of lists and dictionaries with every dictionary changed, the inner ones first."""
    if isinstance(node, list):
        return [_rewritten(part, change) for part in node]
    if not isinstance(node, dict):
        return node
    return change({key: _rewritten(part, change) for key, part in node.items()})


def _lenient_plan(changed: dict[str, Any]) -> Any:
    if "ignore_errors" in changed:
        changed["ignore_errors"] = True
    if changed.get("options") == "Strict" and "dtype" in changed:
        changed["options"] = "NonStrict"
    if changed.get("strict") is True:  # of texts that are parsed as numbers, dates or times
        changed["strict"] = False
    return changed


def lenient_relation(relation: Any) -> Any:
    """A DuckDB relation with TRY_CAST for CAST, whose CSV parsers leave out the records that they cannot parse.

    DuckDB has no parser of CSV files that leaves out the cell alone, and moves casts into the one it has. The
    relation itself comes back if its query cannot be rewritten.
    """

    def told(text: str) -> Any:
        return relation.query(_VIEW, text).fetchall()[0][0]

    def parsed(text: str) -> Any:
        return json.loads(told(f"SELECT json_serialize_sql({_quoted(text)})"))

    def csv_file(path: str) -> Any:
        read = parsed(f"SELECT * FROM read_csv({_quoted(path)}, ignore_errors = true)")
        return read["statements"][0]["node"]["from_table"]

    try:
        changed = json.dumps(
            _rewritten(parsed(relation.sql_query()), lambda node: _lenient_sql(node, csv_file))
        )
        found = relation.query(_VIEW, told(f"SELECT json_deserialize_sql({_quoted(changed)}::JSON)"))
        same = (found.columns, found.types) == (relation.columns, relation.types)
        return found if same else relation
    except Exception:
        return relation


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _lenient_sql(changed: dict[str, Any], csv_file: Callable[[str], Any]) -> Any:
    if "try_cast" in changed:
        changed["try_cast"] = True
    if changed.get("type") == "BASE_TABLE" and str(changed.get("table_name")).lower().endswith(_CSV_FILES):
        return csv_file(changed["table_name"]) | {"alias": changed["alias"]}
    function = changed.get("function") if changed.get("type") == "TABLE_FUNCTION" else None
    if function and function["function_name"] in _CSV_READERS:
        example = csv_file("")["function"]
        given = "arguments" if "arguments" in example else "children"
        function[given] = [*function[given], example[given][-1]]
    return changed
