"""The arrows of the design: imports point left only, and heavy packages stay in their own room."""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "discreet"

# What each room may import of the others. A room that is missing here may import nothing.
PROOF = ["errors", "guarantee", "events", "accounting", "calibrate"]
CHANCE = ["arrays", "draws", "discrete", "randomness", "noise", "hardened", "clipping", "sampling"]
ALLOWED = {name: set(PROOF[:index]) for index, name in enumerate(PROOF)} | {
    "arrays": {"errors"},
    "draws": set(),
    "discrete": {"errors", "draws"},
    "randomness": {"errors", "draws", "discrete"},
    "noise": {"errors", "events", "arrays", "randomness"},
    "hardened": {"errors", "events", "arrays", "noise"},
    "clipping": {"errors", "events"},
    "sampling": {"errors", "events", "randomness"},
    "mechanisms": {*PROOF, *CHANCE},
    "mean": {*PROOF, *CHANCE, "mechanisms"},
    "stage": {"errors", "events", "clipping", "sampling", "randomness"},
    "documents": {"errors"},
    "explanation": {"guarantee", "stage"},
    "plan": {*PROOF, "sampling", "stage", "documents", "explanation"},
    "recipe": {*PROOF, "sampling", "stage", "plan"},
    "prices": {*PROOF, "clipping", "stage", "plan"},
    "explore": {*PROOF, "stage", "explanation", "plan", "recipe", "prices"},
    "trials": {"errors", "accounting", "randomness"},
    "selection": {*PROOF, "randomness", "trials", "ledger"},
    "ledger": {*PROOF},
    "certificate": {*PROOF, "documents", "explanation", "plan", "ledger"},
    "linear": {
        *PROOF,
        *CHANCE,
        "mechanisms",
        "documents",
        "stage",
        "plan",
        "recipe",
        "ledger",
        "certificate",
        "selection",
    },
    "pytorch": {*PROOF, *CHANCE, "documents", "stage", "plan", "recipe", "ledger", "certificate"},
}
NUMERICS = {"numpy", "scipy"}
THIRD_PARTY = dict.fromkeys(ALLOWED, NUMERICS) | {
    "draws": NUMERICS | {"numba"},
    "discrete": NUMERICS | {"numba"},
    "clipping": NUMERICS | {"numba"},
    "randomness": NUMERICS | {"cryptography"},
    "ledger": {"sqlalchemy", "psycopg"},
    "certificate": {"cryptography"},
    "linear": NUMERICS | {"numba", "llvmlite", "sklearn", "rich"},
    "pytorch": NUMERICS | {"numba", "llvmlite", "torch", "safetensors", "rich"},
}


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= (
                {f"discreet.{alias.name}" for alias in node.names}
                if node.module == "discreet"
                else {str(node.module)}
            )
    return found


def violations(source: dict[Path, set[str]]) -> list[str]:
    wrong = []
    for path, names in source.items():
        here = room(path)
        if here == "__init__":
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "discreet":
                there = rest[0] if rest else "__init__"
                if there != here and there not in ALLOWED.get(here, set()):
                    wrong.append(f"{here} imports {there}")
            elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(here, set()):
                wrong.append(f"{here} imports {top}")
    return wrong


def test_arrows_point_left():
    source = {path: imports(path) for path in SOURCE.rglob("*.py")}
    assert len(source) > 4
    assert violations(source) == []


def test_the_check_catches_a_backward_arrow():
    broken = {SOURCE / "events.py": {"discreet.accounting.account", "torch"}}
    assert sorted(violations(broken)) == ["events imports accounting", "events imports torch"]
