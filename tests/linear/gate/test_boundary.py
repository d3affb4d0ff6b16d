"""Strategies of linear and additive fits see released values only: no module of theirs comes near a row or a sum."""

import ast
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from discreet.linear.gate.records import CATALOGUE

SOURCE = Path(__file__).parents[3] / "src" / "discreet" / "linear"
MODELS = {SOURCE / "additive" / "additive_model.py"}
"""What was fitted predicts rows that its user has."""

MODULES = {
    "discreet.linear.gate.record_store",
    "discreet.linear.gate.adding",
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
        "from discreet.linear.gate.record_store import RecordStore",
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
    "Blocks.blocks": "Bins Cells ColumnSums Crossings EvenBins HatCells PairCells Rows TableRows Values",
    "Cells.view": "ClassOf TargetBin TargetHalfOctave WindowBin",
    "Values.view": "RankProducts TargetMoments TargetOffset",
    "Rows.view": "Offset",
    "TableRows.view": "ClassOf",
    "EvenBins.columns": "Columns",
    "ColumnSums.columns": "Columns",
    "RankProducts.ranks": "Ranks",
    "Crossings.ranks": "Ranks",
    "Crossings.residual": "Residual",
    "PairCells.ranks": "Ranks",
    "PairCells.residual": "Residual",
    "Residual.basis": "Basis",
    "Residual.target": "Target",
    "HalfOctaves.view": "RowNorms Scores StandardNorms WhiteNorms",
    "WhiteNorms.coordinates": "Whitened",
    "SecondMoments.view": "CurveDirections StandardRows",
    "CurveDirections.basis": "Basis",
    "ClippedGradient.coordinates": "Diagonal SmoothCurves Standardised Whitened",
    "ClippedGradient.target": "Target",
    "Scores.coordinates": "Diagonal SmoothCurves Standardised Whitened",
    "Scores.target": "Target",
    "SmoothCurves.basis": "Basis",
    "ScoreLine.scores": "Scores",
    "CountExcess.scores": "Scores",
    "NewtonStep.white": "Whitened",
    "NewtonStep.target": "Target",
    "NewtonStep.scale": "Scale",
    "Basis.inputs": "Columns",
    "Basis.curves": "Curve",
    "Basis.pairs": "Pair",
}
"""The parts of the catalogue that a field of a query or view may hold. They are refused at once where they differ."""


def parts_of(hint):
    """The dataclasses of the gate in a type."""
    if is_dataclass(hint):
        return {hint} if hint.__module__.startswith("discreet.linear.gate.") else set()
    return set().union(*map(parts_of, get_args(hint)))


def test_the_catalogue_says_which_view_goes_with_which_query():
    found, left, seen = {}, list(CATALOGUE), set(CATALOGUE)
    while left:
        kind = left.pop()
        for name, hint in get_type_hints(kind).items():
            if parts := parts_of(hint):
                found[f"{kind.__name__}.{name}"] = " ".join(sorted(part.__name__ for part in parts))
                left += parts - seen
                seen |= parts
    assert found == PAIRS
