"""Strategies of linear and additive fits see released values only: no module of theirs comes near a row or a sum."""

import ast
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from discreet.linear.gate import compiled_sums
from discreet.linear.gate.records import RecordQuery
from discreet.linear.row_views import column_views, coordinates, curve_bases, targets
from discreet.trusted.queries import Block, Blocks, View

SOURCE = Path(__file__).parents[3] / "src" / "discreet" / "linear"
MODELS = {SOURCE / "additive" / "additive_model.py"}
"""What was fitted predicts rows that its user has."""

MODULES = {
    "discreet.linear.kernels.rowwise",
    "discreet.linear.kernels.kernel",
    "discreet.linear.kernels.whole_products",
    "discreet.linear.kernels.centred",
    "discreet.linear.kernels.tiled_kernel",
    "discreet.core.noise",
    "discreet.core.clipping",
    "discreet.core.randomness",
    "discreet.trusted.session",
    "discreet.trusted.permits",
}
NAMES = {
    *("_store", "_total", "_row_count", "_table", "_kept", "chunks", "everybody"),
    *("BoundedSum", "add_noise", "RecordStore", "release", "_add_noise", "total", "urandom", "default_rng"),
}


def strategies():
    paths = [path for room in ("glm", "additive") for path in (SOURCE / room).glob("*.py")]
    return [path for path in paths if path not in MODELS]


def forbidden(tree):
    """What a strategy must not import or name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} & MODULES | {alias.name for alias in node.names} & NAMES
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & NAMES
        elif isinstance(node, ast.Name):
            found |= {node.id} & NAMES - {"total", "release"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & NAMES - {"total", "release"}
    return found


def test_no_strategy_comes_near_rows_or_sums():
    paths = strategies()
    assert len(paths) > 15
    found = {path.name: names for path in paths if (names := forbidden(ast.parse(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "twin",
    [
        "for chunk in records._store.chunks(): pass",
        "from discreet.linear.gate.records import RecordStore",
        "from discreet.core.noise import BoundedSum as Sum",
        "import discreet.linear.kernels.rowwise as kernels",
        "records._total(query, grid)",
        "getattr(records, '_store')",
        "stage.release(something)",
        "query.total(store, grid)",
    ],
)
def test_a_module_that_does_is_found(twin):
    """The broken twins."""
    assert forbidden(ast.parse(twin))


PAIRS = {
    "Blocks.blocks": "Block",
    "Blocks.of": "Data",
    "Cells.view": "View",
    "ClippedGradient.coordinates": "RowMap",
    "ClippedGradient.target": "View",
    "ColumnCells.view": "View",
    "ColumnSums.columns": "Columns",
    "EvenBins.columns": "Columns",
    "NewtonStep.scale": "Scale",
    "NewtonStep.target": "View",
    "NewtonStep.view": "View",
    "Rows.view": "View",
    "ScoreLine.scores": "Scores",
    "SecondMoments.view": "View",
}
"""The parts of the catalogue that a field of a query may hold. Others are refused when the query is made."""


def ours(hint):
    """The classes of this package in a type."""
    found = (
        {hint}
        if getattr(hint, "__module__", "").startswith(("discreet.trusted.", "discreet.linear."))
        else set()
    )
    return found.union(*map(ours, get_args(hint)))


def every(kind):
    """The dataclasses below a class."""
    below = {one for child in kind.__subclasses__() for one in every(child)}
    return below | ({kind} if is_dataclass(kind) else set())


def test_the_catalogue_says_which_part_goes_with_which_query():
    assert compiled_sums
    found = {}
    for kind in {Blocks, *every(Block), *every(RecordQuery)}:
        for name, hint in get_type_hints(kind).items():
            names = " ".join(sorted(one.__name__ for one in ours(hint) if one.__name__ != "Loss"))
            if names and name in kind.__dataclass_fields__:
                found[f"{kind.__name__}.{name}"] = names
    assert found == {name: parts for name, parts in PAIRS.items() if parts}


def test_views_are_in_the_files_of_views():
    """So that none of them is believed, and all of them are tried (test_views.py)."""
    places = {column_views, coordinates, curve_bases, targets}
    linear = {one for one in every(View) if one.__module__.startswith("discreet.linear.")}
    assert {one.__module__ for one in linear} <= {module.__name__ for module in places}
